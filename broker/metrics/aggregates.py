"""Metrics of the whole broker: RabbitMQ's with its names, types and labels, and Leveret's own under `leveret_`.

Every series exists from the start, with 0 if nothing has happened, so that differences can always be computed.

Source: rabbitmq-server, deps/rabbitmq_prometheus, metrics.md; the size histogram is that of RabbitMQ 4.1.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple, TypeVar

from leveret import __version__
from leveret.broker import COMPATIBLE_VERSION
from leveret.broker.administration.access import Figures
from leveret.broker.counters.histogram import Histogram
from leveret.broker.counters.totals import SIZE_BOUNDS, QueueCounts, Sizes
from leveret.broker.metrics.per_object import DELIVERIES, queue_type_label
from leveret.broker.metrics.rows import STATES
from leveret.broker.metrics.sampler import MeasuredDisk, Sampler
from leveret.broker.metrics.text import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    UNTYPED,
    Column,
    Sample,
    buckets,
    labels_text,
)
from leveret.broker.queue.arguments import CLASSIC, QUORUM
from leveret.broker.queue.limits import DELIVERY_LIMIT, EXPIRED, MAXLEN, REJECTED
from leveret.confirm.modes import CONSUMER_ACK, CONSUMER_ACK_LIGHT, STANDARD
from leveret.storage.damage import KINDS
from leveret.storage.journal.journal import Journal

T = TypeVar("T")
PROTOCOL = "amqp091"
QUEUE_TYPES = (CLASSIC, QUORUM)
MODES = (STANDARD, CONSUMER_ACK, CONSUMER_ACK_LIGHT)
REASONS = (EXPIRED, REJECTED, MAXLEN, DELIVERY_LIMIT)
TRANSITIONS = ("alpha_to_beta", "alpha_to_gamma", "to_delta", "from_delta", "limit_ram_acks")
SIZE_LABELS = tuple(str(float(bound)) if bound < 10**6 else f"{bound:.0e}" for bound in SIZE_BOUNDS)
"""Bounds as RabbitMQ writes them, because dashboards compare the text: 100.0 and 1e+06."""
LATENCY_BITS = range(6, 27)
"""Latency buckets range from 2**6 microseconds (64) to 2**26 (67 s), each twice the one before."""
LATENCY_LABELS = tuple(str((1 << bits) / 1e6) for bits in LATENCY_BITS)


class Family(NamedTuple):
    """A metric of the broker.

    Attributes:
        name: its name.
        kind: its type.
        text: its help text, one line.
        labels: the names of its labels.
        samples: returns its samples, given the broker's values.

    """

    name: str
    kind: str
    text: str
    labels: tuple[str, ...]
    samples: Callable[[Sampler], Iterable[Sample]]


def _one(name: str, kind: str, text: str, value: Callable[[Sampler], float | None]) -> Family:
    """Return a family with one sample and no label."""
    return Family(name, kind, text, (), lambda node: [("", "", value(node))])


def _protocol(name: str, kind: str, text: str, value: Callable[[Sampler], int]) -> Family:
    """Return a family of RabbitMQ's counters by protocol, of which there is one here."""
    labels = labels_text(("protocol",), (PROTOCOL,))
    return Family(name, kind, text, ("protocol",), lambda node: [("", labels, value(node))])


def _global(name: str, kind: str, text: str, value: Callable[[Sampler], int]) -> Family:
    """Return a family of RabbitMQ's message counters by protocol."""
    return _protocol(f"rabbitmq_global_{name}", kind, text, value)


def _by_type(name: str, text: str, value: Callable[[QueueCounts], int]) -> Family:
    """Return a family of RabbitMQ's counters by protocol and queue type."""
    names = ("protocol", "queue_type")

    def samples(node: Sampler) -> Iterator[Sample]:
        for kind in QUEUE_TYPES:
            counts = node.by_type.get(kind, QueueCounts())
            yield "", labels_text(names, (PROTOCOL, queue_type_label(kind))), value(counts)

    return Family(f"rabbitmq_global_{name}", COUNTER, text, names, samples)


def _by_label(
    name: str, kind: str, text: str, label: str, values: Callable[[Sampler], Mapping[str, float]]
) -> Family:
    """Return a family with one label."""
    return Family(
        name,
        kind,
        text,
        (label,),
        lambda node: [("", labels_text((label,), (key,)), value) for key, value in values(node).items()],
    )


def _identity(node: Sampler) -> list[Sample]:
    names = ("rabbitmq_node", "rabbitmq_cluster", "rabbitmq_cluster_permanent_id", "rabbitmq_endpoint")
    return [("", labels_text(names, (*node.identity, node.endpoint)), 1)]


