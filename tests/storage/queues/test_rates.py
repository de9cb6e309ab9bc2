"""Rates: moving averages of what a queue does."""

import pytest

from leveret.storage.queues.rates import HALF_LIFE, Rates


def test_the_first_look_knows_nothing() -> None:
    """A single look gives no rate, since a rate needs two."""
    rates = Rates()
    rates.update(100.0, 1000, 500, 400, 0)

    assert 0 == rates.total


def test_a_steady_rate_is_reached() -> None:
    """After many half-lives the averages are what happens."""
    rates = Rates()
    for second in range(100):
        rates.update(float(second), 10 * second, 8 * second, 6 * second, second)

    assert pytest.approx((10, 8, 6), rel=0.001) == (rates.published, rates.fetched, rates.acked)
    assert pytest.approx(10 + 2 * 8 + 6, rel=0.001) == rates.total
    assert pytest.approx(7, rel=0.001) == rates.taken, "one more is unacked each second than is acked"


def test_half_is_forgotten_in_a_half_life() -> None:
    """A count is halved after a half-life without events."""
    rates = Rates()
    rates.update(0.0, 0, 0, 0, 0)
    rates.update(HALF_LIFE, 100, 0, 0, 0)
    before = rates.published
    rates.update(2 * HALF_LIFE, 100, 0, 0, 0)

    assert 10 == pytest.approx(before)
    assert pytest.approx(before / 2) == rates.published


def test_no_time_has_passed() -> None:
    """Two looks at the same time give no infinite rate, and what came between counts for nothing."""
    rates = Rates()
    rates.update(1.0, 0, 0, 0, 0)
    rates.update(1.0, 50, 50, 50, 0)

    assert 0 == rates.total


def test_who_grows_faster() -> None:
    """Fetching without acking makes the unacked grow, publishing without fetching the ready ones."""
    rates = Rates()
    rates.update(0.0, 0, 0, 0, 0)
    rates.update(1.0, 0, 10, 0, 0)

    assert rates.acks_grow_faster

    rates.update(2.0, 100, 10, 10, 0)

    assert not rates.acks_grow_faster
