"""The load under which a broker is made to fail: four publishers, four consumers, eight durable queues.

The first four queues (`c0` to `c3`) have one consumer each, the others (`u0` to `u3`) have none, so what is in them
has to last. Publishers confirm with a window; they mix persistent and transient messages, small ones, some above
the size that is embedded, a few of 300 KB, to one queue, to three, to all, and to none with `mandatory`.

Each consumer has a habit of its own: one ack for each message; runs of acks with `multiple`; requeues now and then;
a channel that is closed with deliveries unacked and opened again. Now and then a consumer publishes a *receipt*, a
persistent message into a queue without a consumer, on the channel of its acks: when that is confirmed, the acks
before it must be on disk.
"""

import asyncio
import random
from typing import Any

from crash.ledger import BodyError, Copy, Id, Ledger, Publication, make_body, read_body
from crash.link import Link, LostError, property_octets, publish_frames
from crash.publisher import Crowd, Windowed
from pamqp import commands

CONSUMED = ("c0", "c1", "c2", "c3")
KEPT = ("u0", "u1", "u2", "u3")
QUEUES = CONSUMED + KEPT
EXCHANGES = {"crash.three": ("c0", "u0", "u1"), "crash.all": QUEUES}
RECEIPTS = "u0"
STALL_SECONDS = 10.0
OCTETS_OUT = 3 << 20
"""Octets of a publisher's messages without a verdict, about."""
UNIT = 1 << 20
_POOL = random.Random(0).randbytes(UNIT)


def fill(size: int, at: int) -> bytes:
    """Return so many octets that do not compress, others for another `at`."""
    at = at * 7919 % UNIT
    octets = _POOL[at : at + size]
    while len(octets) < size:
        octets += _POOL[: size - len(octets)]
    return octets


class Publisher(Windowed):
    """One publisher of the load; besides its window the octets on their way are bounded."""

    def __init__(self, ledger: Ledger, rng: random.Random, window: int) -> None:
        super().__init__(ledger, rng, window)
        self.sizes: dict[Id, int] = {}
        """Sizes of published messages without a verdict."""
        self.octets_out = 0
        self.nacked = 0

    def has_room(self) -> bool:
        """Return whether one more may be on its way."""
        return super().has_room() and self.octets_out < OCTETS_OUT

    def more(self) -> bytes:
        """Publish a random message."""
        return self.one(*self.choose())

    def choose(self) -> tuple[str, str, tuple[str, ...], int, bool]:
        """Exchange, key, the queues it goes to, size of the filling, persistent."""
        rng = self.rng
        roll = rng.random()
        if roll < 0.80:
            queue = QUEUES[int(roll * 10) % 8]
            where: tuple[str, str, tuple[str, ...]] = ("", queue, (queue,))
        elif roll < 0.95:
            where = ("crash.three", "", EXCHANGES["crash.three"])
        elif roll < 0.98:
            where = ("crash.all", "", QUEUES)
        else:
            where = ("", "nowhere", ())
        roll = rng.random()
        if roll < 0.80:
            size = int(roll * 1800)
        elif roll < 0.997:
            size = 3500 + int(roll * 2500)
        else:
            size = 300_000
        return (*where, size, rng.random() < 0.75)

    def one(self, exchange: str, key: str, queues: tuple[str, ...], size: int, persistent: bool) -> bytes:
        """The octets of one more message, which the ledger knows from now on."""
        ident = self.ledger.next_id(self.channel)
        body = make_body(ident, fill(size, ident.seq + ident.channel))
        mandatory = not queues
        self.ledger.published(ident, queues, body[-8:], persistent=persistent, mandatory=mandatory)
        self.sizes[ident] = size
        self.octets_out += size
        self.out += 1
        properties = property_octets(persistent=persistent, priority=self.priority())
        return publish_frames(key, body, exchange=exchange, properties=properties, mandatory=mandatory)

    def priority(self) -> int | None:
        return None

    def decided(self, publication: Publication, *, ack: bool) -> None:
        """Subtract a message that has its verdict."""
        self.octets_out -= self.sizes.pop(publication.id)
        self.nacked += not ack

    def came_back(self, body: bytes) -> None:
        try:
            self.ledger.returned(read_body(body)[0])
        except BodyError as error:
            self.ledger.damaged("return", str(error))


