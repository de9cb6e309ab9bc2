"""Cost of `leveret perf` itself, and its figures of two brokers: `make bench NAME=load_tool`.

The first table is the processor time per message of its own code, without sockets: the least of several rounds. The
second runs the command against each broker in turn; the tool's processor time there includes the kernel's for its
sockets. A tool that costs a tenth of the broker per message cannot be what limits a result.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any

from bench import brokers
from bench.results import Report
from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, make
from leveret.broker.amqp.fastpath import content_frames
from leveret.broker.amqp.properties import build
from leveret.broker.perf.measurement import Tally
from leveret.broker.perf.producer import BATCH, Confirms, Deliveries, Producer, Schedule, template

MESSAGES = BATCH * 1000
READ = 64 * 1024
ROUNDS = 7
MARK = b"mark"
KEY = "leveret-perf-00000000-1"
NOW = 10**10
CASES = (
    "",
    "--autoack",
    "--confirm 200 --qos 200",
    "--persistent --confirm 200 --qos 200 --size 1000",
    "--rate 5000",
    "--persistent --confirm 1000 --rate 2000 --size 1500",
)


def sending(window: int, *, paced: bool) -> Producer:
    """Return a producer that has sent everything."""
    schedule = Schedule(1e9, 0, 0) if paced else None
    producer = Producer([template("", KEY, MARK, 12, 131_072)], Tally(), window=window, schedule=schedule)
    while producer.sent < MESSAGES:
        producer.take(NOW)
    return producer


def confirmed(step: int) -> Callable[[], None]:
    """Return a function that confirms all messages of a producer, `step` with each ack."""
    producer = sending(MESSAGES, paced=True)
    incoming = Confirms(Tally())
    incoming.producer = producer
    last = range(step, MESSAGES + 1, step)
    octets = b"".join(encode_method(1, make(Basic.Ack, tag, step > 1)) for tag in last)

    def run() -> None:
        for at in range(0, len(octets), READ):
            incoming.feed(octets[at : at + READ], NOW)

    return run


def received(ack_every: int, *, paced: bool) -> Callable[[], None]:
    """Return a function that receives all messages, in batches with one due time if they are not paced."""
    parts = []
    for tag in range(1, MESSAGES + 1):
        due = (tag if paced else tag // BATCH) * 1000
        method = encode_method(1, make(Basic.Deliver, "perf-1", tag, False, "", KEY))
        parts += method, content_frames(1, 0, build(12, delivery_mode=1), MARK + due.to_bytes(8))
    octets = b"".join(parts)
    incoming = Deliveries(Tally(), MARK, ack_every)

    def run() -> None:
        for at in range(0, len(octets), READ):
            incoming.feed(octets[at : at + READ], NOW)
            incoming.replies()

    return run


def costs() -> Iterator[tuple[str, float]]:
    """Yield each step of the tool with its microseconds per message."""
    yield "send", least(lambda: lambda: sending(0, paced=False))
    yield "send, with confirms", least(lambda: lambda: sending(MESSAGES, paced=False))
    yield "send, with a rate", least(lambda: lambda: sending(0, paced=True))
    yield "send, with a rate and confirms", least(lambda: lambda: sending(MESSAGES, paced=True))
    yield "confirm each", least(lambda: confirmed(1))
    yield "confirm 100 at a time", least(lambda: confirmed(100))
    yield "receive", least(lambda: received(0, paced=False))
    yield "receive, ack each", least(lambda: received(1, paced=False))
    yield "receive, with a rate", least(lambda: received(0, paced=True))
    yield "receive, with a rate, ack each", least(lambda: received(1, paced=True))


def least(prepare: Callable[[], Callable[[], object]]) -> float:
    """Return the processor time per message in microseconds, the least of several rounds."""
    found = []
    for _ in range(ROUNDS):
        run = prepare()
        began = time.process_time()
        run()
        found.append(time.process_time() - began)
    return min(found) / MESSAGES * 1e6


def measure(port: int, options: str, seconds: float) -> tuple[dict[str, Any], float]:
    """Return the result of the command, and its processor time in seconds, start and end included."""
    command = [sys.executable, "-m", "leveret", "perf", "--json", "--seconds", str(seconds)]
    before = getrusage(RUSAGE_CHILDREN)
    done = subprocess.run(
        [*command, "--uri", f"amqp://127.0.0.1:{port}", *options.split()],
        stdout=subprocess.PIPE,
        timeout=seconds + 60,
        check=True,
    )
    after = getrusage(RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(done.stdout), used


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables; return 0, or 2 if a broker did not start."""
    parser = argparse.ArgumentParser(prog="python -m bench.load_tool", description="Cost of leveret perf")
    parser.add_argument(
        "--brokers", default="leveret,rabbitmq", help="comma-separated; empty: only the costs"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a run (default 5)")
    options = parser.parse_args(arguments)
    report = Report("load_tool")
    print("processor time per message of the tool's own code")
    for name, cost in costs():
        report.line(name, cost, "us")
    if not options.brokers:
        return 0
    try:
        with brokers.running(options.brokers.split(",")) as started:
            print(
                f"\n{'options, broker':<60}{'sent/s':>9}{'received/s':>11}{'p50 ms':>9}{'p99 ms':>9}{'tool us':>9}"
            )
            for case in CASES:
                for name, broker in started.items():
                    result, used = measure(broker.port, case, options.seconds)
                    latency = result["latency_us"]
                    label = f"{case or '(none)'}, {name}"
                    print(
                        f"{label:<60}{result['sent']['rate']:>9,.0f}"
                        f"{result['received']['rate']:>11,.0f}{latency['p50'] / 1000:>9,.2f}"
                        f"{latency['p99'] / 1000:>9,.2f}{used / result['sent']['count'] * 1e6:>9,.1f}",
                        flush=True,
                    )
    except (brokers.BrokerError, subprocess.SubprocessError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
