"""How long a message takes at a steady 5,000 a second: `python -m bench.latency`.

The same client measures every broker in turn, several rounds. Each message carries the time at which it was *due*, so
a client or broker that falls behind is charged for it. One connection publishes, another consumes and acknowledges.
"""

import argparse
import asyncio
import gc
import json
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from statistics import median

import uvloop

from bench import brokers
from bench.client import Client, publish_frames

PERCENTILES = (50.0, 99.0, 99.9)
WARM_UP = 1.0
stamp = struct.Struct(">d")


async def measure(port: int, *, rate: int = 5000, seconds: float = 5.0, no_ack: bool = False) -> list[float]:
    """Return the end-to-end times in seconds of all messages after a second of warming up, shortest first.

    Args:
        port: the broker's port.
        rate: messages a second.
        seconds: how long to measure.
        no_ack: consume without acknowledgements; else with a prefetch count of 500 and `multiple` acks.

    """
    times: list[float] = []
    clock, unpack = time.perf_counter, stamp.unpack

    def arrived(body: bytes) -> None:
        times.append(clock() - unpack(body)[0])

    publisher = await Client.connect(port)
    consumer = await Client.connect(port, ack=not no_ack, on_body=arrived)
    queue = f"latency-{time.time_ns()}"
    await publisher.declare(queue)
    await consumer.consume(queue, no_ack=no_ack, prefetch=0 if no_ack else 500)
    frames = publish_frames(queue, bytes(stamp.size))[: -stamp.size - 1]
    began = clock()
    total, sent = int(rate * (seconds + WARM_UP)), 0
    gc.collect()
    gc.disable()
    try:
        while sent < total:
            due = min(total, int((clock() - began) * rate) + 1)
            if due > sent:
                parts = [frames + stamp.pack(began + n / rate) + b"\xce" for n in range(sent, due)]
                await publisher.publish(b"".join(parts), due - sent)
                sent = due
            await asyncio.sleep(0.001)
        for _ in range(1000):
            if consumer.delivered == total:
                break
            await asyncio.sleep(0.01)
    finally:
        gc.enable()
    await publisher.delete(queue)
    publisher.close()
    consumer.close()
    return sorted(times[int(rate * WARM_UP) :])


def percentile(times: Sequence[float], share: float) -> float:
    """Return the value that `share` per cent of the sorted values do not exceed."""
    return times[min(len(times) - 1, int(len(times) * share / 100.0))]


def summary(rounds: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, list[float]]:
    """Return for every broker the median over the rounds of each of `PERCENTILES`, in milliseconds."""
    return {
        name: [1000.0 * median(percentile(times, share) for times in measured) for share in PERCENTILES]
        for name, measured in rounds.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 0 if Leveret's p99 is below RabbitMQ's, 1 if not, 2 if a broker did not start."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.latency", description="End-to-end latency at a steady rate"
    )
    parser.add_argument(
        "--brokers", default="leveret,rabbitmq", help="comma-separated: leveret,rabbitmq,relay"
    )
    parser.add_argument("--rate", type=int, default=5000, help="messages a second (default 5000)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a measurement (default 5)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each broker (default 3)")
    parser.add_argument("--no-ack", action="store_true", help="consume without acknowledgements")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args(arguments)
    rounds: dict[str, list[list[float]]] = {}
    try:
        with brokers.running(options.brokers.split(",")) as started:
            for _ in range(options.rounds):
                for name, broker in started.items():
                    run = measure(
                        broker.port, rate=options.rate, seconds=options.seconds, no_ack=options.no_ack
                    )
                    rounds.setdefault(name, []).append(uvloop.run(run))
    except brokers.BrokerError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    table = summary(rounds)
    if options.json:
        print(json.dumps(table))
    else:
        print(
            f"{options.rate:,} msg/s, {'no-ack' if options.no_ack else 'acks'}, median of {options.rounds} rounds, ms"
        )
        print(
            f"{'broker':<10}" + "".join(f"{f'p{share:g}':>9}" for share in PERCENTILES) + f"{'messages':>10}"
        )
        for name, values in table.items():
            count = sum(len(times) for times in rounds[name])
            print(f"{name:<10}" + "".join(f"{value:>9.2f}" for value in values) + f"{count:>10,}")
    if "leveret" not in table or "rabbitmq" not in table:
        return 0
    pairs = zip(rounds["leveret"], rounds["rabbitmq"], strict=True)
    ratios = [percentile(ours, 99.0) / percentile(theirs, 99.0) for ours, theirs in pairs]
    print(
        f"p99 leveret / rabbitmq: {max(ratios):.2f} at worst, {median(ratios):.2f} median (bar: below 1)",
        file=sys.stderr,
    )
    return 0 if max(ratios) < 1.0 else 1


if __name__ == "__main__":
    sys.exit(main())
