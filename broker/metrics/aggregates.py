"""Metrics of the whole broker: RabbitMQ's with its names, types and labels, and Leveret's own under `leveret_`.

Every series exists from the start, with 0 if nothing has happened, so that differences can always be computed.

Source: rabbitmq-server, deps/rabbitmq_prometheus, metrics.md; the size histogram is that of RabbitMQ 4.1.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final, NamedTuple

from leveret import __version__
from leveret.broker.counters.histogram import Histogram
from leveret.broker.counters.totals import SIZE_BOUNDS, QueueCounts
from leveret.broker.metrics.per_object import DELIVERIES, queue_type_label
from leveret.broker.metrics.sampler import Sampler
from leveret.broker.metrics.text import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    UNTYPED,
    Column,
    Read,
    Sample,
    buckets,
    gauge,
    labels_text,
    reader,
)
from leveret.broker.queue.arguments import TYPES
from leveret.broker.queue.limits import DELIVERY_LIMIT, EXPIRED, MAXLEN, REJECTED
from leveret.confirm.modes import CONSUMER_ACK, CONSUMER_ACK_LIGHT, STANDARD
from leveret.storage.damage import KINDS

PROTOCOL = "amqp091"
MODES = (STANDARD, CONSUMER_ACK, CONSUMER_ACK_LIGHT)
REASONS = (EXPIRED, REJECTED, MAXLEN, DELIVERY_LIMIT)
STATES = ("alpha", "beta", "gamma", "delta")
TRANSITIONS = ("alpha_to_beta", "alpha_to_gamma", "to_delta", "from_delta", "limit_ram_acks")
SIZE_LABELS = tuple(str(float(bound)) if bound < 10**6 else f"{bound:.0e}" for bound in SIZE_BOUNDS)
"""Bounds as RabbitMQ writes them, because dashboards compare the text: 100.0 and 1e+06."""
LATENCY_BITS = range(6, 27)  # buckets from 2**6 microseconds (64) to 2**26 (67 s), each twice the one before
LATENCY_LABELS = tuple(str((1 << bits) / 1e6) for bits in LATENCY_BITS)


class Family(NamedTuple):
    """A metric of the broker: its name, type, help text (one line), labels, and what returns its samples."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...]
    samples: Callable[[Sampler], Iterable[Sample]]


def _one(kind: str) -> Callable[[str, str, Read], Family]:
    def declare(name: str, text: str, read: Read) -> Family:
        value = reader(read)
        return Family(name, kind, text, (), lambda node: [("", "", value(node))])

    return declare


_gauge, _counter, _untyped = _one(GAUGE), _one(COUNTER), _one(UNTYPED)


def _protocol(name: str, text: str, read: Read, kind: str = COUNTER) -> Family:
    """Return a family of RabbitMQ's counters by protocol, of which there is one here."""
    labels, value = labels_text(("protocol",), (PROTOCOL,)), reader(read)
    return Family(f"rabbitmq_{name}", kind, text, ("protocol",), lambda node: [("", labels, value(node))])


def _by_type(name: str, text: str, counter: str) -> Family:
    """Return a family of RabbitMQ's counters by protocol and queue type."""
    names, value = ("protocol", "queue_type"), attrgetter(counter)

    def samples(node: Sampler) -> Iterator[Sample]:
        for kind in TYPES:
            counts = node.by_type.get(kind, QueueCounts())
            yield "", labels_text(names, (PROTOCOL, queue_type_label(kind))), value(counts)

    return Family(f"rabbitmq_global_messages_{name}_total", COUNTER, text, names, samples)


def _by_label(
    name: str,
    kind: str,
    text: str,
    label: str,
    values: Mapping[str, Read] | Callable[[Sampler], Mapping[str, float]],
) -> Family:
    """Return a family with one label: of each value of it what is read, or a function that returns all of them."""
    if callable(values):
        found = values
    else:
        reads = {key: reader(read) for key, read in values.items()}

        def found(node: Sampler) -> Mapping[str, Any]:
            return {key: read(node) for key, read in reads.items()}

    def samples(node: Sampler) -> list[Sample]:
        return [("", labels_text((label,), (key,)), value) for key, value in found(node).items()]

    return Family(name, kind, text, (label,), samples)


