"""Bounds how long the event loop works on one thing: steps end by time, and what is left becomes a job.

A *step* is what the loop does between two looks at its sockets and timers: one read, one turn, one timer. The driver
calls `begin` at each. Whoever loops over something that a peer can make large asks `is_over` every few dozen
microseconds of work, and leaves the rest for a later step. Work that nobody else would take up again is a *job*: a
generator that yields after each small piece.

Pure: the clock is given, and the driver is asked for steps by `on_waiting`.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator

log = logging.getLogger("leveret")

_UNWATCHED = 1 << 62
SLICE = 5_000_000
"""Nanoseconds that one step may take. Several kinds of steps can come between two of the same connection."""

SHARE = SLICE // 4
"""Nanoseconds of a step for which one job goes on before the next has its turn."""


def _stopped_clock() -> int:
    """No time passes, so nothing is put off: the clock of objects that no driver drives."""
    return 0


def _ignored() -> None:
    """Nobody drives the jobs: they run when they are added, as far as time allows."""


class TimeSlices:
    """The time of the current step, the jobs that wait for the next, and the longest step so far.

    Args:
        clock: tells nanoseconds of a monotonic clock.
        used: tells nanoseconds of processor time that the thread has used.
        slow: nanoseconds of processor time from which a step is logged; 0 for never.

    Attributes:
        clock: as given.
        latest: what ran last of all that a step may be slow because of: a job's name, or a queue.
        longest: nanoseconds of processor time that the longest step since `watch` has taken.
        longest_step: what that was.
        on_waiting: called when a job waits and none did before; the driver then owes a `run` in a later step.

    """

    __slots__ = (
        "_began",
        "_deadline",
        "_jobs",
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
        self.clock = clock
        self._used = used
        self._slow = slow
        self._began = clock()
        self._used_before = 0
        self._deadline = self._began + SLICE
        self._short = _UNWATCHED
        """Steps that took no longer than this by the clock need not be looked at; processor time is never more."""
        self.longest = 0
        self.longest_step = ""
        self._jobs: deque[tuple[Iterator[None], str]] = deque()
        self.latest: object = ""
        self.on_waiting: Callable[[], object] = _ignored

    def __len__(self) -> int:
        """How many jobs wait."""
        return len(self._jobs)

    # -- steps ------------------------------------------------------------------------------------------------------

    def begin(self) -> int:
        """Begin a step; returns the time, in nanoseconds. The driver owes an `end`."""
        self._used_before = self._used()
        self._began = now = self.clock()
        self._deadline = now + SLICE
        return now

    def renew(self) -> int:
        """Give the step the time of another one, for something else that it does; returns the time."""
        now = self.clock()
        self._deadline = now + SLICE
        return now

    def is_over(self) -> bool:
        """Whether the step has used its time."""
        return self.clock() >= self._deadline

    def end(self, what: str, whom: object) -> None:
        """End a step, and log it if it was slow.

        Args:
            what: what kind of step it was.
            whom: what it worked for.

        """
        self.latest = ""  # a queue that was deleted is not to be kept by this
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

    def watch(self, *, on: bool = True) -> None:
        """Measure steps from now on; `on` false: no longer, as at the stop, when nobody waits."""
        self._short = 0 if on else _UNWATCHED

    # -- jobs -------------------------------------------------------------------------------------------------------

    def add(self, job: Iterator[None], name: str) -> None:
        """Run a job now, as far as time allows, and the rest in later steps.

        Args:
            job: yields after each piece of work, which should take well below a millisecond. An exception ends this
                job only, and is logged.
            name: what it does, to what, for the log.

        """
        while not self.is_over():
            if not self._go_on(job, name):
                return
        self._wait(job, name)

    def later(self, callback: Callable[[], object]) -> None:
        """Call a function in a later step, behind the jobs that wait: what `NotYet` takes to go on with a method."""
        self._wait(_call(callback), "resumed method")

    def run(self) -> None:
        """Run each job for its share of time in turn until they are done or the step is over, at least one piece.

        The pieces of some jobs take a hundred times as long as those of others: by pieces, these would starve.
        Called by the driver in a step of its own. Jobs that still wait then need another.
        """
        jobs, clock = self._jobs, self.clock
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

    def _wait(self, job: Iterator[None], name: str) -> None:
        self._jobs.append((job, name))
        if len(self._jobs) == 1:
            self.on_waiting()

    def _go_on(self, job: Iterator[None], name: str) -> bool:
        """Run one piece; false if that was the last."""
        self.latest = name
        try:
            next(job)
        except StopIteration:
            return False
        except Exception:  # a bug of ours in one job must not stop the others
            log.exception("internal error in the job %r: the rest of it is left undone", name)
            return False
        return True


def _call(callback: Callable[[], object]) -> Iterator[None]:
    callback()
    yield from ()
