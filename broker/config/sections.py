"""The sections of the configuration, one class per subject; `broker.config.config.Config` contains them.

A field states its keys (`broker.config_key`), in the order of docs/configuration.md: sizes in bytes, times in seconds,
None for no limit.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec

from leveret.broker.auth.backends.settings import BackendSettings
from leveret.broker.channel.settings import Compatibility, Limits
from leveret.broker.config.placement import PlacementConfig
from leveret.broker.config.values import DEFAULT_PORT, Listener
from leveret.broker.config_key import Key, Prefix, Topic
from leveret.broker.tls.options import CertificateLogin, TLSOptions
from leveret.broker.vhost.interceptors import Interceptors

METRICS_HOST, METRICS_PORT, METRICS_TLS_PORT = "127.0.0.1", 15692, 15691
MANAGEMENT_HOST, MANAGEMENT_PORT, MANAGEMENT_TLS_PORT = "127.0.0.1", 15672, 15671
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency", "none")
CATEGORIES = ("default", "connection", "channel", "queue")  # those of the log with levels of their own

# The rows are tables, whose lines are filled.
# fmt: off


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


class ReplicationConfig(msgspec.Struct, frozen=True):
    """The replicated log; without a URL the broker is one machine."""

    engine_url: Annotated[str, Key("replication.url", secret=True, own=True,
        doc="PostgreSQL database that keeps the log, the same on all nodes: "
        "`postgresql://HOST1,HOST2/NAME?target_session_attrs=read-write`, with whatever else libpq takes. Needs the "
        "extra `leveret[postgresql]`.")] = ""
    log: Annotated[str, Key("replication.log", own=True,
        doc="Name of the log, for several clusters in one database: a schema of this name, which is created if it does "
        "not exist; lower-case letters, digits and `_`. By default the tables are in the role's own schema.")] = ""
    node_name: Annotated[str, Key("replication.node_name", own=True,
        doc="Name of this node, unique among all of them; the host name by default.")] = ""
    advertised_address: Annotated[str, Key("replication.advertised_address", own=True,
        doc="Address of this node for clients and operators, which other nodes show; by default the host name.")] = ""
    require_synchronous: Annotated[Literal["true", "false", "engine"], Key("replication.require_synchronous", own=True,
        doc="`true`: lead, and confirm, only while `synchronous_standby_names` of the database is set. `false`: a lost "
        "database loses confirmed messages. `engine`: the storage below the database is replicated, as in managed "
        "services.")] = "true"
    max_batch: Annotated[int, Key("replication.max_batch", "size", low=4096, high=1024**2, own=True,
        doc="Size up to which commits are grouped into one entry of the log.")] = 256 * 1024
    stall_timeout: Annotated[float, Key("replication.stall_timeout", "duration", unit="s", low=1, own=True,
        doc="Time after which a leader whose disk does not take an entry hands over.")] = 10.0

    @property
    def warnings(self) -> list[str]:
        """The unsafe settings, which health shows too."""
        if not self.engine_url or self.require_synchronous != "false":
            return []
        text = "confirmed messages are lost if the database is lost before a standby has them"
        return [f"replication.require_synchronous = false: {text}"]


class LogConfig(msgspec.Struct, frozen=True):
    """Outputs, format and level of the log; ``levels`` is per category."""

    console: Annotated[bool, Key("log.console", doc="Log to the console. RabbitMQ's default is false.")] = True
    console_stream: Annotated[Literal["stdout", "stderr"], Key("log.console.stdio",
        doc="Stream of the console log.")] = "stdout"
    file: Annotated[Path | None,
        Key("log.file", "file", default="false",
            doc="Log file, relative to `log.dir`; `false` for none. SIGHUP reopens it."),
        Key("log.dir", "path",
            doc="Directory of a relative `log.file`; the directory `log` in the data directory by default.")] = None
    rotation_size: Annotated[int, Key("log.file.rotation.size", "size", low=0,
        doc="Size at which the file is rotated (renamed to `.0`, an older `.0` to `.1`); `0` for no limit. With a "
        "date, too, it is rotated at whichever comes first.")] = 0
    rotation_date: Annotated[str, Key("log.file.rotation.date", "moment",
        doc="Times at which it is rotated: `$D0` at midnight, `$D23` at 23:00, `$W0D23` on Sundays at 23:00, `$M1D0` "
        "at the beginning of each month, `$H30` at half past each hour; local time.")] = ""
    rotation_count: Annotated[int, Key("log.file.rotation.count", low=0, high=1000,
        doc="Number of rotated files that are kept. RabbitMQ's default is 0.")] = 5
    rotation_compress: Annotated[bool, Key("log.file.rotation.compress",
        doc="Compress rotated files (`.0.gz`).")] = False
    console_level: Annotated[str, Key("log.console.level", "choice", choices=LEVELS,
        doc="Lowest severity that is logged to the console.")] = "info"
    console_formatter: Annotated[Literal["plaintext", "json"], Key("log.console.formatter",
        doc="Format of the lines that are logged to the console.")] = "plaintext"
    file_level: Annotated[str, Key("log.file.level", "choice", choices=LEVELS,
        doc="Lowest severity that is logged to the file.")] = "info"
    file_formatter: Annotated[Literal["plaintext", "json"], Key("log.file.formatter",
        doc="Format of the lines that are logged to the file.")] = "plaintext"
    levels: Annotated[Mapping[str, str],
        *(Key(f"log.{category}.level", "choice", choices=LEVELS,
            doc=f"Lowest severity of the category `{category}` that is logged; the levels of the outputs by default.")
          for category in CATEGORIES)] = {}


class AuditConfig(msgspec.Struct, frozen=True):
    """The audit log: its file, its rotation, and what is recorded of clients' declarations."""

    file: Annotated[Path | None, Key("log.audit.file", "file", own=True,
        doc="File of the audit log, relative to `log.dir`; `false` for none. SIGHUP reopens it.")] = None
    objects: Annotated[Literal["durable", "all", "none"], Key("log.audit.objects", own=True,
        doc="Queues and exchanges whose declaration, deletion and bindings by clients are recorded: the durable ones, "
        "all, or none. Changes by the management API and `leveret ctl` are always recorded.")] = "durable"
    required: Annotated[bool, Key("log.audit.required", own=True,
        doc="`true`: while the audit log cannot be written, the management API and `leveret ctl` change nothing (503).")
    ] = False
    rotation_size: Annotated[int, Key("log.audit.rotation.size", "size", low=0, own=True,
        doc="Size at which the file is rotated; `0` for no limit, the default with a date.")] = 16 * 1024**2
    rotation_date: Annotated[str, Key("log.audit.rotation.date", "moment", own=True,
        doc="Times at which it is rotated, as for `log.file.rotation.date`.")] = ""
    rotation_count: Annotated[int, Key("log.audit.rotation.count", low=0, high=1000, own=True,
        doc="Number of rotated files that are kept.")] = 10
    rotation_compress: Annotated[bool, Key("log.audit.rotation.compress", own=True,
        doc="Compress rotated files (`.0.gz`).")] = False


