"""Users and their limits: RabbitMQ's internal authentication and authorisation backend, and users of other backends.

Nothing here does I/O or counts connections: the caller knows who is connected.
"""

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from leveret.broker.auth.name_patterns import Matcher, Patterns
from leveret.broker.auth.passwords import SHA256, Password, PasswordPolicy, check_password
from leveret.broker.auth.permissions import Permissions, Rights, TopicPermissions

SESSION_SECONDS = 3600.0  # longest session of a browser, after which what a backend has changed is felt
_GUEST = "guest"

# A hash of no password: an unknown user's password is checked against it, so that the reply takes as long.
_NOBODY_HASH = "AAAA" * 12


class LoginRefusedError(Exception):
    """A login failed. The text is for the log; the client only learns that it was refused."""


class LoopbackOnlyError(LoginRefusedError):
    """The password is right, but this user may log in from the broker's own host only."""


@dataclass(frozen=True, slots=True)
class User:
    """A user who may log in by password."""

    name: str  # user name of the login
    password_hash: str = field(repr=False)  # see `broker.auth.passwords`; '' refuses every password
    tags: tuple[str, ...] = ()  # administrator, monitoring, policymaker, management or others, as given
    hashing_algorithm: str = SHA256  # RabbitMQ's name of the hash algorithm

    @property
    def may_impersonate(self) -> bool:
        """True if the user may publish messages with another user's name in `user_id`."""
        return "impersonator" in self.tags


class Login(NamedTuple):
    """A user as one backend knows it."""

    name: str  # name of the user, which may be another than that of the login
    tags: tuple[str, ...] = ()  # the tags that this backend gives
    data: Any = None  # what the backend needs to decide about the user later; only it looks at it
    expires: float | None = None  # epoch seconds at which the login ends; None for never


@dataclass(frozen=True, slots=True, eq=False)
class BackendUser(User):
    """A user whom a chain of backends has let in; the tables of `Users` do not concern it."""

    # the backends that decide about the user, each with the user as it knows it; all have to allow
    authorizers: tuple[tuple[Any, Login], ...] = ()
    # position in the chain of the backend that has checked the password, for another password
    authenticator: int = 0
    # seconds since the epoch at which the login, or the session of a browser, ends; None for never
    expires: float | None = None
    login_expires: float | None = None  # those at which the login itself ends
    # vhosts, rights: for the management API, the vhosts that the user may access, of those asked about so far, and the
    # rights by vhost
    vhosts: frozenset[str] = frozenset()
    rights: Mapping[str, Rights] = field(default_factory=dict)

    def in_session(self, now: int) -> "BackendUser":
        """Return the user for a session of a browser, which does not ask for the password again: it ends earlier."""
        until = now / 1000 + SESSION_SECONDS
        return replace(self, expires=until if self.expires is None else min(self.expires, until))

    def is_over(self, now: int) -> bool:
        """Return whether the login has ended; `now` is milliseconds since the epoch, here and in the others."""
        return self.expires is not None and now >= self.expires * 1000

    def has_expired(self, now: int) -> bool:
        """Return whether the login itself has ended, as with a token; the end of a browser's session is none."""
        return self.login_expires is not None and now >= self.login_expires * 1000


@dataclass(frozen=True, slots=True)
class UserLimits:
    """Limits of one user over all vhosts; None and negative numbers are unlimited, 0 allows nothing.

    The rates are messages, and bytes from connections that publish, a second.
    """

    max_connections: int | None = None
    max_channels: int | None = None
    max_publish_rate: int | None = None
    max_publish_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class VHostLimits:
    """Limits of one vhost; None and negative numbers are unlimited, 0 allows nothing. See `UserLimits`."""

    max_connections: int | None = None
    max_queues: int | None = None
    max_publish_rate: int | None = None
    max_publish_bytes: int | None = None


USER_LIMITS = ("max-connections", "max-channels", "max-publish-rate", "max-publish-bytes")
VHOST_LIMITS = ("max-connections", "max-queues", "max-publish-rate", "max-publish-bytes")
"""RabbitMQ's names of limits, and our own, in the order of the fields of `UserLimits` and `VHostLimits`."""


def limits_by_name(limits: UserLimits | VHostLimits) -> dict[str, int]:
    """Return the limits that are set, by RabbitMQ's names."""
    named = {name.replace("_", "-"): limit for name, limit in asdict(limits).items()}
    return {name: limit for name, limit in named.items() if limit is not None}


def is_reached(limit: int | None, count: int) -> bool:
    """Return whether a limit allows no more than there are."""
    return limit is not None and 0 <= limit <= count


_NO_USER_LIMITS = UserLimits()
_NO_VHOST_LIMITS = VHostLimits()


