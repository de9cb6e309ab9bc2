"""Differences from RabbitMQ's metrics of the same name, and missing ones, as data: each with its reason.

Compared with a running RabbitMQ 3.10.8 by tests/broker/metrics/test_beside_rabbitmq.py, which accepts nothing else.
"""

from fnmatch import fnmatchcase
from typing import NamedTuple

COMPARED = "3.10.8"
"""The RabbitMQ version of the comparison."""


class Difference(NamedTuple):
    """One difference in some metrics.

    Attributes:
        names: their names without the prefix of `/metrics/detailed`; `*` matches any text.
        reason: the difference and its reason, one line.

    """

    names: tuple[str, ...]
    reason: str

    def covers(self, name: str) -> bool:
        """Return whether the difference applies to a metric."""
        return any(fnmatchcase(name, each) for each in self.names)


ABSENT: tuple[Difference, ...] = (
    Difference(
        ("erlang_*", "rabbitmq_erlang_gc_*", "rabbitmq_erlang_net_ticktime_seconds", "rabbitmq_erlang_processes_*",
         "rabbitmq_erlang_scheduler_*", "rabbitmq_*_process_reductions_total", "rabbitmq_queue_process_memory_bytes"),
        "Describe the Erlang runtime. See `python_*`, `leveret_cpu_seconds_total` and `leveret_event_loop_lag_seconds`",
    ),
    Difference(
        ("rabbitmq_schema_db_*", "rabbitmq_raft_*"),
        "Describe Mnesia and Raft, which a single-node broker does not use",
    ),
    Difference(
        ("telemetry_scrape_*",),
        "Use Prometheus' own `scrape_duration_seconds` and `scrape_samples_scraped`",
    ),
    Difference(
        ("rabbitmq_io_read_*", "rabbitmq_io_seek_*", "rabbitmq_io_reopen_ops_total",
         "rabbitmq_io_sync_time_seconds_total", "rabbitmq_msg_store_read_total", "rabbitmq_queue_index_*_ops_total"),
        "The store has no such operations, and flushes are part of commits. See "
        "`rabbitmq_queue_disk_reads_total`, `leveret_commit_seconds` and `leveret_commit_messages_total`",
    ),
    Difference(
        ("rabbitmq_queue_messages_bytes", "rabbitmq_queue_messages_ready_bytes",
         "rabbitmq_queue_messages_unacked_bytes", "rabbitmq_queue_messages_paged_out_bytes",
         "rabbitmq_queue_messages_persistent*"),
        "Not counted, because it would cost time for every message. See "
        "`rabbitmq_queue_messages_ram_bytes`, `rabbitmq_message_size_bytes` and `rabbitmq_queue_messages`",
    ),
    Difference(
        ("rabbitmq_queue_disk_writes_total",),
        "A commit writes messages of all queues together. See `rabbitmq_msg_store_write_total`",
    ),
    Difference(
        ("rabbitmq_queue_head_message_timestamp",),
        "The broker does not read the property `timestamp`, which publishers may set",
    ),
    Difference(
        ("rabbitmq_global_messages_dead_lettered_confirmed_total",),
        "Counts at-least-once dead lettering only, which is not supported",
    ),
)  # fmt: skip
"""Metrics of RabbitMQ that do not exist here."""

LABELS: tuple[Difference, ...] = (
    Difference(
        ("rabbitmq_channel_messages_*_total", "rabbitmq_channel_get_*total"),
        "Counted per channel, without the labels `exchange` and `queue`",
    ),
    Difference(
        ("rabbitmq_queue_messages_published_total",),
        "Counted per queue, with the labels `queue` and `queue_vhost` only",
    ),
    Difference(
        ("rabbitmq_identity_info", "rabbitmq_build_info"),
        "Additional labels of later releases: `rabbitmq_endpoint`, `product_name` and `product_version`",
    ),
)
"""Metrics with fewer labels here, or with additional labels of later releases, where there is a series per object."""

VALUES: tuple[Difference, ...] = (
    Difference(
        ("rabbitmq_channel_*_total", "rabbitmq_connection_*_total"),
        "The sums in `/metrics` include closed channels and connections, which RabbitMQ leaves out. A "
        "publish in a transaction counts when it is received, not when it is committed",
    ),
    Difference(
        ("rabbitmq_queue_messages_published_total",),
        "Includes dead-lettered messages and messages of closed channels, excludes unroutable messages",
    ),
    Difference(
        ("rabbitmq_global_messages_received_confirm_total",),
        "RabbitMQ also counts messages in transactions, which are never confirmed",
    ),
    Difference(
        ("rabbitmq_global_publishers",),
        "Open channels that have published; RabbitMQ subtracts closed channels that have not published instead of "
        "those that have",
    ),
    Difference(
        ("rabbitmq_connections_closed_total",),
        "Excludes failed logins, which RabbitMQ counts",
    ),
    Difference(
        ("rabbitmq_queue_consumer_utilisation", "rabbitmq_queue_consumer_capacity"),
        "Measured differently. Not in `/metrics`, where RabbitMQ shows the sum of these fractions",
    ),
    Difference(
        ("rabbitmq_queue_messages_ram_bytes",),
        "Includes properties and headers. Approximate, possibly 0, for queues with little in memory",
    ),
    Difference(
        ("rabbitmq_io_*", "rabbitmq_msg_store_write_total"),
        "Counts commits; a message that is settled before its commit may never be written",
    ),
    Difference(
        ("rabbitmq_process_open_fds", "rabbitmq_process_resident_memory_bytes", "rabbitmq_erlang_uptime_seconds",
         "rabbitmq_disk_space_available_*", "rabbitmq_resident_memory_limit_bytes", "process_start_time_seconds",
         "rabbitmq_process_max_*"),
        "Describe the broker's process and its limits; memory is measured as for the memory alarm",
    ),
)  # fmt: skip
"""Metrics of the same name with another meaning."""

LATER = (
    "rabbitmq_exchange_messages_*",
    "rabbitmq_message_size_bytes*",
    "rabbitmq_queue_get_*",
    "rabbitmq_queue_info",
    "rabbitmq_queue_messages_acked_total",
    "rabbitmq_queue_messages_delivered_*",
    "rabbitmq_queue_messages_redelivered_total",
)
"""Metrics that only later releases than the compared one have; `*` matches any text."""
