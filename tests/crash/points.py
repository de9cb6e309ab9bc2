"""Exhaustive crash points: one small workload, killed at every k-th fdatasync and every k-th pwrite64 of it.

A workload is a list of steps made from its number: it declares, binds, publishes (small, large, to several queues,
persistent and transient, without waiting for the verdicts in between), gets and acks, requeues, purges, deletes,
commits transactions. Each step waits for its replies, so what the broker has promised at the kill is known. Then
the broker is started as it is, and everything is compared: messages by the ledger, queues and bindings by asking,
transactions by counting: all of one or nothing.

With a disk whose power can be cut, the power goes at the same point, the process having been stopped there.
"""

import asyncio
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from crash import punching
from crash.kills import Totals, check_store
from crash.ledger import Copy, Id, make_body, read_body
from crash.link import Link, LostError, publish_frames
from crash.load import Consumer, drain, fill
from crash.loopdisk import LoopDisk
from crash.site import Site, depths
from crash.tracer import KILL, inject
from pamqp import commands
from processes.running import BROKER

QUEUES = ("p0", "p1", "p2", "p3")
EXCHANGE = "points"
KEYS = ("a", "b")
STEPS = 24
MOST_POINTS = 400
FILES = ("--set", "storage.blob_threshold=65536")


class Workload:
    """A run of the workload, against one broker.

    Args:
        site: its ledger takes the observations.
        number: which workload; the same number is the same steps.
        steps: how many.

    """

    def __init__(self, site: Site, number: int, steps: int = STEPS) -> None:
        self.site, self.ledger = site, site.ledger
        self.rng = random.Random(number)
        self.steps = steps
        self.queues: dict[str, bool | None] = dict.fromkeys(QUEUES, False)
        """True if a queue exists; None if that was being changed."""
        self.bound: dict[str, set[str]] = {key: set() for key in KEYS}
        self.in_doubt: set[str] = set()
        """Keys whose bindings were being changed, or whose queue was."""
        self.groups: list[list[Copy]] = []
        """Copies that have to come back as a whole or not at all."""
        self.link: Link
        self.getter: Consumer
        self.publisher = 0
        self.transaction = 0
        self.tasks: set[asyncio.Task[None]] = set()

    async def run(self, port: int) -> bool:
        """Do all steps; False if the broker died on the way."""
        try:
            await self._begin(port)
            for step in range(self.steps):
                await self._step(step)
            await self.link.close()
        except (LostError, OSError):
            if hasattr(self, "link"):
                await self.link.gone()
            return False
        return True

    async def _begin(self, port: int) -> None:
        self.link = await Link.connect(port)
        await self.link.open(1, self)
        await self.link.call(commands.Confirm.Select())
        self.publisher = self.ledger.open_channel()
        await self.link.open(2, self)
        await self.link.call(commands.Tx.Select(), 2)
        self.transaction = self.ledger.open_channel()
        self.getter = _Getter(self.ledger, "", self.rng, receipts=0)
        self.getter.link, self.getter.number = self.link, 3
        await self.link.open(3, self.getter)
        await self.link.call(
            commands.Exchange.Declare(exchange=EXCHANGE, exchange_type="direct", durable=True)
        )
        for queue in QUEUES:
            await self._declare(queue)
        await self._bind("a", "p0")
        await self._bind("a", "p1")
        await self._bind("b", "p1")

    async def _step(self, step: int) -> None:
        rng = self.rng
        what = rng.choices(
            ("publish", "mixed", "large", "ack", "requeue", "purge", "delete", "bind", "transaction"),
            (6, 3, 2, 5, 1, 1, 1, 1, 2),
        )[0]
        alive = [queue for queue, exists in self.queues.items() if exists]
        if what == "publish":
            await self._publish(
                [(self._target(), rng.randrange(300), True) for _ in range(rng.randint(1, 12))]
            )
        elif what == "mixed":
            await self._publish(
                [(self._target(), rng.randrange(6000), rng.random() < 0.6) for _ in range(rng.randint(2, 20))]
            )
        elif what == "large":
            await self._publish([(self._target(), 90_000, True), (self._target(), 5, False)])
        elif what in {"ack", "requeue"}:
            await self._get(rng.choice(alive), rng.randint(1, 10), requeue=what == "requeue")
        elif what == "purge":
            await self._purge(rng.choice(alive))
        elif what == "delete":
            await self._delete(rng.choice(alive))
        elif what == "bind":
            await self._change_binding(rng.choice(KEYS), rng.choice(alive))
        else:
            await self._transact(rng.randint(2, 6))

    def _target(self) -> tuple[str, str]:
        if self.rng.random() < 0.4:
            return EXCHANGE, self.rng.choice(KEYS)
        return "", self.rng.choice([queue for queue, exists in self.queues.items() if exists])

    def _where(self, target: tuple[str, str]) -> tuple[str, ...]:
        exchange, key = target
        return tuple(sorted(self.bound[key])) if exchange else (key,)

    def _one(self, channel: int, target: tuple[str, str], size: int, *, persistent: bool) -> tuple[Id, bytes]:
        book = self.publisher if channel == 1 else self.transaction
        ident = self.ledger.next_id(book)
        body = make_body(ident, fill(size, ident.seq))
        queues = self._where(target)
        mandatory = not queues
        self.ledger.published(ident, queues, body[-8:], persistent=persistent, mandatory=mandatory)
        return ident, publish_frames(
            target[1], body, exchange=target[0], channel=channel, persistent=persistent, mandatory=mandatory
        )

    async def _publish(self, what: Sequence[tuple[tuple[str, str], int, bool]]) -> None:
        """Publish without waiting, then wait for all verdicts."""
        frames = []
        for target, size, persistent in what:
            ident, octets = self._one(1, target, size, persistent=persistent)
            frames.append(octets)
            if persistent:
                self.groups.append(self.ledger.copies(ident))
        self.link.transport.write(b"".join(frames))
        await self._verdicts()

    async def _verdicts(self) -> None:
        deadline = time.monotonic() + 20
        while self.ledger.undecided(self.publisher):
            if self.link.lost.done():
                raise LostError(self.link.lost.result())
            if time.monotonic() > deadline:
                self.ledger.quiet(self.publisher)
                raise LostError("no verdict")
            await asyncio.sleep(0.001)

    async def _transact(self, count: int) -> None:
        group: list[Copy] = []
        for _ in range(count):
            ident, octets = self._one(2, self._target(), self.rng.randrange(5000), persistent=True)
            self.link.transport.write(octets)
            group += self.ledger.copies(ident)
        self.groups.append(group)
        await self.link.call(commands.Tx.Commit(), 2)
        self.ledger.verdict(
            self.transaction, self.ledger.next_id(self.transaction).seq - 1, multiple=True, ack=True
        )

    async def _get(self, queue: str, count: int, *, requeue: bool) -> None:
        """Get messages, ack them all at once or give them back, and learn that the acks are on disk."""
        getter = self.getter
        getter.queue = queue
        for _ in range(count):
            await self.link.call(commands.Basic.Get(queue=queue), 3)
        if not getter.held:
            return
        last = max(getter.held)
        if requeue:
            copies = [getter.held.pop(tag) for tag in list(getter.held)]
            number = self.ledger.requeued(copies)
            self.link.settle(3, last, multiple=True, requeue=True)
            await self.link.call(commands.Basic.Qos(prefetch_count=0), 3)
            self.ledger.placed(queue, number)
            return
        copies = list(getter.held.values())
        getter.ack(last, multiple=True)
        if self.rng.random() < 0.7:
            await self._publish([(("", queue), 10, True)])
            self.ledger.known(copies)

    async def _declare(self, queue: str) -> None:
        self.queues[queue] = None
        await self.link.call(commands.Queue.Declare(queue=queue, durable=True))
        self.queues[queue] = True

    async def _purge(self, queue: str) -> None:
        copies = self.ledger.purging(queue)
        await self.link.call(commands.Queue.Purge(queue=queue))
        self.ledger.purged(copies)

    async def _delete(self, queue: str) -> None:
        copies = self.ledger.purging(queue)
        self.queues[queue] = None
        keys = {key for key in KEYS if queue in self.bound[key]}
        self.in_doubt |= keys
        await self.link.call(commands.Queue.Delete(queue=queue))
        self.ledger.purged(copies)
        self.queues[queue] = False
        for key in keys:
            self.bound[key].discard(queue)
        self.in_doubt -= keys
        await self._declare(queue)

    async def _bind(self, key: str, queue: str) -> None:
        self.in_doubt.add(key)
        await self.link.call(commands.Queue.Bind(queue=queue, exchange=EXCHANGE, routing_key=key))
        self.bound[key].add(queue)
        self.in_doubt.discard(key)

    async def _change_binding(self, key: str, queue: str) -> None:
        if queue not in self.bound[key]:
            await self._bind(key, queue)
            return
        self.in_doubt.add(key)
        await self.link.call(commands.Queue.Unbind(queue=queue, exchange=EXCHANGE, routing_key=key))
        self.bound[key].discard(queue)
        self.in_doubt.discard(key)

    async def purge_and_kill(self, port: int) -> None:
        """Publish, purge, and kill the broker when it has answered."""
        self.link = await Link.connect(port)
        await self.link.open(1, self)
        await self.link.call(commands.Confirm.Select())
        self.publisher = self.ledger.open_channel()
        for queue in QUEUES[:2]:
            await self._publish([(("", queue), size, True) for size in (10, 100, 5000) * 10])
            await self._purge(queue)
        await depths(self.site, self.link, QUEUES)
        self.site.kill()
        await self.link.gone()
        self.ledger.died()

    # -- what comes ------------------------------------------------------------------------------------------------

    def delivery(self, tag: int, body: bytes, *, redelivered: bool) -> None:
        """Fail: these channels have no consumers."""
        raise AssertionError

    def verdict(self, number: int, *, multiple: bool, ack: bool) -> None:
        self.ledger.verdict(self.publisher, number, multiple=multiple, ack=ack)

    def came_back(self, body: bytes) -> None:
        self.ledger.returned(read_body(body)[0])

    def died(self) -> None:
        """Note in the books that the broker was killed."""
        self.ledger.died()

    # -- afterwards ------------------------------------------------------------------------------------------------

    async def compare(self, port: int) -> None:
        """Compare a broker that was started after the fault with what was promised."""
        link = await Link.connect(port)
        ready: dict[str, int] = {}
        for number, (queue, exists) in enumerate(self.queues.items(), 100):
            await link.open(number)
            try:
                reply = await link.call(commands.Queue.Declare(queue=queue, passive=True), number)
            except LostError:
                if exists:
                    self.ledger.missing(queue)
                else:
                    self.ledger.drained(queue)
                continue
            if exists is False:
                self.ledger.broke("O5", f"{queue} is there although delete-ok was sent")
            ready[queue] = reply.message_count
            self.ledger.depth(queue, ready[queue])
        open_groups = [
            group for group in self.groups if not any(copy.publication.outcome or copy.why for copy in group)
        ]
        await self._probe(link, ready)
        await link.close()
        await drain(self.ledger, port, ready, receipts=next(iter(ready), ""))
        for group in open_groups:
            back = sum(copy.proven for copy in group)
            if 0 < back < len(group):
                names = ", ".join(sorted({str(copy.publication.id) for copy in group}))
                self.ledger.broke("O1", f"{back} of {len(group)} copies of {names} came back")

    async def _probe(self, link: Link, ready: dict[str, int]) -> None:
        """Publish by each key: it must go where the bindings say."""
        await link.open(1, self)
        try:
            await link.call(
                commands.Exchange.Declare(exchange=EXCHANGE, exchange_type="direct", passive=True)
            )
        except LostError:
            if self.bound["a"]:
                self.ledger.broke("O1", "the exchange is gone")
            return
        await link.call(commands.Confirm.Select())
        self.link = link
        self.publisher = self.ledger.open_channel()
        for key in KEYS:
            if key not in self.in_doubt:
                await self._publish([((EXCHANGE, key), 20, True)])
                for queue in self.bound[key]:
                    if queue in ready:
                        ready[queue] += 1


