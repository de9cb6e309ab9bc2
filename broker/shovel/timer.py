"""A timer of microseconds, where the system has one (driver).

Theory. The timers of event loops have milliseconds, counted from the last poll: one of a millisecond takes anything
from nothing to two. A timer of Linux is a file descriptor that becomes readable some ten microseconds after it is due.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable
from struct import Struct
from time import CLOCK_MONOTONIC

_BILLION = 1_000_000_000
_pack_times = Struct("@llll").pack
"""`struct itimerspec`: seconds and nanoseconds of an interval, here 0, and of the first time."""
_OCTETS = 8
"""Bytes that are read from a timer that was due."""


class Timer:
    """A timer of a running event loop, which may be set again and again.

    Args:
        callback: called when it is due, once each time it is set.

    """

    def __init__(self, callback: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self._library = ctypes.CDLL(None)
        self._descriptor = -1
        if hasattr(self._library, "timerfd_create"):
            self._descriptor = self._library.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor >= 0:
            self._loop.add_reader(self._descriptor, self._read)

    def set(self, nanoseconds: int) -> None:
        """Call back in this time (more than 0); must not be called again before that."""
        if self._descriptor >= 0:
            times = _pack_times(0, 0, *divmod(nanoseconds, _BILLION))
            self._library.timerfd_settime(self._descriptor, 0, times, None)
        else:
            self._handle = self._loop.call_later(nanoseconds / _BILLION, self._callback)

    def _read(self) -> None:
        try:
            os.read(self._descriptor, _OCTETS)
        except BlockingIOError:
            return
        self._callback()

    def close(self) -> None:
        """Forget the callback; the timer may not be set any more."""
        if self._handle is not None:
            self._handle.cancel()
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
