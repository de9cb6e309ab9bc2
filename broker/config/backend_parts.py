"""The keys of authentication backends, combined."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, Final

import msgspec

from leveret.broker.auth.backends.settings import (
    BackendSettings,
    CacheSettings,
    ClientTLS,
    CodeLoginSettings,
    HTTPSettings,
    Name,
    OAuth2Settings,
    ResourceServer,
    Step,
    is_protected,
)
from leveret.broker.auth.backends.tokens import key_of_pem
from leveret.broker.process.named_files import read_named

_PREFIX: Final = "backends."


def backend_settings(
    values: Mapping[str, Any], family: Callable[[str], dict[str, Any]], problems: list[str]
) -> BackendSettings:
    """Return the settings of the backends.

    Args:
        values: values by the attribute of their key, or by its name.
        family: returns the values of a key with `$name` by that name.
        problems: gets a sentence for each combination that makes no sense.

    """
    parts: dict[str, dict[str, Any]] = {}
    for attribute, value in values.items():
        if attribute.startswith(_PREFIX):
            outer, _, inner = attribute.removeprefix(_PREFIX).rpartition(".")
            parts.setdefault(outer, {})[inner] = value
    chain, cache = _chain(family, problems), _cache(values, parts.get("cache", {}), problems)
    settings = BackendSettings(
        chain=chain,
        http=HTTPSettings(tls=ClientTLS(**parts.get("http.tls", {})), **parts.get("http", {})),
        oauth2=_oauth2_settings(parts.get("oauth2", {}), family, problems),
        cache=cache,
        login=CodeLoginSettings(**parts.get("login", {})),
    )
    problems += _login_problems(settings)
    if "oauth2" in settings.used:
        problems += _missing(settings.oauth2)
    if "ldap" in settings.used:
        from leveret.broker.config.ldap_parts import ldap_problems, ldap_settings  # noqa: PLC0415 - only if it is used

        settings = msgspec.structs.replace(settings, ldap=ldap_settings(values, parts, family, problems))
        problems += ldap_problems(settings)
    for name, tls in (("auth_http", settings.http.tls), ("auth_ldap", settings.ldap.tls)):
        problems += _tls_problems(f"{name}.ssl_options", tls)
    timeouts = ("request_timeout", "connection_timeout")
    problems += [
        f"auth_http.{key} must be more than 0" for key in timeouts if not getattr(settings.http, key)
    ]
    return settings


def _login_problems(settings: BackendSettings) -> list[str]:
    """Return a sentence for each thing that the login by an identity provider needs and that is missing."""
    login, prefix = settings.login, "management.oauth_"
    if not login.enabled:
        return []
    problems = []
    if "oauth2" not in settings.used:
        problems.append(f"{prefix}enabled needs the backend that takes tokens: auth_backends.1 = oauth2")
    if not login.client_id:
        problems.append(f"{prefix}client_id is missing")
    if not (login.provider_url or login.metadata_url or settings.oauth2.issuer):
        problems.append(f"{prefix}provider_url or auth_oauth2.issuer is missing")
    for key in ("provider_url", "metadata_url"):
        address = getattr(login, key)
        if address and not is_protected(address):
            problems.append(f"{prefix}{key}: an address of another host must begin with https://")
    return problems


def _tls_problems(prefix: str, tls: ClientTLS) -> list[str]:
    problems = []
    if (tls.certfile is None) != (tls.keyfile is None):
        problems.append(f"{prefix}.certfile and {prefix}.keyfile need each other")
    for key in ("cacertfile", "certfile", "keyfile"):
        file = getattr(tls, key)
        if file is not None and not file.is_file():
            problems.append(f"{prefix}.{key}: there is no file {file}")
    return problems


def _chain(family: Callable[[str], dict[str, Any]], problems: list[str]) -> tuple[Step, ...]:
    both = family("auth_backends.$name")
    authn, authz = family("auth_backends.$name.authn"), family("auth_backends.$name.authz")
    steps = {}
    for name in dict.fromkeys((*both, *authn, *authz)):
        key = f"auth_backends.{name}"
        if not name.isdecimal():
            problems.append(f"{key}: the place in the chain must be a number, as in auth_backends.1")
            continue
        if name in both and (name in authn or name in authz):
            problems.append(f"{key} excludes {key}.authn and {key}.authz")
            continue
        if name not in both and (name not in authn or name not in authz):
            missing = "authz" if name in authn else "authn"
            problems.append(f"{key}.{missing} is missing")
            continue
        steps[int(name)] = Step(both.get(name) or authn[name], both.get(name) or authz[name])
    return tuple(steps[number] for number in sorted(steps)) or (Step(),)


def _oauth2_settings(
    parts: dict[str, Any], family: Callable[[str], dict[str, Any]], problems: list[str]
) -> OAuth2Settings:
    """Return the settings of the OAuth 2 backend; resource servers have the general ones where they have none."""
    settings = OAuth2Settings(**parts, **_oauth2(family, problems))
    prefix = "auth_oauth2.resource_servers"
    fields = {
        name: family(f"{prefix}.$name.{name}") for name in ("id", "scope_prefix", "additional_scopes_key")
    }
    names = dict.fromkeys(name for values in fields.values() for name in values)
    servers: dict[str, ResourceServer] = {}
    for name in names:
        server_id = fields["id"].get(name, name)
        scope_prefix = fields["scope_prefix"].get(name, settings.scope_prefix)
        if not server_id or server_id in servers or server_id == settings.resource_server_id:
            problems.append(f"{prefix}.{name}.id: '{server_id}' is there twice, or empty")
        servers[server_id] = ResourceServer(
            server_id,
            f"{server_id}." if scope_prefix is None else scope_prefix,
            fields["additional_scopes_key"].get(name, settings.additional_scopes_key),
        )
    if servers and not settings.verify_aud:
        problems.append(
            f"auth_oauth2.verify_aud = false excludes {prefix}: the audience tells which is meant"
        )
    return msgspec.structs.replace(settings, resource_servers=tuple(servers.values()))


def _oauth2(family: Callable[[str], dict[str, Any]], problems: list[str]) -> dict[str, Any]:
    """Return the settings of the OAuth 2 backend that several keys make."""
    prefix = "auth_oauth2"
    aliases = {name: tuple(text.split()) for name, text in family(f"{prefix}.scope_aliases.$name").items()}
    names, scopes = (family(f"{prefix}.scope_aliases.$name.{field}") for field in ("alias", "scope"))
    for number in dict.fromkeys((*names, *scopes)):
        if number in names and number in scopes:
            aliases[names[number]] = tuple(scopes[number].split())
        else:
            problems.append(
                f"{prefix}.scope_aliases.{number}.{'scope' if number in names else 'alias'} is missing"
            )
    found: dict[str, Any] = {"signing_keys": family(f"{prefix}.signing_keys.$name"), "scope_aliases": aliases}
    for key, attribute in (("algorithms", "algorithms"), ("preferred_username_claims", "username_claims")):
        numbered = family(f"{prefix}.{key}.$name")
        if numbered:
            order = sorted(numbered, key=lambda name: (int(name) if name.isdecimal() else 0, name))
            found[attribute] = tuple(dict.fromkeys(numbered[name] for name in order))
    return found


def _missing(settings: OAuth2Settings) -> list[str]:
    """Return a sentence for each thing that the OAuth 2 backend needs and that is missing."""
    problems = []
    if find_spec("jwt") is None:
        problems.append("auth_backends: oauth2 needs the package PyJWT: pip install 'leveret[oauth2]'")
        return problems
    if not settings.servers:
        problems.append("auth_oauth2.resource_server_id is missing")
    if not (settings.jwks_uri or settings.issuer or settings.signing_keys):
        problems.append("auth_oauth2.jwks_uri, auth_oauth2.issuer or auth_oauth2.signing_keys is missing")
    for name, path in settings.signing_keys.items():
        try:
            key_of_pem(name, read_named(path))
        except OSError as error:
            problems.append(f"auth_oauth2.signing_keys.{name}: cannot read {path}: {error.strerror}")
        except ValueError:
            problems.append(f"auth_oauth2.signing_keys.{name}: {path} has no public key of a supported kind")
    if settings.cacertfile is not None and not settings.cacertfile.is_file():
        problems.append(f"auth_oauth2.https.cacertfile: there is no file {settings.cacertfile}")
    return problems


def _cache(values: Mapping[str, Any], parts: dict[str, Any], problems: list[str]) -> CacheSettings:
    key = "auth_cache.cached_backend"
    both, authn, authz = (values.get(f"{key}{end}") for end in ("", ".authn", ".authz"))
    if "cache" in {both, authn, authz}:
        problems.append(f"{key} must not be cache itself")
    if both and (authn or authz):
        problems.append(f"{key} excludes {key}.authn and {key}.authz")
    if (authn is None) != (authz is None):
        problems.append(f"{key}.{'authz' if authn else 'authn'} is missing")
    name: Name = both or "internal"
    return CacheSettings(authn=authn or name, authz=authz or name, **parts)
