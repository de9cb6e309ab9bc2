"""Damage of blocks and bitmaps is handled by a start, a stop and a commit; a start reads the file ahead."""

import os
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from leveret.storage.damage import BITMAP, BLOCK
from leveret.storage.errors import StorageError
from leveret.storage.journal.blocks import pack_key
from leveret.storage.journal.journal import Journal
from leveret.storage.journal.reads import LoadRequest
from leveret.storage.journal.stream_rows import Segment
from leveret.storage.queues.backing_queue import Recovered
from leveret.storage.queues.invariants import check
from leveret.storage.queues.pager import Pager
from leveret.storage.queues.variable_queue import VariableQueue
from leveret.storage.store import recovery as module
from leveret.storage.store.environment import Environment
from leveret.storage.store.lmdb_environment import MAP_SIZE
from leveret.storage.store.recovery import PIECE, read_ahead, recover, saved_rows, visits_most
from leveret.storage.store.store_header import pack_number
from tests.samples.stored import SEGMENT, Stored

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
        self.queue.recover(self.found)

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
    """Swap the first two bitmaps, as whole pages may be swapped."""
    db = environment.store.db["acks"]
    with environment.store.env.begin(write=True) as txn:
        (one, first), (two, second) = list(txn.cursor(db))[:2]
        txn.put(one, second, db=db)
        txn.put(two, first, db=db)


@pytest.mark.parametrize("at_start", [True, False])
def test_bitmaps_of_other_blocks_settle_nothing(tmp_path, at_start):
    """Two bitmaps in each other's place settle nothing: all messages of both blocks come back, and both are reported."""
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
    """A damaged bitmap is removed and counted again by one start, even a killed one; the next takes saved data."""
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
    """Messages brought back take no other message's place in the count, and the damage is reported as what it is."""
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
    assert (0, 0, 0) == (queue.ready_count, queue.delta.count, queue.delta.twice)
    assert -2 * 3 * (FULL - 1) == queue.lost_octets
    assert {BITMAP: 3} == {each.kind: 1 + each.others for each in environment.damages.take()}
    environment.close()


