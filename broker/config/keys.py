"""The configuration keys by topic: one row per key, the source of parsing, checks and docs/configuration.md.

A name may contain one ``$name``, a placeholder for a name that the administrator chooses (a listener, a user, a virtual
host). RabbitMQ's keys that are not here are in `broker.config.foreign_keys`.
"""

from typing import Final

from leveret.broker.config import backend_keys, tls_keys
from leveret.broker.config.key import Key, Topic
from leveret.broker.config.replication_keys import REPLICATION
from leveret.broker.vhost.object_limits import ARGUMENT_OCTETS, BINDINGS, EXCHANGES, QUEUES

__all__ = ["KEYS", "LEVELS", "MAX_MESSAGE_SIZE", "TOPICS", "Key", "Topic"]

LEVELS: Final = (
    "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency", "none",
)  # fmt: skip
MAX_MESSAGE_SIZE: Final = 512 * 1024 * 1024


def _log_keys() -> tuple[Key, ...]:
    """Return the keys of the two log outputs, which have the same structure."""
    rows: list[Key] = [
        Key(name="log.console", kind="bool", default="true", attribute="log.console",
            doc="Log to the console. RabbitMQ's default is false."),
        Key(name="log.console.stdio", kind="choice", default="stdout", choices=("stdout", "stderr"),
            attribute="log.console_stream", doc="Stream of the console log."),
        Key(name="log.file", kind="file", default="false",
            doc="Log file, relative to `log.dir`; `false` for none. SIGHUP reopens it."),
        Key(name="log.dir", kind="path", default="", doc="Directory of a relative `log.file`; "
            "the directory `log` in the data directory by default."),
    ]  # fmt: skip
    rows += [
        Key(name="log.file.rotation.size", kind="size", default="0", unit="bytes", low=0,
            attribute="log.rotation_size",
            doc="Size at which the file is rotated (renamed to `.0`, an older `.0` to `.1`); `0` for no limit."),
        Key(name="log.file.rotation.date", kind="moment", default="", attribute="log.rotation_date",
            doc="Times at which it is rotated: `$D0` at midnight, `$D23` at 23:00, `$W0D23` on Sundays at 23:00, "
            "`$M1D0` at the beginning of each month, `$H30` at half past each hour; local time."),
        Key(name="log.file.rotation.count", kind="int", default="5", low=0, high=1000,
            attribute="log.rotation_count", doc="Number of rotated files that are kept. RabbitMQ's default is 0."),
        Key(name="log.file.rotation.compress", kind="bool", default="false", attribute="log.rotation_compress",
            doc="Compress rotated files (`.0.gz`)."),
    ]  # fmt: skip
    for output in ("console", "file"):
        rows += [
            Key(name=f"log.{output}.level", kind="choice", default="info", choices=LEVELS,
                attribute=f"log.{output}_level", doc=f"Lowest severity that is logged to the {output}."),
            Key(name=f"log.{output}.formatter", kind="choice", default="plaintext",
                choices=("plaintext", "json"), attribute=f"log.{output}_formatter",
                doc=f"Format of the lines that are logged to the {output}."),
        ]  # fmt: skip
    rows += [
        Key(name=f"log.{category}.level", kind="choice", default="", choices=LEVELS,
            doc=f"Lowest severity of the category `{category}` that is logged; "
            "the levels of the outputs by default.")
        for category in ("default", "connection", "channel", "queue")
    ]  # fmt: skip
    return tuple(rows)


_AUDIT: Final[tuple[Key, ...]] = (
    Key(name="log.audit.file", kind="file", default="false", origin="Leveret",
        doc="File of the audit log, relative to `log.dir`; `false` for none. SIGHUP reopens it."),
    Key(name="log.audit.objects", kind="choice", default="durable", choices=("durable", "all", "none"),
        attribute="audit.objects", origin="Leveret",
        doc="Queues and exchanges whose declaration, deletion and bindings by clients are recorded: the durable ones, "
        "all, or none. Changes by the management API and `leveret ctl` are always recorded."),
    Key(name="log.audit.required", kind="bool", default="false", attribute="audit.required", origin="Leveret",
        doc="`true`: while the audit log cannot be written, the management API and `leveret ctl` change "
        "nothing (503)."),
    Key(name="log.audit.rotation.size", kind="size", default="16777216", unit="bytes", low=0,
        attribute="audit.rotation_size", origin="Leveret",
        doc="Size at which the file is rotated; `0` for no limit, as with a date."),
    Key(name="log.audit.rotation.date", kind="moment", default="", attribute="audit.rotation_date", origin="Leveret",
        doc="Times at which it is rotated, as for `log.file.rotation.date`."),
    Key(name="log.audit.rotation.count", kind="int", default="10", low=0, high=1000,
        attribute="audit.rotation_count", origin="Leveret", doc="Number of rotated files that are kept."),
    Key(name="log.audit.rotation.compress", kind="bool", default="false", attribute="audit.rotation_compress",
        origin="Leveret", doc="Compress rotated files (`.0.gz`)."),
)  # fmt: skip

