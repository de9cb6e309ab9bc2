"""PerfTest's per-second lines: parses them, and merges those of several PerfTests.

Pure: no clock, file or process is used here.
"""

import csv
import dataclasses
import math
from collections.abc import Iterable, Sequence

RATES = ("published", "confirmed", "returned", "nacked", "received")
LATENCIES = (
    ("c", "confirm latency"),
    ("l", "consumer latency"),
)
PERCENTILES = (("p50", "median"), ("p75", "75th p."), ("p95", "95th p."), ("p99", "99th p."))
SHORTEST = 0.05
"""Minimum length of an interval in seconds; the rate of a very short one would be arbitrarily large."""


class SampleError(ValueError):
    """Raised when PerfTest's output cannot be parsed; the text says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One interval: start and end (seconds since the start), rates a second, latencies in microseconds."""

    since: float
    t_s: float
    rates: dict[str, float]
    latencies: dict[str, int]

    @property
    def seconds(self) -> float:
        """Return its length."""
        return self.t_s - self.since


def parse(text: str) -> list[Sample]:
    """Read a file that PerfTest's `--output-file` wrote.

    A column that PerfTest left empty because the flag it belongs to was not given (`returned` without
    `mandatory`) counts as 0. A truncated last line is left out.

    Raises:
        SampleError: a column is missing, or a value is no number.

    """
    lines = text.splitlines()
    if text and not text.endswith("\n"):
        lines.pop()
    rows = csv.reader(lines)
    titles = {title.partition(" (")[0]: at for at, title in enumerate(next(rows, []))}
    try:
        rate_at = [(name, titles[name]) for name in RATES]
        latency_at = [
            (f"{short}_{percentile}", titles[f"{spelt} {long}"])
            for short, long in LATENCIES
            for percentile, spelt in PERCENTILES
        ]
        samples = []
        before = 0.0
        for row in rows:
            now = float(row[titles["time"]])
            if now - before < SHORTEST:
                continue
            rates = {name: float(row[at] or 0) for name, at in rate_at}
            latencies = {name: round(float(row[at] or 0)) for name, at in latency_at}
            samples.append(Sample(before, now, rates, latencies))
            before = now
    except (KeyError, ValueError, IndexError) as error:
        message = f"PerfTest's output cannot be read: {error!r}"
        raise SampleError(message) from error
    return samples


def merged(parts: Sequence[Sequence[Sample]]) -> list[Sample]:
    """Merge the samples of concurrent PerfTests; a single one is returned unchanged.

    Their seconds do not begin together, so each rate is spread over the whole seconds it covers, and a second's rate is
    the sum: the counts are preserved. Percentiles cannot be added: of those that end in the same second, the worst is
    taken.
    """
    if len(parts) == 1:
        return list(parts[0])
    last = max((math.ceil(part[-1].t_s) for part in parts if part), default=0)
    counts = [dict.fromkeys(RATES, 0.0) for _ in range(last)]
    worst: list[dict[str, int]] = [{} for _ in range(last)]
    for part in parts:
        for sample in part:
            for second in range(int(sample.since), math.ceil(sample.t_s)):
                share = min(sample.t_s, second + 1) - max(sample.since, second)
                for name, rate in sample.rates.items():
                    counts[second][name] += rate * share
            ends = worst[min(max(round(sample.t_s) - 1, 0), last - 1)]
            for name, value in sample.latencies.items():
                ends[name] = max(ends.get(name, 0), value)
    nothing = dict.fromkeys((f"{short}_{p}" for short, _ in LATENCIES for p, _ in PERCENTILES), 0)
    return [
        Sample(float(second), second + 1.0, rates, nothing | worst[second])
        for second, rates in enumerate(counts)
    ]


def total(samples: Iterable[Sample], name: str) -> int:
    """Return the total number of published, confirmed, ... messages."""
    return round(sum(sample.rates[name] * sample.seconds for sample in samples))


def has_steady(samples: Iterable[Sample], seconds: float, cut_start: float, cut_end: float) -> bool:
    """Return whether messages came through in the seconds that count: published, confirmed and received.

    Args:
        samples: the samples of the whole run.
        seconds: PerfTest's publishing time; later samples never count.
        cut_start: seconds excluded at the start.
        cut_end: seconds excluded before `seconds`.
    """
    half = 0.5
    kept = [
        sample
        for sample in samples
        if sample.since >= cut_start - half and sample.t_s <= seconds - cut_end + half
    ]
    return all(any(sample.rates[name] for sample in kept) for name in ("published", "confirmed", "received"))
