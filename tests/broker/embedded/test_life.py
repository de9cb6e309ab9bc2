"""Start and stop of embedded brokers: addresses, configuration, errors, and what is left behind."""

import asyncio
import base64
import contextlib
import errno
import functools
import gc
import json
import logging
import os
import signal
import socket
import sys
import threading
import urllib.request
import warnings
from pathlib import Path
from urllib.parse import urlsplit

import pika
import pytest
from processes.commands import execute

import leveret
from leveret.storage.store.environment import Environment


def connected(url: str) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(url))


def fetched(url: str, body: bytes) -> bytes:
    """Publish a message to a queue, and return what is in it."""
    with connected(url) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("orders", durable=True)
        channel.basic_publish("", "orders", body, pika.BasicProperties(delivery_mode=2))
        return channel.basic_get("orders")[2]


def test_a_broker_in_memory_serves_clients():
    """A broker listens on a free port of 127.0.0.1, and its URL is enough for a client."""
    with leveret.Broker() as broker:
        assert f"amqp://guest:guest@127.0.0.1:{broker.port}/%2F" == broker.url
        assert b"one" == fetched(broker.url, b"one")


def test_a_broker_in_memory_loads_nothing_of_the_disk_and_of_the_management_api():
    """An embedded broker in memory does not import slow modules that it does not use."""
    script = "import leveret, sys; leveret.Broker().start().stop(); print(*sys.modules)"
    done = execute([sys.executable, "-c", script], check=True)
    loaded = set(done.stdout.split())
    assert "leveret.broker.server.server" in loaded
    late = ("lmdb", "aiohttp", "importlib.metadata", "leveret.storage.store.environment", "leveret.broker.http.call",
            "leveret.broker.statistics.statistics", "leveret.broker.embedded.faulty_store")  # fmt: skip
    assert [] == [each for each in late if each in loaded]


async def test_a_broker_in_a_running_loop():
    """`AsyncBroker` serves clients from the loop in which it was started."""
    async with leveret.AsyncBroker() as broker:
        assert b"one" == await asyncio.to_thread(fetched, broker.url, b"one")


async def test_a_thread_broker_works_inside_a_running_loop():
    """`Broker` can be used in a coroutine: its loop is another one."""
    with leveret.Broker() as broker:
        assert b"one" == fetched(broker.url, b"one")


def test_several_brokers_at_once():
    """Brokers of one process share nothing: each has a port and queues of its own."""
    with leveret.Broker() as one, leveret.Broker() as other:
        assert one.port != other.port
        assert [b"1", b"2"] == [fetched(one.url, b"1"), fetched(other.url, b"2")]


def test_start_and_stop_without_with_keep_the_port():
    """A broker that was stopped starts again at the same port; a second stop has no effect."""
    broker = leveret.Broker().start()
    port = broker.port
    broker.stop()
    broker.stop()
    broker.start()
    try:
        assert port == broker.port
    finally:
        broker.stop()


def test_a_killed_broker_keeps_its_port():
    """Until a killed broker starts again nobody can connect to its port, and the system gives it to no other socket."""
    with leveret.Broker() as broker:
        port = broker.port
        broker.kill()
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), 5):
            pass
        with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
            other.bind(("127.0.0.1", port))
        broker.restart()
        assert port == broker.port
        assert b"one" == fetched(broker.url, b"one")


def test_a_stopped_broker_leaves_its_port():
    """A socket that shares with nobody can have the port of a broker that was stopped, killed before or not."""
    for is_killed in (False, True):
        broker = leveret.Broker().start()
        port = broker.port
        if is_killed:
            broker.kill()
        broker.stop()
        with socket.socket() as other:
            other.bind(("127.0.0.1", port))


