"""Metrics per queue, channel, connection and exchange: RabbitMQ's names, types and groups.

A group is a name accepted by `/metrics/detailed?family=`. A label `channel` for a connection is RabbitMQ's choice.
Channels count without regard to exchange and queue, and queues without regard to channel and exchange, so their series
have fewer labels than RabbitMQ's, and no additional ones (`broker.metrics.rabbitmq_differences`).

Source: rabbitmq-server, deps/rabbitmq_prometheus, metrics.md and metrics-detailed.md.
"""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

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


def _delivered_ack(queue: QueueRow) -> int:
    """Return the number of messages delivered to consumers that must ack."""
    counts = queue.counts
    return counts.delivered - counts.delivered_auto - counts.got_ack - counts.got_auto


QUEUE_LABELS = ("vhost", "queue")
TARGET_LABELS = ("queue_vhost", "queue")
"""RabbitMQ's label names where exchanges have a vhost as well."""
QUEUES: tuple[Group[QueueRow], ...] = (
    Group("queue_coarse_metrics", QUEUE_LABELS, (
        Column("queue_messages_ready", GAUGE, "Messages that wait for a consumer", lambda q: q.levels.ready),
        Column("queue_messages_unacked", GAUGE, "Messages that were delivered and not acknowledged yet",
               lambda q: q.levels.unacked),
        Column("queue_messages", GAUGE, "Ready and unacknowledged messages",
               lambda q: q.levels.ready + q.levels.unacked),
    )),
    Group("queue_consumer_count", QUEUE_LABELS, (
        Column("queue_consumers", GAUGE, "Consumers of a queue", lambda q: q.levels.consumers),
    )),
    Group("queue_metrics", QUEUE_LABELS, (
        Column("queue_consumer_capacity", GAUGE,
               "Share of the last seconds, 0 to 1, in which an arrival would have been delivered at once",
               lambda q: q.capacity, adds_up=False),
        Column("queue_consumer_utilisation", GAUGE, "The same as consumer capacity", lambda q: q.capacity,
               adds_up=False),
        Column("queue_messages_ram", GAUGE, "Ready and unacknowledged messages whose bodies are in memory",
               lambda q: q.levels.ready_ram + q.levels.unacked_ram),
        Column("queue_messages_ram_bytes", GAUGE, "Octets of these, with their properties",
               lambda q: q.levels.octets_ram),
        Column("queue_messages_ready_ram", GAUGE, "Ready messages whose bodies are in memory",
               lambda q: q.levels.ready_ram),
        Column("queue_messages_unacked_ram", GAUGE, "Unacknowledged messages whose bodies are in memory",
               lambda q: q.levels.unacked_ram),
        Column("queue_messages_paged_out", GAUGE, "Ready and unacknowledged messages whose bodies are on disk only",
               lambda q: q.levels.ready + q.levels.unacked - q.levels.ready_ram - q.levels.unacked_ram),
        Column("queue_disk_reads_total", COUNTER, "Messages whose positions were read back from disk",
               lambda q: q.transitions.get("from_delta", 0)),
    )),
    Group("queue_delivery_metrics", QUEUE_LABELS, (
        Column("queue_get_ack_total", COUNTER, "Messages got with basic.get that have to be acknowledged",
               lambda q: q.counts.got_ack),
        Column("queue_get_total", COUNTER, "Messages got with basic.get that need no acknowledgement",
               lambda q: q.counts.got_auto),
        Column("queue_messages_delivered_ack_total", COUNTER,
               "Messages delivered to consumers that have to acknowledge", _delivered_ack),
        Column("queue_messages_delivered_total", COUNTER,
               "Messages delivered to consumers that need not acknowledge", lambda q: q.counts.delivered_auto),
        Column("queue_messages_redelivered_total", COUNTER, "Messages delivered or got not for the first time",
               lambda q: q.counts.redelivered),
        Column("queue_messages_acked_total", COUNTER, "Messages acknowledged by consumers",
               lambda q: q.counts.acked - q.counts.discarded),
        Column("queue_get_empty_total", COUNTER, "How often basic.get found no message",
               lambda q: q.counts.get_empty),
    )),
    Group("channel_queue_exchange_metrics", TARGET_LABELS, (
        Column("queue_messages_published_total", COUNTER, "Messages that came to a queue, dead letters as well",
               lambda q: q.counts.published),
    )),
    Group("queue_discards", QUEUE_LABELS, (
        Column("queue_messages_expired_total", COUNTER, "Messages that were not consumed in time",
               lambda q: q.counts.expired),
        Column("queue_messages_dropped_total", COUNTER, "Messages that were discarded because the queue was too long",
               lambda q: q.counts.dropped),
        Column("queue_messages_rejected_total", COUNTER, "Messages that consumers rejected, not to be delivered again",
               lambda q: q.counts.rejected),
        Column("queue_messages_dead_lettered_total", COUNTER,
               "Those of the expired, dropped and rejected that went to a dead letter exchange",
               lambda q: q.counts.dead_lettered),
        Column("queue_messages_purged_total", COUNTER, "Messages that were removed by purging",
               lambda q: q.counts.purged),
    ), prefix="leveret_"),
    Group("queue_states", QUEUE_LABELS, (
        Column("queue_messages_alpha", GAUGE, "Ready messages that are in memory", lambda q: q.levels.alpha),
        Column("queue_messages_beta", GAUGE,
               "Ready transient messages of which only the position is in memory", lambda q: q.levels.beta),
        Column("queue_messages_gamma", GAUGE,
               "Ready persistent messages of which only the position is in memory", lambda q: q.levels.gamma),
        Column("queue_messages_delta", GAUGE, "Ready messages that are on disk only", lambda q: q.levels.delta),
    ), prefix="leveret_"),
    Group("queue_promises", QUEUE_LABELS, (
        Column("queue_promises_open", GAUGE, "Publishes whose confirms wait for consumers of this queue",
               lambda q: q.levels.promises),
        Column("queue_light_rejects_total", COUNTER,
               "Messages that came back though nothing was kept of them, so that their publishers were told to send "
               "them again", lambda q: q.counts.lost),
    ), prefix="leveret_"),
)  # fmt: skip

