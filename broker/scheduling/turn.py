"""Work lists of one turn of the event loop: the queues, channels and connections affected by one batch of input.

The work caused by the reads of one round of the event loop is collected here and done once at its end: each touched
queue runs once, each publisher gets its confirms in one frame, each connection is written to once. The batch is
whatever has accumulated, up to limits (`Turn.gather`); there is no timer.

Hot path: see docs/performance.md.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from leveret.broker.scheduling.time_slices import SLICE, TimeSlices

log = logging.getLogger("leveret.queue")

GATHER_OCTETS = 256 * 1024  # bytes of reads, but for the last, whose effects wait for one run of the turn
GATHER_NS = 2_000_000  # nanoseconds from the first of these reads after which a further one runs the turn
INPUT_PRIORITY_NS = 50_000_000
"""Nanoseconds for which arrivals go before other deferred work; after that the other work gets the time of one step."""


def _never() -> bool:
    """Return false: without a disk nothing waits for it."""
    return False


class Runnable(Protocol):
    """A queue with work to do."""

    touched: bool

    @property
    def durable(self) -> bool:
        """True if its input may be written to disk. Constant."""

    @property
    def has_input(self) -> bool:
        """True if acks or arrivals wait for the next run."""

    @property
    def stores_input(self) -> bool:
        """True if some of them are written to disk: no commit begins while this is deferred."""

    def run(self) -> bool:
        """Do the accumulated work; return true if some is left because the turn's budget is used up."""

    def give_up(self) -> None:
        """Drop the accumulated work after an internal error."""


