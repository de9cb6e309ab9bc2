"""Benchmark of retention: `python -m bench.retention` or `make bench NAME=retention`.

One broker has a queue that retains acked messages and one that does not. In turn a client publishes at full speed to
each, while another consumes, so both have the same load of the machine; the ratio of the rates is what retention costs.
The client is RabbitMQ's PerfTest, as in `make bench`. `--client perf` uses `leveret perf`, whose clients cost so little
that the broker alone limits the rate: it shows more of what retention costs, at rates that other clients do not reach.
"""

import argparse
import contextlib
import json
import subprocess
import sys
from statistics import median
from typing import NamedTuple

from bench import brokers, perftest
from bench.results import Report
from leveret.broker.cli.ctl.client import ApiClient

RATIO = 0.9
PATIENCE = 300.0
RETAIN = 3_600_000
"""Milliseconds."""


class Case(NamedTuple):
    """A kind of traffic.

    Attributes:
        size: bytes of a body.
        unconfirmed: most unconfirmed messages.
        persistent: whether messages are persistent.

    """

    size: int
    unconfirmed: int
    persistent: bool

    def __str__(self) -> str:
        """Return a description."""
        kind = "persistent" if self.persistent else "transient"
        return f"{kind}, {self.size} bytes, {self.unconfirmed} unconfirmed"


WARM_UP = 3
"""First seconds of PerfTest that do not count."""
CASES = tuple(Case(*each, persistent) for persistent in (True, False) for each in ((12, 200), (1500, 200)))
"""Sizes and windows of the workloads of `make bench`."""


class Run(NamedTuple):
    """Result of a run: messages a second, and microseconds of the broker's processor time for each."""

    rate: float
    cost: float


def measured(running: brokers.Broker, queue: str, case: Case, seconds: float) -> Run:
    """Publish to a queue and consume from it at full speed."""
    words = [sys.executable, "-m", "leveret", "perf", "--uri", f"amqp://127.0.0.1:{running.port}", "--json"]
    words += ["--queue", queue, "--size", str(case.size), "--confirm", str(case.unconfirmed)]
    words += ["--seconds", str(seconds), "--qos", "1000", "--multi-ack-every", "50"]
    before = running.cpu_seconds()
    out = subprocess.run(
        [*words, *(["--persistent"] if case.persistent else [])],
        capture_output=True,
        check=True,
        text=True,
        timeout=PATIENCE,
    ).stdout
    found = json.loads(out)
    used = running.cpu_seconds() - before
    return Run(found["sent"]["rate"], used / max(1, found["received"]["count"]) * 1e6)


def measured_by_perf_test(running: brokers.Broker, queue: str, case: Case, seconds: float) -> Run:
    """Publish to a queue and consume from it at full speed, with PerfTest; the first seconds do not count."""
    flags = ["-x1", "-y1", "-q200", f"-c{case.unconfirmed}", f"-s{case.size}", "-u", queue, "-p"]
    before = running.cpu_seconds()
    found = perftest.run(
        perftest.fetch(),
        running.port,
        [*flags, *(["-f", "persistent"] if case.persistent else [])],
        round(seconds) + WARM_UP,
        WARM_UP,
    )
    used = running.cpu_seconds() - before
    return Run(found.sent, used / max(1, found.received_total) * 1e6)


def chosen(options: argparse.Namespace) -> list[Case]:
    """Return the cases to measure, each once, with the sizes that are asked for."""
    asked = {key: value for key in ("size", "unconfirmed") if (value := getattr(options, key)) is not None}
    return list(dict.fromkeys(CASES[number]._replace(**asked) for number in options.cases))


CLIENTS = {"perf": measured, "perf-test": measured_by_perf_test}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", type=int, nargs="+", choices=range(len(CASES)), default=range(len(CASES)))
    parser.add_argument("--client", choices=CLIENTS, default="perf-test")
    parser.add_argument("--size", type=int, help="bytes of a body, instead of the cases'")
    parser.add_argument("--unconfirmed", type=int, help="most unconfirmed messages, instead of the cases'")
    parser.add_argument("--dir", default=None)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    report = Report("retention")
    with brokers.alone(options.set, options.dir, 60.0) as running:
        with contextlib.closing(ApiClient(running.control_directory(), PATIENCE)) as api:
            for name, arguments in (("off", {}), ("on", {"x-retain-for": RETAIN})):
                api.put("queues", "/", name, body={"durable": True, "arguments": arguments})
        for case in chosen(options):
            runs: dict[str, list[Run]] = {"off": [], "on": []}
            for _ in range(options.rounds):
                for queue, found in runs.items():
                    found.append(CLIENTS[options.client](running, queue, case, options.seconds))
            for queue, found in runs.items():
                text = ", ".join(f"{run.rate:,.0f} msg/s {run.cost:.1f} us" for run in found)
                print(f"  {case}: {queue}: {text}")
            ratios = [on.rate / off.rate for off, on in zip(runs["off"], runs["on"], strict=True)]
            report.line(f"{case}: rate with retention, ratio", median(ratios), "x", least=RATIO)
    return bool(report.missed)


if __name__ == "__main__":
    sys.exit(main())
