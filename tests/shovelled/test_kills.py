"""Kills of both ends of a shovel, a few; `make campaign NAME=shovel` does more of them."""

import pytest
from shovelled.kills import Verdict, judged, killed


@pytest.mark.parametrize("runs_at_source", [True, False])
def test_nothing_is_lost_and_the_order_kept(tmp_path, runs_at_source):
    """Whichever broker is killed, and in whichever of them the shovel runs."""
    verdict = killed(tmp_path, 6, 1, runs_at_source=runs_at_source)

    assert verdict.is_good, verdict
    assert verdict.confirmed > 100


@pytest.mark.parametrize(
    ("arrived", "verdict"),
    [
        ([0, 1, 2], Verdict(3, [], [], 0)),
        ([0, 1, 0, 1, 2], Verdict(3, [], [], 2)),
        ([0, 2], Verdict(3, [1], [], 0)),
        ([0, 2, 1], Verdict(3, [], [1], 0)),
    ],
)
def test_the_ledger_judges(arrived, verdict):
    """A loss and a changed order are found, a further copy is not one."""
    assert verdict == judged([0, 1, 2], arrived)
