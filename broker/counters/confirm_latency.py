"""Confirm latency: of each channel at most one sequence number in `SAMPLE_EVERY` is timed.

Theory. As with a queue's messages (`broker.counters.sampling`), any number published in a turn may be the sample, and
it represents all numbers since the previous sample. Where confirms take long, fewer are sampled, so that a channel
with a million unconfirmed numbers costs no more than one with a hundred.
"""

from collections.abc import Mapping
from typing import Any

from leveret.broker.counters.histogram import Histogram, Latency
from leveret.broker.counters.sampling import SAMPLE_EVERY, next_place, one_of
from leveret.confirm.channel_confirms import ChannelConfirms

WATCHED_CONFIRMS = 8  # most pending samples of a channel; beyond it every other sample is dropped
SHARE = 3  # the wait is at most this part of the mean latency
LEAST_US, MOST_US = 10_000, 100_000  # microseconds of a wait; a shorter one gathers too little


class ConfirmTimes:
    """Confirm latency samples of one channel in confirm mode."""

    __slots__ = ("_every", "_last", "_place", "due", "watched")

    def __init__(self) -> None:
        self.due = 1  # sequence number from which on the next sample is taken
        self.watched: list[tuple[int, str, int, int]] = []
        """Unconfirmed samples: number, confirm mode, time of the publish (ns), count of numbers represented."""
        self._last = 0  # the last number represented by the samples so far
        self._every = SAMPLE_EVERY
        self._place = 0

    def look(self, confirms: ChannelConfirms, came: int, context: Any) -> None:
        """Record the latency of the samples that are confirmed by now; `came` as for `watch`."""
        latencies = context.latencies
        waiting = []
        for watched in self.watched:
            if watched[0] in confirms.held:
                waiting.append(watched)
            else:
                latencies.ended(latencies.confirm[watched[1]], *watched[2:])
        self.watched = waiting
        if not waiting and self._every > SAMPLE_EVERY:
            self._every = SAMPLE_EVERY
            self._last = confirms.seq_no - came  # numbers of a long wait do not represent later ones
            self.due = self._last + SAMPLE_EVERY

    def watch(self, confirms: ChannelConfirms, came: int, mode: str, context: Any, since: int = 0) -> None:
        """Sample one of the numbers that came: record its latency, or watch it until it is confirmed.

        `came` is the count of numbers published since confirms were sent before, at least one; those of this turn were
        sent. `mode` is that of the last of them, assumed for all; `since` the time (ns) from which on they came, 0 if
        all in this turn.
        """
        last = confirms.seq_no
        self._place = next_place(self._place)
        number = one_of(last, came, self._place)
        stands_for = last - self._last
        self._last = last
        published = since + (context.now - since) * (came - last + number) // came if since else context.now
        if number not in confirms.held:
            context.latencies.ended(context.latencies.confirm[mode], published, stands_for)
        else:
            if len(self.watched) >= WATCHED_CONFIRMS:
                self._thin_out()
            self.watched.append((number, mode, published, stands_for))
        self.due = last + self._every

    def _thin_out(self) -> None:
        """Drop every other sample, and halve the sampling rate."""
        early, late = self.watched[::2], self.watched[1::2]
        self.watched = [(*two[:3], one[3] + two[3]) for one, two in zip(early, late, strict=True)]
        self._every *= 2


class ConfirmWait:
    """The time for which confirms of busy channels wait for others, as the latest confirm latencies allow.

    With many publishers each turn confirms one or two messages of each, mostly out of order, so each in a frame of its
    own; publishers are woken for one message at a time. If confirms take long anyway, a part of that time gathers them:
    one frame for many, and all publishers at once. The wait is a part of the latency that it adds to, so it does not
    grow by itself, and there is none where confirms are quick or few sockets are busy.
    """

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Histogram, int, int]] = {}
        """By confirm mode, the histogram that the last tick has seen, and its count and sum then."""

    def next(self, latencies: Mapping[str, Latency], *, is_shared: bool) -> int:
        """Return the wait in nanoseconds until the next tick, given confirm latencies by mode; 0 for none.

        `is_shared` is true if many sockets have taken turns since the last tick.
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
