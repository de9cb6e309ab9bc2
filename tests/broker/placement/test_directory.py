"""Clients find the log of their virtual host, and the node that leads it, by the directory in the database."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pika
import pytest

pytest.importorskip("psycopg", reason="the package psycopg is not installed")
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import AMQPError, ConnectionClosedByBroker, ProbableAccessDeniedError
from processes.running import Running, serving
from processes.waiting import wait_until
from replicated.database import Database, database_in_folder
from replicated.placed import SECONDS, Log, told

MACHINES = ("n1", "n2")
LOGS = ("a", "b", "c", "d")


class Place(NamedTuple):
    database: Database
    home: Path
    ending: ExitStack
    logs: dict[str, Log]
    front: Running
    front_home: Path

    def connect(self, vhost: str) -> BlockingConnection:
        return BlockingConnection(pika.ConnectionParameters(*self.front.address, vhost, stack_timeout=10))

    def eventually(self, vhost: str, seconds: float = SECONDS) -> BlockingConnection:
        """Connect, again and again until that succeeds."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self.connect(vhost)
            except AMQPError:
                assert time.monotonic() < deadline
                time.sleep(0.2)

    def leaders(self) -> dict[str, str]:
        text = told(self.front_home, "cluster_status")
        found, name = {}, ""
        for line in text.splitlines():
            if line.startswith("Log "):
                name = line.split()[1]
            elif line.startswith("Leader: "):
                found[name] = line.removeprefix("Leader: ")
        return found


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """Run a database with four logs, all led by n1, and a broker that is a node of none."""
    with ExitStack() as ending:
        home, database = ending.enter_context(database_in_folder("leveret-d-"))
        logs = {}
        for name in LOGS:
            log = logs[name] = Log(home, database.url, name, machines=MACHINES)
            ending.callback(log.kill_all, wiped=False)
            log.start("n1")
        for log in logs.values():
            wait_until(lambda log=log: log.leads("n1"), SECONDS)
            log.start("n2")
        (home / "front").mkdir()
        settings = {"vhosts.directory": database.url}
        front = ending.enter_context(serving(home / "front", settings=settings))
        yield Place(database, home, ending, logs, front, front.data_dir)


@pytest.mark.timeout(300)
def test_each_client_gets_to_the_log_of_its_virtual_host(place: Place) -> None:
    """Without a word about it in the configuration; one that is added is found within a second."""
    for name, log in place.logs.items():
        with place.eventually(name) as connection:
            connection.channel().queue_declare(f"of_{name}", durable=True)
        assert f"of_{name}" in log.told("list_queues", "-p", name)
    place.logs["b"].told("add_vhost", "orders")
    place.logs["b"].told("set_permissions", "-p", "orders", "guest", ".*", ".*", ".*")
    with place.eventually("orders", 3.0) as connection:
        connection.channel().queue_declare("q", durable=True)
    assert "q" in place.logs["b"].told("list_queues", "-p", "orders")


@pytest.mark.timeout(300)
def test_a_virtual_host_of_no_log_is_refused(place: Place) -> None:
    """Also the one that the broker itself has: its clients would be cut off from those of a log."""
    for name in ("/", "nothing"):
        with pytest.raises(
            (ProbableAccessDeniedError, ConnectionClosedByBroker), match=rf"vhost {name} not found"
        ):
            place.connect(name)


@pytest.mark.timeout(300)
def test_leads_are_balanced(place: Place) -> None:
    """Of four logs each of two nodes leads two then, and a second time nothing is moved."""
    wait_until(lambda: set(place.leaders().values()) == {"n1"}, SECONDS)
    assert place.leaders().keys() == set(LOGS)

    time.sleep(5)
    moved = told(place.front_home, "cluster_balance")

    found = sorted(place.leaders().values())
    assert found == ["n1", "n1", "n2", "n2"], moved
    assert "n2" not in told(place.front_home, "cluster_balance")
    for name in LOGS:
        with place.eventually(name) as connection:
            connection.channel().queue_declare(f"of_{name}", durable=True, passive=True)


@pytest.mark.timeout(300)
def test_a_virtual_host_that_is_moved_is_found_in_its_new_log(place: Place) -> None:
    """The directory changes with the move, and the other node serves clients after a leader is killed."""
    log = place.logs["a"]
    log.told("add_vhost", "busy")
    log.told("set_permissions", "-p", "busy", "guest", ".*", ".*", ".*")
    with place.eventually("busy", 3.0) as connection:
        connection.channel().queue_declare("kept", durable=True)

    log.told("move_vhost", "busy", "e")

    assert place.database.sql(
        place.database.primary, "select vhosts from e.leveret_directory", database="leveret"
    ) == [([b"busy"],)]
    with pytest.raises(AMQPError, match="320"):
        place.connect("busy")
    new = Log(place.home, place.database.url, "e", "busy", machines=MACHINES)
    place.ending.callback(new.kill_all, wiped=False)
    new.start_all()
    with place.eventually("busy") as connection:
        connection.channel().queue_declare("kept", durable=True, passive=True)
    assert "busy" not in log.told("list_vhosts")
    new.kill(new.leader())
    with place.eventually("busy") as connection:
        connection.channel().queue_declare("kept", durable=True, passive=True)
