"""The overview: `/api/overview`."""

import platform
from itertools import chain
from typing import Any

from leveret import __version__
from leveret.broker.administration.access import sees_all, visible_vhosts
from leveret.broker.http.call import Call, Item, Steps
from leveret.broker.http.listing import RANGES, asked_ranges
from leveret.broker.http.route import Routes
from leveret.broker.queue.queue import Queue
from leveret.broker.statistics import families
from leveret.broker.statistics.node_figures import disk_counts
from leveret.broker.statistics.series import Row
from leveret.broker.statistics.statistics import named, summed
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
    series = statistics.broker if everything else None
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
