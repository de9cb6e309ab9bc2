"""Metadata recorder: writes durable topology, users and permissions to the journal as they change.

Theory. A durable change is first made in memory, and its row is journaled in the same turn, so the rows of one turn are
on disk together or not at all; replies to clients wait for the journal
(`broker.channel.channel.Channel.reply_when_safe`). Every change is seen here: `StoredUsers` and
`GlobalParameters` make the change themselves, a vhost notifies its `StoredTopology` of durable queues and
policies, and the vhost's router notifies it of durable exchanges and of bindings from them, including consequences such
as the deletion of an auto-delete exchange. Removing the bindings of a deleted object may take several turns: at a
start, rows of bindings without one of their ends are ignored.

Durable are exchanges and queues declared so (except exclusive queues), and bindings between two durable objects. The
predeclared exchanges have rows like others, because bindings refer to exchanges by id. At the start
`broker.metadata.directory` creates everything from the rows.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple
from typing import Any, cast

from msgspec.structs import replace

from leveret.broker.amqp.tables import Field, Table, encode_table
from leveret.broker.auth.name_patterns import Patterns
from leveret.broker.auth.users import User, UserLimits, Users, VHostLimits, limits_by_name
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.vhost.parameter_checks import ParameterError
from leveret.broker.vhost.policies import Policy
from leveret.broker.vhost.vhost import VHost
from leveret.exchanges.base import Exchange
from leveret.storage.journal.journal import Journal
from leveret.storage.store.metadata_rows import (
    BindingRow,
    ExchangeRow,
    GlobalParameterRow,
    ParameterRow,
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
    parameter_key,
    policy_key,
    relation_key,
)

TABLE = "defs"
_NO_ARGUMENTS = encode_table({})
_PIECE = 256  # rows deleted between two checks of the time slice


class NullJournal:
    """The journal of a broker without persistence."""

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Discard the row."""

    def delete(self, table: str, key: bytes) -> None:
        """Do nothing: there are no rows."""

    def when_safe(self, callback: Callable[[bool], object]) -> None:
        """Call back at once: nothing is ever pending."""
        callback(True)

    def when_all_safe(self, callback: Callable[[bool], object]) -> None:
        """Call back at once: nothing is ever pending."""
        callback(True)


MetadataJournal = Journal | NullJournal
"""The part of a journal that the broker uses for metadata: `put`, `delete`, `when_safe`, `when_all_safe`."""


class Definitions:
    """Writes metadata rows to the journal, and reads them at the start; the context is notified of changes.

    `next_id` returns a number (u64) that was never used before, neither in this process nor in an earlier one on the
    same data.
    """

    def __init__(
        self, journal: MetadataJournal, next_id: Callable[[], int], context: NodeContext | None = None
    ) -> None:
        self._journal = journal
        self._next_id = next_id
        self._context = context or NodeContext()
        self.recording = True  # False while objects are restored from the rows

    def tell(self, kind: str, vhost: str, name: str, *subject: Any) -> None:
        """Tell of a change (`NodeContext.tell`), unless it is restored."""
        if self.recording:
            self._context.tell(kind, vhost, name, *subject)

    def new_id(self) -> int:
        """Return an id for a new object."""
        return self._next_id()

    def put(self, row: Row) -> None:
        """Write a row, or replace the one with its key."""
        if self.recording:
            self._journal.put(TABLE, row.key(), encode(row))

    def delete(self, key: bytes) -> None:
        """Delete a row; no effect if there is none."""
        if self.recording:
            self._journal.delete(TABLE, key)

    def add_vhost(self, vhost: VHost) -> None:
        """Record a new vhost and its exchanges, and from now on its changes."""
        number = self._next_id()
        self.put(_vhost_row(number, vhost))
        self.follow(vhost, StoredTopology(self, number))
        for exchange in vhost.router.exchanges.values():
            self.tell("exchange_created", vhost.name, exchange.name, exchange)
        self.tell("vhost_created", vhost.name, vhost.name, vhost)

    def update_vhost(self, vhost: VHost) -> None:
        """Record the current metadata of a vhost."""
        if isinstance(vhost.record, StoredTopology):
            self.put(_vhost_row(vhost.record.vhost_id, vhost))
            self.tell("vhost_updated", vhost.name, vhost.name, vhost)

    def remove_vhost(self, vhost: VHost) -> None:
        """Record that a vhost is deleted; the caller must run `VHost.remove_all`.

        The rows of its queues and exchanges are deleted by that or, after a crash, at the next start.
        """
        if isinstance(vhost.record, StoredTopology):
            self.delete(entity_key(VHostRow.kind, vhost.record.vhost_id))
            self.tell("vhost_down", vhost.name, vhost.name)
            self.tell("vhost_deleted", vhost.name, vhost.name)

    def follow(self, vhost: VHost, topology: "StoredTopology") -> None:
        """Subscribe to the changes of a vhost; exchanges that have no row yet get one."""
        for exchange in vhost.router.exchanges.values():
            if exchange.durable and not exchange.number:
                topology.declared(exchange)
        topology.vhost = vhost.name
        vhost.record = vhost.router.listener = topology
        vhost.policies.record = vhost.parameters.record = topology


