"""Figures of embedded brokers that do not depend on how busy the machine is."""

import pytest

from bench import embedded


@pytest.mark.skipif(not embedded.resident(), reason="the system does not tell the memory of a process")
def test_brokers_leave_no_memory_behind():
    """Two hundred brokers, one after the other, let the process grow by no more than 5 MB after the first twenty."""
    assert embedded.growth() <= embedded.GROWTH


def test_a_start_and_a_stop_take_milliseconds():
    """The fastest of twenty starts and stops in memory takes less than the bar of their medians."""
    lives = [embedded.life() for _ in range(20)]

    assert min(start for start, _ in lives) <= embedded.BARS["start"]
    assert min(stop for _, stop in lives) <= embedded.BARS["stop"]
