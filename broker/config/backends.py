"""The settings of authentication backends combined, and the checks of what fits together."""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final

import msgspec

from leveret.broker.auth.backends.ldap_queries import asks_nested, check_attribute, check_pattern, query_of
from leveret.broker.auth.backends.settings import (
    BackendSettings,
    Bind,
    CacheSettings,
    ClientTLS,
    CodeLoginSettings,
    HTTPSettings,
    LDAPQueries,
    LDAPSettings,
    Name,
    OAuth2Settings,
    ResourceServer,
    Step,
    is_protected,
)
from leveret.broker.auth.backends.tokens import key_of_pem
from leveret.broker.config.keys import Draft
from leveret.broker.config.values import is_address
from leveret.broker.process.named_files import read_named

_OAUTH2 = "auth_oauth2"


def backend_settings(draft: Draft) -> BackendSettings:
    """Return the settings of the backends; a combination that makes no sense is a problem of the draft."""
    problems = draft.problems
    chain, cache = _chain(draft), _cache(draft)
    http_tls = ClientTLS(**draft.section("backends.http.tls"))
    settings = BackendSettings(
        chain=chain,
        http=HTTPSettings(**draft.section("backends.http"), tls=http_tls),
        oauth2=_oauth2_settings(draft),
        cache=cache,
        login=CodeLoginSettings(**draft.section("backends.login")),
    )
    problems += _login_problems(settings)
    if "oauth2" in settings.used:
        problems += _missing(settings.oauth2)
    if "ldap" in settings.used:
        settings = msgspec.structs.replace(settings, ldap=_ldap_settings(draft))
        problems += _ldap_problems(settings)
    for name, tls in (("auth_http", settings.http.tls), ("auth_ldap", settings.ldap.tls)):
        problems += tls_problems(f"{name}.ssl_options", tls)
    for key in ("request_timeout", "connection_timeout"):
        if not getattr(settings.http, key):
            problems.append(f"auth_http.{key} must be more than 0")
    return settings


def _login_problems(settings: BackendSettings) -> Iterator[str]:
    """Yield a sentence for each thing that the login by an identity provider needs and that is missing."""
    login, prefix = settings.login, "management.oauth_"
    if not login.enabled:
        return
    if "oauth2" not in settings.used:
        yield f"{prefix}enabled needs the backend that takes tokens: auth_backends.1 = oauth2"
    if not login.client_id:
        yield f"{prefix}client_id is missing"
    if not (login.provider_url or login.metadata_url or settings.oauth2.issuer):
        yield f"{prefix}provider_url or auth_oauth2.issuer is missing"
    for key in ("provider_url", "metadata_url"):
        address = getattr(login, key)
        if address and not is_protected(address):
            yield f"{prefix}{key}: an address of another host must begin with https://"


def tls_problems(prefix: str, tls: ClientTLS) -> Iterator[str]:
    """Yield a sentence about each file that is not there, or lacks its other half; keys begin with `prefix`."""
    if (tls.certfile is None) != (tls.keyfile is None):
        yield f"{prefix}.certfile and {prefix}.keyfile need each other"
    for key in ("cacertfile", "certfile", "keyfile"):
        file = getattr(tls, key)
        if file is not None and not file.is_file():
            yield f"{prefix}.{key}: there is no file {file}"


def _chain(draft: Draft) -> tuple[Step, ...]:
    both, parts = draft.family("auth_backends.$name"), draft.rows("auth_backends")
    steps = {}
    for name in dict.fromkeys((*both, *parts)):
        key, part = f"auth_backends.{name}", parts.get(name, {})
        if not name.isdecimal():
            draft.problems.append(f"{key}: the place in the chain must be a number, as in auth_backends.1")
        elif name in both and part:
            draft.problems.append(f"{key} excludes {key}.authn and {key}.authz")
        elif part and len(part) == 1:
            draft.problems.append(f"{key}.{'authz' if 'authn' in part else 'authn'} is missing")
        else:
            steps[int(name)] = Step(**part) if part else Step(both[name], both[name])
    return tuple(steps[number] for number in sorted(steps)) or (Step(),)


