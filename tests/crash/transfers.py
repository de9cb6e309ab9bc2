"""Kill the broker in the middle of transfers: moves, copies, discards and retries, beside traffic.

Each kind of transfer is started again and again by a `Carrier`, over the management API, while publishers publish into
its source and consumers take from its destination, policies change, and queues that may be lost with their messages are
purged and deleted. A kill counts for each kind of which a transfer was running. `journeys` keeps where each message may
be: a transfer that is running is a move that nobody sees, one that is over has moved what was confirmed before it began.
In the end each message is in one place, and copies are as many as there can be.
"""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from crash import moves
from crash.answers import LOGIN
from crash.journeys import CARRIED, DUE, EXPIRED, MAXLEN, NOWHERE, REJECTED, Death, Delivery, Journeys, Way
from crash.kills import VARIANTS, Totals, campaign, check_store, since, tally
from crash.ledger import MANY, BodyError, Id, read_body
from crash.link import Link, LostError, headers_of
from crash.load import STALL_SECONDS
from crash.moves import LEVELS, LINE, RECEIPTS, Drainer, Hasty, Lane, Mover, Queue, Worker, deaths_of
from crash.publisher import Crowd
from crash.site import Site, until
from pamqp import commands
from processes.running import free_port
from yarl import URL

MOVE, COPY, DISCARD, RETRY = ACTIONS = ("move", "copy", "discard", "retry")
EMPTIED_QUEUES, RETRIED = "emptied", "retried"
JUDGED = (*ACTIONS, EMPTIED_QUEUES, RETRIED)
"""Occurrences of which each campaign has at least one: messages of each kind of transfer, deleted queues, messages with retries."""
SPARE = 15
"""Kills beyond three times the number that is asked for, at most."""
PATH = "/api/leveret/queues/%2F"
RETRIES = "x-leveret-retries"
DOOMED = LEVELS
"""Priority of the messages that are discarded."""
TTL = 80
"""Milliseconds after which a message dies in `retry.work`."""
WINDOW = 15
"""Messages of each publisher without a verdict: few, as the transfers are what is tested."""
WARM_SECONDS = 20.0
REQUEST_SECONDS = 30.0
HELD_MILLISECONDS = 600
"""Longest time for which a queue holds what has moved there."""
LARGE_PART = 0.03
"""Part of the messages that have 300 KB, where they may: their files take longer than a commit."""
LARGER = 3_000_000
"""Octets of a third of the messages whose queue is deleted when they have moved."""
ENDED, DELETED = "ended", "deleted"
"""Moments at which some kills are: a transfer is over; a queue is deleted of which all messages have moved."""
FILES = ("--set", "storage.blob_threshold=65536")
QUEUES = (
    Queue(RECEIPTS),
    Queue("move.from"),
    Queue("move.to"),
    Queue("order.from"),
    Queue("order.to"),
    Queue("emptied.from"),
    Queue("emptied.to"),
    Queue("unsafe.from"),
    Queue("unsafe.to"),
    Queue("due.from"),
    Queue("due.to", {"x-allow-hold": True}),
    Queue("copy.from"),
    Queue("copy.to"),
    Queue("discard.from"),
    Queue("retry.work", {"x-message-ttl": TTL}, "retry.dead"),
    Queue("retry.dead"),
)
COPIES = "copy.to"
UNSAFE = ("unsafe.from", "unsafe.to")
LANES = (
    Lane((Way("move.from", ("move.from", "move.to", CARRIED)),), "move.from", 6),
    Lane((Way("order.from", ("order.from", "order.to", CARRIED), ordered=["order.to"]),), "order.from", 4),
    Lane(
        (
            Way(
                "unsafe.from",
                ("unsafe.from", "unsafe.to", CARRIED),
                ("unsafe.from", NOWHERE, MAXLEN),
                ("unsafe.to", NOWHERE, MAXLEN),
            ),
        ),
        "unsafe.from",
        2,
    ),
    Lane(
        (Way("due.from", ("due.from", LINE, CARRIED), (LINE, "due.to", DUE)),),
        "due.from",
        3,
        delays=(20, 120, HELD_MILLISECONDS),
        first="due.to",
    ),
    Lane((Way("copy.from"),), "copy.from", 2),
    Lane((Way("discard.from"),), "discard.from", 2, priorities=(None, 0)),
    Lane((Way("discard.from", ("discard.from", NOWHERE, MAXLEN)),), "discard.from", 3, priorities=(DOOMED,)),
    Lane(
        (
            Way(
                "retry.work",
                ("retry.work", "retry.dead", EXPIRED),
                ("retry.work", "retry.dead", REJECTED),
                ("retry.dead", "retry.work", CARRIED),
            ),
        ),
        "retry.work",
        3,
    ),
)
EMPTIED = Lane((Way("emptied.from", ("emptied.from", "emptied.to", CARRIED)),), "emptied.from", 0)
SMALL = ("order.from",)
"""Queues without large messages, which may be left behind by a kill and come later."""
POLICIES: tuple[dict[str, Any], ...] = (
    {"queue-mode": "lazy"},
    {"max-length": 10_000_000},
    {"message-ttl": 3_600_000},
    {"overflow": "reject-publish", "max-length": 10_000_000},
    {"delivery-limit": 1000},
)


