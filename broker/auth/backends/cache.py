"""The cache: the decisions of another backend, good for some time, as RabbitMQ's rabbitmq_auth_backend_cache. Pure.

Those that are over are forgotten when they are asked for, and, the oldest first, when others come.

No password is kept: the key of a login is a hash of its name and password with a salt of this process.
"""

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

from leveret.broker.auth.backends.backend import Backend, Wrapper, joined
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.users import Login, LoginRefusedError

T = TypeVar("T")

ENTRIES = 100_000  # maximum number of decisions; beyond it the oldest are forgotten
_FORGOTTEN_AT_ONCE = 8  # decisions that are over, or too many, and are forgotten when one comes


class CacheBackend(Wrapper):
    """The cache: a decision of `authn` or `authz` is good for some `seconds`, a refusal only with `refusals`.

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
