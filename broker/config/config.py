"""The configuration: ``Config``, and ``load``, which creates one from files, the environment and flags.

Precedence: flags, then environment, then files (later ones win), then defaults. All problems are collected before any
is reported. ``Config()`` has the defaults, and any part can be given by name, so tests need no files:
``Config(listeners=(Listener("127.0.0.1", 0),))``.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from leveret.broker.amqp.sasl import ANONYMOUS
from leveret.broker.auth.backends.settings import BackendSettings
from leveret.broker.auth.name_patterns import InvalidPatternError, Matcher, Patterns
from leveret.broker.config import protection_parts, tls_parts
from leveret.broker.config.backend_parts import backend_settings
from leveret.broker.config.encrypted import decrypted
from leveret.broker.config.foreign_keys import ForeignKeys
from leveret.broker.config.key_lookup import KeyTable
from leveret.broker.config.keys import KEYS
from leveret.broker.config.replication_keys import replication_config
from leveret.broker.config.sections import (
    AuditConfig,
    Compatibility,
    CredentialsConfig,
    DefaultLimits,
    EventsConfig,
    ExportConfig,
    LogConfig,
    ManagementConfig,
    PrometheusConfig,
    ReplicationConfig,
    ShovelConfig,
    StorageConfig,
    TopicPermissionConfig,
    UserConfig,
    UserLimits,
    VHostLimits,
)
from leveret.broker.config.sources import DEFAULT_PORT, written_settings
from leveret.broker.config.values import PARSERS, Listener, Setting
from leveret.broker.tls.options import CertificateLogin, TLSOptions
from leveret.broker.vhost.object_limits import ARGUMENT_OCTETS, EXCHANGES, QUEUES

__all__ = [
    "Compatibility", "Config", "ConfigError", "ExportConfig", "Listener", "LogConfig", "ManagementConfig",
    "PrometheusConfig", "StorageConfig", "TopicPermissionConfig", "UserConfig", "UserLimits", "VHostLimits", "load",
]  # fmt: skip

FRAME_MIN: Final = 4096
_KEY: Final = re.compile(r"[^\w.$-].*", re.ASCII | re.DOTALL)
_SECRETS: Final = frozenset({"password", "client_secret", "passphrase", "engine_url"})
"""Names of attributes that are secrets."""
_SECTIONS: Final = (
    "log",
    "compatibility",
    "storage",
    "export",
    "prometheus",
    "management",
    "audit",
    "events",
    "shovel",
    "replication",
)
_PERMISSIONS: Final = ("configure", "write", "read")
_TWO_LIMITS: Final = (("vm_memory_high_watermark", "memory"), ("disk_free_limit", "disk_free"))
"""Limits that are given in bytes or relative to the memory, and the beginnings of their attributes."""


class ConfigError(Exception):
    """Raised if the configuration is invalid; ``problems`` has one sentence per problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


def _node_name() -> str:
    return f"rabbit@{os.uname().nodename.partition('.')[0]}"


