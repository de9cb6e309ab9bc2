"""Changes of users, rights and limits, from the front to its processes."""

from collections.abc import Callable
from itertools import count

from leveret.broker.auth.name_patterns import Patterns
from leveret.broker.auth.users import User, UserLimits, VHostLimits
from leveret.broker.metadata.directory import Directory
from leveret.broker.metadata.recorder import Definitions, NullJournal, StoredUsers
from leveret.broker.placement.messages import AnyMessage, Changed, Placed, Removed
from leveret.broker.placement.node_rows import FollowedRows, SettledChanges
from leveret.broker.scheduling.loop import Loop
from leveret.broker.scheduling.time_source import TimeSource
from leveret.broker.vhost.vhost import Metadata, VHost


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
