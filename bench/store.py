"""Compares the commit path with a bare segment file: `python -m bench.store` or `make bench NAME=store`.

Without a broker, one thread publishes a batch of persistent messages into a durable queue, cuts it and commits it,
including both flushes; for comparison the same bytes are written to a file by writev and fdatasync. The two take turns
on the same disk, each cell of the table several times, and medians are compared. The same is measured with bodies apart
from their records, and the bytes per message on disk when it goes to several queues.

`--part paging` publishes to a queue of which little may be in memory and consumes it at the same time, at 0.8, 1.0 and
1.2 times that speed, and counts how many messages are read from the delta for each one that is delivered.

`--part embedding` publishes and consumes messages with several values of `queue_index_embed_msgs_below`, and prints the
processor time of both, the bytes written, and the memory of a queue whose messages are on disk and read ahead.
"""

import argparse
import os
import struct
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from bench.results import Report, append
from leveret.storage.journal.journal import EMBED_BELOW, Journal
from leveret.storage.journal.reads import LoadRequest
from leveret.storage.message import Persistent
from leveret.storage.queues.pager import Pager
from leveret.storage.queues.variable_queue import VariableQueue
from leveret.storage.store.environment import Environment

SIZES = (100, 1500, 4096, 65536)
BATCHES = (1, 10, 100, 1000)
FAN_OUT = (1, 2, 5, 10)
RATIO = 0.4
MOST_OCTETS = 256 * 1024 * 1024
"""Maximum bytes that one cell writes in one round."""
SEGMENT_OCTETS = 64 * 1024 * 1024
ALWAYS, NEVER = 1 << 40, 0
"""Values of `queue_index_embed_msgs_below`."""
SPEEDS = (0.8, 1.0, 1.2)
"""Speeds of consumers, relative to publishers."""
THRESHOLDS = (NEVER, 1024, 4096, 16384, 65536)
EMBEDDED_SIZES = (500, 3000, 12000)

frame = struct.Struct(">BHI").pack


def content(size: int) -> bytes:
    """Return the content header and body frames of a persistent message."""
    header = struct.pack(">HHQHB", 60, 0, size, 0x1000, 2)
    return frame(2, 1, len(header)) + header + b"\xce" + frame(3, 1, size) + os.urandom(size) + b"\xce"


class Store:
    """A durable environment with its journal, without a broker."""

    def __init__(self, folder: Path, embed_below: int, *, sync: bool = True) -> None:
        self.environment = Environment(folder, sync=sync)
        self.journal = Journal(embed_below=embed_below)
        self.loads: list[LoadRequest] = []
        self.pager = Pager(self.journal, self.loads.append, ram_limit=1 << 60)
        self.qids = 0
        self.confirmed = 0
        self.seq_no = 0

    def accepted(self, _seq_no: int) -> None:
        """Note that a message is on disk."""
        self.confirmed += 1

    def refused(self, seq_no: int) -> None:
        """Note that a message was refused."""
        raise OSError(seq_no)

    def queue(self) -> VariableQueue:
        """Return a new durable queue."""
        self.qids += 1
        return VariableQueue(self.pager, self.qids, durable=True, next_seq=1)

    def publish(self, queues: Sequence[VariableQueue], body: bytes, count: int) -> None:
        """Publish a batch to all the queues and commit it."""
        address = b"\x00\x05store"
        copies = len(queues)
        messages = [Persistent(address, body, 1, self, n, copies) for n in range(count)]
        for queue in queues:
            queue.publish(messages, persistent=True)
        self.commit()

    def commit(self) -> None:
        """Commit all noted changes."""
        batch = self.journal.cut()
        self.environment.commit(batch)
        self.journal.settled()

    def consume(self, queue: VariableQueue, count: int) -> int:
        """Fetch and ack at most `count` messages, reading what is on disk; return how many."""
        taken = 0
        while taken < count and queue.ready_count:
            seq_ids = queue.fetch(min(10, count - taken), ack_required=True).seq_ids
            queue.ack(seq_ids)
            taken += len(seq_ids)
            while self.loads:
                request = self.loads.pop(0)
                queue.loaded(request, self.environment.read(request.ranges, request.limit))
        return taken

    def drop(self, queue: VariableQueue) -> None:
        """Delete a queue so that its pages can be reused."""
        queue.purge()
        self.journal.sweep(queue.qid, 0, 1 << 62)
        self.commit()
        while self.environment.has_unfinished_durable or self.environment.paged.unfinished:
            self.commit()


