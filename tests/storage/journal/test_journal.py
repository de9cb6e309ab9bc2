"""The journal: what is written, what need not be, and when waiters are notified."""

from functools import partial
from time import thread_time

import pytest
from doubles.publisher import Publisher

from leveret.storage.errors import DiskFullError, Done
from leveret.storage.journal import journal as module
from leveret.storage.journal.blocks import GONE, NEW, STORED, WRITING, Entry, pack_bits
from leveret.storage.journal.journal import ROW_OCTETS, Journal
from leveret.storage.journal.shared_bodies import OVERHEAD
from leveret.storage.message import Persistent


class FakeQueue:
    """The part of a queue that the journal sees."""

    def __init__(self, journal: Journal, qid: int = 1) -> None:
        self.journal = journal
        self.qid = qid
        self.segment = 64
        self.journal_fresh: list[Entry] = []
        self.journal_paged: list[Entry] = []
        self.journal_returns: dict[int, int] = {}
        self.journaled = False
        self.deleted = False
        self.evicted: list[Entry] = []
        self.without_room: list[Entry] = []

    def stored(self, entries: list[Entry]) -> None:
        self.evicted += entries

    def unstored(self, entries: list[Entry]) -> None:
        """Take the entries back, which are still needed."""
        self.without_room += entries

    def take(self, message: Persistent, seq_id: int) -> Entry:
        entry = Entry(seq_id, message, len(message.content), durable=True)
        self.journal_fresh.append(entry)
        self.journal.records += 1
        self.journal.touch(self)
        return entry

    def settle(self, entry: Entry) -> None:
        """Settle an entry as a variable queue does it."""
        if entry.state == NEW:
            entry.state = GONE
        else:
            self.journal.dead(entry)
        message = entry.message
        assert isinstance(message, Persistent)
        message.accepted()


@pytest.fixture
def publisher() -> Publisher:
    return Publisher()


@pytest.fixture
def journal() -> Journal:
    return Journal(first_msg_id=100, embed_below=50)


@pytest.fixture
def queue(journal: Journal) -> FakeQueue:
    return FakeQueue(journal)


def message(publisher: Publisher, seq_no: int = 1, size: int = 10, copies: int = 1) -> Persistent:
    return Persistent(b"\x00\x01q", bytes(size), 1, publisher, seq_no, copies)


def test_nothing_is_confirmed_before_its_commit(journal, queue, publisher):
    """Confirms come from settling, not from noting or cutting."""
    entry = queue.take(message(publisher), 1)
    batch = journal.cut()

    assert WRITING == entry.state
    assert 1 == len(batch.durable.plans)
    assert batch.needs_sync
    assert [] == publisher.outcomes

    journal.settled()

    assert STORED == entry.state
    assert [("ack", 1)] == publisher.outcomes
    assert not journal.has_work


def test_what_is_acked_before_the_cut_is_never_written(journal, queue, publisher):
    """A message acked before the cut is confirmed at once, and the batch has nothing of it, nor a delivery count."""
    queue.journal_returns[1] = 1
    queue.settle(queue.take(message(publisher), 1))

    assert [("ack", 1)] == publisher.outcomes

    batch = journal.cut()

    assert not batch.needs_sync
    assert 0 == journal.written
    assert {} == queue.journal_returns


def test_what_is_acked_in_flight_is_deleted_by_the_next_batch(journal, queue, publisher):
    """A message acked in flight is confirmed at once; its record is written now and deleted by the next commit."""
    entry = queue.take(message(publisher), 1)
    first = journal.cut()
    queue.settle(entry)

    assert [("ack", 1)] == publisher.outcomes

    journal.settled()
    second = journal.cut()

    assert [("ack", 1)] == publisher.outcomes
    assert [plan.block.key for plan in first.durable.plans] == second.durable.deletes
    assert [] == second.durable.plans


