"""Benchmark of repeated publishes: `python -m bench.repeats` or `make bench NAME=repeats`.

Publishers send persistent messages with ids, one after the other, and repeat each whose confirm they did not see, since
the broker was killed. At last all messages are read: how many are lost, and how many are there twice? Leveret
is run with a queue that takes each id once, and with a plain one; other brokers have plain queues only.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from pamqp import commands

from bench import brokers
from bench.client import Client, ClosedError, publish_frames
from bench.results import Report

QUEUE: Final = "repeats"
PUBLISHERS: Final = 50
PATIENCE: Final = 30.0
"""Seconds without a confirm or a delivery after which the benchmark ends with an error."""
ONCE: Final = {"x-deduplicate": "message_id"}


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--brokers", default="leveret,rabbitmq-4.3")
    options = parser.parse_args()
    report = Report("repeats")
    for name in options.brokers.split(","):
        for arguments in (ONCE, {}) if name == "leveret" else ({},):
            asyncio.run(_measure(report, name, options, arguments))
    return bool(report.missed)


if __name__ == "__main__":
    sys.exit(main())