CHANNEL_LABELS = ("channel",)
VHOST_CHANNEL_LABELS = ("channel", "vhost")
CHANNELS: tuple[Group[ChannelRow], ...] = (
    Group("channel_metrics", CHANNEL_LABELS, (
        Column("channel_consumers", GAUGE, "Consumers on a channel", lambda c: c.levels.consumers),
        Column("channel_messages_unacked", GAUGE, "Messages that were delivered and not acknowledged yet",
               lambda c: c.levels.unacked),
        Column("channel_messages_unconfirmed", GAUGE, "Messages that were published and not confirmed yet",
               lambda c: c.levels.unconfirmed),
        Column("channel_messages_uncommitted", GAUGE, "Messages of a transaction that is not committed yet",
               lambda c: c.levels.uncommitted),
        Column("channel_acks_uncommitted", GAUGE, "Acknowledgements of a transaction that is not committed yet",
               lambda c: c.levels.acks_uncommitted),
        Column("consumer_prefetch", GAUGE, "Limit of unacknowledged messages for each new consumer",
               lambda c: c.levels.prefetch),
        Column("channel_prefetch", GAUGE, "Limit of unacknowledged messages for all consumers of a channel",
               lambda c: c.levels.global_prefetch),
    )),
    Group("channel_exchange_metrics", VHOST_CHANNEL_LABELS, (
        Column("channel_messages_published_total", COUNTER, "Messages published", lambda c: c.counts.published),
        Column("channel_messages_confirmed_total", COUNTER, "Messages published and confirmed",
               lambda c: c.counts.confirmed),
        Column("channel_messages_unroutable_returned_total", COUNTER,
               "Mandatory messages that no queue was found for, and that went back", lambda c: c.counts.returned),
        Column("channel_messages_unroutable_dropped_total", COUNTER,
               "Messages that no queue was found for, and that were dropped", lambda c: c.counts.dropped),
    )),
    Group("channel_queue_metrics", VHOST_CHANNEL_LABELS, (
        Column("channel_get_ack_total", COUNTER, "Messages got with basic.get that have to be acknowledged",
               lambda c: c.counts.got_ack),
        Column("channel_get_total", COUNTER, "Messages got with basic.get that need no acknowledgement",
               lambda c: c.counts.got_auto),
        Column("channel_messages_delivered_ack_total", COUNTER,
               "Messages delivered to consumers that have to acknowledge", lambda c: c.counts.delivered_ack),
        Column("channel_messages_delivered_total", COUNTER,
               "Messages delivered to consumers that need not acknowledge", lambda c: c.counts.delivered_auto),
        Column("channel_messages_redelivered_total", COUNTER, "Messages delivered or got not for the first time",
               lambda c: c.counts.redelivered),
        Column("channel_messages_acked_total", COUNTER, "Messages acknowledged by consumers",
               lambda c: c.counts.acked),
        Column("channel_get_empty_total", COUNTER, "How often basic.get found no message",
               lambda c: c.counts.get_empty),
    )),
    Group("channel_confirm_metrics", CHANNEL_LABELS, (
        Column("channel_messages_nacked_total", COUNTER, "Messages published and nacked", lambda c: c.counts.nacked),
    ), prefix="leveret_"),
)  # fmt: skip