def test_durable_messages_survive_in_a_directory(tmp_path):
    """With a data directory durable queues and persistent messages are there after a restart."""
    with leveret.Broker(data_dir=tmp_path / "data") as broker, connected(broker.url) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("orders", durable=True)
        channel.basic_publish("", "orders", b"kept", pika.BasicProperties(delivery_mode=2))
    with leveret.Broker(data_dir=str(tmp_path / "data")) as broker, connected(broker.url) as connection:
        assert b"kept" == connection.channel().basic_get("orders")[2]


# -- configuration ----------------------------------------------------------------------------------------------------


def test_configuration_has_the_keys_of_the_file():
    """Keys have the names of the configuration file; values may be text, bool, numbers or paths."""
    config = {
        "default_user": "ada",
        "default_pass": "s/cret",
        "default_vhost": "shop",
        "heartbeat": 7,
        "tcp_listen_options.nodelay": False,
    }
    with leveret.Broker(config=config) as broker:
        assert f"amqp://ada:s%2Fcret@127.0.0.1:{broker.port}/shop" == broker.url
        assert b"one" == fetched(broker.url, b"one")


def test_configured_listeners_replace_the_default():
    """With a listener in the configuration there is no other one."""
    with leveret.Broker(config={"listeners.tcp.default": "[::1]:0"}) as broker:
        assert f"amqp://guest:guest@[::1]:{broker.port}/%2F" == broker.url


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"confirm.mod": "standard"}, "unknown key confirm.mod; did you mean confirm.mode?"),
        ({"confirm.mode": "often"}, "confirm.mode = 'often' must be one of"),
        ({"heartbeat": [60]}, "heartbeat must be text, a number, a bool or a path"),
        ({"log.console": True}, "log.console: an embedded broker logs to"),
        ({"data_dir": "x"}, "data_dir: it is the argument data_dir"),
    ],
)
@pytest.mark.parametrize("kind", [leveret.Broker, leveret.AsyncBroker])
def test_a_wrong_key_is_named(kind, config, told):
    """A wrong key or value is an error at once, which names the key and a similar one."""
    with pytest.raises(leveret.ConfigurationError, match=r"^config: ") as caught:
        kind(config=config)

    assert told in str(caught.value)
    assert isinstance(caught.value, ValueError)


# -- errors -----------------------------------------------------------------------------------------------------------


def test_a_taken_port_is_named():
    """A port that is in use is an error that names the address, and leaves no thread."""
    with leveret.Broker() as broker:
        before = threading.active_count()
        with pytest.raises(
            leveret.PortInUseError, match=rf"127\.0\.0\.1:{broker.port}: address already in use"
        ):
            leveret.Broker(port=broker.port).start()

        assert before == threading.active_count()


def test_a_directory_belongs_to_one_broker(tmp_path):
    """A second broker on the same directory is an error, also in the same process."""
    with (
        leveret.Broker(data_dir=tmp_path),
        pytest.raises(leveret.DataDirectoryError, match="another broker is using it"),
    ):
        leveret.Broker(data_dir=tmp_path).start()


@pytest.mark.parametrize("kind", [leveret.Broker, leveret.AsyncBroker])
def test_a_closed_broker_says_so(kind):
    """A broker that does not run raises an error that says what to do."""
    with pytest.raises(
        leveret.ClosedBrokerError, match=r"use it within `with`, or between start\(\) and stop\(\)"
    ):
        _ = kind().url
    assert "closed" in repr(kind())


def test_a_broker_starts_once():
    """A start of a running broker is an error, and does not stop it."""
    with leveret.Broker() as broker:
        with pytest.raises(leveret.ClosedBrokerError, match="started already"):
            broker.start()
        assert b"one" == fetched(broker.url, b"one")


def test_a_failed_disk_ends_the_broker_not_the_process(tmp_path):
    """If the disk fails, clients are disconnected and further calls are refused; the application goes on."""
    with leveret.Broker(data_dir=tmp_path) as broker:
        connection = connected(broker.url)
        server = broker._core.server
        server.loop.running.call_soon_threadsafe(server.storage_failed, OSError("the disk is gone"))
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            connection.sleep(30)
        with pytest.raises(leveret.ClosedBrokerError, match="the disk is gone"):
            _ = broker.url


