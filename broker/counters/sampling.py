"""What is measured while the broker works, for whoever writes it down: times of a sample of messages, time in states.

Theory. Nothing is noted with a message. A queue that is metered looks at itself when it has run, which is once a turn.
Messages come when a turn begins, and whatever else happens to them happens when its octets have been handed to the
sockets: the driver calls `Latencies.settle` then. *Areas* are messages times the nanoseconds that they were ready,
unacked or paged, so averages made from them are exact. *Watched* messages are followed by number: the n-th that came in
has left the ready ones when n of those that came in are not ready any more, which is exact while messages leave in
order (and on average always). Each stands for all since the one watched before, so that messages count alike whether
they come alone or by the hundred, and mean times agree with areas (Little's law: messages that are there on average =
messages per second times how long each stays).

Times are nanoseconds of the driver's monotonic clock (`Turn.now`); histograms are in microseconds.
"""

from collections import defaultdict, deque
from collections.abc import Collection
from typing import Any, NamedTuple, Protocol

from leveret.broker.counters.histogram import Histogram, Latency
from leveret.storage.queues.backing_queue import BackingQueue
from leveret.storage.queues.priority_queue import PriorityQueue
from leveret.storage.queues.sub_queues import SubQueues

SAMPLE_EVERY = 17
"""Of so many messages one is watched, and never more than one of a turn; fewer in a long queue. A prime, or whoever
publishes to 2, 4 or 16 places in turn would always be watched at the same one."""
WATCHED_MESSAGES = 64
"""Messages of a queue that are watched at once, at most: then every other one is not watched any more."""
MOST_EVENTS = 10_000
"""Events that wait to be written down; later ones are only counted."""
_NOT_PAGED = (0, 0, 0)
_GOLDEN = 0x9E3779B1
"""A step by the golden ratio of 2^32: its multiples are spread evenly over all remainders."""


def next_place(place: int) -> int:
    """Where to look the next time: the places are spread evenly, however many there are."""
    return (place + _GOLDEN) & 0xFFFFFFFF


def one_of(last: int, count: int, place: int) -> int:
    """The one at that place among `count` numbers that end with `last`."""
    return last - (count * place >> 32)


class Recorder(Protocol):
    """Counts durations."""

    def record(self, value: int, weight: int = 1) -> None:
        """Count one, in microseconds, that stands for so many."""


class EndingWithTurn(Protocol):
    """Measures until the turn's octets are written."""

    def turn_ended(self, now: int) -> None:
        """They are, at that time (ns)."""


