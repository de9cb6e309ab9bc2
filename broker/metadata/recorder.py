"""What survives a restart: durable topology, users and rights go to the journal as they change.

Theory. Whoever changes something durable changes it in memory first and has the row journaled in the same turn, so
the rows of one turn are on disk together or not at all; whoever answers a client waits for the journal
(`broker.channel.channel.Channel.reply_when_safe`). These places see every change: `StoredUsers` and
`broker.metadata.parameter_recorder.StoredGlobalParameters` are asked for it, a vhost tells its `StoredTopology` of
durable queues and of policies, and the vhost's router tells it of durable exchanges and of bindings from them,
consequences such as a vanishing auto-delete exchange included. Bindings of what is gone may take several turns: at a
start, rows of bindings without one of their ends mean nothing.

Durable is: an exchange or queue declared so (an exclusive queue is not), and a binding between two durable things.
The exchanges that every vhost has are written down like others, because bindings refer to exchanges by id. At the
start `broker.metadata.restore` makes everything anew from the rows.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, cast

from leveret.broker.amqp.tables import Field, Table, encode_table
from leveret.broker.auth.name_patterns import Patterns
from leveret.broker.auth.users import User, UserLimits, Users, VHostLimits
from leveret.broker.queue.queue import Queue
from leveret.broker.vhost.policies import Policy
from leveret.broker.vhost.vhost import VHost
from leveret.exchanges.base import Exchange
from leveret.storage.store.metadata_rows import (
    BindingRow,
    ExchangeRow,
    PermissionRow,
    PolicyRow,
    QueueRow,
    Row,
    TopicPermissionRow,
    UserLimitsRow,
    UserRow,
    VHostLimitsRow,
    VHostRow,
    encode,
    entity_key,
    policy_key,
    relation_key,
)

TABLE = "defs"
_NO_ARGUMENTS = encode_table({})
_PIECE = 256
"""Rows deleted between two looks at the time."""


class Journal(Protocol):
    """What the broker needs of the journal (`storage.journal.journal.Journal`)."""

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Have a row written with the next commit; it stays journaled if that finds the disk full."""

    def delete(self, table: str, key: bytes) -> None:
        """Have a row deleted with the next commit; the same holds."""

    def when_safe(self, callback: Callable[[bool], object]) -> None:
        """Call back after the commit of everything journaled so far: True, or False if the disk was full.

        At once if nothing is pending. Otherwise in the loop, and whoever does it runs a turn afterwards.
        """

    def when_all_safe(self, callback: Callable[[bool], object]) -> None:
        """The same, bodies included that are being written to files of their own."""


class NullJournal:
    """The journal of a broker that keeps nothing."""

    __slots__ = ()

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """It is forgotten."""

    def delete(self, table: str, key: bytes) -> None:
        """There is nothing."""

    def when_safe(self, callback: Callable[[bool], object]) -> None:
        """Nothing is ever pending."""
        callback(True)

    def when_all_safe(self, callback: Callable[[bool], object]) -> None:
        """The same."""
        callback(True)


class Definitions:
    """Writes rows, and reads them at the start.

    Args:
        journal: takes the rows.
        next_id: gives a number (u64) that was never given before, in this process or an earlier one on the same
            data.

    """

    __slots__ = ("_journal", "_next_id", "recording")

    def __init__(self, journal: Journal, next_id: Callable[[], int]) -> None:
        self._journal = journal
        self._next_id = next_id
        self.recording = True
        """False while what the rows say is being made anew."""

    def new_id(self) -> int:
        """An id for something new."""
        return self._next_id()

    def put(self, row: Row) -> None:
        """Write a row, or replace the one with its key."""
        if self.recording:
            self._journal.put(TABLE, row.key(), encode(row))

    def delete(self, key: bytes) -> None:
        """Delete a row; nothing happens if there is none."""
        if self.recording:
            self._journal.delete(TABLE, key)

    def add_vhost(self, vhost: VHost) -> None:
        """Write down a new vhost and its exchanges, and from now on what changes in it."""
        number = self._next_id()
        self.put(_vhost_row(number, vhost))
        self.follow(vhost, StoredTopology(self, number))

    def update_vhost(self, vhost: VHost) -> None:
        """Write down what is said of a vhost now."""
        if isinstance(vhost.record, StoredTopology):
            self.put(_vhost_row(vhost.record.vhost_id, vhost))

    def remove_vhost(self, vhost: VHost) -> None:
        """Write down that a vhost is gone; the caller owes `VHost.remove_all`.

        What is written of queues and exchanges in it goes with them, or, after a crash, at the next start.
        """
        if isinstance(vhost.record, StoredTopology):
            self.delete(entity_key(VHostRow.kind, vhost.record.vhost_id))

    def follow(self, vhost: VHost, topology: "StoredTopology") -> None:
        """Have a vhost tell of its changes from now on; exchanges that have no row yet get one."""
        for exchange in vhost.router.exchanges.values():
            if exchange.durable and not exchange.number:
                topology.declared(exchange)
        vhost.record = vhost.router.listener = vhost.policies.record = topology


