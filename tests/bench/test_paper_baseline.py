"""Queues that keep RabbitMQ's tables of each message."""

import pytest
from hypothesis import given, settings, strategies as st

from bench.paper_baseline import BookedQueue, BookedStore
from leveret.broker.config.config import StorageConfig
from leveret.storage.errors import DiskFullError, Done
from leveret.storage.journal.journal import Journal
from leveret.storage.message import Persistent
from leveret.storage.queues.pager import Pager
from leveret.storage.queues.variable_queue import VariableQueue

QID = 1 << 32


class Publisher:
    def __init__(self):
        self.outcomes = []

    def accepted(self, seq_no):
        self.outcomes.append(("ack", seq_no))

    def refused(self, seq_no):
        self.outcomes.append(("nack", seq_no))


class World:
    """A queue with its journal and a publisher."""

    def __init__(self, kind, *, early):
        self.journal = Journal()
        pager = Pager(self.journal, lambda _: None, blob_threshold=1000, early_confirm=early)
        self.queue = kind(pager, QID, durable=True)
        self.publisher = Publisher()
        self.unacked = []
        self.published = 0

    def messages(self, count):
        """Persistent messages with the next numbers of the channel."""
        first = self.published + 1
        self.published += count
        address = b"\1x\1k"
        return [
            Persistent(address, b"\2\0\1" + bytes(10), 1, self.publisher, number, 1)
            for number in range(first, self.published + 1)
        ]

    def step(self, what, count):
        """Do one operation; returns what can be seen of it."""
        queue = self.queue
        match what:
            case "publish":
                return queue.publish(self.messages(count), persistent=True)
            case "straight" if not queue.ready_count:
                seq_ids = queue.publish_delivered(self.messages(count), ack_required=True, persistent=True)
                self.unacked += seq_ids
                return seq_ids
            case "fetch" if queue.ready_count:
                seq_ids = list(queue.fetch(count, ack_required=True).seq_ids)
                self.unacked += seq_ids
                return seq_ids
            case "take" if queue.ready_count:
                return list(queue.fetch(count, ack_required=False).seq_ids)
            case "ack" | "requeue":
                some, self.unacked = self.unacked[:count], self.unacked[count:]
                (queue.ack if what == "ack" else queue.requeue)(some)
            case "drop" if queue.ready_count:
                return queue.drop(count)
            case "purge":
                return queue.purge()
            case "commit" if self.journal.has_work:
                self.journal.cut()
                self.journal.settled()
            case "full" if self.journal.has_work:
                self.journal.cut()
                self.journal.settled(DiskFullError("full", durable=Done.NOTHING))
        return None


def tables(queue):
    """The sizes of all tables of publishes, of deliveries and of statuses."""
    book = queue.book
    channels = list(book.channels.values())
    publishes = {
        len(book.msg_id_to_channel),
        len(book.unconfirmed),
        len(book.index_unconfirmed),
        sum(len(channel.unconfirmed) for channel in channels),
        sum(len(numbers) for channel in channels for numbers in channel.by_queue.values()),
    }
    return publishes, len(book.pending_acks), len(book.statuses)


steps = st.tuples(
    st.sampled_from(
        ["publish", "straight", "fetch", "take", "ack", "requeue", "drop", "purge", "commit", "full"]
    ),
    st.integers(1, 5),
)


@pytest.mark.parametrize("early", [True, False])
@given(done=st.lists(steps, max_size=40))
@settings(max_examples=150, deadline=None)
def test_tables_decide_nothing_and_agree_with_the_queue(early, done):
    """Any operations have the results and confirms of the queue without tables, whose counts are those of the tables."""
    one, other = World(BookedQueue, early=early), World(VariableQueue, early=early)
    for what, count in done:
        assert other.step(what, count) == one.step(what, count)
        assert other.publisher.outcomes == one.publisher.outcomes
        open_publishes = one.published - len({number for _, number in one.publisher.outcomes})
        expected = {open_publishes}, one.queue.unacked_count, one.queue.ready_count + one.queue.unacked_count
        assert expected == tables(one.queue)
    other.queue.delete()
    one.queue.delete()
    assert other.publisher.outcomes == one.publisher.outcomes
    assert ({0}, 0, 0) == tables(one.queue)


def test_a_message_is_in_each_table_until_its_commit():
    """A publish has its number, queue and exchange in the channel, its id in process, backing queue and index."""
    world = World(BookedQueue, early=False)
    world.step("publish", 1)
    book = world.queue.book
    (channel,) = book.channels.values()

    assert {1: (1, 0, {QID}, b"x")} == channel.unconfirmed
    assert {1: (world.publisher, 1)} == book.msg_id_to_channel
    assert {1} == book.unconfirmed == book.index_unconfirmed
    assert (False, False, False) == book.statuses[0][3:6]
    world.step("fetch", 1)
    assert {0: 0} == book.pending_acks
    assert (True, False, False) == book.statuses[0][3:6]
    world.step("commit", 1)
    assert (True, True, True) == book.statuses[0][3:6]
    assert [("ack", 1)] == world.publisher.outcomes


@pytest.mark.parametrize("early", [True, False])
def test_a_store_makes_such_queues(tmp_path, early):
    """The setting of early confirms is theirs, as without tables."""
    store = BookedStore(tmp_path, StorageConfig(sync=False, early_confirm=early), ram_limit=1 << 20)

    assert type(store._queue_class(store.pager, QID, durable=True)) is BookedQueue
    assert store.pager.early_confirm is early
    store.environment.close()
