"""Values of a scrape that are no counters of the broker's objects: of the process and of the data store."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from leveret.broker.counters.totals import SIZE_BOUNDS
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
