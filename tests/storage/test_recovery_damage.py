"""What a start, a stop and a commit do about blocks and bitmaps that have changed on disk."""

from pathlib import Path

import pytest

from storage.damage import BITMAP, BLOCK
from storage.environment import Environment
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
        pager = Pager(self.journal, self.requests.append, segment=SEGMENT)
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
        self.environment.commit(self.journal.cut())
        self.journal.settled()
        return taken


def flip(environment: Environment, table: str, at: int) -> None:
    """Change one bit of the first row of a table."""
    db = environment.store.db[table]
    with environment.store.env.begin(write=True) as txn:
        key, value = next(iter(txn.cursor(db)))
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
