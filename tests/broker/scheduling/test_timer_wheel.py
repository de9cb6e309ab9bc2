"""Ticks: the timer wheel compared with a list that is searched from end to end, and scans of many objects."""

import gc
import itertools
import weakref
from math import inf

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from leveret.broker.scheduling.timer_wheel import TICK_SECONDS, PeriodicSweep, TimerWheel

START = 1000.0
ROUNDING = 1e-6  # of a division by TICK_SECONDS
TIMES = st.floats(-1.0, 30.0)
CONNECTIONS = st.integers(0, 7)


class Counted:
    """A connection that counts its calls, and returns what a test sets."""

    def __init__(self) -> None:
        self.bucket = -1
        self.calls: list[float] = []
        self.again: list[float] = []  # answers to come; None after the last

    def tick(self, now: float) -> float | None:
        self.calls.append(now)
        return self.again.pop(0) if self.again else None


class Wheel(RuleBasedStateMachine):
    """All operations, on the wheel and on a plain mapping from connection to time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.ticks = TimerWheel(START)
        self.connections = [Counted() for _ in range(8)]
        self.due: dict[int, float] = {}

    @rule(number=CONNECTIONS, after=TIMES)
    def schedule(self, number: int, after: float) -> None:
        """Request a call, now and then for a time in the past."""
        self.ticks.schedule(self.connections[number], self.now + after)
        self.due[number] = self.now + max(0.0, after)

    @rule(number=CONNECTIONS)
    def forget(self, number: int) -> None:
        """Forget a connection, whether a call was requested or not."""
        self.ticks.forget(self.connections[number])
        self.due.pop(number, None)

    @precondition(lambda self: self.due)
    @rule(number=CONNECTIONS, after=st.lists(TIMES, max_size=3))
    def answer(self, number: int, after: list[float]) -> None:
        """Have a connection request another call when it is called."""
        self.connections[number].again = [self.now + seconds for seconds in after]

    @rule(seconds=st.floats(0.0, 10.0) | st.floats(60.0, 10_000.0))
    def run(self, seconds: float) -> None:
        """Let time pass, in one step of any length."""
        self.now += seconds
        answers = [list(connection.again) for connection in self.connections]
        for connection in self.connections:
            connection.calls.clear()
        self.ticks.run(self.now)
        for number, connection in enumerate(self.connections):
            assert [self.now] * len(connection.calls) == connection.calls
            called = len(connection.calls)
            due = self.due.pop(number, None)
            asked = [] if due is None else [due, *answers[number]]
            assert all(time <= self.now + ROUNDING for time in asked[:called])  # none is early
            rest = asked[called:]
            assert not rest or rest[0] > self.now - TICK_SECONDS - ROUNDING or called  # none is late
            assert called <= len(asked)
            if rest:
                self.due[number] = max(rest[0], self.now) if called else rest[0]

    @invariant()
    def holds_what_waits(self) -> None:
        """The wheel holds each waiting connection once, and no empty bucket."""
        assert len(self.due) == len(self.ticks)
        assert all(self.ticks._buckets.values())


TestWheel = Wheel.TestCase
TestWheel.settings = settings(max_examples=60, stateful_step_count=30)


@given(after=st.floats(0.0, 100.0), step=st.floats(0.01, 0.3))
def test_a_call_comes_in_time(after, step):
    """A call is made in the first step after its time, or a tick later, with steps of any size."""
    ticks, connection, now = TimerWheel(START), Counted(), START
    ticks.schedule(connection, START + after)
    while not connection.calls:
        now += step
        ticks.run(now)

    assert after - ROUNDING <= now - START <= after + TICK_SECONDS + step + ROUNDING


def test_the_last_time_asked_for_counts():
    """A later time replaces an earlier one, and an earlier one a later."""
    ticks, sooner, later = TimerWheel(START), Counted(), Counted()
    ticks.schedule(sooner, START + 9)
    ticks.schedule(sooner, START + 1)
    ticks.schedule(later, START + 1)
    ticks.schedule(later, START + 9)
    ticks.run(START + 2)

    assert ([START + 2], []) == (sooner.calls, later.calls)
    ticks.run(START + 10)
    assert ([START + 2], [START + 10]) == (sooner.calls, later.calls)


def test_a_connection_may_go_while_it_is_called():
    """A connection may be forgotten in its own call or another's, and is not called afterwards."""
    ticks, first, second = TimerWheel(START), Counted(), Counted()

    class Leaving(Counted):
        def tick(self, now: float) -> None:
            super().tick(now)
            for other in (self, first, second):
                ticks.forget(other)

    leaving = Leaving()
    ticks.schedule(leaving, START + 1)
    ticks.schedule(first, START + 2)
    ticks.schedule(second, START + 60)
    ticks.run(START + 3)
    ticks.run(START + 90)

    assert (1, [], []) == (len(leaving.calls), first.calls, second.calls)
    assert 0 == len(ticks)