def _info(name: str, kind: str, text: str, labels: Mapping[str, str | Callable[[Sampler], str]]) -> Family:
    """Return a family whose one value, 1, says nothing: its labels do."""
    names = tuple(labels)

    def samples(node: Sampler) -> list[Sample]:
        values = [each if isinstance(each, str) else each(node) for each in labels.values()]
        return [("", labels_text(names, values), 1)]

    return Family(name, kind, text, names, samples)


def _auth_requests(node: Sampler) -> Iterator[Sample]:
    for backend, (outcomes, _) in node.broker.auth_counts.items():
        for outcome, count in outcomes.items():
            yield "", labels_text(("backend", "outcome"), (backend, outcome)), count


def _dead_letters(reason: str) -> Callable[[Sampler], list[Sample]]:
    names = ("queue_type", "dead_letter_strategy")
    return lambda node: [
        (
            "",
            labels_text(names, (queue_type_label(kind), "at_most_once")),
            node.totals.dead_letters.get((kind, reason), 0),
        )
        for kind in TYPES
    ]


def _histogram(counts: Sequence[int], octets: int, labels: str = "") -> list[Sample]:
    below = list(accumulate(counts))
    return buckets(SIZE_LABELS, below[:-1], labels, below[-1], octets)


def _latency(histogram: Histogram, labels: str = "") -> list[Sample]:
    below = histogram.at_most(*[(1 << bits) - 1 for bits in LATENCY_BITS])
    return buckets(LATENCY_LABELS, below, labels, histogram.count, histogram.total / 1e6)


def _sizes(node: Sampler) -> list[Sample]:
    sizes = node.totals.sizes
    return _histogram(sizes.counts, sizes.octets, labels_text(("protocol",), (PROTOCOL,)))


def _confirms(node: Sampler) -> Iterator[Sample]:
    for mode in MODES:
        yield from _latency(node.confirm(mode), labels_text(("mode",), (mode,)))


IDENTITY: tuple[Family, ...] = (
    _info("rabbitmq_build_info", UNTYPED,
          "Version of RabbitMQ that the broker is compatible with, and Leveret's own version", {
              "rabbitmq_version": attrgetter("broker.config.compatibility.version"),
              "prometheus_plugin_version": attrgetter("broker.config.compatibility.version"),
              "prometheus_client_version": "",
              "erlang_version": "",
              "product_name": "Leveret",
              "product_version": __version__,
          }),
    _info("rabbitmq_identity_info", UNTYPED, "Name of the node and of its cluster", {
        "rabbitmq_node": attrgetter("broker.node_name"),
        "rabbitmq_cluster": attrgetter("broker.cluster_name"),
        "rabbitmq_cluster_permanent_id": attrgetter("broker.directory.cluster_id"),
        "rabbitmq_endpoint": attrgetter("endpoint"),
    }),
)  # fmt: skip
"""Families in every response: dashboards join on them."""

MEMORY = _gauge("rabbitmq_memory_other_system_bytes", "Memory use: RabbitMQ divides its own, of which this is a part",
                "resources.memory.used")  # fmt: skip
"""The one family of `/metrics/memory-breakdown`."""

