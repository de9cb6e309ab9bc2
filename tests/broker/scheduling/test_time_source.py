"""The time source of a broker."""

import time

from doubles.fakes import Clock

from leveret.broker.scheduling.time_source import TimeSource


def test_the_real_time_is_that_of_the_system_and_the_loop():
    """The default time source has the system's wall clock, and the clock and the timers of the event loop."""
    loop, source, made = Clock(), TimeSource(), []
    source.attach(loop)

    before = time.time_ns() // 1_000_000
    wall = source.wall()
    source.call_later(2.5, made.append)

    assert before <= wall <= time.time_ns() // 1_000_000
    assert loop.now == source.now()
    assert [(loop.now + 2.5, made.append)] == loop.later
