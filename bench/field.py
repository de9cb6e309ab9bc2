"""Leveret beside other brokers, with one table and one chart: `python -m bench.field` or `make bench NAME=field`.

Each round runs each workload of PerfTest against each broker in turn. Then, for each broker:

- whether it flushes the disk before it confirms, by the disk's own count while confirms are awaited one by one: `yes`;
  `no`; or `early` if it confirms without a flush what a consumer has acknowledged meanwhile;
- the highest rate at which the 99th percentile of the time from due to delivered is at most 10 ms, by binary search:
  persistent messages of 1,500 bytes, 4 producers, 4 consumers, 1 and 30 durable queues (`bench.open_loop`).

Then what `bench.field_cases` measures once: requeues, expiry, a backlog, latency. `--nats` adds the rates of NATS
JetStream with its own client (`bench.nats_client.server`), where it has the same pattern.

`--peer NAME=URL` adds a broker that runs already. `--write` puts the last run's table into the README and the
documentation and draws the chart; with `--rounds 0` nothing is measured before. Each part (a round of a workload with
all brokers, or a search) is recorded with revision, date and machine: `--minutes 5` and `--resume` divide a run.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import uvloop
from pamqp import commands

from bench import (
    brokers,
    compare,
    field_cases,
    field_parts,
    field_report,
    open_loop,
    peers,
    perftest,
    results,
)
from bench.bulk import Bulk, BulkError
from bench.client import ClosedError, publish_frames
from bench.endpoint import Endpoint
from bench.field_parts import Part
from bench.nats_client import server as nats
from bench.open_loop import Load, percentile
from bench.rate_search import highest
from bench.workloads import FIELD

ROOT = Path(__file__).resolve().parent.parent
CHOSEN = (
    "autoack-12", "ack-12-uncapped", "ack-batch", "confirm-ack-12", "fan-1x5", "persist-1500", "paper-1q", "paper-15q",
    "window-5", "awaited", "store-1000", "ten-10", "many-200", "big-100k", "big-1m", "topic-200", "topic-1000",
)  # fmt: skip
QUEUES = (1, 30)
LIMIT = 0.010
LOWEST, MOST = 500.0, 200_000.0
SERIES, SINGLE = 4, 50
"""Series, and confirms in each, that are awaited to count flushes."""
PART = 0.5
"""Flushes for each confirm from which a broker flushes before it."""


@dataclasses.dataclass(slots=True)
class Highest:
    """The highest rate for a number of queues; `limited` if the client was late in the first rate that failed."""

    rate: float
    limited: bool


def flushed(broker: brokers.Broker) -> str:
    """Return `yes`, `no` or `early`, or `?` if the disk's counters cannot be read."""
    alone, consumed = (flushes_per_confirm(broker, consumed=each) for each in (False, True))
    if alone is None or consumed is None:
        return "?"
    return "no" if alone < PART else "early" if consumed < PART else "yes"


def flushes_per_confirm(broker: brokers.Broker, *, consumed: bool) -> float | None:
    """Return the disk's flushes for each persistent message whose confirm is awaited; None if they are unknown.

    Flushes of other programs are measured for as long afterwards, and subtracted; the median of some series.
    """
    place = peers.endpoint_of(broker)
    client, reader = Bulk(place), Bulk(place)
    queue = f"flushed-{os.getpid()}-{time.time_ns()}"
    parts = []
    try:
        client.declare(queue)
        client.call(commands.Confirm.Select())
        if consumed:
            reader.call(commands.Basic.Consume(queue=queue, no_ack=True))
        octets = publish_frames(queue, b"x" * 1500, persistent=True)
        for series in range(SERIES):
            before, began = brokers.flushes(broker.log), time.monotonic()
            for number in range(1, SINGLE + 1):
                client.socket.sendall(octets)
                while client.confirmed < series * SINGLE + number:
                    client.read_confirms()
            taken, after = time.monotonic() - began, brokers.flushes(broker.log)
            time.sleep(taken)
            later = brokers.flushes(broker.log)
            if before is None or after is None or later is None:
                return None
            parts.append(((after - before) - (later - after)) / SINGLE)
        client.call(commands.Queue.Delete(queue=queue))
    finally:
        client.close()
        reader.close()
    return median(parts)


