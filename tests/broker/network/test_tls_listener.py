"""AMQP, the API and metrics over TLS, with real sockets."""

import base64
import contextlib
import http.client
import json
import re
import signal
import socket
import ssl
import struct
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pika
import pytest
from click.testing import CliRunner
from processes.running import Running, free_port, serving as served
from samples.certificates import Authority, Issued, client_context

from leveret.broker.cli.ctl.main import ctl as leveret_ctl

HEADER = b"AMQP\0\0\x09\x01"


@pytest.fixture(scope="module")
def server(ca) -> Issued:
    return ca.server()


@contextlib.contextmanager
def serving(tmp_path, server: Issued, settings: Mapping[str, object] | None = None) -> Iterator[Running]:
    """A broker with a TLS listener."""
    every = {
        "listeners.ssl.default": "127.0.0.1:0", "ssl_options.certfile": server.certfile,
        "ssl_options.keyfile": server.keyfile, **(settings or {}),
    }  # fmt: skip
    with served(tmp_path, settings=every) as broker:
        yield broker


def verified(ca: Authority, **more: object) -> dict[str, object]:
    """Settings that make clients present certificates."""
    return {"ssl_options.verify": "verify_peer", "ssl_options.cacertfile": ca.file, **more}


def connected(running: Running, context: ssl.SSLContext) -> pika.BlockingConnection:
    host, port = running.tls_address
    options = pika.SSLOptions(context, "localhost")
    return pika.BlockingConnection(pika.ConnectionParameters(host, port, ssl_options=options))


def refused_line(running: Running, source: str, octets: bytes, address: tuple[str, int]) -> str:
    """Return the line that is logged about a client from that address which sends these bytes."""
    with socket.create_connection(address, timeout=10, source_address=(source, 0)) as sock:
        if octets:
            sock.sendall(octets)
        return running.wait_for("closing connection")


