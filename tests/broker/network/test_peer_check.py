"""Clients that have gone or read nothing: when a check ends their connections."""

import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from leveret.broker.network.socket_state import BLOCKED_CHECKS, WAITING_CHECKS, PeerCheck

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two ends of a connection: ours, and the client's."""
    ours, client = socket.socketpair()
    with ours, client:
        yield ours, client


class Driver:
    def __init__(self, *, reading: bool = False, blocked: bool = False, full: bool = False) -> None:
        outbox = SimpleNamespace(transport_full=full)
        self.connection = SimpleNamespace(blocked=blocked, reads=0, octets_out=0, outbox=outbox)
        self.resumed = 0
        self.reading = reading
        self.unsent = 0
        self.ends: list[str] = []

    def abort(self) -> None:
        self.ends.append("")

    def disconnect(self, reason: str) -> None:
        self.ends.append(reason)


@pytest.mark.parametrize(("blocked", "checks"), [(True, BLOCKED_CHECKS), (False, WAITING_CHECKS)])
def test_a_client_that_is_not_read_and_has_gone_is_noticed(pair, blocked, checks):
    """A client blocked by an alarm is cut soon after its EOF, one that waits for a commit or a job much later."""
    ours, client = pair
    client.shutdown(socket.SHUT_WR)
    driver, check = Driver(blocked=blocked), PeerCheck()
    check.run(driver, ours, -1, None)  # the first check since it was read
    for now in range(checks):
        check.run(driver, ours, now, None)

    assert not driver.ends
    check.run(driver, ours, checks, None)
    assert [""] == driver.ends


def test_a_client_that_is_still_there_may_wait(pair):
    """A connection that is not read is kept as long as its client is there."""
    driver, check = Driver(blocked=True), PeerCheck()
    for now in range(2 * WAITING_CHECKS):
        check.run(driver, pair[0], now, None)

    assert not driver.ends


@pytest.mark.parametrize("progress", ["reading", "resumed", "reads", "full"])
def test_connections_with_progress_are_not_asked(pair, progress):
    """The end of a client is left to the event loop while it is read, and until its last input is processed."""
    ours, client = pair
    client.close()
    driver, check = Driver(reading=progress == "reading", blocked=True, full=progress == "full"), PeerCheck()
    for now in range(2 * WAITING_CHECKS):
        driver.resumed += progress == "resumed"
        driver.connection.reads += progress == "reads"
        check.run(driver, ours, now, None)

    assert not driver.ends


def test_a_client_that_reads_nothing_is_disconnected(pair):
    """The send timeout runs from the last time that the client has taken bytes, or that nothing waited for it."""
    driver, check = Driver(reading=True), PeerCheck()
    sent = driver.connection
    check.run(driver, pair[0], 0.0, 10.0)
    sent.octets_out = driver.unsent = 1000
    check.run(driver, pair[0], 9.0, 10.0)
    assert not driver.ends
    driver.unsent = 600
    check.run(driver, pair[0], 12.0, 10.0)
    sent.octets_out, driver.unsent = 2000, 1600
    check.run(driver, pair[0], 22.0, 10.0)
    assert not driver.ends

    check.run(driver, pair[0], 23.0, None)
    assert not driver.ends
    check.run(driver, pair[0], 23.0, 10.0)
    assert ["the client has not read any of 1600 pending bytes for 11 s"] == driver.ends


def test_a_client_that_had_nothing_to_read_begins_anew(pair):
    """Nothing is held against a client that was being read and had taken everything since the check before."""
    driver, check = Driver(blocked=True), PeerCheck()
    sent = driver.connection
    for now in range(3):
        sent.octets_out = driver.unsent = 1000
        check.run(driver, pair[0], float(now), 10.0)
    check.was_fine = True
    sent.octets_out, driver.unsent = 2000, 2000
    pair[1].close()
    for now in range(100, 100 + BLOCKED_CHECKS):
        check.run(driver, pair[0], float(now), 10.0)

    assert not driver.ends


def test_input_is_noticed_without_reading_it(pair):
    """Bytes that arrive between two calls are input; bytes that were there before are not."""
    ours, client = pair
    check = PeerCheck()

    assert not check.has_input(ours)
    client.sendall(b"x")
    assert check.has_input(ours)
    assert not check.has_input(ours)


def test_a_full_receive_buffer_counts_as_input(pair):
    """A client whose bytes have no room in the buffer cannot show that it is there."""
    ours, client = pair
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    check = PeerCheck()
    client.sendall(bytes(20_000))

    assert check.has_input(ours)
    assert check.has_input(ours)