class StoredTopology:
    """Writes down the durable queues, exchanges and bindings of one vhost, and its policies.

    It is the listener of the vhost's router (`exchanges.router.Listener`) and the `record` of the vhost and of its
    policies.

    Attributes:
        vhost_id: the id of the vhost; exchanges and queues know their own.

    """

    __slots__ = ("_definitions", "_ending", "vhost_id")

    def __init__(self, definitions: Definitions, vhost_id: int) -> None:
        self._definitions = definitions
        self.vhost_id = vhost_id
        self._ending: dict[int, deque[bytes]] = {}
        """Rows of bindings of queues that are deleted and not gone yet, by qid."""

    def queue_created(self, name: str, *, auto_delete: bool, arguments: Table) -> int:
        """A durable queue is new; returns its qid."""
        qid = self._definitions.new_id()
        table = encode_table(arguments) if arguments else _NO_ARGUMENTS
        self._definitions.put(QueueRow(qid, self.vhost_id, octets(name), auto_delete, table))
        return qid

    def queue_ending(self, qid: int) -> None:
        """A durable queue is deleted: rows of its bindings go with its own."""
        self._ending[qid] = deque()

    def queue_deleted(self, qid: int) -> Iterator[None]:
        """A durable queue is gone; returns the steps that remove the rows of its bindings, which mean nothing now."""
        self._definitions.delete(entity_key(QueueRow.kind, qid))
        return self._delete_all(self._ending.pop(qid, deque()))

    def _delete_all(self, keys: deque[bytes]) -> Iterator[None]:
        while keys:
            for _ in range(min(len(keys), _PIECE)):
                self._definitions.delete(keys.popleft())
            yield

    def policy_set(self, policy: Policy, *, operator: bool) -> None:
        """A policy is new, or replaces the one of its name."""
        row = PolicyRow(
            self.vhost_id,
            operator,
            octets(policy.name),
            octets(policy.pattern),
            to_json(policy.definition),
            policy.priority,
            octets(policy.apply_to),
        )
        self._definitions.put(row)

    def policy_cleared(self, name: str, *, operator: bool) -> None:
        """A policy is gone."""
        self._definitions.delete(policy_key(self.vhost_id, octets(name), operator=operator))

    def identify(self, exchange: Exchange, number: int) -> None:
        """An exchange has this id, and so has what it delays."""
        exchange.number = number
        if exchange.line is not None:
            exchange.line.number = number

    def declared(self, exchange: Exchange) -> None:
        """A durable exchange is new."""
        number = self._definitions.new_id()
        self.identify(exchange, number)
        row = ExchangeRow(
            number,
            self.vhost_id,
            octets(exchange.name),
            octets(exchange.type),
            exchange.auto_delete,
            exchange.internal,
            _encoded(exchange.arguments),
        )
        self._definitions.put(row)

    def removed(self, exchange: Exchange) -> None:
        """A durable exchange is gone."""
        self._definitions.delete(entity_key(ExchangeRow.kind, exchange.number))

    def bound(self, source: Exchange, destination: object, binding_key: str, arguments: Any) -> None:
        """A binding from a durable exchange is new."""
        row = self._binding(source, destination, binding_key, arguments)
        if row is not None:
            self._definitions.put(row)

    def unbound(self, source: Exchange, destination: object, binding_key: str, arguments: Any) -> None:
        """A binding from a durable exchange is gone."""
        row = self._binding(source, destination, binding_key, arguments)
        if row is None:
            return
        ending = self._ending.get(row.destination) if self._ending else None
        if ending is None:
            self._definitions.delete(row.key())
        else:
            ending.append(row.key())

    def _binding(
        self, source: Exchange, destination: object, binding_key: str, arguments: Table
    ) -> BindingRow | None:
        """The row of a binding; None if its destination is not durable."""
        queue = None if isinstance(destination, Exchange) else cast("Queue", destination)
        to = cast("Exchange", destination).number if queue is None else queue.qid
        if not to:
            return None
        key = octets(binding_key)
        if not arguments:
            return BindingRow(source.number, to, key, _NO_ARGUMENTS, b"")
        return BindingRow(source.number, to, key, encode_table(arguments), _identity(arguments))


