"""The samples of one object, and rates: its last two, and rings of earlier ones if it has changed in ten minutes.

Theory. Everything is sampled at each tick of one clock, so the rows of a ring need no times: the newest belongs to the
last tick (or to the last multiple of the ring's step), the others to those before it. A tick that came late is filled
up with the row that follows. An object that has not changed for `IDLE_SECONDS` drops its rings, and is taken to have
had its last values all the time: ten thousand queues, of which a hundred move, need little more than those hundred.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Row = tuple[int, ...]
IDLE_SECONDS = 605.0


class Tier(NamedTuple):
    """A ring of an object: the distance of its rows in seconds, and how many there are at most."""

    seconds: int
    rows: int


DETAILED = (Tier(5, 122),)
BASIC = (Tier(5, 122), Tier(60, 62))
GLOBAL = (Tier(5, 122), Tier(60, 62), Tier(600, 50), Tier(1800, 49))
"""RabbitMQ's retention: 605 s for channels and exchanges, an hour for queues and connections, a day for the broker."""


class Ticks(NamedTuple):
    """The clock of all samples."""

    number: int  # number of the last tick
    at: float  # its time by a monotonic clock, seconds
    wall: int  # its time, milliseconds since the epoch
    interval: float  # seconds between two ticks

    def step(self, tier: Tier) -> int:
        """Return how many ticks are between two rows of a ring."""
        return max(1, round(tier.seconds / self.interval))


@dataclass(slots=True, eq=False)
class Ring:
    """The last rows of an object, at most so many of such a width, as one array of unsigned numbers."""

    _width: int
    _most: int
    _values: "array[int]" = field(default_factory=lambda: array("Q"))
    _next: int = 0
    newest: int = 0  # multiple of the step at which the newest row was taken

    def __len__(self) -> int:
        return len(self._values) // self._width

    def add(self, row: Row, multiple: int) -> None:
        """Add a row, also for the multiples since the newest that were left out."""
        count = min(multiple - self.newest, self._most) if self._values else 1
        values = array("Q", row)
        for _ in range(count):
            if len(self) < self._most:
                self._values.extend(values)
            else:
                at = self._next * self._width
                self._values[at : at + self._width] = values
            self._next = (self._next + 1) % self._most
        self.newest = multiple

    def row(self, multiple: int) -> Sequence[int] | None:
        """Return the row of a multiple, or the newest if that is older; None if it is no longer there."""
        back = max(0, self.newest - multiple)
        if back >= len(self):
            return None
        at = (self._next - 1 - back) % self._most * self._width
        return self._values[at : at + self._width]


