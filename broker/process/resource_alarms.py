"""How much memory and disk the broker has, how much it may use, and whom it blocks when that is passed.

Theory (after RabbitMQ's `vm_memory_monitor`, `rabbit_disk_monitor` and `rabbit_alarm`). An alarm is raised when more
memory is in use, or less disk is free, than the limit says, and at once when a commit finds no room. As long as one is
raised whoever publishes is not read any more; when the last is gone all are. An alarm is cleared only some way on the
good side of its limit (`CLEARED_BELOW`), which RabbitMQ's are not: every change costs each publisher two frames and
lets them all publish at once, and a broker that stands at its limit would otherwise do that with every look.

Memory is judged by what the kernel calls RssAnon, because the data files are mapped: their pages count as resident
and can be dropped at any time. What the queues count themselves is the least that is in use, even if it was swapped
out. Free disk is that of the file system and that of the data file's pages that hold nothing any more: the file never
shrinks while it is open, but what consumers have drained can be written again.
"""

import contextlib
import os
import resource
from pathlib import Path
from typing import Protocol

CLEARED_BELOW = 0.95
"""Share of the memory limit below which its alarm goes."""
FREE_AGAIN = 1.05
"""Share of the disk limit that has to be free before its alarm goes."""
FAST_RATE = 250_000_000
"""Octets per second that a disk may be filled with, as RabbitMQ takes it."""
NEXT_LOOK = 0.5
"""Share of the way to the limit that may be gone by the next look at that rate. RabbitMQ's is 2: there a disk that is
filled with half of that rate is full before anybody looks again."""
DISK_SECONDS = (0.1, 10.0)
"""The least and the most time between two looks at the disk, as RabbitMQ's."""
RAISED_SECONDS = 1.0
"""The most while the alarm is raised, for which RabbitMQ takes ten seconds: publishers are waiting."""


def anonymous_memory() -> int:
    """Octets of memory that only this process has (the kernel's RssAnon): neither files nor what it shares."""
    with Path("/proc/self/statm").open(encoding="ascii") as statm:
        _, resident, of_files, *_ = statm.read().split()
    return (int(resident) - int(of_files)) * resource.getpagesize()


def open_files() -> int:
    """File descriptors that this process has, but for the one that they are counted with; its limit if none is left."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # noqa: PTH208 - names are enough
    except OSError:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def total_memory() -> int:
    """Octets of memory this process could have: the machine's, or its control group's limit if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            return min(total, int(Path(name).read_text(encoding="ascii")))
    return total


def memory_limit(absolute: int | None, relative: float) -> int:
    """Octets of memory the broker may use: a number of them, or without one a share of what there is."""
    return int(relative * total_memory()) if absolute is None else absolute


class MemoryAlarm:
    """Compares the memory in use with the limit.

    Args:
        limit: octets above which the alarm is raised; 0 raises it at once.

    """

    __slots__ = ("limit", "raised", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.raised = False
        self.used = 0

    def check(self, used: int) -> bool:
        """Take the octets in use now; true if the alarm was raised or cleared by that."""
        self.used = used
        before = self.raised
        self.raised = used > self.limit * (CLEARED_BELOW if before else 1)
        return before != self.raised

    def __str__(self) -> str:
        return f"{self.used} octets used, limit {self.limit}"


class DiskAlarm:
    """Compares the room on the disk with the limit.

    Args:
        limit: octets that have to stay free.

    """

    __slots__ = ("free", "full", "limit", "raised")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.raised = False
        self.free: int | None = None
        """Octets that were free at the last look; None before the first."""
        self.full = False
        """The last commit found no room, whatever the file system says is free."""

    def check(self, free: int) -> bool:
        """Take the octets free now; true if the alarm was raised or cleared by that."""
        self.free = free
        return self._judge()

    def found_full(self, *, full: bool) -> bool:
        """A commit found no room, or room again; true if that raised the alarm.

        It is never cleared by this, only by the next look: what made the disk full may come again at once.
        """
        self.full = full
        return full and self._judge()

    def _judge(self) -> bool:
        before = self.raised
        needed = self.limit * (FREE_AGAIN if before else 1)
        self.raised = self.full or (self.free is not None and self.free < needed)
        return before != self.raised

    @property
    def due(self) -> float:
        """Seconds until the next look: the nearer the limit, on either side, the sooner; soon while it is raised."""
        least, most = DISK_SECONDS
        if self.free is None:
            return least
        if self.raised:
            most = RAISED_SECONDS
        return min(most, max(least, NEXT_LOOK * abs(self.free - self.limit) / FAST_RATE))

    def __str__(self) -> str:
        found = "a commit found no room, " if self.full else ""
        return f"{found}{self.free} octets free, limit {self.limit}"


def reason(memory: MemoryAlarm, disk: DiskAlarm) -> str:
    """What publishers are told in `connection.blocked` (RabbitMQ's words and order); empty if they may go on."""
    resources = [name for name, alarm in (("disk", disk), ("memory", memory)) if alarm.raised]
    return f"low on {' & '.join(resources)}" if resources else ""


class Alarms(Protocol):
    """Who looks at memory and disk (`broker.server.resource_monitor.ResourceMonitor`)."""

    @property
    def memory(self) -> MemoryAlarm:
        """Its judgement of the memory."""

    @property
    def disk(self) -> DiskAlarm:
        """Its judgement of the disk."""