class EventsConfig(msgspec.Struct, frozen=True):
    """The event exchange: whether there is one, and its vhost."""

    enabled: Annotated[bool, Key("event_exchange.enabled", own=True,
        doc="Publish events of the broker to the topic exchange `amq.rabbitmq.event`, as RabbitMQ does with its plugin "
        "rabbitmq_event_exchange ([events](howto/limits-and-audit.md#get-events-as-messages)).")] = False
    vhost: Annotated[str, Key("event_exchange.vhost", default="",
        doc="Virtual host of that exchange, created at the start if there is none; by default `default_vhost`.")] = "/"


class ShovelConfig(msgspec.Struct, frozen=True):
    """Shovels: if they run, and limits for those of users who are no administrators."""

    enabled: Annotated[bool, Key("shovel.enabled", own=True,
        doc="`false`: no shovel runs. Their definitions are kept and can be changed ([when the broker hangs at the "
        "start](howto/start-problems.md#a-shovel-holds-the-start)).")] = True
    certificate_dir: Annotated[Path | None, Key("shovel.certificate_dir", own=True,
        doc="Directory of the certificate files that URIs of shovels may name if they are set by users who are no "
        "administrators; by default these may name none.")] = None
    local_rights: Annotated[Literal["setter", "all"], Key("shovel.local_rights", own=True,
        doc="Rights of a shovel within this broker if its URI has no password: those of the user who has set it (an "
        "administrator has all), or, as in RabbitMQ, always all.")] = "setter"


class CredentialsConfig(msgspec.Struct, frozen=True):
    """The rules for new passwords, and their hash algorithm."""

    validator: Annotated[Literal["accept_everything", "min_length", "regexp"],
        Key("credential_validator.validation_backend", "string", default="",
            doc="Rule for new passwords, those of the first users included; hashes are not checked. "
            "`accept_everything` (the default), `min_length`, `regexp`, or the names of RabbitMQ's modules for these.")
    ] = "accept_everything"
    min_length: Annotated[int | None, Key("credential_validator.min_length", low=0, high=1024,
        doc="Least number of bytes of a password, with the rule `min_length`.")] = None
    regexp: Annotated[str, Key("credential_validator.regexp",
        doc="Regular expression that a password must match, with the rule `regexp`; as for permissions, RE2's.")] = ""
    hashing: Annotated[str, Key("password_hashing_module",
        doc="Hash algorithm of new passwords: `rabbit_password_hashing_sha256` or `rabbit_password_hashing_sha512`. "
        "Present hashes keep theirs, and can be used as before.")] = "rabbit_password_hashing_sha256"