class Publisher(Mover):
    def one(self, lane: Lane) -> bytes:
        """The octets of one more message."""
        self.large = 0.0 if lane.key in SMALL else LARGE_PART
        self.is_larger = lane is EMPTIED and self.rng.random() < 0.3
        return super().one(lane)

    def size(self) -> int:
        return LARGER if self.is_larger else super().size()


class Books:
    """The knowledge of transfers, beside the journeys.

    Args:
        journeys: take the observations.

    """

    def __init__(self, journeys: Journeys) -> None:
        self.journeys = journeys
        self.ledger = journeys.ledger
        self.least: Counter[Id] = Counter()
        """Copies that must be there of a message, since the last drain."""
        self.copies = 0
        """Copies that there may be of each."""
        self.found: Counter[Id] = Counter()
        self.counts: Counter[str] = Counter()
        self.moments = {moment: asyncio.Event() for moment in (ENDED, DELETED)}

    def standing(self, station: str, group: int | None = None) -> list[Id]:
        """Return the confirmed persistent messages that no consumer has taken from a station, of one group or of all."""
        return [
            token.id
            for token in self.journeys.tokens()
            if token.way.entry == station
            and group in {None, token.group}
            and token.persistent
            and token.safe
            and token.places == token.way.reach([station])
        ]

    def copied(self, idents: Sequence[Id]) -> None:
        """A copy of these, among others, is over."""
        self.least.update(idents)

    def copy_came(self, ident: Id, digest: bytes) -> None:
        """A copy was delivered, for the first time."""
        self.found[ident] += 1
        token = self.journeys.token(ident, "copy.from")
        if token is None:
            self.ledger.broke("O5", f"{COPIES}: {ident} was never in copy.from")
        elif token.digest != digest:
            self.ledger.broke("O5", f"{COPIES}: {ident} is not what was published")

    def copies_drained(self) -> None:
        """All copies are out of their queue: there are as many as there can be."""
        for ident in self.least.keys() | self.found.keys():
            found, least = self.found[ident], self.least[ident]
            if not least <= found <= self.copies:
                kind = "lost" if found < least else "duplicates"
                self.ledger.counts[kind] += 1
                self.ledger.broke(
                    "O1" if found < least else "O2",
                    f"{ident} has {found} copies, not {least} to {self.copies}",
                )
        self.least.clear()
        self.found.clear()
        self.copies = 0

    def retried(self, station: str, headers: dict[str, Any], deaths: Sequence[Death]) -> None:
        """Compare the number of retries of a message with that of its deaths."""
        died = sum(death.count for death in deaths)
        should = died - (station == "retry.dead")
        if (has := headers.get(RETRIES, 0)) != should:
            self.ledger.broke(
                "O5", f"{station}: a message that died {died} times says {has} retries, not {should}"
            )
        self.counts[RETRIED] += has > 0


