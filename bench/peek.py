"""Benchmark of looking at a long queue: `python -m bench.peek --messages 1000000` or `make bench NAME=peek`.

Fills a queue, and measures a peek of ten messages at the head, in the middle and at the tail, the memory that it takes,
and the search of the whole queue for messages that do not exist, with its longest step of the event loop in processor
time. The ten last messages are larger than the others: a condition on their size is met at once from the tail, and late
from the head.
"""

import argparse
import contextlib
import re
import sys
import threading
import time
from collections.abc import Iterator
from statistics import median

from bench import brokers
from bench.bulk import Bulk
from bench.results import Report
from leveret.broker.cli.ctl.client import ApiClient

PEEK_MS = 100.0
PEEK_MB = 10.0
STEP_MS = 50.0
TIMES = 20
FLOOR = "2ms"
LATE = 10
"""Messages at the tail that are larger than the others."""
SLOW = re.compile(r"slow step of the event loop: ([0-9.]+) ms of processor time for request of")


@contextlib.contextmanager
def watched(running: brokers.Broker) -> Iterator[list[float]]:
    """Note the memory (MB) beyond that at the beginning, without the pages of files that are mapped."""
    before, most = running.anonymous_rss(), [0.0]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            most[0] = max(most[0], (running.anonymous_rss() - before) / 2**20)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield most
    finally:
        over.set()
        watching.join()


def measure(api: ApiClient, running: brokers.Broker, report: Report, options: argparse.Namespace) -> None:
    path = ("leveret", "queues", "/", "long", "messages")
    messages, larger = options.messages + LATE, f"size > {2 * options.size}"
    middle = messages // 2
    for end, query in {
        "head": {"from": "head"},
        "middle": {"from": "head", "after": f"ready.{middle}.{middle}.0"},
        "tail": {"from": "tail"},
        "tail, by a condition": {"from": "tail", "where": larger},
    }.items():
        query["count"] = "10"
        api.get(*path, **query)
        took = []
        with watched(running) as memory:
            for _ in range(TIMES):
                began = time.perf_counter()
                assert len(api.get(*path, **query)["messages"]) == 10
                took.append(1000 * (time.perf_counter() - began))
        report.line(f"peek of 10 from the {end}, median", median(took), "ms", most=PEEK_MS)
        report.line(f"  longest of {TIMES}", max(took), "ms")
        report.line("  memory beyond that before", memory[0], "MB", most=PEEK_MB)
    conditions = [larger, "size > 1MB", 'headers.kind == "none"', 'routing_key =~ "^none"']
    for where in conditions[: options.searches]:
        began, at = time.perf_counter(), running.log.stat().st_size
        with watched(running) as memory:
            after = ""
            while after is not None:
                part = api.get(*path, where=where, after=after)
                assert len(part["messages"]) in {0, LATE * (where == larger)}
                after = part["next"]
        seconds = time.perf_counter() - began
        report.line(f"search of all: {where}", seconds, "s")
        report.line("  messages a second", messages / seconds, "msg/s")
        steps = [float(each) for each in SLOW.findall(running.log.read_text(errors="replace")[at:])]
        report.line("  longest step of the loop", max(steps, default=0.0), "ms", most=STEP_MS)
        report.line("  memory beyond that before", memory[0], "MB", most=PEEK_MB)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument(
        "--searches", type=int, default=4, help="number of conditions by which all is searched"
    )
    parser.add_argument("--transient", action="store_true")
    parser.add_argument("--dir", default=None)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    report = Report("peek")
    settings = [f"debug.slow_step={FLOOR}", *options.set]
    with brokers.alone(settings, options.dir, 60.0) as running:
        client = Bulk(running.port)
        client.declare("long")
        kind = "transient" if options.transient else "persistent"
        print(f"{options.messages:,} {kind} messages of {options.size} bytes")
        rate = client.fill("long", 0, options.messages, options.size, persistent=not options.transient)
        client.fill("long", options.messages, LATE, 5 * options.size, persistent=not options.transient)
        report.line("filled at", rate, "msg/s")
        client.close()
        time.sleep(2)
        report.line("RssAnon then", running.anonymous_rss() / 2**20, "MB")
        with contextlib.closing(ApiClient(running.control_directory(), 3600.0)) as api:
            measure(api, running, report, options)
    return bool(report.missed)


if __name__ == "__main__":
    sys.exit(main())
