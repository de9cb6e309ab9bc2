"""Spreads a periodic scan of many objects evenly over the ticks of its period.

Pure: the driver calls `run` every `timer_wheel.TICK_SECONDS`. A scan of ten thousand connections in one step would
delay everybody.
"""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from leveret.broker.scheduling.timer_wheel import TICK_SECONDS

T = TypeVar("T")


class PeriodicSweep(Generic[T]):
    """A periodic scan.

    Args:
        everything: returns the objects to visit; called once per period.
        visit: called with an object and the time. The object may have ended by then; `visit` must check that.
        seconds: the period.

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
        """Visit the objects due in this tick.

        Args:
            now: seconds of a monotonic clock.

        """
        if not self._left:
            if now < self._again:
                return
            self._again = now + self._seconds
            self._left = list(self._everything())
            self._share = int(len(self._left) * TICK_SECONDS / self._seconds) + 1
        for _ in range(min(self._share, len(self._left))):
            self._visit(self._left.pop(), now)
