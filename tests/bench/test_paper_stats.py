"""Paired ratios and their intervals."""

import math
import random

import pytest
from hypothesis import given, strategies as st

from bench.paper_stats import T_95, Ratio, paired, ratio, t_95

rates = st.floats(1.0, 1e6)


def test_the_interval_of_known_values():
    """Ratios 1, 2 and 4: the mean of their logarithms is ln 2, their deviation ln 2, t for 2 is 4.303."""
    found = ratio([(10.0, 10.0), (20.0, 10.0), (40.0, 10.0)])

    half = 4.303 * math.log(2) / math.sqrt(3)
    assert found.n == 3
    assert found.mean == pytest.approx(2.0)
    assert found.low == pytest.approx(2.0 * math.exp(-half))
    assert found.high == pytest.approx(2.0 * math.exp(half))


def test_one_pair_has_no_interval_and_none_no_ratio():
    """Figures that cannot be known from too few pairs are not made up."""
    assert ratio([(3.0, 2.0)]) == Ratio(1, pytest.approx(1.5), None, None)
    assert ratio([]) is None


def test_equal_ratios_have_an_interval_without_width():
    """Ratios that do not scatter have the mean as both bounds."""
    found = ratio([(3.0, 2.0)] * 6)

    assert [pytest.approx(1.5)] * 3 == [found.mean, found.low, found.high]


@given(st.lists(st.tuples(rates, rates), min_size=2, max_size=12))
def test_the_inverse_ratio_has_the_inverse_interval(pairs):
    """A ratio and its inverse have inverse intervals, whichever of the two is called the baseline."""
    there, back = ratio(pairs), ratio([(baseline, mode) for mode, baseline in pairs])

    assert there.mean == pytest.approx(1 / back.mean)
    assert there.low == pytest.approx(1 / back.high)
    assert there.low <= there.mean * (1 + 1e-9)


@given(st.lists(st.tuples(rates, rates), min_size=2, max_size=12), st.floats(0.01, 100.0))
def test_a_slow_block_changes_nothing(pairs, slow):
    """A factor that slows both of a pair down alike leaves the ratio as it is."""
    first, *rest = pairs
    slowed = [(first[0] * slow, first[1] * slow), *rest]

    assert ratio(pairs).mean == pytest.approx(ratio(slowed).mean)
    assert ratio(pairs).low == pytest.approx(ratio(slowed).low)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    """Intervals of 2,000 simulated sweeps of six blocks contain the true ratio in 93 to 97 per cent of cases."""
    chance = random.Random(8)
    covered = 0
    for _ in range(2000):
        pairs = [(1.4 * math.exp(chance.gauss(0, 0.1)), math.exp(chance.gauss(0, 0.1))) for _ in range(6)]
        found = ratio(pairs)
        covered += found.low <= 1.4 <= found.high

    assert 0.93 <= covered / 2000 <= 0.97


def test_students_t():
    """Known values; the table falls towards that of the normal distribution and is kept beyond its end."""
    assert [12.706, 2.571, 2.042] == [t_95(1), t_95(5), t_95(30)]
    assert sorted(T_95, reverse=True) == list(T_95)
    assert t_95(30) == t_95(500)
    with pytest.raises(ValueError, match="no spread"):
        t_95(0)


def test_blocks_are_paired_with_themselves():
    """A block that only one of the two has counts nothing."""
    assert [(1.0, 10.0), (3.0, 30.0)] == paired({1: 1.0, 2: 2.0, 3: 3.0}, {3: 30.0, 1: 10.0, 4: 40.0})


def test_a_verdict_needs_six_pairs_and_a_lower_bound():
    """Five pairs are not judged; 0.95 holds, less does not."""
    assert [False, True] == [Ratio(n, 1.0, 0.99, 1.01).judged for n in (5, 6)]
    assert [True, False] == [Ratio(6, 1.0, low, 1.1).not_slower for low in (0.95, 0.949)]
