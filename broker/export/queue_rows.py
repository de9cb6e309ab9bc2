"""Rows of queues in the export's tables. Pure. Optimized, because there may be ten thousand queues."""

from collections.abc import Mapping
from math import isinf
from typing import Any

from leveret.broker.counters.totals import QueueCounts
from leveret.broker.export.tables import AREA_MODULUS, QueueInterval
from leveret.broker.queue.queue import Queue


def facts(queue: Queue, counts: QueueCounts) -> tuple[object, ...]:
    """Return the values that decide whether a queue needs a new row: unless they change, only its time would."""
    awaiting, backing = queue.awaiting, queue.backing
    return (
        counts,
        backing.ready_count,
        backing.unacked_count,
        queue.tally.requeued,
        None if awaiting is None else (awaiting.promised, awaiting.refused),
        sum(backing.paging_counts().transitions.values()),
        len(queue.consumers),
        queue.settings.confirm_mode,
    )


def queue_row(
    queue: Queue, counts: QueueCounts, *, now: int, first_seen: int, common: Mapping[str, Any]
) -> QueueInterval:
    """Return the row of a queue.

    Args:
        queue: the queue.
        counts: its counters.
        now: ns of the monotonic clock.
        first_seen: epoch ms.
        common: the columns that all rows have.

    """
    backing, awaiting, meter = queue.backing, queue.awaiting, queue.meter
    if queue.deleted:  # its messages at the deletion are included in its areas
        ready, unacked = 0, 0
    else:
        ready, unacked = backing.ready_count, backing.unacked_count
        if meter is not None:
            meter.update(queue, now)
    paging = backing.paging_counts()
    target, moved = paging.target_ram_count, paging.transitions
    _, beta, gamma, delta = backing.state_counts() if ready else (0, 0, 0, 0)
    row = QueueInterval(
        **common,
        vhost=queue.vhost,
        queue=queue.name,
        since_ms=first_seen,
        type=queue.type,
        durable=queue.durable,
        mode=queue.settings.confirm_mode,
        ready=ready,
        unacked=unacked,
        consumers=len(queue.consumers),
        capacity=round(queue.consumer_capacity, 4),
        promised=0 if awaiting is None or queue.deleted else awaiting.open_count,
        alpha=ready - beta - gamma - delta,
        beta=beta,
        gamma=gamma,
        delta=delta,
        unacked_ram=min(unacked, paging.ram_ack_count),
        bytes_ram=paging.ram_octets,
        bytes_disk=paging.delta_octets,
        target_ram=-1.0 if isinf(target) else float(target),
        ingress_ewma=round(paging.ingress_rate, 3),
        egress_ewma=round(paging.egress_rate, 3),
        pub=counts.published,
        delivered=counts.delivered,
        redelivered=counts.redelivered,
        got=counts.got_ack + counts.got_auto,
        get_empty=counts.get_empty,
        acked=counts.settled,
        requeued=queue.tally.requeued,
        rejected=queue.tally.rejected,
        expired=queue.tally.expired,
        dropped=queue.tally.dropped,
        dead_lettered=queue.tally.dead_lettered,
        purged=queue.tally.purged,
        accepted=0 if awaiting is None else awaiting.accepted,
        refused=0 if awaiting is None else awaiting.refused,
        damaged=backing.damaged,
        area_ready=0,
        area_unacked=0,
        area_alpha=0,
        area_beta=0,
        area_gamma=0,
        area_delta=0,
        t_ab=moved.get("alpha_to_beta", 0),
        t_ag=moved.get("alpha_to_gamma", 0),
        t_to_delta=moved.get("to_delta", 0),
        t_from_delta=moved.get("from_delta", 0),
        t_unacked_out=moved.get("limit_ram_acks", 0),
    )
    if meter is not None:
        row.since_ms = meter.since
        row.area_ready = _area(meter.ready)
        row.area_unacked = _area(meter.unacked)
        row.area_alpha = _area(meter.ready - meter.beta - meter.gamma - meter.delta)
        row.area_beta = _area(meter.beta)
        row.area_gamma = _area(meter.gamma)
        row.area_delta = _area(meter.delta)
    return row


def _area(nanoseconds: int) -> int:
    return nanoseconds // 1000 % AREA_MODULUS
