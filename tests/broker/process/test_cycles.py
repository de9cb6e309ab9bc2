"""Closed connections leave no reference cycles: the garbage collector runs seldom where there are many messages."""

import json
import signal
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from conformance.codec import encode_header, encode_method, frame
from conformance.wire import Channel, Client, ClosedError
from processes.counted import ANSWER, PROGRAM
from processes.running import Running, serving

OURS = ("broker.", "confirm.", "exchanges.", "storage.")
SECONDS = 20.0
CLOSE = {"reply_code": 200, "reply_text": "", "class_id": 0, "method_id": 0}


def look(running: Running, home: Path) -> tuple[Counter[str], int]:
    """Return our objects found by a collection, by type, and the number of connections."""
    answer_file = home / ANSWER
    answer_file.unlink(missing_ok=True)
    running.process.send_signal(signal.SIGUSR2)
    deadline = time.monotonic() + SECONDS
    while not answer_file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    answer = json.loads(answer_file.read_text())
    found = {name: count for name, count in answer["cycles"].items() if name.startswith(OURS)}
    return Counter(found), answer["connections"]


def is_closed(channel: Channel) -> None:
    """Wait until the channel or its connection is closed for an error."""
    with pytest.raises(ClosedError):
        channel.client.receive(None, "none")


def publishes(channel: Channel) -> None:
    """Publish to queues, without a route, with confirms, to a topic, and in a transaction."""
    queue = channel.queue(exclusive=True)
    channel.exchange("t", "topic")
    channel.call("queue.bind", queue=queue, exchange="t", routing_key="a.#.b")
    channel.call("confirm.select")
    for exchange, key, headers in (("", queue, {}), ("t", "a.c.b", {"CC": ["n"]}), ("t", "z", {})):
        channel.publish(exchange, key, b"x", headers=headers)
        channel.receive("basic.ack")
    channel.publish("", "nobody", b"x", mandatory=True)
    channel.receive("basic.return")
    other = channel.client.channel(2)
    other.call("tx.select")
    other.publish("", queue, b"x", delivery_mode=2)
    other.call("tx.commit")
    other.publish("", queue, b"x")


def consumes(channel: Channel) -> None:
    """Consume from its own and other queues; settle some deliveries."""
    for name, how in (("exclusive", {"exclusive": True}), ("durable", {"durable": True})):
        channel.queue(name, **how)
        for _ in range(4):
            channel.publish("", name, b"x", delivery_mode=2)
        channel.consume(name, name)
        for _ in range(4):
            channel.receive("basic.deliver")
    channel.send("basic.ack", delivery_tag=1)
    channel.send("basic.nack", delivery_tag=3, multiple=True, requeue=True)
    channel.call("basic.recover", requeue=True)
    channel.call("basic.cancel", consumer_tag="exclusive")
    channel.call("basic.get", queue="exclusive")
    channel.consume("amq.rabbitmq.reply-to", "replies", no_ack=True)
    channel.publish("", "durable", b"x", reply_to="amq.rabbitmq.reply-to")


def waits(channel: Channel) -> None:
    """Wait for replies about durable objects, and for the rest of a message."""
    for number in range(20):
        channel.send("queue.declare", queue=f"w{number}", durable=True)
    for number in range(20):
        channel.send("queue.delete", queue=f"w{number}")
    other = channel.client.channel(2)
    begun = encode_method("basic.publish", exchange="", routing_key="q")
    other.client.raw(frame(1, 2, begun) + frame(2, 2, encode_header(10_000)) + frame(3, 2, b"x" * 30))


def reads_nothing(channel: Channel) -> None:
    queue = channel.queue(exclusive=True)
    for _ in range(60):
        channel.publish("", queue, b"x" * 100_000)
    channel.send("basic.consume", queue=queue)
    channel.send("channel.flow", active=True)
    channel.client.read_frame()


def publishes_to_missing(channel: Channel) -> None:
    """Publish twice to an unknown exchange, so that its cached route is used again."""
    for _ in range(2):
        channel.publish("missing", "key", b"x")
    is_closed(channel)
    channel.send("channel.close-ok")
    channel.call("channel.open")
    channel.publish("missing", "key", b"x")
    is_closed(channel)


def publishes_to_missing_in_transaction(channel: Channel) -> None:
    """Publish to an unknown exchange in a transaction, whose settlements and publishes are undone."""
    channel.queue("t1")
    channel.call("tx.select")
    channel.publish("", "t1", b"x")
    channel.publish("missing", "key", b"x")
    is_closed(channel)


def consumes_from_missing(channel: Channel) -> None:
    channel.send("basic.consume", queue="missing")
    is_closed(channel)


def errs(channel: Channel) -> None:
    """Cause an error that closes the connection."""
    channel.send("channel.open")
    is_closed(channel)


def breaks_frames(channel: Channel) -> None:
    """Send a broken frame, which closes the connection, and its socket later."""
    channel.client.raw(b"\1\0\1\0\0\0\4xxxxx")
    is_closed(channel)


def loses_queue(channel: Channel) -> None:
    """Delete the queue of consumers, which are notified."""
    channel.queue("lost")
    channel.consume("lost")
    channel.client.channel(2).call("queue.delete", queue="lost")
    channel.receive("basic.cancel")


def is_left(channel: Channel) -> None:
    """Close the socket without `connection.close`."""
    channel.client.socket.close()


def is_reset(channel: Channel) -> None:
    """Reset the socket without `connection.close`."""
    channel.client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    channel.client.socket.close()


def is_closed_well(channel: Channel) -> None:
    """Close the connection cleanly, unless it is closed already."""
    channel.client.send(0, "connection.close", **CLOSE)
    channel.client.socket.shutdown(socket.SHUT_WR)
    with suppress(ConnectionError):
        while channel.client.socket.recv(1 << 20):
            pass
    channel.client.socket.close()


WAYS: tuple[Callable[[Channel], None], ...] = (
    publishes, consumes, waits, reads_nothing, publishes_to_missing, publishes_to_missing_in_transaction,
    consumes_from_missing, errs, breaks_frames, loses_queue,
)  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_connections_end_without_cycles(tmp_path, way):
    """A collection finds no objects of closed connections, whatever they did and however they ended."""
    with serving(tmp_path, "--set", "log.console.level=info", program=PROGRAM, is_judged=False) as running:
        look(running, tmp_path)
        for end in (is_left, is_reset, is_closed_well):
            channel = Client(running.address, 20.0).login().channel()
            way(channel)
            end(channel)
        deadline = time.monotonic() + SECONDS
        found, connections = look(running, tmp_path)
        while connections:
            assert time.monotonic() < deadline
            more, connections = look(running, tmp_path)
            found += more
        assert not found
