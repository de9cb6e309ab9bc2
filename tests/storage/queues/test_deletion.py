"""A durable queue that is deleted with very many messages that consumers have, or had, and of which nearly all are on disk."""

from collections.abc import Callable
from unittest.mock import patch

import pytest

from leveret.storage.journal.journal import Journal
from leveret.storage.large_table import MANY, LargeTable
from leveret.storage.message import Message, Persistent
from leveret.storage.queues.pager import Pager, Releasable, freeing
from leveret.storage.queues.requeued import Requeued
from leveret.storage.queues.variable_queue import VariableQueue

CONTENT = b"\x02\x00\x01" + bytes(12)
WRITTEN = range(MANY)
UNDER_WAY = range(MANY, MANY + 300)
FRESH = range(MANY + 300, MANY + 500)


class Publisher:
    """Notes the accepted messages."""

    def __init__(self) -> None:
        self.confirmed: list[int] = []

    def accepted(self, seq_no: int) -> None:
        self.confirmed.append(seq_no)

    def refused(self, seq_no: int) -> None:
        raise AssertionError(seq_no)


class Site:
    """The queue, with all of its messages unacked."""

    def __init__(self) -> None:
        self.journal = Journal()
        self.released: list[Releasable] = []
        pager = Pager(self.journal, lambda _: None, ram_limit=1 << 40)
        pager.release = self.released.append
        self.queue = VariableQueue(pager, 1, durable=True)
        self.publisher = Publisher()
        self.publish(WRITTEN)
        self.journal.cut()
        self.journal.settled()
        self.publish(UNDER_WAY)
        self.journal.cut()
        self.publish(FRESH)
        self.publisher.confirmed.clear()
        self.queue.fetch(FRESH.stop, ack_required=True)

    def publish(self, numbers: range) -> None:
        self.queue.publish(
            [Persistent(b"\x00\x01q", CONTENT, 1, self.publisher, number, 1) for number in numbers],
            persistent=True,
        )


def stay(site: Site) -> None:
    """Leave all messages with consumers."""
    assert site.queue.unacked_count == FRESH.stop


def come_back(site: Site) -> None:
    site.queue.requeue(range(FRESH.stop))


@pytest.mark.parametrize("whereabouts", [stay, come_back], ids=lambda each: each.__name__)
def test_a_deletion_looks_only_at_what_is_not_on_disk(whereabouts: Callable[[Site], None]) -> None:
    """Publishers that wait hear when the deletion is safe, the rest is freed in pieces, and later acks are ignored."""
    site = Site()
    whereabouts(site)
    walks = AssertionError("all of them are looked at")

    with (
        patch.object(LargeTable, "values", side_effect=walks),
        patch.object(LargeTable, "__iter__", side_effect=walks),
        patch.object(Requeued, "__iter__", side_effect=walks),
    ):
        site.queue.delete()

    assert not site.publisher.confirmed
    assert site.queue.unacked_count == site.queue.ready_count == 0
    (run,) = site.released
    assert len(run) == FRESH.stop
    assert sum(1 for _ in freeing(run)) > 100
    assert not run
    site.queue.ack(range(FRESH.stop))
    site.journal.settled()
    assert not site.publisher.confirmed
    batch = site.journal.cut()
    assert not batch.acked
    site.journal.settled()
    assert site.publisher.confirmed == [*FRESH, *UNDER_WAY]
    assert [sweep.qid for sweep in batch.durable.sweeps] == [1]


@pytest.mark.parametrize("is_requeued", [False, True], ids=["unacked", "ready"])
def test_a_file_that_is_being_written_is_not_needed_when_its_queue_is_deleted(is_requeued: bool) -> None:
    """A deleted queue's publisher hears when the deletion is safe, and no record refers to the file being written."""
    journal, publisher = Journal(), Publisher()
    queue = VariableQueue(Pager(journal, lambda _: None, blob_threshold=len(CONTENT)), 1, durable=True)
    message = Persistent(b"\x00\x01q", CONTENT, 1, publisher, 7, 1)
    seq_ids = queue.publish_delivered([message], ack_required=True, persistent=True)
    if is_requeued:
        queue.requeue(seq_ids)

    queue.delete()

    assert not journal.file_written(message.msg_id)
    assert not journal.cut().durable.plans
    assert not publisher.confirmed
    journal.settled()
    assert publisher.confirmed == [7]


@pytest.mark.parametrize("is_fetched", [False, True], ids=["ready", "unacked"])
def test_what_is_to_be_paged_is_not_when_its_queue_is_deleted(is_fetched: bool) -> None:
    """Transient messages that memory has no room for are not written for a queue that is gone."""
    journal = Journal()
    queue = VariableQueue(Pager(journal, lambda _: None, ram_limit=0), 1, durable=False)
    messages = [Message(b"\x00\x01q", CONTENT, 1) for _ in range(10)]
    if is_fetched:
        queue.publish_delivered(messages, ack_required=True)
    else:
        queue.publish(messages)
    assert journal.octets_to_page

    queue.delete()

    assert not journal.cut().paged.plans
