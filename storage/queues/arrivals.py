"""Times at which the messages of a queue came, as far as they are needed by people.

Theory. Nothing is recorded when a message is published. Every few seconds, a mark is kept: the time, and the position
of the next message to be published. A message is at least as old as the first mark behind its position, so its age is
never overestimated, and underestimated by the time between two marks. Marks of messages that have left are dropped; if
there are too many, every second one is, so that the error stays about a hundredth of the age of the oldest message.
"""

from array import array
from bisect import bisect_right
from math import inf

MARKS = 256
"""Maximum number of marks."""


class Arrivals:
    """The marks of one queue."""

    __slots__ = ("_positions", "_times")

    def __init__(self) -> None:
        self._times = array("d")
        self._positions = array("Q")

    def mark(self, now: float, following: int, first: int) -> None:
        """Keep a mark.

        Args:
            now: seconds of a monotonic clock.
            following: the position of the next message to be published.
            first: the position of the first message whose age may be asked for.

        """
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
