"""The sampler: visits all objects once, in steps, and collects their metrics.

Theory. A sample begins with the totals of deleted objects and the lists of living ones, taken in one step; then the
living are visited, and those that are deleted meanwhile are counted by the totals they leave
(`broker.counters.totals`). So counters never decrease from one sample to the next.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from leveret.broker.channel.channel import Channel
from leveret.broker.connection.connection import Connection
from leveret.broker.connection.connection_tracking import ConnectionTracking
from leveret.broker.connection.state import connection_state
from leveret.broker.counters.histogram import Histogram, Latency
from leveret.broker.counters.totals import QueueCounts, Sizes
from leveret.broker.metrics.aggregates import queue_type_label
from leveret.broker.metrics.node import READ, Churn, Held, Identity, Node, Process, Storage
from leveret.broker.metrics.per_object import (
    CHANNEL_LABELS,
    CONNECTION_LABELS,
    QUEUE_LABELS,
    TARGET_LABELS,
    VHOST_CHANNEL_LABELS,
)
from leveret.broker.metrics.rows import (
    ChannelLevels,
    ChannelRow,
    ConnectionLevels,
    ConnectionRow,
    QueueLevels,
    QueueRow,
    all_channels,
    all_connections,
    all_queues,
    channel_row,
    connection_row,
    queue_row,
)
from leveret.broker.metrics.text import labels_text
from leveret.broker.process.resource_alarms import Alarms, resources
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.turn import Turn
from leveret.broker.tls.certificate import CertificateFacts
from leveret.broker.vhost.vhost import VHost
from leveret.storage.damage import KINDS, Damages
from leveret.storage.journal.journal import Journal
from leveret.storage.queues.pager import Pager

STEP = 100
"""Queues, channels or connections that are visited in one step."""
NAMES = 10
"""Names matched against a pattern in one step: the worst pattern takes a millisecond for each."""
T = TypeVar("T")
Rows = list[tuple[str, T]]
"""Formatted labels, each with its object."""


class Commits(Protocol):
    """The committer (`broker.persistence.committer`)."""

    duration: Latency
    sizes: Sizes


class MeasuredDisk(Protocol):
    """The data store (`broker.persistence.data_store`)."""

    @property
    def journal(self) -> Journal:
        """Data waiting to be written."""

    @property
    def commits(self) -> Commits:
        """The committer."""

    @property
    def pager(self) -> Pager:
        """Counters of reads."""

    @property
    def flushes(self) -> int:
        """Number of flushes to disk."""

    @property
    def damages(self) -> Damages:
        """Unreadable data."""

    @property
    def reader_lag(self) -> int:
        """Number of commits by which the oldest reader is behind."""


class MeasuredBroker(Protocol):
    """The measured broker (`broker.server.server.Server`)."""

    turn: Turn
    context: NodeContext
    vhosts: dict[str, VHost]
    clients: ConnectionTracking
    blocked: set[Connection]
    alarm: str
    cluster: Any
    """The cluster (`administration.cluster.Cluster`); None if the log is not replicated."""

    @property
    def disk(self) -> MeasuredDisk | None:
        """The data store; None for a broker without persistence."""

    @property
    def resource_monitor(self) -> Alarms:
        """The memory and disk alarms."""

    @property
    def tls_certificates(self) -> Mapping[str, CertificateFacts]:
        """The certificates of listeners, by the beginning of their keys."""

    @property
    def tls_reloads(self) -> Mapping[str, int]:
        """The numbers of reloads of certificates since the start, by their outcome."""

    @property
    def auth_counts(self) -> Mapping[str, tuple[Mapping[str, int], float]]:
        """The questions to authentication backends by outcome, and their seconds, by the name of the backend."""

    @property
    def waiting_for_disk(self) -> int:
        """Number of publishers that are not read because of the backlog of the disk."""

    @property
    def most_sockets(self) -> int:
        """Maximum number of clients that the file descriptors allow."""

    @property
    def out_of_files(self) -> bool:
        """True while connections are refused for lack of file descriptors."""

    @property
    def uptime(self) -> float:
        """Seconds since the start."""

    def now(self) -> float:
        """Seconds of a monotonic clock."""


class Selection(NamedTuple):
    """The parameters of a `/metrics/detailed` request.

    Attributes:
        families: the names of groups; unknown names are ignored, as in RabbitMQ.
        vhosts: only their queues and exchanges; None for all.
        queue: matches the bytes of a queue name; None for all.

    """

    families: frozenset[str] = frozenset()
    vhosts: frozenset[str] | None = None
    queue: Callable[[bytes], object] | None = None

    def vhosts_of(self, broker: MeasuredBroker) -> list[VHost]:
        """Return the requested vhosts."""
        return [each for name, each in broker.vhosts.items() if self.vhosts is None or name in self.vhosts]


class Sampler:
    """One sample: sums, and rows if requested.

    Args:
        broker: the broker.
        selection: selects the queues; None for all.
        keeps_rows: True to keep a row per object.

    """

    def __init__(
        self, broker: MeasuredBroker, selection: Selection | None = None, *, keeps_rows: bool = False
    ) -> None:
        selection = selection or Selection()
        self._broker = broker
        self._selection = selection
        self._keeps_rows = keeps_rows
        self._churn = _churn(broker)
        totals = broker.context.totals
        self.by_type = dict(totals.queues)
        gone = QueueRow(QueueCounts(lost=totals.lost), QueueLevels(), dict(totals.transitions))
        self.queue = all_queues(
            [gone, *[QueueRow(each, QueueLevels(), {}) for each in self.by_type.values()]]
        )
        self.channel = ChannelRow(totals.channels, ChannelLevels())
        self.connection = ConnectionRow(totals.connections, ConnectionLevels())
        vhosts = selection.vhosts_of(broker)
        self._queues = [queue for vhost in vhosts for queue in vhost.queues.values()]
        self._replies = [queue for vhost in vhosts for queue in vhost.reply_queues.values()]
        self._connections = list(broker.clients.connections)
        self._channels = [channel for each in self._connections for channel in each.channels.values()]
        self._paced = 0
        self.shown_queues: Rows[Queue] = []
        self.queue_rows: dict[tuple[str, ...], Rows[QueueRow]] = {QUEUE_LABELS: [], TARGET_LABELS: []}
        """Rows by the label names of a group of columns; likewise below."""
        self.channel_rows: dict[tuple[str, ...], Rows[ChannelRow]] = {
            CHANNEL_LABELS: [],
            VHOST_CHANNEL_LABELS: [],
        }
        self.connection_rows: dict[tuple[str, ...], Rows[ConnectionRow]] = {CONNECTION_LABELS: []}

    def everything(self) -> Iterator[str]:
        """Visit all objects, in steps."""
        yield ""
        yield from self.queues()
        yield from self.channels()
        yield from self.connections()

    def queues(self) -> Iterator[str]:
        """Visit the requested queues; those of direct reply-to are counted, but have no rows."""
        matches = self._selection.queue
        if matches is not None:
            found = []
            for queues in _steps(self._queues, NAMES):
                found += [each for each in queues if matches(each.name.encode("utf-8", "surrogateescape"))]
                yield ""
            self._queues = found
        for queues in _steps(self._queues):
            rows = self._count(queues)
            if self._keeps_rows:
                self._keep(queues, rows)
            yield ""
        for queues in _steps(self._replies):
            self._count(queues)
            yield ""

    def _keep(self, queues: Sequence[Queue], rows: Sequence[QueueRow]) -> None:
        """Keep the rows of queues, except for those deleted meanwhile."""
        for queue, row in zip(queues, rows, strict=True):
            if not queue.deleted:
                names = queue.vhost, queue.name
                labels = labels_text(QUEUE_LABELS, names)
                kind = labels_text(("queue_type", "membership"), (queue_type_label(queue.type), "leader"))
                self.shown_queues.append((f"{labels},{kind}", queue))
                self.queue_rows[QUEUE_LABELS].append((labels, row))
                self.queue_rows[TARGET_LABELS].append((labels_text(TARGET_LABELS, names), row))

    def _count(self, queues: Sequence[Queue]) -> list[QueueRow]:
        """Add queues to the sums; returns their rows."""
        rows = [queue_row(queue) for queue in queues]
        self.queue = all_queues([self.queue, *rows])
        for kind in {queue.type for queue in queues}:
            of_type = [row for row, queue in zip(rows, queues, strict=True) if queue.type == kind]
            before = QueueRow(self.by_type.get(kind, QueueCounts()), QueueLevels(), {})
            self.by_type[kind] = all_queues([before, *of_type]).counts
        return rows

    def channels(self) -> Iterator[str]:
        """Visit the channels."""
        for channels in _steps(self._channels):
            rows = [channel_row(channel) for channel in channels]
            self.channel = all_channels([self.channel, *rows])
            if self._keeps_rows:
                names = [_channel_name(each) for each in channels]
                labels = [labels_text(CHANNEL_LABELS, (name,)) for name in names]
                self.channel_rows[CHANNEL_LABELS] += zip(labels, rows, strict=True)
                labels = [
                    labels_text(VHOST_CHANNEL_LABELS, (name, channel.vhost.name))
                    for name, channel in zip(names, channels, strict=True)
                ]
                self.channel_rows[VHOST_CHANNEL_LABELS] += zip(labels, rows, strict=True)
            yield ""

    def connections(self) -> Iterator[str]:
        """Visit the connections."""
        alarm, now = self._broker.alarm, self._broker.now()
        for connections in _steps(self._connections):
            rows = [connection_row(each) for each in connections]
            self.connection = all_connections([self.connection, *rows])
            states = [
                connection_state(each, alarm, now) for each in connections if each.paused_at != float("inf")
            ]
            self._paced += states.count("flow")
            if self._keeps_rows:
                labels = [labels_text(CONNECTION_LABELS, (each.name,)) for each in connections]
                self.connection_rows[CONNECTION_LABELS] += zip(labels, rows, strict=True)
            yield ""

    def node(self, identity: Identity, endpoint: str, process: Process) -> Node:
        """Return the sampled values, and those of the broker as a whole."""
        broker = self._broker
        context, disk = broker.context, broker.disk
        totals = context.totals
        return Node(
            identity=identity,
            endpoint=endpoint,
            uptime=broker.uptime,
            process=process,
            churn=self._churn,
            resources=resources(broker.resource_monitor),
            is_out_of_files=broker.out_of_files,
            storage=Storage() if disk is None else _storage(disk),
            held=Held(
                alarm=len(broker.blocked),
                disk=broker.waiting_for_disk,
                queue=self._paced,
                pauses_disk=totals.pauses_disk,
                pauses_queue=totals.pauses_queue,
            ),
            connections=len(broker.clients.connections),
            most_sockets=broker.most_sockets,
            certificates={key: each.ends.timestamp() for key, each in broker.tls_certificates.items()},
            certificate_reloads=broker.tls_reloads,
            auth_counts=broker.auth_counts,
            replication=None if broker.cluster is None else broker.cluster.figures(),
            queues=sum([len(vhost.queues) for vhost in broker.vhosts.values()]),
            delayed=sum([line.count for vhost in broker.vhosts.values() for line in vhost.delay_lines()]),
            channel=self.channel,
            channels=broker.clients.channel_count,
            connection=self.connection,
            queue=self.queue,
            by_type=self.by_type,
            dead_letters=totals.dead_letters,
            sizes=tuple(totals.sizes.counts),
            octets=totals.sizes.octets,
            confirm={mode: latency.whole() for mode, latency in context.latencies.confirm.items()},
            commit=Histogram() if disk is None else disk.commits.duration.whole(),
            loop_lag=context.latencies.loop_lag.whole(),
            longest_step=broker.turn.slices.longest / 1e9,
        )


def _churn(broker: MeasuredBroker) -> Churn:
    totals = broker.context.totals
    return Churn(
        connections_opened=broker.clients.connections_opened,
        connections_closed=broker.clients.connections_closed,
        channels_opened=broker.clients.channels_opened,
        channels_closed=broker.clients.channels_closed,
        queues_declared=totals.queues_declared,
        queues_created=totals.queues_created,
        queues_deleted=totals.queues_deleted,
        auth_succeeded=totals.auth_succeeded,
        auth_failed=totals.auth_failed,
    )


def _storage(disk: MeasuredDisk) -> Storage:
    journal = disk.journal
    return Storage(
        commits=journal.commits,
        octets=journal.octets_written,
        flushes=disk.flushes,
        written=journal.written,
        paged=journal.paged_out,
        early=journal.early,
        waiting=journal.octets + journal.octets_in_flight + journal.blob_octets,
        reads={
            state: (reads.messages, reads.blocks, reads.bodies)
            for state, reads in zip(READ, (disk.pager.read_delta, disk.pager.read_entries), strict=True)
        },
        sizes=tuple(disk.commits.sizes.counts),
        reader_lag=disk.reader_lag,
        damage={kind: disk.damages.counts[kind] for kind in KINDS},
    )


def _steps(things: Sequence[T], size: int = STEP) -> Iterator[Sequence[T]]:
    return (things[at : at + size] for at in range(0, len(things), size))


def _channel_name(channel: Channel) -> str:
    host: Any = channel.host
    return f"{host.name} ({channel.number})"