def test_a_bitmap_that_memory_knows_brings_nothing_back(tmp_path):
    """Settled messages of a block that was read before stay settled though its bitmap on disk is damaged."""
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
    queue.delta.start, queue.delta.stop = entries[0].seq_id, entries[-1].seq_id + 1
    queue.delta.count, queue._ahead, queue._asked = len(entries), 0, False
    check(queue)
    flip(environment, "acks", -1)

    rest = restarted.take(1000)

    assert (SEGMENT // 4, SEGMENT - SEGMENT // 4) == (first, rest)
    assert not list(environment.rows("blocks"))
    assert {BITMAP} == {each.kind for each in environment.damages.take()}
    environment.close()


def test_a_clean_start_with_good_bitmaps_takes_what_was_saved(stopped):
    """Messages never delivered are not marked as redelivered then."""
    environment, qid = stopped

    restarted = Restarted(environment, qid)

    assert (1 + LATER, 100 + LATER) == (restarted.found.messages, restarted.found.octets)
    assert restarted.found.stop - LATER == restarted.found.redelivered_below
    environment.close()


def test_a_queue_is_saved_whose_bitmap_was_damaged_while_the_broker_ran(stopped):
    """A queue that more octets leave than were counted is saved with none instead of failing the stop."""
    environment, qid = stopped
    restarted = Restarted(environment, qid)
    flip(environment, "acks", -1)
    restarted.take(FULL)

    rows = saved_rows([restarted.queue])

    assert [qid.to_bytes(8, "big")] == [key for _, key, _ in rows]
    environment.close()


def test_a_commit_leaves_a_damaged_block_whose_bits_it_should_merge(tmp_path):
    """A commit on a damaged block goes through, and the damage is noted."""
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


def change(data_dir: Path, table: str, act: Callable[[dict[bytes, bytes]], None]) -> None:
    """Change the rows of a table of a stopped broker."""
    with lmdb.open(str(data_dir / "store"), map_size=MAP_SIZE, max_dbs=16, sync=False) as env:
        db = env.open_db(table.encode())
        with env.begin(write=True) as txn:
            rows = dict(txn.cursor(db))
            act(rows)
            txn.drop(db, delete=False)
            for row in rows.items():
                txn.put(*row, db=db)


def flip_in(name: bytes, at: int) -> Callable[[dict[bytes, bytes]], None]:
    """Changes one bit of a row, the first one for b""."""

    def act(rows: dict[bytes, bytes]) -> None:
        key = name or next(iter(rows))
        octets = bytearray(rows[key])
        octets[at] ^= 1
        rows[key] = bytes(octets)

    return act


def restarted(data_dir: Path, qid: int) -> tuple[Recovered, int]:
    """Return the state that a start finds of a queue, and the number of its messages that can be taken."""
    environment = Environment(data_dir, sync=False)
    again = Restarted(environment, qid)
    taken = again.take(1000)
    environment.close()
    return again.found, taken


@pytest.mark.parametrize("at", range(0, 45, 4))
@pytest.mark.parametrize("row", ["of the queue", "of the stop"])
def test_what_a_stop_saved_counts_only_if_it_is_whole(stopped, row, at, caplog):
    """A changed bit of the saved state has the messages looked through, as after any other end, and is logged."""
    environment, qid = stopped
    environment.close()
    act = flip_in(b"", at) if row == "of the queue" else flip_in(b"clean", at % 20)
    change(environment.data_dir, "queues" if row == "of the queue" else "meta", act)

    found, taken = restarted(environment.data_dir, qid)

    assert (1 + LATER, found.stop) == (taken, found.redelivered_below)
    assert "damaged" in caplog.text


def test_a_saved_row_that_is_missing_is_missed(stopped, caplog):
    """A queue whose row went with a page is looked for among the messages."""
    environment, qid = stopped
    environment.close()
    change(environment.data_dir, "queues", dict.clear)

    assert 1 + LATER == restarted(environment.data_dir, qid)[1]
    assert "0 queues instead of 1" in caplog.text


def test_what_an_earlier_stop_saved_is_not_believed(stopped, caplog):
    """A row that an earlier stop wrote does not count, though it is whole."""
    environment, qid = stopped
    earlier = dict(environment.rows("queues"))
    again = Restarted(environment, qid)
    again.take(5)
    environment.save(saved_rows([again.queue]))
    environment.close()
    change(environment.data_dir, "queues", lambda rows: rows.update(earlier))

    assert 1 + LATER - 5 == restarted(environment.data_dir, qid)[1]
    assert "damaged" in caplog.text


@pytest.mark.parametrize("at", range(12))
def test_a_damaged_sweep_deletes_nothing(stopped, at, caplog):
    """A damaged sweep is forgotten by the start: what it should have deleted comes back, and all else is there."""
    environment, qid = stopped
    environment.close()

    def act(rows: dict[bytes, bytes]) -> None:
        rows[pack_key(qid, 0)] = pack_number(pack_key(qid, 0), 1)
        flip_in(pack_key(qid, 0), at)(rows)

    change(environment.data_dir, "sweeps", act)
    found, taken = restarted(environment.data_dir, qid)

    assert (1 + LATER, found.stop) == (taken, found.redelivered_below)
    assert "1 pending deletions are damaged" in caplog.text


@pytest.mark.parametrize("at", range(12))
def test_a_start_with_a_damaged_count_of_starts_is_refused(stopped, at):
    """A damaged number of starts is an error: ids are made of it, and one given twice would mix up messages."""
    environment, _ = stopped
    environment.close()
    change(environment.data_dir, "meta", flip_in(b"boot", at))

    with pytest.raises(StorageError, match="damaged: the counter of starts"):
        Environment(environment.data_dir, sync=False)


def test_data_that_do_not_say_anything_of_themselves_are_refused(stopped):
    """Data without the rows that name the format and count the starts are not taken for a new directory."""
    environment, _ = stopped
    environment.close()
    change(environment.data_dir, "meta", dict.clear)

    with pytest.raises(StorageError, match="damaged: the counter of starts"):
        Environment(environment.data_dir, sync=False)


def test_a_damaged_span_is_measured_anew(stopped, caplog):
    """A damaged span is measured again from the blocks."""
    environment, _ = stopped
    span = environment.store.span
    environment.close()
    change(environment.data_dir, "meta", flip_in(b"span", 7))

    again = Environment(environment.data_dir, sync=False)

    assert SEGMENT - 1 < again.store.span <= span
    assert "the span of blocks is damaged" in caplog.text
    again.close()


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A file of three pieces and a half, and the parts of it that are read; none is in the page cache."""
    path = tmp_path / "data"
    path.write_bytes(bytes(3 * PIECE + PIECE // 2))
    parts = []
    real = os.pread

    def pread(descriptor, octets, at):
        parts.append((at, octets))
        return real(descriptor, octets, at)

    monkeypatch.setattr(os, "pread", pread)
    monkeypatch.setattr(module, "_is_cached", lambda _, at: False)
    return path, parts


def test_a_file_is_read_whole_from_front_to_back(made):
    """All of a file is read, in pieces, in their order."""
    path, parts = made

    assert 3 * PIECE + PIECE // 2 == read_ahead(path)
    assert [(at * PIECE, PIECE) for at in range(3)] + [(3 * PIECE, PIECE // 2)] == parts


def test_no_more_is_read_than_memory_can_keep(made):
    """Reading stops after so many octets."""
    path, parts = made

    assert 2 * PIECE == read_ahead(path, 2 * PIECE)
    assert 2 == len(parts)


def test_what_is_in_memory_is_not_read(made, monkeypatch):
    """Pieces that the page cache has are left out."""
    path, parts = made
    monkeypatch.setattr(module, "_is_cached", lambda _, at: at != PIECE)

    assert PIECE == read_ahead(path)
    assert [(PIECE, PIECE)] == parts


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="only Linux tells what its page cache has")
def test_a_file_that_was_just_written_is_in_memory(tmp_path):
    """Nothing is read of a file that a broker has just written."""
    path = tmp_path / "data"
    path.write_bytes(os.urandom(2 * PIECE))

    assert 0 == read_ahead(path)


def test_holes_are_not_read(tmp_path):
    """A part of a file that was never written, or was given back, takes neither time nor memory."""
    path = tmp_path / "data"
    with path.open("wb") as file:
        file.truncate(1 << 40)

    assert 0 == read_ahead(path)


def test_a_file_that_is_mostly_a_stream_is_not_read_ahead() -> None:
    """A start after a kill reads ahead only if it visits at least half of the file: segments are mostly skipped."""
    rows = [
        Segment(0, 1, 0),
        Segment(10, 1, 600),
        Segment(20, 1, 700, has_references=True),
        Segment(30, 1, 2000),
    ]
    assert not visits_most(1300, {7: rows})
    assert visits_most(1400, {7: rows})
    assert visits_most(0, {})
