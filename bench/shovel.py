"""Benchmark of a shovel within one broker: `python -m bench.shovel` or `make bench NAME=shovel`.

Fills a queue with messages of 1 KB and measures how fast a shovel with on-confirm moves them to another queue,
transient and persistent ones, while another client publishes at a steady rate: its confirm latency during the shovel is
compared with that before. `--shovels` divides the messages among several queues with a shovel each.
The other client has a processor of its own, as one on another machine has: else its latency would also be the
scheduler's choice whether it or the broker runs (`--shared` measures it like that).
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench import brokers
from bench.bulk import Bulk
from bench.results import Report
from leveret.broker.cli.ctl.client import ApiClient

RATES = {"transient": 20_000, "persistent": 8_000}
"""Least messages a second."""
MESSAGES = {"transient": 300_000, "persistent": 150_000}
P99_RATIO = 2.0
POLL = 0.2
"""Seconds between two questions whether the shovel has ended: each is a request that the broker's event loop serves."""
SETTLED = 0.5
"""Seconds for which the other client runs before the shovel, so that its start is not taken for a wait."""
FILLED = 1.0
"""Seconds between the filling of the queue, after which the broker still works, and the start of the other client."""
PATIENCE = 300.0


def take_apart(running: brokers.Broker) -> set[int]:
    """Leave the last processor to the other client, and the rest to the broker; returns those of the client."""
    *others, last = sorted(os.sched_getaffinity(0))
    if not others:
        return {last}
    for thread in Path(f"/proc/{running.pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), others)
    return {last}


def other_client(
    port: int, options: argparse.Namespace, seconds: float, *, persistent: bool
) -> "subprocess.Popen[str]":
    """Start another client, which publishes at a steady rate with confirms, and consumes; 0 s: until it is ended."""
    words = [sys.executable, "-m", "leveret", "perf", "--uri", f"amqp://127.0.0.1:{port}", "--json"]
    words += ["--rate", str(options.rate), "--size", str(options.size), "--confirm", "100"]
    words += ["--seconds", str(seconds), *(["--persistent"] if persistent else [])]
    client = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    os.sched_setaffinity(client.pid, options.processors)
    return client


def confirm_p99(client: "subprocess.Popen[str]") -> float:
    """Return the 99th percentile of its confirm latency in milliseconds."""
    out, _ = client.communicate(timeout=PATIENCE)
    return float(json.loads(out)["confirm_latency_us"]["p99"]) / 1000


class Moved(NamedTuple):
    """A run of the shovel.

    Attributes:
        seconds: its duration.
        p99: of the confirm latency of the other client meanwhile, in milliseconds.

    """

    seconds: float
    p99: float


def moved(api: ApiClient, port: int, options: argparse.Namespace, *, persistent: bool) -> Moved:
    """Run the shovels until they have deleted themselves, beside another client, which runs from before until then."""
    value: dict[str, Any] = {
        "src-uri": "amqp://",
        "dest-uri": "amqp://",
        "src-delete-after": "queue-length",
    }
    time.sleep(FILLED)
    other = other_client(port, options, 0, persistent=persistent)
    while len(api.get("queues", "/")) <= 2 * options.shovels:
        time.sleep(POLL)
    time.sleep(SETTLED)
    began = time.perf_counter()
    for source, target in ends(options.shovels):
        body = {"value": {**value, "src-queue": source, "dest-queue": target}}
        api.put("parameters", "shovel", "/", source, body=body)
    while api.get("parameters", "shovel"):
        time.sleep(POLL)
        if time.perf_counter() - began > PATIENCE:
            message = "the shovel did not end"
            raise TimeoutError(message)
    seconds = time.perf_counter() - began
    other.send_signal(signal.SIGINT)
    return Moved(seconds, confirm_p99(other))


def ends(count: int) -> list[tuple[str, str]]:
    """Return the names of the queues between which each shovel moves messages."""
    return [(f"from-{number}", f"to-{number}") for number in range(count)]


def measure(
    running: brokers.Broker, api: ApiClient, options: argparse.Namespace, report: Report, kind: str
) -> None:
    """Measure one kind of messages, several rounds."""
    persistent = kind == "persistent"
    each = (options.messages or MESSAGES[kind]) // options.shovels
    count = each * options.shovels
    rates, ratios, costs = [], [], []
    for _ in range(options.rounds):
        quiet = confirm_p99(other_client(running.port, options, options.seconds, persistent=persistent))
        with contextlib.closing(Bulk(running.port)) as client:
            for source, target in ends(options.shovels):
                client.declare(source)
                client.declare(target)
                client.fill(source, 0, each, options.size, persistent=persistent)
        cpu = running.cpu_seconds()
        run = moved(api, running.port, options, persistent=persistent)
        costs.append((running.cpu_seconds() - cpu) / count * 1e6)
        found = 0
        for _, target in ends(options.shovels):
            found += api.get("queues", "/", target)["messages"]
            api.delete("queues", "/", target, "contents")
        report.fact(f"{kind}: {found:,} messages are at the destination", holds=found == count)
        rates.append(count / run.seconds)
        ratios.append(run.p99 / quiet)
        print(
            f"  {kind}: {rates[-1]:,.0f} msg/s; confirm p99 {quiet:.2f} ms before, {run.p99:.2f} ms meanwhile"
        )
    report.line(
        f"{kind}, {options.size} bytes, on-confirm, median", median(rates), "msg/s", least=RATES[kind]
    )
    report.line("  processor time of the broker, the other client's, too", median(costs), "us/msg")
    report.line("  confirm p99 of another client, ratio, median", median(ratios), "x", most=P99_RATIO)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, help="of each kind")
    parser.add_argument("--shovels", type=int, default=1)
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--rate", type=int, default=500, help="messages a second of the other client")
    parser.add_argument("--seconds", type=float, default=4.0, help="of the other client")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=sorted(RATES), default=list(RATES))
    parser.add_argument("--dir", default=None)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--shared", action="store_true", help="let the broker and the other client share all processors"
    )
    options = parser.parse_args()
    report = Report("shovel")
    with brokers.alone(options.set, options.dir, 60.0) as running:
        options.processors = os.sched_getaffinity(0) if options.shared else take_apart(running)
        with contextlib.closing(ApiClient(running.control_directory(), PATIENCE)) as api:
            for kind in options.kinds:
                measure(running, api, options, report, kind)
    return bool(report.missed)


if __name__ == "__main__":
    sys.exit(main())