class Latencies:
    """Durations of the node as a whole, and those that end with this turn.

    Attributes:
        confirm: from publish to confirm, by confirm mode.
        loop_lag: how late the event loop was when it was to look at its clock.

    """

    __slots__ = ("_ending", "_turning", "confirm", "loop_lag")

    def __init__(self) -> None:
        self.confirm: defaultdict[str, Latency] = defaultdict(Latency)
        self.loop_lag = Latency()
        self._ending: list[tuple[Recorder, int, int]] = []
        self._turning: list[EndingWithTurn] = []

    def ended(self, recorder: Recorder, since: int, weight: int = 1) -> None:
        """Something that began at `since` (ns) ends when this turn's octets are written; it stands for so many."""
        self._ending.append((recorder, since, weight))

    def tell(self, meter: EndingWithTurn) -> None:
        """Tell a meter when this turn's octets are written."""
        self._turning.append(meter)

    @property
    def is_ending(self) -> bool:
        """Whether something is to be settled."""
        return bool(self._ending or self._turning)

    def settle(self, now: int) -> None:
        """The octets are written, at that time (ns)."""
        for recorder, since, weight in self._ending:
            recorder.record((now - since) // 1000, weight)
        self._ending.clear()
        for meter in self._turning:
            meter.turn_ended(now)
        self._turning.clear()


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

    def forget(self) -> None:
        """What was told until now had happened before."""
        self._happened = []
        self.lost = 0

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
        "_began",
        "_came",
        "_discarded",
        "_leaving",
        "_leaving_ready",
        "_leaving_unacked",
        "_left",
        "_next",
        "_paged_now",
        "_place",
        "_probe",
        "_ready_now",
        "_settled",
        "_since_probe",
        "_spacing",
        "_told",
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
        self._came = 0
        self._began = now
        self._leaving_ready = self._leaving_unacked = 0
        """By how many there are more of them, until the turn ends, than when it has ended."""
        self._told = False
        self._next = 1
        self._spacing = SAMPLE_EVERY
        self._place = 0
        self._left = self._settled = 0
        """Up to which number those that were timed stand for others."""
        self._since_probe = 0
        """How many deliveries were settled since one was measured."""
        self._discarded = 0
        """How many of those that the queue forgot were not acked."""
        self._waiting: deque[tuple[int, int, int]] = deque()
        """Watched messages that are ready: the number of each, when it came, and up to which it stands for others."""
        self._leaving: deque[tuple[int, int, int]] = deque()
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

    def ended(self, queue: MeteredQueue, now: int) -> None:
        """The queue is deleted: nothing is in it from now on, whatever it still knows."""
        self.look(queue, now)
        self._ready_now = self._unacked_now = 0
        self._paged_now = _NOT_PAGED

    def turn_ended(self, now: int) -> None:
        """The octets of the turn that the queue ran in are written: what has left it was there until now."""
        elapsed = now - self._began
        self.ready += self._leaving_ready * elapsed
        self.unacked += self._leaving_unacked * elapsed
        self._leaving_ready = self._leaving_unacked = 0
        self._told = False

    # -- times ------------------------------------------------------------------------------------------------------

    def ran(self, queue: MeteredQueue, turn: MeteringTurn) -> None:
        """The queue has run: look at it, and at the watched messages."""
        now, latencies = turn.now, turn.latencies
        ready, unacked = self._ready_now, self._unacked_now
        self.look(queue, now)
        came = queue.published
        arrived = came - self._came
        # Those that came back are ready from the turn's beginning on: the states' areas, which add up to the ready
        # ones', begin there as well.
        self._leaving_ready += max(0, ready + arrived - self._ready_now)
        self._leaving_unacked += unacked - self._unacked_now
        if not self._told and (self._leaving_ready or self._leaving_unacked):
            self._told = True
            self._began = self._at  # not `now`: somebody may have looked with a clock that is further
            latencies.tell(self)
        if not self._unacked_now:
            self._probe = None
        waiting, leaving = self._waiting, self._leaving
        if arrived:
            self._came = came
            if came >= self._next:
                watched = len(waiting) + len(leaving)
                if watched >= WATCHED_MESSAGES:
                    self._thin_out()
                    waiting, leaving = self._waiting, self._leaving
                elif not watched and self._spacing > SAMPLE_EVERY:
                    self._spacing = SAMPLE_EVERY
                    self._left = self._settled = (
                        came - arrived
                    )  # the last of a long queue are not like this one
                self._next = came + self._spacing
                self._place = next_place(self._place)
                # Any of this turn's, not always the last, stands for all that came since the last one was watched.
                waiting.append((one_of(came, arrived, self._place), now, came))
        gone = came - self._ready_now
        while waiting and waiting[0][0] <= gone:
            _, since, up_to = waiting[0]
            leaving.append(waiting.popleft())
            latencies.ended(self.deliver, since, up_to - self._left)
            self._left = up_to
        settled = gone - self._unacked_now
        while leaving and leaving[0][0] <= settled:
            _, since, up_to = leaving.popleft()
            latencies.ended(self.residence, since, up_to - self._settled)
            self._settled = up_to

    def _thin_out(self) -> None:
        """Watch every other message only, and every other of those that come."""
        self._waiting = deque(list(self._waiting)[1::2])
        self._leaving = deque(list(self._leaving)[1::2])
        self._spacing *= 2

    def delivered(self, key: Any, now: int) -> None:
        """A message was delivered under that key, and wants an ack."""
        if self._probe is None:
            self._probe = key, now

    def settled(self, keys: Collection[Any], latencies: Latencies) -> None:
        """Consumers have settled these deliveries."""
        self._since_probe += len(keys)
        probe = self._probe
        if probe is not None and probe[0] in keys:
            latencies.ended(self.ack, probe[1], self._since_probe)
            self._probe = None
            self._since_probe = 0

    def forgotten(self, keys: Collection[Any], discarded: int, latencies: Latencies) -> None:
        """The queue forgets these: consumers have acked them, or it discards them, as it does with so many by now.

        What consumers rejected has been `settled` before, and other things that are discarded were no deliveries.
        """
        self._since_probe -= min(len(keys), discarded - self._discarded)
        self._discarded = discarded
        self.settled(keys, latencies)

    def came_back(self, keys: Collection[Any]) -> None:
        """These deliveries were not settled, and are no deliveries any more."""
        if self._probe is not None and self._probe[0] in keys:
            self._probe = None

    @property
    def has_times(self) -> bool:
        """Whether `take` would find anything."""
        return bool(self.deliver.count or self.residence.count or self.ack.count)

    def take(self) -> tuple[Histogram, Histogram, Histogram]:
        """What was measured since the last `take`: deliver, residence, ack."""
        taken = self.deliver, self.residence, self.ack
        self.deliver, self.residence, self.ack = Histogram(), Histogram(), Histogram()
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
