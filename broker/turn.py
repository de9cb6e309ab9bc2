"""What one batch of input touched, to be worked off in one go.

Everything the broker does for a read is gathered here and done once at its end: each touched queue runs once, each
publisher gets its confirms in one frame, each connection is written to once. Batching emerges from what piled up;
there is no timer.

Hot path: see docs/performance.md.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from broker.meters import Events, Happening, Latencies
from broker.timers import Timers
from broker.totals import Totals

log = logging.getLogger("leveret.queue")


class Runnable(Protocol):
    """A queue with work to do."""

    touched: bool

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


class Turn:
    """The work lists of one event-loop turn, shared by all connections of a server.

    `clock` tells the time on the wall (epoch ms), `timers` call back by it: for what expires. `totals` is where
    whoever ends leaves what it has counted.
    """

    __slots__ = (
        "channels",
        "clock",
        "events",
        "latencies",
        "now",
        "outboxes",
        "queues",
        "timers",
        "totals",
        "unfinished",
    )

    def __init__(self, clock: Callable[[], int] = lambda: 0) -> None:
        self.clock = clock
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

    def run(self) -> None:
        """Run every touched queue (which may touch others), then write the confirms."""
        queues = self.queues
        if queues:
            for queue in queues:  # grows while it is walked
                queue.touched = False
                try:
                    if queue.run():
                        self.unfinished.append(queue)
                except Exception:  # a bug of ours in one queue must not stop the others
                    log.exception("internal error in %r", queue)
                    queue.give_up()
            queues.clear()
        channels = self.channels
        if channels:
            for channel in channels:
                channel.flush_confirms()
            channels.clear()

    def note(self, kind: str, vhost: str, name: str, **detail: str) -> None:
        """Tell whoever wants to know that something has happened (`export.schema.EVENTS`)."""
        if self.events is not None:
            self.events.add(Happening(self.clock(), self.now, kind, vhost, name, detail))

    def resume_unfinished(self) -> None:
        """Touch again the queues whose budget ran out in an earlier turn."""
        for queue in self.unfinished:
            if not queue.touched:
                queue.touched = True
                self.queues.append(queue)
        self.unfinished.clear()


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
        self.frames: list[bytes] = []
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
