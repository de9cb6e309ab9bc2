"""The texts of `leveret perf`: a line for each interval, and the summary."""

from collections.abc import Callable
from typing import NamedTuple

from leveret.broker.client.options import Product
from leveret.broker.perf.load import Load
from leveret.broker.perf.measurement import Interval, Percentiles, Result

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
