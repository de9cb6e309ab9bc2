"""Users of one log count for all logs of a database, and at a broker that forwards clients to them."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pika
import pytest

pytest.importorskip("psycopg", reason="the package psycopg is not installed")
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import AMQPError, ProbableAuthenticationError
from processes.commands import execute
from processes.running import Running, command, environment, serving
from processes.waiting import wait_until
from replicated.database import Database, database_in_folder
from replicated.placed import SECONDS, Log, told

MACHINES = ("n1", "n2")
ALL = (".*", ".*", ".*")
FOLLOWS_SECONDS = 10.0
"""Time for a change to be felt everywhere; two seconds where there is time to compute."""


class Place(NamedTuple):
    database: Database
    home: Path
    logs: dict[str, Log]
    front: Running

    @property
    def users(self) -> Log:
        return self.logs["users"]

    def client(self, port: int, vhost: str, name: str, password: str) -> BlockingConnection:
        credentials = pika.PlainCredentials(name, password)
        return BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", port, vhost, credentials, stack_timeout=10)
        )

    def ports(self, log: str) -> tuple[int, int]:
        """Return the port of the front, and that of the node that leads a log."""
        nodes = self.logs[log]
        return self.front.address[1], nodes.ports[nodes.leader()]

    def lets_in(self, log: str, name: str, password: str) -> list[bool]:
        """Return whether a user gets into the virtual host of a log: by the front, and at its leader."""
        found = []
        for port in self.ports(log):
            try:
                self.client(port, log, name, password).close()
            except AMQPError:
                found.append(False)
            else:
                found.append(True)
        return found

    def add(self, name: str, password: str, *logs: str) -> None:
        self.users.told("add_user", name, password)
        for log in logs:
            self.users.told("set_permissions", "-p", log, name, *ALL)


def is_closed(connection: BlockingConnection) -> bool:
    """Return whether the broker has closed a connection."""
    try:
        connection.channel().close()
    except AMQPError:
        return True
    return False


def refused(folder: Path, *words: str) -> str:
    """Run a command that fails."""
    done = execute([*command("ctl", "--data-dir", str(folder)), *words], env=environment(), timeout=SECONDS)
    assert done.returncode
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """Run the log `users`, another one, and a front; each log has two nodes."""
    with ExitStack() as ending:
        home, database = ending.enter_context(database_in_folder("leveret-u-"))
        settings = {"vhosts.users_log": "users"}
        logs = {}
        for name in ("users", "other"):
            log = logs[name] = Log(home, database.url, name, machines=MACHINES, settings=settings)
            ending.callback(log.kill_all, wiped=False)
            log.start("n1")
        for log in logs.values():
            wait_until(lambda log=log: log.leads("n1"), SECONDS)
            log.start("n2")
        (home / "front").mkdir()
        front = ending.enter_context(
            serving(home / "front", settings=settings | {"vhosts.directory": database.url})
        )
        yield Place(database, home, logs, front)


@pytest.mark.timeout(300)
def test_a_user_of_the_one_log_may_use_the_others(place: Place) -> None:
    """With rights in virtual hosts that are in other logs, and no right elsewhere; until the user is deleted."""
    wait_until(lambda: "other" in told(place.front.data_dir, "cluster_status"), SECONDS)
    assert place.lets_in("other", "guest", "guest") == [False, False]
    place.users.told("set_permissions", "-p", "other", "guest", *ALL)
    place.add("alice", "first", "other")
    wait_until(lambda: place.lets_in("other", "alice", "first") == [True, True], FOLLOWS_SECONDS)
    assert place.lets_in("users", "alice", "first") == [False, False]
    assert place.lets_in("other", "alice", "second") == [False, False]
    connection = place.client(place.ports("other")[0], "other", "alice", "first")
    connection.channel().queue_declare("q", durable=True)
    place.users.told("delete_user", "alice")
    wait_until(lambda: is_closed(connection), FOLLOWS_SECONDS)
    wait_until(lambda: place.lets_in("other", "alice", "first") == [False, False], FOLLOWS_SECONDS)


@pytest.mark.timeout(300)
def test_users_are_changed_where_they_are(place: Place) -> None:
    """Elsewhere a change is refused, and the answer says who can make it; nothing has changed then."""
    other = place.logs["other"]
    leader = place.users.leader()
    where = f"the users are those of log users: change them at its leader, {leader} at 127.0.0.1"
    for folder in (other.home / other.leader(), place.front.data_dir):
        for words in (
            ("add_user", "bob", "secret"),
            ("delete_user", "guest"),
            ("change_password", "guest", "new"),
            ("set_permissions", "-p", "other", "guest", "", "", ""),
            ("clear_permissions", "-p", "other", "guest"),
            ("set_topic_permissions", "-p", "other", "guest", "amq.topic", ".*", ".*"),
            ("set_user_limits", "guest", '{"max-connections": 1}'),
            ("set_global_parameter", "a", "1"),
            ("set_cluster_name", "another"),
        ):
            assert where in refused(folder, *words), words
        assert "bob" not in told(folder, "list_users")
    assert place.lets_in("users", "guest", "guest") == [True, True]


@pytest.mark.timeout(300)
def test_a_password_that_was_changed_counts_after_a_takeover(place: Place) -> None:
    """Of the other log, whose next leader reads the users before it opens its port; also without a leader of theirs."""
    place.add("carol", "first", "other")
    wait_until(lambda: place.lets_in("other", "carol", "first") == [True, True], FOLLOWS_SECONDS)
    other = place.logs["other"]
    leader = other.leader()
    (waiting,) = other.waiting()
    time.sleep(5)

    other.signal(waiting, 19)  # it misses the change
    place.users.told("change_password", "carol", "second")
    wait_until(lambda: place.lets_in("other", "carol", "second") == [True, True], FOLLOWS_SECONDS)
    place.users.kill(place.users.leader())
    other.kill(leader)
    other.signal(waiting, 18)

    assert other.leader() == waiting
    port = other.ports[waiting]
    with pytest.raises(ProbableAuthenticationError):
        place.client(port, "other", "carol", "first")
    wait_until(lambda: place.lets_in("other", "carol", "second") == [True, True], SECONDS)
    place.users.start_all()
    other.start_all()


@pytest.mark.timeout(300)
def test_logins_go_on_without_the_log_of_the_users(place: Place) -> None:
    """By the last users that it has published, also at a node that begins to lead; both say so."""
    place.add("dave", "first", "other")
    wait_until(lambda: place.lets_in("other", "dave", "first") == [True, True], FOLLOWS_SECONDS)
    other = place.logs["other"]
    time.sleep(5)
    place.users.kill_all(wiped=False)
    other.kill(other.leader())

    assert place.lets_in("other", "dave", "first") == [True, True]
    for folder in (other.home / other.leader(), place.front.data_dir):
        wait_until(
            lambda folder=folder: "no node leads log users: its users stay" in told(folder, "cluster_status"),
            SECONDS,
        )
    place.users.start_all()
    other.start_all()


@pytest.mark.timeout(300)
def test_rights_end_with_their_virtual_host(place: Place) -> None:
    """Also those in one of another log, half a minute after nobody has it any more."""
    other = place.logs["other"]
    other.told("add_vhost", "short")
    wait_until(lambda: "short" in told(place.front.data_dir, "cluster_status"), FOLLOWS_SECONDS)
    wait_until(
        lambda: not place.users.ctl(place.users.leader(), "set_permissions", "-p", "short", "guest", *ALL)[0],
        FOLLOWS_SECONDS,
    )
    assert "short" in place.users.told("list_user_permissions", "guest")
    other.told("delete_vhost", "short")
    wait_until(lambda: "short" not in place.users.told("list_user_permissions", "guest"), SECONDS)