class StoredTopology:
    """Records the durable queues, exchanges and bindings of one vhost, its policies and parameters.

    It is the listener of the vhost's router (`exchanges.router.Listener`) and the `record` of the vhost, its policies
    and its parameters. The vhost has an id and, for events, a name; exchanges and queues have ids of their own.
    """

    def __init__(self, definitions: Definitions, vhost_id: int) -> None:
        self._definitions = definitions
        self.vhost_id = vhost_id
        self.vhost = ""
        self._ending: dict[int, deque[bytes]] = {}  # of bindings of queues that are deleted, not gone, by qid

    def queue_created(self, name: str, *, auto_delete: bool, arguments: Table) -> int:
        """Record a new durable queue; returns its qid."""
        qid = self._definitions.new_id()
        self._definitions.put(QueueRow(qid, self.vhost_id, octets(name), auto_delete, _encoded(arguments)))
        return qid

    def queue_paused(self, queue: Queue) -> None:
        """Record whether a durable queue is paused now."""
        names = (queue.qid, self.vhost_id, octets(queue.name))
        row = QueueRow(*names, queue.auto_delete, _encoded(queue.arguments), queue.is_paused)
        self._definitions.put(row)

    def queue_ending(self, qid: int) -> None:
        """Record that a durable queue is being deleted: the rows of its bindings are deleted with its own."""
        self._ending[qid] = deque()

    def queue_deleted(self, qid: int) -> Iterator[None]:
        """Record the deletion of a durable queue; returns the steps that delete the unused rows of its bindings."""
        self._definitions.delete(entity_key(QueueRow.kind, qid))
        return self._delete_all(self._ending.pop(qid, deque()))

    def _delete_all(self, keys: deque[bytes]) -> Iterator[None]:
        while keys:
            for _ in range(min(len(keys), _PIECE)):
                self._definitions.delete(keys.popleft())
            yield

    def policy_set(self, policy: Policy, *, operator: bool) -> None:
        """Record a policy that is new, or that replaces the one of its name."""
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
        if operator:
            self._definitions.tell("parameter_set", self.vhost, policy.name, "operator_policy", policy.term())
        self._definitions.tell("policy_set", self.vhost, policy.name, policy)

    def policy_cleared(self, name: str, *, operator: bool) -> None:
        """Record that a policy was removed."""
        if operator:
            self._definitions.tell("parameter_cleared", self.vhost, name, "operator_policy")
        self._definitions.tell("operator_policy_cleared" if operator else "policy_cleared", self.vhost, name)
        self._definitions.delete(policy_key(self.vhost_id, octets(name), operator=operator))

    def parameter_set(self, component: str, name: str, value: Any, setter: str) -> None:
        """Record a parameter that is new, or that replaces the one of its name."""
        key = octets(component), octets(name)
        self._definitions.put(ParameterRow(self.vhost_id, *key, to_json(value), octets(setter)))
        self._definitions.tell("parameter_set", self.vhost, name, component, value)

    def parameter_cleared(self, component: str, name: str) -> None:
        """Record that a parameter was removed."""
        self._definitions.tell("parameter_cleared", self.vhost, name, component)
        self._definitions.delete(parameter_key(self.vhost_id, octets(component), octets(name)))

    def identify(self, exchange: Exchange, number: int) -> None:
        """Set the id of an exchange and of its delay line."""
        exchange.number = number
        if exchange.line is not None:
            exchange.line.number = number

    def declared(self, exchange: Exchange) -> None:
        """Record a new durable exchange."""
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
        """Record that a durable exchange was deleted."""
        self._definitions.delete(entity_key(ExchangeRow.kind, exchange.number))

    def bound(self, source: Exchange, destination: object, binding_key: str, arguments: Any) -> None:
        """Record a new binding from a durable exchange."""
        row = self._binding(source, destination, binding_key, arguments)
        if row is not None:
            order = self._definitions.new_id() if source.is_ordered else 0
            self._definitions.put(replace(row, order=order) if order else row)

    def unbound(self, source: Exchange, destination: object, binding_key: str, arguments: Any) -> None:
        """Record that a binding from a durable exchange was removed."""
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
        """Return the row of a binding; None if its destination is not durable."""
        queue = None if isinstance(destination, Exchange) else cast("Queue", destination)
        to = cast("Exchange", destination).number if queue is None else queue.qid
        if not to:
            return None
        key = octets(binding_key)
        if not arguments:
            return BindingRow(source.number, to, key, _NO_ARGUMENTS, b"")
        return BindingRow(source.number, to, key, encode_table(arguments), _identity(arguments))


