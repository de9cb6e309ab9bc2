"""Ticks of the loop: the timer wheel of connections, and scans of many objects. Pure.

Times are put into buckets of `TICK_SECONDS`, so that scheduling, rescheduling and removing a connection have constant
cost, and no reference to a closed connection remains.
"""

from collections.abc import Callable, Iterable
from math import inf
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")

TICK_SECONDS = 0.1
_MANY = 600  # ticks in a row without a call of `run` that are not counted through


class Ticking(Protocol):
    """Something with deadlines and heartbeats."""

    bucket: int

    def tick(self, now: float) -> float | None:
        """Do what is due; return the time of the next call, None for never."""


class TimerWheel:
    """A timer wheel that starts at `now`, in seconds of a monotonic clock."""

    __slots__ = ("_buckets", "_last")

    def __init__(self, now: float) -> None:
        self._buckets: dict[int, set[Ticking]] = {}
        self._last = int(now / TICK_SECONDS)

    def schedule(self, connection: Ticking, at: float) -> None:
        """Call `connection.tick` at a time, or up to `TICK_SECONDS` later; this replaces an earlier schedule."""
        self.forget(connection)
        connection.bucket = bucket = max(int(at / TICK_SECONDS), self._last) + 1
        self._buckets.setdefault(bucket, set()).add(connection)

    def forget(self, connection: Ticking) -> None:
        """Remove a connection from the wheel."""
        bucket = self._buckets.get(connection.bucket)
        if bucket is not None:
            bucket.discard(connection)
            if not bucket:
                del self._buckets[connection.bucket]
        connection.bucket = -1

    def run(self, now: float) -> None:
        """Call `tick` of each connection that is due."""
        current = int(now / TICK_SECONDS)
        number = self._last
        while number < current:
            # Ticks are counted through, unless somebody has moved the time far.
            number = number + 1 if current - number <= _MANY else min(self._buckets.keys() | {current})
            self._last = number
            due = self._buckets.pop(number, None)
            try:
                while due:
                    connection = due.pop()
                    if connection.bucket == number:  # otherwise an earlier call has removed or rescheduled it
                        again = connection.tick(now)
                        if again is not None:
                            self.schedule(connection, again)
            finally:
                for connection in due or ():  # the failure of one must not cost the others their heartbeats
                    if connection.bucket == number:
                        self.schedule(connection, now)
        self._last = current

    @property
    def next_due(self) -> float:
        """Earliest time at which `run` has something to do, as a number of ticks; infinite if nothing is scheduled."""
        return min(self._buckets, default=inf)

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))


class PeriodicSweep(Generic[T]):
    """A periodic scan of many objects, spread evenly over the ticks of its period (`seconds`).

    A scan of ten thousand connections in one step would delay all clients. `everything` returns the objects once per
    period. `visit` is called with each and the time; the object may have ended by then, which it must check.
    """

    __slots__ = ("_again", "_everything", "_left", "_seconds", "_share", "_visit")

    def __init__(
        self, everything: Callable[[], Iterable[T]], visit: Callable[[T, float], object], seconds: float = 1.0
    ) -> None:
        self._everything = everything
        self._visit = visit
        self._seconds = seconds
        self._left: list[T] = []
        self._share = 0
        self._again = 0.0

    def run(self, now: float) -> None:
        """Visit the objects due in this tick; `now` is seconds of a monotonic clock."""
        if not self._left:
            if now < self._again:
                return
            self._again = now + self._seconds
            self._left = list(self._everything())
            self._share = int(len(self._left) * TICK_SECONDS / self._seconds) + 1
        for _ in range(min(self._share, len(self._left))):
            self._visit(self._left.pop(), now)