class StorageConfig(msgspec.Struct, frozen=True):
    """Settings of the data directory: sizes in bytes, times in seconds."""

    paging_ratio: Annotated[float, Key("vm_memory_high_watermark_paging_ratio", "fraction",
        doc="Fraction of the memory limit that messages may use before queues page them to disk.")] = 0.5
    commit_interval: Annotated[float, Key("storage.commit_interval", "duration", unit="ms", low=0, own=True,
        doc="Time between two commits under load. When idle the broker commits at once; an interval above 2 ms is cut "
        "short as soon as it becomes idle.")] = 0.002
    ram_limit: Annotated[int, Key("storage.ram_limit", "size", low=1024**2, own=True,
        doc="Memory that the messages of all queues may use before they are paged to disk; a single queue may use a "
        "quarter of it. Never more than `vm_memory_high_watermark_paging_ratio` allows.")] = 128 * 1024**2
    blob_threshold: Annotated[int, Key("storage.blob_threshold", "size", low=65536, own=True,
        doc="Persistent messages of at least this size are stored in files of their own.")] = 4 * 1024**2
    embed_below: Annotated[int, Key("queue_index_embed_msgs_below", "size", low=0,
        doc="Persistent messages whose size times the number of queues is below this are written into the blocks of "
        "each queue; larger ones are written once, apart from them.")] = 4096
    segment: Annotated[int, Key("queue_index_segment_entry_count", low=1, high=1024**2,
        doc="Maximum number of queue positions that are moved to or from disk together.")] = 2048
    max_journal_records: Annotated[int, Key("queue_index_max_journal_entries", low=1, high=2**31 - 1,
        doc="Maximum number of copies of persistent messages that wait for a commit: when it is reached, the commit "
        "begins at once, regardless of `storage.commit_interval`, and the broker does not read from publishers until "
        "it is done.")] = 32768
    io_batch: Annotated[int, Key("msg_store_io_batch_size", low=1, high=1024**2,
        doc="Minimum number of queue positions that are paged out together. RabbitMQ's default is 4096.")] = 256
    garbage_fraction: Annotated[float, Key("storage.garbage_fraction", "fraction", own=True,
        doc="Compact the data file at start-up if more than this fraction of it is free space and it exceeds 64 MiB; a "
        "running broker then also returns space to the file system that has been unused for ten minutes. 1 disables "
        "both.")] = 0.5
    sync: Annotated[bool, Key("storage.sync", own=True,
        doc="`false`: do not flush commits to disk. A power failure then loses confirmed messages and may destroy all "
        "data; for measurements only.")] = True
    early_confirm: Annotated[bool, Key("storage.early_confirm", own=True,
        doc="`false`: also write messages that are consumed before their commit, and confirm them after it, as "
        "RabbitMQ 3.6 does; for measurements.")] = True
    target_ram_count: Annotated[int | None, Key("storage.target_ram_count", "limit", low=0, own=True,
        doc="Messages that each queue may keep in memory; for tests and measurements of paging.")] = None
    check_invariants: Annotated[bool, Key("storage.check_invariants", own=True,
        doc="Check the invariants of every queue after every step; slow, for tests.")] = False


class ExportConfig(msgspec.Struct, frozen=True):
    """Settings of the telemetry export (docs/export.md): sizes in bytes, times in seconds."""

    dir: Annotated[Path | None, Key("export.dir", own=True,
        doc="Directory to which the export is written ([export](export.md)); no files are written if not set.")] = None
    stream_vhost: Annotated[str, Key("export.stream_vhost", default="", own=True,
        doc="Virtual host of the stream `leveret.telemetry`, to which all rows are appended; created at the start if "
        "there is none. No stream if not set ([stream](export.md#stream)).")] = ""
    interval: Annotated[float, Key("export.interval", "duration", unit="s", low=1, own=True,
        doc="Time between two samples.")] = 5.0
    rotate_interval: Annotated[float, Key("export.rotate_interval", "duration", unit="s", low=1, own=True,
        doc="Time after which a file is finished and readers can see it.")] = 60.0
    rotate_size: Annotated[int, Key("export.rotate_size", "size", low=1024, own=True,
        doc="Size at which a file is finished earlier.")] = 64 * 1024**2
    retention: Annotated[float, Key("export.retention", "duration", unit="s", low=0, own=True,
        doc="How long exported files of this node are kept, in whole days; `0` keeps them forever.")] = 7 * 86400.0