class Consumer:
    """A consumer of one queue on a connection of its own.

    Args:
        ledger: takes the observations.
        queue: the queue.
        rng: what decides.
        prefetch: its prefetch_count.
        receipts: publish a receipt after so many acks; 0 for none.

    """

    def __init__(
        self, ledger: Ledger, queue: str, rng: random.Random, prefetch: int = 100, receipts: int = 60
    ) -> None:
        self.ledger, self.queue, self.rng, self.prefetch, self.receipts = (
            ledger,
            queue,
            rng,
            prefetch,
            receipts,
        )
        self.link: Link
        self.number = 0
        self.held: dict[int, Copy] = {}
        """Copies by delivery tag, in order."""
        self.since_receipt: list[Copy] = []
        self.awaited: dict[int, list[Copy]] = {}
        self.channel = 0
        self.delivered = 0
        self.acked = 0
        self.receipts_to = RECEIPTS
        self.leaving = False
        """True if its channel is being closed: later acts have no effect."""
        self.tasks: set[asyncio.Task[Any]] = set()

    async def open(self, port: int) -> None:
        self.link = await Link.connect(port)
        await self.consume()

    async def consume(self) -> None:
        self.number += 1
        self.held, self.since_receipt, self.awaited = {}, [], {}
        await self.link.open(self.number, self)
        if self.receipts:
            self.channel = self.ledger.open_channel()
            await self.link.call(commands.Confirm.Select(), self.number)
        await self.link.call(commands.Basic.Qos(prefetch_count=self.prefetch), self.number)
        await self.link.call(commands.Basic.Consume(queue=self.queue, consumer_tag="it"), self.number)

    def delivery(self, tag: int, body: bytes, *, redelivered: bool) -> None:
        self.delivered += 1
        try:
            ident, digest = read_body(body)
        except BodyError as error:
            self.ledger.damaged(self.queue, str(error))
            return
        copy = self.ledger.delivered(self.queue, ident, digest, redelivered=redelivered)
        if copy is not None:
            self.held[tag] = copy
            if not self.leaving and not self.link.lost.done():
                self.handle(tag, redelivered=redelivered)

    def handle(self, tag: int, *, redelivered: bool) -> None:
        self.ack(tag)

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        tags = [each for each in self.held if each <= tag] if multiple else [tag]
        copies = [self.held.pop(each) for each in tags]
        self.ledger.acked(copies)
        self.link.settle(self.number, tag, multiple=multiple)
        self.acked += len(copies)
        self.since_receipt += copies
        if self.receipts and len(self.since_receipt) >= self.receipts:
            self.receipt()

    def receipt(self) -> None:
        """Publish a receipt for the acks so far."""
        ident = self.ledger.next_id(self.channel)
        body = make_body(ident, b"receipt")
        self.ledger.published(ident, (self.receipts_to,), body[-8:])
        self.awaited[ident.seq], self.since_receipt = self.since_receipt, []
        self.link.transport.write(publish_frames(self.receipts_to, body, channel=self.number))

    def verdict(self, number: int, *, multiple: bool, ack: bool) -> None:
        """Take the confirm of a receipt."""
        for publication in self.ledger.verdict(self.channel, number, multiple=multiple, ack=ack):
            copies = self.awaited.pop(publication.id.seq)
            if ack:
                self.ledger.known(copies)

    def came_back(self, body: bytes) -> None:
        """Fail: receipts have a queue."""
        raise AssertionError

    def requeue(self, tag: int, *, multiple: bool = False) -> None:
        """Nack with requeue, and ask for something that the broker answers when it has done so."""
        tags = [each for each in self.held if each <= tag] if multiple else [tag]
        copies = [self.held.pop(each) for each in tags]
        number = self.ledger.requeued(copies)
        self.link.settle(self.number, tag, multiple=multiple, requeue=True)
        self.spawn(self._place(number))

    async def _place(self, number: int) -> None:
        if not self.leaving:
            await self.link.call(commands.Basic.Qos(prefetch_count=self.prefetch), self.number)
            self.ledger.placed(self.queue, number)

    def spawn(self, coroutine: Any) -> None:
        """Run something that ends with the connection at the latest."""
        task = asyncio.ensure_future(_unless_lost(coroutine))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def leave(self) -> None:
        """Close the channel with what is unacked, which goes back to the queue."""
        self.leaving = True
        self.ledger.leaving(self.queue)
        await self.link.call(commands.Channel.Close(200, "", 0, 0), self.number)
        number = self.ledger.requeued(self.held.values())
        self.held = {}
        self.leaving = False
        self.ledger.placed(self.queue, number)


