"""Steps limited by time, and jobs that continue in later ones."""

import logging
from collections.abc import Iterator

import pytest

from leveret.broker.scheduling.time_slices import SAMPLE, SLICE, TimeSlices

PIECE = SLICE // 4
SLOW = 5 * SLICE
MS = 1_000_000


class Clock:
    """A clock in nanoseconds that advances when work is done, and how often it was asked."""

    def __init__(self) -> None:
        self.now = 1_000
        self.asked = 0

    def __call__(self) -> int:
        self.asked += 1
        return self.now


class Driven:
    """Slices with a clock, and the number of requests for a step."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.used = Clock()
        self.slices = TimeSlices(self.clock, self.used, SLOW)
        self.asked = 0
        self.slices.on_waiting = self.ask
        self.done: list[str] = []

    def ask(self) -> None:
        self.asked += 1

    def job(self, name: str, pieces: int) -> Iterator[None]:
        """Take a quarter of a slice for each piece."""
        for number in range(pieces):
            self.clock.now += PIECE
            self.done.append(f"{name}{number}")
            yield

    def step(self) -> list[str]:
        """Run the jobs in a step of their own; returns the slices that were done."""
        self.done.clear()
        self.slices.begin()
        self.slices.run()
        return list(self.done)


@pytest.fixture
def driven() -> Driven:
    return Driven()


def test_a_step_is_over_when_its_time_is_used(driven: Driven):
    """A step is not over before SLICE has passed since it began, and the next one begins afresh."""
    began = driven.slices.begin()
    driven.clock.now += SLICE - 1
    early = driven.slices.is_over()
    driven.clock.now += 1
    late = driven.slices.is_over()
    driven.slices.begin()

    assert (1_000, False, True, False) == (began, early, late, driven.slices.is_over())


def test_a_short_job_is_done_at_once(driven: Driven):
    """A job for which there is time is done when it is added, without a request to the driver."""
    driven.slices.begin()
    driven.slices.add(driven.job("a", 3), "a")

    assert (["a0", "a1", "a2"], 0, 0) == (driven.done, len(driven.slices), driven.asked)


def test_a_long_job_goes_on_in_later_steps(driven: Driven):
    """A long job is continued in later steps, which are requested from the driver one at a time."""
    driven.slices.begin()
    driven.slices.add(driven.job("a", 10), "a")
    steps = [list(driven.done), driven.step(), driven.step()]

    assert [["a0", "a1", "a2", "a3"], ["a4", "a5", "a6", "a7"], ["a8", "a9"]] == steps
    assert (0, 1) == (len(driven.slices), driven.asked)


def test_nothing_is_begun_in_a_step_that_is_over(driven: Driven):
    """A job that is added when the time is used up waits, but the first piece of the next step is done in any case."""
    driven.slices.begin()
    driven.clock.now += SLICE
    driven.slices.add(driven.job("a", 1), "a")
    waiting = len(driven.slices)
    driven.clock.now += SLICE
    driven.slices.run()

    assert (1, ["a0"]) == (waiting, driven.done)


def test_jobs_go_on_in_turn(driven: Driven):
    """Jobs that wait get a share of the step each in turn, however long one of them is."""
    driven.slices.begin()
    driven.clock.now += SLICE
    driven.slices.add(driven.job("a", 6), "a")
    driven.slices.add(driven.job("b", 2), "b")

    assert ["a0", "b0", "a1", "b1"] == driven.step()
    assert ["a2", "a3", "a4", "a5"] == driven.step()
    assert 1 == driven.asked


def test_jobs_get_the_same_time(driven: Driven):
    """A job of small slices does as many in its turn as there is time for, before one of large slices goes on."""

    def small() -> Iterator[None]:
        while True:
            driven.clock.now += PIECE // 10
            driven.done.append("small")
            yield

    driven.slices.begin()
    driven.clock.now += SLICE
    driven.slices.add(small(), "small")
    driven.slices.add(driven.job("large", 9), "large")

    assert [*["small"] * 10, "large0", *["small"] * 10, "large1"] == driven.step()


def test_an_error_ends_its_job_only(driven: Driven, caplog: pytest.LogCaptureFixture):
    """An exception in a job is logged with the job's name, and the other jobs go on."""

    def broken() -> Iterator[None]:
        yield
        raise ValueError

    driven.slices.begin()
    driven.clock.now += SLICE
    driven.slices.add(broken(), "a broken job")
    driven.slices.add(driven.job("b", 2), "b")
    with caplog.at_level(logging.ERROR):
        done = driven.step()

    assert ["b0", "b1"] == done
    assert ["internal error in the job 'a broken job': its remaining steps are skipped"] == caplog.messages


