"""Settlements of deliveries: which ones an ack or a nack covers, and what becomes of them."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from leveret.broker.channel.interfaces import FAILED
from leveret.broker.channel.settlement import PIECE, Settlements
from leveret.broker.errors import AMQPError


class Queue:
    def __init__(self) -> None:
        self.acks: list[int] = []
        self.discarded: list[int] = []
        self.requeued: list[int] = []
        self.failed: list[int] = []
        self.touched = 0
        self.suspended = 0

    def discard(self, seq_ids: list[int]) -> None:
        self.discarded += seq_ids

    def requeue(self, seq_ids: list[int], *, failed: bool) -> None:
        self.requeued += seq_ids
        self.failed += seq_ids if failed else []

    def touch(self) -> None:
        self.touched += 1

    def suspend(self) -> None:
        self.suspended += 1

    def resume(self) -> None:
        self.suspended -= 1


class Consumer:
    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.unacked = 0
        self.woken = 0

    def give_back(self, count: int) -> None:
        self.unacked -= count

    def wake(self) -> None:
        self.woken += 1


class Channel:
    """A channel whose long methods run when a test says so."""

    def __init__(self, *consumers: Consumer) -> None:
        self.number = 1
        self.unacked: dict[int, Any] = {}
        self.delivery_tag = 0
        self.acked = 0
        self.global_prefetch = 0
        self.tx: Any = None
        self.host = SimpleNamespace(run_in_slices=self.run_in_slices)
        self.consumers = consumers
        self.woken = 0
        self.steps: Iterator[None] = iter(())
        self.settlements = Settlements()

    def deliver(self, count: int) -> None:
        """Deliver messages to the consumers in turn; their seq_ids are ten times the tags."""
        for _ in range(count):
            self.delivery_tag += 1
            consumer = self.consumers[self.delivery_tag % len(self.consumers)]
            consumer.unacked += 1
            self.unacked[self.delivery_tag] = consumer, 10 * self.delivery_tag

    def settle(self, tag: int, outcome: bool | None = None, *, multiple: bool = False) -> None:
        self.settlements.settle(self, tag, outcome, multiple=multiple)

    def run_in_slices(self, _number: int, steps: Iterator[None], _reply: bytes = b"") -> None:
        self.steps = steps

    def wake_consumers(self) -> None:
        self.woken += 1


@pytest.fixture
def queue() -> Queue:
    return Queue()


@pytest.fixture
def consumer(queue: Queue) -> Consumer:
    return Consumer(queue)


@pytest.fixture
def channel(consumer: Consumer) -> Channel:
    return Channel(consumer)


@settings(max_examples=200)
@given(
    count=st.integers(0, 6), tag=st.integers(0, 8), multiple=st.booleans(), before=st.sets(st.integers(1, 6))
)
@example(count=40, tag=30, multiple=True, before=set(range(1, 41)) - {29, 30, 31, 40})  # few of many are left
def test_what_a_settlement_covers(count, tag, multiple, before):
    """An ack covers one tag, all up to it, or with 0 all; a tag that is not outstanding is 406 and changes nothing."""
    queue = Queue()
    channel = Channel(Consumer(queue))
    channel.deliver(count)
    for one in before & set(range(1, count + 1)):
        del channel.unacked[one]
    tags = list(channel.unacked)
    if multiple and tag == 0:
        expected = tags
        channel.settle(tag, multiple=True)
    elif tag not in tags:
        expected = []
        with pytest.raises(AMQPError, match=f"unknown delivery tag {tag}"):
            channel.settle(tag, multiple=multiple)
    else:
        expected = [one for one in tags if one <= tag] if multiple else [tag]
        channel.settle(tag, multiple=multiple)

    assert [10 * one for one in expected] == queue.acks
    assert [one for one in tags if one not in expected] == list(channel.unacked)


@pytest.mark.parametrize(
    ("outcome", "lists", "acked"),
    [
        (None, ([10, 20], [], [], []), 2),
        (False, ([], [10, 20], [], []), 0),
        (True, ([], [], [10, 20], []), 0),
        (FAILED, ([], [], [10, 20], [10, 20]), 0),
    ],
    ids=["ack", "reject", "requeue", "fail"],
)
def test_what_becomes_of_deliveries(channel, consumer, queue, outcome, lists, acked):
    """Acked, rejected and requeued messages go back to their queue, and the consumer gets its credit."""
    channel.deliver(3)
    channel.settle(2, outcome, multiple=True)

    assert lists == (queue.acks, queue.discarded, queue.requeued, queue.failed)
    assert (acked, 1, 1) == (channel.acked, consumer.unacked, consumer.woken)
    assert (not outcome) == bool(queue.touched)


def test_deliveries_return_to_the_queues_that_they_came_from():
    """Deliveries of several consumers are settled in the queue of each."""
    queues = [Queue(), Queue()]
    channel = Channel(*map(Consumer, queues))
    channel.deliver(5)
    channel.settle(4, True, multiple=True)

    assert [[20, 40], [10, 30]] == [queue.requeued for queue in queues]
    assert [5] == list(channel.unacked)


def test_a_prefetch_of_the_channel_gives_credit_to_all_consumers(channel, consumer):
    """Under a channel-wide prefetch each consumer may have room after a settlement."""
    channel.global_prefetch = 10
    channel.deliver(1)
    channel.settle(1)

    assert (1, 0) == (channel.woken, consumer.woken)


def test_a_transaction_collects_settlements(channel, queue):
    """On a transactional channel deliveries leave the table, and their queues learn of it at the commit."""
    noted = []
    channel.tx = SimpleNamespace(
        settle=lambda taken, outcome: noted.append(([tag for tag, _ in taken], outcome))
    )
    channel.deliver(3)
    channel.settle(2, False, multiple=True)

    assert [([1, 2], False)] == noted
    assert ([3], []) == (list(channel.unacked), queue.discarded)


def test_a_queue_delivers_while_a_transaction_collects_what_returns_to_it(channel, queue):
    """A transaction returns nothing before its commit, so no queue waits while it collects in pieces."""
    channel.tx = SimpleNamespace(settle=lambda _taken, _outcome: None)
    channel.deliver(2 * PIECE)
    channel.settle(0, True, multiple=True)

    assert [0, 0] == [queue.suspended for _ in channel.steps]
    assert {} == channel.unacked


@pytest.mark.parametrize("outcome", [None, False, True])
def test_many_deliveries_are_settled_in_pieces(channel, queue, outcome):
    """No step settles more than a piece, and a queue delivers nothing while messages are returned to it."""
    count = 3 * PIECE + 10
    channel.deliver(count + 1)
    channel.settle(count, outcome, multiple=True)
    done = []
    for _ in channel.steps:
        done.append(len(queue.acks) + len(queue.discarded) + len(queue.requeued))
        assert queue.suspended == (outcome is True)

    assert [PIECE, 2 * PIECE, 3 * PIECE, count] == done
    assert ([count + 1], 0) == (list(channel.unacked), queue.suspended)


def test_what_was_begun_is_completed(channel, queue):
    """A channel that closes completes the settlement that was under way."""
    channel.deliver(2 * PIECE)
    channel.settle(0, multiple=True)
    next(channel.steps)

    assert PIECE == len(queue.acks)
    for _ in channel.settlements.finish():
        pass
    assert 2 * PIECE == len(queue.acks)
    assert channel.settlements.steps is None
    assert [] == list(channel.settlements.finish())


@pytest.mark.parametrize(
    ("count", "pieces"),
    [(0, []), (3, []), (PIECE, []), (2 * PIECE + 1, [PIECE, 2 * PIECE, 2 * PIECE + 1])],
)
def test_everything_is_requeued(channel, queue, count, pieces):
    """All unacked deliveries return to their queue: if they are many, in pieces between which it delivers nothing."""
    channel.deliver(count)
    found = [
        (len(queue.requeued), queue.suspended) for _ in channel.settlements.requeue_all(channel, outcome=True)
    ]

    assert ([10 * tag for tag in range(1, count + 1)], {}) == (queue.requeued, channel.unacked)
    assert [(size, 1) for size in pieces] == found
    assert 0 == queue.suspended


def test_deliveries_that_a_rollback_restores_are_covered_again(channel, queue):
    """After a rollback `multiple` covers tags below those that were settled last."""
    channel.deliver(3)
    record = channel.unacked[1]
    channel.settle(2, multiple=True)
    channel.unacked = {1: record, **channel.unacked}
    channel.settlements.restored()
    channel.settle(3, multiple=True)

    assert ([10, 20, 10, 30], {}) == (queue.acks, channel.unacked)


def test_a_table_with_few_of_many_tags_is_searched_instead_of_counted_through(channel, queue):
    """Deliveries that were settled one by one cost a later `multiple` nothing."""
    channel.deliver(20 * PIECE)
    for tag in range(1, 20 * PIECE - 1):
        del channel.unacked[tag]
    channel.settle(0, multiple=True)

    assert [10 * (20 * PIECE - 1), 200 * PIECE] == queue.acks
    assert {} == channel.unacked


def test_more_than_a_piece_is_settled_where_few_are_left(channel, queue):
    """An ack of all covers every delivery, though those that are left lie far apart and are more than one piece."""
    channel.deliver(12 * PIECE)
    left = list(range(6, 12 * PIECE + 1, 6))
    channel.unacked = {tag: channel.unacked[tag] for tag in left}
    channel.settle(0, multiple=True)
    for _ in channel.steps:
        pass

    assert [10 * tag for tag in left] == queue.acks
    assert {} == channel.unacked
