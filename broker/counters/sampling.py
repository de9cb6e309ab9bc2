"""Metering for the export: latencies of a sample of messages and of confirms, and time that queues have states.

Theory. Nothing is stored with a message. The meter of a queue is updated after each run of the queue, which is once a
turn. Messages arrive when a turn begins, and everything else happens to them when its frames have been handed to the
sockets: the driver calls `Latencies.settle` then. *Areas* are messages times the nanoseconds that they were ready,
unacked or paged, so averages computed from them are exact. *Watched* messages are tracked by number: the n-th that
arrived is no longer ready when n of those that arrived are no longer ready, which is exact while messages leave in
order (and always on average). Each sample represents all messages since the previous one, so that messages count
equally whether they arrive alone or by the hundred, and mean times agree with areas (Little's law: mean number of
messages in the queue = messages per second times mean time in the queue).

Times are nanoseconds of the driver's monotonic clock (`NodeContext.now`); histograms are in microseconds.

The confirms of a channel are sampled, too: any number published in a turn may be the sample, and it represents all
numbers since the previous sample. Where confirms take long, fewer are sampled, so that a channel
with a million unconfirmed numbers costs no more than one with a hundred.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any, NamedTuple

from leveret.broker.counters.histogram import Histogram, Latency
from leveret.confirm.channel_confirms import ChannelConfirms

SAMPLE_EVERY = 17
"""One in so many messages is sampled, and at most one per turn; fewer in a long queue. A prime, because otherwise a
publisher that alternates between 2, 4 or 16 destinations would always be sampled at the same one."""
WATCHED_MESSAGES = 64  # maximum number of pending samples of a queue; beyond it every other sample is dropped
MOST_EVENTS = 10_000  # maximum number of events kept for the export; further ones are only counted
_NOT_PAGED = (0, 0, 0)
_GOLDEN = 0x9E3779B1  # 2^32 divided by the golden ratio: its multiples are spread evenly over 32 bits


def next_place(place: int) -> int:
    """Return the next place (32 bits) of a sequence that is evenly spread, whatever its length."""
    return (place + _GOLDEN) & 0xFFFFFFFF


def one_of(last: int, count: int, place: int) -> int:
    """Return the number at `place` (of 2^32) in the run of `count` numbers that ends with `last`."""
    return last - (count * place >> 32)


class Latencies:
    """Latencies of the node, and the durations that end with the current turn."""

    __slots__ = ("_ending", "_turning", "confirm", "loop_lag")

    def __init__(self) -> None:
        self.confirm: defaultdict[str, Latency] = defaultdict(Latency)  # from publish to confirm, by mode
        self.loop_lag = Latency()  # delay of the event loop's timers
        self._ending: list[tuple[Histogram | Latency, int, int]] = []
        self._turning: list[QueueMeter] = []

    def ended(self, recorder: Histogram | Latency, since: int, weight: int = 1) -> None:
        """Record a duration from `since` (ns) until this turn's frames are written, `weight` times."""
        self._ending.append((recorder, since, weight))

    def notify_at_end(self, meter: "QueueMeter") -> None:
        """Notify a meter when this turn's frames are written."""
        self._turning.append(meter)

    @property
    def is_ending(self) -> bool:
        """True if there is anything to settle."""
        return bool(self._ending or self._turning)

    def settle(self, now: int) -> None:
        """Record the durations that end with this turn; its frames were written at `now` (ns)."""
        for recorder, since, weight in self._ending:
            recorder.record((now - since) // 1000, weight)
        self._ending.clear()
        for meter in self._turning:
            meter.turn_ended(now)
        self._turning.clear()


class BrokerEvent(NamedTuple):
    """An event for the export: its time (epoch ms, and ns of a monotonic clock), kind, object and details."""

    ts: int
    now: int
    kind: str
    vhost: str
    name: str
    detail: dict[str, str]


class Events:
    """Events that are not exported yet."""

    __slots__ = ("_events", "lost")

    def __init__(self) -> None:
        self._events: list[BrokerEvent] = []
        self.lost = 0  # number of events dropped because there were too many

    def add(self, event: BrokerEvent) -> None:
        """Keep an event, or only count it if there are `MOST_EVENTS` already."""
        if len(self._events) < MOST_EVENTS:
            self._events.append(event)
        else:
            self.lost += 1

    def forget(self) -> None:
        """Discard the events so far: they are from before the start of the export."""
        self._events = []
        self.lost = 0

    def take(self) -> list[BrokerEvent]:
        """Remove and return the events so far."""
        taken, self._events = self._events, []
        return taken


@dataclass(slots=True, eq=False)
class QueueMeter:
    """Meter of one queue: areas and latencies. The context that methods take is that of the node.

    Args:
        now: time of creation, ns.
        since: time of creation by the wall clock, epoch ms.
    """

    now: InitVar[int]
    since: int  # as given
    # ready, unacked, beta, gamma, delta: areas so far, in message-nanoseconds
    ready: int = 0
    unacked: int = 0
    beta: int = 0
    gamma: int = 0
    delta: int = 0
    deliver: Histogram = field(default_factory=Histogram)  # time that messages were ready
    # time that messages were in the queue, in the order in which they left
    residence: Histogram = field(default_factory=Histogram)
    ack: Histogram = field(default_factory=Histogram)  # time from delivery to ack
    _at: int = 0
    _ready_now: int = 0
    _unacked_now: int = 0
    _paged_now: tuple[int, int, int] = _NOT_PAGED
    _came: int = 0
    _began: int = 0
    _leaving_ready: int = 0  # ready and, below, unacked messages counted only until the turn ends
    _leaving_unacked: int = 0
    _awaits_end: bool = False
    _next: int = 1
    _spacing: int = SAMPLE_EVERY
    _place: int = 0
    _left: int = 0  # the last number the samples represent, of those delivered and, below, settled
    _settled: int = 0
    _since_probe: int = 0  # deliveries settled since the last ack was timed
    _discarded: int = 0  # messages that left the queue without an ack
    _waiting: deque[tuple[int, int, int]] = field(default_factory=deque)
    """Watched messages that are ready: number, time of arrival, and the last number that each represents."""
    _leaving: deque[tuple[int, int, int]] = field(default_factory=deque)
    """Watched messages that are no longer ready, but not settled yet."""
    _probe: tuple[Any, int] | None = None  # the delivery whose ack is being timed: its key and time

    def __post_init__(self, now: int) -> None:
        self._at = now

    # -- areas ------------------------------------------------------------------------------------------------------

    def update(self, queue: Any, now: int) -> None:
        """Add the time since the last update to the areas, and record the current counts."""
        elapsed = now - self._at
        if elapsed > 0:
            self._at = now
            self.ready += self._ready_now * elapsed
            self.unacked += self._unacked_now * elapsed
            if self._paged_now != _NOT_PAGED:
                beta, gamma, delta = self._paged_now
                self.beta += beta * elapsed
                self.gamma += gamma * elapsed
                self.delta += delta * elapsed
        backing = queue.backing
        self._ready_now = ready = backing.ready_count
        self._unacked_now = backing.unacked_count
        self._paged_now = backing.state_counts()[1:] if ready else _NOT_PAGED

    def ended(self, queue: Any, now: int) -> None:
        """Update the areas when the queue is deleted; from then on it counts as empty."""
        self.update(queue, now)
        self._ready_now = self._unacked_now = 0
        self._paged_now = _NOT_PAGED

    def turn_ended(self, now: int) -> None:
        """Add the time until the turn's frames were written for messages that left the queue in that turn."""
        elapsed = now - self._began
        self.ready += self._leaving_ready * elapsed
        self.unacked += self._leaving_unacked * elapsed
        self._leaving_ready = self._leaving_unacked = 0
        self._awaits_end = False

    # -- times ------------------------------------------------------------------------------------------------------

    def ran(self, queue: Any, context: Any) -> None:
        """Update the areas and the watched messages after a run of the queue."""
        now, latencies = context.now, context.latencies
        ready, unacked = self._ready_now, self._unacked_now
        self.update(queue, now)
        came = queue.published
        arrived = came - self._came
        # Requeued messages count as ready from the beginning of the turn: so do the areas of the paging states, which
        # add up to the ready area.
        self._leaving_ready += max(0, ready + arrived - self._ready_now)
        self._leaving_unacked += unacked - self._unacked_now
        if not self._awaits_end and (self._leaving_ready or self._leaving_unacked):
            self._awaits_end = True
            self._began = self._at  # not `now`: another update may have used a later clock
            latencies.notify_at_end(self)
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
                    )  # the last messages of a long queue do not represent this one
                self._next = came + self._spacing
                self._place = next_place(self._place)
                # Any message of this turn, not always the last, represents all since the previous sample.
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
        self._waiting = deque(list(self._waiting)[1::2])
        self._leaving = deque(list(self._leaving)[1::2])
        self._spacing *= 2

    def delivered(self, key: Any, now: int) -> None:
        """Start timing the ack of a delivery, unless another one is being timed."""
        if self._probe is None:
            self._probe = key, now

    def settled(self, keys: Collection[Any], latencies: Latencies) -> None:
        """Update the ack time after consumers have settled these deliveries."""
        self._since_probe += len(keys)
        probe = self._probe
        if probe is not None and probe[0] in keys:
            latencies.ended(self.ack, probe[1], self._since_probe)
            self._probe = None
            self._since_probe = 0

    def removed(self, keys: Collection[Any], discarded: int, latencies: Latencies) -> None:
        """Update the ack time after messages left the queue: acked by consumers, or discarded.

        `discarded` is the number of all messages discarded so far. Of these, messages rejected by consumers were passed
        to `settled` before, and others were not deliveries.
        """
        self._since_probe -= min(len(keys), discarded - self._discarded)
        self._discarded = discarded
        self.settled(keys, latencies)

    def requeued(self, keys: Collection[Any]) -> None:
        """Stop timing the ack of a delivery that was requeued instead."""
        if self._probe is not None and self._probe[0] in keys:
            self._probe = None

    @property
    def has_times(self) -> bool:
        """True if `take` would return any durations."""
        return bool(self.deliver.count or self.residence.count or self.ack.count)

    def take(self) -> tuple[Histogram, Histogram, Histogram]:
        """Return the durations since the last `take`: deliver, residence, ack."""
        taken = self.deliver, self.residence, self.ack
        self.deliver, self.residence, self.ack = Histogram(), Histogram(), Histogram()
        return taken


