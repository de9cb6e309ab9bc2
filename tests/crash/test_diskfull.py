"""A short form of `make campaign NAME=disk-full`."""

import pytest
import uvloop
from crash.diskfull import Filled
from crash.judged import needs_small_disks
from crash.loopdisk import MemoryDisk

pytestmark = pytest.mark.timeout(240)


@needs_small_disks
def test_a_full_disk_survives_kills_and_stops(tmp_path):
    """Killed and stopped while publishers are blocked and nothing can be written: all that was confirmed is there."""
    with MemoryDisk(tmp_path, 48) as disk:
        filled = Filled(disk.mount_point, "0")
        good = uvloop.run(filled.run())

    assert ([], True) == (filled.failures, good)