class Settling(Protocol):
    """Acks that have no effect yet (`broker.queue.retention`)."""

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call back once when they have."""


class Flushable(Protocol):
    """Frames to send: of a connection (`broker.scheduling.outbox.Outbox`), or its driver."""

    def flush(self) -> None:
        """Hand the frames to the transport."""


class Read(Protocol):
    """A read from a socket whose messages and acks are noted, but not processed (`Turn.gather`)."""

    def turn_ran(self, *, is_deferred: bool) -> None:
        """Called once, after the next run of the turn, with what that returned."""


class Confirming(Protocol):
    """A channel in confirm mode with published messages."""

    def may_wait(self) -> bool:
        """Return whether its confirms may wait, as so many are open; it is listed again when something changes."""

    def flush_confirms(self, since: int = 0) -> None:
        """Send the confirms that are due; their publishes may have arrived from `since` (ns) on, 0 for this turn."""


class Turn:
    """The work lists of one event-loop turn, shared by all connections of a server.

    It has what is to be done and by when: `slices` bounds the duration of steps, and has the jobs left for later.
    Clock, timers, counters and latencies are in the `NodeContext`.
    """

    __slots__ = (
        "_deferred_input",
        "_deferred_others",
        "_gathered_octets",
        "_gathered_since",
        "_is_running_deferred",
        "_is_turn_of_others",
        "_not_stored",
        "_others_due",
        "_paused_jobs",
        "_reads",
        "_stored",
        "channels",
        "confirm_wait",
        "heartbeats",
        "is_backlogged",
        "is_full",
        "is_shared",
        "outboxes",
        "queues",
        "reads",
        "settling",
        "slices",
        "transactions",
        "unfinished",
        "waiting_for_disk",
        "withheld",
        "withheld_since",
    )

    def __init__(self, slices: TimeSlices | None = None) -> None:
        self.slices = TimeSlices() if slices is None else slices
        self.queues: list[Runnable] = []
        self.reads = 0  # number of reads from sockets so far
        self.heartbeats = 0  # number of those that were a heartbeat and nothing else
        self.is_shared = False  # True if many sockets have taken turns since the driver has reset this
        self.confirm_wait = 0  # ns that confirms of channels with many open ones wait; set by the driver
        self.withheld_since = 0  # time (ns) at which the first of `withheld` began to wait
        self.channels: list[Confirming] = []
        self.withheld: dict[Confirming, None] = {}
        """Channels whose confirms wait; the driver must call `send_withheld` after `confirm_wait`."""
        self.outboxes: list[Flushable] = []
        self.unfinished: list[Runnable] = []  # queues that used up their budget, for another turn soon
        self.is_backlogged: Callable[[], bool] = _never
        """True if too many writes are pending; set by the driver, which must call `disk_caught_up` afterwards."""
        self.is_full: Callable[[], bool] = _never
        """True if the disk is full: jobs are not paused then, because deletions free space. Set by the driver, too."""
        self.waiting_for_disk: dict[Runnable, None] = {}  # discard no more until `disk_caught_up`
        self.transactions: set[object] = set()  # those executed in part: each goes into one commit
        self.settling: dict[Settling, None] = {}
        """Queues with acks that have no effect yet: the commit of a transaction waits for them."""
        self._reads: list[Read] = []  # reads that the next run tells
        self._gathered_octets = self._gathered_since = 0
        self._paused_jobs: list[tuple[Iterator[None], str]] = []  # jobs that write nothing more until then
        self._deferred_input: deque[Runnable] = deque()
        """Touched queues with acks or arrivals that were deferred because the step was over; a job runs them."""
        self._stored: set[Runnable] = set()  # those of them whose input is written to disk
        self._not_stored: set[Runnable] = set()  # other durable ones: they may get it while they are deferred
        self._deferred_others: OrderedDict[Runnable, None] = OrderedDict()
        """Deferred queues without acks or arrivals, which run after those with some.

        They do not count as touched, so that one that gets arrivals is deferred with its input.
        """
        self._others_due = 0
        """Time (ns) at which the queues in `_deferred_others` run in any case; while they do, the end of their time."""
        self._is_turn_of_others = False
        self._is_running_deferred = False

    def run(self) -> bool:  # noqa: C901 - hot: one flat function is cheaper than small ones
        """Run every touched queue (which may touch others) while the step has time, then send the confirms.

        Returns true if queues were deferred. The messages in the inbox of such a queue count as accepted; nothing more
        may be read from their publisher before `when_caught_up`, and methods that need exact queue states must wait for
        it.
        """
        queues = self.queues
        is_deferred = False
        if queues:
            slices = self.slices
            for count, queue in enumerate(queues, 1):  # the list may grow during the iteration
                queue.touched = False
                slices.latest = queue
                try:
                    if queue.run():
                        self.unfinished.append(queue)
                except Exception:  # an internal error in one queue must not stop the others
                    log.exception("internal error in %r", queue)
                    _give_up(queue)
                if slices.is_over():
                    is_deferred = count < len(queues) or self.has_deferred_input
                    self._defer_all(queues[count:])
                    break
            queues.clear()
        channels = self.channels
        if channels:
            if self.confirm_wait:
                self._withhold()
            for channel in channels:
                channel.flush_confirms()
            channels.clear()
        if self._reads:
            reads, self._reads = self._reads, []
            for read in reads:
                read.turn_ran(is_deferred=is_deferred)
        return is_deferred

    def gather(self, read: Read, octets: int, now: int) -> bool:
        """Have the next run notify a read of some octets that began at `now` (ns) and may not be repeated before that.

        A queue with many publishers and consumers runs once for all sockets that were read since the last, and each
        connection is written to once. Returns true if the turn should run at once; otherwise the caller must see that
        it runs in this round of the loop.
        """
        if self._reads:
            self._gathered_octets += octets
        else:
            self._gathered_octets, self._gathered_since = octets, now
        self._reads.append(read)
        return self._gathered_octets >= GATHER_OCTETS or now - self._gathered_since >= GATHER_NS

    def _withhold(self) -> None:
        """Have channels wait that await many confirms, if those before them have not waited long enough by now."""
        now = self.slices.clock()
        if not self.withheld:
            self.withheld_since = now
        elif now - self.withheld_since >= self.confirm_wait:
            withheld, self.withheld = self.withheld, {}
            for channel in withheld:
                channel.flush_confirms(self.withheld_since)
            return
        due = []
        for channel in self.channels:
            if channel.may_wait():
                self.withheld[channel] = None
            else:
                due.append(channel)
        self.channels[:] = due

    def send_withheld(self) -> None:
        """Start a job that sends the confirms withheld so far."""
        if self.withheld:
            withheld, self.withheld = self.withheld, {}
            self.slices.add(_flush_each(withheld, self.withheld_since), "withheld confirms")

    @property
    def is_split(self) -> bool:
        """True if input is only partly journaled: a transaction, or what waits in deferred queues and is stored.

        No commit may begin then. Queues that only have messages to deliver, or transient arrivals, change nothing
        durable, and there may be many for a long time.
        """
        if self._stored or self.transactions:
            return True
        return bool(self._not_stored) and any(queue.stores_input for queue in self._not_stored)

    @property
    def has_deferred_input(self) -> bool:
        """True if queues with acks or arrivals are deferred, or callbacks wait for such queues."""
        return bool(self._deferred_input)

    def when_caught_up(self, callback: Callable[[], object]) -> None:
        """Call back in a later step, after the queues with acks or arrivals that are deferred now have run.

        Other deferred queues are not waited for: a client that sends little would wait for the work of others' queues.
        """
        if self._deferred_input:
            self._deferred_input.append(_Call(callback))
        else:
            self.slices.later(callback)

    def defer(self, runnable: Runnable) -> None:
        """Run something as soon as time allows, after the deferred queues with acks or arrivals."""
        self._defer_all([runnable])

    def defer_touched(self, since: int, then: Runnable) -> None:
        """Run the queues touched since the list had `since` entries next, and `then` again if it has input.

        Called by a deferred runnable while it runs. If commits wait for it, it continues at once, otherwise after the
        queues that were deferred meanwhile.
        """
        with_input, queues = self._deferred_input, self.queues
        if then.has_input:
            self._hold_commits(then)
            if then.stores_input:
                with_input.appendleft(then)
            else:
                with_input.append(then)
        touched = queues[since:]
        for queue in touched:
            self._hold_commits(queue)
        with_input.extendleft(reversed(touched))
        del queues[since:]

    def _hold_commits(self, queue: Runnable) -> None:
        """Have commits wait for a queue that is deferred, if its input is written to disk."""
        if queue.durable:
            (self._stored if queue.stores_input else self._not_stored).add(queue)

    def _defer_all(self, queues: list[Runnable]) -> None:
        for queue in queues:
            if queue.has_input:
                self._deferred_input.append(queue)
                self._hold_commits(queue)
            else:
                queue.touched = False
                self._defer_without_input(queue)
        if not self._is_running_deferred and queues:
            self._is_running_deferred = True
            self.slices.add(self._run_deferred(), "deferred queues")

    def _defer_without_input(self, queue: Runnable) -> None:
        if not self._deferred_others:
            self._others_due = self.slices.clock() + INPUT_PRIORITY_NS
        self._deferred_others[queue] = None

    def _run_deferred(self) -> Iterator[None]:
        """Run the deferred queues one by one: those with acks or arrivals, and from time to time another."""
        with_input, others, slices = self._deferred_input, self._deferred_others, self.slices
        while with_input or others:
            if with_input and not self._is_turn_of_others and others and slices.clock() >= self._others_due:
                self._is_turn_of_others = True
                self._others_due = slices.renew() + SLICE
            is_others = not with_input or (self._is_turn_of_others and bool(others))
            if is_others:
                queue = others.popitem(last=False)[0]
            else:
                queue = with_input.popleft()
                self._stored.discard(queue)
                self._not_stored.discard(queue)
            queue.touched = False
            slices.latest = queue
            self.run_one(queue)
            if self._is_turn_of_others and (not others or slices.clock() >= self._others_due):
                self._is_turn_of_others = False
                self._others_due = slices.clock() + INPUT_PRIORITY_NS
            yield
        self._is_running_deferred = False

    def run_one(self, queue: Runnable) -> None:
        """Run a queue at once, as `run` does."""
        try:
            if queue.run():
                self.unfinished.append(queue)
        except Exception:  # as in `run`
            log.exception("internal error in %r", queue)
            _give_up(queue)

    def wait_for_arrivals(self, queue: Runnable) -> bool:
        """Return whether a queue must not discard now, as others with input are deferred; it then is, too."""
        if not self._deferred_input or self._is_turn_of_others:
            return False
        self._defer_without_input(queue)
        return True

    def wait_for_disk(self, queue: Runnable) -> bool:
        """Return whether a queue must not cause more writes now; if so, it runs again at `disk_caught_up`."""
        if not self.is_backlogged():
            return False
        self.waiting_for_disk[queue] = None
        return True

    def disk_caught_up(self) -> None:
        """Resume the queues that waited for the disk, after those with acks or arrivals, and the jobs that did."""
        waiting, self.waiting_for_disk = self.waiting_for_disk, {}
        self._defer_all([queue for queue in waiting if not queue.touched])
        jobs, self._paused_jobs = self._paused_jobs, []
        for steps, name in jobs:
            self.add_writing_job(steps, name)

    def add_writing_job(self, steps: Iterator[None], name: str) -> None:
        """Run a job that writes to disk (`TimeSlices.add`), paused while many writes are pending and there is space."""
        self.slices.add(self._paced(steps, name), name)

    def _paced(self, steps: Iterator[None], name: str) -> Iterator[None]:
        for _ in steps:
            if self.is_backlogged() and not self.is_full():
                self._paused_jobs.append((steps, name))
                return
            yield

    @property
    def has_paused_jobs(self) -> bool:
        """True if jobs wait for `disk_caught_up`."""
        return bool(self._paused_jobs)

    def resume_paused_jobs(self) -> None:
        """Run the jobs that wait for the disk without further pauses, as before the end of the broker."""
        jobs, self._paused_jobs = self._paused_jobs, []
        for steps, name in jobs:
            self.slices.add(steps, name)

    def resume_unfinished(self) -> None:
        """Touch again the queues whose budget ran out in an earlier turn."""
        for queue in self.unfinished:
            if not queue.touched:
                queue.touched = True
                self.queues.append(queue)
        self.unfinished.clear()


def _flush_each(channels: Iterable[Confirming], since: int) -> Iterator[None]:
    for channel in channels:
        channel.flush_confirms(since)
        yield


def _give_up(queue: Runnable) -> None:
    """Drop a queue's work after an internal error; a second error in doing so is logged, too."""
    try:
        queue.give_up()
    except Exception:
        log.exception("internal error in %r: recovery failed", queue)


class _Call:
    """A callback in the list of deferred queues, called after those before it have run."""

    durable = False

    __slots__ = ("_callback", "touched")

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback = callback
        self.touched = False

    has_input = stores_input = False

    def run(self) -> bool:
        self._callback()
        return False

    def give_up(self) -> None:
        """Do nothing: the callback was called and has failed."""