WATCHED_CONFIRMS = 8  # most pending samples of a channel; beyond it every other sample is dropped
SHARE = 3  # the wait is at most this part of the mean latency
LEAST_US, MOST_US = 10_000, 100_000  # microseconds of a wait; a shorter one gathers too little


class ConfirmTimes:
    """Confirm latency samples of one channel in confirm mode."""

    __slots__ = ("_every", "_last", "_place", "due", "watched")

    def __init__(self) -> None:
        self.due = 1  # sequence number from which on the next sample is taken
        self.watched: list[tuple[int, str, int, int]] = []
        """Unconfirmed samples: number, confirm mode, time of the publish (ns), count of numbers represented."""
        self._last = 0  # the last number represented by the samples so far
        self._every = SAMPLE_EVERY
        self._place = 0

    def look(self, confirms: ChannelConfirms, came: int, context: Any) -> None:
        """Record the latency of the samples that are confirmed by now; `came` as for `watch`."""
        latencies = context.latencies
        waiting = []
        for watched in self.watched:
            if watched[0] in confirms.held:
                waiting.append(watched)
            else:
                latencies.ended(latencies.confirm[watched[1]], *watched[2:])
        self.watched = waiting
        if not waiting and self._every > SAMPLE_EVERY:
            self._every = SAMPLE_EVERY
            self._last = confirms.seq_no - came  # numbers of a long wait do not represent later ones
            self.due = self._last + SAMPLE_EVERY

    def watch(self, confirms: ChannelConfirms, came: int, mode: str, context: Any, since: int = 0) -> None:
        """Sample one of the numbers that came: record its latency, or watch it until it is confirmed.

        `came` is the count of numbers published since confirms were sent before, at least one; those of this turn were
        sent. `mode` is that of the last of them, assumed for all; `since` the time (ns) from which on they came, 0 if
        all in this turn.
        """
        last = confirms.seq_no
        self._place = next_place(self._place)
        number = one_of(last, came, self._place)
        stands_for = last - self._last
        self._last = last
        published = since + (context.now - since) * (came - last + number) // came if since else context.now
        if number not in confirms.held:
            context.latencies.ended(context.latencies.confirm[mode], published, stands_for)
        else:
            if len(self.watched) >= WATCHED_CONFIRMS:
                self._thin_out()
            self.watched.append((number, mode, published, stands_for))
        self.due = last + self._every

    def _thin_out(self) -> None:
        """Drop every other sample, and halve the sampling rate."""
        early, late = self.watched[::2], self.watched[1::2]
        self.watched = [(*two[:3], one[3] + two[3]) for one, two in zip(early, late, strict=True)]
        self._every *= 2


