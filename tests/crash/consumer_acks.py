"""Kill and stop a broker in a consumer-ack mode, cut connections at work, and judge the publishers' verdicts.

The load is made of that of `load`: four publishers in confirm mode, whose messages have consumers, each with its habit, on queues of the broker's
mode; one more consumer rejects half of what it gets, into a queue of dead letters, and one needs no acks. Two queues are standard
and have no consumer. A fifth publisher sends to queues that nobody consumes from, and waits. Beside them somebody publishes
without confirms and in transactions, to all queues: what such a commit covers is owed by the broker, whatever its mode.

In each cycle a consumer's or a publisher's connection may be cut, and another takes its place. Then the broker is killed, or
stopped while consumers hold deliveries and publishers wait, which must not lose persistent messages, or both: killed while it
stops. `promises` judges.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from crash.kills import (
    DRAIN_EVERY,
    LEAST_OPEN,
    LEAST_OWED,
    VARIANTS,
    WARM_SECONDS,
    Totals,
    campaign,
    check_store,
    since,
    tally,
)
from crash.ledger import MANY, make_body
from crash.link import Link, LostError, publish_frames
from crash.load import HABITS, STALL_SECONDS, Consumer, Publisher as AnyPublisher, drain, fill
from crash.promises import MODES, Promises
from crash.publisher import Crowd
from crash.site import Site, depths, until
from pamqp import commands

WORKED = ("c0", "c1", "c2", "c3")
REJECTED, LETTERS, GREEDY, SORTED = "r", "d", "n", "p"
PATIENT = ("w", SORTED, "e")
LEVELS = 3
KEPT = ("u0", "u1")
CONSUMED = (*WORKED, REJECTED, GREEDY)
QUEUES = (*CONSUMED, *PATIENT, LETTERS, *KEPT)
EXCHANGES = {
    "promised.mixed": ("c0", "c1", "u0"),
    "promised.some": ("c2", REJECTED, GREEDY),
    "promised.all": (*CONSUMED, *KEPT),
}
ARGUMENTS: dict[str, dict[str, Any]] = {
    REJECTED: {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": LETTERS},
    SORTED: {"x-max-priority": LEVELS},
    "e": {"x-message-ttl": 3_600_000},
    **{queue: {"x-confirm-mode": "standard"} for queue in (LETTERS, *KEPT)},
}
NOTED = ("consumed", "nacked", "unanswered", "let go", "spilled")


def modes(mode: str) -> dict[str, str]:
    """The mode in effect in each queue that is not standard: with dead letters none is light."""
    return dict.fromkeys((*WORKED, GREEDY, *PATIENT), mode) | {REJECTED: MODES[0]}


class Publisher(AnyPublisher):
    """Publishes to what is consumed, and to standard queues beside."""

    def choose(self) -> tuple[str, str, tuple[str, ...], int, bool]:
        """Exchange, key, the queues it goes to, size of the filling, persistent."""
        roll = self.rng.random()
        if roll < 0.80:
            queue = self.rng.choice((*CONSUMED, *KEPT[:1]))
            where: tuple[str, str, tuple[str, ...]] = ("", queue, (queue,))
        elif roll < 0.98:
            exchange = self.rng.choice(list(EXCHANGES))
            where = (exchange, "", EXCHANGES[exchange])
        else:
            where = ("", "nowhere", ())
        roll = self.rng.random()
        size = int(roll * 2000) if roll < 0.9 else 5000 if roll < 0.997 else 300_000
        return (*where, size, self.rng.random() < 0.75)


class Patient(AnyPublisher):
    """Publishes to queues without a consumer, and waits: to a plain one, one with priorities, and one that expires."""

    def choose(self) -> tuple[str, str, tuple[str, ...], int, bool]:
        """Return exchange, routing key, queues, size and persistence of the next message."""
        queue = self.rng.choice(PATIENT)
        return "", queue, (queue,), int(self.rng.random() * 3000), self.rng.random() < 0.75

    def priority(self) -> int:
        return self.rng.randint(0, LEVELS)


class Unconfirmed:
    """Publishes to all queues but that of the rejecting consumer: without confirms on one channel, then in a transaction on another.

    When a commit is answered the broker has all of it on disk, what came before on the same connection included.
    """

    def __init__(self, ledger: Promises, rng: random.Random) -> None:
        self.ledger, self.rng = ledger, rng
        self.link: Link
        self.going = False
        self.channels = (ledger.open_channel(confirms=False), ledger.open_channel(confirms=False))
        self.task: asyncio.Task[None]

    async def open(self, port: int) -> None:
        self.link = await Link.connect(port)
        await self.link.open(1)
        await self.link.open(2)
        await self.link.call(commands.Tx.Select(), 2)

    def start(self) -> None:
        """Publish until `stop`, or until the connection is lost."""
        self.going = True
        self.task = asyncio.ensure_future(self._publish())

    async def stop(self) -> None:
        """Wait for the last commit."""
        self.going = False
        await self.task

    async def _publish(self) -> None:
        while self.going and not self.link.lost.done():
            for number, channel in enumerate(self.channels, 1):
                frames = [self._one(number, channel) for _ in range(self.rng.randint(1, 20))]
                self.link.transport.write(b"".join(frames))
            published = [self.ledger.next_id(channel).seq - 1 for channel in self.channels]
            try:
                await self.link.call(commands.Tx.Commit(), 2)
            except LostError:
                return
            for channel, number in zip(self.channels, published, strict=True):
                self.ledger.verdict(channel, number, multiple=True, ack=True)

    def _one(self, number: int, channel: int) -> bytes:
        queue = self.rng.choice([*WORKED, GREEDY, *PATIENT, *KEPT, *KEPT])
        ident = self.ledger.next_id(channel)
        body = make_body(ident, fill(int(self.rng.random() * 1500), ident.seq))
        self.ledger.published(ident, (queue,), body[-8:])
        return publish_frames(queue, body, channel=number)


class Rejecting(Consumer):
    """Rejects every other message for good."""

    ledger: Promises

    def handle(self, tag: int, *, redelivered: bool) -> None:
        """Ack or reject at random."""
        if self.rng.random() < 0.5:
            self.ack(tag)
            return
        self.ledger.rejected([self.held.pop(tag)])
        self.link.settle(self.number, tag, requeue=False)


class Greedy(Consumer):
    """A consumer without acks."""

    async def consume(self) -> None:
        self.number += 1
        await self.link.open(self.number, self)
        consume = commands.Basic.Consume(queue=self.queue, consumer_tag="it", no_ack=True)
        await self.link.call(consume, self.number)

    def handle(self, tag: int, *, redelivered: bool) -> None:
        self.ledger.acked([self.held.pop(tag)])


class Load(Crowd):
    """The whole load, against one port.

    Args:
        ledger: takes the observations.
        rng: what decides.
        window: messages of each publisher that have no verdict yet, at most.

    """

    def __init__(self, ledger: Promises, rng: random.Random, window: int = 150) -> None:
        self.ledger, self.rng, self.window = ledger, rng, window
        self.publishers: list[AnyPublisher] = [self._publisher(Publisher) for _ in range(4)]
        self.publishers.append(self._publisher(Patient))
        habits = (*HABITS, Rejecting, Greedy)
        self.consumers: list[Consumer] = [
            habit(ledger, queue, random.Random(rng.random()))
            for habit, queue in zip(habits, CONSUMED, strict=True)
        ]
        self.unconfirmed = Unconfirmed(ledger, random.Random(rng.random()))

    def _publisher(self, kind: type[AnyPublisher]) -> AnyPublisher:
        return kind(self.ledger, random.Random(self.rng.random()), self.window)

    async def open(self, port: int) -> None:
        """Connect all publishers and consumers."""
        await super().open(port)
        await self.unconfirmed.open(port)

    def start(self) -> None:
        super().start()
        self.unconfirmed.start()

    async def died(self) -> None:
        """Take in what the broker had sent before it died."""
        await super().died()
        await self.unconfirmed.link.gone()
        await self.unconfirmed.task
        for consumer in self.consumers:
            await asyncio.gather(*consumer.tasks)

    async def replace_consumer(self, port: int) -> None:
        """Cut a consumer's connection, and put another of its kind in its place."""
        at = self.rng.randrange(len(self.consumers))
        consumer = self.consumers[at]
        consumer.link.cut()
        self.ledger.cut(consumer.queue, list(consumer.held.values()))
        consumer.held = {}
        await consumer.link.gone()
        await asyncio.gather(*consumer.tasks)
        self.consumers[at] = heir = type(consumer)(self.ledger, consumer.queue, consumer.rng)
        heir.link = await Link.connect(port)
        await _until_nobody_consumes(self.ledger, heir.link, heir.queue)
        self.ledger.disturbed(heir.queue)
        await heir.consume()

    async def replace_publisher(self, port: int) -> None:
        """Cut a publisher's connection, and put another in its place."""
        at = self.rng.randrange(len(self.publishers))
        publisher = self.publishers[at]
        publisher.stop()
        publisher.link.cut()
        self.ledger.publisher_cut(publisher.channel)
        await publisher.link.gone()
        self.publishers[at] = self._publisher(type(publisher))
        await self.publishers[at].open(port)
        self.publishers[at].start()

    async def pause(self) -> None:
        """Stop the publishers with confirms, and make sure that the broker has read what they sent."""
        for publisher in self.publishers:
            publisher.stop()
        for publisher in self.publishers:
            await publisher.link.call(commands.Basic.Qos(prefetch_count=0))
            self.ledger.taken(publisher.channel)


