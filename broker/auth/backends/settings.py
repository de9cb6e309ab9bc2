"""The settings of the backends, as the configuration has them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

Name = Literal["internal", "http", "ldap", "oauth2", "cache"]

LDAP_PORT, LDAPS_PORT = 389, 636
_THIS_HOST: Final = frozenset({"localhost", "127.0.0.1", "::1"})

MODULES: Final[dict[str, Name]] = {
    "internal": "internal",
    "rabbit_auth_backend_internal": "internal",
    "http": "http",
    "rabbit_auth_backend_http": "http",
    "ldap": "ldap",
    "rabbit_auth_backend_ldap": "ldap",
    "oauth2": "oauth2",
    "oauth": "oauth2",
    "rabbit_auth_backend_oauth2": "oauth2",
    "cache": "cache",
    "rabbit_auth_backend_cache": "cache",
}
"""RabbitMQ's names of backends, short and long."""


def is_protected(address: str) -> bool:
    """Return whether nobody on the way to a web service can read along: TLS, or this host. Raises ValueError."""
    parts = urlsplit(address)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _THIS_HOST)


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


class Bind(msgspec.Struct, frozen=True):
    """The entry that the broker binds as: the user's own (`as_user`), none (`anon`), or one with a password."""

    way: Literal["as_user", "anon", "entry"] = "as_user"
    dn: str = ""
    password: str = ""


class LDAPQueries(msgspec.Struct, frozen=True):
    """The queries of the LDAP backend, as `ldap_queries.query_of` returns them; None for those that are missing."""

    vhost_access: Any = None
    resource_access: Any = None
    topic_access: Any = ("constant", "true")
    tags: Any = ()


class LDAPSettings(msgspec.Struct, frozen=True):
    """Settings of the LDAP backend; the time in seconds."""

    servers: tuple[str, ...] = ()
    port: int | None = None
    use_ssl: bool = False
    use_starttls: bool = False
    timeout: float = 5.0
    connection_pool_size: int = 8
    user_dn_pattern: str = "${username}"
    user_bind_pattern: str = ""
    dn_lookup_attribute: str = ""
    dn_lookup_base: str = ""
    dn_lookup_bind: Bind = Bind()
    group_lookup_base: str = ""
    other_bind: Bind = Bind()
    log: bool = False
    tls: ClientTLS = ClientTLS()
    queries: LDAPQueries = LDAPQueries()

    @property
    def the_port(self) -> int:
        """The port, or the default of the protocol."""
        return self.port or (LDAPS_PORT if self.use_ssl else LDAP_PORT)


class ResourceServer(msgspec.Struct, frozen=True):
    """A name that the broker has among the resources of the issuer.

    Attributes:
        id: what the audience of its tokens contains.
        prefix: the beginning of its scopes.
        additional_scopes_key: further claims with scopes, with spaces between them.

    """

    id: str
    prefix: str
    additional_scopes_key: str = ""


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
    resource_servers: tuple[ResourceServer, ...] = ()

    @property
    def prefix(self) -> str:
        """The beginning of the scopes for this broker."""
        return f"{self.resource_server_id}." if self.scope_prefix is None else self.scope_prefix

    @property
    def servers(self) -> dict[str, ResourceServer]:
        """All names of the broker, by `id`."""
        first = ResourceServer(self.resource_server_id, self.prefix, self.additional_scopes_key)
        return {each.id: each for each in (first, *self.resource_servers) if each.id}


class CodeLoginSettings(msgspec.Struct, frozen=True):
    """Settings of the login to the web page by an identity provider."""

    enabled: bool = False
    client_id: str = ""
    client_secret: str = ""
    provider_url: str = ""
    metadata_url: str = ""
    scopes: str = ""
    disable_basic_auth: bool = True


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
    ldap: LDAPSettings = LDAPSettings()
    oauth2: OAuth2Settings = OAuth2Settings()
    cache: CacheSettings = CacheSettings()
    login: CodeLoginSettings = CodeLoginSettings()

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

    @property
    def authorizing(self) -> frozenset[str]:
        """The names of the backends that decide about permissions, also through the cache."""
        names = {step.authz for step in self.chain}
        return frozenset(names | ({self.cache.authz} if "cache" in names else set()))
