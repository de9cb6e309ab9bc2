"""Short form of `make campaign NAME=backup`."""

import pytest
import uvloop
from crash.backups import KILL_BROKER, backups
from crash.judged import SEED, passed

pytestmark = pytest.mark.timeout(240)
ALLOWANCE = 10.0
"""Seconds for a start: other tests run beside these."""


def test_three_backups_lose_nothing(tmp_path):
    """Copies made under load have what was confirmed before, also the one after a kill of the broker at its backup."""
    totals = uvloop.run(backups(tmp_path, KILL_BROKER + 1, SEED, say=str, allowance=ALLOWANCE))
    counts = passed(totals)

    assert KILL_BROKER + 1 == totals.counted
    assert counts["recovered"] > 500
