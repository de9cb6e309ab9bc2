"""Resource monitor: checks memory and disk periodically, and blocks publishers while either is short (driver).

Theory. The kernel's figure includes memory that the allocators keep after objects were freed
(`broker.process.memory`), so an alarm could last longer than its cause. While the memory alarm is raised,
pages are released with every check, and memory that cannot contain objects any more is subtracted: `_kept`. That is an
estimate, and it only decreases once the alarm is cleared, so an error in it has a bounded effect. Without an alarm,
pages are released when the broker is calm, and periodically.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from leveret.broker.connection.node import Node
from leveret.broker.process.memory import Allocator
from leveret.broker.process.resource_alarms import (
    CLEARED_BELOW,
    DiskAlarm,
    MemoryAlarm,
    anonymous_memory,
    raised,
    reason,
)

if TYPE_CHECKING:
    from leveret.broker.persistence.data_store import DataStore, DiskUsage

log = logging.getLogger("leveret.connection")

MEMORY_SECONDS = 1.0
RELEASE_SECONDS = (8.0, 20.0)  # between releases of pages without an alarm: on a calm, and a busy broker
RELEASE_OCTETS = 16 * 1024 * 1024  # growth of memory in use since the start from which that is done
CALM = 0.5  # processor load, as a share of one processor, below which the broker is calm
RELIEF_SECONDS = 2.0  # time that the memory alarm lasts before connections are closed for their memory


class ResourceMonitor:
    """The resource alarms of one broker, whose host is notified of changes.

    Publishers are blocked above `memory_limit` bytes in use, and below `disk_limit` bytes of free disk space. The
    allocator is the source of unused memory; None for that of this process.
    """

    def __init__(
        self,
        host: Node,
        disk: "DataStore | None",
        memory_limit: int,
        disk_limit: int,
        allocator: Allocator | None = None,
    ) -> None:
        self.memory = MemoryAlarm(memory_limit)
        self.disk = DiskAlarm(disk_limit)
        self.disk_usage: DiskUsage | None = None  # the result of the last check of the disk
        self._host = host
        self._store = disk
        self._allocator = allocator or Allocator()
        self._memory_due = 0.0
        self._raised_at = 0.0
        self._is_calibrated = False
        self._kept = 0  # bytes of the kernel's figure that are known to contain no objects
        self._lowest = 0
        self._processor = 0.0
        self._released_at = 0.0
        self._releasing: asyncio.Future[tuple[int, int]] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._elsewhere: Collection[str] = ()  # names of alarms in other processes of the broker
        self.on_changed: Callable[[list[str]], object] = lambda _names: None
        """Called with the names of the alarms that are raised, when that changes."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Check for the first time, before clients may connect. The disk must have been started."""
        self._loop = loop
        self.check_memory(0.0)
        if self._store is not None:
            self._check_disk(self._store.disk_usage(), None)

    def stop(self) -> None:
        """Stop checking."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def check_memory(self, now: float) -> None:
        """Check the memory in use if it is time; `now` in seconds of the loop's clock, 0 for at once."""
        if now and now < self._memory_due:
            return
        self._memory_due = now + MEMORY_SECONDS
        try:
            resident = anonymous_memory()
        except OSError:  # no file descriptor left: checked again in a second
            return
        self._lowest = min(self._lowest or resident, resident)
        self._update_alarm(resident)
        if now:
            self._release_pages(now, resident)

    def _update_alarm(self, resident: int) -> None:
        if resident <= CLEARED_BELOW * self.memory.limit:
            self._kept = 0
        used = resident - self._kept
        if self._store is not None:
            used = max(used, self._store.monitor.used)
        if self.memory.check(used):
            self._raised_at = self._loop.time()
            self._is_calibrated = False
            self._changed("memory", self.memory)

    def _release_pages(self, now: float, resident: int) -> None:
        """Release unused pages if it is time; in a thread, because that takes time."""
        before, self._processor = self._processor, time.process_time()
        is_calm = self._processor - before < CALM * MEMORY_SECONDS
        if self._releasing is not None:
            return
        if not self.memory.raised and not self._kept:
            calm, busy = RELEASE_SECONDS
            if (
                now - self._released_at < (calm if is_calm else busy)
                or resident - self._lowest < RELEASE_OCTETS
            ):
                return
        self._released_at = now
        self._releasing = self._loop.run_in_executor(None, self._release_and_measure)
        self._releasing.add_done_callback(self._pages_released)

    def _release_and_measure(self) -> tuple[int, int]:
        """Release unused pages; returns bytes in use by the kernel's figure, and bytes in objects. Runs in a thread."""
        if self.memory.raised and not self._is_calibrated:
            self._is_calibrated = True
            self._allocator.calibrate(anonymous_memory())
        self._allocator.release_pages()
        resident = anonymous_memory()
        is_short = self.memory.raised or self._kept
        return resident, self._allocator.in_use(resident) if is_short else resident

    def _pages_released(self, done: "asyncio.Future[tuple[int, int]]") -> None:
        self._releasing = None
        if self._stopped or done.cancelled():
            return
        resident, in_use = done.result()
        kept = resident - in_use
        self._kept = kept if self.memory.raised else min(kept, self._kept)
        self._update_alarm(resident)
        alarm = self.memory
        if alarm.raised and self._loop.time() - self._raised_at >= RELIEF_SECONDS:
            self._host.free_memory(int(alarm.used - CLEARED_BELOW * alarm.limit) + 1)

    def report_full(self, is_full: bool) -> None:
        """Raise the disk alarm: a write has found the disk full. Once it has space, the next check may clear it."""
        if self.disk.set_full(is_full=is_full):
            self._changed("disk", self.disk)
            if self._timer is not None:
                self._timer.cancel()
                self._timer = self._loop.call_later(self.disk.due, self._measure_disk)

    def check_disk(self) -> None:
        """Measure the free disk space now, because the limit has changed; the alarm follows."""
        if self._timer is not None:  # otherwise it is being measured
            self._timer.cancel()
            self._measure_disk()

    def _measure_disk(self) -> None:
        """Measure the disk space in the reader's thread, not in the event loop."""
        self._timer = None
        if self._store is not None:
            self._store.measure(self._check_disk)

    def _check_disk(self, usage: "DiskUsage | None", error: BaseException | None) -> None:
        if self._stopped:
            return
        if usage is None:
            self._host.loop.storage_failed(error or RuntimeError("cannot determine the free disk space"))
            return
        self.disk_usage = usage
        if self.disk.check(usage.free):
            self._changed("disk", self.disk)
        self._timer = self._loop.call_later(self.disk.due, self._measure_disk)

    def _changed(self, name: str, alarm: MemoryAlarm | DiskAlarm) -> None:
        text = self._reason
        state = "raised" if alarm.raised else "cleared"
        what = f"publishers are blocked ({text})" if text else "publishers are unblocked"
        log.warning("%s alarm %s: %s; %s", name, state, str(alarm), what)
        self._host.context.note(f"alarm_{state}", "", name)
        if text != self._host.alarm:
            self._host.set_alarm(text)
        self.on_changed(raised(self.memory, self.disk))

    @property
    def _reason(self) -> str:
        return reason({*raised(self.memory, self.disk), *self._elsewhere})

    def set_elsewhere(self, names: Collection[str]) -> None:
        """Block publishers for the alarms with these names in other processes of the broker, too."""
        self._elsewhere = names
        if (text := self._reason) != self._host.alarm:
            log.warning("alarms of other processes: %s", ", ".join(names) or "none")
            self._host.set_alarm(text)