_EVENTS: Final[tuple[Key, ...]] = (
    Key(name="event_exchange.enabled", kind="bool", default="false", attribute="events.enabled", origin="Leveret",
        doc="Publish events of the broker to the topic exchange `amq.rabbitmq.event`, as RabbitMQ does with its "
        "plugin rabbitmq_event_exchange ([events](howto/limits-and-audit.md#get-events-as-messages))."),
    Key(name="event_exchange.vhost", kind="string", default="", attribute="events.vhost",
        doc="Virtual host of that exchange, created at the start if there is none; by default `default_vhost`."),
)  # fmt: skip

_DELEGATION: Final[tuple[Key, ...]] = (
    Key(name="shovel.enabled", kind="bool", default="true", attribute="shovel.enabled", origin="Leveret",
        doc="`false`: no shovel runs. Their definitions are kept and can be changed "
        "([when the broker hangs at the start](howto/troubleshooting.md#a-shovel-holds-the-start))."),
    Key(name="shovel.certificate_dir", kind="path", default="", attribute="shovel.certificate_dir", origin="Leveret",
        doc="Directory of the certificate files that URIs of shovels may name if they are set by users who are no "
        "administrators; by default these may name none."),
    Key(name="shovel.local_rights", kind="choice", default="setter", choices=("setter", "all"),
        attribute="shovel.local_rights", origin="Leveret",
        doc="Rights of a shovel within this broker if its URI has no password: those of the user who has set it "
        "(an administrator has all), or, as in RabbitMQ, always all."),
    Key(name="policies.rerouting", kind="choice", default="policymaker", choices=("policymaker", "administrator"),
        attribute="rerouting", origin="Leveret",
        doc="Tag that a user needs to set policies with `dead-letter-exchange`, `dead-letter-routing-key` or "
        "`alternate-exchange`, which send messages elsewhere whatever the user may read ([security](security.md))."),
)  # fmt: skip

_LISTENERS: Final[tuple[Key, ...]] = (
    Key(name="listeners.tcp", kind="choice", default="", choices=("none",),
        doc="`none` disables all AMQP listeners."),
    Key(name="listeners.tcp.$name", kind="listener", default="127.0.0.1:5672",
        doc="An AMQP listener: `port` (all interfaces), `host:port` or `[ipv6]:port`; port 0 chooses a free port. "
        "Several names configure several listeners. RabbitMQ's default is all interfaces."),
    Key(name="proxy_protocol", kind="bool", default="false", attribute="proxy_protocol",
        doc="Every AMQP connection begins with a header of the PROXY protocol (version 1 or 2) with the client's "
        "address, also before TLS. Restrict access to the listeners to proxies then: others can claim any address."),
    Key(name="tcp_listen_options.backlog", kind="int", default="128", low=1, high=65535, attribute="backlog",
        doc="Maximum number of connections that wait to be accepted."),
    Key(name="tcp_listen_options.nodelay", kind="bool", default="true", attribute="nodelay",
        doc="Disable Nagle's algorithm (`TCP_NODELAY`)."),
    Key(name="tcp_listen_options.keepalive", kind="bool", default="false", attribute="keepalive",
        doc="Enable TCP keepalives."),
    Key(name="tcp_listen_options.sndbuf", kind="size", default="", unit="bytes", low=1, attribute="sndbuf",
        doc="Size of the socket's send buffer; the operating system's default if not set."),
    Key(name="tcp_listen_options.recbuf", kind="size", default="", unit="bytes", low=1, attribute="recbuf",
        doc="Size of the socket's receive buffer; the operating system's default if not set."),
    Key(name="tcp_listen_options.linger.on", kind="bool", default="true", attribute="linger",
        doc="Connections that the broker closes end with a TCP reset, so that the client's next write fails; `false`: "
        "they are closed normally."),
    Key(name="tcp_listen_options.linger.timeout", kind="seconds", default="0", unit="s", low=0,
        attribute="linger_timeout",
        doc="How long the last bytes may take to be acknowledged before that reset; `0` means 5 s."),
    Key(name="tcp_listen_options.send_timeout", kind="duration", default="30000", unit="ms", low=1,
        attribute="send_timeout",
        doc="Disconnect a client that has not read any of its pending data for this long, whether it sends heartbeats "
        "or not."),
    Key(name="tcp_listen_options.send_timeout_close", kind="bool", default="true", attribute="send_timeout_close",
        doc="`false`: do not disconnect such clients."),
)  # fmt: skip

