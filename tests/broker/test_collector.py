"""When garbage in cycles is looked for."""

import gc
import sys
from collections.abc import Iterator

import pytest

from broker.collector import FEW_BLOCKS, FULL_SECONDS, MUCH_MEMORY, SHORT_SECONDS, Collector


@pytest.fixture
def runs(monkeypatch) -> Iterator[list[int]]:
    """The generations that are collected, of a process in which all blocks count."""
    generations: list[int] = []
    before = gc.get_threshold()
    with monkeypatch.context() as patch:
        patch.setattr(gc, "collect", lambda generation=2: generations.append(generation))
        patch.setattr(gc, "freeze", lambda: None)
        yield generations
    gc.set_threshold(*before)


@pytest.fixture
def blocks(monkeypatch) -> list[int]:
    """How many blocks of memory there are: the latest counts."""
    numbers = [1000]
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: numbers[-1])
    return numbers


def started(runs: list[int]) -> Collector:
    made = Collector()
    made.start()
    runs.clear()
    return made


def test_everything_is_collected_while_it_is_little(runs, blocks):
    """All objects are looked at every few seconds up to so many more than at the start, and no longer above that."""
    watching = started(runs)
    blocks.append(1000 + FEW_BLOCKS - 1)
    watching.look(100.0, 0)
    watching.look(100.0 + FULL_SECONDS / 2, 0)
    watching.look(100.0 + FULL_SECONDS, 0)
    assert [2, 2] == runs
    blocks.append(1000 + FEW_BLOCKS)
    watching.look(100.0 + 2 * FULL_SECONDS, 0)
    assert [2, 2] == runs


def test_what_is_new_is_collected_in_each_tick_while_there_is_much(runs, blocks):
    """With much memory in use new objects are looked at in each tick, however few they are."""
    watching = started(runs)
    blocks.append(1000 + 10 * FEW_BLOCKS)
    watching.look(100.0, MUCH_MEMORY)
    assert [] == runs
    watching.look(100.1, MUCH_MEMORY + 1)
    watching.look(100.2, MUCH_MEMORY + 1)
    assert [1, 1] == runs


def test_everything_is_collected_when_memory_is_short(runs, blocks):
    """However much there is, but not again and again."""
    watching = started(runs)
    blocks.append(1000 + 10 * FEW_BLOCKS)
    assert [True, False] == [watching.collect_all(50.0), watching.collect_all(50.0 + SHORT_SECONDS / 2)]
    assert watching.collect_all(50.0 + SHORT_SECONDS)
    assert [2, 2] == runs


def test_a_part_of_another_process_collects_nothing(runs):
    """Before the broker's process has handed it over, the interpreter's own rules hold."""
    watching = Collector()
    watching.look(100.0, 1 << 40)

    assert not watching.collect_all(100.0)
    assert [] == runs
