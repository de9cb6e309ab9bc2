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
        "Tell of the Erlang runtime. See `python_*`, `leveret_cpu_seconds_total` and `leveret_event_loop_lag_seconds`",
    ),
    Difference(
        ("rabbitmq_schema_db_*", "rabbitmq_raft_*"),
        "Tell of Mnesia and Raft, which are not used: there is one node",
    ),
    Difference(
        ("telemetry_scrape_*",),
        "Prometheus itself has `scrape_duration_seconds`, `scrape_samples_scraped` and, if asked, sizes",
    ),
    Difference(
        ("rabbitmq_io_read_*", "rabbitmq_io_seek_*", "rabbitmq_io_reopen_ops_total",
         "rabbitmq_io_sync_time_seconds_total", "rabbitmq_msg_store_read_total", "rabbitmq_queue_index_*_ops_total"),
        "The store has no such operations, and a flush is a part of a commit. See "
        "`rabbitmq_queue_disk_reads_total`, `leveret_commit_seconds` and `leveret_commit_messages_total`",
    ),
    Difference(
        ("rabbitmq_queue_messages_bytes", "rabbitmq_queue_messages_ready_bytes",
         "rabbitmq_queue_messages_unacked_bytes", "rabbitmq_queue_messages_paged_out_bytes",
         "rabbitmq_queue_messages_persistent*"),
        "Counting octets and persistent messages of each queue would cost each message time. See "
        "`rabbitmq_queue_messages_ram_bytes`, `rabbitmq_message_size_bytes` and `rabbitmq_queue_messages`",
    ),
    Difference(
        ("rabbitmq_queue_disk_writes_total",),
        "A commit writes for all queues at once. See `rabbitmq_msg_store_write_total`",
    ),
    Difference(
        ("rabbitmq_queue_head_message_timestamp",),
        "Publishers set it or not; no message is looked into for it",
    ),
    Difference(
        ("rabbitmq_global_messages_dead_lettered_confirmed_total",),
        "There is no dead lettering at least once, which alone counts here",
    ),
)  # fmt: skip
"""Metrics of RabbitMQ that do not exist here."""

LABELS: tuple[Difference, ...] = (
    Difference(
        ("rabbitmq_channel_messages_*_total", "rabbitmq_channel_get_*total"),
        "A channel counts by itself: no `exchange` or `queue`",
    ),
    Difference(
        ("rabbitmq_queue_messages_published_total",),
        "A queue counts by itself: `queue` and `queue_vhost` only",
    ),
    Difference(
        ("rabbitmq_identity_info", "rabbitmq_build_info"),
        "Those of later releases: `rabbitmq_endpoint`, `product_name` and `product_version` besides",
    ),
)
"""Metrics with fewer labels here, or with additional labels of later releases, where there is a series per object."""

VALUES: tuple[Difference, ...] = (
    Difference(
        ("rabbitmq_channel_*_total", "rabbitmq_connection_*_total"),
        "In `/metrics`: those of channels and connections that are gone are in the sum, which RabbitMQ leaves out. A "
        "publish in a transaction counts when it comes, not with the commit",
    ),
    Difference(
        ("rabbitmq_queue_messages_published_total",),
        "Messages that came by dead lettering count, those of channels that are gone, and none that found no queue",
    ),
    Difference(
        ("rabbitmq_global_messages_received_confirm_total",),
        "RabbitMQ has messages in transactions among them, which are never confirmed",
    ),
    Difference(
        ("rabbitmq_global_publishers",),
        "Open channels that have published; RabbitMQ takes away closed ones that have not, instead of those that have",
    ),
    Difference(
        ("rabbitmq_connections_closed_total",),
        "Only connections that were opened; RabbitMQ has failed logins among them",
    ),
    Difference(
        ("rabbitmq_queue_consumer_utilisation", "rabbitmq_queue_consumer_capacity"),
        "Measured in another way. Not in `/metrics`, where RabbitMQ shows the sum of these shares",
    ),
    Difference(
        ("rabbitmq_queue_messages_ram_bytes",),
        "With properties and headers. Not exact, perhaps 0, for queues with little in memory",
    ),
    Difference(
        ("rabbitmq_io_*", "rabbitmq_msg_store_write_total"),
        "Commits are what is written, and a message that is settled soon may never be",
    ),
    Difference(
        ("rabbitmq_process_open_fds", "rabbitmq_process_resident_memory_bytes", "rabbitmq_erlang_uptime_seconds",
         "rabbitmq_disk_space_available_*", "rabbitmq_resident_memory_limit_bytes", "process_start_time_seconds",
         "rabbitmq_process_max_*"),
        "Of this process and its limits; memory is what the memory alarm judges",
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
