"""Collections of reference cycles."""

import gc
import sys
from collections.abc import Iterator

import pytest
from processes.commands import execute
from processes.running import ROOT, environment

from leveret.broker.process.memory import (
    ALL,
    BUSY_READS,
    BUSY_SECONDS,
    COLLECTIONS,
    FEW_BLOCKS,
    FULL_SECONDS,
    LOADED_MOST,
    MUCH_MEMORY,
    NEW,
    VERY_FEW_BLOCKS,
    Collector,
)


@pytest.fixture
def runs(monkeypatch) -> Iterator[list[int]]:
    """The collected generations of a process in which all blocks count."""
    done: list[int] = []
    before = gc.get_threshold()
    with monkeypatch.context() as patch:
        patch.setattr(gc, "collect", lambda generation=ALL: done.append(generation))
        patch.setattr(gc, "freeze", lambda: None)
        yield done
    gc.set_threshold(*before)


@pytest.fixture
def blocks(monkeypatch) -> list[int]:
    """Numbers of allocated blocks: the last one is current."""
    numbers = [1000]
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: numbers[-1])
    return numbers


def test_a_start_ends_the_time_without_collections(runs):
    """While a broker is loaded and starts, nothing is collected."""
    gc.disable()
    try:
        started(runs)
        assert gc.isenabled()
    finally:
        gc.enable()


def test_nothing_is_collected_at_a_stop(runs, blocks):
    """Neither by a tick nor by the interpreter: what is in memory ends with the process."""
    collector = started(runs)
    try:
        collector.stop()
        collector.collect_due(FULL_SECONDS, MUCH_MEMORY + 1, BUSY_READS + 1)
        assert ([], False) == (runs, gc.isenabled())
    finally:
        gc.enable()


def started(runs: list[int]) -> Collector:
    made = Collector()
    made.start()
    runs.clear()
    return made


def test_everything_is_collected_while_it_is_little(runs, blocks):
    """All objects are collected every few seconds up to so many more than at the start."""
    collector = started(runs)
    blocks.append(1000 + FEW_BLOCKS - 1)
    collector.collect_due(100.0, 0, 0)
    collector.collect_due(100.0 + FULL_SECONDS / 2, 0, 0)
    collector.collect_due(100.0 + FULL_SECONDS, 0, 0)
    assert [ALL, ALL] == runs


def test_not_everything_is_collected_while_there_is_much(runs, blocks):
    """Beside a backlog nothing old is collected, and everything within seconds when there is little again."""
    collector = started(runs)
    blocks.append(1000 + FEW_BLOCKS)
    collector.collect_due(100.0, 0, 0)
    collector.collect_due(100.0 + FULL_SECONDS, 0, 0)
    assert [] == runs
    blocks.append(1000 + FEW_BLOCKS - 1)
    collector.collect_due(100.1 + 2 * FULL_SECONDS, 0, 0)
    collector.collect_due(100.2 + 2 * FULL_SECONDS, 0, 0)
    assert [ALL] == runs


def test_blocks_are_rarely_counted_beside_a_backlog(runs, monkeypatch):
    """While there is too much to collect, allocated blocks are counted every few seconds, not in each tick."""
    counted = []
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: counted.append(1) or len(counted) * FEW_BLOCKS)
    collector = started(runs)
    counted.clear()
    for tick in range(100):
        collector.collect_due(100.0 + tick / 10, 0, 0)
    assert 2 == len(counted)


def test_a_full_collection_waits_for_clients_to_pause(runs, blocks):
    """While clients send, new objects are collected in each tick, and all once a minute unless they are very few."""
    collector = started(runs)
    blocks.append(1000 + FEW_BLOCKS - 1)
    collector.collect_due(0.0, 0, 0)
    runs.clear()
    for second in range(1, int(BUSY_SECONDS)):
        collector.collect_due(float(second), 0, second * (BUSY_READS + 1))
    assert {NEW} == set(runs)
    assert not collector.is_loaded
    collector.collect_due(BUSY_SECONDS, 0, int(BUSY_SECONDS) * (BUSY_READS + 1))
    assert ALL == runs[-1]


def test_clients_that_pause_get_the_full_collection_at_once(runs, blocks):
    """A full collection that waited begins with the first tick in which little was read."""
    collector = started(runs)
    blocks.append(1000 + FEW_BLOCKS - 1)
    collector.collect_due(0.0, 0, 0)
    collector.collect_due(FULL_SECONDS, 0, BUSY_READS + 1)
    assert [ALL, NEW] == runs
    collector.collect_due(FULL_SECONDS + 0.1, 0, 2 * BUSY_READS + 1)
    assert [ALL, NEW, ALL] == runs


