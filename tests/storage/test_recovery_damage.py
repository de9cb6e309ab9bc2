"""What a start, a stop and a commit do about blocks and bitmaps that have changed on disk."""

from pathlib import Path

import pytest

from storage.damage import BITMAP, BLOCK
from storage.environment import Environment
from storage.invariants import check
from storage.journal import Journal
from storage.loading import LoadRequest
from storage.pager import Pager
from storage.recovery import recover, saved_rows
from storage.variable_queue import VariableQueue
from tests.stored import SEGMENT, Stored

FULL = SEGMENT
"""Messages of the first block; all but the first of them are settled."""
LATER = 2 * SEGMENT
"""Messages in blocks of their own, of one octet each."""


class Restarted:
    """The queue of a data directory after a start, without threads."""

    def __init__(self, environment: Environment, qid: int) -> None:
        self.environment = environment
        self.requests: list[LoadRequest] = []
        self.journal = Journal(environment.boot << 40)
        pager = Pager(self.journal, self.requests.append, segment=SEGMENT, damages=environment.damages)
        self.queue = VariableQueue(pager, qid, durable=True, next_seq=environment.boot << 40)
        self.found = recover(environment, {qid})[qid]
        found = self.found
        self.queue.recover(
            found.messages,
            found.first,
            found.stop,
            redelivered_below=found.redelivered_below,
            octets=found.octets,
        )

    def take(self, count: int) -> int:
        """Fetch and ack up to `count` messages, reading what is on disk; how many there were."""
        taken = 0
        while taken < count and self.queue.ready_count:
            batch = self.queue.fetch(count - taken, ack_required=True)
            self.queue.ack(batch.seq_ids)
            taken += len(batch.seq_ids)
            if not batch.seq_ids and not self.requests:
                break
            while self.requests:
                request = self.requests.pop(0)
                self.queue.loaded(request, self.environment.read(request.ranges, request.limit))
                check(self.queue)
        self.environment.commit(self.journal.cut())
        self.journal.settled()
        return taken


def flip(environment: Environment, table: str, at: int, rows: int = 1) -> None:
    """Change one bit of each of the first rows of a table."""
    db = environment.store.db[table]
    with environment.store.env.begin(write=True) as txn:
        for key, value in list(txn.cursor(db))[:rows]:
            octets = bytearray(value)
            octets[at] ^= 1
            txn.put(key, bytes(octets), db=db)


@pytest.fixture
def stopped(tmp_path: Path) -> tuple[Environment, int]:
    """A data directory after a clean stop, and the id of its queue of several blocks."""
    stored = Stored(tmp_path, "one")
    for _ in range(FULL):
        stored.publish("x" * 100, "one")
    stored.commit()
    for _ in range(LATER):
        stored.publish("y", "one")
    stored.commit()
    stored.take("one", FULL, 0)
    stored.commit()
    qid = stored.queues["one"].qid
    stored.close(clean=True)
    return Environment(tmp_path, sync=False), qid


def test_a_clean_start_counts_what_a_damaged_bitmap_brings_back(stopped):
    """All messages of the queue are delivered, also those behind the block, and the damage is noted."""
    environment, qid = stopped
    flip(environment, "acks", -1)

    restarted = Restarted(environment, qid)
    counted = restarted.found.messages, restarted.found.octets
    taken = restarted.take(1000)

    assert (FULL + LATER, 100 * FULL + LATER) == counted
    assert FULL + LATER == taken
    assert [(qid, BITMAP)] == [(each.qid, each.kind) for each in environment.damages.take()]
    environment.close()


def exchange(environment: Environment) -> None:
    """Have the first two bitmaps in each other's place, as whole pages may be."""
    db = environment.store.db["acks"]
    with environment.store.env.begin(write=True) as txn:
        (one, first), (two, second) = list(txn.cursor(db))[:2]
        txn.put(one, second, db=db)
        txn.put(two, first, db=db)


@pytest.mark.parametrize("at_start", [True, False])
def test_bitmaps_of_other_blocks_settle_nothing(tmp_path, at_start):
    """Where two bitmaps stand in each other's place, all messages of both blocks come back, and both are told."""
    stored = Stored(tmp_path, "one")
    for _ in range(2):
        for number in range(SEGMENT):
            stored.publish(f"{number:02}", "one")
        stored.commit()
    stored.take("one", 2 * SEGMENT, *range(3), *range(SEGMENT + 1, 2 * SEGMENT, 2))
    stored.commit()
    qid = stored.queues["one"].qid
    stored.close(clean=True)
    environment = Environment(tmp_path, sync=False)
    if at_start:
        exchange(environment)
    restarted = Restarted(environment, qid)
    if not at_start:
        exchange(environment)

    assert 2 * SEGMENT == restarted.take(1000)
    assert {BITMAP: 2} == {each.kind: 1 + each.others for each in environment.damages.take()}
    environment.close()


