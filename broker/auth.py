"""Who may log in, and what they may do there: RabbitMQ's internal authentication and authorisation.

Permissions are three patterns for each user and vhost, matched anywhere in a resource's name
(rabbit_auth_backend_internal:check_resource_access). Patterns are RE2's, linear in the name whatever the
pattern; what RE2 lacks (lookahead, backreferences) goes to Python's `re` with a warning in the log.

Nothing here does input or output, and nothing counts: who is connected is for the caller to know.
"""

import functools
import ipaddress
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from broker.credentials import SHA256, Password, check_password

logger = logging.getLogger(__name__)

Kind = Literal["configure", "write", "read"]
TopicKind = Literal["write", "read"]
Matcher = Callable[[bytes], object]

DEFAULT_EXCHANGE = "amq.default"
"""The name under which the default exchange is checked."""

_CACHED_NAMES = 1024
"""Names per permission whose result is remembered; clients choose names, so it must end somewhere."""

# What an unknown user's password is compared with, so that the answer takes as long: of no password.
_NOBODY_HASH = "AAAA" * 12


class LoginRefusedError(Exception):
    """A login failed. The text is for the log; the client only learns that it was refused."""


class InvalidPatternError(ValueError):
    """A permission's pattern is no regular expression."""


@dataclass(frozen=True, slots=True)
class User:
    """A user who may log in by password.

    Attributes:
        name: as in the login.
        password_hash: see `broker.credentials`; '' lets nobody in.
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

    '' means `^$`: nothing.

    Raises:
        InvalidPatternError: one of the three is no regular expression.
    """

    __slots__ = ("_configure", "_read", "_write", "configure", "read", "write")

    def __init__(self, configure: str, write: str, read: str) -> None:
        self.configure = configure
        self.write = write
        self.read = read
        self._configure = _Pattern(configure)
        self._write = _Pattern(write)
        self._read = _Pattern(read)

    def check(self, kind: Kind, name: str) -> bool:
        """Whether the user may do that with the queue or exchange; '' is the default exchange's name."""
        if kind == "configure":
            return self._configure.matches(name or DEFAULT_EXCHANGE)
        if kind == "write":
            return self._write.matches(name or DEFAULT_EXCHANGE)
        return self._read.matches(name or DEFAULT_EXCHANGE)

    def __repr__(self) -> str:
        return f"Permissions({self.configure!r}, {self.write!r}, {self.read!r})"


class TopicPermissions:
    """Which routing keys one user may use with the topic exchanges of one vhost.

    False if there are none, which allows everything; an exchange without a row allows everything too
    (rabbit_auth_backend_internal:check_topic_access). Never changes.

    Args:
        rows: for each exchange the patterns for write and read, with their variables filled in.

    Raises:
        InvalidPatternError: one of the patterns is no regular expression.
    """

    __slots__ = ("_rows",)

    def __init__(self, rows: dict[str, tuple[str, str]]) -> None:
        self._rows = {name: (_Pattern(write), _Pattern(read)) for name, (write, read) in rows.items()}

    def __bool__(self) -> bool:
        return bool(self._rows)

    def check(self, exchange: str, kind: TopicKind, routing_key: str) -> bool:
        """Whether the user may publish with that key ('write') or bind with it ('read')."""
        row = self._rows.get(exchange)
        return row is None or row[0 if kind == "write" else 1].matches(routing_key)


class _Pattern:
    """One pattern and the names already asked for."""

    __slots__ = ("_known", "_search")

    def __init__(self, pattern: str) -> None:
        self._search = compile_pattern(pattern)
        self._known: dict[str, bool] = {}

    def matches(self, name: str) -> bool:
        known = self._known.get(name)
        if known is None:
            known = bool(self._search(name.encode("utf-8", "surrogateescape")))
            if len(self._known) >= _CACHED_NAMES:
                self._known.clear()
            self._known[name] = known
        return known


def _everything(_name: bytes) -> bool:
    return True


def _nothing(name: bytes) -> bool:
    return not name


