"""Metrics per queue, channel, connection and exchange: RabbitMQ's names, types and groups.

A group is a name accepted by `/metrics/detailed?family=`. A label `channel` for a connection is RabbitMQ's choice.
Channels count without regard to exchange and queue, and queues without regard to channel and exchange, so their series
have fewer labels than RabbitMQ's, and no additional ones (`docs/generate/rabbitmq_differences.py`).

Source: rabbitmq-server, deps/rabbitmq_prometheus, metrics.md and metrics-detailed.md.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from leveret.broker.metrics.text import Column, counter, gauge


class Group(NamedTuple):
    """Columns that are requested together."""

    name: str
    labels: tuple[str, ...]
    columns: Sequence[Column]
    prefix: str = "rabbitmq_"
    always: bool = True  # True if it is included when no group is requested


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


def _deliveries(kind: str, acked: str) -> list[Column]:
    """Return the columns for the deliveries of a kind of objects; `acked` is its counter of acks."""
    return [
        counter(f"{kind}_{name}", text, f"counts.{acked if each == 'settled' else each}")
        for name, (each, text) in DELIVERIES.items()
    ]


def queue_type_label(kind: str) -> str:
    """Return RabbitMQ's label value for a queue type."""
    return f"rabbit_{kind}_queue"


QUEUE_LABELS = ("vhost", "queue")
TARGET_LABELS = ("queue_vhost", "queue")  # RabbitMQ's label names where exchanges have a vhost as well
QUEUE_INFO: Group = Group("", (*QUEUE_LABELS, "queue_type", "membership"), (
    gauge("queue_info", "1 for each queue, with its type and membership", lambda _: 1, adds_up=False),
))  # fmt: skip
"""With every group of queues."""
QUEUES: tuple[Group, ...] = (
    Group("queue_coarse_metrics", QUEUE_LABELS, (
        gauge("queue_messages_ready", "Messages ready to be delivered to consumers", "levels.ready"),
        gauge("queue_messages_unacked", "Messages delivered to consumers but not yet acknowledged", "levels.unacked"),
        gauge("queue_messages", "Ready and unacknowledged messages together", "levels.messages"),
    )),
    Group("queue_consumer_count", QUEUE_LABELS, (
        gauge("queue_consumers", "Consumers on a queue", "levels.consumers"),
    )),
    Group("queue_metrics", QUEUE_LABELS, (
        gauge("queue_consumer_capacity", "Consumer capacity: fraction of the last seconds (0 to 1) in which a message "
              "could be delivered immediately", "capacity", adds_up=False),
        gauge("queue_consumer_utilisation", "Same as consumer capacity", "capacity", adds_up=False),
        gauge("queue_messages_ram", "Ready and unacknowledged messages stored in memory", "levels.ram"),
        gauge("queue_messages_ram_bytes",
              "Size of ready and unacknowledged messages stored in memory, with properties", "levels.octets_ram"),
        gauge("queue_messages_ready_ram", "Ready messages stored in memory", "levels.ready_ram"),
        gauge("queue_messages_unacked_ram", "Unacknowledged messages stored in memory", "levels.unacked_ram"),
        gauge("queue_messages_paged_out", "Ready and unacknowledged messages whose bodies are on disk only",
              "levels.paged_out"),
        counter("queue_disk_reads_total", "Messages whose positions were read back from disk",
                lambda q: q.transitions.get("from_delta", 0)),
    )),
    Group("queue_delivery_metrics", QUEUE_LABELS, _deliveries("queue", "settled")),
    Group("channel_queue_exchange_metrics", TARGET_LABELS, (
        counter("queue_messages_published_total", "Messages routed to a queue, including dead-lettered ones",
                "counts.published"),
    )),
    Group("queue_discards", QUEUE_LABELS, (
        counter("queue_messages_expired_total", "Messages discarded because their TTL expired", "counts.expired"),
        counter("queue_messages_dropped_total", "Messages discarded because of the queue's length limit, or a stream's",
                "counts.dropped"),
        counter("queue_messages_rejected_total", "Messages rejected by consumers without requeue", "counts.rejected"),
        counter("queue_messages_dead_lettered_total",
                "Messages dead-lettered after they expired, were dropped or were rejected", "counts.dead_lettered"),
        counter("queue_dead_letters_cycled_total", "Dead letters of a queue that were dropped, as they would have "
                "returned to a queue in which they had died since they were published (a dead-letter cycle without a "
                "reject)", "counts.cycled"),
        counter("queue_dead_letters_received_total", "Dead letters that were put into a queue", "counts.forwarded"),
        counter("queue_messages_purged_total", "Messages removed by queue.purge", "counts.purged"),
        counter("queue_messages_repeated_total", "Publishes dropped because the queue knew their ids (x-deduplicate)",
                "counts.repeated"),
    ), prefix="leveret_"),
    Group("queue_states", QUEUE_LABELS, (
        gauge("queue_messages_alpha", "Ready messages fully in memory", "levels.alpha"),
        gauge("queue_messages_beta", "Ready transient messages with only their position in memory", "levels.beta"),
        gauge("queue_messages_gamma", "Ready persistent messages with only their position in memory", "levels.gamma"),
        gauge("queue_messages_delta", "Ready messages on disk only", "levels.delta"),
    ), prefix="leveret_"),
    Group("queue_holds", QUEUE_LABELS, (
        gauge("queue_messages_held", "Messages held until their time", "levels.held"),
        gauge("queue_next_due_timestamp_seconds",
              "Time at which the next held message is due, in seconds since 1970; 0 if none is held",
              lambda q: q.next_due / 1000, adds_up=False),
    ), prefix="leveret_"),
    Group("queue_ids", QUEUE_LABELS, (
        gauge("queue_ids_known", "Ids of messages that a queue knows, of which some may have expired", "levels.ids"),
    ), prefix="leveret_"),
    Group("queue_retention", QUEUE_LABELS, (
        gauge("queue_messages_retained", "Acknowledged messages retained for a replay",
              "levels.retained"),
        gauge("queue_messages_retained_bytes", "Size of retained messages", "levels.retained_octets"),
    ), prefix="leveret_"),
    Group("queue_health", QUEUE_LABELS, (
        gauge("queue_without_consumer", "1 if messages wait and the queue lacks a consumer; 0 for dead letters, and "
              "for messages that are meant to expire", "levels.unserved"),
    ), prefix="leveret_"),
    Group("queue_promises", QUEUE_LABELS, (
        gauge("queue_promises_open",
              "Publishes not yet confirmed because they await acknowledgements by consumers of this queue",
              "levels.promises"),
        counter("queue_light_rejects_total", "Messages requeued in mode consumer-ack-light, which keeps no copy: "
                "removed, and their publishes nacked", "counts.lost"),
    ), prefix="leveret_"),
)  # fmt: skip

