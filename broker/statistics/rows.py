"""The figures of queues, channels and connections: their counters (`counters.totals`), and levels beside them.

Each figure has one name and is computed in one place. What is shown selects from these by name, and adds its own name,
text and rounding: the samples of the API (`families`), its keys (`management.queue_fields`, `clients`),
Prometheus' series (`metrics.per_object`), and the export (`export.tables`). Two differ on purpose: the API processes a
queue's input first, so that lengths are those of this moment; the export counts memory of ready messages only, as
paging does.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from leveret.broker.channel.channel import Channel
from leveret.broker.connection.connection import Connection
from leveret.broker.counters.totals import ChannelCounts, ConnectionCounts, QueueCounts
from leveret.broker.queue.queue import Queue
from leveret.broker.statistics.queue_health import is_unserved, lacks_acks
from leveret.storage.queues.backing_queue import PagingCounts


class QueueLevels(NamedTuple):
    """Current levels of a queue, in messages."""

    ready: int = 0
    unacked: int = 0
    consumers: int = 0
    ready_ram: int = 0
    unacked_ram: int = 0
    octets_ram: int = 0  # bytes of ready and unacked messages; 0 without a disk, where none are counted
    alpha: int = 0
    beta: int = 0
    gamma: int = 0
    delta: int = 0
    promises: int = 0  # publish numbers that wait for consumers of it, light ones included
    forsaken: int = 0  # 1 if any do, and the queue has no consumer
    unserved: int = 0  # 1 if messages wait for a consumer that is not there (`statistics.queue_health`)
    retained: int = 0  # acked messages that are retained
    retained_octets: int = 0  # bytes of their bodies
    held: int = 0  # messages that are held until their time
    ids: int = 0  # ids of messages that the queue knows

    @property
    def messages(self) -> int:
        """Ready and unacked messages."""
        return self.ready + self.unacked

    @property
    def ram(self) -> int:
        """Messages whose bodies are in memory."""
        return self.ready_ram + self.unacked_ram

    @property
    def paged_out(self) -> int:
        """Messages whose bodies are on disk only."""
        return max(0, self.ready + self.unacked - self.ready_ram - self.unacked_ram)


class ChannelLevels(NamedTuple):
    """Current levels of a channel."""

    consumers: int = 0
    unacked: int = 0
    unconfirmed: int = 0
    uncommitted: int = 0
    acks_uncommitted: int = 0
    prefetch: int = 0
    global_prefetch: int = 0
    publishers: int = 0  # 1 for a channel that has published


class ConnectionLevels(NamedTuple):
    """Current levels of a connection."""

    channels: int = 0
    pending: int = 0  # frames that have not been passed to the socket


Numbers = TypeVar(
    "Numbers", QueueCounts, QueueLevels, ChannelCounts, ChannelLevels, ConnectionCounts, ConnectionLevels
)


class Row(NamedTuple):
    """One object, or the sum of several: the counters and the levels of its kind."""

    counts: Any
    levels: Any
    transitions: Mapping[str, int] = {}  # messages that changed their state in memory and on disk, by kind
    capacity: float = 0.0  # the consumer capacity of a queue; 0 for a sum
    next_due: int = 0  # time (epoch ms) at which its next held message is due; 0 for none, and for a sum


def queue_row(queue: Queue) -> Row:
    """Return the row of a queue."""
    paging = queue.backing.paging_counts()
    levels = queue_levels(queue, paging)
    return Row(queue.counts(), levels, paging.transitions, queue.consumer_capacity, queue.next_due or 0)


def queue_levels(queue: Queue, paging: PagingCounts) -> QueueLevels:
    """Return the levels of a queue; a deleted one has none."""
    if queue.deleted:
        return QueueLevels()
    backing, retained = queue.backing, queue.retained
    ready, unacked = backing.ready_count, backing.unacked_count - len(queue.waiting)
    promises = 0 if queue.awaiting is None else queue.awaiting.open_count
    return QueueLevels(  # by place, as `Queue.counts`
        ready,
        unacked,
        len(queue.consumers),
        paging.ram_msg_count,
        paging.ram_ack_count,
        paging.ram_octets + paging.unacked_octets,
        *(backing.state_counts() if ready or unacked else (0, 0, 0, 0)),
        promises,
        int(lacks_acks(queue)),
        int(is_unserved(queue)),
        0 if retained is None else retained.ready_count,
        0 if retained is None else retained.log.kept_octets,
        queue.held_count,
        0 if queue.ids is None else queue.ids.count,
    )


def channel_row(channel: Channel) -> Row:
    """Return the row of a channel; a closed one has only its counters."""
    return Row(channel.counts(), channel_levels(channel))


def channel_levels(channel: Channel) -> ChannelLevels:
    """Return the levels of a channel."""
    confirms, tx = channel.confirms, channel.tx
    return ChannelLevels(
        consumers=len(channel.consumers),
        unacked=len(channel.unacked),
        unconfirmed=0 if confirms is None else confirms.unconfirmed_count,
        uncommitted=0 if tx is None else len(tx.publishes),
        acks_uncommitted=0 if tx is None else len(tx.settled),
        prefetch=channel.prefetch_count,
        global_prefetch=channel.global_prefetch,
        publishers=int(channel.published > 0),
    )


def connection_row(connection: Connection) -> Row:
    """Return the row of a connection."""
    return Row(connection.counts(), ConnectionLevels(len(connection.channels), len(connection.outbox.frames)))


def summed(rows: Sequence[Row]) -> Row:
    """Return the sum of rows (at least one)."""
    transitions: Counter[str] = Counter()
    for row in rows:
        if row.transitions:
            transitions.update(row.transitions)
    return Row(all_of([row.counts for row in rows]), all_of([row.levels for row in rows]), transitions)


def all_of(rows: Sequence[Numbers]) -> Numbers:
    """Add up rows of numbers (at least one), column by column."""
    return type(rows[0])(*map(sum, zip(*rows, strict=True)))
