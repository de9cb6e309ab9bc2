"""Facts and figures of a node in the management API, read where they are kept.

A server is that of `broker.server.server`.
"""

import os
import resource
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from leveret.broker.counters.histogram import Histogram, Latency, merged
from leveret.broker.counters.totals import Sizes
from leveret.broker.process.resource_alarms import Resources, resources
from leveret.storage.damage import KINDS

_JOURNAL = (
    *("commits", "octets_written", "written", "paged_out", "early"),
    *("octets", "octets_in_flight", "blob_octets"),
)
_NO_READS: Final = SimpleNamespace(messages=0, blocks=0, bodies=0)
NO_DISK: Final = SimpleNamespace(
    journal=SimpleNamespace(**dict.fromkeys(_JOURNAL, 0)),
    pager=SimpleNamespace(read_delta=_NO_READS, read_entries=_NO_READS),
    commits=SimpleNamespace(duration=Latency(), sizes=Sizes()),
    damages=SimpleNamespace(counts=dict.fromkeys(KINDS, 0)),
    flushes=0,
    reader_lag=0,
)
"""What a broker without a data directory has written and read: nothing."""


class ListenerFacts(NamedTuple):
    """A listener: RabbitMQ's name of the protocol, and the address."""

    protocol: str
    address: str
    port: int


class NodeFacts(NamedTuple):
    """The node now.

    Attributes:
        uptime: seconds since the start.
        process_id: of the process.
        files_total: file descriptors that the process may have.
        sockets_used, sockets_total: client connections, and how many there may be.
        resources: memory and disk.
        data_dir, log_files, config_files: paths.
        listeners: the listeners.
        mechanisms: names of the authentication mechanisms that are offered.
        strategy: RabbitMQ's name for how memory is measured.

    """

    uptime: float
    process_id: int
    files_total: int
    sockets_used: int
    sockets_total: int
    resources: Resources
    data_dir: str
    log_files: tuple[str, ...]
    config_files: tuple[str, ...]
    listeners: tuple[ListenerFacts, ...]
    mechanisms: tuple[str, ...]
    strategy: str = "rss"


def node_facts(server: Any) -> NodeFacts:
    """Return facts about the node of a server."""
    config = server.config
    return NodeFacts(
        uptime=server.uptime,
        process_id=os.getpid(),
        files_total=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        sockets_used=len(server.drivers),
        sockets_total=server.most_sockets,
        resources=resources(server.resource_monitor),
        data_dir=str(config.data_dir.absolute()),
        log_files=(str(config.log.file),) if config.log.file else ("<stdout>",),
        config_files=tuple(map(str, config.files)),
        listeners=tuple(server.listeners),
        mechanisms=tuple(config.auth_mechanisms),
    )


def disk_of(server: Any) -> Any:
    """Return the data store (`broker.persistence.data_store`); that of a broker without one has counted nothing."""
    return NO_DISK if server.disk is None else server.disk


def node_counts(server: Any) -> dict[str, int]:
    """Return the figures that are sampled, by RabbitMQ's names, but `fd_used`."""
    disk = disk_of(server)
    read, written = disk_counts(server)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "mem_used": server.resource_monitor.memory.used,
        "sockets_used": len(server.drivers),
        "proc_used": len(server.clients.connections) + server.clients.channel_count,
        "disk_free": server.resource_monitor.disk.free or 0,
        "gc_num": 0,
        "context_switches": usage.ru_nvcsw + usage.ru_nivcsw,
        "io_read_count": read,
        "io_write_count": disk.journal.commits,
        "io_write_bytes": disk.journal.octets_written,
        "io_sync_count": disk.flushes,
        "msg_store_read_count": read,
        "msg_store_write_count": written,
    }


def latencies(server: Any) -> dict[str, Histogram]:
    """Return the durations since the start of confirms, of commits, and by which timers were late; microseconds."""
    recorded = server.context.latencies
    return {
        "confirm": merged(latency.whole() for latency in recorded.confirm.values()),
        "commit": disk_of(server).commits.duration.whole(),
        "loop_lag": recorded.loop_lag.whole(),
    }


def disk_counts(server: Any) -> tuple[int, int]:
    """Return the numbers of messages read from disk and written to it."""
    disk = disk_of(server)
    reads = disk.pager.read_delta.messages + disk.pager.read_entries.messages
    return reads, disk.journal.written + disk.journal.paged_out
