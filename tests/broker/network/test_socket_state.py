"""The kernel's state of a socket that is not read."""

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from leveret.broker.network import socket_state

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two ends of a TCP connection: ours, and the client's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
        with ours, client:
            yield ours, client


def fill(sock: socket.socket) -> None:
    """Send until the buffer is full."""
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while sock.send(b"x" * 65536):
            pass


def test_an_end_behind_unread_octets_is_seen(pair):
    """A client that has closed its socket has ended, although earlier octets are still unread."""
    ours, client = pair
    client.sendall(b"x" * 1000)

    assert not socket_state.has_ended(ours)
    client.close()
    assert socket_state.has_ended(ours)


def test_a_reset_is_seen(pair):
    """A client that has reset its socket has ended."""
    ours, client = pair
    socket_state.reset_when_closed(client)
    client.close()

    assert socket_state.has_ended(ours)


def test_unread_octets_are_counted(pair):
    """Unread octets are counted, and there is room for more until about half of the buffer is full."""
    ours, client = pair

    assert (0, True) == (socket_state.unread(ours), socket_state.takes_more(ours, 0))
    client.sendall(b"x" * 1000)
    assert 1000 == socket_state.unread(ours)
    fill(client)
    assert not socket_state.takes_more(ours, socket_state.unread(ours))


def test_what_nobody_acknowledges_is_counted(pair):
    """Octets in the client's kernel are acknowledged; those it has no room for are not."""
    ours, client = pair
    ours.sendall(b"x")
    deadline = time.monotonic() + 5
    while socket_state.unacknowledged(ours):
        assert time.monotonic() < deadline
    fill(ours)

    assert socket_state.unacknowledged(ours) > 0
    client.recv(1)


def test_a_reset_makes_the_next_write_fail(pair):
    """A write to a connection that was reset fails."""
    ours, client = pair
    socket_state.reset_when_closed(ours)
    ours.close()

    with pytest.raises(ConnectionError):
        client.sendall(b"x")