class Segments:
    """The yardstick: appends batches to a file and flushes it. A full file is followed by a new one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.at = SEGMENT_OCTETS
        self.file = -1
        self.path = folder

    def publish(self, body: bytes, count: int) -> None:
        """Write a batch, each message after a header of 16 bytes, and flush it."""
        if self.at >= SEGMENT_OCTETS:
            self.close()
            self.path = self.folder / f"segment-{time.monotonic_ns()}"
            self.file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self.at = 0
        head = struct.pack(">QQ", count, len(body))
        parts = [head, body] * count
        for first in range(0, len(parts), 1024):  # the maximum number that the kernel accepts
            self.at += os.writev(self.file, parts[first : first + 1024])
        os.fdatasync(self.file)

    def close(self) -> None:
        """Remove the file."""
        if self.file >= 0:
            os.close(self.file)
            self.path.unlink()
            self.file = -1
            self.at = SEGMENT_OCTETS


def rate(publish: Callable[[], None], count: int, octets: int, seconds: float) -> float:
    """Return the rate of calling `publish`, which handles `count` messages, for some seconds."""
    publish()
    most = max(3, MOST_OCTETS // (octets * count))
    began = now = time.perf_counter()
    done = 0
    while now - began < seconds and done < most:
        publish()
        done += 1
        now = time.perf_counter()
    return done * count / (now - began)


def cell(
    stores: dict[str, Store], segments: Segments, size: int, batch: int, options: argparse.Namespace
) -> dict[str, float]:
    """Return the median rates of one cell of the table, the yardstick's as `segment`."""
    body = content(size)
    rates: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        rates.setdefault("segment", []).append(
            rate(lambda: segments.publish(body, batch), batch, size, options.seconds)
        )
        segments.close()
        for name, store in stores.items():
            queue = store.queue()
            figure = rate(
                lambda store=store, queue=queue: store.publish([queue], body, batch),
                batch,
                size,
                options.seconds,
            )
            rates.setdefault(name, []).append(figure)
            store.drop(queue)
    return {name: median(each) for name, each in rates.items()}


