"""Looks at memory and disk every now and then, and blocks publishers while either is short (driver)."""

import asyncio
import logging
from typing import Protocol

from broker.alarms import DiskAlarm, MemoryAlarm, anonymous_memory, reason
from broker.disk import Disk, Room
from broker.turn import Turn

log = logging.getLogger("leveret.connection")

MEMORY_SECONDS = 1.0


class WatchHost(Protocol):
    """What is watched over, and told."""

    alarm: str
    turn: Turn

    def set_alarm(self, reason: str) -> None:
        """Block whoever publishes from now on, for this reason; with an empty one, let them all go on."""

    def storage_failed(self, error: BaseException) -> None:
        """The disk is broken."""


class Watch:
    """The alarms of one broker.

    Args:
        host: is told of what changes.
        disk: what it has on disk, or None.
        memory_limit: octets above which publishers are blocked.
        disk_limit: octets of disk below which they are.

    """

    def __init__(self, host: WatchHost, disk: Disk | None, memory_limit: int, disk_limit: int) -> None:
        self.memory = MemoryAlarm(memory_limit)
        self.disk = DiskAlarm(disk_limit)
        self.room: Room | None = None
        """What the last look at the disk has found."""
        self._host = host
        self._store = disk
        self._memory_due = 0.0
        self._loop: asyncio.AbstractEventLoop
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look for the first time, before clients may connect. The disk must have been started."""
        self._loop = loop
        self.look_at_memory(0.0)
        if self._store is not None:
            self._seen(self._store.room(), None)

    def stop(self) -> None:
        """Look no more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def look_at_memory(self, now: float) -> None:
        """Judge the memory in use, if it is time; `now` in seconds of the loop's clock, 0 for at once."""
        if now and now < self._memory_due:
            return
        self._memory_due = now + MEMORY_SECONDS
        used = anonymous_memory()
        if self._store is not None:
            used = max(used, self._store.monitor.used)
        if self.memory.check(used):
            self._changed("memory", self.memory)

    def found_full(self, *, full: bool) -> None:
        """A commit has found no room, or room again."""
        if self.disk.found_full(full=full):
            self._changed("disk", self.disk)
            self._look_soon()

    def _look_soon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._loop.call_later(self.disk.due, self._look_at_disk)

    def _look_at_disk(self) -> None:
        """Have the room measured where reading belongs, not in the loop."""
        self._timer = None
        if self._store is not None:
            self._store.measure(self._seen)

    def _seen(self, room: Room | None, error: BaseException | None) -> None:
        if self._stopped:
            return
        if room is None:
            self._host.storage_failed(error or RuntimeError("the disk could not be looked at"))
            return
        self.room = room
        if self.disk.check(room.free):
            self._changed("disk", self.disk)
        self._timer = self._loop.call_later(self.disk.due, self._look_at_disk)

    def _changed(self, name: str, alarm: MemoryAlarm | DiskAlarm) -> None:
        """Log it, and tell publishers what holds now."""
        text = reason(self.memory, self.disk)
        state = "raised" if alarm.raised else "cleared"
        what = f"publishers are blocked ({text})" if text else "publishers go on"
        log.warning("%s alarm %s: %s; %s", name, state, str(alarm), what)
        self._host.turn.note(f"alarm_{state}", "", name)
        if text != self._host.alarm:
            self._host.set_alarm(text)
