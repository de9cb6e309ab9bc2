"""The sections of the configuration, one class per subject; `broker.config.config.Config` contains them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from leveret.broker.tls.options import TLSOptions
from leveret.broker.vhost.object_limits import BINDINGS

METRICS_HOST, METRICS_PORT = "127.0.0.1", 15692
MANAGEMENT_HOST, MANAGEMENT_PORT = "127.0.0.1", 15672


class UserConfig(msgspec.Struct, frozen=True):
    """A user created at the first start; ``permissions``: vhost → (configure, write, read) patterns."""

    name: str
    password: str
    tags: tuple[str, ...] = ()
    permissions: Mapping[str, tuple[str, str, str]] = {}


class TopicPermissionConfig(msgspec.Struct, frozen=True):
    """The routing keys that a user may use at a topic exchange: patterns, which may contain ``{username}``."""

    user: str
    vhost: str
    exchange: str
    write: str = ".*"
    read: str = ".*"


class VHostLimits(msgspec.Struct, frozen=True):
    """Limits of one virtual host; None means no limit."""

    max_connections: int | None = None
    max_queues: int | None = None
    max_bindings: int | None = BINDINGS
    max_publish_rate: int | None = None
    max_publish_bytes: int | None = None


class DefaultLimits(msgspec.Struct, frozen=True):
    """Limits that a new virtual host gets if its name matches; None means no limit."""

    pattern: str = ".*"
    max_connections: int | None = None
    max_queues: int | None = None
    max_publish_rate: int | None = None
    max_publish_bytes: int | None = None


class UserLimits(msgspec.Struct, frozen=True):
    """Limits of one user; None means no limit."""

    max_connections: int | None = None
    max_channels: int | None = None
    max_publish_rate: int | None = None
    max_publish_bytes: int | None = None


class ReplicationConfig(msgspec.Struct, frozen=True):
    """The replicated log; without a URL the broker is one machine."""

    engine_url: str = ""
    node_name: str = ""
    advertised_address: str = ""
    require_synchronous: Literal["true", "false", "engine"] = "true"
    max_batch: int = 262144
    stall_timeout: float = 10.0


class Compatibility(msgspec.Struct, frozen=True):
    """Switches for changes in RabbitMQ 4; the defaults are RabbitMQ 3.13's behaviour."""

    frame_min: int = 4096
    topic_max_hash: int = 0
    transient_nonexcl_queues: Literal["permitted", "denied"] = "permitted"
    global_qos: Literal["permitted", "ignored"] = "permitted"
    passive_declare: Literal["any-permission", "open"] = "any-permission"
    python_patterns: bool = False


class LogConfig(msgspec.Struct, frozen=True):
    """Outputs, format and level of the log; ``levels`` is per category."""

    console: bool = True
    console_stream: Literal["stdout", "stderr"] = "stdout"
    console_level: str = "info"
    console_formatter: Literal["plaintext", "json"] = "plaintext"
    file: Path | None = None
    file_level: str = "info"
    file_formatter: Literal["plaintext", "json"] = "plaintext"
    rotation_size: int = 0
    rotation_date: str = ""
    rotation_count: int = 5
    rotation_compress: bool = False
    levels: Mapping[str, str] = {}


class AuditConfig(msgspec.Struct, frozen=True):
    """The audit log: its file, its rotation, and what is recorded of clients' declarations."""

    file: Path | None = None
    objects: Literal["durable", "all", "none"] = "durable"
    required: bool = False
    rotation_size: int = 16 * 1024 * 1024
    rotation_date: str = ""
    rotation_count: int = 10
    rotation_compress: bool = False


class EventsConfig(msgspec.Struct, frozen=True):
    """The event exchange: whether there is one, and its vhost."""

    enabled: bool = False
    vhost: str = "/"


class ShovelConfig(msgspec.Struct, frozen=True):
    """Shovels: if they run, and limits for those of users who are no administrators."""

    enabled: bool = True
    certificate_dir: Path | None = None
    local_rights: Literal["setter", "all"] = "setter"


class CredentialsConfig(msgspec.Struct, frozen=True):
    """The rules for new passwords, and their hash algorithm."""

    validator: Literal["accept_everything", "min_length", "regexp"] = "accept_everything"
    min_length: int | None = None
    regexp: str = ""
    hashing: str = "rabbit_password_hashing_sha256"


class StorageConfig(msgspec.Struct, frozen=True):
    """Settings of the data directory: sizes in bytes, times in seconds."""

    embed_below: int = 4096
    segment: int = 2048
    io_batch: int = 256
    blob_threshold: int = 4 * 1024 * 1024
    max_journal_records: int = 32768
    commit_interval: float = 0.002
    early_confirm: bool = True
    sync: bool = True
    ram_limit: int = 128 * 1024 * 1024
    paging_ratio: float = 0.5
    target_ram_count: int | None = None
    check_invariants: bool = False
    garbage_fraction: float = 0.5


class ExportConfig(msgspec.Struct, frozen=True):
    """Settings of the telemetry export (docs/export.md): sizes in bytes, times in seconds."""

    dir: Path | None = None
    interval: float = 5.0
    rotate_interval: float = 60.0
    rotate_size: int = 64 * 1024 * 1024
    retention: float = 7 * 86400.0


class HTTPTLSConfig(msgspec.Struct, frozen=True):
    """Settings of an HTTPS listener."""

    host: str
    port: int
    options: TLSOptions

    @property
    def required(self) -> bool:
        """True: the broker must not start without it."""
        return True


class PrometheusConfig(msgspec.Struct, frozen=True):
    """Settings of the HTTP listener for metrics and health; `has_plain`: there is one without TLS."""

    enabled: bool = True
    host: str = METRICS_HOST
    port: int = METRICS_PORT
    per_object: bool = False
    has_plain: bool = True
    tls: HTTPTLSConfig | None = None

    @property
    def required(self) -> bool:
        """True if the broker must not start without it, because another than the default address is configured.

        An address alone is enough for that, with the default port: the administrator relies on it. The default itself
        is not required, so that a second broker on the same host can start.
        """
        return (self.host, self.port) != (METRICS_HOST, METRICS_PORT)


class ManagementConfig(msgspec.Struct, frozen=True):
    """Settings of the HTTP listener of the management API; `has_plain`: there is one without TLS."""

    enabled: bool = True
    host: str = MANAGEMENT_HOST
    port: int = MANAGEMENT_PORT
    path_prefix: str = ""
    host_names: str = ""
    session_minutes: int = 480
    disable_basic_auth: bool = False
    interval_ms: int = 5000
    reports_url: str = ""
    has_plain: bool = True
    tls: HTTPTLSConfig | None = None

    @property
    def required(self) -> bool:
        """True if the broker must not start without it: another than the default address is configured."""
        return (self.host, self.port) != (MANAGEMENT_HOST, MANAGEMENT_PORT)

    @property
    def session_seconds(self) -> float:
        """Time without a request after which the session of a browser ends."""
        return self.session_minutes * 60.0

    @property
    def further_names(self) -> tuple[str, ...]:
        """Names under which browsers may reach a listener on loopback."""
        return tuple(name.strip() for name in self.host_names.split(",") if name.strip())