GLOBAL: tuple[Family, ...] = (
    _protocol("global_messages_received_total", "Messages received from publishers",
              "channels.total.counts.published"),
    _protocol("global_messages_received_confirm_total",
              "Messages received from publishers on channels in confirm mode", "channels.total.counts.numbered"),
    _protocol("global_messages_confirmed_total", "Messages confirmed to publishers",
              "channels.total.counts.confirmed"),
    _protocol("global_messages_routed_total", "Messages routed to queues, once for each queue",
              lambda node: sum([counts.published - counts.forwarded for counts in node.by_type.values()])),
    _protocol("global_messages_unroutable_dropped_total", "Unroutable messages dropped",
              "channels.total.counts.dropped"),
    _protocol("global_messages_unroutable_returned_total", "Unroutable messages returned to the publisher (mandatory)",
              "channels.total.counts.returned"),
    _protocol("global_publishers", "Open channels that have published", "channels.total.levels.publishers", GAUGE),
    _protocol("global_consumers", "Consumers", "channels.total.levels.consumers", GAUGE),
    _by_type("delivered", "Messages delivered to consumers or fetched with basic.get", "delivered"),
    *(
        _by_type(name, text, counter)
        for name, (counter, text) in (
            ("delivered_consume_auto_ack", DELIVERIES["messages_delivered_total"]),
            ("delivered_consume_manual_ack", DELIVERIES["messages_delivered_ack_total"]),
            ("delivered_get_auto_ack", DELIVERIES["get_total"]),
            ("delivered_get_manual_ack", DELIVERIES["get_ack_total"]),
            ("get_empty", DELIVERIES["get_empty_total"]),
            ("redelivered", DELIVERIES["messages_redelivered_total"]),
            ("acknowledged", DELIVERIES["messages_acked_total"]),
        )
    ),
    *(
        Family(f"rabbitmq_global_messages_dead_lettered_{reason}_total", COUNTER, f"Messages dead-lettered ({reason})",
               ("queue_type", "dead_letter_strategy"), _dead_letters(reason))
        for reason in REASONS
    ),
    Family("rabbitmq_message_size_bytes", HISTOGRAM, "Size of message bodies received from publishers",
           ("protocol", "le"), _sizes),
)  # fmt: skip

CONNECTIONS_OPENED = (
    _counter("rabbitmq_connections_opened_total", "Connections opened", "clients.connections_opened"),
    _counter("rabbitmq_connections_closed_total", "Connections closed or lost", "clients.connections_closed"),
    _counter("rabbitmq_channels_opened_total", "Channels opened", "clients.channels_opened"),
    _counter("rabbitmq_channels_closed_total", "Channels closed", "clients.channels_closed"),
    _counter("rabbitmq_queues_declared_total", "Queues declared, including those that already existed",
             "totals.queues_declared"),
    _counter("rabbitmq_queues_created_total", "Queues created", "totals.queues_created"),
    _counter("rabbitmq_queues_deleted_total", "Queues deleted", "totals.queues_deleted"),
)  # fmt: skip

NODE_GROUPS: Mapping[str, tuple[Family, ...]] = {
    "connection_churn_metrics": CONNECTIONS_OPENED,
    "node_coarse_metrics": (
        _gauge("rabbitmq_process_open_fds", "Open file descriptors", "process.open_files"),
        _gauge("rabbitmq_process_open_tcp_sockets", "Open client connections (one TCP socket each)",
               lambda n: len(n.clients.connections)),
        _gauge("rabbitmq_process_resident_memory_bytes", "Memory use as measured for the memory alarm",
               "resources.memory.used"),
        _gauge("rabbitmq_disk_space_available_bytes", "Disk space available to the data directory",
               "resources.disk.free"),
    ),
    "node_metrics": (
        _gauge("rabbitmq_process_max_fds", "Open file descriptors limit", "process.max_files"),
        _gauge("rabbitmq_process_max_tcp_sockets", "Connections that the file descriptor limit allows",
               "broker.gate.most_sockets"),
        _gauge("rabbitmq_resident_memory_limit_bytes", "Memory use above which publishers are blocked",
               "resources.memory.limit"),
        _gauge("rabbitmq_disk_space_available_limit_bytes", "Disk space below which publishers are blocked",
               "resources.disk.limit"),
        _gauge("rabbitmq_erlang_uptime_seconds", "Time since the broker started",
               lambda n: round(n.broker.loop.uptime, 3)),
    ),
    "node_persister_metrics": (
        _counter("rabbitmq_io_write_ops_total", "Commits", "disk.journal.commits"),
        _counter("rabbitmq_io_write_bytes_total", "Bytes written by commits", "disk.journal.octets_written"),
        _counter("rabbitmq_io_write_time_seconds_total", "Time spent in commits, including flushes",
                 lambda n: n.commit.total / 1e6),
        _counter("rabbitmq_io_sync_ops_total", "Flushes of commits to disk", "disk.flushes"),
        _counter("rabbitmq_msg_store_write_total", "Copies of messages written to the store",
                 lambda n: n.disk.journal.written + n.disk.journal.paged_out),
    ),
    "auth_attempt_metrics": (
        _protocol("auth_attempts_total", "Authentication attempts",
                  lambda n: n.totals.auth_succeeded + n.totals.auth_failed),
        _protocol("auth_attempts_succeeded_total", "Successful authentication attempts", "totals.auth_succeeded"),
        _protocol("auth_attempts_failed_total", "Failed authentication attempts", "totals.auth_failed"),
    ),
}  # fmt: skip
"""Groups by their name in `/metrics/detailed?family=`."""