@dataclass(slots=True, eq=False)
class Series:
    """The samples of one object."""

    # last, last_at: the newest row, and its time in seconds
    last: Row = ()
    # previous, previous_at: the one before; the same object as `last` if nothing has changed
    previous: Row = ()
    last_at: float = 0.0
    previous_at: float = 0.0
    since: int = 0  # number of the tick of its first sample
    changed: int = 0  # number of the tick of the last change; of the first sample if there was none
    changed_wall: int = 0  # time of that tick, milliseconds since the epoch
    _base: Row = ()  # row of the time before the rings
    _rings: tuple[Ring, ...] = ()

    def add(self, row: Row, now: float, ticks: Ticks, tiers: tuple[Tier, ...]) -> None:
        """Add the sample of a tick, at `now` in seconds; no value is negative, and there are always as many."""
        last = self.last
        self.previous, self.previous_at, self.last_at = last, self.last_at, now
        if row == last:
            if not self._rings:  # as most of ten thousand objects
                return
            row = last
        self.last = row
        if not last:
            self.since = self.changed = ticks.number
            self.changed_wall = ticks.wall
            self.previous, self.previous_at = row, now
            self._base = row
            return
        if row is not last:
            self.changed = ticks.number
            self.changed_wall = ticks.wall
            if not self._rings:
                self._base = last
                self._rings = tuple([Ring(len(row), tier.rows) for tier in tiers])
        elif (ticks.number - self.changed) * ticks.interval > IDLE_SECONDS:
            self._rings = ()
            self._base = row
            return
        for ring, tier in zip(self._rings, tiers, strict=True):
            multiple = ticks.number // ticks.step(tier)
            if multiple > ring.newest or not len(ring):
                ring.add(row, multiple)

    def at(self, number: int, ticks: Ticks, age: float, tiers: tuple[Tier, ...]) -> Sequence[int] | None:
        """Return the row at an earlier tick; None if the object was not sampled then.

        `age` are the seconds by which the oldest tick that will be asked for is older than the last: it chooses the
        ring.
        """
        if number < self.since:
            return None
        if not self._rings or number >= ticks.number:
            return self.last
        found: Sequence[int] | None = None
        for ring, tier in zip(self._rings, tiers, strict=True):
            if age <= tier.seconds * (tier.rows - 1) or tier is tiers[-1]:
                found = ring.row(number // ticks.step(tier))
                break
        return self._base if found is None else found

    @property
    def is_still(self) -> bool:
        """True if the last two samples are equal."""
        return self.last is self.previous


# -- rates between samples, and the samples of a range of time, under RabbitMQ's names ---------------------------------


NO_RATE: Mapping[str, Any] = {"rate": 0.0}
LATE = 2.0  # intervals after which the last sample is too old for a rate


class Span(NamedTuple):
    """A range of time up to now: its length and the distance of its samples, in seconds."""

    age: int
    increment: int


class Ranges(NamedTuple):
    """The ranges that a request asks for; None for none."""

    lengths: Span | None = None
    messages: Span | None = None
    data: Span | None = None
    node: Span | None = None


class Family(NamedTuple):
    """The values that are sampled of a kind of object."""

    tiers: tuple[Tier, ...]  # retention
    columns: tuple[str, ...]  # names of the values of a row, in order
    sums: Mapping[str, tuple[str, ...]] = {}  # values that are sums of others, by name: the names of those
    stats: tuple[str, ...] = ()  # names of the first values, those of `message_stats`
    read: Callable[[Any], Row] = tuple  # returns the row of an object at this moment

    def reader(self, name: str) -> Callable[[Sequence[int]], int]:
        """Return a function that returns a value of a row."""
        places = [self.columns.index(each) for each in self.sums.get(name, (name,))]
        if len(places) == 1:
            place = places[0]
            return lambda row: row[place]
        return lambda row: sum([row[place] for place in places])


def details(
    series: Series | None,
    family: Family,
    read: Callable[[Sequence[int]], int],
    ticks: Ticks,
    now: float,
    span: Span | None,
) -> Mapping[str, Any]:
    """Return the value of a key `*_details`: of the series of an object, None if there are no samples yet.

    `read` returns the value of a row (`Family.reader`); `span` is the range that was asked for, None for the rate
    alone.
    """
    if series is None:
        return NO_RATE
    if span is not None:
        return _over(series, family, read, ticks, span)
    elapsed = series.last_at - series.previous_at
    if series.is_still or elapsed <= 0 or now - series.last_at > LATE * ticks.interval:
        return NO_RATE
    return {"rate": (read(series.last) - read(series.previous)) / elapsed}


def _over(
    series: Series, family: Family, read: Callable[[Sequence[int]], int], ticks: Ticks, span: Span
) -> Mapping[str, Any]:
    step = span.increment * 1000
    newest = ticks.wall // step * step
    samples = []
    for time in range(newest, newest - span.age * 1000 - 1, -step):
        number = ticks.number - -(-(ticks.wall - time) // round(ticks.interval * 1000))
        row = series.at(number, ticks, span.age + span.increment, family.tiers)
        samples.append({"sample": 0 if row is None else read(row), "timestamp": time})
    if len(samples) < 2:  # noqa: PLR2004 - a rate needs two
        return {"rate": 0.0, "samples": samples}
    first, second, last = samples[0], samples[1], samples[-1]
    return {
        "rate": (first["sample"] - second["sample"]) / span.increment,
        "samples": samples,
        "avg_rate": (first["sample"] - last["sample"]) * 1000 / (newest - last["timestamp"]),
        "avg": sum([each["sample"] for each in samples]) / len(samples),
    }
