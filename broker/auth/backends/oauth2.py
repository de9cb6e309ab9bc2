"""The OAuth 2 backend: a token in place of the password decides, as with rabbitmq_auth_backend_oauth2. Pure.

Scopes of tokens are permissions and tags, with RabbitMQ's forms (rabbit_oauth2_scope). A scope is `read:VHOST/NAME`,
`write:...` or `configure:...`, with `/ROUTING_KEY` at the end or not, or `tag:TAG`. Each part may have `*` anywhere,
which matches any text, and is percent-encoded. Others mean nothing here.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote

from leveret.broker.auth.backends.backend import Backend
from leveret.broker.auth.backends.issuer import Issuer
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
from leveret.broker.auth.permissions import DEFAULT_EXCHANGE, Question
from leveret.broker.auth.users import Login, LoginRefusedError
from leveret.broker.process.named_files import read_named

LONGEST_NAME = 255  # maximum length of the name of a user, in characters


class OAuth2Backend(Backend):
    """The OAuth 2 backend. The name of a login does not matter: that of the user is in the token.

    Raises OSError if a file cannot be read, ValueError if one has no key; `wall` is milliseconds since the epoch.
    """

    module = "rabbit_auth_backend_oauth2"
    renews = True

    def __init__(self, settings: OAuth2Settings, now: Callable[[], float], wall: Callable[[], int]) -> None:
        self._settings = settings
        self._wall = wall
        keys = [key_of_pem(name, read_named(path)) for name, path in settings.signing_keys.items()]
        self._issuer = Issuer(settings, keys, now)
        self._servers = settings.servers
        audience = frozenset(self._servers) if settings.verify_aud else None
        self._rules = Rules(settings.algorithms, audience, settings.issuer, settings.require_exp)

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


MOST: Final = 200  # maximum number of scopes of a token, with those that aliases stand for
_KINDS: Final = frozenset({"configure", "write", "read"})
_TAG: Final = "tag:"
_LEAST_PARTS, _MOST_PARTS = 2, 3

Pattern = tuple[str, ...]  # the texts between the asterisks of a part of a scope


def matches(pattern: Pattern, text: str) -> bool:
    """Return whether a text is what a pattern describes, in time linear in the length of the text for each asterisk."""
    first, *rest = pattern
    if not rest:
        return text == first
    if not text.startswith(first) or len(text) < len(first) + len(rest[-1]) or not text.endswith(rest[-1]):
        return False
    at, end = len(first), len(text) - len(rest[-1])
    for part in rest[:-1]:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


class Scopes:
    """The scopes of one token, without the prefix of the broker, and the tags that they give."""

    __slots__ = ("_patterns", "tags")

    def __init__(self, texts: Iterable[str]) -> None:
        patterns = []
        tags = []
        for text in texts:
            if text.startswith(_TAG):
                tags.append(text.removeprefix(_TAG))
                continue
            kind, _, rest = text.partition(":")
            parts = rest.split("/")
            if kind in _KINDS and _LEAST_PARTS <= len(parts) <= _MOST_PARTS:
                compiled = [tuple(unquote(each) for each in part.split("*")) for part in parts]
                key = compiled[2] if len(parts) == _MOST_PARTS else ("", "")
                patterns.append((kind, compiled[0], compiled[1], key))
        self._patterns = tuple(patterns)
        self.tags = tuple(dict.fromkeys(tag for tag in tags if tag))

    def may_access(self, vhost: str) -> bool:
        """Return whether any scope is for this vhost."""
        return any(matches(each, vhost) for _, each, _, _ in self._patterns)

    def may(self, vhost: str, question: Question) -> bool:
        """Return whether a scope gives a permission in a vhost."""
        kind, _, name, key = question
        return any(
            kind == granted
            and matches(in_vhost, vhost)
            and matches(named, name or DEFAULT_EXCHANGE)
            and (key is None or matches(with_key, key))
            for granted, in_vhost, named, with_key in self._patterns
        )


def scopes_of(
    claims: Mapping[str, Any],
    *,
    resource: str,
    prefix: str,
    additional: Iterable[str] = (),
    aliases: Mapping[str, tuple[str, ...]],
) -> Scopes:
    """Return the scopes of a token; raises ValueError if there are more than `MOST`.

    `resource` is the name of the broker among the resources of the issuer, `prefix` the beginning of its scopes.
    `additional` are names of further claims with scopes, with dots for claims inside of others.
    """
    found = list(_texts(claims.get("scope"), resource))
    for path in additional:
        value: Any = claims.get(path)
        if value is None:
            value = claims
            for name in path.split("."):
                value = value.get(name) if isinstance(value, Mapping) else None
        found += _texts(value, resource)
    found += [each for scope in found for each in aliases.get(scope, ())]
    if len(found) > MOST:
        raise ValueError(f"more than {MOST} scopes")
    return Scopes([scope.removeprefix(prefix) for scope in found if scope.startswith(prefix)])


def _texts(value: Any, resource: str) -> list[str]:
    """Return the scopes in a claim: a text with spaces between them, a list, or either of them by resource."""
    if isinstance(value, Mapping):
        value = value.get(resource)
    if isinstance(value, str):
        return value.split()
    if isinstance(value, list):
        return [each for text in value if isinstance(text, str) for each in text.split()]
    return []