def _build(_node: Sampler) -> list[Sample]:
    versions = {
        "rabbitmq_version": COMPATIBLE_VERSION,
        "prometheus_plugin_version": COMPATIBLE_VERSION,
        "prometheus_client_version": "",
        "erlang_version": "",
        "product_name": "Leveret",
        "product_version": __version__,
    }
    return [("", labels_text(tuple(versions), tuple(versions.values())), 1)]


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
        for kind in QUEUE_TYPES
    ]


def _sizes(sizes: Sizes, labels: str) -> list[Sample]:
    return _histogram(sizes.counts, sizes.octets, labels)


def _histogram(counts: Sequence[int], octets: int, labels: str = "") -> list[Sample]:
    """Return the histogram of a `totals.Sizes`, in bytes."""
    below = list(accumulate(counts))
    return buckets(SIZE_LABELS, below[:-1], labels, below[-1], octets)


def _latency(histogram: Histogram, labels: str = "") -> list[Sample]:
    """Return a histogram of seconds from one of microseconds."""
    below = histogram.at_most(*[(1 << bits) - 1 for bits in LATENCY_BITS])
    return buckets(LATENCY_LABELS, below, labels, histogram.count, histogram.total / 1e6)


def _disk(read: Callable[[MeasuredDisk], T], otherwise: T) -> Callable[[Sampler], T]:
    """Return a function that reads a value of the data store; `otherwise` in a broker without one."""
    return lambda node: otherwise if node.broker.disk is None else read(node.broker.disk)


def _stored(read: Callable[[Journal], int]) -> Callable[[Sampler], int]:
    """Return a function that reads a counter of what is written to disk; 0 in a broker without one."""
    return _disk(lambda disk: read(disk.journal), 0)


def _read(what: str) -> Callable[[Sampler], Mapping[str, float]]:
    """Return a function for one of the read counters, by message state."""
    value = attrgetter(what)
    return _disk(
        lambda disk: {"delta": value(disk.pager.read_delta), "beta_gamma": value(disk.pager.read_entries)},
        {"delta": 0, "beta_gamma": 0},
    )


def _confirms(node: Sampler) -> Iterator[Sample]:
    for mode in MODES:
        yield from _latency(node.confirm(mode), labels_text(("mode",), (mode,)))


def _states(node: Sampler) -> Mapping[str, float]:
    levels = node.queues.total.levels
    return dict(zip(STATES, (levels.alpha, levels.beta, levels.gamma, levels.delta), strict=True))


IDENTITY: tuple[Family, ...] = (
    Family("rabbitmq_build_info", UNTYPED,
           "Version of RabbitMQ that the broker is compatible with, and Leveret's own version",
           ("rabbitmq_version", "prometheus_plugin_version", "prometheus_client_version", "erlang_version",
            "product_name", "product_version"), _build),
    Family("rabbitmq_identity_info", UNTYPED, "Name of the node and of its cluster",
           ("rabbitmq_node", "rabbitmq_cluster", "rabbitmq_cluster_permanent_id", "rabbitmq_endpoint"), _identity),
)  # fmt: skip
"""Families in every response: dashboards join on them."""

GLOBAL: tuple[Family, ...] = (
    _global("messages_received_total", COUNTER, "Messages received from publishers",
              lambda node: node.channels.total.counts.published),
    _global("messages_received_confirm_total", COUNTER, "Messages received from publishers on channels in confirm mode",
              lambda node: node.channels.total.counts.numbered),
    _global("messages_confirmed_total", COUNTER, "Messages confirmed to publishers",
              lambda node: node.channels.total.counts.confirmed),
    _global("messages_routed_total", COUNTER, "Messages routed to queues, once for each queue",
              lambda node: sum([counts.published - counts.forwarded for counts in node.by_type.values()])),
    _global("messages_unroutable_dropped_total", COUNTER,
              "Unroutable messages dropped",
              lambda node: node.channels.total.counts.dropped),
    _global("messages_unroutable_returned_total", COUNTER,
              "Unroutable messages returned to the publisher (mandatory)",
              lambda node: node.channels.total.counts.returned),
    _global("publishers", GAUGE, "Open channels that have published",
              lambda node: node.channels.total.levels.publishers),
    _global("consumers", GAUGE, "Consumers", lambda node: node.channels.total.levels.consumers),
    _by_type("messages_delivered_total", "Messages delivered to consumers or fetched with basic.get",
             lambda q: q.delivered),
    *(
        _by_type(f"messages_{name}_total", text, attrgetter(counter))
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
        Family(f"rabbitmq_global_messages_dead_lettered_{reason}_total", COUNTER,
               f"Messages dead-lettered ({reason})",
               ("queue_type", "dead_letter_strategy"), _dead_letters(reason))
        for reason in REASONS
    ),
    Family("rabbitmq_message_size_bytes", HISTOGRAM, "Size of message bodies received from publishers",
           ("protocol", "le"), lambda n: _sizes(n.totals.sizes, labels_text(("protocol",), (PROTOCOL,)))),
)  # fmt: skip

