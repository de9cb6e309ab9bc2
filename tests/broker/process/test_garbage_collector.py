"""Collections of reference cycles."""

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest
from running import ROOT, environment

from leveret.broker.process.garbage_collector import (
    FEW_BLOCKS,
    FEW_YOUNG,
    FULL_SECONDS,
    MUCH_MEMORY,
    Collector,
)

YOUNG, ALL, ASIDE, BACK = 1, 2, "aside", "back"


@pytest.fixture
def runs(monkeypatch) -> Iterator[list[int | str]]:
    """The collected generations, and freezes and unfreezes, of a process in which all blocks count."""
    done: list[int | str] = []
    before = gc.get_threshold()
    with monkeypatch.context() as patch:
        patch.setattr(gc, "collect", lambda generation=ALL: done.append(generation))
        patch.setattr(gc, "freeze", lambda: done.append(ASIDE))
        patch.setattr(gc, "unfreeze", lambda: done.append(BACK))
        patch.setattr(
            gc, "get_count", lambda: (0, 0, done[::-1].index(ASIDE) if ASIDE in done else done.count(1))
        )
        yield done
    gc.set_threshold(*before)


@pytest.fixture
def blocks(monkeypatch) -> list[int]:
    """Numbers of allocated blocks: the last one is current."""
    numbers = [1000]
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: numbers[-1])
    return numbers


def started(runs: list[int | str]) -> Collector:
    made = Collector()
    made.start()
    runs.clear()
    return made


def test_everything_is_collected_while_it_is_little(runs, blocks):
    """All objects are collected every few seconds up to so many more than at the start."""
    watching = started(runs)
    blocks.append(1000 + FEW_BLOCKS - 1)
    watching.look(100.0, 0)
    watching.look(100.0 + FULL_SECONDS / 2, 0)
    watching.look(100.0 + FULL_SECONDS, 0)
    assert [ALL, ALL] == runs


def test_what_was_looked_at_is_put_aside_while_there_is_much(runs, blocks):
    """A backlog is collected as it arrives and then frozen until there is little."""
    watching = started(runs)
    blocks.append(1000 + FEW_BLOCKS)
    watching.look(100.0, 0)
    watching.look(100.0 + FULL_SECONDS, 0)
    assert [YOUNG, ASIDE, YOUNG, ASIDE] == runs
    blocks.append(1000 + FEW_BLOCKS - 1)
    watching.look(100.0 + 2 * FULL_SECONDS, 0)
    watching.look(100.0 + 3 * FULL_SECONDS, 0)
    assert [BACK, ALL, ALL] == runs[4:]


def test_what_is_new_is_collected_in_each_tick_while_there_is_much(runs, blocks):
    """New objects are collected in each tick while much memory is in use, and frozen before they are too many."""
    watching = started(runs)
    blocks.append(1000 + 10 * FEW_BLOCKS)
    watching.look(100.0, MUCH_MEMORY)
    assert [YOUNG, ASIDE] == runs
    for tick in range(1, FEW_YOUNG + 2):
        watching.look(100.0 + tick / 10, MUCH_MEMORY + 1)
    assert [YOUNG] * FEW_YOUNG + [YOUNG, ASIDE] == runs[2:]


def test_much_memory_in_few_objects_is_no_reason_to_collect_everything(runs, blocks):
    """Large bodies are few objects: new ones are collected in each tick, and all of them every few seconds."""
    watching = started(runs)
    for tick in range(1, 10):
        watching.look(100.0 + tick / 10, MUCH_MEMORY + 1)
    assert [ALL] + [1] * 8 == runs


def test_a_part_of_another_process_collects_nothing(runs):
    """The interpreter's own rules apply before the broker's process has handed collection over."""
    watching = Collector()
    watching.look(100.0, 1 << 40)

    assert [] == runs


BACKLOG = """
import gc
from leveret.broker.process.garbage_collector import Collector, MUCH_MEMORY
watching = Collector()
watching.start()
looked = []
gc.callbacks.append(lambda phase, _: phase == "start" and looked.append(len(gc.get_objects())))
kept = []
for tick in range(50):
    kept += [[] for _ in range(20_000)]
    watching.look(tick / 10, MUCH_MEMORY + 1)
one = []
one.append(one)
kept[0].append(one)
most, kept, one = max(looked), [], None
found = []
gc.callbacks.append(lambda phase, info: phase == "stop" and found.append(info["collected"]))
watching.look(1000.0, 0)
print(most, found[-1], gc.get_freeze_count())
"""


def test_no_collection_looks_at_a_whole_backlog():
    """A collection visits less than half of a million objects; frozen cycles are found once the objects are gone."""
    done = subprocess.run(
        [sys.executable, "-c", BACKLOG], capture_output=True, text=True, check=True, cwd=ROOT, timeout=120,
        env=environment() | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    most, found, aside = map(int, done.stdout.split())

    assert most < 400_000
    assert (1, 0) == (found, aside)
