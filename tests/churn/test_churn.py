"""The short form of `make campaign NAME=churn`, and how growth is judged."""

import pytest
import uvloop
from churn.memory import MEBI, Sample, growth, judged, slope
from churn.rounds import churn

SECONDS = 6.0
"""Seconds after which the last round is finished."""
ALLOWED = 64 * MEBI
"""Growth allowed in a run that is all warm-up: only a flood is noticed."""


@pytest.mark.timeout(120)
def test_a_short_churn(tmp_path):
    """Everything comes and goes for a while, and no oracle objects."""
    verdict = uvloop.run(churn(tmp_path, SECONDS, 1, say=str, allowed=ALLOWED, allowance=10.0))
    assert not verdict.failed, "\n".join(verdict.lines())
    assert verdict.rounds >= 1
    assert verdict.counts["confirmed"] > 1000
    assert all(verdict.times.values())


def samples(*anonymous):
    return [Sample(float(at), 2 * octets, octets, 10, octets) for at, octets in enumerate(anonymous)]


def test_a_line_that_rises():
    """The slope is that of the line, despite a few outliers."""
    assert 3.0 == slope([(float(at), 3.0 * at + (1000 if at % 7 == 3 else 0)) for at in range(100)])


def test_growth_is_over_the_time_that_is_judged():
    """Growth is measured of all figures, over the time that is judged."""
    assert (9.0, 9.0, 9.0) == growth(samples(*range(10)))
    assert (0.0, 0.0, 0.0) == growth([])


def test_a_warm_up_is_not_judged():
    """Growth at the beginning only does not count."""
    assert (0.0, 0.0, 0.0) == growth(judged(samples(0, 10, 20, *[30] * 8)))
