"""The settings of the backends, as the configuration has them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal
from urllib.parse import urlencode, urlsplit

import msgspec

from leveret.broker.auth.backends.tokens import ALGORITHMS
from leveret.broker.config_key import Key, Prefix

Name = Literal["internal", "http", "ldap", "oauth2", "cache"]

LDAP_PORT, LDAPS_PORT = 389, 636
_SERVICE: Final = "http://localhost:8000/auth"
_THIS_HOST: Final = frozenset({"localhost", "127.0.0.1", "::1"})

MODULES: Final[dict[str, Name]] = {  # RabbitMQ's names of backends, short and long
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


def is_protected(address: str) -> bool:
    """Return whether the way to a web service is private: TLS, or this host. Raises ValueError."""
    parts = urlsplit(address)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _THIS_HOST)


class Step(msgspec.Struct, frozen=True):
    """A step of a chain: who authenticates, and who decides about permissions."""

    authn: Name = "internal"
    authz: Name = "internal"


# The rows are tables, whose lines are filled.
# fmt: off
class ClientTLS(msgspec.Struct, frozen=True):
    """TLS towards a service."""

    cacertfile: Annotated[Path | None, Key(".cacertfile",
        doc="Certificates of authorities that the $peer's certificate is verified with; those of the system by "
        "default.")] = None
    certfile: Annotated[Path | None, Key(".certfile", doc="Certificate of the broker towards the $peer.")] = None
    keyfile: Annotated[Path | None, Key(".keyfile", doc="Its key.")] = None
    password: Annotated[str, Key(".password", secret=True, doc="Password of the key.")] = ""
    verify: Annotated[Literal["verify_peer", "verify_none"], Key(".verify",
        doc="`verify_none`: do not verify the $peer's certificate.$verify")] = "verify_peer"
    sni: Annotated[str, Key(".sni",
        doc="Name that the $peer's certificate must have; that of the $name by default.")] = ""


class HTTPSettings(msgspec.Struct, frozen=True):
    """Settings of the HTTP backend; times in seconds."""

    http_method: Annotated[Literal["get", "post"], Key("auth_http.http_method",
        doc="Method of the requests. Use `post`: with `get` passwords are in addresses, which servers log.")] = "get"
    user_path: Annotated[str, Key("auth_http.user_path", "address", default="",
        doc=f"Address that decides about logins; `{_SERVICE}/user` if not set.")] = f"{_SERVICE}/user"
    vhost_path: Annotated[str, Key("auth_http.vhost_path", "address", default="",
        doc=f"Address that decides about access to virtual hosts; `{_SERVICE}/vhost` if not set.")
    ] = f"{_SERVICE}/vhost"
    resource_path: Annotated[str, Key("auth_http.resource_path", "address", default="",
        doc=f"Address that decides about queues and exchanges; `{_SERVICE}/resource` if not set.")
    ] = f"{_SERVICE}/resource"
    topic_path: Annotated[str, Key("auth_http.topic_path", "address", default="",
        doc=f"Address that decides about routing keys at topic exchanges; `{_SERVICE}/topic` if not set.")
    ] = f"{_SERVICE}/topic"
    request_timeout: Annotated[float, Key("auth_http.request_timeout", "duration", unit="ms", low=0,
        doc="Time after which a question has failed, with the time that it waits for its turn. RabbitMQ's default is "
        "15 s.")] = 5.0
    connection_timeout: Annotated[float, Key("auth_http.connection_timeout", "duration", unit="ms", low=0,
        doc="Time after which an attempt to connect has failed.")] = 5.0
    tls: Annotated[ClientTLS, Prefix("auth_http.ssl_options", (
        ("$peer", "service"), ("that of the $name", "the host of the address"),
        ("$verify", " RabbitMQ's default is `verify_none`.")))] = ClientTLS()


class Bind(msgspec.Struct, frozen=True):
    """The entry that the broker binds as: the user's own (`as_user`), none (`anon`), or one with a password."""

    way: Literal["as_user", "anon", "entry"] = "as_user"
    dn: str = ""
    password: str = ""


