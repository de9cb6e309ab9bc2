"""The internal database as a backend of a chain. Pure; see `broker.auth.users`."""

from leveret.broker.auth.backends.backend import unknown_user
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.rights import Login, Question
from leveret.broker.auth.users import Users

_LOOPBACK = "127.0.0.1"


class InternalBackend:
    """The internal database. Loopback users are checked by the chain, whichever backend has let them in.

    Args:
        users: the users.

    """

    module = "rabbit_auth_backend_internal"
    has_topics = True
    is_local = True
    renews = False

    def __init__(self, users: Users) -> None:
        self._users = users

    async def log_in(self, name: str, password: Password) -> Login:
        """Return the user who has this name and password; raises LoginRefusedError."""
        return Login(name, self._users.authenticate(name, password, _LOOPBACK).tags)

    async def find(self, name: str) -> Login:
        """Return the user of that name; raises LoginRefusedError."""
        user = self._users.get(name)
        if user is None:
            raise unknown_user(name)
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

    async def close(self) -> None:
        """Do nothing."""
