"""Benchmark of fairness: does a slow client slow others down? `python -m bench.fairness [--quick]`.

Three situations in which a broker that throttles publishers too much, or too little, does harm:

(a) a consumer with prefetch 1 that never acknowledges must not slow the publishers of its queue;
(b) a connection that publishes to the queue it consumes from must never stall, not even when it reads nothing
    until everything is written;
(c) consumers that stop reading their sockets must cost a bounded buffer each and not slow down other clients.
"""

import argparse
import asyncio
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median

import uvloop

from bench import brokers
from bench.client import Client, publish_batch, publish_frames

PUBLISH_BAR = 0.9
GAP_BAR = 1.0
HEALTHY_BAR = 0.8
IN_FLIGHT_BAR = 5 << 20
"""Maximum bytes in flight to a consumer that reads nothing: Linux buffers up to 4 MiB of them on loopback."""

BODY = 10_000
FED = 800
"""Messages of `BODY` bytes published to each stalled consumer's queue: 8 MB."""

PAIRS = 10
WINDOW = 200
PATIENCE = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One figure, whether it clears its bar, and the sentence to print."""

    name: str
    value: float
    passed: bool
    text: str


class LossError(Exception):
    """Raised when a broker lost messages or delivered extra ones."""


async def prefetch_one(port: int, *, seconds: float = 2.0, rounds: int = 6) -> Finding:
    """(a) Compare the rate into a queue whose only consumer holds one message with that without a consumer.

    Raises:
        LossError: messages were missing from the queue afterwards.
    """
    ratios = []
    rates: list[tuple[float, float]] = []
    for number in range(rounds + 1):
        measured = {}
        for consumer in (False, True) if number % 2 else (True, False):  # alternate the order
            queue = f"flood-{os.getpid()}-{number}-{consumer}"
            measured[consumer] = await _flood(port, queue, seconds, consumer=consumer)
        free, held = measured[False], measured[True]
        if number:  # the first is a warm-up
            ratios.append(held / free)
            rates.append((free, held))
    ratio = median(ratios)
    free, held = (median(column) for column in zip(*rates, strict=True))
    text = f"publish rate {held:,.0f}/s with an idle prefetch-1 consumer, {free:,.0f}/s without: {ratio:.2f}"
    return Finding("prefetch-1", ratio, ratio >= PUBLISH_BAR, f"{text} (bar {PUBLISH_BAR})")


async def _flood(port: int, queue: str, seconds: float, *, consumer: bool) -> float:
    publisher, other = await Client.connect(port), await Client.connect(port)
    await other.declare(queue)
    if consumer:
        await other.consume(queue, no_ack=False, prefetch=1)
    await asyncio.sleep(0.1)  # the broker cleans up after the last one
    rate = await publisher.flood(queue, seconds)
    kept = await publisher.delete(queue)
    publisher.close()
    other.close()
    if kept != publisher.published - consumer:
        message = f"{kept:,} of {publisher.published:,} messages are in the queue"
        raise LossError(message)
    return rate


async def own_queue(port: int, *, messages: int = 300_000, no_ack: bool = False) -> Finding:
    """(b) Publish to the connection's own queue as fast as it can; measure the longest time without a delivery."""
    client = await Client.connect(port, ack=not no_ack)
    queue = f"own-{os.getpid()}-{no_ack}"
    await client.declare(queue)
    await client.consume(queue, no_ack=no_ack, prefetch=0 if no_ack else 500)
    batch = 64
    octets = publish_batch(queue, 12, batch)
    began = client.last_delivery = time.perf_counter()
    while client.published < messages:
        await client.publish(octets, batch)
        await asyncio.sleep(0)
    arrived = await _delivered(client, client.published)
    took = time.perf_counter() - began
    await client.delete(queue)
    client.close()
    kind = "no-ack" if no_ack else "acks"
    text = (
        f"one connection on its own queue ({kind}): {client.delivered:,} of {client.published:,} at "
        f"{client.delivered / took:,.0f}/s, longest gap {client.longest_gap * 1000:.0f} ms (bar 1 s)"
    )
    return Finding(f"own-queue-{kind}", client.longest_gap, arrived and client.longest_gap < GAP_BAR, text)


async def deaf_publisher(port: int, *, messages: int = 100_000) -> Finding:
    """(b) Publish to the connection's own queue with acks, but read nothing before everything is written."""
    client = await Client.connect(port)
    queue = f"deaf-{os.getpid()}"
    await client.declare(queue)
    await client.consume(queue)
    batch = 64
    octets = publish_batch(queue, 100, batch)
    client.transport.pause_reading()
    try:
        async with asyncio.timeout(PATIENCE):
            while client.published < messages:
                await client.publish(octets, batch)
                await asyncio.sleep(0)
        written = True
    except TimeoutError:
        written = False
    client.transport.resume_reading()
    arrived = await _delivered(client, client.published)
    await client.delete(queue)
    client.close()
    text = f"writes all, then reads: {client.delivered:,} of {messages:,} came back"
    return Finding("deaf-publisher", client.delivered, written and arrived, text)


async def _delivered(client: Client, count: int) -> bool:
    """Wait until `count` messages came; False if none came for `PATIENCE` seconds."""
    seen, since = client.delivered, time.perf_counter()
    while client.delivered < count:
        await asyncio.sleep(0.01)
        if client.delivered > seen:
            seen, since = client.delivered, time.perf_counter()
        elif time.perf_counter() - since > PATIENCE:
            return False
    return True


