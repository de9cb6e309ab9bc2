"""Message rates of a queue: moving averages, as in RabbitMQ's queues; and the times at which its messages came.

Theory. Nothing is recorded when a message is published. Every few seconds, a mark is kept: the time, and the position
of the next message to be published. A message is at least as old as the first mark behind its position, so its age is
never overestimated, and underestimated by the time between two marks. Marks of messages that have left are dropped; if
there are too many, every second one is, so that the error stays about a hundredth of the age of the oldest message.
"""

from array import array
from bisect import bisect_right
from math import exp, inf, log

HALF_LIFE = 5.0  # half-life of a rate in seconds
MARKS = 256  # maximum number of marks


class Arrivals:
    """The marks of one queue."""

    __slots__ = ("_positions", "_times")

    def __init__(self) -> None:
        self._times = array("d")
        self._positions = array("Q")

    def mark(self, now: float, following: int, first: int) -> None:
        """Keep a mark at `now` (monotonic seconds): positions of the next message, and of the first that is needed."""
        times, positions = self._times, self._positions
        past = bisect_right(positions, first)
        del times[: max(0, past - 1)], positions[: max(0, past - 1)]
        if positions and positions[-1] == following:
            return
        times.append(now)
        positions.append(following)
        if len(times) > MARKS:
            self._times, self._positions = times[1::2], positions[1::2]

    def before(self, seq_id: int) -> float:
        """Return a time before which the message at a position came; infinity if it came after the last mark."""
        at = bisect_right(self._positions, seq_id)
        return self._times[at] if at < len(self._times) else inf


class Rates:
    """Messages per second in and out of a queue, and in and out of its unacked ones."""

    __slots__ = (
        "_acked",
        "_at",
        "_fetched",
        "_published",
        "_taken",
        "acked",
        "arrivals",
        "fetched",
        "published",
        "taken",
    )

    def __init__(self) -> None:
        self.published = self.fetched = self.acked = self.taken = 0.0
        self._published = self._fetched = self._acked = self._taken = 0
        self._at: float | None = None
        self.arrivals: Arrivals | None = None  # marks of the times at which messages came; None for none

    def update(self, now: float, published: int, fetched: int, acked: int, unacked: int) -> None:
        """Update the rates from the totals so far, and the unacked ones, at a time in seconds of a monotonic clock."""
        taken = acked + unacked
        before, self._at = self._at, now
        if before is not None and now > before:
            elapsed = now - before
            weight = exp(elapsed * log(0.5) / HALF_LIFE)
            self.published = weight * self.published + (1 - weight) * (published - self._published) / elapsed
            self.fetched = weight * self.fetched + (1 - weight) * (fetched - self._fetched) / elapsed
            self.acked = weight * self.acked + (1 - weight) * (acked - self._acked) / elapsed
            self.taken = weight * self.taken + (1 - weight) * (taken - self._taken) / elapsed
        self._published, self._fetched, self._acked, self._taken = published, fetched, acked, taken

    @property
    def total(self) -> float:
        """Return the sum of all four rates."""
        return self.published + 2 * self.fetched + self.acked

    @property
    def acks_grow_faster(self) -> bool:
        """Return whether the unacked messages grow faster than the ready ones."""
        return self.fetched - self.acked > self.published - self.fetched
