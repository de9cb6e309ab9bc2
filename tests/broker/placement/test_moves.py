"""A virtual host is moved to a log of its own: with all that it has, once, whatever ends in between."""

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pika
import pytest

pytest.importorskip("psycopg", reason="the package psycopg is not installed")
import psycopg
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import AMQPError, ProbableAccessDeniedError
from processes.commands import execute
from processes.running import command, environment, serving
from processes.waiting import wait_until
from replicated.cluster import Nodes
from replicated.database import Database, database_in_folder

SECONDS = 60.0
PERSISTENT = pika.BasicProperties(delivery_mode=2)
STREAM = {"x-queue-type": "stream"}


class Log(Nodes):
    def __init__(self, home: Path, url: str, log: str) -> None:
        folder = home / log
        folder.mkdir(exist_ok=True)
        settings = {"replication.log": log, "default_vhost": "a"}
        super().__init__(folder, dict.fromkeys(("n1", "n2"), url), settings=settings)

    def told(self, *words: str) -> str:
        """Run a command at the leader, which succeeds."""
        code, text = self.ctl(self.leader(), *words)
        assert not code, text
        return text

    def listed_vhosts(self) -> set[str]:
        return set(self.told("list_vhosts", "name").split()) - {"Listing", "vhosts", "...", "name"}

    def to(self, vhost: str) -> BlockingConnection:
        where = pika.ConnectionParameters("127.0.0.1", self.ports[self.leader()], vhost, stack_timeout=10)
        return BlockingConnection(where)


class Place(NamedTuple):
    database: Database
    home: Path
    ending: ExitStack
    a: Log

    def log(self, name: str, *, is_started: bool = True) -> Log:
        """Start the nodes of a log, or leave that to the test."""
        nodes = Log(self.home, self.database.url, name)
        self.ending.callback(nodes.kill_all, wiped=True)
        if is_started:
            nodes.start_all()
        return nodes

    def logs_of(self, vhost: str) -> list[str]:
        """Return the logs that have a virtual host by the directory."""
        found: list[str] = []
        with psycopg.connect(self.database.url, connect_timeout=5, autocommit=True) as connection:
            query = (
                "select relnamespace::regnamespace::text from pg_class where relname = 'leveret_directory'"
            )
            for (log,) in connection.execute(query).fetchall():
                named = f"select from {log}.leveret_directory where %s = any(vhosts)"
                found += [log] if connection.execute(named, (vhost.encode(),)).fetchall() else []
        return found

    def has_log(self, name: str) -> bool:
        return self.database.has_log(name)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """Run a database, and two nodes of the log `a`, which has a virtual host of that name."""
    with ExitStack() as ending:
        home, database = ending.enter_context(database_in_folder("leveret-v-"))
        a = Log(home, database.url, "a")
        ending.callback(a.kill_all, wiped=True)
        a.start_all()
        yield Place(database, home, ending, a)


def add(log: Log, vhost: str) -> None:
    log.told("add_vhost", vhost)
    log.told("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")


def bodies(connection: BlockingConnection, queue: str) -> list[bytes]:
    channel, found = connection.channel(), []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(got[2])
    return found


