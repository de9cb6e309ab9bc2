"""The values that are sampled of each kind of object, and what reads them: counters that the objects have anyway."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from leveret.broker.connection.connection import Connection
from leveret.broker.counters.totals import ChannelCounts, ConnectionCounts
from leveret.broker.queue.queue import Queue
from leveret.broker.statistics.node_figures import NODE_COUNTS
from leveret.broker.statistics.series import BASIC, DETAILED, GLOBAL, Family, Row

_DELIVERIES = ("deliver", "deliver_no_ack", "get", "get_no_ack", "get_empty", "redeliver", "ack")
QUEUE_STATS = ("publish", *_DELIVERIES)  # names in `message_stats` of the first of `QueueCounts`
CHANNEL_STATS = ("publish", "confirm", "return_unroutable", "drop_unroutable", *_DELIVERIES)
"""Names in `message_stats` of the first counters of a channel (`ChannelCounts`)."""
LENGTHS = ("messages_ready", "messages_unacknowledged")
OCTETS = ("recv_oct", "send_oct")
DISK = ("disk_reads", "disk_writes")
CHURN = {  # names of the counters of objects that came and went, and where a broker has them
    "connection_created": "clients.connections_opened",
    "connection_closed": "clients.connections_closed",
    "channel_created": "clients.channels_opened",
    "channel_closed": "clients.channels_closed",
    "queue_declared": "context.totals.queues_declared",
    "queue_created": "context.totals.queues_created",
    "queue_deleted": "context.totals.queues_deleted",
}
_QUEUE, _CHANNEL = len(QUEUE_STATS), len(CHANNEL_STATS)


def _queue_row(queue: Queue) -> Row:
    backing = queue.backing
    return *queue.counts()[:_QUEUE], backing.ready_count, backing.unacked_count


def lengths(queue: Queue) -> Row:
    """Return the numbers of ready and unacked messages of a queue."""
    return queue.backing.ready_count, queue.backing.unacked_count


def channel_row(counts: ChannelCounts) -> Row:
    """Return the row of a channel, or of several together."""
    return counts[:_CHANNEL]


NO_CHANNEL = channel_row(ChannelCounts())
connection_row: Callable[[Connection | ConnectionCounts], Row] = attrgetter("octets_in", "octets_out")
"""Returns the row of a connection, or of several together."""
churn: Callable[[Any], Row] = attrgetter(*CHURN.values())  # returns the counters of a broker for `CHURN`

_DELIVER_GET = {"deliver_get": ("deliver", "deliver_no_ack", "get", "get_no_ack")}
_WITH_SUMS = {**_DELIVER_GET, "messages": LENGTHS}
_COPIES = ("publish_in", "publish_out")
QUEUES = Family(BASIC, (*QUEUE_STATS, *LENGTHS), _WITH_SUMS, QUEUE_STATS, _queue_row)
CHANNELS = Family(
    DETAILED, CHANNEL_STATS, _DELIVER_GET, CHANNEL_STATS, lambda channel: channel_row(channel.counts())
)
CONNECTIONS = Family(BASIC, OCTETS, read=connection_row)
EXCHANGES = Family(DETAILED, _COPIES, {}, _COPIES, attrgetter("published_in", "published_out"))
VHOSTS = Family(BASIC, (*CHANNEL_STATS, *LENGTHS, *OCTETS), _WITH_SUMS, CHANNEL_STATS)
BROKER = Family(GLOBAL, (*CHANNEL_STATS, *LENGTHS, *DISK, *CHURN), _WITH_SUMS, CHANNEL_STATS)
NODE = Family(GLOBAL, tuple(NODE_COUNTS))