class ConfirmWait:
    """The time for which confirms of busy channels wait for others, as the latest confirm latencies allow.

    With many publishers each turn confirms one or two messages of each, mostly out of order, so each in a frame of its
    own; publishers are woken for one message at a time. If confirms take long anyway, a part of that time gathers them:
    one frame for many, and all publishers at once. The wait is a part of the latency that it adds to, so it does not
    grow by itself, and there is none where confirms are quick or few sockets are busy.
    """

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Histogram, int, int]] = {}
        """By confirm mode, the histogram that the last tick has seen, and its count and sum then."""

    def next(self, latencies: Mapping[str, Latency], *, is_shared: bool) -> int:
        """Return the wait in nanoseconds until the next tick, given confirm latencies by mode; 0 for none.

        `is_shared` is true if many sockets have taken turns since the last tick.
        """
        count = total = 0
        for mode, latency in latencies.items():
            recent = latency.recent
            histogram, seen_count, seen_total = self._seen.get(mode, (recent, 0, 0))
            if histogram is not recent:  # an export has taken what the last tick saw
                seen_count = seen_total = 0
            self._seen[mode] = recent, recent.count, recent.total
            count += recent.count - seen_count
            total += recent.total - seen_total
        wait = total // (count * SHARE) if count and is_shared else 0
        return min(wait, MOST_US) * 1000 if wait >= LEAST_US else 0
