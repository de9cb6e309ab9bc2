"""Restores vhosts, users, permissions, policies, exchanges, queues and bindings from the rows of an earlier run.

Theory. Everything is created through the same functions as for a client's request, with recording off; only the ids
come from the rows. Then the recorder subscribes to the vhosts, and every further change is recorded.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, TypeVar, cast

from msgspec.structs import astuple

from leveret.broker.amqp.errors import MalformedTable
from leveret.broker.amqp.tables import decode_whole_table
from leveret.broker.auth.users import User, UserLimits, Users, VHostLimits
from leveret.broker.metadata.recorder import Definitions, GlobalParameters, StoredTopology, text
from leveret.broker.queue.queue import Queue
from leveret.broker.vhost.vhost import Metadata, VHost
from leveret.exchanges.base import Exchange
from leveret.exchanges.errors import ExchangeError
from leveret.storage.errors import DamagedError, UnknownFormatError
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
    decode,
)

log = logging.getLogger("leveret.definitions")

_R = TypeVar("_R", bound=Row)
_Placed = TypeVar("_Placed", PolicyRow, ParameterRow, ExchangeRow, QueueRow)


def restore(
    rows: Iterable[tuple[bytes, bytes]],
    definitions: Definitions,
    users: Users,
    global_parameters: GlobalParameters,
    make_vhost: Callable[[str], VHost],
) -> list[Queue]:
    """Create everything that the rows (keys and values) describe, and record changes from now on.

    A binding without one of its ends is deleted, row included, and logged; so is everything in a vhost that does not
    exist. A permission or policy with an invalid pattern is kept and logged, and matches nothing. `make_vhost` creates
    a vhost and makes it available; it must not record it. Returns the durable queues in the order of their declaration;
    the caller must attach their messages.

    Raises DamagedError for a damaged row: the broker must not start, because it would lose the other rows too;
    UnknownFormatError for one that this version does not know.
    """
    found: dict[type[Row], list[Row]] = defaultdict(list)
    for key, value in rows:
        row = decode(key, value)
        found[type(row)].append(row)
    restoring = _Restoring(definitions, make_vhost)
    definitions.recording = False
    try:
        for kind in (VHostLimitsRow, UserLimitsRow, GlobalParameterRow):  # before the vhosts that use them
            for row in found[kind]:
                set_node_row(row, users, global_parameters)
        restoring.restore_vhosts(_of(found, VHostRow))
        restoring.restore_policies(_of(found, PolicyRow))
        restoring.restore_parameters(_of(found, ParameterRow))
        for user in sorted(_of(found, UserRow), key=attrgetter("name")):
            set_node_row(user, users, global_parameters)
        for row in (*found[PermissionRow], *found[TopicPermissionRow]):
            set_node_row(row, users, global_parameters)
        restoring.restore_exchanges(_of(found, ExchangeRow))
        restoring.restore_queues(_of(found, QueueRow))
        restoring.restore_bindings(_of(found, BindingRow))
    finally:
        definitions.recording = True
    for vhost, topology in restoring.vhosts.values():
        definitions.follow(vhost, topology)
    for row in restoring.dangling:
        definitions.delete(row.key())
    return restoring.queues


class _Restoring:
    """Creates vhosts, exchanges, queues and bindings from rows, in this order."""

    def __init__(self, definitions: Definitions, make_vhost: Callable[[str], VHost]) -> None:
        self._definitions = definitions
        self._make_vhost = make_vhost
        self.vhosts: dict[int, tuple[VHost, StoredTopology]] = {}
        self.queues: list[Queue] = []
        self.dangling: list[Row] = []
        self._things: dict[int, tuple[VHost, Exchange | Queue]] = {}

    def restore_vhosts(self, rows: Iterable[VHostRow]) -> None:
        for row in sorted(rows, key=attrgetter("id")):
            vhost = self._make_vhost(text(row.name))
            tags, kind = tuple(map(text, row.tags)), text(row.default_queue_type)
            vhost.metadata = Metadata(text(row.description), tags, kind, row.protected)
            self.vhosts[row.id] = vhost, StoredTopology(self._definitions, row.id)

    def restore_policies(self, rows: Iterable[PolicyRow]) -> None:
        for row, vhost, _ in self._placed(rows):
            term = {
                "pattern": text(row.pattern),
                "definition": _json(row, row.definition),
                "priority": row.priority,
                "apply-to": text(row.apply_to),
            }
            vhost.policies.restore(text(row.name), term, operator=row.operator)

    def restore_parameters(self, rows: Iterable[ParameterRow]) -> None:
        for row, vhost, _ in self._placed(rows):
            value = _json(row, row.value)
            vhost.parameters.set(text(row.component), text(row.name), value, text(row.setter))

    def restore_exchanges(self, rows: Iterable[ExchangeRow]) -> None:
        for row, vhost, topology in self._placed(sorted(rows, key=attrgetter("id"))):
            flags = {"durable": True, "auto_delete": row.auto_delete, "internal": row.internal}
            try:
                exchange = vhost.declare_exchange(
                    text(row.name), text(row.type), **flags, arguments=_arguments(row)
                )
            except ExchangeError as error:
                raise UnknownFormatError(
                    f"exchange '{text(row.name)}' in vhost '{vhost.name}': {error}"
                ) from None
            topology.identify(exchange, row.id)
            self._things[row.id] = vhost, exchange

    def restore_queues(self, rows: Iterable[QueueRow]) -> None:
        for row, vhost, _ in self._placed(sorted(rows, key=attrgetter("id"))):
            flags: dict[str, Any] = {"durable": True, "exclusive_owner": None, "auto_delete": row.auto_delete}
            queue = vhost.create_queue(text(row.name), **flags, arguments=_arguments(row), qid=row.id)
            if row.paused:
                queue.pause()
            self.queues.append(queue)
            self._things[row.id] = vhost, queue

    def restore_bindings(self, rows: Iterable[BindingRow]) -> None:
        for row in sorted(rows, key=attrgetter("order")):
            place, source = self._things.get(row.source, (None, None))
            _, destination = self._things.get(row.destination, (None, None))
            key = text(row.binding_key)
            if not isinstance(source, Exchange) or place is None or destination is None:
                self._drop(row, f"binding with key '{key}': its source or destination no longer exists")
                continue
            try:
                place.router.bind(source.name, destination, key, _arguments(row))
            except ExchangeError as error:
                self._drop(row, f"binding with key '{key}' of {source!r}: {error}")

    def _placed(self, rows: Iterable[_Placed]) -> Iterator[tuple[_Placed, VHost, StoredTopology]]:
        """Yield the rows with their vhosts; a row whose vhost no longer exists is dropped."""
        for row in rows:
            if (found := self.vhosts.get(row.vhost)) is not None:
                yield row, found[0], found[1]
            else:
                self._drop(row, f"'{text(row.name)}': its vhost no longer exists")

    def _drop(self, row: Row, what: str) -> None:
        log.warning("dropping a stored definition: %s", what)
        self.dangling.append(row)


def set_node_row(row: Row, users: Users, global_parameters: GlobalParameters) -> None:
    """Make what a row that belongs to the node says: a user, its rights, limits, or a global parameter.

    A pattern that is not supported is logged, and matches nothing. Raises DamagedError.
    """
    match row:
        case UserRow():
            tags = tuple(map(text, row.tags))
            users.add(User(text(row.name), text(row.password_hash), tags, text(row.hashing_algorithm)))
        case PermissionRow():
            users.restore_permissions(*map(text, astuple(row)))
        case TopicPermissionRow():
            users.restore_topic_permissions(*map(text, astuple(row)))
        case UserLimitsRow():
            users.set_user_limits(text(row.user), UserLimits(*astuple(row)[1:]))
        case VHostLimitsRow():
            users.set_vhost_limits(text(row.vhost), VHostLimits(*astuple(row)[1:]))
        case GlobalParameterRow():
            global_parameters.set(text(row.name), _json(row, row.value))


def _of(found: dict[type[Row], list[Row]], kind: type[_R]) -> list[_R]:
    return cast("list[_R]", found[kind])


def _json(row: PolicyRow | ParameterRow | GlobalParameterRow, value: bytes) -> Any:
    try:
        return json.loads(value)
    except ValueError as error:
        raise DamagedError(f"definition {row.key().hex()} is damaged: {error}") from None


def _arguments(row: ExchangeRow | QueueRow | BindingRow) -> Any:
    try:
        return decode_whole_table(row.arguments)
    except MalformedTable as error:
        text = f"definition {row.key().hex()} is damaged: invalid arguments: {error}"
        raise DamagedError(text) from None
