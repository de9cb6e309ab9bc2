"""Wall-clock timers: a heap of callbacks for message expiry and delayed messages.

Pure: `run` gets the time as an argument, and `on_sooner` asks the driver to call it. A queue has at most one timer, for
whatever is due first, so their number depends on the queues and not on the messages. A cancelled timer is removed from
the heap when it would be due, or when more than half of the heap is cancelled.
"""

import logging
from collections.abc import Callable
from heapq import heapify, heappop, heappush

log = logging.getLogger("leveret.queue")

_SWEEP_FROM = 64


def never(_when: int) -> None:
    """Do nothing: there is no driver."""


def _never_over() -> bool:
    """Return false: the time is not limited."""
    return False


class Timer:
    """A pending callback; cancel it with `Timers.cancel`."""

    __slots__ = ("callback", "when")

    def __init__(self, when: int, callback: Callable[[], object]) -> None:
        self.when = when
        self.callback: Callable[[], object] | None = callback


class Timers:
    """The pending timers; `on_sooner` is called with the time (epoch ms) of the earliest when that becomes earlier."""

    def __init__(self) -> None:
        self.on_sooner: Callable[[int], object] = never
        self._heap: list[tuple[int, int, Timer]] = []
        self._count = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def at(self, when: int, callback: Callable[[], object]) -> Timer:
        """Call `callback` once at `when` (epoch ms), not before; equal times are called in order of creation."""
        timer = Timer(when, callback)
        heap = self._heap
        sooner = not heap or when < heap[0][0]
        self._count += 1
        heappush(heap, (when, self._count, timer))
        if sooner:
            self.on_sooner(when)
        return timer

    def sooner(self, timer: Timer | None, when: int, callback: Callable[[], object]) -> Timer:
        """Return a timer that calls at `when` (epoch ms) at the latest: the given one, or `callback`'s in its place."""
        if timer is not None and timer.callback is not None and timer.when <= when:
            return timer
        self.cancel(timer)
        return self.at(when, callback)

    def cancel(self, timer: Timer | None) -> None:
        """Cancel a timer; does nothing for None, or if it was called or cancelled before."""
        if timer is None or timer.callback is None:
            return
        timer.callback = None
        self._cancelled += 1
        if self._cancelled > _SWEEP_FROM and self._cancelled * 2 > len(self._heap):
            self._heap[:] = [entry for entry in self._heap if entry[2].callback is not None]
            heapify(self._heap)
            self._cancelled = 0

    def run(self, now: int, is_over: Callable[[], bool] = _never_over) -> int | None:
        """Call the timers due at `now` (epoch ms); return the time of the next timer, None if there is none.

        Timers that are created meanwhile and already due wait for the next call of `run`; so do the remaining ones as
        soon as `is_over` returns true, but at least one timer is called.
        """
        heap, last = self._heap, self._count
        later: list[tuple[int, int, Timer]] = []
        while heap and heap[0][0] <= now:
            entry = heappop(heap)
            if entry[1] > last:
                later.append(entry)
                continue
            timer = entry[2]
            callback, timer.callback = timer.callback, None
            if callback is None:
                self._cancelled -= 1
                continue
            try:
                callback()
            except Exception:  # an internal error in one queue must not stop the others
                log.exception("internal error in a timer")
            if is_over():
                break
        for entry in later:
            heappush(heap, entry)
        return heap[0][0] if heap else None
