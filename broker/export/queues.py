"""The row of a queue in the export's tables. Pure."""

from math import isinf
from typing import Any

from broker.export.tables import AREA_MODULUS, QueueInterval
from broker.meters import paged
from broker.queue import Queue
from storage.priorities import parts
from storage.sub_queues import SubQueues


def facts(queue: Queue, ready: int, unacked: int) -> tuple[object, ...]:
    """What a queue's row is about: as long as this stays, so does the row, but for the time."""
    awaiting = queue.awaiting
    promised = (0, 0) if awaiting is None else (awaiting.promised, awaiting.refused)
    moved = sum([sum(level.transitions.values()) for level in _levels(queue) if level.transitions])
    return (
        queue.counts(),
        ready,
        unacked,
        queue.requeued,
        queue.rejected,
        queue.purged,
        queue.expired + queue.dropped + queue.dead_lettered,
        promised,
        moved,
        queue.consumer_count,
        queue.settings.confirm_mode,
    )


def _levels(queue: Queue) -> list[SubQueues]:
    return [part for part in parts((queue.store,)) if isinstance(part, SubQueues)]


def queue_row(queue: Queue, common: dict[str, Any], first_seen: int, now: int) -> QueueInterval:
    """The row of a queue; `common` is what all rows begin with, `now` in nanoseconds."""
    backing, awaiting, meter = queue.backing, queue.awaiting, queue.meter
    levels = _levels(queue)
    ready = backing.ready_count
    areas = (0, 0, 0)
    area_ready = area_unacked = 0
    if meter is not None:
        meter.look(queue, now)
        areas = meter.beta, meter.gamma, meter.delta
        area_ready, area_unacked = meter.ready, meter.unacked
    beta, gamma, delta = paged(queue.store) if ready else (0, 0, 0)
    counts = queue.counts()
    moved = _Transitions(levels)
    targets = sum([level.target_ram_count for level in levels])
    return QueueInterval(
        **common,
        vhost=queue.vhost,
        queue=queue.name,
        since_ms=first_seen if meter is None else meter.since,
        type=queue.type,
        durable=queue.durable,
        mode=queue.settings.confirm_mode,
        ready=ready,
        unacked=backing.unacked_count,
        consumers=queue.consumer_count,
        capacity=round(queue.consumer_capacity, 4),
        promised=0 if awaiting is None else awaiting.open_count,
        alpha=ready - beta - gamma - delta,
        beta=beta,
        gamma=gamma,
        delta=delta,
        unacked_ram=sum([level.ram_ack_count for level in levels]) if levels else backing.unacked_count,
        bytes_ram=sum([level.ram_octets for level in levels]),
        bytes_disk=sum([level.delta_octets for level in levels]),
        target_ram=-1.0 if isinf(targets) or not levels else float(targets),
        ingress_ewma=round(sum([level.rates.published for level in levels]), 3),
        egress_ewma=round(sum([level.rates.fetched for level in levels]), 3),
        pub=counts.published,
        delivered=counts.delivered,
        redelivered=counts.redelivered,
        got=counts.got_ack + counts.got_auto,
        get_empty=counts.get_empty,
        acked=counts.acked - counts.discarded,
        requeued=queue.requeued,
        rejected=queue.rejected,
        expired=queue.expired,
        dropped=queue.dropped,
        dead_lettered=queue.dead_lettered,
        purged=queue.purged,
        accepted=0 if awaiting is None else awaiting.accepted,
        refused=0 if awaiting is None else awaiting.refused,
        damaged=backing.damaged,
        area_ready=_area(area_ready),
        area_unacked=_area(area_unacked),
        area_alpha=_area(area_ready - sum(areas)),
        area_beta=_area(areas[0]),
        area_gamma=_area(areas[1]),
        area_delta=_area(areas[2]),
        t_ab=moved.count("alpha_to_beta"),
        t_ag=moved.count("alpha_to_gamma"),
        t_to_delta=moved.count("to_delta"),
        t_from_delta=moved.count("from_delta"),
        t_unacked_out=moved.count("limit_ram_acks"),
    )


def _area(nanoseconds: int) -> int:
    return nanoseconds // 1000 % AREA_MODULUS


class _Transitions:
    """How many messages of a queue have changed their state."""

    def __init__(self, levels: list[SubQueues]) -> None:
        self._levels = [level.transitions for level in levels if level.transitions]

    def count(self, name: str) -> int:
        """Those of one kind."""
        return sum([transitions.get(name, 0) for transitions in self._levels])
