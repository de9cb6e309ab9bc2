"""The node: `/api/nodes`. There is one; figures of Erlang that Python has none of are 0."""

import os
from typing import Any

from leveret import __version__
from leveret.broker.administration.access import Right
from leveret.broker.amqp.sasl import EXTERNAL
from leveret.broker.http.call import Answer, Call, Item, Listing
from leveret.broker.http.listing import RANGES, asked_ranges
from leveret.broker.http.route import Routes
from leveret.broker.management.overview import contexts, exchange_types
from leveret.broker.statistics import families
from leveret.broker.statistics.node_figures import node_counts, node_facts
from leveret.broker.statistics.series import NO_RATE

ROUTES = Routes("nodes", needs=Right.MONITORING)
_MECHANISMS = {
    "PLAIN": "SASL PLAIN authentication mechanism",
    "AMQPLAIN": "QPid AMQPLAIN mechanism",
    EXTERNAL: "SASL EXTERNAL, by the certificate of a TLS client",
}
_ALWAYS_ZERO = """
    gc_bytes_reclaimed io_read_bytes io_read_avg_time io_write_avg_time io_sync_avg_time io_seek_count io_seek_avg_time
    io_reopen_count mnesia_ram_tx_count mnesia_disk_tx_count queue_index_write_count queue_index_read_count
    queue_index_journal_write_count io_file_handle_open_attempt_count io_file_handle_open_attempt_avg_time
"""
_COLLECTED = """
    connection_closed channel_closed consumer_deleted exchange_deleted queue_deleted vhost_deleted node_node_deleted
    channel_consumer_deleted
"""
_PARTS = """
    connection_readers connection_writers connection_channels connection_other queue_procs queue_slave_procs
    quorum_queue_procs quorum_queue_dlx_procs stream_queue_procs stream_queue_replica_reader_procs
    stream_queue_coordinator_procs plugins metadata_store other_proc metrics mgmt_db mnesia quorum_ets
    metadata_store_ets other_ets binary msg_index code atom other_system allocated_unused reserved_unallocated
"""
"""RabbitMQ's parts of the memory. Python's memory is not divided: all of it is `other_system`."""
_WHOLE = "other_system"


@ROUTES.list("nodes", query=RANGES)
def list_nodes(call: Call) -> Answer:
    """The node."""
    return Listing([_shown(call)], sort=("name",))


@ROUTES.get("nodes/{node}", query=RANGES)
def get_node(call: Call) -> Answer:
    """The node."""
    call.check_node_name()
    shown = _shown(call)
    return Item(shown | _memory(call) if call.query.flag("memory") else shown)


def _shown(call: Call) -> dict[str, Any]:
    broker: Any = call.broker
    statistics = broker.statistics
    span = asked_ranges(call.query, one="node" in call.names).node
    shown: dict[str, Any] = {
        "name": broker.node_name,
        "type": "disc",
        "running": True,
        "being_drained": False,
        "partitions": [],
        **node_facts(broker),
        "rates_mode": "basic",
        "run_queue": 0,
        "processors": os.cpu_count() or 1,
        "exchange_types": exchange_types(),
        "auth_mechanisms": [
            {"name": name, "description": description, "enabled": name in broker.config.auth_mechanisms}
            for name, description in _MECHANISMS.items()
            if name in broker.config.auth_mechanisms or name != EXTERNAL
        ],
        "applications": [
            {"name": "rabbit", "description": "RabbitMQ", "version": broker.config.compatibility.version},
            {"name": "rabbitmq_management", "description": "RabbitMQ Management Console",
             "version": broker.config.compatibility.version},
            {"name": "leveret", "description": "Leveret", "version": __version__},
        ],
        "contexts": [
            {key: value for key, value in context.items() if key not in {"node", "ssl_opts"}}
            for context in contexts(call)
        ],
        "net_ticktime": 60,
        "enabled_plugins": ["rabbitmq_management"],
        "ra_open_file_metrics": {"ra_log_wal": 0, "ra_log_segment_writer": 0},
        "cluster_links": [],
        "metrics_gc_queue_length": dict.fromkeys(_COLLECTED.split(), 0),
    }  # fmt: skip
    shown |= statistics.stats(statistics.node, families.NODE, node_counts(broker), span)
    for name in _ALWAYS_ZERO.split():
        shown |= {name: 0, f"{name}_details": NO_RATE}
    shown |= statistics.stats(statistics.broker, families.BROKER, statistics.churn(), span)
    return shown


@ROUTES.get("nodes/{node}/memory")
def get_memory(call: Call) -> Answer:
    """The memory of the node, in bytes."""
    call.check_node_name()
    return Item(_memory(call))


def _memory(call: Call) -> dict[str, Any]:
    used = call.broker.resource_monitor.memory.used
    parts: dict[str, Any] = dict.fromkeys(_PARTS.split(), 0) | {_WHOLE: used}
    total = {"erlang": used, "rss": used, "allocated": used}
    return {"memory": {**parts, "strategy": "rss", "total": total}}


@ROUTES.get("nodes/{node}/memory/relative")
def get_memory_relative(call: Call) -> Answer:
    """The memory of the node, in hundredths."""
    call.check_node_name()
    return Item({"memory": {"total": 100, **dict.fromkeys(_PARTS.split(), 0), _WHOLE: 100}})


@ROUTES.get("nodes/{node}/memory/ets", "nodes/{node}/memory/ets/relative")
@ROUTES.get(
    "nodes/{node}/memory/ets/{filter}",
    "nodes/{node}/memory/ets/{filter}/relative",
    doc="The memory of some of Erlang's tables: none.",
)
def get_tables(call: Call) -> Answer:
    """The memory of Erlang's tables: none."""
    call.check_node_name()
    return Item({"ets_tables_memory": {"total": 0}})
