"""Changes of users, rights and limits, from the front to its processes."""

from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from hypothesis import given, strategies as st

from leveret.broker.auth.name_patterns import Patterns
from leveret.broker.auth.users import User, UserLimits, VHostLimits
from leveret.broker.metadata.directory import Directory
from leveret.broker.metadata.recorder import Definitions, NullJournal, StoredUsers
from leveret.broker.placement import shared_users
from leveret.broker.placement.messages import AnyMessage, Changed, Placed, Removed, Rows
from leveret.broker.placement.node_rows import (
    FollowedRows,
    PublishedRows,
    SettledChanges,
    in_order,
    is_shared,
)
from leveret.broker.placement.shared_users import SharedUsers
from leveret.broker.replication.directory import LogFacts
from leveret.broker.replication.engine import ORIGIN, Member, NoAnswerError
from leveret.broker.scheduling.loop import Loop
from leveret.broker.scheduling.time_source import TimeSource
from leveret.broker.vhost.vhost import Metadata, VHost
from leveret.storage.store.metadata_rows import (
    GlobalParameterRow,
    PermissionRow,
    UserRow,
    VHostLimitsRow,
    encode,
)


class LateJournal(NullJournal):
    """A journal whose commits are done when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[bool], object]] = []

    def when_safe(self, callback: Callable[[bool], object]) -> None:
        self.waiting.append(callback)

    def commit(self) -> None:
        """Settle what was written so far, and what waits then, as nothing else is written."""
        while self.waiting:
            waiting, self.waiting = self.waiting, []
            for callback in waiting:
                callback(True)


def at_once(work: Callable[[], object]) -> None:
    work()


class Node:
    """A directory that records to a journal."""

    def __init__(self, journal: NullJournal | SettledChanges) -> None:
        loop = Loop(TimeSource())
        definitions = Definitions(journal, count(1).__next__)  # type: ignore[arg-type]
        users = StoredUsers(definitions, ())
        self.users = users
        self.directory = Directory(
            loop, definitions, users, Patterns(), (), lambda name: VHost(name, loop.turn, loop.context)
        )


def state(node: Node) -> object:
    users = node.users
    return (
        sorted((user.name, user.password_hash, user.tags) for user in users.all()),
        sorted(
            (user, vhost, row.configure, row.write, row.read) for user, vhost, row in users.permission_rows()
        ),
        sorted(users.topic_permission_rows()),
        users.user_limits("u"),
        users.vhost_limits("v"),
        node.directory.global_parameters.get("p"),
    )


def test_processes_follow_each_change_once_it_is_on_disk() -> None:
    """Changes in the front are made in a process after the commit, in that order, and not before."""
    journal, told = LateJournal(), list[AnyMessage]()
    settled = SettledChanges(journal, told.append, at_once)
    front, process = Node(settled), Node(NullJournal())
    followed = FollowedRows(process.directory)

    def commit() -> None:
        journal.commit()
        for message in told:
            if isinstance(message, Changed):
                followed.follow(message.rows)
        told.clear()

    users = front.users
    users.add(User("u", "hash", ("monitoring",)))
    users.set_permissions("u", "v", "a.*", ".*", "")
    users.set_topic_permissions("u", "v", "amq.topic", "x", "y")
    users.set_user_limits("u", UserLimits(max_connections=3))
    users.set_vhost_limits("v", VHostLimits(max_queues=2))
    front.directory.global_parameters.set("p", {"a": [1]})
    assert told == []
    commit()
    assert state(front) == state(process)

    users.clear_topic_permissions("u", "v")
    users.clear_vhost_limits("v")
    front.directory.global_parameters.clear("p")
    commit()
    assert state(front) == state(process)

    users.remove("u")
    users.add(User("u", "other", ()))
    commit()
    assert state(front) == state(process)
    assert not process.users.may_access("u", "v")


def test_a_process_that_starts_gets_the_rows_as_they_are() -> None:
    """The rows of an earlier run and of this one make the same users in a new process."""
    earlier = SettledChanges(NullJournal(), lambda _message: None, at_once)
    node = Node(earlier)
    node.users.add(User("u", "hash", ()))
    node.users.set_permissions("u", "v", ".*", ".*", ".*")
    node.users.add(User("gone", "hash", ()))
    node.users.remove("gone")
    later = SettledChanges(NullJournal(), lambda _message: None, at_once)
    later.restore([(key, value) for key, value in earlier.rows if value is not None])
    process = Node(NullJournal())
    FollowedRows(process.directory).follow(later.rows)

    assert state(node) == state(process)


def test_virtual_hosts_are_told_of() -> None:
    """A new virtual host, its metadata and its end are told in the order of the changes, with the end of all."""
    journal, told = LateJournal(), list[object]()
    settled = SettledChanges(journal, told.append, at_once)
    node = Node(settled)

    vhost = node.directory.add_vhost("v")
    settled.on_sent = lambda: told.append("sent")
    assert told == []
    assert not settled.are_sent
    journal.commit()
    assert settled.are_sent
    vhost.metadata = Metadata("text")
    node.directory.definitions.update_vhost(vhost)
    node.directory.remove_vhost(vhost)
    journal.commit()

    assert [Placed, str, Placed, Removed, str] == [type(each) for each in told]


ROWS: list[Callable[[bytes, bytes], Any]] = [
    lambda name, value: UserRow(name, value, b"", []),
    lambda name, value: PermissionRow(name, b"/", value, b"", b""),
    GlobalParameterRow,
    lambda name, value: VHostLimitsRow(name, len(value), None),
]
NAMES = st.sampled_from([b"a", b"b"])
CHANGES = st.builds(
    lambda made, is_set: (made.key(), encode(made) if is_set else None),
    st.one_of([st.builds(make, NAMES, st.sampled_from([b"", b"1"])) for make in ROWS]),
    st.booleans(),
)
STEPS = st.lists(st.one_of(CHANGES, st.sampled_from(["published", "unanswered", "read", "next leader"])))


class Database:
    """A database with the users that the leader of a log has published: rows with the number of their description."""

    def __init__(self) -> None:
        self.table: dict[bytes, tuple[bytes | None, int]] = {}
        self.epoch, self.number, self.reads = 1, 0, 0
        self.is_away = False

    async def read(self) -> list[LogFacts]:
        if self.is_away:
            raise NoAnswerError("away")
        self.reads += 1
        return [LogFacts("users", self.epoch, "n1", (), (Member("n1", "", ORIGIN, self.reads),))]

    async def users(self, _log: str, since: tuple[int, int]) -> Any:
        is_whole = since[0] != self.epoch
        rows = [(key, value) for key, (value, at) in self.table.items() if is_whole or at > since[1]]
        return self.epoch, self.number, rows, is_whole

    def publish(self, published: PublishedRows, *, is_answered: bool) -> None:
        self.number += 1
        rows = published.changes()
        if published.is_whole:
            self.table.clear()
        self.table.update({key: (value, self.number) for key, value in rows})
        if is_answered:
            published.kept(rows)


@given(STEPS)
def test_those_who_follow_have_what_the_leader_has(steps: list[Any]) -> None:
    """Whatever is published twice, has no answer, or is read late; what belongs to one log is not published."""
    database = Database()
    stored: dict[bytes, bytes] = {}
    followed: dict[bytes, bytes] = {}
    published = PublishedRows([])
    shared = SharedUsers(database, "users", is_owner=False)

    def follow(changes: Rows) -> None:
        for key, value in changes:
            assert followed.get(key) != value
            followed.pop(key, None)
            if value is not None:
                followed[key] = value

    shared.on_change = follow
    for step in [*steps, "published", "read"]:
        match step:
            case (key, value):
                stored.pop(key, None)
                if value is not None:
                    stored[key] = value
                published.take(Changed([(key, value)]))
            case "next leader":
                database.epoch, database.number = database.epoch + 1, 0
                published = PublishedRows(list(stored.items()))
                database.publish(published, is_answered=True)
            case "read":
                at_once_done(shared.read())
            case _:
                database.publish(published, is_answered=step == "published")
    assert shared.rows == followed == {key: value for key, value in stored.items() if is_shared(key)}
    assert not any(key[:1] == VHostLimitsRow.kind for key in followed)


def at_once_done(work: Coroutine[Any, Any, None]) -> None:
    """Run what waits for nothing."""
    with suppress(StopIteration):
        work.send(None)


def test_users_that_could_not_be_read_are_told_to_be_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their age rises without an answer, from ten seconds the problem tells it, and the next answer ends both."""
    now = 100.0
    monkeypatch.setattr(shared_users.time, "monotonic", lambda: now)
    database = Database()
    shared = SharedUsers(database, "users", is_owner=False)
    assert (None, "the database was not asked yet") == (shared.age, shared.warning)
    for at, is_away, age, problem in (
        (100, False, 0, ""),
        (109, True, 9, "the database does not answer: away"),
        (111, True, 11, "the users of log users were read 11 s ago: the database does not answer: away"),
        (112, False, 0, ""),
    ):
        now, database.is_away = at, is_away
        at_once_done(shared.read())
        assert (age, problem) == (shared.age, shared.warning)
    now = 130
    assert "the users of log users were read 18 s ago: no answer yet" == shared.warning


def test_a_user_is_deleted_behind_its_rights() -> None:
    """So that its clients are told of its end; what is new comes in the order in which rows need each other."""
    user, right = UserRow.kind + b"a", PermissionRow.kind + b"a"
    assert [(user, b"1"), (right, b"2")] == in_order([(right, b"2"), (user, b"1")])
    gone: list[tuple[bytes, bytes | None]] = [(user, None), (right, None), (UserRow.kind + b"b", b"")]
    assert [gone[2], gone[1], gone[0]] == in_order(gone)


def test_rights_outlast_a_virtual_host_that_is_made_again() -> None:
    """In a log that has the users of another one, which removes them later, if the virtual host stays away."""
    node = Node(NullJournal())
    rows = [UserRow(b"u", b"hash", b"", []), PermissionRow(b"u", b"v", b"", b"", b"x")]
    shared = SharedUsers(None, "users", is_owner=False)
    shared.rows = {row.key(): encode(row) for row in rows}
    vhost = node.directory.add_vhost("v")
    shared.load(node, [], list)

    node.directory.remove_vhost(vhost)
    node.directory.add_vhost("v")

    assert [("u", "v", "x")] == [(user, name, row.read) for user, name, row in node.users.permission_rows()]
