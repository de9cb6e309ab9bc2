"""Publishes that have waited for their confirms for longer than `confirm.timeout`.

Theory. Nothing is noted when a number is held. As in `broker.channel.consumer_timeout`, whoever looks about once a
second leaves a mark, the time and the last number by then; numbers are given out in order, so whatever a mark has is
at least as old as it is. All that an old enough mark has is overdue, and the mark goes: nothing up to it is open any
more.
"""

from array import array
from bisect import bisect_left

MARKS = 1000
"""About so many marks are kept, whatever the timeout."""


class ConfirmTimeouts:
    """The marks of one channel in confirm mode, some of whose numbers are open."""

    __slots__ = ("_numbers", "_times")

    def __init__(self) -> None:
        self._times = array("d")
        self._numbers = array("Q")

    def overdue(self, now: float, last: int, timeout: float) -> int:
        """Leave a mark and tell up to which number everything has waited longer than the timeout.

        It is told once, so whatever of it is open must not be afterwards.

        Args:
            now: seconds of a monotonic clock.
            last: the last number given out.
            timeout: in seconds, more than 0.

        """
        times, numbers = self._times, self._numbers
        past = bisect_left(times, now - timeout)
        found = numbers[past - 1] if past else 0
        del times[:past], numbers[:past]
        if not numbers or (numbers[-1] < last and now - times[-1] >= timeout / MARKS):
            times.append(now)
            numbers.append(last)
        return found
