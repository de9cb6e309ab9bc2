"""Clients of virtual hosts that another broker has."""

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pika
import pytest
from msgspec.structs import replace
from pamqp import commands
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import (
    AMQPError,
    ChannelClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)
from processes.fronts import check_pipelined, front as placed, handshake, marshalled
from processes.running import Running, free_port, serving
from processes.waiting import wait_until

from leveret.broker.config.config import Config
from leveret.broker.config.placement import PlacementConfig
from leveret.broker.config.values import BrokerAddress
from leveret.broker.placement.forwarding import ForwardingServer
from leveret.broker.server.server import Server

HOST = "127.0.0.1"
USER = pika.PlainCredentials("1", "one")
USERS = {
    "default_users.1.password": "one",
    "default_users.1.vhost_pattern": ".*",
    "default_users.2.password": "two",
    "default_users.2.vhost_pattern": "none",
}


class Brokers(NamedTuple):
    front: Running
    there: Running
    metrics: int  # port of the front's


def server(folder: Path, **more: object) -> Any:
    folder.mkdir()
    return serving(
        folder, settings={**USERS, **{key.replace("__", "."): value for key, value in more.items()}}
    )


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Run a broker with the virtual host `orders`, and one that forwards its clients; nothing listens at its first address."""
    home, metrics = tmp_path_factory.mktemp("brokers"), free_port()
    with server(home / "there", default_vhost="orders") as there:
        addresses = f"{HOST}:{free_port()}, {HOST}:{there.address[1]}"
        more = {
            "vhosts.broker.orders": addresses,
            "prometheus.enabled": "true",
            "prometheus.tcp.port": metrics,
        }
        with server(home / "front", **more) as front:
            yield Brokers(front, there, metrics)


def connect(running: Running, vhost: str = "orders", user: str = "1", **options: Any) -> BlockingConnection:
    credentials = pika.PlainCredentials(user, {"1": "one", "2": "two"}[user])
    return BlockingConnection(
        pika.ConnectionParameters(*running.address, vhost, credentials, stack_timeout=30, **options)
    )


def forwarded(brokers: Brokers) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{HOST}:{brokers.metrics}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found = [line.rpartition(" ") for line in lines if line.startswith("leveret_forwarded")]
    return {name.removeprefix("leveret_forwarded_"): float(value) for name, _, value in found}


def test_a_client_is_forwarded(brokers: Brokers) -> None:
    """A message of 5 MB goes there and back; other virtual hosts are this broker's; metrics count what passes."""
    body = b"x" * 5_000_000
    before = forwarded(brokers)
    with connect(brokers.front) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q")
        channel.basic_publish("", "q", body)
        assert 1 == forwarded(brokers)["connections"]
        with connect(brokers.there) as direct:
            assert 1 == direct.channel().queue_declare("q", passive=True).method.message_count
        assert body == channel.basic_get("q", auto_ack=True)[2]
        channel.queue_delete("q")
    wait_until(lambda: forwarded(brokers)["connections"] == 0)
    after = forwarded(brokers)
    for direction in ("in", "out"):
        name = f'bytes_total{{direction="{direction}"}}'
        assert len(body) < after[name] - before[name] < len(body) + 20_000
    with connect(brokers.front, "/") as connection, pytest.raises(AMQPError):
        connection.channel().queue_declare("q", passive=True)


def test_the_other_broker_decides(brokers: Brokers) -> None:
    """A wrong password is refused here; a missing right there, with its own reply."""
    with pytest.raises(ProbableAuthenticationError, match="ACCESS_REFUSED"):
        BlockingConnection(
            pika.ConnectionParameters(*brokers.front.address, "orders", pika.PlainCredentials("1", "wrong"))
        )
    with pytest.raises(ProbableAccessDeniedError, match=r"530.*access to vhost 'orders' refused"):
        connect(brokers.front, user="2")


def test_a_client_that_asks_is_told_the_address(brokers: Brokers) -> None:
    """A client with the capability gets 320 and the address of the first broker that is there."""
    told = {"capabilities": {"connection.redirect": True}}
    address = f"{HOST}:{brokers.there.address[1]}"
    with pytest.raises(ProbableAccessDeniedError, match=rf"320.*virtual host 'orders' is at {address}"):
        connect(brokers.front, client_properties=told)
    assert not [line for line in brokers.front.lines if "unexpected error" in line]


def test_a_broker_without_the_virtual_host_is_passed_over(brokers: Brokers, tmp_path: Path) -> None:
    """A client gets to the one that has it, and the refusal if none has."""
    there = f"{HOST}:{brokers.there.address[1]}"
    with server(tmp_path / "without") as without:
        gone = f"{HOST}:{without.address[1]}"
        more = {"vhosts.broker.orders": f"{gone},{there}", "vhosts.broker.none": f"{gone},{there}"}
        with server(tmp_path / "front", **more) as front:
            connect(front).close()
            with pytest.raises(ProbableAccessDeniedError, match=r"530.*vhost none not found"):
                connect(front, "none")


def test_a_broker_that_forwards_too_is_passed_over(brokers: Brokers, tmp_path: Path) -> None:
    """An address that a front has got instead of the broker keeps no client from the one that is there."""
    there = f"{HOST}:{brokers.there.address[1]}"
    circle = f"{HOST}:{brokers.front.address[1]}"
    with server(tmp_path / "front", vhosts__broker__orders=f"{circle},{there}") as front:
        for _ in range(2):
            connect(front).close()


