"""The management API beside traffic: `make bench NAME=management`.

Lists of 10,000 queues, the latency of 5,000 messages a second while clients ask for lists and pages without pause, the
memory of the statistics, the start beside that of a revision without the API, the memory of an idle broker, and the
time of `leveret ctl ping`. Quiet processors are assumed: the load of the machine is printed with each part. The hot
path is compared by `make bench-instructions`.
"""

import argparse
import base64
import http.client
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path

import uvloop

from bench import brokers
from bench.embedded import resident
from bench.latency import measure, percentile
from bench.results import Report
from bench.revision import revision
from bench.scale import declare_durable

QUEUES = 10_000
BUSY = 1000
TICKS = 800
"""Samples after which all rings of a queue are full, 5 s each."""
RATE = 5000
ROUNDS = 3
SECONDS = 5.0
CLIENTS = 8
"""Clients that ask without pause: as many as are answered at once."""
RUNS = 10
BEFORE = "d5a6fdb"
"""The last revision without the management API."""

PAGE_MS = 150.0
LIST_SECONDS = 1.5
FLOWER_SECONDS = 2.0
CANARY_MS = 10.0
CANARY_RATIO = 1.5
STATISTICS_MB = 40.0
START_MS = 50.0
IDLE_MB = 60.0
IDLE_SECONDS = 7.0
"""Time until memory is read: the first samples are taken."""
PING_MS = 200.0

LOGIN = "Basic " + base64.b64encode(b"guest:guest").decode()
LIST = "/api/queues"
PAGE = "/api/queues?page=1&page_size=100&sort=messages"
FLOWER = "/api/queues/%2F"
"""Path that Flower asks for, with a time limit of two seconds."""


class Managed:
    """A running broker with the management API on a free port.

    Args:
        scratch: an existing folder for its files.
        settings: further `KEY=VALUE` pairs.
        root: the checkout that is started.

    """

    def __init__(self, scratch: Path, *settings: str, root: Path = brokers.ROOT) -> None:
        self.port = brokers.free_port()
        self.data_dir = scratch / "data"
        ports = [f"prometheus.tcp.port={brokers.free_port()}", *settings]
        if root == brokers.ROOT:
            ports.append(f"management.tcp.port={self.port}")
        self.broker = brokers.start("leveret", scratch, ports, root=root)
        self.used = used(self.broker.pid)
        """Milliseconds of processor time of its start."""

    def get(self, path: str, timeout: float = 60.0) -> int:
        """Return the octets of the answer to a GET."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            return read(client, path)
        finally:
            client.close()


def used(pid: int) -> float:
    """Return the milliseconds of processor time of a process's main thread."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e6


def read(client: http.client.HTTPConnection, path: str) -> int:
    """Ask for a path, read the answer and return its octets; raises BrokerError if it is no success."""
    client.request("GET", path, headers={"authorization": LOGIN})
    answer = client.getresponse()
    octets = 0
    while piece := answer.read(1 << 20):
        octets += len(piece)
    if answer.status != http.client.OK:
        message = f"GET {path}: {answer.status}"
        raise brokers.BrokerError(message)
    return octets


@contextmanager
def managed(*settings: str, root: Path = brokers.ROOT) -> Iterator[Managed]:
    """Run a broker with the management API for the duration of a `with` block."""
    with tempfile.TemporaryDirectory(prefix="leveret-bench-", ignore_cleanup_errors=True) as scratch:
        found = Managed(Path(scratch), *settings, root=root)
        try:
            yield found
        finally:
            found.broker.stop()


def seconds_of(call: Callable[[], object], runs: int = RUNS) -> list[float]:
    """Return the seconds of several calls of a function, shortest first."""
    found = []
    for _ in range(runs):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return sorted(found)


# -- the parts ----------------------------------------------------------------------------------------------------


def new(path: str) -> str:
    """Return a path whose answer nobody has asked for yet, so that it is not given again but made."""
    return f"{path}{'&' if '?' in path else '?'}new={time.perf_counter_ns()}"


def lists(at: Managed, report: Report) -> None:
    """Measure a page, the whole list, and Flower's request: made, and given again."""
    page = seconds_of(lambda: at.get(new(PAGE)))
    report.line("page of 100 by messages, median", 1000 * statistics.median(page), "ms", most=PAGE_MS)
    whole = seconds_of(lambda: at.get(new(LIST)))
    report.line("whole list, median", statistics.median(whole), "s", most=LIST_SECONDS)
    report.line("whole list given again, median", statistics.median(seconds_of(lambda: at.get(LIST))), "s")
    report.line("whole list", at.get(LIST) / 1e6, "MB")
    flower = seconds_of(lambda: at.get(new(FLOWER), FLOWER_SECONDS))
    report.line("Flower's request, longest", flower[-1], "s", most=FLOWER_SECONDS)


def canary(at: Managed, report: Report) -> None:
    """Measure the latency of messages with and without clients that ask without pause, in turn."""
    quiet, asked, answers = [], [], 0
    for _ in range(ROUNDS):
        quiet.append(p99(at))
        with asking(at.port) as count:
            asked.append(p99(at))
            answers += count()
    before, beside = statistics.median(quiet), statistics.median(asked)
    report.line(f"p99 at {RATE:,} messages/s without requests", before, "ms")
    report.line("p99 beside lists and pages", beside, "ms", most=max(CANARY_MS, CANARY_RATIO * before))
    report.line("answers meanwhile", answers / ROUNDS / SECONDS, "/s")


