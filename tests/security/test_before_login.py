"""SEC-05, SEC-27 and SEC-28: what a crowd of strangers, and those who guess, can do (docs/security.md)."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.codec import PROTOCOL_HEADER
from conformance.wire import Client, ClosedError, QuietError
from processes.running import Running, serving

SOON = 10.0
HALF_OPEN = 8


def from_host(running: Running, host: str) -> Client:
    """A socket to the broker from an address of this machine's loopback network."""
    return Client(running.address, timeout=SOON, source=(host, 0))


@pytest.fixture
def narrow(tmp_path) -> Iterator[Running]:
    """A broker with little room for those who have not logged in, and much time."""
    flags = (f"max_half_open={HALF_OPEN}", "handshake_timeout=60s")
    with serving(tmp_path, *(word for flag in flags for word in ("--set", flag))) as running:
        yield running


def answered(client: Client, seconds: float) -> bool:
    """Return whether the broker answers the protocol header within some seconds; fails if it closes the socket."""
    try:
        client.read_frame(seconds)
    except QuietError:
        return False
    return True


def strangers(running: Running, count: int) -> list[Client]:
    """Sockets of one address that begin to log in and do not go on."""
    made = [from_host(running, "127.0.0.1") for _ in range(count)]
    for stranger in made:
        with contextlib.suppress(ConnectionError):
            stranger.raw(PROTOCOL_HEADER)
    return made


def test_sec_05_a_flood_from_one_address_keeps_no_other_out(narrow):
    """While one address has many more sockets than `max_half_open` that do not log in, another logs in at once."""
    strangers(narrow, 5 * HALF_OPEN)
    other = from_host(narrow, "127.0.0.2").login()

    assert "q" == other.channel().queue("q")


def test_sec_05_who_is_too_many_waits(narrow):
    """An address has half of the places; the next of it are not refused, but wait until others have gone."""
    crowd = strangers(narrow, HALF_OPEN)
    waiting = [stranger for stranger in crowd if not answered(stranger, 0.5)]
    assert HALF_OPEN // 2 == len(waiting)
    for stranger in crowd:
        if stranger not in waiting:
            stranger.close_socket()

    assert [True] * len(waiting) == [answered(stranger, SOON) for stranger in waiting]


def test_sec_05_who_has_logged_in_does_not_count(narrow):
    """Connections that are open take no place of those that are not."""
    clients = [from_host(narrow, "127.0.0.1").login() for _ in range(3 * HALF_OPEN)]

    assert {"connection.tune"} == {"connection.tune" for client in clients if client.tune}
    for client in clients:
        client.close_socket()


# -- guessing -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def guessed(tmp_path) -> Iterator[tuple[Running, Path]]:
    """A broker that is short with those who guess, and its log."""
    log = tmp_path / "a.log"
    flags = ("auth.failure_delay=50ms", f"log.file={log}", "default_users.bob.password=bob")
    with serving(tmp_path, *(word for flag in flags for word in ("--set", flag))) as running:
        yield running, log


def refusal(running: Running, user: str, host: str = "127.0.0.1") -> float:
    """Seconds that a wrong password takes, until the socket is closed."""
    client = from_host(running, host)
    began = time.monotonic()
    client.begin()
    client.start_ok(user, "wrong", capabilities={})
    with contextlib.suppress(ClosedError):
        client.read_rest(60.0)
    client.close_socket()
    return time.monotonic() - began


def test_sec_27_failures_delay_the_next_one_more_and_more(guessed):
    """The more often an address has failed for a name, the longer its next attempt takes."""
    running, _ = guessed
    first, *others = [refusal(running, "guest") for _ in range(6)]

    assert others[-1] > 3 * first


def test_sec_27_a_right_password_is_not_delayed_by_others(guessed):
    """Failures of another address for the same name, or of the same address for another name, delay no login."""
    running, _ = guessed
    for _ in range(6):
        refusal(running, "guest", "127.0.0.2")
        refusal(running, "bob")
    slow = refusal(running, "bob")
    began = time.monotonic()
    client = from_host(running, "127.0.0.1").login()
    took = time.monotonic() - began
    client.close_socket()

    assert took < slow


def test_sec_28_refusals_do_not_fill_the_log(guessed):
    """Names are cut in the log, and many refusals of one address in a second are one line."""
    running, log = guessed
    before = log.stat().st_size
    name = "\x01" * 7000
    crowd = [from_host(running, "127.0.0.1") for _ in range(60)]
    began = time.monotonic()
    for client in crowd:
        client.begin()
        client.start_ok(name, "wrong", capabilities={})
    for client in crowd:
        client.read_rest(60.0)
        client.close_socket()
    took = time.monotonic() - began
    lines = [line for line in log.read_text()[before:].splitlines() if "refused" in line]

    assert 1 <= len(lines) <= took + 2
    assert max(map(len, lines)) <= 1000