TOTALS: tuple[Family, ...] = (
    _gauge("process_start_time_seconds", "Start time of the broker since the Unix epoch, in seconds", "process.began"),
    _gauge("rabbitmq_connections", "Open connections", lambda n: len(n.clients.connections)),
    _gauge("rabbitmq_channels", "Open channels", "clients.channel_count"),
    _gauge("rabbitmq_consumers", "Consumers", "channels.total.levels.consumers"),
    _gauge("rabbitmq_queues", "Queues", lambda n: sum([len(vhost.queues) for vhost in n.broker.vhosts.values()])),
    _untyped("rabbitmq_alarms_memory_used_watermark", "1 while the memory alarm blocks publishers",
             lambda n: int(n.resources.memory.raised)),
    _untyped("rabbitmq_alarms_free_disk_space_watermark", "1 while the disk alarm blocks publishers",
             lambda n: int(n.resources.disk.raised)),
    _untyped("rabbitmq_alarms_file_descriptor_limit",
             "1 while connections are refused because no file descriptors are left",
             lambda n: int(n.broker.gate.out_of_files)),
)  # fmt: skip

EXCHANGES: tuple[Family, ...] = (
    _counter("rabbitmq_exchange_messages_published_total", "Messages published to exchanges",
             "channels.total.counts.published"),
    _counter("rabbitmq_exchange_messages_confirmed_total", "Messages published to exchanges and confirmed",
             "channels.total.counts.confirmed"),
    _counter("rabbitmq_exchange_messages_unroutable_returned_total",
             "Unroutable messages returned to the publisher (mandatory)", "channels.total.counts.returned"),
    _counter("rabbitmq_exchange_messages_unroutable_dropped_total", "Unroutable messages dropped",
             "channels.total.counts.dropped"),
)  # fmt: skip
"""Sums over all exchanges, including deleted ones, for responses without a series per exchange."""

READS = {
    "messages": "Messages whose bodies were read from disk, by paging state",
    "blocks": "Blocks read from disk for messages, by paging state",
    "bodies": "Separately stored bodies read from disk for messages, by paging state",
}

REPLICATION: tuple[Column, ...] = (
    gauge("leveret_replication_role", "1 while this node leads, 0 while it waits", "role"),
    gauge("leveret_replication_epoch", "Number of the leadership that was seen last", "epoch"),
    gauge("leveret_replication_lag_batches", "Entries of the log that are not applied here", "lag_batches"),
    gauge("leveret_replication_lag_seconds",
          "Time since the oldest entry of the log that is not applied here was seen", "lag_seconds"),
    gauge("leveret_replication_append_seconds", "Duration of the last append of this node to the log",
          "append_seconds"),
)  # fmt: skip
"""With `replication.url` only; a node that waits has no others. Read of `administration.cluster.Figures`."""


def _replicated(column: Column) -> Family:
    return _gauge(
        column.name,
        f"{column.text}; with replication.url only",
        lambda node: None if node.broker.cluster is None else column.value(node.broker.cluster.figures()),
    )


