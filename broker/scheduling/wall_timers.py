"""Who wants to be called when, by the clock on the wall: queues with something that expires, delayed messages.

Pure: `run` is told the time, and `on_sooner` asks the driver to call it. A queue has one timer at most, for whatever
comes first, so their number goes with the queues and not with the messages. A cancelled one leaves the heap with its
time, or when more than half of the heap is such.
"""

import logging
from collections.abc import Callable
from heapq import heapify, heappop, heappush

log = logging.getLogger("leveret.queue")

_SWEEP_FROM = 64


def never(_when: int) -> None:
    """Nobody drives the timers."""


def _never_over() -> bool:
    """Nobody bounds the time."""
    return False


class Timer:
    """One call to come; `cancel` it through `Timers`."""

    __slots__ = ("callback", "when")

    def __init__(self, when: int, callback: Callable[[], object]) -> None:
        self.when = when
        self.callback: Callable[[], object] | None = callback


class Timers:
    """All calls to come.

    `on_sooner` is called with the time (epoch ms) of the first of them when that has come nearer.
    """

    __slots__ = ("_cancelled", "_count", "_heap", "on_sooner")

    def __init__(self) -> None:
        self.on_sooner: Callable[[int], object] = never
        self._heap: list[tuple[int, int, Timer]] = []
        self._count = 0
        self._cancelled = 0

    def __len__(self) -> int:
        """How many calls are to come."""
        return len(self._heap) - self._cancelled

    def at(self, when: int, callback: Callable[[], object]) -> Timer:
        """Have `callback` called once at `when` (epoch ms), not before; in the order they were asked for."""
        timer = Timer(when, callback)
        heap = self._heap
        sooner = not heap or when < heap[0][0]
        self._count += 1
        heappush(heap, (when, self._count, timer))
        if sooner:
            self.on_sooner(when)
        return timer

    def cancel(self, timer: Timer) -> None:
        """Do not call it; nothing happens if it was called or cancelled before."""
        if timer.callback is None:
            return
        timer.callback = None
        self._cancelled += 1
        if self._cancelled > _SWEEP_FROM and self._cancelled * 2 > len(self._heap):
            self._heap[:] = [entry for entry in self._heap if entry[2].callback is not None]
            heapify(self._heap)
            self._cancelled = 0

    def run(self, now: int, is_over: Callable[[], bool] = _never_over) -> int | None:
        """Call what is due at `now` (epoch ms); returns when the next call is to come, None for never.

        What is asked for meanwhile and due already waits for the next call of `run`, and so does the rest, after one
        call at least, as soon as `is_over` says that the step has used its time.
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
            except Exception:  # a bug of ours in one queue must not stop the others
                log.exception("internal error in a timer")
            if is_over():
                break
        for entry in later:
            heappush(heap, entry)
        return heap[0][0] if heap else None
