"""Checks of a campaign's result, shared by the tests of all campaigns."""

from collections import Counter

import pytest
from crash.kills import Totals
from crash.loopdisk import why_no_power_cuts, why_no_small_disks
from crash.tracer import why_not

SEED = 1
needs_strace = pytest.mark.skipif(bool(why_not()), reason=f"injected faults: {why_not()}")
needs_power_cuts = pytest.mark.skipif(bool(why_no_power_cuts()), reason=f"power cuts: {why_no_power_cuts()}")
needs_small_disks = pytest.mark.skipif(
    bool(why_no_small_disks()), reason=f"a disk that fills up: {why_no_small_disks()}"
)


def passed(totals: Totals) -> Counter[str]:
    """Return the figures; fails with the whole report if an oracle objected."""
    assert not totals.failed, "\n".join(totals.lines())
    return totals.counts
