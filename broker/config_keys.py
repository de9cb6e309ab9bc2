"""The configuration keys: one row per key, from which parsing, checks and docs/configuration.md come.

A name may hold one ``$name``: it stands for whatever the administrator writes there (a listener, a user, a
virtual host). RabbitMQ's keys that are not here are in `broker.config_foreign`.
"""

from typing import Final, Literal

import msgspec

from broker.object_limits import ARGUMENT_OCTETS, BINDINGS, EXCHANGES, QUEUES

Kind = Literal[
    "bool",
    "int",
    "limit",
    "duration",
    "seconds",
    "size",
    "amount",
    "string",
    "choice",
    "listener",
    "path",
    "fraction",
    "moment",
]

LEVELS: Final = (
    "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency", "none",
)  # fmt: skip
MAX_MESSAGE_SIZE: Final = 512 * 1024 * 1024


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One key of the configuration.

    ``kind`` names the parser of ``broker.config_values``. ``attribute`` is the path inside ``Config`` that
    the value goes to; empty for keys that ``broker.config`` puts together itself. ``unit`` is the unit of
    a bare number. ``low`` and ``high`` are inclusive. ``origin`` is ``RabbitMQ`` for keys that RabbitMQ
    has too (name, meaning and, unless the text says otherwise, default are the same) and ``Leveret`` for
    our own.
    """

    name: str
    kind: Kind
    default: str
    doc: str
    attribute: str = ""
    unit: str = ""
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False
    origin: Literal["RabbitMQ", "Leveret"] = "RabbitMQ"


def _log_keys() -> tuple[Key, ...]:
    """The keys of the two log outputs, which have the same shape."""
    rows: list[Key] = [
        Key(name="log.console", kind="bool", default="true", attribute="log.console",
            doc="Log to the console. RabbitMQ's default is false; a broker in the foreground should speak."),
        Key(name="log.console.stdio", kind="choice", default="stdout", choices=("stdout", "stderr"),
            attribute="log.console_stream", doc="Which stream the console log goes to."),
        Key(name="log.file", kind="string", default="false",
            doc="Log to this file, relative to `log.dir`; `false` for no file. SIGHUP reopens it."),
        Key(name="log.dir", kind="path", default="", doc="Where a relative `log.file` lives; "
            "the directory `log` in the data directory by default."),
    ]  # fmt: skip
    rows += [
        Key(name="log.file.rotation.size", kind="size", default="0", unit="bytes", low=0,
            attribute="log.rotation_size",
            doc="Size from which the file is put aside as `.0`, and what was `.0` as `.1`; `0` for any size."),
        Key(name="log.file.rotation.date", kind="moment", default="", attribute="log.rotation_date",
            doc="When it is put aside instead: `$D0` at midnight, `$D23` at 23:00, `$W0D23` on Sundays at 23:00, "
            "`$M1D0` at the beginning of each month, `$H30` at half past each hour; local time."),
        Key(name="log.file.rotation.count", kind="int", default="5", low=0, high=1000,
            attribute="log.rotation_count", doc="Old files that are kept. RabbitMQ's default is 0."),
        Key(name="log.file.rotation.compress", kind="bool", default="false", attribute="log.rotation_compress",
            doc="Compress them (`.0.gz`)."),
    ]  # fmt: skip
    for output in ("console", "file"):
        rows += [
            Key(name=f"log.{output}.level", kind="choice", default="info", choices=LEVELS,
                attribute=f"log.{output}_level", doc=f"The least severe messages that go to the {output}."),
            Key(name=f"log.{output}.formatter", kind="choice", default="plaintext",
                choices=("plaintext", "json"), attribute=f"log.{output}_formatter",
                doc=f"The form of the lines that go to the {output}."),
        ]  # fmt: skip
    rows += [
        Key(name=f"log.{category}.level", kind="choice", default="", choices=LEVELS,
            doc=f"The least severe messages of the category `{category}` that are logged at all; "
            "the outputs' levels decide by default.")
        for category in ("default", "connection", "channel", "queue")
    ]  # fmt: skip
    return tuple(rows)


KEYS: Final[tuple[Key, ...]] = (
    # Listeners.
    Key(name="listeners.tcp", kind="choice", default="", choices=("none",),
        doc="`none` turns all AMQP listeners off."),
    Key(name="listeners.tcp.$name", kind="listener", default="127.0.0.1:5672",
        doc="An AMQP listener: `port` (all interfaces), `host:port` or `[ipv6]:port`; port 0 picks a free "
        "one. Several names make several listeners. RabbitMQ's default is all interfaces."),
    Key(name="tcp_listen_options.backlog", kind="int", default="128", low=1, high=65535, attribute="backlog",
        doc="Connections that may wait to be accepted."),
    Key(name="tcp_listen_options.nodelay", kind="bool", default="true", attribute="nodelay",
        doc="Turn Nagle's algorithm off."),
    Key(name="tcp_listen_options.keepalive", kind="bool", default="false", attribute="keepalive",
        doc="TCP keepalives on accepted connections."),
    Key(name="tcp_listen_options.sndbuf", kind="size", default="", unit="bytes", low=1, attribute="sndbuf",
        doc="Size of the socket's send buffer; the system's by default."),
    Key(name="tcp_listen_options.recbuf", kind="size", default="", unit="bytes", low=1, attribute="recbuf",
        doc="Size of the socket's receive buffer; the system's by default."),
    Key(name="tcp_listen_options.linger.on", kind="bool", default="true", attribute="linger",
        doc="A socket that the broker closes ends with a reset, so that the client's next write fails; `false`: with "
        "an ordinary end."),
    Key(name="tcp_listen_options.linger.timeout", kind="seconds", default="0", unit="s", low=0,
        attribute="linger_timeout",
        doc="Seconds that the last octets may take to be acknowledged before that reset; `0` for 5."),
    Key(name="tcp_listen_options.send_timeout", kind="duration", default="30000", unit="ms", low=1,
        attribute="send_timeout",
        doc="A client that takes none of the octets that wait for it is cut after so long, heartbeats or not."),
    Key(name="tcp_listen_options.send_timeout_close", kind="bool", default="true", attribute="send_timeout_close",
        doc="`false`: it is not cut."),
    # The protocol.
    Key(name="handshake_timeout", kind="duration", default="10000", unit="ms", low=0,
        attribute="handshake_timeout",
        doc="How long a client may take from connecting to `connection.open`."),
    Key(name="max_half_open", kind="int", default="1024", low=2, attribute="max_half_open", origin="Leveret",
        doc="Clients that may be between connecting and `connection.open` at once; others wait to be accepted. Never "
        "more than a quarter of the file descriptors."),
    Key(name="max_half_open_per_address", kind="int", default="", low=1, attribute="max_half_open_per_address",
        origin="Leveret",
        doc="How many of them one address (one /64 network of IPv6) may have; half of them by default."),
    Key(name="heartbeat", kind="seconds", default="60", unit="s", low=0, high=65535, attribute="heartbeat",
        doc="The heartbeat interval the server proposes, whole seconds; 0 for none."),
    Key(name="frame_max", kind="size", default="131072", unit="bytes", low=0, high=2**32 - 1,
        attribute="frame_max", doc="The largest frame the server proposes, at least 4096; 0 for no limit."),
    Key(name="initial_frame_max", kind="size", default="8192", unit="bytes", low=4096, high=2**32 - 1,
        attribute="initial_frame_max",
        doc="The largest frame before `connection.tune-ok`. RabbitMQ's default is 4096, which long tokens "
        "as passwords do not fit."),
    Key(name="channel_max", kind="int", default="2047", low=0, high=65535, attribute="channel_max",
        doc="Channels per connection that the server proposes; 0 for no limit but the protocol's."),
    Key(name="max_channels_per_connection", kind="int", default="", low=0, high=65535,
        attribute="channel_max", doc="Another name of `channel_max`."),
    Key(name="channel_max_per_node", kind="limit", default="infinity", low=0,
        attribute="channel_max_per_node", doc="Channels open at once on the whole broker."),
    Key(name="connection_max", kind="limit", default="infinity", low=0, attribute="connection_max",
        doc="Connections open at once on the whole broker."),
    Key(name="max_connections", kind="limit", default="", low=0, attribute="connection_max",
        doc="Another name of `connection_max`."),
    Key(name="consumer_max_per_channel", kind="limit", default="infinity", low=1,
        attribute="consumer_max_per_channel", doc="Consumers on one channel."),
    Key(name="vhost_max", kind="limit", default="infinity", low=0, attribute="vhost_max",
        doc="Virtual hosts on the broker."),
    Key(name="cluster_queue_limit", kind="limit", default=str(QUEUES), low=0, attribute="cluster_queue_limit",
        doc="Queues on the broker; those that are there already stay. RabbitMQ's default is no limit."),
    Key(name="cluster_exchange_limit", kind="limit", default=str(EXCHANGES), low=0,
        attribute="cluster_exchange_limit",
        doc="Exchanges on the broker, those that every virtual host has included. RabbitMQ's default is no limit."),
    Key(name="limits.argument_bytes", kind="size", default=str(ARGUMENT_OCTETS), unit="bytes", low=1024,
        attribute="argument_octets", origin="Leveret",
        doc="Encoded size of the arguments of one queue, exchange, binding or consumer; a declaration with larger ones "
        "is refused with 406 PRECONDITION_FAILED."),
    Key(name="limits.unsent_bytes", kind="amount", default="", unit="bytes", low=1048576,
        attribute="unsent_octets", origin="Leveret",
        doc="Octets that may wait for all clients together because they do not read; beyond it the one for whom most "
        "waits is cut. A quarter of the memory limit by default, and at least 16 MiB."),
    Key(name="max_message_size", kind="size", default="134217728", unit="bytes", low=0, high=MAX_MESSAGE_SIZE,
        attribute="max_message_size", doc="The largest message body."),
    Key(name="vm_memory_high_watermark.relative", kind="fraction", default="0.4", attribute="memory_relative",
        doc="Share of the machine's (or the container's) memory that the broker may use before it blocks "
        "publishers; 0 blocks them at once."),
    Key(name="vm_memory_high_watermark.absolute", kind="amount", default="", unit="bytes", low=0,
        attribute="memory_absolute", doc="The same as a number of bytes; it goes before the share."),
    Key(name="vm_memory_high_watermark_paging_ratio", kind="fraction", default="0.5",
        attribute="storage.paging_ratio",
        doc="Share of the memory limit that messages may take before queues are asked to page to disk."),
    Key(name="disk_free_limit.absolute", kind="amount", default="50MB", unit="bytes", low=0,
        attribute="disk_free_limit",
        doc="Free room on the disk of the data directory below which publishers are blocked. Room that deleted "
        "messages have left in the files counts as free."),
    Key(name="disk_free_limit.relative", kind="fraction", default="", high=1000, attribute="disk_free_relative",
        doc="The same in relation to the machine's memory; it goes before the number of bytes."),
    # The disk.
    Key(name="queue_index_embed_msgs_below", kind="size", default="4096", unit="bytes", low=0,
        attribute="storage.embed_below",
        doc="Persistent messages are written into the blocks of each of their queues up to this size (times the "
        "number of queues), and once apart from them from it on."),
    Key(name="queue_index_segment_entry_count", kind="int", default="2048", low=1, high=2**20,
        attribute="storage.segment",
        doc="Positions in a queue that are moved to and from disk together at most."),
    Key(name="queue_index_max_journal_entries", kind="int", default="32768", low=1, high=2**31 - 1,
        attribute="storage.max_journal_records",
        doc="Copies of persistent messages that wait for their commit at most: with as many it begins at once, "
        "whatever `storage.commit_interval` says, and publishers are not read until it is done."),
    Key(name="msg_store_io_batch_size", kind="int", default="256", low=1, high=2**20,
        attribute="storage.io_batch",
        doc="Positions that leave memory together at least. RabbitMQ's default is 4096."),
    Key(name="storage.blob_threshold", kind="size", default="4194304", unit="bytes", low=65536,
        attribute="storage.file_from", origin="Leveret",
        doc="Persistent messages from this size on are kept in files of their own."),
    Key(name="storage.commit_interval", kind="duration", default="2ms", unit="ms", low=0,
        attribute="storage.commit_interval", origin="Leveret",
        doc="Time between two commits under load. An idle broker commits at once, and one that becomes idle before it "
        "is over, if it is longer than that."),
    Key(name="storage.early_confirm", kind="bool", default="true", attribute="storage.early_confirm",
        origin="Leveret",
        doc="`false`: messages that are consumed before their commit are written nevertheless, and confirmed "
        "after it, as RabbitMQ 3.6 did; for measurements."),
    Key(name="storage.ram_limit", kind="size", default="134217728", unit="bytes", low=1048576,
        attribute="storage.ram_limit", origin="Leveret",
        doc="Memory that the messages of all queues may take before they are paged to disk; a single queue may "
        "take a quarter of it at once. Never more than the share of the memory limit that "
        "`vm_memory_high_watermark_paging_ratio` allows."),
    Key(name="storage.target_ram_count", kind="limit", default="infinity", low=0,
        attribute="storage.target_ram_count", origin="Leveret",
        doc="Messages that each queue may have in memory; for tests and measurements of paging."),
    Key(name="storage.check_invariants", kind="bool", default="false", attribute="storage.check_invariants",
        origin="Leveret", doc="Check every queue after every step, which is slow; for tests."),
    Key(name="storage.garbage_fraction", kind="fraction", default="0.5", attribute="storage.garbage_fraction",
        origin="Leveret",
        doc="Share of the data file that holds nothing any more above which a start makes it small again, if it "
        "has more than 64 MiB, and a broker at work gives the disk back what has been unused for ten minutes; 1 for "
        "never."),
    Key(name="storage.sync", kind="bool", default="true", attribute="storage.sync", origin="Leveret",
        doc="`false`: do not flush commits. A power failure then loses confirmed messages and may destroy all "
        "data; for measurements only."),
    Key(name="consumer_timeout", kind="duration", default="1800000", unit="ms", low=0,
        attribute="consumer_timeout",
        doc="How long a delivery may wait for its ack before its channel is closed, where neither the queue nor the "
        "consumer says otherwise (`x-consumer-timeout`); `0` for ever."),
    # Who may come in.
    Key(name="loopback_users", kind="choice", default="", choices=("none",),
        doc="`none` lets every user connect from anywhere."),
    Key(name="loopback_users.$name", kind="bool", default="guest",
        doc="`true`: this user may only connect from the broker's own host. `guest` is one unless set to "
        "`false`."),
    Key(name="auth_mechanisms.$name", kind="choice", default="PLAIN, AMQPLAIN", choices=("PLAIN", "AMQPLAIN"),
        doc="A SASL mechanism to offer, `auth_mechanisms.1 = PLAIN` and so on; offered in the order of the "
        "numbers."),
    Key(name="auth.failure_delay", kind="duration", default="3s", unit="s", low=0,
        attribute="auth_failure_delay", origin="Leveret",
        doc="How long the socket of a refused login, and its place among `max_half_open`, is kept, so that guessing is "
        "slow; up to eight times as long for an address that fails again and again with one name."),
    Key(name="load_definitions", kind="path", default="", attribute="definitions",
        doc="A definitions file of RabbitMQ's or Leveret's, or a directory of `*.json`, that is imported at each start "
        "before clients may connect (docs/administration.md). The first user and virtual host are not made then."),
    Key(name="definitions.local.path", kind="path", default="", attribute="definitions",
        doc="Another name of `load_definitions`."),
    Key(name="definitions.import_backend", kind="choice", default="local_filesystem",
        choices=("local_filesystem",), doc="Where definitions come from."),
    Key(name="default_user", kind="string", default="guest", doc="Name of the first user."),
    Key(name="default_pass", kind="string", default="guest", secret=True, doc="Password of the first user."),
    Key(name="default_user_tags.$name", kind="bool", default="administrator",
        doc="`true` gives the first user this tag."),
    Key(name="default_permissions.configure", kind="string", default=".*",
        doc="What the first user may declare and delete: a regular expression on names."),
    Key(name="default_permissions.write", kind="string", default=".*",
        doc="What the first user may write to."),
    Key(name="default_permissions.read", kind="string", default=".*",
        doc="What the first user may read from."),
    Key(name="default_vhost", kind="string", default="/", doc="Name of the first virtual host."),
    Key(name="default_vhosts.$name.name", kind="string", default="", origin="Leveret",
        doc="One more virtual host, `default_vhosts.1.name = orders` and so on."),
    Key(name="default_users.$name.password", kind="string", default="", secret=True,
        doc="One more user, with this password."),
    Key(name="default_users.$name.tags", kind="string", default="", doc="Its tags, separated by commas."),
    Key(name="default_users.$name.vhost_pattern", kind="string", default="",
        doc="A regular expression: the virtual hosts this user has its permissions in; the default one "
        "if not set."),
    Key(name="default_users.$name.configure", kind="string", default=".*", doc="As for the first user."),
    Key(name="default_users.$name.write", kind="string", default=".*", doc="As for the first user."),
    Key(name="default_users.$name.read", kind="string", default=".*", doc="As for the first user."),
    Key(name="default_topic_permissions.$name.exchange", kind="string", default="", origin="Leveret",
        doc="Restricts a user's routing keys at this topic exchange, `default_topic_permissions.1.exchange = "
        "amq.topic` and so on; `set_topic_permissions` in RabbitMQ."),
    Key(name="default_topic_permissions.$name.user", kind="string", default="", origin="Leveret",
        doc="The user; the first one if not set."),
    Key(name="default_topic_permissions.$name.vhost", kind="string", default="", origin="Leveret",
        doc="The virtual host of the exchange; the first one if not set."),
    Key(name="default_topic_permissions.$name.write", kind="string", default=".*", origin="Leveret",
        doc="The keys the user may publish with: a regular expression, in which `{username}` and `{vhost}` "
        "stand for the names."),
    Key(name="default_topic_permissions.$name.read", kind="string", default=".*", origin="Leveret",
        doc="The keys the user may bind with."),
    Key(name="limits.cc_keys", kind="int", default="1000", low=0, attribute="cc_keys", origin="Leveret",
        doc="Keys that the headers `CC` and `BCC` of one message may have together; a publish with more closes its "
        "channel (406)."),
    Key(name="limits.exchange_hops", kind="int", default="10000", low=0, attribute="exchange_hops", origin="Leveret",
        doc="Exchanges beyond the first that one message may pass by bindings between exchanges, times the number of "
        "its routing keys; a publish that would pass more closes its channel (406)."),
    Key(name="limits.vhost.$name.max_connections", kind="limit", default="infinity", low=0, origin="Leveret",
        doc="Connections to one virtual host; `set_vhost_limits` in RabbitMQ."),
    Key(name="limits.vhost.$name.max_queues", kind="limit", default="infinity", low=0, origin="Leveret",
        doc="Queues in one virtual host; `set_vhost_limits` in RabbitMQ."),
    Key(name="limits.deaths", kind="int", default="256", low=100, attribute="most_deaths", origin="Leveret",
        doc="Entries of the header `x-death` that a dead letter has at most; the newest are kept. A cycle of more "
        "queues is not noticed."),
    Key(name="limits.vhost.$name.max_bindings", kind="limit", default=str(BINDINGS), low=0, origin="Leveret",
        doc="Bindings in one virtual host. It is not stored: what the configuration says at a start counts."),
    Key(name="default_limits.vhosts.$name.pattern", kind="string", default=".*",
        doc="Limits of every virtual host that is new from then on and whose name this regular expression matches, "
        "`default_limits.vhosts.1.pattern = ^test` and so on; the first that matches counts."),
    Key(name="default_limits.vhosts.$name.max_connections", kind="limit", default="infinity", low=-1,
        doc="Connections to such a virtual host; `-1` for no limit."),
    Key(name="default_limits.vhosts.$name.max_queues", kind="limit", default="infinity", low=-1,
        doc="Queues in such a virtual host; `-1` for no limit."),
    Key(name="limits.user.$name.max_connections", kind="limit", default="infinity", low=0, origin="Leveret",
        doc="Connections of one user; `set_user_limits` in RabbitMQ."),
    Key(name="limits.user.$name.max_channels", kind="limit", default="infinity", low=0, origin="Leveret",
        doc="Channels of one user; `set_user_limits` in RabbitMQ."),
    # What is confirmed, and the switches for what RabbitMQ 4 changed.
    Key(name="confirm.mode", kind="choice", default="standard",
        choices=("standard", "consumer-ack", "consumer-ack-light"), origin="Leveret", attribute="confirm_mode",
        doc="When a publisher is told that its message has arrived, by queues for which neither their argument "
        "`x-confirm-mode` nor a policy's `confirm-mode` says it: when the broker has it, or when a consumer has "
        "acknowledged it (docs/confirms.md)."),
    Key(name="confirm.timeout", kind="duration", default="0", unit="ms", low=0, origin="Leveret",
        attribute="confirm_timeout",
        doc="How long a publish may be without a verdict before it is nacked, whatever becomes of it later; `0` for "
        "ever. It is looked at about once a second."),
    Key(name="compatibility.frame_min", kind="size", default="4096", unit="bytes", low=4096, high=131072,
        attribute="compatibility.frame_min", origin="Leveret",
        doc="The smallest `frame_max` a client may ask for; 8192 is RabbitMQ 4's."),
    Key(name="compatibility.topic_max_hash", kind="int", default="0", low=0,
        attribute="compatibility.topic_max_hash", origin="Leveret",
        doc="The most `#` words in one topic binding key; 0 for any number."),
    Key(name="compatibility.transient_nonexcl_queues", kind="choice", default="permitted",
        choices=("permitted", "denied"), attribute="compatibility.transient_nonexcl_queues", origin="Leveret",
        doc="Queues that are neither durable nor exclusive, which RabbitMQ 4 deprecates."),
    Key(name="compatibility.global_qos", kind="choice", default="permitted", choices=("permitted", "ignored"),
        attribute="compatibility.global_qos", origin="Leveret",
        doc="`basic.qos` with `global`, a limit per channel, which RabbitMQ 4 deprecates."),
    Key(name="compatibility.passive_declare", kind="choice", default="any-permission",
        choices=("any-permission", "open"), attribute="compatibility.passive_declare", origin="Leveret",
        doc="Who may declare a queue or an exchange passively, and so learn whether it exists and how many messages it "
        "has: users with any permission (configure, write or read) for its name, as in RabbitMQ 4.2.7, or, by `open`, "
        "every user of the virtual host, as in RabbitMQ 3."),
    Key(name="compatibility.python_patterns", kind="bool", default="false",
        attribute="compatibility.python_patterns", origin="Leveret",
        doc="Have Python's `re` take patterns of permissions and policies that RE2 refuses (docs/administration.md). "
        "Names come from clients, and for some names such a pattern may hold the broker for minutes."),
    # Watching.
    Key(name="prometheus.enabled", kind="bool", default="true", attribute="prometheus.enabled", origin="Leveret",
        doc="Answer HTTP requests for metrics (docs/metrics.md) and health. RabbitMQ has a plugin to enable instead."),
    Key(name="prometheus.tcp.port", kind="int", default="15692", low=0, high=65535, attribute="prometheus.port",
        doc="The port for that; 0 picks a free one. If it cannot be had the broker starts without, as long as port and "
        "address are the defaults; if one of them is another, it does not start."),
    Key(name="prometheus.tcp.ip", kind="string", default="127.0.0.1", attribute="prometheus.host",
        doc="The address for that. RabbitMQ's default is all interfaces; here there is no login, so mind who can "
        "reach it. With another one than the default the port has to be free."),
    Key(name="prometheus.return_per_object_metrics", kind="bool", default="false",
        attribute="prometheus.per_object",
        doc="Have `/metrics` tell queues, channels and connections apart, as `/metrics/per-object` does."),
    # The process.
    Key(name="data_dir", kind="path", default="var", attribute="data_dir", origin="Leveret",
        doc="Where the broker keeps its data; one broker at a time."),
    Key(name="pid_file", kind="path", default="", attribute="pid_file", origin="Leveret",
        doc="Holds the process id from when clients may connect until the end."),
    Key(name="debug.slow_step", kind="duration", default="50ms", unit="ms", low=0, attribute="slow_step",
        origin="Leveret",
        doc="Processor time in one step of the event loop, during which nobody else is served, from which the step is "
        "logged with what it was; `0` for never."),
    Key(name="node_name", kind="string", default="", attribute="node_name", origin="Leveret",
        doc="The name of this broker; `rabbit@` and the host's name by default."),
    Key(name="cluster_name", kind="string", default="", attribute="cluster_name",
        doc="The name clients see in the server properties; the node's name by default."),
    Key(name="export.dir", kind="path", default="", attribute="export.dir", origin="Leveret",
        doc="Where the broker writes down what it does, as files for analysis (docs/export.md); nowhere by default."),
    Key(name="export.interval", kind="duration", default="5s", unit="s", low=1, attribute="export.interval",
        origin="Leveret", doc="Time between two looks at everything, for `export.dir`."),
    Key(name="export.rotate_interval", kind="duration", default="60s", unit="s", low=1,
        attribute="export.rotate_interval", origin="Leveret",
        doc="Time after which a file of the export is finished, and readers can see it."),
    Key(name="export.rotate_size", kind="size", default="67108864", unit="bytes", low=1024,
        attribute="export.rotate_size", origin="Leveret", doc="Size from which it is finished earlier."),
    Key(name="export.retention", kind="duration", default="7d", unit="s", low=0, attribute="export.retention",
        origin="Leveret",
        doc="How long files of the export are kept, to the day; `0` for ever. Only those of this node are removed."),
    *_log_keys(),
)  # fmt: skip