class _Getter(Consumer):
    """Takes what basic.get brings, and holds it."""

    def handle(self, tag: int, *, redelivered: bool) -> None:
        """The workload says what happens."""


class Steps(Protocol):
    async def run(self, port: int) -> bool:
        """Do all steps; False if the broker died on the way."""

    def died(self) -> None:
        """Note in the books that the broker was killed."""

    async def compare(self, port: int) -> None:
        """Compare a broker that was started after the fault with what was promised."""


async def one_point(
    home: Path,
    number: int,
    call: str,
    when: int,
    *,
    steps: int = STEPS,
    disk: LoopDisk | None = None,
    kind: Callable[[Site, int, int], Steps] = Workload,
    has_holes: bool = False,
) -> tuple[Site, bool]:
    """Kill workload `number` at its `when`-th `call`; False if it ended before it came to that.

    With `has_holes` the broker makes holes of all free pages, all the time.
    """
    place = home / "point"
    place.mkdir()
    if disk is not None:
        os.sync()  # the folder is ours, not the broker's to keep
    log = home.parent / f"{home.name}.strace" if disk is not None else home / "strace.out"
    log.unlink(missing_ok=True)
    site = Site(place, *FILES, program=punching.PROGRAM if has_holes else BROKER)
    workload = kind(site, number, steps)
    before = inject(call, KILL, str(when), log=log)
    try:
        try:
            port = site.start(before=before)
        except AssertionError:
            code = site.exit_code
        else:
            code = site.stop() if await workload.run(port) else site.ended()
        if code == 0:
            return site, False
        if code != -signal.SIGKILL:
            site.ledger.broke("O10", f"exit code {code}: {site.errors}")
        if disk is not None:
            disk.cut()
        workload.died()
        if disk is not None:
            disk.restore()
        await workload.compare(site.start())
        site.finish()
        check_store(site)
    except AssertionError as error:
        site.ledger.broke("O1", str(error))
    finally:
        site.close()
        shutil.rmtree(place, ignore_errors=True)
    return site, True


