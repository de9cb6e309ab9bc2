"""When the interpreter looks for garbage in cycles, which stops the loop for as long as it takes (driver).

Theory. What is made often has no cycles, or they are broken when it ends, so a collection finds next to nothing and
costs 0.03 to 0.25 us for each object it looks at. Young objects are mostly messages on their way through: they are
looked at once there are many. All are looked at often while they are few, which also gives back what the interpreter
keeps for objects to come. With a large backlog that would stop everybody for long: then it is done when memory is
short, before connections are closed for that.
"""

import gc
import sys
from typing import Final

# A collection of the second kind looks at 60,000 objects (6 to 10 ms), or at what is new after a tick of a broker with
# much in memory. A full one comes by itself only after 50,000 of those.
THRESHOLDS: Final = (20_000, 1, 50_000)
FEW_BLOCKS = 300_000
"""Blocks of memory, more than at the start, up to which a full collection takes no longer than 10 to 20 ms."""
FULL_SECONDS = 5.0
"""Between two full collections then."""
SHORT_SECONDS = 600.0
"""The least between two when memory is short, however long they take."""
MUCH_MEMORY = 96 * 1024 * 1024
"""Octets in use from which new objects are looked through for cycles in each tick.

By itself the interpreter does so when there are more of them than were freed since, and with a backlog that is worked
off as fast as it grows that may be after hundreds of thousands.
"""


class Collector:
    """Decides when garbage is collected; made before there are messages."""

    __slots__ = ("_before", "_due", "_runs", "_short_due")

    def __init__(self) -> None:
        self._before = sys.getallocatedblocks()
        self._due = 0.0
        self._short_due = 0.0
        self._runs = False

    def start(self) -> None:
        """Take over from the interpreter. What there is now stays: it is not looked at again."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        self._runs = True

    def look(self, now: float, used: int) -> None:
        """Collect what should be collected now; to be called in each tick.

        Args:
            now: seconds of a monotonic clock.
            used: octets of memory in use.

        """
        if not self._runs:
            return
        if now >= self._due:
            self._due = now + FULL_SECONDS
            if sys.getallocatedblocks() - self._before < FEW_BLOCKS:
                gc.collect()
                return
        if used > MUCH_MEMORY:
            gc.collect(1)

    def collect_all(self, now: float) -> bool:
        """Collect everything because memory is short; false if that was done lately."""
        if not self._runs or now < self._short_due:
            return False
        self._short_due = now + SHORT_SECONDS
        gc.collect()
        return True