def test_a_damaged_bitmap_is_looked_at_by_one_start(stopped, caplog):
    """The start that finds it counts anew and removes it, even if it is killed at once; the next one takes what is saved."""
    environment, qid = stopped
    flip(environment, "acks", -1)
    found = []
    for is_stopped in (False, True, True):
        restarted = Restarted(environment, qid)
        found.append((environment.was_clean, restarted.found.messages))
        if is_stopped:
            environment.save(saved_rows([restarted.queue]))
        environment.close()
        environment = Environment(environment.data_dir, sync=False)

    assert [(True, FULL + LATER), (False, FULL + LATER), (True, FULL + LATER)] == found
    assert not list(environment.rows("acks"))
    environment.close()


def test_a_bitmap_that_is_damaged_after_a_clean_start_hides_nothing(tmp_path):
    """What it brings back takes no other message's place in the count, and it is told as what it is."""
    stored = Stored(tmp_path, "one")
    for _ in range(3):
        for number in range(FULL):
            stored.publish(f"{number:02}", "one")
        stored.commit()
    for number in range(LATER):
        stored.publish(f"{number:03}", "one")
    stored.commit()
    stored.take("one", 3 * FULL, 0, FULL, 2 * FULL)
    stored.commit()
    qid = stored.queues["one"].qid
    stored.close(clean=True)
    environment = Environment(tmp_path, sync=False)
    restarted = Restarted(environment, qid)
    queue = restarted.queue
    counted = queue.ready_count, sum(queue.ready_octets())
    flip(environment, "acks", -1, rows=3)

    taken = restarted.take(1000)

    assert (3 + LATER, 3 * 2 + 3 * LATER) == counted
    assert 3 * FULL + LATER == taken
    assert (0, 0, 0) == (queue.ready_count, queue.delta_count, queue.delta_twice)
    assert -2 * 3 * (FULL - 1) == queue.lost_octets
    assert {BITMAP: 3} == {each.kind: 1 + each.others for each in environment.damages.take()}
    environment.close()


def test_a_bitmap_that_memory_knows_brings_nothing_back(tmp_path):
    """Of a block that was read before, what is settled stays settled though its bitmap on disk is damaged."""
    stored = Stored(tmp_path, "one")
    for _ in range(SEGMENT):
        stored.publish("x", "one")
    stored.commit()
    qid = stored.queues["one"].qid
    stored.close(clean=True)
    environment = Environment(tmp_path, sync=False)
    restarted = Restarted(environment, qid)
    first = restarted.take(SEGMENT // 4)
    queue = restarted.queue
    entries = list(queue.q3)
    queue.q3.clear()
    queue._to_delta(entries)
    queue.delta_start, queue.delta_stop = entries[0].seq_id, entries[-1].seq_id + 1
    queue.delta_count, queue._ahead, queue._asked = len(entries), 0, False
    check(queue)
    flip(environment, "acks", -1)

    rest = restarted.take(1000)

    assert (SEGMENT // 4, SEGMENT - SEGMENT // 4) == (first, rest)
    assert not list(environment.rows("blocks"))
    assert {BITMAP} == {each.kind for each in environment.damages.take()}
    environment.close()


def test_a_clean_start_with_good_bitmaps_takes_what_was_saved(stopped):
    """What was never delivered is not marked as redelivered then."""
    environment, qid = stopped

    restarted = Restarted(environment, qid)

    assert (1 + LATER, 100 + LATER) == (restarted.found.messages, restarted.found.octets)
    assert restarted.found.stop - LATER == restarted.found.redelivered_below
    environment.close()


def test_a_queue_is_saved_whose_bitmap_was_damaged_while_the_broker_ran(stopped):
    """More octets leave it than were counted; it is saved with none instead of failing the stop."""
    environment, qid = stopped
    restarted = Restarted(environment, qid)
    flip(environment, "acks", -1)
    restarted.take(FULL)

    rows = saved_rows([restarted.queue])

    assert [qid.to_bytes(8, "big")] == [key for _, key, _ in rows]
    environment.close()


def test_a_commit_leaves_a_damaged_block_whose_bits_it_should_merge(tmp_path):
    """The commit goes through, and the damage is noted."""
    stored = Stored(tmp_path, "one")
    for number in range(SEGMENT):
        stored.publish(f"{number}", "one")
    stored.commit()
    flip(stored.environment, "blocks", 30)
    queue = stored.queues["one"]

    queue.ack(queue.fetch(1, ack_required=True).seq_ids, moved=True)
    stored.commit()

    damages = [(each.qid, each.kind) for each in stored.environment.damages.take()]
    assert [(queue.qid, BLOCK)] == damages
    stored.close()