class LDAPQueries(msgspec.Struct, frozen=True):
    """The queries of the LDAP backend, as `ldap_queries.query_of` returns them; None for those that are missing."""

    vhost_access: Annotated[Any, Key("auth_ldap.queries.vhost_access", "string", own=True,
        doc="The query that allows access to a virtual host, such as `{constant, true}`; RabbitMQ 3.13 has it in "
        "advanced.config. It must be set if `ldap` decides about permissions: RabbitMQ allows everything by default.")
    ] = None
    resource_access: Annotated[Any, Key("auth_ldap.queries.resource_access", "string", own=True,
        doc="The query that allows an operation on a queue or exchange; RabbitMQ 3.13 has it in advanced.config. It "
        "must be set, too.")] = None
    topic_access: Annotated[Any, Key("auth_ldap.queries.topic_access", "string", default="{constant, true}", own=True,
        doc="The query that allows a routing key at a topic exchange; RabbitMQ 3.13 has it in advanced.config.")
    ] = ("constant", "true")
    tags: Annotated[Any, Key("auth_ldap.queries.tags", "string", default="[]", own=True,
        doc='Queries by tag, such as `[{administrator, {in_group, "cn=admins,dc=example,dc=com"}}]`; RabbitMQ 3.13 has '
        "`tag_queries` in advanced.config.")] = ()


class LDAPSettings(msgspec.Struct, frozen=True):
    """Settings of the LDAP backend; the time in seconds."""

    servers: Annotated[tuple[str, ...], Key("auth_ldap.servers.$name",
        doc="A server of the directory, `auth_ldap.servers.1 = ldap.example.com` and so on: the first one that can be "
        "reached is asked.")] = ()
    port: Annotated[int | None, Key("auth_ldap.port", low=1, high=65535,
        doc="Port of all servers; 389 if not set, with `use_ssl` 636. RabbitMQ's default is always 389.")] = None
    use_ssl: Annotated[bool, Key("auth_ldap.use_ssl", doc="Connect with TLS (`ldaps`).")] = False
    use_starttls: Annotated[bool, Key("auth_ldap.use_starttls",
        doc="Connect without TLS, and begin TLS before anything else is sent (StartTLS).")] = False
    timeout: Annotated[float, Key("auth_ldap.timeout", "duration", unit="ms", low=0,
        doc="Time after which a question has failed, with the time that it waits for its turn. RabbitMQ has no limit "
        "by default.")] = 5.0
    connection_pool_size: Annotated[int, Key("auth_ldap.connection_pool_size", low=1, high=64,
        doc="Questions that are under way at once, each with a thread and connections of its own, which are closed "
        "afterwards. RabbitMQ keeps 64 connections.")] = 8
    user_dn_pattern: Annotated[str, Key("auth_ldap.user_dn_pattern",
        doc="The entry (DN) of a user, such as `uid=${username},ou=people,dc=example,dc=com`. Names are escaped as the "
        "value of an attribute. With `dn_lookup_attribute` the value that is looked for.")] = "${username}"
    user_bind_pattern: Annotated[str, Key("auth_ldap.user_bind_pattern",
        doc="The name that users bind with, if it is another one, such as `${ad_user}@example.com`.")] = ""
    dn_lookup_attribute: Annotated[str, Key("auth_ldap.dn_lookup_attribute", default="none",
        doc="The entry of a user is the one whose attribute of this name is `user_dn_pattern`; none or several are a "
        "refusal (in RabbitMQ then the pattern is the entry).")] = ""
    dn_lookup_base: Annotated[str, Key("auth_ldap.dn_lookup_base", default="none",
        doc="The entry below which it is looked for.")] = ""
    dn_lookup_bind: Annotated[Bind,
        Key("auth_ldap.dn_lookup_bind", "choice", choices=("as_user", "anon"), default="as_user",
            doc="`as_user`: it is looked for after the login, as the user; `anon`: before it, anonymously."),
        Key("auth_ldap.dn_lookup_bind.user_dn", doc="An entry that looks for it before the login."),
        Key("auth_ldap.dn_lookup_bind.password", secret=True, doc="Its password.")] = Bind()
    group_lookup_base: Annotated[str, Key("auth_ldap.group_lookup_base", default="none",
        doc="The entry below which `in_group_nested` looks for groups; `dn_lookup_base` if not set.")] = ""
    other_bind: Annotated[Bind,
        Key("auth_ldap.other_bind", "choice", choices=("as_user", "anon"), default="as_user",
            doc="The entry that asks the queries: the user's own, for which the broker keeps the passwords of "
            "connected users in memory, or none (`anon`). Users without a password (`EXTERNAL`) need `anon` or an "
            "entry."),
        Key("auth_ldap.other_bind.user_dn", doc="An entry that asks the queries."),
        Key("auth_ldap.other_bind.password", secret=True, doc="Its password.")] = Bind()
    queries: LDAPQueries = LDAPQueries()
    log: Annotated[bool, Key("auth_ldap.log", "choice", choices=("false", "true", "network"),
        doc="Log each login and each decision, with names. `network` is the same as `true`. Passwords are never "
        "logged, and `network_unsafe` is an error.")] = False
    tls: Annotated[ClientTLS, Prefix("auth_ldap.ssl_options", (
        ("$peer", "directory"), ("$name", "server"), ("$verify", "")))] = ClientTLS()

    @property
    def the_port(self) -> int:
        """The port, or the default of the protocol."""
        return self.port or (LDAPS_PORT if self.use_ssl else LDAP_PORT)


