"""What one batch of input touched, to be worked off in one go.

Everything the broker does for a read is gathered here and done once at its end: each touched queue runs once, each
publisher gets its confirms in one frame, each connection is written to once. Batching emerges from what piled up;
there is no timer.

Hot path: see docs/performance.md.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Protocol

from leveret.broker.counters.sampling import Events, Happening, Latencies
from leveret.broker.counters.totals import Totals
from leveret.broker.scheduling.time_slices import SLICE, TimeSlices
from leveret.broker.scheduling.wall_timers import Timers

log = logging.getLogger("leveret.queue")

PATIENCE = 50_000_000
"""Nanoseconds for which arrivals go before whatever else was put off; then that has a step's time."""


class Runnable(Protocol):
    """A queue with work to do."""

    touched: bool

    @property
    def has_input(self) -> bool:
        """Whether acks or arrivals wait for the next run."""

    def run(self) -> bool:
        """Do the work that piled up; true if some is left because the turn's budget is used up."""

    def give_up(self) -> None:
        """Forget the work that piled up: it cannot be done."""


class Confirming(Protocol):
    """A channel in confirm mode that has published."""

    def flush_confirms(self) -> None:
        """Write the confirms that are due."""


class Flushable(Protocol):
    """The driver of a connection that has frames to send."""

    def flush(self) -> None:
        """Hand the frames to the transport."""


def _never() -> bool:
    """Nothing waits for a disk where there is none."""
    return False


class Turn:
    """The work lists of one event-loop turn, shared by all connections of a server.

    `clock` tells the time on the wall (epoch ms), `timers` call back by it: for what expires. `slices` bound how long
    the loop is held, and keep the jobs that are left for later. `totals` is where whoever ends leaves what it has
    counted.
    """

    __slots__ = (
        "_is_catching_up",
        "_is_turn_of_others",
        "_late",
        "_others_due",
        "_put_off",
        "channels",
        "clock",
        "events",
        "is_backlogged",
        "latencies",
        "now",
        "outboxes",
        "queues",
        "slices",
        "timers",
        "totals",
        "unfinished",
        "waiting_for_disk",
    )

    def __init__(self, clock: Callable[[], int] = lambda: 0, slices: TimeSlices | None = None) -> None:
        self.clock = clock
        self.slices = TimeSlices() if slices is None else slices
        self.timers = Timers()
        self.totals = Totals()
        self.now = 0
        """When this turn began, in nanoseconds of a monotonic clock; the driver sets it."""
        self.latencies = Latencies()
        self.events: Events | None = None
        """Takes what happens to queues, exchanges and connections; None if nobody wants to know."""
        self.queues: list[Runnable] = []
        self.channels: list[Confirming] = []
        self.outboxes: list[Outbox] = []
        self.unfinished: list[Runnable] = []
        """Queues that used up their budget: the driver owes them another turn soon."""
        self.is_backlogged: Callable[[], bool] = _never
        """Whether more waits for the disk than should; the driver sets it, and owes `disk_caught_up` afterwards."""
        self.waiting_for_disk: dict[Runnable, None] = {}
        """Queues that discard nothing more until then."""
        self._late: deque[Runnable] = deque()
        """Touched queues with acks or arrivals for which a step had no time left; a job runs them."""
        self._put_off: OrderedDict[Runnable, None] = OrderedDict()
        """Other such queues, which run behind these. They do not count as touched: one with arrivals has to be late."""
        self._others_due = 0
        """When these have their turn all the same, in nanoseconds; in their turn when that ends."""
        self._is_turn_of_others = False
        self._is_catching_up = False

    def run(self) -> bool:
        """Run every touched queue (which may touch others) as long as the step has time, then write the confirms.

        Returns:
            Whether queues were put off. What such a queue has in its inbox counts as taken; its publisher is to
            send no more before `when_caught_up`, and a method that needs queues as they are has to wait for it.

        """
        queues = self.queues
        is_late = False
        if queues:
            slices = self.slices
            for count, queue in enumerate(queues, 1):  # grows while it is walked
                queue.touched = False
                slices.latest = queue
                try:
                    if queue.run():
                        self.unfinished.append(queue)
                except Exception:  # a bug of ours in one queue must not stop the others
                    log.exception("internal error in %r", queue)
                    _give_up(queue)
                if slices.is_over():
                    is_late = count < len(queues)
                    self._leave(queues[count:])
                    break
            queues.clear()
        channels = self.channels
        if channels:
            for channel in channels:
                channel.flush_confirms()
            channels.clear()
        return is_late

    @property
    def is_split(self) -> bool:
        """Whether queues with acks or arrivals are put off: what came together is noted in part, not to be committed.

        Queues that only have messages to deliver change nothing of what was promised, and may be many for long.
        """
        return any(queue.has_input for queue in self._late)

    @property
    def is_late(self) -> bool:
        """Whether queues with acks or arrivals were put off."""
        return bool(self._late)

    def when_caught_up(self, callback: Callable[[], object]) -> None:
        """Call back in a later step, when the queues have run that are put off now and have acks or arrivals.

        Not all the others: who sends little would wait for all that somebody else's queues have to do.
        """
        if self._late:
            self._late.append(_Call(callback))
        else:
            self.slices.later(callback)

    def put_off(self, runnable: Runnable) -> None:
        """Run something now, as far as time allows, behind what was put off before and has acks or arrivals."""
        self._leave([runnable])

    def go_first(self, since: int, then: Runnable) -> None:
        """Run the queues now that were touched since there were so many, and then something else if it has input.

        Called by what was put off while it runs: they take its place, before what was put off after it.
        """
        late, queues = self._late, self.queues
        if then.has_input:
            late.appendleft(then)
        late.extendleft(reversed(queues[since:]))
        del queues[since:]

    def _leave(self, queues: list[Runnable]) -> None:
        for queue in queues:
            if queue.has_input:
                self._late.append(queue)
            else:
                queue.touched = False
                self._put_off_for_others(queue)
        if not self._is_catching_up and queues:
            self._is_catching_up = True
            self.slices.add(self._catch_up(), "queues that were put off")

    def _put_off_for_others(self, queue: Runnable) -> None:
        if not self._put_off:
            self._others_due = self.slices.clock() + PATIENCE
        self._put_off[queue] = None

    def _catch_up(self) -> Iterator[None]:
        """Run what was put off, one queue after the other: those with acks or arrivals, and now and then another."""
        late, put_off, slices = self._late, self._put_off, self.slices
        while late or put_off:
            if late and not self._is_turn_of_others and put_off and slices.clock() >= self._others_due:
                self._is_turn_of_others = True
                self._others_due = slices.renew() + SLICE
            is_others = not late or (self._is_turn_of_others and bool(put_off))
            queue = put_off.popitem(last=False)[0] if is_others else late.popleft()
            queue.touched = False
            slices.latest = queue
            try:
                if queue.run():
                    self.unfinished.append(queue)
            except Exception:  # as in `run`
                log.exception("internal error in %r", queue)
                _give_up(queue)
            if self._is_turn_of_others and (not put_off or slices.clock() >= self._others_due):
                self._is_turn_of_others = False
                self._others_due = slices.clock() + PATIENCE
            yield
        self._is_catching_up = False

    def wait_for_arrivals(self, queue: Runnable) -> bool:
        """Whether a queue must not discard now, as others with acks or arrivals were put off; it runs again soon."""
        if not self._late or self._is_turn_of_others:
            return False
        self._put_off_for_others(queue)
        return True

    def note(self, kind: str, vhost: str, name: str, **detail: str) -> None:
        """Tell whoever wants to know that something has happened (`export.schema.EVENTS`)."""
        if self.events is not None:
            self.events.add(Happening(self.clock(), self.now, kind, vhost, name, detail))

    def wait_for_disk(self, queue: Runnable) -> bool:
        """Whether a queue must not give the disk more to write now; it runs again when it may."""
        if not self.is_backlogged():
            return False
        self.waiting_for_disk[queue] = None
        return True

    def disk_caught_up(self) -> None:
        """What waited for the disk is written: queues that waited go on, behind those with acks or arrivals."""
        waiting, self.waiting_for_disk = self.waiting_for_disk, {}
        self._leave([queue for queue in waiting if not queue.touched])

    def resume_unfinished(self) -> None:
        """Touch again the queues whose budget ran out in an earlier turn."""
        for queue in self.unfinished:
            if not queue.touched:
                queue.touched = True
                self.queues.append(queue)
        self.unfinished.clear()


