"""Short forms of `make campaign NAME=torn`, `flips` and `exchange`."""

import tempfile
from pathlib import Path

import pytest
import uvloop
from crash.judged import SEED, passed
from crash.torn import exchange, flip, torn

pytestmark = pytest.mark.timeout(240)
COPIES = 12


def test_damaged_copies(tmp_path):
    """Damaged copies serve no wrong message, and miss none in silence."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as home:
        totals = uvloop.run(torn(Path(home), COPIES, SEED, say=str))
    passed(totals)
    assert COPIES + 2 == totals.cycles
    assert totals.notes["served without effect"]
    assert totals.notes["partly served"]


def test_flipped_bits(tmp_path):
    """A flipped bit anywhere in the store causes no wrong message, and none missed in silence."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as home:
        totals = uvloop.run(torn(Path(home), COPIES, SEED, say=str, damage=flip, name="flips"))
    passed(totals)
    assert COPIES + 2 == totals.cycles
    assert totals.notes["served without effect"]


def test_exchanged_pages(tmp_path):
    """A page of the store in another's place causes no wrong message, and none missed in silence."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as home:
        totals = uvloop.run(torn(Path(home), COPIES, SEED, say=str, damage=exchange, name="exchange"))
    passed(totals)
    assert COPIES + 2 == totals.cycles
    assert totals.notes["partly served"]
