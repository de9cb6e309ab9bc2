"""A short form of `make campaign NAME=faults`."""

import pytest
import uvloop
from crash.faults import INJECTED, ON_SMALL_DISKS, faults
from crash.judged import SEED, needs_small_disks, needs_strace, passed

pytestmark = pytest.mark.timeout(240)


@needs_strace
def test_injected_faults_of_the_disk(tmp_path):
    """Killed in a flush, errors while flushing and writing, no room for a while: nothing confirmed is lost."""
    kinds = [kind for kind in INJECTED if kind != "kill-pwrite"]
    totals = uvloop.run(faults(tmp_path, len(kinds), SEED, kinds=kinds, say=str))
    passed(totals)
    assert len(kinds) == totals.counted


@needs_small_disks
@pytest.mark.parametrize("kind", ON_SMALL_DISKS)
def test_a_full_disk_ends_by_itself(tmp_path, kind):
    """Publishers are refused or blocked, consumers drain it, publishing resumes without a restart."""
    totals = uvloop.run(faults(tmp_path, 1, SEED, kinds=[kind], say=str))
    passed(totals)
    assert 1 == totals.counted
