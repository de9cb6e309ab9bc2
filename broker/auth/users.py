"""Who may log in, and what they may do there: RabbitMQ's internal authentication and authorisation.

Permissions are three patterns for each user and vhost (`broker.auth.name_patterns`), matched anywhere in a resource's
name (rabbit_auth_backend_internal:check_resource_access).

Nothing here does input or output, and nothing counts: who is connected is for the caller to know.
"""

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol

from leveret.broker.auth.name_patterns import Matcher, Patterns
from leveret.broker.auth.passwords import SHA256, Password, check_password

Kind = Literal["configure", "write", "read"]
TopicKind = Literal["write", "read"]

DEFAULT_EXCHANGE = "amq.default"
"""The name under which the default exchange is checked."""

_GUEST = "guest"

_CACHED_NAMES = 1024
"""Names per permission whose result is remembered; clients choose names, so it must end somewhere."""

# What an unknown user's password is compared with, so that the answer takes as long: of no password.
_NOBODY_HASH = "AAAA" * 12


class LoginRefusedError(Exception):
    """A login failed. The text is for the log; the client only learns that it was refused."""


@dataclass(frozen=True, slots=True)
class User:
    """A user who may log in by password.

    Attributes:
        name: as in the login.
        password_hash: see `broker.auth.passwords`; '' lets nobody in.
        tags: administrator, monitoring, policymaker, management, impersonator or any other.
        hashing_algorithm: RabbitMQ's name for the algorithm of the hash.
    """

    name: str
    password_hash: str = field(repr=False)
    tags: frozenset[str] = frozenset()
    hashing_algorithm: str = SHA256

    @property
    def may_impersonate(self) -> bool:
        """Whether messages may carry another user's name in `user_id`."""
        return "impersonator" in self.tags


@dataclass(frozen=True, slots=True)
class UserLimits:
    """What one user may have open at once over all vhosts; None is unlimited, 0 is nothing."""

    max_connections: int | None = None
    max_channels: int | None = None


@dataclass(frozen=True, slots=True)
class VHostLimits:
    """What one vhost may hold; None is unlimited, 0 is nothing."""

    max_connections: int | None = None
    max_queues: int | None = None


_NO_USER_LIMITS = UserLimits()
_NO_VHOST_LIMITS = VHostLimits()


class Permissions:
    """What one user may do with the resources of one vhost. Never changes; `Users` hands out a new one.

    Args:
        configure: pattern of names that the user may declare and delete.
        write: pattern of names that the user may publish to or bind.
        read: pattern of names that the user may consume from or bind to.
        compiled: makes the matcher of a pattern; by default `Patterns().compile`.

    '' means `^$`: nothing.

    Raises:
        InvalidPatternError: one of the three cannot be used.
    """

    __slots__ = ("_configure", "_read", "_write", "configure", "read", "write")

    def __init__(
        self, configure: str, write: str, read: str, compiled: Callable[[str], Matcher] | None = None
    ) -> None:
        compiled = compiled or Patterns().compile
        self.configure = configure
        self.write = write
        self.read = read
        self._configure = _Names(compiled(configure))
        self._write = _Names(compiled(write))
        self._read = _Names(compiled(read))

    def check(self, kind: Kind, name: str) -> bool:
        """Whether the user may do that with the queue or exchange; '' is the default exchange's name."""
        if kind == "configure":
            return self._configure.match(name or DEFAULT_EXCHANGE)
        if kind == "write":
            return self._write.match(name or DEFAULT_EXCHANGE)
        return self._read.match(name or DEFAULT_EXCHANGE)

    def __repr__(self) -> str:
        return f"Permissions({self.configure!r}, {self.write!r}, {self.read!r})"


@dataclass(frozen=True, slots=True)
class _TopicRow:
    """A topic permission: its patterns as they were set, and with their variables filled in."""

    write: str
    read: str
    write_keys: "_Names"
    read_keys: "_Names"


class TopicPermissions:
    """Which routing keys one user may use with the topic exchanges of one vhost.

    False if there are none, which allows everything; an exchange without a row allows everything too
    (rabbit_auth_backend_internal:check_topic_access). Never changes.

    Args:
        rows: for each exchange the patterns for write and read.
    """

    __slots__ = ("rows",)

    def __init__(self, rows: Mapping[str, _TopicRow]) -> None:
        self.rows = rows

    def __bool__(self) -> bool:
        return bool(self.rows)

    def check(self, exchange: str, kind: TopicKind, routing_key: str) -> bool:
        """Whether the user may publish with that key ('write') or bind with it ('read')."""
        row = self.rows.get(exchange)
        return row is None or (row.write_keys if kind == "write" else row.read_keys).match(routing_key)


_NO_TOPICS = TopicPermissions({})


