"""The figures of a node in the management API, read where they are kept."""

import os
import resource
from typing import TYPE_CHECKING, Any

from leveret.broker.counters.histogram import Histogram, merged
from leveret.broker.process.resource_alarms import resources
from leveret.broker.statistics.node_facts import NodeFacts

if TYPE_CHECKING:
    from leveret.broker.persistence.data_store import DataStore


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


def node_counts(server: Any) -> dict[str, int]:
    """Return the figures that are sampled, by RabbitMQ's names, but `fd_used`."""
    disk: DataStore | None = server.disk
    counts = {
        "mem_used": server.resource_monitor.memory.used,
        "sockets_used": len(server.drivers),
        "proc_used": len(server.clients.connections) + server.clients.channel_count,
        "disk_free": server.resource_monitor.disk.free or 0,
        "gc_num": 0,
        "context_switches": 0,
        "io_read_count": 0,
        "io_write_count": 0,
        "io_write_bytes": 0,
        "io_sync_count": 0,
        "msg_store_read_count": 0,
        "msg_store_write_count": 0,
    }
    if disk is not None:
        journal = disk.journal
        read, written = disk_counts(server)
        counts |= {
            "io_read_count": read,
            "io_write_count": journal.commits,
            "io_write_bytes": journal.octets_written,
            "io_sync_count": disk.flushes,
            "msg_store_read_count": read,
            "msg_store_write_count": written,
        }
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return counts | {"context_switches": usage.ru_nvcsw + usage.ru_nivcsw}


def latencies(server: Any) -> dict[str, Histogram]:
    """Return the durations since the start of confirms, of commits, and by which timers were late; microseconds."""
    recorded = server.context.latencies
    return {
        "confirm": merged(latency.whole() for latency in recorded.confirm.values()),
        "commit": Histogram() if server.disk is None else server.disk.commits.duration.whole(),
        "loop_lag": recorded.loop_lag.whole(),
    }


def disk_counts(server: Any) -> tuple[int, int]:
    """Return the numbers of messages read from disk and written to it."""
    disk: DataStore | None = server.disk
    if disk is None:
        return 0, 0
    reads = disk.pager.read_delta.messages + disk.pager.read_entries.messages
    return reads, disk.journal.written + disk.journal.paged_out
