"""The records of a commit on disk, and their way back, also by a snapshot of one moment."""

import errno
import os
import re
import threading
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lmdb
import pytest
from checks.internals import has_unfinished, stored_body
from samples.writer import ADDRESS, QID, Writer, seq_ids

from leveret.storage.damage import BODY, FILE, MISSING_BODY, MISSING_FILE
from leveret.storage.errors import DamagedError, DiskFullError, Done, StorageError, UnknownFormatError
from leveret.storage.journal.batch import body_checksum
from leveret.storage.journal.blocks import LAST_SEQ_ID, read_bitmap, read_header, read_records
from leveret.storage.journal.journal import Journal
from leveret.storage.journal.reads import Range
from leveret.storage.message import Persistent
from leveret.storage.store import bodies as bodies_module, lmdb_environment as table_module
from leveret.storage.store.bodies import first_msg_id
from leveret.storage.store.environment import Environment
from leveret.storage.store.recovery import Recovered, recover
from leveret.storage.store.redo_log import ROW
from leveret.storage.store.store_header import STORE


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Environment]:
    made = Environment(tmp_path, sync=False)
    yield made
    made.close()


def rows(environment: Environment, *tables: str) -> int:
    return sum(len(list(environment.rows(table))) for table in tables)


# -- starting -----------------------------------------------------------------------------------------------------------


def test_starts_are_counted(tmp_path: Path) -> None:
    """Each start has a number of its own, also after one that did nothing."""
    boots = []
    for _ in range(3):
        made = Environment(tmp_path, sync=False)
        boots.append(made.boot)
        made.close()

    assert [1, 2, 3] == boots


@pytest.mark.parametrize("use", ["begin_use", "commit"])
def test_a_stop_is_clean_only_if_it_says_so(tmp_path: Path, use: str) -> None:
    """The first start is clean; after it one that saved, until a broker uses the data again."""
    clean = []
    for step in ("use", "save", "", "", "use", "save"):
        made = Environment(tmp_path, sync=False)
        clean.append(made.was_clean)
        if step == "use" and use == "commit":
            Writer(made).write(made.boot << 40)
        elif step == "use":
            made.begin_use()
        elif step == "save":
            made.save([])
        made.close()

    assert [True, False, True, True, True, False] == clean


def test_a_commit_of_definitions_alone_keeps_the_mark(tmp_path: Path) -> None:
    """Queue states saved at a clean stop stay valid while only definitions are written."""
    made = Environment(tmp_path, sync=False)
    made.save([])
    journal = Journal(1 << 40)
    journal.put("defs", b"key", b"value")
    made.commit(journal.cut())
    made.close()
    made = Environment(tmp_path, sync=False)

    assert made.was_clean

    made.close()


def test_files_have_nothing_of_the_memory_of_the_process(tmp_path: Path) -> None:
    """Pages are zero where they are not used: freed memory, in which passwords may have been, is not written."""
    made = Environment(tmp_path, sync=False)
    writer = Writer(made)
    left_over = b"left over in freed memory, "
    freed = [left_over * 150 + str(number).encode() for number in range(2000)]
    del freed
    for first in range(0, 500, 10):
        writer.write(*range(first, first + 10))
        writer.write(*range(first, first + 10), paged=True)
    journal = Journal(1 << 40)
    journal.put("defs", b"key", b"value")
    made.commit(journal.cut())
    made.close()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]

    assert len(files) > 2
    assert [] == [path for path in files if left_over in path.read_bytes()]


@pytest.mark.parametrize("row", ["1", "3 (needs leveret 9.9 or newer)"])
def test_another_format_is_refused(tmp_path: Path, row: str) -> None:
    """Data of an older or a newer format are left alone, with a text that says so."""
    made = Environment(tmp_path, sync=False)
    with made.store.env.begin(write=True) as txn:
        txn.put(b"format", row.encode(), db=made.store.db["meta"])
    made.close()
    before = (tmp_path / "store" / "data.mdb").read_bytes()
    with pytest.raises(UnknownFormatError, match=re.escape(f"format {row}, this version reads format 2")):
        Environment(tmp_path, sync=False)
    assert before == (tmp_path / "store" / "data.mdb").read_bytes()


