"""Compares transactions with publisher confirms: `python -m bench.transactions` or `make bench NAME=transactions`.

RabbitMQ's documentation says that transactions "decrease throughput by a factor of 250" compared with confirms. It
states neither the size of a message nor the number of unconfirmed ones. Measured here are four ways of publishing
persistent messages safely: a transaction for each, one for every hundred, waiting for each confirm, and confirms with a
window. The queue is durable and has no consumer, so that each message must be on the disk before any reply; afterwards
all have to be in it. Brokers take turns within a round, with one connection and one channel each time. The speed of the
disk alone is printed as well: 1,500 bytes appended to a file and flushed, repeatedly.

Three more ways pass such messages on, from one queue to another: a hundred acks and publishes in a transaction, or an
ack after each confirm, with as many unconfirmed or with the window. The first must have `LEAST` of the rate of the
second, in the median of Leveret's rounds.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import uvloop
from pamqp import commands, frame

from bench import brokers, compare, results
from bench.bulk import DELIVER, Bulk, BulkError, acks, frame_at
from bench.client import METHOD, publish_frames
from bench.endpoint import Endpoint
from bench.latency import raw_flushes

CLAIM = 250.0
"""The documented factor of confirms over transactions."""
BATCH = 100
PATIENCE = 30.0
COMMIT_OK = b"\x00\x5a\x00\x15"
INPUTS = 20_000
"""Messages that wait to be passed on, for each second of a run."""
LEAST = 0.5
FIRST, CONFIRMS = "tx-1", "confirms"
PASS_TX, PASS_BATCH, PASS_CONFIRMS = "pass-tx-100", "pass-confirms-100", "pass-confirms"
TITLES = {
    FIRST: "a transaction per message",
    "tx-100": f"a transaction per {BATCH} messages",
    "confirm-1": "a confirm awaited per message",
    CONFIRMS: "confirms, pipelined",
    PASS_TX: f"passed on, a transaction per {BATCH}",
    PASS_BATCH: f"passed on, {BATCH} unconfirmed",
    PASS_CONFIRMS: "passed on, confirms pipelined",
}

Rates = Mapping[tuple[str, str], Sequence[float]]
"""Messages a second of every round, by (way, broker)."""


def publish(port: int | Endpoint, way: str, *, seconds: float, size: int, window: int) -> float:
    """Publish to a queue of its own for `seconds`; return the rate until the last reply.

    Args:
        port: the broker's, on 127.0.0.1, or its endpoint.
        way: one of `TITLES`.
        seconds: time in which new messages are begun.
        size: bytes of each body.
        window: maximum number of unconfirmed messages if they are pipelined.

    Raises:
        BulkError: the broker refused, stopped responding, or lacks messages in the queue.
    """
    client = Bulk(port, patience=PATIENCE)
    try:
        queue = f"transactions-{way}-{os.getpid()}-{time.time_ns()}"
        client.declare(queue)
        one = publish_frames(queue, b"x" * size, persistent=True)
        began = time.perf_counter()
        if way.startswith("tx"):
            commit(client, one, BATCH if way == "tx-100" else 1, began + seconds)
        else:
            confirm(client, one, window if way == CONFIRMS else 1, began + seconds)
        took = time.perf_counter() - began
        kept = int(client.call(commands.Queue.Delete(queue=queue)).message_count)
        if kept != client.sent:
            raise BulkError(f"{kept:,} of {client.sent:,} messages are in the queue")
        return client.sent / took
    finally:
        client.close()


def commit(client: Bulk, one: bytes, batch: int, end: float) -> None:
    """Publish in transactions of `batch` messages until the time `end`, each committed before the next begins."""
    client.call(commands.Tx.Select())
    octets = one * batch + frame.marshal(commands.Tx.Commit(), 1)
    while time.perf_counter() < end:
        client.socket.sendall(octets)
        client.reply()
        client.sent += batch


def confirm(client: Bulk, one: bytes, window: int, end: float) -> None:
    """Publish with at most `window` messages unconfirmed until the time `end`, then wait for the rest."""
    client.call(commands.Confirm.Select())
    while time.perf_counter() < end:
        if room := window - (client.sent - client.confirmed):
            client.sent += room  # before writing, as confirms may come meanwhile
            client._write(bytearray(one * room))
        if client.confirmed < client.sent:
            client.read_confirms()
    while client.confirmed < client.sent:
        client.read_confirms()


def pass_on(port: int | Endpoint, way: str, *, seconds: float, size: int, window: int) -> float:
    """Consume, publish one message for each, and ack; return the rate until the last reply.

    The arguments and errors are those of `publish`; the window is the prefetch count.
    """
    filler, client = (Bulk(port, patience=PATIENCE) for _ in range(2))
    try:
        source, sink = (f"transactions-{way}-{end}-{os.getpid()}-{time.time_ns()}" for end in ("in", "out"))
        client.declare(source)
        client.declare(sink)
        inputs = int(INPUTS * seconds)
        filler.fill(source, 0, inputs, size, persistent=True)
        one = publish_frames(sink, b"x" * size, persistent=True)
        client.call(commands.Basic.Qos(prefetch_count=BATCH if way == PASS_BATCH else window))
        client.call(commands.Tx.Select() if way == PASS_TX else commands.Confirm.Select())
        client.call(commands.Basic.Consume(queue=source, consumer_tag="transactions"))
        began = time.perf_counter()
        run = pass_in_transactions if way == PASS_TX else pass_by_confirms
        run(client, one, inputs, began + seconds)
        took = time.perf_counter() - began
        kept = int(filler.call(commands.Queue.Delete(queue=sink)).message_count)
        filler.call(commands.Queue.Delete(queue=source))
        if kept != client.sent:
            raise BulkError(f"{kept:,} of {client.sent:,} messages are in the queue")
        return client.sent / took
    finally:
        client.close()
        filler.close()


def pass_in_transactions(client: Bulk, one: bytes, inputs: int, end: float) -> None:
    """Pass on up to `inputs` messages until the time `end`, each transaction committed before the next begins."""
    octets, commit_frame = one * BATCH, frame.marshal(commands.Tx.Commit(), 1)
    delivered = 0
    while client.sent + BATCH <= inputs and time.perf_counter() < end:
        while delivered < client.sent + BATCH:
            delivered += arrived(client)[0]
        client.sent += BATCH
        client.socket.sendall(octets + acks(client.sent, BATCH) + commit_frame)
        is_committed = False
        while not is_committed:
            more, is_committed = arrived(client)
            delivered += more


def pass_by_confirms(client: Bulk, one: bytes, inputs: int, end: float) -> None:
    """Pass on up to `inputs` messages until the time `end`; each is acked once its publish is confirmed."""
    acked = 0
    while acked < client.sent or (client.sent < inputs and time.perf_counter() < end):
        more = arrived(client)[0] if client.sent < inputs or client.confirmed < client.sent else 0
        if time.perf_counter() < end:
            client.sent += more
            client.socket.sendall(one * more)
        if client.confirmed > acked:
            client.socket.sendall(acks(client.confirmed, client.confirmed - acked))
            acked = client.confirmed


def arrived(client: Bulk) -> tuple[int, bool]:
    """Wait for data; return how many deliveries are in it, and whether `commit-ok` is. Confirms are counted."""
    client.read()
    at, delivered, is_committed, octets = 0, 0, False, client.rest
    while len(octets) - at >= 8 and (stop := at + frame_at(octets, at)[2] + 8) <= len(octets):
        if octets[at] == METHOD:
            method = octets[at + 7 : at + 11]
            if method == DELIVER:
                delivered += 1
            elif method == COMMIT_OK:
                is_committed = True
            elif not client._settled(octets[at:stop]):
                raise BulkError(f"unexpected {frame.unmarshal(octets[at:stop])[2]}")
        at = stop
    client.rest = octets[at:]
    return delivered, is_committed


def measure(broker: brokers.Broker, way: str, options: argparse.Namespace) -> tuple[float, float]:
    """Return the rate, and the per cent of the machine used by other processes than the broker and this one."""
    began, everything = time.monotonic(), brokers.machine_cpu_seconds()
    ours = time.process_time() + broker.cpu_seconds()
    run = pass_on if way.startswith("pass") else publish
    rate = run(broker.port, way, seconds=options.seconds, size=options.size, window=options.window)
    ours = time.process_time() + broker.cpu_seconds() - ours
    capacity = (time.monotonic() - began) * (os.cpu_count() or 1)
    return rate, max(0.0, (brokers.machine_cpu_seconds() - everything - ours) / capacity * 100)


def turns(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str, str]]:
    """Yield (round, way, broker): every way on every broker in each round, with the first broker rotating."""
    for number in range(1, rounds + 1):
        shift = (number - 1) % len(names)
        for way in TITLES:
            for name in [*names[shift:], *names[:shift]]:
                yield number, way, name


def factors(confirmed: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return the factor of confirms over the others in each round."""
    return [fast / slow for fast, slow in zip(confirmed, others, strict=True)]


