"""A short form of `make campaign NAME=crash-points`."""

import pytest
import uvloop
from crash.judged import needs_power_cuts, needs_strace, passed
from crash.loopdisk import LoopDisk
from crash.move_points import Moves
from crash.points import points, purges

pytestmark = pytest.mark.timeout(240)
STEPS = 10


@needs_strace
def test_crash_points_of_one_workload(tmp_path):
    """Killed at every fifth flush of a workload, and at every fortieth write, the broker keeps what it has promised."""
    totals = uvloop.run(points(tmp_path, [1], say=str, calls=("fdatasync",), steps=STEPS, stride=5))
    passed(totals)
    assert totals.counted >= 2
    totals = uvloop.run(points(tmp_path, [2], say=str, calls=("pwrite64",), steps=STEPS, stride=40))
    passed(totals)
    assert totals.counted >= 1


@needs_strace
def test_crash_points_among_holes(tmp_path):
    """Killed at every fourth of the calls that make holes, and some flushes between them, the broker keeps what it has promised."""
    calls = ("fallocate", "fdatasync")
    totals = uvloop.run(points(tmp_path, [2], say=str, calls=calls, steps=STEPS, stride=4, most=4))
    passed(totals)
    assert totals.counted >= 2
    assert totals.notes["fallocate"] >= 1


@needs_strace
def test_crash_points_of_messages_that_move(tmp_path):
    """Killed at every third flush, each message is where it was or where it went."""
    totals = uvloop.run(
        points(tmp_path, [1], say=str, calls=("fdatasync",), steps=STEPS, stride=3, kind=Moves)
    )
    passed(totals)
    assert totals.counted >= 3


@needs_strace
@needs_power_cuts
def test_crash_points_with_the_power_cut(tmp_path):
    """Some flushes of another workload are crash points with the power cut: what was not flushed is gone."""
    with LoopDisk(tmp_path, 64) as disk:
        totals = uvloop.run(
            points(disk.mount_point, [3], say=str, calls=("fdatasync",), steps=STEPS, stride=6, disk=disk)
        )
    passed(totals)
    assert totals.counted >= 2


def test_a_purge_that_was_answered_is_on_disk(tmp_path):
    """Killed at the moment of `purge-ok`, the broker does not bring back what was purged."""
    totals = uvloop.run(purges(tmp_path, 3))
    passed(totals)
    assert 3 == totals.counted
