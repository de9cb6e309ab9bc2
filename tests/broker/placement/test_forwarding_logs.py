"""Virtual hosts placed on logs: two machines, two logs in one database, and a broker on each that forwards clients."""

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import AMQPError

pytest.importorskip("psycopg", reason="the package psycopg is not installed")
from processes.running import Running, serving
from processes.waiting import wait_until
from replicated.cluster import Nodes
from replicated.database import database_in_folder

MACHINES = ("n1", "n2")
TAKEOVER_SECONDS = 30.0
PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Machines:
    """Nodes of two logs, `a` and `b`, which have virtual hosts of these names; n1 leads the first, n2 the second."""

    def __init__(self, home: Path, url: str, ending: ExitStack) -> None:
        self.logs: dict[str, Nodes] = {}
        for log, leader in (("a", "n1"), ("b", "n2")):
            folder = home / log
            folder.mkdir()
            settings = {"replication.log": log, "default_vhost": log}
            nodes = self.logs[log] = Nodes(folder, dict.fromkeys(MACHINES, url), settings=settings)
            ending.callback(nodes.kill_all, wiped=False)
            nodes.start(leader)
            wait_until(lambda nodes=nodes, leader=leader: nodes.leads(leader), 60)
            nodes.start("n2" if leader == "n1" else "n1")
        elsewhere = {
            f"vhosts.broker.{log}": ",".join(f"127.0.0.1:{port}" for port in nodes.ports.values())
            for log, nodes in self.logs.items()
        }
        self.fronts: dict[str, Running] = {}
        for name in MACHINES:
            folder = home / name
            folder.mkdir()
            self.fronts[name] = ending.enter_context(serving(folder, settings=elsewhere))

    def kill(self, machine: str) -> None:
        for nodes in self.logs.values():
            nodes.kill(machine)
        self.fronts[machine].process.send_signal(signal.SIGKILL)


@pytest.fixture
def machines() -> Iterator[Machines]:
    with ExitStack() as ending:
        home, database = ending.enter_context(database_in_folder("leveret-m-"))
        yield Machines(home, database.url, ending)


def connect(front: Running, vhost: str) -> BlockingConnection:
    return BlockingConnection(pika.ConnectionParameters(*front.address, vhost, stack_timeout=10))


@pytest.mark.timeout(300)
def test_clients_come_to_any_machine(machines: Machines) -> None:
    """A client of either log is served on either machine, and on the other one soon after the death of one."""
    for vhost in ("a", "b"):
        with connect(machines.fronts["n1"], vhost) as one, connect(machines.fronts["n2"], vhost) as other:
            channel = one.channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True)
            channel.basic_publish("", "q", b"message", PERSISTENT)
            assert 1 == other.channel().queue_declare("q", passive=True).method.message_count

    machines.kill("n1")

    for vhost in ("a", "b"):
        deadline = time.monotonic() + TAKEOVER_SECONDS
        while True:
            try:
                with connect(machines.fronts["n2"], vhost) as connection:
                    assert b"message" == connection.channel().basic_get("q", auto_ack=True)[2]
                break
            except AMQPError:
                assert time.monotonic() < deadline
                time.sleep(0.2)
