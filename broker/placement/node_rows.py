"""The rows of the node, which the front has and its processes follow: users, rights, limits, global parameters. Pure.

Theory. The front stores them as any broker does. `SettledChanges` is its journal: it passes all rows on, and tells of
those of the node once they are on disk, in the order of the changes. What depends on them, such as the hand-over of a
client, waits behind them. In a process `FollowedRows` makes the same changes in memory only.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from msgspec.structs import astuple

from leveret.broker.auth.name_patterns import InvalidPatternError
from leveret.broker.auth.users import UserLimits, Users
from leveret.broker.metadata.directory import Directory, set_node_row
from leveret.broker.metadata.recorder import TABLE, MetadataJournal, text
from leveret.broker.placement.messages import AnyMessage, Changed, Placed, Removed, Rows
from leveret.storage.store.metadata_rows import (
    GlobalParameterRow,
    PermissionRow,
    Row,
    TopicPermissionRow,
    UserLimitsRow,
    UserRow,
    VHostLimitsRow,
    VHostRow,
    decode,
    relation_key,
)

OF_NODE: tuple[type[Row], ...] = (
    VHostLimitsRow,
    UserRow,
    UserLimitsRow,
    PermissionRow,
    TopicPermissionRow,
    GlobalParameterRow,
)
"""The rows that all processes follow, in the order in which they need each other."""
_KINDS = frozenset(row.kind for row in OF_NODE)
_SHARED = frozenset(row.kind for row in OF_NODE if row is not VHostLimitsRow)


def is_shared(key: bytes) -> bool:
    """Return whether a row is one of those that logs share: limits of a virtual host stay in its log."""
    return key[:1] in _SHARED


def in_order(rows: Iterable[tuple[bytes, bytes | None]]) -> Rows:
    """Return rows in the order in which they need each other; what is deleted comes last, a user behind its rights."""
    order = {row.kind: at for at, row in enumerate(OF_NODE)}
    gone = len(order)

    def place(row: tuple[bytes, bytes | None]) -> int:
        kind, is_gone = row[0][:1], row[1] is None
        return order[kind] + gone * is_gone * (2 if kind == UserRow.kind else 1)

    return sorted(rows, key=place)


def changes_to(known: Mapping[bytes, bytes], rows: Rows, *, is_whole: bool) -> Rows:
    """Return what changes known rows to new ones, of which `rows` has all, or those that may have changed."""
    found = dict(rows)
    if is_whole:
        found |= dict.fromkeys(known.keys() - found.keys())
    return in_order(row for row in found.items() if known.get(row[0]) != row[1])


class PublishedRows:
    """The shared rows as the leader of their log publishes them: first all, then those that have changed."""

    def __init__(self, rows: Rows) -> None:
        self._changed = {key: value for key, value in rows if is_shared(key)}
        self.is_whole = True  # True until all were published once

    def take(self, message: AnyMessage) -> None:
        """Take a change that is settled."""
        if isinstance(message, Changed):
            self._changed |= {key: value for key, value in message.rows if is_shared(key)}

    def changes(self) -> Rows:
        """Return what is to be published."""
        return list(self._changed.items())

    def kept(self, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Take note that this was published."""
        self.is_whole = False
        for key, value in rows:
            if self._changed.get(key) == value:
                self._changed.pop(key, None)


