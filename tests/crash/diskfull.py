"""A disk of 1 GiB is filled until the alarm, drained, and filled again: publishing resumes by itself, nothing is lost.

    round     what happens
    drained   filled until publishers are blocked; consumed; the same connection publishes again, unasked
    killed    filled again; killed while blocked, on a full disk, three times; consumed; publishes again
    stopped   filled again; stopped in good order while blocked; consumed after the next start

With a limit the alarm comes before the disk is full. With the limit 0 commits find no room, and once publishers are
blocked a file takes what is left, so that nothing at all can be written beside the data file.
"""

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

import uvloop  # noqa: E402
from crash.link import Link, publish_frames  # noqa: E402
from crash.loopdisk import LoopDisk, MemoryDisk, why_no_power_cuts, why_no_small_disks  # noqa: E402
from crash.site import Site, until  # noqa: E402
from pamqp import commands  # noqa: E402

QUEUE = "kept"
OCTETS = 20_000
WINDOW = 200
PREFETCH = 400
ALLOWED = 500
"""Messages that a publisher sends once it is unblocked, before the campaign lets it go on."""
FILL_SECONDS = 300.0
RESUME_SECONDS = 30.0
STOP_SECONDS = 4.0
KILLS = 3
_NUMBER = Struct(">Q")


def body_of(number: int, octets: int) -> bytes:
    """The body of a message: its number and octets that no other has in this order."""
    return _NUMBER.pack(number) + random.Random(number).randbytes(octets - _NUMBER.size)


class Publisher:
    """Publishes persistent messages while it may, `allowed` at most, although the broker blocks it."""

    def __init__(self, first: int, octets: int) -> None:
        self.next, self.octets = first, octets
        self.allowed = 0
        self.insists = False
        """True if it publishes another message for each that is refused."""
        self.confirmed: list[int] = []
        self.nacked: list[int] = []
        self.open: dict[int, int] = {}
        """Messages by the number of their confirm."""
        self._confirms = 0
        self.link: Link

    async def connect(self, port: int) -> None:
        """Connect, and publish as soon as there is something to publish."""
        self.link = await Link.connect(port)
        await self.link.open(1, self)
        await self.link.call(commands.Confirm.Select(), 1)
        self.link.on_writable = self.publish

    def allow(self, count: int) -> None:
        """Let it publish that many more."""
        self.allowed += count
        self.publish()

    def publish(self) -> None:
        """Publish as many as may be on their way."""
        link = self.link
        while self.allowed > 0 and len(self.open) < WINDOW and link.writable and not link.blocked:
            self.allowed -= 1
            self._confirms += 1
            self.open[self._confirms] = self.next
            body = body_of(self.next, self.octets)
            self.next += 1
            link.transport.write(publish_frames(QUEUE, body))

    def verdict(self, number: int, *, multiple: bool, ack: bool) -> None:
        numbers = [each for each in self.open if each <= number] if multiple else [number]
        (self.confirmed if ack else self.nacked).extend(map(self.open.pop, numbers))
        if self.insists and not ack:
            self.allowed += len(numbers)
        self.publish()

    def delivery(self, tag: int, body: bytes, *, redelivered: bool) -> None:
        """Never called: nothing is consumed here."""

    def came_back(self, body: bytes) -> None:
        """Never called: nothing is mandatory."""

    async def filled(self) -> None:
        """Publish until blocked, and all that was read before is answered."""
        self.allow(1 << 40)
        assert await until(lambda: self.link.blocked, FILL_SECONDS, 0.01), "publishers are not blocked"
        self.allowed = 0
        count = -1
        while count != len(self.open):  # what the broker had read before
            count = len(self.open)
            await asyncio.sleep(1.0)


