"""Benchmark of a queue with millions of messages: `python -m bench.backlog` or `make bench NAME=backlog`.

For each backlog (number of messages, size, persistent or transient) it measures: the publish rate into the long queue
compared with that into an empty one, alternating; the memory of the broker; the time of a restart after a clean stop
and after SIGKILL, until a client is connected; the rate of draining it all, with every message's number and mark
checked, compared with draining a backlog that never left memory; and the processor time of a message that nothing waits
beside, afterwards compared with before: a broker that had a backlog must be as fast as a new one. `--against REF`
takes the rate of draining from memory from another git revision. The client costs a fraction of a microsecond per
message; `--client perf-test` drains as ordinary clients do.
"""

import argparse
import contextlib
import dataclasses
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from pamqp import commands

from bench import brokers, perftest
from bench.bulk import Bulk, BulkError
from bench.results import Report
from bench.revision import revision

PUBLISH_RATIO = 0.85
DRAIN_RATIO = 0.6
MEMORY = 400 << 20
AGED_RATIO = 1.15
START_SECONDS = {"clean": (2.0, 5.0), "dirty": (6.0, 60.0)}
"""Maximum seconds of a start for up to 1,000,000 messages, and for more."""
STOP_LIMIT = 120.0
START_LIMIT = 300.0
SETTLE = 2.0
PROBES = 5
PERF_TEST_PROBES = 3
RAM_BACKLOG = 24 << 20
"""Bytes of bodies in a backlog that stays in memory."""


@dataclasses.dataclass(frozen=True, slots=True)
class Backlog:
    """A number of messages of one kind."""

    messages: int
    size: int
    persistent: bool

    def __str__(self) -> str:
        kind = "persistent" if self.persistent else "transient"
        return f"{self.messages:,} {kind} messages of {self.size} octets"

    @property
    def disk(self) -> int:
        """Return a generous estimate of its bytes on disk."""
        return self.messages * (self.size * 2 + 300) + (1 << 30)


ALL = (
    Backlog(1_000_000, 100, persistent=True),
    Backlog(1_000_000, 1500, persistent=True),
    Backlog(1_000_000, 1500, persistent=False),
    Backlog(10_000_000, 100, persistent=True),
    Backlog(10_000_000, 100, persistent=False),
)


class Broker:
    """A broker that is stopped, killed and restarted on the same data."""

    def __init__(
        self, name: str, folder: Path, options: argparse.Namespace, root: Path = brokers.ROOT
    ) -> None:
        self.name, self.folder, self.root = name, folder, root
        self.settings = options.set if root == brokers.ROOT else []
        self.running = self.launch()

    def launch(self) -> brokers.Broker:
        """Start the broker."""
        return brokers.start(self.name, self.folder, self.settings, root=self.root, limit=START_LIMIT)

    def connect(self) -> Bulk:
        """Return a connected client."""
        return Bulk(self.running.port)

    def restart(self, how: str) -> tuple[float, float]:
        """Stop or kill the broker and restart it; return the seconds to stop and to serve a client."""
        began = time.monotonic()
        self.running.stop(STOP_LIMIT) if how == "clean" else self.running.kill()
        stopped = time.monotonic()
        self.running = self.launch()
        self.connect().close()
        return stopped - began, time.monotonic() - stopped


@contextlib.contextmanager
def broker(name: str, options: argparse.Namespace, root: Path = brokers.ROOT) -> Iterator[Broker]:
    """Run a broker with a data directory of its own, removed at the end."""
    with tempfile.TemporaryDirectory(
        prefix="leveret-bench-", dir=options.dir, ignore_cleanup_errors=True
    ) as scratch:
        made = Broker(name, Path(scratch), options, root)
        try:
            yield made
        finally:
            made.running.stop(1.0)


def ram_drain(subject: Broker, backlog: Backlog, count: int, times: int = 10) -> float:
    """Return the median rate of draining a backlog that stays in memory."""
    client = subject.connect()
    client.declare("ram")
    rates = []
    for number in range(times):
        client.fill("ram", number * count, count, backlog.size, persistent=backlog.persistent)
        rates.append(client.drain("ram", number * count, count))
    client.call(commands.Queue.Delete(queue="ram"))
    client.close()
    return median(rates)


def message_cost(subject: Broker, backlog: Backlog, count: int, times: int = 10) -> float:
    """Return the processor time in microseconds of a message that is published and consumed while few wait."""
    before = subject.running.cpu_seconds()
    ram_drain(subject, backlog, count, times)
    return (subject.running.cpu_seconds() - before) / (times * count) * 1e6


def perf_test_drain(subject: Broker, queue: str, count: int) -> float:
    """Return the rate at which PerfTest drains a queue, excluding its first second.

    Raises:
        PerfTestError: PerfTest failed.
    """
    flags = ["-x0", "-y1", "-q200", "-p", "-u", queue, "-D", str(count)]
    return perftest.run_all(perftest.fetch(), subject.running.port, [flags], 600, 1).received


