"""The overview and the node: `/api/overview`, `/api/nodes`.

There is one node; figures of Erlang that Python has none of are 0.
"""

import os
import platform
from itertools import chain
from typing import Any

from leveret import __version__
from leveret.broker.administration.access import Right, sees_all, visible_vhosts
from leveret.broker.amqp.sasl import EXTERNAL
from leveret.broker.http.call import Answer, Call, Item, Listing, Steps
from leveret.broker.http.listing import RANGES, asked_ranges
from leveret.broker.http.route import Routes
from leveret.broker.queue.queue import Queue
from leveret.broker.statistics import families
from leveret.broker.statistics.node_figures import disk_counts, node_counts, node_facts
from leveret.broker.statistics.series import NO_RATE, Row
from leveret.broker.statistics.statistics import BROKER, NODE, named, summed
from leveret.broker.vhost.vhost import VHost
from leveret.exchanges.router import EXCHANGE_TYPES

ROUTES = Routes("overview")
RETENTION = {"global": [600, 3600, 28800, 86400], "basic": [600, 3600], "detailed": [600]}
_DESCRIPTIONS = {
    "direct": "AMQP direct exchange, as per the AMQP specification",
    "fanout": "AMQP fanout exchange, as per the AMQP specification",
    "headers": "AMQP headers exchange, as per the AMQP specification",
    "topic": "AMQP topic exchange, as per the AMQP specification",
    "x-consistent-hash": "Consistent Hashing Exchange",
    "x-delayed-message": "Delayed message exchange",
    "x-local-random": "Picks one random local binding (queue) to route via (to).",
    "x-modulus-hash": "Modulus Hashing Exchange",
    "x-random": "Randomly picks a binding (queue) to route via (to).",
    "x-recent-history": "Recent History Exchange.",
}


def exchange_types() -> list[dict[str, Any]]:
    """Return the types of exchanges that there are."""
    return [
        {"name": name, "description": _DESCRIPTIONS[name], "enabled": True} for name in sorted(EXCHANGE_TYPES)
    ]


def contexts(call: Call) -> list[dict[str, Any]]:
    """Return the HTTP listeners of the API."""
    return [
        {
            "node": call.broker.node_name,
            "description": "RabbitMQ Management",
            "path": "/",
            "ip": each.address,
            "port": str(each.port),
            "cowboy_opts": "[]",
            "ssl_opts": [],
        }
        for each in call.broker.listeners
        if each.protocol == "http"
    ]


def listeners(call: Call) -> list[dict[str, Any]]:
    """Return the listeners."""
    return [
        {
            "node": call.broker.node_name,
            "protocol": each.protocol,
            "ip_address": each.address,
            "port": each.port,
            "socket_opts": [],
        }
        for each in call.broker.listeners
    ]


@ROUTES.get("overview", query=RANGES)
def get_overview(call: Call) -> Steps:
    """The overview."""
    broker, statistics = call.broker, call.broker.statistics
    version = broker.config.compatibility.version
    python = f"Python {platform.python_version()}"
    is_without_stats = call.query.flag("disable_stats")
    overview: dict[str, Any] = {
        "management_version": version,
        "rates_mode": "basic",
        "sample_retention_policies": RETENTION,
        "exchange_types": exchange_types(),
        "product_version": version,
        "product_name": "RabbitMQ",
        "rabbitmq_version": version,
        "leveret_version": __version__,
        "cluster_name": broker.cluster_name,
        "cluster_tags": broker.directory.cluster_tags,
        "node_tags": dict(broker.config.node_tags),
        "default_queue_type": broker.directory.default_queue_type or "classic",
        "erlang_version": platform.python_version(),
        "erlang_full_version": f"{python} [{platform.python_implementation()}]",
        "release_series_support_status": "supported",
        "disable_stats": is_without_stats,
        "enable_queue_totals": call.query.flag("enable_queue_totals"),
        "is_op_policy_updating_enabled": True,
        "statistics_db_event_queue": 0,
    }
    if sees_all(call.actor):
        overview |= {"node": broker.node_name, "listeners": listeners(call), "contexts": contexts(call)}
    ranges = asked_ranges(call.query, one=True)
    vhosts = visible_vhosts(broker, call.actor)
    everything = sees_all(call.actor)
    queues = chain.from_iterable([vhost.queues.values() for vhost in vhosts])
    *lengths, consumers = yield from summed(queues, levels, (0, 0, 0))
    series = statistics.series(BROKER) if everything else None
    totals = named(families.BROKER, families.LENGTHS, lengths)
    overview["queue_totals"] = statistics.stats(series, families.BROKER, totals, ranges.lengths)
    overview["object_totals"] = _objects(call, vhosts, consumers)
    if is_without_stats:
        return Item(overview)
    stats = yield from statistics.channel_totals(None if everything else vhosts)
    values = named(families.BROKER, families.BROKER.stats, stats)
    values |= dict(zip(families.DISK, disk_counts(broker), strict=True))
    overview["message_stats"] = statistics.stats(series, families.BROKER, values, ranges.messages)
    overview["churn_rates"] = statistics.stats(series, families.BROKER, statistics.churn(), ranges.messages)
    return Item(overview)