async def stalled_consumers(
    port: int, rss: Callable[[], int], *, count: int = 100, seconds: float = 4.0
) -> list[Finding]:
    """(c) Measure healthy pairs before, during and after `count` stalled consumers, and the cost of these.

    Args:
        port: the broker's port.
        rss: returns the broker's resident memory in bytes.
        count: number of stalled consumers, each with a queue and 8 MB of messages of its own.
        seconds: length of each of the three measurements.
    """
    pairs = [await _pair(port, number) for number in range(PAIRS)]
    await _exchange(pairs, 1.0)
    before = await _exchange(pairs, seconds)
    memory = rss()
    stalled = [await _stalled(port, f"stalled-{os.getpid()}-{number}") for number in range(count)]
    feeder = await Client.connect(port)
    queues = [f"stalled-{os.getpid()}-{number}" for number in range(count)]
    for queue in queues:
        for _ in range(FED // 10):
            await feeder.publish(publish_batch(queue, BODY, 10), 10)
    await feeder.ready_messages(queues[-1])
    trickle = asyncio.create_task(_trickle(feeder, queues))
    beside = await _exchange(pairs, seconds)
    trickle.cancel()
    grown = rss() - memory
    fed = feeder.published * BODY
    waiting = sum([await feeder.ready_messages(queue) for queue in queues])
    in_flight = (feeder.published - waiting) * BODY / count
    for client in stalled:
        client.close()
    for queue in queues:
        await feeder.delete(queue)
    after = await _exchange(pairs, seconds)
    for publisher, consumer, queue in pairs:
        await publisher.delete(queue)
        publisher.close()
        consumer.close()
    feeder.close()
    ratio = beside / ((before + after) / 2)
    healthy = (
        f"{PAIRS} healthy pairs: {before:,.0f}/s before, {beside:,.0f}/s beside {count} stalled consumers, "
        f"{after:,.0f}/s after: {ratio:.2f} (bar {HEALTHY_BAR})"
    )
    buffers = (
        f"{in_flight / 1024:,.0f} KiB under way to each stalled consumer (bar {IN_FLIGHT_BAR >> 10}); broker grew by "
        f"{grown / 2**20:,.0f} MiB for {fed / 2**20:,.0f} MiB of messages (bar: twice these)"
    )
    bounded = in_flight <= IN_FLIGHT_BAR and grown <= 2 * fed
    return [
        Finding("stalled-healthy", ratio, ratio >= HEALTHY_BAR, healthy),
        Finding("stalled-bounded", in_flight, bounded, buffers),
    ]


async def _pair(port: int, number: int) -> tuple[Client, Client, str]:
    publisher, consumer = await Client.connect(port), await Client.connect(port)
    queue = f"pair-{os.getpid()}-{number}"
    await publisher.declare(queue)
    await consumer.consume(queue)
    return publisher, consumer, queue


async def _stalled(port: int, queue: str) -> Client:
    """Return a client that consumes without limit and reads nothing, with a small kernel buffer."""
    client = await Client.connect(port, narrow=True)
    await client.declare(queue)
    await client.consume(queue)
    client.transport.pause_reading()
    return client


async def _exchange(pairs: Sequence[tuple[Client, Client, str]], seconds: float) -> float:
    """Pass messages through every pair with at most `WINDOW` in flight; return total deliveries a second."""
    batch = WINDOW // 4

    async def pump(publisher: Client, consumer: Client, queue: str) -> None:
        octets = publish_batch(queue, 12, batch)
        while time.perf_counter() < end:
            if publisher.published - consumer.delivered <= WINDOW - batch:
                await publisher.publish(octets, batch)
            await asyncio.sleep(0)

    began = time.perf_counter()
    end = began + seconds
    had = sum(consumer.delivered for _, consumer, _ in pairs)
    await asyncio.gather(*[pump(*pair) for pair in pairs])
    took = time.perf_counter() - began
    rate = (sum(consumer.delivered for _, consumer, _ in pairs) - had) / took
    for publisher, consumer, _ in pairs:
        await _delivered(consumer, publisher.published)
    return rate


async def _trickle(feeder: Client, queues: Sequence[str]) -> None:
    """Publish 100 more messages a second to the stalled consumers' queues."""
    frames = [publish_frames(queue, bytes(BODY)) for queue in queues]
    while True:
        for octets in frames:
            await feeder.publish(octets, 1)
            await asyncio.sleep(0.01)


async def examine(broker: brokers.Broker, *, quick: bool) -> list[Finding]:
    """Run all situations against one broker; `quick` takes about a fifth of the time."""
    port = broker.port
    findings = [
        await prefetch_one(port, seconds=0.8 if quick else 2.0, rounds=4 if quick else 6),
        await own_queue(port, messages=30_000 if quick else 300_000),
        await own_queue(port, messages=30_000 if quick else 300_000, no_ack=True),
        await deaf_publisher(port, messages=30_000 if quick else 100_000),
    ]
    stalled = await stalled_consumers(
        port, broker.rss, count=10 if quick else 100, seconds=1.0 if quick else 5.0
    )
    return findings + stalled


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the findings; return 0 if Leveret cleared all bars, 1 if not, 2 if a broker did not start."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.fairness", description="Who pays for a slow client?"
    )
    parser.add_argument("--brokers", default="leveret", help="comma-separated: leveret,rabbitmq,relay")
    parser.add_argument("--quick", action="store_true", help="a short version, for a first look")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for `leveret serve`")
    options = parser.parse_args(arguments)
    failed = 0
    try:
        with brokers.running(options.brokers.split(","), options.set) as started:
            for name, broker in started.items():
                print(name)
                for finding in uvloop.run(examine(broker, quick=options.quick)):
                    print(
                        f"  {'pass' if finding.passed else 'FAIL'}  {finding.name:<18}{finding.text}",
                        flush=True,
                    )
                    failed += name == "leveret" and not finding.passed
    except (brokers.BrokerError, LossError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
