"""Mergeable histograms of durations: log-linear, with 32 buckets per power of two (the scheme "ll5").

Theory. A value below 32 is its own bucket; the bucket of any other is given by its highest bit and the five bits below,
so a bucket is never wider than a 32nd of its values. All histograms have the same buckets: those of several queues,
minutes or nodes are merged by adding counts, and a percentile of the sum is as accurate as one of each. (Percentiles of
percentiles are not.) Recording costs 0.1 us, so it is done for a sample of messages (`broker.counters.sampling`).
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

LINEAR_BITS = 5
_LINEAR = 1 << LINEAR_BITS
_BUCKETS = tuple(range(2048))
"""Shared int objects of the buckets of 64-bit values. Separate objects would keep memory blocks partly in use."""


def index(value: int) -> int:
    """Return the bucket of a value (>= 0)."""
    if value < _LINEAR:
        return value
    bits = value.bit_length()
    return ((bits - LINEAR_BITS) << LINEAR_BITS) + (value >> (bits - LINEAR_BITS - 1))


def lowest(bucket: int) -> int:
    """Return the lowest value of a bucket. Buckets 32 to 63 are not used."""
    if bucket < _LINEAR:
        return bucket
    return ((bucket & (_LINEAR - 1)) + _LINEAR) << ((bucket >> LINEAR_BITS) - 2)


def highest(bucket: int) -> int:
    """Return the highest value of a bucket."""
    if bucket < _LINEAR:
        return bucket
    return lowest(bucket) + (1 << ((bucket >> LINEAR_BITS) - 2)) - 1


@dataclass(slots=True, eq=False)
class Histogram:
    """A histogram of durations in microseconds."""

    # number of durations by bucket, without empty buckets
    counts: dict[int, int] = field(default_factory=dict)
    # count, total: number of durations, and their sum
    count: int = 0
    total: int = 0
    # least, greatest: minimum and maximum; 0 while the histogram is empty
    least: int = 0
    greatest: int = 0

    def record(self, value: int, weight: int = 1) -> None:
        """Count a duration in microseconds, `weight` times; negative ones count as 0."""
        if value < _LINEAR:
            value = max(value, 0)
            bucket = value
        else:
            bits = value.bit_length()
            bucket = ((bits - LINEAR_BITS) << LINEAR_BITS) + (value >> (bits - LINEAR_BITS - 1))
        counts = self.counts
        counts[_BUCKETS[bucket]] = counts.get(bucket, 0) + weight
        if not self.count or value < self.least:
            self.least = value
        self.greatest = max(self.greatest, value)
        self.count += weight
        self.total += value * weight

    def add(self, other: "Histogram") -> None:
        """Add the counts of another histogram."""
        if not other.count:
            return
        counts = self.counts
        for bucket, count in other.counts.items():
            counts[bucket] = counts.get(bucket, 0) + count
        self.least = min(self.least, other.least) if self.count else other.least
        self.greatest = max(self.greatest, other.greatest)
        self.count += other.count
        self.total += other.total

    def at_most(self, *values: int) -> list[int]:
        """Return, for each value, the count of the buckets that end there or below: at most one bucket too low."""
        found = sorted(self.counts)
        sums = [0, *accumulate([self.counts[bucket] for bucket in found])]
        return [sums[bisect_left(found, index(value + 1))] for value in values]

    def percentile(self, share: float) -> int:
        """Return the percentile of a fraction from 0 to 1, as the highest value of its bucket; 0 if empty."""
        needed = share * self.count
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= needed:
                return min(highest(bucket), self.greatest)
        return 0

    def buckets(self) -> list[tuple[int, int]]:
        """Return the buckets and their counts, in ascending order."""
        return sorted(self.counts.items())


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """Return the sum of several histograms."""
    total = Histogram()
    for histogram in histograms:
        total.add(histogram)
    return total


@dataclass(slots=True, eq=False)
class Latency:
    """Histograms of one kind of duration, for the last interval and since the start of the broker.

    Durations are recorded in `recent`, which `take` returns for each interval. `whole` has all since the start.
    """

    recent: Histogram = field(default_factory=Histogram)
    _before: Histogram = field(default_factory=Histogram)

    def record(self, value: int, weight: int = 1) -> None:
        """Count a duration in microseconds, `weight` times."""
        self.recent.record(value, weight)

    def take(self) -> Histogram:
        """Return the durations recorded since the last `take`."""
        taken, self.recent = self.recent, Histogram()
        self._before.add(taken)
        return taken

    def whole(self) -> Histogram:
        """Return all durations recorded since the start."""
        return merged((self._before, self.recent))