def _give_up(queue: Runnable) -> None:
    """Have a queue forget what it cannot do; whatever the error has left behind, others go on."""
    try:
        queue.give_up()
    except Exception:
        log.exception("internal error in %r, which it could not recover from", queue)


class _Call:
    """A function that is called when what stands before it has run."""

    __slots__ = ("_callback", "touched")

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback = callback
        self.touched = False

    @property
    def has_input(self) -> bool:
        """Nothing that a commit would have to wait for."""
        return False

    def run(self) -> bool:
        """Call it."""
        self._callback()
        return False

    def give_up(self) -> None:
        """It was called, and has failed."""


class Parkable(Protocol):
    """A consumer that waits until its connection can be written to again."""

    def wake(self) -> None:
        """Rejoin the queue's rotation if nothing else stands in the way."""


class Outbox:
    """Frames on their way to one connection.

    An outbox is *full* while its transport has told us to pause or this turn has put more than `limit` octets into
    it; consumers then step out of their queues' rotation and come back when it has drained. So a connection that
    does not read costs a bounded buffer and nobody else's speed.
    """

    __slots__ = (
        "_driver",
        "frames",
        "full",
        "limit",
        "parked",
        "pending",
        "scheduled",
        "transport_full",
        "turn",
    )

    def __init__(self, turn: Turn, driver: Flushable, limit: int = 256 * 1024) -> None:
        self.turn = turn
        self._driver = driver
        self.limit = limit
        self.frames: list[bytes | memoryview] = []
        self.pending = 0
        """Octets put in by deliveries since the last flush."""
        self.scheduled = False
        self.full = False
        self.transport_full = False
        self.parked: dict[Parkable, None] = {}

    def schedule(self) -> None:
        """Have this outbox flushed at the end of the turn."""
        if not self.scheduled:
            self.scheduled = True
            self.turn.outboxes.append(self)

    def send(self, frame: bytes) -> None:
        """Queue one frame (the cold path; deliveries append to `frames` themselves)."""
        self.frames.append(frame)
        if not self.scheduled:
            self.scheduled = True
            self.turn.outboxes.append(self)

    def flush(self) -> None:
        """Hand the frames to the transport; the turn's driver calls this once a turn."""
        self.scheduled = False
        self._driver.flush()

    def detach(self, driver: Flushable) -> None:
        """The connection is gone: whatever is still sent goes to `driver`, which throws it away."""
        self._driver = driver

    def drained(self) -> None:
        """The transport took the frames, or can be written to again."""
        self.pending = 0
        if self.full and not self.transport_full:
            self.full = False
            parked, self.parked = self.parked, {}
            for consumer in parked:
                consumer.wake()
