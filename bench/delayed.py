"""Benchmark of a million delayed messages: `python -m bench.delayed` or `make bench NAME=delayed`.

First, persistent messages are published over one connection, confirmed, with delays between one and two hours in
random order: measured are the rate and the broker's memory afterwards. VmRSS includes the pages of the data file that
happen to be mapped (RssFile), which the kernel reclaims on demand; RssAnon is the memory that the broker itself needs.
Then the broker is stopped, killed and restarted. Finally, messages with delays of two to five seconds are published at
a steady rate, while another process publishes to another queue, at a steady rate and then as fast as it can: measured
is the lateness of each message.

With `--held` the messages are in a queue that holds them, and not in an exchange that delays. Two more figures are
measured: the rate beside that of the same publishes to a queue without holds, and the rate at which messages leave that
are due at the same time.

    make bench NAME=delayed
    make bench NAME=delayed ARGS="--held --size 1024"
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import random
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop
from pamqp import commands, frame

from bench import brokers
from bench.bulk import BulkError
from bench.client import Client, ClosedError, publish_frames
from bench.loads import confirmed
from bench.results import Report

MEMORY = 200 << 20
MEMORY_ABOVE_IDLE = 50 << 20
LATE_MS = 50.0
START_SECONDS = 5.0
SHARE_OF_PLAIN = 0.8
RELEASES = 20_000
AT_ONCE = 200_000
"""Messages that are due at the same time, at most, and messages that are published without a delay."""
WINDOW = 5000
"""Maximum number of unconfirmed messages while the backlog is published."""
EXCHANGE, QUEUE, PLAIN = "delayed", "due", "plain"
PENDING_MS = (3_600_000, 7_200_000)
SOON_MS = (2000, 5000)
START_LIMIT = 300.0
PERCENTILES = (50.0, 99.0, 99.9, 100.0)
_HEADER = struct.Struct(">BHIHHQHI8sBiBB")
_BODY = struct.Struct(">BHI")
stamp = struct.Struct(">d")
Publishing = Callable[[int, bytes], bytes]
"""Returns the frames of one persistent message with a delay in milliseconds and a body."""


def publishing(exchange: str, key: str) -> Publishing:
    """Return what makes the frames of messages for an exchange."""
    method = frame.marshal(commands.Basic.Publish(exchange=exchange, routing_key=key), 1)

    def frames(delay: int, body: bytes) -> bytes:
        header = _HEADER.pack(
            2, 1, 32, 60, 0, len(body), 0x3000, 13, b"\x07x-delay", ord("I"), delay, 2, 0xCE
        )
        return method + header + _BODY.pack(3, 1, len(body)) + body + b"\xce"

    return frames


async def declare(port: int, *, held: bool) -> Publishing:
    """Declare the delayed exchange and a queue bound to it, or a queue that holds messages; all durable."""
    client = await Client.connect(port)
    if held:
        await client.call(commands.Queue.Declare(queue=QUEUE, durable=True, arguments={"x-allow-hold": True}))
        await client.declare(PLAIN, durable=True)
    else:
        arguments = {"x-delayed-type": "direct"}
        await client.call(
            commands.Exchange.Declare(
                exchange=EXCHANGE, exchange_type="x-delayed-message", durable=True, arguments=arguments
            )
        )
        await client.declare(QUEUE, durable=True)
        await client.call(commands.Queue.Bind(queue=QUEUE, exchange=EXCHANGE, routing_key=QUEUE))
    client.close()
    return publishing("" if held else EXCHANGE, QUEUE)


def rest(subject: brokers.Broker) -> None:
    """Wait, for a minute at most, until a broker has swept what was purged: it needs no processor time any more."""
    before, deadline = subject.cpu_seconds(), time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(0.5)
        before, last = subject.cpu_seconds(), before
        if before - last < 0.03:
            break


async def fill(
    subject: brokers.Broker, frames: Publishing, count: int, size: int, until: float | None = None
) -> tuple[float, int, int]:
    """Publish messages that are due in hours or at a time (epoch seconds), all confirmed.

    Returns the rate, and the peak RSS and RssAnon.
    """
    client = await Client.connect(subject.port)
    await client.call(commands.Confirm.Select())
    rng = random.Random(1)  # the same load each time
    body = bytes(size)
    peak = peak_anonymous = 0
    began = looked = time.monotonic()
    while client.published < count:
        many = min(200, count - client.published)
        if until is None:
            delays = [rng.randrange(*PENDING_MS) for _ in range(many)]
        else:
            delays = [max(0, int((until - time.time()) * 1000))] * many
        await client.publish(b"".join([frames(delay, body) for delay in delays]), many)
        await confirmed(client, client.published - WINDOW)
        if time.monotonic() - looked > 0.25:
            looked = time.monotonic()
            peak = max(peak, subject.rss())
            peak_anonymous = max(peak_anonymous, subject.anonymous_rss())
    await confirmed(client, count)
    rate = count / (time.monotonic() - began)
    client.close()
    return rate, peak, peak_anonymous


async def released(subject: brokers.Broker, frames: Publishing, count: int, size: int) -> float:
    """Return the rate at which messages that are due at the same time come to a consumer."""
    until = time.time() + count / 5000 + 5
    await fill(subject, frames, count, size, until)
    if time.time() > until:
        raise ClosedError("publishing took too long: messages were due before")
    consumer = await Client.connect(subject.port, ack=True)
    await consumer.consume(QUEUE, no_ack=False, prefetch=2000)
    limit = until + 60
    while consumer.delivered < count and time.time() < limit:
        await asyncio.sleep(0.01)
    rate = consumer.delivered / (time.time() - until)
    if consumer.delivered != count:
        raise ClosedError(f"{consumer.delivered} of {count} messages came")
    consumer.close()
    return rate


async def lateness(port: int, frames: Publishing, rate: int, seconds: float) -> list[float]:
    """Publish messages with short delays at a steady rate; return the lateness of each in ms, sorted."""
    late: list[float] = []
    clock, unpack = time.time, stamp.unpack

    def arrived(body: bytes) -> None:
        late.append((clock() - unpack(body)[0]) * 1000)

    publisher = await Client.connect(port)
    consumer = await Client.connect(port, ack=True, on_body=arrived)
    await consumer.consume(QUEUE, no_ack=False, prefetch=1000)
    rng = random.Random(2)
    count, sent = int(rate * seconds), 0
    began = time.monotonic()
    while sent < count:
        many = min(count, int((time.monotonic() - began) * rate)) - sent
        if many:
            now = clock()
            delays = [rng.randrange(*SOON_MS) for _ in range(many)]
            await publisher.publish(
                b"".join([frames(delay, stamp.pack(now + delay / 1000)) for delay in delays]), many
            )
            sent += many
        await asyncio.sleep(0.001)
    waited = time.monotonic()
    while len(late) < count and time.monotonic() - waited < SOON_MS[1] / 1000 + 10:
        await asyncio.sleep(0.05)
    publisher.close()
    consumer.close()
    if len(late) != count:
        message = f"{len(late)} of {count} messages came"
        raise ClosedError(message)
    return sorted(late)


async def purge(port: int, queue: str) -> None:
    """Remove the messages of a queue."""
    client = await Client.connect(port)
    await client.call(commands.Queue.Purge(queue=queue))
    client.close()


def beside(port: int, rate: int, seconds: float) -> None:
    """Publish persistent messages to a consumed queue, `rate` a second or, with 0, as fast as they are accepted."""

    async def run() -> None:
        publisher = await Client.connect(port)
        consumer = await Client.connect(port, ack=True)
        await publisher.declare("beside", durable=True)
        await publisher.call(commands.Confirm.Select())
        await consumer.consume("beside", no_ack=False, prefetch=1000)
        octets = publish_frames("beside", bytes(100), persistent=True)
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            many = int(passed * rate) - publisher.published if rate else 100
            if many > 0:
                await publisher.publish(octets * many, many)
            await (asyncio.sleep(0.001) if rate else confirmed(publisher, publisher.published - 10_000))
        publisher.close()
        consumer.close()

    with contextlib.suppress(ClosedError):
        uvloop.run(run())


def memory(subject: brokers.Broker, when: str, report: Report, most: float = MEMORY) -> None:
    """Report the broker's memory, which may be `most` bytes."""
    resident, anonymous = subject.rss(), subject.anonymous_rss()
    report.line(f"VmRSS {when}", resident / 2**20, "MB", most=most / 2**20)
    report.line(f"  RssAnon {when}", anonymous / 2**20, "MB")
    report.line(f"  RssFile {when}", (resident - anonymous) / 2**20, "MB")


