"""Settings of the broker that connections and channels use, as the configuration has them."""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from leveret.broker import COMPATIBLE_VERSIONS
from leveret.broker.auth.users import UserLimits, VHostLimits
from leveret.broker.config_key import Key
from leveret.broker.queue.compatibility import QueueCompatibility
from leveret.broker.vhost.object_limits import ARGUMENT_OCTETS, BINDINGS, EXCHANGES, QUEUES
from leveret.storage.message_ids import MOST_IDS

# The rows are tables, whose lines are filled.
# fmt: off


class DefaultLimits(msgspec.Struct, frozen=True):
    """Limits that a new virtual host gets if its name matches."""

    pattern: str = ".*"
    limits: VHostLimits = VHostLimits()


class Limits(msgspec.Struct, frozen=True):
    """Limits of what clients may use; None means no limit."""

    connection_max: Annotated[int | None, Key("connection_max", "limit", low=0, also=("max_connections",),
        doc="Open connections on the broker.")] = None
    connection_max_publish_rate: Annotated[int | None, Key("connection_max_publish_rate", "limit", low=1, own=True,
        doc="Messages that one connection may publish per second: a connection that is faster is read more slowly "
        "([publish limits](howto/limits-and-audit.md#limit-how-fast-clients-publish)).")] = None
    connection_max_publish_bytes: Annotated[int | None, Key("connection_max_publish_bytes", "amount", low=1, own=True,
        doc="Bytes per second that are read from one connection that publishes; no limit if not set.")] = None
    channel_max_per_node: Annotated[int | None, Key("channel_max_per_node", "limit", low=0,
        doc="Open channels on the broker.")] = None
    consumer_max_per_channel: Annotated[int | None, Key("consumer_max_per_channel", "limit", low=1,
        doc="Consumers on one channel.")] = None
    transaction_publishes: Annotated[int | None, Key("channel_tx_message_max", "limit", low=1, in_4="10000",
        doc="Publishes in one transaction; a further one closes its channel with 406 PRECONDITION_FAILED. 10,000 in "
        "RabbitMQ 4.3. A commit of more than 100,000 publishes and acks is refused in any case.")] = None
    vhost_max: Annotated[int | None, Key("vhost_max", "limit", low=0, doc="Virtual hosts on the broker.")] = None
    cluster_queue_limit: Annotated[int | None, Key("cluster_queue_limit", "limit", low=0,
        doc="Queues on the broker; existing queues are kept. RabbitMQ's default is no limit.")] = QUEUES
    cluster_exchange_limit: Annotated[int | None, Key("cluster_exchange_limit", "limit", low=0,
        doc="Exchanges on the broker, including the predeclared ones of each virtual host. RabbitMQ's default is no "
        "limit.")] = EXCHANGES
    max_message_size: Annotated[int, Key("max_message_size", "size", low=0, high=512 * 1024**2, in_4="16MiB",
        doc="Largest message body.")] = 128 * 1024**2
    argument_octets: Annotated[int, Key("limits.argument_bytes", "size", low=1024, own=True,
        doc="Encoded size of the arguments of one queue, exchange, binding or consumer; a declaration with larger "
        "arguments is refused with 406 PRECONDITION_FAILED.")] = ARGUMENT_OCTETS
    unsent_octets: Annotated[int | None, Key("limits.unsent_bytes", "amount", low=1024**2, own=True,
        doc="Bytes queued for all clients together because they do not read, those of the management API included; "
        "above it, the client with the most pending bytes is disconnected. By default a quarter of the memory limit, "
        "at least 16 MiB.")] = None
    cc_keys: Annotated[int, Key("limits.cc_keys", low=0, own=True,
        doc="Routing keys in the headers `CC` and `BCC` of one message together; a publish with more closes its "
        "channel with 406 PRECONDITION_FAILED.")] = 1000
    exchange_hops: Annotated[int, Key("limits.exchange_hops", low=0, own=True,
        doc="Exchanges that one message may pass through by exchange-to-exchange bindings, beyond the first, times the "
        "number of its routing keys; a publish that would exceed it closes its channel with 406 PRECONDITION_FAILED.")
    ] = 10_000
    message_ids: Annotated[int, Key("limits.message_ids", low=0, own=True,
        doc="Ids of messages that all with `x-deduplicate` know together, some 18 bytes each. A queue or "
        "exchange may know as many as there is room for, alone half of them; it refuses publishes with others.")
    ] = MOST_IDS
    most_deaths: Annotated[int, Key("limits.deaths", low=100, own=True,
        doc="Entries of the header `x-death` in a dead letter; only the newest are kept. A dead-letter cycle of more "
        "queues than that, or than 255, is not detected.")] = 256
    vhost_limits: Annotated[Mapping[str, VHostLimits],
        Key("limits.vhost.$name.max_connections", "limit", low=0, own=True,
            doc="Connections to one virtual host; `rabbitmqctl set_vhost_limits` in RabbitMQ."),
        Key("limits.vhost.$name.max_queues", "limit", low=0, own=True,
            doc="Queues in one virtual host; `rabbitmqctl set_vhost_limits` in RabbitMQ."),
        Key("limits.vhost.$name.max_publish_rate", "limit", low=1, own=True,
            doc="As `connection_max_publish_rate`, for all connections to one virtual host together."),
        Key("limits.vhost.$name.max_publish_bytes", "amount", low=1, own=True,
            doc="As `connection_max_publish_bytes`, for all connections to one virtual host together.")] = {}
    vhost_bindings: Annotated[Mapping[str, int | None],
        Key("limits.vhost.$name.max_bindings", "limit", default=str(BINDINGS), low=0, own=True,
            doc="Bindings in one virtual host. Not stored: the value in the configuration at the start applies.")] = {}
    default_limits: Annotated[tuple[DefaultLimits, ...],
        Key("default_limits.vhosts.$name.pattern", default=".*",
            doc="Regular expression for the names of virtual hosts that get the following limits when they are "
            "created, `default_limits.vhosts.1.pattern = ^test` and so on; the first match applies."),
        Key("default_limits.vhosts.$name.max_connections", "limit", low=-1,
            doc="Connections to such a virtual host; `-1` for no limit."),
        Key("default_limits.vhosts.$name.max_queues", "limit", low=-1,
            doc="Queues in such a virtual host; `-1` for no limit."),
        Key("default_limits.vhosts.$name.max_publish_rate", "limit", low=1, own=True,
            doc="As `connection_max_publish_rate`, for all connections to such a virtual host together."),
        Key("default_limits.vhosts.$name.max_publish_bytes", "amount", low=1, own=True,
            doc="As `connection_max_publish_bytes`, for all connections to such a virtual host together.")] = ()
    user_limits: Annotated[Mapping[str, UserLimits],
        Key("limits.user.$name.max_connections", "limit", low=0, own=True,
            doc="Connections of one user; `rabbitmqctl set_user_limits` in RabbitMQ."),
        Key("limits.user.$name.max_channels", "limit", low=0, own=True,
            doc="Channels of one user; `rabbitmqctl set_user_limits` in RabbitMQ."),
        Key("limits.user.$name.max_publish_rate", "limit", low=1, own=True,
            doc="As `connection_max_publish_rate`, for all connections of one user together."),
        Key("limits.user.$name.max_publish_bytes", "amount", low=1, own=True,
            doc="As `connection_max_publish_bytes`, for all connections of one user together.")] = {}


