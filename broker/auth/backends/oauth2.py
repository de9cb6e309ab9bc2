"""The OAuth 2 backend: a token in place of the password decides, as with rabbitmq_auth_backend_oauth2. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from leveret.broker.auth.backends.issuer import Issuer
from leveret.broker.auth.backends.scopes import scopes_of
from leveret.broker.auth.backends.settings import OAuth2Settings, ResourceServer
from leveret.broker.auth.backends.tokens import (
    Rules,
    TokenError,
    UnknownKeyError,
    audience_of,
    key_of_pem,
    verified,
)
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.rights import Login, Question
from leveret.broker.auth.users import LoginRefusedError
from leveret.broker.process.named_files import read_named

LONGEST_NAME = 255
"""Maximum length of the name of a user, in characters."""


class OAuth2Backend:
    """The OAuth 2 backend. The name of a login does not matter: that of the user is in the token.

    Args:
        settings: its settings.
        now: seconds of a monotonic clock.
        wall: milliseconds since the epoch.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file has no key.

    """

    module = "rabbit_auth_backend_oauth2"
    has_topics = True
    is_local = False
    renews = True

    def __init__(self, settings: OAuth2Settings, now: Callable[[], float], wall: Callable[[], int]) -> None:
        self._settings = settings
        self._wall = wall
        keys = [key_of_pem(name, read_named(path)) for name, path in settings.signing_keys.items()]
        self._issuer = Issuer(settings, keys, now)
        self._servers = settings.servers
        audience = frozenset(self._servers) if settings.verify_aud else None
        self._rules = Rules(settings.algorithms, audience, settings.issuer)

    async def log_in(self, name: str, password: Password) -> Login:
        """Return the user of a token; raises LoginRefusedError."""
        del name
        token = password.octets().decode("utf-8", "replace")
        keys, default, now = await self._issuer.keys(), self._settings.default_key, self._wall() / 1000
        try:
            try:
                claims = verified(token, keys, default, self._rules, now)
            except UnknownKeyError:
                keys = await self._issuer.keys(unknown=True)
                claims = verified(token, keys, default, self._rules, now)
            server = self._server(claims)
            scopes = scopes_of(
                claims,
                resource=server.id,
                prefix=server.prefix,
                additional=server.additional_scopes_key.split(),
                aliases=self._settings.scope_aliases,
            )
        except (TokenError, ValueError) as error:
            raise LoginRefusedError(f"token refused: {error}") from None
        found = [claims.get(claim) for claim in (*self._settings.username_claims, "sub", "client_id")]
        user = next((each for each in found if isinstance(each, str) and 0 < len(each) <= LONGEST_NAME), None)
        if user is None:
            raise LoginRefusedError("token refused: it has no name of a user")
        return Login(user, scopes.tags, scopes, claims.get("exp"))

    def _server(self, claims: Mapping[str, Any]) -> ResourceServer:
        """Return the name of the broker that a verified token is for: without `verify_aud` there is only one."""
        if len(self._servers) == 1:
            return next(iter(self._servers.values()))
        return next(
            self._servers[each]
            for each in audience_of(claims)
            if isinstance(each, str) and each in self._servers
        )

    async def find(self, name: str) -> Login:
        """Refuse: without a token nothing is known about a user."""
        raise LoginRefusedError(f"user '{name}' - there is no token")

    async def may_access(self, login: Login, vhost: str, peer: str) -> bool:
        """Return whether a scope of the token is for a vhost."""
        del peer
        return not self._is_over(login) and login.data.may_access(vhost)

    async def may(self, login: Login, vhost: str, question: Question) -> bool:
        """Return whether a scope of the token gives a permission."""
        return not self._is_over(login) and login.data.may(vhost, question)

    def _is_over(self, login: Login) -> bool:
        return login.expires is not None and self._wall() >= login.expires * 1000

    async def close(self) -> None:
        """Do nothing: no connection is kept."""