class StoredUsers(Users):
    """Users, permissions and limits that are stored when they change."""

    def __init__(
        self, definitions: Definitions, loopback_users: Iterable[str], patterns: Patterns | None = None
    ) -> None:
        super().__init__(loopback_users, patterns)
        self._definitions = definitions

    def add(self, user: User) -> None:
        """Add a user, or replace the one of that name."""
        before = self.get(user.name)
        super().add(user)
        name, password, algorithm = map(octets, (user.name, user.password_hash, user.hashing_algorithm))
        self._definitions.put(UserRow(name, password, algorithm, list(map(octets, user.tags))))
        if before is None:
            self._definitions.tell("user_created", "", user.name)
        elif user.password_hash != before.password_hash:
            kind = "user_password_changed" if user.password_hash else "user_password_cleared"
            self._definitions.tell(kind, "", user.name)
        if user.tags != (() if before is None else before.tags):
            self._definitions.tell("user_tags_set", "", user.name, user.tags)

    def remove(self, name: str) -> None:
        """Remove a user with all permissions and limits; no effect if there is none."""
        if self.get(name) is None:
            return
        user = octets(name)
        self._delete_rights(lambda owner, _vhost: owner == name)
        self._definitions.delete(relation_key(UserLimitsRow.kind, user))
        self._definitions.delete(relation_key(UserRow.kind, user))
        super().remove(name)
        self._definitions.tell("user_deleted", "", name)

    def remove_vhost(self, vhost: str) -> None:
        """Remove all permissions in a deleted vhost, unless they are shared, and its limits."""
        if not self.are_shared:
            for user, place, _ in self.permission_rows():
                if place == vhost:
                    self._definitions.tell("permission_deleted", vhost, user)
            for user in {user for user, place, *_ in self.topic_permission_rows() if place == vhost}:
                self._definitions.tell("topic_permission_deleted", vhost, user)
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
        """Grant a user access to a vhost; raises InvalidPatternError, and nothing changes then."""
        super().set_permissions(user, vhost, configure, write, read)
        self._definitions.put(PermissionRow(*map(octets, (user, vhost, configure, write, read))))
        self._definitions.tell("permission_created", vhost, user, configure, write, read)

    def clear_permissions(self, user: str, vhost: str) -> None:
        """Remove a user's permissions in a vhost."""
        if self.may_access(user, vhost):
            self._definitions.tell("permission_deleted", vhost, user)
        super().clear_permissions(user, vhost)
        self._definitions.delete(relation_key(PermissionRow.kind, octets(user), octets(vhost)))

    def set_topic_permissions(self, user: str, vhost: str, exchange: str, write: str, read: str) -> None:
        """Restrict a user's routing keys at a topic exchange; raises InvalidPatternError, and nothing changes then."""
        super().set_topic_permissions(user, vhost, exchange, write, read)
        self._definitions.put(TopicPermissionRow(*map(octets, (user, vhost, exchange, write, read))))
        self._definitions.tell("topic_permission_created", vhost, user, exchange, write, read)

    def clear_topic_permissions(self, user: str, vhost: str, exchange: str | None = None) -> None:
        """Remove the topic permissions at one exchange or, for None, at all of the vhost."""
        found = [name for name in self.topic_permissions(user, vhost).rows if exchange in {None, name}]
        for name in found:
            self._delete_topic(user, vhost, name)
        if found:
            self._definitions.tell("topic_permission_deleted", vhost, user, exchange)
        super().clear_topic_permissions(user, vhost, exchange)

    def set_user_limits(self, user: str, limits: UserLimits) -> None:
        """Set the user's limits."""
        before = limits_by_name(self.user_limits(user))
        super().set_user_limits(user, limits)
        self._definitions.put(UserLimitsRow(octets(user), *astuple(limits)))
        named = limits_by_name(limits)
        if before.keys() - named.keys():
            self._definitions.tell("user_limits_cleared", "", user)
        elif named != before:
            self._definitions.tell("user_limits_set", "", user, named)

    def clear_vhost_limits(self, vhost: str) -> None:
        """Remove all of the vhost's limits."""
        if self.has_vhost_limits(vhost):
            self._definitions.tell("parameter_cleared", vhost, "limits", "vhost-limits")
            self._definitions.tell("vhost_limits_cleared", vhost, vhost)
        super().clear_vhost_limits(vhost)
        self._definitions.delete(relation_key(VHostLimitsRow.kind, octets(vhost)))

    def set_vhost_limits(self, vhost: str, limits: VHostLimits) -> None:
        """Set the vhost's limits."""
        super().set_vhost_limits(vhost, limits)
        self._definitions.put(VHostLimitsRow(octets(vhost), *astuple(limits)))
        named = limits_by_name(limits)
        self._definitions.tell("parameter_set", vhost, "limits", "vhost-limits", named)
        self._definitions.tell("vhost_limits_set", vhost, vhost, named)


