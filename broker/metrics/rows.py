"""Rows of plain numbers for queues, channels and connections, read during a scrape.

Counters are those of `broker.counters.totals`; the levels beside them are current values.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from leveret.broker.channel.channel import Channel
from leveret.broker.connection.connection import Connection
from leveret.broker.counters.totals import ChannelCounts, ConnectionCounts, QueueCounts
from leveret.broker.queue.queue import Queue

STATES = ("alpha", "beta", "gamma", "delta")


class QueueLevels(NamedTuple):
    """Current levels of a queue, in messages."""

    ready: int = 0
    unacked: int = 0
    consumers: int = 0
    ready_ram: int = 0
    unacked_ram: int = 0
    octets_ram: int = 0
    """Bytes of ready and unacked messages; 0 in a broker without a disk, where they are not counted."""
    alpha: int = 0
    beta: int = 0
    gamma: int = 0
    delta: int = 0
    promises: int = 0
    """Publish sequence numbers that wait for consumers of this queue, including those of light deliveries."""
    forsaken: int = 0
    """1 if any do, and the queue has no consumer."""
    retained: int = 0
    """Acked messages that are retained."""
    retained_octets: int = 0
    """Bytes of their bodies."""


class QueueRow(NamedTuple):
    """One queue, or the sum of several."""

    counts: QueueCounts
    levels: QueueLevels
    transitions: Mapping[str, int]
    """Messages that changed their state in memory and on disk, by kind."""
    capacity: float = 0.0


class ChannelLevels(NamedTuple):
    """Current levels of a channel."""

    consumers: int = 0
    unacked: int = 0
    unconfirmed: int = 0
    uncommitted: int = 0
    acks_uncommitted: int = 0
    prefetch: int = 0
    global_prefetch: int = 0
    publishers: int = 0
    """1 for a channel that has published."""


class ChannelRow(NamedTuple):
    """One channel, or the sum of several."""

    counts: ChannelCounts
    levels: ChannelLevels


class ConnectionLevels(NamedTuple):
    """Current levels of a connection."""

    channels: int = 0
    pending: int = 0
    """Frames that have not been passed to the socket."""


class ConnectionRow(NamedTuple):
    """One connection, or the sum of several."""

    counts: ConnectionCounts
    levels: ConnectionLevels


Numbers = TypeVar(
    "Numbers", QueueCounts, QueueLevels, ChannelCounts, ChannelLevels, ConnectionCounts, ConnectionLevels
)


def queue_levels(queue: Queue) -> QueueLevels:
    """Return the current levels of a queue; zeros for a deleted one."""
    if queue.deleted:
        return QueueLevels()
    backing = queue.backing
    ready, unacked = backing.ready_count, backing.unacked_count
    promises = 0 if queue.awaiting is None else queue.awaiting.open_count
    forsaken = int(promises > 0 and not queue.consumer_count)
    retained, retained_octets = _retained(queue)
    if not ready and not unacked:
        return QueueLevels(
            consumers=len(queue.consumers),
            promises=promises,
            forsaken=forsaken,
            retained=retained,
            retained_octets=retained_octets,
        )
    alpha, beta, gamma, delta = backing.state_counts()
    paging = backing.paging_counts()
    return QueueLevels(
        ready=ready,
        unacked=unacked,
        consumers=len(queue.consumers),
        ready_ram=paging.ram_msg_count,
        unacked_ram=paging.ram_ack_count,
        octets_ram=paging.ram_octets + paging.unacked_octets,
        alpha=alpha,
        beta=beta,
        gamma=gamma,
        delta=delta,
        promises=promises,
        forsaken=forsaken,
        retained=retained,
        retained_octets=retained_octets,
    )


def _retained(queue: Queue) -> tuple[int, int]:
    """Return the number of retained messages of a queue, and the bytes of their bodies."""
    retained = queue.retained
    if retained is None or retained.limits is None:
        return 0, 0
    return queue.retained_count, retained.limits.octets


def queue_row(queue: Queue) -> QueueRow:
    """Return the row of a queue."""
    transitions = queue.backing.paging_counts().transitions
    return QueueRow(queue.counts(), queue_levels(queue), transitions, queue.consumer_capacity)


def channel_row(channel: Channel) -> ChannelRow:
    """Return the row of a channel; a closed one has only its counters."""
    confirms, tx = channel.confirms, channel.tx
    levels = ChannelLevels(
        consumers=len(channel.consumers),
        unacked=len(channel.unacked),
        unconfirmed=0 if confirms is None else confirms.unconfirmed_count,
        uncommitted=0 if tx is None else len(tx.publishes),
        acks_uncommitted=0 if tx is None else len(tx.settled),
        prefetch=channel.prefetch_count,
        global_prefetch=channel.global_prefetch,
        publishers=int(channel.published > 0),
    )
    return ChannelRow(channel.counts(), levels)


def connection_row(connection: Connection) -> ConnectionRow:
    """Return the row of a connection."""
    levels = ConnectionLevels(len(connection.channels), len(connection.outbox.frames))
    return ConnectionRow(connection.counts(), levels)


def all_queues(rows: Sequence[QueueRow]) -> QueueRow:
    """Return the sum of rows (at least one)."""
    transitions: Counter[str] = Counter()
    for row in rows:
        if row.transitions:
            transitions.update(row.transitions)
    return QueueRow(_summed([row.counts for row in rows]), _summed([row.levels for row in rows]), transitions)


def all_channels(rows: Sequence[ChannelRow]) -> ChannelRow:
    """Return the sum of rows (at least one)."""
    return ChannelRow(_summed([row.counts for row in rows]), _summed([row.levels for row in rows]))


def all_connections(rows: Sequence[ConnectionRow]) -> ConnectionRow:
    """Return the sum of rows (at least one)."""
    return ConnectionRow(_summed([row.counts for row in rows]), _summed([row.levels for row in rows]))


def _summed(rows: Sequence[Numbers]) -> Numbers:
    """Add up rows of numbers (at least one), column by column."""
    return type(rows[0])(*map(sum, zip(*rows, strict=True)))
