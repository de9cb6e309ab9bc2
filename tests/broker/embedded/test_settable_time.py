"""Time that can be stopped and moved."""

import logging
from math import inf

import pytest

from leveret.broker.embedded.settable_time import MILLISECOND, SECOND, SettableTime


class Loop:
    """An event loop that runs nothing by itself."""

    def __init__(self):
        self.real = 5 * SECOND + 1
        self.calls = []

    def time(self):
        return self.real / SECOND

    def call_later(self, delay, callback, *args):
        call = Call(self.real + round(delay * SECOND), callback, args)
        self.calls.append(call)
        return call

    def run(self, seconds=0.0):
        """Let time pass, and make the calls that are due."""
        self.real += round(seconds * SECOND)
        due = [call for call in self.calls if call.due <= self.real]
        self.calls = [call for call in self.calls if call.due > self.real]
        for call in due:
            if not call.is_cancelled:
                call.callback(*call.args)


class Call:
    def __init__(self, due, callback, args):
        self.due, self.callback, self.args = due, callback, args
        self.is_cancelled = False

    def cancel(self):
        self.is_cancelled = True


@pytest.fixture
def loop():
    return Loop()


@pytest.fixture
def time(loop):
    made = SettableTime(lambda: loop.real)
    made.attach(loop)
    return made


def test_it_runs_with_the_real_time(loop, time):
    """Both clocks advance as the real time does, and timers are called when they are due."""
    made, wall = [], time.wall()
    time.call_later(2, made.append, "two")
    time.call_later(1, made.append, "one")

    loop.run(1.0)
    after_one = list(made)
    loop.run(1.5)

    assert ["one"] == after_one
    assert ["one", "two"] == made
    assert (2.5, 2500) == (time.now(), time.wall() - wall)


def test_nothing_is_called_while_it_stands_still(loop, time):
    """A stopped time calls nothing however much real time passes, and runs on from where it stood."""
    made = []
    time.call_later(1, made.append, "one")
    loop.run(0.5)
    time.stop()

    loop.run(100.0)
    standing = time.now(), list(made)
    time.run()
    loop.run(0.4)
    before = list(made)
    loop.run(0.1)

    assert (0.5, []) == standing
    assert [] == before
    assert ["one"] == made
    assert 1.0 == time.now()


def test_it_stands_at_a_full_millisecond(loop, time):
    """It stops at the next full millisecond, so that it never goes back."""
    loop.real += 1

    time.stop()

    assert MILLISECOND == time.elapsed


def test_moving_leaves_the_calls_to_who_moves(loop, time):
    """While it is moved the loop calls nothing; `call_next` calls what is due, in order, then returns false."""
    made = []
    time.call_later(2, made.append, "later")
    time.call_later(1, lambda: time.call_later(0, made.append, "added"))
    time.call_later(1, made.append, "one")
    time.begin_moving()
    due = time.next_due

    time.move_to(time.elapsed + SECOND)
    loop.run(10)
    uncalled = list(made)
    calls = [time.call_next(), time.call_next(), time.call_next(), time.call_next()]

    assert SECOND == due
    assert [] == uncalled
    assert [True, True, True, False] == calls
    assert ["one", "added"] == made
    assert 2 * SECOND == time.next_due


def test_what_is_due_when_moving_ends_is_called_by_the_loop(loop, time):
    """Timers that are due at the end of a move are called in the next step of the loop, also while it stands still."""
    made = []
    time.call_later(1, made.append, "one")
    time.begin_moving()
    time.move_to(SECOND)

    time.end_moving()
    loop.run()

    assert ["one"] == made
    assert time.stands


def test_a_call_at_once_is_made_while_it_stands_still(loop, time):
    """A timer without a delay is called while the time stands still."""
    made = []
    time.stop()

    time.call_later(0, made.append, "soon")
    loop.run()

    assert ["soon"] == made


def test_cancelled_timers_are_not_called(loop, time):
    """A cancelled timer is never called, and is not the next one that is due."""
    made = []
    handle = time.call_later(1, made.append, "one")

    handle.cancel()
    loop.run(2.0)

    assert [] == made
    assert inf == time.next_due


def test_a_timer_of_the_loop_does_not_starve_others(loop, time):
    """Timers that add timers without a delay are called once for each step of the loop."""
    made = []

    def again():
        made.append(1)
        time.call_later(0, again)

    time.call_later(0, again)
    loop.run()
    once = len(made)
    loop.run()

    assert (1, 2) == (once, len(made))


def test_an_error_in_a_timer_is_logged(loop, time, caplog):
    """An error in one timer does not keep the next one from running."""
    made = []
    time.call_later(1, lambda: 1 / 0)
    time.call_later(1, made.append, "one")

    with caplog.at_level(logging.ERROR):
        loop.run(1.0)

    assert ["one"] == made
    assert "internal error in a timer" in caplog.text


def test_another_server_starts_without_timers(loop, time):
    """Timers of an ended server are dropped when another one uses the time, which goes on."""
    made = []
    time.call_later(1, made.append, "one")
    loop.run(0.5)

    time.attach(other := Loop())
    loop.run(5.0)
    other.run(5.0)

    assert [] == made
    assert inf == time.next_due


def test_it_never_goes_back(time):
    """Moving back, or without `begin_moving`, is an error."""
    with pytest.raises(ValueError, match="would go back"):
        time.move_to(SECOND)
    time.begin_moving()
    time.move_to(SECOND)
    with pytest.raises(ValueError, match="would go back"):
        time.move_to(SECOND - 1)
