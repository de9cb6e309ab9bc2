"""Short form of `make campaign NAME=transfers-killed`."""

import pytest
import uvloop
from crash.judged import SEED, passed
from crash.transfers import ACTIONS, JUDGED, transfers

pytestmark = pytest.mark.timeout(240)
KILLS = 1
ALLOWANCE = 10.0
"""Seconds for a start: other tests run beside these."""


def test_kills_during_transfers_lose_and_double_nothing(tmp_path):
    """Killed while messages are moved, copied, discarded and retried: each is in one place afterwards."""
    totals = uvloop.run(transfers(tmp_path, KILLS, SEED, say=str, allowance=ALLOWANCE, drain_every=1))
    counts = passed(totals)

    assert all(totals.notes[f"kills during {action}"] >= KILLS for action in ACTIONS)
    assert all(totals.notes[f"messages: {what}"] for what in JUDGED)
    assert counts["recovered"] > 100