_CONNECTIONS: Final[tuple[Key, ...]] = (
    Key(name="handshake_timeout", kind="duration", default="10000", unit="ms", low=0, attribute="handshake_timeout",
        doc="Time limit from the TCP connection to `connection.open`."),
    Key(name="max_half_open", kind="int", default="1024", low=2, attribute="max_half_open", origin="Leveret",
        doc="Maximum number of connections that have not completed `connection.open`; further ones wait to be "
        "accepted. At most a quarter of the file descriptors."),
    Key(name="max_half_open_per_address", kind="int", default="", low=1, attribute="max_half_open_per_address",
        origin="Leveret",
        doc="The same limit for one address (for IPv6, one /64 network); half of `max_half_open` by default."),
    Key(name="heartbeat", kind="seconds", default="60", unit="s", low=0, high=65535, attribute="heartbeat",
        doc="Heartbeat interval that the server proposes, in whole seconds; 0 disables heartbeats."),
    Key(name="frame_max", kind="size", default="131072", unit="bytes", low=0, high=2**32 - 1, attribute="frame_max",
        doc="Largest frame that the server proposes, at least 4096; 0 for no limit."),
    Key(name="initial_frame_max", kind="size", default="8192", unit="bytes", low=4096, high=2**32 - 1,
        attribute="initial_frame_max",
        doc="Largest frame before `connection.tune-ok`. RabbitMQ's default is 4096, which is too small for long "
        "tokens used as passwords."),
    Key(name="channel_max", kind="int", default="2047", low=0, high=65535, attribute="channel_max",
        doc="Channels per connection that the server proposes; 0 for the protocol's maximum."),
    Key(name="max_channels_per_connection", kind="int", default="", low=0, high=65535, attribute="channel_max",
        doc="Another name of `channel_max`."),
    Key(name="consumer_timeout", kind="duration", default="1800000", unit="ms", low=0, attribute="consumer_timeout",
        doc="Close a channel with 406 PRECONDITION_FAILED if a delivery is not acknowledged within this time; `0` for "
        "no limit. The argument `x-consumer-timeout` of a queue or a consumer overrides it."),
)  # fmt: skip

_LIMITS: Final[tuple[Key, ...]] = (
    Key(name="connection_max", kind="limit", default="infinity", low=0, attribute="connection_max",
        doc="Open connections on the broker."),
    Key(name="max_connections", kind="limit", default="", low=0, attribute="connection_max",
        doc="Another name of `connection_max`."),
    Key(name="connection_max_publish_rate", kind="limit", default="infinity", low=1,
        attribute="connection_max_publish_rate", origin="Leveret",
        doc="Messages that one connection may publish per second: a connection that is faster is read more slowly "
        "([publish limits](howto/limits-and-audit.md#limit-how-fast-clients-publish))."),
    Key(name="connection_max_publish_bytes", kind="amount", default="", unit="bytes", low=1,
        attribute="connection_max_publish_bytes", origin="Leveret",
        doc="Bytes per second that are read from one connection that publishes; no limit if not set."),
    Key(name="channel_max_per_node", kind="limit", default="infinity", low=0, attribute="channel_max_per_node",
        doc="Open channels on the broker."),
    Key(name="consumer_max_per_channel", kind="limit", default="infinity", low=1,
        attribute="consumer_max_per_channel",
        doc="Consumers on one channel."),
    Key(name="vhost_max", kind="limit", default="infinity", low=0, attribute="vhost_max",
        doc="Virtual hosts on the broker."),
    Key(name="cluster_queue_limit", kind="limit", default=str(QUEUES), low=0, attribute="cluster_queue_limit",
        doc="Queues on the broker; existing queues are kept. RabbitMQ's default is no limit."),
    Key(name="cluster_exchange_limit", kind="limit", default=str(EXCHANGES), low=0,
        attribute="cluster_exchange_limit",
        doc="Exchanges on the broker, including the predeclared ones of each virtual host. RabbitMQ's default is no "
        "limit."),
    Key(name="max_message_size", kind="size", default="134217728", unit="bytes", low=0, high=MAX_MESSAGE_SIZE,
        attribute="max_message_size",
        doc="Largest message body."),
    Key(name="limits.argument_bytes", kind="size", default=str(ARGUMENT_OCTETS), unit="bytes", low=1024,
        attribute="argument_octets", origin="Leveret",
        doc="Encoded size of the arguments of one queue, exchange, binding or consumer; a declaration with larger "
        "arguments is refused with 406 PRECONDITION_FAILED."),
    Key(name="limits.unsent_bytes", kind="amount", default="", unit="bytes", low=1048576, attribute="unsent_octets",
        origin="Leveret",
        doc="Bytes queued for all clients together because they do not read, those of the management API included; "
        "above it, the client with the most pending bytes is disconnected. By default a quarter of the memory "
        "limit, at least 16 MiB."),
    Key(name="limits.cc_keys", kind="int", default="1000", low=0, attribute="cc_keys", origin="Leveret",
        doc="Routing keys in the headers `CC` and `BCC` of one message together; a publish with more closes its "
        "channel with 406 PRECONDITION_FAILED."),
    Key(name="limits.exchange_hops", kind="int", default="10000", low=0, attribute="exchange_hops", origin="Leveret",
        doc="Exchanges that one message may pass through by exchange-to-exchange bindings, beyond the first, times "
        "the number of its routing keys; a publish that would exceed it closes its channel with 406 "
        "PRECONDITION_FAILED."),
    Key(name="limits.deaths", kind="int", default="256", low=100, attribute="most_deaths", origin="Leveret",
        doc="Entries of the header `x-death` in a dead letter; only the newest are kept. A dead-letter cycle of more "
        "queues than that, or than 255, is not detected."),
    Key(name="limits.vhost.$name.max_connections", kind="limit", default="infinity", low=0, origin="Leveret",
        doc="Connections to one virtual host; `rabbitmqctl set_vhost_limits` in RabbitMQ."),
    Key(name="limits.vhost.$name.max_queues", kind="limit", default="infinity", low=0, origin="Leveret",
        doc="Queues in one virtual host; `rabbitmqctl set_vhost_limits` in RabbitMQ."),
    Key(name="limits.vhost.$name.max_bindings", kind="limit", default=str(BINDINGS), low=0, origin="Leveret",
        doc="Bindings in one virtual host. Not stored: the value in the configuration at the start applies."),
    Key(name="default_limits.vhosts.$name.pattern", kind="string", default=".*",
        doc="Regular expression for the names of virtual hosts that get the following limits when they are created, "
        "`default_limits.vhosts.1.pattern = ^test` and so on; the first match applies."),
    Key(name="default_limits.vhosts.$name.max_connections", kind="limit", default="infinity", low=-1,
        doc="Connections to such a virtual host; `-1` for no limit."),
    Key(name="default_limits.vhosts.$name.max_queues", kind="limit", default="infinity", low=-1,
        doc="Queues in such a virtual host; `-1` for no limit."),
    Key(name="limits.user.$name.max_connections", kind="limit", default="infinity", low=0, origin="Leveret",
        doc="Connections of one user; `rabbitmqctl set_user_limits` in RabbitMQ."),
    Key(name="limits.user.$name.max_channels", kind="limit", default="infinity", low=0, origin="Leveret",
        doc="Channels of one user; `rabbitmqctl set_user_limits` in RabbitMQ."),
    Key(name="limits.vhost.$name.max_publish_rate", kind="limit", default="infinity", low=1, origin="Leveret",
        doc="As `connection_max_publish_rate`, for all connections to one virtual host together."),
    Key(name="limits.vhost.$name.max_publish_bytes", kind="amount", default="", unit="bytes", low=1,
        origin="Leveret",
        doc="As `connection_max_publish_bytes`, for all connections to one virtual host together."),
    Key(name="default_limits.vhosts.$name.max_publish_rate", kind="limit", default="infinity", low=1, origin="Leveret",
        doc="As `connection_max_publish_rate`, for all connections to such a virtual host together."),
    Key(name="default_limits.vhosts.$name.max_publish_bytes", kind="amount", default="", unit="bytes", low=1,
        origin="Leveret",
        doc="As `connection_max_publish_bytes`, for all connections to such a virtual host together."),
    Key(name="limits.user.$name.max_publish_rate", kind="limit", default="infinity", low=1, origin="Leveret",
        doc="As `connection_max_publish_rate`, for all connections of one user together."),
    Key(name="limits.user.$name.max_publish_bytes", kind="amount", default="", unit="bytes", low=1,
        origin="Leveret",
        doc="As `connection_max_publish_bytes`, for all connections of one user together."),
)  # fmt: skip

