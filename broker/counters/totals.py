"""Counters since the start of the broker, including those of closed connections, closed channels and deleted queues.

Theory. Connections, channels and queues count with plain integers of their own, which are not added up while they work.
When one of them ends, its counts are added here. So the sum of `Totals` and of all existing objects is the total, and
never decreases: to compute it, `Totals` and the list of existing objects are taken in one step; the objects may be
visited later, because an object keeps its counts when it has ended.

Hot path: see docs/performance.md. Message sizes are the one thing that is counted here for each message.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import add
from typing import NamedTuple, TypeVar

SIZE_BOUNDS = (100, 1000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000)
"""Upper bounds in bytes of the buckets of RabbitMQ's histogram of message sizes, except the last bucket's."""
MOST_SIZES = 1000  # most distinct sizes counted individually before they are put into their buckets


class ConnectionCounts(NamedTuple):
    """Counters of a connection."""

    octets_in: int = 0
    octets_out: int = 0
    reads: int = 0
    writes: int = 0


class ChannelCounts(NamedTuple):
    """Counters of a channel, in messages; the first are those that the API shows (`statistics.families`)."""

    published: int = 0
    confirmed: int = 0
    returned: int = 0  # unroutable mandatory messages
    dropped: int = 0  # unroutable messages that were not mandatory
    delivered_ack: int = 0  # messages delivered to consumers with manual acks
    delivered_auto: int = 0  # messages delivered to consumers with automatic acks
    got_ack: int = 0
    got_auto: int = 0  # messages fetched by `basic.get`: with manual (`got_ack`) and with automatic acks
    get_empty: int = 0  # number of `basic.get` that found no message
    redelivered: int = 0  # deliveries, by `basic.get` too, of messages that had been delivered before
    acked: int = 0
    numbered: int = 0  # messages published in confirm mode
    nacked: int = 0

    @property
    def delivered(self) -> int:
        """Messages delivered to consumers and by `basic.get`."""
        return self.delivered_ack + self.delivered_auto + self.got_ack + self.got_auto


class QueueCounts(NamedTuple):
    """Counters of a queue, in messages; the first are those that the API shows (`statistics.families`)."""

    published: int = 0
    delivered_ack: int = 0
    delivered_auto: int = 0
    got_ack: int = 0
    got_auto: int = 0
    get_empty: int = 0
    redelivered: int = 0
    settled: int = 0  # messages that consumers have acked: not those that were discarded instead
    forwarded: int = 0  # published messages that came as dead letters
    lost: int = 0  # light deliveries that were requeued: their publishes were nacked
    expired: int = 0
    dropped: int = 0  # messages dropped because of the length limit
    rejected: int = 0
    dead_lettered: int = 0  # expired, dropped and rejected messages that were dead-lettered
    cycled: int = 0  # those dropped, as they had died in the queue they would go to: a cycle
    purged: int = 0
    repeated: int = 0  # publishes dropped because the queue knew their ids

    @property
    def got(self) -> int:
        """Messages fetched by `basic.get`."""
        return self.got_ack + self.got_auto

    @property
    def delivered(self) -> int:
        """Messages delivered to consumers and by `basic.get`."""
        return self.delivered_ack + self.delivered_auto + self.got_ack + self.got_auto


Counts = TypeVar("Counts", ConnectionCounts, ChannelCounts, QueueCounts)


def added(one: Counts, other: Counts) -> Counts:
    """Return the sum of two sets of counters."""
    return type(one)(*map(add, one, other))


@dataclass(slots=True, eq=False)
class QueueTally:
    """Counters of a queue for less frequent events: the parts of `QueueCounts` that change rarely.

    `delivered_auto` counts the deliveries of consumers that have been cancelled.
    """

    forwarded: int = 0
    delivered_auto: int = 0
    got_ack: int = 0
    got_auto: int = 0
    get_empty: int = 0
    discarded: int = 0  # messages counted as acked that were discarded instead
    expired: int = 0
    dropped: int = 0
    rejected: int = 0
    dead_lettered: int = 0
    purged: int = 0
    requeued: int = 0
    cycled: int = 0
    repeated: int = 0


class Sizes:
    """Histogram of message sizes, in bytes of the body."""

    __slots__ = ("_counts", "_octets", "fresh")

    def __init__(self) -> None:
        self.fresh: defaultdict[int, int] = defaultdict(int)
        """Messages by size that are in no bucket yet. The receive loop updates it directly, and must call `fold` when
        it has more than `MOST_SIZES` entries."""
        self._counts = [0] * (len(SIZE_BOUNDS) + 1)
        self._octets = 0

    def add(self, size: int) -> None:
        """Count a message."""
        self.fresh[size] += 1
        if len(self.fresh) > MOST_SIZES:
            self.fold()

    def fold(self) -> None:
        """Move the counts in `fresh` to their buckets."""
        for size, count in self.fresh.items():
            self._counts[bisect_left(SIZE_BOUNDS, size)] += count
            self._octets += size * count
        self.fresh.clear()

    @property
    def counts(self) -> list[int]:
        """Messages by bucket: up to each of `SIZE_BOUNDS`, and larger ones."""
        self.fold()
        return self._counts

    @property
    def octets(self) -> int:
        """Total size of all messages in bytes."""
        self.fold()
        return self._octets


@dataclass(slots=True, eq=False)
class Totals:
    """Counters of closed connections, closed channels and deleted queues, plus server-wide counters. One per server."""

    connections: ConnectionCounts = field(default_factory=ConnectionCounts)
    channels: ChannelCounts = field(default_factory=ChannelCounts)
    queues: dict[str, QueueCounts] = field(default_factory=dict)  # counters of deleted queues, by queue type
    transitions: dict[str, int] = field(default_factory=dict)
    """Changes of state (in memory, on disk) of messages of deleted queues, by kind."""
    queues_declared: int = 0  # counts over all vhosts, deleted ones included; as the next two
    queues_created: int = 0
    queues_deleted: int = 0
    lost: int = 0  # light deliveries that were requeued after their queue was deleted
    dead_letters: dict[tuple[str, str], int] = field(default_factory=dict)
    """Dead-lettered messages, by queue type and reason."""
    sizes: Sizes = field(default_factory=Sizes)
    auth_succeeded: int = 0
    auth_failed: int = 0
    pauses_queue: int = 0  # pauses of publishers because of a queue
    pauses_disk: int = 0  # pauses of publishers because of the disk

    def connection_closed(self, counts: ConnectionCounts) -> None:
        """Add the counters of a closed connection; must be called once for each."""
        self.connections = added(self.connections, counts)

    def channel_closed(self, counts: ChannelCounts) -> None:
        """Add the counters of a closed channel, after its messages were requeued; must be called once for each."""
        self.channels = added(self.channels, counts)

    def queue_deleted(self, kind: str, counts: QueueCounts, transitions: Mapping[str, int]) -> None:
        """Add the counters of a deleted queue, after its consumers were removed; must be called once for each."""
        self.queues[kind] = added(self.queues.get(kind, QueueCounts()), counts)
        for transition, count in transitions.items():
            self.transitions[transition] = self.transitions.get(transition, 0) + count

    def dead_lettered(self, kind: str, reason: str, count: int) -> None:
        """Count dead-lettered messages of a queue of type `kind`."""
        key = kind, reason
        self.dead_letters[key] = self.dead_letters.get(key, 0) + count