CHANNEL_LABELS = ("channel",)
VHOST_CHANNEL_LABELS = ("channel", "vhost")
CHANNELS: tuple[Group, ...] = (
    Group("channel_metrics", CHANNEL_LABELS, (
        gauge("channel_consumers", "Consumers on a channel", "levels.consumers"),
        gauge("channel_messages_unacked", "Messages delivered to consumers but not yet acknowledged",
              "levels.unacked"),
        gauge("channel_messages_unconfirmed", "Messages published but not yet confirmed", "levels.unconfirmed"),
        gauge("channel_messages_uncommitted", "Messages received in a transaction but not yet committed",
              "levels.uncommitted"),
        gauge("channel_acks_uncommitted", "Acknowledgements in a transaction not yet committed",
              "levels.acks_uncommitted"),
        gauge("consumer_prefetch", "Limit of unacknowledged messages for each new consumer (prefetch count)",
              "levels.prefetch"),
        gauge("channel_prefetch", "Total limit of unacknowledged messages for all consumers on a channel",
              "levels.global_prefetch"),
    )),
    Group("channel_exchange_metrics", VHOST_CHANNEL_LABELS, (
        counter("channel_messages_published_total", "Messages published on a channel", "counts.published"),
        counter("channel_messages_confirmed_total", "Messages published on a channel and confirmed",
                "counts.confirmed"),
        counter("channel_messages_unroutable_returned_total",
                "Unroutable messages returned to the publisher (mandatory)", "counts.returned"),
        counter("channel_messages_unroutable_dropped_total", "Unroutable messages dropped", "counts.dropped"),
    )),
    Group("channel_queue_metrics", VHOST_CHANNEL_LABELS, _deliveries("channel", "acked")),
    Group("channel_confirm_metrics", CHANNEL_LABELS, (
        counter("channel_messages_nacked_total", "Publishes nacked", "counts.nacked"),
    ), prefix="leveret_"),
)  # fmt: skip

CONNECTION_LABELS = ("channel",)
CONNECTIONS: tuple[Group, ...] = (
    Group("connection_coarse_metrics", CONNECTION_LABELS, (
        counter("connection_incoming_bytes_total", "Total number of bytes received on a connection",
                "counts.octets_in"),
        counter("connection_outgoing_bytes_total", "Total number of bytes sent on a connection", "counts.octets_out"),
    )),
    Group("connection_metrics", CONNECTION_LABELS, (
        counter("connection_incoming_packets_total", "Total number of reads from the socket", "counts.reads"),
        counter("connection_outgoing_packets_total", "Total number of writes to the socket", "counts.writes"),
        gauge("connection_pending_packets", "Frames waiting to be sent", "levels.pending"),
        gauge("connection_channels", "Channels on a connection", "levels.channels"),
    )),
)  # fmt: skip

EXCHANGE_LABELS = ("vhost", "exchange")
TYPED_EXCHANGE_LABELS = ("vhost", "exchange", "type")
EXCHANGES: tuple[Group, ...] = (
    Group("exchange_metrics", EXCHANGE_LABELS, (
        counter("exchange_messages_published_total", "Messages published to an exchange", "published_in"),
        counter("exchange_messages_unroutable_returned_total",
                "Unroutable messages returned to the publisher (mandatory)", "returned"),
        counter("exchange_messages_unroutable_dropped_total", "Unroutable messages dropped",
                lambda x: x.unroutable - x.returned),
    )),
    Group("exchange_discards", EXCHANGE_LABELS, (
        counter("exchange_messages_repeated_total",
                "Publishes dropped because the exchange knew their ids (x-deduplicate)", "repeated"),
    ), prefix="leveret_"),
    Group("exchange_names", TYPED_EXCHANGE_LABELS, (
        gauge("exchange_name", "1 for each exchange except internal ones and the default exchange", lambda _: 1),
    ), prefix="rabbitmq_cluster_", always=False),
    Group("exchange_bindings", TYPED_EXCHANGE_LABELS, (
        gauge("exchange_bindings", "Bindings with an exchange as the source", "binding_count"),
    ), prefix="rabbitmq_cluster_", always=False),
)  # fmt: skip
