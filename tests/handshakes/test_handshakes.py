"""Bad handshakes at a listener with TLS harm nobody else, and leave nothing; `run.py` has more of each."""

import random
import signal
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
from handshakes.attacks import (
    HEADER,
    Healthy,
    client_hello,
    come_and_go,
    log_in,
    mutated,
    open_files,
    reload_under_load,
    send,
    settle,
    stalled,
    words,
)
from processes.running import serving
from samples.certificates import Authority, Issued

STALLED = 300
HELLOS = 2000
RELOADS = 10
SEED = 20261123


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Issued:
    return Authority(tmp_path_factory.mktemp("ca")).server()


def test_stalled_handshakes_keep_nobody_out(tmp_path: Path, server: Issued) -> None:
    """A client that is connected goes on, a new one gets in, and the places of those that stall are limited."""
    limits = ("max_half_open=120", "max_half_open_per_address=40", "ssl_handshake_timeout=2000")
    with serving(tmp_path, *words(tmp_path, server, *limits)) as running:
        log_in(running.tls_address)
        before = open_files(running)
        with Healthy(running.tls_address) as healthy:
            with stalled(running.tls_address, STALLED, ("127.0.0.2", "127.0.0.3")):
                healthy.go_on(50)
                log_in(running.tls_address)
                # places, those that wait for one, and what the system has not given to the broker yet
                assert open_files(running) <= before + 1 + 2 * 120 + 8
                healthy.go_on(50)
            settle(running, before + 1)
            assert healthy.failure is None
        code, out, err = running.stopped_by(signal.SIGTERM)
    assert (0, "") == (code, err)
    assert "Traceback" not in out


def test_the_rate_of_handshakes_is_limited(tmp_path: Path, server: Issued) -> None:
    """Clients beyond the rate wait to be accepted, and all are served in the end; those without TLS do not wait."""
    rate, clients = 5, 20
    with serving(tmp_path, *words(tmp_path, server, f"ssl_handshake_rate={rate}")) as running:
        began = time.monotonic()
        waiting = threading.Thread(target=come_and_go, args=(running.tls_address, clients))
        waiting.start()
        with socket.create_connection(running.address, 60) as plain:
            plain.sendall(HEADER)
            assert b"\x00\x0a\x00\x0a" == plain.recv(4096)[7:11]
        waiting.join()
        taken = time.monotonic() - began
        code, out, err = running.stopped_by(signal.SIGTERM)

    assert (clients - rate - 1) / rate <= taken
    assert (0, "") == (code, err)
    assert "Traceback" not in out


def test_mutated_client_hellos_end_their_connections_only(tmp_path: Path, server: Issued) -> None:
    """Whatever a client sends first, its connection ends, nothing is left open, and nobody else notices."""
    chance = random.Random(SEED)
    hellos = [client_hello(), client_hello(ssl.TLSVersion.TLSv1_2)]
    with serving(tmp_path, *words(tmp_path, server, "ssl_handshake_timeout=2000")) as running:
        log_in(running.tls_address)
        before = open_files(running)
        with Healthy(running.tls_address) as healthy:
            for _ in range(HELLOS):
                send(running.tls_address, mutated(chance.choice(hellos), chance))
            healthy.go_on(10)
            settle(running, before + 1)
            assert healthy.failure is None
        log_in(running.tls_address)
        code, out, err = running.stopped_by(signal.SIGTERM)
    assert (0, "") == (code, err)
    assert "Traceback" not in out


def test_no_handshake_fails_while_certificates_are_replaced(tmp_path: Path, server: Issued) -> None:
    """Clients connect all the time, and each of them gets the old certificate or the new one."""
    names = [server, Authority(tmp_path, "other").server("new")]
    placed = tmp_path / "placed"
    placed.mkdir()
    current = Issued(placed, "current", server.certificate, server.key)
    with serving(tmp_path, *words(tmp_path, current)) as running:
        counts, failures = reload_under_load(running, current, names, RELOADS)
        code, out, _ = running.stopped_by(signal.SIGTERM)
    assert [] == failures
    assert min(counts) > 0
    assert (0, False) == (code, "Traceback" in out)


def test_a_closed_connection_leaves_no_garbage(tmp_path: Path, server: Issued) -> None:
    """The objects of TLS are freed when a connection closes: memory does not grow until the collector runs."""
    program = Path(__file__).with_name("garbage.py")
    with serving(tmp_path, *words(tmp_path, server), program=[str(program)]) as running:
        come_and_go(running.tls_address, 40)
        before = open_files(running)
        settle(running, before)
        code, out, _ = running.stopped_by(signal.SIGTERM)

    assert 0 == code
    (line,) = [each for each in out.splitlines() if each.startswith("garbage of TLS:")]
    assert "garbage of TLS: 0" == line
