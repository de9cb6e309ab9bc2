"""Time for which confirms of busy channels wait for others, as the latest confirm latencies allow.

Theory. With many publishers each turn confirms one or two messages of each, mostly out of order, so each in a frame of
its own; publishers are woken for one message at a time. If confirms take long anyway, a part of that time gathers them:
one frame for many, and all publishers at once. The wait is a part of the latency that it adds to, so it does not grow
by itself, and there is none where confirms are quick or few sockets are busy.
"""

from collections.abc import Mapping

from leveret.broker.counters.histogram import Histogram, Latency

SHARE = 3
"""The wait is at most this part of the mean latency."""
LEAST_US, MOST_US = 10_000, 100_000
"""Microseconds of a wait; a shorter one gathers too little."""


class ConfirmWait:
    """The wait, from one tick to the next."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Histogram, int, int]] = {}
        """By confirm mode, the histogram that the last tick has seen, and its count and sum then."""

    def next(self, latencies: Mapping[str, Latency], *, is_shared: bool) -> int:
        """Return the wait in nanoseconds until the next tick; 0 for none.

        Args:
            latencies: confirm latencies by mode.
            is_shared: whether many sockets have taken turns since the last tick.

        """
        count = total = 0
        for mode, latency in latencies.items():
            recent = latency.recent
            histogram, seen_count, seen_total = self._seen.get(mode, (recent, 0, 0))
            if histogram is not recent:  # an export has taken what the last tick saw
                seen_count = seen_total = 0
            self._seen[mode] = recent, recent.count, recent.total
            count += recent.count - seen_count
            total += recent.total - seen_total
        wait = total // (count * SHARE) if count and is_shared else 0
        return min(wait, MOST_US) * 1000 if wait >= LEAST_US else 0