class Compatibility(msgspec.Struct, frozen=True):
    """Switches for changes in RabbitMQ 4; the defaults are RabbitMQ 3.13's behaviour."""

    profile: Annotated[Literal["3.13", "4.3"], Key("compatibility.profile", own=True,
        doc="The RabbitMQ whose behaviour this is, and whose version clients, API and commands see. `4.3` changes the "
        "defaults of other keys ([compatibility](compatibility.md#profiles)); each of them can still be set.")] = "3.13"
    frame_min: Annotated[int, Key("compatibility.frame_min", "size", low=4096, high=131072, own=True, in_4="8192",
        doc="Smallest `frame_max` that a client may ask for; 8192 in RabbitMQ 4.")] = 4096
    topic_max_hash: Annotated[int, Key("compatibility.topic_max_hash", low=0, own=True, in_4="2",
        doc="Maximum number of `#` words in one topic binding key; 0 for any number.")] = 0
    hash_max_weight: Annotated[int, Key("compatibility.hash_max_weight", low=0, own=True, in_4="10000",
        doc="Maximum weight, which is the key, of a binding of an `x-consistent-hash` exchange; 10000 in RabbitMQ 4.3, "
        "0 for any number.")] = 0
    transient_nonexcl_queues: Annotated[Literal["permitted", "denied"],
        Key("compatibility.transient_nonexcl_queues", own=True, in_4="denied",
            doc="Whether queues may be neither durable nor exclusive; deprecated in RabbitMQ 4.")] = "permitted"
    global_qos: Annotated[Literal["permitted", "ignored"], Key("compatibility.global_qos", own=True, in_4="ignored",
        doc="`basic.qos` with `global` set, a prefetch limit per channel; deprecated in RabbitMQ 4.")] = "permitted"
    header_numbers: Annotated[Literal["equal", "exact"], Key("compatibility.header_numbers", own=True, in_4="exact",
        doc="How headers exchanges compare numbers. `equal`: by value, as in RabbitMQ 3. `exact`: 1 differs from 1.0, "
        "0.0 from -0.0, and a time of a message is its number of milliseconds, as in RabbitMQ 4.3.")] = "equal"
    mandatory_replies: Annotated[Literal["returned", "routed"], Key("compatibility.mandatory_replies", own=True,
        in_4="routed",
        doc="What becomes of a mandatory message to a direct reply-to address whose client has gone: it is `returned`, "
        "or counts as `routed`, as in RabbitMQ 4.2.")] = "returned"
    protocol_errors: Annotated[Literal["3.13", "4.3"], Key("compatibility.protocol_errors", own=True, in_4="4.3",
        doc="The RabbitMQ whose answers malformed input gets. `4.3`: an unknown protocol header is answered by that of "
        "AMQP 1.0, an unknown method or a field of an unknown type closes the socket without `connection.close` (the "
        "log has the reason), and texts quote bytes as Erlang 29 does.")] = "3.13"
    queues: QueueCompatibility = QueueCompatibility()
    consumer_timeout: Annotated[Literal["cancels-consumer", "closes-channel", "4.3"],
        Key("compatibility.consumer_timeout", own=True, in_4="4.3",
            doc="What happens if a delivery is not acknowledged within `consumer_timeout`. `cancels-consumer`: the "
            "message is requeued, and its consumer is sent `basic.cancel`; a client without "
            "`consumer_cancel_notify` loses the channel. `closes-channel`: every client does, as in RabbitMQ 3. "
            "`4.3`: consumers are cancelled, and only quorum queues have a timeout "
            "([consumer timeout](compatibility.md#consumer-timeout)).")] = "cancels-consumer"
    passive_declare: Annotated[Literal["any-permission", "open"], Key("compatibility.passive_declare", own=True,
        doc="Who may declare a queue or an exchange passively, and so learn whether it exists and how many messages it "
        "has. `any-permission`: users with any permission (configure, write or read) for its name, as in RabbitMQ "
        "4.2.7. `open`: every user of the virtual host, as in RabbitMQ 3.")] = "any-permission"
    python_patterns: Annotated[bool, Key("compatibility.python_patterns", own=True,
        doc="Let Python's `re` handle patterns of permissions and policies that cannot be matched in linear "
        "time ([administration](administration.md#patterns)). Names come from clients, and for some names such a "
        "pattern may block the broker for minutes.")] = False

    @property
    def version(self) -> str:
        """The version of RabbitMQ that clients see."""
        return COMPATIBLE_VERSIONS[self.profile]