def test_messages_pass_over_tls(tmp_path, ca, server):
    """Of any size, both ways; the log and the listing say how the client is connected."""
    body = bytes(range(256)) * 4096
    alice = ca.issue("alice")
    api = free_port()
    with serving(
        tmp_path, server, verified(ca, **{"management.enabled": "true", "management.tcp.port": api})
    ) as running:
        with connected(running, client_context(ca, alice)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("q")
            channel.basic_publish("", "q", body)
            channel.basic_publish("", "q", b"")

            assert [body, b""] == [channel.basic_get("q", auto_ack=True)[2] for _ in range(2)]
            line = running.wait_for("authenticated")
            assert "(TLS 1.3, TLS_AES_256_GCM_SHA384, certificate CN=alice)" in line
            (row,) = listed(api, "/api/connections?columns=ssl,ssl_protocol,ssl_key_exchange,ssl_cipher,ssl_hash,"
                                 "peer_cert_subject,peer_cert_issuer,peer_cert_validity")  # fmt: skip
        assert re.fullmatch(r"20\d\d-\S+Z - 20\d\d-\S+Z", row.pop("peer_cert_validity"))
        assert row == {
            "ssl": True, "ssl_protocol": "tlsv1.3", "ssl_key_exchange": "any", "ssl_cipher": "aes_256_gcm",
            "ssl_hash": "aead", "peer_cert_subject": "CN=alice", "peer_cert_issuer": "CN=ca",
        }  # fmt: skip
        names = {each["protocol"] for each in listed(api, "/api/overview")["listeners"]}
        assert {"amqp", "amqp/ssl", "http"} == names
        assert 0 == running.stopped_by(signal.SIGTERM)[0]


def listed(port: int, path: str, context: ssl.SSLContext | None = None) -> Any:
    """Return what the API answers guest, over TLS if there is a context."""
    response = asked(
        port, path, context, {"authorization": f"Basic {base64.b64encode(b'guest:guest').decode()}"}
    )
    return json.loads(response[1])


def asked(
    port: int,
    path: str,
    context: ssl.SSLContext | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
    body: str = "",
) -> tuple[http.client.HTTPResponse, bytes]:
    if context is None:
        connection = http.client.HTTPConnection("localhost", port, timeout=30)
    else:
        connection = http.client.HTTPSConnection("localhost", port, timeout=30, context=context)
    with contextlib.closing(connection):
        connection.request("POST" if body else "GET", path, body or None, dict(headers))
        response = connection.getresponse()
        return response, response.read()


def test_who_speaks_something_else_gets_one_clear_line(tmp_path, ca, server):
    """Without TLS on the port of TLS, with TLS on the other, silent, or with a certificate of another CA."""
    settings = verified(ca, **{"ssl_handshake_timeout": "300ms", "ssl_options.fail_if_no_peer_cert": "true"})
    with serving(tmp_path, server, settings) as running:
        without = "a client without TLS on a TLS port"
        secure, plain = running.tls_address, running.address
        assert without in refused_line(running, "127.0.0.2", HEADER, secure)
        assert without in refused_line(running, "127.0.0.3", b"GET / HTTP/1.1\r\n\r\n", secure)
        hello = b"\x16\x03\x01" + bytes(40)
        assert "a client with TLS on a port without" in refused_line(running, "127.0.0.4", hello, plain)
        assert "the TLS handshake took longer than 0.3 s" in refused_line(running, "127.0.0.5", b"", secure)
        assert "the TLS handshake took longer than 0.3 s" in refused_line(
            running, "127.0.0.6", hello[:3], secure
        )
        mallory = Authority(tmp_path, "other").issue("mallory")
        for source, identity, reason in (
            ("127.0.0.7", None, "presented no certificate"),
            ("127.0.0.8", mallory, "the client's certificate is not accepted"),
        ):
            raw = socket.create_connection(secure, timeout=30, source_address=(source, 0))
            context = client_context(ca, identity)
            with (
                contextlib.closing(raw),
                contextlib.suppress(OSError),
                context.wrap_socket(raw, server_hostname="localhost") as client,
            ):
                client.recv(1)
            assert reason in running.wait_for("closing connection")

        with connected(running, client_context(ca, ca.issue("alice"))) as connection:
            assert connection.is_open


def test_stalled_handshakes_keep_nobody_out(tmp_path, ca, server):
    """One address with clients that never finish leaves room for another's, and its own come in when they end."""
    settings = {"max_half_open": 8, "ssl_handshake_timeout": "1s"}
    with serving(tmp_path, server, settings) as running, contextlib.ExitStack() as closing:
        for _ in range(6):
            sock = socket.create_connection(running.tls_address, timeout=10, source_address=("127.0.0.2", 0))
            closing.enter_context(sock)
            sock.sendall(b"\x16\x03\x01\x02")

        with connected(running, client_context(ca)) as connection:
            assert connection.is_open
        late = socket.create_connection(running.tls_address, timeout=30, source_address=("127.0.0.2", 0))
        with closing.enter_context(
            client_context(ca).wrap_socket(late, server_hostname="localhost")
        ) as client:
            client.sendall(HEADER)
            assert client.recv(1)


def test_clients_that_break_off_leave_nothing_behind(tmp_path, ca, server):
    """Before, in and after the handshake: their places are free again."""
    reset = struct.pack("ii", 1, 0)
    with serving(tmp_path, server, {"max_half_open": 8}) as running:
        for octets in (b"", b"\x16\x03", b"\x16\x03\x01\x00\x05xxxxx", HEADER, bytes(100)) * 8:
            with socket.create_connection(running.tls_address, timeout=10) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                sock.sendall(octets)
        for _ in range(10):
            raw = socket.create_connection(running.tls_address, timeout=30)
            with client_context(ca).wrap_socket(raw, server_hostname="localhost") as client:
                client.sendall(HEADER)
                assert client.recv(1)
        with connected(running, client_context(ca)) as connection:
            assert connection.is_open
        code, log, _ = running.stopped_by(signal.SIGTERM)
        assert (0, False) == (code, "unexpected error" in log)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
@pytest.mark.parametrize("how", ["revoked", "of a CA that is trusted no longer"])
def test_a_session_ends_with_the_trust_in_its_certificate(tmp_path, version, how):
    """Whoever has a session of before resumes it, but not once its certificate is revoked or its CA taken away."""
    ca, other = Authority(tmp_path), Authority(tmp_path, "other")
    alice = ca.issue("alice")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(ca.chain)
    crl = {"ssl_options.crl_check": "peer", "ssl_options.crlfile": ca.revoke()} if how == "revoked" else {}
    context = client_context(ca, alice)
    context.maximum_version = version
    settings = verified(ca, **crl) | {
        "ssl_options.cacertfile": trusted,
        "ssl_options.fail_if_no_peer_cert": "true",
    }
    with serving(tmp_path, ca.server(), settings) as running:

        def talk(session: ssl.SSLSession | None) -> tuple[bool, bool | None, ssl.SSLSession | None]:
            raw = socket.create_connection(running.tls_address, timeout=30)
            with context.wrap_socket(raw, server_hostname="localhost", session=session) as client:
                client.sendall(HEADER)
                return bool(client.recv(4096)), client.session_reused, client.session

        has_answer, _, session = talk(None)
        assert (True, True) == (has_answer, talk(session)[1])

        if how == "revoked":
            ca.revoke([alice])
        else:
            trusted.write_bytes(other.chain)
        running.process.send_signal(signal.SIGHUP)
        running.wait_for("TLS certificate reloaded")
        try:
            assert not talk(session)[0]
        except OSError:
            pass  # with TLS 1.2 the handshake itself fails


def test_the_api_and_metrics_are_served_over_tls(tmp_path, ca, server):
    """On ports of their own, in place of the plain ones; cookies of the page are for TLS only."""
    api, metrics = free_port(), free_port()
    settings = {
        f"{prefix}.ssl.{key}": value
        for prefix, port in (("management", api), ("prometheus", metrics))
        for key, value in {
            "port": port, "certfile": server.certfile, "keyfile": server.keyfile, "cacertfile": ca.file,
            "verify": "verify_peer", "fail_if_no_peer_cert": "true",
        }.items()
    } | {"management.enabled": "true", "prometheus.enabled": "true"}  # fmt: skip
    context = client_context(ca, ca.issue("alice"))
    with serving(tmp_path, server, settings) as running:
        ports = {
            (each["protocol"], each["port"]) for each in listed(api, "/api/overview", context)["listeners"]
        }
        assert {("https", api), ("https/prometheus", metrics)} == {
            each for each in ports if "http" in each[0]
        }
        login = "username=guest&password=guest"
        form = {"content-type": "application/x-www-form-urlencoded", "origin": f"https://localhost:{api}"}
        response, _ = asked(api, "/api/login", context, form, login)
        assert response.headers["set-cookie"].endswith("; Secure")
        response, text = asked(metrics, "/metrics", context)
        assert (200, True) == (response.status, b"rabbitmq_identity_info" in text)
        with pytest.raises((ssl.SSLError, OSError)):
            asked(metrics, "/metrics", client_context(ca))
        assert "the client presented no certificate" in running.wait_for("to the listener for metrics")
        for port in (api, metrics):
            with pytest.raises((http.client.HTTPException, OSError)):
                asked(port, "/metrics")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ssl_options.certfile", "missing.pem"),
        ("ssl_options.ciphers.1", "ROT13"),
        ("management.ssl.certfile", "x"),
    ],
)
def test_the_broker_does_not_start_with_a_wrong_file(tmp_path, ca, server, key, value):
    """It ends with the code for a wrong configuration, and names the key."""
    settings = {"listeners.ssl.default": "127.0.0.1:0", "ssl_options.certfile": server.certfile,
                "ssl_options.keyfile": server.keyfile, "management.enabled": "true", key: value}  # fmt: skip
    words = [word for name, each in settings.items() for word in ("--set", f"{name}={each}")]
    with Running(tmp_path, *words) as running:
        _, err = running.process.communicate(timeout=60)

        assert (78, True) == (running.process.returncode, key.removesuffix(".1") in err)