_GUEST: Final = UserConfig("guest", "guest", ("administrator",), {"/": (".*", ".*", ".*")})


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of the broker: sizes in bytes, times in seconds, None for no limit."""

    # Listeners and their sockets.
    listeners: tuple[Listener, ...] = (Listener("127.0.0.1", DEFAULT_PORT),)
    tls_listeners: tuple[Listener, ...] = ()
    tls: TLSOptions = TLSOptions()
    tls_handshake_timeout: float = 5.0
    tls_handshake_rate: int | None = 500
    backlog: int = 128
    proxy_protocol: bool = False
    nodelay: bool = True
    keepalive: bool = False
    sndbuf: int | None = None
    recbuf: int | None = None
    linger: bool = True
    linger_timeout: float = 0.0
    send_timeout: float = 30.0
    send_timeout_close: bool = True

    # The protocol; 0 means no limit for frame_max and channel_max, as on the wire.
    handshake_timeout: float = 10.0
    max_half_open: int = 1024
    max_half_open_per_address: int | None = None
    heartbeat: int = 60
    frame_max: int = 131072
    initial_frame_max: int = 8192
    channel_max: int = 2047
    channel_max_per_node: int | None = None
    connection_max: int | None = None
    connection_max_publish_rate: int | None = None
    connection_max_publish_bytes: int | None = None
    consumer_max_per_channel: int | None = None
    consumer_timeout: float = 1800.0
    vhost_max: int | None = None
    cluster_queue_limit: int | None = QUEUES
    cluster_exchange_limit: int | None = EXCHANGES
    argument_octets: int = ARGUMENT_OCTETS
    unsent_octets: int | None = None
    max_message_size: int = 134217728
    memory_relative: float = 0.4
    memory_absolute: int | None = None
    disk_free_absolute: int | None = None
    disk_free_relative: float | None = None
    confirm_mode: Literal["standard", "consumer-ack", "consumer-ack-light"] = "standard"
    confirm_timeout: float = 0.0
    cc_keys: int = 1000
    exchange_hops: int = 10_000
    storage: StorageConfig = StorageConfig()
    replication: ReplicationConfig = ReplicationConfig()
    compatibility: Compatibility = Compatibility()
    prometheus: PrometheusConfig = PrometheusConfig()
    management: ManagementConfig = ManagementConfig()

    # Authentication and authorization.
    auth_mechanisms: tuple[str, ...] = ("PLAIN", "AMQPLAIN")
    anonymous_user: str = ""
    certificate_login: CertificateLogin = CertificateLogin()
    auth_failure_delay: float = 3.0
    backends: BackendSettings = BackendSettings()
    auth_max_failures: int | None = 10
    auth_failure_period: float = 60.0
    loopback_users: frozenset[str] = frozenset({"guest"})
    users: tuple[UserConfig, ...] = (_GUEST,)
    topic_permissions: tuple[TopicPermissionConfig, ...] = ()
    credentials: CredentialsConfig = CredentialsConfig()
    definitions: Path | None = None
    vhosts: tuple[str, ...] = ("/",)
    vhost_limits: Mapping[str, VHostLimits] = {}
    default_limits: tuple[DefaultLimits, ...] = ()
    user_limits: Mapping[str, UserLimits] = {}

    # The process.
    node_name: str = msgspec.field(default_factory=_node_name)
    cluster_name: str = msgspec.field(default_factory=_node_name)
    data_dir: Path = Path("var")
    pid_file: Path | None = None
    slow_step: float = 0.05
    most_deaths: int = 256
    log: LogConfig = LogConfig()
    audit: AuditConfig = AuditConfig()
    events: EventsConfig = EventsConfig()
    shovel: ShovelConfig = ShovelConfig()
    rerouting: Literal["policymaker", "administrator"] = "policymaker"
    export: ExportConfig = ExportConfig()

    files: tuple[Path, ...] = ()  # those that set something
    warnings: tuple[str, ...] = ()  # to log once logging is set up


def load(
    config_paths: Iterable[Path] = (),
    data_dir: Path | None = None,
    settings: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
    *,
    values: Mapping[str, object] | None = None,
) -> Config:
    """Create a ``Config`` from files, the environment, ``KEY=VALUE`` settings and a mapping of keys to values.

    Without ``config_paths``, ``LEVERET_CONFIG_FILE`` or ``RABBITMQ_CONFIG_FILE`` in ``environ`` names a file, and
    ``RABBITMQ_CONFIG_FILES`` further ones. See ``values.read_file`` for paths other than files.

    Raises ConfigError with all problems.
    """
    problems: list[str] = []
    warnings: list[str] = []
    written = written_settings(config_paths, data_dir, settings, environ or {}, problems, warnings, values)
    draft = _Draft(problems, warnings)
    for setting in decrypted(written, problems):
        draft.add(setting)
    config = draft.build()
    if problems:
        raise ConfigError(problems)
    files = dict.fromkeys(setting.file.absolute() for setting in written if setting.file is not None)
    return msgspec.structs.replace(config, files=tuple(files))


class _Draft:
    """Builder of a ``Config``: settings are parsed one by one and combined at the end."""

    __slots__ = ("_families", "_foreign", "_problems", "_table", "_values", "_warnings")

    def __init__(self, problems: list[str], warnings: list[str]) -> None:
        self._table = KeyTable()
        self._foreign = ForeignKeys()
        self._problems = problems
        self._warnings = warnings
        self._values: dict[str, Any] = {}  # written key → parsed value
        self._families: dict[str, dict[str, Any]] = {}  # row with $name → name → parsed value

    def add(self, setting: Setting) -> None:
        """Add one setting; a later one for the same key wins."""
        found = self._table.find(setting.key)
        if found is None:
            self._not_found(setting)
            return
        key, name = found
        try:
            value = PARSERS[key.kind](setting.value, key)
        except ValueError as error:
            shown = "***" if key.secret else repr(setting.value)
            self._problems.append(f"{setting.origin}: {setting.key} = {shown} {error}")
            return
        if name:
            self._families.setdefault(key.name, {})[name] = value
            return
        if key.name in {"listeners.tcp", "listeners.ssl", "loopback_users"}:
            self._families.pop(f"{key.name}.$name", None)
        self._values[key.attribute or key.name] = value

    def _not_found(self, setting: Setting) -> None:
        foreign = self._foreign.find(setting.key)
        if foreign is not None:
            if setting.value not in foreign.nothing:
                text = f"{setting.origin}: {setting.key} is not supported: {foreign.why}"
                if foreign.refused:
                    self._problems.append(f"{text}. Remove the line to run without it")
                else:
                    self._warnings.append(f"{text}; ignored")
            return
        closest = self._table.closest(setting.key)
        hint = f"; did you mean {closest}?" if closest else ""
        self._problems.append(f"{setting.origin}: unknown key {_shown(setting.key)}{hint}")

    def build(self) -> Config:
        """Return the ``Config``; inconsistent settings are a problem, too."""
        parts: dict[str, Any] = {name: {} for name in _SECTIONS}
        rows = {key.attribute for key in KEYS if key.attribute}
        for attribute, value in self._values.items():
            if attribute in rows and not attribute.startswith("backends."):
                outer, _, inner = attribute.rpartition(".")
                (parts.setdefault(outer, {}) if outer else parts)[inner] = value
        parts["compatibility"] = Compatibility(**parts["compatibility"])
        parts["storage"] = StorageConfig(**parts["storage"])
        parts["export"] = ExportConfig(**parts["export"])
        parts["replication"] = replication_config(parts["replication"], self._problems, self._warnings)
        self._warnings += [
            f"{key}.relative has no effect: {key}.absolute takes precedence"
            for key, attribute in _TWO_LIMITS
            if {f"{attribute}_absolute", f"{attribute}_relative"} <= parts.keys()
        ]
        tls_parts.add(parts, self._values, self._families, self._problems, self._warnings)
        parts["prometheus"] = PrometheusConfig(**parts["prometheus"])
        parts["management"] = ManagementConfig(**parts["management"])
        parts["log"] = self._log(parts["log"], parts.get("data_dir", Path("var")))
        protection_parts.add(parts, self._values, self._problems)
        parts.setdefault("cluster_name", parts.get("node_name", _node_name()))
        parts.setdefault("node_name", _node_name())
        if 0 < parts.get("frame_max", FRAME_MIN) < FRAME_MIN:
            self._problems.append(f"frame_max must be 0 or at least {FRAME_MIN}")
        vhosts = self._vhosts()
        users = tuple(self._users(vhosts))
        return Config(
            users=users,
            topic_permissions=tuple(self._topic_permissions(users, vhosts)),
            listeners=self._listeners(),
            auth_mechanisms=self._auth_mechanisms(),
            backends=backend_settings(self._values, self._family, self._problems),
            loopback_users=self._loopback_users(),
            vhosts=vhosts,
            vhost_limits=self._limits(VHostLimits, "limits.vhost"),
            default_limits=tuple(self._default_limits()),
            user_limits=self._limits(UserLimits, "limits.user"),
            warnings=tuple(self._warnings),
            **parts,
        )

    def _family(self, row: str) -> dict[str, Any]:
        return self._families.get(row, {})

    def _listeners(self) -> tuple[Listener, ...]:
        named = self._family("listeners.tcp.$name")
        if not named:
            return () if "listeners.tcp" in self._values else Config().listeners
        return tuple(dict.fromkeys(named.values()))

    def _auth_mechanisms(self) -> tuple[str, ...]:
        named = self._family("auth_mechanisms.$name")
        found = tuple(dict.fromkeys(named[name] for name in sorted(named, key=_in_order)))
        if self._values.get("anonymous_user"):
            return found or (*Config().auth_mechanisms, ANONYMOUS)
        if ANONYMOUS in found:
            self._problems.append("auth_mechanisms: ANONYMOUS needs anonymous_login_user")
        return found or Config().auth_mechanisms

    def _loopback_users(self) -> frozenset[str]:
        named = self._family("loopback_users.$name")
        if "loopback_users" not in self._values:
            named = {"guest": True} | named
        return frozenset(name for name, only_local in named.items() if only_local)

    def _vhosts(self) -> tuple[str, ...]:
        first = self._values.get("default_vhost", "/")
        return tuple(dict.fromkeys([first, *self._family("default_vhosts.$name.name").values()]))

    def _users(self, vhosts: tuple[str, ...]) -> Iterator[UserConfig]:
        tags = {"administrator": True} if not self._family("default_user_tags.$name") else {}
        tags |= self._family("default_user_tags.$name")
        first = self._values.get("default_user", "guest")
        rights = {verb: self._values.get(f"default_permissions.{verb}", ".*") for verb in _PERMISSIONS}
        yield UserConfig(
            first,
            self._values.get("default_pass", "guest"),
            tuple(tag for tag, on in tags.items() if on),
            {vhosts[0]: self._permissions("default_permissions", rights)},
        )
        fields = ("password", "tags", "vhost_pattern", *_PERMISSIONS)
        more = {field: self._family(f"default_users.$name.{field}") for field in fields}
        for name in dict.fromkeys(name for family in more.values() for name in family):
            if name not in more["password"]:
                self._problems.append(f"default_users.{name}.password is missing")
                continue
            if name == first:
                self._problems.append(f"default_users.{name}: {name} is already the default user")
            rights = {verb: more[verb].get(name, ".*") for verb in _PERMISSIONS}
            yield UserConfig(
                name,
                more["password"][name],
                tuple(tag.strip() for tag in more["tags"].get(name, "").split(",") if tag.strip()),
                dict.fromkeys(
                    self._matching(vhosts, more["vhost_pattern"].get(name), name),
                    self._permissions(f"default_users.{name}", rights),
                ),
            )

    def _matching(self, vhosts: tuple[str, ...], pattern: str | None, user: str) -> tuple[str, ...]:
        if pattern is None:
            return vhosts[:1]
        matches = self._compiled(f"default_users.{user}.vhost_pattern", pattern)
        if matches is None:
            return ()
        return tuple(vhost for vhost in vhosts if matches(vhost.encode("utf-8", "surrogateescape")))

    def _permissions(self, prefix: str, rights: Mapping[str, str]) -> tuple[str, str, str]:
        """Return the patterns of configure, write and read, each checked as the value of its key below `prefix`."""
        for verb, pattern in rights.items():
            self._compiled(f"{prefix}.{verb}", pattern)
        configure, write, read = (rights[verb] for verb in _PERMISSIONS)
        return configure, write, read

    def _compiled(self, key: str, pattern: str) -> Matcher | None:
        """Return the matcher of a key's pattern; an invalid one is a problem, and None is returned."""
        try:
            return Patterns(python=self._values.get("compatibility.python_patterns", False)).compile(pattern)
        except InvalidPatternError as error:
            self._problems.append(f"{key}: {error}")
            return None

    def _topic_permissions(
        self, users: tuple[UserConfig, ...], vhosts: tuple[str, ...]
    ) -> Iterator[TopicPermissionConfig]:
        rows: dict[str, dict[str, str]] = {}
        for field in TopicPermissionConfig.__struct_fields__:
            for name, value in self._family(f"default_topic_permissions.$name.{field}").items():
                rows.setdefault(name, {"user": users[0].name, "vhost": vhosts[0]})[field] = value
        for name, row in sorted(rows.items()):
            key = f"default_topic_permissions.{name}"
            if not row.get("exchange"):
                self._problems.append(f"{key}.exchange is missing")
                continue
            if row["user"] not in {user.name for user in users}:
                self._problems.append(f"{key}.user: there is no user {row['user']}")
            if row["vhost"] not in vhosts:
                self._problems.append(f"{key}.vhost: there is no virtual host {row['vhost']}")
            made = TopicPermissionConfig(**row)
            self._compiled(f"{key}.write", made.write)
            self._compiled(f"{key}.read", made.read)
            yield made

    def _default_limits(self) -> Iterator[DefaultLimits]:
        rows = self._limits(DefaultLimits, "default_limits.vhosts")
        for name in sorted(rows, key=_in_order):
            self._compiled(f"default_limits.vhosts.{name}.pattern", rows[name].pattern)
            yield rows[name]

    def _limits(self, form: type[Any], prefix: str) -> dict[str, Any]:
        limits: dict[str, dict[str, Any]] = {}
        for field in form.__struct_fields__:
            for name, value in self._family(f"{prefix}.$name.{field}").items():
                limits.setdefault(name, {})[field] = value
        return {name: form(**values) for name, values in limits.items()}

    def _log(self, parts: dict[str, Any], data_dir: Path) -> LogConfig:
        if (file := self._values.get("log.file")) is not None:
            parts["file"] = self._values.get("log.dir", data_dir / "log") / file
        if parts.get("rotation_size") and parts.get("rotation_date"):
            self._problems.append("log.file.rotation.size and log.file.rotation.date exclude each other")
        categories = ("default", "connection", "channel", "queue")
        levels = {name: self._values.get(f"log.{name}.level") for name in categories}
        return LogConfig(levels={name: level for name, level in levels.items() if level}, **parts)


def _shown(key: str) -> str:
    """Return the recognizable part of an unknown key: the rest may contain a password after a wrong separator."""
    return _KEY.sub("...", key)


def _in_order(name: str) -> tuple[int, str]:
    """Return the sort key for the rows of a family: their numbers, or else their names."""
    return (int(name) if name.isdecimal() else 0, name)


def _mask(value: Any) -> None:
    """Replace the secrets in plain values, at any depth; an empty one is shown."""
    if isinstance(value, dict):
        for name in _SECRETS & value.keys():
            value[name] = "***" if value[name] else ""
    for each in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    ):
        _mask(each)


def effective(config: Config) -> Iterator[str]:
    """Yield the effective configuration as ``attribute = value`` lines; passwords are masked."""
    shown = msgspec.to_builtins(config, enc_hook=str)
    _mask(shown)
    yield from (f"{name} = {msgspec.json.encode(value).decode()}" for name, value in shown.items())