def test_a_disk_that_fails_at_the_stop_is_closed(tmp_path, monkeypatch):
    """The stop says so, and the data can be opened again by the same process."""

    def fail(*_):
        raise OSError(errno.EIO, "planted")

    broker = leveret.Broker(data_dir=tmp_path).start()
    client = connected(broker.url)
    channel = client.channel()
    channel.queue_declare("q", durable=True)
    with monkeypatch.context() as broken:
        broken.setattr(Environment, "write", fail)
        broken.setattr(Environment, "begin_log", lambda *_: None)
        channel.basic_publish("", "q", b"", pika.BasicProperties(delivery_mode=2))
        with pytest.raises(leveret.ClosedBrokerError, match=r"the disk of the broker has failed: .*planted"):
            broker.stop()
    with pytest.raises(pika.exceptions.AMQPError):
        client.sleep(30)
    with leveret.Broker(data_dir=tmp_path) as broker, connected(broker.url) as client:
        assert client.channel().queue_declare("q", passive=True).method.message_count <= 1


# -- what is left ------------------------------------------------------------------------------------------------------


def test_an_open_client_does_not_hold_up_the_stop():
    """A client that is not reading gets a moment to answer, and is then disconnected."""
    with leveret.Broker() as broker:
        connection = connected(broker.url)
    with pytest.raises(pika.exceptions.AMQPError):
        connection.channel()