def headline(place: Endpoint, queues: int, seconds: float) -> Highest:
    """Search the highest rate at which p99 is at most `LIMIT` and nothing is missing."""
    lateness: dict[float, float] = {}

    def holds(rate: float) -> bool:
        load = Load(rate, seconds, producers=4, consumers=4, queues=queues, gives_up=True)
        try:
            found = open_loop.run(place, load)
        except BulkError as error:  # it has closed a channel: it does not keep up with this rate
            print(f"    {queues:>2} queues, {rate:>9,.0f}/s: {error}", flush=True)
            return False
        good = not found.missing and percentile(found.delivered, 99.0) <= LIMIT
        if not good:
            lateness[rate] = min(found.late, lateness.get(rate, found.late))
        print(
            f"    {queues:>2} queues, {rate:>9,.0f}/s: p99 {1000 * percentile(found.delivered, 99.0):>8.1f} ms, "
            f"late {1000 * found.late:.1f} ms, {found.missing:,} missing",
            flush=True,
        )
        return good

    rate = highest(holds, lowest=LOWEST, most=MOST)
    late = lateness.get(min(lateness, default=0.0), 0.0)
    return Highest(rate, rate > 0 and (late > LIMIT / 2 or rate >= MOST))


def measured(options: argparse.Namespace, started: Mapping[str, brokers.Broker]) -> bool:
    """Measure what is missing, and record each part; returns whether all is there."""
    folder = perftest.fetch(options.perf_test) if options.workload else Path()
    described = uvloop.run(compare.describe(started.values()))
    compare.print_setting(options, started, described)
    known = {
        name: {
            "product": f"version {version('leveret')}" if name == "leveret" else described[name],
            "settings": broker.settings,
        }
        for name, broker in started.items()
    }
    if options.nats:
        known[nats.NAME] = {"product": options.nats_version, "settings": "flushes every two minutes"}
    here = {"tool": field_parts.TOOL, **conditions(options), "known": known}
    plan = planned(options)
    done = {part["key"] for part in recorded(options)} if options.resume else set()
    began = time.monotonic()
    for part in plan:
        if part.key in done:
            continue
        spent = time.monotonic() - began
        expected = part.seconds(options.seconds, options.search_seconds)
        if options.minutes is not None and spent + expected > 60 * options.minutes:
            print(f"{len(done)} of {len(plan)} parts are measured; --resume goes on")
            return False
        value = measure(part, options, started, folder, described)
        if value is not None:
            results.append({**here, "key": part.key, "value": value})
            done.add(part.key)
    return len(done) == len(plan)


def planned(options: argparse.Namespace) -> list[Part]:
    """Return the parts of a run."""
    named = options.named
    return field_parts.plan(
        named, options.workload, options.rounds, options.queues, options.cases, rates_only=(nats.NAME,)
    )


def measure(
    part: Part,
    options: argparse.Namespace,
    started: Mapping[str, brokers.Broker],
    folder: Path,
    described: Mapping[str, str],
) -> object:
    """Measure a part; None if it cannot be measured."""
    match part.kind:
        case "rate":
            found = {}
            for name in part.order:
                try:
                    if name == nats.NAME:
                        rate = nats.rate(options.nats, part.workload, options.seconds, options.warm_up)
                        found |= {} if rate is None else {name: rate}
                        continue
                    run = compare.run_once(FIELD[part.workload], started[name], part.number, options, folder)
                except perftest.PerfTestError as error:
                    print(f"{part.number:>5} {part.workload:<16}{name:<10}FAILED: {error}", flush=True)
                    return None
                print(compare.line(run), flush=True)
                compare.record(options, described, run)
                found[name] = run.counted
            return found
        case "flushed":
            (name,) = part.order
            answer = flushed(started[name])
            print(f"  {name}: flushed before the confirm: {answer}", flush=True)
            return answer
        case "case":
            (name,) = part.order
            try:
                answer = field_cases.CASES[part.workload].measure(peers.endpoint_of(started[name]))
            except (BulkError, OSError) as error:
                print(f"  {name}: {part.workload}: FAILED: {error}", flush=True)
                return None
            print(f"  {name}: {part.workload}: {answer}", flush=True)
            return answer
        case _:
            (name,) = part.order
            print(f"  {name}: highest rate with p99 <= {1000 * LIMIT:g} ms", flush=True)
            place = peers.endpoint_of(started[name])
            return dataclasses.asdict(headline(place, part.number, options.search_seconds))