def restarts(
    subject: brokers.Broker, folder: Path, options: argparse.Namespace, report: Report, most: float
) -> brokers.Broker:
    """Restart after a clean stop and after a kill."""
    for how in ("clean stop", "kill"):
        subject.stop() if how == "clean stop" else subject.kill()
        began = time.monotonic()
        subject = brokers.start("leveret", folder, options.set, limit=START_LIMIT)
        report.line(f"start after a {how}", time.monotonic() - began, "s", most=START_SECONDS)
        line = f"recovered delayed and held messages: {options.messages}"
        report.fact(f"all are counted after a {how}", holds=line in subject.log.read_text())
        time.sleep(1)
        memory(subject, f"after a {how}", report, most)
    return subject


def measure(options: argparse.Namespace, folder: Path) -> int:
    """Measure everything; return the number of bars missed."""
    report = Report("held" if options.held else "delayed")
    subject = brokers.start("leveret", folder, options.set)
    try:
        print(f"\n{options.messages:,} delayed messages of {options.size} octets", flush=True)
        frames = uvloop.run(declare(subject.port, held=options.held))
        memory(subject, "before", report)
        most = subject.rss() + MEMORY_ABOVE_IDLE if options.held else MEMORY
        plain = 0.0
        if options.held:
            plain, *_ = uvloop.run(fill(subject, publishing("", PLAIN), options.messages, options.size))
            report.line("published at without a hold, with confirms", plain, "msg/s")
            uvloop.run(purge(subject.port, PLAIN))
            rest(subject)
            until = time.time() + PENDING_MS[0] / 1000
            rate, *_ = uvloop.run(fill(subject, frames, options.messages, options.size, until))
            report.line("published at, due in their order", rate, "msg/s", least=SHARE_OF_PLAIN * plain)
            uvloop.run(purge(subject.port, QUEUE))
            rest(subject)
        rate, peak, anonymous = uvloop.run(fill(subject, frames, options.messages, options.size))
        report.line(
            "published at, due in random order, with confirms",
            rate,
            "msg/s",
            least=SHARE_OF_PLAIN * plain or None,
        )
        report.line("VmRSS, most while they were published", peak / 2**20, "MB", most=MEMORY / 2**20)
        report.line("  RssAnon", anonymous / 2**20, "MB")
        time.sleep(2)
        memory(subject, "with all of them pending", report, most)
        octets = (folder / "data" / "store" / "data.mdb").stat().st_blocks * 512
        report.line("data file", octets / 2**20, "MB")
        subject = restarts(subject, folder, options, report, most)
        if options.held:
            rate = uvloop.run(released(subject, frames, min(AT_ONCE, options.messages), options.size))
            report.line("delivered, of those that are due at once", rate, "msg/s", least=RELEASES)
        for load in (options.beside, 0):
            how = f"beside {load:,} msg/s" if load else "beside a flood"
            print(f"  {options.rate:,} due a second, {how}", flush=True)
            other = multiprocessing.get_context("spawn").Process(
                target=beside, args=(subject.port, load, options.seconds + 12)
            )
            other.start()
            try:
                time.sleep(2)  # until the other process publishes
                late = uvloop.run(lateness(subject.port, frames, options.rate, options.seconds))
            finally:
                other.kill()
                other.join()
            for percentile in PERCENTILES:
                value = late[min(len(late) - 1, int(len(late) * percentile / 100))]
                most = LATE_MS if load and percentile == 99.0 else None
                report.line(
                    f"late by, {'max' if percentile == 100 else f'p{percentile:g}'}", value, "ms", most=most
                )
            report.fact("none came a millisecond too early", holds=late[0] > -1)
        memory(subject, "at the end", report)
    finally:
        subject.stop()
    return report.missed


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; return 0 if all bars were cleared, 1 if not, 2 if the broker did not start."""
    parser = argparse.ArgumentParser(prog="python -m bench.delayed", description="A million delayed messages")
    parser.add_argument("--held", action="store_true", help="in a queue that holds messages")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=12, help="octets of each body (default 12)")
    parser.add_argument("--rate", type=int, default=1000, help="messages that become due in a second")
    parser.add_argument("--beside", type=int, default=5000, help="messages a second of the other publisher")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--dir", type=Path, help="a folder on the disk to be used (default: the system's)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with tempfile.TemporaryDirectory(prefix="leveret-bench-", dir=options.dir) as scratch:
            return 1 if measure(options, Path(scratch)) else 0
    except (brokers.BrokerError, BulkError, ClosedError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
