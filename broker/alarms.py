"""How much memory the broker has, and how much it may use."""

import contextlib
import os
import resource
from pathlib import Path


def resident_memory() -> int:
    """Octets of memory this process has in use, shared libraries included."""
    with Path("/proc/self/statm").open(encoding="ascii") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def total_memory() -> int:
    """Octets of memory this process could have: the machine's, or its control group's limit if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            return min(total, int(Path(name).read_text(encoding="ascii")))
    return total


class MemoryAlarm:
    """Compares the memory in use with the limit.

    Args:
        limit: octets from which the alarm is raised; 0 raises it at once.

    """

    __slots__ = ("limit", "raised", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.raised = False
        self.used = 0

    def check(self, used: int) -> bool:
        """Take the octets in use now; true if the alarm was raised or cleared by that."""
        self.used = used
        before, self.raised = self.raised, used > self.limit
        return before != self.raised
