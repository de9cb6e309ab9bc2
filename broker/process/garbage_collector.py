"""Scheduling of cyclic garbage collection, which blocks the event loop while it runs (driver).

Theory. The objects that are created often have no reference cycles, or the cycles are broken when the objects end, so a
collection finds next to nothing and costs 0.03 to 0.25 us for each object it examines: 0.1 to 0.2 s for a million
messages. Young objects are mostly messages in transit: they are collected once there are many. While there are few
objects, all of them are collected often, which also releases the interpreter's free lists. With a large backlog a full
collection would block everybody for long: then only the youngest objects are examined (docs/adr/0022-slices.md).
"""

import gc
import sys
from typing import Final

# A collection of generation 1 examines 60,000 objects (6 to 10 ms), or those created in one tick if the broker uses
# much memory. The last number keeps the interpreter from ever starting a full one: it would after so many of those.
THRESHOLDS: Final = (20_000, 1, 2**31 - 1)
FEW_BLOCKS = 300_000
"""Allocated memory blocks, beyond those at the start, up to which a full collection takes at most 10 to 20 ms."""
FULL_SECONDS = 5.0
"""Seconds between two full collections while there are few objects."""
MUCH_MEMORY = 96 * 1024 * 1024
"""Memory in use, in bytes, from which new objects are collected in each tick.

By itself the interpreter does so when allocations exceed deallocations by the threshold; with a backlog that is
consumed as fast as it grows, that may be after hundreds of thousands of objects.
"""


class Collector:
    """Decides when garbage is collected; must be created before there are messages."""

    __slots__ = ("_before", "_due", "_runs")

    def __init__(self) -> None:
        self._before = sys.getallocatedblocks()
        self._due = 0.0
        self._runs = False

    def start(self) -> None:
        """Take over from the interpreter's collector, and exclude the objects that exist now."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        gc.enable()
        self._runs = True

    def collect_due(self, now: float, used: int) -> None:
        """Run the collection that is due, if any; must be called in each tick.

        Args:
            now: seconds of a monotonic clock.
            used: memory in use, in bytes.

        """
        if not self._runs:
            return
        if now >= self._due:
            self._due = now + FULL_SECONDS
            is_little = sys.getallocatedblocks() - self._before < FEW_BLOCKS
            gc.collect(2 if is_little else 1)
        elif used > MUCH_MEMORY:
            gc.collect(1)
