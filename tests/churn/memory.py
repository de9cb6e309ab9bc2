"""Memory of a process over time: sampling it, and whether it grows.

Pure but for `sample`. The slope is Theil and Sen's, the median of the slopes between all pairs of samples: a few
outliers, such as a round with many large messages, do not move it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

MEBI = 1 << 20
MOST_PAIRS = 200_000
ALLOWED_GROWTH = 4 * MEBI
"""Octets that the fitted line may rise over the time that is judged, however long that is."""
ALLOWED_STORED = 16 * MEBI
"""Octets by which the data file may grow: as large as the largest heap of messages at once, its high-water mark creeps."""
WARM_UP = 0.3
"""The part of a run whose samples are not judged: caches fill, arenas find their size."""


@dataclass(frozen=True)
class Sample:
    """Memory, descriptors and data file of a process at a moment.

    Attributes:
        seconds: since the start.
        resident: VmRSS, octets; with the pages of the data file that are mapped.
        anonymous: RssAnon, octets: what it has allocated.
        files: open descriptors.
        stored: octets of its data file; it grows to what was there at once at most, and keeps that.

    """

    seconds: float
    resident: int
    anonymous: int
    files: int
    stored: int = 0


def sample(pid: int, seconds: float, data_file: Path | None = None) -> Sample:
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    )
    resident, anonymous = (int(status[key].split()[0]) * 1024 for key in ("VmRSS", "RssAnon"))
    files = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return Sample(seconds, resident, anonymous, files, 0 if data_file is None else data_file.stat().st_size)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between pairs of points; 0 for fewer than two points."""
    step = max(1, len(points) ** 2 // (2 * MOST_PAIRS))
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for at, earlier in enumerate(points)
        for later in points[at + 1 :: step]
        if later[0] > earlier[0]
    ]
    return median(slopes) if slopes else 0.0


def judged(samples: Sequence[Sample], warm_up: float = WARM_UP) -> Sequence[Sample]:
    """Return the samples after the warm-up."""
    if not samples:
        return samples
    end = samples[-1].seconds
    return [each for each in samples if each.seconds >= end * warm_up]


class Growth(NamedTuple):
    """Octets that fitted lines rise from the first sample to the last.

    Attributes:
        anonymous: that of RssAnon.
        rest: that of VmRSS without the data file, which is mapped.
        stored: that of the data file.

    """

    anonymous: float
    rest: float
    stored: float


def growth(samples: Sequence[Sample]) -> Growth:
    """Return how much memory and data file have grown."""
    if not samples:
        return Growth(0.0, 0.0, 0.0)
    span = samples[-1].seconds - samples[0].seconds
    series = (
        [(each.seconds, each.anonymous) for each in samples],
        [(each.seconds, each.resident - each.stored) for each in samples],
        [(each.seconds, each.stored) for each in samples],
    )
    return Growth(*[span * slope(points) for points in series])
