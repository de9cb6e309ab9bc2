"""Paired ratios with their confidence intervals. Pure: no clock, file or process is used here."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

T_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t, two-sided 95 %, for 1 to 30 degrees of freedom."""
ENOUGH = 6
"""Minimum number of pairs for a verdict."""
NOT_SLOWER = 0.95


@dataclasses.dataclass(frozen=True, slots=True)
class Ratio:
    """The geometric mean of paired ratios and its 95 % confidence interval, which needs two pairs or more."""

    n: int
    mean: float
    low: float | None
    high: float | None

    @property
    def judged(self) -> bool:
        """Return whether there are enough pairs for a verdict."""
        return self.n >= ENOUGH

    @property
    def not_slower(self) -> bool:
        """Return whether the lower bound shows no slowdown; valid only if `judged`."""
        return self.low is not None and self.low >= NOT_SLOWER


def t_95(freedom: int) -> float:
    """Return Student's t for a two-sided 95 % interval; beyond the table its last value, which is slightly wide.

    Raises:
        ValueError: less than one degree of freedom.
    """
    if freedom < 1:
        message = "one value has no spread"
        raise ValueError(message)
    return T_95[min(freedom, len(T_95)) - 1]


def ratio(pairs: Sequence[tuple[float, float]]) -> Ratio | None:
    """Return the mean ratio of the first of each pair to the second; None without pairs.

    Args:
        pairs: (mode, baseline) of one block each, all above 0.

    Raises:
        ValueError: a value is not above 0.
    """
    if not pairs:
        return None
    logs = [math.log(mode) - math.log(baseline) for mode, baseline in pairs]
    mean = statistics.fmean(logs)
    if len(logs) == 1:
        return Ratio(1, math.exp(mean), None, None)
    half = t_95(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(len(logs), math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def paired(mode: Mapping[int, float], baseline: Mapping[int, float]) -> list[tuple[float, float]]:
    """Return the pairs of both by block; blocks that only one of them has are left out."""
    return [(mode[block], baseline[block]) for block in sorted(mode.keys() & baseline.keys())]
