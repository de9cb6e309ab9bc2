"""The cost of each factor of a 2^3 design: main effects and interactions with 95 % intervals. Pure.

Each block has all eight lines (`paper_plan.DESIGN`). The logarithm of a value is the sum of a term of its block, a term
of its line, and a residual. An effect is the mean of the four lines with the factor less the mean of the four without
it; an interaction of two factors is half the difference of the effect of one with and without the other, and so on. The
seven effects are independent, and their intervals have 7 (blocks - 1) degrees of freedom, as the residuals of all lines
are taken to scatter alike.
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Mapping

from bench.paper_plan import DESIGN, FACTORS
from leveret.analytics.ratios import T_95

EFFECTS = tuple(chosen for size in (1, 2, 3) for chosen in itertools.combinations(FACTORS, size))
"""The main effects, the interactions of two, and that of all three."""


@dataclasses.dataclass(frozen=True, slots=True)
class Effect:
    """By what factor a value changes with some factors of the design; the interval needs two blocks."""

    factors: tuple[str, ...]
    blocks: int
    ratio: float
    low: float | None
    high: float | None

    @property
    def name(self) -> str:
        """Return the factors' names."""
        return " x ".join(self.factors)

    @property
    def shown(self) -> bool:
        """True if the interval does not contain 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


def effects(values: Mapping[str, Mapping[int, float]]) -> list[Effect]:
    """Return the effects on a value, in the order of `EFFECTS`; none if no block has all eight lines.

    Args:
        values: by line and block, above 0.
    """
    blocks = sorted(set.intersection(*[set(values.get(line, {})) for line in DESIGN]))
    if not blocks:
        return []
    logs = {line: [math.log(values[line][block]) for block in blocks] for line in DESIGN}
    means = {line: statistics.fmean(row) for line, row in logs.items()}
    half = None
    if len(blocks) > 1:
        grand = statistics.fmean(means.values())
        of_block = [statistics.fmean(row[at] for row in logs.values()) for at in range(len(blocks))]
        residual = sum(
            (value - means[line] - of_block[at] + grand) ** 2
            for line, row in logs.items()
            for at, value in enumerate(row)
        )
        freedom = (len(DESIGN) - 1) * (len(blocks) - 1)
        # An effect is a sum of eight means of the blocks, each with the weight 1/4.
        half = T_95[min(freedom, len(T_95)) - 1] * math.sqrt(
            residual / freedom * len(DESIGN) / 16 / len(blocks)
        )
    found = []
    for factors in EFFECTS:
        effect = sum(sign(factors, on) * means[line] for line, on in DESIGN.items()) / 4
        bounds = (None, None) if half is None else (math.exp(effect - half), math.exp(effect + half))
        found.append(Effect(factors, len(blocks), math.exp(effect), *bounds))
    return found


def sign(factors: tuple[str, ...], on: tuple[str, ...]) -> int:
    """Return the sign with which a line counts in an effect: the product over its factors of 1 if on, else -1."""
    return math.prod(1 if factor in on else -1 for factor in factors)
