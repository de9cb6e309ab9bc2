"""Load of transactions: inputs that were confirmed are taken, answered by an output, and acked, in one transaction.

Each line has a queue of inputs in one of the confirm modes, a feeder that publishes them with confirms, and a worker:
tx { get or consume, publish the outputs, ack the inputs } commit. What they publish says which input it is, outputs also
which transaction. Lines differ in the number of inputs in a transaction, 1 to 50,000, and in the size of the outputs:
small, at the size from which a body gets a file, far above it.

`Book` keeps what was seen, and compares it with what the queues have after a start:

    T1   an input that was confirmed, or was in its queue after an earlier start, is in its queue or has an output
    T2   no input is in its queue and has an output, or is anywhere twice
    T3   what `commit-ok` came for is there: each of its inputs has its output
    T4   of each other transaction all outputs are there, or none is

In consumer-ack modes inputs are written nowhere, and confirmed once their transaction is safe.

Some queues of inputs take each id once. Their feeders repeat every input whose confirm they have not seen, until they
have, and some others: those that they have just sent, and those that were answered long ago. So none of theirs may be
lost, confirmed or not, and none may be answered twice, in whatever run.
"""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any, NamedTuple

from crash.ledger import BodyError, Id, Ledger, make_body, read_body
from crash.link import Link, LostError, publish_frames
from crash.load import fill
from crash.publisher import Crowd, Windowed
from crash.site import until
from pamqp import commands

THRESHOLD = 65536
"""Size of a content from which its body gets a file, with `FILES`; the least that can be set."""
FILES = ("--set", f"storage.blob_threshold={THRESHOLD}")
OUT = "tx.out"
SMALL = 100
GET_SECONDS = 0.01
"""Seconds until a worker takes fewer inputs than it likes."""
COMMIT_SECONDS = 60.0
IDLE_SECONDS = 20.0
"""Seconds within which a queue that has messages delivers the next."""
MOST_LEFT = 2000
"""Inputs that stay in a queue after a start: looking at more takes long."""
TAKEN_ONCE = {"x-deduplicate": "message_id", "x-deduplicate-for": 24 * 60 * 60 * 1000}
WINDOW, RUNNING, EXCHANGE = "window", "running", "exchange"
REPEATED = 0.1
"""Share of inputs that are repeated for no reason."""
_INPUT, _OUTPUT = 0, 1
_WITH_ID = b"\x10\x80\x02\x08"
"""Flags, delivery mode 2, and the length of a `message_id` of eight octets."""
_NUMBER = Struct(">Q")


class Line(NamedTuple):
    """A queue of inputs, and how they are worked off."""

    name: str
    mode: str = "standard"
    """The confirm mode of its inputs."""
    least: int = 1
    most: int = 1
    """Inputs of a transaction."""
    sizes: Sequence[int] = (SMALL,)
    """Octets in an output's body; `THRESHOLD` stands for about so many. One output of a transaction has such a size, the
    others are small."""
    gets: bool = False
    """True for basic.get instead of a consumer."""
    once: str = ""
    """The mode of a queue that takes each input once, with a feeder that repeats what was not confirmed; or that an
    exchange before the queue, and a transient one, does."""
    ahead: int = 8
    """Inputs that wait beside those of one transaction, at most; with 0 each is published after the last commit."""


