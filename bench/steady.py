"""Minutes of a steady load beside an export and scraped metrics, and the steps of the event loop that took too long.

The broker itself measures each step by the processor time of its thread and logs those above a limit
(`debug.slow_step`); so neither a busy machine nor the client's own delays count. What a client sees is reported, too.
"""

import argparse
import contextlib
import multiprocessing
import re
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bench import brokers, open_loop
from bench.bulk import BulkError
from bench.open_loop import Load, percentile
from bench.peers import endpoint_of
from bench.results import Report, append

RATE = 5000
STEP_MS = 2.0
"""Milliseconds of processor time that no step may exceed, but reads, which are as large as clients make them."""
READ = "read of connection"
SCRAPE_SECONDS = 5.0
SAMPLE_SECONDS = 10.0
MOST_GROWTH, MOST_DATA = 1.02, 1.5
"""Most that memory, and data on disk, may grow to from the second quarter to the last, as factors."""
SLOW = re.compile(r"slow step of the event loop: ([\d.]+) ms of processor time for (.*)")


def slow_steps(lines: Iterable[str]) -> dict[str, list[float]]:
    """Return the milliseconds of each step that a broker has logged as slow, by kind and object; reads together."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        if (match := SLOW.search(line)) is not None:
            what = match[2].strip()
            found[READ if what.startswith(READ) else what].append(float(match[1]))
    return dict(found)


@contextlib.contextmanager
def scraped(port: int) -> Iterator[None]:
    """Fetch the metrics of a broker every few seconds, in a process of its own.

    Raises:
        BulkError: one request failed.

    """
    process = multiprocessing.get_context("spawn").Process(target=_scrape, args=(port,), daemon=True)
    process.start()
    try:
        yield
        if not process.is_alive():
            message = "the metrics of the broker could not be fetched"
            raise BulkError(message)
    finally:
        process.kill()
        process.join()


class Samples(threading.Thread):
    """Takes a broker's memory and the size of its data, in bytes, from time to time until `stop`."""

    def __init__(self, broker: brokers.Broker, folder: Path) -> None:
        super().__init__(daemon=True)
        self._broker, self._folder = broker, folder
        self._stopped = threading.Event()
        self.memory: list[int] = []
        self.octets: list[int] = []

    def run(self) -> None:
        """Take samples."""
        while not self._stopped.wait(SAMPLE_SECONDS):
            self.memory.append(self._broker.anonymous_rss())
            sizes = []
            for path in self._folder.rglob("*"):
                with contextlib.suppress(OSError):
                    sizes.append(path.stat().st_blocks * 512)
            self.octets.append(sum(sizes))

    def stop(self) -> None:
        """Take no more samples."""
        self._stopped.set()
        self.join()

    @staticmethod
    def growth(samples: Sequence[int]) -> float:
        """Return the highest sample of the last quarter over that of the second one; 1.0 for few samples."""
        quarter = len(samples) // 4
        return max(samples[-quarter:]) / max(samples[quarter : 2 * quarter]) if quarter else 1.0


def _scrape(port: int) -> None:
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            answer.read()
        time.sleep(SCRAPE_SECONDS)


def steady(options: argparse.Namespace) -> int:
    """Load a Leveret of its own for `options.minutes`, and judge its steps; returns the number of bars missed.

    Raises:
        BrokerError: it does not start.
        BulkError: messages were lost.

    """
    report = Report("latency steady")
    load = Load(options.rate or RATE, options.minutes * 60, size=options.size)
    with tempfile.TemporaryDirectory(prefix="leveret-bench-") as scratch:
        metrics = brokers.free_port()
        settings = (
            f"export.dir={scratch}/export",
            f"debug.slow_step={STEP_MS:g}ms",
            f"prometheus.tcp.port={metrics}",
        )
        broker = brokers.start("leveret", Path(scratch), settings)
        samples = Samples(broker, Path(scratch, "data"))
        samples.start()
        try:
            with scraped(metrics):
                found = open_loop.run(endpoint_of(broker), load)
            used = broker.cpu_seconds()
        finally:
            samples.stop()
            broker.stop()
        steps = slow_steps(broker.log.read_text(errors="replace").splitlines())
    if found.missing:
        message = f"{found.missing:,} deliveries and confirms are missing"
        raise BulkError(message)
    print(
        f"{load.rate:,} persistent messages of {load.size:,} octets a second for {options.minutes:g} minutes"
    )
    for what, times in (("deliver", found.delivered), ("confirm", found.confirmed)):
        shown = ", ".join(
            f"p{share:g} {1000 * percentile(times, share):.2f} ms" for share in (50.0, 99.0, 99.9)
        )
        print(f"  {what}: {shown}")
    print(f"  broker: {used:.1f} s of processor time; client late, p99: {1000 * found.late:.2f} ms")
    for what, times in sorted(steps.items()):
        print(f"  above {STEP_MS:g} ms: {what}: {len(times):,} times, {max(times):.1f} ms at most")
    judged = [took for what, times in steps.items() if what != READ for took in times]
    report.line("steps above the limit, but reads", float(len(judged)), "", most=0.0)
    report.line(
        "memory of the last quarter over the second", samples.growth(samples.memory), "", most=MOST_GROWTH
    )
    report.line("bytes of the data, likewise", samples.growth(samples.octets), "", most=MOST_DATA)
    append(
        {
            "tool": "latency steady", "rate": load.rate, "minutes": options.minutes, "size": load.size,
            "steps": {what: [len(times), max(times)] for what, times in steps.items()}, "cpu": used,
        }
    )  # fmt: skip
    return report.missed
