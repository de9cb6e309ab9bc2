"""Short forms of `make campaign NAME=torn` and `make campaign NAME=flips`."""

import tempfile
from pathlib import Path

import pytest
import uvloop
from crash.judged import SEED, passed
from crash.torn import flip, torn

pytestmark = pytest.mark.timeout(240)


def test_damaged_copies(tmp_path):
    """Of a hundred damaged copies no wrong message is served, and no message is missed in silence."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as home:
        totals = uvloop.run(torn(Path(home), 100, SEED, say=str))
    passed(totals)
    assert 101 == totals.cycles
    assert totals.notes["served without effect"]
    assert totals.notes["partly served"]


def test_flipped_bits(tmp_path):
    """Whatever bit of the store is turned round, no wrong message is served, and none is missed in silence."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as home:
        totals = uvloop.run(torn(Path(home), 100, SEED, say=str, damage=flip, name="flips"))
    passed(totals)
    assert 101 == totals.cycles
    assert totals.notes["served without effect"]