async def _until_nobody_consumes(ledger: Promises, link: Link, queue: str) -> None:
    """Wait until the broker has noticed that a consumer's connection was cut."""
    await link.open(999)
    deadline = time.monotonic() + STALL_SECONDS
    while (await link.call(commands.Queue.Declare(queue=queue, passive=True), 999)).consumer_count:
        if time.monotonic() > deadline:
            ledger.broke(
                "O10", f"{queue} still has a consumer {STALL_SECONDS} s after its connection was cut"
            )
            break
        await asyncio.sleep(0.005)
    await link.call(commands.Channel.Close(200, "", 0, 0), 999)


async def declare(port: int) -> None:
    """Declare everything the load needs; all of it is durable."""
    link = await Link.connect(port)
    await link.open(1)
    for queue in QUEUES:
        declaration = commands.Queue.Declare(queue=queue, durable=True, arguments=ARGUMENTS.get(queue, {}))
        await link.call(declaration)
    for exchange, queues in EXCHANGES.items():
        await link.call(commands.Exchange.Declare(exchange=exchange, exchange_type="fanout", durable=True))
        for queue in queues:
            await link.call(commands.Queue.Bind(queue=queue, exchange=exchange))
    await link.close()


class _Cycles:
    """Runs of one broker after another on the same data, in one mode."""

    def __init__(self, site: Site, ledger: Promises, rng: random.Random, stall: float) -> None:
        self.site, self.ledger, self.rng, self.stall = site, ledger, rng, stall
        self.declared = False
        self.port = 0

    async def begin(self, *arguments: str, drain_now: bool) -> dict[str, int]:
        """Start, compare the depths, drain if wanted; returns the depths that were found."""
        self.port = self.site.start(*arguments)
        ready: dict[str, int] = {}
        if not self.declared:
            await declare(self.port)
            self.declared = True
            return ready
        link = await Link.connect(self.port)
        ready = await depths(self.site, link, QUEUES)
        await link.close()
        if drain_now:
            await drain(self.ledger, self.port, ready, stall=self.stall)
        return ready

    async def work(self) -> tuple[Load, bool]:
        """Put load on the broker, cut connections, and return at a random moment, and whether a fault now would count."""
        load = Load(self.ledger, self.rng)
        await load.open(self.port)
        load.start()
        for replace in (load.replace_consumer, load.replace_publisher):
            await asyncio.sleep(self.rng.uniform(0.005, 0.25))
            if self.rng.random() < 0.6:
                await replace(self.port)
        consumed = self.ledger.counts["consumed"]

        def enough() -> bool:
            return (
                self.ledger.owed() >= LEAST_OWED and self.ledger.counts["consumed"] >= consumed + LEAST_OWED
            )

        counts = await until(enough, WARM_SECONDS, 0.02)
        await asyncio.sleep(self.rng.uniform(0, 0.1))
        return load, counts and load.outstanding >= LEAST_OPEN

    async def kill(self, load: Load) -> None:
        """Kill the broker at once."""
        self.site.kill()
        await load.died()
        self.ledger.died()

    async def stop(self, load: Load) -> None:
        """Stop it while consumers work and hold deliveries, and publishers wait for them."""
        await load.pause()
        self.ledger.halting(CONSUMED)
        self.site.running.process.terminate()
        await load.died()
        if (code := self.site.ended()) != 0:
            self.ledger.broke("O10", f"exit code {code} after SIGTERM")
        self.ledger.halted(CONSUMED)

    async def kill_stopping(self, load: Load) -> None:
        """Stop the broker, and kill it while it stops."""
        await load.pause()
        self.ledger.halting(CONSUMED)
        process = self.site.running.process
        process.terminate()
        await asyncio.gather(*[link.gone() for link in load.links])
        await until(lambda: process.poll() is not None, self.rng.uniform(0, 0.05), 0.001)
        self.site.kill()
        await load.died()
        if self.site.exit_code == 0:
            self.ledger.halted(CONSUMED)
        else:
            self.ledger.died_stopping(CONSUMED)

    async def finish(self) -> None:
        """Without a fault every number has its verdict once all queues are empty; stop the broker."""
        await self.begin(drain_now=True)
        load, _ = await self.work()
        await load.pause()
        await load.unconfirmed.stop()
        for consumer in load.consumers:
            await asyncio.gather(*consumer.tasks)
            await consumer.leave()
        link = await Link.connect(self.port)
        await drain(self.ledger, self.port, await depths(self.site, link, QUEUES), stall=self.stall)
        await asyncio.gather(*[publisher.quiet() for publisher in load.publishers])
        for each in (*load.links, load.unconfirmed.link, link):
            await each.close()
        self.site.finish()
        self.ledger.stopped()