def test_the_next_batch_is_cut_while_one_is_on_its_way_to_a_log(journal, queue, publisher):
    """Both are settled in order, each with its own callbacks, and ends of the first are in the second."""
    journal.is_logged_first = True
    called: list[int] = []
    entries = [queue.take(message(publisher, 1), 1)]
    journal.when_safe(lambda _: called.append(1))
    first = journal.cut()
    entries.append(queue.take(message(publisher, 2), 2))
    queue.settle(entries[0])
    journal.when_safe(lambda _: called.append(2))
    second = journal.cut(0)
    journal.when_safe(lambda _: called.append(3))

    assert [plan.block.key for plan in first.durable.plans] == second.durable.deletes
    assert (first, second) == (journal.in_flight, journal.following)
    assert entries[1:] == list(journal.unwritten_of(queue))[1:]
    assert [GONE, WRITING] == [entry.state for entry in entries]
    assert first is journal.settled()
    assert ([1], second, None) == (called, journal.in_flight, journal.following)
    assert second is journal.settled()
    assert ([1, 2, 3], [("ack", 1), ("ack", 2)]) == (called, publisher.outcomes)
    journal.applied()
    journal.applied()
    assert (0, 0, 0) == (journal.octets_in_flight, journal.octets_unapplied, journal.records_in_flight)


def test_callbacks_of_both_batches_wait_for_an_end_that_is_noted_late(journal, queue, publisher):
    """The end of a record of the first is noted when that is settled, and so written by the third."""
    journal.is_logged_first = True
    called: list[int] = []
    entry = queue.take(message(publisher, 1), 1)
    entry.evict = True
    queue.logged = lambda entries: [journal.delete_late(each) for each in entries]  # type: ignore[attr-defined]
    for number in (1, 2):
        journal.when_safe(lambda _, number=number: called.append(number))  # type: ignore[misc]
        journal.cut(0)
        queue.take(message(publisher, 2), 2)
    journal.settled()
    journal.settled()

    assert [] == called
    assert journal.cut(0).durable.deletes
    journal.settled()
    assert [1, 2] == called


def test_part_of_a_block_is_marked(journal: Journal, queue: FakeQueue, publisher: Publisher) -> None:
    """Records that died are bits in the block's bitmap, which is written as a whole each time."""
    entries = [queue.take(message(publisher, seq_id), seq_id) for seq_id in range(10)]
    key = entries[0]
    journal.cut()
    journal.settled()
    queue.settle(entries[3])

    assert [(key.block.key, pack_bits(key.block.key, 10, 1 << 3))] == journal.cut().durable.marks

    journal.settled()
    queue.settle(entries[9])

    assert [(key.block.key, pack_bits(key.block.key, 10, 1 << 3 | 1 << 9))] == journal.cut().durable.marks


def test_rows_count_as_backlog(journal: Journal) -> None:
    """Rows written and rows deleted count as octets that wait for the disk, until they are committed."""
    journal.put("defs", b"k", b"v" * 100)
    journal.delete("defs", b"l")
    waiting = journal.octets
    journal.cut()

    assert 2 * ROW_OCTETS + 100 == waiting
    assert (0, waiting) == (journal.octets, journal.octets_in_flight)


def test_a_cut_takes_everything(journal: Journal, publisher: Publisher) -> None:
    """All queues, rows, sweeps and waiters of a turn are in one batch."""
    queues = [FakeQueue(journal, qid) for qid in (1, 2)]
    for each in queues:
        each.take(message(publisher, each.qid), 5)
    results: list[bool] = []
    journal.put("defs", b"k", b"v")
    journal.delete("defs", b"l")
    journal.sweep(3, 0, 9)
    journal.when_safe(results.append)

    assert journal.urgent

    batch = journal.cut()

    assert [1, 2] == [plan.block.qid for plan in batch.durable.plans]
    assert [("defs", b"k", b"v"), ("defs", b"l", None)] == batch.rows
    assert [(3, 0, 9)] == batch.durable.sweeps == batch.paged.sweeps
    assert not journal.has_work
    assert [] == results

    journal.settled()

    assert [True] == results


