"""Shovels between two brokers, over TCP and TLS."""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes.commands import execute
from processes.running import free_port
from services.shovelling import Http, await_true

import leveret


@pytest.fixture
def here() -> Iterator[leveret.Broker]:
    with leveret.Broker(management=True) as broker:
        yield broker


@pytest.fixture
def http(here) -> Http:
    """The management API of the broker that the shovels run in."""
    return Http(here.management_url)


@pytest.fixture
def other(tmp_path) -> Iterator[leveret.Broker]:
    """Another broker with ten messages in a queue."""
    with leveret.Broker(data_dir=tmp_path / "other", management=True) as broker:
        broker.declare("a")
        for number in range(10):
            broker.publish("", "a", str(number))
        yield broker


def await_bodies(broker: leveret.Broker, queue: str, count: int) -> list[bytes]:
    """Wait until a queue has so many messages, and return their bodies."""
    await_true(lambda: queue in broker.queues() and broker.queue(queue).depth >= count)
    return [message.body for message in broker.queue(queue).messages]


def test_messages_come_from_another_broker_and_go_there(here, other, http):
    """The connection has the options of the URI, and a name for operators."""
    http.shovel("in", src_uri=f"{other.url}?heartbeat=7&channel_max=1", src_queue="a", dest_queue="b")

    assert [str(number).encode() for number in range(10)] == await_bodies(here, "b", 10)
    (connection,) = [each for each in other.connections if "Shovel in" in str(each)]
    assert (7, 1) == (connection["timeout"], connection["channel_max"])
    http.shovel("out", dest_uri=f"{other.url}?channel_max=1", src_queue="b", dest_queue="c")
    assert [str(number).encode() for number in range(10)] == await_bodies(other, "c", 10)


def test_a_list_of_uris_is_tried(here, other, http):
    """In a random order, until one accepts."""
    http.shovel(
        "s",
        src_uri=["amqp://127.0.0.1:1", "amqp://nobody:secret@127.0.0.1:1", other.url],
        src_queue="a",
        dest_queue="b",
    )

    assert 10 == len(await_bodies(here, "b", 10))
    assert "secret" not in str(http.status("s"))


def test_it_goes_on_when_the_other_broker_comes_back(here, other, http):
    """After a kill of it, and nothing is lost."""
    http.shovel("s", dest_uri=other.url, src_queue="q", dest_queue="b", reconnect_delay=0.01)
    http.await_state("s", "running")
    for number in range(20):
        here.publish("", "q", str(number), properties={"delivery_mode": 2})
        if not number % 5:
            other.restart()

    assert [str(number).encode() for number in range(20)] == sorted(
        set(await_bodies(other, "b", 20)), key=int
    )
    await_true(lambda: not here.queue("q").depth and not here.queue("q").unacked)


def test_a_destination_with_an_alarm_blocks_the_shovel(here, other, http):
    """It goes on when the alarm is over."""
    http.shovel("s", dest_uri=other.url, src_queue="q", dest_queue="b")
    http.await_state("s", "running")
    with other.faults.block("memory"):
        for number in range(3):
            here.publish("", "q", str(number))
        http.await_state("s", "blocked")
        assert 0 == other.queue("b").depth
    assert [b"0", b"1", b"2"] == await_bodies(other, "b", 3)
    http.await_state("s", "running")


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("amqp://guest:wrong@{}", "ACCESS_REFUSED"),
        ("amqp://{}/none", "vhost none not found"),
        ("amqp://{}?auth_mechanism=external", "the broker offers no EXTERNAL login, only PLAIN AMQPLAIN"),
    ],
)
def test_a_refusal_is_told(other, http, uri, reason):
    """With the broker's words, without the password."""
    http.shovel(
        "s", src_uri=uri.format(f"127.0.0.1:{other.port}"), src_queue="a", dest_queue="b", reconnect_delay=0
    )
    status = http.await_state("s", "terminated")

    assert reason in status["reason"]
    assert "wrong" not in str(status)


