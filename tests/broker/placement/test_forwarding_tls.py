"""Clients that are forwarded over TLS, to a broker whose certificate is verified."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import ProbableAccessDeniedError
from processes.running import Running, serving
from samples.certificates import Authority, Issued, client_context

HOST = "localhost"
MECHANISMS = {"auth_mechanisms.1": "PLAIN", "auth_mechanisms.2": "EXTERNAL"}


class There(NamedTuple):
    ca: Authority
    server: Issued
    client: Issued
    port: int  # for TLS


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[There]:
    """Run a broker with the virtual host `orders`, whose TLS port wants a certificate of the client."""
    folder = tmp_path_factory.mktemp("there")
    ca = Authority(folder)
    server, client = ca.server(), ca.issue("guest")
    settings = listening(ca, server) | MECHANISMS | {"default_vhost": "orders"}
    with serving(folder, settings=settings | {"ssl_options.fail_if_no_peer_cert": "true"}) as running:
        yield There(ca, server, client, running.tls_address[1])


def listening(ca: Authority, server: Issued) -> dict[str, object]:
    return {
        "listeners.ssl.1": "127.0.0.1:0",
        "ssl_options.certfile": server.certfile,
        "ssl_options.keyfile": server.keyfile,
        "ssl_options.cacertfile": ca.file,
        "ssl_options.verify": "verify_peer",
        "ssl_cert_login_from": "common_name",
    }


def front(folder: Path, there: There, **options: object) -> Any:
    """Run a broker that forwards the clients of `orders`, with a TLS port of its own."""
    known = {"cacertfile": there.ca.file, "certfile": there.client.certfile, "keyfile": there.client.keyfile}
    settings = {f"vhosts.ssl_options.{key}": value for key, value in (known | options).items() if value}
    settings["vhosts.broker.orders"] = f"amqps://{HOST}:{there.port}"
    return serving(folder, settings=settings | listening(there.ca, there.server) | MECHANISMS)


def connect(running: Running, there: There | None = None, **options: Any) -> BlockingConnection:
    address = running.address
    if there is not None:
        address = running.tls_address
        options["ssl_options"] = pika.SSLOptions(client_context(there.ca, there.client), HOST)
    return BlockingConnection(pika.ConnectionParameters(*address, "orders", stack_timeout=30, **options))


def test_a_client_is_forwarded_over_tls(there: There, tmp_path: Path) -> None:
    """A message of 5 MB goes there and back, of a client that comes with TLS and of one without."""
    body = b"x" * 5_000_000
    with front(tmp_path, there) as running, connect(running, there) as one, connect(running) as other:
        channel = one.channel()
        channel.confirm_delivery()
        channel.queue_declare("q")
        channel.basic_publish("", "q", body)
        assert body == other.channel().basic_get("q", auto_ack=True)[2]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"sni": "another.example"}, "Hostname mismatch, certificate is not valid for 'another.example'"),
        ({"cacertfile": ""}, "self-signed certificate in certificate chain"),
        ({"certfile": "", "keyfile": ""}, "it has closed the connection"),
    ],
)
def test_a_broker_that_cannot_be_verified_gets_no_password(
    there: There, tmp_path: Path, options: dict[str, object], reason: str
) -> None:
    """A certificate for another name or of an unknown authority, or a missing one of ours, ends in 320 and a reason."""
    with front(tmp_path, there, **options) as running:
        with pytest.raises(ProbableAccessDeniedError, match=r"320.*cannot be reached now"):
            connect(running)
        assert reason in running.wait_for("no broker has opened virtual host 'orders'")


def test_verification_can_be_left_out(there: There, tmp_path: Path) -> None:
    """With `verify_none` a certificate for another name does."""
    with front(tmp_path, there, sni="another.example", verify="verify_none") as running:
        connect(running).close()


def test_a_login_by_certificate_is_not_forwarded(there: There, tmp_path: Path) -> None:
    """It would be one by the certificate of the broker that forwards, and so of another user."""
    external = {"credentials": pika.credentials.ExternalCredentials()}
    with front(tmp_path, there) as running:
        with pytest.raises(ProbableAccessDeniedError, match=r"530.*login by certificate cannot be forwarded"):
            connect(running, there, **external)
        told = {"capabilities": {"connection.redirect": True}}
        address = f"amqps://{HOST}:{there.port}"
        with pytest.raises(ProbableAccessDeniedError, match=rf"320.*virtual host 'orders' is at {address}"):
            connect(running, there, client_properties=told, **external)