async def consumer_acks(
    home: Path,
    count: int,
    seed: int,
    mode: str = MODES[0],
    *,
    say: Callable[[str], object] = print,
    variants: Sequence[tuple[str, Sequence[str]]] = VARIANTS,
    enough: int = MANY,
    stall: float = STALL_SECONDS,
    stop_every: int = 3,
    **options: Any,
) -> Totals:
    """Kill a broker in a consumer-ack mode `count` times.

    Each `stop_every`th time, the first included, it is stopped instead, and every other time killed on its way; these do not
    count. The other arguments are those of `kills`.
    """
    rng = random.Random(seed)
    site = Site(home, "--set", f"confirm.mode={mode}", **options)
    ledger = site.ledger = Promises(
        modes(mode), without_acks={GREEDY}, letters={REJECTED: LETTERS}, unordered={SORTED}
    )
    cycles = _Cycles(site, ledger, rng, stall)
    with campaign(mode, site) as totals:
        stopped = False
        while totals.counted < count and totals.cycles < 2 * count + 5:
            before = Counter(ledger.counts)
            name, variant = variants[totals.cycles % len(variants)]
            drain_now = stopped or totals.cycles % DRAIN_EVERY == 0
            ready = await cycles.begin(*variant, drain_now=drain_now)
            load, counts = await cycles.work()
            owed, outstanding = ledger.owed(), load.outstanding
            stopped = totals.cycles % stop_every == 0
            end = cycles.kill
            if stopped:
                end = cycles.stop if totals.cycles // stop_every % 2 == 0 else cycles.kill_stopping
            await end(load)
            totals.cycles += 1
            totals.counted += counts and not stopped
            totals.notes["stops"] += stopped
            totals.notes["of these cut short"] += stopped and site.exit_code != 0
            totals.slowest_start = max(totals.slowest_start, site.ready_after)
            found = since(ledger.counts, before)
            say(
                f"{'stop' if stopped else 'kill'} {totals.cycles}{'' if counts else ' (does not count)'}, {name}: "
                f"start {site.ready_after:.2f} s with {sum(ready.values())} ready, "
                f"ended with {owed} owed and {outstanding} open: {found['consumed']} consumed, {tally(found)}"
            )
            if ledger.counts["violations"] >= enough:
                break
        else:
            if totals.counted < count:
                ledger.broke("O10", f"only {totals.counted} of {totals.cycles} count: the broker is too slow")
            await cycles.finish()
            check_store(site)
    totals.notes.update({name: ledger.counts[name] for name in NOTED})
    return totals
