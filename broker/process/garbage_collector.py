"""When the interpreter looks for garbage in cycles, which stops the loop for as long as it takes (driver).

Theory. What is made often has no cycles, or they are broken when it ends, so a collection finds next to nothing and
costs 0.03 to 0.25 us for each object it looks at: 0.1 to 0.2 s for a million messages. Young objects are mostly
messages on their way through: they are looked at once there are many. All are looked at often while they are few, which
also gives back what the interpreter keeps for objects to come. With a large backlog that would stop everybody for long:
then what has been looked at while it was new is put aside, and is not looked at until there is little again, so no
collection takes longer than it takes to look at what has come since (docs/adr/0022-slices.md).
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
FEW_YOUNG = 3
"""Collections of the second kind after which what they have left is put aside, if there is much: 180,000 objects."""
MUCH_MEMORY = 96 * 1024 * 1024
"""Octets in use from which new objects are looked through for cycles in each tick.

By itself the interpreter does so when there are more of them than were freed since, and with a backlog that is worked
off as fast as it grows that may be after hundreds of thousands.
"""


class Collector:
    """Decides when garbage is collected; made before there are messages."""

    __slots__ = ("_before", "_due", "_has_aside", "_runs")

    def __init__(self) -> None:
        self._before = sys.getallocatedblocks()
        self._due = 0.0
        self._has_aside = False
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
        is_due = now >= self._due
        if is_due or gc.get_count()[2] >= FEW_YOUNG:
            if sys.getallocatedblocks() - self._before >= FEW_BLOCKS:
                self._due = now + FULL_SECONDS
                self._put_aside()
                return
            if is_due:
                self._due = now + FULL_SECONDS
                self._collect_all()
                return
        if used > MUCH_MEMORY:
            gc.collect(1)

    def _collect_all(self) -> None:
        """Look at everything, as it is little again or still."""
        if self._has_aside:
            self._has_aside = False
            gc.unfreeze()
        gc.collect()

    def _put_aside(self) -> None:
        """Look at what has come since this was called last, and not again while there is much."""
        gc.collect()
        gc.freeze()
        self._has_aside = True