_ONCE = Line("tx.once", most=3, sizes=(SMALL, SMALL, THRESHOLD), once=WINDOW)
FEW = (
    Line("tx.one", sizes=(SMALL, SMALL, THRESHOLD)),
    Line("tx.got", sizes=(SMALL, THRESHOLD), gets=True),
    Line("tx.few", least=1, most=30, sizes=(SMALL, THRESHOLD, 300_000)),
    Line("tx.consumer", "consumer-ack", sizes=(SMALL, THRESHOLD)),
    Line("tx.light", "consumer-ack-light", sizes=(SMALL, THRESHOLD)),
    _ONCE,
)
"""Lines beside the other loads."""
FRESH = (
    *[Line(f"tx.fresh.{number}", ahead=0) for number in range(4)],
    Line("tx.fresh.large", sizes=(SMALL, THRESHOLD), ahead=0),
)
"""Lines whose inputs are acked before they are written."""
ONCE = (
    _ONCE,
    Line("tx.once.fresh", once=WINDOW, ahead=0),
    Line("tx.once.running", once=RUNNING, ahead=0),
    Line("tx.once.consumer", "consumer-ack", sizes=(SMALL, THRESHOLD), once=WINDOW),
    Line("tx.once.exchange", most=3, sizes=(SMALL, THRESHOLD), once=EXCHANGE),
    Line("tx.once.exchange.fresh", once=EXCHANGE, ahead=0),
    Line("tx.once.exchange.consumer", "consumer-ack", once=EXCHANGE),
    Line("tx.once.many", least=50, most=500, once=RUNNING),
)
"""Lines of which each input has one output, however often it is published."""
LINES = (
    *FEW,
    *FRESH,
    *ONCE[1:],
    Line("tx.large", least=1, most=3, sizes=(1 << 20, 6 << 20)),
    Line("tx.consumers", "consumer-ack", least=1, most=20, sizes=(THRESHOLD, 2 << 20)),
    Line("tx.many", least=500, most=5000, sizes=(SMALL, THRESHOLD, 1 << 20)),
)
HUGE = Line("tx.huge", least=20_000, most=50_000, sizes=(0, SMALL, THRESHOLD))


class _Transaction(NamedTuple):
    numbers: Sequence[int]
    committed: bool