class ResourceServer(msgspec.Struct, frozen=True):
    """A name that the broker has among the resources of the issuer: the audience of its tokens contains the `id`.

    `prefix` is the beginning of its scopes; the key names further claims with scopes, with spaces between them.
    """

    id: str
    prefix: str
    additional_scopes_key: str = ""


class OAuth2Settings(msgspec.Struct, frozen=True):
    """Settings of the OAuth 2 backend."""

    resource_server_id: Annotated[str, Key("auth_oauth2.resource_server_id",
        doc="Name of the broker among the resources of the issuer: it must be in the audience of tokens.")] = ""
    resource_servers: Annotated[tuple[ResourceServer, ...],
        Key("auth_oauth2.resource_servers.$name.id",
            doc="A further name of the broker among the resources of the issuer; `$name` if not set. The audience of a "
            "token must contain exactly one of all names, whose scopes it has then."),
        Key("auth_oauth2.resource_servers.$name.scope_prefix",
            doc="The beginning of its scopes; `auth_oauth2.scope_prefix` if not set, or its `id` and a dot."),
        Key("auth_oauth2.resource_servers.$name.additional_scopes_key",
            doc="Its further claims with scopes; `auth_oauth2.additional_scopes_key` if not set.")] = ()
    issuer: Annotated[str, Key("auth_oauth2.issuer", "address",
        doc="The issuer of tokens. Tokens of another one are refused, and without `jwks_uri` and signing keys its keys "
        "are found by its OpenID configuration.")] = ""
    jwks_uri: Annotated[str, Key("auth_oauth2.jwks_uri", "address", also=("auth_oauth2.jwks_url",),
        doc="Address of the keys of the issuer. They are fetched each hour, or after the `max-age` of their answer "
        "(from a minute to a day), and when a token has an unknown one.")] = ""
    cacertfile: Annotated[Path | None, Key("auth_oauth2.https.cacertfile",
        doc="Certificates of authorities that the issuer's certificate is verified with; those of the system by "
        "default.")] = None
    signing_keys: Annotated[Mapping[str, Path], Key("auth_oauth2.signing_keys.$name", "path",
        doc="A file with a public key (PEM); `$name` is its name (`kid`) in tokens.")] = {}
    default_key: Annotated[str, Key("auth_oauth2.default_key",
        doc="Name of the key of tokens that name none. Without it all keys are tried.")] = ""
    algorithms: Annotated[tuple[str, ...],
        Key("auth_oauth2.algorithms.$name", "choice", choices=tuple(ALGORITHMS), default="RS256, ES256, PS256",
            doc="An allowed algorithm, `auth_oauth2.algorithms.1 = RS256` and so on. Symmetric ones are not "
            "supported.")] = ("RS256", "ES256", "PS256")
    username_claims: Annotated[tuple[str, ...], Key("auth_oauth2.preferred_username_claims.$name",
        doc="A claim with the name of the user, in the order of the numbers; after them `sub` and `client_id`.")] = ()
    additional_scopes_key: Annotated[str, Key("auth_oauth2.additional_scopes_key",
        doc="Further claims with scopes, with spaces between them; `a.b` is the claim `b` inside of `a`.")] = ""
    scope_prefix: Annotated[str | None, Key("auth_oauth2.scope_prefix",
        doc="The beginning of the scopes for this broker; `resource_server_id` and a dot if not set, `''` for none.")
    ] = None
    scope_aliases: Annotated[Mapping[str, tuple[str, ...]],
        Key("auth_oauth2.scope_aliases.$name.alias", doc="A scope that stands for others."),
        Key("auth_oauth2.scope_aliases.$name.scope",
            doc="The scopes that the alias of the same number stands for, with spaces between them."),
        Key("auth_oauth2.scope_aliases.$name",
            doc="The scopes that the scope `$name` stands for, with spaces between them.")] = {}
    require_exp: Annotated[bool, Key("auth_oauth2.require_exp", in_4="true",
        doc="Refuse tokens that never expire. RabbitMQ 4.3's default is `true`.")] = False
    discovery_path: Annotated[str, Key("auth_oauth2.discovery_endpoint_path", default="",
        doc="Path of the OpenID configuration below `issuer`, if it is not the usual one.")
    ] = ".well-known/openid-configuration"
    discovery_params: Annotated[Mapping[str, str], Key("auth_oauth2.discovery_endpoint_params.$name",
        doc="A parameter of that address, such as `appid` for Microsoft Entra ID.")] = {}
    verify_aud: Annotated[bool, Key("auth_oauth2.verify_aud", doc="`false`: accept tokens for any audience.")] = True

    def discovery_url(self, provider: str) -> str:
        """Return the address of the OpenID configuration of a provider."""
        address = f"{provider.rstrip('/')}/{self.discovery_path.lstrip('/')}"
        return f"{address}?{urlencode(self.discovery_params)}" if self.discovery_params else address

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

    enabled: Annotated[bool, Key("management.oauth_enabled",
        doc="Let users log in to the web page by an identity provider ([how "
        "to](howto/authentication-backends.md#log-in-to-the-web-page-by-an-identity-provider)). The backend `oauth2` "
        "has to be in the chain: it takes the tokens.")] = False
    client_id: Annotated[str, Key("management.oauth_client_id", doc="Name of the web page at the provider.")] = ""
    client_secret: Annotated[str, Key("management.oauth_client_secret", secret=True,
        doc="Secret of the client, if the provider has given one. The broker keeps it; RabbitMQ tells it everybody.")
    ] = ""
    provider_url: Annotated[str, Key("management.oauth_provider_url", "address",
        doc="Address of the provider, where its OpenID configuration is found; by default `auth_oauth2.issuer`.")] = ""
    metadata_url: Annotated[str, Key("management.oauth_metadata_url", "address",
        doc="Address of the OpenID configuration, if it is elsewhere.")] = ""
    scopes: Annotated[str, Key("management.oauth_scopes",
        doc="Scopes that the page asks for, with spaces between them.")] = ""
    disable_basic_auth: Annotated[bool, Key("management.oauth_disable_basic_auth",
        doc="With `management.oauth_enabled`: the page takes no names and passwords. The API does, unless "
        "`management.disable_basic_auth` is set.")] = True
    _logon_type: ClassVar[Key] = Key("management.oauth_initiated_logon_type", "choice", choices=("sp_initiated",),
        default="sp_initiated",
        doc="Logins begin at the page, not at the provider (`idp_initiated`).")