CONNECTIONS_OPENED = (
    _one("rabbitmq_connections_opened_total", COUNTER, "Connections opened", lambda n: n.clients.connections_opened),
    _one("rabbitmq_connections_closed_total", COUNTER, "Connections closed or lost",
         lambda n: n.clients.connections_closed),
    _one("rabbitmq_channels_opened_total", COUNTER, "Channels opened", lambda n: n.clients.channels_opened),
    _one("rabbitmq_channels_closed_total", COUNTER, "Channels closed", lambda n: n.clients.channels_closed),
    _one("rabbitmq_queues_declared_total", COUNTER, "Queues declared, including those that already existed",
         lambda n: n.totals.queues_declared),
    _one("rabbitmq_queues_created_total", COUNTER, "Queues created", lambda n: n.totals.queues_created),
    _one("rabbitmq_queues_deleted_total", COUNTER, "Queues deleted", lambda n: n.totals.queues_deleted),
)  # fmt: skip

NODE_GROUPS: Mapping[str, tuple[Family, ...]] = {
    "connection_churn_metrics": CONNECTIONS_OPENED,
    "node_coarse_metrics": (
        _one("rabbitmq_process_open_fds", GAUGE, "Open file descriptors", lambda n: n.process.open_files),
        _one("rabbitmq_process_open_tcp_sockets", GAUGE, "Open client connections (one TCP socket each)",
             lambda n: len(n.clients.connections)),
        _one("rabbitmq_process_resident_memory_bytes", GAUGE, "Memory use as measured for the memory alarm",
             lambda n: n.resources.memory_used),
        _one("rabbitmq_disk_space_available_bytes", GAUGE, "Disk space available to the data directory",
             lambda n: n.resources.disk_free),
    ),
    "node_metrics": (
        _one("rabbitmq_process_max_fds", GAUGE, "Open file descriptors limit", lambda n: n.process.max_files),
        _one("rabbitmq_process_max_tcp_sockets", GAUGE, "Connections that the file descriptor limit allows",
             lambda n: n.broker.most_sockets),
        _one("rabbitmq_resident_memory_limit_bytes", GAUGE, "Memory use above which publishers are blocked",
             lambda n: n.resources.memory_limit),
        _one("rabbitmq_disk_space_available_limit_bytes", GAUGE, "Disk space below which publishers are blocked",
             lambda n: n.resources.disk_limit),
        _one("rabbitmq_erlang_uptime_seconds", GAUGE, "Time since the broker started",
             lambda n: round(n.broker.uptime, 3)),
    ),
    "node_persister_metrics": (
        _one("rabbitmq_io_write_ops_total", COUNTER, "Commits", _stored(lambda journal: journal.commits)),
        _one("rabbitmq_io_write_bytes_total", COUNTER, "Bytes written by commits",
             _stored(lambda journal: journal.octets_written)),
        _one("rabbitmq_io_write_time_seconds_total", COUNTER, "Time spent in commits, including flushes",
             lambda n: n.commit.total / 1e6),
        _one("rabbitmq_io_sync_ops_total", COUNTER, "Flushes of commits to disk", _disk(lambda disk: disk.flushes, 0)),
        _one("rabbitmq_msg_store_write_total", COUNTER, "Copies of messages written to the store",
             _stored(lambda journal: journal.written + journal.paged_out)),
    ),
    "auth_attempt_metrics": (
        _protocol("rabbitmq_auth_attempts_total", COUNTER, "Authentication attempts",
                  lambda n: n.totals.auth_succeeded + n.totals.auth_failed),
        _protocol("rabbitmq_auth_attempts_succeeded_total", COUNTER, "Successful authentication attempts",
                  lambda n: n.totals.auth_succeeded),
        _protocol("rabbitmq_auth_attempts_failed_total", COUNTER, "Failed authentication attempts",
                  lambda n: n.totals.auth_failed),
    ),
}  # fmt: skip
"""Groups by their name in `/metrics/detailed?family=`."""

