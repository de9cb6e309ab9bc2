"""Rows of queues in the export's tables. Pure. Optimized, because there may be ten thousand queues."""

from collections.abc import Sequence
from math import inf, isinf

from leveret.broker.counters.sampling import paged
from leveret.broker.counters.totals import QueueCounts
from leveret.broker.export.tables import AREA_MODULUS, QueueInterval
from leveret.broker.queue.queue import Queue
from leveret.storage.queues.backing_queue import BackingQueue
from leveret.storage.queues.priority_queue import PriorityQueue
from leveret.storage.queues.sub_queues import SubQueues

_NO_LEVELS: tuple[float, ...] = (0, 0, 0, inf, 0.0, 0.0, 0, 0, 0, 0, 0)
_UNMOVED: dict[str, int] = {}


def facts(queue: Queue, counts: QueueCounts, ready: int, unacked: int) -> tuple[object, ...]:
    """Return the values that decide whether a queue needs a new row: unless they change, only its time would."""
    awaiting = queue.awaiting
    return (
        counts,
        ready,
        unacked,
        queue.tally.requeued,
        queue.tally.rejected,
        queue.tally.purged,
        queue.tally.expired + queue.tally.dropped + queue.tally.dead_lettered,
        None if awaiting is None else (awaiting.promised, awaiting.refused),
        sum([sum(level.transitions.values()) for level in _levels(queue.store) if level.transitions]),
        len(queue.consumers),
        queue.settings.confirm_mode,
    )


def _levels(store: BackingQueue) -> Sequence[SubQueues]:
    if isinstance(store, SubQueues):
        return (store,)
    if isinstance(store, PriorityQueue):
        return [level for level in store.levels.values() if isinstance(level, SubQueues)]
    return ()


def _in_levels(store: BackingQueue) -> tuple[float, ...]:
    """Return the sums of levels in memory and on disk: unacked in memory, bytes, target, rates, transitions."""
    levels = [_in_level(level) for level in _levels(store)]
    if len(levels) == 1:
        return levels[0]
    return tuple(map(sum, zip(*levels, strict=True))) if levels else _NO_LEVELS


def _in_level(store: SubQueues) -> tuple[float, ...]:
    rates, moved = store.rates, store.transitions or _UNMOVED
    return (
        store.ram_ack_count,
        store.ram_octets,
        store.delta_octets,
        store.target_ram_count,
        rates.published,
        rates.fetched,
        moved.get("alpha_to_beta", 0),
        moved.get("alpha_to_gamma", 0),
        moved.get("to_delta", 0),
        moved.get("from_delta", 0),
        moved.get("limit_ram_acks", 0),
    )


def queue_row(
    queue: Queue, counts: QueueCounts, *, ts: int, now: int, node: str, boot_id: str, first_seen: int
) -> QueueInterval:
    """Return the row of a queue; `ts` and `first_seen` are epoch ms, `now` is ns of the monotonic clock."""
    backing, store, awaiting, meter = queue.backing, queue.store, queue.awaiting, queue.meter
    if queue.deleted:  # its messages at the deletion are included in its areas
        ready, unacked = 0, 0
    else:
        ready, unacked = backing.ready_count, backing.unacked_count
        if meter is not None:
            meter.look(queue, now)
    levels = _in_levels(store)
    unacked_ram, bytes_ram, bytes_disk, target, ingress, egress, *moved = levels
    beta, gamma, delta = paged(store) if ready else (0, 0, 0)
    row = QueueInterval(
        ts=ts,
        mono_us=now // 1000,
        node=node,
        boot_id=boot_id,
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
        unacked_ram=unacked if levels is _NO_LEVELS else unacked_ram,  # type: ignore[arg-type]
        bytes_ram=bytes_ram,  # type: ignore[arg-type]
        bytes_disk=bytes_disk,  # type: ignore[arg-type]
        target_ram=-1.0 if isinf(target) else float(target),
        ingress_ewma=round(ingress, 3),
        egress_ewma=round(egress, 3),
        pub=counts.published,
        delivered=counts.delivered,
        redelivered=counts.redelivered,
        got=counts.got_ack + counts.got_auto,
        get_empty=counts.get_empty,
        acked=counts.acked - counts.discarded,
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
        t_ab=moved[0],  # type: ignore[arg-type]
        t_ag=moved[1],  # type: ignore[arg-type]
        t_to_delta=moved[2],  # type: ignore[arg-type]
        t_from_delta=moved[3],  # type: ignore[arg-type]
        t_unacked_out=moved[4],  # type: ignore[arg-type]
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
