"""The directory of a broker: its users, virtual hosts and global parameters, recorded as they change, and restored.

Theory. From the rows of an earlier run everything is created through the same functions as for a client's request, with
recording off; only the ids come from the rows. Then the recorder subscribes to the vhosts, and every further change is
recorded.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

from msgspec.structs import astuple

from leveret.broker.amqp.errors import MalformedTable
from leveret.broker.amqp.tables import decode_whole_table
from leveret.broker.auth.name_patterns import Patterns
from leveret.broker.auth.users import User, UserLimits, Users, VHostLimits
from leveret.broker.channel.settings import DefaultLimits
from leveret.broker.metadata.recorder import Definitions, GlobalParameters, StoredTopology, text
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.loop import Loop
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


CLUSTER_NAME = "cluster_name"  # the global parameter that is the name of the cluster
CLUSTER_ID = "internal_cluster_id"  # global parameter, made at the first start, as by RabbitMQ

_NO_TAGS: Final[Mapping[str, str]] = MappingProxyType({})


class Directory:
    """Users, virtual hosts and global parameters."""

    def __init__(
        self,
        loop: Loop,
        definitions: Definitions,  # records the changes
        users: Users,
        patterns: Patterns,  # compiles patterns of names
        default_limits: Iterable[DefaultLimits],  # the limits of new vhosts
        make_vhost: Callable[[str], VHost],  # makes a vhost that is not recorded
        default_queue_type: str = "",  # that of vhosts for which none is given
        cluster_tags: Mapping[str, str] = _NO_TAGS,
    ) -> None:
        self.definitions, self.users, self.patterns = definitions, users, patterns
        self.vhosts: dict[str, VHost] = {}  # the vhosts by name
        self.global_parameters = GlobalParameters(definitions)
        self.on_add: Callable[[VHost], object] | None = None  # called with each vhost that is added
        self.skipped = 0  # number of definitions, and parts of them, that imports have left out
        self._loop = loop
        self.default_queue_type = default_queue_type
        self._cluster_tags = cluster_tags
        self._default_limits = tuple(default_limits)
        self._make_vhost = make_vhost

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> list[Queue]:
        """Create what an earlier run has stored; returns its durable queues, empty. Raises as `restore.restore`."""
        queues = restore(rows, self.definitions, self.users, self.global_parameters, self._new_vhost)
        events = self._loop.context.events
        if events is not None:
            events.forget()
        return queues

    def _new_vhost(self, name: str) -> VHost:
        vhost = self.vhosts[name] = self._make_vhost(name)
        return vhost

    def add_vhost(self, name: str, metadata: Metadata | None = None) -> VHost:
        """Add a vhost that does not exist yet."""
        vhost = self._new_vhost(name)
        vhost.metadata = metadata or Metadata(default_queue_type=self.default_queue_type)
        self.definitions.add_vhost(vhost)
        for default in self._default_limits:
            if self.patterns.compile(default.pattern)(name.encode("utf-8", "surrogateescape")):
                self.users.set_vhost_limits(name, default.limits)
                break
        if self.on_add is not None:
            self.on_add(vhost)
        return vhost

    def remove_vhost(self, vhost: VHost) -> None:
        """Delete a vhost with everything in it and all permissions in it; its connections must be closed before.

        It is no longer found from now on, and a restart does not restore it once this is committed; its queues and
        exchanges are deleted by a job.
        """
        del self.vhosts[vhost.name]
        self.definitions.remove_vhost(vhost)
        self.users.remove_vhost(vhost.name)
        context = self._loop.context
        steps = context.acting(context.actor, vhost.remove_all())
        self._loop.turn.add_writing_job(steps, f"deletion of vhost '{vhost.name}'")

    @property
    def cluster_name(self) -> str | None:
        """The name of the cluster that an administrator has set; None for none."""
        name = self.global_parameters.get(CLUSTER_NAME)
        return name if isinstance(name, str) else None

    def rename_cluster(self, name: str) -> None:
        """Set the name that clients see, as a global parameter as in RabbitMQ."""
        self.global_parameters.set(CLUSTER_NAME, name)

    @property
    def cluster_tags(self) -> dict[str, Any]:
        """The tags of the cluster: those of the configuration, or of the global parameter of that name."""
        given = self.global_parameters.get("cluster_tags")
        return dict(given) if isinstance(given, Mapping) else dict(self._cluster_tags)

    @property
    def cluster_id(self) -> str:
        """The id of the cluster; '' before the first start, or if an administrator has removed it."""
        name = self.global_parameters.get(CLUSTER_ID)
        return name if isinstance(name, str) else ""