def test_connections_that_are_due_together_may_end_each_other():
    """The first of two connections due in the same tick may forget or move the other."""
    ticks = TimerWheel(START)
    pair: list[Counted] = []

    class Ending(Counted):
        def tick(self, now: float) -> None:
            super().tick(now)
            for other in pair:
                if other is not self:
                    ticks.forget(other)

    class Moving(Counted):
        def tick(self, now: float) -> None:
            super().tick(now)
            for other in pair:
                if not other.calls:
                    ticks.schedule(other, now + 1)

    for kind, calls in ((Ending, 1), (Moving, 2)):
        pair[:] = [kind(), kind()]
        for connection in pair:
            ticks.schedule(connection, START + 1)
        ticks.run(START + 1.5)
        assert 1 == sum(len(connection.calls) for connection in pair)
        ticks.run(START + 5)
        assert calls == sum(len(connection.calls) for connection in pair)
        ticks = TimerWheel(START)


def test_one_that_fails_costs_the_others_nothing():
    """An error is raised by the run; the other due connections are called by the next run."""
    ticks = TimerWheel(START)
    healthy = [Counted() for _ in range(20)]

    class Failing(Counted):
        def tick(self, now: float) -> None:
            raise ZeroDivisionError

    for connection in (*healthy, Failing()):
        ticks.schedule(connection, START + 1)
    with pytest.raises(ZeroDivisionError):
        ticks.run(START + 2)
    ticks.run(START + 2.5)

    assert [1] * 20 == [len(connection.calls) for connection in healthy]
    assert 0 == len(ticks)


def test_nothing_is_retained():
    """The wheel holds no reference to a connection after its last call, or once it is forgotten."""
    ticks = TimerWheel(START)
    called, forgotten, moved = (Counted() for _ in range(3))
    for connection in (called, forgotten, moved):
        ticks.schedule(connection, START + 1)
    for seconds in range(100):
        ticks.schedule(moved, START + 1 + seconds)
    ticks.forget(forgotten)
    ticks.forget(moved)
    ticks.run(START + 5)
    held = [weakref.ref(connection) for connection in (called, forgotten, moved)]
    del called, forgotten, moved, connection
    gc.collect()

    assert [None] * 3 == [reference() for reference in held]
    assert {} == ticks._buckets


def test_a_clock_that_stands_still_calls_nobody():
    """A second run at the same time, or a little earlier, calls nothing."""
    ticks, connection = TimerWheel(START), Counted()
    connection.again = [START + 1]
    ticks.schedule(connection, START)
    ticks.run(START + 1)
    ticks.run(START + 1)
    ticks.run(START + 0.5)

    assert [START + 1] == connection.calls
    ticks.run(START + 2)
    assert [START + 1, START + 2] == connection.calls


def test_a_time_that_is_moved_far_costs_little():
    """A run after ten years calls what is due without looking at each tick in between."""
    ticks, connection, later = TimerWheel(0.0), Counted(), Counted()
    ticks.schedule(connection, 60.0)
    ticks.schedule(later, 1e9)
    ticks.run(3e8)

    assert ([3e8], []) == (connection.calls, later.calls)
    assert 1 == len(ticks)


def test_the_next_call_is_known():
    """`next_due` is the first tick with a call, and infinite if there is none."""
    ticks, connection = TimerWheel(0.0), Counted()
    before = ticks.next_due
    ticks.schedule(connection, 59.95)

    assert (inf, 600) == (before, ticks.next_due)


# -- scans of many objects ----------------------------------------------------------------------------------------


def ticks(sweep: PeriodicSweep[int], start: float, count: int) -> None:
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