_USERS: Final[tuple[Key, ...]] = (
    Key(name="default_user", kind="string", default="guest",
        doc="Name of the first user."),
    Key(name="default_pass", kind="string", default="guest", secret=True,
        doc="Password of the first user."),
    Key(name="default_user_tags.$name", kind="bool", default="administrator",
        doc="`true` gives the first user this tag."),
    Key(name="default_permissions.configure", kind="string", default=".*",
        doc="Names that the first user may declare and delete: a regular expression."),
    Key(name="default_permissions.write", kind="string", default=".*",
        doc="Names that the first user may write to: a regular expression."),
    Key(name="default_permissions.read", kind="string", default=".*",
        doc="Names that the first user may read from: a regular expression."),
    Key(name="default_vhost", kind="string", default="/",
        doc="Name of the first virtual host."),
    Key(name="default_vhosts.$name.name", kind="string", default="", origin="Leveret",
        doc="Name of an additional virtual host, `default_vhosts.1.name = orders` and so on."),
    Key(name="default_users.$name.password", kind="string", default="", secret=True,
        doc="Creates an additional user with this password."),
    Key(name="default_users.$name.tags", kind="string", default="",
        doc="The user's tags, separated by commas."),
    Key(name="default_users.$name.vhost_pattern", kind="string", default="",
        doc="Regular expression for the virtual hosts in which the user has permissions; the default virtual host if "
        "not set."),
    Key(name="default_users.$name.configure", kind="string", default=".*",
        doc="As for the first user."),
    Key(name="default_users.$name.write", kind="string", default=".*",
        doc="As for the first user."),
    Key(name="default_users.$name.read", kind="string", default=".*",
        doc="As for the first user."),
    Key(name="default_topic_permissions.$name.exchange", kind="string", default="", origin="Leveret",
        doc="Restricts a user's routing keys at this topic exchange, `default_topic_permissions.1.exchange = "
        "amq.topic` and so on; `rabbitmqctl set_topic_permissions` in RabbitMQ."),
    Key(name="default_topic_permissions.$name.user", kind="string", default="", origin="Leveret",
        doc="The user; the first user if not set."),
    Key(name="default_topic_permissions.$name.vhost", kind="string", default="", origin="Leveret",
        doc="The virtual host of the exchange; the first one if not set."),
    Key(name="default_topic_permissions.$name.write", kind="string", default=".*", origin="Leveret",
        doc="Routing keys that the user may publish with: a regular expression, in which `{username}` and `{vhost}` "
        "are replaced by the names."),
    Key(name="default_topic_permissions.$name.read", kind="string", default=".*", origin="Leveret",
        doc="Routing keys that the user may bind with."),
    Key(name="loopback_users", kind="choice", default="", choices=("none",),
        doc="`none` allows every user to connect from any host."),
    Key(name="loopback_users.$name", kind="bool", default="guest",
        doc="`true`: this user may connect from the broker's own host only. This applies to `guest` unless it is set "
        "to `false`."),
    Key(name="auth_mechanisms.$name", kind="choice", default="PLAIN, AMQPLAIN",
        choices=("PLAIN", "AMQPLAIN", "EXTERNAL", "ANONYMOUS"),
        doc="A SASL mechanism to offer, `auth_mechanisms.1 = PLAIN` and so on, in the order of the numbers. "
        "`EXTERNAL`, by the certificate of the client, is offered with TLS only; it needs "
        "`ssl_options.verify = verify_peer`."),
    Key(name="anonymous_login_user", kind="user", default="none", attribute="anonymous_user",
        doc="User of clients that log in by the mechanism `ANONYMOUS`, without a password; `none` allows nobody to. "
        "RabbitMQ 4 has `guest` by default. Set, it is offered unless `auth_mechanisms.*` says otherwise."),
    Key(name="auth.failure_delay", kind="duration", default="3s", unit="s", low=0, attribute="auth_failure_delay",
        origin="Leveret",
        doc="How long the socket of a failed login is kept open, with its place in `max_half_open`, to slow down "
        "password guessing; up to eight times as long for an address that fails repeatedly with one user name."),
    Key(name="credential_validator.validation_backend", kind="string", default="",
        attribute="credentials.validator",
        doc="Rule for new passwords, those of the first users included; hashes are not checked. `accept_everything` "
        "(the default), `min_length`, `regexp`, or the names of RabbitMQ's modules for these."),
    Key(name="credential_validator.min_length", kind="int", default="", low=0, high=1024,
        attribute="credentials.min_length",
        doc="Least number of bytes of a password, with the rule `min_length`."),
    Key(name="credential_validator.regexp", kind="string", default="", attribute="credentials.regexp",
        doc="Regular expression that a password must match, with the rule `regexp`; as for permissions, RE2's."),
    Key(name="password_hashing_module", kind="string", default="rabbit_password_hashing_sha256",
        attribute="credentials.hashing",
        doc="Hash algorithm of new passwords: `rabbit_password_hashing_sha256` or `rabbit_password_hashing_sha512`. "
        "Present hashes keep theirs, and can be used as before."),
    Key(name="config_entry_decoder.passphrase", kind="string", default="", secret=True,
        doc="Passphrase for values that begin with `encrypted:`, as `leveret config encrypt` and `rabbitmqctl encode` "
        "make them; best set by the environment (`LEVERET_CONFIG_ENTRY_DECODER_PASSPHRASE`). In RabbitMQ 3 it is set "
        "in advanced.config."),
    Key(name="config_entry_decoder.passphrase_file", kind="path", default="", origin="Leveret",
        doc="File with that passphrase."),
    Key(name="auth.max_failures", kind="limit", default="10", low=1, attribute="auth_max_failures", origin="Leveret",
        doc="Failed logins of one address (for IPv6, one /64 network) in `auth.failure_period` after which its logins "
        "are refused for as long: over HTTP with 429 and `Retry-After`, over AMQP as a wrong password. Users who have "
        "logged in from the address before, and addresses of the broker's own host, are not affected."),
    Key(name="auth.failure_period", kind="duration", default="60s", unit="s", low=1, attribute="auth_failure_period",
        origin="Leveret",
        doc="That period."),
    Key(name="load_definitions", kind="path", default="", attribute="definitions",
        doc="Definitions file of RabbitMQ or Leveret, or a directory of `*.json` files, imported at each start before "
        "clients can connect ([administration](administration.md#definitions)). The first user and virtual host are "
        "not created then."),
    Key(name="definitions.local.path", kind="path", default="", attribute="definitions",
        doc="Another name of `load_definitions`."),
    Key(name="management.load_definitions", kind="path", default="", attribute="definitions",
        doc="Another name of `load_definitions`."),
    Key(name="definitions.import_backend", kind="choice", default="local_filesystem", choices=("local_filesystem",),
        doc="Where definitions are imported from."),
)  # fmt: skip

