"""Short forms of `make campaign NAME=crash` and `make campaign NAME=powercut`, and of the acceptance script."""

import pytest
import uvloop
from crash.acceptance import accept
from crash.judged import SEED, needs_power_cuts, passed
from crash.kills import HOLES, LITTLE, kills
from crash.powercuts import control, powercuts

pytestmark = pytest.mark.timeout(240)
ALLOWANCE = 10.0
"""Seconds for a start: other tests run beside these."""


def test_three_kills_lose_nothing(tmp_path):
    """Killed at random under load: nothing that was confirmed is lost, unmarked or out of order."""
    totals = uvloop.run(kills(tmp_path, 3, SEED, say=str, allowance=ALLOWANCE))
    counts = passed(totals)
    assert 3 == totals.counted
    assert counts["recovered"] > 500
    assert totals.notes["moved"] > 50
    assert totals.notes["delayed"] > 5


@needs_power_cuts
def test_two_power_cuts_lose_nothing(tmp_path):
    """Power cuts lose nothing: they are kills after which unflushed data are gone as well."""
    totals = uvloop.run(powercuts(tmp_path, 2, SEED, say=str, allowance=ALLOWANCE))
    counts = passed(totals)
    assert 2 == totals.counted
    assert counts["recovered"] > 200


@needs_power_cuts
@pytest.mark.parametrize(("variant", "seen"), [(LITTLE, "starts with a redo log"), (HOLES, "given back")])
def test_two_power_cuts_of_a_variant_lose_nothing(tmp_path, variant, seen):
    """Power cuts lose nothing of what is only in the redo log, nor while all free pages become holes at once."""
    variants = [(variant, ())]
    totals = uvloop.run(powercuts(tmp_path, 2, SEED, say=str, variants=variants, allowance=ALLOWANCE))
    passed(totals)
    assert 2 == totals.counted
    assert totals.notes[seen] > 0


@needs_power_cuts
def test_a_broker_that_does_not_flush_loses_messages_in_a_power_cut(tmp_path):
    """The control: without it the power cuts would prove nothing."""
    totals = uvloop.run(control(tmp_path, SEED, say=str))
    assert totals.counts["O1"]


def test_pika_gets_true_confirms(tmp_path):
    """Every message confirmed to pika is consumed, though the broker is killed twice meanwhile."""
    good, line = accept(tmp_path, 4000, 2)
    assert good, line