class Consumer:
    """Consumes everything, compares each body with what was published, and acknowledges."""

    def __init__(self, octets: int) -> None:
        self.octets = octets
        self.taken: set[int] = set()
        self.twice = self.wrong = self.misplaced = 0
        self._highest = -1
        self.began = 0.0
        self.link: Link

    async def drain(self, port: int) -> float:
        """Consume until nothing is ready; returns the seconds it took."""
        self.link = link = await Link.connect(port)
        self._highest = -1
        await link.open(1, self)
        await link.open(2)
        await link.call(commands.Basic.Qos(prefetch_count=PREFETCH), 1)
        self.began = time.monotonic()
        await link.call(commands.Basic.Consume(queue=QUEUE, consumer_tag="c"), 1)
        taken, since = len(self.taken), self.began
        while await self._ready():
            if len(self.taken) > taken:
                taken, since = len(self.taken), time.monotonic()
            assert time.monotonic() < since + RESUME_SECONDS, "a queue with messages does not deliver"
            await asyncio.sleep(0.02)
        await link.close()
        return time.monotonic() - self.began

    async def _ready(self) -> int:
        declare = commands.Queue.Declare(queue=QUEUE, passive=True)
        return (await self.link.call(declare, 2)).message_count

    def delivery(self, tag: int, body: bytes, *, redelivered: bool) -> None:
        """A message: one of those that were published, in order, and twice only if it says so."""
        (number,) = _NUMBER.unpack_from(body)
        if body != body_of(number, self.octets):
            self.wrong += 1
        if number in self.taken and not redelivered:
            self.twice += 1
        if number < self._highest:
            self.misplaced += 1
        self._highest = number
        self.taken.add(number)
        self.link.settle(1, tag)

    def verdict(self, number: int, *, multiple: bool, ack: bool) -> None:
        """Never called: nothing is published here."""

    def came_back(self, body: bytes) -> None:
        """Never called either."""


