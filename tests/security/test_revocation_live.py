"""SEC-17, over the wire: an administrator takes rights away from clients that are connected (docs/security.md)."""

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from churn.governed import ADMIN_SOCKET, PROGRAM
from conformance.wire import Channel, Client, ClosedError
from processes.running import Running, serving

from leveret.broker.http.running_brokers import in_directory

SOON = 10.0
Order = Callable[..., Any]


@pytest.fixture
def governed(tmp_path) -> Iterator[tuple[Running, Order]]:
    """A broker with a user `bob`, and what carries out an operation of its service layer."""
    flags = ("--set", "default_users.bob.password=bob")
    with serving(tmp_path, *flags, program=PROGRAM) as running, socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(SOON)
        in_directory(tmp_path, ADMIN_SOCKET, sock.connect)
        lines = sock.makefile("r")

        def order(area: str, operation: str, *arguments: Any, **options: Any) -> Any:
            sock.sendall(json.dumps([area, operation, arguments, options]).encode() + b"\n")
            answer = json.loads(lines.readline())
            assert "error" not in answer, answer
            return answer["done"]

        yield running, order
        lines.close()


def bob(running: Running) -> Channel:
    """A channel of a new connection of `bob`."""
    return Client(running.address, timeout=SOON).login("bob", "bob").channel()


def test_sec_17_a_live_consumer_is_cancelled(governed):
    """A consumer hears of the right to read that it has lost without having asked, and gets no further message."""
    running, order = governed
    consumer, publisher = bob(running), Client(running.address, timeout=SOON).login().channel()
    name = publisher.queue("q")
    consumer.consume(name)
    order("users", "set_permissions", "/", "bob", configure="", write=".*", read="")

    assert "ct" == consumer.receive("basic.cancel").consumer_tag
    assert ["basic.ack"] == publisher.put(name, b"secret")
    assert consumer.quiet("basic.deliver")
    assert 1 == publisher.ready(name, 1)


def test_sec_17_live_connections_end_with_their_user(governed):
    """All connections of a user are closed when it is deleted, and it cannot come back."""
    running, order = governed
    channels = [bob(running) for _ in range(20)]
    order("users", "delete", "bob")
    ends = []
    for channel in channels:
        with pytest.raises(ClosedError) as caught:
            channel.receive("basic.deliver")
        assert caught.value.close is not None
        ends.append((caught.value.level, caught.value.close.fields["reply_code"]))

    assert [("connection", 320)] * 20 == ends
    with pytest.raises(ClosedError):
        bob(running)
