"""Visiting many objects periodically, a share in each tick."""

import itertools

from leveret.broker.scheduling.periodic_sweep import PeriodicSweep
from leveret.broker.scheduling.timer_wheel import TICK_SECONDS

START = 1000.0


def ticks(sweep: PeriodicSweep[int], start: float, count: int) -> None:
    """Make the calls of a driver."""
    for number in range(count):
        sweep.run(start + number * TICK_SECONDS)


def test_everything_is_visited_once_in_a_round():
    """Each object is visited once in as many ticks as a round has, and no tick visits much more than its share."""
    seen: list[tuple[int, float]] = []
    sweep = PeriodicSweep(lambda: range(95), lambda each, now: seen.append((each, now)), 1.0)
    ticks(sweep, START, 10)

    assert list(range(95)) == sorted(each for each, _ in seen)
    assert 10 == max(sum(now == when for _, now in seen) for _, when in seen)


def test_a_short_round_waits_for_its_time():
    """A round that is complete in one tick is followed by the next after a full period."""
    seen: list[float] = []
    sweep = PeriodicSweep(lambda: (1,), lambda _, now: seen.append(now), 1.0)
    ticks(sweep, START, 25)

    assert 3 == len(seen)
    assert all(
        1.0 - 1e-6 < later - sooner < 1.0 + 2 * TICK_SECONDS for sooner, later in itertools.pairwise(seen)
    )


def test_who_is_asked_for_anew_in_each_round():
    """An object added meanwhile is visited in the next round, and an empty round is followed by another."""
    there: list[int] = []
    seen: list[int] = []
    sweep = PeriodicSweep(lambda: there, lambda each, _: seen.append(each), 1.0)
    sweep.run(START)
    there.append(7)
    sweep.run(START + 0.5)

    assert [] == seen
    sweep.run(START + 1.0)
    assert [7] == seen


def test_one_that_fails_is_passed_over():
    """An object whose visit fails is skipped for the rest of the round, and the others are visited."""
    seen: list[int] = []

    def visit(each: int, _now: float) -> None:
        seen.append(each)
        if each == 2:
            raise ValueError

    sweep = PeriodicSweep(lambda: (1, 2, 3), visit, TICK_SECONDS * 3)
    for number in range(3):
        try:
            sweep.run(START + number * TICK_SECONDS)
        except ValueError:
            seen.append(0)

    assert [3, 2, 0, 1] == seen
