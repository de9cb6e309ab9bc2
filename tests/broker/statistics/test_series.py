"""Samples of one object: rings, retention, rates and ranges."""

import itertools

import pytest

from leveret.broker.statistics.series import BASIC, NO_RATE, Family, Series, Span, Ticks, Tier, details

ONE = Family(BASIC, ("a", "b"), {"both": ("a", "b")})


class Sampled:
    """A series and its clock, sampled every five seconds."""

    def __init__(self, interval: float = 5.0) -> None:
        self.series = Series()
        self.ticks = Ticks(0, 0.0, 1_000_000_000, interval)

    def add(self, *row: int, ticks: int = 1) -> None:
        """Let that many ticks pass, and add a sample at the last of them."""
        passed = ticks * self.ticks.interval
        self.ticks = self.ticks._replace(
            number=self.ticks.number + ticks,
            at=self.ticks.at + passed,
            wall=self.ticks.wall + round(passed * 1000),
        )
        self.series.add(row, self.ticks.at, self.ticks, BASIC)

    def details(self, name: str = "a", age: int = 0, increment: int = 0, late: float = 0.0) -> object:
        """Return the details of a value, some seconds after the last sample."""
        span = Span(age, increment) if age else None
        return details(self.series, ONE, ONE.reader(name), self.ticks, self.ticks.at + late, span)

    def values(self, age: int, increment: int) -> list[int]:
        found: dict[str, list[dict[str, int]]] = self.details("a", age, increment)  # type: ignore[assignment]
        return [each["sample"] for each in found["samples"]]


def test_a_rate_is_the_difference_of_two_samples_by_the_time_between():
    """It is 0 for one sample, without a change, and once the last sample is old."""
    sampled = Sampled()
    sampled.add(10, 1)
    assert NO_RATE == sampled.details()
    sampled.add(25, 1)
    assert {"rate": 3.0} == sampled.details()
    assert {"rate": 3.0} == sampled.details("both")
    assert NO_RATE == sampled.details(late=11.0)
    sampled.add(25, 1)
    assert NO_RATE == sampled.details()
    sampled.add(20, 1)
    assert {"rate": -1.0} == sampled.details()


def test_a_range_has_samples_the_newest_first():
    """Before the first sample all are 0, as there was nothing; with fewer than two there are no averages."""
    sampled = Sampled()
    sampled.add(0, 0)
    assert {"rate", "samples"} == set(sampled.details("a", 4, 5))  # type: ignore[call-overload]
    for number in range(1, 5):
        sampled.add(number * 10, 0)

    assert {
        "rate": 2.0,
        "samples": [
            {"sample": 40, "timestamp": 1_000_025_000},
            {"sample": 30, "timestamp": 1_000_020_000},
            {"sample": 20, "timestamp": 1_000_015_000},
        ],
        "avg_rate": 2.0,
        "avg": 30.0,
    } == sampled.details("a", 10, 5)
    assert [40, 30, 20, 10, 0, 0] == sampled.values(600, 5)[:6]
    assert [40, 20, 0] == sampled.values(20, 10) or [30, 10, 0] == sampled.values(20, 10)


def test_the_last_ten_minutes_and_the_last_hour_are_kept():
    """Ten minutes at each tick, an hour at each minute, and nothing beyond."""
    sampled = Sampled()
    for number in range(1000):
        sampled.add(number, 0)

    assert list(range(999, 878, -1)) == sampled.values(600, 5)
    hour = sampled.values(3600, 60)
    assert len(hour) == 61
    assert {-12} == {one - other for other, one in itertools.pairwise(hour[1:])}


def test_an_idle_object_drops_its_rings_and_keeps_its_values():
    """After ten minutes without a change it needs no more than two samples, and still has ranges and rates."""
    sampled = Sampled()
    for number in range(5):
        sampled.add(number, 0)
    for _ in range(130):
        sampled.add(4, 0)

    assert () == sampled.series._rings
    assert {4} == set(sampled.values(600, 5))
    sampled.add(9, 0)
    assert {"rate": 1.0} == sampled.details()
    assert [9, 4, 4] == sampled.values(10, 5)


def test_ticks_that_were_missed_are_filled_up():
    """A late sample stands for those that should have come before it."""
    sampled = Sampled()
    for number in range(5):
        sampled.add(number, 0)
    sampled.add(20, 0, ticks=3)

    assert [20, 20, 20, 4, 3] == sampled.values(20, 5)


@pytest.mark.parametrize("interval", [0.1, 1.0, 5.0, 60.0])
def test_rings_have_the_distance_of_their_tier_whatever_the_interval(interval):
    """Rows are never closer together than ticks."""
    assert Ticks(0, 0.0, 0, interval).step(Tier(5, 1)) == max(1, round(5 / interval))
