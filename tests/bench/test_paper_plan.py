"""The plan of the paper's experiment."""

import random
from itertools import groupby

from hypothesis import given, strategies as st

from bench.paper_plan import (
    DESIGN,
    FACTORS,
    LATE,
    LINES,
    PAPER_LINES,
    REPEATS,
    TIMER,
    Done,
    Plan,
    Trial,
    remaining,
    shuffled,
)
from leveret.broker.config.config import load

some_lines = st.sets(st.sampled_from(list(LINES)), min_size=1).map(sorted)
counts = st.sets(st.integers(1, 30), min_size=1, max_size=5).map(sorted)


def plan(trials):
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
    first = shuffled(3, list(PAPER_LINES), [1, 2, 15, 30], [200], 6)

    assert first == shuffled(3, list(PAPER_LINES), [1, 2, 15, 30], [200], 6)
    assert first != shuffled(4, list(PAPER_LINES), [1, 2, 15, 30], [200], 6)
    assert set(PAPER_LINES) == {each.line for each in first if (each.order - 1) % len(PAPER_LINES) == 0}


@given(st.integers(0, 2**32), st.data())
def test_what_remains_is_what_was_not_done_in_the_order_of_the_plan(seed, data):
    """A sweep goes on where it was, whichever runs are recorded."""
    whole = plan(shuffled(seed, ["default", "rabbitmq"], [1, 2], [50, 200], 2))
    done = data.draw(st.sets(st.sampled_from([each.number for each in whole.trials])))

    left = remaining(whole, {Done(number, 1, False) for number in done})

    assert [(each, 1) for each in whole.trials if each.number not in done] == left
    assert [] == remaining(whole, {Done(each.number, 1, False) for each in whole.trials})


CELL = plan(shuffled(1, ["default", "rabbitmq"], [1], [200], 1))


def attempts(*disturbed):
    """Both lines' runs of one cell, attempt by attempt; the first line's were disturbed where it says so."""
    return {
        Done(number, attempt, number == 1 and spoiled)
        for attempt, spoiled in enumerate(disturbed, 1)
        for number in (1, 2)
    }


def test_a_disturbed_cell_is_measured_again_with_all_its_lines():
    """One disturbed run has all lines of its cell run again, until an attempt is not disturbed."""
    again = remaining(CELL, attempts(True))

    assert [(1, 2), (2, 2)] == [(trial.number, attempt) for trial, attempt in again]
    assert [] == remaining(CELL, attempts(True, False))


def test_what_was_never_measured_comes_before_repetitions():
    """A disturbed cell waits until all others have been measured once."""
    two = plan(shuffled(1, ["default"], [1, 2], [200], 1))

    left = [(trial.number, attempt) for trial, attempt in remaining(two, {Done(1, 1, True)})]

    assert [(2, 1), (1, 2)] == left


def test_a_cell_is_repeated_twice_at_most():
    """The third disturbed attempt is the last."""
    assert REPEATS == 2
    assert [(1, 3), (2, 3)] == [(trial.number, at) for trial, at in remaining(CELL, attempts(True, True))]
    assert [] == remaining(CELL, attempts(True, True, True))


def test_the_name_of_a_run_tells_its_place():
    """A run's name gives its number back, whichever attempt it was."""
    for attempt in (1, 2, 3):
        for trial in CELL.trials:
            found = CELL.done(CELL.run_id(trial, attempt), attempt, disturbed=True)
            assert Done(trial.number, attempt, True) == found
    assert len({CELL.run_id(trial, attempt) for trial in CELL.trials for attempt in (1, 2)}) == 4


def test_each_factor_of_the_design_is_switched_alone():
    """The eight lines are all combinations of the three factors, and each line's settings are those of its factors."""
    assert len({frozenset(on) for on in DESIGN.values()}) == 2 ** len(FACTORS) == len(DESIGN)
    for name, on in DESIGN.items():
        line = LINES[name]
        assert ("timer" in on, "late" in on, "tables" in on) == (
            TIMER in line.settings,
            LATE in line.settings,
            line.tables,
        )


def test_the_design_adds_its_lines_where_it_is_asked_for():
    """At the design's queue counts all eight lines are measured, elsewhere those that are named."""
    trials = shuffled(1, ["default", "rabbitmq"], [1, 2], [200], 1, design=[2])

    assert {"default", "rabbitmq"} == {each.line for each in trials if each.queues == 1}
    assert {*DESIGN, "rabbitmq"} == {each.line for each in trials if each.queues == 2}
    assert len(trials) == 2 + 9


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
    """The lines' settings are known to the broker, and their timers and early confirms are the lines'."""
    found = {line.name: load(settings=line.settings) for line in LINES.values() if line.broker == "leveret"}

    assert [line.mode for line in LINES.values() if line.broker == "leveret"] == [
        each.confirm_mode for each in found.values()
    ]
    late = {"paper-standard", "paper-baseline", "late", "late-tables"}
    timed = {"paper-standard", "paper-baseline", "timer", "timer-tables"}
    assert late == {name for name, each in found.items() if not each.storage.early_confirm}
    assert {name: 0.2 if name in timed else 0.002 for name in found} == {
        name: each.storage.commit_interval for name, each in found.items()
    }
