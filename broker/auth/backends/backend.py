"""The interface of a backend, its errors, and the internal database as a backend. Pure."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable
from typing import TypeVar

from leveret.broker.auth.passwords import Password
from leveret.broker.auth.permissions import Question
from leveret.broker.auth.users import Login, LoginRefusedError, Users

T = TypeVar("T")

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
