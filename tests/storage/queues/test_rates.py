"""Rates: moving averages of what a queue does; and marks of when its messages came."""

from math import inf

import pytest
from hypothesis import given, strategies as st

from leveret.storage.queues.rates import HALF_LIFE, MARKS, Arrivals, Rates


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


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=600),
)
def test_an_age_is_never_overestimated(steps):
    """A message came before the time that is told, and not long before, relative to how long the queue has existed."""
    arrivals = Arrivals()
    published = first = 0
    came: dict[int, float] = {}
    now = 0.0
    for count, taken in steps:
        now += 1
        for seq_id in range(published, published + count):
            came[seq_id] = now
        published += count
        first = min(published, first + taken)
        arrivals.mark(now, published, first)
    assert len(arrivals._times) <= MARKS
    for seq_id in range(first, published):
        before = arrivals.before(seq_id)
        assert came[seq_id] <= before <= came[seq_id] + 1 + now / (MARKS / 8)
    assert arrivals.before(published) == inf


def test_marks_of_messages_that_have_left_are_dropped():
    """A queue with much traffic and a short backlog keeps few marks."""
    arrivals = Arrivals()
    for second in range(100_000):
        arrivals.mark(second, second * 10, max(0, second * 10 - 100))

    assert len(arrivals._times) < 20
    assert 99_995 <= arrivals.before(999_960) <= 99_997


def test_a_message_from_before_the_first_mark_is_at_least_that_old():
    """A message that was there at the start came before the first mark."""
    arrivals = Arrivals()
    arrivals.mark(5.0, 1000, 10)

    assert 5.0 == arrivals.before(10)
