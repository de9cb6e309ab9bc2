"""The results of a run, as they are written to JSON; docs/howto/measure.md describes the fields."""

import msgspec

from leveret.broker.client.options import Product
from leveret.broker.counters.histogram import Histogram
from leveret.broker.perf.load import Load


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
    of = histogram.percentile
    return Percentiles(
        count=histogram.count,
        min=histogram.least,
        mean=round(histogram.total / histogram.count, 1),
        p50=of(0.5),
        p90=of(0.9),
        p95=of(0.95),
        p99=of(0.99),
        p999=of(0.999),
        max=histogram.greatest,
    )
