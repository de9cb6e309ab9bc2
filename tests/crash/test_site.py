"""Waiting for a broker ends at a deadline, which may be that of its progress."""

import uvloop
from crash.site import until


def test_a_wait_ends_at_its_deadline():
    """A wait without progress ends in time."""
    assert not uvloop.run(until(lambda: False, 0.01))
    assert not uvloop.run(until(lambda: False, 0.01, progress=lambda: 1))


def test_a_wait_goes_on_while_there_is_progress():
    """A deadline that is shorter than a step does not end the wait while each step brings progress."""
    steps = iter(range(100))
    seen = []

    def progress():
        seen.append(next(steps))
        return seen[-1]

    assert uvloop.run(until(lambda: len(seen) > 5, 0.001, 0.01, progress=progress))