def test_amqplain_is_spoken(here, other, http):
    """The mechanism of the URI."""
    http.shovel("s", src_uri=f"{other.url}?auth_mechanism=amqplain", src_queue="a", dest_queue="b")

    assert 10 == len(await_bodies(here, "b", 10))
    _, found = Http(other.management_url).request("GET", "connections")
    assert ["AMQPLAIN"] == [each["auth_mechanism"] for each in found]


# -- TLS --------------------------------------------------------------------------------------------------------------


def _openssl(folder: Path, *words: str) -> None:
    execute(["openssl", *words], cwd=folder, check=True, timeout=30)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Path:
    """A folder with an authority, and a certificate for the name `broker.test`."""
    folder = tmp_path_factory.mktemp("certificates")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    _openssl(folder, "req", "-x509", *key, "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    names = ("-addext", "subjectAltName=DNS:broker.test")
    _openssl(
        folder, "req", "-x509", *key, "-subj", "/CN=broker", *names,
        "-CA", "ca.pem", "-CAkey", "ca.key", "-keyout", "broker.key", "-out", "broker.pem",
    )  # fmt: skip
    return folder


@pytest.fixture
def encrypted(certificates, other) -> Iterator[int]:
    """The port of a proxy that encrypts connections to the other broker, and asks for no certificate."""
    port = free_port()
    started, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "broker.pem", certificates / "broker.key")
        tasks: set[asyncio.Task[None]] = set()
        writers: list[asyncio.StreamWriter] = []

        async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await reader.read(65536):
                    writer.write(data)
                    await writer.drain()
            writer.close()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            there, back = await asyncio.open_connection("127.0.0.1", other.port)
            writers.append(back)
            for pair in ((reader, back), (there, writer)):
                task = asyncio.create_task(copy(*pair))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", port, ssl=context)
        started.set()
        await stop.wait()
        server.close()
        running = list(tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()
        for _ in range(5):  # until they are closed
            await asyncio.sleep(0)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert started.wait(30)
    yield port
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)
    loop.close()


def test_tls(here, http, encrypted, certificates):
    """The certificate and the name in it are verified."""
    uri = f"amqps://guest:guest@127.0.0.1:{encrypted}"
    trusted = f"cacertfile={certificates}/ca.pem"
    http.shovel(
        "s", src_uri=f"{uri}?{trusted}&server_name_indication=broker.test", src_queue="a", dest_queue="b"
    )

    assert 10 == len(await_bodies(here, "b", 10))


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("", "certificate"),
        ("server_name_indication=broker.test", "certificate"),
        ("cacertfile={}/ca.pem", "127.0.0.1"),
        ("cacertfile={}/none.pem", "none.pem"),
        ("verify=verify_none&certfile={}/none.pem", "none.pem"),
    ],
)
def test_tls_that_cannot_be_trusted_is_refused(http, encrypted, certificates, query, reason):
    """The reason names what is wrong."""
    uri = f"amqps://guest:guest@127.0.0.1:{encrypted}?{query.format(certificates)}"
    http.shovel("s", src_uri=uri, src_queue="a", dest_queue="b", reconnect_delay=0)

    assert reason in http.await_state("s", "terminated")["reason"]


def test_tls_on_a_port_without_is_named(other, http):
    """The reason is not OpenSSL's word for it."""
    uri = f"amqps://guest:guest@127.0.0.1:{other.port}?verify=verify_none"
    http.shovel("s", src_uri=uri, src_queue="a", dest_queue="b", reconnect_delay=0)

    assert "there is no TLS on this port" in http.await_state("s", "terminated")["reason"]


def test_tls_without_verification(here, http, encrypted):
    """Only if the URI says so."""
    http.shovel(
        "s", src_uri=f"amqps://127.0.0.1:{encrypted}?verify=verify_none", src_queue="a", dest_queue="b"
    )

    assert 10 == len(await_bodies(here, "b", 10))
