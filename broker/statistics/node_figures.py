"""Facts and figures of a node (`broker.server.server`, if not said) in the management API, read where they are."""

import os
import resource
from collections.abc import Callable, Mapping
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from leveret.broker.counters.histogram import Histogram, Latency, merged
from leveret.broker.counters.totals import Sizes
from leveret.broker.process.resource_alarms import open_files, resident_memory
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
"""Data store of a broker without a data directory: it has written and read nothing."""


class ListenerFacts(NamedTuple):
    """A listener: RabbitMQ's name of the protocol, and the address."""

    protocol: str
    address: str
    port: int


class Process(NamedTuple):
    """Figures of this process from the operating system."""

    open_files: int
    max_files: int
    user_seconds: float
    system_seconds: float
    began: float = 0.0  # start of the broker; Unix time in seconds
    rss: int = 0  # resident memory in bytes


def process_figures() -> Process:
    """Return the figures but for `began`; takes long if many files are open: call it in a thread."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return Process(open_files(), most, usage.ru_utime, usage.ru_stime, rss=resident_memory())


def node_facts(server: Any) -> dict[str, Any]:
    """Return what the API says about the node of a server beside its counters, by RabbitMQ's names."""
    config, files_total = server.config, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    memory, disk = server.resource_monitor.memory, server.resource_monitor.disk
    return {
        "os_pid": str(os.getpid()),
        "fd_total": files_total,
        "sockets_total": server.gate.most_sockets,
        "mem_limit": memory.limit,
        "mem_alarm": memory.raised,
        "mem_calculation_strategy": "rss",
        "disk_free_limit": disk.limit,
        "disk_free_alarm": disk.raised,
        "proc_total": server.gate.most_sockets,
        "uptime": round(server.loop.uptime * 1000),
        "log_files": [str(config.log.file or "<stdout>")],
        "db_dir": "" if server.disk is None else str(config.data_dir.absolute()),
        "config_files": list(map(str, config.files)),
    }


def disk_of(server: Any) -> Any:
    """Return the data store (`broker.persistence.data_store`); that of a broker without one has counted nothing."""
    return NO_DISK if server.disk is None else server.disk


def _switches(_server: Any) -> int:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_nvcsw + usage.ru_nivcsw


NODE_COUNTS: Final[Mapping[str, Callable[[Any], int]]] = {  # those sampled, by RabbitMQ's names
    "mem_used": attrgetter("resource_monitor.memory.used"),
    "fd_used": attrgetter("statistics.files"),
    "sockets_used": lambda server: len(server.gate.drivers),
    "proc_used": lambda server: len(server.clients.connections) + server.clients.channel_count,
    "disk_free": lambda server: server.resource_monitor.disk.free or 0,
    "gc_num": lambda _server: 0,
    "context_switches": _switches,
    "io_read_count": lambda server: disk_counts(server)[0],
    "io_write_count": lambda server: disk_of(server).journal.commits,
    "io_write_bytes": lambda server: disk_of(server).journal.octets_written,
    "io_sync_count": lambda server: disk_of(server).flushes,
    "msg_store_read_count": lambda server: disk_counts(server)[0],
    "msg_store_write_count": lambda server: disk_counts(server)[1],
}


def node_counts(server: Any) -> dict[str, int]:
    """Return these figures."""
    return {name: read(server) for name, read in NODE_COUNTS.items()}


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