class Filled:
    """A disk that is filled and drained.

    Args:
        disk: where it is mounted.
        limit: what has to stay free, as `disk_free_limit.absolute` takes it; "0" for none, "" for the default.
        octets: of a message.

    """

    def __init__(self, disk: Path, limit: str, octets: int = OCTETS) -> None:
        self.disk, self.limit = disk, limit
        words = ("--set", f"disk_free_limit.absolute={limit}") if limit else ()
        self.site = Site(disk, *words)
        self.octets = octets
        self.consumer = Consumer(octets)
        self.publisher = Publisher(0, octets)
        self.publishers = [self.publisher]
        self.failures: list[str] = []

    async def run(self) -> bool:
        """All rounds; whether nothing was lost, and everything went on by itself."""
        began = time.monotonic()
        try:
            port = self.site.start(judge=False)
            await self._declare(port)
            await self.publisher.connect(port)
            await self._drained(port)
            await self._killed()
            await self._stopped()
        except (AssertionError, OSError) as error:
            self.failures.append(f"{type(error).__name__}: {error}")
        finally:
            self.site.close()
        self._sum(time.monotonic() - began)
        return not self.failures

    async def _declare(self, port: int) -> None:
        link = await Link.connect(port)
        await link.open(1)
        await link.call(commands.Queue.Declare(queue=QUEUE, durable=True), 1)
        await link.close()

    async def _connect(self, port: int) -> None:
        """Connect another publisher to a broker that was started again."""
        self.publisher = Publisher(self.publisher.next, self.octets)
        self.publishers.append(self.publisher)
        await self.publisher.connect(port)

    async def _drained(self, port: int) -> None:
        publisher = self.publisher
        await self._fill("drained")
        await self._drain_and_resume("drained", port)
        await publisher.link.close()

    async def _killed(self) -> None:
        port = await self._restart("killed")
        await self._connect(port)
        await self._fill("killed")
        with self._nothing_left():
            for _ in range(KILLS):
                self.site.kill()
                began = time.monotonic()
                port = self.site.start(judge=False)
                self._say("killed", f"started again on a full disk in {time.monotonic() - began:.1f} s")
            await self._connect(port)
            await self._fill("killed")
        await self._drain_and_resume("killed", port)
        await self.publisher.link.close()

    async def _stopped(self) -> None:
        port = await self._restart("stopped")
        await self._connect(port)
        await self._fill("stopped")
        with self._nothing_left():
            await self._stop("stopped")
            port = self.site.start(judge=False)
        await self.consumer.drain(port)
        await self._stop("stopped")
        findings = self.site.check()
        self._say("stopped", f"store check: {findings.strip() or 'clean'}")
        if findings:
            self.failures.append(findings)

    async def _restart(self, name: str) -> int:
        await self._stop(name)
        return self.site.start(judge=False)

    async def _stop(self, name: str) -> None:
        """Stop in good order, promptly."""
        began = time.monotonic()
        code = await asyncio.to_thread(self.site.stop)  # clients have to answer
        seconds = time.monotonic() - began
        self._say(name, f"stopped in {seconds:.1f} s, exit {code}")
        if code or seconds > STOP_SECONDS or self.site.errors:
            self.failures.append(f"stop: exit {code} after {seconds:.1f} s: {self.site.errors[-1000:]}")

    async def _fill(self, name: str) -> None:
        """Publish until blocked."""
        publisher = self.publisher
        began, confirmed = time.monotonic(), len(publisher.confirmed)
        await publisher.filled()
        self._say(
            name,
            f"blocked after {time.monotonic() - began:.1f} s: {len(publisher.confirmed) - confirmed} confirmed, "
            f"{len(publisher.nacked)} nacked, {len(publisher.open)} not read; "
            f"data file {self._file() >> 20} MB, {self._free() >> 20} MB of the disk free",
        )

    async def _drain_and_resume(self, name: str, port: int) -> None:
        """Consume all; the publisher has to go on by itself."""
        publisher = self.publisher
        publisher.allowed, publisher.insists = ALLOWED, True  # without a limit the first may be too early
        enough = len(publisher.confirmed) + ALLOWED
        unblocked = asyncio.create_task(self._unblocked(publisher))
        before = len(self.consumer.taken)
        seconds = await self.consumer.drain(port)
        taken = len(self.consumer.taken) - before
        after = await unblocked
        went_on = await until(
            lambda: len(publisher.confirmed) >= enough,
            RESUME_SECONDS,
            0.01,
            progress=lambda: len(publisher.confirmed),
        )
        await self.consumer.drain(port)
        self._say(
            name,
            f"drained {taken} in {seconds:.1f} s; unblocked {after:.1f} s after the first ack could be sent, "
            f"{max(0.0, after - seconds):.1f} s after the last; went on with {ALLOWED}: {went_on}",
        )
        if not went_on:
            confirmed = len(publisher.confirmed) - enough + ALLOWED
            self.failures.append(
                f"publishing does not resume: {confirmed} confirmed, {len(publisher.open)} open"
            )

    async def _unblocked(self, publisher: Publisher) -> float:
        """Seconds from the beginning of the drain to connection.unblocked."""
        began = time.monotonic()
        if not await until(lambda: not publisher.link.blocked, FILL_SECONDS, 0.005):
            self.failures.append("the alarm does not clear")
        after = time.monotonic() - began
        publisher.publish()
        return after

    @contextlib.contextmanager
    def _nothing_left(self) -> Iterator[None]:
        """Take what is left of the disk, if there is no limit below it."""
        filler = self.disk / "filler"
        if self.limit == "0":
            fill(filler)
        yield
        filler.unlink(missing_ok=True)

    def _file(self) -> int:
        return (self.site.data_dir / "store" / "data.mdb").stat().st_size

    def _free(self) -> int:
        stat = os.statvfs(self.disk)
        return stat.f_bavail * stat.f_frsize

    def _sum(self, seconds: float) -> None:
        confirmed = {number for each in self.publishers for number in each.confirmed}
        nacked = sum(len(each.nacked) for each in self.publishers)
        consumer = self.consumer
        lost = confirmed - consumer.taken
        unknown = [number for number in consumer.taken if number >= self.publisher.next]
        for what, count in (
            ("lost", len(lost)),
            ("never published", len(unknown)),
            ("twice without redelivered", consumer.twice),
            ("wrong", consumer.wrong),
            ("out of order", consumer.misplaced),
        ):
            if count:
                self.failures.append(f"{what}: {count}")
        print(
            f"limit {self.limit or 'default'}: {len(confirmed)} confirmed ({len(confirmed) * self.octets >> 20} MB), "
            f"{nacked} nacked, {len(consumer.taken)} drained, lost={len(lost)}, "
            f"{consumer.twice} twice without redelivered, {consumer.misplaced} out of order, {seconds:.0f} s",
            flush=True,
        )
        for failure in self.failures:
            print(f"limit {self.limit or 'default'}: FAILED: {failure}", flush=True)

    def _say(self, name: str, text: str) -> None:
        print(f"limit {self.limit or 'default'}: {name}: {text}", flush=True)


def fill(path: Path) -> None:
    """Take all room of a file system, down to the last octet it gives."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                written = file.write(bytes(size))
            except OSError:
                written = 0
            if written < size:
                size //= 2


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--limit", action="append", help="disk_free_limit.absolute; default: the default, then 0"
    )
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--memory", action="store_true", help="tmpfs instead of ext4 on a loop device")
    arguments = parser.parse_args()
    on_disk = not arguments.memory and not why_no_power_cuts()
    if not on_disk and (reason := why_no_small_disks()):
        print(f"disk-full: {reason}")
        return 2
    good = True
    for limit in arguments.limit or ("", "0"):
        home = Path(tempfile.mkdtemp(prefix="leveret-full-"))
        try:
            with (LoopDisk if on_disk else MemoryDisk)(home, arguments.megabytes) as disk:
                kind = "ext4 on a loop device" if on_disk else "tmpfs"
                print(f"limit {limit or 'default'}: {arguments.megabytes} MB of {kind}", flush=True)
                good &= uvloop.run(Filled(disk.mount_point, limit).run())
        finally:
            shutil.rmtree(home, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
