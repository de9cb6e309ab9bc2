"""When each connection wants to be called again: a timer wheel without a clock.

Times are put into buckets of `TICK_SECONDS`, so that scheduling, rescheduling and forgetting a connection cost the
same however many there are, and a connection that is gone is held by nothing.
"""

from typing import Protocol

TICK_SECONDS = 0.1


class Ticking(Protocol):
    """Something with deadlines and heartbeats."""

    bucket: int

    def tick(self, now: float) -> float | None:
        """Do what is due; returns when to be called again, None for never."""


class TimerWheel:
    """The wheel.

    Args:
        now: the time it starts from, in seconds of a monotonic clock.

    """

    __slots__ = ("_buckets", "_last")

    def __init__(self, now: float) -> None:
        self._buckets: dict[int, set[Ticking]] = {}
        self._last = int(now / TICK_SECONDS)

    def schedule(self, connection: Ticking, at: float) -> None:
        """Call `connection.tick` at that time, or up to `TICK_SECONDS` later, and not at the one asked for before."""
        self.forget(connection)
        connection.bucket = bucket = max(int(at / TICK_SECONDS), self._last) + 1
        self._buckets.setdefault(bucket, set()).add(connection)

    def forget(self, connection: Ticking) -> None:
        """Do not call it any more."""
        bucket = self._buckets.get(connection.bucket)
        if bucket is not None:
            bucket.discard(connection)
            if not bucket:
                del self._buckets[connection.bucket]
        connection.bucket = -1

    def run(self, now: float) -> None:
        """Call whatever is due."""
        current = int(now / TICK_SECONDS)
        for number in range(self._last + 1, current + 1):
            self._last = number
            due = self._buckets.pop(number, None)
            try:
                while due:
                    connection = due.pop()
                    if connection.bucket == number:  # or it was forgotten or moved by one called before it
                        again = connection.tick(now)
                        if again is not None:
                            self.schedule(connection, again)
            finally:
                for connection in due or ():  # one that fails must not cost the others their heartbeats
                    if connection.bucket == number:
                        self.schedule(connection, now)
        self._last = current

    def __len__(self) -> int:
        """How many connections are waiting."""
        return sum(map(len, self._buckets.values()))