_CONFIRMS: Final[tuple[Key, ...]] = (
    Key(name="confirm.mode", kind="choice", default="standard",
        choices=("standard", "consumer-ack", "consumer-ack-light"), origin="Leveret", attribute="confirm_mode",
        doc="Confirm mode of queues that have neither the argument `x-confirm-mode` nor a policy with `confirm-mode`. "
        "`standard`: confirm when the broker has the message; the other two: when a consumer has acknowledged it "
        "([confirms](confirms.md))."),
    Key(name="confirm.timeout", kind="duration", default="0", unit="ms", low=0, origin="Leveret",
        attribute="confirm_timeout",
        doc="Send `basic.nack` for a publish that is not confirmed within this time; `0` for no limit. Checked about "
        "once a second. The message itself stays in its queues."),
)  # fmt: skip

_MEMORY: Final[tuple[Key, ...]] = (
    Key(name="vm_memory_high_watermark.relative", kind="fraction", default="0.4", attribute="memory_relative",
        doc="Fraction of the memory of the machine (or container) that the broker may use before it blocks "
        "publishers; 0 blocks them at once."),
    Key(name="vm_memory_high_watermark.absolute", kind="amount", default="", unit="bytes", low=0,
        attribute="memory_absolute",
        doc="The same limit in bytes; takes precedence over the fraction."),
    Key(name="vm_memory_high_watermark_paging_ratio", kind="fraction", default="0.5",
        attribute="storage.paging_ratio",
        doc="Fraction of the memory limit that messages may use before queues page them to disk."),
    Key(name="disk_free_limit.absolute", kind="amount", default="", unit="bytes", low=0,
        attribute="disk_free_absolute",
        doc="Free space on the disk of the data directory below which publishers are blocked; 50 MB by default. Space "
        "left in the data files by deleted messages counts as free. Takes precedence over the multiple of memory."),
    Key(name="disk_free_limit.relative", kind="fraction", default="", high=1000, attribute="disk_free_relative",
        doc="The same limit as a multiple of the machine's memory."),
)  # fmt: skip