def test_a_store_without_its_id_is_refused(tmp_path: Path) -> None:
    """Its files could not be told from those of another store."""
    made = Environment(tmp_path, sync=False)
    with made.store.env.begin(write=True) as txn:
        for name in (STORE, ROW):
            txn.delete(name, db=made.store.db["meta"])
    made.close()
    with pytest.raises(DamagedError, match="the id of the store is missing"):
        Environment(tmp_path, sync=False)


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    """A file that is no database is a StorageError."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "data.mdb").write_bytes(b"no database" * 1000)
    with pytest.raises(StorageError, match="cannot open the data"):
        Environment(tmp_path, sync=False)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, share: float) -> None:
    """A data file that lacks pages, or is empty beside other files of a store, is refused with what can be done."""
    made = Environment(tmp_path, sync=False)
    Writer(made).write(*range(500), size=1000)
    made.close()
    path = tmp_path / "store" / "data.mdb"
    octets = path.read_bytes()
    path.write_bytes(octets[: int(len(octets) * share) // 4096 * 4096])
    text = (
        "is missing or empty, and .*/blobs shows"
        if not share
        else r"is truncated: it has \d+ bytes and needs \d+"
    )
    with pytest.raises(StorageError, match=text + ".* Restore the data directory from a copy"):
        Environment(tmp_path, sync=False)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """Bodies without the data that refer to them are not taken for the first start, which would remove them."""
    Environment(tmp_path, sync=False).close()
    (tmp_path / "store" / "data.mdb").unlink()
    with pytest.raises(StorageError, match="is missing or empty"):
        Environment(tmp_path, sync=False)


def test_a_first_start_may_be_interrupted(tmp_path: Path) -> None:
    """A start that ended before it wrote anything leaves an empty file, and the next one is a first start again."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "data.mdb").touch()
    made = Environment(tmp_path, sync=False)

    assert (True, 1) == (made.was_clean, made.boot)

    made.close()


def test_paged_messages_are_gone_after_a_start(tmp_path: Path) -> None:
    """The environment of paged transient messages is created again by each start."""
    made = Environment(tmp_path, sync=False)
    Writer(made).write(1, 2, 3, paged=True)

    assert [1, 2, 3] == seq_ids(made.read([Range(QID, 0, 9)], 1 << 20))

    made.close()
    made = Environment(tmp_path, sync=False)

    assert [] == seq_ids(made.read([Range(QID, 0, 9)], 1 << 20))

    made.close()


# -- reading ------------------------------------------------------------------------------------------------------------


def test_blocks_of_both_environments_are_read(environment: Environment) -> None:
    """A range gets everything that lies in it, whichever environment has it and however blocks interleave."""
    writer = Writer(environment)
    writer.write(2, 5, 9)
    writer.write(3, 4, 8, paged=True)
    writer.write(6)
    writer.write(1, 7, paged=True)

    assert list(range(1, 10)) == seq_ids(environment.read([Range(QID, 1, 10)], 1 << 20))


@pytest.mark.parametrize("first", range(64))
def test_no_block_that_reaches_into_a_range_is_missed(environment: Environment, first: int) -> None:
    """A block may begin long before the range, with others between, and still hold something of it."""
    writer = Writer(environment)
    writer.write(0, 63)
    writer.write(20, 40)
    for seq_id in (10, 30, 50):
        writer.write(seq_id)
    found = seq_ids(environment.read([Range(QID, first, 64)], 1 << 20))

    assert {each for each in (0, 10, 20, 30, 40, 50, 63) if each >= first} <= set(found)


def test_reading_ends_when_it_is_enough(environment: Environment) -> None:
    """A range is cut where its blocks have enough octets; what is before the cut is complete, and there is some."""
    writer = Writer(environment)
    for first in (0, 10, 20):
        writer.write(*range(first, first + 10), size=200)
    writer.write(5, 40, paged=True)
    at, found = 0, []
    while at < 50:
        part = environment.read([Range(QID, at, 50)], 1)

        assert part.stop > at

        found += [each for each in seq_ids(part) if at <= each < part.stop]
        at = part.stop

    assert sorted([*range(30), 5, 40]) == sorted(found)


