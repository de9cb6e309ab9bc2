"""The plan of the paper's experiment."""

import random
from itertools import groupby

from hypothesis import given, strategies as st

from bench.paper_plan import LINES, Plan, Trial, remaining, shuffled
from leveret.broker.config.config import load

some_lines = st.sets(st.sampled_from(list(LINES)), min_size=1).map(sorted)
counts = st.sets(st.integers(1, 30), min_size=1, max_size=5).map(sorted)


def plan(trials):
    """Return a plan of these trials."""
    return Plan("s", 1, 30, 8.0, 2.0, "2.22.1", "abc", 2, tuple(trials))


@given(st.integers(0, 2**32), some_lines, counts, counts, st.integers(1, 4))
def test_every_line_meets_every_cell_once_in_each_block(seed, lines, queues, windows, blocks):
    """A plan leaves nothing out and does nothing twice, and trials are numbered from 1."""
    trials = shuffled(seed, lines, queues, windows, blocks)

    assert sorted(
        (block, line, count, window)
        for block in range(1, blocks + 1)
        for line in lines
        for count in queues
        for window in windows
    ) == sorted((each.block, each.line, each.queues, each.window) for each in trials)
    assert list(range(1, len(trials) + 1)) == [each.number for each in trials]


@given(st.integers(0, 2**32), some_lines, counts, counts, st.integers(1, 4))
def test_blocks_follow_each_other_and_the_lines_of_a_cell_stay_together(seed, lines, queues, windows, blocks):
    """Lines that are divided by each other are measured one after the other, and a block ends before the next begins."""
    trials = shuffled(seed, lines, queues, windows, blocks)
    cells = len(queues) * len(windows)

    assert sorted(each.block for each in trials) == [each.block for each in trials]
    runs = [
        len(list(same)) for _, same in groupby(trials, lambda each: (each.block, each.queues, each.window))
    ]
    assert sum(runs) == len(lines) * cells * blocks
    assert all(run % len(lines) == 0 for run in runs)
    for _, block in groupby(trials, lambda each: each.block):
        assert list(range(1, len(lines) * cells + 1)) == [each.order for each in block]


def test_the_seed_gives_the_order():
    """One seed always gives the same plan, and lines take turns in going first."""
    first = shuffled(3, list(LINES), [1, 2, 15, 30], [200], 6)

    assert first == shuffled(3, list(LINES), [1, 2, 15, 30], [200], 6)
    assert first != shuffled(4, list(LINES), [1, 2, 15, 30], [200], 6)
    assert set(LINES) == {each.line for each in first if (each.order - 1) % len(LINES) == 0}


@given(st.integers(0, 2**32), st.data())
def test_what_remains_is_what_was_not_done_in_the_order_of_the_plan(seed, data):
    """A sweep goes on where it was, whichever runs are recorded."""
    whole = plan(shuffled(seed, ["default", "rabbitmq"], [1, 2], [50, 200], 2))
    done = data.draw(st.sets(st.sampled_from([whole.run_id(each) for each in whole.trials])))

    left = remaining(whole, done)

    assert [each for each in whole.trials if whole.run_id(each) not in done] == left
    assert [] == remaining(whole, {whole.run_id(each) for each in whole.trials})


def test_a_plan_knows_its_cells_and_lines():
    """Cells are sorted by window and queues, lines by the table of lines."""
    trials = [
        Trial(1, 1, 1, "rabbitmq", 2, 200),
        Trial(2, 1, 2, "default", 1, 200),
        Trial(3, 1, 3, "default", 9, 50),
    ]
    random.Random(1).shuffle(trials)

    assert [(50, 9), (200, 1), (200, 2)] == plan(trials).cells()
    assert ["default", "rabbitmq"] == plan(trials).lines()


def test_broker_mode_and_sync_tell_the_lines_apart():
    """The records name no line, so no two lines may look alike in them."""
    assert len(LINES) == len({(line.broker, line.mode, line.sync) for line in LINES.values()})


def test_our_lines_are_set_up_as_they_say():
    """The lines' settings are known to the broker, and only the second baseline leaves early confirms out."""
    found = {line.name: load(settings=line.settings) for line in LINES.values() if line.broker == "leveret"}

    assert [line.mode for line in LINES.values() if line.broker == "leveret"] == [
        each.confirm_mode for each in found.values()
    ]
    assert {"paper-standard"} == {name for name, each in found.items() if not each.storage.early_confirm}
    assert {name: 0.2 if name == "paper-standard" else 0.002 for name in found} == {
        name: each.storage.commit_interval for name, each in found.items()
    }
