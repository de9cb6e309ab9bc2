"""Memory and disk alarms: limits, measurement of the process, and the reason sent to blocked publishers.

Theory (after RabbitMQ's `vm_memory_monitor`, `rabbit_disk_monitor` and `rabbit_alarm`). An alarm is raised when more
memory is in use, or less disk space is free, than the limit, and immediately when a commit finds no space. While an
alarm is raised, connections that publish are not read; when the last alarm is cleared they are read again. Unlike in
RabbitMQ, an alarm is cleared only at some distance from its limit (`CLEARED_BELOW`): every change costs each publisher
two frames and lets all of them publish at once, and a broker at its limit would otherwise do that at every check.

Memory in use is the kernel's RssAnon, because the data files are mapped: their pages count as resident but can be
dropped at any time. The queues' own count is the minimum, even if memory was swapped out. Free disk space is that of
the file system plus the free pages of the data file: the file never shrinks while it is open, but the pages of
consumed messages are reused.

The process is measured through `/proc` where there is one, because that takes microseconds, and otherwise by psutil.
"""

import contextlib
import os
import resource
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

DISK_FREE_LIMIT = 50_000_000  # default of the limit of the disk alarm, in bytes
CLEARED_BELOW = 0.95  # fraction of the memory limit below which its alarm is cleared
FREE_AGAIN = 1.05  # multiple of the disk limit that must be free before its alarm is cleared
FAST_RATE = 250_000_000  # assumed maximum rate at which a disk is filled, in bytes per second, as in RabbitMQ
NEXT_LOOK = 0.5
"""Fraction of the distance to the limit that may be used up by the next check at that rate. RabbitMQ's is 2: there a
disk that is filled at half that rate is full before the next check."""
DISK_SECONDS = (0.1, 10.0)  # minimum and maximum seconds between two checks of the disk, as in RabbitMQ
Unsent = tuple[int, Callable[[str], object]]
"""Octets that wait in memory for a client, and what disconnects it for a reason."""
RAISED_SECONDS = 1.0
"""Maximum seconds between two checks while the alarm is raised, as publishers are waiting (RabbitMQ: ten seconds)."""


def anonymous_memory() -> int:
    """Return the private memory of this process in bytes: neither files nor shared memory; 0 if unknown.

    This is the kernel's RssAnon, and without `/proc` what psutil calls the unique set size.
    """
    try:
        with Path("/proc/self/statm").open(encoding="ascii") as statm:
            _, resident, of_files, *_ = statm.read().split()
    except FileNotFoundError:
        return _portable(
            lambda process: getattr(process.memory_full_info(), "uss", process.memory_info().rss)
        )
    return (int(resident) - int(of_files)) * resource.getpagesize()


def resident_memory() -> int:
    """Return the resident memory of this process in bytes, including mapped files; 0 if unknown."""
    try:
        fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    except FileNotFoundError:
        return _portable(lambda process: process.memory_info().rss)
    return int(fields[1]) * resource.getpagesize()


def open_files() -> int:
    """Return the number of open file descriptors, without the one used for counting; the limit if none is left."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # noqa: PTH208 - names are enough
    except FileNotFoundError:
        return _portable(lambda process: process.num_fds())
    except OSError:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _portable(figure: Callable[[Any], int]) -> int:
    import psutil  # noqa: PLC0415 - where there is a /proc it is never loaded

    try:
        return int(figure(psutil.Process()))
    except (psutil.Error, OSError):
        return 0


def total_memory() -> int:
    """Return the memory available to this process in bytes: the machine's, or its control group's limit if less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            return min(total, int(Path(name).read_text(encoding="ascii")))
    return total


def memory_limit(absolute: int | None, relative: float) -> int:
    """Return the memory limit in bytes: the absolute one if given, otherwise a fraction of the total memory."""
    return int(relative * total_memory()) if absolute is None else absolute


def disk_limit(absolute: int | None, relative: float | None) -> int:
    """Return the limit of free space in bytes: the absolute one if given, otherwise a multiple of the total memory."""
    if absolute is not None:
        return absolute
    return DISK_FREE_LIMIT if relative is None else int(relative * total_memory())


class MemoryAlarm:
    """Compares the memory in use with the limit, bytes above which it is raised; 0 raises it immediately."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.raised = self.is_forced = False  # forced: whatever is in use
        self.used = 0

    def check(self, used: int) -> bool:
        """Compare the bytes in use now; return true if that raised or cleared the alarm."""
        self.used = used
        before = self.raised
        self.raised = self.is_forced or used > self.limit * (CLEARED_BELOW if before else 1)
        return before != self.raised

    def __str__(self) -> str:
        return f"{self.used} bytes used, limit {self.limit}"


class DiskAlarm:
    """Compares the free disk space with the limit, bytes that must stay free."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.raised = self.is_forced = False  # forced: whatever is free
        self.free: int | None = None  # bytes that were free at the last check; None before the first
        self.full = False  # True if the last commit found no space, whatever the file system reports as free

    def check(self, free: int | None) -> bool:
        """Compare the bytes free now, if they are known; return true if that raised or cleared the alarm."""
        self.free = free
        return self._update()

    def set_full(self, *, is_full: bool) -> bool:
        """Record that a commit found no space, or space again; return true if that raised the alarm.

        This never clears the alarm, only the next check does: the disk may immediately be full again.
        """
        self.full = is_full
        return is_full and self._update()

    def _update(self) -> bool:
        before = self.raised
        needed = self.limit * (FREE_AGAIN if before else 1)
        self.raised = self.is_forced or self.full or (self.free is not None and self.free < needed)
        return before != self.raised

    @property
    def due(self) -> float:
        """Seconds until the next check: the closer to the limit, on either side, the sooner; soon while raised."""
        least, most = DISK_SECONDS
        if self.free is None:
            return least
        if self.raised:
            most = RAISED_SECONDS
        return min(most, max(least, NEXT_LOOK * abs(self.free - self.limit) / FAST_RATE))

    def __str__(self) -> str:
        found = "a commit failed for lack of space, " if self.full else ""
        return f"{found}{self.free} bytes free, limit {self.limit}"


def raised(memory: MemoryAlarm, disk: DiskAlarm) -> list[str]:
    """Return the names of the alarms that block publishers."""
    return [name for name, alarm in (("memory", memory), ("disk", disk)) if alarm.raised]


def reason(names: Collection[str]) -> str:
    """Return the reason for `connection.blocked` (RabbitMQ's words and order); empty if no alarm is raised."""
    names = [name for name in ("memory", "disk") if name in names]
    return f"low on {' & '.join(reversed(names))}" if names else ""