def _oauth2_settings(draft: Draft) -> OAuth2Settings:
    """Return the settings of the OAuth 2 backend; resource servers have the general ones where they have none."""
    given = draft.section("backends.oauth2")
    for key, field in (("algorithms", "algorithms"), ("preferred_username_claims", "username_claims")):
        if listed := draft.listed(f"{_OAUTH2}.{key}.$name"):
            given[field] = listed
    settings = OAuth2Settings(
        **given,
        signing_keys=draft.family(f"{_OAUTH2}.signing_keys.$name"),
        scope_aliases=_scope_aliases(draft),
        discovery_params=draft.family(f"{_OAUTH2}.discovery_endpoint_params.$name"),
    )
    prefix = f"{_OAUTH2}.resource_servers"
    servers: dict[str, ResourceServer] = {}
    for name, row in draft.rows(prefix).items():
        server_id = row.get("id", name)
        scope_prefix = row.get("scope_prefix", settings.scope_prefix)
        if not server_id or server_id in servers or server_id == settings.resource_server_id:
            draft.problems.append(f"{prefix}.{name}.id: '{server_id}' is there twice, or empty")
        servers[server_id] = ResourceServer(
            server_id,
            f"{server_id}." if scope_prefix is None else scope_prefix,
            row.get("additional_scopes_key", settings.additional_scopes_key),
        )
    if servers and not settings.verify_aud:
        draft.problems.append(
            f"{_OAUTH2}.verify_aud = false excludes {prefix}: the audience tells which is meant"
        )
    return msgspec.structs.replace(settings, resource_servers=tuple(servers.values()))


def _scope_aliases(draft: Draft) -> dict[str, tuple[str, ...]]:
    key = f"{_OAUTH2}.scope_aliases"
    aliases = {name: tuple(text.split()) for name, text in draft.family(f"{key}.$name").items()}
    for number, row in draft.rows(key).items():
        if len(row) == 1:
            draft.problems.append(f"{key}.{number}.{'scope' if 'alias' in row else 'alias'} is missing")
        else:
            aliases[row["alias"]] = tuple(row["scope"].split())
    return aliases


def _missing(settings: OAuth2Settings) -> Iterator[str]:
    """Yield a sentence for each thing that the OAuth 2 backend needs and that is missing."""
    if find_spec("jwt") is None:
        yield "auth_backends: oauth2 needs the package PyJWT: pip install 'leveret[oauth2]'"
        return
    if not settings.servers:
        yield "auth_oauth2.resource_server_id is missing"
    if not (settings.jwks_uri or settings.issuer or settings.signing_keys):
        yield "auth_oauth2.jwks_uri, auth_oauth2.issuer or auth_oauth2.signing_keys is missing"
    for name, path in settings.signing_keys.items():
        try:
            key_of_pem(name, read_named(path))
        except OSError as error:
            yield f"auth_oauth2.signing_keys.{name}: cannot read {path}: {error.strerror}"
        except ValueError:
            yield f"auth_oauth2.signing_keys.{name}: {path} has no public key of a supported kind"
    if settings.cacertfile is not None and not settings.cacertfile.is_file():
        yield f"auth_oauth2.https.cacertfile: there is no file {settings.cacertfile}"


def _cache(draft: Draft) -> CacheSettings:
    key = "auth_cache.cached_backend"
    both, authn, authz = (draft.values.get(f"{key}{end}") for end in ("", ".authn", ".authz"))
    if "cache" in {both, authn, authz}:
        draft.problems.append(f"{key} must not be cache itself")
    if both and (authn or authz):
        draft.problems.append(f"{key} excludes {key}.authn and {key}.authz")
    if (authn is None) != (authz is None):
        draft.problems.append(f"{key}.{'authz' if authn else 'authn'} is missing")
    name: Name = both or "internal"
    return CacheSettings(authn=authn or name, authz=authz or name, **draft.section("backends.cache"))


# -- LDAP -------------------------------------------------------------------------------------------------------------

_LDAP: Final = "auth_ldap"
_HOST: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?")
_OF_LOGINS: Final = frozenset({"username", "ad_domain", "ad_user"})
_DNS: Final = ("dn_lookup_attribute", "dn_lookup_base", "group_lookup_base")


def _ldap_settings(draft: Draft) -> LDAPSettings:
    given = draft.section("backends.ldap")
    for name in _DNS:
        if given.get(name) == "none":
            del given[name]
    given["log"] = given.get("log", "false") != "false"
    return LDAPSettings(
        **given,
        servers=draft.listed(f"{_LDAP}.servers.$name"),
        dn_lookup_bind=_bind("dn_lookup_bind", draft),
        other_bind=_bind("other_bind", draft),
        tls=ClientTLS(**draft.section("backends.ldap.tls")),
        queries=_queries(draft),
    )


