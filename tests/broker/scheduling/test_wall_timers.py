"""Wall-clock timers of a turn."""

import pytest
from doubles.fakes import Node
from hypothesis import given, strategies as st

from leveret.broker.scheduling.time_source import TimeSource
from leveret.broker.scheduling.wall_timers import Timer, Timers


def test_timers_are_called_when_they_are_due_and_not_before() -> None:
    """Due timers are called in the order of their times, and the time of the next one is returned."""
    timers = Timers()
    calls: list[str] = []
    timers.at(30, lambda: calls.append("late"))
    timers.at(10, lambda: calls.append("early"))
    timers.at(10, lambda: calls.append("early too"))

    assert timers.run(9) == 10
    assert calls == []
    assert timers.run(10) == 30
    assert calls == ["early", "early too"]
    assert timers.run(31) is None
    assert calls == ["early", "early too", "late"]


def test_a_timer_gives_way_to_a_sooner_one_only() -> None:
    """A pending timer stays unless another time is sooner; one that was called is replaced."""
    timers, calls = Timers(), list[str]()
    first = timers.sooner(None, 30, lambda: calls.append("first"))
    assert first is timers.sooner(first, 40, list)
    second = timers.sooner(first, 20, lambda: calls.append("second"))

    assert timers.run(30) is None
    assert calls == ["second"]
    assert second is not timers.sooner(second, 50, list)
    assert timers.run(40) == 50


def test_the_driver_is_notified_of_sooner_timers() -> None:
    """The driver is notified only of a time before all others."""
    calls: list[int] = []
    timers = Timers()
    timers.on_sooner = calls.append
    for when in (50, 70, 20, 20, 10):
        timers.at(when, list)

    assert calls == [50, 20, 10]


def test_what_a_callback_asks_for_waits_for_the_next_run() -> None:
    """A callback that requests an immediate call does not keep the loop busy for ever."""
    timers = Timers()
    calls: list[int] = []

    def again() -> None:
        calls.append(1)
        timers.at(0, again)

    timers.at(0, again)

    assert timers.run(5) == 0
    assert calls == [1]


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=300), st.integers(0, 60))
def test_cancelled_timers_are_not_called(asked: list[tuple[int, bool]], now: int) -> None:
    """Timers that are due and not cancelled are called, and the others are still counted."""
    timers = Timers()
    calls: list[int] = []
    made: list[tuple[Timer, bool]] = []
    for number, (when, is_cancelled) in enumerate(asked):
        made.append((timers.at(when, lambda number=number: calls.append(number)), is_cancelled))
    for timer, is_cancelled in made:
        if is_cancelled:
            timers.cancel(timer)
            timers.cancel(timer)
    left = [(when, number) for number, (when, is_cancelled) in enumerate(asked) if not is_cancelled]
    timers.run(now)

    assert [number for when, number in sorted(left) if when <= now] == calls
    assert len(timers) == sum(when > now for when, _ in left)


def test_a_call_that_fails_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """An error in one call is logged, and the other due timers are called."""
    timers, called = Timers(), []
    timers.at(1, lambda: called[0])
    timers.at(1, lambda: called.append("other"))

    assert timers.run(1) is None
    assert ["other"] == called
    assert "internal error in a timer" in caplog.text


def test_calls_that_take_too_long_go_on_later() -> None:
    """Due timers left when the step ends wait for the next run, in order; at least one call is made."""
    timers, called = Timers(), []
    for number in range(5):
        timers.at(number, lambda number=number: called.append(number))
    looks = iter((False, True, True))

    assert 2 == timers.run(9, lambda: next(looks))
    assert [0, 1] == called
    assert 3 == timers.run(9, lambda: next(looks))
    assert timers.run(9) is None
    assert [0, 1, 2, 3, 4] == called


def test_the_clock_on_the_wall_is_looked_at_now_and_then() -> None:
    """A wait of the loop is short, so that a clock set forward delays no timer by much."""
    node = Node()
    node.loop._set_timer(node.wall_clock() + 3_600_000)

    assert [node.now() + TimeSource.longest_wait] == [when for when, _ in node.clock.later]