def test_a_job_may_add_jobs(driven: Driven):
    """A job added by a job in a step that has time left is done in that step."""

    def parent() -> Iterator[None]:
        driven.slices.add(driven.job("child", 2), "child")
        yield

    driven.slices.begin()
    driven.clock.now += SLICE
    driven.slices.add(parent(), "parent")

    assert ["child0", "child1"] == driven.step()
    assert 0 == len(driven.slices)


def test_a_call_for_later_comes_in_a_later_step(driven: Driven):
    """`later` calls back in a step after this one, even if this one has time left."""
    driven.slices.begin()
    driven.slices.later(lambda: driven.done.append("called"))
    before = list(driven.done)

    assert ([], ["called"]) == (before, driven.step())


def test_a_call_for_later_from_a_job_comes_after_the_step(driven: Driven):
    """A callback that a job asks for is not called in the step of the job, which has not had its turn yet."""

    def asking() -> Iterator[None]:
        driven.slices.later(lambda: driven.done.append("called"))
        yield
        driven.done.append("over")

    driven.clock.now += SLICE
    driven.slices.add(asking(), "asking")

    assert (["over"], ["called"]) == (driven.step(), driven.step())
    assert 0 == len(driven.slices)


def test_without_a_clock_everything_is_done_at_once():
    """Objects without a driver defer nothing."""
    slices = TimeSlices()
    done = []
    slices.add((done.append(number) for number in range(1000)), "all")

    assert (list(range(1000)), 0) == (done, len(slices))


def worked(driven: Driven, nanoseconds: int, *, waited: int = 0) -> int:
    """Take a step of so much processor time and so much waiting for a processor; returns the longest so far."""
    driven.slices.begin()
    driven.used.now += nanoseconds
    driven.clock.now += nanoseconds + waited
    driven.slices.end("read of connection", "c")
    return driven.slices.longest


def test_a_slow_step_is_logged_with_what_it_was(driven: Driven, caplog: pytest.LogCaptureFixture):
    """A step above the limit of processor time is logged, and one at the limit is not."""
    driven.slices.watch()
    worked(driven, SLOW)
    worked(driven, SLOW + 1_000_000)

    assert [
        "slow step of the event loop: 26.0 ms of processor time for read of connection c"
    ] == caplog.messages


def test_each_slow_step_is_logged(driven: Driven, caplog: pytest.LogCaptureFixture):
    """A slow step is logged after a slower one, too."""
    driven.slices.watch()
    worked(driven, 3 * SLOW)
    worked(driven, 2 * SLOW)

    assert 2 == len(caplog.messages)


def test_waiting_for_a_processor_is_no_work(driven: Driven, caplog: pytest.LogCaptureFixture):
    """Processor time is measured: a step that waits for a processor is not slow."""
    driven.slices.watch()
    steps = [(5, 2 * SLOW), (7, 0), (6, SLOW)]

    assert ([5 * MS, 7 * MS, 7 * MS], []) == (
        [worked(driven, used * MS, waited=waited) for used, waited in steps],
        caplog.messages,
    )


def test_steps_are_measured_while_clients_may_come(driven: Driven):
    """No step is measured before `watch`, nor after it was switched off."""
    before = worked(driven, 9 * MS)
    driven.slices.watch()
    during = worked(driven, 3 * MS)
    driven.slices.watch(on=False)

    assert (0, 3 * MS, 3 * MS) == (before, during, worked(driven, 8 * MS))
    assert "read of connection c" == driven.slices.longest_step


def test_short_steps_are_measured_together(driven: Driven):
    """The processor time is read once in `SAMPLE`, so a step counts at most so much of the short ones before it."""
    driven.slices.watch()
    worked(driven, SLICE)
    asked = driven.used.asked
    for _ in range(16):
        worked(driven, SAMPLE // 8)
    short = driven.used.asked - asked
    longest = worked(driven, 2 * SLICE)

    assert 2 == short
    assert 2 * SLICE <= longest <= 2 * SLICE + SAMPLE


def test_no_step_is_slow_where_that_is_switched_off(caplog: pytest.LogCaptureFixture):
    """With a limit of 0 nothing is logged, but the longest step is known."""
    driven = Driven()
    driven.slices = TimeSlices(driven.clock, driven.used, 0)
    driven.slices.watch()

    assert (100 * SLOW, []) == (worked(driven, 100 * SLOW), caplog.messages)


def test_a_renewed_step_is_still_one(driven: Driven):
    """`renew` gives a step more time, and the time used before still counts."""
    driven.slices.watch()
    driven.slices.begin()
    driven.used.now += 5
    driven.clock.now += SLICE
    driven.slices.renew()
    over = driven.slices.is_over()
    driven.used.now += 5
    driven.clock.now += 10
    driven.slices.end("tick", "")

    assert (False, 10) == (over, driven.slices.longest)
