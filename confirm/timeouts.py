"""Confirm timeout: detection of publishes that have waited for their confirm longer than `confirm.timeout`.

Theory. Nothing is recorded when a number is held. As in `broker.channel.consumer_timeout`, each check, about once a
second, stores a mark: the time and the last number at that time. Numbers are assigned in order, so all numbers up to
that of a mark are at least as old as the mark. If a mark is old enough, they are overdue; the mark is then removed, as
no number up to it is open any more.
"""

from array import array
from bisect import bisect_left

MARKS = 1000
"""Approximate number of marks kept, whatever the timeout."""


class ConfirmTimeouts:
    """The marks of one channel in confirm mode with open numbers."""

    __slots__ = ("_numbers", "_times")

    def __init__(self) -> None:
        self._times = array("d")
        self._numbers = array("Q")

    def overdue(self, now: float, last: int, timeout: float) -> int:
        """Store a mark, and return the last number that has waited longer than the timeout, 0 if there is none.

        Each number is returned once, so the caller must settle all open numbers up to it.

        Args:
            now: seconds of a monotonic clock.
            last: the last number assigned.
            timeout: timeout in seconds, more than 0.

        """
        times, numbers = self._times, self._numbers
        past = bisect_left(times, now - timeout)
        found = numbers[past - 1] if past else 0
        del times[:past], numbers[:past]
        if not numbers or (numbers[-1] < last and now - times[-1] >= timeout / MARKS):
            times.append(now)
            numbers.append(last)
        return found
