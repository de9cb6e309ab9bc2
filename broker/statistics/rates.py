"""Rates between samples, and the samples of a range of time, under RabbitMQ's names."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from leveret.broker.statistics.series import Row, Series, Ticks, Tier

NO_RATE: Mapping[str, Any] = {"rate": 0.0}
LATE = 2.0
"""Intervals after which the last sample is too old for a rate."""


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
    """The values that are sampled of a kind of object.

    Attributes:
        tiers: retention.
        columns: names of the values of a row, in order.
        sums: values that are sums of others, by name, with the names of those.
        stats: names of the first values, those of `message_stats`.
        read: returns the row of an object at this moment.
    """

    tiers: tuple[Tier, ...]
    columns: tuple[str, ...]
    sums: Mapping[str, tuple[str, ...]] = {}
    stats: tuple[str, ...] = ()
    read: Callable[[Any], Row] = tuple

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
