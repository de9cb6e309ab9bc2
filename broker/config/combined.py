"""The values of the settings combined to a `Config`, and the checks of what fits together."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from leveret.broker.amqp.sasl import ANONYMOUS
from leveret.broker.auth.backends.settings import ClientTLS
from leveret.broker.auth.passwords import SHA256, SHA512
from leveret.broker.auth.users import UserLimits, VHostLimits
from leveret.broker.channel.settings import Compatibility, DefaultLimits, Limits
from leveret.broker.config import sections
from leveret.broker.config.backends import backend_settings
from leveret.broker.config.keys import Draft, in_order
from leveret.broker.config.placement import PlacementConfig
from leveret.broker.config.values import LOG_NAME, LOG_NAME_RULE
from leveret.broker.config.vhost_processes import (
    database_problems,
    problems_of as problems_of_placement,
    warnings_of,
)
from leveret.broker.queue.compatibility import QueueCompatibility, short_queue_type
from leveret.broker.tls.options import VERSIONS, CertificateLogin, HostOptions, TLSOptions, problems_of
from leveret.broker.vhost.interceptors import Interceptors
from leveret.exchanges.erlang_hash import octets

FRAME_MIN: Final = 4096
_PERMISSIONS: Final = ("configure", "write", "read")
_TWO_LIMITS: Final = (("vm_memory_high_watermark", "memory"), ("disk_free_limit", "disk_free"))
"""Limits that are given in bytes or relative to the memory, and the beginnings of their attributes."""
_VALIDATORS: Final = {  # RabbitMQ's names of the validators of passwords
    "rabbit_credential_validator_accept_everything": "accept_everything",
    "rabbit_credential_validator_min_password_length": "min_length",
    "rabbit_credential_validator_password_regexp": "regexp",
}
_LONGEST_NAME: Final = 255  # bytes of a short string, the type of names in AMQP; characters of a node's name
PREVIEW: Final = "replication.url: replication is a preview with limits (docs/howto/replicate.md)"


def config_of(draft: Draft) -> sections.Config:
    """Return the ``Config`` of the settings; inconsistent ones are a problem of the draft."""
    parts = draft.section("")
    replication = _replication(draft)
    draft.warnings += [
        f"{key}.relative has no effect: {key}.absolute takes precedence"
        for key, attribute in _TWO_LIMITS
        if {f"{attribute}_absolute", f"{attribute}_relative"} <= parts.keys()
    ]
    prometheus = sections.PrometheusConfig(**_http_section("prometheus", sections.METRICS_TLS_PORT, draft))
    management = sections.ManagementConfig(**_http_section("management", sections.MANAGEMENT_TLS_PORT, draft))
    parts["tls_listeners"] = tuple(dict.fromkeys(draft.family("listeners.ssl.$name").values()))
    parts["tls"] = _amqp_tls(draft, has_listener=bool(parts["tls_listeners"]))
    log_dir = draft.values.get("log.dir", parts.get("data_dir", sections.Config().data_dir) / "log")
    parts["log"] = _log(draft, log_dir)
    parts["audit"] = _audit(draft, log_dir)
    parts["events"] = _events(draft)
    parts["credentials"] = _credentials(draft)
    if "node_name" in parts:
        parts.setdefault("cluster_name", parts["node_name"])
    if 0 < parts.get("frame_max", FRAME_MIN) < FRAME_MIN:
        draft.problems.append(f"frame_max must be 0 or at least {FRAME_MIN}")
    if "default_queue_type" in parts:
        parts["default_queue_type"] = short_queue_type(parts["default_queue_type"])
    named = draft.family("default_vhosts.$name.name").values()
    vhosts = tuple(dict.fromkeys([draft.values.get("default_vhost", "/"), *named]))
    users = tuple(_users(draft, vhosts))
    found = sections.Config(
        **parts,
        users=users,
        topic_permissions=tuple(_topic_permissions(draft, users, vhosts)),
        listeners=_listeners(draft),
        certificate_login=_certificate_login(draft),
        auth_mechanisms=_auth_mechanisms(draft),
        backends=backend_settings(draft),
        loopback_users=_loopback_users(draft),
        vhosts=vhosts,
        cluster_tags=draft.family("cluster_tags.$name"),
        node_tags=draft.family("node_tags.$name"),
        limits=_limits(draft),
        storage=sections.StorageConfig(**draft.section("storage")),
        export=sections.ExportConfig(**draft.section("export")),
        shovel=sections.ShovelConfig(**draft.section("shovel")),
        interceptors=Interceptors(**draft.section("interceptors")),
        compatibility=Compatibility(
            **draft.section("compatibility"),
            queues=QueueCompatibility(**draft.section("compatibility.queues")),
        ),
        replication=replication,
        prometheus=prometheus,
        management=management,
        placement=PlacementConfig(
            **draft.section("placement"),
            pins=draft.family("vhosts.process.$name"),
            elsewhere=draft.family("vhosts.broker.$name"),
            tls=ClientTLS(**draft.section("placement.tls")),
        ),
    )
    draft.problems += problems_of_placement(found)
    draft.warnings += warnings_of(found.placement)
    return replace(found, warnings=tuple(draft.warnings))


# -- listeners and TLS ------------------------------------------------------------------------------------------------


def _listeners(draft: Draft) -> Any:
    named = draft.family("listeners.tcp.$name")
    if not named:
        return () if "listeners.tcp" in draft.values else sections.Config().listeners
    return tuple(dict.fromkeys(named.values()))


def _amqp_tls(draft: Draft, *, has_listener: bool) -> TLSOptions:
    options = _tls_options("ssl_options", "tls", draft)
    if has_listener:
        draft.problems += problems_of(options)
    elif options != TLSOptions():
        draft.warnings.append(
            "ssl_options.* has no effect: there is no TLS listener, see listeners.ssl.$name"
        )
    return options


def _tls_options(prefix: str, path: str, draft: Draft) -> TLSOptions:
    """Return the options of TLS that keys with a prefix set; `path` is their place in `Config`."""
    versions = draft.family(f"{prefix}.versions.$name").values()
    hosts = draft.rows(f"{prefix}.sni")
    for row in hosts.values():
        if "fail_if_no_peer_cert" in row:
            row["fail_if_no_peer_cert"] = row["fail_if_no_peer_cert"] == "true"
    return TLSOptions(
        **draft.section(path),
        prefix=prefix,
        versions=tuple(version for version in VERSIONS if version in versions),
        ciphers=draft.listed(f"{prefix}.ciphers.$name"),
        hosts={name: HostOptions(**row) for name, row in hosts.items()},
    )


def _http_section(name: str, port: int, draft: Draft) -> dict[str, Any]:
    """Return the settings of a listener of HTTP, and of that with TLS if one of its keys is set to anything.

    `name` is the section, which its keys begin with, too, and `port` the default port with TLS.
    """
    given, listener = draft.section(name), draft.section(f"{name}.tls")
    options = _tls_options(f"{name}.ssl", f"{name}.tls.options", draft)
    if options == TLSOptions(prefix=f"{name}.ssl") and "port" not in listener:
        return given
    draft.problems += problems_of(options)
    given["has_plain"] = bool({"host", "port"} & given.keys())
    return given | {"tls": sections.HTTPTLSConfig(**({"port": port} | listener), options=options)}


def _certificate_login(draft: Draft) -> CertificateLogin:
    given = draft.section("certificate_login")
    if given.get("source") == "subject_alt_name":
        given["source"] = "subject_alternative_name"
    return CertificateLogin(**given)


# -- users and virtual hosts ------------------------------------------------------------------------------------------


def _auth_mechanisms(draft: Draft) -> tuple[str, ...]:
    found = draft.listed("auth_mechanisms.$name")
    if draft.values.get("anonymous_user"):
        return found or (*sections.Config().auth_mechanisms, ANONYMOUS)
    if ANONYMOUS in found:
        draft.problems.append("auth_mechanisms: ANONYMOUS needs anonymous_login_user")
    return found or sections.Config().auth_mechanisms


def _loopback_users(draft: Draft) -> frozenset[str]:
    named = draft.family("loopback_users.$name")
    if "loopback_users" not in draft.values:
        named = {"guest": True} | named
    return frozenset(name for name, only_local in named.items() if only_local)


def _users(draft: Draft, vhosts: tuple[str, ...]) -> Iterator[sections.UserConfig]:
    tags = draft.family("default_user_tags.$name") or {"administrator": True}
    first = draft.values.get("default_user", "guest")
    given = {verb: draft.values.get(f"default_permissions.{verb}", ".*") for verb in _PERMISSIONS}
    yield sections.UserConfig(
        first,
        draft.values.get("default_pass", "guest"),
        tuple(tag for tag, on in tags.items() if on),
        {vhosts[0]: _permissions(draft, "default_permissions", given)},
    )
    for name, row in draft.rows("default_users").items():
        key = f"default_users.{name}"
        if "password" not in row:
            draft.problems.append(f"{key}.password is missing")
            continue
        if name == first:
            draft.problems.append(f"{key}: {name} is already the default user")
        own = tuple(tag.strip() for tag in row.get("tags", "").split(",") if tag.strip())
        reached = vhosts[:1]
        if "vhost_pattern" in row:
            matches = draft.compiled(f"{key}.vhost_pattern", row["vhost_pattern"])
            reached = tuple(vhost for vhost in vhosts if matches and matches(octets(vhost)))
        yield sections.UserConfig(
            name, row["password"], own, dict.fromkeys(reached, _permissions(draft, key, row))
        )


def _permissions(draft: Draft, prefix: str, given: Mapping[str, str]) -> tuple[str, str, str]:
    """Return the patterns of configure, write and read, each checked as the value of its key below `prefix`."""
    configure, write, read = (given.get(verb, ".*") for verb in _PERMISSIONS)
    for verb, pattern in zip(_PERMISSIONS, (configure, write, read), strict=True):
        draft.compiled(f"{prefix}.{verb}", pattern)
    return configure, write, read


def _topic_permissions(
    draft: Draft, users: tuple[sections.UserConfig, ...], vhosts: tuple[str, ...]
) -> Iterator[sections.TopicPermissionConfig]:
    for name, given in sorted(draft.rows("default_topic_permissions").items()):
        row = {"user": users[0].name, "vhost": vhosts[0]} | given
        key = f"default_topic_permissions.{name}"
        if not row.get("exchange"):
            draft.problems.append(f"{key}.exchange is missing")
            continue
        if row["user"] not in {user.name for user in users}:
            draft.problems.append(f"{key}.user: there is no user {row['user']}")
        if row["vhost"] not in vhosts:
            draft.problems.append(f"{key}.vhost: there is no virtual host {row['vhost']}")
        made = sections.TopicPermissionConfig(**row)
        draft.compiled(f"{key}.write", made.write)
        draft.compiled(f"{key}.read", made.read)
        yield made


def _limits(draft: Draft) -> Limits:
    vhosts = draft.rows("limits.vhost")
    bindings = {name: row.pop("max_bindings") for name, row in vhosts.items() if "max_bindings" in row}
    return Limits(
        **draft.section("limits"),
        vhost_limits={name: VHostLimits(**row) for name, row in vhosts.items()},
        vhost_bindings=bindings,
        default_limits=tuple(_default_limits(draft)),
        user_limits={name: UserLimits(**row) for name, row in draft.rows("limits.user").items()},
    )


def _default_limits(draft: Draft) -> Iterator[DefaultLimits]:
    rows = draft.rows("default_limits.vhosts")
    for name in sorted(rows, key=in_order):
        pattern = rows[name].pop("pattern", ".*")
        draft.compiled(f"default_limits.vhosts.{name}.pattern", pattern)
        yield DefaultLimits(pattern, VHostLimits(**rows[name]))


def _credentials(draft: Draft) -> sections.CredentialsConfig:
    given = draft.section("credentials")
    if "validator" in given:
        given["validator"] = _VALIDATORS.get(given["validator"], given["validator"])
    found = sections.CredentialsConfig(**given)
    if found.validator not in _VALIDATORS.values():
        draft.problems.append(
            f"credential_validator.validation_backend must be one of {', '.join(_VALIDATORS.values())}"
        )
    if found.hashing not in {SHA256, SHA512}:
        draft.problems.append(f"password_hashing_module must be {SHA256} or {SHA512}")
    if found.validator == "min_length" and found.min_length is None:
        draft.problems.append("credential_validator.min_length is missing")
    if found.validator == "regexp":
        if not found.regexp:
            draft.problems.append("credential_validator.regexp is missing")
        draft.compiled("credential_validator.regexp", found.regexp)
    return found


# -- the log, the audit log, events -----------------------------------------------------------------------------------


def _log(draft: Draft, log_dir: Path) -> sections.LogConfig:
    given = draft.section("log")
    if (file := draft.values.get("log.file")) is not None:
        given["file"] = log_dir / file
    levels = {name: draft.values.get(f"log.{name}.level") for name in sections.CATEGORIES}
    return sections.LogConfig(levels={name: level for name, level in levels.items() if level}, **given)


def _audit(draft: Draft, log_dir: Path) -> sections.AuditConfig:
    given = draft.section("audit")
    if given.get("file") is not None:
        given["file"] = log_dir / given["file"]
    elif given.get("required"):
        draft.problems.append("log.audit.required is true, but log.audit.file names no file")
    if given.get("rotation_date"):
        given.setdefault("rotation_size", 0)
    return sections.AuditConfig(**given)


def _events(draft: Draft) -> sections.EventsConfig:
    given = draft.section("events")
    vhost = given.get("vhost") or draft.values.get("default_vhost", "/")
    if len(octets(vhost)) > _LONGEST_NAME:
        key = "event_exchange.vhost" if given.get("vhost") else "default_vhost"
        draft.problems.append(f"{key}: the name of a virtual host has at most {_LONGEST_NAME} bytes")
    return sections.EventsConfig(**(given | {"vhost": vhost}))


# -- replication ------------------------------------------------------------------------------------------------------


def _replication(draft: Draft) -> sections.ReplicationConfig:
    given, problems = draft.section("replication"), draft.problems
    if not given.get("engine_url"):
        if sections.ReplicationConfig(**given) != sections.ReplicationConfig():
            problems.append(
                "replication.url is missing: the other keys of replication have no effect without it"
            )
        return sections.ReplicationConfig()
    for name in ("node_name", "advertised_address"):
        given[name] = given.get(name) or os.uname().nodename
    found = sections.ReplicationConfig(**given)
    problems += database_problems("replication.url", found.engine_url)
    if len(found.node_name) > _LONGEST_NAME or not found.node_name.isprintable():
        problems.append(f"replication.node_name must have at most {_LONGEST_NAME} printable characters")
    if found.log and not LOG_NAME.fullmatch(found.log):
        problems.append(f"replication.log {LOG_NAME_RULE}")
    draft.warnings += [PREVIEW, *found.warnings]
    return found
