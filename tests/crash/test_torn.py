"""Short forms of `make campaign NAME=torn`, `flips` and `exchange`."""

import tempfile
from pathlib import Path

import pytest
import uvloop
from crash.judged import SEED, passed
from crash.torn import exchange, flip, torn

pytestmark = pytest.mark.timeout(240)


def test_damaged_copies(tmp_path):
    """Of sixty damaged copies no wrong message is served, and no message is missed in silence."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as home:
        totals = uvloop.run(torn(Path(home), 60, SEED, say=str))
    passed(totals)
    assert 62 == totals.cycles
    assert totals.notes["served without effect"]
    assert totals.notes["partly served"]


def test_flipped_bits(tmp_path):
    """Whatever bit of the store is turned round, no wrong message is served, and none is missed in silence."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as home:
        totals = uvloop.run(torn(Path(home), 60, SEED, say=str, damage=flip, name="flips"))
    passed(totals)
    assert 62 == totals.cycles
    assert totals.notes["served without effect"]


def test_exchanged_pages(tmp_path):
    """Whatever page of the store stands in place of another, no wrong message is served, and none is missed in silence."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as home:
        totals = uvloop.run(torn(Path(home), 60, SEED, say=str, damage=exchange, name="exchange"))
    passed(totals)
    assert 62 == totals.cycles
    assert totals.notes["partly served"]
