"""The rests of a shovel."""

import asyncio
import ctypes
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from leveret.broker.shovel.pace import BESIDE_NS, FACTOR, MOST_NS, SHARED_AMONG, OwnReads, Pace, Timer

MS = 1_000_000


class Reading:
    """A connection from which something was read so often."""

    def __init__(self, reads, heartbeats=0):
        self.reads = reads
        self.heartbeats = heartbeats


def test_a_shovel_alone_does_not_rest():
    """However much the loop has worked."""
    pace = Pace(used=0, reads=7)

    assert [0, 0] == [pace.rest(5 * MS, 7, MS), pace.rest(90 * MS, 7, 2 * MS)]


def test_beside_others_it_rests_for_a_multiple_of_the_work():
    """Counted from its last step on."""
    pace = Pace(used=10 * MS, reads=0)

    assert round(FACTOR * MS) == pace.rest(11 * MS, 1, 0)
    assert round(FACTOR * 1.5 * MS) == pace.rest(12 * MS + MS // 2, 2, FACTOR * MS)


def test_it_rests_for_a_while_after_the_last_read_of_others():
    """A client that sends something now and then does not find the loop full either."""
    pace = Pace()
    pace.rest(MS, 1, 0)

    assert pace.rest(2 * MS, 1, BESIDE_NS - 1) > 0
    assert pace.rest(3 * MS, 1, BESIDE_NS) == 0
    assert pace.rest(4 * MS, 2, BESIDE_NS) > 0


def test_reads_of_shovels_are_no_others():
    """A read from a connection of any shovel counts as such, once, also when that has ended."""
    own, first, second = OwnReads(), Reading(2), Reading(0)
    own.add(first)
    own.add(second)
    second.reads = 5
    found = [own.total()]
    for _ in range(2):
        own.remove(first)
        found.append(own.total())
    second.reads = 6

    assert [7, 7, 7, 8] == [*found, own.total()]


def test_heartbeats_of_shovels_are_no_reads():
    """They are left out of the reads of all clients, and so of the shovels' own, also when the connection has ended."""
    own, connection = OwnReads(), Reading(5, heartbeats=2)
    own.add(connection)
    found = [own.total()]
    own.remove(connection)

    assert [3, 3] == [*found, own.total()]


def test_what_shovels_read_makes_none_of_them_rest():
    """Their own reads grow with those of all clients."""
    pace, own = Pace(), Reading(0)
    pace.own_reads.add(own)
    own.reads = 3

    assert 0 == pace.rest(MS, 3, 0)
    assert 0 < pace.rest(2 * MS, 4, 0)


def test_shovels_share_their_rests():
    """A shovel's next step comes when the rests after the steps of all others before it are over."""
    pace = Pace()
    first, second = pace.rest(MS, 1, 0), pace.rest(2 * MS, 1, 0)

    assert [3 * MS, 6 * MS] == [first, second]
    assert 3 * MS + 3 * MS == pace.rest(3 * MS, 1, 3 * MS)


@given(st.lists(st.integers(0, 10**10), max_size=20))
def test_a_rest_is_never_long(works):
    """Others may use all of the loop, and a shovel alone still goes on."""
    pace, used, now = Pace(), 0, 0
    for number, work in enumerate(works, 1):
        used += work
        rest = pace.rest(used, number, now)
        now += rest

        assert rest <= FACTOR * MOST_NS


def stepping(pace, shovels, works):
    """Let shovels step one after the other, each when its rest is over; yield the times."""
    now = used = 0
    rested_at = dict.fromkeys(range(shovels), 0)
    for reads, work in enumerate(works, 1):
        shovel = min(rested_at, key=rested_at.__getitem__)
        now = max(now, rested_at[shovel])
        used += work
        rested_at[shovel] = now + pace.rest(used, reads, now)
        yield now


@given(st.integers(1, 12), st.lists(st.integers(0, MOST_NS // SHARED_AMONG), min_size=40, max_size=60))
def test_shovels_leave_the_loop_to_others(shovels, works):
    """However many there are, the loop rests three times as long as it works, between any two steps of them."""
    steps = list(stepping(Pace(), shovels, works))

    assert steps[-1] == FACTOR * sum(works[: len(works) - shovels])


@given(st.integers(1, 12))
def test_a_busy_loop_does_not_stop_many_shovels(shovels):
    """Two or more shovels have twice as many steps as one where others use all of the loop, and none waits for long."""
    steps = list(stepping(Pace(), shovels, [10 * MOST_NS] * 60))

    assert steps[-1] <= FACTOR * MOST_NS * (60 / min(shovels, SHARED_AMONG) + SHARED_AMONG)


SECONDS = 10.0


@pytest.fixture(params=["of the system", "of the loop"])
def kind(request, monkeypatch):
    """A system with timers of its own, and one without."""
    if request.param == "of the loop":
        monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace())
    return request.param


def test_it_calls_back_once_each_time_it_is_set(kind):
    """Not before the time."""
    del kind

    async def rests() -> list[bool]:
        loop = asyncio.get_running_loop()
        called = asyncio.Event()
        timer = Timer(called.set)
        early = []
        for _ in range(3):
            called.clear()
            began = loop.time()
            timer.set(20 * MS)
            await asyncio.wait_for(called.wait(), SECONDS)
            early.append(loop.time() - began < 0.015)
        timer.close()
        return early

    assert [False] * 3 == asyncio.run(rests())


def test_it_does_not_call_back_once_it_is_closed(kind):
    """It may be closed twice, too."""
    del kind

    async def count() -> int:
        calls: list[None] = []
        timer, later = Timer(lambda: calls.append(None)), asyncio.Event()
        timer.set(MS)
        timer.close()
        timer.close()
        after = Timer(later.set)
        after.set(20 * MS)
        await asyncio.wait_for(later.wait(), SECONDS)
        after.close()
        return len(calls)

    assert asyncio.run(count()) == 0
