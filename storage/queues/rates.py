"""Message rates of a queue: moving averages, as in RabbitMQ's queues."""

from math import exp, log

from leveret.storage.queues.arrivals import Arrivals

HALF_LIFE = 5.0
"""Half-life of a rate in seconds."""


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
        self.arrivals: Arrivals | None = None
        """Marks of the times at which messages came; None while there are none."""

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
