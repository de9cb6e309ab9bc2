"""The keys of a queue in the API, each a function of the queue, so that lists compute only those that are asked for."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from math import inf
from operator import attrgetter
from typing import Any, TypeVar

from leveret.broker.administration.definitions_document import json_text, plain_arguments
from leveret.broker.amqp.errors import MalformedProperties
from leveret.broker.amqp.properties import Properties
from leveret.broker.http.call import Call
from leveret.broker.http.listing import ABSENT, asked_ranges
from leveret.broker.queue.arguments import CLASSIC, QUORUM, STREAM
from leveret.broker.queue.consumer import Consumer
from leveret.broker.queue.queue import Queue
from leveret.broker.statistics import families, queue_health
from leveret.broker.statistics.rows import QueueLevels, queue_levels
from leveret.broker.statistics.series import NO_RATE, Series
from leveret.broker.statistics.statistics import Statistics
from leveret.broker.vhost.policies import NOTHING, Applied
from leveret.storage.queues.backing_queue import PagingCounts

R = TypeVar("R")
T = TypeVar("T")
Fields = Mapping[str, Callable[[Queue], Any]]

QUEUE_OCTETS = 2000  # estimated memory of an empty queue in bytes
MESSAGE_OCTETS = 300  # estimated memory of a message in bytes, beside its content
_NO_COLLECTIONS = dict.fromkeys(
    ("fullsweep_after", "max_heap_size", "min_bin_vheap_size", "min_heap_size", "minor_gcs"), 0
)
ERLANG: Mapping[str, Callable[[Any], Any]] = {  # the figures about an Erlang process, which clients expect
    "garbage_collection": lambda _each: _NO_COLLECTIONS,
    "reductions": lambda _each: 0,
    "reductions_details": lambda _each: NO_RATE,
}
_UNDEFINED = "undefined"  # RabbitMQ's text for a position that does not exist
IDLE_TICKS = 2  # samples without a change after which a queue or a channel is idle
_DECLARED = (
    *("arguments", "auto_delete", "durable", "exclusive", "name", "node", "state", "type", "vhost"),
    *("leader", "members", "online"),
)
_TOTALS = ("messages", "messages_ready", "messages_unacknowledged")


def queue_fields(call: Call) -> Fields:
    """Return the functions for the keys of a queue, those that the query asks for."""
    broker = call.broker
    node, statistics, now = broker.node_name, broker.statistics, broker.now()
    ranges = asked_ranges(call.query, one="queue" in call.names)
    span = ranges.messages

    @once_a_row
    def policies(queue: Queue) -> Applied:
        vhost = broker.vhosts.get(queue.vhost)
        return NOTHING if vhost is None else vhost.queue_policies(queue)

    @once_a_row
    def counts(queue: Queue) -> PagingCounts:
        queue.settle()
        return queue.backing.paging_counts()

    @once_a_row
    def levels(queue: Queue) -> QueueLevels:
        return queue_levels(queue, counts(queue))

    def paging(read: Callable[[PagingCounts], int]) -> Callable[[Queue], int]:
        return lambda queue: read(counts(queue))

    def level(name: str) -> Callable[[Queue], int]:
        read = attrgetter(name)
        return lambda queue: read(levels(queue))

    def quorum(value: Any) -> Callable[[Queue], Any]:
        return lambda queue: value if queue.type == QUORUM else ABSENT

    def replicated(value: Any) -> Callable[[Queue], Any]:
        return lambda queue: ABSENT if queue.type == CLASSIC else value

    def length(name: str) -> Callable[[Queue], Any]:
        return lambda queue: statistics.detail(
            statistics.series(queue), families.QUEUES, name, ranges.lengths
        )

    fields: Fields = {
        "name": lambda queue: json_text(queue.name),
        "vhost": lambda queue: json_text(queue.vhost),
        **{name: attrgetter(name) for name in ("type", "durable", "auto_delete")},
        "exclusive": lambda queue: queue.exclusive_owner is not None,
        "arguments": lambda queue: plain_arguments(queue.arguments),
        "node": lambda _queue: node,
        "state": lambda queue: queue_health.queue_state(queue, now),
        "health": lambda queue: queue_health.shown(queue_health.health(queue, statistics, now)),
        "confirm_mode": lambda queue: queue.settings.confirm_mode,
        "messages": _messages,
        "messages_ready": lambda queue: queue.ready_count,
        "messages_unacknowledged": lambda queue: queue.unacked_count,
        "messages_details": length("messages"),
        "messages_ready_details": length("messages_ready"),
        "messages_unacknowledged_details": length("messages_unacknowledged"),
        "message_stats": lambda queue: statistics.message_stats(families.QUEUES, queue, span),
        "idle_since": lambda queue: (
            ABSENT if queue.type == QUORUM else idle_since(statistics, statistics.series(queue))
        ),
        "messages_ram": level("ram"),
        "messages_ready_ram": level("ready_ram"),
        "messages_unacknowledged_ram": level("unacked_ram"),
        "messages_persistent": lambda queue: (
            queue.backing.persistent_count() if queue.type == CLASSIC else queue.ready_count
        ),
        "messages_paged_out": level("paged_out"),
        "disk_reads_per_delivered": queue_health.reads_per_delivered,
        "messages_delayed": lambda queue: queue.held_count if queue.lines else ABSENT,
        "next_due": lambda queue: ABSENT if queue.next_due is None else queue.next_due,
        "ids_known": lambda queue: ABSENT if queue.ids is None else queue.ids.count,
        "messages_repeated": lambda queue: ABSENT if queue.ids is None else queue.counts().repeated,
        "messages_retained": lambda queue: ABSENT if queue.retained is None else queue.retained.ready_count,
        "message_bytes": paging(_octets),
        "message_bytes_ready": paging(lambda each: each.ram_octets + each.away_octets + each.delta_octets),
        "message_bytes_unacknowledged": paging(lambda each: each.unacked_octets + each.unacked_away_octets),
        "message_bytes_ram": level("octets_ram"),
        "message_bytes_persistent": _message_bytes_persistent,
        "message_bytes_retained": lambda queue: (
            ABSENT if queue.retained is None else levels(queue).retained_octets
        ),
        "message_bytes_paged_out": paging(_paged_out),
        "head_message_timestamp": _head_message_timestamp,
        "consumers": lambda queue: queue.consumer_count,
        "consumer_capacity": lambda queue: queue.consumer_capacity,
        "consumer_utilisation": lambda queue: queue.consumer_capacity,
        "exclusive_consumer_tag": lambda queue: _tag(queue.consumers.exclusive),
        "single_active_consumer_tag": lambda queue: _tag(queue.consumers.active),
        "policy": lambda queue: _named(policies(queue).policy),
        "operator_policy": lambda queue: _named(policies(queue).operator_policy),
        "effective_policy_definition": lambda queue: policies(queue).definition,
        "memory": _memory,
        "slave_nodes": lambda _queue: [],
        "synchronised_slave_nodes": lambda _queue: [],
        "recoverable_slaves": lambda _queue: None,
        "single_active_consumer_ctag": lambda queue: (
            _tag(queue.consumers.active) if queue.type == QUORUM else ABSENT
        ),
        "leader": replicated(node),
        "members": replicated([node]),
        "online": replicated([node]),
        "open_files": quorum({node: 0}),
        "messages_dlx": quorum(0),
        "message_bytes_dlx": quorum(0),
        "owner_pid_details": _owner,
        **ERLANG,
        "backing_queue_status": lambda queue: (
            _backing_queue_status(queue) if queue.type == CLASSIC else ABSENT
        ),
    }
    if call.query.flag("disable_stats"):
        wanted = _DECLARED + (_TOTALS if call.query.flag("enable_queue_totals") else ())
        return {name: fields[name] for name in wanted}
    return fields


def idle_since(statistics: Statistics, series: Series | None) -> Any:
    """Return the time of the last change of an idle object, as RabbitMQ writes it; `ABSENT` if it is not idle."""
    if series is None or statistics.ticks.number - series.changed < IDLE_TICKS:
        return ABSENT
    time = datetime.fromtimestamp(series.changed_wall / 1000, UTC)
    return time.isoformat(timespec="milliseconds")


def _owner(queue: Queue) -> Any:
    owner: Any = queue.exclusive_owner
    if owner is None or not hasattr(owner, "peer"):
        return ABSENT
    return {"name": owner.name, "peer_host": owner.peer[0], "peer_port": owner.peer[1]}


def _named(policy: Any) -> str | None:
    return None if policy is None else json_text(policy.name)


def once_a_row(compute: Callable[[R], T]) -> Callable[[R], T]:
    """Return a function that computes a value once for all keys of a row, which come one after the other."""
    known: tuple[R, T] | None = None

    def value(row: R) -> T:
        nonlocal known
        if known is None or known[0] is not row:
            known = row, compute(row)
        return known[1]

    return value


def _paged_out(paging: PagingCounts) -> int:
    return paging.away_octets + paging.unacked_away_octets + paging.delta_octets


def _octets(paging: PagingCounts) -> int:
    return paging.ram_octets + paging.unacked_octets + _paged_out(paging)


def _messages(queue: Queue) -> int:
    """Return the number of messages; those that a reader of a stream has not acked are among them."""
    return queue.ready_count + (0 if queue.type == STREAM else queue.unacked_count)


def _message_bytes_persistent(queue: Queue) -> int:
    """Return the bytes of persistent messages; of a queue with others, too, in proportion to their numbers."""
    octets = _octets(queue.backing.paging_counts())
    if queue.type != CLASSIC:
        return octets
    count = queue.backing.persistent_count()
    messages = queue.backing.ready_count + queue.backing.unacked_count
    return octets * min(count, messages) // messages if messages else 0


def _head_message_timestamp(queue: Queue) -> int | None:
    """Return the timestamp of the next message, if it has one and is in memory, as RabbitMQ."""
    message = queue.backing.head_message()
    if message is None:
        return None
    try:
        return Properties(message.header).timestamp
    except MalformedProperties:  # properties are passed on as they are, even if they cannot be read
        return None


def _memory(queue: Queue) -> int:
    levels = queue_levels(queue, queue.backing.paging_counts())
    own = QUEUE_OCTETS + levels.ram * MESSAGE_OCTETS + levels.octets_ram
    return own if queue.retained is None else own + _memory(queue.retained)


def _tag(consumer: Consumer | None) -> str | None:
    return None if consumer is None else consumer.tag


def _backing_queue_status(queue: Queue) -> dict[str, Any]:
    """Return RabbitMQ's figures about sub-queues; of a priority queue the sums of its levels, as there."""
    paging = queue.backing.paging_counts()
    target = paging.target_ram_count
    start, stop = (_UNDEFINED if at is None else at for at in (paging.delta_start, paging.delta_stop))
    return {
        "mode": "lazy" if queue.settings.lazy else "default",
        "version": 1,
        "len": queue.backing.ready_count,
        "q1": paging.q1,
        "q2": paging.q2,
        "q3": paging.q3,
        "q4": paging.q4,
        "delta": ["delta", start, paging.delta, paging.delta_transient, stop],
        "target_ram_count": "infinity" if target == inf else target,
        "next_seq_id": _UNDEFINED if paging.next_seq is None else paging.next_seq,
        "next_deliver_seq_id": _UNDEFINED if paging.next_deliver is None else paging.next_deliver,
        "avg_ingress_rate": paging.ingress_rate,
        "avg_egress_rate": paging.egress_rate,
        "avg_ack_ingress_rate": paging.ack_ingress_rate,
        "avg_ack_egress_rate": paging.ack_egress_rate,
    }
