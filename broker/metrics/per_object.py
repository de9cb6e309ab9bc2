"""Metrics per queue, channel, connection and exchange: RabbitMQ's names, types and groups.

A group is a name accepted by `/metrics/detailed?family=`. A label `channel` for a connection is RabbitMQ's choice.
Channels count without regard to exchange and queue, and queues without regard to channel and exchange, so their series
have fewer labels than RabbitMQ's, and no additional ones (`docs/generate/rabbitmq_differences.py`).

Source: rabbitmq-server, deps/rabbitmq_prometheus, metrics.md and metrics-detailed.md.
"""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

from leveret.broker.metrics.rows import ChannelRow, ConnectionRow, QueueRow
from leveret.broker.metrics.text import COUNTER, GAUGE, Column
from leveret.exchanges.base import Exchange

T = TypeVar("T")


class Group(NamedTuple, Generic[T]):
    """Columns that are requested together."""

    name: str
    labels: tuple[str, ...]
    columns: Sequence[Column[T]]
    prefix: str = "rabbitmq_"
    always: bool = True
    """True if it is included when no group is requested."""


DELIVERIES: Mapping[str, tuple[str, str]] = {
    "get_ack_total": ("got_ack", "Messages fetched with basic.get in manual acknowledgement mode"),
    "get_total": ("got_auto", "Messages fetched with basic.get in automatic acknowledgement mode"),
    "messages_delivered_ack_total": (
        "delivered_ack", "Messages delivered to consumers in manual acknowledgement mode"
    ),
    "messages_delivered_total": (
        "delivered_auto", "Messages delivered to consumers in automatic acknowledgement mode"
    ),
    "messages_redelivered_total": (
        "redelivered", "Messages redelivered to consumers or fetched again with basic.get"
    ),
    "messages_acked_total": ("settled", "Messages acknowledged by consumers"),
    "get_empty_total": ("get_empty", "Calls of basic.get that found the queue empty"),
}  # fmt: skip
"""Names and texts of counters of deliveries (`QueueCounts`); the counts of the whole broker have the same texts."""


def _deliveries(kind: str, acked: str) -> list[Column[Any]]:
    """Return the columns for the deliveries of a kind of objects; `acked` is its counter of acks."""
    return [
        Column(f"{kind}_{name}", COUNTER, text, attrgetter(f"counts.{acked if each == 'settled' else each}"))
        for name, (each, text) in DELIVERIES.items()
    ]


def queue_type_label(kind: str) -> str:
    """Return RabbitMQ's label value for a queue type."""
    return f"rabbit_{kind}_queue"