def test_gaps_are_skipped_at_once(environment: Environment) -> None:
    """A gap without blocks of a queue, as between two starts, is skipped: reading says where it goes on."""
    writer = Writer(environment)
    far = 3 << 40
    writer.write(1, far)
    Writer(environment, writer.journal, QID + 1).write(100)

    assert far == environment.read([Range(QID, 0, 64)], 1 << 20).stop
    assert far == environment.read([Range(QID, 64, 128)], 1 << 20).stop
    assert LAST_SEQ_ID == environment.read([Range(QID, far, far + 1)], 1 << 20).stop


def test_a_read_does_not_go_on_behind_a_block_that_crosses_its_end(environment: Environment) -> None:
    """A read that meets a block longer than its range ends with the range, where the next one begins."""
    Writer(environment).write(1, 2, 3, 4)

    assert 3 == environment.read([Range(QID, 0, 3)], 1 << 20).stop


def test_several_ranges_read_a_block_once(environment: Environment) -> None:
    """Single messages of one block are wanted: the block comes once."""
    Writer(environment).write(*range(10))
    found = environment.read([Range(QID, each, each + 1) for each in (1, 4, 7)], 1)

    assert 1 == len(found.blocks)


def test_bodies_are_read_with_their_records(environment: Environment) -> None:
    """Contents that lie apart come along, but only those of the range; missing ones are None."""
    writer = Writer(environment)
    entries = writer.write(1, 2, 3, size=400)
    with environment.store.env.begin(write=True) as txn:
        txn.delete(entries[1].msg_id.to_bytes(8, "big"), db=environment.store.db["bodies"])
    found = environment.read([Range(QID, 1, 3)], 1 << 20)

    assert {entries[0].msg_id: bytes(400), entries[1].msg_id: MISSING_BODY} == found.bodies


def test_damaged_bodies_are_missing(environment: Environment) -> None:
    """A content whose checksum is wrong is as good as none, in the table and in a file."""
    (entry,) = Writer(environment).write(1, size=400)
    key = entry.msg_id.to_bytes(8, "big")
    bodies = environment.store.db["bodies"]
    with environment.store.env.begin(write=True) as txn:
        value = txn.get(key, db=bodies)
        txn.put(key, value[:-1] + b"x", db=bodies)

    assert stored_body(environment, entry.msg_id) == BODY

    path = environment.bodies.path(entry.msg_id)
    with environment.store.env.begin(write=True) as txn:
        txn.put(key, bytes(4), db=bodies)

    assert stored_body(environment, entry.msg_id) == MISSING_FILE

    path.write_bytes(environment.bodies.checksum(entry.msg_id, b"large") + b"large")

    assert b"large" == stored_body(environment, entry.msg_id)

    path.write_bytes(environment.bodies.checksum(entry.msg_id, b"large") + b"largo")

    assert stored_body(environment, entry.msg_id) == FILE


def test_a_file_waits_for_a_descriptor_and_is_never_given_up(environment: Environment, monkeypatch) -> None:
    """Without file descriptors reading waits; a file that may not be read is an error, and no reason to lose a message."""
    (entry,) = Writer(environment).write(1, size=400)
    environment.bodies.write(entry.msg_id, b"large")
    with environment.store.env.begin(write=True) as txn:
        txn.put(entry.msg_id.to_bytes(8, "big"), bytes(4), db=environment.store.db["bodies"])
    errors = [errno.EMFILE, errno.ENFILE, errno.EACCES]
    opened = bodies_module.open_regular

    def failing(*arguments: object) -> object:
        if errors:
            raise OSError(errors.pop(0), "no")
        return opened(*arguments)

    monkeypatch.setattr(bodies_module, "open_regular", failing)
    monkeypatch.setattr(bodies_module, "_WAIT_SECONDS", 0.0)
    with pytest.raises(OSError, match="no"):
        stored_body(environment, entry.msg_id)

    assert b"large" == stored_body(environment, entry.msg_id)


# -- deleting -------------------------------------------------------------------------------------------------------------


def test_a_block_goes_with_its_last_record(environment: Environment) -> None:
    """Dead records are bits until all are dead; then neither block nor bitmap is left."""
    writer = Writer(environment)
    entries = writer.write(*range(10))
    writer.kill(*entries[:9])

    assert [9] == seq_ids(environment.read([Range(QID, 0, 64)], 1 << 20))
    assert 2 == rows(environment, "blocks", "acks")

    writer.kill(entries[9])

    assert 0 == rows(environment, "blocks", "acks")