def written_octets() -> int:
    """Return the bytes that this process has caused to be written to a disk."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    return 0


def fan_out(store: Store, size: int, copies: int, *, batch: int = 100, batches: int = 20) -> float:
    """Return the bytes written to the disk per message that goes to `copies` queues."""
    body = content(size)
    queues = [store.queue() for _ in range(copies)]
    store.publish(queues, body, batch)
    before = written_octets()
    for _ in range(batches):
        store.publish(queues, body, batch)
    octets = written_octets() - before
    for queue in queues:
        store.drop(queue)
    return octets / batch / batches


def amplification(folder: Path) -> None:
    """Print the bytes written per message, in environments without earlier deletions."""
    stores = {"embedded": Store(folder / "fan-embedded", ALWAYS), "apart": Store(folder / "fan-apart", NEVER)}
    print(
        f"\n{'size':>6}{'queues':>8}{'embedded':>12}{'apart':>12}  octets written per message, batches of 100"
    )
    for size in (100, 1500):
        for copies in FAN_OUT:
            each = {name: fan_out(store, size, copies) for name, store in stores.items()}
            print(
                f"{size:>6}{copies:>8}" + "".join(f"{value:>12,.0f}" for value in each.values()), flush=True
            )
            append({"tool": "store", "size": size, "queues": copies, "octets": each})
    for store in stores.values():
        store.environment.close()


def paging(folder: Path) -> None:
    """Print how many messages are read from the delta for each one delivered."""
    print(
        f"{'consumers':>10}{'delivered':>12}{'from delta':>12}{'each':>8}  a queue of 6,000 that may keep 200 in memory"
    )
    for speed in SPEEDS:
        store = Store(folder / f"paging-{speed}", EMBED_BELOW, sync=False)
        queue, body = store.queue(), content(100)
        queue.set_ram_target(200, 1 << 40)
        delivered, due = 0, 0.0
        for number in range(360):
            store.publish([queue], body, 100)
            queue.reduce_memory_use()
            if number >= 60:
                due += 100 * speed
                taken = store.consume(queue, int(due))
                delivered += taken
                due = due - taken if queue.ready_count else 0.0
        reads = store.pager.read_delta.messages
        print(f"{speed:>10}{delivered:>12,}{reads:>12,}{reads / delivered:>8.2f}", flush=True)
        append({"tool": "store", "speed": speed, "delivered": delivered, "from_delta": reads})
        store.environment.close()


def embedding(folder: Path, count: int = 10_000) -> None:
    """Print what `queue_index_embed_msgs_below` costs in time, on disk and in memory."""
    print(
        f"{'below':>8}{'size':>8}{'publish':>9}{'consume':>9}{'written':>9}{'memory':>9}  "
        "us of the processor and bytes written per message; most KiB while the first quarter is read back"
    )
    for size in EMBEDDED_SIZES:
        body = content(size)
        for below in THRESHOLDS:
            store = Store(folder / f"embedding-{size}-{below}", below)
            queue = store.queue()
            queue.set_ram_target(0, 0)
            octets, began = written_octets(), time.process_time()
            for _ in range(count // 100):
                store.publish([queue], body, 100)
            published, octets = time.process_time() - began, written_octets() - octets
            queue.set_ram_target(0, 0)
            tracemalloc.start()
            store.consume(queue, count // 4)
            memory = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            began = time.process_time()
            consumed = store.consume(queue, count)
            figures = (
                1e6 * published / count,
                1e6 * (time.process_time() - began) / consumed,
                octets / count,
                memory / 1024,
            )
            print(f"{below:>8}{size:>8}" + "".join(f"{each:>9,.1f}" for each in figures), flush=True)
            append({"tool": "store", "below": below, "size": size, "figures": figures})
            store.environment.close()


def table(options: argparse.Namespace, folder: Path, report: Report) -> None:
    """Print the rates."""
    stores = {
        "embedded": Store(folder / "embedded", ALWAYS),
        "apart": Store(folder / "apart", NEVER),
    }
    segments = Segments(folder)
    print(
        f"{'size':>6}{'batch':>7}{'segment':>12}{'embedded':>12}{'ratio':>7}{'apart':>12}{'ratio':>7}  msg/s"
    )
    judged = 0.0
    for size in options.sizes:
        for batch in options.batches:
            found = cell(stores, segments, size, batch, options)
            ratios = {name: found[name] / found["segment"] for name in stores}
            print(
                f"{size:>6}{batch:>7}{found['segment']:>12,.0f}"
                + "".join(f"{found[name]:>12,.0f}{ratios[name]:>7.2f}" for name in stores),
                flush=True,
            )
            append({"tool": "store", "size": size, "batch": batch, **found})
            if (size, batch) == (1500, 100):
                judged = ratios["embedded"]
    if judged:
        report.line("commit path / segment file, 100 x 1500 octets, embedded", judged, "", least=RATIO)
    for store in stores.values():
        store.environment.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; return 0 if the bar was cleared, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m bench.store", description="The commit path")
    parser.add_argument(
        "--dir", type=Path, help="a folder on the disk to be measured (default: the system's)"
    )
    parser.add_argument("--part", choices=("rates", "paging", "embedding"), default="rates")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a measurement (default 0.5)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    options = parser.parse_args(arguments)
    report = Report("store")
    with tempfile.TemporaryDirectory(
        prefix="leveret-bench-", dir=options.dir, ignore_cleanup_errors=True
    ) as scratch:
        if options.part != "rates":
            (paging if options.part == "paging" else embedding)(Path(scratch))
            return 0
        print(
            f"bodies are written apart from {EMBED_BELOW} octets by default; both flushes of every commit\n"
        )
        table(options, Path(scratch), report)
        amplification(Path(scratch))
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
