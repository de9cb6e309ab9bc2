"""Benchmark of many connections, many queues, and an idle broker: `python -m bench.scale` or `make bench NAME=scale`.

Reports the memory per idle connection and channel, the rates of accepting connections and declaring queues, the time to
start, and the cost of an idle broker. The client runs in this process, the broker in its own; both need as many file
descriptors as connections (the soft limit is raised to the hard one).
"""

import argparse
import asyncio
import contextlib
import os
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import uvloop
from pamqp import commands, frame

from bench import brokers
from bench.client import Client
from bench.results import Report

CONNECTIONS = 10_000
CHANNELS = (2_000, 10)
QUEUES = 10_000
AT_ONCE = 64
SETTLE = 1.0
IDLE = 5.0
SPARE = 200
"""File descriptors a process needs besides its connections."""

RSS_PER_CONNECTION = 20 * 1024
ACCEPTS = 1500
DECLARES = 2000
DURABLE_DECLARES = 1500
START_SECONDS = 1.0
IDLE_CPU = 1.0
IDLE_RSS = 60 << 20

START_OK = frame.marshal(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"), 0)
OPEN = frame.marshal(commands.Connection.Open("/"), 0)
tune_ok = struct.Struct(">BHIHHHIHB").pack
method_at = struct.Struct(">BHII").unpack_from
START, TUNE, OPEN_OK, CHANNEL_OPEN_OK = (10 << 16 | 10, 10 << 16 | 30, 10 << 16 | 41, 20 << 16 | 11)


class Idler(asyncio.Protocol):
    """A connection that completes the handshake, opens its channels and then sends nothing.

    It requests heartbeats every 600 s: as a client would, but none occurs during the measurement.
    """

    __slots__ = ("channels", "done", "missing", "rest", "transport")

    def __init__(self, channels: int) -> None:
        self.channels = self.missing = channels
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.rest = b""
        self.transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self.transport = transport  # type: ignore[assignment] # uvloop's is a transport of its own kind
        self.transport.write(b"AMQP\0\0\x09\x01")

    def data_received(self, data: bytes) -> None:
        """Advance the handshake for each method."""
        data = self.rest + data
        at = 0
        while len(data) - at >= 12:
            _, _, size, method = method_at(data, at)
            if len(data) - at < size + 8:
                break
            at += size + 8
            self.step(method)
        self.rest = data[at:]

    def step(self, method: int) -> None:
        """Reply to one method of the broker."""
        match method:
            case _ if method == START:
                self.transport.write(START_OK)
            case _ if method == TUNE:
                self.transport.write(tune_ok(1, 0, 12, 10, 31, 2047, 131072, 600, 0xCE) + OPEN)
            case _ if method == OPEN_OK:
                opens = [
                    frame.marshal(commands.Channel.Open(), number + 1) for number in range(self.channels)
                ]
                self.transport.write(b"".join(opens))
            case _ if method == CHANNEL_OPEN_OK:
                self.missing -= 1
        if method in {OPEN_OK, CHANNEL_OPEN_OK} and self.missing == 0 and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the waiting call."""
        if not self.done.done():
            self.done.set_exception(ConnectionError(f"closed during the handshake: {exc}"))


async def connect(port: int, count: int, channels: int) -> tuple[list[Idler], float]:
    """Open `count` connections, `AT_ONCE` at a time; return them and the seconds it took.

    Raises:
        OSError: the broker refused one.
    """
    loop = asyncio.get_running_loop()
    idlers: list[Idler] = []
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            _, idler = await loop.create_connection(lambda: Idler(channels), "127.0.0.1", port)
            await idler.done
            idlers.append(idler)

    began = time.perf_counter()
    await asyncio.gather(*[worker() for _ in range(AT_ONCE)])
    return idlers, time.perf_counter() - began


async def connections(broker: brokers.Broker, report: Report, count: int) -> None:
    """Measure idle connections; then fewer connections with channels."""
    await connect_and_drop(broker, 50)
    before = broker.rss()
    idlers, took = await connect(broker.port, count, 0)
    await asyncio.sleep(SETTLE)
    report.line("connections held", len(idlers), "")
    report.line("accepted and opened", len(idlers) / took, "/s", least=ACCEPTS)
    report.line(
        "RSS per idle connection",
        (broker.rss() - before) / count / 1024,
        "KB",
        most=RSS_PER_CONNECTION / 1024,
    )
    cpu = broker.cpu_seconds()
    await asyncio.sleep(IDLE)
    report.line("CPU with all of them idle", (broker.cpu_seconds() - cpu) / IDLE * 100, "%")
    began = time.perf_counter()
    client = await Client.connect(broker.port)
    await client.declare("scale-probe", auto_delete=True)
    report.line("one more connects and declares in", (time.perf_counter() - began) * 1000, "ms")
    await client.delete("scale-probe")
    client.close()
    await drop(idlers)
    report.line("RSS after they left", broker.rss() / 2**20, "MB")

    many, each = max(1, count * CHANNELS[0] // CONNECTIONS), CHANNELS[1]
    before = broker.rss()
    idlers, took = await connect(broker.port, many, each)
    await asyncio.sleep(SETTLE)
    report.line(f"{many:,} connections with {each} channels, channels", many * each / took, "/s")
    report.line("  RSS growth per connection with its channels", (broker.rss() - before) / many / 1024, "KB")
    await drop(idlers)


async def connect_and_drop(broker: brokers.Broker, count: int) -> None:
    """Make the broker do everything once before memory is compared."""
    await drop((await connect(broker.port, count, 1))[0])


async def drop(idlers: Sequence[Idler]) -> None:
    """Abort all these connections and give the broker time to notice."""
    for idler in idlers:
        idler.transport.abort()
    await asyncio.sleep(SETTLE)


async def queues(broker: brokers.Broker, report: Report, count: int, *, durable: bool) -> None:
    """Declare queues over 16 connections, over one pipelined, without waiting (nowait), and one by one."""
    clients = [await Client.connect(broker.port) for _ in range(16)]
    one = clients[0]

    def declare(number: int, *, nowait: bool = False) -> commands.Queue.Declare:
        return commands.Queue.Declare(queue=f"scale-{os.getpid()}-{number}", durable=durable, nowait=nowait)

    async def each(client: Client, numbers: range) -> None:
        for number in numbers:
            await client.call(declare(number))

    async def delete_all() -> None:
        names = [f"scale-{os.getpid()}-{number}" for number in range(count)]
        await asyncio.gather(*[one.call(commands.Queue.Delete(queue=name)) for name in names])

    kind = "durable" if durable else "transient"
    several, pipelined = (DURABLE_DECLARES, None) if durable else (DECLARES, DECLARES)
    before = broker.rss()
    began = time.perf_counter()
    await asyncio.gather(*[each(client, range(n, count, 16)) for n, client in enumerate(clients)])
    report.line(
        f"{kind} queues, 16 connections, each one by one",
        count / (time.perf_counter() - began),
        "/s",
        least=several,
    )
    report.line("  RSS per queue", (broker.rss() - before) / count / 1024, "KB")
    began = time.perf_counter()
    await delete_all()
    report.line("  deleted, pipelined", count / (time.perf_counter() - began), "/s")

    began = time.perf_counter()
    await asyncio.gather(*[one.call(declare(number)) for number in range(count)])
    report.line(
        f"{kind} queues, 1 connection, pipelined",
        count / (time.perf_counter() - began),
        "/s",
        least=pipelined,
    )
    await delete_all()

    began = time.perf_counter()
    for number in range(count - 1):
        one.send(declare(number, nowait=True))
    await one.call(declare(count - 1))
    report.line(f"{kind} queues, 1 connection, nowait", count / (time.perf_counter() - began), "/s")
    await delete_all()

    began = time.perf_counter()
    await each(one, range(count // 4))
    report.line(f"{kind} queues, 1 connection, one by one", count // 4 / (time.perf_counter() - began), "/s")
    await asyncio.gather(
        *[one.call(commands.Queue.Delete(queue=str(declare(n).queue))) for n in range(count // 4)]
    )
    for client in clients:
        client.close()


def restart(name: str, report: Report, count: int) -> None:
    """Stop a broker that has many durable queues, cleanly and by SIGKILL, and restart it."""
    with tempfile.TemporaryDirectory(prefix="leveret-bench-", ignore_cleanup_errors=True) as scratch:
        broker = brokers.start(name, Path(scratch))
        try:
            before = broker.rss()
            uvloop.run(declare_durable(broker.port, count))
            report.line("RSS per durable queue", (broker.rss() - before) / count / 1024, "KB")
            for how in ("clean", "dirty"):
                broker.stop() if how == "clean" else broker.kill()
                broker = brokers.start(name, Path(scratch))
                report.line(f"start with {count:,} durable queues after a {how} stop", broker.started_in, "s")
                found = uvloop.run(still_there(broker.port, count))
                report.fact("  all of them are there", holds=found == count)
        finally:
            broker.stop()


async def declare_durable(port: int, count: int) -> None:
    """Declare durable queues over several connections."""
    clients = [await Client.connect(port) for _ in range(16)]

    async def each(client: Client, first: int) -> None:
        for number in range(first, count, len(clients)):
            await client.declare(f"kept-{number}", durable=True)

    await asyncio.gather(*[each(client, number) for number, client in enumerate(clients)])
    for client in clients:
        client.close()


async def still_there(port: int, count: int) -> int:
    """Return the number of existing durable queues; the first missing one ends the count."""
    client = await Client.connect(port)
    waiting = [
        client.call(commands.Queue.Declare(queue=f"kept-{number}", passive=True)) for number in range(count)
    ]
    found = await asyncio.gather(*waiting, return_exceptions=True)
    client.close()
    return sum(not isinstance(each, BaseException) for each in found)


def idle(name: str, report: Report, starts: int) -> None:
    """Start the broker several times; measure the time to start and the cost of idling."""
    times = []
    for number in range(starts):
        with tempfile.TemporaryDirectory(prefix="leveret-bench-", ignore_cleanup_errors=True) as scratch:
            broker = brokers.start(name, Path(scratch))
            try:
                times.append(broker.started_in)
                if number == starts - 1:
                    time.sleep(SETTLE)
                    cpu = broker.cpu_seconds()
                    time.sleep(IDLE)
                    report.line("idle CPU", (broker.cpu_seconds() - cpu) / IDLE * 100, "%", most=IDLE_CPU)
                    report.line("idle RSS", broker.rss() / 2**20, "MB", most=IDLE_RSS / 2**20)
            finally:
                broker.stop()
    report.line(
        f"start to `Server startup complete`, median of {starts}", median(times), "s", most=START_SECONDS
    )


def raise_limit(count: int) -> int:
    """Raise the soft limit of file descriptors for us and our children; return the number of connections that fit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(count, hard - SPARE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; return 0 if Leveret cleared all bars, 1 if not, 2 if a broker did not start."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.scale", description="Many connections, many queues, idling"
    )
    parser.add_argument("--brokers", default="leveret", help="comma-separated: leveret,rabbitmq,relay")
    parser.add_argument(
        "--connections", type=int, default=CONNECTIONS, help="idle connections (default 10,000)"
    )
    parser.add_argument("--queues", type=int, default=QUEUES, help="queues declared (default 10,000)")
    parser.add_argument("--only-queues", action="store_true", help="leave out idling and connections")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    options = parser.parse_args(arguments)
    share = 10 if options.quick else 1
    count = raise_limit(options.connections // share)
    missed = 0
    try:
        for name in options.brokers.split(","):
            print(name)
            report = Report(f"scale {name}", judged=name == "leveret")
            if not options.only_queues:
                idle(name, report, 1 if options.quick or name == "rabbitmq" else 5)
            with brokers.running([name]) as started, contextlib.suppress(KeyboardInterrupt):
                if not options.only_queues:
                    uvloop.run(connections(started[name], report, count))
                for durable in (False, True):
                    uvloop.run(queues(started[name], report, options.queues // share, durable=durable))
            if name != "relay":
                restart(name, report, options.queues // share)
            missed += report.missed
    except brokers.BrokerError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