class Runs(Consumer):
    """Acks twenty at a time."""

    def handle(self, tag: int, *, redelivered: bool) -> None:
        """Ack when twenty are held."""
        if len(self.held) >= 20:
            self.ack(tag, multiple=True)


class Fickle(Consumer):
    """Requeues one in thirty, sometimes with all before it."""

    def handle(self, tag: int, *, redelivered: bool) -> None:
        """Decide at random; what comes a second time is acked, with what was kept before it now and then."""
        roll = self.rng.random()
        if redelivered or roll > 0.25:
            self.ack(tag)
        elif roll < 0.02:
            self.requeue(tag)
        elif roll < 0.03 or len(self.held) >= self.prefetch // 2:
            self.requeue(tag, multiple=True)


class Leaver(Consumer):
    """Acks half of what it holds and closes its channel with the rest, again and again."""

    left = 0

    def handle(self, tag: int, *, redelivered: bool) -> None:
        """Hold messages, ack some, and leave."""
        self.left += 1
        if len(self.held) >= 60 or (redelivered and len(self.held) >= 10):
            self.ack(sorted(self.held)[len(self.held) // 2], multiple=True)
        if self.left >= 400:
            self.left = 0
            self.spawn(self._come_again())

    async def _come_again(self) -> None:
        await self.leave()
        await self.consume()


HABITS = (Consumer, Runs, Fickle, Leaver)


async def _unless_lost(coroutine: Any) -> None:
    try:
        await coroutine
    except LostError:
        pass


class Load(Crowd):
    """The whole load, against one port.

    Args:
        ledger: takes the observations.
        rng: what decides.
        window: messages of each publisher that have no verdict yet, at most.

    """

    def __init__(self, ledger: Ledger, rng: random.Random, window: int = 150) -> None:
        self.ledger = ledger
        self.publishers = [Publisher(ledger, random.Random(rng.random()), window) for _ in range(4)]
        self.consumers = [
            habit(ledger, queue, random.Random(rng.random()))
            for habit, queue in zip(HABITS, CONSUMED, strict=True)
        ]

    async def died(self) -> None:
        """Take in what the broker had sent before it died."""
        await super().died()
        for consumer in self.consumers:
            await asyncio.gather(*consumer.tasks)

    async def quiet(self) -> None:
        """Stop publishing, let the consumers go on until nothing is left for them, and close everything."""
        await asyncio.gather(*[publisher.quiet() for publisher in self.publishers])
        for consumer in self.consumers:
            await asyncio.gather(*consumer.tasks)
            if consumer.receipts and not consumer.link.lost.done():
                deadline = asyncio.get_running_loop().time() + 30
                while consumer.awaited and asyncio.get_running_loop().time() < deadline:
                    await asyncio.sleep(0.005)
                self.ledger.quiet(consumer.channel)
            await consumer.leave()
        for link in self.links:
            await link.close()


async def declare(port: int) -> None:
    """Declare everything the load needs; all of it is durable."""
    link = await Link.connect(port)
    await link.open(1)
    for queue in QUEUES:
        await link.call(commands.Queue.Declare(queue=queue, durable=True))
    for exchange, queues in EXCHANGES.items():
        await link.call(commands.Exchange.Declare(exchange=exchange, exchange_type="fanout", durable=True))
        for queue in queues:
            await link.call(commands.Queue.Bind(queue=queue, exchange=exchange))
    await link.close()


class _Drainer(Consumer):
    """Takes all messages and acks them in runs; notes when it has a number of them."""

    def __init__(self, ledger: Ledger, queue: str, link: Link, number: int, count: int) -> None:
        super().__init__(ledger, queue, random.Random(0), prefetch=2000, receipts=0)
        self.link, self.number, self.count = link, number, count
        self.done = asyncio.get_running_loop().create_future()

    def handle(self, tag: int, *, redelivered: bool) -> None:
        if len(self.held) >= 200 or self.delivered >= self.count:
            self.ack(tag, multiple=True)
        if self.delivered >= self.count and not self.done.done():
            self.done.set_result(None)

    async def finish(self, stall: float) -> None:
        """Wait until it has its number, the connection is lost, or nothing came for so long."""
        before = -1
        while not (self.done.done() or self.link.lost.done()) and before < self.delivered:
            before = self.delivered
            await asyncio.wait(
                [self.done, self.link.lost], timeout=stall, return_when=asyncio.FIRST_COMPLETED
            )


async def drain(
    ledger: Ledger,
    port: int,
    ready: dict[str, int],
    *,
    stall: float = STALL_SECONDS,
    receipts: str = RECEIPTS,
    whole: bool = True,
) -> int:
    """Take every message out of the queues, and judge what came; returns how many came.

    Args:
        ledger: takes the observations.
        port: the broker's.
        ready: how many messages each queue has.
        stall: seconds without a delivery after which a queue is given up.
        receipts: a queue for the receipt that shows that all acks are on disk; empty for none.
        whole: nobody publishes meanwhile, so the queues are empty afterwards, and whatever did not come is lost.

    """
    link = await Link.connect(port)
    drainers = []
    taken: list[Copy] = []
    for number, (queue, count) in enumerate(ready.items(), 1):
        drainer = _Drainer(ledger, queue, link, number - 1, count)
        drainers.append(drainer)
        if count:
            await drainer.consume()
            await drainer.finish(stall)
        else:
            drainer.number = number
            await link.open(number, drainer)
        if link.lost.done():
            raise LostError(link.lost.result())
        if drainer.delivered < count:
            ledger.broke(
                "O9", f"{queue} said {count} and delivered {drainer.delivered}, nothing more for {stall} s"
            )
        left = (await link.call(commands.Queue.Declare(queue=queue, passive=True), number)).message_count
        await drainer.leave()
        if whole:
            if left or drainer.delivered > count:
                ledger.broke("O9", f"{queue} said {count}, delivered {drainer.delivered} and has {left} more")
            ledger.drained(queue)
        taken += drainer.since_receipt
    if receipts:
        await _receipt(ledger, link, taken, receipts)
    await link.close()
    ledger.forget()
    return sum(drainer.delivered for drainer in drainers)


async def _receipt(ledger: Ledger, link: Link, taken: list[Copy], queue: str) -> None:
    """Make sure that all acks are on disk."""
    consumer = Consumer(ledger, queue, random.Random(0), receipts=1)
    consumer.receipts_to = queue
    consumer.link, consumer.number = link, 1
    consumer.channel = ledger.open_channel()
    consumer.since_receipt = taken
    await link.open(1, consumer)
    await link.call(commands.Confirm.Select(), 1)
    consumer.receipt()
    deadline = asyncio.get_running_loop().time() + 30
    while consumer.awaited and not link.lost.done() and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.002)
    if not link.lost.done():
        ledger.quiet(consumer.channel)
