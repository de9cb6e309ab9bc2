"""How much memory each queue may use for messages, judged anew every few seconds.

Theory (after RabbitMQ's `rabbit_memory_monitor`). While all queues together use less than half of the limit nobody
has a target. Above, queues are judged by how long what they hold in memory would last at their present rates, their
*duration*; all get the same desired duration, the shorter the more is used, and a queue's target is that times its
rates. So a fast queue may keep more than one that only grows. RabbitMQ judges the memory of the whole process; here
the octets that queues count themselves are judged, because a process that maps its files looks larger than it is.

In between a queue bounds itself by octets: its share of the limit, or a quarter of it if it is alone.
"""

from math import inf

from storage.sub_queues import OVERHEAD, Pager, SubQueues

INTERVAL = 2.5
"""Seconds between two looks, as in RabbitMQ."""
_IDLE = 0.01
"""Messages per second below which a queue's rates say nothing."""
_ALLOWANCE = 0.95


class MemoryMonitor:
    """Sets the targets of all queues that have a backlog.

    Args:
        pager: knows them.
        limit: octets that messages may take in memory, all queues together.
        fixed_target: `target_ram_count` for every queue instead of a judgement, for tests and measurements.

    """

    __slots__ = ("_fixed", "_pager", "desired_duration", "limit", "used")

    def __init__(self, pager: Pager, limit: int, *, fixed_target: int | None = None) -> None:
        self._pager = pager
        self.limit = limit
        self._fixed = fixed_target
        self.used = 0
        self.desired_duration = inf

    def look(self, now: float) -> None:
        """Judge the queues' memory at a time in seconds of a monotonic clock; may page."""
        queues = list(self._pager.active)
        durations = []
        used = 0
        for queue in queues:
            rates = queue.rates
            rates.update(now, queue.next_seq, queue.fetched, queue.acked)
            used += memory_of(queue)
            total = rates.total
            durations.append((queue.ram_msg_count + queue.ram_ack_count) / total if total > _IDLE else inf)
            if not queue.ready_count and not queue.unacked_count:
                self._pager.active.discard(queue)
        self.used = used
        ratio = used / self.limit
        if ratio < 0.5 or not queues:
            self.desired_duration = inf
        else:
            known = [duration for duration in durations if duration != inf]
            total = sum(known) + (1.0 if ratio < _ALLOWANCE else 0.0)
            self.desired_duration = total / max(1, len(known)) / ratio
        share = max(1024 * 1024, min(self.limit // 4, self.limit // max(1, len(queues))))
        for queue in queues:
            queue.set_ram_target(self._target(queue), share)

    def _target(self, queue: SubQueues) -> float:
        if self._fixed is not None:
            return self._fixed
        if self.desired_duration == inf:
            return inf
        return int(self.desired_duration * queue.rates.total)


def memory_of(queue: SubQueues) -> int:
    """Octets of memory that a queue's messages take, about."""
    octets = queue.ram_octets + queue.unacked_octets
    return octets + OVERHEAD * (queue.ram_msg_count + queue.ram_ack_count)
