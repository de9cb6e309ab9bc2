"""Clients that connect and do not log in, over real sockets."""

import signal
import socket

import pytest
from conformance.wire import Client
from processes.running import Running, serving

HEADER = b"AMQP\0\0\x09\x01"
PLACES = ("--set", "max_half_open=8", "--set", "handshake_timeout=60s")


def connect(running: Running, host: str = "127.0.0.1") -> socket.socket:
    """Open a connection from that address, which sends the protocol header and no more."""
    sock = socket.create_connection(running.address, timeout=10, source_address=(host, 0))
    sock.sendall(HEADER)
    return sock


def is_greeted(sock: socket.socket, seconds: float = 10.0) -> bool:
    """Return whether the broker answers in time."""
    sock.settimeout(seconds)
    try:
        return bool(sock.recv(1))
    except (TimeoutError, ConnectionResetError):
        return False


@pytest.mark.parametrize("files", [None, 160])
def test_one_address_cannot_keep_all_logins_out(tmp_path, sockets, files):
    """Connections from one address that do not log in leave room for those from another."""
    with serving(tmp_path, *PLACES, files=files) as running:
        sockets += [connect(running) for _ in range(14)]
        greeted = [is_greeted(sock, 1.0) for sock in sockets]
        other = connect(running, "127.0.0.2")
        sockets.append(other)

        assert [True] * 4 + [False] * 10 == greeted
        assert is_greeted(other)


def test_who_is_too_many_is_served_when_others_have_gone(tmp_path, sockets):
    """The next connection of an address is greeted when one before it has closed or logged in."""
    with serving(tmp_path, *PLACES) as running:
        first = [connect(running) for _ in range(3)]
        sockets += first
        assert [True] * 3 == [is_greeted(sock) for sock in first]
        client = Client(running.address, timeout=10.0)
        sockets.append(client.socket)
        late = [connect(running) for _ in range(2)]
        sockets += late
        assert [False] * 2 == [is_greeted(sock, 0.5) for sock in late]

        client.login()
        assert is_greeted(late[0])
        first[0].close()
        assert is_greeted(late[1])


def test_nobody_is_accepted_while_all_places_are_taken(tmp_path, sockets):
    """A connection waits in the backlog while all places are taken, and is served when one is free."""
    with serving(tmp_path, *PLACES) as running:
        for host in ("127.0.0.1", "127.0.0.2"):
            held = [connect(running, host) for _ in range(4)]
            sockets += held
            assert [True] * 4 == [is_greeted(sock) for sock in held]
        late = connect(running, "127.0.0.3")
        sockets.append(late)

        assert not is_greeted(late, 1.0)
        sockets[0].close()
        assert is_greeted(late)


def test_guessing_is_slow_and_quiet(tmp_path, sockets):
    """A refused login holds its place although the client leaves, logs few lines, and delays no other login."""
    name = "x" * 3000
    with serving(tmp_path, *PLACES, "--set", "auth.failure_delay=2s") as running:
        for _ in range(4):
            client = Client(running.address, timeout=10.0)
            client.begin()
            client.start_ok(response=f"\0{name}\0wrong".encode())
            client.receive(0, "connection.close")
            client.socket.close()
        late = connect(running)
        other = connect(running, "127.0.0.2")
        sockets += [late, other]

        assert is_greeted(other, 2.0)
        assert not is_greeted(late, 0.5)
        assert is_greeted(late)
        _, log, _ = running.stopped_by(signal.SIGTERM)
        refused = [line for line in log.splitlines() if "refused" in line]
        assert 1 <= len(refused) < 4
        assert max(map(len, refused)) < 400
        assert "... (3000 characters)" in refused[0]
