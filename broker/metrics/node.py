"""Values of the broker as a whole at the time of a scrape."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from leveret.broker.administration.cluster import Figures
from leveret.broker.counters.histogram import Histogram
from leveret.broker.counters.totals import SIZE_BOUNDS, QueueCounts
from leveret.broker.metrics.rows import ChannelRow, ConnectionRow, QueueRow
from leveret.broker.process.resource_alarms import Resources
from leveret.storage.damage import KINDS


class Identity(NamedTuple):
    """Identity of the broker: RabbitMQ's labels, and the requested endpoint."""

    node: str
    cluster: str
    cluster_id: str


class Process(NamedTuple):
    """Process figures from the operating system."""

    open_files: int
    max_files: int
    user_seconds: float
    system_seconds: float
    began: float
    """Start time; Unix time in seconds."""


class Churn(NamedTuple):
    """Counters of opened and closed objects since the start."""

    connections_opened: int
    connections_closed: int
    channels_opened: int
    channels_closed: int
    queues_declared: int
    queues_created: int
    queues_deleted: int
    auth_succeeded: int
    auth_failed: int


READ = ("delta", "beta_gamma")
"""The states of messages that are read from disk."""


class Storage(NamedTuple):
    """Storage counters; zeros for a broker without a disk."""

    commits: int = 0
    octets: int = 0
    flushes: int = 0
    written: int = 0
    """Written copies of persistent messages."""
    paged: int = 0
    """Written copies of transient messages."""
    early: int = 0
    """Persistent copies that were settled before they had to be written."""
    waiting: int = 0
    """Bytes waiting to be written."""
    reads: Mapping[str, tuple[int, int, int]] = MappingProxyType(dict.fromkeys(READ, (0, 0, 0)))
    """Messages, blocks and bodies read, by the state that the messages were in."""
    sizes: Sequence[int] = (0,) * (len(SIZE_BOUNDS) + 1)
    """Commits by size in bytes, as in `totals.Sizes`."""
    reader_lag: int = 0
    """Number of commits by which the oldest reader of the data file is behind."""
    damage: Mapping[str, int] = MappingProxyType(dict.fromkeys(KINDS, 0))
    """Unreadable data, by kind."""


class Held(NamedTuple):
    """Publishers that are currently not read, and numbers of such pauses."""

    alarm: int
    disk: int
    queue: int
    pauses_disk: int
    pauses_queue: int


class Node(NamedTuple):
    """All values of the broker at the time of one scrape."""

    identity: Identity
    endpoint: str
    uptime: float
    process: Process
    churn: Churn
    resources: Resources
    is_out_of_files: bool
    storage: Storage
    held: Held
    connections: int
    most_sockets: int
    """Maximum number of connections that the file descriptors allow."""
    certificates: Mapping[str, float]
    """Ends of the certificates of listeners, Unix time in seconds, by the beginning of their keys."""
    certificate_reloads: Mapping[str, int]
    """Reloads of certificates, by their outcome."""
    auth_counts: Mapping[str, tuple[Mapping[str, int], float]]
    """Questions to authentication backends by outcome, and the seconds that they took, by the name of the backend."""
    replication: Figures | None
    """Figures of a replicated log; None if it is not replicated."""
    queues: int
    delayed: int
    channel: ChannelRow
    """Sums over all channels, including closed ones."""
    channels: int
    connection: ConnectionRow
    queue: QueueRow
    by_type: Mapping[str, QueueCounts]
    """Counters of all queues by type, including deleted ones."""
    dead_letters: Mapping[tuple[str, str], int]
    sizes: Sequence[int]
    octets: int
    confirm: Mapping[str, Histogram]
    commit: Histogram
    loop_lag: Histogram
    longest_step: float
    """Maximum processor time in seconds of a single step of the loop."""
