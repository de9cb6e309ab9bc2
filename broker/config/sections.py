"""The sections of the configuration, one class per subject; `broker.config.config.Config` contains them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

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


class DefaultLimits(msgspec.Struct, frozen=True):
    """Limits that a new virtual host gets if its name matches; None means no limit."""

    pattern: str = ".*"
    max_connections: int | None = None
    max_queues: int | None = None


class UserLimits(msgspec.Struct, frozen=True):
    """Limits of one user; None means no limit."""

    max_connections: int | None = None
    max_channels: int | None = None


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


class PrometheusConfig(msgspec.Struct, frozen=True):
    """Settings of the HTTP listener for metrics and health."""

    enabled: bool = True
    host: str = METRICS_HOST
    port: int = METRICS_PORT
    per_object: bool = False

    @property
    def required(self) -> bool:
        """True if the broker must not start without it, because another than the default address is configured.

        An address alone is enough for that, with the default port: the administrator relies on it. The default itself
        is not required, so that a second broker on the same host can start.
        """
        return (self.host, self.port) != (METRICS_HOST, METRICS_PORT)


class ManagementConfig(msgspec.Struct, frozen=True):
    """Settings of the HTTP listener of the management API."""

    enabled: bool = True
    host: str = MANAGEMENT_HOST
    port: int = MANAGEMENT_PORT
    path_prefix: str = ""
    interval_ms: int = 5000

    @property
    def required(self) -> bool:
        """True if the broker must not start without it: another than the default address is configured."""
        return (self.host, self.port) != (MANAGEMENT_HOST, MANAGEMENT_PORT)