def test_waiting_for_nothing(journal: Journal) -> None:
    """A wait with nothing noted and nothing under way ends at once; with a commit under way, after that."""
    results: list[bool] = []
    journal.when_safe(results.append)

    assert [True] == results

    journal.put("defs", b"k", b"v")
    journal.cut()
    journal.when_safe(results.append)

    assert [True] == results

    journal.settled()

    assert [True, True] == results


def test_a_full_disk_refuses_and_notes_again(journal, queue, publisher):
    """Publishers are refused once and never accepted afterwards; everything is in the next batch again."""
    results: list[bool] = []
    stored = queue.take(message(publisher, 1), 1)
    queue.take(message(publisher, 2), 2)
    journal.cut()
    journal.settled()
    queue.settle(stored)
    entry = queue.take(message(publisher, 3), 3)
    journal.put("defs", b"k", b"v")
    journal.when_safe(results.append)
    first = journal.cut()
    journal.settled(DiskFullError("full"))

    assert ("nack", 3) == publisher.outcomes[-1]
    assert [False] == results
    assert NEW == entry.state

    second = journal.cut()

    assert first.durable.marks == second.durable.marks
    assert first.rows == second.rows
    assert [3] == [each.seq_id for each in second.durable.plans[0].entries]

    journal.settled()

    assert ("nack", 3) == publisher.outcomes[-1]
    assert STORED == entry.state


def test_deletions_that_were_done_are_not_noted_again(journal, queue, publisher):
    """A full disk that took at least the deletions leaves the next batch only the data that were to be written."""
    stored = queue.take(message(publisher), 1)
    journal.cut()
    journal.settled()
    queue.settle(stored)
    journal.sweep(9, 0, 1)
    queue.take(message(publisher, 2), 2)
    journal.cut()
    journal.settled(DiskFullError("full", durable=Done.DELETIONS, paged=Done.DELETIONS))
    batch = journal.cut()

    assert 1 == len(batch.durable.plans)
    assert not batch.durable.deletes
    assert not batch.durable.sweeps


def test_what_died_in_a_failed_batch_was_never_there(journal, queue, publisher):
    """An entry that is settled while its commit fails is neither written again nor deleted."""
    entry = queue.take(message(publisher), 1)
    journal.cut()
    queue.settle(entry)
    journal.settled(DiskFullError("full"))
    batch = journal.cut()

    assert not batch.needs_sync
    assert [("ack", 1)] == publisher.outcomes


@pytest.mark.parametrize("durable", [Done.NOTHING, Done.DELETIONS])
def test_a_delivery_count_goes_with_a_message_that_died_in_a_failed_batch(journal, queue, publisher, durable):
    """A delivery count waits for the message's next commit while there will be one, and no longer."""
    entries = [queue.take(message(publisher, seq_no), seq_no) for seq_no in (1, 2)]
    queue.journal_returns.update({1: 3, 2: 4})
    journal.cut()
    queue.settle(entries[0])
    journal.settled(DiskFullError("full", durable=durable))

    assert {2: 4} == queue.journal_returns

    journal.cut()
    journal.settled()

    assert {} == queue.journal_returns
    assert {entries[1].index: 4} == entries[1].block.returns


def test_large_and_shared_bodies_are_written_once(journal: Journal, publisher: Publisher) -> None:
    """A body of size times copies at or above the limit has one row, and a count of those who refer to it."""
    queues = [FakeQueue(journal, qid) for qid in (1, 2, 3)]
    shared = message(publisher, size=17, copies=3)
    entries = [each.take(shared, 1) for each in queues]
    queues[0].take(message(publisher, 2, size=49), 2)
    queues[2].settle(entries[2])
    batch = journal.cut()

    assert [(100, shared.content)] == batch.durable.bodies
    assert [(100).to_bytes(8, "big")] == [key for key, _ in batch.durable.refs]
    assert [(2).to_bytes(4, "big")] == [count for _, count in batch.durable.refs]
    assert [100, 100] == [each.msg_id for each in entries[:2]]

    journal.settled()

    assert [("ack", 2), ("ack", 1)] == sorted(publisher.outcomes, reverse=True)

    queues[0].settle(entries[0])

    assert [100] == journal.cut().durable.unrefs