@pytest.mark.timeout(300)
def test_a_virtual_host_goes_with_all_that_it_has(place: Place) -> None:
    """Its queues, bindings, policies and permissions are in the new log only, and what others have in the old one only.

    Clients get to it through a front that has the addresses of both logs.
    """
    a, b = place.a, place.log("b", is_started=False)
    ports = [*a.ports.values(), *b.ports.values()]
    settings = {"vhosts.broker.orders": ",".join(f"127.0.0.1:{port}" for port in ports)}
    (place.home / "front").mkdir()
    front = place.ending.enter_context(serving(place.home / "front", settings=settings))
    where = pika.ConnectionParameters(*front.address, "orders", stack_timeout=10)
    add(a, "orders")
    a.told("set_policy", "-p", "orders", "most", "^q$", '{"max-length": 100}')
    large = b"x" * 5_000_000
    with BlockingConnection(where) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("e", "topic", durable=True)
        channel.queue_declare("q", durable=True)
        channel.queue_declare("first", durable=True, arguments={"x-max-priority": 3})
        channel.queue_declare("s", durable=True, arguments=STREAM)
        channel.queue_declare("later", durable=True, arguments={"x-allow-hold": True})
        channel.queue_bind("q", "e", "k.#")
        for body in (b"one", large, b"three"):
            channel.basic_publish("e", "k.1", body, PERSISTENT)
        for priority in (1, 3, 2):
            properties = pika.BasicProperties(delivery_mode=2, priority=priority)
            channel.basic_publish("", "first", bytes([priority]), properties)
        channel.basic_publish("", "s", b"kept", PERSISTENT)
        due = pika.BasicProperties(
            delivery_mode=2, headers={"x-deliver-at": int(time.time() * 1000) + 3_600_000}
        )
        channel.basic_publish("", "later", b"held", due)
    with a.to("a") as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        channel.basic_publish("", "q", b"of a", PERSISTENT)

    assert "done, after" in a.told("move_vhost", "orders", "b")

    assert {"a"} == a.listed_vhosts()
    with pytest.raises(ProbableAccessDeniedError, match="530"):
        a.to("orders")
    assert "orders" not in a.told("list_user_permissions", "guest")
    assert "Virtual host 'orders': in log b" in a.told("cluster_status")
    with pytest.raises(ProbableAccessDeniedError, match="530"):
        BlockingConnection(where)
    b.start_all()
    assert {"orders"} == b.listed_vhosts()
    assert "^q$" in b.told("list_policies", "-p", "orders")
    words = ["held", "list", "later", "-p", "orders", "--data-dir", str(b.home / b.leader())]
    assert "(default)  later" in execute([*command(), *words], env=environment(), timeout=SECONDS).stdout
    with BlockingConnection(where) as connection:
        channel = connection.channel()
        assert [b"one", large, b"three"] == bodies(connection, "q")
        assert [b"\3", b"\2", b"\1"] == bodies(connection, "first")
        channel.basic_qos(prefetch_count=1)
        for _, _, body in channel.consume("s", arguments={"x-stream-offset": "first"}, inactivity_timeout=30):
            assert b"kept" == body
            break
        channel.cancel()
        channel.basic_publish("e", "k.2", b"bound")
        wait_until(lambda: bodies(connection, "q") == [b"bound"])
    with a.to("a") as connection:
        assert [b"of a"] == bodies(connection, "q")


@pytest.mark.timeout(300)
def test_a_name_can_be_used_again(place: Place) -> None:
    """A new virtual host of the name of one that was moved stays, also when another node leads."""
    a = place.a
    add(a, "again")
    a.told("move_vhost", "again", "first")
    add(a, "again")
    a.kill(a.leader())
    a.start_all()
    assert "again" in a.listed_vhosts()
    a.told("move_vhost", "again", "second")
    assert "again" not in a.listed_vhosts()


@pytest.mark.timeout(300)
def test_what_cannot_be_moved_stays(place: Place) -> None:
    """Nobody is disconnected for a name that is wrong or taken, nor at a node that waits."""
    a = place.a
    leader = a.leader()
    (waiting,) = a.waiting()
    with a.to("a") as connection:
        for vhost, log, why in (
            ("a", "a", "there is a log, or another schema, 'a'"),
            ("a", "public", "there is a log, or another schema, 'public'"),
            ("a", 'x"y', "must be at most 40 lower-case letters"),
            ("nothing", "new", "Not Found"),
        ):
            code, text = a.ctl(leader, "move_vhost", vhost, log)
            assert why in text
            assert code
        code, text = a.ctl(waiting, "move_vhost", "a", "new")
        assert f"{leader} leads" in text
        assert code
        assert connection.channel().is_open
    assert not place.has_log("new")


# -- ends in between ----------------------------------------------------------------------------------------------


class Held:
    """A session that holds the move up at a step, by a lock that it needs there."""

    def __init__(self, database: Database, table: str) -> None:
        url = f"host={database.socket(database.primary)} user=leveret dbname=leveret"
        self.connection = psycopg.connect(url, connect_timeout=5)
        self.connection.execute(f"lock table a.{table} in access exclusive mode")
        self._database = database

    def wait(self) -> int:
        """Wait until the move is held up; returns the process id of its backend."""
        found: list[Any] = []

        def is_waiting() -> bool:
            found[:] = self._database.sql(
                self._database.primary,
                "select pid from pg_stat_activity where wait_event_type = 'Lock' and state = 'active' and (query like "
                "'lock table leveret_snapshot%' or query like 'insert into leveret_log%')",
            )
            return bool(found)

        wait_until(is_waiting, 30)
        return int(found[0][0])

    def release(self) -> None:
        self.connection.close()


@contextlib.contextmanager
def at_first_lock(database: Database) -> Iterator[Callable[[], int]]:
    """Hold the move up when the lease is given back, and nothing is made."""
    held = Held(database, "leveret_snapshot")
    try:
        yield held.wait
    finally:
        held.release()


