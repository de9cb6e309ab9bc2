"""Round trips of RPC by direct reply-to: a client, the broker and a responder, each in a process of its own."""

import multiprocessing
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event

from pamqp import commands, frame

from bench.bulk import DELIVER, Bulk, BulkError, frame_at
from bench.endpoint import Endpoint
from bench.open_loop import percentile

REPLY_TO = "amq.rabbitmq.reply-to"
BODY = b"x" * 12
START_LIMIT = 30.0
number_at = struct.Struct(">Q").unpack_from
pack_number = struct.Struct(">Q").pack


def deliveries(client: Bulk) -> Iterator[tuple[bytes, bytes]]:
    """Remove whole deliveries that have been read; yields the header's payload and the body of each."""
    octets, at, size = client.rest, 0, len(client.rest)
    while size - at >= 11:
        header = at + frame_at(octets, at)[2] + 8
        if octets[at + 7 : at + 11] != DELIVER:
            raise BulkError(f"not a delivery: {octets[at : at + 40]!r}")
        if size - header < 8:
            break
        body = header + frame_at(octets, header)[2] + 8
        if size - body < 8:
            break
        end = body + frame_at(octets, body)[2] + 8
        if size < end:
            break
        yield octets[header + 7 : body - 1], octets[body + 7 : end - 1]
        at = end
    client.rest = octets[at:]


def content(number: bytes, body: bytes, reply_to: bytes = b"") -> bytes:
    """Return the header and body frames of a message with a correlation-id of eight bytes, and perhaps a reply-to."""
    flags = 0x0600 if reply_to else 0x0400
    properties = b"\x08" + number + (bytes((len(reply_to),)) + reply_to if reply_to else b"")
    header = struct.pack(">HHQH", 60, 0, len(body), flags) + properties
    return b"".join(
        (
            struct.pack(">BHI", 2, 1, len(header)), header, b"\xce",
            struct.pack(">BHI", 3, 1, len(body)), body, b"\xce",
        )
    )  # fmt: skip


def respond(endpoint: Endpoint, queue: str, ready: Event) -> None:
    """Answer each request with its body, until the connection is closed."""
    client = Bulk(endpoint)
    client.call(commands.Queue.Declare(queue=queue, exclusive=True))
    client.call(commands.Basic.Consume(queue=queue, no_ack=True))
    ready.set()
    methods: dict[bytes, bytes] = {}
    while True:
        client.read()
        parts = []
        for header, body in deliveries(client):
            number, address = header[15:23], header[24:]  # correlation-id, reply-to
            method = methods.get(address)
            if method is None:
                method = methods[address] = frame.marshal(
                    commands.Basic.Publish(routing_key=address.decode()), 1
                )
            parts += method, content(number, body)
        client.socket.sendall(b"".join(parts))


@contextmanager
def responder(endpoint: Endpoint) -> Iterator[str]:
    """Run a responder in a process of its own; yields its queue.

    Raises:
        BulkError: it does not start.

    """
    queue = f"rpc-{os.getpid()}-{time.time_ns()}"
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=respond, args=(endpoint, queue, ready), daemon=True)
    process.start()
    try:
        if not ready.wait(START_LIMIT):
            message = "the responder does not start"
            raise BulkError(message)
        yield queue
    finally:
        process.kill()
        process.join()


def round_trips(endpoint: Endpoint, *, outstanding: int, seconds: float) -> tuple[float, list[float]]:
    """Call with so many requests under way; returns the calls a second, and the seconds of each, shortest first.

    Raises:
        BulkError: the broker refused something, or a reply did not come.

    """
    with responder(endpoint) as queue:
        client = Bulk(endpoint)
        try:
            client.call(commands.Basic.Consume(queue=REPLY_TO, no_ack=True))
            method = frame.marshal(commands.Basic.Publish(routing_key=queue), 1)
            times = _call(client, method, outstanding, seconds)
        finally:
            client.close()
    return len(times) / seconds, sorted(times)


def _call(client: Bulk, method: bytes, outstanding: int, seconds: float) -> list[float]:
    clock, reply_to = time.perf_counter, REPLY_TO.encode()
    times: list[float] = []
    sent: list[float] = []

    def request(count: int) -> bytes:
        now, first = clock(), len(sent)
        sent.extend([now] * count)
        return b"".join(
            [method + content(pack_number(n), BODY, reply_to) for n in range(first, first + count)]
        )

    client.socket.sendall(request(outstanding))
    began = clock()
    while (now := clock()) - began < seconds:
        client.read()
        now = clock()
        answered = [now - sent[number_at(header, 15)[0]] for header, _ in deliveries(client)]
        if answered:
            times += answered
            client.socket.sendall(request(len(answered)))
    return times


def quick(endpoint: Endpoint, seconds: float) -> dict[str, float]:
    """Return the figures of a round: calls a second with 50 outstanding, and seconds of calls one at a time."""
    rate, _ = round_trips(endpoint, outstanding=50, seconds=seconds)
    _, alone = round_trips(endpoint, outstanding=1, seconds=seconds)
    return {
        "rate": rate,
        "p50": percentile(alone, 50.0),
        "p99": percentile(alone, 99.0),
    }