@pytest.mark.parametrize(
    ("size", "copies", "is_apart"), [(49, 1, False), (50, 1, True), (24, 2, False), (25, 2, True)]
)
def test_a_body_at_the_limit_is_apart(journal, publisher, size, copies, is_apart):
    """`queue_index_embed_msgs_below` is the first size times copies that is not embedded."""
    shared = message(publisher, size=size, copies=copies)
    for qid in range(1, copies + 1):
        FakeQueue(journal, qid).take(shared, 1)

    assert is_apart == bool(journal.cut().durable.bodies)


def test_numbers_of_bodies_never_repeat_after_a_failure(journal, queue, publisher):
    """A body that was not written gets a new number when it is tried again."""
    queue.take(message(publisher, size=60), 1)
    first = journal.cut()
    journal.settled(DiskFullError("full"))
    second = journal.cut()

    assert [100] == [msg_id for msg_id, _ in first.durable.bodies]
    assert [101] == [msg_id for msg_id, _ in second.durable.bodies]


def test_a_file_comes_before_its_record(journal: Journal, publisher: Publisher) -> None:
    """A body's file makes the records of all copies urgent once it is there; its row says it is in a file."""
    queues = [FakeQueue(journal, qid) for qid in (1, 2)]
    large = message(publisher, size=1000, copies=2)
    entries = [Entry(1, large, 1000, durable=True) for _ in queues]
    for each, entry in zip(queues, entries, strict=True):
        journal.write_blob(each, entry, large)

    assert [100] == list(journal.files)
    assert not journal.has_work
    assert journal.file_written(100)
    assert journal.urgent

    batch = journal.cut()

    assert [(100, b"")] == batch.durable.bodies
    assert 1 == len(batch.durable.refs)
    assert 2 == len(batch.durable.plans)


def test_a_file_that_nobody_needs(journal: Journal, queue: FakeQueue, publisher: Publisher) -> None:
    """A message settled before its file is there has no record and no count; settled before the cut, no file."""
    for settle_first in (True, False):
        large = message(publisher, size=1000)
        entry = Entry(1, large, 1000, durable=True)
        journal.write_blob(queue, entry, large)
        msg_id = large.msg_id
        if settle_first:
            queue.journal_returns[1] = 1
            queue.settle(entry)

        assert journal.file_written(msg_id) is not settle_first
        assert {} == queue.journal_returns

        if not settle_first:
            queue.settle(entry)

            assert [msg_id] == journal.cut().durable.unrefs


def test_a_file_without_room(journal: Journal, queue: FakeQueue, publisher: Publisher) -> None:
    """A publisher without room for its file is refused, and the file is still to be written."""
    large = message(publisher, size=1000)
    journal.write_blob(queue, Entry(1, large, 1000, durable=True), large)
    journal.file_failed(100)

    assert [("nack", 1)] == publisher.outcomes
    assert [100] == list(journal.files)


def test_a_copy_that_died_in_a_failed_batch_takes_nothing_from_the_others(journal, publisher):
    """The body in the file keeps its number, so the end of the copy that was not written must not be counted."""
    queues = [FakeQueue(journal, qid) for qid in (1, 2)]
    large = message(publisher, size=1000, copies=2)
    entries = [Entry(1, large, 1000, durable=True) for _ in queues]
    for each, entry in zip(queues, entries, strict=True):
        journal.write_blob(each, entry, large)
    journal.file_written(100)
    journal.cut()
    queues[0].settle(entries[0])
    journal.settled(DiskFullError("full"))
    batch = journal.cut()

    assert [(100, b"")] == batch.durable.bodies
    assert [] == batch.durable.refs
    assert [] == batch.durable.unrefs