QUEUE_LABELS = ("vhost", "queue")
TARGET_LABELS = ("queue_vhost", "queue")
"""RabbitMQ's label names where exchanges have a vhost as well."""
QUEUE_INFO: Group[QueueRow] = Group("", (*QUEUE_LABELS, "queue_type", "membership"), (
    Column("queue_info", GAUGE, "1 for each queue, with its type and membership", lambda _: 1, adds_up=False),
))  # fmt: skip
"""With every group of queues."""
QUEUES: tuple[Group[QueueRow], ...] = (
    Group("queue_coarse_metrics", QUEUE_LABELS, (
        Column("queue_messages_ready", GAUGE, "Messages ready to be delivered to consumers", lambda q: q.levels.ready),
        Column("queue_messages_unacked", GAUGE, "Messages delivered to consumers but not yet acknowledged",
               lambda q: q.levels.unacked),
        Column("queue_messages", GAUGE, "Ready and unacknowledged messages together",
               lambda q: q.levels.ready + q.levels.unacked),
    )),
    Group("queue_consumer_count", QUEUE_LABELS, (
        Column("queue_consumers", GAUGE, "Consumers on a queue", lambda q: q.levels.consumers),
    )),
    Group("queue_metrics", QUEUE_LABELS, (
        Column("queue_consumer_capacity", GAUGE,
               "Consumer capacity: fraction of the last seconds (0 to 1) in which a message could be delivered "
               "immediately",
               lambda q: q.capacity, adds_up=False),
        Column("queue_consumer_utilisation", GAUGE, "Same as consumer capacity", lambda q: q.capacity,
               adds_up=False),
        Column("queue_messages_ram", GAUGE, "Ready and unacknowledged messages stored in memory",
               lambda q: q.levels.ready_ram + q.levels.unacked_ram),
        Column("queue_messages_ram_bytes", GAUGE,
               "Size of ready and unacknowledged messages stored in memory, with properties",
               lambda q: q.levels.octets_ram),
        Column("queue_messages_ready_ram", GAUGE, "Ready messages stored in memory",
               lambda q: q.levels.ready_ram),
        Column("queue_messages_unacked_ram", GAUGE, "Unacknowledged messages stored in memory",
               lambda q: q.levels.unacked_ram),
        Column("queue_messages_paged_out", GAUGE, "Ready and unacknowledged messages whose bodies are on disk only",
               lambda q: q.levels.ready + q.levels.unacked - q.levels.ready_ram - q.levels.unacked_ram),
        Column("queue_disk_reads_total", COUNTER, "Messages whose positions were read back from disk",
               lambda q: q.transitions.get("from_delta", 0)),
    )),
    Group("queue_delivery_metrics", QUEUE_LABELS, _deliveries("queue", "settled")),
    Group("channel_queue_exchange_metrics", TARGET_LABELS, (
        Column("queue_messages_published_total", COUNTER, "Messages routed to a queue, including dead-lettered ones",
               lambda q: q.counts.published),
    )),
    Group("queue_discards", QUEUE_LABELS, (
        Column("queue_messages_expired_total", COUNTER, "Messages discarded because their TTL expired",
               lambda q: q.counts.expired),
        Column("queue_messages_dropped_total", COUNTER, "Messages discarded because of the queue's length limit",
               lambda q: q.counts.dropped),
        Column("queue_messages_rejected_total", COUNTER, "Messages rejected by consumers without requeue",
               lambda q: q.counts.rejected),
        Column("queue_messages_dead_lettered_total", COUNTER,
               "Messages dead-lettered after they expired, were dropped or were rejected",
               lambda q: q.counts.dead_lettered),
        Column("queue_dead_letters_cycled_total", COUNTER,
               "Dead letters of a queue that were dropped, as they would have returned to a queue in which they had "
               "died since they were published (a dead-letter cycle without a reject)",
               lambda q: q.counts.cycled),
        Column("queue_dead_letters_received_total", COUNTER, "Dead letters that were put into a queue",
               lambda q: q.counts.forwarded),
        Column("queue_messages_purged_total", COUNTER, "Messages removed by queue.purge",
               lambda q: q.counts.purged),
    ), prefix="leveret_"),
    Group("queue_states", QUEUE_LABELS, (
        Column("queue_messages_alpha", GAUGE, "Ready messages fully in memory", lambda q: q.levels.alpha),
        Column("queue_messages_beta", GAUGE,
               "Ready transient messages with only their position in memory", lambda q: q.levels.beta),
        Column("queue_messages_gamma", GAUGE,
               "Ready persistent messages with only their position in memory", lambda q: q.levels.gamma),
        Column("queue_messages_delta", GAUGE, "Ready messages on disk only", lambda q: q.levels.delta),
    ), prefix="leveret_"),
    Group("queue_retention", QUEUE_LABELS, (
        Column("queue_messages_retained", GAUGE,
               "Acknowledged messages retained for a replay; after a start at least so many",
               lambda q: q.levels.retained),
        Column("queue_messages_retained_bytes", GAUGE, "Size of the bodies of retained messages",
               lambda q: q.levels.retained_octets),
    ), prefix="leveret_"),
    Group("queue_promises", QUEUE_LABELS, (
        Column("queue_promises_open", GAUGE,
               "Publishes not yet confirmed because they await acknowledgements by consumers of this queue",
               lambda q: q.levels.promises),
        Column("queue_light_rejects_total", COUNTER,
               "Messages requeued in mode consumer-ack-light, which keeps no copy: removed, and their publishes nacked",
               lambda q: q.counts.lost),
    ), prefix="leveret_"),
)  # fmt: skip