def policy() -> type:
    """Return the type of the policy of event loops, which Python 3.14 warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return type(asyncio.get_event_loop_policy())


def test_nothing_of_the_process_is_changed(tmp_path, monkeypatch):
    """Signal handlers, collector, switch interval, umask, loop policy and log handlers stay what they were."""
    hidden: list[str] = []  # from the collector; their count falls by itself, whenever one of them is freed
    for name in ("freeze", "unfreeze"):
        monkeypatch.setattr(gc, name, functools.partial(hidden.append, name))

    def found() -> tuple[object, ...]:
        umask = os.umask(0o22)
        os.umask(umask)
        return (
            signal.getsignal(signal.SIGINT),
            signal.getsignal(signal.SIGTERM),
            signal.getsignal(signal.SIGHUP),
            signal.getsignal(signal.SIGCHLD),
            gc.get_threshold(),
            tuple(hidden),
            sys.getswitchinterval(),
            umask,
            policy(),
            tuple(logging.root.handlers),
            logging.getLogger("leveret").level,
        )

    before = found()
    with leveret.Broker(data_dir=tmp_path) as broker:
        fetched(broker.url, b"one")
        during = found()

    assert before == during == found()


def test_nothing_is_left_behind(tmp_path):
    """After the stop there is no thread, file descriptor, reference to the broker or warning left."""
    with leveret.Broker(data_dir=tmp_path):  # loads what is loaded once
        pass
    gc.collect()
    threads, files = set(threading.enumerate()), set(Path("/proc/self/fd").iterdir())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for data_dir in (None, tmp_path, None):
            with leveret.Broker(data_dir=data_dir) as broker:
                fetched(broker.url, b"one")
        gc.collect()

    assert threads == set(threading.enumerate())
    assert files == set(Path("/proc/self/fd").iterdir())


def test_an_unclosed_broker_is_reported_and_stopped():
    """A broker that is dropped while it runs is a ResourceWarning, and stops."""
    before = threading.active_count()
    broker = leveret.Broker().start()
    with pytest.warns(ResourceWarning, match="unclosed broker <Broker amqp://"):  # noqa: PT031 - both drop it
        del broker
        gc.collect()

    assert before == threading.active_count()


def test_a_stop_during_a_call_ends_the_call():
    """A call that is under way in another thread when the broker stops is an error there, soon."""
    broker = leveret.Broker(config={"confirm.mode": "consumer-ack"}).start()
    broker.declare("orders")
    found = []

    def publish() -> None:
        try:
            broker.publish("", "orders", "one")  # confirmed by a consumer only, and there is none
        except leveret.LeveretError as error:
            found.append(error)

    thread = threading.Thread(target=publish)
    thread.start()
    while not broker.queue("orders").depth:
        pass
    broker.stop()
    thread.join(30)

    assert [leveret.ClosedBrokerError] == [type(error) for error in found]


def test_a_process_ends_although_a_broker_runs(tmp_path):
    """An interpreter that ends while a broker runs stops it, without a word and without waiting for its thread."""
    program = (
        f"import leveret\nbroker = leveret.Broker(data_dir={str(tmp_path)!r}).start()\nprint(broker.port)\n"
    )
    done = execute([sys.executable, "-W", "error", "-c", program], cwd=Path(__file__).parents[3], check=True)

    assert done.stdout.strip().isdigit()
    assert "" == done.stderr


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_holds_no_socket_of_the_broker():
    """While a forked child runs, clients notice the end of the broker, nobody can connect, and it can start again."""
    with contextlib.ExitStack() as ending:
        broker = ending.enter_context(leveret.Broker(management=True))
        url, ports = broker.url, (broker.port, urlsplit(broker.management_url).port)
        clients = [ending.enter_context(socket.create_connection(("127.0.0.1", port), 10)) for port in ports]
        for client, greeting in zip(clients, (b"AMQP\0\0\x09\x01", b"GET / HTTP/1.1\r\n\r\n"), strict=True):
            client.sendall(greeting)
            assert client.recv(1)  # the broker has accepted it
        end, kept = os.pipe()
        running, runs = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                os.close(kept)
                os.write(runs, b"r")  # it runs now: what Python does in a child after a fork has been done
                os.read(end, 1)  # until the parent has ended, or closed its side
            finally:
                os._exit(0)
        os.close(end)
        os.close(runs)
        try:
            assert os.read(running, 1)
            os.close(running)
            broker.kill()
            for client, port in zip(clients, ports, strict=True):
                with contextlib.suppress(ConnectionResetError):
                    while client.recv(4096):
                        pass
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", port), 10).close()
            broker.start()
            assert url == broker.url
            assert b"one" == fetched(url, b"one")
            assert ["guest"] == users(broker.management_url)
        finally:
            os.close(kept)
            assert (pid, 0) == os.waitpid(pid, 0)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_cannot_use_the_broker():
    """A forked process has no thread of the broker: its stop has no effect there, and the parent's goes on."""
    with leveret.Broker() as broker:
        pid = os.fork()
        if not pid:
            try:
                broker.stop()
            finally:
                os._exit(0)
        assert (pid, 0) == os.waitpid(pid, 0)
        assert b"one" == fetched(broker.url, b"one")


def users(url: str) -> list[str]:
    """Return the names of the users that the management API at a URL lists."""
    parts = urlsplit(url)
    request = urllib.request.Request(f"http://{parts.hostname}:{parts.port}/api/users")
    login = base64.b64encode(f"{parts.username}:{parts.password}".encode()).decode()
    request.add_header("Authorization", f"Basic {login}")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return [user["name"] for user in json.load(answer)]


def test_the_management_api_is_served_if_asked():
    """`management=True` serves it on a free port, which a restart keeps; without it there is no listener."""
    with leveret.Broker(management=True) as broker:
        url = broker.management_url
        assert ["guest"] == users(url)
        broker.restart()
        assert url == broker.management_url
        assert ["guest"] == users(url)
    with pytest.raises(leveret.ClosedBrokerError, match="not running"):
        broker.management_url  # noqa: B018
    with leveret.Broker() as broker, pytest.raises(leveret.ClosedBrokerError, match="management=True"):
        broker.management_url  # noqa: B018


async def test_the_management_api_of_a_broker_in_a_running_loop():
    """`AsyncBroker` serves it in the same loop."""
    async with leveret.AsyncBroker(management=True) as broker:
        assert ["guest"] == await asyncio.to_thread(users, broker.management_url)
