"""The event loop of a broker: runs its turn, its jobs, its timers and its ticks, each as a step (driver).

What happens after a time by a rule of the broker follows `time_source`; what depends on the machine, its network and
its load follows the event loop's own clock (`now`, `call_later`).
"""

import asyncio
import logging
import time
from collections.abc import Callable
from math import inf
from typing import Any

from leveret.broker.counters.histogram import Latency
from leveret.broker.counters.sampling import ConfirmWait
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.time_slices import TimeSlices
from leveret.broker.scheduling.time_source import TimerHandle, TimeSource
from leveret.broker.scheduling.timer_wheel import TICK_SECONDS, Ticking, TimerWheel
from leveret.broker.scheduling.turn import Turn
from leveret.confirm.modes import CONFIRM_MODES

log = logging.getLogger("leveret")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory of event loops; None, for asyncio's own loop, where uvloop is not installed."""
    try:
        import uvloop  # noqa: PLC0415 - only who makes a loop needs it
    except ImportError:
        return None
    return uvloop.new_event_loop


def log_loop_error(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that nothing else has handled: the exception handler of event loops."""
    error = context.get("exception")
    log.error("unexpected error in the event loop: %s", context.get("message"), exc_info=error)


def resolve(future: asyncio.Future[Any], value: Any) -> None:
    """Resolve a future, unless its caller has left."""
    if not future.done():
        future.set_result(value)


class Loop:
    """The event loop of one broker; a step is logged from `slow_step` ns of processor time on, 0 for never."""

    def __init__(self, time_source: TimeSource, slow_step: int = 0) -> None:
        self.time_source = time_source
        self.turn = Turn(TimeSlices(self.monotonic, self.used, slow_step))  # work of this turn, and jobs
        self.context = NodeContext(time_source.wall)  # clock, timers, counters and latencies of the node
        for mode in CONFIRM_MODES:
            self.context.latencies.confirm[mode] = Latency()
        self.ticks = TimerWheel(0.0)  # the deadlines and heartbeats of connections
        self.ticked = inf  # time of the last tick; infinite before the first
        self.timeouts: Callable[[float], object]  # does what is due by the time source; called every tick
        self.on_tick: list[Callable[[float], object]] = []  # called with the time, before the turn runs
        self.commit: Callable[..., object] | None = None
        """Begins the commit that is due after a turn (`Committer.wake`); None without a disk."""
        self.storage_failed: Callable[[BaseException], object]
        """Called when the disk has failed: nothing may be confirmed any more."""
        self._loop: asyncio.AbstractEventLoop
        self.began = 0.0  # time of the start
        self._tick_due = 0
        self._ticker: asyncio.TimerHandle | None = None
        self._timer: TimerHandle | None = None  # runs the timers of the wall clock
        self._withheld: asyncio.TimerHandle | None = None  # sends the confirms that are withheld
        self._waiting_for_disk: list[Callable[[], object]] = []
        self._is_turn_scheduled = self._are_jobs_scheduled = False
        self._confirm_wait = ConfirmWait()

    # -- time -------------------------------------------------------------------------------------------------------

    monotonic = staticmethod(time.monotonic_ns)  # returns ns of a clock that is never set, for measurements
    used = staticmethod(time.thread_time_ns)  # returns ns of processor time used by the event loop's thread

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use this event loop; to be called before anything is asked."""
        self._loop = loop
        self.time_source.attach(loop)

    @property
    def running(self) -> asyncio.AbstractEventLoop:
        """The event loop that is used."""
        return self._loop

    def now(self) -> float:
        """Return seconds of the event loop's monotonic clock."""
        return self._loop.time()

    @property
    def uptime(self) -> float:
        """Seconds since the start."""
        return self.now() - self.began

    @property
    def lag(self) -> float:
        """Delay of the last tick in seconds; 0 before the first."""
        return max(0.0, self.now() - self.ticked - TICK_SECONDS)

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call a function in this round of the event loop, in a step of its own."""
        self._loop.call_soon(self.run_step, "timer", callback, callback)

    def call_later(
        self, seconds: float, callback: Callable[[], object], kind: str = "timer", whom: object = None
    ) -> asyncio.TimerHandle:
        """Call a function later, in a step of its own (`run_step`), by default for the function itself."""
        return self._loop.call_later(
            seconds, self.run_step, kind, callback, callback if whom is None else whom
        )

    def wake(self, connection: Ticking, seconds: float) -> None:
        """Schedule the connection's `tick` that many seconds from now."""
        self.ticks.schedule(connection, self.time_source.now() + seconds)

    def start(self) -> None:
        """Begin with ticks and timers."""
        self.context.timers.on_sooner = self._set_timer
        self.run_timers()
        self.ticks = TimerWheel(self.time_source.now())
        self._schedule_tick()
        self.ticked = self.now()
        self.turn.slices.watch()

    def stop(self) -> None:
        """Stop ticks and timers."""
        for handle in (self._ticker, self._timer, self._withheld):
            if handle is not None:
                handle.cancel()

    def _schedule_tick(self) -> None:
        self._tick_due = self.monotonic() + int(TICK_SECONDS * 1e9)
        self._ticker = self.call_later(TICK_SECONDS, self.tick, "tick", "")

    def tick(self) -> None:
        """Do what is due in a tick, and schedule the next one."""
        now = self.ticked = self.now()
        self.context.latencies.loop_lag.record((self.context.now - self._tick_due) // 1000)
        self._schedule_tick()
        self.turn.confirm_wait = self._confirm_wait.next(
            self.context.latencies.confirm, is_shared=self.turn.is_shared
        )
        self.turn.is_shared = False
        self.timeouts(self.time_source.now())
        for work in self.on_tick:
            work(now)
        self.run_turn()

    def _set_timer(self, when: int) -> None:
        """Run the timers at that time (epoch ms), which is sooner than what was due so far."""
        # Or earlier, to read the wall clock again (`TimeSource.longest_wait`).
        if self._timer is not None:
            self._timer.cancel()
        seconds = min(max(0, when - self.context.clock()) / 1000, self.time_source.longest_wait)
        self._timer = self.time_source.call_later(seconds, self.run_timers)

    def run_timers(self) -> None:
        """Run the timers of the wall clock that are due."""
        self._timer = None
        self.run_step("timers, last", self._run_due_timers)

    def _run_due_timers(self) -> None:
        following = self.context.timers.run(self.context.clock(), self.turn.slices.is_over)
        if following is not None:
            self._set_timer(following)
        self.run_turn()

    # -- turns and jobs ---------------------------------------------------------------------------------------------

    def run_step(self, kind: str, work: Callable[[], object], whom: object = None) -> None:
        """Do some work as one step of the event loop, which is logged if it is slow; it runs the turn or finishes it.

        `whom` is the object it works for; by default the queue or job that ran last.
        """
        slices = self.turn.slices
        self.context.now = slices.begin()
        try:
            work()
        finally:
            slices.end(kind, slices.latest if whom is None else whom)

    def run_turn(self) -> None:
        """Run the turn in a time slice of its own, then write."""
        self.context.now = self.turn.slices.renew()
        self.run_and_finish_turn()

    def run_and_finish_turn(self) -> None:
        """Run the turn in what is left of the step's time, then write."""
        self.turn.run()
        self.finish_turn()

    def finish_turn(self, *, is_alone: bool = False) -> None:
        """Write to every connection touched by the turn, and continue soon if work is left.

        `is_alone` is true for the turn of a socket that was read twice in a row: no other client is active.
        """
        turn = self.turn
        outboxes = turn.outboxes
        if outboxes:
            turn.outboxes = []
            for outbox in outboxes:
                outbox.flush()
        latencies = self.context.latencies
        if latencies.is_ending:
            latencies.settle(self.monotonic())
        if self.commit is not None:
            self.commit(is_alone=is_alone)
        if turn.withheld and self._withheld is None:
            self._withheld = self.call_later(turn.confirm_wait / 1e9, self.send_withheld)
        if turn.unfinished or turn.queues or turn.channels or turn.outboxes:
            self.schedule_turn()

    def may_write(self) -> bool:
        """Return whether anything may be written to clients now; false for a node that may lead no more."""
        return True

    def send_withheld(self) -> None:
        """Send the confirms that are withheld (`Turn.withheld`)."""
        if self._withheld is not None:
            self._withheld.cancel()
            self._withheld = None
        self.turn.send_withheld()
        self.finish_turn()

    @property
    def is_busy(self) -> bool:
        """True if work waits for a later step."""
        turn = self.turn
        if self._is_turn_scheduled or turn.slices or turn.queues or turn.channels or turn.outboxes:
            return True
        return bool(turn.unfinished or turn.has_deferred_input or turn.withheld)

    def schedule_turn(self) -> None:
        """Run the turn in the next step."""
        if not self._is_turn_scheduled:
            self._is_turn_scheduled = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_turn_scheduled = False
        self.run_step("end of a turn, last", self._resume_turn)

    def _resume_turn(self) -> None:
        self.turn.resume_unfinished()
        self.run_and_finish_turn()

    def schedule_jobs(self) -> None:
        """Run the jobs in the next step; for `TimeSlices.on_waiting`."""
        if not self._are_jobs_scheduled:
            self._are_jobs_scheduled = True
            self._loop.call_soon(self._next_jobs)

    def _next_jobs(self) -> None:
        self._are_jobs_scheduled = False
        try:
            self.run_step("job", self._run_jobs)
        finally:  # an error must not stop the others
            if self.turn.slices:
                self.schedule_jobs()

    def _run_jobs(self) -> None:
        self.turn.slices.run()
        self.run_and_finish_turn()

    async def finish_jobs(self) -> None:
        """Wait until no work is deferred any more."""
        while self.turn.slices or self.turn.has_paused_jobs:  # each round of the loop runs a step of the jobs
            self.turn.resume_paused_jobs()
            await asyncio.sleep(0)

    # -- the disk ---------------------------------------------------------------------------------------------------

    def when_disk_caught_up(self, callback: Callable[[], object]) -> None:
        """Call back once the backlog of the disk is small again."""
        self._waiting_for_disk.append(callback)

    @property
    def waiting_for_disk(self) -> int:
        """Number of callbacks that wait for it."""
        return len(self._waiting_for_disk)

    def backlog_cleared(self) -> None:
        """Resume what waits for the disk; a turn follows."""
        self.turn.disk_caught_up()
        waiting, self._waiting_for_disk = self._waiting_for_disk, []
        for callback in waiting:
            callback()
