"""The configuration keys of authentication backends."""

from typing import Final

from leveret.broker.auth.backends.tokens import ALGORITHMS
from leveret.broker.config.key import Key
from leveret.broker.config.ldap_keys import LDAP

BACKENDS: Final[tuple[Key, ...]] = (
    Key(name="auth_backends.$name.authn", kind="backend", default="",
        doc="The backend that checks passwords at this place of the chain, if another one decides about permissions."),
    Key(name="auth_backends.$name.authz", kind="backend", default="",
        doc="The backend that decides about permissions of users that `authn` of the same number has let in."),
    Key(name="auth_backends.$name", kind="backend", default="internal",
        doc="A backend of the chain, `auth_backends.1 = internal` and so on, asked in the order of the numbers: "
        "`internal`, `http`, `ldap`, `oauth2` or `cache`."),
    Key(name="auth_http.http_method", kind="choice", default="get", choices=("get", "post"),
        attribute="backends.http.http_method",
        doc="Method of the requests. Use `post`: with `get` passwords are in addresses, which servers log."),
    Key(name="auth_http.user_path", kind="address", default="",
        attribute="backends.http.user_path",
        doc="Address that decides about logins; "
        "`http://localhost:8000/auth/user` if not set."),
    Key(name="auth_http.vhost_path", kind="address", default="",
        attribute="backends.http.vhost_path",
        doc="Address that decides about access to virtual hosts; "
        "`http://localhost:8000/auth/vhost` if not set."),
    Key(name="auth_http.resource_path", kind="address", default="",
        attribute="backends.http.resource_path",
        doc="Address that decides about queues and exchanges; "
        "`http://localhost:8000/auth/resource` if not set."),
    Key(name="auth_http.topic_path", kind="address", default="",
        attribute="backends.http.topic_path",
        doc="Address that decides about routing keys at topic exchanges; "
        "`http://localhost:8000/auth/topic` if not set."),
    Key(name="auth_http.request_timeout", kind="duration", default="5s", unit="ms", low=0,
        attribute="backends.http.request_timeout",
        doc="Time after which a question has failed, with the time that it waits for its turn. RabbitMQ's default is "
        "15 s."),
    Key(name="auth_http.connection_timeout", kind="duration", default="5s", unit="ms", low=0,
        attribute="backends.http.connection_timeout", doc="Time after which an attempt to connect has failed."),
    Key(name="auth_http.ssl_options.cacertfile", kind="path", default="", attribute="backends.http.tls.cacertfile",
        doc="Certificates of authorities that the service's certificate is verified with; those of the system by "
        "default."),
    Key(name="auth_http.ssl_options.certfile", kind="path", default="", attribute="backends.http.tls.certfile",
        doc="Certificate of the broker towards the service."),
    Key(name="auth_http.ssl_options.keyfile", kind="path", default="", attribute="backends.http.tls.keyfile",
        doc="Its key."),
    Key(name="auth_http.ssl_options.password", kind="string", default="", attribute="backends.http.tls.password",
        secret=True, doc="Password of the key."),
    Key(name="auth_http.ssl_options.verify", kind="choice", default="verify_peer",
        choices=("verify_peer", "verify_none"), attribute="backends.http.tls.verify",
        doc="`verify_none`: do not verify the service's certificate. RabbitMQ's default is `verify_none`."),
    Key(name="auth_http.ssl_options.sni", kind="string", default="", attribute="backends.http.tls.sni",
        doc="Name that the service's certificate must have; the host of the address by default."),
    *LDAP,
    Key(name="auth_oauth2.resource_server_id", kind="string", default="",
        attribute="backends.oauth2.resource_server_id",
        doc="Name of the broker among the resources of the issuer: it must be in the audience of tokens."),
    Key(name="auth_oauth2.issuer", kind="address", default="", attribute="backends.oauth2.issuer",
        doc="The issuer of tokens. Tokens of another one are refused, and without `jwks_uri` and signing keys its "
        "keys are found by its OpenID configuration."),
    Key(name="auth_oauth2.jwks_uri", kind="address", default="", attribute="backends.oauth2.jwks_uri",
        doc="Address of the keys of the issuer. They are fetched each hour, or after the `max-age` of their answer "
        "(from a minute to a day), and when a token has an unknown one."),
    Key(name="auth_oauth2.jwks_url", kind="address", default="", attribute="backends.oauth2.jwks_uri",
        doc="Another name of `auth_oauth2.jwks_uri`."),
    Key(name="auth_oauth2.https.cacertfile", kind="path", default="", attribute="backends.oauth2.cacertfile",
        doc="Certificates of authorities that the issuer's certificate is verified with; those of the system by "
        "default."),
    Key(name="auth_oauth2.signing_keys.$name", kind="path", default="",
        doc="A file with a public key (PEM); `$name` is its name (`kid`) in tokens."),
    Key(name="auth_oauth2.default_key", kind="string", default="", attribute="backends.oauth2.default_key",
        doc="Name of the key of tokens that name none. Without it all keys are tried."),
    Key(name="auth_oauth2.algorithms.$name", kind="choice", default="RS256, ES256, PS256", choices=tuple(ALGORITHMS),
        doc="An allowed algorithm, `auth_oauth2.algorithms.1 = RS256` and so on. Symmetric ones are not supported."),
    Key(name="auth_oauth2.preferred_username_claims.$name", kind="string", default="",
        doc="A claim with the name of the user, in the order of the numbers; after them `sub` and `client_id`."),
    Key(name="auth_oauth2.additional_scopes_key", kind="string", default="",
        attribute="backends.oauth2.additional_scopes_key",
        doc="Further claims with scopes, with spaces between them; `a.b` is the claim `b` inside of `a`."),
    Key(name="auth_oauth2.scope_prefix", kind="string", default="", attribute="backends.oauth2.scope_prefix",
        doc="The beginning of the scopes for this broker; `resource_server_id` and a dot if not set, `''` for none."),
    Key(name="auth_oauth2.scope_aliases.$name.alias", kind="string", default="",
        doc="A scope that stands for others."),
    Key(name="auth_oauth2.scope_aliases.$name.scope", kind="string", default="",
        doc="The scopes that the alias of the same number stands for, with spaces between them."),
    Key(name="auth_oauth2.scope_aliases.$name", kind="string", default="",
        doc="The scopes that the scope `$name` stands for, with spaces between them."),
    Key(name="auth_oauth2.verify_aud", kind="bool", default="true", attribute="backends.oauth2.verify_aud",
        doc="`false`: accept tokens for any audience."),
    Key(name="management.oauth_enabled", kind="bool", default="false", attribute="backends.login.enabled",
        doc="Let users log in to the web page by an identity provider "
        "([how to](howto/authentication-backends.md#log-in-to-the-web-page-by-an-identity-provider)). The backend "
        "`oauth2` has to be in the chain: it takes the tokens."),
    Key(name="management.oauth_client_id", kind="string", default="", attribute="backends.login.client_id",
        doc="Name of the web page at the provider."),
    Key(name="management.oauth_client_secret", kind="string", default="", attribute="backends.login.client_secret",
        secret=True,
        doc="Secret of the client, if the provider has given one. The broker keeps it; RabbitMQ tells it everybody."),
    Key(name="management.oauth_provider_url", kind="address", default="", attribute="backends.login.provider_url",
        doc="Address of the provider, where its OpenID configuration is found; by default `auth_oauth2.issuer`."),
    Key(name="management.oauth_metadata_url", kind="address", default="", attribute="backends.login.metadata_url",
        doc="Address of the OpenID configuration, if it is elsewhere."),
    Key(name="management.oauth_scopes", kind="string", default="", attribute="backends.login.scopes",
        doc="Scopes that the page asks for, with spaces between them."),
    Key(name="management.oauth_disable_basic_auth", kind="bool", default="true",
        attribute="backends.login.disable_basic_auth",
        doc="With `management.oauth_enabled`: the page takes no names and passwords. The API does, unless "
        "`management.disable_basic_auth` is set."),
    Key(name="management.oauth_initiated_logon_type", kind="choice", default="sp_initiated",
        choices=("sp_initiated",), doc="Logins begin at the page, not at the provider (`idp_initiated`)."),
    Key(name="management.disable_basic_auth", kind="bool", default="false", attribute="management.disable_basic_auth",
        doc="`true`: the management API takes no names and passwords over the network, only tokens (`Bearer`) and "
        "sessions of the page. `leveret ctl` on the broker's host is not concerned."),
    Key(name="auth_cache.cached_backend.authn", kind="backend", default="",
        doc="The cached backend that checks passwords, if another one decides about permissions."),
    Key(name="auth_cache.cached_backend.authz", kind="backend", default="",
        doc="The cached backend that decides about permissions."),
    Key(name="auth_cache.cached_backend", kind="backend", default="internal",
        doc="The backend whose decisions the backend `cache` keeps."),
    Key(name="auth_cache.cache_ttl", kind="duration", default="15s", unit="ms", low=0,
        attribute="backends.cache.ttl",
        doc="Time for which a decision is good, with and without the backend `cache`: a connection asks again about "
        "an exchange or queue that it uses after this time, and at most once a second."),
    Key(name="auth_cache.cache_refusals", kind="bool", default="false", attribute="backends.cache.refusals",
        doc="Keep refusals in the cache, too."),
)  # fmt: skip
