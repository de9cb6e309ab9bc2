"""Replication in the simulated world: seeds that pass, and planted bugs that are caught."""

import pytest
from replicated.logs import Logs
from replicated.planted import BUGS, BUGS_OF_LOGS, planted
from replicated.world import World, walk

SEEDS = range(1, 81)
PARTS = 8
FEW = 400
"""Seeds within which each bug is caught here; the campaign allows 2,000."""
LATE = {"no_epoch_check": 140, "trim_ahead_of_member": 370, "forward_to_deposed_leader": 50}
"""The first seed tried for bugs that none of so many others catches."""


@pytest.mark.parametrize("part", range(PARTS))
def test_seeds_pass(part):
    """Eighty seeds end with one leader, equal copies, and everything that was answered."""
    counts = [walk(seed) for seed in SEEDS[part::PARTS]]

    assert all(each["opened"] for each in counts)
    assert sum(each["answered"] for each in counts) > 400


def test_seeds_of_several_logs_pass():
    """With logs in one database, moves and forwarded clients each virtual host is in one log, and all is as with one."""
    counts = [walk(seed, Logs) for seed in range(1, 21)]

    assert sum(each["moved"] for each in counts) > 8
    assert sum(each["forwarded"] for each in counts) > 200


@pytest.mark.parametrize("world", [World, Logs])
def test_a_seed_takes_the_same_course_again(world):
    """The counts of a seed are those of its first run."""
    assert walk(7, world) == walk(7, world)


@pytest.mark.parametrize(
    ("bug", "world"),
    [*((bug, World) for bug in BUGS), *((bug, Logs) for bug in BUGS_OF_LOGS)],
    ids=lambda each: each.__name__,
)
def test_planted_bug_is_caught(bug, world):
    """Each planted bug makes one of the first seeds fail, by what is checked and by nothing else."""
    with planted(bug):
        first = LATE.get(bug.__name__, 1)
        for seed in range(first, first + FEW):
            try:
                walk(seed, world)
            except AssertionError:
                return
    pytest.fail(f"{bug.__name__} was not caught")


def test_nineteen_bugs_are_planted():
    """There are fourteen planted bugs of one log and five of several, all different."""
    assert [14, 5] == [len({bug.__name__ for bug in bugs}) for bugs in (BUGS, BUGS_OF_LOGS)]