def test_very_few_objects_are_collected_beside_busy_clients(runs, blocks):
    """A full collection that takes a moment only does not wait for clients to pause."""
    collector = started(runs)
    blocks.append(1000 + VERY_FEW_BLOCKS - 1)
    for second in range(11):
        collector.collect_due(float(second), 0, second * 1000)
    assert 3 == runs.count(ALL)


def test_what_is_new_is_collected_in_each_tick_while_there_is_much(runs, blocks):
    """New objects are collected in each tick, and between ticks, while much memory is in use."""
    collector = started(runs)
    blocks.append(1000 + 10 * FEW_BLOCKS)
    for tick in range(5):
        collector.collect_due(100.0 + tick / 10, MUCH_MEMORY + 1, 0)
    assert [NEW] * 5 == runs
    assert collector.is_loaded
    collector.collect_due(101.0, MUCH_MEMORY, 0)
    assert not collector.is_loaded


def test_the_interpreter_starts_no_full_collection_by_itself(runs):
    """A broker that has collected new objects for half a year has collected no older ones by their number."""
    started(runs)
    assert min(gc.get_threshold()[1:]) > 180 * 24 * 3600 * 10 * COLLECTIONS


def test_much_memory_in_few_objects_is_no_reason_to_collect_everything(runs, blocks):
    """Large bodies are few objects: new ones are collected in each tick, and all of them every few seconds."""
    collector = started(runs)
    for tick in range(1, 10):
        collector.collect_due(100.0 + tick / 10, MUCH_MEMORY + 1, 0)
    assert [ALL] + [NEW] * 8 == runs


def test_a_part_of_another_process_collects_nothing(runs):
    """The interpreter's own rules apply before the broker's process has handed collection over."""
    collector = Collector()
    collector.collect_due(100.0, 1 << 40, 0)

    assert [] == runs


BACKLOG = """
import gc
from leveret.broker.process.memory import Collector, MUCH_MEMORY
collector = Collector()
collector.start()
looked, full, found = [], [], []
def note(phase, info):
    if phase == "start":
        looked.append(sum(len(gc.get_objects(each)) for each in range(info["generation"] + 1)))
        full.append(info["generation"] == 2)
    else:
        found.append(info["collected"])
kept = []
collector.collect_due(0.0, 0, 0)
gc.callbacks.append(note)
for tick in range(50):
    kept += [[] for _ in range(20_000)]
    collector.collect_due(tick / 10, MUCH_MEMORY + 1, 0)
most, fulls = max(looked), sum(full)
one = []
one.append(one)
kept[0].append(one)
kept, one = None, None
collector.collect_due(1000.0, 0, 0)
print(most, fulls, found[-1])
"""


def test_no_collection_looks_at_a_whole_backlog():
    """A collection examines fifteen thousand objects at most; old cycles are found once the objects are gone."""
    done = execute(
        [sys.executable, "-c", BACKLOG],
        check=True,
        cwd=ROOT,
        timeout=120,
        env=environment() | {"PYTHONPATH": str(ROOT)},
    )
    most, full, found = map(int, done.stdout.split())

    assert most < 15_000
    assert (0, 1) == (full, found)


def test_code_that_is_loaded_later_is_excluded(runs, blocks, monkeypatch):
    """Objects that an import has left are excluded in the next tick, and count no more as what could be collected."""
    collector = started(runs)
    frozen: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    with collector.loading():
        blocks.append(1000 + VERY_FEW_BLOCKS)
    for second in range(11):
        collector.collect_due(float(second), 0, second * 1000)
    assert 1 == len(frozen)
    assert 3 == runs.count(ALL)


def test_much_that_is_allocated_beside_an_import_is_not_excluded(runs, blocks):
    """A backlog that comes while code is loaded counts as one that could be collected."""
    collector = started(runs)
    with collector.loading():
        blocks.append(1000 + LOADED_MOST + FEW_BLOCKS)
    collector.collect_due(100.0, 0, 0)
    assert [] == runs


def test_a_full_collection_does_not_examine_what_serves_metrics():
    """Loading what serves HTTP in a broker leaves nothing that a later full collection has to examine."""
    script = """
import gc
from leveret.broker.cli.startup import management, _monitor
from leveret.broker.process.memory import Collector
class Server:
    collector, place = Collector(), ""
Server.collector.start()
before = len(gc.get_objects())
management(Server)
_monitor(Server, False)
loaded = len(gc.get_objects()) - before
Server.collector.collect_due(0.0, 0, 0)
print(loaded, len(gc.get_objects()) - before)
"""
    done = execute([sys.executable, "-c", script], cwd=ROOT, env=environment(), check=True)
    loaded, left = map(int, done.stdout.split())

    assert loaded > 5000
    assert left < 500
