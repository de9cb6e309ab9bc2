"""The PROXY protocol: headers in octets, and connections through a proxy over real sockets."""

import contextlib
import socket
import ssl
import struct
from collections.abc import Iterator

import pytest
from conformance.wire import Client
from hypothesis import given, strategies as st
from processes.running import Running, serving as served
from samples.certificates import Authority, client_context

from leveret.broker.network.proxy_protocol import LONGEST, Header, MalformedHeaderError, parse

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
HEADER = b"AMQP\0\0\x09\x01"
CLIENT, SERVER = ("192.0.2.1", 4711), ("198.51.100.7", 5672)


def binary(command: int, family: int, rest: bytes) -> bytes:
    """Return a header of version 2."""
    return SIGNATURE + bytes((0x20 | command, family)) + struct.pack("!H", len(rest)) + rest


def tcp4(peer: tuple[str, int] = CLIENT, more: bytes = b"") -> bytes:
    """Return a header of version 2 with addresses."""
    addresses = (
        socket.inet_aton(peer[0]) + socket.inet_aton(SERVER[0]) + struct.pack("!HH", peer[1], SERVER[1])
    )
    return binary(1, 0x11, addresses + more)


V6 = socket.inet_pton(socket.AF_INET6, "2001:db8::1") * 2 + struct.pack("!HH", 1, 2)


@pytest.mark.parametrize(
    ("octets", "peer", "local"),
    [
        (b"PROXY TCP4 192.0.2.1 198.51.100.7 4711 5672\r\n", CLIENT, SERVER),
        (b"PROXY TCP6 2001:db8::1 ::1 1 2\r\n", ("2001:db8::1", 1), ("::1", 2)),
        (b"PROXY UNKNOWN\r\n", None, None),
        (b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", None, None),
        (tcp4(), CLIENT, SERVER),
        (tcp4(more=b"\x03\x00\x04abcd"), CLIENT, SERVER),
        (binary(1, 0x21, V6), ("2001:db8::1", 1), ("2001:db8::1", 2)),
        (binary(0, 0x00, b""), None, None),
        (binary(0, 0x11, b"x" * 12), None, None),
        (binary(1, 0x31, b"x" * 216), None, None),
    ],
)
def test_a_header_is_read(octets, peer, local):
    """In both versions, also piece by piece; what follows is not its own."""
    assert Header(len(octets), peer, local) == parse(octets)
    assert Header(len(octets), peer, local) == parse(octets + HEADER)
    assert [None] * len(octets) == [parse(octets[:end]) for end in range(len(octets))]


@pytest.mark.parametrize(
    "octets",
    [
        HEADER,
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01",
        b"PROXY TCP4 192.0.2.1 198.51.100.7 4711\r\n",
        b"PROXY TCP4 192.0.2.256 198.51.100.7 1 2\r\n",
        b"PROXY TCP4 ::1 ::1 1 2\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.7 65536 2\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.7 -1 2\r\n",
        b"PROXY UDP4 192.0.2.1 198.51.100.7 1 2\r\n",
        b"PROXY TCP4  192.0.2.1 198.51.100.7 1 2\r\n",
        b"PROXY " + b"x" * 101,
        SIGNATURE + b"\x11\x11\x00\x0c",
        SIGNATURE + b"\x22\x11\x00\x0c",
        SIGNATURE + b"\x21\x11\x00\x0b" + b"x" * 11,
        SIGNATURE + b"\x21\x11" + struct.pack("!H", LONGEST) + b"x",
    ],
)
def test_anything_else_is_refused(octets):
    """As soon as it cannot become a header any more, and before it takes memory."""
    with pytest.raises(MalformedHeaderError):
        parse(octets)


@given(
    st.binary(max_size=200),
    st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE, SIGNATURE + b"\x21\x11"]),
)
def test_any_octets_are_read_or_refused(octets, start):
    """There is no other error, and a header never ends beyond what was read."""
    try:
        header = parse(start + octets)
    except MalformedHeaderError:
        return
    assert header is None or header.size <= len(start + octets)


