"""Time slices of the event loop: bounds the duration of each step, and runs longer work as jobs.

A *step* is what the loop does between two polls of its sockets and timers: one read, one turn, one timer. The driver
calls `begin` at each. Code that loops over something that a peer can make large checks `is_over` every few dozen
microseconds of work, and leaves the rest for a later step. Work that no other code would resume is a *job*: a
generator that yields after each small piece.

Pure: the clock is an argument, and `on_waiting` asks the driver for steps.
"""

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

log = logging.getLogger("leveret")

_UNWATCHED = 1 << 62
SLICE = 5_000_000  # longest time of a step in ns; several can run between two of one connection

SHARE = SLICE // 4  # nanoseconds of a step for which one job runs before the next one

SAMPLE = 200_000  # ns for which a reading of the CPU time is used again: it takes ten times a clock's


T = TypeVar("T")


def portions(things: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Return the things in order, `size` at a time: what a job visits between two yields."""
    return (things[at : at + size] for at in range(0, len(things), size))


def at_once(steps: Generator[Any, Any, T]) -> T:
    """Run all steps; returns the result of the generator."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def _stopped_clock() -> int:
    """Return 0: the clock of objects without a driver. No time passes, so nothing is deferred."""
    return 0


def _ignored() -> None:
    """Do nothing: without a driver, jobs run when they are added, as far as time allows."""


class TimeSlices:
    """The time of the current step, the jobs waiting for later steps, and the longest step so far.

    `clock` returns nanoseconds of a monotonic clock, `used` the thread's CPU time; from `slow` ns of it on a step is
    logged, 0 for never.
    """

    __slots__ = (
        "_began",
        "_deadline",
        "_jobs",
        "_later",
        "_sampled",
        "_short",
        "_slow",
        "_used",
        "_used_before",
        "clock",
        "latest",
        "longest",
        "longest_step",
        "on_waiting",
    )

    def __init__(
        self,
        clock: Callable[[], int] = _stopped_clock,
        used: Callable[[], int] = _stopped_clock,
        slow: int = 0,
    ) -> None:
        self.clock = clock  # as given
        self._used = used
        self._slow = slow
        self._began = clock()
        self._used_before = 0
        self._sampled = self._began - SAMPLE  # time at which `_used_before` was read
        self._deadline = self._began + SLICE
        self._short = _UNWATCHED  # steps no longer than this by the clock need no check of their CPU time
        self.longest = 0
        """CPU time in nanoseconds of the longest step since `watch`; up to `SAMPLE` too much, as it may count short
        steps before it."""
        self.longest_step = ""  # description of that step
        self._jobs: deque[tuple[Iterator[None], str]] = deque()
        self._later: deque[tuple[Iterator[None], str]] = deque()
        """Callbacks that join the jobs when the next step for jobs begins."""
        self.latest: object = ""  # job (its name) or queue that ran last, as a likely cause of a slow step
        self.on_waiting: Callable[[], object] = _ignored
        """Called when a job waits and none did before; the driver must then call `run` in a later step."""

    def __len__(self) -> int:
        return len(self._jobs) + len(self._later)

    # -- steps ------------------------------------------------------------------------------------------------------

    def begin(self) -> int:
        """Begin a step; return the time in nanoseconds. The driver must call `end` afterwards."""
        self._began = now = self.clock()
        if now - self._sampled >= SAMPLE:
            self._sampled = now
            self._used_before = self._used()
        self._deadline = now + SLICE
        return now

    def renew(self) -> int:
        """Extend the step by the time of another one, for further work; return the time in nanoseconds."""
        now = self.clock()
        self._deadline = now + SLICE
        return now

    def is_over(self) -> bool:
        """Return whether the step has used up its time."""
        return self.clock() >= self._deadline

    def end(self, what: str, whom: object) -> None:
        """End a step of a kind (`what`) for an object (`whom`), and log it if it was slow."""
        self.latest = ""  # must not keep a deleted queue alive
        if self.clock() - self._began <= self._short:
            return
        took = self._used() - self._used_before
        if took > self.longest:
            self.longest = took
            self.longest_step = f"{what} {whom}"
            self._short = min(took, self._slow or took)
        if self._slow and took > self._slow:
            log.warning(
                "slow step of the event loop: %.1f ms of processor time for %s %s", took / 1e6, what, whom
            )

    @contextmanager
    def step(self, what: str, whom: object) -> Iterator[int]:
        """Measure a step that is no read, turn or timer; the value is its begin. The others are as for `end`."""
        try:
            yield self.begin()
        finally:
            self.end(what, whom)

    def watch(self, *, on: bool = True) -> None:
        """Measure steps from now on, or (`on` false) no longer, as during shutdown, when no client waits."""
        self._short = 0 if on else _UNWATCHED

    # -- jobs -------------------------------------------------------------------------------------------------------

    def add(self, job: Iterator[None], name: str) -> None:
        """Run a job now, as far as time allows, and the rest in later steps; the name is for the log.

        It yields after each piece of work, which should take well below a millisecond. An exception ends this job only,
        and is logged.
        """
        while not self.is_over():
            if not self._go_on(job, name):
                return
        self._wait(job, name, self._jobs)

    def later(self, callback: Callable[[], object]) -> None:
        """Call a function in a later step, after the waiting jobs; `NotYet` takes this as `subscribe`.

        Also if a job asks for it: the turn at the end of the present step has run by then.
        """
        self._wait(_call(callback), "resumed method", self._later)

    def run(self) -> None:
        """Run the jobs in turn, each for its share of time, until all are done or the step is over; at least one piece.

        Jobs alternate by time, because pieces of some take a hundred times as long as those of others, which would
        otherwise starve. Called by the driver in a separate step. Jobs that still wait then need another step.
        """
        jobs, clock = self._jobs, self.clock
        jobs += self._later
        self._later.clear()
        now = clock()
        while jobs:
            job, name = jobs.popleft()
            until = now + SHARE
            goes_on = True
            while goes_on and now < until:
                goes_on = self._go_on(job, name)
                now = clock()
            if goes_on:
                jobs.append((job, name))
            if now >= self._deadline:
                break

    def _wait(self, job: Iterator[None], name: str, jobs: deque[tuple[Iterator[None], str]]) -> None:
        jobs.append((job, name))
        if len(self) == 1:
            self.on_waiting()

    def _go_on(self, job: Iterator[None], name: str) -> bool:
        self.latest = name
        try:
            next(job)
        except StopIteration:
            return False
        except Exception:  # an internal error in one job must not stop the others
            log.exception("internal error in the job %r: its remaining steps are skipped", name)
            return False
        return True


def _call(callback: Callable[[], object]) -> Iterator[None]:
    callback()
    yield from ()
