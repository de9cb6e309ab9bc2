"""The values that are sampled of each kind of object, and the functions that read them. Nothing counts for this."""

from collections.abc import Mapping

from leveret.broker.channel.channel import Channel
from leveret.broker.connection.connection import Connection
from leveret.broker.counters.totals import ChannelCounts, ConnectionCounts
from leveret.broker.queue.queue import Queue
from leveret.broker.statistics.rates import Family
from leveret.broker.statistics.series import BASIC, DETAILED, GLOBAL, Row
from leveret.exchanges.base import Exchange

_DELIVER_GET: Mapping[str, tuple[str, ...]] = {
    "deliver_get": ("deliver", "deliver_no_ack", "get", "get_no_ack")
}
_MESSAGES: Mapping[str, tuple[str, ...]] = {"messages": ("messages_ready", "messages_unacknowledged")}
QUEUE_STATS = ("publish", "deliver", "deliver_no_ack", "get", "get_no_ack", "get_empty", "redeliver", "ack")
LENGTHS = ("messages_ready", "messages_unacknowledged")
CHANNEL_STATS = (
    "publish",
    "confirm",
    "return_unroutable",
    "drop_unroutable",
    "deliver",
    "deliver_no_ack",
    "get",
    "get_no_ack",
    "get_empty",
    "redeliver",
    "ack",
)
OCTETS = ("recv_oct", "send_oct")
DISK = ("disk_reads", "disk_writes")
CHURN = (
    "connection_created",
    "connection_closed",
    "channel_created",
    "channel_closed",
    "queue_declared",
    "queue_created",
    "queue_deleted",
)
MEASURED = ("mem_used", "fd_used", "sockets_used", "proc_used", "disk_free", "gc_num", "context_switches")
STORED = (
    "io_read_count",
    "io_write_count",
    "io_write_bytes",
    "io_sync_count",
    "msg_store_read_count",
    "msg_store_write_count",
)

QUEUES = Family(BASIC, (*QUEUE_STATS, *LENGTHS), {**_DELIVER_GET, **_MESSAGES})
CHANNELS = Family(DETAILED, CHANNEL_STATS, _DELIVER_GET)
CONNECTIONS = Family(BASIC, OCTETS)
EXCHANGES = Family(DETAILED, ("publish_in", "publish_out"))
VHOSTS = Family(BASIC, (*CHANNEL_STATS, *LENGTHS, *OCTETS), {**_DELIVER_GET, **_MESSAGES})
BROKER = Family(GLOBAL, (*CHANNEL_STATS, *LENGTHS, *DISK, *CHURN), {**_DELIVER_GET, **_MESSAGES})
NODE = Family(GLOBAL, (*MEASURED, *STORED))


def queue_row(queue: Queue) -> Row:
    """Return the sample of a queue."""
    tally = queue.tally
    auto = tally.delivered_auto
    if queue.consumers:
        auto += sum([each.delivered for each in queue.consumers if each.no_ack])
    backing = queue.backing
    return (
        queue.published,
        queue.delivered - auto - tally.got_ack - tally.got_auto,
        auto,
        tally.got_ack,
        tally.got_auto,
        tally.get_empty,
        queue.redelivered,
        max(0, queue.acked - tally.discarded),
        backing.ready_count,
        backing.unacked_count,
    )


def channel_row(counts: ChannelCounts) -> Row:
    """Return the sample of a channel, or of several together."""
    return (
        counts.published,
        counts.confirmed,
        counts.returned,
        counts.dropped,
        counts.delivered_ack,
        counts.delivered_auto,
        counts.got_ack,
        counts.got_auto,
        counts.get_empty,
        counts.redelivered,
        counts.acked,
    )


def connection_row(counts: ConnectionCounts) -> Row:
    """Return the sample of a connection."""
    return counts.octets_in, counts.octets_out


def exchange_row(exchange: Exchange) -> Row:
    """Return the sample of an exchange."""
    return exchange.published_in, exchange.published_out


def live_channel_row(channel: Channel) -> Row:
    """Return the sample of an open channel."""
    return channel_row(channel.counts())


def live_connection_row(connection: Connection) -> Row:
    """Return the sample of an open connection."""
    return connection.octets_in, connection.octets_out
