"""Effects of the 2^3 design."""

import math
import random

import pytest

from bench.paper_design import EFFECTS, effects
from bench.paper_plan import DESIGN
from leveret.analytics.ratios import T_95


def made(factor, blocks=3, noise=lambda: 1.0):
    """Values of all lines in blocks that are not alike."""
    return {
        line: {block: 1000.0 * block * factor(on) * noise() for block in range(1, blocks + 1)}
        for line, on in DESIGN.items()
    }


def test_known_effects_come_out():
    """Factors that multiply: each main effect is its own, no interaction is seen, and the blocks' levels do not matter."""
    by = {"timer": 0.5, "late": 0.8, "tables": 0.9}

    found = {
        effect.factors: effect for effect in effects(made(lambda on: math.prod(by[each] for each in on)))
    }

    assert list(found) == list(EFFECTS)
    for factors, effect in found.items():
        expected = by[factors[0]] if len(factors) == 1 else 1.0
        assert pytest.approx(expected) == effect.ratio
        assert (pytest.approx(expected), pytest.approx(expected), 3) == (
            effect.low,
            effect.high,
            effect.blocks,
        )


def test_an_interaction_is_half_the_difference_of_two_effects():
    """A timer that costs half with late confirms and nothing without them: both appear with the root of that."""
    found = {
        effect.name: effect.ratio
        for effect in effects(made(lambda on: 0.25 if {"timer", "late"} <= set(on) else 1.0))
    }

    assert {name: pytest.approx(0.5) for name in ("timer", "late", "timer x late")} == {
        name: ratio for name, ratio in found.items() if "tables" not in name
    }
    assert all(pytest.approx(1.0) == ratio for name, ratio in found.items() if "tables" in name)


def test_the_interval_of_known_values():
    """One value of two blocks off by a factor: residuals of an eighth and seven eighths of its half, 7 degrees of freedom."""
    values = made(lambda _: 1.0, blocks=2)
    values["default"][2] *= math.e

    timer = effects(values)[0]

    # Residuals: of the default +-7/16, of the seven others -+1/16, in both blocks.
    residual = 2 * ((7 / 16) ** 2 + 7 * (1 / 16) ** 2)
    half = T_95[6] * math.sqrt(residual / 7 / 2 / 2)
    assert pytest.approx(-1 / 8) == math.log(timer.ratio)
    assert pytest.approx((-1 / 8 - half, -1 / 8 + half)) == (math.log(timer.low), math.log(timer.high))
    assert not timer.shown


def test_the_interval_covers_the_truth_as_often_as_it_says():
    """Intervals of 500 simulated designs of four blocks contain the true effect in 93 to 97 per cent of cases."""
    chance = random.Random(3)
    covered = total = 0
    for _ in range(500):
        for effect in effects(made(lambda _: 1.0, 4, lambda: math.exp(chance.gauss(0, 0.2)))):
            covered += effect.low <= 1 <= effect.high
            total += 1

    assert 0.93 <= covered / total <= 0.97


def test_one_block_has_no_interval_and_none_no_effect():
    """A single block gives effects without intervals; blocks that lack a line are left out."""
    values = made(lambda _: 1.0, blocks=2)
    del values["late"][2]

    assert [(1, None, None)] * 7 == [(each.blocks, each.low, each.high) for each in effects(values)]
    assert not effects(values)[0].shown
    del values["late"]
    assert [] == effects(values)