def levels(queue: Queue) -> Row:
    """Return the numbers of ready and unacked messages and of consumers of a queue."""
    return *families.lengths(queue), len(queue.consumers)


def _objects(call: Call, vhosts: list[VHost], consumers: int) -> dict[str, int]:
    names = {vhost.name for vhost in vhosts}
    visible = call.administration.listings.connections(call.actor)
    connections = [each for each in visible if each.vhost.name in names]
    return {
        "channels": sum([len(each.channels) for each in connections]),
        "connections": len(connections),
        "consumers": consumers,
        "exchanges": sum([len(vhost.router.exchanges) for vhost in vhosts]),
        "queues": sum([len(vhost.queues) for vhost in vhosts]),
    }


# -- the node ---------------------------------------------------------------------------------------------------------


NODE_ROUTES = Routes("nodes", needs=Right.MONITORING)
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


@NODE_ROUTES.list("nodes", query=RANGES)
def list_nodes(call: Call) -> Answer:
    """The node."""
    return Listing([_shown(call)], sort=("name",))


@NODE_ROUTES.get("nodes/{node}", query=RANGES)
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
    shown |= statistics.stats(statistics.series(NODE), families.NODE, node_counts(broker), span)
    for name in _ALWAYS_ZERO.split():
        shown |= {name: 0, f"{name}_details": NO_RATE}
    shown |= statistics.stats(statistics.series(BROKER), families.BROKER, statistics.churn(), span)
    return shown


@NODE_ROUTES.get("nodes/{node}/memory")
def get_memory(call: Call) -> Answer:
    """The memory of the node, in bytes."""
    call.check_node_name()
    return Item(_memory(call))


def _memory(call: Call) -> dict[str, Any]:
    used = call.broker.resource_monitor.memory.used
    parts: dict[str, Any] = dict.fromkeys(_PARTS.split(), 0) | {_WHOLE: used}
    total = {"erlang": used, "rss": used, "allocated": used}
    return {"memory": {**parts, "strategy": "rss", "total": total}}


@NODE_ROUTES.get("nodes/{node}/memory/relative")
def get_memory_relative(call: Call) -> Answer:
    """The memory of the node, in hundredths."""
    call.check_node_name()
    return Item({"memory": {"total": 100, **dict.fromkeys(_PARTS.split(), 0), _WHOLE: 100}})


@NODE_ROUTES.get("nodes/{node}/memory/ets", "nodes/{node}/memory/ets/relative")
@NODE_ROUTES.get(
    "nodes/{node}/memory/ets/{filter}",
    "nodes/{node}/memory/ets/{filter}/relative",
    doc="The memory of some of Erlang's tables: none.",
)
def get_tables(call: Call) -> Answer:
    """The memory of Erlang's tables: none."""
    call.check_node_name()
    return Item({"ets_tables_memory": {"total": 0}})