def _bind(name: str, draft: Draft) -> Bind:
    key = f"{_LDAP}.{name}"
    way, dn, password = (draft.values.get(f"{key}{end}") for end in ("", ".user_dn", ".password"))
    if dn is None and password is None:
        return Bind(way or "as_user")
    if way is not None:
        draft.problems.append(f"{key} excludes {key}.user_dn and {key}.password")
    if not dn or not password:
        draft.problems.append(f"{key}.{'password' if dn else 'user_dn'} is missing")
    return Bind("entry", dn or "", password or "")


def _queries(draft: Draft) -> LDAPQueries:
    found = {}
    for kind, text in draft.section("backends.ldap.queries").items():
        try:
            found[kind] = query_of(kind, text)
        except ValueError as error:
            draft.problems.append(f"{_LDAP}.queries.{kind}: {error}")
    return LDAPQueries(**found)


def _ldap_problems(settings: BackendSettings) -> Iterator[str]:
    """Yield a sentence for each thing that the LDAP backend needs and that is missing or makes no sense."""
    if find_spec("ldap3") is None:
        yield "auth_backends: ldap needs the package ldap3: pip install 'leveret[ldap]'"
        return
    ldap = settings.ldap
    if not ldap.servers:
        yield f"{_LDAP}.servers.1 is missing"
    for host in ldap.servers:
        if not (is_address(host) or _HOST.fullmatch(host)):
            yield (
                f"{_LDAP}.servers: {host!r} is neither the name of a host nor an address; {_LDAP}.port is the port, "
                f"and {_LDAP}.use_ssl or {_LDAP}.use_starttls encrypts"
            )
    if not ldap.timeout:
        yield f"{_LDAP}.timeout must be more than 0"
    if ldap.use_ssl and ldap.use_starttls:
        yield f"{_LDAP}.use_ssl and {_LDAP}.use_starttls exclude each other"
    if ldap.tls != ClientTLS() and not (ldap.use_ssl or ldap.use_starttls):
        yield f"{_LDAP}.ssl_options need {_LDAP}.use_ssl or {_LDAP}.use_starttls"
    yield from _of_names(ldap)
    yield from _of_queries(settings)


def _of_names(ldap: LDAPSettings) -> Iterator[str]:
    for key in ("user_dn_pattern", "user_bind_pattern"):
        pattern = getattr(ldap, key)
        try:
            check_pattern(pattern, _OF_LOGINS)
        except ValueError:
            yield f"{_LDAP}.{key} may have ${{username}}, ${{ad_domain}} and ${{ad_user}} only"
        if pattern and "${" not in pattern:
            yield f"{_LDAP}.{key} must have ${{username}} in it: all users would be the same entry"
    if bool(ldap.dn_lookup_attribute) is not bool(ldap.dn_lookup_base):
        yield f"{_LDAP}.dn_lookup_attribute and {_LDAP}.dn_lookup_base need each other"
    if ldap.dn_lookup_attribute:
        try:
            check_attribute(ldap.dn_lookup_attribute)
        except ValueError as error:
            yield f"{_LDAP}.dn_lookup_attribute: {error}"


def _of_queries(settings: BackendSettings) -> Iterator[str]:
    ldap, queries = settings.ldap, settings.ldap.queries
    for kind in ("vhost_access", "resource_access"):
        if "ldap" in settings.authorizing and getattr(queries, kind) is None:
            text = "{constant, true} allows everything, as RabbitMQ does by default"
            yield f"{_LDAP}.queries.{kind} is missing: {text}"
    steps = (*settings.chain, Step(settings.cache.authn, settings.cache.authz))
    if ldap.other_bind.way == "as_user" and any(step.authz == "ldap" != step.authn for step in steps):
        yield (
            f"{_LDAP}.other_bind: as_user needs the password of the user, which another backend checks; set "
            f"{_LDAP}.other_bind.user_dn and .password, or anon"
        )
    every = (queries.vhost_access, queries.resource_access, queries.topic_access, queries.tags)
    if any(map(asks_nested, every)) and not (ldap.group_lookup_base or ldap.dn_lookup_base):
        yield f"{_LDAP}.group_lookup_base is missing: in_group_nested would find no group"