def test_a_file_goes_whose_queue_was_deleted_in_a_failed_batch(journal, queue, publisher):
    """A body's file is removed if its message ended with its queue while the commit of its record failed."""
    large = message(publisher, size=1000)
    entry = Entry(1, large, 1000, durable=True)
    journal.write_blob(queue, entry, large)
    journal.file_written(100)
    journal.cut()
    entry.state = GONE
    large.accepted()
    journal.sweep(queue.qid, 0, 1)
    journal.settled(DiskFullError("full"))

    assert [100] == journal.cut().durable.unrefs


def test_bodies_of_what_moved_lose_their_references_after_a_full_disk(journal, queue, publisher):
    """Ends that found no room lose no reference to those that are noted meanwhile, nor the other way round."""
    entries = [queue.take(message(publisher, number, size=60), number) for number in (1, 2, 3)]
    journal.cut()
    journal.settled()
    journal.dead(entries[0], moved=True)
    journal.cut()
    journal.dead(entries[1], moved=True)
    journal.settled(DiskFullError("full"))
    batch = journal.cut()

    assert batch.durable.moves is not None
    assert [100, 101] == sorted(batch.durable.moves.unrefs)


def test_what_ended_is_not_lost_with_its_file(journal, queue, publisher):
    """Messages whose file is not written count as unwritten unless they have ended."""
    large = [message(publisher, number, size=1000) for number in (1, 2)]
    entries = [Entry(number, each, 1000, durable=True) for number, each in enumerate(large)]
    for entry, each in zip(entries, large, strict=True):
        journal.write_blob(queue, entry, each)
    queue.settle(entries[0])

    assert (1, 0) == journal.unwritten()


def test_bodies_are_dropped_after_the_commit(journal, queue, publisher):
    """An entry that shall be evicted is handed to its queue when it is on disk, not before."""
    entry = queue.take(message(publisher), 1)
    entry.evict = True
    journal.cut()

    assert [] == queue.evicted

    journal.settled()

    assert [entry] == queue.evicted


def test_paged_entries_of_a_failed_batch(journal: Journal, queue: FakeQueue, publisher: Publisher) -> None:
    """Transient messages paged before the durable part failed are not written twice."""
    paged = Entry(1, message(publisher), 10, durable=False)
    queue.journal_paged.append(paged)
    entry = queue.take(message(publisher, 2), 2)
    journal.cut()
    journal.settled(DiskFullError("full", paged=Done.ALL))

    assert STORED == paged.state
    assert NEW == entry.state
    assert not journal.cut().paged


def test_transient_messages_without_room_stay_in_memory(journal, queue, publisher):
    """Durable data are safe and reported so; messages that could not be paged are no work until the next try."""
    results: list[bool] = []
    needed, settled = [Entry(seq_id, message(publisher), 10, durable=False) for seq_id in (1, 2)]
    queue.journal_paged += [needed, settled]
    entry = queue.take(message(publisher, 3), 3)
    journal.when_safe(results.append)
    journal.cut()
    journal.settled(DiskFullError("full", durable=Done.ALL))

    assert STORED == entry.state
    assert ([("ack", 3)], [True]) == (publisher.outcomes, results)
    assert (NEW, NEW) == (needed.state, settled.state)
    assert (1, 1, 0) == (journal.commits, journal.written, journal.paged_out)
    assert (True, False) == (journal.has_unpaged, journal.has_work)

    settled.state = GONE
    again = journal.cut()

    assert not journal.has_unpaged
    assert [1] == [each.seq_id for each in again.paged.plans[0].entries]

    journal.settled()

    assert STORED == needed.state
    assert 1 == journal.paged_out