class Book:
    """Record of inputs and transactions that were seen, over all runs of a broker; `Ledger.broke` takes the objections."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.inputs: dict[int, tuple[str, bool]] = {}
        """Queue, and whether the broker answers for it, of each input without a certain output."""
        self.transactions: dict[int, _Transaction] = {}
        """Those since the outputs were last taken out."""
        self.unseen: dict[str, list[int]] = {}
        """Inputs of each queue whose confirms were not seen, where they are repeated."""
        self._done: dict[int, str] = {}
        """Inputs that have left, and their queues: repeats of them must be dropped."""
        self.ended: dict[str, list[int]] = {}
        """Those of each queue."""
        self.backlog: Counter[str] = Counter()
        """Inputs of each queue that no transaction has, about; the load counts."""
        self._numbers = self._last = 0

    def published(self, queue: str) -> int:
        """An input is about to be sent; returns its number."""
        self._numbers += 1
        self.inputs[self._numbers] = queue, False
        return self._numbers

    def repeated(self, queue: str, number: int) -> None:
        """An input is about to be sent once more."""
        self.ledger.counts["repeated"] += 1
        if number not in self._done:
            self.inputs.setdefault(number, (queue, False))

    def confirmed(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number in self.inputs:
                self.inputs[number] = self.inputs[number][0], True
                self.ledger.counts["confirmed"] += 1

    def began(self, numbers: Sequence[int]) -> int:
        """A transaction is about to be sent; returns its number."""
        self._last += 1
        self.transactions[self._last] = _Transaction(numbers, committed=False)
        return self._last

    def committed(self, transaction: int) -> None:
        """The broker said commit-ok."""
        self.transactions[transaction] = self.transactions[transaction]._replace(committed=True)
        self.ledger.counts["committed"] += 1

    def waiting(self) -> Counter[str]:
        """Return the number of inputs that the broker answers for and no transaction has, for each queue."""
        taken = {number for numbers, _ in self.transactions.values() for number in numbers}
        return Counter(queue for number, (queue, safe) in self.inputs.items() if safe and number not in taken)

    def judge(self, found: dict[str, list[int]], outputs: Sequence[tuple[int, int]]) -> None:
        """Compare with what is ready after a start, in the queues of inputs and among the outputs (transaction, input).

        The outputs are taken for removed afterwards.
        """
        broke = self.ledger.broke
        waiting = Counter(number for numbers in found.values() for number in numbers)
        answered = Counter(number for _, number in outputs)
        where = waiting + answered
        places = {number: queue for queue, numbers in found.items() for number in numbers}
        for number in where.keys() - self.inputs.keys():
            place = places.get(number, OUT)
            broke(
                "T2", f"input {number} is in {place}, but its output was taken out before, or nobody sent it"
            )
        for what, numbers in (
            ("in their queue and answered", waiting.keys() & answered.keys()),
            ("in their queue twice", {number for number, count in waiting.items() if count > 1}),
            ("answered twice", {number for number, count in answered.items() if count > 1}),
        ):
            queues = Counter(self.inputs[number][0] for number in numbers if number in self.inputs)
            for queue, count in queues.items():
                broke("T2", f"{count} inputs of {queue} are {what}")
        there = Counter(transaction for transaction, _ in outputs)
        for transaction, (numbers, committed) in self.transactions.items():
            count = there.pop(transaction, 0)
            if committed and count < len(numbers):
                broke("T3", f"commit-ok came for {len(numbers)} outputs, {count} are there")
            elif count not in {0, len(numbers)}:
                broke("T4", f"a transaction has {count} of its {len(numbers)} outputs")
            elif count and not committed:
                self.ledger.counts["whole without an answer"] += 1
        for transaction in there:
            broke("T2", f"an output is of transaction {transaction}, which nobody sent")
        lost = Counter(queue for number, (queue, safe) in self.inputs.items() if safe and not where[number])
        for queue, count in lost.items():
            self.ledger.counts["lost"] += count
            broke("T1", f"{count} inputs of {queue} were confirmed, and are neither there nor answered")
        self.ledger.counts["recovered"] += len(where)
        self.transactions.clear()
        self._leave([number for number in answered if number in self.inputs])
        self.inputs = {number: (queue, True) for queue, numbers in found.items() for number in numbers}

    def purged(self, numbers: Iterable[int]) -> None:
        """Inputs were removed from their queue, and do not come back."""
        self._leave(numbers)
        for number in numbers:
            self.inputs.pop(number, None)

    def _leave(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            queue, _ = self.inputs[number]
            self._done[number] = queue
            self.ended.setdefault(queue, []).append(number)


class Feeder(Windowed):
    """Publishes the inputs of a line, so many that its worker always has some."""

    def __init__(self, book: Book, line: Line, rng: random.Random) -> None:
        super().__init__(book.ledger, rng, window=2 * line.most + line.ahead)
        self.book, self.line = book, line
        self.unconfirmed: dict[int, int] = {}
        """Inputs by the number of their confirm."""
        self._seq_no = 0
        self._again = book.unseen.pop(line.name, [])

    @property
    def unseen(self) -> list[int]:
        """Inputs to be repeated: those without a confirm."""
        return [*self._again, *self.unconfirmed.values()]

    def has_room(self) -> bool:
        """Return whether one more may be on its way."""
        return super().has_room() and self.book.backlog[self.line.name] < self.line.most + self.line.ahead

    def more(self) -> bytes:
        if self._again:
            number = self._again.pop(0)
            self.book.repeated(self.line.name, number)
        else:
            number = self.book.published(self.line.name)
            self.book.backlog[self.line.name] += 1
        if self.line.once and self.rng.random() < REPEATED:
            ended = self.book.ended.get(self.line.name)
            self._again.append(self.rng.choice(ended) if ended and self.rng.random() < 0.5 else number)
        self._seq_no += 1
        self.unconfirmed[self._seq_no] = number
        self.out += 1
        small = 0.8 if self.line.once else 0.95
        size = SMALL if self.line.most > 1 or self.rng.random() < small else around(THRESHOLD, self.rng)
        properties = b"".join([_WITH_ID, _NUMBER.pack(number)]) if self.line.once else b""
        body = make_body(Id(_INPUT, 0, number), fill(size, number))
        exchange = self.line.name if self.line.once == EXCHANGE else ""
        return publish_frames(self.line.name, body, exchange=exchange, properties=properties)

    def verdict(self, number: int, *, multiple: bool, ack: bool) -> None:
        numbers = [each for each in self.unconfirmed if each <= number] if multiple else [number]
        inputs = [self.unconfirmed.pop(each) for each in numbers]
        self.out -= len(inputs)
        if ack:
            self.book.confirmed(inputs)
        elif self.line.once:
            self._again += inputs
        if self.going:
            self.refill()


class Worker:
    """Works off a line on a transactional channel."""

    def __init__(self, book: Book, line: Line, rng: random.Random, feeder: Feeder) -> None:
        self.book, self.line, self.rng, self.feeder = book, line, rng, feeder
        self.link: Link
        self.number = 0
        self.held: dict[int, int] = {}
        """Inputs by delivery tag, in order."""
        self.going = False
        self.committing = asyncio.Event()
        """Set while a commit has no answer."""
        self.task: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()

    async def open(self, port: int) -> None:
        self.link = await Link.connect(port)
        await self._open_channel()

    async def _open_channel(self) -> None:
        self.number += 1
        self.held = {}
        await self.link.open(self.number, self)
        await self.link.call(commands.Tx.Select(), self.number)
        if not self.line.gets:
            prefetch = min(2 * self.line.most, 65535)
            await self.link.call(commands.Basic.Qos(prefetch_count=prefetch), self.number)
            await self.link.call(commands.Basic.Consume(queue=self.line.name), self.number)

    def start(self) -> None:
        """Work until `stop`, or until the connection is lost."""
        self.going = True
        self.task = asyncio.ensure_future(self._work())

    def stop(self) -> None:
        """Begin no other transaction."""
        self.going = False

    def delivery(self, tag: int, body: bytes, *, redelivered: bool) -> None:
        try:
            self.held[tag] = read_body(body)[0].seq
        except BodyError as error:
            self.book.ledger.broke("O5", f"{self.line.name}: {error}")
        self._arrived.set()

    def verdict(self, number: int, *, multiple: bool, ack: bool) -> None:
        """Fail: workers have no confirms."""
        raise AssertionError

    def came_back(self, body: bytes) -> None:
        """Fail: nothing is mandatory."""
        raise AssertionError

    async def _work(self) -> None:
        while self.going and not self.link.lost.done():
            try:
                if await self._take(self.rng.randint(self.line.least, self.line.most)):
                    await self._transact()
            except LostError:
                if self.link.lost.done():
                    return
                self.committing.clear()
                self.book.ledger.counts["refused"] += 1
                try:  # it was refused, and its channel closed
                    await self._open_channel()
                except LostError:
                    return

    async def _take(self, count: int) -> bool:
        """Wait for so many inputs, not for long if there are fewer; returns whether there are any."""
        if self.line.gets and not self.held:
            await self.link.call(commands.Basic.Get(queue=self.line.name), self.number)
        deadline = time.monotonic() + (GET_SECONDS if count < 100 else 100 * GET_SECONDS)
        while len(self.held) < count and (left := deadline - time.monotonic()) > 0:
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), left)
            self.link.check()
        return bool(self.held)

    async def _transact(self) -> None:
        """Answer what is held, and ack it."""
        tags = list(self.held)[: self.line.most]
        numbers = [self.held.pop(tag) for tag in tags]
        transaction = self.book.began(numbers)
        if self.line.ahead:
            self._feed(len(numbers))
        special = self.rng.randrange(len(numbers))
        octets = around(self.rng.choice(self.line.sizes), self.rng)
        frames = []
        for at, number in enumerate(numbers):
            size = octets if at == special else 0 if len(numbers) > 1000 else SMALL
            body = make_body(Id(transaction, _OUTPUT, number), fill(size, number))
            frames.append(publish_frames(OUT, body, channel=self.number))
        acks_first = self.rng.random() < 0.3
        if acks_first:
            self.link.settle(self.number, tags[-1], multiple=True)
        self.link.transport.write(b"".join(frames))
        if not acks_first:
            self.link.settle(self.number, tags[-1], multiple=True)
        self.committing.set()
        await self.link.call(commands.Tx.Commit(), self.number, seconds=COMMIT_SECONDS)
        self.committing.clear()
        self.book.committed(transaction)
        if not self.line.ahead:
            self._feed(len(numbers))

    def _feed(self, count: int) -> None:
        """Have so many inputs more published."""
        self.book.backlog[self.line.name] -= count
        self.feeder.refill()


class Pipeline(Crowd):
    """The whole load, against one port."""

    def __init__(self, book: Book, rng: random.Random, lines: Sequence[Line] = FEW) -> None:
        book.backlog = book.waiting()
        feeders = [Feeder(book, line, random.Random(rng.random())) for line in lines]
        self.book = book
        self.publishers: Sequence[Windowed] = feeders
        self.consumers = [
            Worker(book, line, random.Random(rng.random()), feeder)
            for line, feeder in zip(lines, feeders, strict=True)
        ]

    def start(self) -> None:
        super().start()
        for worker in self.consumers:
            worker.start()

    async def committing(self, line: Line, seconds: float) -> bool:
        """Wait until a transaction of a line is being committed; returns false if none is in time."""
        (worker,) = [each for each in self.consumers if each.line is line]
        try:
            await asyncio.wait_for(worker.committing.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def died(self) -> None:
        """Take in what the broker had sent before it died."""
        await super().died()
        await self.worked()

    async def worked(self) -> None:
        """Wait until no worker works; their connections are gone, and what was not confirmed is to be repeated."""
        await asyncio.gather(*[worker.task for worker in self.consumers if worker.task is not None])
        for feeder in self.publishers:
            if isinstance(feeder, Feeder) and feeder.line.once:
                self.book.unseen[feeder.line.name] = feeder.unseen


def around(size: int, rng: random.Random) -> int:
    """Return the size, or about `THRESHOLD` for that: a content is a little larger than its body."""
    return size + rng.randint(-200, 50) if size == THRESHOLD else size


async def declare(port: int, lines: Sequence[Line] = FEW) -> None:
    link = await Link.connect(port)
    await link.open(1)
    for name, mode, once in [
        (OUT, "standard", ""),
        *((line.name, line.mode, line.once) for line in lines),
    ]:
        arguments: Any = {"x-confirm-mode": mode}
        if once and once != EXCHANGE:
            arguments |= {**TAKEN_ONCE, "x-deduplicate-mode": once}
        await link.call(commands.Queue.Declare(queue=name, durable=True, arguments=arguments))
        if once == EXCHANGE:
            exchange = commands.Exchange.Declare(
                exchange=name, exchange_type="fanout", durable=True, arguments=TAKEN_ONCE
            )
            beside = f"{name}.beside"
            limited = {"x-max-length": 10}
            await link.call(exchange)
            await link.call(commands.Queue.Declare(queue=beside, arguments=limited))
            for queue in (name, beside):
                await link.call(commands.Queue.Bind(queue=queue, exchange=name))
    await link.close()


async def judge(book: Book, port: int, lines: Sequence[Line] = FEW) -> None:
    """Look at all that is ready after a start, judge it, and remove the outputs; the inputs stay, unless too many."""
    link = await Link.connect(port)
    found: dict[str, list[int]] = {}
    outputs: list[tuple[int, int]] = []
    for number, name in enumerate([OUT, *(line.name for line in lines)], 1):
        for ident in await _look(book.ledger, link, number, name):
            if name == OUT:
                outputs.append((ident.run, ident.seq))
            else:
                found.setdefault(name, []).append(ident.seq)
    book.judge(found, outputs)
    await link.open(1000)
    many = {name: numbers for name, numbers in found.items() if len(numbers) > MOST_LEFT}
    for name in (OUT, *many):
        await link.call(commands.Queue.Purge(queue=name), 1000)
        book.purged(many.get(name, ()))
    await link.close()


async def _look(ledger: Ledger, link: Link, number: int, queue: str) -> list[Id]:
    watcher = _Looker(ledger, queue)
    await link.open(number, watcher)
    ready = (await link.call(commands.Queue.Declare(queue=queue, passive=True), number)).message_count
    if ready:
        await link.call(commands.Basic.Consume(queue=queue), number)
        await until(
            lambda: len(watcher.found) >= ready or link.lost.done(),
            IDLE_SECONDS,
            progress=lambda: len(watcher.found),
        )
        link.check()
        if len(watcher.found) != ready:
            ledger.broke("O9", f"{queue} said {ready} and delivered {len(watcher.found)}")
    await link.call(commands.Channel.Close(200, "", 0, 0), number)
    return watcher.found


class _Looker:
    """Notes which messages a queue has."""

    def __init__(self, ledger: Ledger, queue: str) -> None:
        self.ledger, self.queue = ledger, queue
        self.found: list[Id] = []

    def delivery(self, tag: int, body: bytes, *, redelivered: bool) -> None:
        try:
            self.found.append(read_body(body)[0])
        except BodyError as error:
            self.ledger.broke("O5", f"{self.queue}: {error}")

    def verdict(self, number: int, *, multiple: bool, ack: bool) -> None:
        """Fail: there are no confirms."""
        raise AssertionError

    def came_back(self, body: bytes) -> None:
        """Fail: nothing is published."""
        raise AssertionError
