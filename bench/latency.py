"""Latency of messages at a steady 5,000 a second: `python -m bench.latency`.

The same client measures every broker in turn, for several rounds. Each message carries the time at which it was *due*,
so delays of a slow client or broker are included. One connection publishes, another consumes and acknowledges.

`--confirm` measures confirms instead: 2,000 persistent messages of 1,500 bytes a second into a durable queue, from the
time each was due to its confirm, without a consumer (every message must be on disk) and with one that acknowledges at
once; compared with a raw append and fdatasync on the same disk in the same run.

`--part table`, `rpc` or `awaited` run a part of `bench.latency_parts`, to which `--peer` adds a broker that runs;
`--part steady` runs `bench.steady`.
"""

import argparse
import asyncio
import gc
import json
import os
import select
import struct
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import uvloop
from pamqp import commands

from bench import brokers, peers
from bench.bulk import CONFIRM_ACK, Bulk, BulkError, ack_at, frame_at
from bench.client import Client, publish_frames
from bench.results import Report

PERCENTILES = (50.0, 99.0, 99.9)
WARM_UP = 1.0
CONFIRM_RATE, CONFIRM_SIZE = 2000, 1500
RAW_FLUSHES = 300
FLUSHES = 5.0
"""Maximum ratio of the median confirm to a raw flush."""
stamp = struct.Struct(">d")