class HTTPTLSConfig(msgspec.Struct, frozen=True):
    """Settings of an HTTPS listener."""

    port: Annotated[int, Key(".port", default="", low=1, high=65535,
        doc="Port of the HTTPS listener; $port if another key that begins like this one is set.")]
    host: Annotated[str, Key(".ip", doc="Its address. RabbitMQ's default is all interfaces.")] = "127.0.0.1"
    options: TLSOptions = TLSOptions()

    @property
    def required(self) -> bool:
        """True: the broker must not start without it."""
        return True


class PrometheusConfig(msgspec.Struct, frozen=True):
    """Settings of the HTTP listener for metrics and health; `has_plain`: there is one without TLS."""

    enabled: Annotated[bool, Key("prometheus.enabled", own=True,
        doc="Serve metrics ([metrics](metrics.md)) and health checks over HTTP. In RabbitMQ this is a plugin.")] = True
    port: Annotated[int, Key("prometheus.tcp.port", low=0, high=65535,
        doc="Port of the HTTP listener; 0 for none. If the default port at the default address is in use the broker "
        "starts without metrics; with another port or address it does not start.")] = METRICS_PORT
    host: Annotated[str, Key("prometheus.tcp.ip",
        doc="Address of the HTTP listener. RabbitMQ's default is all interfaces. There is no authentication: make sure "
        "that only trusted hosts can connect. With another address than the default the port must be free.")
    ] = METRICS_HOST
    per_object: Annotated[bool, Key("prometheus.return_per_object_metrics",
        doc="`/metrics` reports queues, channels and connections separately, like `/metrics/per-object`.")] = False
    has_plain: bool = True
    usual_port: int = METRICS_PORT

    _tls: ClassVar[Topic] = Topic("TLS of the metrics listener")
    tls: Annotated[HTTPTLSConfig | None, Prefix("prometheus.ssl", (("$port", str(METRICS_TLS_PORT)),))] = None

    @property
    def required(self) -> bool:
        """True if the broker must not start without it, because another than the default address is configured.

        An address alone is enough for that, with the default port: the administrator relies on it. The default itself
        is not required, so that a second broker on the same host can start.
        """
        return (self.host, self.port) != (METRICS_HOST, self.usual_port)


class ManagementConfig(msgspec.Struct, frozen=True):
    """Settings of the HTTP listener of the management API; `has_plain`: there is one without TLS."""

    enabled: Annotated[bool, Key("management.enabled", own=True,
        doc="Serve the management API ([management](management.md)) over HTTP. In RabbitMQ this is a plugin. `leveret "
        "ctl` works without it.")] = True
    port: Annotated[int, Key("management.tcp.port", low=0, high=65535,
        doc="Port of the HTTP listener; 0 for none. If the default port at the default address is in use the broker "
        "starts without the listener; with another port or address it does not start.")] = MANAGEMENT_PORT
    host: Annotated[str, Key("management.tcp.ip",
        doc="Address of the HTTP listener. RabbitMQ's default is all interfaces. Passwords are sent in clear, so use "
        "another address in trusted networks only. With another address than the default the port must be free.")
    ] = MANAGEMENT_HOST
    path_prefix: Annotated[str, Key("management.path_prefix",
        doc="What paths begin with before `/api/`, such as `/broker`, for a proxy that passes them on unchanged.")] = ""
    host_names: Annotated[str, Key("management.host_names", own=True,
        doc="Names with dots, with commas between them, under which browsers may reach a listener on loopback, such as "
        "that of a proxy on the same host that passes `Host` on. Requests for others are refused, because any web page "
        "could give a name of its own the address of this host.")] = ""
    session_minutes: Annotated[int, Key("management.login_session_timeout", low=1, high=525_600,
        doc="Minutes without a request after which the web page asks for a login again. In RabbitMQ from the login.")
    ] = 480
    disable_basic_auth: Annotated[bool, Key("management.disable_basic_auth",
        doc="`true`: the management API takes no names and passwords over the network, only tokens (`Bearer`) and "
        "sessions of the page. `leveret ctl` on the broker's host is not concerned.")] = False
    reports_url: Annotated[str, Key("management.reports_url", "address", own=True,
        doc="Address of the [reports of the analysis](analysis.md), as browsers reach it: the web page has a link to "
        "it. The broker serves no reports itself; `leveret analyze --serve` or any web server does.")] = ""
    interval_ms: Annotated[int, Key("collect_statistics_interval", low=100, high=3_600_000,
        doc="Milliseconds between two samples of the statistics; rates are computed from the last two.")] = 5000
    has_plain: bool = True
    usual_port: int = MANAGEMENT_PORT

    _tls: ClassVar[Topic] = Topic("TLS of the management API")
    tls: Annotated[HTTPTLSConfig | None, Prefix("management.ssl", (("$port", str(MANAGEMENT_TLS_PORT)),))] = None

    @property
    def required(self) -> bool:
        """True if the broker must not start without it: another than the default address is configured."""
        return (self.host, self.port) != (MANAGEMENT_HOST, self.usual_port)

    @property
    def session_seconds(self) -> float:
        """Time without a request after which the session of a browser ends."""
        return self.session_minutes * 60.0

    @property
    def further_names(self) -> tuple[str, ...]:
        """Names under which browsers may reach a listener on loopback."""
        return tuple(name.strip() for name in self.host_names.split(",") if name.strip())


