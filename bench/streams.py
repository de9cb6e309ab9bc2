"""Benchmark of streams: `python -m bench.streams` or `make bench NAME=streams`.

One broker has a stream and a durable classic queue. In turn a client publishes persistent messages to each at full
speed, in confirm mode; the ratio of the rates is what a stream costs. Both keep all messages: a queue that is emptied
uses its part of the file again, while a stream makes the file longer, and its flushes slower. Then one reader, and
ten, read the stream from its first message. Processor time of the broker is told, too, as it depends less on what else
the machine does. At last the broker is killed and started again, and a reader asks for a timestamp. Memory is without
mapped files.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from pamqp import commands

from bench import brokers
from bench.client import BODY, DELIVER, METHOD, Client, frame_at, method_at, publish_frames
from bench.results import Report

BATCH = 64
WINDOW = 2000
"""Most unconfirmed messages."""
STREAM = "stream"
QUEUE = "queue"
WRITE_RATIO, ONE_READER, TEN_READERS = 1.0, 150_000.0, 400_000.0
MOST_MEMORY, MOST_START, MOST_SEARCH = 100.0, 5.0, 20.0
"""MB above an idle broker, seconds, and ms."""


class Reader(Client):
    """A reader of messages of one size, which it counts by their bytes: parsing each takes longer than sending it."""

    __slots__ = ("_left", "_size")

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._size = self._left = 0

    def data_received(self, data: bytes) -> None:
        """Count deliveries, and ack them."""
        if not self._size:
            super().data_received(data)
            self._size, self._left = _delivery_size(data), len(self._rest)
            return
        count, self._left = divmod(self._left + len(data), self._size)
        if count:
            self.delivered += count
            self._delivered({1: self.delivered})


def _delivery_size(data: bytes) -> int:
    """Return the size of the first delivery, with all its frames; 0 if there is none."""
    at = begin = 0
    while len(data) - at >= 8:
        kind, _, length = frame_at(data, at)
        if kind == METHOD and method_at(data, at)[3] == DELIVER:
            begin = at
        at += length + 8
        if kind == BODY and at <= len(data):
            return at - begin
    return 0


def _memory(running: brokers.Broker) -> int:
    """Return the bytes of memory of the process, without those of mapped files."""
    status = Path(f"/proc/{running.pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


async def publish(client: Client, queue: str, count: int, size: int) -> float:
    """Publish messages in confirm mode; return the rate until all are confirmed."""
    octets = publish_frames(queue, b"x" * size, persistent=True) * BATCH
    began, first = time.perf_counter(), client.published
    while client.published - first < count:
        while client.published - client.confirmed > WINDOW:
            await asyncio.sleep(0.0005)
        await client.publish(octets, BATCH)
        await asyncio.sleep(0)
    while client.confirmed < client.published:
        await asyncio.sleep(0.0005)
    return count / (time.perf_counter() - began)


async def _read(port: int, readers: int, count: int) -> float:
    """Read so many messages from the first one on, with each reader; return the rate of all together."""
    clients = [await Reader.connect(port, ack=True) for _ in range(readers)]
    for client in clients:
        await client.call(commands.Basic.Qos(prefetch_count=5000))
    began = time.perf_counter()
    for client in clients:
        await client.call(commands.Basic.Consume(queue=STREAM, arguments={"x-stream-offset": "first"}))
    while any(client.delivered < count for client in clients):
        await asyncio.sleep(0.002)
    rate = sum(client.delivered for client in clients) / (time.perf_counter() - began)
    for client in clients:
        client.close()
    return rate


async def _first_by_time(port: int, seconds: float) -> float:
    """Return the ms until the first delivery of a consumer that asks for a timestamp."""
    client = await Client.connect(port, ack=True)
    await client.call(commands.Basic.Qos(prefetch_count=1))
    began = time.perf_counter()
    arguments: dict[str, Any] = {"x-stream-offset": f"{max(1, round(seconds))}s"}
    await client.call(commands.Basic.Consume(queue=STREAM, arguments=arguments))
    while not client.delivered:
        await asyncio.sleep(0.0002)
    taken = time.perf_counter() - began
    client.close()
    return taken * 1000


async def _measure(report: Report, directory: Path, options: argparse.Namespace) -> None:
    running = brokers.start("leveret", directory, options.set)
    idle = _memory(running)
    client = await Client.connect(running.port)
    await client.call(commands.Confirm.Select())
    await client.declare(QUEUE, durable=True)
    arguments = {"x-queue-type": "stream"}
    await client.call(commands.Queue.Declare(queue=STREAM, durable=True, arguments=arguments))
    share = options.messages // options.rounds // BATCH * BATCH
    rates: dict[str, list[float]] = {STREAM: []} if options.alone else {QUEUE: [], STREAM: []}
    costs = dict.fromkeys(rates, 0.0)
    middle = time.time()
    for number in range(options.rounds):
        if number == options.rounds // 2:
            middle = time.time()
        for name, found in rates.items():
            before = running.cpu_seconds()
            found.append(await publish(client, name, share, options.size))
            costs[name] += running.cpu_seconds() - before
    for name, found in rates.items():
        print(f"  {name}: {', '.join(f'{rate:,.0f}' for rate in found)} msg/s")
    ratios = [stream / queue for stream, queue in zip(rates[STREAM], rates.get(QUEUE, ()), strict=False)]
    if ratios:
        report.line("write, ratio to a durable queue", median(ratios), "x", least=WRITE_RATIO)
    count = share * options.rounds
    for name, cost in costs.items():
        report.line(f"processor time of a publish to the {name}", cost / count * 1e6, "us")
    for readers, least in () if options.alone else ((1, ONE_READER), (10, TEN_READERS)):
        before = running.cpu_seconds()
        rate = await _read(running.port, readers, count)
        cost = (running.cpu_seconds() - before) / count / readers
        report.line(f"processor time of a delivery, {readers} readers", cost * 1e6, "us")
        report.line(f"{readers} readers from the first message", rate, "msg/s", least=least)
    report.line("memory above an idle broker", (_memory(running) - idle) / 1e6, "MB", most=MOST_MEMORY)
    client.close()
    running.process.kill()
    running.process.wait()
    running = brokers.start("leveret", directory, options.set)
    report.line("start after a kill", running.started_in, "s", most=MOST_START)
    taken = await _first_by_time(running.port, time.time() - middle)
    report.line("first delivery by time", taken, "ms", most=MOST_SEARCH)
    report.line("memory after the start", _memory(running) / 1e6, "MB")
    running.stop(60)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--alone", action="store_true", help="write the stream only, read it by time only")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=1000, help="bytes of a body")
    parser.add_argument("--dir", default=None)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    report = Report("streams")
    with tempfile.TemporaryDirectory(prefix="leveret-bench-", dir=options.dir) as scratch:
        asyncio.run(_measure(report, Path(scratch), options))
    return bool(report.missed)


if __name__ == "__main__":
    sys.exit(main())
