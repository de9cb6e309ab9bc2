"""Clients over TLS: by password and by certificate they publish with confirms and consume; strangers are refused."""

import asyncio
import gc
import json
import os
import ssl
import subprocess
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import aio_pika
import amqpstorm
import kombu
import pika
import pytest
from celery import Celery
from kombu import pools
from pika.credentials import ExternalCredentials, PlainCredentials
from processes.running import serving
from samples.certificates import Authority, Issued, client_context

# Celery and kombu warn about their own use of the standard library on recent Pythons
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")

HERE = Path(__file__).parent
USER = "alice"
BODIES = [b"one", b"two" * 10_000, b"three"]
"""The second one is larger than a record of TLS."""
SECONDS = 60.0


@dataclass(frozen=True)
class Login:
    """The way in which a client logs in, and the broker.

    Attributes:
        address: of the listener with TLS.
        authority: the CA that the client trusts.
        identity: its certificate; None for none.
        is_external: whether it logs in by certificate (EXTERNAL), not by password.

    """

    address: tuple[str, int]
    authority: Authority
    identity: Issued | None = None
    is_external: bool = False

    @property
    def context(self) -> ssl.SSLContext:
        return client_context(self.authority, self.identity)

    @property
    def files(self) -> dict[str, object]:
        """Options of py-amqp, which makes the context itself."""
        own = (
            {}
            if self.identity is None
            else {"certfile": str(self.identity.certfile), "keyfile": str(self.identity.keyfile)}
        )
        return {
            "ca_certs": str(self.authority.file),
            "cert_reqs": ssl.CERT_REQUIRED,
            "server_hostname": "localhost",
            **own,
        }


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The CA of the brokers and of the clients."""
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A CA that nobody else trusts."""
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


def serving_tls(folder: Path, ca: Authority, *settings: str) -> Iterator[tuple[str, int]]:
    """Run a broker with a listener for TLS; yields its address."""
    server = ca.server()
    every = (
        "listeners.ssl.default=127.0.0.1:0", f"ssl_options.certfile={server.certfile}",
        f"ssl_options.keyfile={server.keyfile}", "auth.failure_delay=0", *settings,
    )  # fmt: skip
    with serving(folder, *(word for setting in every for word in ("--set", setting))) as running:
        yield running.tls_address


@pytest.fixture(scope="module")
def by_password(tmp_path_factory: pytest.TempPathFactory, ca: Authority) -> Iterator[Login]:
    """A broker that asks for no certificate."""
    for address in serving_tls(tmp_path_factory.mktemp("password"), ca):
        yield Login(address, ca)


@pytest.fixture(scope="module")
def by_certificate(tmp_path_factory: pytest.TempPathFactory, ca: Authority) -> Iterator[Login]:
    """A broker that demands one, and offers EXTERNAL only."""
    settings = (
        "ssl_options.verify=verify_peer", "ssl_options.fail_if_no_peer_cert=true", f"ssl_options.cacertfile={ca.file}",
        "auth_mechanisms.1=EXTERNAL", "ssl_cert_login_from=common_name", f"default_users.{USER}.password=unused",
    )  # fmt: skip
    for address in serving_tls(tmp_path_factory.mktemp("certificate"), ca, *settings):
        yield Login(address, ca, ca.issue(USER), is_external=True)


def by_pika(login: Login) -> list[bytes]:
    credentials = ExternalCredentials() if login.is_external else PlainCredentials("guest", "guest")
    options = pika.SSLOptions(login.context, "localhost")
    parameters = pika.ConnectionParameters(*login.address, ssl_options=options, credentials=credentials)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.confirm_delivery()
        for body in BODIES:
            channel.basic_publish("", queue, body, mandatory=True)
        found = []
        for method, _properties, body in channel.consume(queue, inactivity_timeout=SECONDS):
            found.append(body)
            channel.basic_ack(method.delivery_tag)
            if len(found) == len(BODIES):
                break
        return found


def by_aio_pika(login: Login) -> list[bytes]:
    return asyncio.run(asyncio.wait_for(_aio_pika(login), SECONDS))


async def _aio_pika(login: Login) -> list[bytes]:
    user, options = ("", "?auth=external") if login.is_external else ("guest:guest@", "")
    url = f"amqps://{user}localhost:{login.address[1]}/{options}"
    connection = await aio_pika.connect(url, ssl_context=login.context)
    async with connection:
        channel = await connection.channel(publisher_confirms=True)
        queue = await channel.declare_queue(exclusive=True)
        for body in BODIES:
            await channel.default_exchange.publish(aio_pika.Message(body), queue.name)
        found = []
        async with queue.iterator() as messages:
            async for message in messages:
                found.append(message.body)
                await message.ack()
                if len(found) == len(BODIES):
                    break
        return found


def by_amqpstorm(login: Login) -> list[bytes]:
    """Publish and consume with AMQPStorm, which takes EXTERNAL wherever it is offered."""
    context = login.context
    if (
        login.is_external
    ):  # after a handshake of TLS 1.3 it notices a refusal by its own time limit of 30 s only
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    options = {"context": context, "server_hostname": "localhost"}
    host, port = login.address
    with amqpstorm.Connection(
        host, "guest", "guest", port=port, ssl=True, ssl_options=options, timeout=SECONDS
    ) as connection:
        channel = connection.channel()
        channel.confirm_deliveries()
        queue = channel.queue.declare(exclusive=True)["queue"]
        for body in BODIES:
            assert channel.basic.publish(body, queue, mandatory=True)
        found = []
        channel.basic.consume(queue=queue)
        for message in channel.build_inbound_messages():
            found.append(message.body.encode())
            message.ack()
            if len(found) == len(BODIES):
                break
        return found


