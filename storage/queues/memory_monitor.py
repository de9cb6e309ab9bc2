"""How much memory each queue may use for messages, judged anew every few seconds.

Theory (after RabbitMQ's `rabbit_memory_monitor`). While all queues together use less than half of the limit nobody
has a target. Above, queues are judged by how long what they hold in memory would last at their present rates, their
*duration*; all get the same desired duration, the shorter the more is used, and a queue's target is that times its
rates. So a fast queue may keep more than one that only grows. RabbitMQ judges the memory of the whole process; here
the octets that queues count themselves are judged, because a process that maps its files looks larger than it is.

In between a queue bounds itself by octets. Without targets that is its share of the limit, the same for all, or a
quarter of it if there are fewer than four. With targets the limit is divided in their proportion, by what the messages
of each queue take on average, so that the bound in octets allows what the target asks for.

A body that several queues have counts once, divided among them (`storage.journal.shared_bodies`).
"""
# ruff: noqa: C901, PLR0912 - one case after the other

from collections.abc import Iterator, Sequence
from math import inf
from typing import TypeVar

from leveret.storage.journal.shared_bodies import OVERHEAD
from leveret.storage.queues.pager import Pager, Paging

T = TypeVar("T")

INTERVAL = 2.5
"""Seconds between two looks, as in RabbitMQ."""
LEAST = 1024 * 1024
"""Octets that each queue may have at least, as long as there are no targets."""
_LEAST_SHARE = 4
"""Under targets no queue is given less than its even share divided by this, or `LEAST` if that is less."""
_IDLE = 0.01
"""Messages per second below which a queue's rates say nothing."""
_ALLOWANCE = 0.95
_SAMPLE = 8
"""Messages of each part of a queue that say how much of its memory it shares with others."""
_AT_ONCE = 16
"""Queues that are looked at in one step."""


class _Look:
    """What one look has found of a queue."""

    __slots__ = ("messages", "octets", "queue", "rate", "share", "wanted")

    def __init__(self, queue: Paging) -> None:
        self.queue = queue
        self.messages = queue.ram_msg_count + queue.ram_ack_count
        self.octets: float = memory_of(queue)
        self.rate = queue.rates.total
        self.share = 1.0
        """What part of the octets is the queue's own."""
        self.wanted = 0.0
        """Octets that the messages of its target would take."""


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
        """Octets that messages took at the last look, about."""
        self.desired_duration = inf

    def look(self, now: float) -> None:
        """Judge the queues' memory at a time in seconds of a monotonic clock; may page."""
        for _ in self.steps(now):
            pass

    def steps(self, now: float) -> Iterator[None]:
        """The same in pieces, some queues each; messages may come and go, and queues be deleted, between any two."""
        self._pager.journal.shared.prune()
        looks: list[_Look] = []
        naive = 0.0
        for some in _pieces(list(self._pager.active)):
            for queue in some:
                queue.rates.update(now, queue.next_seq, queue.fetched, queue.acked)
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
                if naive > self.limit / 2 or look.octets > even:  # or nothing depends on it
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
        for pieces in _pieces(looks):
            for look in pieces:
                if not look.queue.deleted:
                    octets = min(self.limit, max(least, look.wanted * scale) / look.share)
                    look.queue.set_ram_target(self._target(look.queue), int(octets))
            yield

    def _own_share(self, queue: Paging) -> float:
        """What part of the memory that a queue's messages take is its own, by some of them."""
        messages, has_entry = queue.some_in_memory(_SAMPLE)
        return self._pager.journal.shared.own_share(messages, has_entry)

    def _judge(self, durations: float, known: int) -> float:
        """How long what each queue has in memory should last, in seconds, by how long it would last those known."""
        ratio = self.used / self.limit
        if ratio < 0.5:  # noqa: PLR2004 - half of what there may be
            return inf
        if ratio < _ALLOWANCE:
            durations += 1.0
        return durations / max(1, known) / ratio

    def _target(self, queue: Paging) -> float:
        if self._fixed is not None:
            return self._fixed
        if self.desired_duration == inf:
            return inf
        return int(self.desired_duration * queue.rates.total)


def memory_of(queue: Paging) -> int:
    """Octets of memory that a queue's messages take, about, if it shares them with nobody."""
    octets = queue.ram_octets + queue.unacked_octets
    return octets + OVERHEAD * (queue.ram_msg_count + queue.ram_ack_count)


def _pieces(things: Sequence[T]) -> Iterator[Sequence[T]]:
    return (things[at : at + _AT_ONCE] for at in range(0, len(things), _AT_ONCE))