def _log(node: Sampler) -> list[Sample]:
    cluster = node.broker.cluster
    return [] if cluster is None else [("", labels_text(("log",), (cluster.log,)), 1)]


REPLICATION_INFO = Family(
    "leveret_replication_info", GAUGE, "Name of the replicated log; with replication.url only", ("log",), _log
)


def _forwarded(node: Sampler) -> list[Sample]:
    forwards = node.broker.forwards
    if not forwards:
        return []
    counts = {"in": forwards.octets_in, "out": forwards.octets_out}
    return [("", labels_text(("direction",), (each,)), count) for each, count in counts.items()]


def _logs(node: Sampler) -> list[Sample]:
    logs = node.broker.logs
    found = [] if logs is None else logs.described()["logs"]
    return [
        ("", labels_text(("log", "leader"), (each["name"], each["leader"])), len(each["vhosts"]))
        for each in found
    ]


FORWARDED: Final[tuple[Family, ...]] = (
    _gauge("leveret_forwarded_connections",
           "Connections forwarded to the broker of their virtual host; with vhosts.broker only",
           lambda node: node.broker.forwards.connections if node.broker.forwards else None),
    Family("leveret_forwarded_bytes_total", COUNTER,
           "Bytes from clients (in), and to them (out), that were forwarded; with vhosts.broker only",
           ("direction",), _forwarded),
    _gauge("leveret_directory_up", "1 if the database with the directory of logs answers; with vhosts.directory only",
           lambda node: None if node.broker.logs is None else int(not node.broker.logs.problem)),
    _gauge("leveret_shared_users_age_seconds",
           "Time since the users were those of their log; with vhosts.users_log only",
           lambda node: None if node.broker.shared is None else node.broker.shared.age),
    Family("leveret_directory_vhosts", GAUGE, "Virtual hosts of a log, and its leader; with vhosts.directory only",
           ("log", "leader"), _logs),
)  # fmt: skip
BUILD = _info("leveret_build_info", GAUGE, "Version of Leveret", {"version": __version__})
OWN: tuple[Family, ...] = (
    BUILD,
    _by_label("leveret_queue_messages", GAUGE, "Ready messages by paging state", "state",
              {state: f"queues.total.levels.{state}" for state in STATES}),
    _by_label("leveret_queue_state_transitions_total", COUNTER,
              "Messages that changed their paging state (limit_ram_acks: unacknowledged messages whose bodies were "
              "evicted)", "transition",
              lambda n: {each: n.queues.total.transitions.get(each, 0) for each in TRANSITIONS}),
    Family("leveret_confirm_latency_seconds", HISTOGRAM,
           "Time from a publish to its confirm, by confirm mode (sampled)", ("mode", "le"), _confirms),
    _gauge("leveret_confirm_promises_open", "Publishes not yet confirmed because they await consumer acknowledgements",
           "queues.total.levels.promises"),
    _gauge("leveret_confirm_queues_without_consumer",
           "Queues with publishes that await consumer acknowledgements, and without a consumer",
           "queues.total.levels.forsaken"),
    _counter("leveret_confirm_light_rejects_total",
             "Messages requeued in mode consumer-ack-light, which keeps no copy: removed, and their publishes nacked",
             "queues.total.counts.lost"),
    _counter("leveret_confirms_nacked_total", "Publishes nacked", "channels.total.counts.nacked"),
    Family("leveret_commit_seconds", HISTOGRAM, "Duration of commits", ("le",), lambda n: _latency(n.commit)),
    Family("leveret_commit_size_bytes", HISTOGRAM, "Bytes written per commit", ("le",),
           lambda n: _histogram(n.disk.commits.sizes.counts, n.disk.journal.octets_written)),
    _by_label("leveret_commit_messages_total", COUNTER,
              "Message copies by outcome: durable (written), paged (transient, written by paging), early (settled "
              "before they were written)", "kind",
              {"durable": "disk.journal.written", "paged": "disk.journal.paged_out", "early": "disk.journal.early"}),
    *(_by_label(f"leveret_read_{what}_total", COUNTER, text, "state", {
        "delta": f"disk.pager.read_delta.{what}",
        "beta_gamma": f"disk.pager.read_entries.{what}",
    }) for what, text in READS.items()),
    _by_label("leveret_damaged_total", COUNTER,
              "Damaged data found when reading messages, bodies or blocks from disk", "kind",
              lambda n: {kind: n.disk.damages.counts[kind] for kind in KINDS}),
    _gauge("leveret_store_reader_lag_commits",
           "Commits since the oldest open read transaction began; while it is open the data file can only grow",
           "disk.reader_lag"),
    _gauge("leveret_commit_waiting_bytes", "Bytes waiting to be committed",
           lambda n: n.disk.journal.octets + n.disk.journal.octets_in_flight + n.disk.journal.blob_octets),
    Family("leveret_event_loop_lag_seconds", HISTOGRAM, "Delay of the event loop (lateness of its timer)", ("le",),
           lambda n: _latency(n.broker.context.latencies.loop_lag.whole())),
    _gauge("leveret_event_loop_longest_step_seconds",
           "Longest CPU time of a single step of the event loop since the start; other clients wait during a step",
           lambda n: n.broker.turn.slices.longest / 1e9),
    _by_label("leveret_publishers_paused", GAUGE,
              "Publishers that the broker does not read from, by reason: alarm, disk (a pending commit), queue "
              "(flow control)", "reason",
              {"alarm": lambda n: len(n.broker.blocked), "disk": "broker.loop.waiting_for_disk", "queue": "paced"}),
    _by_label("leveret_publisher_pauses_total", COUNTER,
              "Total number of times the broker stopped reading from a publisher, by reason", "reason",
              {"disk": "totals.pauses_disk", "queue": "totals.pauses_queue"}),
    _gauge("leveret_message_ids_known", "Ids that are known (x-deduplicate), of which some may have expired",
           lambda n: n.broker.context.ids.count),
    _counter("leveret_message_ids_refused_total", "Publishes refused because no more ids may be known",
             lambda n: n.broker.context.ids.refused),
    _gauge("leveret_delayed_messages", "Delayed messages held by x-delayed-message exchanges",
           lambda n: sum([line.count for vhost in n.broker.vhosts.values() for line in vhost.delay_lines()])),
    _counter("leveret_definitions_skipped_total",
             "Definitions, and parts of them, that imports have left out",
             lambda n: n.broker.directory.skipped),
    _gauge("leveret_recent_history_bytes", "Size of the messages that x-recent-history exchanges keep, in bytes",
           lambda n: sum([each.octets for vhost in n.broker.vhosts.values()
                          for each in vhost.histories.by_name.values()])),
    _by_label("leveret_tls_certificate_not_after_seconds", GAUGE,
              "End of the validity of a TLS listener's certificate, Unix time", "listener",
              lambda n: {key: each.ends.timestamp() for key, each in n.broker.gate.certificates.facts.items()}),
    _by_label("leveret_tls_certificate_reloads_total", COUNTER,
              "Total number of times that the certificates of a kind of TLS listeners were read again", "outcome",
              attrgetter("broker.gate.certificates.reloads")),
    Family("leveret_auth_backend_requests_total", COUNTER, "Questions to authentication backends, by outcome: "
           "allowed, refused, failed (no decision: refused), not_asked (refused at once, because the backend is down)",
           ("backend", "outcome"), _auth_requests),
    _by_label("leveret_auth_backend_request_seconds_total", COUNTER,
              "Time that questions to authentication backends have taken, including the time that they waited",
              "backend", lambda n: {name: seconds for name, (_, seconds) in n.broker.auth_counts.items()}),
    *map(_replicated, REPLICATION),
    REPLICATION_INFO,
    *FORWARDED,
    _by_label("leveret_cpu_seconds_total", COUNTER, "CPU time used by the broker", "mode",
              {"user": "process.user_seconds", "system": "process.system_seconds"}),
)  # fmt: skip
