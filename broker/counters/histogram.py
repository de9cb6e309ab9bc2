"""Histograms of durations that can be added up: log-linear, 32 buckets for each power of two (the scheme "ll5").

Theory. A value below 32 is its own bucket; any other is put by its highest bit and the five bits below, so a bucket is
never wider than a 32nd of its values. Buckets are the same for everybody: histograms of several queues, minutes or
nodes are merged by adding counts, and a percentile of the sum is as good as one of each. (Percentiles of percentiles
are not.) Recording costs a tenth of a microsecond, so it is done for a sample of messages (`broker.counters.sampling`).
"""

from collections.abc import Iterable

LINEAR_BITS = 5
_LINEAR = 1 << LINEAR_BITS
_BUCKETS = tuple(range(2048))
"""Those of any 64 bits. A number of its own for each would keep memory in use around where it was first met."""


def index(value: int) -> int:
    """The bucket of a value (>= 0)."""
    if value < _LINEAR:
        return value
    bits = value.bit_length()
    return ((bits - LINEAR_BITS) << LINEAR_BITS) + (value >> (bits - LINEAR_BITS - 1))


def lowest(bucket: int) -> int:
    """The lowest value of a bucket. No value is in buckets 32 to 63."""
    if bucket < _LINEAR:
        return bucket
    return ((bucket & (_LINEAR - 1)) + _LINEAR) << ((bucket >> LINEAR_BITS) - 2)


def highest(bucket: int) -> int:
    """The highest value of a bucket."""
    if bucket < _LINEAR:
        return bucket
    return lowest(bucket) + (1 << ((bucket >> LINEAR_BITS) - 2)) - 1


class Histogram:
    """How often which duration was met, in microseconds.

    Attributes:
        counts: how many, by bucket; those that are empty are missing.
        count, total: how many there were, and their sum.
        least, greatest: the extremes; 0 while there are none.

    """

    __slots__ = ("count", "counts", "greatest", "least", "total")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.count = 0
        self.total = 0
        self.least = 0
        self.greatest = 0

    def record(self, value: int, weight: int = 1) -> None:
        """Count a duration in microseconds, so many times; less than none is none."""
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
        """Count all that another one has counted."""
        if not other.count:
            return
        counts = self.counts
        for bucket, count in other.counts.items():
            counts[bucket] = counts.get(bucket, 0) + count
        self.least = min(self.least, other.least) if self.count else other.least
        self.greatest = max(self.greatest, other.greatest)
        self.count += other.count
        self.total += other.total

    def at_most(self, value: int) -> int:
        """How many were in buckets that end at `value` or below: never too many, and short of one bucket at most."""
        return sum([count for bucket, count in self.counts.items() if highest(bucket) <= value])

    def percentile(self, share: float) -> int:
        """A value (the highest of its bucket) that this share of all, 0 to 1, does not exceed; 0 if there are none."""
        needed = share * self.count
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= needed:
                return min(highest(bucket), self.greatest)
        return 0

    def buckets(self) -> list[tuple[int, int]]:
        """Buckets and their counts, the lowest first."""
        return sorted(self.counts.items())


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """All of them as one."""
    total = Histogram()
    for histogram in histograms:
        total.add(histogram)
    return total


class Latency:
    """A duration that is measured as long as the broker runs.

    What is recorded goes into `recent`; whoever writes intervals down takes that. `whole` has all since the start.
    """

    __slots__ = ("_before", "recent")

    def __init__(self) -> None:
        self.recent = Histogram()
        self._before = Histogram()

    def record(self, value: int, weight: int = 1) -> None:
        """Count a duration in microseconds, so many times."""
        self.recent.record(value, weight)

    def take(self) -> Histogram:
        """What was recorded since the last `take`."""
        taken, self.recent = self.recent, Histogram()
        self._before.add(taken)
        return taken

    def whole(self) -> Histogram:
        """What was recorded since the start."""
        return merged((self._before, self.recent))
