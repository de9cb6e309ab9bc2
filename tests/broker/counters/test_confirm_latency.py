"""Waits of confirms, from the latencies between two ticks."""

import pytest

from leveret.broker.counters.histogram import Latency
from leveret.broker.counters.sampling import MOST_US, SHARE, ConfirmWait

MS = 1_000_000


def latency(*milliseconds: int) -> Latency:
    """Return a record of these latencies."""
    made = Latency()
    for each in milliseconds:
        made.record(each * 1000)
    return made


@pytest.mark.parametrize(
    ("milliseconds", "wait"),
    [((), 0), ((29,), 0), ((30,), 10), ((60, 120), 30), ((299,), 99), ((3000,), MOST_US // 1000)],
)
def test_a_wait_is_a_part_of_the_mean_latency(milliseconds, wait):
    """It is no longer than a limit, and there is none where confirms are quick, or few sockets are busy."""
    modes = {"standard": latency(*milliseconds)}
    assert wait == ConfirmWait().next(modes, is_shared=True) // MS
    assert 0 == ConfirmWait().next(modes, is_shared=False)


def test_each_tick_judges_what_is_new():
    """Latencies that an earlier tick has seen do not count, also if the export has taken some meanwhile."""
    modes = {"standard": latency(300), "consumer-ack": latency()}
    waits = ConfirmWait()
    assert 300 // SHARE == waits.next(modes, is_shared=True) // MS
    assert 0 == waits.next(modes, is_shared=True)
    modes["standard"].take()
    modes["consumer-ack"].record(150_000)
    assert 150 // SHARE == waits.next(modes, is_shared=True) // MS
    modes["consumer-ack"].take()
    for _ in range(2):  # more than the last tick has seen
        modes["consumer-ack"].record(60_000)
    assert 60 // SHARE == waits.next(modes, is_shared=True) // MS
