"""The values that are sampled of each kind of object, and what reads them: counters that the objects have anyway."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from leveret.broker.channel.channel import Channel
from leveret.broker.connection.connection import Connection
from leveret.broker.counters.totals import ChannelCounts, ConnectionCounts, QueueCounts
from leveret.broker.queue.queue import Queue
from leveret.broker.statistics.rates import Family
from leveret.broker.statistics.series import BASIC, DETAILED, GLOBAL, Row

_DELIVER_GET: Mapping[str, tuple[str, ...]] = {
    "deliver_get": ("deliver", "deliver_no_ack", "get", "get_no_ack")
}
_MESSAGES: Mapping[str, tuple[str, ...]] = {"messages": ("messages_ready", "messages_unacknowledged")}
_DELIVERIES = {
    "deliver": "delivered_ack",
    "deliver_no_ack": "delivered_auto",
    "get": "got_ack",
    "get_no_ack": "got_auto",
    "get_empty": "get_empty",
    "redeliver": "redelivered",
}
QUEUE_STATS = {"publish": "published", **_DELIVERIES, "ack": "settled"}
"""Names in `message_stats` of the counters of a queue (`QueueCounts`)."""
CHANNEL_STATS = {
    "publish": "published",
    "confirm": "confirmed",
    "return_unroutable": "returned",
    "drop_unroutable": "dropped",
    **_DELIVERIES,
    "ack": "acked",
}
"""Names in `message_stats` of the counters of a channel (`ChannelCounts`)."""
LENGTHS = ("messages_ready", "messages_unacknowledged")
OCTETS = {"recv_oct": "octets_in", "send_oct": "octets_out"}
DISK = ("disk_reads", "disk_writes")
CHURN = {
    "connection_created": "clients.connections_opened",
    "connection_closed": "clients.connections_closed",
    "channel_created": "clients.channels_opened",
    "channel_closed": "clients.channels_closed",
    "queue_declared": "context.totals.queues_declared",
    "queue_created": "context.totals.queues_created",
    "queue_deleted": "context.totals.queues_deleted",
}
"""Names of the counters of objects that came and went, and where a broker has them."""
MEASURED = ("mem_used", "fd_used", "sockets_used", "proc_used", "disk_free", "gc_num", "context_switches")
STORED = (
    "io_read_count",
    "io_write_count",
    "io_write_bytes",
    "io_sync_count",
    "msg_store_read_count",
    "msg_store_write_count",
)

_queue_stats: Callable[[QueueCounts], Row] = attrgetter(*QUEUE_STATS.values())
channel_row: Callable[[ChannelCounts], Row] = attrgetter(*CHANNEL_STATS.values())
"""Returns the row of a channel, or of several together."""
NO_CHANNEL = channel_row(ChannelCounts())
connection_row: Callable[[Connection | ConnectionCounts], Row] = attrgetter(*OCTETS.values())
"""Returns the row of a connection, or of several together."""

churn: Callable[[Any], Row] = attrgetter(*CHURN.values())
"""Returns the counters of a broker for `CHURN`."""


def lengths(queue: Queue) -> Row:
    """Return the numbers of ready and unacked messages of a queue."""
    return queue.backing.ready_count, queue.backing.unacked_count


def _queue_row(queue: Queue) -> Row:
    return *_queue_stats(queue.counts()), queue.backing.ready_count, queue.backing.unacked_count


def _live_channel_row(channel: Channel) -> Row:
    return channel_row(channel.counts())


_WITH_SUMS = {**_DELIVER_GET, **_MESSAGES}
_STATS = tuple(CHANNEL_STATS)
QUEUES = Family(BASIC, (*QUEUE_STATS, *LENGTHS), _WITH_SUMS, tuple(QUEUE_STATS), _queue_row)
CHANNELS = Family(DETAILED, _STATS, _DELIVER_GET, _STATS, _live_channel_row)
CONNECTIONS = Family(BASIC, tuple(OCTETS), read=connection_row)
_COPIES = ("publish_in", "publish_out")
EXCHANGES = Family(DETAILED, _COPIES, {}, _COPIES, attrgetter("published_in", "published_out"))
VHOSTS = Family(BASIC, (*_STATS, *LENGTHS, *OCTETS), _WITH_SUMS, _STATS)
BROKER = Family(GLOBAL, (*_STATS, *LENGTHS, *DISK, *CHURN), _WITH_SUMS, _STATS)
NODE = Family(GLOBAL, (*MEASURED, *STORED))