def test_deletions_of_transient_messages_without_room(journal, queue, publisher):
    """Messages that could not be deleted are deleted later, once, and from the paged environment alone."""
    paged = [Entry(seq_id, message(publisher), 10, durable=False) for seq_id in (1, 2)]
    queue.journal_paged += paged
    journal.touch(queue)
    journal.cut()
    journal.settled()
    journal.dead(paged[0])
    journal.sweep(9, 0, 1)
    journal.cut()
    journal.settled(DiskFullError("full", durable=Done.ALL))

    assert (True, False) == (journal.has_unpaged, journal.has_work)

    journal.dead(paged[1])
    journal.touch(queue)
    batch = journal.cut(0)

    assert not batch.paged
    assert not batch.pages

    journal.settled()

    assert (True, False) == (journal.has_unpaged, journal.has_work)

    journal.cut()
    journal.settled(DiskFullError("full", durable=Done.NOTHING))
    batch = journal.cut()

    assert 1 == len(batch.paged.deletes)
    assert [(9, 0, 1)] == batch.paged.sweeps
    assert not batch.needs_sync

    journal.settled()

    assert (False, False) == (journal.has_unpaged, journal.has_work)


def test_ended_messages_of_a_failed_batch_are_found_at_once(journal, queue, publisher):
    """The cost of each message of a batch without room does not depend on how many ended in its block."""

    def seconds(segment: int) -> float:
        queue.segment = segment
        entries = [Entry(seq_id, message(publisher), 10, durable=False) for seq_id in range(8192)]
        queue.journal_paged += entries
        journal.touch(queue)
        journal.cut()
        for entry in reversed(entries):
            journal.dead(entry)
        began = thread_time()
        journal.settled(DiskFullError("full", paged=Done.NOTHING))
        taken = thread_time() - began
        journal.cut()
        journal.settled()
        return taken

    short, long = (min(seconds(segment) for _ in range(3)) for segment in (64, 1024))

    assert long < 4 * short


def test_without_room_for_either(journal: Journal, queue: FakeQueue, publisher: Publisher) -> None:
    """Sweeps that neither environment has carried out are noted once, for both."""
    journal.sweep(9, 0, 1)
    queue.take(message(publisher), 1)
    for _ in range(3):
        journal.cut()
        journal.settled(DiskFullError("full"))
    batch = journal.cut()

    assert ([(9, 0, 1)], [(9, 0, 1)]) == (batch.durable.sweeps, batch.paged.sweeps)


def test_transient_messages_are_paged_little_by_little(journal: Journal, publisher: Publisher) -> None:
    """A cut takes as many octets as it may, one message at least; ended messages are forgotten everywhere."""
    queues = [FakeQueue(journal, qid) for qid in (1, 2)]
    large = Entry(1, message(publisher), 5000, durable=False)
    small = [Entry(seq_id, message(publisher), 100, durable=False) for seq_id in range(1, 31)]
    queues[0].journal_paged.append(large)
    queues[1].journal_paged += small
    for each in queues:
        journal.touch(each)

    def page(octets: float) -> list[int]:
        batch = journal.cut(octets)
        journal.settled()
        return [len(plan.entries) for plan in batch.paged.plans]

    assert [] == page(0)
    five = 5 * (100 + OVERHEAD)
    assert ([1], [5]) == (page(five), page(five))
    assert 25 * (100 + OVERHEAD) == journal.octets_to_page

    for entry in small[7:]:
        entry.state = GONE

    assert [1] == page(1)
    assert [small[6]] == queues[1].journal_paged
    assert [1] == page(five)
    assert not journal.has_unpaged


def test_ends_of_paged_messages_wait_for_a_cut_that_pages(journal, queue, publisher):
    """The end of a paged message is in the next batch that pages, however many that do not come before it."""
    entry = Entry(1, message(publisher), 100, durable=False)
    queue.journal_paged.append(entry)
    journal.touch(queue)
    journal.cut()
    journal.settled()
    journal.dead(entry)
    for _ in range(2):
        assert not journal.cut(0).paged
        journal.settled()
        assert journal.has_unpaged

    assert 1 == len(journal.cut().paged.deletes)