TOTALS: tuple[Family, ...] = (
    _one("process_start_time_seconds", GAUGE, "Start time of the broker since the Unix epoch, in seconds",
         lambda n: n.process.began),
    _one("rabbitmq_connections", GAUGE, "Open connections", lambda n: len(n.clients.connections)),
    _one("rabbitmq_channels", GAUGE, "Open channels", lambda n: n.clients.channel_count),
    _one("rabbitmq_consumers", GAUGE, "Consumers", lambda n: n.channels.total.levels.consumers),
    _one("rabbitmq_queues", GAUGE, "Queues", lambda n: sum([len(vhost.queues) for vhost in n.broker.vhosts.values()])),
    _one("rabbitmq_alarms_memory_used_watermark", UNTYPED, "1 while the memory alarm blocks publishers",
         lambda n: int(n.resources.memory_alarm)),
    _one("rabbitmq_alarms_free_disk_space_watermark", UNTYPED, "1 while the disk alarm blocks publishers",
         lambda n: int(n.resources.disk_alarm)),
    _one("rabbitmq_alarms_file_descriptor_limit", UNTYPED,
         "1 while connections are refused because no file descriptors are left",
         lambda n: int(n.broker.out_of_files)),
)  # fmt: skip

EXCHANGES: tuple[Family, ...] = (
    _one("rabbitmq_exchange_messages_published_total", COUNTER, "Messages published to exchanges",
         lambda n: n.channels.total.counts.published),
    _one("rabbitmq_exchange_messages_confirmed_total", COUNTER, "Messages published to exchanges and confirmed",
         lambda n: n.channels.total.counts.confirmed),
    _one("rabbitmq_exchange_messages_unroutable_returned_total", COUNTER,
         "Unroutable messages returned to the publisher (mandatory)", lambda n: n.channels.total.counts.returned),
    _one("rabbitmq_exchange_messages_unroutable_dropped_total", COUNTER,
         "Unroutable messages dropped", lambda n: n.channels.total.counts.dropped),
)  # fmt: skip
"""Sums over all exchanges, including deleted ones, for responses without a series per exchange."""

READS = {
    "messages": "Messages whose bodies were read from disk, by paging state",
    "blocks": "Blocks read from disk for messages, by paging state",
    "bodies": "Separately stored bodies read from disk for messages, by paging state",
}

_COPIES = {
    "durable": _stored(lambda journal: journal.written),
    "paged": _stored(lambda journal: journal.paged_out),
    "early": _stored(lambda journal: journal.early),
}

REPLICATION: tuple[Column[Figures], ...] = (
    Column("leveret_replication_role", GAUGE, "1 while this node leads, 0 while it waits", lambda f: f.role),
    Column("leveret_replication_epoch", GAUGE, "Number of the leadership that was seen last", lambda f: f.epoch),
    Column("leveret_replication_lag_batches", GAUGE, "Entries of the log that are not applied here",
           lambda f: f.lag_batches),
    Column("leveret_replication_lag_seconds", GAUGE,
           "Time since the oldest entry of the log that is not applied here was seen", lambda f: f.lag_seconds),
    Column("leveret_replication_append_seconds", GAUGE, "Duration of the last append of this node to the log",
           lambda f: f.append_seconds),
)  # fmt: skip
"""With `replication.url` only; a node that waits has no others."""


def _replicated(column: Column[Figures]) -> Family:
    return _one(
        column.name,
        column.kind,
        f"{column.text}; with replication.url only",
        lambda node: None if node.broker.cluster is None else column.value(node.broker.cluster.figures()),
    )