def test_a_large_body_is_flushed_piece_by_piece(environment, monkeypatch):
    """A body is flushed piece by piece, 4 MiB at once at most: the flush of a commit waits for all of that."""
    flushed = [0]

    def note(descriptor: int) -> None:
        flushed.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fdatasync", note)
    content = os.urandom(1024) * (10 * 1024)
    environment.bodies.write(7, content)
    flushed.append(environment.bodies.path(7).stat().st_size)

    assert max(after - before for before, after in pairwise(flushed)) <= 4 * 1024 * 1024 + 4
    assert len(content) + 4 == flushed[-1]


def test_a_shared_body_goes_with_its_last_reference(environment: Environment) -> None:
    """A body's row stays as long as one record refers to it."""
    writers = [Writer(environment)]
    writers += [Writer(environment, writers[0].journal, QID + number) for number in (1, 2)]
    shared = Persistent(ADDRESS, bytes(200), 1, None, 0, 3)
    entries = [writer.note(shared, 7) for writer in writers]
    writers[0].commit()
    for writer, entry, left in zip(writers, entries, ((1, 1), (1, 0), (0, 0)), strict=True):
        assert bytes(200) == stored_body(environment, shared.msg_id)
        writer.kill(entry)

        assert left == (rows(environment, "bodies"), rows(environment, "refs"))


@pytest.mark.parametrize("between", ["commits", "restarts"])
def test_large_sweeps_go_in_steps(tmp_path: Path, between: str) -> None:
    """A sweep deletes so many blocks a commit; what is left is marked and goes on, also after a crash."""
    environment = Environment(tmp_path, sync=False)
    writer = Writer(environment)
    shared = Writer(environment, writer.journal, QID + 1)
    for number in range(20):
        message = Persistent(ADDRESS, bytes(200), 1, None, 0, 2)
        writer.note(message, 10 * number)
        writer.note(message, 10 * number + 1)
        writer.commit()
    shared.write(5)
    with patch.multiple(table_module, SWEEP_WORK=9, SWEEP_TIME=60.0):  # three blocks with two references each
        writer.journal.sweep(QID, 11, 181)
        writer.commit()
        steps = 1

        assert 1 == rows(environment, "sweeps")

        while has_unfinished(environment):
            steps += 1
            if between == "restarts":
                environment.close()
                environment = Environment(tmp_path, sync=False)
                writer = Writer(environment)
            writer.commit()

    assert 17 == pytest.approx(3 * steps, abs=3)
    assert 0 == rows(environment, "sweeps")
    assert [0, 1, 10, 181, 190, 191] == seq_ids(environment.read([Range(QID, 0, 500)], 1 << 20))
    assert [5] == seq_ids(environment.read([Range(QID + 1, 0, 500)], 1 << 20))
    assert 4 == rows(environment, "bodies")

    environment.close()


# -- a full disk ------------------------------------------------------------------------------------------------------------


def test_one_commit_sweeps_for_a_limited_time(environment: Environment) -> None:
    """A sweep whose blocks take long leaves the rest to later commits, and each of them deletes something."""
    writer = Writer(environment)
    for number in range(10):
        writer.write(number)
    writer.journal.sweep(QID, 0, LAST_SEQ_ID)
    left = [rows(environment, "blocks")]
    with patch.object(table_module, "monotonic", count(step=table_module.SWEEP_TIME / 2).__next__):
        while left[-1] and len(left) <= 10:
            environment.commit(writer.journal.cut())
            writer.journal.settled()
            left.append(rows(environment, "blocks"))

    assert {more - less for more, less in pairwise(left)} <= {1, 2}
    assert (0, 0) == (left[-1], rows(environment, "sweeps"))


def test_one_commit_deletes_so_much_however_many_queues_go(environment: Environment) -> None:
    """A commit waits for a bounded part of the sweeps of all queues, bodies of their own counted."""
    journal = Journal(first_msg_id=environment.boot << 40, embed_below=300)
    for number in range(6):
        writer = Writer(environment, journal, QID + number)
        for first in range(0, 40, 8):
            writer.write(*range(first, first + 8), size=400 if number % 2 else 10)
    before = rows(environment, "blocks", "bodies")
    for number in range(6):
        journal.sweep(QID + number, 0, LAST_SEQ_ID)
    with patch.multiple(table_module, SWEEP_WORK=10, SWEEP_TIME=60.0):
        left = [before]
        environment.commit(journal.cut())
        journal.settled()
        while left[-1]:
            left.append(rows(environment, "blocks", "bodies"))
            environment.commit(journal.cut())
            journal.settled()
    deleted = [more - less for more, less in pairwise(left)]

    assert max(deleted) <= 10 + 8  # and the rest of the block with which it is enough
    assert not has_unfinished(environment)
    assert 0 == rows(environment, "sweeps")


