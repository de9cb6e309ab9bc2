"""Changes of the paging policy that take a mechanism away: the test of that mechanism must fail under each."""

import sys
from collections.abc import Callable
from importlib import util
from inspect import getsource
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest

from leveret.storage.queues.memory_monitor import MemoryMonitor
from leveret.storage.queues.paging import Paging


def _load(name: str) -> ModuleType:
    spec = util.spec_from_file_location(f"policy_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


paging = _load("test_paging")
monitor = _load("test_memory_monitor")

MUTANTS: dict[str, tuple[type, str, str, str, Callable[..., None]]] = {
    "no targets by rates": (
        MemoryMonitor,
        "_target",
        "return int(self.desired_duration * queue.rates.total)",
        "return inf",
        monitor.test_targets_follow_the_rates,
    ),
    "the same octets for all": (
        MemoryMonitor,
        "steps",
        "if self._fixed is None and self.desired_duration != inf:",
        "if False:",
        monitor.test_a_fast_queue_keeps_more_than_one_that_only_grows,
    ),
    "what grows more slowly goes first": (
        Paging,
        "reduce_memory_use",
        "if self.rates.acks_grow_faster:",
        "if not self.rates.acks_grow_faster:",
        paging.test_what_grows_faster_is_paged_first,
    ),
    "positions go one by one": (
        Paging,
        "reduce_memory_use",
        "betas >= self.pager.io_batch",
        "betas >= 1",
        paging.test_positions_leave_memory_in_batches,
    ),
    "as many betas as alphas": (
        Paging,
        "_permitted_beta_count",
        "max(self.segment, others * target / (others + target))",
        "max(self.segment, target)",
        paging.test_the_more_are_paged_the_fewer_positions_stay,
    ),
    "the oldest unacked go first": (
        Paging,
        "_limit_run",
        "seq_id, item = unacked.popitem()",
        "seq_id = next(iter(unacked)); item = unacked.pop(seq_id)",
        paging.test_the_youngest_unacked_are_paged_first,
    ),
}


def mutated(owner: type, name: str, before: str, after: str) -> Any:
    """A patch that replaces a part of a method's text, which must be there once."""
    source = dedent(getsource(getattr(owner, name)))
    assert 1 == source.count(before), f"{owner.__name__}.{name} has changed: {before!r} is not there"
    namespace = dict(vars(sys.modules[owner.__module__]))
    exec(source.replace(before, after), namespace)
    return patch.object(owner, name, namespace[name])


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_seen(tmp_path: Path, mutant: str) -> None:
    """The test of a mechanism passes, and fails when the mechanism is taken away."""
    *change, seen_by = MUTANTS[mutant]
    folders = ([tmp_path / "as it is"], [tmp_path / "mutated"]) if seen_by.__code__.co_argcount else ([], [])
    seen_by(*folders[0])

    with mutated(*change), pytest.raises(AssertionError):
        seen_by(*folders[1])
