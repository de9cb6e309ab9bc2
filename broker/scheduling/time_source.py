"""The time source: the time of everything that the broker does after a time, and its timers.

Theory. Message expiry, delays, timeouts, deadlines and heartbeats follow the server's time source, so one object
decides how late it is for all of them (docs/adr/0026). The default is the real time at no cost: its methods are those
of the event loop and of the interpreter. What depends on the machine rather than on a rule of the broker follows the
event loop itself: time slices, the pace of commits and of reading, checks of memory, disk and peers, measurements.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class TimerHandle(Protocol):
    """A pending call."""

    def cancel(self) -> None:
        """Cancel the call, if it was not made yet."""


class TimeSource:
    """The real time."""

    # seconds after which a timer of the wall clock looks at it again, because the wall clock may be set while the
    # monotonic one is not: the maximum delay of such timers after it was set forward
    longest_wait = 10.0

    _loop: asyncio.AbstractEventLoop

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use this event loop, from now on; must be called before `now` and `call_later`."""
        self._loop = loop

    @staticmethod
    def wall() -> int:
        """Return milliseconds since the epoch: expirations use the wall clock, because they continue over restarts."""
        return time.time_ns() // 1_000_000

    def now(self) -> float:
        """Return seconds of a clock that is never set back."""
        return self._loop.time()

    def call_later(self, seconds: float, callback: Callable[..., object], *args: object) -> TimerHandle:
        """Call a function that many seconds later (not negative)."""
        return self._loop.call_later(seconds, callback, *args)