class StoredUsers(Users):
    """Users, permissions and limits that are written down when they change.

    Args:
        definitions: writes them.
        loopback_users: names that may only log in from this host.
        patterns: makes the matchers of permissions.

    """

    __slots__ = ("_definitions",)

    def __init__(
        self,
        definitions: Definitions,
        loopback_users: Iterable[str] = ("guest",),
        patterns: Patterns | None = None,
    ) -> None:
        super().__init__(loopback_users, patterns)
        self._definitions = definitions

    def add(self, user: User) -> None:
        """Add a user or replace the one of that name, whose permissions stay."""
        super().add(user)
        row = UserRow(
            octets(user.name),
            octets(user.password_hash),
            octets(user.hashing_algorithm),
            sorted(map(octets, user.tags)),
        )
        self._definitions.put(row)

    def remove(self, name: str) -> None:
        """Remove a user with all permissions and limits. Does nothing if there is none."""
        if self.get(name) is None:
            return
        user = octets(name)
        self._delete_rights(lambda owner, _vhost: owner == name)
        self._definitions.delete(relation_key(UserLimitsRow.kind, user))
        self._definitions.delete(relation_key(UserRow.kind, user))
        super().remove(name)

    def remove_vhost(self, vhost: str) -> None:
        """Remove all permissions in a vhost that is gone, and its limits."""
        self._delete_rights(lambda _user, place: place == vhost)
        self._definitions.delete(relation_key(VHostLimitsRow.kind, octets(vhost)))
        super().remove_vhost(vhost)

    def _delete_rights(self, concerned: Callable[[str, str], bool]) -> None:
        for user, vhost, _ in self.permission_rows():
            if concerned(user, vhost):
                self._definitions.delete(relation_key(PermissionRow.kind, octets(user), octets(vhost)))
        for user, vhost, exchange, _, _ in self.topic_permission_rows():
            if concerned(user, vhost):
                self._delete_topic(user, vhost, exchange)

    def _delete_topic(self, user: str, vhost: str, exchange: str) -> None:
        key = relation_key(TopicPermissionRow.kind, octets(user), octets(vhost), octets(exchange))
        self._definitions.delete(key)

    def set_permissions(self, user: str, vhost: str, configure: str, write: str, read: str) -> None:
        """Let a user into a vhost with these three patterns.

        Raises:
            InvalidPatternError: one of them cannot be used; nothing has changed then.
        """
        super().set_permissions(user, vhost, configure, write, read)
        self._definitions.put(PermissionRow(*map(octets, (user, vhost, configure, write, read))))

    def clear_permissions(self, user: str, vhost: str) -> None:
        """Shut a user out of a vhost."""
        super().clear_permissions(user, vhost)
        self._definitions.delete(relation_key(PermissionRow.kind, octets(user), octets(vhost)))

    def set_topic_permissions(self, user: str, vhost: str, exchange: str, write: str, read: str) -> None:
        """Restrict a user's routing keys at a topic exchange.

        Raises:
            InvalidPatternError: one of them cannot be used; nothing has changed then.
        """
        super().set_topic_permissions(user, vhost, exchange, write, read)
        self._definitions.put(TopicPermissionRow(*map(octets, (user, vhost, exchange, write, read))))

    def clear_topic_permissions(self, user: str, vhost: str, exchange: str | None = None) -> None:
        """Lift the restriction at one exchange or, by None, at all of the vhost."""
        for owner, place, name, _, _ in self.topic_permission_rows():
            if (owner, place) == (user, vhost) and exchange in {None, name}:
                self._delete_topic(user, vhost, name)
        super().clear_topic_permissions(user, vhost, exchange)

    def set_user_limits(self, user: str, limits: UserLimits) -> None:
        """Set the user's limits; a negative number is unlimited, as in RabbitMQ."""
        super().set_user_limits(user, limits)
        kept = self.user_limits(user)
        self._definitions.put(UserLimitsRow(octets(user), kept.max_connections, kept.max_channels))

    def set_vhost_limits(self, vhost: str, limits: VHostLimits) -> None:
        """Set the vhost's limits; a negative number is unlimited, as in RabbitMQ."""
        super().set_vhost_limits(vhost, limits)
        kept = self.vhost_limits(vhost)
        self._definitions.put(VHostLimitsRow(octets(vhost), kept.max_connections, kept.max_queues))


def _vhost_row(number: int, vhost: VHost) -> VHostRow:
    tags = [octets(tag) for tag in vhost.tags]
    return VHostRow(
        number, octets(vhost.name), octets(vhost.description), tags, octets(vhost.default_queue_type)
    )


def to_json(value: Any) -> bytes:
    """What policies and parameters say, as it is written down: lone surrogates and large numbers survive."""
    return json.dumps(value, separators=(",", ":")).encode()


def octets(name: str) -> bytes:
    """A name as it was on the wire."""
    return name.encode("utf-8", "surrogateescape")


def text(name: bytes) -> str:
    """A name as the broker handles it; octets that are no text survive the way and back."""
    return name.decode("utf-8", "surrogateescape")


def _encoded(arguments: Any) -> bytes:
    return encode_table(arguments) if arguments else _NO_ARGUMENTS


def _identity(arguments: Table) -> bytes:
    """Octets that are equal for arguments that are equal to a binding (`exchanges.base.ArgumentedKey`).

    The order of the outermost fields does not count, nor does the sign of a zero.
    """
    return encode_table({name: _unsigned_zero(arguments[name]) for name in sorted(arguments)})


def _unsigned_zero(field: Field) -> Field:
    name, value = field
    if name in {"float", "double"}:
        return name, value + 0.0
    if name == "table":
        return name, {inner: _unsigned_zero(value[inner]) for inner in value}
    if name == "array":
        return name, [_unsigned_zero(item) for item in value]
    return field