async def points(
    home: Path,
    numbers: Sequence[int],
    *,
    say: Callable[[str], object] = print,
    calls: Sequence[str] = ("fdatasync", "pwrite64"),
    steps: int = STEPS,
    stride: int = 1,
    most: int = MOST_POINTS,
    disk: LoopDisk | None = None,
    kind: Callable[[Site, int, int], Steps] = Workload,
) -> Totals:
    """All points (or every `stride`-th, `most` at most for each system call) of some workloads.

    Every other workload has a broker that makes holes of all free pages.
    """
    totals = Totals("crash points" if disk is None else "crash points with power cuts")
    began = time.monotonic()
    for number in numbers:
        for call in calls:
            counted = totals.counted
            for when in range(1, 1 + most * stride, stride):
                site, hit = await one_point(
                    home, number, call, when, steps=steps, disk=disk, kind=kind, has_holes=number % 2 == 0
                )
                totals.cycles += 1
                totals.notes["given back"] += site.given_back
                totals.counted += hit
                totals.add(site.ledger)
                for violation in site.ledger.violations:
                    say(f"workload {number}, {call} {when}: {violation}")
                if not hit:
                    break
            say(
                f"workload {number}: killed at {totals.counted - counted} points of {call}, {totals.counts['lost']} lost"
            )
            totals.notes[call] += totals.counted - counted
    totals.seconds = time.monotonic() - began
    return totals


async def purges(home: Path, count: int, **options: Any) -> Totals:
    """Kill the broker at the moment a purge is answered, `count` times: what was purged may not come back.

    The options are for `Site`.
    """
    totals = Totals("purges")
    site = Site(home, **options)
    try:
        for number in range(count):
            workload = Workload(site, number, steps=0)
            port = site.start(judge=False)
            if not number and not await workload.run(port):
                site.ledger.broke("O10", "the broker ended")
            await workload.purge_and_kill(port)
            totals.cycles += 1
            totals.counted += 1
        link = await Link.connect(site.start(judge=False))
        await depths(site, link, QUEUES)
        await link.close()
        site.stop()
    except (AssertionError, LostError) as error:
        site.ledger.broke("O10", str(error))
    finally:
        site.close()
    totals.add(site.ledger)
    return totals