class CacheSettings(msgspec.Struct, frozen=True):
    """Settings of the cache; the time in seconds."""

    authn: Annotated[Name,
        Key("auth_cache.cached_backend.authn", "backend",
            doc="The cached backend that checks passwords, if another one decides about permissions."),
        Key("auth_cache.cached_backend.authz", "backend", doc="The cached backend that decides about permissions."),
        Key("auth_cache.cached_backend", "backend", default="internal",
            doc="The backend whose decisions the backend `cache` keeps.")] = "internal"
    authz: Name = "internal"
    ttl: Annotated[float, Key("auth_cache.cache_ttl", "duration", unit="ms", low=0,
        doc="Time for which a decision is good, with and without the backend `cache`: a connection asks again about an "
        "exchange or queue that it uses after this time, and at most once a second.")] = 15.0
    refusals: Annotated[bool, Key("auth_cache.cache_refusals", doc="Keep refusals in the cache, too.")] = False


class BackendSettings(msgspec.Struct, frozen=True):
    """The chain, and the settings of its backends."""

    chain: Annotated[tuple[Step, ...],
        Key("auth_backends.$name.authn", "backend",
            doc="The backend that checks passwords at this place of the chain, if another one decides about "
            "permissions."),
        Key("auth_backends.$name.authz", "backend",
            doc="The backend that decides about permissions of users that `authn` of the same number has let in."),
        Key("auth_backends.$name", "backend", default="internal",
            doc="A backend of the chain, `auth_backends.1 = internal` and so on, asked in the order of the numbers: "
            "`internal`, `http`, `ldap`, `oauth2` or `cache`.")] = (Step(),)
    http: HTTPSettings = HTTPSettings()
    ldap: LDAPSettings = LDAPSettings()
    oauth2: OAuth2Settings = OAuth2Settings()
    login: CodeLoginSettings = CodeLoginSettings()
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

    @property
    def authorizing(self) -> frozenset[str]:
        """The names of the backends that decide about permissions, also through the cache."""
        names = {step.authz for step in self.chain}
        return frozenset(names | ({self.cache.authz} if "cache" in names else set()))
