"""Benchmark of repeated publishes: `python -m bench.repeats` or `make bench NAME=repeats`.

Publishers send persistent messages with ids, one after the other, and repeat each whose confirm they did not see, since
the broker was killed. At last all messages are read: how many are lost, and how many are there twice? Leveret
is run with a queue that takes each id once, and with a plain one; other brokers have plain queues only.

Then Leveret's rate with ids: messages of persist-1500 (1,500 bytes, persistent, confirms and acks, 200 at once), with a
fresh id each, to queues in each mode and to a plain one in turn. The ratio is the median of the rounds' own.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any, Final

import uvloop
from pamqp import commands

from bench import brokers
from bench.client import Client, ClosedError, publish_frames
from bench.results import Report

QUEUE: Final = "repeats"
PUBLISHERS: Final = 50
PATIENCE: Final = 30.0
"""Seconds without a confirm or a delivery after which the benchmark ends with an error."""
ONCE: Final = {"x-deduplicate": "message_id"}
WINDOW: Final = 200
"""Messages that may be unconfirmed, and unacked."""
LEAST: Final = 0.7
MODES: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "window": {**ONCE, "x-deduplicate-mode": "window", "x-deduplicate-for": 3_600_000},
    "queued": {**ONCE, "x-deduplicate-mode": "queued"},
    "running": {**ONCE, "x-deduplicate-mode": "running"},
}


async def _connect(running: brokers.Broker, arguments: dict[str, Any], **options: Any) -> Client:
    client = await Client.connect(running.port, **options)
    await client.call(commands.Queue.Declare(queue=QUEUE, durable=True, arguments=arguments))
    return client


class Publishing:
    """Publishes messages to a broker that is killed at times, and started again.

    Args:
        running: the broker.
        directory: its files.
        arguments: of the queue.
        messages: how many are published.
        kills: numbers of confirmed messages at which the broker is killed, ascending.
    """

    def __init__(
        self,
        running: brokers.Broker,
        directory: Path,
        arguments: dict[str, Any],
        messages: int,
        kills: list[int],
    ) -> None:
        self.running = running
        self._directory = directory
        self._arguments = arguments
        self._left = iter(range(messages))
        self._kills = kills
        self._confirmed = 0
        self.repeated = 0

    async def run(self) -> None:
        """Publish all messages. Raises TimeoutError if a confirm does not come."""
        await asyncio.gather(*[self._publisher() for _ in range(PUBLISHERS)])

    async def _publisher(self) -> None:
        client = None
        for number in self._left:
            octets = publish_frames(QUEUE, b"%d" % number, persistent=True, message_id=str(number))
            while True:
                try:
                    if client is None:
                        client = await _connect(self.running, self._arguments)
                        await client.call(commands.Confirm.Select())
                    await self._publish(client, octets)
                    break
                except TimeoutError:
                    raise
                except OSError:
                    self.repeated += 1
                    client = None
            self._confirmed += 1
            if self._kills and self._confirmed >= self._kills[0]:
                del self._kills[0]
                self.running.kill()
                self.running = brokers.start(self.running.name, self._directory)
        if client is not None:
            client.close()

    async def _publish(self, client: Client, octets: bytes) -> None:
        await client.publish(octets, 1)
        async with asyncio.timeout(PATIENCE):
            while client.confirmed < client.published:
                if client.transport.is_closing():
                    raise ClosedError("killed")
                await asyncio.sleep(0.001)


async def _count(running: brokers.Broker, arguments: dict[str, Any]) -> Counter[bytes]:
    """Return how often each message is in the queue."""
    found: Counter[bytes] = Counter()
    client = await _connect(running, arguments, ack=True, on_body=lambda body: found.update((body,)))
    present = await client.ready_messages(QUEUE)
    await client.consume(QUEUE, no_ack=False, prefetch=1000)
    async with asyncio.timeout(PATIENCE):
        while client.delivered < present:
            await asyncio.sleep(0.01)
    client.close()
    return found


async def _measure(report: Report, name: str, options: argparse.Namespace, arguments: dict[str, Any]) -> None:
    chosen = sorted(random.Random(options.seed).sample(range(options.messages), options.kills))
    with tempfile.TemporaryDirectory(prefix="leveret-bench-", ignore_cleanup_errors=True) as scratch:
        running = brokers.start(name, Path(scratch))
        publishing = Publishing(running, Path(scratch), arguments, options.messages, chosen)
        try:
            began = time.monotonic()
            await publishing.run()
            taken = time.monotonic() - began
            found = await _count(publishing.running, arguments)
        finally:
            publishing.running.stop()
    what = f"{name}, {'each id once' if arguments else 'a plain queue'}"
    report.line(f"{what}: publishes repeated", publishing.repeated, "")
    report.line(f"{what}: messages lost", options.messages - len(found), "", most=0)
    twice = sum(each > 1 for each in found.values())
    report.line(f"{what}: messages there twice", twice, "", most=0 if arguments else None)
    report.line(f"{what}: time with all starts", taken, "s")


async def pass_through(running: brokers.Broker, mode: str, first: int, count: int) -> tuple[float, float]:
    """Publish messages, with ids from a number on, and consume them; return how many a second, and CPU us for each."""
    queue = f"{QUEUE}-{mode}"
    publisher, consumer = await Client.connect(running.port), await Client.connect(running.port, ack=True)
    await publisher.call(commands.Queue.Declare(queue=queue, durable=True, arguments=MODES[mode]))
    await publisher.call(commands.Confirm.Select())
    await consumer.consume(queue, no_ack=False, prefetch=WINDOW)
    body = b"x" * 1500
    frames = [
        publish_frames(queue, body, persistent=True, message_id=f"{first + number:012}")
        for number in range(count)
    ]
    used, began = running.cpu_seconds(), time.perf_counter()
    async with asyncio.timeout(PATIENCE):
        while publisher.confirmed < count or consumer.delivered < count:
            sent = publisher.published
            octets = frames[sent : publisher.confirmed + WINDOW]
            if octets:
                await publisher.publish(b"".join(octets), len(octets))
            await asyncio.sleep(0 if octets else 0.0003)
    took, used = time.perf_counter() - began, running.cpu_seconds() - used
    publisher.close()
    consumer.close()
    return count / took, used / count * 1e6


async def _compare(report: Report, options: argparse.Namespace) -> None:
    figures: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
    with brokers.alone() as running:
        for number in range(options.rounds):
            for mode in MODES:
                first = number * options.each
                figures[mode].append(await pass_through(running, mode, first, options.each))
    for mode, found in figures.items():
        report.line(f"{mode}: messages with ids", median(rate for rate, _ in found), "/s")
        report.line(f"{mode}: processor time of the broker", median(used for _, used in found), "us each")
        if mode != "plain":
            pairs = [
                (ours[0] / theirs[0], ours[1] / theirs[1])
                for ours, theirs in zip(found, figures["plain"], strict=True)
            ]
            least = LEAST if mode == "window" else None
            report.line(
                f"{mode}: rate beside a plain queue", median(rate for rate, _ in pairs), "x", least=least
            )
            report.line(f"{mode}: processor time beside it", median(used for _, used in pairs), "x")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--brokers", default="leveret,rabbitmq-4.3", help="those that are killed; may be empty"
    )
    parser.add_argument("--rounds", type=int, default=7, help="of the rates; 0 for none (default 7)")
    parser.add_argument("--each", type=int, default=30_000, help="messages of each round (default 30,000)")
    options = parser.parse_args()
    report = Report("repeats")
    for name in filter(None, options.brokers.split(",")):
        for arguments in (ONCE, {}) if name == "leveret" else ({},):
            asyncio.run(_measure(report, name, options, arguments))
    if options.rounds:
        uvloop.run(_compare(report, options))
    return bool(report.missed)


if __name__ == "__main__":
    sys.exit(main())
