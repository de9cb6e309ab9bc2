"""The longer parts of `make bench NAME=latency`: the table of rates and idle connections, RPC, and commits one by one.

- `table`: from the due time of a persistent message to its delivery and to its confirm, at several rates, with several
  numbers of idle connections beside.
- `rpc`: round trips by direct reply-to.
- `awaited`: confirms and transactions of one message at a time, compared with the flushes that a commit needs, which a
  bare program makes on the same disk in the same round: of what it appends, and of the page that tells where it is;
  with a log of one flush in a file that has its size already; and with a commit of LMDB alone.
- `steady`: minutes of one load on a broker of its own (`bench.steady`).
"""

import argparse
import asyncio
import contextlib
import dataclasses
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median

import lmdb
from pamqp import commands

from bench import brokers, open_loop, peers, rpc, scale, steady, transactions
from bench.bulk import Bulk, BulkError
from bench.client import publish_frames
from bench.endpoint import Endpoint
from bench.open_loop import Load, percentile
from bench.peers import endpoint_of
from bench.results import Report, append

RATES = (1000, 5000, 20_000)
SHARES = (50.0, 99.0, 99.9)
SPARE = 200
"""File descriptors beside those of idle connections."""
RPC_RATE, RPC_P50 = 15_000.0, 150e-6
TWO_FLUSHES = 1.5
PAGE = bytes(4096)
BARE = 200


@contextlib.contextmanager
def idle_connections(endpoint: Endpoint, count: int) -> Iterator[None]:
    """Keep so many connections open that do nothing, in a process of their own.

    Raises:
        BulkError: they could not be opened.

    """
    if not count:
        yield
        return
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_stay, args=(endpoint.port, count, ready), daemon=True)
    process.start()
    try:
        if not ready.wait(60 + count / 100):
            message = f"{count} idle connections could not be opened"
            raise BulkError(message)
        yield
    finally:
        process.kill()
        process.join()


def _stay(port: int, count: int, ready: Event) -> None:
    more_files(count)

    async def stay() -> None:
        _idlers, _ = await scale.connect(port, count, 0)
        ready.set()
        await asyncio.get_running_loop().create_future()

    asyncio.run(stay())


def more_files(count: int) -> None:
    """Let this process, and those that it starts, open so many connections, if the system permits."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == -1 else min(wanted, hard), hard))


def table(options: argparse.Namespace, started: Mapping[str, brokers.Broker]) -> int:
    """Print p50, p99 and p99.9 in milliseconds for each number of idle connections and each rate; returns 0."""
    rates = [options.rate] if options.rate else RATES
    print(f"persistent messages of {options.size:,} octets, 1 producer, 1 consumer, from the due time; ms,")
    print(f"medians of {options.rounds} rounds of {options.seconds:g} s; late: p99 of the client's own delay")
    heads = "".join(f"{f'{what} p{share:g}':>15}" for what in ("deliver", "confirm") for share in SHARES)
    print(f"{'broker':<10}{'idle':>6}{'msg/s':>8}{heads}{'late':>7}{'missing':>9}")
    for idle in options.idle:
        for name, broker in started.items():
            place = endpoint_of(broker)
            with idle_connections(place, idle):
                for rate in rates:
                    load = Load(rate, options.seconds, size=options.size)
                    found = [open_loop.run(place, load) for _ in range(options.rounds)]
                    values = [
                        1000 * median(percentile(times, share) for times in each)
                        for each in ([one.delivered for one in found], [one.confirmed for one in found])
                        for share in SHARES
                    ]
                    late = 1000 * median(one.late for one in found)
                    missing = sum(one.missing for one in found)
                    shown = "".join(f"{value:>15.2f}" for value in values)
                    print(f"{name:<10}{idle:>6,}{rate:>8,}{shown}{late:>7.2f}{missing:>9,}", flush=True)
                    append(
                        {
                            "tool": "latency table", "broker": name, "idle": idle, "rate": rate, "ms": values,
                            "late": late, "missing": missing, "size": options.size, "seconds": options.seconds,
                        }
                    )  # fmt: skip
    return 0


def round_trips(options: argparse.Namespace, started: Mapping[str, brokers.Broker]) -> int:
    """Print round trips of RPC, and judge Leveret's; returns the number of bars missed."""
    report = Report("latency rpc")
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(options.rounds):
        for name, broker in started.items():
            found.setdefault(name, []).append(rpc.quick(endpoint_of(broker), options.seconds))
    for name, rounds in found.items():
        ours = name == "leveret"
        middle = {key: median(one[key] for one in rounds) for key in rounds[0]}
        report.line(
            f"{name}: round trips, 50 outstanding", middle["rate"], "/s", least=RPC_RATE if ours else None
        )
        report.line(
            f"{name}: one at a time, p50",
            middle["p50"] * 1e6,
            "us",
            most=RPC_P50 * 1e6 if ours else None,
        )
        report.line(f"{name}: one at a time, p99", middle["p99"] * 1e6, "us")
    return report.missed


@dataclasses.dataclass(slots=True)
class Bare:
    """Seconds that a bare program takes to make some bytes durable, one time for each repetition."""

    one: list[float] = dataclasses.field(default_factory=list)
    """Appended to a file, and flushed."""
    two: list[float] = dataclasses.field(default_factory=list)
    """Appended and flushed; then a page is written and flushed."""
    log: list[float] = dataclasses.field(default_factory=list)
    """Written and flushed in a file that was written before, so that its size and its blocks stay."""
    lmdb: list[float] = dataclasses.field(default_factory=list)
    """Put and committed as a row of an LMDB environment."""