def recorded(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the parts that were measured at this revision, on this machine, in runs as long as these."""
    plan = planned(options)
    found = [
        json.loads(line)
        for path in sorted(results.RESULTS.glob("*.jsonl"))
        for line in path.read_text().splitlines()
        if f'"tool": "{field_parts.TOOL}"' in line
    ]
    keys = {part.key for part in plan}
    here = conditions(options)
    return [
        each
        for each in found
        if each["key"] in keys and all(each[name] == value for name, value in here.items())
    ]


def conditions(options: argparse.Namespace) -> dict[str, object]:
    """Return what parts of one run have in common."""
    lengths = {"seconds": options.seconds, "search_seconds": options.search_seconds}
    return {"revision": revision(), "machine": machine(), **lengths}


def summed_up(options: argparse.Namespace) -> dict[str, object]:
    """Return the record of all parts of this revision."""
    return {
        "tool": "field",
        "revision": revision(),
        "machine": machine(),
        "rounds": options.rounds,
        "seconds": options.seconds,
        "limit_ms": 1000 * LIMIT,
        "flags": {name: FIELD[name].flags for name in options.workload},
        "brokers": field_parts.entries(recorded(options), options.named, options.workload),
    }


def revision() -> str:
    """Return the short hash of the checkout's commit, with `+` if it has changes."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def machine() -> str:
    """Return processor, cores and Python."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    model = models[0] if models else platform.machine()
    return f"{os.cpu_count()} cores of {model}, Python {platform.python_version()}"


def last_record() -> dict[str, object]:
    """Return the record of the last run.

    Raises:
        BrokerError: there is none.

    """
    for path in sorted(results.RESULTS.glob("*.jsonl"), reverse=True):
        for line in reversed(path.read_text().splitlines()):
            if '"tool": "field"' in line:
                return dict(json.loads(line))
    message = "nothing has been measured yet; run it with --rounds 1 or more"
    raise brokers.BrokerError(message)


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    made = argparse.ArgumentParser(prog="python -m bench.field", description="Leveret beside other brokers")
    made.add_argument(
        "--brokers",
        type=compare.broker_names,
        default=["leveret", "rabbitmq"],
        metavar="NAMES",
        help="comma-separated, to be started: leveret,rabbitmq (default), rabbitmq-4.3, relay",
    )
    peers.option(made)
    made.add_argument(
        "--workload", nargs="*", choices=FIELD, default=list(CHOSEN), metavar="NAME", help="PerfTest's"
    )
    made.add_argument("--rounds", type=int, default=3, help="of the workloads (default 3); 0: do not measure")
    made.add_argument("--seconds", type=int, default=6, help="length of a run of PerfTest (default 6)")
    made.add_argument("--warm-up", type=int, default=compare.WARM_UP, help="first seconds that do not count")
    made.add_argument(
        "--queues", type=int, nargs="*", default=list(QUEUES), help="of the search (default 1 30)"
    )
    made.add_argument(
        "--cases", nargs="*", choices=field_cases.CASES, default=list(field_cases.CASES), metavar="NAME",
        help=f"of {', '.join(field_cases.CASES)} (default all)",
    )  # fmt: skip
    made.add_argument(
        "--nats", action="store_true", help="measure NATS JetStream, too: NATS_SERVER or nats-server"
    )
    made.add_argument(
        "--search-seconds", type=float, default=4.0, help="length of each attempt of the search (default 4)"
    )
    made.add_argument(
        "--minutes",
        type=float,
        help="begin nothing that would last longer than so many minutes from the start",
    )
    made.add_argument(
        "--resume", action="store_true", help="leave out what was measured at this revision already"
    )
    made.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for `leveret serve`")
    made.add_argument("--perf-test", default=perftest.VERSION, metavar="VERSION", help="PerfTest's version")
    made.add_argument("--write", action="store_true", help="write the table and the chart of the last run")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; return 0, 1 if parts are missing, 2 if something could not run."""
    options = parser().parse_args(arguments)
    options.named = [*options.brokers, *(name for name, _ in options.peer), *[nats.NAME] * options.nats]
    try:
        if options.rounds:
            with contextlib.ExitStack() as stack:
                started = stack.enter_context(peers.running(options.brokers, options.peer, options.set))
                if options.nats:
                    options.nats, options.nats_version = stack.enter_context(nats.running())
                is_complete = measured(options, started)
            if not is_complete:
                return 1
            results.append(summed_up(options))
        record = last_record()
    except (brokers.BrokerError, perftest.PerfTestError, BulkError, ClosedError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print(field_report.table(record))
    if options.write:
        field_report.write(record, ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
