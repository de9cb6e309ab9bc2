"""A consumer-ack queue reports messages that cannot be read any more."""

import pytest
from doubles.publisher import Publisher

from leveret.confirm.consumer_ack import ConsumerAckQueue
from leveret.confirm.promise import Promise
from leveret.storage.message import Message, Promised
from leveret.storage.queues.memory_queue import MemoryQueue


class Damaged(MemoryQueue):
    """Loses its oldest messages on request, as if their pages had been overwritten."""

    def __init__(self) -> None:
        super().__init__()
        self.damaged = 0

    def lose(self, count: int) -> None:
        self.damaged += count
        self.drop(count)
        self.on_loaded()


@pytest.fixture
def publisher() -> Publisher:
    return Publisher()


@pytest.fixture(params=[False, True], ids=["consumer-ack", "light"])
def queue(request, publisher) -> ConsumerAckQueue:
    """A queue with three promised messages."""
    queue = ConsumerAckQueue(Damaged())
    queue.set_light(light=request.param)
    queue.publish([Promised(b"", b"%d" % n, 1, Promise(publisher, n, 1)) for n in (1, 2, 3)])
    return queue


def test_all_that_is_ready_is_refused_once_when_some_of_it_is_damaged(queue, publisher):
    """A damaged block's messages are unknown: all ready promises are refused once, and the rest is delivered."""
    queue.inner.lose(2)
    before = list(publisher.outcomes)

    batch = queue.fetch(3, ack_required=True)
    queue.ack(batch.seq_ids)

    assert [("nack", 1), ("nack", 2), ("nack", 3)] == before == publisher.outcomes
    assert [b"3"] == [message.content for message in batch.messages]


def test_messages_without_a_promise_are_kept_for_their_consumer_after_a_damage(queue):
    """Messages without a promise do not count as the promises lost by a damage."""
    queue.inner.lose(3)
    queue.publish([Message(b"", b"%d" % n, 1) for n in (4, 5, 6)])

    batch = queue.fetch(3, ack_required=True)

    assert 3 == queue.inner.unacked_count
    queue.requeue(batch.seq_ids)
    assert 3 == queue.ready_count


def test_the_owner_is_notified_of_what_was_read(queue):
    """Reads are reported to the owner, damaged or not."""
    heard = []
    queue.on_loaded = lambda: heard.append("loaded")

    queue.inner.lose(1)
    queue.inner.lose(0)

    assert ["loaded", "loaded"] == heard