CONNECTION_LABELS = ("channel",)
CONNECTIONS: tuple[Group[ConnectionRow], ...] = (
    Group("connection_coarse_metrics", CONNECTION_LABELS, (
        Column("connection_incoming_bytes_total", COUNTER, "Octets received", lambda c: c.counts.octets_in),
        Column("connection_outgoing_bytes_total", COUNTER, "Octets sent", lambda c: c.counts.octets_out),
    )),
    Group("connection_metrics", CONNECTION_LABELS, (
        Column("connection_incoming_packets_total", COUNTER, "Reads from the socket", lambda c: c.counts.reads),
        Column("connection_outgoing_packets_total", COUNTER, "Writes to the socket", lambda c: c.counts.writes),
        Column("connection_pending_packets", GAUGE, "Frames that wait to be written", lambda c: c.levels.pending),
        Column("connection_channels", GAUGE, "Channels of a connection", lambda c: c.levels.channels),
    )),
)  # fmt: skip

EXCHANGE_LABELS = ("vhost", "exchange")
TYPED_EXCHANGE_LABELS = ("vhost", "exchange", "type")
EXCHANGES: tuple[Group[Exchange], ...] = (
    Group("exchange_metrics", EXCHANGE_LABELS, (
        Column("exchange_messages_published_total", COUNTER, "Messages published to an exchange",
               lambda x: x.published_in),
        Column("exchange_messages_unroutable_returned_total", COUNTER,
               "Mandatory messages that no queue was found for, and that went back", lambda x: x.returned),
        Column("exchange_messages_unroutable_dropped_total", COUNTER,
               "Messages that no queue was found for, and that were dropped", lambda x: x.unroutable - x.returned),
    )),
    Group("exchange_names", TYPED_EXCHANGE_LABELS, (
        Column("exchange_name", GAUGE, "1 for each exchange that publishers may name", lambda _: 1),
    ), prefix="rabbitmq_cluster_", always=False),
    Group("exchange_bindings", TYPED_EXCHANGE_LABELS, (
        Column("exchange_bindings", GAUGE, "Bindings of which an exchange is the source", lambda x: x.binding_count),
    ), prefix="rabbitmq_cluster_", always=False),
)  # fmt: skip