def test_what_is_too_large_to_be_paged_keeps_no_other_queue_waiting(journal, publisher):
    """A queue that found no room is behind the others the next time."""
    queues = [FakeQueue(journal, qid) for qid in (1, 2)]
    for each, size in zip(queues, (5000, 100), strict=True):
        each.journal_paged.append(Entry(1, message(publisher), size, durable=False))
        journal.touch(each)

    def page() -> list[int]:
        batch = journal.cut(500)
        found = [queue.qid for queue, _ in batch.entries]
        journal.settled(DiskFullError("full", durable=Done.ALL) if 1 in found else None)
        return found

    assert [[1], [2], [1]] == [page(), page(), page()]


def test_a_queue_that_has_nothing_to_page_any_more_takes_no_room(journal, publisher):
    """A queue whose messages have all ended leaves its room to the next one, which is paged by the same commit."""
    ended, needed = [FakeQueue(journal, qid) for qid in (1, 2)]
    for each in (ended, needed):
        each.journal_paged.append(Entry(1, message(publisher), 100, durable=False))
        journal.touch(each)
    journal.cut(0)
    journal.settled()
    ended.journal_paged[0].state = GONE
    batch = journal.cut(500)

    assert ([2], False) == ([queue.qid for queue, _ in batch.entries], journal.has_unpaged)


def test_sweeps_of_queues_that_never_paged(journal: Journal) -> None:
    """Sweeps of queues that never paged concern the durable environment alone."""
    journal.sweep(9, 0, 1, paged=False)
    batch = journal.cut()

    assert ([(9, 0, 1)], []) == (batch.durable.sweeps, batch.paged.sweeps)


def test_a_probe_is_written_once(journal: Journal) -> None:
    """A probe is one row, however often there is no room; a row that waits anyway serves as one."""
    for _ in range(3):
        journal.probe()
        batch = journal.cut()
        journal.settled(DiskFullError("full"))

    assert [("meta", b"room", b"")] == batch.rows

    journal.cut()
    journal.settled()
    journal.put("defs", b"k", b"v")
    journal.probe()

    assert [("defs", b"k", b"v")] == journal.cut().rows


def test_what_is_noted_at_the_beginning_of_a_cut_is_in_it(journal: Journal) -> None:
    """A callback counts as work, is called once, and what it notes is in the batch."""
    assert journal.before_cut(lambda: journal.put("meta", b"key", b"value"))
    assert journal.has_work
    first = journal.cut()
    journal.settled()

    assert ([("meta", b"key", b"value")], False) == (first.rows, journal.has_work)
    assert [] == journal.cut().rows


def test_a_cut_begins_with_so_many_callbacks_only(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is refused until they were called."""
    monkeypatch.setattr(module, "MOST_BEFORE_CUT", 2)
    called: list[int] = []
    taken = [journal.before_cut(partial(called.append, number)) for number in range(3)]
    journal.cut()
    journal.settled()

    assert ([True, True, False], [0, 1]) == (taken, called)
    assert journal.before_cut(list)


@pytest.mark.parametrize("has_room", [True, False])
def test_who_waits_for_everything_waits_for_files(journal, queue, publisher, has_room):
    """Whoever waits until all is safe is called when the files are there and committed, or one found no space."""
    called: list[bool] = []
    large = [message(publisher, number, size=1000) for number in (1, 2)]
    entries = [Entry(number, each, 1000, durable=True) for number, each in enumerate(large)]
    for entry, each in zip(entries, large, strict=True):
        journal.write_blob(queue, entry, each)
    journal.when_all_safe(called.append)
    first, second = journal.files
    journal.file_written(first)
    journal.cut()
    journal.settled()

    assert [] == called

    if has_room:
        journal.file_written(second)
        assert [] == called
        journal.cut()
        journal.settled()
    else:
        journal.file_failed(second)

    assert [has_room] == called
    assert ([] if has_room else [entries[1]]) == queue.without_room
