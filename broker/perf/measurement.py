"""The measurement of a run: counters, intervals, rates, and results, as JSON (docs/howto/measure.md) and as text."""

from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

import msgspec

from leveret.broker.client.options import Product
from leveret.broker.counters.histogram import Histogram, Latency
from leveret.broker.perf.load import Load

NANOSECONDS = 1_000_000_000
_COUNTS = ("sent", "received", "confirmed", "nacked", "returned")
_counts = attrgetter(*_COUNTS)


class Tally:
    """Counts of messages of the producers and consumers of a run, and latencies in microseconds.

    Latencies begin at the time at which a message was due, and end at its arrival at a consumer, at its confirm, or at
    its write to the socket (`send_delay`). `own` are the messages received that this run published, without
    redeliveries.
    """

    __slots__ = (*_COUNTS, "confirm_latency", "latency", "own", "send_delay")

    def __init__(self) -> None:
        self.sent = self.received = self.confirmed = self.nacked = self.returned = self.own = 0
        self.latency = Latency()
        self.confirm_latency = Latency()
        self.send_delay = Histogram()


class Percentiles(msgspec.Struct, frozen=True):
    """Latencies in microseconds, each at most 3 % too high."""

    count: int
    min: int
    mean: float
    p50: int
    p90: int
    p95: int
    p99: int
    p999: int
    max: int


class Flow(msgspec.Struct, frozen=True):
    """Messages of one kind: their number until the end, and their rate a second in the measured time."""

    count: int
    rate: float