def by_kombu(login: Login) -> list[bytes]:
    options = {"login_method": "EXTERNAL"} if login.is_external else {"userid": "guest", "password": "guest"}
    found = []
    with kombu.Connection(
        "localhost", transport="pyamqp", port=login.address[1], ssl=login.files, connect_timeout=SECONDS,
        transport_options={"confirm_publish": True}, **options,
    ) as connection:  # fmt: skip
        connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
        with connection.SimpleQueue(f"tls.{uuid.uuid4().hex}", queue_opts={"auto_delete": True}) as queue:
            for body in BODIES:
                queue.put(body, serializer=None, content_type="application/data", content_encoding="binary")
            for _ in BODIES:
                message = queue.get(timeout=SECONDS)
                found.append(bytes(message.body))
                message.ack()
    return found


CLIENTS = (by_pika, by_aio_pika, by_amqpstorm, by_kombu)
REFUSALS = (
    OSError,  # of which those of ssl are
    kombu.exceptions.OperationalError,
    pika.exceptions.AMQPConnectionError,
    aio_pika.exceptions.AMQPConnectionError,
    amqpstorm.AMQPConnectionError,
)


def refused(connect: Callable[[], object]) -> bool:
    """Return whether a client gets no connection; it may leave its socket to the collector."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            connect()
        except REFUSALS:
            return True
        finally:
            gc.collect()
    return False


talking = pytest.mark.parametrize("talk", CLIENTS, ids=lambda talk: talk.__name__)
Talk = Callable[[Login], list[bytes]]


@talking
def test_a_client_talks_over_tls(by_password: Login, talk: Talk) -> None:
    """It verifies the broker's certificate, logs in by password, gets its confirms, and consumes what it sent."""
    assert BODIES == talk(by_password)


@talking
def test_a_client_logs_in_by_certificate(by_certificate: Login, talk: Talk) -> None:
    """By EXTERNAL, without a password; then it publishes with confirms and consumes."""
    assert BODIES == talk(by_certificate)


@talking
def test_a_client_that_does_not_trust_the_broker_leaves(
    by_password: Login, by_certificate: Login, stranger: Authority, talk: Talk
) -> None:
    """With another CA it refuses the broker's certificate, whatever it logs in with."""
    for login in (by_password, by_certificate):
        assert refused(partial(talk, replace(login, authority=stranger)))


@talking
def test_a_client_without_a_certificate_of_the_ca_is_refused(
    by_certificate: Login, stranger: Authority, talk: Talk
) -> None:
    """With none, and with one of another CA for the same user."""
    for identity in (None, stranger.issue(USER)):
        assert refused(partial(talk, replace(by_certificate, identity=identity)))


def test_celery_works_by_certificate(by_certificate: Login, tmp_path: Path, stranger: Authority) -> None:
    """A worker and an application log in by EXTERNAL, and a task's result comes back; without a certificate neither does."""
    name = f"tls.{uuid.uuid4().hex}"
    url = f"pyamqp://localhost:{by_certificate.address[1]}//"
    program = tmp_path / "tls_tasks.py"
    program.write_text(TASKS, encoding="utf-8")
    settings = {"url": url, "queue": name, "ssl": by_certificate.files}
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "tls_tasks",
        "worker",
        "--pool",
        "solo",
        "--without-mingle",
    ]
    log = tmp_path / "worker.log"
    variables = {"CELERY_TEST_TLS": json.dumps(settings, default=int)}
    with log.open("wb") as output:
        worker = subprocess.Popen(
            command, cwd=tmp_path, env=os.environ | variables, stdout=output, stderr=output
        )
    app = Celery("tls_tasks", broker=url, backend="rpc://")
    app.conf.update(
        task_default_queue=name, broker_use_ssl=by_certificate.files, broker_login_method="EXTERNAL"
    )
    try:
        assert 5 == app.send_task("tls_tasks.add", (2, 3)).get(timeout=SECONDS), log.read_text()
        worker.terminate()
        assert 0 == worker.wait(SECONDS), log.read_text()
    finally:
        worker.kill()
        worker.wait()
        app.backend.result_consumer.stop()
        app.close()
        pools.reset()  # it keeps connections for the whole process
    for other in (replace(by_certificate, identity=None), replace(by_certificate, authority=stranger)):
        with app.connection(ssl=other.files) as connection:
            assert refused(
                partial(connection.ensure_connection, max_retries=1, interval_start=0, interval_step=0)
            )


TASKS = '''"""Tasks of a worker that logs in by certificate."""
import json, os

from celery import Celery

given = json.loads(os.environ["CELERY_TEST_TLS"])
app = Celery("tls_tasks", broker=given["url"], backend="rpc://")
app.conf.update(task_default_queue=given["queue"], broker_use_ssl=given["ssl"], broker_login_method="EXTERNAL")


@app.task
def add(x, y):
    return x + y
'''