def test_certificates_are_renewed_while_the_broker_runs(tmp_path, ca, server):
    """By SIGHUP and by `leveret ctl reload_tls`, which tells what is wrong; health and metrics have their ends.

    Each reload has an entry in the audit log.
    """
    certfile, keyfile = tmp_path / "used.pem", tmp_path / "used.key"
    api, metrics = free_port(), free_port()
    settings = {
        "ssl_options.certfile": certfile, "ssl_options.keyfile": keyfile, "ssl_options.reload_interval": "0",
        "management.enabled": "true", "management.tcp.port": api,
        "prometheus.enabled": "true", "prometheus.tcp.port": metrics, "log.audit.file": tmp_path / "audit.log",
    }  # fmt: skip

    def use(issued: Issued) -> None:
        certfile.write_bytes(issued.certfile.read_bytes())
        keyfile.write_bytes(issued.keyfile.read_bytes())

    use(server)
    with serving(tmp_path, server, settings) as running:
        with connected(running, client_context(ca)) as old:
            use(ca.server("short", days=10))
            running.process.send_signal(signal.SIGHUP)
            assert "CN=short" in running.wait_for("TLS certificate replaced")
            assert old.is_open
            old.process_data_events()
        check = "/api/health/checks/certificate-expiration"
        assert {"status": "ok"} == listed(api, f"{check}/1/weeks")
        expired = listed(api, f"{check}/2/weeks")
        assert ("failed", "CN=short") == (expired["status"], expired["expired"][0]["subject"])
        text = asked(metrics, "/metrics")[1].decode()
        assert 'leveret_tls_certificate_not_after_seconds{listener="ssl_options"} ' in text
        assert 'leveret_tls_certificate_reloads_total{outcome="succeeded"} 1' in text

        ctl = CliRunner()
        use(ca.server("long", days=100))
        words = ["reload_tls", "--data-dir", str(running.data_dir)]
        assert "CN=long" in ctl.invoke(leveret_ctl, words).output
        keyfile.write_bytes(b"nonsense")
        refused = ctl.invoke(leveret_ctl, words)
        assert (True, True) == (refused.exit_code != 0, "stay in use" in refused.output)
        with connected(running, client_context(ca)) as connection:
            assert connection.is_open
    entries = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    reloads = [entry for entry in entries if entry["event"] == "tls.reload"]
    assert [("ok", "CN=short"), ("ok", "CN=long"), ("failed", "CN=long")] == [
        (entry["outcome"], entry["detail"]["certificates"]["ssl_options"]["subject"]) for entry in reloads
    ]
    assert "ssl_options.certfile" in reloads[-1]["reason"]
