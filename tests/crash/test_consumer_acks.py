"""Short forms of `make campaign NAME=crash MODE=consumer-ack` and of its light form."""

import pytest
import uvloop
from crash.consumer_acks import consumer_acks
from crash.judged import SEED, passed
from crash.promises import LIGHT, MODES

pytestmark = pytest.mark.timeout(240)
ALLOWANCE = 10.0
"""Seconds for a start: other tests run beside these."""


@pytest.mark.parametrize("mode", MODES)
def test_what_is_confirmed_has_been_answered_for(tmp_path, mode):
    """Stopped, then killed, with connections cut: every ack has a consumer's behind it, and what is owed is kept."""
    totals = uvloop.run(consumer_acks(tmp_path, 1, SEED, mode, say=str, allowance=ALLOWANCE))
    counts = passed(totals)
    assert (2, 1) == (totals.cycles, totals.counted)
    assert counts["spilled"] > 50
    assert counts["consumed"] > 500
    assert counts["recovered"] > 100
    assert (mode == LIGHT) == bool(counts["nacked"])