class _Names:
    """A matcher and the names already asked for."""

    __slots__ = ("_known", "_search")

    def __init__(self, search: Matcher) -> None:
        self._search = search
        self._known: dict[str, bool] = {}

    def match(self, name: str) -> bool:
        known = self._known.get(name)
        if known is None:
            known = bool(self._search(name.encode("utf-8", "surrogateescape")))
            if len(self._known) >= _CACHED_NAMES:
                self._known.clear()
            self._known[name] = known
        return known


class RightsListener(Protocol):
    """Whoever has granted something by rights that may change (`broker.connection.connection_tracking`)."""

    def rights_changed(self, user: str, vhost: str) -> None:
        """A user's permissions in a vhost are others, or none any more."""

    def user_removed(self, user: str) -> None:
        """A user is gone, with all permissions."""


class Users:
    """All users, their permissions and the limits on users and vhosts.

    Args:
        loopback_users: names that may only log in from this host.
        patterns: makes the matchers of permissions, and of policies where they are imported.

    `generation` is another number after any change; whoever keeps a `Permissions` asks again then. `listener` is told
    of rights that are taken away; None for nobody.
    """

    __slots__ = (
        "_permissions",
        "_topics",
        "_user_limits",
        "_users",
        "_vhost_limits",
        "generation",
        "listener",
        "loopback_users",
        "patterns",
    )

    def __init__(self, loopback_users: Iterable[str] = ("guest",), patterns: Patterns | None = None) -> None:
        self.generation = 0
        self.listener: RightsListener | None = None
        self.patterns = patterns or Patterns()
        self.loopback_users = frozenset(loopback_users)
        self._users: dict[str, User] = {}
        self._permissions: dict[tuple[str, str], Permissions] = {}
        self._topics: dict[tuple[str, str], TopicPermissions] = {}
        self._user_limits: dict[str, UserLimits] = {}
        self._vhost_limits: dict[str, VHostLimits] = {}

    # Users

    def add(self, user: User) -> None:
        """Add a user or replace the one of that name, whose permissions stay."""
        self._users[user.name] = user
        self.generation += 1

    def remove(self, name: str) -> None:
        """Remove a user with all permissions and limits. Does nothing if there is none."""
        if self._users.pop(name, None) is None:
            return
        self._forget(0, name)
        self._user_limits.pop(name, None)
        self.generation += 1
        if self.listener is not None:
            self.listener.user_removed(name)

    def get(self, name: str) -> User | None:
        """Return the user of that name."""
        return self._users.get(name)

    def all(self) -> list[User]:
        """Return all users."""
        return list(self._users.values())

    def authenticate(self, name: str, password: Password, peer_host: str) -> User:
        """Log a user in by password.

        Takes as long for unknown users as for wrong passwords; delaying the answer is the caller's part.

        Raises:
            LoginRefusedError: unknown user, wrong or blank password, or a loopback user from elsewhere.
        """
        user = self._users.get(name)
        if password.blank:
            raise LoginRefusedError(
                f"user '{name}' attempted to log in with a blank password, which is prohibited"
            )
        if user is None:
            check_password(password, _NOBODY_HASH)
            raise LoginRefusedError(f"user '{name}' - invalid credentials")
        if not check_password(password, user.password_hash, user.hashing_algorithm):
            raise LoginRefusedError(f"user '{name}' - invalid credentials")
        if name in self.loopback_users and not is_loopback(peer_host):
            raise LoginRefusedError(f"user '{name}' can only connect via localhost")
        return user

    # Permissions

    def set_permissions(self, user: str, vhost: str, configure: str, write: str, read: str) -> None:
        """Let a user into a vhost with these three patterns.

        Raises:
            InvalidPatternError: one of them cannot be used; nothing has changed then.
        """
        new = Permissions(configure, write, read, self.patterns.compile)
        before = self._permissions.get((user, vhost), new)
        self._permissions[user, vhost] = new
        self.generation += 1
        if self.listener is not None and before.read != read:
            self.listener.rights_changed(user, vhost)

    def restore_permissions(self, user: str, vhost: str, configure: str, write: str, read: str) -> None:
        """The same for what an earlier run has stored: a pattern that cannot be used is logged and matches nothing."""
        owner = f"permissions of user '{user}' in vhost '{vhost}'"
        compiled = partial(self.patterns.stored, owner=owner)
        self._permissions[user, vhost] = Permissions(configure, write, read, compiled)
        self.generation += 1

    def clear_permissions(self, user: str, vhost: str) -> None:
        """Shut a user out of a vhost."""
        self._permissions.pop((user, vhost), None)
        self.generation += 1
        if self.listener is not None:
            self.listener.rights_changed(user, vhost)

    def may_access(self, user: str, vhost: str) -> bool:
        """Whether the user may open connections to the vhost: any row will do, even of empty patterns."""
        return (user, vhost) in self._permissions

    def permissions(self, user: str, vhost: str) -> Permissions:
        """Return what the user may do in the vhost: nothing if there is no row."""
        return self._permissions.get((user, vhost)) or Permissions("", "", "")

    def permission_rows(self) -> list[tuple[str, str, Permissions]]:
        """Return all rows: user, vhost, permissions."""
        return [(user, vhost, row) for (user, vhost), row in self._permissions.items()]

    def set_topic_permissions(self, user: str, vhost: str, exchange: str, write: str, read: str) -> None:
        """Restrict a user's routing keys at a topic exchange.

        `{username}` and `{vhost}` in the patterns stand for the literal names. RabbitMQ fills them in
        without escaping, so that a user named `.*` would match everything there.

        Raises:
            InvalidPatternError: one of them cannot be used; nothing has changed then.
        """
        self._set_topic(user, vhost, exchange, write, read, self.patterns.compile)

    def restore_topic_permissions(self, user: str, vhost: str, exchange: str, write: str, read: str) -> None:
        """The same for what an earlier run has stored: a pattern that cannot be used is logged and matches nothing."""
        owner = f"topic permissions of user '{user}' for exchange '{exchange}' in vhost '{vhost}'"
        self._set_topic(user, vhost, exchange, write, read, partial(self.patterns.stored, owner=owner))

    def clear_topic_permissions(self, user: str, vhost: str, exchange: str | None = None) -> None:
        """Lift the restriction at one exchange or, by None, at all of the vhost."""
        rows = self.topic_permissions(user, vhost).rows
        left = {} if exchange is None else {name: row for name, row in rows.items() if name != exchange}
        self._topics[user, vhost] = TopicPermissions(left)
        self.generation += 1

    def topic_permissions(self, user: str, vhost: str) -> TopicPermissions:
        """Return the user's restrictions in the vhost; false if there are none."""
        return self._topics.get((user, vhost), _NO_TOPICS)

    def topic_permission_rows(self) -> list[tuple[str, str, str, str, str]]:
        """Return all rows as they were set: user, vhost, exchange, write, read."""
        return [
            (user, vhost, exchange, row.write, row.read)
            for (user, vhost), topics in self._topics.items()
            for exchange, row in topics.rows.items()
        ]

    def _set_topic(
        self, user: str, vhost: str, exchange: str, write: str, read: str, compiled: Callable[..., Matcher]
    ) -> None:
        write_keys, read_keys = (
            _Names(compiled(pattern, username=user, vhost=vhost)) for pattern in (write, read)
        )
        row = _TopicRow(write, read, write_keys, read_keys)
        self._topics[user, vhost] = TopicPermissions(
            {**self.topic_permissions(user, vhost).rows, exchange: row}
        )
        self.generation += 1

    def remove_vhost(self, vhost: str) -> None:
        """Remove all permissions in a vhost that is gone, and its limits."""
        self._forget(1, vhost)
        self._vhost_limits.pop(vhost, None)
        self.generation += 1

    def _forget(self, part: int, name: str) -> None:
        """Remove the rows whose key has that user (part 0) or vhost (part 1)."""
        for key in [key for key in self._permissions if key[part] == name]:
            del self._permissions[key]
        for key in [key for key in self._topics if key[part] == name]:
            del self._topics[key]

    # Limits

    def user_limits(self, user: str) -> UserLimits:
        """Return the user's limits."""
        return self._user_limits.get(user, _NO_USER_LIMITS)

    def set_user_limits(self, user: str, limits: UserLimits) -> None:
        """Set the user's limits; a negative number is unlimited, as in RabbitMQ."""
        self._user_limits[user] = UserLimits(_limit(limits.max_connections), _limit(limits.max_channels))
        self.generation += 1

    def vhost_limits(self, vhost: str) -> VHostLimits:
        """Return the vhost's limits."""
        return self._vhost_limits.get(vhost, _NO_VHOST_LIMITS)

    def set_vhost_limits(self, vhost: str, limits: VHostLimits) -> None:
        """Set the vhost's limits; a negative number is unlimited, as in RabbitMQ."""
        self._vhost_limits[vhost] = VHostLimits(_limit(limits.max_connections), _limit(limits.max_queues))
        self.generation += 1


def default_credentials(users: Users) -> str:
    """A warning about the user that every installation of RabbitMQ has, if it still has the password; else ''."""
    guest = users.get(_GUEST)
    if guest is None or not check_password(Password(_GUEST), guest.password_hash, guest.hashing_algorithm):
        return ""
    if _GUEST not in users.loopback_users:
        return "user 'guest' has the default password and may log in from any host: change it, or delete the user"
    return (
        "user 'guest' has the default password. It may log in from this host only, but where a proxy on this host "
        "passes connections on, every client is on this host: change the password before there is one"
    )


def _limit(number: int | None) -> int | None:
    return None if number is None or number < 0 else number


def is_loopback(peer_host: str) -> bool:
    """Whether an address is of this host's loopback interface, written as IPv4, IPv6 or IPv4 in IPv6."""
    try:
        address = ipaddress.ip_address(peer_host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