_STORAGE: Final[tuple[Key, ...]] = (
    Key(name="storage.commit_interval", kind="duration", default="2ms", unit="ms", low=0,
        attribute="storage.commit_interval", origin="Leveret",
        doc="Time between two commits under load. When idle the broker commits at once; an interval above 2 ms is cut "
        "short as soon as it becomes idle."),
    Key(name="storage.ram_limit", kind="size", default="134217728", unit="bytes", low=1048576,
        attribute="storage.ram_limit", origin="Leveret",
        doc="Memory that the messages of all queues may use before they are paged to disk; a single queue may use a "
        "quarter of it. Never more than `vm_memory_high_watermark_paging_ratio` allows."),
    Key(name="storage.blob_threshold", kind="size", default="4194304", unit="bytes", low=65536,
        attribute="storage.blob_threshold", origin="Leveret",
        doc="Persistent messages of at least this size are stored in files of their own."),
    Key(name="queue_index_embed_msgs_below", kind="size", default="4096", unit="bytes", low=0,
        attribute="storage.embed_below",
        doc="Persistent messages whose size times the number of queues is below this are written into the blocks of "
        "each queue; larger ones are written once, apart from them."),
    Key(name="queue_index_segment_entry_count", kind="int", default="2048", low=1, high=2**20,
        attribute="storage.segment",
        doc="Maximum number of queue positions that are moved to or from disk together."),
    Key(name="queue_index_max_journal_entries", kind="int", default="32768", low=1, high=2**31 - 1,
        attribute="storage.max_journal_records",
        doc="Maximum number of copies of persistent messages that wait for a commit: when it is reached, the commit "
        "begins at once, regardless of `storage.commit_interval`, and the broker does not read from publishers "
        "until it is done."),
    Key(name="msg_store_io_batch_size", kind="int", default="256", low=1, high=2**20, attribute="storage.io_batch",
        doc="Minimum number of queue positions that are paged out together. RabbitMQ's default is 4096."),
    Key(name="storage.garbage_fraction", kind="fraction", default="0.5", attribute="storage.garbage_fraction",
        origin="Leveret",
        doc="Compact the data file at start-up if more than this fraction of it is free space and it exceeds 64 MiB; "
        "a running broker then also returns space to the file system that has been unused for ten minutes. 1 "
        "disables both."),
    Key(name="storage.sync", kind="bool", default="true", attribute="storage.sync", origin="Leveret",
        doc="`false`: do not flush commits to disk. A power failure then loses confirmed messages and may destroy all "
        "data; for measurements only."),
    Key(name="storage.early_confirm", kind="bool", default="true", attribute="storage.early_confirm",
        origin="Leveret",
        doc="`false`: also write messages that are consumed before their commit, and confirm them after it, as "
        "RabbitMQ 3.6 does; for measurements."),
    Key(name="storage.target_ram_count", kind="limit", default="infinity", low=0,
        attribute="storage.target_ram_count", origin="Leveret",
        doc="Messages that each queue may keep in memory; for tests and measurements of paging."),
    Key(name="storage.check_invariants", kind="bool", default="false", attribute="storage.check_invariants",
        origin="Leveret",
        doc="Check the invariants of every queue after every step; slow, for tests."),
)  # fmt: skip