class Slow(Worker):
    """Acks one message every now and then, so that some are left for others."""

    def handle(self, tag: int, ident: Id, deaths: Sequence[Death], *, redelivered: bool) -> None:
        asyncio.get_running_loop().call_later(0.02, self._ack, tag, self.held[tag])

    def _ack(self, tag: int, delivery: Delivery) -> None:
        if self.held.get(tag) is delivery and not self.leaving and not self.link.lost.done():
            self.settle(tag, self.journeys.acked)


class Counting(Slow):
    """A consumer of messages that are retried: rejects many until they have died three times."""

    books: Books

    def delivery(self, tag: int, body: bytes, *, redelivered: bool) -> None:
        headers = headers_of(self.link.header)
        self.books.retried(self.station, headers, deaths_of(headers))
        super().delivery(tag, body, redelivered=redelivered)

    def handle(self, tag: int, ident: Id, deaths: Sequence[Death], *, redelivered: bool) -> None:
        """Ack or reject by the number of earlier deaths; meanwhile others expire."""
        died = sum(death.count for death in deaths)
        if died >= 3:
            self.settle(tag, self.journeys.acked)
        elif self.rng.random() < 0.5:
            self.settle(tag, self.journeys.rejected)
        else:
            super().handle(tag, ident, deaths, redelivered=redelivered)


class CountingDrainer(Drainer):
    """Takes the rest of the messages that are retried."""

    books: Books

    def delivery(self, tag: int, body: bytes, *, redelivered: bool) -> None:
        headers = headers_of(self.link.header)
        self.books.retried(self.station, headers, deaths_of(headers))
        super().delivery(tag, body, redelivered=redelivered)


class CopyDrainer:
    def __init__(self, books: Books, link: Link, count: int) -> None:
        self.books, self.link, self.count = books, link, count
        self.taken = 0

    def delivery(self, tag: int, body: bytes, *, redelivered: bool) -> None:
        del redelivered
        self.taken += 1
        try:
            self.books.copy_came(*read_body(body))
        except BodyError as error:
            self.books.ledger.damaged(COPIES, str(error))
        self.link.settle(1, tag)

    def verdict(self, number: int, *, multiple: bool, ack: bool) -> None:
        """Fail: nothing is published."""
        raise AssertionError

    def came_back(self, body: bytes) -> None:
        """Fail: nothing is published."""
        raise AssertionError

    async def run(self, stall: float) -> None:
        """Take them until there are no more."""
        await self.link.open(1, self)
        await self.link.call(commands.Basic.Consume(queue=COPIES, consumer_tag="it"), 1)
        if not await until(lambda: self.taken >= self.count, stall, progress=lambda: self.taken):
            self.books.ledger.broke("O9", f"{COPIES} said {self.count} and delivered {self.taken}")
        await self.link.call(commands.Channel.Close(200, "", 0, 0), 1)


