"""The end of a socket after its last bytes: when it is closed, and when it is reset."""

import pytest

from leveret.broker.network import socket_state
from leveret.broker.network.socket_driver import (
    ABORT_SECONDS,
    LINGER_SECONDS,
    TAKEN_SECONDS,
    LingeringClose,
)


class Timer:
    def __init__(self, seconds, callback):
        self.seconds = seconds
        self.callback = callback
        self.cancelled = False

    def cancel(self):
        self.cancelled = True


class Host:
    """A server whose clock a test moves."""

    def __init__(self):
        self.time = 100.0
        self.timers: list[Timer] = []

    def now(self):
        return self.time

    def call_later(self, seconds, callback):
        self.timers.append(Timer(seconds, callback))
        return self.timers[-1]


class Transport:
    """A transport with so many bytes to send."""

    def __init__(self, unsent=0):
        self.unsent = unsent
        self.ends: list[str] = []

    def is_closing(self):
        return bool(self.ends)

    def get_write_buffer_size(self):
        return self.unsent

    def close(self):
        self.ends.append("close")

    def abort(self):
        self.ends.append("abort")


@pytest.fixture
def unacknowledged(monkeypatch):
    """The number of bytes that the client's system has not acknowledged."""
    number = [0]
    monkeypatch.setattr(socket_state, "unacknowledged", lambda _: number[0])
    return number


def closing(linger, transport):
    host = Host()
    return host, LingeringClose(host, linger, transport, None, lambda: transport.ends.append("reset"))


def seconds_until_reset(host, transport):
    """Run the checks until the socket is reset, and return the time that it took."""
    while "reset" not in transport.ends:
        timer = host.timers[-1]
        assert TAKEN_SECONDS == timer.seconds
        host.time += timer.seconds
        timer.callback()
    return host.time - 100.0


def test_without_linger_a_socket_is_closed_without_a_reset():
    """A transport is closed when it has sent everything, and aborted if its peer takes nothing for too long."""
    transport = Transport(unsent=10)
    host, _ = closing(None, transport)

    assert ["close"] == transport.ends
    assert [ABORT_SECONDS] == [timer.seconds for timer in host.timers]
    host.timers[0].callback()
    assert ["close", "abort"] == transport.ends


def test_a_socket_is_reset_when_everything_is_acknowledged(unacknowledged):
    """A reset waits for the transport to send, and for the client's system to acknowledge."""
    transport = Transport(unsent=10)
    host, _ = closing(0.0, transport)
    host.timers[-1].callback()
    transport.unsent, unacknowledged[0] = 0, 10
    host.timers[-1].callback()
    assert not transport.ends

    unacknowledged[0] = 0
    host.timers[-1].callback()
    assert ["reset"] == transport.ends


@pytest.mark.parametrize(
    ("linger", "unsent", "waits"), [(0.0, 0, LINGER_SECONDS), (1.0, 0, 1.0), (1.0, 10, ABORT_SECONDS)]
)
def test_a_peer_that_takes_nothing_is_not_waited_for_without_end(unacknowledged, linger, unsent, waits):
    """A reset comes in the end, even if bytes are unsent or unacknowledged."""
    unacknowledged[0] = 10
    transport = Transport(unsent)
    host, _ = closing(linger, transport)

    assert waits == pytest.approx(seconds_until_reset(host, transport), abs=2 * TAKEN_SECONDS)


def test_a_socket_that_has_closed_is_left_alone(unacknowledged):
    """The client may close the socket first: the timer is cancelled, and a check that comes too late does nothing."""
    unacknowledged[0] = 10
    transport = Transport()
    host, close = closing(0.0, transport)
    close.cancel()
    transport.abort()
    host.timers[-1].callback()

    assert host.timers[-1].cancelled
    assert (["abort"], 1) == (transport.ends, len(host.timers))