def _node_name() -> str:
    return f"rabbit@{os.uname().nodename.partition('.')[0]}"


_GUEST = UserConfig("guest", "guest", ("administrator",), {"/": (".*", ".*", ".*")})


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of the broker: sizes in bytes, times in seconds, None for no limit.

    Its fields, and those of its sections, state the keys in the order of docs/configuration.md. ``files`` are those
    that set something, ``warnings`` are to be logged once logging is set up.
    """

    _listeners_and_sockets: ClassVar[Topic] = Topic("Listeners and sockets")
    listeners: Annotated[tuple[Listener, ...],
        Key("listeners.tcp", "choice", choices=("none",), doc="`none` disables all AMQP listeners."),
        Key("listeners.tcp.$name", "listener", default="127.0.0.1:5672",
            doc="An AMQP listener: `port` (all interfaces), `host:port` or `[ipv6]:port`; port 0 chooses a free port. "
            "Several names configure several listeners. RabbitMQ's default is all interfaces.")
    ] = (Listener("127.0.0.1", DEFAULT_PORT),)
    proxy_protocol: Annotated[bool, Key("proxy_protocol",
        doc="Every AMQP connection begins with a header of the PROXY protocol (version 1 or 2) with the client's "
        "address, also before TLS. Restrict access to the listeners to proxies then: others can claim any address.")
    ] = False
    backlog: Annotated[int, Key("tcp_listen_options.backlog", low=1, high=65535,
        doc="Maximum number of connections that wait to be accepted.")] = 128
    nodelay: Annotated[bool, Key("tcp_listen_options.nodelay", doc="Disable Nagle's algorithm (`TCP_NODELAY`).")] = True
    keepalive: Annotated[bool, Key("tcp_listen_options.keepalive", doc="Enable TCP keepalives.")] = False
    sndbuf: Annotated[int | None, Key("tcp_listen_options.sndbuf", "size", low=1,
        doc="Size of the socket's send buffer; the operating system's default if not set.")] = None
    recbuf: Annotated[int | None, Key("tcp_listen_options.recbuf", "size", low=1,
        doc="Size of the socket's receive buffer; the operating system's default if not set.")] = None
    linger: Annotated[bool, Key("tcp_listen_options.linger.on",
        doc="Connections that the broker closes end with a TCP reset, so that the client's next write fails; `false`: "
        "they are closed normally.")] = True
    linger_timeout: Annotated[float, Key("tcp_listen_options.linger.timeout", "seconds", low=0,
        doc="How long the last bytes may take to be acknowledged before that reset; `0` means 5 s.")] = 0.0
    send_timeout: Annotated[float, Key("tcp_listen_options.send_timeout", "duration", unit="ms", low=1,
        doc="Disconnect a client that has not read any of its pending data for this long, whether it sends heartbeats "
        "or not.")] = 30.0
    send_timeout_close: Annotated[bool, Key("tcp_listen_options.send_timeout_close",
        doc="`false`: do not disconnect such clients.")] = True

    _tls: ClassVar[Topic] = Topic("TLS")
    tls_listeners: Annotated[tuple[Listener, ...],
        Key("listeners.ssl", "choice", choices=("none",), doc="`none` disables all TLS listeners."),
        Key("listeners.ssl.$name", "listener",
            doc="An AMQP listener with TLS: `5671`, `host:port` or `[ipv6]:port`. Plain listeners stay, unless "
            "`listeners.tcp = none`.")] = ()
    tls: Annotated[TLSOptions, Prefix("ssl_options")] = TLSOptions()
    tls_handshake_timeout: Annotated[float, Key("ssl_handshake_timeout", "duration", unit="ms", low=0,
        doc="Time limit of the TLS handshake.")] = 5.0
    tls_handshake_rate: Annotated[int | None, Key("ssl_handshake_rate", "limit", low=1, own=True,
        doc="Maximum number of clients per second that are accepted on AMQP listeners with TLS, because a handshake "
        "takes about a millisecond of the processor; further ones wait to be accepted.")] = 500
    certificate_login: CertificateLogin = CertificateLogin()

    _connections_and_channels: ClassVar[Topic] = Topic("Connections and channels")
    handshake_timeout: Annotated[float, Key("handshake_timeout", "duration", unit="ms", low=0,
        doc="Time limit from the TCP connection to `connection.open`.")] = 10.0
    max_half_open: Annotated[int, Key("max_half_open", low=2, own=True,
        doc="Maximum number of connections that have not completed `connection.open`; further ones wait to be "
        "accepted. At most a quarter of the file descriptors.")] = 1024
    max_half_open_per_address: Annotated[int | None, Key("max_half_open_per_address", low=1, own=True,
        doc="The same limit for one address (for IPv6, one /64 network); half of `max_half_open` by default.")] = None
    heartbeat: Annotated[int, Key("heartbeat", "seconds", low=0, high=65535,
        doc="Heartbeat interval that the server proposes, in whole seconds; 0 disables heartbeats.")] = 60
    frame_max: Annotated[int, Key("frame_max", "size", low=0, high=2**32 - 1,
        doc="Largest frame that the server proposes, at least 4096; 0 for no limit.")] = 128 * 1024
    initial_frame_max: Annotated[int, Key("initial_frame_max", "size", low=4096, high=2**32 - 1,
        doc="Largest frame before `connection.tune-ok`. RabbitMQ's default is 4096, which is too small for long tokens "
        "used as passwords.")] = 8192
    channel_max: Annotated[int, Key("channel_max", low=0, high=65535, also=("max_channels_per_connection",),
        doc="Channels per connection that the server proposes; 0 for the protocol's maximum.")] = 2047
    consumer_timeout: Annotated[float, Key("consumer_timeout", "duration", unit="ms", low=0,
        doc="Time in which a delivery must be acknowledged; `0` for no limit. `compatibility.consumer_timeout` says "
        "what happens then. The argument `x-consumer-timeout` of a queue or a consumer overrides it.")] = 1800.0

    _limits: ClassVar[Topic] = Topic("Limits")
    limits: Limits = Limits()

    _users_virtual_hosts_and_definitions: ClassVar[Topic] = Topic("Users, virtual hosts and definitions")
    users: Annotated[tuple[UserConfig, ...],
        Key("default_user", default="guest", doc="Name of the first user."),
        Key("default_pass", default="guest", secret=True, doc="Password of the first user."),
        Key("default_user_tags.$name", "bool", default="administrator", doc="`true` gives the first user this tag."),
        *(Key(f"default_permissions.{verb}", default=".*",
            doc=f"Names that the first user may {what}: a regular expression.")
          for verb, what in (("configure", "declare and delete"), ("write", "write to"), ("read", "read from"))),
        Key("default_users.$name.password", secret=True, doc="Creates an additional user with this password."),
        Key("default_users.$name.tags", doc="The user's tags, separated by commas."),
        Key("default_users.$name.vhost_pattern",
            doc="Regular expression for the virtual hosts in which the user has permissions; the default virtual host "
            "if not set."),
        *(Key(f"default_users.$name.{verb}", default=".*", doc="As for the first user.")
          for verb in ("configure", "write", "read"))] = (_GUEST,)
    vhosts: Annotated[tuple[str, ...],
        Key("default_vhost", default="/", doc="Name of the first virtual host."),
        Key("default_vhosts.$name.name", own=True,
            doc="Name of an additional virtual host, `default_vhosts.1.name = orders` and so on.")] = ("/",)
    topic_permissions: Annotated[tuple[TopicPermissionConfig, ...],
        Key("default_topic_permissions.$name.exchange", own=True,
            doc="Restricts a user's routing keys at this topic exchange, `default_topic_permissions.1.exchange = "
            "amq.topic` and so on; `rabbitmqctl set_topic_permissions` in RabbitMQ."),
        Key("default_topic_permissions.$name.user", own=True, doc="The user; the first user if not set."),
        Key("default_topic_permissions.$name.vhost", own=True,
            doc="The virtual host of the exchange; the first one if not set."),
        Key("default_topic_permissions.$name.write", default=".*", own=True,
            doc="Routing keys that the user may publish with: a regular expression, in which `{username}` and "
            "`{vhost}` are replaced by the names."),
        Key("default_topic_permissions.$name.read", default=".*", own=True,
            doc="Routing keys that the user may bind with.")] = ()
    loopback_users: Annotated[frozenset[str],
        Key("loopback_users", "choice", choices=("none",), doc="`none` allows every user to connect from any host."),
        Key("loopback_users.$name", "bool", default="guest",
            doc="`true`: this user may connect from the broker's own host only. This applies to `guest` unless it is "
            "set to `false`.")] = frozenset({"guest"})
    auth_mechanisms: Annotated[tuple[str, ...],
        Key("auth_mechanisms.$name", "choice", default="PLAIN, AMQPLAIN",
            choices=("PLAIN", "AMQPLAIN", "EXTERNAL", "ANONYMOUS"),
            doc="A SASL mechanism to offer, `auth_mechanisms.1 = PLAIN` and so on, in the order of the numbers. "
            "`EXTERNAL`, by the certificate of the client, is offered with TLS only; it needs `ssl_options.verify = "
            "verify_peer`.")] = ("PLAIN", "AMQPLAIN")
    anonymous_user: Annotated[str, Key("anonymous_login_user", "user", in_4="guest",
        doc="User of clients that log in by the mechanism `ANONYMOUS`, without a password; `none` allows nobody to. "
        "RabbitMQ 4 has `guest` by default. Set, it is offered unless `auth_mechanisms.*` says otherwise.")] = ""
    anonymous_pass: Annotated[str, Key("anonymous_login_pass", secret=True, in_4="guest",
        doc="The password with which the broker logs that user in: if it is not the user's, nobody gets in. Empty: "
        "any password will do. RabbitMQ 4 has `guest` by default.")] = ""
    auth_failure_delay: Annotated[float, Key("auth.failure_delay", "duration", unit="s", low=0, own=True,
        doc="How long the socket of a failed login is kept open, with its place in `max_half_open`, to slow down "
        "password guessing; up to eight times as long for an address that fails repeatedly with one user name.")] = 3.0
    credentials: CredentialsConfig = CredentialsConfig()
    _passphrase: ClassVar[Key] = Key("config_entry_decoder.passphrase", "string", default="", secret=True,
        doc="Passphrase for values that begin with `encrypted:`, as `leveret config encrypt` and `rabbitmqctl encode` "
        "make them; best set by the environment (`LEVERET_CONFIG_ENTRY_DECODER_PASSPHRASE`). In RabbitMQ 3 it is set "
        "in advanced.config.")
    _passphrase_file: ClassVar[Key] = Key("config_entry_decoder.passphrase_file", "path", default="", own=True,
        doc="File with that passphrase.")
    auth_max_failures: Annotated[int | None, Key("auth.max_failures", "limit", low=1, own=True,
        doc="Failed logins of one address (for IPv6, one /64 network) in `auth.failure_period` after which its logins "
        "are refused for as long: over HTTP with 429 and `Retry-After`, over AMQP as a wrong password. Users who have "
        "logged in from the address before, and addresses of the broker's own host, are not affected.")] = 10
    auth_failure_period: Annotated[float, Key("auth.failure_period", "duration", unit="s", low=1, own=True,
        doc="That period.")] = 60.0
    definitions: Annotated[Path | None,
        Key("load_definitions", also=("definitions.local.path", "management.load_definitions"),
            doc="Definitions file of RabbitMQ or Leveret, or a directory of `*.json` files, imported at each start "
            "before clients can connect ([administration](administration.md#definitions)). The first user and virtual "
            "host are not created then.")] = None
    _import_backend: ClassVar[Key] = Key("definitions.import_backend", "choice", default="local_filesystem",
        choices=("local_filesystem",),
        doc="Where definitions are imported from.")
    on_unsupported: Annotated[Literal["refuse", "skip"], Key("definitions.on_unsupported", own=True,
        doc="What an import does with definitions that cannot exist here, such as parameters of federation: "
        "`refuse` the file, or `skip` them and all that belongs to them. They are listed in the log and in the answer.")
    ] = "refuse"
    default_queue_type: Annotated[str, Key("default_queue_type", "choice",
        choices=("classic", "quorum", "stream", "rabbit_classic_queue", "rabbit_quorum_queue", "rabbit_stream_queue"),
        default="",
        doc="Default queue type of new virtual hosts for which none is given: the type of queues that are declared "
        "without one there.")] = ""

    _authentication_backends: ClassVar[Topic] = Topic("Authentication backends")
    backends: BackendSettings = BackendSettings()

    _shovels_and_policies_of_users: ClassVar[Topic] = Topic("Shovels and policies of users")
    shovel: ShovelConfig = ShovelConfig()
    rerouting: Annotated[Literal["policymaker", "administrator"], Key("policies.rerouting", own=True,
        doc="Tag that a user needs to set policies with `dead-letter-exchange`, `dead-letter-routing-key` or "
        "`alternate-exchange`, which send messages elsewhere whatever the user may read ([security](security.md)).")
    ] = "policymaker"

    _publisher_confirms: ClassVar[Topic] = Topic("Publisher confirms")
    confirm_mode: Annotated[Literal["standard", "consumer-ack", "consumer-ack-light"], Key("confirm.mode", own=True,
        doc="Confirm mode of queues that have neither the argument `x-confirm-mode` nor a policy with `confirm-mode`. "
        "`standard`: confirm when the broker has the message; the other two: when a consumer has acknowledged it "
        "([confirms](confirms.md)).")] = "standard"
    confirm_hold: Annotated[Literal["at-commit", "refuse"], Key("confirm.hold", own=True,
        doc="What becomes of a publish whose message is [held](storage.md#held-messages) by a queue that confirms when "
        "a consumer has acknowledged. `at-commit`: it is confirmed when it is safe; `refuse`: it gets a `basic.nack`, "
        "as the consumer may be days away.")] = "at-commit"
    confirm_timeout: Annotated[float, Key("confirm.timeout", "duration", unit="ms", low=0, own=True,
        doc="Send `basic.nack` for a publish that is not confirmed within this time; `0` for no limit. Checked about "
        "once a second. The message itself stays in its queues.")] = 0.0

    _memory_and_disk_alarms: ClassVar[Topic] = Topic("Memory and disk alarms")
    memory_relative: Annotated[float, Key("vm_memory_high_watermark.relative", "fraction",
        doc="Fraction of the memory of the machine (or container) that the broker may use before it blocks publishers; "
        "0 blocks them at once.")] = 0.4
    memory_absolute: Annotated[int | None, Key("vm_memory_high_watermark.absolute", "amount", low=0,
        doc="The same limit in bytes; takes precedence over the fraction.")] = None
    disk_free_absolute: Annotated[int | None, Key("disk_free_limit.absolute", "amount", low=0,
        doc="Free space on the disk of the data directory below which publishers are blocked; 50 MB by default. Space "
        "left in the data files by deleted messages counts as free. Takes precedence over the multiple of memory.")
    ] = None
    disk_free_relative: Annotated[float | None, Key("disk_free_limit.relative", "fraction", high=1000,
        doc="The same limit as a multiple of the machine's memory.")] = None

    _message_storage: ClassVar[Topic] = Topic("Message storage")
    storage: StorageConfig = StorageConfig()

    _replication: ClassVar[Topic] = Topic("Replication")
    replication: ReplicationConfig = ReplicationConfig()

    _interceptors: ClassVar[Topic] = Topic("Message interceptors")
    interceptors: Interceptors = Interceptors()

    _compatibility: ClassVar[Topic] = Topic("Compatibility")
    compatibility: Compatibility = Compatibility()

    _metrics_and_health_checks: ClassVar[Topic] = Topic("Metrics and health checks")
    prometheus: PrometheusConfig = PrometheusConfig()

    _management: ClassVar[Topic] = Topic("Management")
    management: ManagementConfig = ManagementConfig()

    _export_for_analysis: ClassVar[Topic] = Topic("Export for analysis")
    export: ExportConfig = ExportConfig()

    _process: ClassVar[Topic] = Topic("Process")
    data_dir: Annotated[Path, Key("data_dir", own=True,
        doc="The data directory; only one broker can use it at a time.")] = Path("var")
    pid_file: Annotated[Path | None, Key("pid_file", own=True,
        doc="File that contains the process id, from when clients can connect until the process ends.")] = None
    node_name: Annotated[str, Key("node_name", default="", own=True,
        doc="Name of this broker; `rabbit@` and the host name by default.")] = msgspec.field(default_factory=_node_name)
    cluster_name: Annotated[str, Key("cluster_name", default="",
        doc="Name that clients see in the server properties; the node name by default.")
    ] = msgspec.field(default_factory=_node_name)
    cluster_tags: Annotated[Mapping[str, str], Key("cluster_tags.$name",
        doc="A tag of the cluster, which the management API shows.")] = {}
    node_tags: Annotated[Mapping[str, str], Key("node_tags.$name",
        doc="A tag of this node, which the management API shows.")] = {}
    placement: PlacementConfig = PlacementConfig()
    slow_step: Annotated[float, Key("debug.slow_step", "duration", unit="ms", low=0, own=True,
        doc="Log what a step of the event loop did that took this processor time: others wait. `0`: none.")] = 0.05

    _logging: ClassVar[Topic] = Topic("Logging")
    log: LogConfig = LogConfig()

    _events: ClassVar[Topic] = Topic("Events")
    events: EventsConfig = EventsConfig()

    _audit_log: ClassVar[Topic] = Topic("Audit log")
    audit: AuditConfig = AuditConfig()

    files: tuple[Path, ...] = ()
    warnings: tuple[str, ...] = ()
