"""Context of a node, shared by all its objects: clock, timers, counters, latencies, events for the export.

It lives as long as the process. The work to be done is in the `Turn` (`broker.scheduling.turn`), which knows nothing of
it: objects that need both get both.
"""

from collections.abc import Callable

from leveret.broker.counters.sampling import BrokerEvent, Events, Latencies
from leveret.broker.counters.totals import Totals
from leveret.broker.scheduling.wall_timers import Timers


class NodeContext:
    """Times, timers, counters, latencies and events of one node.

    Args:
        clock: returns the wall-clock time (epoch ms), which is also the time of the timers.

    Attributes:
        timers: timers of the wall clock, used for expiry.
        totals: counters of closed connections and channels and of deleted queues.
        latencies: latencies of a sample of messages.

    """

    __slots__ = ("clock", "events", "latencies", "now", "timers", "totals")

    def __init__(self, clock: Callable[[], int] = lambda: 0) -> None:
        self.clock = clock
        self.now = 0
        """Start of the current turn, in nanoseconds of a monotonic clock; set by the drivers."""
        self.timers = Timers()
        self.totals = Totals()
        self.latencies = Latencies()
        self.events: Events | None = None
        """Collects events of queues, exchanges and connections; None without an export."""

    def note(self, kind: str, vhost: str, name: str, **detail: str) -> None:
        """Record an event for the export, if there is one (`export.schema.EVENTS`)."""
        if self.events is not None:
            self.events.add(BrokerEvent(self.clock(), self.now, kind, vhost, name, detail))