def p99(at: Managed) -> float:
    """Return the p99 of the latency in milliseconds."""
    times = uvloop.run(measure(at.broker.port, rate=RATE, seconds=SECONDS))
    return 1000.0 * percentile(times, 99.0)


@contextmanager
def asking(port: int) -> Iterator[Callable[[], int]]:
    """Ask for lists and for pages without pause, in a process of its own, during a `with` block.

    Yields:
        A function that returns the number of answers so far.

    """
    context = multiprocessing.get_context("spawn")
    ready, count = context.Event(), context.Value("i", 0)
    process = context.Process(target=ask, args=(port, ready, count), daemon=True)
    process.start()
    try:
        if not ready.wait(20.0):
            message = "the clients got no answer"
            raise brokers.BrokerError(message)
        yield lambda: int(count.value)
    finally:
        process.terminate()
        process.join()


def ask(port: int, ready: Event, count: "multiprocessing.sharedctypes.Synchronized[int]") -> None:
    """Ask without pause until the process is ended."""

    def endlessly(path: str) -> None:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
        while True:
            read(client, new(path))
            with count.get_lock():
                count.value += 1
            ready.set()

    threads = [threading.Thread(target=endlessly, args=(path,)) for path in (LIST, PAGE) * (CLIENTS // 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def memory(report: Report) -> None:
    """Measure the samples of busy objects, in a process of its own."""
    command = [sys.executable, "-m", "bench.management", "--statistics"]
    done = subprocess.run(command, cwd=brokers.ROOT, check=True, capture_output=True, text=True)
    report.line(
        f"RSS of statistics, {BUSY:,} queues, connections, channels",
        float(done.stdout),
        "MB",
        most=STATISTICS_MB,
    )


def full_statistics() -> float:
    """Return the megabytes of the full rings of busy queues, connections and channels."""
    from leveret.broker.statistics import families  # noqa: PLC0415 - in a process of its own
    from leveret.broker.statistics.series import Series, Ticks  # noqa: PLC0415

    kinds = [
        (family, [Series() for _ in range(BUSY)])
        for family in (families.QUEUES, families.CONNECTIONS, families.CHANNELS)
    ]
    before = resident()
    for number in range(1, TICKS):
        ticks = Ticks(number, number * 5.0, number * 5000, 5.0)
        for family, many in kinds:
            width = len(family.columns)
            for at, each in enumerate(many):
                base = number * 1_000_000 + at * 100
                each.add(tuple(range(base, base + width)), ticks.at, ticks, family.tiers)
    return resident() - before


def starts(report: Report) -> None:
    """Measure starts beside those of the revision without the API, in turn, also in processor time."""
    ours, theirs = [], []
    with revision(BEFORE) as tree:
        for _ in range(RUNS):
            for root, times in ((brokers.ROOT, ours), (tree, theirs)):
                with managed(root=root) as at:
                    times.append((1000 * at.broker.started_in, at.used))
    for at, what in enumerate(("start", "processor time of a start")):
        now, before = (statistics.median(each[at] for each in times) for times in (ours, theirs))
        report.line(f"{what} of {BEFORE}, median of {RUNS}", before, "ms")
        report.line(f"{what}, median of {RUNS}", now, "ms", most=before + START_MS)


def idle(at: Managed, report: Report) -> None:
    """Measure the memory of an idle broker, and `leveret ctl ping`."""
    time.sleep(IDLE_SECONDS)
    report.line("RSS of an idle broker", at.broker.rss() / 2**20, "MB", most=IDLE_MB)
    command = [sys.executable, "-m", "leveret", "ctl", "--data-dir", str(at.data_dir), "ping"]
    pings = seconds_of(lambda: subprocess.run(command, cwd=brokers.ROOT, check=True, capture_output=True))
    report.line("leveret ctl ping, median", 1000 * statistics.median(pings), "ms", most=PING_MS)


PARTS = ("lists", "canary", "memory", "starts", "idle")


def run(parts: Sequence[str], report: Report) -> None:
    """Run these parts."""
    if {"lists", "canary"} & {*parts}:
        with managed() as at:
            uvloop.run(declare_durable(at.broker.port, QUEUES))
            print(f"{QUEUES:,} queues, {loaded()}")
            if "lists" in parts:
                lists(at, report)
            if "canary" in parts:
                print(f"messages beside requests, {loaded()}")
                canary(at, report)
    if "memory" in parts:
        memory(report)
    if "starts" in parts:
        print(f"starts, {loaded()}")
        starts(report)
    if "idle" in parts:
        with managed() as at:
            print(f"idle, {loaded()}")
            idle(at, report)


def loaded() -> str:
    """Return the load of the machine in words."""
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; returns 0 if all bars are cleared, 1 if not, 2 if a broker did not run."""
    parser = argparse.ArgumentParser(prog="python -m bench.management", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--statistics", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.statistics:
        print(full_statistics())
        return 0
    report = Report("management")
    try:
        run(options.parts, report)
    except (brokers.BrokerError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print(f"end, {loaded()}; the hot path: make bench-instructions REF={BEFORE}")
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