@functools.lru_cache(maxsize=256)
def compile_pattern(pattern: str) -> Matcher:
    """Compile a permission's pattern to a search in the octets of a name.

    RabbitMQ searches octets as well: its `re:run` goes without the option `unicode`.

    Raises:
        InvalidPatternError: neither RE2 nor Python's `re` takes it.
    """
    if pattern == ".*":
        return _everything
    if pattern in {"", "^$"}:
        return _nothing
    import re2  # noqa: PLC0415 - most brokers have only trivial patterns and shall not load it

    octets = pattern.encode("utf-8", "surrogateescape")
    options = re2.Options()
    options.log_errors = False
    options.encoding = re2.Options.Encoding.LATIN1
    try:
        search: Matcher = re2.compile(octets, options).search
    except re2.error:
        try:
            search = re.compile(octets).search
        except (re.error, RecursionError, OverflowError) as error:
            raise InvalidPatternError(f"'{pattern}' is no regular expression: {error}") from error
        logger.warning("pattern '%s' needs what RE2 lacks: matching may take exponential time", pattern)
    return search


class Users:
    """All users, their permissions and the limits on users and vhosts.

    Args:
        loopback_users: names that may only log in from this host.

    `generation` is another number after any change; whoever keeps a `Permissions` asks again then.
    """

    __slots__ = (
        "_permissions",
        "_topic_rows",
        "_topics",
        "_user_limits",
        "_users",
        "_vhost_limits",
        "generation",
        "loopback_users",
    )

    def __init__(self, loopback_users: Iterable[str] = ("guest",)) -> None:
        self.generation = 0
        self.loopback_users = frozenset(loopback_users)
        self._users: dict[str, User] = {}
        self._permissions: dict[tuple[str, str], Permissions] = {}
        self._topic_rows: dict[tuple[str, str], dict[str, tuple[str, str]]] = {}
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
            InvalidPatternError: one of them is no regular expression; nothing has changed then.
        """
        self._permissions[user, vhost] = Permissions(configure, write, read)
        self.generation += 1

    def clear_permissions(self, user: str, vhost: str) -> None:
        """Shut a user out of a vhost."""
        self._permissions.pop((user, vhost), None)
        self.generation += 1

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
            InvalidPatternError: one of them is no regular expression; nothing has changed then.
        """
        rows = {**self._topic_rows.get((user, vhost), {}), exchange: (write, read)}
        self._set_topics(user, vhost, rows)

    def clear_topic_permissions(self, user: str, vhost: str, exchange: str | None = None) -> None:
        """Lift the restriction at one exchange or, by None, at all of the vhost."""
        rows = dict(self._topic_rows.get((user, vhost), {}))
        if exchange is None:
            rows.clear()
        else:
            rows.pop(exchange, None)
        self._set_topics(user, vhost, rows)

    def topic_permissions(self, user: str, vhost: str) -> TopicPermissions:
        """Return the user's restrictions in the vhost; false if there are none."""
        return self._topics.get((user, vhost)) or TopicPermissions({})

    def topic_permission_rows(self) -> list[tuple[str, str, str, str, str]]:
        """Return all rows as they were set: user, vhost, exchange, write, read."""
        return [
            (user, vhost, exchange, write, read)
            for (user, vhost), rows in self._topic_rows.items()
            for exchange, (write, read) in rows.items()
        ]

    def _set_topics(self, user: str, vhost: str, rows: dict[str, tuple[str, str]]) -> None:
        def expanded(pattern: str) -> str:
            return pattern.replace("{username}", re.escape(user)).replace("{vhost}", re.escape(vhost))

        topics = TopicPermissions(
            {exchange: (expanded(write), expanded(read)) for exchange, (write, read) in rows.items()}
        )
        self._topics[user, vhost] = topics
        self._topic_rows[user, vhost] = rows
        self.generation += 1

    def remove_vhost(self, vhost: str) -> None:
        """Remove all permissions in a vhost that is gone, and its limits."""
        self._forget(1, vhost)
        self._vhost_limits.pop(vhost, None)
        self.generation += 1

    def _forget(self, part: int, name: str) -> None:
        """Remove the rows whose key has that user (part 0) or vhost (part 1)."""
        tables: tuple[dict[tuple[str, str], Any], ...] = (self._permissions, self._topic_rows, self._topics)
        for table in tables:
            for key in [key for key in table if key[part] == name]:
                del table[key]

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
