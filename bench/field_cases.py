"""Measurements of `bench.field` that are made once a broker: requeues, expiry, a backlog, latency."""

import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from pamqp import commands

from bench import open_loop
from bench.bulk import Bulk, BulkError, frame_at
from bench.endpoint import Endpoint
from bench.open_loop import Load, percentile

REQUEUE_SECONDS, REQUEUED = 8.0, 1000
EXPIRING, TTL_SECONDS = 200_000, 2.0
BACKLOG = int(os.environ.get("FIELD_BACKLOG", "10_000_000"))
LATENCY_SECONDS = 15.0
PATIENCE = 300.0
_nack = struct.Struct(">BHIHHQBB").pack


class Case(NamedTuple):
    """A measurement: its name in the table, and the function that returns the text of its figures."""

    title: str
    measure: Callable[[Endpoint], str]


@contextmanager
def queue_of(place: Endpoint, **arguments: object) -> Iterator[tuple[Bulk, str]]:
    """Declare a durable queue with arguments for a block of code; yields a client and the name of the queue."""
    client = Bulk(place, patience=PATIENCE)
    name = f"field-{os.getpid()}-{time.time_ns()}"
    table = {key.replace("_", "-"): value for key, value in arguments.items()}
    client.call(commands.Queue.Declare(queue=name, durable=True, arguments=table))
    try:
        yield client, name
    finally:
        client.close()
        other = Bulk(place, patience=PATIENCE)
        other.call(commands.Queue.Delete(queue=name))
        other.close()


def requeue(place: Endpoint) -> str:
    """Return the messages a second that a consumer takes and requeues, `REQUEUED` with one nack."""
    with queue_of(place) as (filler, name):
        filler.fill(name, 0, 10 * REQUEUED, 100, persistent=True)
        client = Bulk(place)
        client.call(commands.Basic.Qos(prefetch_count=REQUEUED))
        client.call(commands.Basic.Consume(queue=name))
        taken, began = 0, time.monotonic()
        while time.monotonic() - began < REQUEUE_SECONDS:
            tag = _last_of(client, REQUEUED)
            client.socket.sendall(_nack(1, 1, 13, 60, 120, tag, 3, 0xCE))
            taken += REQUEUED
        took = time.monotonic() - began
        client.close()
    return f"{taken / took:,.0f}/s"


def _last_of(client: Bulk, count: int) -> int:
    """Read so many deliveries; return the tag of the last."""
    tag = 0
    while count:
        ends, at = [], 0
        while len(ends) < 3:
            while len(client.rest) < at + 8 or len(client.rest) < at + frame_at(client.rest, at)[2] + 8:
                client.read()
            if client.rest[at] == 8:
                client.rest = client.rest[:at] + client.rest[at + 8 :]
                continue
            at += frame_at(client.rest, at)[2] + 8
            ends.append(at)
        (tag,) = struct.unpack_from(">Q", client.rest, 12 + client.rest[11])
        client.rest = client.rest[at:]
        count -= 1
    return tag


def expiry(place: Endpoint) -> str:
    """Return the messages a second that leave a queue because their time is over, for another queue."""
    with queue_of(place) as (waiting, dead):
        arguments = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": dead}
        with queue_of(place, x_message_ttl=int(1000 * TTL_SECONDS), **arguments) as (client, name):
            began = time.monotonic()
            client.fill(name, 0, EXPIRING, 100, persistent=True)
            while waiting.ready_messages(dead) < EXPIRING:
                if time.monotonic() - began > PATIENCE:
                    message = f"{EXPIRING:,} messages did not expire in {PATIENCE:.0f} s"
                    raise BulkError(message)
                time.sleep(0.05)
            took = time.monotonic() - began - TTL_SECONDS
    return f"{EXPIRING / took:,.0f}/s"


def backlog(place: Endpoint) -> str:
    """Return the rates at which a backlog of persistent messages of 100 bytes is filled and drained, in order."""
    with queue_of(place) as (client, name):
        filled = client.fill(name, 0, BACKLOG, 100, persistent=True)
        reader = Bulk(place, patience=PATIENCE)
        drained = reader.drain(name, 0, BACKLOG, multiple=True)
        reader.close()
    return f"{filled:,.0f}/s; {drained:,.0f}/s"


def latency(rate: int) -> Callable[[Endpoint], str]:
    """Return a function that returns percentiles of the time from due to delivered at a rate, in an open loop."""

    def measured(place: Endpoint) -> str:
        found = open_loop.run(place, Load(float(rate), LATENCY_SECONDS))
        shown = ", ".join(f"{1000 * percentile(found.delivered, share):.2f}" for share in (50.0, 99.0, 99.9))
        return f"{shown} ms" + f", {found.missing:,} missing" * bool(found.missing)

    return measured


CASES = {
    "requeue": Case(f"requeued, {REQUEUED:,} with a nack", requeue),
    "expiry": Case(f"{EXPIRING:,} messages expire into another queue", expiry),
    "backlog": Case(f"{BACKLOG:,} of 100 bytes: filled; drained", backlog),
    "latency-1k": Case("delivery at 1,000/s: p50, p99, p99.9", latency(1000)),
    "latency-5k": Case("delivery at 5,000/s", latency(5000)),
    "latency-20k": Case("delivery at 20,000/s", latency(20_000)),
}
"""The cases, by name."""