class Interval(msgspec.Struct, frozen=True):
    """About one second of the run: messages a second, and latencies if there were any."""

    second: float
    sent: float
    received: float
    confirmed: float
    nacked: float
    returned: float
    latency_us: Percentiles | None
    confirm_latency_us: Percentiles | None
    blocked: str | None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run; see docs/howto/measure.md."""

    uri: str
    server: Product
    load: Load
    seconds: float
    sent: Flow
    received: Flow
    confirmed: Flow
    nacked: int
    returned: int
    unsent: int
    unconfirmed: int
    unreceived: int | None
    latency_us: Percentiles | None
    confirm_latency_us: Percentiles | None
    send_delay_us: Percentiles | None
    blocked_seconds: float
    blocked_reason: str | None
    error: str | None
    intervals: list[Interval]


def percentiles(histogram: Histogram) -> Percentiles | None:
    """Return the percentiles of a histogram; None if it is empty."""
    if not histogram.count:
        return None
    mean = round(histogram.total / histogram.count, 1)
    p50, p90, p95, p99, p999 = map(histogram.percentile, (0.5, 0.9, 0.95, 0.99, 0.999))
    return Percentiles(histogram.count, histogram.least, mean, p50, p90, p95, p99, p999, histogram.greatest)


class Measurement:
    """Turns the counters of a run into intervals and rates. Times are in nanoseconds."""

    def __init__(self, tally: Tally, began: int) -> None:
        self.tally = tally
        # began: time at which the run began
        # ended: time at which the producers stopped; `began` until then
        self.began = self.ended = began
        self.intervals: list[Interval] = []  # the intervals so far
        self.blocked_reason: str | None = None  # reason of the last time that the broker blocked a connection
        self._blocked = 0  # number of connections that are blocked now
        self._blocked_since = began
        self._blocked_time = 0
        self._was_blocked = False  # A connection was blocked at some time of this interval
        self.since = began  # beginning of the current interval
        self._before = _counts(tally)
        self._at_end = self._before

    def interval(self, now: int) -> Interval:
        """End an interval, append it to `intervals`, and return it."""
        counts = _counts(self.tally)
        seconds = max(1, now - self.since) / NANOSECONDS
        rates = [round((new - old) / seconds, 1) for new, old in zip(counts, self._before, strict=True)]
        made = Interval(
            second=round((now - self.began) / NANOSECONDS, 3),
            **dict(zip(_COUNTS, rates, strict=True)),
            latency_us=percentiles(self.tally.latency.take()),
            confirm_latency_us=percentiles(self.tally.confirm_latency.take()),
            blocked=self.blocked_reason if self._was_blocked else None,
        )
        self.intervals.append(made)
        self.since, self._before = now, counts
        self._was_blocked = self.is_blocked
        return made

    def end(self, now: int) -> None:
        """Note the time at which the producers stop: rates count until then."""
        self.ended = now
        self._at_end = _counts(self.tally)

    def seconds(self) -> float:
        """Return the measured time in seconds."""
        return (self.ended - self.began) / NANOSECONDS

    def flows(self) -> tuple[Flow, Flow, Flow]:
        """Return what was sent, received and confirmed."""
        seconds = max(self.seconds(), 1e-9)
        sent, received, confirmed = (
            Flow(count, round(until / seconds, 1))
            for count, until in zip(_counts(self.tally)[:3], self._at_end[:3], strict=True)
        )
        return sent, received, confirmed

    def block(self, reason: str, now: int) -> None:
        """Note that the broker blocked a connection."""
        if not self._blocked:
            self._blocked_since = now
        self._blocked += 1
        self._was_blocked = True
        self.blocked_reason = reason

    def unblock(self, now: int) -> None:
        """Note that the broker unblocked a connection."""
        self._blocked -= 1
        if not self._blocked:
            self._blocked_time += now - self._blocked_since

    @property
    def is_blocked(self) -> bool:
        """True while the broker blocks a connection."""
        return self._blocked > 0

    def blocked_seconds(self, now: int) -> float:
        """Return the time in which at least one connection was blocked."""
        current = now - self._blocked_since if self._blocked else 0
        return round((self._blocked_time + current) / NANOSECONDS, 3)


# -- texts -----------------------------------------------------------------------------------------------------------

HEADER_EVERY = 20  # lines between two headers
PERCENTILES = Percentiles.__struct_fields__[1:]


class _Column(NamedTuple):
    title: str
    unit: str
    text: Callable[[Interval], str]


def _rate(value: float) -> str:
    return f"{value:,.0f}"


def _milliseconds(microseconds: float) -> str:
    """Return milliseconds, with three digits where the value is small."""
    value = microseconds / 1000
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"  # noqa: PLR2004 - see above


def _share(found: Percentiles | None, name: str) -> str:
    return "-" if found is None else _milliseconds(getattr(found, name))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


class Report:
    """The texts of a run, whose load decides the columns."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._lines = 0
        has_confirms, has_latency = self._has_confirms, bool(load.producers and load.consumers)
        columns = (
            (True, _Column("time", "s", lambda each: f"{each.second:.1f}")),
            (load.producers, _Column("sent", "msg/s", lambda each: _rate(each.sent))),
            (load.consumers, _Column("received", "msg/s", lambda each: _rate(each.received))),
            (has_confirms, _Column("confirmed", "msg/s", lambda each: _rate(each.confirmed))),
            (load.mandatory, _Column("returned", "msg/s", lambda each: _rate(each.returned))),
            (has_latency, _Column("latency p50", "ms", lambda each: _share(each.latency_us, "p50"))),
            (has_latency, _Column("p99", "ms", lambda each: _share(each.latency_us, "p99"))),
            (has_confirms, _Column("confirm p50", "ms", lambda each: _share(each.confirm_latency_us, "p50"))),
            (has_confirms, _Column("p99", "ms", lambda each: _share(each.confirm_latency_us, "p99"))),
        )
        self._columns = [column for is_shown, column in columns if is_shown]
        self._widths = [6, *[max(len(each.title) + 2, 9) for each in self._columns[1:]]]

    @property
    def _has_confirms(self) -> bool:
        return bool(self._load.confirm and self._load.producers)

    def begin(self, server: Product, uri: str) -> list[str]:
        """Return the lines that describe the run."""
        load = self._load
        words = [
            _count(load.producers, "producer"),
            _count(load.consumers, "consumer"),
            _count(load.queues, "queue"),
            f"{load.size:,} bytes",
            "persistent" if load.persistent else "transient",
        ]
        if load.confirm:
            words.append(f"at most {load.confirm:,} unconfirmed")
        if load.consumers:
            acks = (
                f"an ack for {load.ack_every:,} messages" if load.ack_every > 1 else "an ack for each message"
            )
            words.append(acks if load.ack_every else "no acks")
        if load.prefetch:
            words.append(f"prefetch {load.prefetch:,}")
        if load.rate:
            each = " for each producer" if load.producers > 1 else ""
            words.append(f"{load.rate:,g} msg/s{each}")
        name = f"{server.product} {server.version}".strip() or "unknown broker"
        return [f"{name} at {uri}", ", ".join(words), ""]

    def interval(self, interval: Interval) -> list[str]:
        """Return the line of an interval, with the header above it where one is due."""
        lines = [] if self._lines % HEADER_EVERY else self._header()
        self._lines += 1
        line = self._row([each.text(interval) for each in self._columns])
        if interval.blocked is not None:
            line += f"  blocked by the broker: {interval.blocked}"
        return [*lines, line]

    def _header(self) -> list[str]:
        top = [""] if self._lines else []
        return [*top, self._row([c.title for c in self._columns]), self._row([c.unit for c in self._columns])]

    def _row(self, cells: list[str]) -> str:
        return "".join(f"{cell:>{width}}" for cell, width in zip(cells, self._widths, strict=True))

    def summary(self, result: Result) -> list[str]:
        """Return the lines of the summary."""
        lines = ["", f"{'messages':<22}{'number':>14}{'msg/s':>12}"]
        flows = [
            ("sent", result.sent, self._load.producers),
            ("received", result.received, self._load.consumers),
        ]
        if self._has_confirms:
            flows.append(("confirmed", result.confirmed, 1))
        lines += [f"  {name:<20}{flow.count:>14,}{flow.rate:>12,.0f}" for name, flow, shown in flows if shown]
        counts = (
            ("refused (nack)", result.nacked),
            ("returned", result.returned),
            ("due but not sent", result.unsent),
            ("not confirmed", result.unconfirmed),
            ("not received", result.unreceived or 0),
        )
        lines += [f"  {name:<20}{count:>14,}" for name, count in counts if count]
        shown = [
            ("latency", result.latency_us),
            ("confirm latency", result.confirm_latency_us),
            ("send delay", result.send_delay_us),
        ]
        if any(found for _, found in shown):
            titles = ["p99.9" if name == "p999" else name for name in PERCENTILES]
            lines += ["", f"{'milliseconds':<18}" + "".join(f"{title:>9}" for title in titles)]
            lines += [
                f"  {name:<16}" + "".join(f"{_share(found, each):>9}" for each in PERCENTILES)
                for name, found in shown
                if found
            ]
        if result.blocked_seconds:
            lines += [
                "",
                f"blocked by the broker for {result.blocked_seconds:,.1f} s: {result.blocked_reason}",
            ]
        return lines
