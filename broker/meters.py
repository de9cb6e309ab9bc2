"""What is measured while the broker works, for whoever writes it down: times of a sample of messages, time in states.

Theory. Nothing is noted with a message. A queue that is metered looks at itself when it has run, which is once a turn.
*Areas* are messages times the nanoseconds that they were ready, unacked or paged: what was so at the end of a run is so
until the next, so averages made from them are exact. *Watched* messages are followed by number: the n-th that came in
has left the ready ones when n of those that came in are not ready any more, which is exact while messages leave in
order (and on average always). What is measured ends when the turn's octets have been handed to the sockets: the driver
calls `Latencies.settle` then.

Times are nanoseconds of the driver's monotonic clock (`Turn.now`); histograms are in microseconds.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Container
from typing import Any, NamedTuple, Protocol

from broker.histogram import Histogram, Latency
from storage.backing_queue import BackingQueue
from storage.priorities import PriorityQueue
from storage.sub_queues import SubQueues

SAMPLE_EVERY = 16
"""Of so many messages one is watched, and never more than one of a turn."""
WATCHED_CONFIRMS = 8
"""Numbers of a channel that are watched at once, at most."""
WATCHED_MESSAGES = 64
"""Messages of a queue that are watched at once, at most: in a long queue the sample is thinner."""
MOST_EVENTS = 10_000
"""Events that wait to be written down; later ones are only counted."""
_NOT_PAGED = (0, 0, 0)


class Recorder(Protocol):
    """Counts durations."""

    def record(self, value: int) -> None:
        """Count one, in microseconds."""


class Latencies:
    """Durations of the node as a whole, and those that end with this turn.

    Attributes:
        confirm: from publish to confirm, by confirm mode.
        loop_lag: how late the event loop was when it was to look at its clock.

    """

    __slots__ = ("_ending", "confirm", "loop_lag")

    def __init__(self) -> None:
        self.confirm: defaultdict[str, Latency] = defaultdict(Latency)
        self.loop_lag = Latency()
        self._ending: list[tuple[Recorder, int]] = []

    def ended(self, recorder: Recorder, since: int) -> None:
        """Something that began at `since` (ns) ends as soon as this turn's octets are written."""
        self._ending.append((recorder, since))

    @property
    def is_ending(self) -> bool:
        """Whether something is to be settled."""
        return bool(self._ending)

    def settle(self, now: int) -> None:
        """The octets are written, at that time (ns)."""
        for recorder, since in self._ending:
            recorder.record((now - since) // 1000)
        self._ending.clear()


class Happening(NamedTuple):
    """Something that has happened: when (epoch ms, and ns of a monotonic clock), what, and to whom."""

    ts: int
    now: int
    kind: str
    vhost: str
    name: str
    detail: dict[str, str]


class Events:
    """What has happened and is not written down yet."""

    __slots__ = ("_happened", "lost")

    def __init__(self) -> None:
        self._happened: list[Happening] = []
        self.lost = 0
        """Events that found no place."""

    def add(self, happening: Happening) -> None:
        """Keep an event, as long as there are not too many."""
        if len(self._happened) < MOST_EVENTS:
            self._happened.append(happening)
        else:
            self.lost += 1

    def take(self) -> list[Happening]:
        """The events so far; they are not kept any longer."""
        taken, self._happened = self._happened, []
        return taken


class MeteredQueue(Protocol):
    """What a meter looks at."""

    published: int
    backing: BackingQueue

    @property
    def store(self) -> BackingQueue:
        """What keeps the messages."""


class MeteringTurn(Protocol):
    """The turn, as far as times are concerned."""

    now: int
    latencies: Latencies


class QueueMeter:
    """The times of one queue.

    Args:
        now: when it was made, ns.
        since: the same by the clock on the wall, epoch ms.

    Attributes:
        since: as given.
        ready, unacked, beta, gamma, delta: areas so far, in message-nanoseconds.
        deliver: how long messages were ready.
        residence: how long they were in the queue, by the order in which they left.
        ack: how long consumers took for one.

    """

    __slots__ = (
        "_at",
        "_leaving",
        "_next",
        "_paged_now",
        "_probe",
        "_ready_now",
        "_unacked_now",
        "_waiting",
        "ack",
        "beta",
        "deliver",
        "delta",
        "gamma",
        "ready",
        "residence",
        "since",
        "unacked",
    )

    def __init__(self, now: int, since: int) -> None:
        self.since = since
        self.ready = self.unacked = self.beta = self.gamma = self.delta = 0
        self.deliver, self.residence, self.ack = Histogram(), Histogram(), Histogram()
        self._at = now
        self._ready_now = self._unacked_now = 0
        self._paged_now = _NOT_PAGED
        self._next = 1
        self._waiting: deque[tuple[int, int]] = deque()
        """Watched messages that are ready: the number of each, and when it came."""
        self._leaving: deque[tuple[int, int]] = deque()
        """Those that are not any more, but not settled."""
        self._probe: tuple[Any, int] | None = None
        """A delivery whose ack is waited for: its key, and when it was."""

    # -- areas ------------------------------------------------------------------------------------------------------

    def look(self, queue: MeteredQueue, now: int) -> None:
        """Add up the time since the last look, and note how things are now."""
        elapsed = now - self._at
        if elapsed > 0:
            self._at = now
            self.ready += self._ready_now * elapsed
            self.unacked += self._unacked_now * elapsed
            if self._paged_now is not _NOT_PAGED:
                beta, gamma, delta = self._paged_now
                self.beta += beta * elapsed
                self.gamma += gamma * elapsed
                self.delta += delta * elapsed
        backing = queue.backing
        self._ready_now = ready = backing.ready_count
        self._unacked_now = backing.unacked_count
        self._paged_now = paged(queue.store) if ready else _NOT_PAGED

    # -- times ------------------------------------------------------------------------------------------------------

    def ran(self, queue: MeteredQueue, turn: MeteringTurn) -> None:
        """The queue has run: look at it, and at the watched messages."""
        now = turn.now
        self.look(queue, now)
        waiting, leaving = self._waiting, self._leaving
        came = queue.published
        if came >= self._next and len(waiting) + len(leaving) < WATCHED_MESSAGES:
            self._next = came + SAMPLE_EVERY
            waiting.append((came, now))
        gone = came - self._ready_now
        while waiting and waiting[0][0] <= gone:
            watched = waiting.popleft()
            turn.latencies.ended(self.deliver, watched[1])
            leaving.append(watched)
        settled = gone - self._unacked_now
        while leaving and leaving[0][0] <= settled:
            turn.latencies.ended(self.residence, leaving.popleft()[1])

    def delivered(self, key: Any, now: int) -> None:
        """A message was delivered under that key, and wants an ack."""
        if self._probe is None:
            self._probe = key, now

    def settled(self, keys: Container[Any], latencies: Latencies) -> None:
        """Consumers have settled these deliveries."""
        probe = self._probe
        if probe is not None and probe[0] in keys:
            latencies.ended(self.ack, probe[1])
            self._probe = None

    def came_back(self, keys: Collection[Any]) -> None:
        """These deliveries were not settled, and are no deliveries any more."""
        if self._probe is not None and self._probe[0] in keys:
            self._probe = None

    def take(self) -> tuple[Histogram, Histogram, Histogram]:
        """What was measured since the last `take`: deliver, residence, ack."""
        taken = self.deliver, self.residence, self.ack
        if self.deliver.count or self.residence.count or self.ack.count:
            self.deliver, self.residence, self.ack = Histogram(), Histogram(), Histogram()
        if not self._unacked_now:
            self._probe = None
        return taken


def paged(store: BackingQueue) -> tuple[int, int, int]:
    """How many ready messages are betas, gammas and deltas."""
    if isinstance(store, SubQueues):
        if not store.q3 and not store.delta_count and not store.returned:
            return _NOT_PAGED
        return store.state_counts()[1:]
    if isinstance(store, PriorityQueue):
        beta = gamma = delta = 0
        for level in store.levels.values():
            counts = paged(level)
            beta, gamma, delta = beta + counts[0], gamma + counts[1], delta + counts[2]
        return beta, gamma, delta
    return _NOT_PAGED