class SettledChanges:
    """The journal of the front; `tell` gets each change of the node that is on disk, or will be when there is space.

    `later` is given what is to be called when the changes of this step of the event loop are made.
    """

    def __init__(
        self,
        journal: MetadataJournal,
        tell: Callable[[AnyMessage], object],
        later: Callable[[Callable[[], object]], object],
    ) -> None:
        self._journal = journal
        self._tell = tell
        self._later = later
        self._rows: dict[bytes, bytes] = {}
        self.vhosts: dict[bytes, VHostRow] = {}  # by the keys of their rows
        self._waiting: list[Changed | Placed | Removed] = []
        self.on_sent: Callable[[], object] | None = None  # called when no change waits any more
        self._is_subscribed = False

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Take over what an earlier run has stored."""
        for key, value in rows:
            self._keep(key, value)

    @property
    def rows(self) -> Rows:
        """The rows of the node as they are now."""
        return in_order(self._rows.items())

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Write a row."""
        self._journal.put(table, key, value)
        if table == TABLE and (message := self._keep(key, value)) is not None:
            self._add(message)

    def delete(self, table: str, key: bytes) -> None:
        """Delete a row."""
        self._journal.delete(table, key)
        if table != TABLE:
            return
        if self._rows.pop(key, None) is not None:
            self._add(Changed([(key, None)]))
        elif (vhost := self.vhosts.pop(key, None)) is not None:
            self._add(Removed(vhost.name))

    def when_safe(self, callback: Callable[[bool], object]) -> None:
        """Call back as the journal does."""
        self._journal.when_safe(callback)

    def when_all_safe(self, callback: Callable[[bool], object]) -> None:
        """Call back as the journal does."""
        self._journal.when_all_safe(callback)

    @property
    def are_sent(self) -> bool:
        """True if no change waits for its commit."""
        return not self._waiting

    def _keep(self, key: bytes, value: bytes) -> Changed | Placed | None:
        if key[:1] in _KINDS:
            self._rows[key] = value
            return Changed([(key, value)])
        if key[:1] == VHostRow.kind:
            row = decode(key, value)
            assert isinstance(row, VHostRow)  # noqa: S101 - the kind says so
            self.vhosts[key] = row
            return Placed(row)
        return None

    def _add(self, change: Changed | Placed | Removed) -> None:
        self._waiting.append(change)
        self._subscribe_later()

    def _subscribe_later(self) -> None:
        if not self._is_subscribed:
            self._is_subscribed = True
            self._later(self._subscribe)

    def _subscribe(self) -> None:
        self._journal.when_safe(partial(self._settled, len(self._waiting)))

    def _settled(self, count: int, _stored: bool) -> None:
        """Tell of the first changes; on a full disk, too: the front itself acts by them already."""
        self._is_subscribed = False
        settled, self._waiting = self._waiting[:count], self._waiting[count:]
        rows: Rows = []
        for change in settled:
            if isinstance(change, Changed):
                rows += change.rows
                continue
            if rows:
                self._tell(Changed(rows))
                rows = []
            self._tell(change)
        if rows:
            self._tell(Changed(rows))
        if self._waiting:
            self._subscribe_later()
        elif self.on_sent is not None:
            self.on_sent()


class FollowedRows:
    """The rows of the node in a process: changes its users and global parameters, and stores nothing."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._known: dict[bytes, Row] = {}

    def follow(self, rows: Rows) -> None:
        """Make the changes of the front."""
        definitions = self._directory.definitions
        ends = {key: at for at, (key, value) in enumerate(rows) if value is None}
        definitions.recording = False
        try:
            for at, (key, value) in enumerate(rows):
                if value is None:
                    row = self._known.pop(key, None)
                    if row is not None and not self._ends_with_user(row, at, ends):
                        self._forget(row)
                else:
                    self._known[key] = row = decode(key, value)
                    self._set(row)
        finally:
            definitions.recording = True

    def _ends_with_user(self, row: Row, at: int, ends: dict[bytes, int]) -> bool:
        """Return whether a row is deleted with its user, which is the reason that the clients then get."""
        if not isinstance(row, PermissionRow | TopicPermissionRow | UserLimitsRow):
            return False
        return ends.get(relation_key(UserRow.kind, row.user), -1) > at

    def _set(self, row: Row) -> None:
        users, parameters = self._directory.users, self._directory.global_parameters
        try:
            match row:
                case PermissionRow():
                    users.set_permissions(*map(text, astuple(row)))
                case TopicPermissionRow():
                    users.set_topic_permissions(*map(text, astuple(row)))
                case _:
                    set_node_row(row, users, parameters)
        except InvalidPatternError:
            set_node_row(row, users, parameters)

    def _forget(self, row: Row) -> None:
        users: Users = self._directory.users
        match row:
            case UserRow():
                users.remove(text(row.name))
            case PermissionRow():
                users.clear_permissions(text(row.user), text(row.vhost))
            case TopicPermissionRow():
                users.clear_topic_permissions(text(row.user), text(row.vhost), text(row.exchange))
            case UserLimitsRow():
                users.set_user_limits(text(row.user), UserLimits())
            case VHostLimitsRow():
                users.clear_vhost_limits(text(row.vhost))
            case GlobalParameterRow():
                self._directory.global_parameters.clear(text(row.name))