def test_brokers_that_name_each_other_refuse_the_client(tmp_path: Path) -> None:
    """A client goes once around at most, and is told so; virtual hosts that are there are served."""
    port = free_port()
    with (
        server(tmp_path / "one", vhosts__broker__orders=f"{HOST}:{port}") as one,
        server(
            tmp_path / "two",
            listeners__tcp__1=f"{HOST}:{port}",
            vhosts__broker__orders=f"{HOST}:{one.address[1]}",
        ) as two,
    ):
        for each in (one, two):
            with pytest.raises(ProbableAccessDeniedError, match=r"320.*'orders' is in a circle"):
                connect(each)
            connect(each, "/").close()


def test_a_forwarded_client_takes_two_descriptors() -> None:
    """The limit of clients leaves room for the connection to the other broker."""
    placement = PlacementConfig(elsewhere={"orders": (BrokerAddress(HOST, 1),)})
    alone, front = Server(Config()), ForwardingServer(replace(Config(), placement=placement))

    assert alone.gate.most_sockets // 2 == front.gate.most_sockets
    assert alone.gate.most_sockets == ForwardingServer(Config()).gate.most_sockets


def test_the_end_of_one_side_ends_the_other(brokers: Brokers) -> None:
    """A client whose process is killed leaves no connection there."""
    program = (
        "import pika, sys, time; port, vhost = sys.argv[1:];"
        "p = pika.ConnectionParameters('127.0.0.1', int(port), vhost, pika.PlainCredentials('1', 'one'));"
        "c = pika.BlockingConnection(p).channel(); c.queue_declare('own', exclusive=True);"
        "print('declared', flush=True); time.sleep(60)"
    )
    words = [sys.executable, "-c", program, str(brokers.front.address[1]), "orders"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert b"declared\n" == client.stdout.readline()
        assert 405 == passive_declare(brokers.there, "own")
        client.kill()
    wait_until(lambda: passive_declare(brokers.there, "own") == 404)
    wait_until(lambda: forwarded(brokers)["connections"] == 0)


def passive_declare(running: Running, queue: str) -> int:
    """Return the code of the error of a passive declaration, 0 if there is none."""
    with connect(running) as connection:
        try:
            connection.channel().queue_declare(queue, passive=True)
        except ChannelClosedByBroker as error:
            return int(error.reply_code)
    return 0


def test_a_reader_that_does_not_read_holds_up_only_itself(brokers: Brokers) -> None:
    """Deliveries to a client that reads nothing stop within its buffers, while others are served."""
    with connect(brokers.there) as direct:
        channel = direct.channel()
        channel.queue_declare("much")
        channel.confirm_delivery()
        for _ in range(100):
            channel.basic_publish("", "much", b"x" * 1_000_000)
        with connect(brokers.front) as lazy:
            consuming = lazy.channel()
            consuming.basic_consume("much", lambda *_: None, auto_ack=True)
            lazy._flush_output()
            name = 'bytes_total{direction="out"}'
            passed = [0.0, 1.0]
            deadline = time.monotonic() + 60
            while passed[-1] != passed[-2]:
                assert time.monotonic() < deadline
                time.sleep(0.5)
                passed.append(forwarded(brokers)[name])
            assert passed[-1] < 50_000_000
            with connect(brokers.front) as other:
                assert other.channel().queue_declare("much", passive=True)
        channel.queue_delete("much")
        wait_until(lambda: forwarded(brokers)["connections"] == 0)


@pytest.mark.parametrize("size", [100, 3_000_000])
def test_what_follows_connection_open_is_forwarded(brokers: Brokers, size: int) -> None:
    """A client that waits for no answer gets all of them."""
    check_pipelined(brokers.front.address, "orders", size)


def test_a_client_that_leaves_early_leaves_nothing(tmp_path: Path) -> None:
    """A broker that opens the connection when the client has left is not kept."""
    with socket.socket() as slow:
        slow.settimeout(30)
        slow.bind((HOST, 0))
        slow.listen()
        there = f"{HOST}:{slow.getsockname()[1]}"
        with server(tmp_path / "front", **{"vhosts.broker.orders": there}) as front:
            with socket.create_connection(front.address, timeout=30) as client:
                client.sendall(handshake("orders"))
                upstream = slow.accept()[0]
                upstream.settimeout(30)
                assert upstream.recv(8) == b"AMQP\0\0\x09\x01"
            time.sleep(0.5)
            with upstream:
                upstream.sendall(marshalled(commands.Connection.OpenOk()))
                wait_until(lambda: not upstream.recv(4096))


def test_a_front_of_processes_forwards_too(brokers: Brokers, tmp_path: Path) -> None:
    """A virtual host of another broker is not one of the processes."""
    address = f"{HOST}:{brokers.there.address[1]}"
    with placed(tmp_path, **{"vhosts.broker.orders": address}) as front:
        check_pipelined(front.address, "orders", 100)
        check_pipelined(front.address, "b", 100)


def test_a_virtual_host_that_cannot_be_reached_is_refused(tmp_path: Path) -> None:
    """Without any broker that opens it the client gets 320 in time, and the log names the addresses."""
    with socket.socket() as silent:
        silent.bind((HOST, 0))
        silent.listen()
        gone, dead = free_port(), silent.getsockname()[1]
        with server(tmp_path / "front", **{"vhosts.broker.orders": f"{HOST}:{gone}, {HOST}:{dead}"}) as front:
            began = time.monotonic()
            with pytest.raises(
                ProbableAccessDeniedError, match=r"320.*is elsewhere, and cannot be reached now"
            ):
                connect(front)
            assert time.monotonic() - began < 20
            front.wait_for(f"{HOST}:{dead}: it does not answer")
