"""Context of a node, shared by all its objects: clock, timers, counters, latencies, events for the export.

It lives as long as the process. The work to be done is in the `Turn` (`broker.scheduling.turn`), which knows nothing of
it: objects that need both get both.
"""

from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar

from leveret.broker.counters.sampling import BrokerEvent, Events, Latencies
from leveret.broker.counters.totals import Totals
from leveret.broker.scheduling.wall_timers import Timers
from leveret.storage.message_ids import Room

INTERNAL = "rmq-internal"  # the acting user of what the broker does by itself, in RabbitMQ's words
OPERATOR = "rmq-cli"  # the acting user of what the operator on the host does, in RabbitMQ's words

Y = TypeVar("Y")
S = TypeVar("S")
R = TypeVar("R")


class EventFeed(Protocol):
    """Takes events of objects as they happen (`broker.connection.event_exchange`)."""

    def add(self, kind: str, vhost: str, name: str, actor: str, subject: tuple[Any, ...]) -> None:
        """Take an event: its kind, the object and its vhost, the acting user, and what else describes it."""


class NodeContext:
    """Times, timers, counters, latencies and events of one node; `clock` is the wall clock (epoch ms) of its timers."""

    __slots__ = ("actor", "clock", "events", "feed", "ids", "latencies", "now", "timers", "totals")

    def __init__(self, clock: Callable[[], int] = lambda: 0) -> None:
        self.clock = clock
        self.now = 0  # start of the current turn, in nanoseconds of a monotonic clock; set by the drivers
        self.timers = Timers()  # timers of the wall clock, used for expiry
        self.ids = Room()  # of the ids that queues know
        self.totals = Totals()  # counters of closed connections and channels and of deleted queues
        self.latencies = Latencies()  # latencies of a sample of messages
        self.events: Events | None = None  # of queues, exchanges and connections; None without an export
        self.feed: EventFeed | None = None  # publishes events as messages; None without an event exchange
        self.actor = INTERNAL  # name of the user on whose behalf the current step changes something

    def note(self, kind: str, vhost: str, name: str, *subject: Any, **detail: str) -> None:
        """Record an event for the export, if there is one (docs/export.md), and tell of it (`tell`)."""
        self.tell(kind, vhost, name, *subject)
        self.record(kind, vhost, name, **detail)

    def record(self, kind: str, vhost: str, name: str, **detail: str) -> None:
        """Record an event for the export only, if there is one."""
        if self.events is not None:
            self.events.add(BrokerEvent(self.clock(), self.now, kind, vhost, name, detail))

    def tell(self, kind: str, vhost: str, name: str, *subject: Any) -> None:
        """Tell the event exchange of an event, if there is one; nothing is published before the turn runs.

        `kind` is what happened (`broker.connection.event_exchange`), `subject` what else describes it, depending on
        that.
        """
        if self.feed is not None:
            self.feed.add(kind, vhost, name, self.actor, subject)

    def acting(self, actor: str, steps: Generator[Y, S, R]) -> Generator[Y, S, R]:
        """Run steps on behalf of a user: `actor` is that user during each of them, and then as before."""
        if self.feed is None:
            return (yield from steps)
        given: Any = None  # as `next`
        try:
            while True:
                outside, self.actor = self.actor, actor
                try:
                    needed = steps.send(given)
                finally:
                    self.actor = outside
                given = yield needed
        except StopIteration as end:
            result: R = end.value
            return result
        finally:
            steps.close()
