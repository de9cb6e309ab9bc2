"""What is known of the broker as a whole at the time of a scrape."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from leveret.broker.counters.histogram import Histogram
from leveret.broker.counters.totals import SIZE_BOUNDS, QueueCounts
from leveret.broker.metrics.rows import ChannelRow, ConnectionRow, QueueRow
from leveret.storage.damage import KINDS


class Identity(NamedTuple):
    """Who the broker is; labels of RabbitMQ's, and the endpoint that is asked."""

    node: str
    cluster: str
    cluster_id: str


class Process(NamedTuple):
    """What the system says of the process."""

    open_files: int
    max_files: int
    user_seconds: float
    system_seconds: float
    began: float
    """When it was started; Unix time in seconds."""


class Churn(NamedTuple):
    """What has come and gone since the start."""

    connections_opened: int
    connections_closed: int
    channels_opened: int
    channels_closed: int
    queues_declared: int
    queues_created: int
    queues_deleted: int
    auth_succeeded: int
    auth_failed: int


class Resources(NamedTuple):
    """What the broker uses, and what it may; octets."""

    memory_used: int
    memory_limit: int
    memory_alarm: bool
    disk_free: int | None
    disk_limit: int
    disk_alarm: bool
    files_alarm: bool


READ = ("delta", "beta_gamma")
"""The states from which messages are read."""


class Storage(NamedTuple):
    """What has been written; zeros for a broker without a disk."""

    commits: int = 0
    octets: int = 0
    flushes: int = 0
    written: int = 0
    """Copies of persistent messages."""
    paged: int = 0
    """Of transient ones."""
    early: int = 0
    """Of persistent ones that were settled before they had to be written."""
    waiting: int = 0
    """Octets that wait to be written."""
    reads: Mapping[str, tuple[int, int, int]] = MappingProxyType(dict.fromkeys(READ, (0, 0, 0)))
    """Messages, blocks and bodies read, by the state that the messages were in."""
    sizes: Sequence[int] = (0,) * (len(SIZE_BOUNDS) + 1)
    """Commits by octets, as in `totals.Sizes`."""
    reader_lag: int = 0
    """How many commits the oldest reader of the data file is behind."""
    damage: Mapping[str, int] = MappingProxyType(dict.fromkeys(KINDS, 0))
    """What could not be read, by kind."""


class Held(NamedTuple):
    """Publishers that are not read just now, and how often they were not."""

    alarm: int
    disk: int
    queue: int
    pauses_disk: int
    pauses_queue: int


class Node(NamedTuple):
    """All of it, at the time of one scrape."""

    identity: Identity
    endpoint: str
    uptime: float
    process: Process
    churn: Churn
    resources: Resources
    storage: Storage
    held: Held
    connections: int
    most_sockets: int
    """How many connections descriptors suffice for."""
    queues: int
    delayed: int
    channel: ChannelRow
    """All channels as one, those that are closed as well."""
    channels: int
    connection: ConnectionRow
    queue: QueueRow
    by_type: Mapping[str, QueueCounts]
    """Counts of all queues by type, those that are gone as well."""
    dead_letters: Mapping[tuple[str, str], int]
    sizes: Sequence[int]
    octets: int
    confirm: Mapping[str, Histogram]
    commit: Histogram
    loop_lag: Histogram
    longest_step: float
    """Seconds of processor time that the loop took for one thing, at most."""