def ram_perf_test_drain(subject: Broker, backlog: Backlog) -> float:
    """Return the rate at which PerfTest drains a backlog of a broker that keeps all messages in memory."""
    client = subject.connect()
    client.declare("ram")
    count = min(backlog.messages, 1_000_000)
    client.fill("ram", 0, count, backlog.size, persistent=backlog.persistent)
    client.close()
    return perf_test_drain(subject, "ram", count)


def filled(subject: Broker, backlog: Backlog, report: Report) -> None:
    """Fill the queue, and report the rate and the peak memory."""
    peak = 0
    looked = time.monotonic()

    def progress(_: int) -> None:
        nonlocal peak, looked
        if time.monotonic() - looked > 0.25:
            looked = time.monotonic()
            peak = max(peak, subject.running.anonymous_rss())

    client = subject.connect()
    client.declare("long")
    rate = client.fill(
        "long", 0, backlog.messages, backlog.size, persistent=backlog.persistent, progress=progress
    )
    client.close()
    report.line("filled at", rate, "msg/s")
    report.line("RssAnon, most while it was filled", peak / 2**20, "MB")


def publish_rates(subject: Broker, backlog: Backlog, report: Report) -> int:
    """Publish into the long queue and an empty one alternately; return the number of messages in the long one."""
    count = max(20_000, 150_000_000 // (backlog.size + 1000))
    ratios, rates = [], []
    held = backlog.messages
    client = subject.connect()
    for number in range(PROBES):
        empty = f"empty-{number}"
        client.declare(empty)
        found = {}
        for queue in ("long", empty) if number % 2 else (empty, "long"):
            at = held if queue == "long" else 0
            found[queue] = client.fill(queue, at, count, backlog.size, persistent=backlog.persistent)
            held += count if queue == "long" else 0
        client.call(commands.Queue.Delete(queue=empty))
        ratios.append(found["long"] / found[empty])
        rates.append(found["long"])
    client.close()
    report.line(f"published into it, median of {PROBES} times {count:,}", median(rates), "msg/s")
    report.line("  beside an empty queue", median(ratios), "x", least=PUBLISH_RATIO)
    return held


def perf_test_publish_rates(subject: Broker, backlog: Backlog, report: Report) -> int:
    """Measure as `publish_rates`, with PerfTest for a few seconds each."""
    flags = ["-x1", "-y0", "-p", "-s", str(backlog.size)]
    if backlog.persistent:
        flags += ["-f", "persistent", "-c1000"]
    ratios, rates = [], []
    client = subject.connect()
    for number in range(PERF_TEST_PROBES):
        empty = f"empty-{number}"
        client.declare(empty)
        found = {}
        for queue in ("long", empty) if number % 2 else (empty, "long"):
            run = perftest.run_all(perftest.fetch(), subject.running.port, [[*flags, "-u", queue]], 6, 2)
            found[queue] = run.sent if run.confirmed is None else min(run.sent, run.confirmed)
        client.call(commands.Queue.Delete(queue=empty))
        ratios.append(found["long"] / found[empty])
        rates.append(found["long"])
    report.line(f"published into it by PerfTest, median of {PERF_TEST_PROBES}", median(rates), "msg/s")
    report.line("  beside an empty queue", median(ratios), "x", least=PUBLISH_RATIO)
    held = client.ready_messages("long")
    client.close()
    return held


def restarts(subject: Broker, backlog: Backlog, held: int, report: Report) -> bool:
    """Restart after a clean stop and after a kill; return whether all messages are marked as redelivered."""
    for how in ("clean", "dirty"):
        stopping, starting = subject.restart(how)
        if how == "clean":
            report.line("clean stop", stopping, "s")
        small, large = START_SECONDS[how]
        report.line(
            f"{how} start until a client is served",
            starting,
            "s",
            most=small if backlog.messages <= 1_000_000 else large,
        )
        client = subject.connect()
        report.fact(
            f"all messages are there after the {how} start", holds=client.ready_messages("long") == held
        )
        client.close()
        time.sleep(SETTLE)
        report.line("  RssAnon then", subject.running.anonymous_rss() / 2**20, "MB", most=MEMORY / 2**20)
    return True


def drained(
    subject: Broker,
    held: int,
    reference: float,
    report: Report,
    options: argparse.Namespace,
    *,
    redelivered: bool,
) -> None:
    """Drain the queue and check its messages."""
    client = subject.connect()
    if options.client == "perf-test":
        rate = perf_test_drain(subject, "long", held)
        report.line("drained by PerfTest at", rate, "msg/s")
        report.line("  beside a backlog in memory", rate / reference, "x", least=DRAIN_RATIO)
        report.fact("the queue is empty", holds=client.ready_messages("long") == 0)
        client.close()
        return
    try:
        rate = client.drain("long", 0, held, redelivered=redelivered)
    except BulkError as error:
        report.fact(f"drained in order: {error}", holds=False)
        return
    report.line("drained at", rate, "msg/s")
    report.line("  beside a backlog in memory", rate / reference, "x", least=DRAIN_RATIO)
    report.fact(
        f"all {held:,} came in order, redelivered is {redelivered}, the queue is empty",
        holds=client.ready_messages("long") == 0,
    )
    client.close()
    report.line("RssAnon when it was drained", subject.running.anonymous_rss() / 2**20, "MB")


def measure(backlog: Backlog, options: argparse.Namespace, other: Path | None) -> int:
    """Measure one backlog; return the number of bars missed."""
    print(f"\n{options.broker}, {backlog}", flush=True)
    where = options.dir or Path(tempfile.gettempdir())
    if (free := shutil.disk_usage(where).free) < backlog.disk:
        print(f"  left out: {backlog.disk >> 30} GiB may be needed in {where}, {free >> 30} are free")
        return 1
    report = Report(f"backlog {options.broker} {backlog}", judged=options.broker == "leveret")
    in_memory = max(1000, RAM_BACKLOG // (backlog.size + 400))
    if other is not None:
        with broker(options.broker, options, other) as earlier:
            if options.client == "perf-test":
                reference = ram_perf_test_drain(earlier, backlog)
            else:
                reference = ram_drain(earlier, backlog, max(in_memory, backlog.messages // 10), 3)
        report.line(f"in memory, {options.against}: drained at", reference, "msg/s")
    with broker(options.broker, options) as subject:
        small = ram_drain(subject, backlog, in_memory)
        report.line(f"in memory ({in_memory:,} messages): drained at", small, "msg/s")
        if other is None:
            reference = small
        fresh = message_cost(subject, backlog, in_memory)
        report.line("processor time of a message", fresh, "us")
        before = subject.running.anonymous_rss()
        report.line("RssAnon before", before / 2**20, "MB")
        filled(subject, backlog, report)
        by_perf_test = options.client == "perf-test"
        held = (perf_test_publish_rates if by_perf_test else publish_rates)(subject, backlog, report)
        time.sleep(SETTLE)
        report.line(
            "RssAnon with the backlog", subject.running.anonymous_rss() / 2**20, "MB", most=MEMORY / 2**20
        )
        redelivered = False
        if backlog.persistent and not options.no_restart:
            redelivered = restarts(subject, backlog, held, report)
        drained(subject, held, reference, report, options, redelivered=redelivered)
        time.sleep(SETTLE)
        aged = message_cost(subject, backlog, in_memory)
        report.line("processor time of a message, beside that before", aged / fresh, "x", most=AGED_RATIO)
        octets = sum(path.stat().st_blocks * 512 for path in subject.folder.rglob("*") if path.is_file())
        report.line("data directory afterwards", octets / 2**20, "MB")
    return report.missed


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; return 0 if all bars were cleared, 1 if not, 2 if a broker did not start."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.backlog", description="Queues of millions of messages"
    )
    parser.add_argument("--messages", type=int, help="one backlog of so many instead of the usual five")
    parser.add_argument("--size", type=int, default=100, help="octets of each body (default 100, at least 8)")
    parser.add_argument("--transient", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the usual ones")
    parser.add_argument("--no-restart", action="store_true", help="drain what was never restarted")
    parser.add_argument("--against", metavar="REF", help="a git revision that keeps everything in memory")
    parser.add_argument(
        "--client",
        choices=("raw", "perf-test"),
        default="raw",
        help="who publishes beside the backlog and drains it: a client that costs nearly nothing and checks the "
        "order, or PerfTest (needs --against)",
    )
    parser.add_argument("--broker", choices=("leveret", "rabbitmq"), default="leveret")
    parser.add_argument("--dir", type=Path, help="a folder on the disk to be used (default: the system's)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args(arguments)
    if options.client == "perf-test" and not options.against:
        parser.error("--client perf-test needs --against, a revision that keeps everything in memory")
    chosen: Sequence[Backlog] = ALL
    if options.messages:
        chosen = (Backlog(options.messages, options.size, not options.transient),)
    elif options.quick:
        chosen = [dataclasses.replace(each, messages=each.messages // 100) for each in ALL]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    missed = 0
    try:
        with contextlib.ExitStack() as stack:
            other = stack.enter_context(revision(options.against)) if options.against else None
            for backlog in chosen:
                try:
                    missed += measure(backlog, options, other)
                except BulkError as error:
                    print(f"  FAIL: {error}", flush=True)
                    missed += 1
    except (brokers.BrokerError, perftest.PerfTestError, BulkError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
