"""The sampler: visits all objects once, in steps, and collects their metrics.

Theory. A sample begins with the totals of deleted objects and the lists of living ones, taken in one step; then the
living are visited, and those that are deleted meanwhile are counted by the totals they leave
(`broker.counters.totals`). So counters never decrease from one sample to the next.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from leveret.broker.administration.access import AdministeredBroker
from leveret.broker.channel.channel import Channel
from leveret.broker.connection.connection import Connection
from leveret.broker.connection.state import connection_state
from leveret.broker.counters.histogram import Histogram
from leveret.broker.counters.totals import QueueCounts
from leveret.broker.metrics.per_object import (
    CHANNELS,
    CONNECTIONS,
    QUEUE_INFO,
    QUEUES,
    Group,
    queue_type_label,
)
from leveret.broker.metrics.text import labels_text
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.time_slices import portions
from leveret.broker.statistics.node_figures import Process, disk_of
from leveret.broker.statistics.rows import (
    ChannelLevels,
    ConnectionLevels,
    QueueLevels,
    Row,
    all_of,
    channel_row,
    connection_row,
    queue_row,
    summed,
)
from leveret.broker.vhost.vhost import VHost

STEP = 100  # queues, channels or connections that are visited in one step
NAMES = 10  # names matched against a pattern in one step: the worst pattern takes a millisecond for each
Rows = list[tuple[str, Any]]  # formatted labels, each with its object


class Selection(NamedTuple):
    """The parameters of a `/metrics/detailed` request; None for all vhosts, and for all queues.

    Unknown names of groups are ignored, as in RabbitMQ; `queue` matches the bytes of a queue name.
    """

    families: frozenset[str] = frozenset()
    vhosts: frozenset[str] | None = None
    queue: Callable[[bytes], object] | None = None

    def vhosts_of(self, broker: AdministeredBroker) -> list[VHost]:
        """Return the requested vhosts."""
        return [each for name, each in broker.vhosts.items() if self.vhosts is None or name in self.vhosts]


class Kind:
    """The objects of one kind in a sample, with the groups of their columns.

    `read` returns the row of an object; `labels` the values of its labels, in the order of the group with most (groups
    with fewer have the first of them), none if it is not shown, only counted. `total` is the sum over ended objects, at
    the end over all; `notice` is called with objects and their rows. `rows` has these by the label names of a group, if
    they are kept.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        objects: Sequence[Any],
        read: Callable[[Any], Row],
        labels: Callable[[Any], tuple[str, ...]],
        total: Row,
        notice: Callable[[Sequence[Any], Sequence[Row]], None] | None = None,
    ) -> None:
        self.groups, self.objects, self.total = groups, objects, total
        self.rows: dict[tuple[str, ...], Rows] = {group.labels: [] for group in groups}
        self._read, self._labels, self._notice = read, labels, notice

    def visit(self, *, keeps_rows: bool) -> Iterator[str]:
        """Visit the objects, a few in each step."""
        for some in portions(self.objects, STEP):
            rows = [self._read(each) for each in some]
            self.total = summed([self.total, *rows])
            if self._notice is not None:
                self._notice(some, rows)
            if keeps_rows:
                shown = [
                    (values, row)
                    for each, row in zip(some, rows, strict=True)
                    if (values := self._labels(each))
                ]
                for names, kept in self.rows.items():
                    kept += [(labels_text(names, values[: len(names)]), row) for values, row in shown]
            yield ""


class Sampler:
    """One sample: sums, and rows if requested. What is not of an object is read when it is asked for."""

    def __init__(
        self,
        broker: AdministeredBroker,
        endpoint: str,
        process: Process,
        selection: Selection | None = None,
        *,
        keeps_rows: bool = False,
    ) -> None:
        self.broker, self.endpoint, self.process = broker, endpoint, process
        self.clients, self.disk, self.resources = broker.clients, disk_of(broker), broker.resource_monitor
        self._selection = selection = selection or Selection()
        self._keeps_rows = keeps_rows
        # totals: the counters of ended objects, and of the server
        self.totals = totals = broker.context.totals
        self.by_type = dict(totals.queues)  # counters of all queues by type, including deleted ones
        self.paced = 0  # number of publishers that are paused now and then for queues or the disk
        gone = [Row(each, QueueLevels()) for each in self.by_type.values()]
        lost = Row(QueueCounts(lost=totals.lost), QueueLevels(), dict(totals.transitions))
        vhosts = selection.vhosts_of(broker)
        self._replies = {queue for vhost in vhosts for queue in vhost.reply_queues.values()}
        # queues, channels, connections: the sampled objects
        connections = list(self.clients.connections)
        self.queues = Kind(
            (QUEUE_INFO, *QUEUES),
            [queue for vhost in vhosts for queue in vhost.queues.values()],
            queue_row,
            self._queue_labels,
            summed([lost, *gone]),
            self._count_types,
        )
        self.channels = Kind(
            CHANNELS,
            [channel for each in connections for channel in each.channels.values()],
            channel_row,
            _channel_labels,
            Row(totals.channels, ChannelLevels()),
        )
        self.connections = Kind(
            CONNECTIONS,
            connections,
            connection_row,
            lambda each: (each.name,),
            Row(totals.connections, ConnectionLevels()),
            self._count_paced,
        )
        self.kinds = (self.queues, self.channels, self.connections)

    def everything(self) -> Iterator[str]:
        """Visit all objects, in steps."""
        yield ""
        for kind in self.kinds:
            yield from self.visit(kind)

    def visit(self, kind: Kind) -> Iterator[str]:
        """Visit the objects of a kind, in steps; of queues those that were requested, and those of direct reply-to."""
        if kind is self.queues:
            if (matches := self._selection.queue) is not None:
                found = []
                for queues in portions(kind.objects, NAMES):
                    found += [
                        each for each in queues if matches(each.name.encode("utf-8", "surrogateescape"))
                    ]
                    yield ""
                kind.objects = found
            kind.objects = [*kind.objects, *self._replies]
        yield from kind.visit(keeps_rows=self._keeps_rows)

    def _queue_labels(self, queue: Queue) -> tuple[str, ...]:
        if queue.deleted or queue in self._replies:
            return ()
        return queue.vhost, queue.name, queue_type_label(queue.type), "leader"

    def _count_types(self, queues: Sequence[Queue], rows: Sequence[Row]) -> None:
        for kind in {queue.type for queue in queues}:
            counts = [row.counts for row, queue in zip(rows, queues, strict=True) if queue.type == kind]
            self.by_type[kind] = all_of([self.by_type.get(kind, QueueCounts()), *counts])

    def _count_paced(self, connections: Sequence[Connection], _rows: Sequence[Row]) -> None:
        alarm, now = self.broker.alarm, self.broker.now()
        paced = [each for each in connections if each.paused_at != float("inf")]
        self.paced += [connection_state(each, alarm, now) for each in paced].count("flow")

    @property
    def commit(self) -> Histogram:
        """The durations of commits."""
        whole: Histogram = self.disk.commits.duration.whole()
        return whole

    def confirm(self, mode: str) -> Histogram:
        """Return the times from a publish to its confirm in a confirm mode."""
        latency = self.broker.context.latencies.confirm.get(mode)
        whole: Histogram = Histogram() if latency is None else latency.whole()
        return whole


def _channel_labels(channel: Channel) -> tuple[str, ...]:
    host: Any = channel.host
    return f"{host.name} ({channel.number})", channel.vhost.name
