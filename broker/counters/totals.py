"""What has happened since the broker was started, whoever counted it: the numbers that outlive their objects.

Theory. Connections, channels and queues count with plain integers of their own, which nobody adds up while they work.
When one of them goes its counts are added here. So the sum over those that are gone (`Totals`) and those that live is
what has happened altogether, and never falls: whoever sums up takes `Totals` and the list of the living in one step
and may then visit these at leisure, because an object keeps its counts when it is gone.

Hot path: see docs/performance.md. Message sizes are the one thing that is counted here for each message.
"""

from bisect import bisect_left
from collections import defaultdict
from operator import add
from typing import NamedTuple, TypeVar

SIZE_BOUNDS = (100, 1000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000)
"""Octets of a body that RabbitMQ's histogram of message sizes has as upper bounds of its buckets, but for the last."""
MOST_SIZES = 1000
"""Different sizes that are counted one by one before they are put into their buckets."""


class ConnectionCounts(NamedTuple):
    """What a connection has read and written."""

    octets_in: int = 0
    octets_out: int = 0
    reads: int = 0
    writes: int = 0


class ChannelCounts(NamedTuple):
    """What has come and gone by a channel, in messages."""

    published: int = 0
    numbered: int = 0
    """Those of the published that the channel was to confirm."""
    confirmed: int = 0
    nacked: int = 0
    returned: int = 0
    """Mandatory ones that no queue was found for."""
    dropped: int = 0
    """The same of those that were not mandatory."""
    delivered_ack: int = 0
    """Delivered to consumers that have to ack."""
    delivered_auto: int = 0
    """Delivered to consumers that need not."""
    got_ack: int = 0
    got_auto: int = 0
    """The same for `basic.get`."""
    get_empty: int = 0
    """How often that found none."""
    redelivered: int = 0
    """Those of the delivered and got that had been so before."""
    acked: int = 0

    @property
    def delivered(self) -> int:
        """To consumers and by `basic.get`."""
        return self.delivered_ack + self.delivered_auto + self.got_ack + self.got_auto


class QueueCounts(NamedTuple):
    """What has come to a queue and left it, in messages."""

    published: int = 0
    forwarded: int = 0
    """Those of the published that came as dead letters."""
    delivered: int = 0
    """To consumers and by `basic.get`."""
    delivered_auto: int = 0
    """Those of them that went to consumers that need not ack."""
    got_ack: int = 0
    got_auto: int = 0
    get_empty: int = 0
    redelivered: int = 0
    acked: int = 0
    """Settled deliveries."""
    discarded: int = 0
    """Those of the acked that were rejected instead."""
    lost: int = 0
    """Light deliveries that came back: their publishers were told to send them again."""
    expired: int = 0
    dropped: int = 0
    """Because the queue was too long."""
    rejected: int = 0
    dead_lettered: int = 0
    """Those of the expired, dropped and rejected that went to a dead letter exchange, should there be one."""
    purged: int = 0


Counts = TypeVar("Counts", ConnectionCounts, ChannelCounts, QueueCounts)


def added(one: Counts, other: Counts) -> Counts:
    """What both have counted."""
    return type(one)(*map(add, one, other))


class QueueTally:
    """What a queue counts besides what passes all the time: the parts of `QueueCounts` that change less often.

    `delivered_auto` is of consumers that have left.
    """

    __slots__ = (
        "dead_lettered",
        "delivered_auto",
        "discarded",
        "dropped",
        "expired",
        "forwarded",
        "get_empty",
        "got_ack",
        "got_auto",
        "purged",
        "rejected",
        "requeued",
    )

    def __init__(self) -> None:
        self.forwarded = self.delivered_auto = self.got_ack = self.got_auto = self.get_empty = 0
        self.discarded = self.expired = self.dropped = self.rejected = self.dead_lettered = self.purged = 0
        self.requeued = 0


class Sizes:
    """How large messages are: a histogram of octets of bodies.

    Attributes:
        fresh: messages by their size, those that are in no bucket yet. The receive loop counts here itself, and owes
            a `fold` when there are more than `MOST_SIZES`.

    """

    __slots__ = ("_counts", "_octets", "fresh")

    def __init__(self) -> None:
        self.fresh: defaultdict[int, int] = defaultdict(int)
        self._counts = [0] * (len(SIZE_BOUNDS) + 1)
        self._octets = 0

    def add(self, size: int) -> None:
        """Note one."""
        self.fresh[size] += 1
        if len(self.fresh) > MOST_SIZES:
            self.fold()

    def fold(self) -> None:
        """Put all that is fresh into its buckets."""
        for size, count in self.fresh.items():
            self._counts[bisect_left(SIZE_BOUNDS, size)] += count
            self._octets += size * count
        self.fresh.clear()

    @property
    def counts(self) -> list[int]:
        """Messages by bucket: up to each of `SIZE_BOUNDS`, and larger."""
        self.fold()
        return self._counts

    @property
    def octets(self) -> int:
        """Of all of them."""
        self.fold()
        return self._octets


class Totals:
    """What is left of those that are gone, and what nobody else counts; one for a server."""

    __slots__ = (
        "auth_failed",
        "auth_succeeded",
        "channels",
        "connections",
        "dead_letters",
        "lost",
        "pauses_disk",
        "pauses_queue",
        "queues",
        "queues_created",
        "queues_declared",
        "queues_deleted",
        "sizes",
        "transitions",
    )

    def __init__(self) -> None:
        self.connections = ConnectionCounts()
        self.channels = ChannelCounts()
        self.queues: dict[str, QueueCounts] = {}
        """By type."""
        self.transitions: dict[str, int] = {}
        """Messages of queues that are gone that changed their state in memory and on disk, by kind."""
        self.queues_declared = self.queues_created = self.queues_deleted = 0
        """Of all vhosts, those that are gone as well."""
        self.lost = 0
        """Light deliveries that came back when their queue was gone."""
        self.dead_letters: dict[tuple[str, str], int] = {}
        """Messages that went to a dead letter exchange, by type of queue and reason."""
        self.sizes = Sizes()
        self.auth_succeeded = 0
        self.auth_failed = 0
        self.pauses_queue = 0
        """How often a publisher was made to wait for a queue."""
        self.pauses_disk = 0
        """The same for the disk."""

    def connection_closed(self, counts: ConnectionCounts) -> None:
        """Keep what a connection has counted; to be called once for each."""
        self.connections = added(self.connections, counts)

    def channel_closed(self, counts: ChannelCounts) -> None:
        """The same of a channel, which has given back what it held."""
        self.channels = added(self.channels, counts)

    def queue_deleted(self, kind: str, counts: QueueCounts, transitions: dict[str, int]) -> None:
        """The same of a queue of that type, whose consumers have left."""
        self.queues[kind] = added(self.queues.get(kind, QueueCounts()), counts)
        for transition, count in transitions.items():
            self.transitions[transition] = self.transitions.get(transition, 0) + count

    def dead_lettered(self, kind: str, reason: str, count: int) -> None:
        """So many messages of a queue of that type went to a dead letter exchange."""
        key = kind, reason
        self.dead_letters[key] = self.dead_letters.get(key, 0) + count
