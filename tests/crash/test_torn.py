"""A short form of `make torn`."""

import tempfile
from pathlib import Path

import pytest
import uvloop
from crash.judged import SEED, passed
from crash.torn import torn

pytestmark = pytest.mark.timeout(240)


def test_damaged_copies(tmp_path):
    """Of two hundred damaged copies no wrong message is served, and no message is missed in silence."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as home:
        totals = uvloop.run(torn(Path(home), 200, SEED, say=str))
    passed(totals)
    assert 201 == totals.cycles
    assert totals.notes["served"]
    assert totals.notes["partly served"]