async def measure(port: int, *, rate: int = 5000, seconds: float = 5.0, no_ack: bool = False) -> list[float]:
    """Return the end-to-end times in seconds of all messages after a second of warm-up, shortest first.

    Args:
        port: the broker's port.
        rate: messages a second.
        seconds: duration of the measurement.
        no_ack: consume without acknowledgements; otherwise with a prefetch count of 500 and `multiple` acks.
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


def confirms(port: int, *, rate: int, seconds: float, consumed: bool) -> list[float]:
    """Return the seconds from each persistent message's due time to its confirm, shortest first, without warm-up.

    Args:
        port: the broker's port.
        rate: messages a second.
        seconds: duration of the measurement.
        consumed: whether a consumer takes and acknowledges them on another connection.

    Raises:
        BulkError: the broker refused a message or did not confirm in time.
    """
    client = Bulk(port)
    reader = Bulk(port) if consumed else None
    queue = f"confirm-{time.time_ns()}"
    client.declare(queue)
    client.call(commands.Confirm.Select())
    if reader is not None:
        reader.call(commands.Basic.Qos(prefetch_count=500))
        reader.call(commands.Basic.Consume(queue=queue, consumer_tag="reader"))
    octets = publish_frames(queue, b"x" * CONFIRM_SIZE, persistent=True)
    total = int(rate * (seconds + WARM_UP))
    times = [0.0] * total
    open_tags = set(range(1, total + 1))
    sent = oldest = 0
    sockets = [client.socket] if reader is None else [client.socket, reader.socket]
    gc.collect()
    gc.disable()
    began = time.perf_counter()
    try:
        while open_tags:
            now = time.perf_counter()
            if now - began > seconds + WARM_UP + 30:
                message = f"{len(open_tags)} of {total} messages were not confirmed"
                raise BulkError(message)
            if sent < total and now >= began + sent / rate:
                client.socket.sendall(octets)
                sent += 1
                continue
            wait = began + sent / rate - now if sent < total else 1.0
            readable, _, _ = select.select(sockets, [], [], max(0.0, wait))
            if client.socket in readable:
                client.read()
                now = time.perf_counter()
                for tag, multiple in settled(client):
                    for each in range(oldest + 1, tag + 1) if multiple else (tag,):
                        if each in open_tags:
                            open_tags.remove(each)
                            times[each - 1] = now - began - (each - 1) / rate
                    oldest = tag if multiple else oldest
            if reader is not None and reader.socket in readable:
                reader.read()
                reader.socket.sendall(acks_of(reader))
    finally:
        gc.enable()
    client.call(commands.Queue.Delete(queue=queue))
    client.close()
    if reader is not None:
        reader.close()
    return sorted(times[int(rate * WARM_UP) :])


def settled(client: Bulk) -> list[tuple[int, bool]]:
    """Remove the confirms that have been read; return tag and `multiple` of each."""
    octets, at, found = client.rest, 0, []
    while len(octets) - at >= 8 and len(octets) - at >= frame_at(octets, at)[2] + 8:
        if octets[at + 7 : at + 11] != CONFIRM_ACK:
            raise BulkError(f"not a confirm: {octets[at : at + 40]!r}")
        found.append(ack_at(octets, at + 11))
        at += frame_at(octets, at)[2] + 8
    client.rest = octets[at:]
    return found


def acks_of(reader: Bulk) -> bytes:
    """Remove the deliveries that have been read, and return an ack for each."""
    octets, at, parts = reader.rest, 0, []
    while len(octets) - at >= 8 and len(octets) - at >= (size := frame_at(octets, at)[2] + 8):
        if octets[at + 7 : at + 11] == b"\x00\x3c\x00\x3c":
            (tag,) = struct.unpack_from(">Q", octets, at + 12 + octets[at + 11])
            parts.append(struct.pack(">BHIHHQ?B", 1, 1, 13, 60, 80, tag, False, 0xCE))
        at += size
    reader.rest = octets[at:]
    return b"".join(parts)


def raw_flushes(folder: Path, count: int = RAW_FLUSHES) -> list[float]:
    """Return the seconds of each append of `CONFIRM_SIZE` bytes to a file with fdatasync."""
    times = []
    with tempfile.NamedTemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(count):
            octets = os.urandom(CONFIRM_SIZE)
            began = time.perf_counter()
            file.write(octets)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
            time.sleep(0.001)
    return times


def confirm_table(options: argparse.Namespace) -> int:
    """Print confirm latencies and judge them; return the number of bars missed."""
    report = Report("latency confirm")
    found: dict[tuple[str, bool], list[list[float]]] = {}
    raw = []
    with brokers.running(options.brokers.split(",")) as started:
        for _ in range(options.rounds):
            for name, broker in started.items():
                raw += raw_flushes(broker.log.parent)
                for consumed in (False, True):
                    times = confirms(
                        broker.port,
                        rate=options.rate or CONFIRM_RATE,
                        seconds=options.seconds,
                        consumed=consumed,
                    )
                    found.setdefault((name, consumed), []).append(times)
    print(
        f"confirms of {options.rate or CONFIRM_RATE:,} persistent messages of {CONFIRM_SIZE:,} octets a second, "
        f"ms, median of {options.rounds} rounds"
    )
    print(f"{'broker':<28}" + "".join(f"{f'p{share:g}':>9}" for share in PERCENTILES))
    table = {
        key: [1000.0 * median(percentile(times, share) for times in rounds) for share in PERCENTILES]
        for key, rounds in found.items()
    }
    for (name, consumed), values in table.items():
        label = f"{name}, {'consumer acks at once' if consumed else 'no consumer'}"
        print(f"{label:<28}" + "".join(f"{value:>9.2f}" for value in values))
    flush = median(raw) * 1000.0
    print(f"{'raw append and fdatasync':<28}{flush:>9.2f}{percentile(sorted(raw), 99.0) * 1000:>9.2f}")
    if "leveret" in started:
        report.line("p50 of confirms / raw fdatasync", table["leveret", False][0] / flush, "x", most=FLUSHES)
    if "leveret" in started and "rabbitmq" in started:
        for consumed in (False, True):
            ratio = table["leveret", consumed][1] / table["rabbitmq", consumed][1]
            report.line(
                f"p99 / RabbitMQ's, {'with' if consumed else 'without'} a consumer", ratio, "x", most=1.0
            )
    return report.missed


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
    parser.add_argument(
        "--rate", type=int, default=0, help="messages a second (default 5000; with --confirm 2000)"
    )
    parser.add_argument("--confirm", action="store_true", help="measure confirms of persistent messages")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a measurement (default 5)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each broker (default 3)")
    parser.add_argument("--no-ack", action="store_true", help="consume without acknowledgements")
    parser.add_argument(
        "--part",
        nargs="+",
        choices=("table", "rpc", "awaited", "steady"),
        default=[],
        metavar="PART",
        help="instead: table, rpc, awaited (see bench.latency_parts) or steady (see bench.steady)",
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="length of steady (default 10)")
    parser.add_argument(
        "--idle", type=int, nargs="+", default=[0, 100, 5000], help="connections in the table"
    )
    parser.add_argument("--size", type=int, default=1500, help="bytes of a message in the parts")
    peers.option(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args(arguments)
    rounds: dict[str, list[list[float]]] = {}
    try:
        if options.part:
            from bench import latency_parts  # noqa: PLC0415 - it uses this module

            return latency_parts.main(options, options.part)
        if options.confirm:
            return 1 if confirm_table(options) else 0
        options.rate = options.rate or 5000
        with brokers.running(options.brokers.split(",")) as started:
            for _ in range(options.rounds):
                for name, broker in started.items():
                    run = measure(
                        broker.port, rate=options.rate, seconds=options.seconds, no_ack=options.no_ack
                    )
                    rounds.setdefault(name, []).append(uvloop.run(run))
    except (brokers.BrokerError, BulkError) as error:
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
