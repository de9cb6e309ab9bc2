"""Shared empty collections: reading is allowed, adding raises."""

from collections import deque
from typing import Any

import pytest

from leveret.storage.journal.blocks import NO_RETURNS, Block
from leveret.storage.journal.journal import Journal
from leveret.storage.message import Message
from leveret.storage.queues.memory_queue import MemoryQueue
from leveret.storage.queues.pager import Pager
from leveret.storage.queues.variable_queue import VariableQueue

MESSAGE = Message(b"", b"\x02\x00\x01" + bytes(10), 1)


def shared() -> list[Any]:
    """Return the collections that a new object has from all others of its class."""
    queue = VariableQueue(Pager(Journal(), lambda _: None), 1, durable=True)
    return [
        queue.q4,
        queue.q3,
        queue.q2,
        queue.q1,
        queue.returned,
        queue.journal_returns,
        queue.stored_returns,
        MemoryQueue()._ready,
        Block(1, 0, 1, paged=False).returns,
    ]


def test_new_objects_share_what_is_empty() -> None:
    """Objects that never kept anything have the same empty collections."""
    assert all(first is second for first, second in zip(shared(), shared(), strict=True))


@pytest.mark.parametrize("number", range(len(shared())))
def test_a_shared_collection_stays_empty(number: int) -> None:
    """Whoever forgets to replace a shared collection gets an error, and the others nothing."""
    collection = shared()[number]
    if isinstance(collection, deque):
        ways = [
            lambda: collection.append(MESSAGE),
            lambda: collection.appendleft(MESSAGE),
            lambda: collection.extend([MESSAGE]),
            lambda: collection.extendleft([MESSAGE]),
            lambda: collection.insert(0, MESSAGE),
            lambda: collection.__iadd__([MESSAGE]),
        ]
    elif isinstance(collection, dict):
        ways = [
            lambda: collection.__setitem__(1, 2),
            lambda: collection.setdefault(1, 2),
            lambda: collection.update({1: 2}),
            lambda: collection.__ior__({1: 2}),
        ]
    else:
        ways = [lambda: collection.add([1], [MESSAGE])]
    for way in ways:
        with pytest.raises(TypeError, match="shared"):
            way()

    assert len(collection) == 0


def test_a_key_that_is_not_there_may_be_removed() -> None:
    """Removing with a default adds nothing, so it needs no check."""
    assert NO_RETURNS.pop(1, None) is None
