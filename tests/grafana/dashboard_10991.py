"""Queries of Grafana's dashboard 10991 (RabbitMQ-Overview) to Prometheus, as data.

Each of its panels multiplies a metric of the broker by the series that says which broker it is, which gives it that
one's labels. The lists say which metrics are asked for in which shape; `EXPRESSIONS` writes them out.
"""

from itertools import pairwise

TARGET_LABELS = {"instance", "job", "namespace"}
"""Labels that Prometheus itself gives to everything it scrapes."""

_CHOSEN = 'rabbitmq_identity_info{rabbitmq_cluster="c", namespace="", rabbitmq_endpoint="aggregated"}'
_OF_CLUSTER = f"on(instance, job) group_left(rabbitmq_cluster) {_CHOSEN}"
_OF_NODE = f"on(instance, job) group_left(rabbitmq_cluster, rabbitmq_node) {_CHOSEN}"

_GLOBAL = "rabbitmq_global_messages_"
_SIZES = "rabbitmq_message_size_bytes"

SUMS = (
    "rabbitmq_queue_messages_ready",
    "rabbitmq_queue_messages_unacked",
    "rabbitmq_global_publishers",
    "rabbitmq_global_consumers",
    "rabbitmq_connections",
    "rabbitmq_channels",
    "rabbitmq_queues",
)
"""The figures on top: now, over all brokers of a cluster."""

SUMS_OF_RATES = (f"{_GLOBAL}delivered_total", f"{_GLOBAL}received_total")
"""The figures on top that are rates: per second, over all brokers of a cluster."""

SUMS_BY_NODE = ("rabbitmq_queue_messages_ready", "rabbitmq_queue_messages_unacked")

RATES_BY_NODE = (
    f"{_GLOBAL}received_total",
    f"{_GLOBAL}routed_total",
    f"{_GLOBAL}confirmed_total",
    f"{_GLOBAL}unroutable_dropped_total",
    f"{_GLOBAL}unroutable_returned_total",
    f"{_GLOBAL}redelivered_total",
    f"{_GLOBAL}delivered_consume_manual_ack_total",
    f"{_GLOBAL}delivered_consume_auto_ack_total",
    f"{_GLOBAL}acknowledged_total",
    f"{_GLOBAL}delivered_get_auto_ack_total",
    f"{_GLOBAL}get_empty_total",
    f"{_GLOBAL}delivered_get_manual_ack_total",
    "rabbitmq_queues_declared_total",
    "rabbitmq_queues_created_total",
    "rabbitmq_queues_deleted_total",
    "rabbitmq_channels_opened_total",
    "rabbitmq_channels_closed_total",
    "rabbitmq_connections_opened_total",
    "rabbitmq_connections_closed_total",
)

BY_NODE = ("rabbitmq_queues", "rabbitmq_channels", "rabbitmq_connections")

TOGETHER_BY_NODE = (
    ("+", f"{_GLOBAL}delivered_consume_auto_ack_total", f"{_GLOBAL}delivered_consume_manual_ack_total"),
    ("-", f"{_GLOBAL}received_confirm_total", f"{_GLOBAL}confirmed_total"),
)
"""Rates of two metrics, added or subtracted."""

HEADROOM = (
    ("rabbitmq_disk_space_available_bytes", "rabbitmq_disk_space_available_limit_bytes"),
    ("rabbitmq_process_max_fds", "rabbitmq_process_open_fds"),
)
"""Limits and what counts against them: the second is subtracted from the first."""

SIZE_BOUNDS = ("100.0", "1000.0", "10000.0", "100000.0", "1e+06", "1e+07", "5e+07", "1e+08", "+Inf")


def _grown(metric: str) -> str:
    return f"sum(increase({metric}[1h]) * {_OF_NODE})"


def _bucket(bound: str) -> str:
    return _grown(f'{_SIZES}_bucket{{le="{bound}"}}')


def _shares() -> list[str]:
    whole = _bucket("+Inf")
    between = pairwise(SIZE_BOUNDS)
    return [
        f"{_bucket(SIZE_BOUNDS[0])} / {whole}",
        *[f"({_bucket(upper)} - {_bucket(lower)}) / {whole}" for lower, upper in between],
    ]


EXPRESSIONS = (
    *[f"sum({metric} * {_OF_CLUSTER})" for metric in SUMS],
    *[f"sum(irate({metric}[1m]) * {_OF_CLUSTER})" for metric in SUMS_OF_RATES],
    f"count({_CHOSEN})",
    (
        "rabbitmq_erlang_uptime_seconds * on(instance, job) group_left(rabbitmq_version, erlang_version) "
        f"rabbitmq_build_info * {_OF_NODE}"
    ),
    f"(rabbitmq_resident_memory_limit_bytes * {_OF_NODE}) - (rabbitmq_process_resident_memory_bytes * {_OF_NODE})",
    *[f"({first} - {second}) * {_OF_NODE}" for first, second in HEADROOM],
    *[f"sum({metric} * {_OF_NODE}) by(rabbitmq_node)" for metric in SUMS_BY_NODE],
    *[f"sum(rate({metric}[1m]) * {_OF_NODE}) by(rabbitmq_node)" for metric in RATES_BY_NODE],
    *[
        f"sum((rate({first}[1m]) * {_OF_NODE}) {sign} (rate({second}[1m]) * {_OF_NODE})) by(rabbitmq_node)"
        for sign, first, second in TOGETHER_BY_NODE
    ],
    *[f"{metric} * {_OF_NODE}" for metric in BY_NODE],
    f"{_grown(_SIZES + '_sum')} / {_grown(_SIZES + '_count')}",
    *_shares(),
)

VARIABLES = (
    "label_values(rabbitmq_identity_info, namespace)",
    'label_values(rabbitmq_identity_info{namespace=""}, rabbitmq_cluster)',
    (
        'label_values(rabbitmq_identity_info{namespace="", rabbitmq_cluster="c", '
        'rabbitmq_endpoint!="memory-breakdown"}, rabbitmq_endpoint)'
    ),
)
"""Queries that fill the lists to choose from."""
