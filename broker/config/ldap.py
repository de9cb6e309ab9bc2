"""The settings of the LDAP backend combined."""

import re
from importlib.util import find_spec
from ipaddress import ip_address
from typing import Final

from leveret.broker.auth.backends.ldap_queries import (
    asks_nested,
    check_attribute,
    check_pattern,
    query_of,
)
from leveret.broker.auth.backends.settings import (
    BackendSettings,
    Bind,
    ClientTLS,
    LDAPQueries,
    LDAPSettings,
    Step,
)
from leveret.broker.config.draft import Draft

_PREFIX: Final = "auth_ldap"
_HOST: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?")
_OF_LOGINS: Final = frozenset({"username", "ad_domain", "ad_user"})
_DNS: Final = ("dn_lookup_attribute", "dn_lookup_base", "group_lookup_base")


def ldap_settings(draft: Draft) -> LDAPSettings:
    """Return the settings of the LDAP backend; a combination that makes no sense is a problem of the draft."""
    given = draft.section("backends.ldap")
    for name in _DNS:
        if given.get(name) == "none":
            del given[name]
    given["log"] = given.get("log", "false") != "false"
    return LDAPSettings(
        **given,
        servers=draft.listed(f"{_PREFIX}.servers.$name"),
        dn_lookup_bind=_bind("dn_lookup_bind", draft),
        other_bind=_bind("other_bind", draft),
        tls=ClientTLS(**draft.section("backends.ldap.tls")),
        queries=_queries(draft),
    )


def _bind(name: str, draft: Draft) -> Bind:
    key = f"{_PREFIX}.{name}"
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
            draft.problems.append(f"{_PREFIX}.queries.{kind}: {error}")
    return LDAPQueries(**found)


def ldap_problems(settings: BackendSettings) -> list[str]:
    """Return a sentence for each thing that the LDAP backend needs and that is missing or makes no sense."""
    if find_spec("ldap3") is None:
        return ["auth_backends: ldap needs the package ldap3: pip install 'leveret[ldap]'"]
    ldap = settings.ldap
    problems = []
    if not ldap.servers:
        problems.append(f"{_PREFIX}.servers.1 is missing")
    problems += [
        f"{_PREFIX}.servers: {host!r} is neither the name of a host nor an address; {_PREFIX}.port is the port, and "
        f"{_PREFIX}.use_ssl or {_PREFIX}.use_starttls encrypts"
        for host in ldap.servers
        if not _is_host(host)
    ]
    if not ldap.timeout:
        problems.append(f"{_PREFIX}.timeout must be more than 0")
    has_tls = ldap.use_ssl or ldap.use_starttls
    if ldap.use_ssl and ldap.use_starttls:
        problems.append(f"{_PREFIX}.use_ssl and {_PREFIX}.use_starttls exclude each other")
    if ldap.tls != ClientTLS() and not has_tls:
        problems.append(f"{_PREFIX}.ssl_options need {_PREFIX}.use_ssl or {_PREFIX}.use_starttls")
    return problems + _of_names(ldap) + _of_queries(settings)


def _is_host(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return _HOST.fullmatch(text) is not None
    return True


def _of_names(ldap: LDAPSettings) -> list[str]:
    problems = []
    for key in ("user_dn_pattern", "user_bind_pattern"):
        pattern = getattr(ldap, key)
        try:
            check_pattern(pattern, _OF_LOGINS)
        except ValueError:
            problems.append(f"{_PREFIX}.{key} may have ${{username}}, ${{ad_domain}} and ${{ad_user}} only")
        if pattern and "${" not in pattern:
            problems.append(
                f"{_PREFIX}.{key} must have ${{username}} in it: all users would be the same entry"
            )
    if bool(ldap.dn_lookup_attribute) is not bool(ldap.dn_lookup_base):
        problems.append(f"{_PREFIX}.dn_lookup_attribute and {_PREFIX}.dn_lookup_base need each other")
    if ldap.dn_lookup_attribute:
        try:
            check_attribute(ldap.dn_lookup_attribute)
        except ValueError as error:
            problems.append(f"{_PREFIX}.dn_lookup_attribute: {error}")
    return problems


def _of_queries(settings: BackendSettings) -> list[str]:
    ldap, queries = settings.ldap, settings.ldap.queries
    problems = []
    if "ldap" in settings.authorizing:
        problems += [
            f"{_PREFIX}.queries.{kind} is missing: {{constant, true}} allows everything, as RabbitMQ does by default"
            for kind in ("vhost_access", "resource_access")
            if getattr(queries, kind) is None
        ]
    every = (queries.vhost_access, queries.resource_access, queries.topic_access, queries.tags)
    steps = (*settings.chain, Step(settings.cache.authn, settings.cache.authz))
    is_apart = any(step.authz == "ldap" != step.authn for step in steps)
    if is_apart and ldap.other_bind.way == "as_user":
        problems.append(
            f"{_PREFIX}.other_bind: as_user needs the password of the user, which another backend checks; set "
            f"{_PREFIX}.other_bind.user_dn and .password, or anon"
        )
    if any(map(asks_nested, every)) and not (ldap.group_lookup_base or ldap.dn_lookup_base):
        problems.append(f"{_PREFIX}.group_lookup_base is missing: in_group_nested would find no group")
    return problems
