"""A time source that can be stopped and moved (`leveret.broker.scheduling.time_source`).

Theory. Its time is the time that has really passed since it was created, plus what it was moved by, minus what passed
while it stood still. Its timers are a heap in order of due time and creation. While it runs, one timer of the event
loop calls those that are due; while it stands still, the code that moves it runs them one by one. All times are whole
milliseconds while it stands still, as expirations are, so a timer of the wall clock is due exactly when it is set for.
"""

import logging
import time
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any

from leveret.broker.scheduling.time_source import TimerHandle, TimeSource

log = logging.getLogger("leveret")

MILLISECOND = 1_000_000  # nanoseconds of a millisecond
SECOND = 1_000_000_000


class Entry:
    """A timer of a `SettableTime`."""

    def __init__(self, callback: Callable[..., object], args: tuple[object, ...]) -> None:
        self.callback: Callable[..., object] | None = callback
        self._args = args

    def cancel(self) -> None:
        """Cancel the call, if it was not made yet."""
        self.callback = None

    def run(self) -> None:
        """Call the function, unless the timer was cancelled."""
        callback, self.callback = self.callback, None
        if callback is not None:
            callback(*self._args)


class SettableTime(TimeSource):
    """Time that can be stopped and moved forward. It runs at first; `real` returns nanoseconds of a monotonic clock."""

    longest_wait = inf  # the wall clock follows the monotonic one

    def __init__(self, real: Callable[[], int] = time.monotonic_ns) -> None:
        self._real = real
        self._wall_origin = time.time_ns() // MILLISECOND * MILLISECOND
        self._origin = real()  # real time at which this time would have been 0, at its present offset
        self._stands_at: int | None = None
        self._heap: list[tuple[int, int, Entry]] = []
        self._count = 0
        self._handle: TimerHandle | None = None
        self._is_moving = False  # True while timers are called by who moves the time, and not by the loop

    def attach(self, loop: Any) -> None:
        """Use this event loop from now on, for another server; timers of the last one are dropped."""
        super().attach(loop)
        self._heap.clear()
        self._handle = None
        self._is_moving = False

    # -- the server's side ------------------------------------------------------------------------------------------

    def wall(self) -> int:  # type: ignore[override]
        """Return milliseconds since the epoch."""
        return (self._wall_origin + self.elapsed) // MILLISECOND

    def now(self) -> float:
        """Return seconds since the beginning."""
        return self.elapsed / SECOND

    def call_later(self, seconds: float, callback: Callable[..., object], *args: object) -> TimerHandle:
        """Call a function that many seconds later; equal times in order of creation."""
        entry = Entry(callback, args)
        due = self.elapsed + max(0, round(seconds * SECOND))
        if self._stands_at is not None:
            due = _full_millisecond(due)
        self._count += 1
        heappush(self._heap, (due, self._count, entry))
        if self._heap[0][2] is entry:
            self._set_alarm()
        return entry

    # -- the clock's side -------------------------------------------------------------------------------------------

    @property
    def elapsed(self) -> int:
        """Nanoseconds since the beginning."""
        return self._real() - self._origin if self._stands_at is None else self._stands_at

    @property
    def stands(self) -> bool:
        """True while it stands still."""
        return self._stands_at is not None

    def stop(self) -> None:
        """Stand still, at the next full millisecond, until `run` or `move_to`."""
        if self._stands_at is None:
            self._stands_at = _full_millisecond(self.elapsed)
            self._set_alarm()

    def run(self) -> None:
        """Run on from where it stands."""
        if self._stands_at is not None:
            self._origin = self._real() - self._stands_at
            self._stands_at = None
            self._set_alarm()

    def begin_moving(self) -> None:
        """Stand still, and leave it to the caller to call what is due (`call_next`), until `end_moving`."""
        self.stop()
        self._is_moving = True
        self._set_alarm()

    def move_to(self, elapsed: int) -> None:
        """Move forward, to so many nanoseconds since the beginning; calls nothing."""
        if not self._is_moving or self._stands_at is None or elapsed < self._stands_at:
            raise ValueError("the time is not being moved, or would go back")
        self._stands_at = elapsed

    def end_moving(self) -> None:
        """Have the event loop call again what is due."""
        self._is_moving = False
        self._set_alarm()

    @property
    def next_due(self) -> float:
        """Time of the next timer, in nanoseconds since the beginning; infinite if there is none.

        While the time stands still this is a full millisecond, which may be a little later than its due time.
        """
        heap = self._heap
        while heap and heap[0][2].callback is None:
            heappop(heap)
        if not heap:
            return inf
        return heap[0][0] if self._stands_at is None else _full_millisecond(heap[0][0])

    def call_next(self) -> bool:
        """Call the first of the timers that are due; False if there is none."""
        if self.next_due > self.elapsed:
            return False
        entry = heappop(self._heap)[2]
        try:
            entry.run()
        except Exception:  # an error in one must not stop the others
            log.exception("internal error in a timer")
        return True

    def _set_alarm(self) -> None:
        """Have the event loop call what is due, and when the next timer will be."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._is_moving:
            return
        due = self.next_due
        left = due - self.elapsed
        if left <= 0 or (due < inf and not self.stands):
            self._handle = self._loop.call_later(max(0.0, left / SECOND), self._call_due)

    def _call_due(self) -> None:
        """Call the timers that are due now; those that they add, in another step of the loop."""
        self._handle = None
        last = self._count
        while self.next_due <= self.elapsed and self._heap[0][1] <= last:
            self.call_next()
        self._set_alarm()


def _full_millisecond(elapsed: int) -> int:
    """Return the first full millisecond, in nanoseconds, that is not before a time."""
    return -(-elapsed // MILLISECOND) * MILLISECOND