_COMPATIBILITY: Final[tuple[Key, ...]] = (
    Key(name="compatibility.frame_min", kind="size", default="4096", unit="bytes", low=4096, high=131072,
        attribute="compatibility.frame_min", origin="Leveret",
        doc="Smallest `frame_max` that a client may ask for; 8192 in RabbitMQ 4."),
    Key(name="compatibility.topic_max_hash", kind="int", default="0", low=0, attribute="compatibility.topic_max_hash",
        origin="Leveret",
        doc="Maximum number of `#` words in one topic binding key; 0 for any number."),
    Key(name="compatibility.transient_nonexcl_queues", kind="choice", default="permitted",
        choices=("permitted", "denied"), attribute="compatibility.transient_nonexcl_queues", origin="Leveret",
        doc="Whether queues may be neither durable nor exclusive; deprecated in RabbitMQ 4."),
    Key(name="compatibility.global_qos", kind="choice", default="permitted", choices=("permitted", "ignored"),
        attribute="compatibility.global_qos", origin="Leveret",
        doc="`basic.qos` with `global` set, a prefetch limit per channel; deprecated in RabbitMQ 4."),
    Key(name="compatibility.passive_declare", kind="choice", default="any-permission",
        choices=("any-permission", "open"), attribute="compatibility.passive_declare", origin="Leveret",
        doc="Who may declare a queue or an exchange passively, and so learn whether it exists and how many messages "
        "it has. `any-permission`: users with any permission (configure, write or read) for its name, as in "
        "RabbitMQ 4.2.7. `open`: every user of the virtual host, as in RabbitMQ 3."),
    Key(name="compatibility.python_patterns", kind="bool", default="false", attribute="compatibility.python_patterns",
        origin="Leveret",
        doc="Let Python's `re` handle patterns of permissions and policies that RE2 does not support "
        "([administration](administration.md#permissions)). Names come from clients, and for some names such a pattern "
        "may block the broker for minutes."),
)  # fmt: skip

_METRICS: Final[tuple[Key, ...]] = (
    Key(name="prometheus.enabled", kind="bool", default="true", attribute="prometheus.enabled", origin="Leveret",
        doc="Serve metrics ([metrics](metrics.md)) and health checks over HTTP. In RabbitMQ this is a plugin."),
    Key(name="prometheus.tcp.port", kind="int", default="15692", low=0, high=65535, attribute="prometheus.port",
        doc="Port of the HTTP listener; 0 for none. If the default port at the default address is in use "
        "the broker starts without metrics; with another port or address it does not start."),
    Key(name="prometheus.tcp.ip", kind="string", default="127.0.0.1", attribute="prometheus.host",
        doc="Address of the HTTP listener. RabbitMQ's default is all interfaces. There is no authentication: make "
        "sure that only trusted hosts can connect. With another address than the default the port must be free."),
    Key(name="prometheus.return_per_object_metrics", kind="bool", default="false", attribute="prometheus.per_object",
        doc="`/metrics` reports queues, channels and connections separately, like `/metrics/per-object`."),
)  # fmt: skip

_MANAGEMENT: Final[tuple[Key, ...]] = (
    Key(name="management.enabled", kind="bool", default="true", attribute="management.enabled", origin="Leveret",
        doc="Serve the management API ([management](management.md)) over HTTP. In RabbitMQ this is a plugin. "
        "`leveret ctl` works without it."),
    Key(name="management.tcp.port", kind="int", default="15672", low=0, high=65535, attribute="management.port",
        doc="Port of the HTTP listener; 0 for none. If the default port at the default address is in use the broker "
        "starts without the listener; with another port or address it does not start."),
    Key(name="management.tcp.ip", kind="string", default="127.0.0.1", attribute="management.host",
        doc="Address of the HTTP listener. RabbitMQ's default is all interfaces. Passwords are sent in clear, so use "
        "another address in trusted networks only. With another address than the default the port must be free."),
    Key(name="management.path_prefix", kind="string", default="", attribute="management.path_prefix",
        doc="What paths begin with before `/api/`, such as `/broker`, for a proxy that passes them on unchanged."),
    Key(name="management.host_names", kind="string", default="", attribute="management.host_names", origin="Leveret",
        doc="Names with dots, with commas between them, under which browsers may reach a listener on loopback, such as "
        "that of a proxy on the same host that passes `Host` on. Requests for others are refused, because any web page "
        "could give a name of its own the address of this host."),
    Key(name="management.login_session_timeout", kind="int", default="480", low=1, high=525_600,
        attribute="management.session_minutes",
        doc="Minutes without a request after which the web page asks for a login again. In RabbitMQ from the login."),
    Key(name="management.reports_url", kind="address", default="", attribute="management.reports_url", origin="Leveret",
        doc="Address of the [reports of the analysis](analysis.md), as browsers reach it: the web page has a link to "
        "it. The broker serves no reports itself; `leveret analyze --serve` or any web server does."),
    Key(name="collect_statistics_interval", kind="int", default="5000", low=100, high=3_600_000,
        attribute="management.interval_ms",
        doc="Milliseconds between two samples of the statistics; rates are computed from the last two."),
)  # fmt: skip

_EXPORT: Final[tuple[Key, ...]] = (
    Key(name="export.dir", kind="path", default="", attribute="export.dir", origin="Leveret",
        doc="Directory to which the export is written ([export](export.md)); nothing is exported if not set."),
    Key(name="export.interval", kind="duration", default="5s", unit="s", low=1, attribute="export.interval",
        origin="Leveret",
        doc="Time between two samples."),
    Key(name="export.rotate_interval", kind="duration", default="60s", unit="s", low=1,
        attribute="export.rotate_interval", origin="Leveret",
        doc="Time after which a file is finished and readers can see it."),
    Key(name="export.rotate_size", kind="size", default="67108864", unit="bytes", low=1024,
        attribute="export.rotate_size", origin="Leveret",
        doc="Size at which a file is finished earlier."),
    Key(name="export.retention", kind="duration", default="7d", unit="s", low=0, attribute="export.retention",
        origin="Leveret",
        doc="How long exported files are kept, in whole days; `0` keeps them forever. Only files of this node are "
        "removed."),
)  # fmt: skip

