"""Looks at backing queues in memory, and walks that withdraw messages; for paging queues see test_variable_queue."""

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st
from samples.walks import portion_of, unacked_of, walked

from leveret.confirm.consumer_ack import ConsumerAckQueue
from leveret.confirm.promise import Promise
from leveret.storage.journal.blocks import Entry
from leveret.storage.message import Message, Promised
from leveret.storage.queues.backing_queue import BackingQueue, Look, Peeking, Piece
from leveret.storage.queues.memory_queue import MemoryQueue
from leveret.storage.queues.peek import PIECE, PREPARED, sparse
from leveret.storage.queues.priority_queue import PriorityQueue
from leveret.storage.queues.withdrawal import take_out


def priorities() -> PriorityQueue[MemoryQueue]:
    """Return a queue with four levels; the first octet of a content is its priority."""
    return PriorityQueue(lambda _: MemoryQueue(), lambda content: content[0], 3)


MAKERS: list[Callable[[], BackingQueue]] = [MemoryQueue, priorities, lambda: ConsumerAckQueue(MemoryQueue())]
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["publish", "fetch", "requeue", "ack"]), st.integers(1, 9), st.integers(0, 3)),
    max_size=30,
)
WITHDRAWALS = st.lists(
    st.tuples(
        st.sampled_from(["publish", "publish", "fetch", "requeue", "withdraw"]),
        st.integers(1, 9),
        st.integers(0, 3),
    ),
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


# -- withdrawing ---------------------------------------------------------------------------------------------------


def withdraw(queue: BackingQueue, wanted: Callable[[Message], bool]) -> list[int]:
    """Withdraw messages in one walk, and settle them as moved; returns their positions."""
    taken: list[int] = []
    for piece in queue.walk():
        assert isinstance(piece, Piece)
        chosen = [peeked.seq_id for peeked in piece.messages if wanted(peeked.message)]
        if chosen:
            while not piece.prepare(chosen[0], chosen[-1]):
                pass
            assert chosen == piece.withdraw(chosen)
            taken += chosen
            queue.ack(chosen, moved=True)
    return taken


def contents(queue: BackingQueue) -> list[tuple[bytes, bool]]:
    """Fetch everything; returns contents and marks."""
    got = []
    while queue.ready_count:
        batch = queue.fetch(3, ack_required=False)
        got += [(message.content, batch.redelivered) for message in batch.messages]
    return got


@pytest.mark.parametrize("make", MAKERS, ids=["memory", "priority", "consumer-ack"])
@given(operations=WITHDRAWALS)
def test_the_others_keep_place_and_mark(make, operations):
    """A message that a walk does not withdraw stays in its order, and is marked as redelivered as without the walk."""
    queue, other = make(), make()
    held: list[int] = []
    gone: set[bytes] = set()
    number = 0
    for kind, count, level in operations:
        if kind == "publish":
            messages = [Message(b"", bytes([level, number + each]), 1) for each in range(count)]
            number += count
            queue.publish(messages)
            other.publish(messages)
        elif kind == "fetch" and queue.ready_count and not gone:
            held += queue.fetch(count, ack_required=True).seq_ids
            other.fetch(count, ack_required=True)
        elif kind == "requeue":
            queue.requeue(held[:count])
            other.requeue(held[:count])
            del held[:count]
        elif kind == "withdraw":
            before = queue.ready_count
            withdrawn: list[bytes] = []

            def wanted(message: Message, every: int = count, found: list[bytes] = withdrawn) -> bool:
                if message.content[1] % every:
                    return False
                found.append(message.content)
                return True

            taken = withdraw(queue, wanted)
            gone.update(withdrawn)
            assert before - len(taken) == queue.ready_count
            assert len(held) == queue.unacked_count

    assert [each for each in contents(other) if each[0] not in gone] == contents(queue)


def test_a_walk_ends_where_the_queue_ended():
    """Messages published during a walk are not in it, so that one that puts them back into its queue ends."""
    queue = MemoryQueue()
    queue.publish([Message(b"", bytes(2), 1)] * (PIECE + 1))
    seen = 0
    for piece in queue.walk():
        assert isinstance(piece, Piece)
        seen += len(piece.messages)
        queue.publish([Message(b"", bytes(2), 1)] * 10)

    assert PIECE + 1 == seen


def test_long_preparations_take_several_steps():
    """The messages before one that is withdrawn go to their new places a part at a time."""
    queue = MemoryQueue()
    queue.publish([Message(b"", bytes(2), 1)] * (3 * PREPARED))
    pieces = list(queue.walk())
    piece = pieces[-1]
    assert isinstance(piece, Piece)
    last = 3 * PREPARED - 1
    steps = 1
    while not piece.prepare(last, last):
        steps += 1

    assert 3 == steps
    assert [last] == piece.withdraw([last])


def test_promises_stay_open():
    """A message that was withdrawn is confirmed when it is settled, in light mode too."""
    for light in (False, True):
        queue = ConsumerAckQueue(MemoryQueue())
        queue.set_light(light=light)
        heard: list[int] = []
        publisher = type("Publisher", (), {"accepted": heard.append, "refused": None})
        queue.publish([Promised(b"", bytes(2), 1, Promise(publisher, number, 1)) for number in range(3)])
        ((piece),) = queue.walk()
        assert isinstance(piece, Piece)
        piece.prepare(1, 1)
        assert [1] == piece.withdraw([1])
        assert [] == heard
        queue.ack([1], moved=True)

        assert [1] == heard
        assert 2 == queue.promised_count


@given(
    run=st.lists(st.integers(0, 60), unique=True).map(sorted),
    wanted=st.sets(st.integers(0, 60)),
    at=st.integers(0, 9),
)
def test_members_are_taken_out_of_a_run(run, wanted, at):
    """Members are removed by their positions, and the others keep their order; a part of a run is what a slice is."""
    members = deque([Entry(seq_id, None, 0, durable=True) for seq_id in run])
    for backwards in (False, True):
        found = [each for each in run if each >= at]
        found = found[-4:] if backwards else found[:4]
        assert found == sparse(members, at, 99, 4, backwards=backwards)[0]
    taken = [entry.seq_id for entry in take_out(members, wanted)]
    assert [each for each in run if each in wanted] == taken
    assert [each for each in run if each not in wanted] == [entry.seq_id for entry in members]
