"""Memory targets of all queues, recomputed every few seconds.

Theory (after RabbitMQ's `rabbit_memory_monitor`). While all queues together use less than half of the limit, no queue
has a target. Above that, each queue's *duration* is computed: how long its messages in memory would last at its present
rates. All queues get the same desired duration, which is shorter the more memory is used, and a queue's target is that
times its rates. So a fast queue may keep more than one that only grows. RabbitMQ uses the memory of the whole process;
here it is the bytes that queues count themselves, because a process that maps its files appears larger than it is.

Between two updates a queue limits itself by bytes. Without targets that limit is its share of the total, the same for
all, or a quarter of it if there are fewer than four. With targets the total is divided in their proportion, by the
average message size of each queue, so that the limit in bytes permits the target.

A body shared by several queues counts once, divided among them (`storage.journal.shared_bodies`).
"""
# ruff: noqa: C901, PLR0912 - one case after the other

from collections.abc import Iterator, Sequence
from math import inf
from typing import TypeVar

from leveret.storage.journal.shared_bodies import OVERHEAD
from leveret.storage.queues.pager import Pager
from leveret.storage.queues.variable_queue import VariableQueue

T = TypeVar("T")

INTERVAL = 2.5  # seconds between two updates, as in RabbitMQ
LEAST = 1024 * 1024  # minimum bytes allowed to each queue as long as there are no targets
_LEAST_SHARE = 4  # with targets, each queue gets its even share divided by this at least, or `LEAST`
_IDLE = 0.01  # messages per second below which a queue's rates are ignored
_ALLOWANCE = 0.95
_SAMPLE = 8  # messages sampled from each part of a queue to estimate how much memory it shares with others
_AT_ONCE = 16  # queues processed in one step


class _Look:
    """Measurements of one queue in one update."""

    __slots__ = ("messages", "octets", "queue", "rate", "share", "wanted")

    def __init__(self, queue: VariableQueue) -> None:
        self.queue = queue
        self.messages = queue.ram_msg_count + queue.ram_ack_count
        self.octets: float = memory_of(queue)
        self.rate = queue.rates.total
        self.share = 1.0  # the queue's own fraction of its bytes
        self.wanted = 0.0  # bytes that the messages of its target would take


class MemoryMonitor:
    """Sets the memory targets of all queues that have a backlog, which the pager lists; `limit` bytes for all together.

    `fixed_target` is a fixed `target_ram_count` for every queue, for tests and measurements.
    """

    __slots__ = ("_fixed", "_pager", "desired_duration", "limit", "used")

    def __init__(self, pager: Pager, limit: int, *, fixed_target: int | None = None) -> None:
        self._pager = pager
        self.limit = limit
        self._fixed = fixed_target
        self.used = 0  # approximate bytes that messages took at the last update
        self.desired_duration = inf

    def look(self, now: float) -> None:
        """Update the targets at a time in seconds of a monotonic clock; may page."""
        for _ in self.steps(now):
            pass

    def steps(self, now: float) -> Iterator[None]:
        """Update the targets in steps of a few queues; messages and queues may come and go between two steps."""
        self._pager.journal.shared.prune()
        looks: list[_Look] = []
        naive = 0.0
        for some in _pieces(list(self._pager.active)):
            for queue in some:
                queue.rates.update(now, queue.next_seq, queue.fetched, queue.acked, queue.unacked_count)
                queue.mark_arrivals(now)
                look = _Look(queue)
                looks.append(look)
                naive += look.octets
                if not queue.ready_count and not queue.unacked_count:
                    self._pager.active.discard(queue)
            yield
        even = max(LEAST, min(self.limit // 4, self.limit // max(1, len(looks))))
        used = durations = 0.0
        known = messages = 0
        for pieces in _pieces(looks):
            for look in pieces:
                if naive > self.limit / 2 or look.octets > even:  # otherwise the share does not matter
                    look.share = self._own_share(look.queue)
                    look.octets *= look.share
                used += look.octets
                messages += look.messages
                if look.rate > _IDLE:
                    known += 1
                    durations += look.messages / look.rate
            yield
        self.used = int(used)
        self.desired_duration = self._judge(durations, known)
        wanted = 0.0
        least: float = even
        if self._fixed is None and self.desired_duration != inf:
            least = min(LEAST, even / _LEAST_SHARE)
            average = used / max(1, messages)
            for pieces in _pieces(looks):
                for look in pieces:
                    each = look.octets / look.messages if look.messages else average
                    look.wanted = int(self.desired_duration * look.rate) * each
                    wanted += look.wanted
                yield
        scale = min(1.0, self.limit / max(1.0, wanted))
        while looks:  # to release 200,000 of them at once takes long, too
            for _ in range(min(_AT_ONCE, len(looks))):
                look = looks.pop()
                if not look.queue.deleted:
                    octets = min(self.limit, max(least, look.wanted * scale) / look.share)
                    look.queue.set_ram_target(self._target(look.queue), int(octets))
            yield

    def _own_share(self, queue: VariableQueue) -> float:
        """Return the queue's own fraction of its messages' memory, estimated from a sample."""
        messages, has_entry = queue.some_in_memory(_SAMPLE)
        return self._pager.journal.shared.own_share(messages, has_entry)

    def _judge(self, durations: float, known: int) -> float:
        """Return the desired duration in seconds of each queue's messages, from the sum of `known` durations."""
        ratio = self.used / self.limit
        if ratio < 0.5:  # noqa: PLR2004 - half of what there may be
            return inf
        if ratio < _ALLOWANCE:
            durations += 1.0
        return durations / max(1, known) / ratio

    def _target(self, queue: VariableQueue) -> float:
        if self._fixed is not None:
            return self._fixed
        if self.desired_duration == inf:
            return inf
        return int(self.desired_duration * queue.rates.total)


def memory_of(queue: VariableQueue) -> int:
    """Return the approximate bytes of memory of a queue's messages, ignoring shared bodies."""
    octets = queue.ram_octets + queue.unacked_octets
    return octets + OVERHEAD * (queue.ram_msg_count + queue.ram_ack_count)


def _pieces(things: Sequence[T]) -> Iterator[Sequence[T]]:
    return (things[at : at + _AT_ONCE] for at in range(0, len(things), _AT_ONCE))