def table(rates: Rates, names: Sequence[str]) -> str:
    """Return medians over the rounds, each with the factor by which pipelined confirms are faster.

    Ways that pass messages on are compared with pipelined confirms that do.

    Args:
        rates: the measured rates, rounds in order.
        names: the brokers, a pair of columns each; with Leveret and RabbitMQ a column with the ratio of the two.
    """
    versus = {"leveret", "rabbitmq"} <= set(names)
    heads = "".join(f"{name:>12}{'confirms x':>12}" for name in names)
    lines = [f"{'messages a second':<34}{heads}" + f"{'x rabbitmq':>12}" * versus]
    for way, title in TITLES.items():
        text = f"{title:<34}"
        for name in names:
            base = PASS_CONFIRMS if way.startswith("pass") else CONFIRMS
            factor = median(factors(rates[base, name], rates[way, name]))
            text += f"{median(rates[way, name]):>12,.0f}{factor:>12,.1f}"
        if versus:
            text += f"{median(factors(rates[way, 'leveret'], rates[way, 'rabbitmq'])):>12.2f}"
        lines.append(text)
    said = f"said of {TITLES[FIRST]}"
    lines.append(f"{said:<34}" + "".join(f"{'':>12}{CLAIM:>12,.1f}" for _ in names))
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    made = argparse.ArgumentParser(
        prog="python -m bench.transactions", description="Transactions beside publisher confirms"
    )
    made.add_argument(
        "--brokers", type=compare.broker_names, default=["leveret", "rabbitmq"], metavar="NAMES"
    )
    made.add_argument("--rounds", type=int, default=3, help="how often everything is run (default 3)")
    made.add_argument("--seconds", type=float, default=2.0, help="length of one run (default 2)")
    made.add_argument("--size", type=int, default=1500, help="octets of each body (default 1500)")
    made.add_argument(
        "--window", type=int, default=1000, help="messages that may wait for their confirm (default 1000)"
    )
    made.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for `leveret serve`")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 0, 1 if the bar is missed, or 2 if a broker did not work as expected."""
    options = parser().parse_args(arguments)
    rates: dict[tuple[str, str], list[float]] = {}
    flushes: list[float] = []
    try:
        with brokers.running(options.brokers, options.set) as started:
            peers = uvloop.run(compare.describe(started.values()))
            print(
                f"{options.rounds} rounds of {options.seconds:g} s; persistent messages of {options.size:,} octets, "
                f"no consumer, window {options.window:,}; {os.cpu_count()} cores"
            )
            for name, broker in started.items():
                print(f"  {name:<9} {peers[name]}: {broker.settings}")
            print(f"\n{'round':>5}  {'':<34}{'broker':<10}{'msg/s':>12}{'other %':>8}")
            for number, way, name in turns(options.brokers, options.rounds):
                if way == FIRST:
                    flushes += raw_flushes(started[name].log.parent)
                rate, other = measure(started[name], way, options)
                rates.setdefault((way, name), []).append(rate)
                print(f"{number:>5}  {TITLES[way]:<34}{name:<10}{rate:>12,.0f}{other:>8.0f}", flush=True)
                results.append(
                    {
                        "tool": "transactions",
                        "round": number,
                        "way": way,
                        "broker": name,
                        "rate": rate,
                        "other": other,
                        "peer": peers[name],
                        "seconds": options.seconds,
                        "size": options.size,
                        "window": options.window,
                    }
                )
    except (brokers.BrokerError, BulkError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print(f"\n{table(rates, options.brokers)}")
    print(f"{'append and flush, no broker':<34}{1 / median(flushes):>12,.0f}")
    report = results.Report("transactions")
    if "leveret" in options.brokers:
        for way, least in ((PASS_BATCH, LEAST), (PASS_CONFIRMS, None)):
            ratio = median(factors(rates[PASS_TX, "leveret"], rates[way, "leveret"]))
            report.line(f"{TITLES[PASS_TX]} / {TITLES[way]}", ratio, "", least=least)
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