@contextlib.contextmanager
def serving(tmp_path, *settings: str) -> Iterator[Running]:
    words = [word for setting in ("proxy_protocol=true", *settings) for word in ("--set", setting)]
    with served(tmp_path, *words) as broker:
        yield broker


def reply(address: tuple[str, int], octets: bytes, source: str = "127.0.0.1") -> bytes:
    """Return the beginning of what the broker answers a proxy."""
    with socket.create_connection(address, timeout=30, source_address=(source, 0)) as sock:
        sock.sendall(octets)
        try:
            return sock.recv(8)
        except ConnectionResetError:
            return b""


def through_proxy(running: Running, header: bytes) -> Client:
    client = Client(running.address, timeout=30.0)
    client.raw(header)
    return client


def test_a_client_has_the_address_that_the_proxy_tells(tmp_path):
    """In the log and for the rule of local users; one of the proxy's own connections has its own."""
    with serving(tmp_path, "auth.failure_delay=0", "default_users.ann.password=x") as running:
        client = through_proxy(running, b"PROXY TCP4 192.0.2.1 198.51.100.7 4711 5672\r\n")
        with contextlib.closing(client.socket):
            client.login(user="ann", password="x")
            line = running.wait_for("authenticated")
            assert "connection 192.0.2.1:4711 -> 198.51.100.7:5672: user 'ann'" in line
        remote = through_proxy(running, tcp4())
        with contextlib.closing(remote.socket):
            remote.begin()
            remote.start_ok()
            assert "user 'guest' can only connect via localhost" in running.wait_for("login refused")
        for header in (b"PROXY UNKNOWN\r\n", tcp4(("127.0.0.9", 1)), binary(0, 0, b"")):
            local = through_proxy(running, header)
            with contextlib.closing(local.socket):
                local.login()
                assert "user 'guest' authenticated" in running.wait_for("authenticated")


def test_a_bad_or_slow_header_ends_the_connection_with_one_line(tmp_path):
    """Nothing is answered, and others are served meanwhile."""
    good = b"PROXY TCP4 192.0.2.1 198.51.100.7 4711 5672\r\n" + HEADER
    with serving(tmp_path, "handshake_timeout=500ms", "max_half_open=8") as running:
        for source, octets, reason in (
            ("127.0.0.2", HEADER, "there is no PROXY header; the peer must be a proxy"),
            ("127.0.0.3", b"PROXY TCP4 nonsense\r\n", "the PROXY header is malformed"),
            ("127.0.0.4", b"PROXY TCP4 192.", "no complete PROXY header came within 0.5 s"),
            ("127.0.0.5", b"", "no complete PROXY header came within 0.5 s"),
        ):
            assert b"" == reply(running.address, octets, source)
            assert reason in running.wait_for(f"closing connection {source}")
        stalled = [socket.create_connection(running.address, timeout=30) for _ in range(12)]
        try:
            assert reply(running.address, good)
        finally:
            for sock in stalled:
                sock.close()
        assert reply(running.address, good)


def test_the_header_comes_before_tls(tmp_path):
    """In pieces too."""
    ca = Authority(tmp_path)
    server = ca.server()
    settings = ("listeners.ssl.1=127.0.0.1:0", f"ssl_options.certfile={server.certfile}",
                f"ssl_options.keyfile={server.keyfile}")  # fmt: skip
    with serving(tmp_path, *settings) as running:
        raw = socket.create_connection(running.tls_address, timeout=30)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for octet in tcp4():
            raw.sendall(bytes((octet,)))
        with (
            contextlib.closing(raw),
            client_context(ca).wrap_socket(raw, server_hostname="localhost") as client,
        ):
            client.sendall(HEADER)
            assert client.recv(1)
        with pytest.raises((ssl.SSLError, OSError)):
            client_context(ca).wrap_socket(
                socket.create_connection(running.tls_address), server_hostname="localhost"
            )
        assert "there is no PROXY header" in running.wait_for("closing connection")