def test_a_full_disk_takes_at_least_the_deletions(environment: Environment) -> None:
    """A full disk takes the deletions but nothing new, and the environment goes on."""
    writer = Writer(environment)
    entries = writer.write(1, 2)
    writer.journal.dead(entries[0])
    writer.note(Persistent(ADDRESS, b"", 1, None, 0, 1), 3)
    batch = writer.journal.cut()
    environment.store.unlink = [77]
    with (
        patch.object(environment.store, "_widen_to", side_effect=lmdb.MapFullError("planted")),
        pytest.raises(DiskFullError) as caught,
    ):
        environment.commit(batch)

    assert (Done.DELETIONS, Done.ALL) == (caught.value.durable, caught.value.paged)
    assert [77] == caught.value.unlink  # which makes the room that the next one may need
    assert [2] == seq_ids(environment.read([Range(QID, 0, 9)], 1 << 20))

    writer.journal.settled(caught.value)
    writer.commit()

    assert [2, 3] == seq_ids(environment.read([Range(QID, 0, 9)], 1 << 20))


def without_room(writer: Writer, seq_id: int) -> None:
    """Commit what is noted and one more message, for which there is no space: only deletions get to the disk."""
    environment = writer.environment
    writer.note(Persistent(ADDRESS, b"", 1, None, 0, 1), seq_id)
    batch = writer.journal.cut()
    with (
        patch.object(environment.store, "_widen_to", side_effect=lmdb.MapFullError("planted")),
        pytest.raises(DiskFullError) as caught,
    ):
        environment.commit(batch)
    assert Done.DELETIONS is caught.value.durable
    writer.journal.settled(caught.value)


def stored(environment: Environment, qid: int = QID) -> list[tuple[int, bool]]:
    """Return the seq_id of each message of a queue, and whether its body is there."""
    found = environment.read([Range(qid, 0, 99)], 1 << 20)
    return [
        (record.seq_id, record.content is not None or isinstance(found.bodies[record.msg_id], bytes))
        for raw in found.blocks
        for header in (read_header(raw.key, raw.value),)
        for record in read_records(raw.value, header, read_bitmap(raw.dead, header).dead)
        if not isinstance(record, int)
    ]


@pytest.mark.parametrize("acked", [[0], [2], [0, 2], [0, 2, 3], []])
@pytest.mark.parametrize("moved_first", [False, True])
def test_what_moves_keeps_no_other_message_from_leaving_with_its_body(environment, acked, moved_first):
    """A message that moves stays until there is space; those acked beside it go, records and bodies alike."""
    writer = Writer(environment)
    entries = writer.write(1, 2, 3, 4, size=400)
    for which, moved in sorted([(acked, False), ([1], True)], reverse=moved_first, key=lambda each: each[1]):
        for number in which:
            writer.journal.dead(entries[number], moved=moved)
    left = [entry.seq_id for number, entry in enumerate(entries) if number not in acked]
    for seq_id in (5, 6):
        without_room(writer, seq_id)

        assert [(seq_id, True) for seq_id in left] == stored(environment)
        assert len(left) == rows(environment, "bodies")

    writer.commit()

    left.remove(2)
    assert [(seq_id, True) for seq_id in (*left, 5, 6)] == stored(environment)
    assert len(left) == rows(environment, "bodies")


