"""The interface of a backend, its errors, the internal database as a backend, and the cache of another one. Pure."""

import hashlib
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

from leveret.broker.auth.passwords import Password
from leveret.broker.auth.permissions import Question
from leveret.broker.auth.users import Login, LoginRefusedError, Users

T = TypeVar("T")

ENTRIES = 100_000  # maximum number of cached decisions; beyond it the oldest are forgotten
_FORGOTTEN_AT_ONCE = 8  # decisions that are over, or too many, and are forgotten when one comes

_LOOPBACK = "127.0.0.1"


class BackendError(Exception):
    """A backend could not decide about these values: its answer is none. The text has no secret in it.

    Whether a service can take a name, a password or a key is up to who chooses them, so this says nothing about others.
    """


class UnreachableError(BackendError):
    """A backend gave no answer: there is no connection, or no TLS, or it takes too long."""


class Backend(ABC):
    """A backend, as RabbitMQ's behaviours rabbit_authn_backend and rabbit_authz_backend define it.

    A question has one of three outcomes: the backend decides (an answer, or LoginRefusedError), cannot decide about
    these values (`BackendError`), or cannot be reached (`UnreachableError`). Every method may take its time.
    """

    module: str  # RabbitMQ's name of the backend, for texts
    has_topics = True  # True if it decides about routing keys; otherwise all of them are allowed
    is_local = False  # True if its decisions follow from the internal users
    renews = False  # True if its logins end, and a client can prolong them by a new secret

    @abstractmethod
    async def log_in(self, name: str, password: Password) -> Login:
        """Return the user who has this name and password; raises LoginRefusedError."""

    @abstractmethod
    async def find(self, name: str) -> Login:
        """Return the user whom another backend or a certificate has authenticated; raises LoginRefusedError."""

    @abstractmethod
    async def may_access(self, login: Login, vhost: str, peer: str) -> bool:
        """Return whether the user may open connections to a vhost, from this address."""

    @abstractmethod
    async def may(self, login: Login, vhost: str, question: Question) -> bool:
        """Return whether the user has a permission; asked about routing keys only if `has_topics`."""

    async def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Close what is open."""


class RemoteBackend(Backend):
    """A backend that may be out of reach; `at_once`: number of questions that it can have under way."""

    at_once: int

    @abstractmethod
    async def reach(self) -> None:
        """Ask something that no caller has chosen; raises UnreachableError, or BackendError for any answer."""


class Wrapper(Backend):
    """A backend that puts each question to another one in a way of its own."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.has_topics = backend.has_topics
        self.is_local = backend.is_local
        self.renews = backend.renews

    @abstractmethod
    async def _put(self, question: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the answer of the other backend to a question."""

    async def log_in(self, name: str, password: Password) -> Login:
        """Return the user who has this name and password; raises LoginRefusedError."""
        return await self._put(("login", name), lambda: self._backend.log_in(name, password))

    async def find(self, name: str) -> Login:
        """Return the user of that name; raises LoginRefusedError."""
        return await self._put(("find", name), lambda: self._backend.find(name))

    async def may_access(self, login: Login, vhost: str, peer: str) -> bool:
        """Return whether the user may open connections to a vhost."""
        question = ("vhost", login, vhost, peer)
        return await self._put(question, lambda: self._backend.may_access(login, vhost, peer))

    async def may(self, login: Login, vhost: str, question: Question) -> bool:
        """Return whether the user has a permission."""
        return await self._put(
            ("may", login, vhost, question), lambda: self._backend.may(login, vhost, question)
        )

    async def close(self) -> None:
        """Close the other backend."""
        await self._backend.close()


class InternalBackend(Backend):
    """The internal database. Loopback users are checked by the chain, whichever backend has let them in."""

    module = "rabbit_auth_backend_internal"
    is_local = True

    def __init__(self, users: Users) -> None:
        self._users = users

    async def log_in(self, name: str, password: Password) -> Login:
        """Return the user who has this name and password; raises LoginRefusedError."""
        return Login(name, self._users.authenticate(name, password, _LOOPBACK).tags)

    async def find(self, name: str) -> Login:
        """Return the user of that name; raises LoginRefusedError."""
        user = self._users.get(name)
        if user is None:
            raise LoginRefusedError(f"user '{name}' - invalid credentials")
        return Login(name, user.tags)

    async def may_access(self, login: Login, vhost: str, peer: str) -> bool:
        """Return whether the user has permissions in the vhost."""
        del peer
        return self._users.may_access(login.name, vhost)

    async def may(self, login: Login, vhost: str, question: Question) -> bool:
        """Return whether the user has a permission."""
        kind, _, name, key = question
        if key is None:
            return self._users.permissions(login.name, vhost).check(kind, name)  # type: ignore[arg-type]
        return self._users.topic_permissions(login.name, vhost).check(name, kind, key)  # type: ignore[arg-type]


def joined(login: Login, found: Login) -> Login:
    """Return the user that one backend has found with the tags of another's login, too, and the earlier end."""
    ends = [each.expires for each in (login, found) if each.expires is not None]
    return found._replace(tags=tuple(dict.fromkeys(login.tags + found.tags)), expires=min(ends, default=None))


class CacheBackend(Wrapper):
    """The cache: a decision of `authn` or `authz` is good for some `seconds`, a refusal only with `refusals`.

    As RabbitMQ's rabbitmq_auth_backend_cache. Decisions that are over are forgotten when they are asked for, and, the
    oldest first, when others come. No password is kept: the key of a login is a hash of its name and password with a
    salt of this process.

    `now` is seconds of a monotonic clock, `wall` milliseconds since the epoch: a login that ends is not kept longer.
    """

    module = "rabbit_auth_backend_cache"

    def __init__(
        self,
        authn: Backend,
        authz: Backend,
        *,
        seconds: float,
        refusals: bool,
        now: Callable[[], float],
        wall: Callable[[], int],
    ) -> None:
        super().__init__(authz)
        self._authn = authn
        self._seconds = seconds
        self._refusals = refusals
        self._now = now
        self._wall = wall
        self._salt = secrets.token_bytes(16)
        self._known: dict[Any, tuple[Any, float]] = {}
        self.renews = authn.renews

    def __len__(self) -> int:
        return len(self._known)

    async def log_in(self, name: str, password: Password) -> Login:
        """Return the user who has this name and password; raises LoginRefusedError."""
        both = name.encode("utf-8", "surrogateescape") + b"\0" + password.octets()
        key = hashlib.blake2b(both, key=self._salt).digest()

        async def ask() -> Login:
            login = await self._authn.log_in(name, password)
            authz = self._backend
            return login if authz is self._authn else joined(login, await authz.find(login.name))

        return await self._put(("login", key), ask)

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()

    async def close(self) -> None:
        """Close the backends."""
        self.clear()
        for each in dict.fromkeys((self._authn, self._backend)):
            await each.close()

    async def _put(self, question: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        """Return a decision that is kept, or ask for it; errors of a backend are never kept."""
        known = self._known.get(question)
        if known is not None and self._now() >= known[1]:
            del self._known[question]
        elif known is not None:
            if isinstance(known[0], LoginRefusedError):
                raise LoginRefusedError(str(known[0]))
            found: T = known[0]
            return found
        try:
            found = await ask()
        except LoginRefusedError as error:
            if self._refusals:
                self._keep(question, error.with_traceback(None), self._seconds)
            raise
        if found is not False or self._refusals:
            seconds = self._seconds
            if isinstance(found, Login) and found.expires is not None:
                seconds = min(seconds, found.expires - self._wall() / 1000)
            self._keep(question, found, seconds)
        return found

    def _keep(self, key: Any, found: Any, seconds: float) -> None:
        self._known.pop(key, None)
        now, known = self._now(), self._known
        for _ in range(_FORGOTTEN_AT_ONCE):  # more than one comes, so what is over goes faster than it comes
            first = next(iter(known), None)
            if first is None or (now < known[first][1] and len(known) < ENTRIES):
                break
            del known[first]
        self._known[key] = found, self._now() + seconds