_NO_TOPICS = TopicPermissions({})


class Users:
    """All users, their permissions and the limits on users and vhosts.

    `generation` changes with every modification; cached `Permissions` must then be fetched again. `patterns` compiles
    those of imported policies, too.
    """

    def __init__(self, loopback_users: Iterable[str] = ("guest",), patterns: Patterns | None = None) -> None:
        self.generation = 0
        self.on_revoked: Callable[[str, str | None], object] = lambda _user, _vhost: None
        """Called when a user's permissions in a vhost were changed or removed; with None when the user was removed."""
        self.patterns = patterns or Patterns()
        self.passwords = PasswordPolicy()  # the rules for new passwords
        self.are_shared = (
            False  # True if they are those of another log, which removes the rights in deleted vhosts
        )
        self.loopback_users = frozenset(loopback_users)
        self._users: dict[str, User] = {}
        self._permissions: dict[tuple[str, str], Permissions] = {}
        self._topics: dict[tuple[str, str], TopicPermissions] = {}
        self._user_limits: dict[str, UserLimits] = {}
        self._vhost_limits: dict[str, VHostLimits] = {}

    # Users

    def add(self, user: User) -> None:
        """Add a user or replace the one of that name; its permissions are kept."""
        self._users[user.name] = user
        self.generation += 1

    def remove(self, name: str) -> None:
        """Remove a user with all permissions and limits. Does nothing if there is none."""
        if self._users.pop(name, None) is None:
            return
        self._forget(0, name)
        self._user_limits.pop(name, None)
        self.generation += 1
        self.on_revoked(name, None)

    def get(self, name: str) -> User | None:
        """Return the user of that name, None if there is none."""
        return self._users.get(name)

    def current(self, user: User) -> User | None:
        """Return a user that has logged in as it is now, None if it was deleted: as it was, if backends know it."""
        return user if isinstance(user, BackendUser) else self._users.get(user.name)

    def sees(self, user: User, vhost: str) -> bool:
        """Return whether a user that has logged in may access a vhost."""
        if isinstance(user, BackendUser):
            return vhost in user.vhosts
        return self.may_access(user.name, vhost)

    def all(self) -> list[User]:
        """Return all users."""
        return list(self._users.values())

    def authenticate(self, name: str, password: Password | None, peer_host: str) -> User:
        """Authenticate a user by password; without one, a user whom a certificate has authenticated.

        Takes as long for unknown users as for wrong passwords; the caller is responsible for delaying the reply. Raises
        LoginRefusedError, LoopbackOnlyError for a loopback user from another host.
        """
        user = self._users.get(name)
        if password is not None and password.blank:
            raise LoginRefusedError(
                f"user '{name}' attempted to log in with a blank password, which is prohibited"
            )
        if user is None:
            if password is not None:
                check_password(password, _NOBODY_HASH)
            raise LoginRefusedError(f"user '{name}' - invalid credentials")
        if password is not None and not check_password(password, user.password_hash, user.hashing_algorithm):
            raise LoginRefusedError(f"user '{name}' - invalid credentials")
        if name in self.loopback_users and not is_loopback(peer_host):
            raise LoopbackOnlyError(f"user '{name}' can only connect via localhost")
        return user

    # Permissions

    def set_permissions(self, user: str, vhost: str, configure: str, write: str, read: str) -> None:
        """Set a user's permissions in a vhost; raises InvalidPatternError, and nothing was changed then."""
        new = Permissions(configure, write, read, self.patterns.compile)
        before = self._permissions.get((user, vhost), new)
        self._permissions[user, vhost] = new
        self.generation += 1
        if before.read != read:
            self.on_revoked(user, vhost)

    def restore_permissions(self, user: str, vhost: str, configure: str, write: str, read: str) -> None:
        """Set permissions stored by an earlier run: an unsupported pattern is logged and matches nothing."""
        owner = f"permissions of user '{user}' in vhost '{vhost}'"
        compiled = partial(self.patterns.stored, owner=owner)
        self._permissions[user, vhost] = Permissions(configure, write, read, compiled)
        self.generation += 1

    def clear_permissions(self, user: str, vhost: str) -> None:
        """Remove a user's permissions in a vhost, and with them the access to it."""
        self._permissions.pop((user, vhost), None)
        self.generation += 1
        self.on_revoked(user, vhost)

    def may_access(self, user: str, vhost: str) -> bool:
        """Return whether the user may open connections to the vhost: any row allows it, even with empty patterns."""
        return (user, vhost) in self._permissions

    def permissions(self, user: str, vhost: str) -> Permissions:
        """Return the user's permissions in the vhost; if there is no row, they allow nothing."""
        return self._permissions.get((user, vhost)) or Permissions("", "", "")

    def permission_rows(self) -> Iterator[tuple[str, str, Permissions]]:
        """Yield all rows that are there now: user, vhost, permissions."""
        return ((user, vhost, row) for (user, vhost), row in tuple(self._permissions.items()))

    def vhosts(self) -> set[str]:
        """Return the names of the vhosts in which users have rights."""
        return {vhost for _, vhost in chain(self._permissions, self._topics)}

    def set_topic_permissions(self, user: str, vhost: str, exchange: str, write: str, read: str) -> None:
        """Restrict a user's routing keys at a topic exchange; raises InvalidPatternError, and nothing was changed then.

        `{username}` and `{vhost}` in the patterns stand for the literal names. RabbitMQ substitutes them
        without escaping, so there a user named `.*` would match everything.
        """
        self._set_topic(user, vhost, exchange, write, read, self.patterns.compile)

    def restore_topic_permissions(self, user: str, vhost: str, exchange: str, write: str, read: str) -> None:
        """Set topic permissions stored by an earlier run: an unsupported pattern is logged and matches nothing."""
        owner = f"topic permissions of user '{user}' for exchange '{exchange}' in vhost '{vhost}'"
        self._set_topic(user, vhost, exchange, write, read, partial(self.patterns.stored, owner=owner))

    def clear_topic_permissions(self, user: str, vhost: str, exchange: str | None = None) -> None:
        """Remove the topic permissions for one exchange or, if it is None, for all of the vhost."""
        rows = self.topic_permissions(user, vhost).rows
        left = {} if exchange is None else {name: row for name, row in rows.items() if name != exchange}
        self._topics[user, vhost] = TopicPermissions(left)
        self.generation += 1

    def topic_permissions(self, user: str, vhost: str) -> TopicPermissions:
        """Return the user's topic permissions in the vhost; false if there are none."""
        return self._topics.get((user, vhost), _NO_TOPICS)

    def topic_permission_rows(self) -> Iterator[tuple[str, str, str, str, str]]:
        """Yield all rows that are there now, as they were set: user, vhost, exchange, write, read."""
        return (
            (user, vhost, exchange, row.write, row.read)
            for (user, vhost), topics in tuple(self._topics.items())
            for exchange, row in topics.rows.items()
        )

    def _set_topic(
        self, user: str, vhost: str, exchange: str, write: str, read: str, compiled: Callable[..., Matcher]
    ) -> None:
        compiled = partial(compiled, username=user, vhost=vhost)
        before = self.topic_permissions(user, vhost)
        self._topics[user, vhost] = before.having(exchange, write, read, compiled)
        self.generation += 1

    def remove_vhost(self, vhost: str) -> None:
        """Remove all permissions in a deleted vhost, unless they are shared, and its limits."""
        if not self.are_shared:
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
        """Set the user's limits."""
        self._user_limits[user] = limits
        self.generation += 1

    def vhost_limits(self, vhost: str) -> VHostLimits:
        """Return the vhost's limits."""
        return self._vhost_limits.get(vhost, _NO_VHOST_LIMITS)

    def has_vhost_limits(self, vhost: str) -> bool:
        """Return whether limits of the vhost were set and not cleared since, even if none is left, as in RabbitMQ."""
        return vhost in self._vhost_limits

    def clear_vhost_limits(self, vhost: str) -> None:
        """Remove all of the vhost's limits."""
        self._vhost_limits.pop(vhost, None)
        self.generation += 1

    def set_vhost_limits(self, vhost: str, limits: VHostLimits) -> None:
        """Set the vhost's limits."""
        self._vhost_limits[vhost] = limits
        self.generation += 1


def open_credentials(users: Users) -> str:
    """Return a warning if the user `guest` has its default password and may log in from any host; otherwise ''."""
    return "" if _GUEST in users.loopback_users else default_credentials(users)


def default_credentials(users: Users) -> str:
    """Return a warning if the user `guest` still has its default password; otherwise ''."""
    guest = users.get(_GUEST)
    if guest is None or not check_password(Password(_GUEST), guest.password_hash, guest.hashing_algorithm):
        return ""
    if _GUEST not in users.loopback_users:
        return (
            "user 'guest' has the default password and may log in from any host: change the password or "
            "delete the user"
        )
    return (
        "user 'guest' has the default password and may log in from this host only; behind a proxy on this host that "
        "applies to all clients, so change the password before you use one"
    )


def is_loopback(peer_host: str) -> bool:
    """Return whether an address, written as IPv4, IPv6 or IPv4 in IPv6, is a loopback address of this host."""
    try:
        address = ipaddress.ip_address(peer_host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