def _vhost_row(number: int, vhost: VHost) -> VHostRow:
    told = vhost.metadata
    name, description, queue_type = map(octets, (vhost.name, told.description, told.default_queue_type))
    tags = list(map(octets, told.tags))
    return VHostRow(number, name, description, tags, queue_type, told.protected_from_deletion)


def to_json(value: Any) -> bytes:
    """Encode the value of a policy or parameter for storage; lone surrogates and large integers are preserved."""
    return json.dumps(value, separators=(",", ":")).encode()


def octets(name: str) -> bytes:
    """Encode a name as the bytes it had on the wire."""
    return name.encode("utf-8", "surrogateescape")


def text(name: bytes) -> str:
    """Decode a stored name; bytes that are not valid UTF-8 survive the round trip."""
    return name.decode("utf-8", "surrogateescape")


def _encoded(arguments: Any) -> bytes:
    return encode_table(arguments) if arguments else _NO_ARGUMENTS


def _identity(arguments: Table) -> bytes:
    """Return bytes that are equal if the arguments are equal for a binding (`exchanges.base.ArgumentedKey`)."""
    # The order of the outermost fields is ignored, and so is the sign of a zero.
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


class GlobalParameters:
    """Named values for the whole broker, stored when they change."""

    def __init__(self, definitions: Definitions) -> None:
        self._values: dict[str, Any] = {}
        self._definitions = definitions

    def set(self, name: str, value: Any) -> None:
        """Set a value, of any type."""
        self._values[name] = value
        self._definitions.put(GlobalParameterRow(octets(name), to_json(value)))
        self._definitions.tell("parameter_set", "", name, "global", value)

    def clear(self, name: str) -> None:
        """Remove a value; raises ParameterError if there is none."""
        if name not in self._values:
            raise ParameterError("Parameter does not exist")
        del self._values[name]
        self._definitions.delete(relation_key(GlobalParameterRow.kind, octets(name)))
        self._definitions.tell("parameter_set", "", name, "global")  # without a value, as by RabbitMQ

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str) -> Any:
        """Return a value; None if there is none."""
        return self._values.get(name)

    def list(self) -> dict[str, Any]:
        """Return the values by name."""
        return dict(self._values)
