"""The settings of the backends, as the configuration has them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

Name = Literal["internal", "http", "oauth2", "cache"]

MODULES: Final[dict[str, Name]] = {
    "internal": "internal",
    "rabbit_auth_backend_internal": "internal",
    "http": "http",
    "rabbit_auth_backend_http": "http",
    "oauth2": "oauth2",
    "oauth": "oauth2",
    "rabbit_auth_backend_oauth2": "oauth2",
    "cache": "cache",
    "rabbit_auth_backend_cache": "cache",
}
"""RabbitMQ's names of backends, short and long."""


class Step(msgspec.Struct, frozen=True):
    """A step of a chain: who authenticates, and who decides about permissions."""

    authn: Name = "internal"
    authz: Name = "internal"


class ClientTLS(msgspec.Struct, frozen=True):
    """TLS towards a service."""

    cacertfile: Path | None = None
    certfile: Path | None = None
    keyfile: Path | None = None
    password: str = ""
    verify: Literal["verify_peer", "verify_none"] = "verify_peer"
    sni: str = ""


class HTTPSettings(msgspec.Struct, frozen=True):
    """Settings of the HTTP backend; times in seconds."""

    http_method: Literal["get", "post"] = "get"
    user_path: str = "http://localhost:8000/auth/user"
    vhost_path: str = "http://localhost:8000/auth/vhost"
    resource_path: str = "http://localhost:8000/auth/resource"
    topic_path: str = "http://localhost:8000/auth/topic"
    request_timeout: float = 5.0
    connection_timeout: float = 5.0
    tls: ClientTLS = ClientTLS()


class OAuth2Settings(msgspec.Struct, frozen=True):
    """Settings of the OAuth 2 backend."""

    resource_server_id: str = ""
    issuer: str = ""
    jwks_uri: str = ""
    cacertfile: Path | None = None
    default_key: str = ""
    signing_keys: Mapping[str, Path] = {}
    algorithms: tuple[str, ...] = ("RS256", "ES256", "PS256")
    username_claims: tuple[str, ...] = ()
    additional_scopes_key: str = ""
    scope_prefix: str | None = None
    scope_aliases: Mapping[str, tuple[str, ...]] = {}
    verify_aud: bool = True

    @property
    def prefix(self) -> str:
        """The beginning of the scopes for this broker."""
        return f"{self.resource_server_id}." if self.scope_prefix is None else self.scope_prefix


class CacheSettings(msgspec.Struct, frozen=True):
    """Settings of the cache; the time in seconds."""

    authn: Name = "internal"
    authz: Name = "internal"
    ttl: float = 15.0
    refusals: bool = False


class BackendSettings(msgspec.Struct, frozen=True):
    """The chain, and the settings of its backends."""

    chain: tuple[Step, ...] = (Step(),)
    http: HTTPSettings = HTTPSettings()
    oauth2: OAuth2Settings = OAuth2Settings()
    cache: CacheSettings = CacheSettings()

    @property
    def is_internal(self) -> bool:
        """True if the internal database alone decides."""
        return self.chain == (Step(),)

    @property
    def used(self) -> frozenset[str]:
        """The names of all backends that the chain uses, also through the cache."""
        names = {name for step in self.chain for name in (step.authn, step.authz)}
        if "cache" in names:
            names |= {self.cache.authn, self.cache.authz}
        return frozenset(names)
