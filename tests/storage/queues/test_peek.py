"""A look at a backing queue in memory against what its consumers then get; for paging queues see test_variable_queue."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st
from walks import portion_of, unacked_of, walked

from leveret.confirm.consumer_ack import ConsumerAckQueue
from leveret.storage.message import Message
from leveret.storage.queues.backing_queue import BackingQueue, Look, Peeking
from leveret.storage.queues.memory_queue import MemoryQueue
from leveret.storage.queues.priority_queue import PriorityQueue


def priorities() -> PriorityQueue[MemoryQueue]:
    """Return a queue with four levels; the first octet of a content is its priority."""
    return PriorityQueue(lambda _: MemoryQueue(), lambda content: content[0], 3)


MAKERS: list[Callable[[], BackingQueue]] = [MemoryQueue, priorities, lambda: ConsumerAckQueue(MemoryQueue())]
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["publish", "fetch", "requeue", "ack"]), st.integers(1, 9), st.integers(0, 3)),
    max_size=30,
)


def result_of(steps: Peeking) -> Look:
    """Finish a look that needs no read, and return its result."""
    while True:
        try:
            assert next(steps) is None
        except StopIteration as stopped:
            return stopped.value


@pytest.mark.parametrize("make", MAKERS, ids=["memory", "priority", "consumer-ack"])
@given(operations=OPERATIONS, most=st.none() | st.integers(1, 5))
def test_a_look_finds_what_consumers_get(make, operations, most):
    """A look shows the messages in the order, and with the marks, with which they are fetched next; it changes nothing."""
    queue = make()
    held: dict[Any, Message] = {}
    number = 0
    for kind, count, level in operations:
        if kind == "publish":
            queue.publish([Message(b"", bytes([level, number + each]), 1) for each in range(count)])
            number += count
        elif kind == "fetch" and queue.ready_count:
            batch = queue.fetch(count, ack_required=True)
            held |= dict(zip(batch.seq_ids, batch.messages, strict=True))
        elif kind in {"requeue", "ack"}:
            chosen = list(held)[:count]
            (queue.requeue if kind == "requeue" else queue.ack)(chosen)
            for seq_id in chosen:
                del held[seq_id]
    counts = queue.ready_count, queue.unacked_count

    look = result_of(queue.peek(most))

    assert counts == (queue.ready_count, queue.unacked_count)
    assert held == {peeked.seq_id: peeked.message for peeked in look.unacked}
    assert all(peeked.redelivered for peeked in look.unacked)
    found = walked(queue, most or 9)
    assert [peeked.seq_id for peeked in found] == [
        peeked.seq_id for peeked in walked(queue, most or 9, backwards=True)
    ]
    assert look.ready == found[:most]
    assert sorted(look.unacked) == unacked_of(queue, most or 9)
    assert counts == (queue.ready_count, queue.unacked_count)
    got: list[tuple[Message, bool]] = []
    while queue.ready_count:
        batch = queue.fetch(1, ack_required=False)
        got += [(message, batch.redelivered) for message in batch.messages]
    assert got[:most] == [(peeked.message, peeked.redelivered) for peeked in look.ready]


def test_a_look_shows_one_moment():
    """Changes of the queue during a look do not change its result."""
    queue = MemoryQueue()
    messages = [Message(b"", bytes([each % 256]), 1) for each in range(1000)]
    queue.publish(messages)
    steps = queue.peek()
    next(steps)
    queue.fetch(700, ack_required=False)
    queue.publish(messages)

    assert messages == [peeked.message for peeked in result_of(steps).ready]


def test_a_walk_goes_on_while_the_queue_changes():
    """A walk sees each message once that stays ready in front of it, whatever is taken or comes between its portions."""
    queue = MemoryQueue()
    messages = [Message(b"", number.to_bytes(2, "big"), 1) for number in range(1000)]
    queue.publish(messages[:900])
    seen: list[Message] = []
    portion = portion_of(queue.portion(100))
    while portion.at is not None:
        seen += [peeked.message for peeked in portion.messages]
        batch = queue.fetch(50, ack_required=True)
        queue.requeue(batch.seq_ids[:10])
        if len(seen) == 300:
            queue.publish(messages[900:])
        portion = portion_of(queue.portion(100, portion.at))

    assert messages == seen
    assert len(queue.unacked_ids()) == queue.unacked_count
