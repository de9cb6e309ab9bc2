"""The measurement of a run: intervals, rates and the time that the broker blocked a connection."""

from leveret.broker.counters.histogram import Histogram
from leveret.broker.perf.producer import NANOSECONDS
from leveret.broker.perf.results import Flow, Interval, percentiles
from leveret.broker.perf.tally import Tally


class Measurement:
    """Turns the counters of a run into intervals and rates. Times are in nanoseconds.

    Args:
        began: time at which the run began.

    Attributes:
        tally: the counters.
        intervals: the intervals so far.
        since: beginning of the current interval.
        ended: time at which the producers stopped; `began` until then.

    """

    def __init__(self, tally: Tally, began: int) -> None:
        self.tally = tally
        self.began = self.ended = began
        self.intervals: list[Interval] = []
        self.blocked_reason: str | None = None
        """Reason of the last time that the broker blocked a connection."""
        self._blocked = 0
        """Number of connections that are blocked now."""
        self._blocked_since = began
        self._blocked_time = 0
        self._was_blocked = False
        """A connection was blocked at some time of this interval."""
        self.since = began
        self._before = self._counts()
        self._at_end = self._before

    def _counts(self) -> tuple[int, int, int, int, int]:
        tally = self.tally
        return tally.sent, tally.received, tally.confirmed, tally.nacked, tally.returned

    def interval(self, now: int) -> Interval:
        """End an interval, append it to `intervals`, and return it."""
        counts = self._counts()
        seconds = max(1, now - self.since) / NANOSECONDS
        sent, received, confirmed, nacked, returned = (
            round((new - old) / seconds, 1) for new, old in zip(counts, self._before, strict=True)
        )
        made = Interval(
            second=round((now - self.began) / NANOSECONDS, 3),
            sent=sent,
            received=received,
            confirmed=confirmed,
            nacked=nacked,
            returned=returned,
            latency_us=percentiles(self.tally.latency.take()),
            confirm_latency_us=percentiles(self.tally.confirm_latency.take()),
            blocked=self.blocked_reason if self._was_blocked else None,
        )
        self.intervals.append(made)
        self.since, self._before = now, counts
        self._was_blocked = self._blocked > 0
        return made

    def end(self, now: int) -> None:
        """Note the time at which the producers stop: rates count until then."""
        self.ended = now
        self._at_end = self._counts()

    def seconds(self) -> float:
        """Return the measured time in seconds."""
        return (self.ended - self.began) / NANOSECONDS

    def flows(self) -> tuple[Flow, Flow, Flow]:
        """Return what was sent, received and confirmed."""
        seconds = max(self.seconds(), 1e-9)
        sent, received, confirmed = (
            Flow(count, round(until / seconds, 1))
            for count, until in zip(self._counts()[:3], self._at_end[:3], strict=True)
        )
        return sent, received, confirmed

    def block(self, reason: str, now: int) -> None:
        """Note that the broker blocked a connection."""
        if not self._blocked:
            self._blocked_since = now
        self._blocked += 1
        self._was_blocked = True
        self.blocked_reason = reason

    def unblock(self, now: int) -> None:
        """Note that the broker unblocked a connection."""
        self._blocked -= 1
        if not self._blocked:
            self._blocked_time += now - self._blocked_since

    @property
    def is_blocked(self) -> bool:
        """True while the broker blocks a connection."""
        return self._blocked > 0

    def blocked_seconds(self, now: int) -> float:
        """Return the time in which at least one connection was blocked."""
        current = now - self._blocked_since if self._blocked else 0
        return round((self._blocked_time + current) / NANOSECONDS, 3)

    def latencies(self) -> tuple[Histogram, Histogram]:
        """Return the latencies to the consumers and to the confirms, of the whole run."""
        return self.tally.latency.whole(), self.tally.confirm_latency.whole()
