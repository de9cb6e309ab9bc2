"""Histograms compared with a sorted list of the recorded values."""

import pytest
from hypothesis import given, strategies as st

from leveret.broker.counters.histogram import Histogram, Latency, highest, index, lowest, merged

VALUES = st.lists(st.integers(0, 2**40) | st.integers(0, 2000), max_size=200)


def recorded(values: list[int]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    return histogram


def state(histogram: Histogram) -> tuple[object, ...]:
    return (
        histogram.counts,
        histogram.count,
        histogram.total,
        histogram.least,
        histogram.greatest,
    )


@given(st.integers(0, 2**62))
def test_a_bucket_holds_its_values_and_is_narrow(value):
    """Every value lies between the bounds of its bucket, which is at most a 32nd of it wide."""
    bucket = index(value)

    assert lowest(bucket) <= value <= highest(bucket)
    assert highest(bucket) - lowest(bucket) <= value / 32


def test_buckets_follow_each_other():
    """Growing values are in the same or the next bucket in use: none is skipped, none returns."""
    used = list(dict.fromkeys(index(value) for value in range(5000)))

    assert sorted(used) == used
    assert [highest(bucket) + 1 for bucket in used[:-1]] == [lowest(bucket) for bucket in used[1:]]


@pytest.mark.parametrize(
    ("value", "bucket"), [(0, 0), (31, 31), (32, 64), (63, 95), (64, 96), (65, 96), (1000, 222)]
)
def test_buckets_have_the_numbers_that_readers_know(value, bucket):
    """The numbers of buckets are a contract with readers of the files."""
    assert bucket == index(value)


@given(VALUES)
def test_a_histogram_knows_what_it_was_given(values):
    """Count, sum and extremes are exact, and every value is in its bucket."""
    histogram = recorded(values)
    expected = {bucket: sum(index(value) == bucket for value in values) for bucket in set(map(index, values))}

    assert (
        expected,
        len(values),
        sum(values),
        min(values, default=0),
        max(values, default=0),
    ) == state(histogram)
    assert sorted(expected.items()) == histogram.buckets()


@given(VALUES, VALUES)
def test_merging_is_recording_both(one, other):
    """Merging two histograms equals recording both in one."""
    assert state(recorded(one + other)) == state(merged((recorded(one), recorded(other))))


@given(VALUES.filter(bool), st.floats(0, 1))
def test_a_percentile_is_right_but_for_a_bucket(values, share):
    """A percentile lies in the bucket of the value at that place of a sorted list."""
    place = max(0, -(-share * len(values) // 1) - 1)
    exact = sorted(values)[int(place)]

    assert index(exact) == index(recorded(values).percentile(share))


@given(VALUES, st.lists(st.integers(0, 2**41) | st.integers(0, 41).map(lambda bits: (1 << bits) - 1)))
def test_what_is_at_most_a_value_is_in_buckets_that_end_there(values, bounds):
    """`at_most` counts the buckets that end at a bound or below it, so all values up to one less than a power of two."""
    found = recorded(values).at_most(*bounds)

    assert [sum(highest(index(value)) <= bound for value in values) for bound in bounds] == found
    assert all(
        sum(value <= bound for value in values) == count
        for bound, count in zip(bounds, found, strict=True)
        if not bound & (bound + 1)
    )


def test_less_than_nothing_is_nothing():
    """A negative duration is recorded as 0."""
    assert ({0: 1}, 1, 0, 0, 0) == state(recorded([-5]))


def test_nothing_recorded_has_no_percentile():
    """An empty histogram returns 0."""
    assert 0 == Histogram().percentile(0.99)


def test_what_is_taken_stays_in_the_whole():
    """`take` returns what was recorded since the last call, and `whole` everything."""
    latency = Latency()
    latency.record(5)
    first = latency.take()
    latency.record(7)

    assert [5, 7, 12] == [first.total, latency.take().total, latency.whole().total]
    assert 0 == latency.take().count
