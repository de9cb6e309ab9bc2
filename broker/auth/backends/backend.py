"""The interface of a backend, and the errors of one. Pure."""

from typing import Protocol

from leveret.broker.auth.passwords import Password
from leveret.broker.auth.rights import Login, Question
from leveret.broker.auth.users import LoginRefusedError


class BackendError(Exception):
    """A backend could not decide about these values: its answer is none. The text has no secret in it.

    Whether a service can take a name, a password or a key is up to who chooses them, so this says nothing about others.
    """


class UnreachableError(BackendError):
    """A backend gave no answer: there is no connection, or no TLS, or it takes too long."""


class Backend(Protocol):
    """A backend, as RabbitMQ's behaviours rabbit_authn_backend and rabbit_authz_backend define it.

    A question has one of three outcomes: the backend decides (an answer, or LoginRefusedError), cannot decide about
    these values (`BackendError`), or cannot be reached (`UnreachableError`). Every method may take its time.

    Attributes:
        module: RabbitMQ's name of the backend, for texts.
        has_topics: True if it decides about routing keys; otherwise all of them are allowed.
        is_local: True if its decisions follow from the internal users.
        renews: True if its logins end, and a client can prolong them by a new secret.

    """

    module: str
    has_topics: bool
    is_local: bool
    renews: bool

    async def log_in(self, name: str, password: Password) -> Login:
        """Return the user who has this name and password; raises LoginRefusedError."""

    async def find(self, name: str) -> Login:
        """Return the user of that name, whom another backend or a certificate has authenticated.

        Raises:
            LoginRefusedError: there is none.

        """

    async def may_access(self, login: Login, vhost: str, peer: str) -> bool:
        """Return whether the user may open connections to a vhost, from this address."""

    async def may(self, login: Login, vhost: str, question: Question) -> bool:
        """Return whether the user has a permission; asked about routing keys only if `has_topics`."""

    async def close(self) -> None:
        """Close what is open."""


def unknown_user(name: str) -> LoginRefusedError:
    """Return the refusal of a user whom a backend does not know."""
    return LoginRefusedError(f"user '{name}' - invalid credentials")
