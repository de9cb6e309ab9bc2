"""The time by which a copy is behind its log."""

from collections import deque
from typing import Final

STEP: Final = 0.1
"""Seconds between two marks; of ends that are seen sooner the last one is marked later."""
MARKS: Final = 10_000
"""Maximum number of marks; ends that are seen while there are as many are behind the last mark anyway."""


class Lag:
    """Marks of the end of the log, with the time at which each was first seen."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, float]] = deque()
        self._applied = 0

    def note(self, last: int, now: float) -> None:
        """Take note of the index of the last entry; to be called again, at least a few times a second."""
        if last <= self._applied or len(self._marks) >= MARKS:
            return
        if not self._marks or (last > self._marks[-1][0] and now - self._marks[-1][1] >= STEP):
            self._marks.append((last, now))

    def applied(self, index: int) -> None:
        """Take note that all entries up to an index are applied."""
        self._applied = index
        while self._marks and self._marks[0][0] <= index:
            self._marks.popleft()

    def seconds(self, now: float) -> float:
        """Return the time since the oldest entry that is not applied was seen; 0 if there is none."""
        return now - self._marks[0][1] if self._marks else 0.0