_PROCESS: Final[tuple[Key, ...]] = (
    Key(name="data_dir", kind="path", default="var", attribute="data_dir", origin="Leveret",
        doc="The data directory; only one broker can use it at a time."),
    Key(name="pid_file", kind="path", default="", attribute="pid_file", origin="Leveret",
        doc="File that contains the process id, from when clients can connect until the process ends."),
    Key(name="node_name", kind="string", default="", attribute="node_name", origin="Leveret",
        doc="Name of this broker; `rabbit@` and the host name by default."),
    Key(name="cluster_name", kind="string", default="", attribute="cluster_name",
        doc="Name that clients see in the server properties; the node name by default."),
    Key(name="debug.slow_step", kind="duration", default="50ms", unit="ms", low=0, attribute="slow_step",
        origin="Leveret",
        doc="Log each step of the event loop that uses at least this much processor time, with what it did; no other "
        "client is served meanwhile. `0` disables it."),
)  # fmt: skip

TOPICS: Final[tuple[Topic, ...]] = (
    Topic(title="Listeners and sockets", keys=_LISTENERS,
          intro="Where clients connect, and options of their TCP connections."),
    Topic(title="TLS", keys=tls_keys.LISTENERS,
          intro="AMQP over TLS 1.2 and 1.3 ([how to](howto/tls.md)). Files are PEM; they are loaded again when they "
          "have changed, on SIGHUP, and by `leveret ctl reload_tls`."),
    Topic(title="Connections and channels", keys=_CONNECTIONS,
          intro="The handshake, what the server proposes in `connection.tune`, and acknowledgement timeouts."),
    Topic(title="Limits", keys=_LIMITS,
          intro="How much clients may use. `infinity` means no limit."),
    Topic(title="Users, virtual hosts and definitions", keys=_USERS,
          intro="The first user and virtual host are created when the data directory is empty, unless definitions "
          "are loaded."),
    Topic(title="Authentication backends", keys=backend_keys.BACKENDS,
          intro="Who lets users in and decides about their permissions, beside the internal database "
          "([authentication backends](howto/authentication-backends.md))."),
    Topic(title="Shovels and policies of users", keys=_DELEGATION,
          intro="What the broker does for users who are no administrators ([shovels](howto/shovels.md))."),
    Topic(title="Publisher confirms", keys=_CONFIRMS,
          intro="When a publish is confirmed ([confirm modes](howto/choose-a-confirm-mode.md))."),
    Topic(title="Memory and disk alarms", keys=_MEMORY,
          intro="While an alarm is in effect, publishers are blocked (`connection.blocked`)."),
    Topic(title="Message storage", keys=_STORAGE,
          intro="Commits, paging and the data files ([storage](storage.md))."),
    Topic(title="Replication", keys=REPLICATION,
          intro="Several nodes with one log in PostgreSQL, of which one leads and the others wait (preview: "
          "[how to](howto/replicate.md))."),
    Topic(title="Compatibility", keys=_COMPATIBILITY,
          intro="Switches between the behaviour of RabbitMQ 3 and 4 ([compatibility](compatibility.md))."),
    Topic(title="Metrics and health checks", keys=_METRICS,
          intro="The HTTP endpoints for Prometheus and for probes ([metrics](metrics.md))."),
    Topic(title="TLS of the metrics listener", keys=tls_keys.METRICS,
          intro="A second listener, or the only one if no `prometheus.tcp` key is set."),
    Topic(title="Management", keys=_MANAGEMENT,
          intro="The HTTP API for administrators ([management](management.md))."),
    Topic(title="TLS of the management API", keys=tls_keys.MANAGEMENT,
          intro="A second listener, or the only one if no `management.tcp` key is set. RabbitMQ's older names of one "
          "listener (`management.listener.port`, `.ip`, `.ssl`, `.ssl_opts.*`) set `management.tcp`, or "
          "`management.ssl` if `management.listener.ssl` is true."),
    Topic(title="Export for analysis", keys=_EXPORT,
          intro="JSON Lines files of what happens in the broker ([exported tables](export.md))."),
    Topic(title="Process", keys=_PROCESS,
          intro=""),
    Topic(title="Logging", keys=_log_keys(),
          intro="The console, and one file."),
    Topic(title="Events", keys=_EVENTS,
          intro="Messages about queues, connections, users and the rest, as they change."),
    Topic(title="Audit log", keys=_AUDIT,
          intro="JSON Lines about logins and changes: who, from where, what "
          "([limits and audit](howto/limits-and-audit.md))."),
)  # fmt: skip

KEYS: Final[tuple[Key, ...]] = tuple(key for topic in TOPICS for key in topic.keys)