OWN: tuple[Family, ...] = (
    Family("leveret_build_info", GAUGE, "Version of Leveret", ("version",),
           lambda _: [("", labels_text(("version",), (__version__,)), 1)]),
    _by_label("leveret_queue_messages", GAUGE, "Ready messages by paging state", "state", _states),
    _by_label("leveret_queue_state_transitions_total", COUNTER,
              "Messages that changed their paging state (limit_ram_acks: unacknowledged messages whose bodies were "
              "evicted)", "transition",
              lambda n: {each: n.queues.total.transitions.get(each, 0) for each in TRANSITIONS}),
    Family("leveret_confirm_latency_seconds", HISTOGRAM,
           "Time from a publish to its confirm, by confirm mode (sampled)", ("mode", "le"), _confirms),
    _one("leveret_confirm_promises_open", GAUGE,
         "Publishes not yet confirmed because they await consumer acknowledgements",
         lambda n: n.queues.total.levels.promises),
    _one("leveret_confirm_queues_without_consumer", GAUGE,
         "Queues with publishes that await consumer acknowledgements, and without a consumer",
         lambda n: n.queues.total.levels.forsaken),
    _one("leveret_confirm_light_rejects_total", COUNTER,
         "Messages requeued in mode consumer-ack-light, which keeps no copy: removed, and their publishes nacked",
         lambda n: n.queues.total.counts.lost),
    _one("leveret_confirms_nacked_total", COUNTER, "Publishes nacked",
         lambda n: n.channels.total.counts.nacked),
    Family("leveret_commit_seconds", HISTOGRAM, "Duration of commits", ("le",), lambda n: _latency(n.commit)),
    Family("leveret_commit_size_bytes", HISTOGRAM, "Bytes written per commit", ("le",),
           _disk(lambda disk: _histogram(disk.commits.sizes.counts, disk.journal.octets_written),
                 _histogram([0] * (len(SIZE_BOUNDS) + 1), 0))),
    _by_label("leveret_commit_messages_total", COUNTER,
              "Message copies by outcome: durable (written), paged (transient, written by paging), early (settled "
              "before they were written)", "kind",
              lambda n: {kind: count(n) for kind, count in _COPIES.items()}),
    *(_by_label(f"leveret_read_{what}_total", COUNTER, text, "state", _read(what)) for what, text in READS.items()),
    _by_label("leveret_damaged_total", COUNTER,
              "Damaged data found when reading messages, bodies or blocks from disk", "kind",
              _disk(lambda disk: {kind: disk.damages.counts[kind] for kind in KINDS}, dict.fromkeys(KINDS, 0))),
    _one("leveret_store_reader_lag_commits", GAUGE,
         "Commits since the oldest open read transaction began; while it is open the data file can only grow",
         _disk(lambda disk: disk.reader_lag, 0)),
    _one("leveret_commit_waiting_bytes", GAUGE, "Bytes waiting to be committed",
         _stored(lambda journal: journal.octets + journal.octets_in_flight + journal.blob_octets)),
    Family("leveret_event_loop_lag_seconds", HISTOGRAM, "Delay of the event loop (lateness of its timer)", ("le",),
           lambda n: _latency(n.broker.context.latencies.loop_lag.whole())),
    _one("leveret_event_loop_longest_step_seconds", GAUGE,
         "Longest CPU time of a single step of the event loop since the start; other clients wait during a step",
         lambda n: n.broker.turn.slices.longest / 1e9),
    _by_label("leveret_publishers_paused", GAUGE,
              "Publishers that the broker does not read from, by reason: alarm, disk (a pending commit), queue "
              "(flow control)", "reason",
              lambda n: {"alarm": len(n.broker.blocked), "disk": n.broker.waiting_for_disk, "queue": n.paced}),
    _by_label("leveret_publisher_pauses_total", COUNTER,
              "Total number of times the broker stopped reading from a publisher, by reason", "reason",
              lambda n: {"disk": n.totals.pauses_disk, "queue": n.totals.pauses_queue}),
    _one("leveret_delayed_messages", GAUGE, "Delayed messages held by x-delayed-message exchanges",
         lambda n: sum([line.count for vhost in n.broker.vhosts.values() for line in vhost.delay_lines()])),
    _by_label("leveret_tls_certificate_not_after_seconds", GAUGE,
              "End of the validity of a TLS listener's certificate, Unix time", "listener",
              lambda n: {key: each.ends.timestamp() for key, each in n.broker.tls_certificates.items()}),
    _by_label("leveret_tls_certificate_reloads_total", COUNTER,
              "Total number of times that the certificates of a kind of TLS listeners were read again", "outcome",
              lambda n: n.broker.tls_reloads),
    Family("leveret_auth_backend_requests_total", COUNTER,
           "Questions to authentication backends, by outcome: allowed, refused, failed (no decision: refused), "
           "not_asked (refused at once, because the backend is down)", ("backend", "outcome"), _auth_requests),
    _by_label("leveret_auth_backend_request_seconds_total", COUNTER,
              "Time that questions to authentication backends have taken, including the time that they waited",
              "backend", lambda n: {name: seconds for name, (_, seconds) in n.broker.auth_counts.items()}),
    *map(_replicated, REPLICATION),
    _by_label("leveret_cpu_seconds_total", COUNTER, "CPU time used by the broker", "mode",
              lambda n: {"user": n.process.user_seconds, "system": n.process.system_seconds}),
)  # fmt: skip
