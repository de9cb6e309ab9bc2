"""Logins by certificate (SASL EXTERNAL), over real sockets."""

import contextlib
import ssl
from collections.abc import Iterator, Mapping

import pika
import pytest
from conformance.wire import Client, ClosedError
from cryptography.x509.oid import NameOID
from pika.credentials import ExternalCredentials
from processes.running import Running, serving as served
from samples.certificates import Authority, client_context, name_of

from leveret.broker.auth.users import LoginRefusedError
from leveret.broker.connection.handshake import certificate_user
from leveret.broker.tls.certificate import Peer
from leveret.broker.tls.options import CertificateLogin

SUITE = "TLS_AES_128_GCM_SHA256"


@contextlib.contextmanager
def serving(tmp_path, ca: Authority, settings: Mapping[str, object]) -> Iterator[Running]:
    """A broker that lets clients in by certificate, with the users alice and carol."""
    server = ca.server()
    every = {
        "listeners.ssl.default": "127.0.0.1:0", "ssl_options.certfile": server.certfile,
        "ssl_options.keyfile": server.keyfile, "ssl_options.cacertfile": ca.file, "ssl_options.verify": "verify_peer",
        "auth_mechanisms.1": "PLAIN", "auth_mechanisms.2": "EXTERNAL", "auth.failure_delay": "0",
        "default_users.alice.password": "x", "default_users.carol.password": "x", **settings,
    }  # fmt: skip
    with served(tmp_path, settings=every) as broker:
        yield broker


def logged_in(running: Running, context: ssl.SSLContext) -> pika.BlockingConnection:
    host, port = running.tls_address
    options = pika.SSLOptions(context, "localhost")
    credentials = ExternalCredentials()
    return pika.BlockingConnection(
        pika.ConnectionParameters(host, port, ssl_options=options, credentials=credentials)
    )


def test_a_client_logs_in_by_its_certificate(tmp_path, ca):
    """As the user of that name, who must exist; one without certificate or name is refused, with the reason in the log."""
    with serving(tmp_path, ca, {"ssl_cert_login_from": "common_name"}) as running:
        with logged_in(running, client_context(ca, ca.issue("alice"))) as connection:
            assert "user 'alice' authenticated" in running.wait_for("authenticated")
            assert connection.channel().is_open
        with logged_in(running, client_context(ca, ca.issue("guest"))) as connection:
            assert connection.is_open
        nameless = ca.issue("nobody", subject=name_of("", (NameOID.ORGANIZATION_NAME, "O")))
        for identity in (ca.issue("bob"), None, nameless):
            with pytest.raises(pika.exceptions.AMQPConnectionError):
                logged_in(running, client_context(ca, identity))
        refused = running.wait_for("login refused")
        assert "EXTERNAL login refused: user 'bob' - invalid credentials" in refused


def test_external_is_not_offered_without_tls(tmp_path, ca):
    """And choosing it all the same ends the connection."""
    with serving(tmp_path, ca, {}) as running:
        client = Client(running.address, timeout=10.0)
        with contextlib.closing(client.socket):
            start = client.begin()
            assert "EXTERNAL" not in str(start)
            client.start_ok(mechanism="EXTERNAL", response=b"")
            with pytest.raises((ClosedError, OSError)):
                client.receive(0, "connection.tune")
        assert "invalid authentication mechanism 'EXTERNAL'" in running.wait_for("handshake error")


def test_the_name_of_a_user_needs_a_verified_certificate(ca):
    """A name is taken from the part that is configured; without `verify_peer` from none."""
    der = ca.issue("carol", ["carol.example.org"]).der
    peer = Peer("TLSv1.3", SUITE, der, is_verified=True)

    assert "CN=carol" == certificate_user(peer, CertificateLogin())
    assert "carol.example.org" == certificate_user(peer, CertificateLogin("subject_alternative_name"))
    for other, login, reason in (
        (Peer("TLSv1.3", SUITE, der), CertificateLogin(), "TLS configuration is unsafe"),
        (Peer("TLSv1.3", SUITE, is_verified=True), CertificateLogin(), "presented no TLS"),
        (peer, CertificateLogin("subject_alternative_name", "email"), "no name found"),
        (Peer("TLSv1.3", SUITE, b"x", is_verified=True), CertificateLogin(), "cannot be read"),
    ):
        with pytest.raises(LoginRefusedError, match=reason):
            certificate_user(other, login)