class Api:
    """The management API of a broker that may die at any time: then LostError is raised."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._session = aiohttp.ClientSession(
            headers={"authorization": LOGIN}, timeout=aiohttp.ClientTimeout(REQUEST_SECONDS)
        )

    async def send(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        try:
            async with self._session.request(
                method, URL(self._url + path, encoded=True), json=body
            ) as answer:
                content = await answer.read()
                is_json = answer.content_type == "application/json" and content
                return answer.status, await answer.json() if is_json else content
        except (aiohttp.ClientError, OSError) as error:
            raise LostError(str(error)) from None

    async def close(self) -> None:
        await self._session.close()


class Carrier:
    """Transfers of one kind between two queues, one after the other, some with a rate or a limit.

    Args:
        books: take the observations.
        api: of the broker.
        rng: what decides.
        action: the kind.
        source: the queue.
        body: of the requests.

    """

    limited = 0.2
    """Part of the transfers that have a limit."""

    def __init__(
        self, books: Books, api: Api, rng: random.Random, action: str, source: str, **body: Any
    ) -> None:
        self.books, self.api, self.rng = books, api, rng
        self.action, self.source, self.body = action, source, body
        self.is_running = False
        """True while one is known to run."""

    async def carry(self) -> dict[str, Any]:
        """Make one transfer to its end, or cancel it; returns its result, or {} if a queue is not there."""
        rng, body = self.rng, dict(self.body)
        if rng.random() < 0.5:
            body["rate"] = rng.choice((300, 2000, 10_000))
        if rng.random() < self.limited:
            body["limit"] = rng.randint(1, 300)
        is_cancelled = rng.random() < 0.15
        status, found = await self.api.send("POST", f"{PATH}/{self.source}/{self.action}", body)
        if status in {400, 404} and self.source in UNSAFE:
            return {}
        assert status == 202, (status, found)
        counted = 0
        while found["ended"] is None:
            self.is_running = True
            await asyncio.sleep(self.rng.choice((0.005, 0.02, 0.05)))
            method = "DELETE" if is_cancelled and self.rng.random() < 0.3 else "GET"
            status, found = await self.api.send(method, f"/api/leveret/transfers/{found['id']}")
            assert status == 200, (status, found)
            self.books.counts[self.action] += found["done"] - counted
            counted = found["done"]
        self.is_running = False
        if found["state"] == "failed" and self.source not in UNSAFE:
            self.books.ledger.broke("O10", f"a transfer failed: {found}")
        return dict(found)

    async def run(self) -> None:
        """Make transfers until the broker dies."""
        while True:
            await self.carry()
            await asyncio.sleep(self.rng.choice((0, 0.01)))


class Copier(Carrier):
    """Copies, which must be there when the transfer is over, and may be there once for each that has begun."""

    async def carry(self) -> dict[str, Any]:
        self.books.copies += 1
        standing = self.books.standing(self.source)
        found = await super().carry()
        if found["state"] == "done" and found["done"] == found["messages"]:
            self.books.copied(standing)
            self.books.moments[ENDED].set()
        return found


class Discarder(Carrier):
    """Discards, of which none comes back after the transfer is over."""

    limited = 0.0

    async def carry(self) -> dict[str, Any]:
        standing = self.books.standing(self.source, DOOMED)
        found = await super().carry()
        if found["state"] == "done":
            self.books.journeys.gone(standing)
            self.books.moments[ENDED].set()
        return found


class Emptier(Carrier):
    """Fills a queue, moves all of it to another, and deletes it as soon as everything has moved in memory."""

    def __init__(self, books: Books, api: Api, rng: random.Random) -> None:
        super().__init__(books, api, rng, MOVE, EMPTIED.key, destination="emptied.to")
        self.publisher = Publisher(books.journeys, rng, choice=())

    async def open(self, port: int) -> None:
        await self.publisher.open(port)
        await self._declare()

    async def _declare(self) -> None:
        await self.publisher.link.call(commands.Queue.Declare(queue=self.source, durable=True))

    async def carry(self) -> dict[str, Any]:
        """Fill, move, delete."""
        link, publisher = self.publisher.link, self.publisher
        link.check()
        count = self.rng.randint(1, 6)
        link.transport.write(b"".join([publisher.one(EMPTIED) for _ in range(count)]))
        if not await until(lambda: not publisher.out or link.lost.done(), REQUEST_SECONDS, 0.001):
            self.books.ledger.broke("O4", f"no verdicts within {REQUEST_SECONDS} s")
        link.check()
        status, found = await self.api.send("POST", f"{PATH}/{self.source}/{MOVE}", self.body)
        assert status == 202, (status, found)
        while found["ended"] is None and not 0 < found["messages"] == found["done"]:  # counted when it begins
            _, found = await self.api.send("GET", f"/api/leveret/transfers/{found['id']}")
        if 0 < found["messages"] == found["done"]:  # all of them, though perhaps not on disk yet
            self.is_running = found["ended"] is None
            await link.call(commands.Queue.Delete(queue=self.source))
            self.books.counts[EMPTIED_QUEUES] += 1
            self.books.moments[DELETED].set()
            await self._declare()
        self.is_running = False
        return dict(found)


async def disturb(api: Api, link: Link, rng: random.Random) -> None:
    """Change policies, and purge and delete queues whose messages may be lost, until the broker dies."""
    while True:
        await asyncio.sleep(rng.uniform(0, 0.05))
        roll = rng.random()
        name = rng.choice(UNSAFE)
        if roll < 0.5:
            body = {
                "pattern": r"^(move|order|copy|discard|emptied|unsafe)\.",
                "definition": rng.choice(POLICIES),
            }
            status, answer = await api.send("PUT", "/api/policies/%2F/changing", body)
            assert status in {201, 204}, answer
        elif roll < 0.7:
            await api.send("DELETE", "/api/policies/%2F/changing")
        elif roll < 0.9:
            await api.send("DELETE", f"/api/queues/%2F/{name}/contents")
        else:
            await link.call(commands.Queue.Delete(queue=name))
            await link.call(commands.Queue.Declare(queue=name, durable=True))


class Load(Crowd):
    """Publishers, consumers and transfers against one broker.

    Args:
        books: take the observations.
        rng: what decides.
        api: of the broker.

    """

    def __init__(self, books: Books, rng: random.Random, api: Api) -> None:
        journeys = books.journeys

        def luck() -> random.Random:
            return random.Random(rng.random())

        self.publishers = [Publisher(journeys, luck(), WINDOW, LANES) for _ in range(3)]
        counting = Counting(journeys, "retry.work", luck(), prefetch=20)
        counting.books = books
        self.consumers = [
            Hasty(journeys, "move.to", luck()),
            Hasty(journeys, "due.to", luck()),
            Slow(journeys, "move.from", luck(), prefetch=3),
            counting,
        ]
        self.emptier = Emptier(books, api, luck())
        self.carriers = [
            Carrier(books, api, luck(), MOVE, "move.from", destination="move.to"),
            Carrier(books, api, luck(), MOVE, "order.from", destination="order.to", where="size < 100000"),
            Carrier(books, api, luck(), MOVE, "unsafe.from", destination="unsafe.to"),
            Carrier(books, api, luck(), MOVE, "due.from", destination="due.to"),
            Copier(books, api, luck(), COPY, "copy.from", destination=COPIES),
            Discarder(books, api, luck(), DISCARD, "discard.from", where=f"properties.priority == {DOOMED}"),
            Carrier(books, api, luck(), RETRY, "retry.dead", max_retries=1_000_000),
            self.emptier,
        ]
        self.api, self.rng = api, luck()
        self.tasks: list[asyncio.Task[None]] = []

    async def open(self, port: int) -> None:
        """Connect everything, and begin to disturb."""
        await super().open(port)
        await self.emptier.open(port)
        self.disturber = await Link.connect(port)
        await self.disturber.open(1)

    def start(self) -> None:
        super().start()
        work = [carrier.run() for carrier in self.carriers]
        for coroutine in (*work, disturb(self.api, self.disturber, self.rng)):
            self.tasks.append(asyncio.ensure_future(_until_lost(coroutine)))

    @property
    def links(self) -> list[Link]:
        return [*super().links, self.emptier.publisher.link, self.disturber]

    @property
    def running(self) -> set[str]:
        return {carrier.action for carrier in self.carriers if carrier.is_running}

    async def died(self) -> None:
        """Take in what the broker had sent before it died."""
        await super().died()
        await asyncio.gather(*self.tasks)

    def check(self) -> None:
        for task in self.tasks:
            if task.done():
                task.result()


async def _until_lost(coroutine: Any) -> None:
    with contextlib.suppress(LostError):
        await coroutine


async def declare(port: int) -> None:
    link = await Link.connect(port)
    await link.open(1)
    for queue in QUEUES:
        await link.call(commands.Queue.Declare(queue=queue.name, durable=True, arguments=queue.table))
    await link.close()


async def drain(books: Books, port: int, stall: float) -> int:
    """Let everything come to rest, take it out of every queue, and judge what came; returns how many came."""
    journeys = books.journeys
    link = await Link.connect(port)
    await asyncio.sleep(HELD_MILLISECONDS / 1000 + 0.15)
    if not await _expired(link, stall):
        books.ledger.broke("O9", f"messages of retry.work have not expired within {stall} s")
    taken = 0
    for number, queue in enumerate(QUEUES, 1000):
        ready = await moves.depth(link, queue.name)
        if not ready:
            continue
        taken += ready
        if queue.name == COPIES:
            copies = await Link.connect(port)
            await CopyDrainer(books, copies, ready).run(stall)
            await copies.close()
            continue
        kind = CountingDrainer if queue.name.startswith("retry.") else Drainer
        drainer = kind(journeys, queue.name, link, ready)
        if isinstance(drainer, CountingDrainer):
            drainer.books = books
        await drainer.consume(number)
        await drainer.finish(stall)
        if drainer.delivered != ready:
            books.ledger.broke("O9", f"{queue.name} said {ready} and delivered {drainer.delivered}")
    books.copies_drained()
    journeys.finished()
    await link.close()
    await moves.settle(journeys, port)
    return taken


async def _expired(link: Link, stall: float) -> bool:
    """Wait until nothing is left that expires."""
    deadline = time.monotonic() + stall
    while await moves.depth(link, "retry.work"):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


async def _moment(books: Books, load: Load, rng: random.Random, lacking: str) -> None:
    """Wait for the moment of a kill: for a transfer of the kind that lacks kills, or one of the `moments`."""
    moment = rng.choice((None, None, *books.moments))
    if moment is None:
        await until(lambda: lacking in load.running, WARM_SECONDS)
        return
    books.moments[moment].clear()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(books.moments[moment].wait(), WARM_SECONDS)


def _has_seen(killed: Counter[str], counts: Counter[str], count: int) -> bool:
    """Return whether so many kills were during each kind of transfer, and all that is judged has occurred."""
    return min(killed[action] for action in ACTIONS) >= count and all(counts[what] for what in JUDGED)


async def transfers(
    home: Path,
    count: int,
    seed: int,
    *,
    say: Callable[[str], object] = print,
    enough: int = MANY,
    stall: float = STALL_SECONDS,
    drain_every: int = 2,
    **options: Any,
) -> Totals:
    """Kill a broker until `count` kills were in the middle of each kind of transfer.

    Args:
        home: an existing folder for the data.
        count: number of kills of each.
        seed: what decides.
        say: called with a line for each kill.
        enough: number of violations after which it is given up.
        stall: seconds without a delivery after which draining a queue is given up.
        drain_every: number of kills after which everything is taken out and compared.
        options: for `Site`.

    """
    rng = random.Random(seed)
    management = free_port()
    settings = ("--set", "management.enabled=true", "--set", f"management.tcp.port={management}", *FILES)
    site = Site(home, *settings, **options)
    ledger = site.ledger
    journeys = Journeys(ledger)
    books = Books(journeys)
    killed: Counter[str] = Counter()
    with campaign("transfers-killed", site) as totals:
        while not _has_seen(killed, books.counts, count) and totals.cycles < 3 * count + SPARE:
            before = Counter(ledger.counts)
            name, variant = VARIANTS[totals.cycles % len(VARIANTS)]
            port = site.start(*variant)
            await declare(port)
            if totals.cycles % drain_every == 0:
                await drain(books, port, stall)
            api = Api(management)
            load = Load(books, rng, api)
            await load.open(port)
            load.start()
            await asyncio.sleep(rng.uniform(0.1, 1.2))
            await _moment(books, load, rng, min(ACTIONS, key=killed.__getitem__))
            load.check()
            running, owed, outstanding = load.running, journeys.owed(), load.outstanding
            site.kill()
            await load.died()
            await api.close()
            journeys.died()
            ledger.died()
            totals.cycles += 1
            killed.update(running)
            totals.slowest_start = max(totals.slowest_start, site.ready_after)
            say(
                f"kill {totals.cycles} during {', '.join(sorted(running)) or 'nothing'}, {name}: "
                f"ended with {owed} owed and {outstanding} open: {tally(since(ledger.counts, before))}"
            )
            if ledger.counts["violations"] >= enough:
                break
        else:
            totals.counted = min(killed[action] for action in ACTIONS)
            if not _has_seen(killed, books.counts, count):
                ledger.broke(
                    "O10",
                    f"{totals.cycles} kills, during transfers {dict(killed)}; messages {dict(books.counts)}",
                )
            port = site.start()
            await declare(port)
            await drain(books, port, stall)
            await asyncio.sleep(0)
            site.finish()
            check_store(site)
    totals.notes.update({f"kills during {action}": killed[action] for action in ACTIONS})
    totals.notes.update({f"messages: {what}": number for what, number in sorted(books.counts.items())})
    return totals
