"""The chain of backends of a configuration, put together."""

from collections.abc import Callable

from leveret.broker.auth.backends.access_control import AccessControl, ChainStep
from leveret.broker.auth.backends.backend import Backend
from leveret.broker.auth.backends.cache import CacheBackend
from leveret.broker.auth.backends.guarded import Counted, Guarded
from leveret.broker.auth.backends.internal import InternalBackend
from leveret.broker.auth.backends.settings import BackendSettings
from leveret.broker.auth.users import Users


class _Maker:
    """Makes each backend once."""

    def __init__(
        self, settings: BackendSettings, users: Users, now: Callable[[], float], wall: Callable[[], int]
    ) -> None:
        self._settings = settings
        self._users = users
        self._now = now
        self._wall = wall
        self._made: dict[str, Backend] = {}
        self.counted: list[Counted] = []

    def backend(self, name: str) -> Backend:
        """Return the backend of that name."""
        if name not in self._made:
            made = self._made[name] = self._new(name)
            if isinstance(made, Counted):
                self.counted.append(made)
        return self._made[name]

    def _new(self, name: str) -> Backend:
        settings = self._settings
        if name == "internal":
            return InternalBackend(self._users)
        if name == "http":
            from leveret.broker.auth.backends.http import HTTPBackend  # noqa: PLC0415 - only if it is used

            return Guarded(HTTPBackend(settings.http), settings.http.request_timeout, self._now)
        if name == "ldap":
            from leveret.broker.auth.backends.ldap import LDAPBackend  # noqa: PLC0415 - only if it is used

            return Guarded(LDAPBackend(settings.ldap), settings.ldap.timeout, self._now)
        if name == "oauth2":
            from leveret.broker.auth.backends.oauth2 import OAuth2Backend  # noqa: PLC0415 - only if it is used

            return Counted(OAuth2Backend(settings.oauth2, self._now, self._wall), self._now)
        return CacheBackend(
            self.backend(settings.cache.authn),
            self.backend(settings.cache.authz),
            seconds=settings.cache.ttl,
            refusals=settings.cache.refusals,
            now=self._now,
            wall=self._wall,
        )


def access_control(
    settings: BackendSettings,
    users: Users,
    *,
    now: Callable[[], float],
    wall: Callable[[], int],
    in_step: Callable[[Callable[[], object]], None],
) -> AccessControl:
    """Return the chain.

    Args:
        settings: the settings.
        users: the internal users.
        now: seconds of a monotonic clock.
        wall: milliseconds since the epoch.
        in_step: does some work as a step of the loop, followed by a turn.

    Raises:
        OSError: a file of the settings cannot be used.
        ValueError: a file of the settings has no key.

    """
    maker = _Maker(settings, users, now, wall)
    steps = [ChainStep(maker.backend(step.authn), maker.backend(step.authz)) for step in settings.chain]
    seconds = settings.cache.ttl
    control = AccessControl(steps, users, counted=maker.counted, seconds=seconds, now=now, in_step=in_step)
    if settings.login.enabled:
        from leveret.broker.auth.backends.code_login import CodeLogin  # noqa: PLC0415 - only if it is used

        control.code_login = CodeLogin(settings.login, settings.oauth2, now)
    return control