@contextlib.contextmanager
def at_copy(database: Database) -> Iterator[Callable[[], int]]:
    """Hold the move up when the new log has its tables, some of them filled."""
    first = Held(database, "leveret_snapshot")
    second: list[Held] = []

    def wait() -> int:
        first.wait()
        ((number,),) = database.sql(
            database.primary, "select max(number) from a.leveret_segments", database="leveret"
        )
        second.append(Held(database, f"leveret_log_{number}"))
        first.release()
        return second[0].wait()

    try:
        yield wait
    finally:
        for each in (first, *second):
            each.release()


@contextlib.contextmanager
def at_commit(database: Database) -> Iterator[Callable[[], int]]:
    """Hold the move up when the primary has committed it, and no standby has."""

    def wait() -> int:
        first.wait()
        for name in database.standbys:
            database.lag(name)
        first.release()
        query = "select pid from pg_stat_activity where wait_event = 'SyncRep' and query = 'COMMIT'"
        wait_until(lambda: database.sql(database.primary, query), 30)
        return int(database.sql(database.primary, query)[0][0])

    first = Held(database, "leveret_snapshot")
    try:
        yield wait
    finally:
        first.release()
        database.resume()


ENDS = ("node", "command", "connection", "server", "primary", "nothing")
ALL = [(step, ended) for step in (at_first_lock, at_copy, at_commit) for ended in ENDS]
CASES = ALL if "LEVERET_TEST_MOVES" in os.environ else [*ALL[6:10], ALL[12], ALL[15]]
"""All take four minutes, of which the copy and the commit have the more likely faults."""


class Sender:
    """Publishes numbers to a queue, with confirms, until it cannot any more."""

    def __init__(self, log: Log, vhost: str) -> None:
        self._connection = log.to(vhost)
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()
        self._channel.queue_declare("q", durable=True)
        self.confirmed: list[bytes] = []
        self.sent = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(AMQPError):
            while True:
                self.sent += 1
                body = str(self.sent).encode()
                self._channel.basic_publish("", "q", body, PERSISTENT)
                self.confirmed.append(body)

    def check(self, found: list[bytes]) -> None:
        """Check that a queue has each confirmed message once, in order, and at most the one under way besides."""
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()
        assert self.confirmed
        assert found[: len(self.confirmed)] == self.confirmed
        assert found[len(self.confirmed) :] in ([], [str(self.sent).encode()])


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("step", "ended"), CASES)
def test_a_move_is_made_whole_or_not_at_all(
    place: Place, step: Callable[[Database], Any], ended: str
) -> None:
    """After the end of the node, the command or the connection in a step the virtual host is in exactly one log."""
    a, database = place.a, place.database
    vhost, log = f"v_{step.__name__}_{ended}", f"l_{step.__name__}_{ended}"
    add(a, vhost)
    sender = Sender(a, vhost)
    leader = a.leader()
    wait_until(lambda: len(sender.confirmed) > 20)
    wait_until(lambda: place.logs_of(vhost) == ["a"])  # the leader looks each half second
    with ExitStack() as ending:
        moving = ending.enter_context(subprocess.Popen(a.words(leader, "move_vhost", vhost, log)))
        ending.callback(moving.kill)
        with step(database) as wait:
            pid = wait()
            assert not place.has_log(log)
            assert place.logs_of(vhost) == ["a"]
            if ended == "node":
                a.kill(leader)
            elif ended == "command":
                moving.kill()
            elif ended == "connection":
                database.sql(database.primary, f"select pg_terminate_backend({pid})")
            elif ended == "server":
                database.kill(database.primary)
                database.start(database.primary)
            elif ended == "primary":
                database.kill(database.primary)
                database.resume()
                database.promote()
        is_moved = ended in {"command", "nothing"} or step is at_commit
        if ended == "primary":  # its commit may have been on its way to the standbys
            is_moved = place.has_log(log)
            database.heal()
        if ended not in {"command", "node"}:
            assert is_moved is not bool(moving.wait(SECONDS))
    a.start_all()
    try:
        wait_until(lambda: place.has_log(log) is is_moved, 30)
    except AssertionError:
        raise AssertionError("".join(a.log(name)[-3000:] for name in a.ports)) from None
    wait_until(lambda: place.logs_of(vhost) == [log if is_moved else "a"], 30)
    where = place.log(log) if is_moved else a
    assert (vhost in a.listed_vhosts()) is not is_moved
    assert vhost in where.listed_vhosts()
    with where.to(vhost) as connection:
        sender.check(bodies(connection, "q"))
    if is_moved:
        assert {vhost} == where.listed_vhosts()
        where.kill_all(wiped=True)