@pytest.mark.parametrize("is_full", [True, False])
def test_what_moves_from_a_deleted_queue_leaves_it_once(environment: Environment, is_full: bool) -> None:
    """Without space a queue stays while messages move from it, and takes no body from other queues in the end."""
    writer = Writer(environment)
    other, target = [Writer(environment, writer.journal, QID + number) for number in (1, 2)]
    shared = Persistent(ADDRESS, bytes(200), 1, None, 0, 2)
    entry = writer.note(shared, 7)
    other.note(shared, 7)
    writer.commit()
    beside, _ = writer.write(70, 71)
    writer.journal.dead(beside)
    writer.journal.dead(entry, moved=True)
    writer.journal.sweep(QID, 0, LAST_SEQ_ID)
    writer.journal.sweep(QID + 3, 0, LAST_SEQ_ID)
    if is_full:
        without_room(target, 1)

        assert [(7, True), (71, True)] == stored(environment)

    writer.commit()

    assert ([], [(7, True)]) == (stored(environment), stored(environment, QID + 1))
    assert (1, 0) == (rows(environment, "bodies"), rows(environment, "refs"))
    assert 0 == rows(environment, "acks")


def test_no_room_for_transient_messages_is_no_concern_of_persistent_ones(environment: Environment) -> None:
    """Persistent messages are committed in the room of their own file if the transient ones' has none."""
    writer = Writer(environment)
    writer.journal.dead(writer.write(1)[0])
    writer.note(Persistent(ADDRESS, b"", 1, None, 0, 1), 2)
    writer.note(Persistent(ADDRESS, b"", 1, None, 0, 1), 3, paged=True)
    batch = writer.journal.cut()
    environment.store.unlink = [77]
    with (
        patch.object(environment.paged, "_widen_to", side_effect=lmdb.MapFullError("planted")),
        pytest.raises(DiskFullError, match="planted") as caught,
    ):
        environment.commit(batch)

    assert (Done.ALL, Done.DELETIONS) == (caught.value.durable, caught.value.paged)
    assert [2] == seq_ids(environment.read([Range(QID, 0, 9)], 1 << 20))

    assert [77] == caught.value.unlink

    writer.journal.settled(caught.value)

    assert [] == environment.commit(writer.journal.cut())
    assert [2, 3] == seq_ids(environment.read([Range(QID, 0, 9)], 1 << 20))


def test_another_error_is_not_taken_for_a_full_disk(environment: Environment) -> None:
    """An error not known to be want of room is passed on, for the broker to end."""
    writer = Writer(environment)
    writer.note(Persistent(ADDRESS, b"", 1, None, 0, 1), 3)
    with (
        patch.object(environment.store, "_widen_to", side_effect=lmdb.DiskError("Input/output error")),
        pytest.raises(lmdb.DiskError),
    ):
        environment.commit(writer.journal.cut())


# -- recovery -----------------------------------------------------------------------------------------------------------


def crash(environment: Environment) -> Environment:
    environment.close()
    return Environment(environment.data_dir, sync=False)


def test_a_crash_is_recovered_from_the_blocks(tmp_path: Path) -> None:
    """Counts and ranges are those of the records that are not dead; everything may have been delivered before."""
    environment = Environment(tmp_path, sync=False)
    writer = Writer(environment)
    entries = writer.write(*range(10, 20), body=33)
    writer.write(70, 71, body=33)
    writer.kill(*entries[:4])
    environment = crash(environment)

    assert {QID: Recovered(8, 10, 72, 8 * 33, 72)} == recover(environment, {QID, QID + 1})

    environment.close()


def test_what_belongs_to_no_queue_is_removed(tmp_path: Path) -> None:
    """Blocks, bodies and files that nothing refers to are gone after a dirty start, counts are right again."""
    environment = Environment(tmp_path, sync=False)
    writer = Writer(environment)
    Writer(environment, writer.journal, QID + 1).write(1, 2, size=400)
    kept = writer.write(5, size=400)[0]
    with environment.store.env.begin(write=True) as txn:
        txn.put((999).to_bytes(8, "big"), b"crc,orphan", db=environment.store.db["bodies"])
        txn.put((999).to_bytes(8, "big"), (2).to_bytes(4, "big"), db=environment.store.db["refs"])
        txn.put(kept.msg_id.to_bytes(8, "big"), (7).to_bytes(4, "big"), db=environment.store.db["refs"])
    (environment.blobs / f"{77:016x}").write_bytes(b"orphan")
    (environment.blobs / f"{78:016x}.part").write_bytes(b"half")
    environment = crash(environment)

    assert [QID] == list(recover(environment, {QID}))
    assert 1 == rows(environment, "blocks")
    assert [kept.msg_id.to_bytes(8, "big")] == [key for key, _ in environment.rows("bodies")]
    assert 0 == rows(environment, "refs")
    assert [] == list(environment.blobs.iterdir())

    environment.close()