CHANNEL_LABELS = ("channel",)
VHOST_CHANNEL_LABELS = ("channel", "vhost")
CHANNELS: tuple[Group[ChannelRow], ...] = (
    Group("channel_metrics", CHANNEL_LABELS, (
        Column("channel_consumers", GAUGE, "Consumers on a channel", lambda c: c.levels.consumers),
        Column("channel_messages_unacked", GAUGE, "Messages delivered to consumers but not yet acknowledged",
               lambda c: c.levels.unacked),
        Column("channel_messages_unconfirmed", GAUGE, "Messages published but not yet confirmed",
               lambda c: c.levels.unconfirmed),
        Column("channel_messages_uncommitted", GAUGE, "Messages received in a transaction but not yet committed",
               lambda c: c.levels.uncommitted),
        Column("channel_acks_uncommitted", GAUGE, "Acknowledgements in a transaction not yet committed",
               lambda c: c.levels.acks_uncommitted),
        Column("consumer_prefetch", GAUGE, "Limit of unacknowledged messages for each new consumer (prefetch count)",
               lambda c: c.levels.prefetch),
        Column("channel_prefetch", GAUGE, "Total limit of unacknowledged messages for all consumers on a channel",
               lambda c: c.levels.global_prefetch),
    )),
    Group("channel_exchange_metrics", VHOST_CHANNEL_LABELS, (
        Column("channel_messages_published_total", COUNTER, "Messages published on a channel",
               lambda c: c.counts.published),
        Column("channel_messages_confirmed_total", COUNTER, "Messages published on a channel and confirmed",
               lambda c: c.counts.confirmed),
        Column("channel_messages_unroutable_returned_total", COUNTER,
               "Unroutable messages returned to the publisher (mandatory)", lambda c: c.counts.returned),
        Column("channel_messages_unroutable_dropped_total", COUNTER,
               "Unroutable messages dropped", lambda c: c.counts.dropped),
    )),
    Group("channel_queue_metrics", VHOST_CHANNEL_LABELS, _deliveries("channel", "acked")),
    Group("channel_confirm_metrics", CHANNEL_LABELS, (
        Column("channel_messages_nacked_total", COUNTER, "Publishes nacked", lambda c: c.counts.nacked),
    ), prefix="leveret_"),
)  # fmt: skip

CONNECTION_LABELS = ("channel",)
CONNECTIONS: tuple[Group[ConnectionRow], ...] = (
    Group("connection_coarse_metrics", CONNECTION_LABELS, (
        Column("connection_incoming_bytes_total", COUNTER, "Total number of bytes received on a connection",
               lambda c: c.counts.octets_in),
        Column("connection_outgoing_bytes_total", COUNTER, "Total number of bytes sent on a connection",
               lambda c: c.counts.octets_out),
    )),
    Group("connection_metrics", CONNECTION_LABELS, (
        Column("connection_incoming_packets_total", COUNTER, "Total number of reads from the socket",
               lambda c: c.counts.reads),
        Column("connection_outgoing_packets_total", COUNTER, "Total number of writes to the socket",
               lambda c: c.counts.writes),
        Column("connection_pending_packets", GAUGE, "Frames waiting to be sent", lambda c: c.levels.pending),
        Column("connection_channels", GAUGE, "Channels on a connection", lambda c: c.levels.channels),
    )),
)  # fmt: skip

EXCHANGE_LABELS = ("vhost", "exchange")
TYPED_EXCHANGE_LABELS = ("vhost", "exchange", "type")
EXCHANGES: tuple[Group[Exchange], ...] = (
    Group("exchange_metrics", EXCHANGE_LABELS, (
        Column("exchange_messages_published_total", COUNTER, "Messages published to an exchange",
               lambda x: x.published_in),
        Column("exchange_messages_unroutable_returned_total", COUNTER,
               "Unroutable messages returned to the publisher (mandatory)", lambda x: x.returned),
        Column("exchange_messages_unroutable_dropped_total", COUNTER,
               "Unroutable messages dropped", lambda x: x.unroutable - x.returned),
    )),
    Group("exchange_names", TYPED_EXCHANGE_LABELS, (
        Column("exchange_name", GAUGE, "1 for each exchange except internal ones and the default exchange",
               lambda _: 1),
    ), prefix="rabbitmq_cluster_", always=False),
    Group("exchange_bindings", TYPED_EXCHANGE_LABELS, (
        Column("exchange_bindings", GAUGE, "Bindings with an exchange as the source", lambda x: x.binding_count),
    ), prefix="rabbitmq_cluster_", always=False),
)  # fmt: skip