def bare_flushes(folder: Path, size: int, count: int = BARE) -> Bare:
    """Measure how long this disk takes for a message of some bytes, in several ways."""
    times = Bare()
    clock = time.perf_counter
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        descriptor = file.fileno()
        os.pwrite(descriptor, PAGE, 0)
        os.fsync(descriptor)
        at = len(PAGE)
        for _ in range(count):
            octets = os.urandom(size)
            began = clock()
            os.pwrite(descriptor, octets, at)
            os.fdatasync(descriptor)
            first = clock()
            os.pwrite(descriptor, PAGE, 0)
            os.fdatasync(descriptor)
            times.two.append(clock() - began)
            times.one.append(first - began)
            at += size
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        descriptor = file.fileno()
        os.pwrite(descriptor, bytes(size * count), 0)
        os.fsync(descriptor)
        for number in range(count):
            octets = os.urandom(size)
            began = clock()
            os.pwrite(descriptor, octets, number * size)
            os.fdatasync(descriptor)
            times.log.append(clock() - began)
    with (
        tempfile.TemporaryDirectory(dir=folder) as place,
        lmdb.open(place, map_size=1 << 30, max_dbs=1) as env,
    ):
        table = env.open_db(b"blocks")
        for number in range(count):
            octets = os.urandom(size)
            began = clock()
            with env.begin(write=True) as txn:
                txn.put(number.to_bytes(16, "big"), octets, db=table)
            times.lmdb.append(clock() - began)
    return times


def confirms_one_by_one(endpoint: Endpoint, size: int, seconds: float) -> list[float]:
    """Publish persistent messages, each after the confirm of the one before; returns the seconds of each.

    Raises:
        BulkError: the broker refused something, or messages are missing in the queue.

    """
    client = Bulk(endpoint)
    queue = f"awaited-{os.getpid()}-{time.time_ns()}"
    times = []
    try:
        client.declare(queue)
        client.call(commands.Confirm.Select())
        octets = publish_frames(queue, b"x" * size, persistent=True)
        clock, end = time.perf_counter, time.perf_counter() + seconds
        while (began := clock()) < end:
            before = client.confirmed
            client.socket.sendall(octets)
            while client.confirmed == before:
                client.read_confirms()
            times.append(clock() - began)
        if (left := int(client.call(commands.Queue.Delete(queue=queue)).message_count)) != len(times):
            message = f"{left:,} of {len(times):,} messages are in the queue"
            raise BulkError(message)
    finally:
        client.close()
    return times


def awaited(options: argparse.Namespace, started: Mapping[str, brokers.Broker]) -> int:
    """Print the time of a confirm and of a transaction, one at a time, and judge Leveret's; returns the bars missed."""
    report = Report("latency awaited")
    bare: list[Bare] = []
    times: dict[str, list[float]] = {}
    rates: dict[str, list[float]] = {}
    ratios: list[float] = []
    for _ in range(options.rounds):
        flushed: dict[str, float] = {}
        for name, broker in started.items():
            bare.append(bare_flushes(broker.log.parent, options.size))
            taken = median(confirms_one_by_one(endpoint_of(broker), options.size, options.seconds))
            times.setdefault(name, []).append(taken)
            flushed[name] = taken / median(bare[-1].two)
            rate = transactions.publish(
                endpoint_of(broker), transactions.FIRST, seconds=options.seconds, size=options.size, window=1
            )
            rates.setdefault(name, []).append(rate)
        if "leveret" in flushed:
            ratios.append(flushed["leveret"])
    single = median(median(each.one) for each in bare)
    report.line("one flush by a bare program", 1e6 * single, "us")
    report.line("two flushes by a bare program", 1e6 * median(median(each.two) for each in bare), "us")
    report.line("one flush in a file written before", 1e6 * median(median(each.log) for each in bare), "us")
    report.line("a commit of LMDB alone", 1e6 * median(median(each.lmdb) for each in bare), "us")
    for name, values in times.items():
        report.line(f"{name}: a confirm awaited, p50", 1e6 * median(values), "us")
        report.line(f"{name}: a transaction per message", median(rates[name]), "/s")
    if ratios:
        report.line("leveret: confirm / two flushes, in a round", median(ratios), "x", most=TWO_FLUSHES)
        report.line("leveret: confirm / one flush", median(times["leveret"]) / single, "x")
    if {"leveret", "rabbitmq"} <= rates.keys():
        pairs = zip(rates["leveret"], rates["rabbitmq"], strict=True)
        report.line(
            "transactions per message / RabbitMQ's",
            median(ours / theirs for ours, theirs in pairs),
            "x",
            least=1.0,
        )
    return report.missed


PARTS = {"table": table, "rpc": round_trips, "awaited": awaited}


def main(options: argparse.Namespace, parts: Sequence[str]) -> int:
    """Run parts on the brokers and peers of a command line; return 0, or 1 if a bar was missed."""
    missed = 0
    more_files(max(options.idle) if "table" in parts else 0)
    compared = [part for part in parts if part in PARTS]
    if compared:
        with peers.running(options.brokers.split(","), options.peer) as started:
            for part in compared:
                missed += PARTS[part](options, started)
    if "steady" in parts:
        missed += steady.steady(options)
    return 1 if missed else 0
