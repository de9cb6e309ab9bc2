"""Looking at everything of a kind again and again, a share of it in each tick.

Pure: the driver calls `run` every `timer_wheel.TICK_SECONDS`. Ten thousand connections looked at in one go would be a
pause that everybody feels.
"""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from leveret.broker.scheduling.timer_wheel import TICK_SECONDS

T = TypeVar("T")


class PeriodicSweep(Generic[T]):
    """One such tour.

    Args:
        everything: whom to visit; asked for once in each round.
        visit: called with one of them and the time. It may be gone by then, which `visit` has to see.
        seconds: how long a round takes.

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
        """Visit those whose turn it is.

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
