"""Queues that confirm when a message is written, settled meanwhile or not."""

import pytest
from doubles.publisher import Publisher

from leveret.storage.errors import DiskFullError
from leveret.storage.journal.journal import Journal
from leveret.storage.message import Persistent
from leveret.storage.queues.pager import Pager
from leveret.storage.queues.variable_queue import VariableQueue

QID = 1 << 32


@pytest.fixture
def journal():
    return Journal()


@pytest.fixture
def queue(journal):
    pager = Pager(journal, lambda _: None, blob_threshold=1000, early_confirm=False)
    return VariableQueue(pager, QID, durable=True)


@pytest.fixture
def publisher():
    return Publisher()


def message(publisher, number, size=10):
    return Persistent(b"\0\1k", b"\2\0\1" + bytes(size), 1, publisher, number, 1)


def take(queue, count=1):
    """Consume messages; they are acked by the time this returns."""
    queue.ack(queue.fetch(count, ack_required=True).seq_ids)


def commit(journal):
    """Commit, and return how many records it has written, and how many deletions of blocks and bitmaps."""
    batch = journal.cut()
    journal.settled()
    durable = batch.durable
    return sum(len(plan.entries) for plan in durable.plans), len(durable.deletes), len(durable.marks)


def test_what_is_acked_before_its_commit_is_written_and_confirmed_then(journal, queue, publisher):
    """A message acked before its commit is written and confirmed then; the next commit deletes all of it."""
    queue.publish([message(publisher, 1), message(publisher, 2)], persistent=True)
    take(queue)
    results = list(publisher.outcomes)

    assert ([], 0) == (results, queue.unacked_count)
    assert (2, 0, 0) == commit(journal)
    assert [("ack", 1), ("ack", 2)] == publisher.outcomes
    assert (0, 0, 1) == commit(journal)
    take(queue)
    assert (0, 1, 0) == commit(journal)
    assert (False, 0) == (journal.has_work, journal.early)


def test_what_is_acked_during_its_commit_is_confirmed_behind_it(journal, queue, publisher):
    """A message acked during its commit is confirmed behind it, not by the ack."""
    queue.publish([message(publisher, 1)], persistent=True)
    journal.cut()
    take(queue)
    assert [] == publisher.outcomes
    journal.settled()

    assert [("ack", 1)] == publisher.outcomes
    assert (0, 1, 0) == commit(journal)


def test_what_is_delivered_without_acks_is_written_too(journal, queue, publisher):
    """A message delivered without acks goes straight through the queue, and to the disk."""
    seq_ids = queue.publish_delivered([message(publisher, 1)], ack_required=False, persistent=True)

    assert (range(1), []) == (seq_ids, publisher.outcomes)
    assert (1, 0, 0) == commit(journal)
    assert [("ack", 1)] == publisher.outcomes
    assert (0, 1, 0) == commit(journal)


@pytest.mark.parametrize("settle", [VariableQueue.purge, lambda queue: queue.drop(1)])
def test_whoever_waits_for_an_end_waits_for_its_commit(journal, queue, publisher, settle):
    """A purge is reported when it is on disk, which is one commit after the message."""
    queue.publish([message(publisher, 1)], persistent=True)
    settle(queue)
    results = []
    journal.when_safe(results.append)

    assert (1, 0, 0) == commit(journal)
    assert ([], True) == (results, journal.urgent)
    assert (0, 1, 0) == commit(journal)
    assert [True] == results


def test_what_waits_is_not_put_off_twice(journal, queue, publisher):
    """A waiter is put off once, however many messages end early in every commit."""
    results = []
    for number in range(3):
        queue.publish([message(publisher, number)], persistent=True)
        take(queue)
        journal.when_safe(lambda _, number=number: results.append(number))
        commit(journal)

    assert [0, 1] == results


def test_what_is_on_its_way_to_disk_when_its_queue_is_deleted(journal, queue, publisher):
    """Publishers, and callers that wait for a message's end, wait for the sweep that brings it, one commit later."""
    queue.publish([message(publisher, 1)], persistent=True)
    take(queue)
    journal.cut()
    results = []
    journal.when_safe(results.append)
    queue.delete()
    journal.settled()

    assert ([], []) == (publisher.outcomes, results)

    batch = journal.cut()
    journal.settled()

    assert [QID] == [sweep.qid for sweep in batch.durable.sweeps]
    assert ([("ack", 1)], [True]) == (publisher.outcomes, results)


def test_a_full_disk_writes_nothing_that_nobody_needs(journal, queue, publisher):
    """Messages refused and then consumed need no room any more; the end of the others is reported to callers that wait."""
    queue.publish([message(publisher, 1), message(publisher, 2)], persistent=True)
    take(queue)
    results = []
    journal.when_safe(results.append)
    journal.cut()
    journal.settled(DiskFullError("planted"))

    assert ([("nack", 1), ("nack", 2)], [False]) == (publisher.outcomes, results)
    assert (1, 0, 0) == commit(journal)
    assert [("nack", 1), ("nack", 2)] == publisher.outcomes


def test_a_file_that_finds_no_room_is_not_needed_if_its_message_was_consumed(journal, queue, publisher):
    """A consumed message without room for its file needs neither the file nor the record."""
    queue.publish([message(publisher, 1, 2000)], persistent=True)
    take(queue)
    (msg_id,) = journal.files
    journal.file_failed(msg_id)

    assert not journal.file_written(msg_id)
    assert [("nack", 1)] == publisher.outcomes


def test_a_file_is_written_for_what_was_consumed(journal, queue, publisher):
    """A consumed message's publisher waits for file and record."""
    queue.publish([message(publisher, 1, 2000)], persistent=True)
    take(queue)
    (msg_id,) = journal.files

    assert journal.file_written(msg_id)
    assert ((1, 0, 0), [("ack", 1)]) == (commit(journal), publisher.outcomes)
    assert (0, 1, 0) == commit(journal)


def test_what_moves_is_confirmed_by_where_it_goes(journal, queue, publisher):
    """An original that moved is not written any more: the disk must not have both."""
    queue.publish([message(publisher, 1)], persistent=True)
    queue.ack(queue.fetch(1, ack_required=True).seq_ids, moved=True)

    assert [("ack", 1)] == publisher.outcomes
    assert (0, 0, 0) == commit(journal)


def test_deleting_a_queue_confirms_with_the_deletion(journal, queue, publisher):
    """A deleted queue writes nothing, of consumed messages or of others, and its publishers hear when it is safe."""
    queue.publish([message(publisher, 1), message(publisher, 2)], persistent=True)
    take(queue)
    queue.delete()

    assert [] == publisher.outcomes
    assert (0, 0, 0) == commit(journal)
    assert [("ack", 1), ("ack", 2)] == sorted(publisher.outcomes)


def test_what_is_evicted_and_discarded_at_once_stays_counted(journal, queue, publisher):
    """A message that was to leave memory after its commit is settled before it; what is in memory stays right."""
    queue.publish([message(publisher, number) for number in range(4)], persistent=True)
    queue.set_ram_target(1, 0)
    assert 0 < queue._evicting
    queue.drop(4)

    assert (0, 0) == (queue._evicting, queue.ram_octets)
    assert (4, 0, 0) == commit(journal)
    assert (0, 1, 0) == commit(journal)
    assert (0, 0) == (queue._evicting, queue.ram_octets)
