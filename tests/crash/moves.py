"""The load of messages that move by themselves, beside that of `load`; judged by `journeys`.

Each `Lane` is a way of publishing into queues that expire, overflow, reject, delay or sort what is in them. All
queues and exchanges are durable. Some stations have a consumer with a habit of its own, the others keep what comes
until everything is drained: first the moves that need nobody have to be over, then every station is emptied, and
what was confirmed and did not come is lost.

`FEATURES` says what a broker has to know: a RabbitMQ of Debian knows neither delayed exchanges nor queues that hold
messages, nor delivery limits on classic queues.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from crash.journeys import DUE, EXPIRED, LIMIT, MAXLEN, NOWHERE, REJECTED, Death, Delivery, Journeys, Way
from crash.ledger import BodyError, Id, Publication, make_body, read_body
from crash.link import Link, LostError, headers_of, property_octets, publish_frames
from crash.load import fill
from crash.publisher import Crowd, Windowed
from pamqp import commands

DELAYED, HELD, LIMITS = "delayed messages", "held messages", "delivery limits"
DELETIONS = "room for deletions"
"""A disk that is full has none: the channel is closed, as the deletion would not survive a restart."""
FEATURES = frozenset({DELAYED, HELD, LIMITS, DELETIONS})
RECEIPTS = "moves.receipts"
LATER = "later"
FAN = "fan.dlx"
LINE = "the line of later"
HOLD = {"x-allow-hold": True}
LEVELS = 5
DELIVERY_LIMIT = 3
LARGE = 300_000
"""Octets of a large message, whose body has a file of its own in every campaign that has files."""
LONGEST = 2500
"""Milliseconds that anything is delayed, or expires after, at most, unless it is said otherwise."""
LONG_HOLD = 12_000
"""Milliseconds that a message is held where `longest` allows it: longer than another node takes to lead."""


@dataclass(frozen=True)
class Queue:
    """A queue as it is declared; `dead` names the queue its dead letters go to."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    dead: str = ""

    @property
    def table(self) -> dict[str, Any]:
        if not self.dead:
            return self.arguments
        return self.arguments | {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": self.dead}


@dataclass(frozen=True)
class Lane:
    """A way of publishing.

    Args:
        ways: where a message goes, one for each copy.
        key: its routing key.
        weight: how often it is chosen.
        exchange: where it is published.
        expirations: those of its messages, chosen at random.
        priorities: the same; their group is the level they have in the queue.
        delays: the same; their group is the delay.
        times: milliseconds after which it may be at a station, besides expiration and delay, which come first.
        feature: what the broker has to know.

    """

    ways: tuple[Way, ...]
    key: str
    weight: int
    exchange: str = ""
    expirations: tuple[int | None, ...] = (None,)
    priorities: tuple[int | None, ...] = (None,)
    delays: tuple[int | None, ...] = (None,)
    times: tuple[tuple[str, int], ...] = ()
    first: str = ""
    """The station that expiration or delay lead to."""
    feature: str = ""


QUEUES = (
    Queue(RECEIPTS),
    Queue("chain.a", {"x-message-ttl": 60}, "chain.b"),
    Queue("chain.b", {"x-message-ttl": 40}, "chain.dead"),
    Queue("chain.dead"),
    Queue("each.work", {}, "each.dead"),
    Queue("each.dead"),
    Queue("reject.work", {}, "reject.dead"),
    Queue("reject.dead"),
    Queue("end.work", {}, "end.dead"),
    Queue("end.dead"),
    Queue("drop.short", {"x-max-length": 40}, "drop.dead"),
    Queue("drop.dead"),
    Queue("octets.short", {"x-max-length-bytes": 60_000, "x-overflow": "reject-publish-dlx"}, "octets.dead"),
    Queue("octets.dead"),
    Queue("refuse.short", {"x-max-length": 30, "x-overflow": "reject-publish"}),
    Queue("level.work", {"x-max-priority": LEVELS}),
    Queue("level.kept", {"x-max-priority": LEVELS}, "level.dead"),
    Queue("level.dead"),
    Queue("level.short", {"x-max-priority": LEVELS, "x-max-length": 50}, "level.spilt"),
    Queue("level.spilt"),
    Queue("limit.work", {"x-delivery-limit": DELIVERY_LIMIT}, "limit.dead"),
    Queue("limit.dead"),
    Queue("later.due"),
    Queue("later.kept"),
    Queue("later.ttl", {"x-message-ttl": 50}, "later.dead"),
    Queue("later.dead"),
    Queue("held.due", HOLD),
    Queue("held.kept", HOLD),
    Queue("held.ttl", HOLD | {"x-message-ttl": 50}, "held.dead"),
    Queue("held.dead"),
    Queue("retry.work", {}, "retry.wait"),
    Queue("retry.wait", {"x-message-ttl": 50}, "retry.work"),
    Queue("loop.a", {"x-message-ttl": 30}, "loop.b"),
    Queue("loop.b", {"x-message-ttl": 30}, "loop.a"),
    Queue("gone.ttl", {"x-message-ttl": 50}),
    Queue("gone.missing", {"x-message-ttl": 50}, "no such queue"),
    Queue("fan.ttl", {"x-message-ttl": 50, "x-dead-letter-exchange": FAN}),
    Queue("fan.one"),
    Queue("fan.two"),
)

LEVEL_LOTS = (None, 0, 1, 2, 3, 4, 5, 9)
DELAY_LOTS = (20, 20, 120, 120, 600, LONGEST, None)
LANES = (
    Lane(
        (
            Way(
                "chain.a",
                ("chain.a", "chain.b", EXPIRED),
                ("chain.b", "chain.dead", EXPIRED),
                ordered=["chain.dead"],
            ),
        ),
        "chain.a",
        6,
        times=(("chain.b", 60), ("chain.dead", 100)),
    ),
    Lane(
        (Way("each.work", ("each.work", "each.dead", EXPIRED)),),
        "each.work",
        4,
        expirations=(0, 20, 200, LONGEST),
        first="each.dead",
    ),
    Lane((Way("reject.work", ("reject.work", "reject.dead", REJECTED)),), "reject.work", 6),
    Lane((Way("drop.short", ("drop.short", "drop.dead", MAXLEN), ordered=["drop.dead"]),), "drop.short", 6),
    Lane((Way("octets.short", refused="octets.dead"),), "octets.short", 2),
    Lane((Way("refuse.short"),), "refuse.short", 2),
    Lane((Way("level.work", ordered=["level.work"]),), "level.work", 4, priorities=LEVEL_LOTS),
    Lane(
        (Way("level.kept", ("level.kept", "level.dead", EXPIRED), ordered=["level.kept"]),),
        "level.kept",
        4,
        priorities=LEVEL_LOTS,
        expirations=(None, None, None, 100),
        first="level.dead",
    ),
    Lane(
        (Way("level.short", ("level.short", "level.spilt", MAXLEN)),), "level.short", 2, priorities=LEVEL_LOTS
    ),
    Lane(
        (Way("limit.work", ("limit.work", "limit.dead", LIMIT), limit=DELIVERY_LIMIT),),
        "limit.work",
        3,
        feature=LIMITS,
    ),
    Lane(
        (Way(LINE, (LINE, "later.due", DUE), ordered=["later.due"]),),
        "later.due",
        6,
        exchange=LATER,
        delays=DELAY_LOTS,
        first="later.due",
        feature=DELAYED,
    ),
    Lane(
        (Way(LINE, (LINE, "later.kept", DUE), ordered=["later.kept"]),),
        "later.kept",
        3,
        exchange=LATER,
        delays=DELAY_LOTS,
        first="later.kept",
        feature=DELAYED,
    ),
    Lane(
        (Way(LINE, (LINE, "later.ttl", DUE), ("later.ttl", "later.dead", EXPIRED)),),
        "later.ttl",
        2,
        exchange=LATER,
        delays=DELAY_LOTS,
        first="later.ttl",
        times=(("later.dead", 50),),
        feature=DELAYED,
    ),
    *[
        Lane(
            (Way(LINE, (LINE, key, DUE), ordered=[key]),),
            key,
            weight,
            delays=(*DELAY_LOTS, LONG_HOLD, LONG_HOLD, LONG_HOLD),
            first=key,
            feature=HELD,
        )
        for key, weight in (("held.due", 6), ("held.kept", 3))
    ],
    Lane(
        (Way(LINE, (LINE, "held.ttl", DUE), ("held.ttl", "held.dead", EXPIRED)),),
        "held.ttl",
        2,
        delays=DELAY_LOTS,
        first="held.ttl",
        times=(("held.dead", 50),),
        feature=HELD,
    ),
    Lane(
        (Way("retry.work", ("retry.work", "retry.wait", REJECTED), ("retry.wait", "retry.work", EXPIRED)),),
        "retry.work",
        3,
    ),
    Lane(
        (Way("loop.a", ("loop.a", "loop.b", EXPIRED), ("loop.b", NOWHERE, EXPIRED)),),
        "loop.a",
        1,
        times=(("loop.b", 30),),
    ),
    Lane((Way("gone.ttl", ("gone.ttl", NOWHERE, EXPIRED)),), "gone.ttl", 1),
    Lane((Way("gone.missing", ("gone.missing", NOWHERE, EXPIRED)),), "gone.missing", 1),
    Lane(
        (
            Way("fan.ttl", ("fan.ttl", "fan.one", EXPIRED), ordered=["fan.one"]),
            Way("fan.ttl", ("fan.ttl", "fan.two", EXPIRED), ordered=["fan.two"]),
        ),
        "fan.ttl",
        3,
        times=(("fan.one", 50), ("fan.two", 50)),
    ),
)
RECEIPT = Way(RECEIPTS)
ENDING = Way("end.work", ("end.work", "end.dead", REJECTED), ordered=["end.dead"])
DRAIN_FIRST = ("level.kept", "level.work", "level.short")
"""Queues whose priorities fall while they are drained."""
PASSING = ("each.work", *[queue.name for queue in QUEUES if "x-message-ttl" in queue.arguments])
"""Queues that become empty by themselves."""
EXPIRING = tuple(lane.key for lane in LANES if lane.expirations != (None,))
"""Queues in which messages expire one by one, when nothing is before them."""


def lanes(features: Iterable[str] = FEATURES) -> tuple[Lane, ...]:
    """Return the lanes that a broker with these features knows."""
    known = {"", *features}
    return tuple(lane for lane in LANES if lane.feature in known)


def queues(features: Iterable[str] = FEATURES) -> tuple[Queue, ...]:
    """Return the queues that a broker with these features knows."""
    missing = FEATURES - set(features)
    prefixes = tuple(
        prefix
        for feature, prefix in ((DELAYED, "later."), (HELD, "held."), (LIMITS, "limit."), (DELETIONS, "end."))
        if feature in missing
    )
    return tuple(queue for queue in QUEUES if not queue.name.startswith(prefixes or ("-",)))


async def declare(port: int, features: Iterable[str] = FEATURES) -> None:
    """Declare everything, the queues without waiting for each."""
    link = await Link.connect(port)
    await link.open(1)
    for queue in queues(features):
        link.send(commands.Queue.Declare(queue=queue.name, durable=True, nowait=True, arguments=queue.table))
    await link.call(commands.Exchange.Declare(exchange=FAN, exchange_type="fanout", durable=True))
    for name in ("fan.one", "fan.two"):
        await link.call(commands.Queue.Bind(queue=name, exchange=FAN))
    if DELAYED in features:
        await link.call(
            commands.Exchange.Declare(
                exchange=LATER,
                exchange_type="x-delayed-message",
                durable=True,
                arguments={"x-delayed-type": "direct"},
            )
        )
        for name in ("later.due", "later.kept", "later.ttl"):
            await link.call(commands.Queue.Bind(queue=name, exchange=LATER, routing_key=name))
    await link.close()


class Mover(Windowed):
    """A publisher that takes all lanes, at random.

    Args:
        journeys: take the observations.
        rng: what decides.
        window: messages that have no verdict yet, at most.
        choice: its lanes.
        large: the part of its messages that have `LARGE` octets.
        longest: delays and expirations that are longer, in milliseconds, are not chosen.

    """

    def __init__(
        self,
        journeys: Journeys,
        rng: random.Random,
        window: int = 60,
        choice: Sequence[Lane] = LANES,
        large: float = 0.003,
        longest: int = LONGEST,
    ) -> None:
        super().__init__(journeys.ledger, rng, window)
        self.journeys = journeys
        self.lanes, self.weights = choice, [lane.weight for lane in choice]
        self.large, self.longest = large, longest

    def more(self) -> bytes:
        (lane,) = self.rng.choices(self.lanes, self.weights)
        return self.one(lane)

    def size(self) -> int:
        roll = self.rng.random()
        if roll < 0.85:
            return int(roll * 1000)
        return LARGE if roll > 1 - self.large else 3500 + int(roll * 2500)

    def one(self, lane: Lane) -> bytes:
        """The octets of one more message, which the books know from now on."""
        rng = self.rng
        expiration, priority, delay = (
            rng.choice([each for each in choices if (each or 0) <= self.longest])
            for choices in (lane.expirations, lane.priorities, lane.delays)
        )
        persistent = rng.random() < 0.85
        size = self.size()
        ident = self.ledger.next_id(self.channel)
        body = make_body(ident, fill(size, ident.seq + ident.channel))
        publication = self.ledger.published(ident, (), body[-8:], persistent=persistent)
        now = time.time()
        waits = {lane.first: expiration or delay or 0} if lane.first else {}
        waits |= {station: after + (delay or 0) for station, after in lane.times}
        self.journeys.published(
            publication,
            lane.ways,
            group=min(priority or 0, LEVELS) if lane.priorities != (None,) else delay or 0,
            not_before={station: now + wait / 1000 for station, wait in waits.items()},
            apart=size >= LARGE,
        )
        self.out += 1
        properties = property_octets(
            persistent=persistent, priority=priority, expiration=expiration, delay=delay
        )
        return publish_frames(lane.key, body, exchange=lane.exchange, properties=properties)

    def decided(self, publication: Publication, *, ack: bool) -> None:
        self.journeys.decided(publication, ack=ack)


class Worker:
    """A consumer of one station, on a connection of its own, that acks each message.

    Args:
        journeys: take the observations.
        station: the queue.
        rng: what decides.
        prefetch: its prefetch_count.
        receipts: publish a receipt after so many settlements; 0 for none.
        arguments: those of basic.consume.

    """

    def __init__(
        self,
        journeys: Journeys,
        station: str,
        rng: random.Random,
        prefetch: int = 50,
        receipts: int = 40,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        self.journeys, self.ledger, self.station, self.rng = journeys, journeys.ledger, station, rng
        self.prefetch, self.receipts, self.arguments = prefetch, receipts, arguments
        self.link: Link
        self.number = 0
        self.channel = 0
        self.held: dict[int, Delivery] = {}
        self.done: list[Delivery] = []
        """Settled since the last receipt."""
        self.awaited: dict[int, list[Delivery]] = {}
        self.delivered = 0
        self.leaving = False
        self.late: list[float] = []
        """Seconds between what was due and its delivery."""

    async def open(self, port: int) -> None:
        self.link = await Link.connect(port)
        await self.consume()

    async def consume(self, number: int | None = None) -> None:
        self.number = self.number + 1 if number is None else number
        self.held, self.done, self.awaited = {}, [], {}
        await self.link.open(self.number, self)
        if self.receipts:
            self.channel = self.ledger.open_channel()
            await self.link.call(commands.Confirm.Select(), self.number)
        await self.link.call(commands.Basic.Qos(prefetch_count=self.prefetch), self.number)
        await self.link.call(self._consume(), self.number)

    def _consume(self) -> commands.Basic.Consume:
        return commands.Basic.Consume(queue=self.station, consumer_tag="it", arguments=self.arguments or {})

    def delivery(self, tag: int, body: bytes, *, redelivered: bool) -> None:
        self.delivered += 1
        now = time.time()
        headers = headers_of(self.link.header)
        deaths = deaths_of(headers)
        try:
            ident, digest = read_body(body)
        except BodyError as error:
            self.ledger.damaged(self.station, str(error))
            return
        delivery = self.journeys.delivered(
            self.station, ident, digest, redelivered=redelivered, deaths=deaths, now=now
        )
        if delivery is not None:
            if "x-delay" in headers and not redelivered and not deaths:
                self.late.append(now - delivery.tokens[0].not_before.get(self.station, now))
            self.held[tag] = delivery
            if not self.leaving and not self.link.lost.done():
                self.handle(tag, ident, deaths, redelivered=redelivered)

    def handle(self, tag: int, ident: Id, deaths: Sequence[Death], *, redelivered: bool) -> None:
        self.settle(tag, self.journeys.acked)

    def settle(self, tag: int, record: Callable[[Delivery], Delivery], *, multiple: bool = False) -> None:
        """Ack or reject one, or all up to it."""
        tags = [each for each in self.held if each <= tag] if multiple else [tag]
        self.done += [record(self.held.pop(each)) for each in tags]
        requeue = None if record == self.journeys.acked else False
        self.link.settle(self.number, tag, multiple=multiple, requeue=requeue)
        if self.receipts and len(self.done) >= self.receipts:
            self.receipt()

    def requeue(self, tag: int) -> None:
        self.journeys.requeued([self.held.pop(tag)])
        self.link.settle(self.number, tag, requeue=True)

    def receipt(self) -> None:
        """Publish a receipt for what was settled so far."""
        ident = self.ledger.next_id(self.channel)
        body = make_body(ident, b"receipt")
        publication = self.ledger.published(ident, (), body[-8:])
        self.journeys.published(publication, (RECEIPT,))
        self.awaited[ident.seq], self.done = self.done, []
        self.link.transport.write(publish_frames(RECEIPTS, body, channel=self.number))

    def verdict(self, number: int, *, multiple: bool, ack: bool) -> None:
        """Take the confirm of a receipt."""
        for publication in self.ledger.verdict(self.channel, number, multiple=multiple, ack=ack):
            self.journeys.decided(publication, ack=ack)
            settled = self.awaited.pop(publication.id.seq)
            if ack:
                self.journeys.known(settled)

    def came_back(self, body: bytes) -> None:
        """Fail: receipts have a queue."""
        raise AssertionError

    async def leave(self) -> None:
        """Close the channel with what is unacked, which goes back to the queue."""
        self.leaving = True
        await self.link.call(commands.Channel.Close(200, "", 0, 0), self.number)
        self.journeys.requeued(self.held.values())
        self.held = {}
        self.leaving = False

    def abort(self) -> None:
        """Drop the connection; held messages go back, and the last acts may have arrived or not."""
        self.link.cut()
        self.journeys.doubted([*self.done, *[each for batch in self.awaited.values() for each in batch]])
        self.journeys.requeued(self.held.values())
        self.journeys.disturbed(self.station)
        self.held, self.done, self.awaited = {}, [], {}


class Hasty(Worker):
    def handle(self, tag: int, ident: Id, deaths: Sequence[Death], *, redelivered: bool) -> None:
        """Ack when twenty are held."""
        if len(self.held) >= 20:
            self.settle(tag, self.journeys.acked, multiple=True)


class Rejecting(Worker):
    """Rejects two in five, some of them in runs."""

    def handle(self, tag: int, ident: Id, deaths: Sequence[Death], *, redelivered: bool) -> None:
        """Ack, requeue or reject at random."""
        roll = self.rng.random()
        if roll < 0.5:
            self.settle(tag, self.journeys.acked)
        elif roll < 0.9:
            self.settle(tag, self.journeys.rejected, multiple=roll > 0.85)


class Poisoned(Worker):
    """Gives every third message back, however often it comes."""

    def handle(self, tag: int, ident: Id, deaths: Sequence[Death], *, redelivered: bool) -> None:
        if ident.seq % 3:
            self.settle(tag, self.journeys.acked)
        else:
            self.requeue(tag)


class Retrying(Worker):
    """Rejects until a message has been dead twice."""

    def handle(self, tag: int, ident: Id, deaths: Sequence[Death], *, redelivered: bool) -> None:
        tries = next((death.count for death in deaths if death.queue == "retry.wait"), 0)
        self.settle(tag, self.journeys.acked if tries >= 2 else self.journeys.rejected)


async def _declare_again(link: Link, name: str, channel: int) -> None:
    """Declare a queue that a worker may have deleted."""
    queue = next(each for each in QUEUES if each.name == name)
    await link.call(commands.Queue.Declare(queue=name, durable=True, arguments=queue.table), channel)


class Ending(Worker):
    """Fills its queue itself, rejects all of it at once, deletes the queue during that, and begins again."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.prefetch = 0  # what is not delivered yet would go with the queue
        self.missing: set[Id] = set()
        """Published and not delivered yet."""
        self.is_filled = False
        self.cycle: asyncio.Task[None] | None = None

    async def open(self, port: int) -> None:
        """Connect; the queue may have been deleted when the last connection ended.

        What that has not acked would go with the queue, so nobody deletes it before the broker has noticed that end:
        the consumer is exclusive.
        """
        for _ in range(500):
            self.link = await Link.connect(port)
            await self.link.open(998)
            await _declare_again(self.link, self.station, 998)
            try:
                await self.consume()
            except LostError as error:
                if "ACCESS_REFUSED" not in str(error):
                    raise
                self.link.cut()
                await asyncio.sleep(0.02)
            else:
                break
        self._fill()

    def _consume(self) -> commands.Basic.Consume:
        return commands.Basic.Consume(queue=self.station, consumer_tag="it", exclusive=True)

    def _fill(self) -> None:
        """Publish some messages, small and large ones."""
        frames = []
        for _ in range(self.rng.choice((20, 100, 400))):
            ident = self.ledger.next_id(self.channel)
            size = self.rng.choice((100, 100, 4500))
            body = make_body(ident, fill(size, ident.seq + ident.channel))
            publication = self.ledger.published(ident, (), body[-8:])
            self.journeys.published(publication, (ENDING,))
            self.missing.add(ident)
            frames.append(publish_frames(self.station, body, channel=self.number))
        self.is_filled = True
        self.link.transport.write(b"".join(frames))

    def verdict(self, number: int, *, multiple: bool, ack: bool) -> None:
        """A message or a receipt is confirmed."""
        for publication in self.ledger.verdict(self.channel, number, multiple=multiple, ack=ack):
            self.journeys.decided(publication, ack=ack)
            settled = self.awaited.pop(publication.id.seq, None)
            if ack and settled is not None:
                self.journeys.known(settled)

    def handle(self, tag: int, ident: Id, deaths: Sequence[Death], *, redelivered: bool) -> None:
        """Reject all when the last has come."""
        self.missing.discard(ident)
        if self.is_filled and not self.missing and self.cycle is None:
            self.cycle = asyncio.ensure_future(self._end(tag))

    async def _end(self, tag: int) -> None:
        receipts, self.receipts = self.receipts, 0
        with contextlib.suppress(LostError):
            self.settle(tag, self.journeys.rejected, multiple=True)
            await self.link.call(commands.Queue.Delete(queue=self.station), self.number)
            await _declare_again(self.link, self.station, self.number)
            await self.link.call(self._consume(), self.number)
            self.receipt()
            if not self.leaving:
                self._fill()
        self.receipts, self.cycle = receipts, None

    async def leave(self) -> None:
        """Finish what is being done, then as any other."""
        self.leaving = True
        if self.cycle is not None:
            await self.cycle
        await super().leave()


HABITS: tuple[tuple[str, type[Worker], str], ...] = (
    ("chain.dead", Hasty, ""),
    ("reject.work", Rejecting, ""),
    ("end.work", Ending, DELETIONS),
    ("drop.dead", Worker, ""),
    ("refuse.short", Hasty, ""),
    ("level.work", Worker, ""),
    ("limit.work", Poisoned, LIMITS),
    ("later.due", Worker, DELAYED),
    ("held.due", Worker, HELD),
    ("retry.work", Retrying, ""),
    ("fan.one", Hasty, ""),
)


def deaths_of(headers: dict[str, Any]) -> list[Death]:
    """The entries of x-death, newest first."""
    return [Death(entry["queue"], entry["reason"], entry["count"]) for entry in headers.get("x-death", ())]


class Moving(Crowd):
    """The whole load of moves, against one port.

    Args:
        journeys: take the observations.
        rng: what decides.
        window: messages of each publisher that have no verdict yet, at most.
        features: what the broker knows.
        longest: as for `Mover`.

    """

    def __init__(
        self,
        journeys: Journeys,
        rng: random.Random,
        window: int = 60,
        features: Iterable[str] = FEATURES,
        longest: int = LONGEST,
    ) -> None:
        self.journeys = journeys
        choice = lanes(features)
        self.publishers = [
            Mover(journeys, random.Random(rng.random()), window, choice, longest=longest) for _ in range(3)
        ]
        self.consumers = [
            habit(journeys, station, random.Random(rng.random()))
            for station, habit, feature in HABITS
            if feature in {"", *features}
        ]

    async def replace(self, at: int, port: int) -> None:
        """Cut a worker's connection, and put another of its kind in its place."""
        worker = self.consumers[at]
        worker.abort()
        await worker.link.gone()
        self.consumers[at] = type(worker)(self.journeys, worker.station, worker.rng)
        self.consumers[at].late = worker.late
        await self.consumers[at].open(port)

    async def quiet(self) -> None:
        """Stop publishing and close everything."""
        await asyncio.gather(*[publisher.quiet() for publisher in self.publishers])
        for worker in self.consumers:
            await worker.leave()
        for link in self.links:
            await link.close()


class Drainer(Worker):
    """Takes a number of messages and acks them in runs."""

    def __init__(self, journeys: Journeys, station: str, link: Link, count: int) -> None:
        super().__init__(journeys, station, random.Random(0), prefetch=2000, receipts=0)
        self.link, self.count = link, count
        self.finished = asyncio.Event()

    def handle(self, tag: int, ident: Id, deaths: Sequence[Death], *, redelivered: bool) -> None:
        if len(self.held) >= 200 or self.delivered >= self.count:
            self.settle(tag, self.journeys.acked, multiple=True)
        if self.delivered >= self.count:
            self.finished.set()

    async def finish(self, stall: float) -> None:
        """Wait until it has its number, or the queue is empty without: what was behind another may have expired."""
        deadline = time.monotonic() + stall
        before = -1
        while not self.finished.is_set() and time.monotonic() < deadline:
            if before == self.delivered and not await depth(self.link, self.station):
                break
            before = self.delivered
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.finished.wait(), 0.3)
        if self.held:
            self.settle(max(self.held), self.journeys.acked, multiple=True)
        await self.leave()
        if left := await depth(self.link, self.station):
            self.ledger.broke("O9", f"{self.station} has {left} more after {self.delivered}, {stall} s")


async def drain(
    journeys: Journeys, port: int, *, features: Iterable[str] = FEATURES, stall: float = 10.0
) -> int:
    """Let everything come to rest, take it out of every station, and judge what came; returns how many came."""
    link = await Link.connect(port)
    await link.open(998)
    await _declare_again(link, ENDING.entry, 998)
    names = [queue.name for queue in queues(features)]
    await _rest(journeys, link, [name for name in PASSING if name in names], stall)
    taken = 0
    for number, name in enumerate(names, 1000):
        ready = await depth(link, name)
        if not ready:
            continue
        if name in DRAIN_FIRST:
            journeys.falling(name)
        drainer = Drainer(journeys, name, link, ready)
        await drainer.consume(number)
        await drainer.finish(stall)
        if drainer.delivered != ready and not (name in EXPIRING and drainer.delivered < ready):
            journeys.ledger.broke("O9", f"{name} said {ready} and delivered {drainer.delivered}")
        taken += drainer.delivered
    journeys.finished()
    await link.close()
    await settle(journeys, port)
    return taken


async def settle(journeys: Journeys, port: int) -> None:
    """Make sure that all that was seen and done is on disk, and forget what is over."""
    await _receipt(journeys, port)
    journeys.settle_all()
    journeys.forget()


async def depth(link: Link, queue: str) -> int:
    """Return the number of ready messages of a queue."""
    await link.open(999)
    count = (await link.call(commands.Queue.Declare(queue=queue, passive=True), 999)).message_count
    await link.call(commands.Channel.Close(200, "", 0, 0), 999)
    return int(count)


async def _rest(journeys: Journeys, link: Link, passing: Sequence[str], stall: float) -> None:
    """Wait until everything that is delayed is due and everything that expires has expired."""
    await asyncio.sleep(max(0.0, min(journeys.latest - time.time(), LONG_HOLD / 1000)) + 0.15)
    deadline = time.monotonic() + stall
    empty = 0
    while empty < 2:  # what left one may be on its way to another
        counts = {name: await depth(link, name) for name in passing}
        empty = 0 if any(counts.values()) else empty + 1
        if time.monotonic() > deadline:
            left = {name: count for name, count in counts.items() if count}
            journeys.ledger.broke("O9", f"what should have expired is still there after {stall} s: {left}")
            return
        await asyncio.sleep(0.02)


async def _receipt(journeys: Journeys, port: int) -> None:
    """Publish a message, and wait for its confirm."""
    sender = Mover(journeys, random.Random(0), choice=())
    await sender.open(port)
    ledger = journeys.ledger
    ident = ledger.next_id(sender.channel)
    body = make_body(ident, b"receipt")
    journeys.published(ledger.published(ident, (), body[-8:]), (RECEIPT,))
    sender.out = 1
    sender.link.transport.write(publish_frames(RECEIPTS, body))
    await sender.quiet()
    sender.link.check()
    await sender.link.close()