def test_damage_is_reported_and_the_rest_recovered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged block costs its own messages, and the log says so."""
    environment = Environment(tmp_path, sync=False)
    writer = Writer(environment)
    damaged = writer.write(1, 2)[0]
    writer.write(3, 4)
    blocks = environment.store.db["blocks"]
    with environment.store.env.begin(write=True) as txn:
        value = txn.get(damaged.block.key, db=blocks)
        txn.put(damaged.block.key, value[:20] + b"\xff" + value[21:], db=blocks)
    environment = crash(environment)
    found = recover(environment, {QID})

    assert (2, 3) == found[QID][:2]
    assert "1 blocks are damaged" in caplog.text

    environment.close()


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("os.posix_fallocate", OSError(28, "No space left on device")),
        ("_begin", lmdb.DiskError("mdb_txn_commit: No space left on device")),
    ],
)
def test_a_disk_without_any_room_is_reported(tmp_path, what, error):
    """A start on a disk without room reports so, and nothing ends in a signal or stays open."""
    Environment(tmp_path, sync=False).close()
    target = Environment if what == "_begin" else os
    with (
        patch.object(target, what.removeprefix("os."), side_effect=error),
        pytest.raises(StorageError, match="No space left"),
    ):
        Environment(tmp_path, sync=False)

    again = Environment(tmp_path, sync=False)
    assert 2 == again.boot
    again.close()


def test_a_failed_transaction_is_forgotten(environment: Environment) -> None:
    """State of the tables in memory changed by a transaction is restored when that fails."""
    store = environment.store
    known = store.unfinished[:], store.unlink[:], store.span

    def fail() -> None:
        with store.writing():
            store.unfinished.append(Range(1, 2, 3))
            store.unlink.append(4)
            store.span *= 2
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()

    assert known == (store.unfinished, store.unlink, store.span)


def test_a_body_of_an_earlier_start_is_damage(environment: Environment) -> None:
    """The row of one body in place of another is not served, whichever starts have given their ids."""
    ids = [first_msg_id(boot) + 7 for boot in (1, 2, 3)]
    db = environment.store.db["bodies"]
    with environment.store.env.begin(write=True) as txn:
        for msg_id in ids:
            txn.put(msg_id.to_bytes(8, "big"), body_checksum(ids[2], b"content") + b"content", db=db)
    found = [stored_body(environment, msg_id) for msg_id in ids]

    assert [BODY, BODY, b"content"] == found


def test_a_snapshot_that_cannot_be_opened_holds_back_no_pages(tmp_path: Path) -> None:
    """If the second environment cannot be read, the transaction that was opened in the first one ends."""
    environment = Environment(tmp_path)
    environment.paged.env.close()
    with pytest.raises(StorageError) as caught:
        environment.snapshot()
    Writer(environment).write(1)

    assert 0 == environment.store.lag()
    assert caught.value.__traceback__ is not None  # which keeps all that the snapshot had opened

    environment.close()


def test_a_snapshot_that_is_closed_during_a_read_ends_with_the_read(tmp_path: Path, monkeypatch) -> None:
    """Whoever gives up waiting for a read, such as a request that takes too long, does not end what the read uses."""
    environment = Environment(tmp_path)
    Writer(environment).write(1)
    snapshot = environment.snapshot()
    begun, may_go_on = threading.Event(), threading.Event()
    read = environment.store.read

    def slow(*arguments: Any, **options: Any) -> Any:
        begun.set()
        assert may_go_on.wait(30)
        return read(*arguments, **options)

    monkeypatch.setattr(environment.store, "read", slow)
    found: list[int] = []
    ranges = [Range(QID, 0, 1 << 60)]
    thread = threading.Thread(target=lambda: found.append(len(snapshot.read(ranges, 1 << 20).blocks)))
    thread.start()
    assert begun.wait(30)
    snapshot.close()
    Writer(environment).write(2)
    assert environment.store.lag() > 0
    may_go_on.set()
    thread.join(30)

    assert [1] == found
    assert 0 == environment.store.lag()
    with pytest.raises(StorageError, match="closed"):
        snapshot.read(ranges, 1 << 20)
    snapshot.close()
    environment.close()
