"""Sessions of browsers: random tokens that stand for a login for some hours. Pure.

A session belongs to a user as it was at the login: after a change of its password or tags, and after its deletion, the
token is worth nothing. The table has the hash of each token only, so that who reads memory or a dump cannot log in. A
user has a share of the sessions; a further one replaces its own oldest.

A session whose login ends before it may have a refresh token of an identity provider, with which others renew it
(`broker.auth.backends.issuer`). It is as long as its user is the one of the login.
"""

import secrets
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from leveret.broker.auth.passwords import Password
from leveret.broker.auth.users import BackendUser, User, Users
from leveret.broker.process.shares import Shares

MOST = 1000  # most sessions; a further one replaces the oldest of the user who has most, by the last use
MOST_OF_ONE = 20  # maximum number of sessions of one user
TOKEN_OCTETS = 32  # random octets of a token
LONGEST_TOKEN = 64  # characters of the longest text that can be a token


EARLY_SECONDS = 60.0  # time before the end of a login at which it is renewed; at most a quarter of its time
AGAIN_SECONDS = 5.0  # time between two attempts to renew one login


class Renewal(NamedTuple):
    """A way to renew the login of a session."""

    secret: Password  # the refresh token
    due: float  # seconds of the wall clock since the epoch at which the login is to be renewed
    peer: str  # address of the client at the login


class _Session(NamedTuple):
    user: User
    used: float
    renewal: Renewal | None = None


class Sessions:
    """The sessions of one broker; `idle_seconds`: time without a request after which one ends."""

    def __init__(self, users: Users, idle_seconds: float) -> None:
        self._users = users
        self._idle_seconds = idle_seconds
        self._places = Shares(MOST, MOST_OF_ONE)
        self._sessions: dict[bytes, _Session] = {}  # by the hash of the token; the one used last is last

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, user: User, now: float, renewal: Renewal | None = None) -> str:
        """Begin a session; returns its token. `now` is seconds of a monotonic clock, here and below."""
        while (owner := self._places.yielding(user.name)) is not None:
            self._drop(next(key for key, each in self._sessions.items() if each.user.name == owner))
        self._places.acquire(user.name)
        token = secrets.token_urlsafe(TOKEN_OCTETS)
        self._sessions[_key(token)] = _Session(user, now, renewal)
        return token

    def find(self, token: str, now: float, *, is_used: bool = True) -> User | None:
        """Return the user of a session, as at the login; None if it is over.

        `is_used`: False to look without use: a page that only watches does not stay logged in for ever.
        """
        if not 0 < len(token) <= LONGEST_TOKEN:
            return None
        key = _key(token)
        session = self._sessions.get(key)
        if session is None:
            return None
        if now - session.used > self._idle_seconds or self._users.current(session.user) != session.user:
            self._drop(key)
            return None
        if is_used:
            del self._sessions[key]
            self._sessions[key] = session._replace(used=now)
        return session.user

    def end(self, token: str) -> None:
        """End a session, if there is one with this token."""
        if 0 < len(token) <= LONGEST_TOKEN:
            self._drop(_key(token))

    def kept(self, now: float, wall: int) -> list[list[str | int]]:
        """Return the sessions for the next run of the broker, as rows; `wall` is milliseconds since the epoch.

        A row has hashes of the token and of the user as at the login, so a reader of the row cannot log in with it.
        Sessions of users of other backends are left out.
        """
        return [
            [key.hex(), each.user.name, _fingerprint(each.user), wall - round((now - each.used) * 1000)]
            for key, each in self._sessions.items()
            if not isinstance(each.user, BackendUser)
        ]

    def restore(self, rows: Iterable[list[Any]], now: float, wall: int) -> None:
        """Go on with sessions of an earlier run, but for those of users who have changed since; raises ValueError."""
        for key, name, fingerprint, used in rows:
            user = self._users.get(name)
            if user is not None and _fingerprint(user) == fingerprint:
                self._places.acquire(name)
                self._sessions[bytes.fromhex(key)] = _Session(user, now - max(0, wall - used) / 1000)

    def renewable(self, now: float) -> dict[bytes, tuple[User, Renewal]]:
        """Return users and renewals of the sessions that can be renewed, by the key of the session; ends idle ones."""
        found = {}
        for key, session in list(self._sessions.items()):
            if session.renewal is None:
                continue
            if now - session.used > self._idle_seconds:
                self._drop(key)
            else:
                found[key] = (session.user, session.renewal)
        return found

    def renew(self, key: bytes, before: Renewal, user: User | None, after: Renewal | None) -> bool:
        """Put a new login in the place of that of a session, or end it if `user` is None.

        Returns False if the session has ended, or if `before` is not its latest renewal.
        """
        session = self._sessions.get(key)
        if session is None or session.renewal is not before:
            return False
        if user is None:
            self._drop(key)
        else:
            self._sessions[key] = session._replace(user=user, renewal=after)
        return True

    def _drop(self, key: bytes) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            self._places.release(session.user.name)


def renewal_of(expires: float | None, secret: Password | None, peer: str, wall: int) -> Renewal | None:
    """Return how and when a login is renewed; None if it does not end, or without a refresh token.

    `expires` is in seconds, `wall` in milliseconds since the epoch.
    """
    if secret is None or expires is None:
        return None
    now = wall / 1000
    early = min(EARLY_SECONDS, (expires - now) / 4)
    return Renewal(secret, max(expires - early, now + AGAIN_SECONDS), peer)


def _fingerprint(user: User) -> str:
    text = "\0".join((user.name, user.password_hash, user.hashing_algorithm, *user.tags))
    return sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _key(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogateescape")).digest()


def cookies(header: str) -> Mapping[str, str]:
    """Return the values of a header `Cookie` by name; of one that is there twice the first."""
    found: dict[str, str] = {}
    for part in header.split(";"):
        name, equals, value = part.strip().partition("=")
        if equals:
            found.setdefault(name, value)
    return found
