"""The redo log: small batches are safe after one flush, and a start finds what is only there."""

import contextlib
import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import lmdb
import pytest
from crash.judged import needs_small_disks
from crash.loopdisk import MemoryDisk
from samples.writer import QID, Writer, seq_ids

from leveret.storage.errors import DamagedError, DiskFullError, StorageError
from leveret.storage.journal.batch import LoggedChanges, decode_batch, together
from leveret.storage.journal.blocks import LAST_SEQ_ID, Entry
from leveret.storage.journal.reads import Range
from leveret.storage.journal.stream_rows import OFFSETS, offset_row
from leveret.storage.message import Persistent
from leveret.storage.store import environment as environment_module, redo_log
from leveret.storage.store.backup import Backup, Pace, last, latest
from leveret.storage.store.check import Check, Finding
from leveret.storage.store.compact import compact, reset_log
from leveret.storage.store.environment import Environment
from leveret.storage.store.recovery import recover
from leveret.storage.store.redo_log import (
    CUT_OFF,
    MOST_SECONDS,
    PAGE,
    RESERVE,
    SIZE,
    Place,
    RedoLog,
    read_log,
    read_place,
)
from leveret.storage.store.store_header import Owner

START = Place(b"this log", 7, is_in_use=True)
OWNER = Owner(b"store no", 3)
TRANSACTION = 70


def changes(number: int, octets: int = 100) -> LoggedChanges:
    return LoggedChanges(1, blocks=[(b"%016d" % number, bytes(octets))])


def keys(folder: Path, place: Place) -> list[int]:
    left = read_log(folder, place.row(), OWNER, TRANSACTION)
    return (
        []
        if left is None
        else [int(key) for octets in left.batches for key, _ in decode_batch(octets).blocks]
    )


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RedoLog]:
    made = RedoLog(tmp_path, OWNER, START, lambda: TRANSACTION)
    made.open()
    made.written()
    yield made
    made.close()


# -- the file -------------------------------------------------------------------------------------------------------------


def test_what_was_appended_is_read_in_its_order(tmp_path: Path, log: RedoLog) -> None:
    """Batches of any size come back whole, and nothing else does."""
    before = log.flushes
    for number, octets in enumerate((0, 1, PAGE - 60, PAGE, 3 * PAGE, 60_000)):
        assert log.append(changes(number, octets))

    assert [0, 1, 2, 3, 4, 5] == keys(tmp_path, START)
    assert [2, 3, 4, 5] == keys(tmp_path, START)[2:]
    assert Place(b"this log", 13, is_in_use=True) == log.place == read_place(log.place.row())
    assert (6, 6) == (len(log.waiting), log.flushes - before)


def test_each_entry_is_flushed_before_it_counts(tmp_path: Path, log: RedoLog) -> None:
    """An append returns after a flush of the file, which has its size and blocks since it was made."""
    log.append(changes(1))
    seen = []
    flush = os.fdatasync

    def note(descriptor: int) -> None:
        flush(descriptor)
        seen.append(
            (keys(tmp_path, START), os.fstat(descriptor).st_size, os.fstat(descriptor).st_blocks * 512)
        )

    with patch.object(os, "fdatasync", note):
        log.append(changes(2))

    assert [([1, 2], SIZE + RESERVE, SIZE + RESERVE)] == seen


def test_a_new_log_has_no_file(tmp_path: Path) -> None:
    """The file is made when it is needed: a broker without persistent messages has none."""
    log = RedoLog(tmp_path, OWNER, Place.new(), lambda: TRANSACTION)

    assert not log.is_ahead
    assert [] == list(tmp_path.iterdir())


def test_nothing_is_logged_before_the_data_say_that_the_log_is_in_use(tmp_path: Path) -> None:
    """The first small batch makes the file and is left to the data file, whose transaction has the row."""
    log = RedoLog(tmp_path, OWNER, START, lambda: TRANSACTION)
    assert [False, True] == [log.append(changes(0)), log.is_ahead]
    assert [] == keys(tmp_path, START)
    log.written()

    assert [True, True] == [log.append(changes(1)), log.is_ahead]
    assert [1] == keys(tmp_path, START)
    log.close()


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("offset", [0, 5, 12, 18, 26, 30, 5000])
def test_an_entry_that_is_not_whole_ends_the_log(tmp_path: Path, log: RedoLog, at: int, offset: int) -> None:
    """The last one was cut off by a power failure, and not confirmed; one that others follow is damaged."""
    for number in range(3):
        log.append(changes(number, 2 * PAGE))
    path = tmp_path / "redo.log"
    octets = bytearray(path.read_bytes())
    octets[PAGE + at * 3 * PAGE + offset] ^= 1
    path.write_bytes(octets)

    if at == 2:
        left = read_log(tmp_path, START.row(), OWNER, TRANSACTION)
        assert ([0, 1], True) == (keys(tmp_path, START), left is not None and left.is_cut_off)
    else:
        with pytest.raises(DamagedError, match=f"entry {9 + at}, and entry {8 + at} is damaged"):
            keys(tmp_path, START)


@pytest.mark.parametrize("size", [0, 1, PAGE, 5 * PAGE, SIZE - 1])
def test_a_log_that_is_cut_off_is_refused(tmp_path: Path, log: RedoLog, size: int) -> None:
    """A file that is shorter than it was made may have had other commits."""
    log.append(changes(0))
    os.truncate(tmp_path / "redo.log", size)

    with pytest.raises(DamagedError, match=r"redo.log is (cut off|missing or empty)"):
        keys(tmp_path, START)
    assert read_log(tmp_path, log.place.unused().row(), OWNER, TRANSACTION + 1) is None


def test_entries_of_before_are_not_read(tmp_path: Path, log: RedoLog) -> None:
    """After what is logged was written to the data the log begins again, and only what follows counts."""
    for number in range(5):
        log.append(changes(number))
    assert 5 == log.written()
    place = log.place

    assert [] == keys(tmp_path, place)
    log.append(changes(5))
    assert [5] == keys(tmp_path, place)
    assert [] == keys(tmp_path, log.place)


def test_entries_of_another_log_are_not_read(tmp_path: Path, log: RedoLog) -> None:
    """The file of other data, or of an earlier start, with the same numbers, is not taken for this one's."""
    log.append(changes(1))

    with pytest.raises(DamagedError, match=r"of start 3, and not the one that the data file has in use"):
        keys(tmp_path, Place(b"that log", 7, is_in_use=True))
    assert [] == keys(tmp_path, Place(b"that log", 7))


@pytest.mark.parametrize("octets", [100, 60_000])
def test_a_full_log_takes_nothing_more_until_it_was_written(tmp_path, log, octets):
    """It is full by bytes, or by rows that the next commit has to write."""
    count = 0
    while log.append(changes(count, octets)):
        count += 1

    assert list(range(count)) == keys(tmp_path, START)
    assert count == (SIZE // PAGE - 1 if octets == 100 else SIZE // (15 * PAGE))
    assert count == log.written()
    assert log.append(changes(count, octets))


def test_rows_are_limited(log: RedoLog) -> None:
    """Acks of many blocks are few bytes, and much work for whoever commits next."""
    many = LoggedChanges(1, deletes=[b"%016d" % number for number in range(300)])

    assert [True, False] == [log.append(many), log.append(many)]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_log_without_room_leaves_the_batch_to_the_data_file(tmp_path, log, code):
    """An entry that may be half written is never read for another batch, and nothing is logged until the data were written."""
    log.append(changes(0))
    with patch.object(redo_log, "sync_data", side_effect=OSError(code, "planted")):
        assert not log.append(changes(1))
    assert [0] == keys(tmp_path, START)
    assert not log.append(changes(2))

    assert log.is_ahead
    assert [changes(0)] == log.waiting
    assert 1 == log.written()
    assert START._replace(number=9) == log.place
    assert log.append(changes(3))
    assert [3] == keys(tmp_path, START._replace(number=9))


def test_a_broken_disk_is_an_error(log: RedoLog) -> None:
    """After any other error it is unknown what is on disk."""
    with (
        patch.object(redo_log, "sync_data", side_effect=OSError(errno.EIO, "planted")),
        pytest.raises(OSError),
    ):
        log.append(changes(0))


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EACCES, errno.ENOSPC])
def test_a_file_that_cannot_be_made_leaves_batches_to_the_data_file(tmp_path, log, caplog, code):
    """Nothing was written then; the reason is logged once, and the next batch tries again."""
    log.close()
    log.given_up()
    with patch.object(redo_log, "open_regular", side_effect=OSError(code, "planted")):
        assert [False, False] == [log.append(changes(0)), log.append(changes(1))]

    assert ["storage: no redo log, small commits are flushed twice"] == [
        line[:53] for line in caplog.messages
    ]
    assert not log.is_ahead
    assert not log.append(changes(2))
    log.written()
    assert log.append(changes(3))
    assert [3] == keys(tmp_path, START)


def test_the_reserve_is_given_once_and_made_again(tmp_path: Path, log: RedoLog) -> None:
    """It is there whenever something waits, unless it was needed."""
    assert not log.give_reserve()
    log.append(changes(0))
    path = tmp_path / "redo.log"
    assert [True, False] == [log.give_reserve(), log.give_reserve()]
    assert SIZE == path.stat().st_size
    assert [0] == keys(tmp_path, START)
    log.append(changes(1))
    assert SIZE == path.stat().st_size
    log.written()
    log.append(changes(2))
    assert SIZE + RESERVE == path.stat().st_size


# -- the data -------------------------------------------------------------------------------------------------------------


class LoggingWriter(Writer):
    """A queue's part of the journal whose batches are logged if they are small."""

    is_logged = False

    def commit(self, entries: list[Entry] | None = None) -> list[Entry]:
        done = self.environment.write(self.journal.cut(0))
        for _ in range(done.applied):
            self.journal.applied()
        self.journal.settled(is_logged=done.is_logged)
        self.is_logged = done.is_logged
        return entries or []

    def stored(self, entries: list[Entry]) -> None:
        """Do nothing: none is to leave memory."""


def found(environment: Environment) -> list[int]:
    return seq_ids(environment.read([Range(QID, 0, LAST_SEQ_ID)], 1 << 40))


def begin_logging(environment: Environment) -> None:
    """Have the log made, and used, as the first small batch of a broker does."""
    redo = environment.store.redo
    assert redo is not None
    assert redo.open()
    environment.apply_logged()


def killed(environment: Environment, *, sync: bool = True) -> Environment:
    """Return the data as a start finds them."""
    environment.close()
    again = Environment(environment.data_dir, sync=sync)
    if sync:
        begin_logging(again)
    return again


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SimpleNamespace]:
    made = SimpleNamespace(environment=Environment(tmp_path))
    begin_logging(made.environment)
    made.writer = LoggingWriter(made.environment)
    yield made
    made.environment.close()


@pytest.mark.parametrize("sync", [True, False])
def test_a_start_finds_what_was_only_logged(site: SimpleNamespace, sync: bool) -> None:
    """Messages, their ends and bodies apart are there after a kill, also without flushes from then on."""
    writer: Writer = site.writer
    one = writer.write(1, 2, 3)
    writer.write(4, size=5000)
    shared = writer.write(5, size=5000)
    writer.kill(one[1], shared[0])
    assert writer.is_logged  # type: ignore[attr-defined]
    assert [] == found(site.environment)
    for _ in range(3):
        site.environment = killed(site.environment, sync=sync)

        assert [1, 3, 4] == found(site.environment)
        assert 1 == len(list(site.environment.rows("bodies")))


def test_the_offset_that_a_consumer_reached_last_is_logged(site: SimpleNamespace) -> None:
    """A batch with the offset of a stream's consumer is logged; a start finds the last one, beside the messages."""
    for reached in (300, 7, 299):  # the checksums of the rows are in another order
        site.writer.journal.put(OFFSETS, *offset_row(QID, "tag", reached))
        site.writer.write(reached)
        assert site.writer.is_logged
    assert {} == site.environment.offsets()
    site.environment = killed(site.environment)

    assert {QID: {"tag": 299}} == site.environment.offsets()
    assert [7, 299, 300] == found(site.environment)


def test_a_message_that_ends_soon_is_never_written_to_the_tables(site: SimpleNamespace) -> None:
    """A message that a later batch ends is left out, with its body."""
    for number in range(1, 4):
        site.writer.kill(*site.writer.write(number), *site.writer.write(number + 10, size=5000))
    assert 0 == together(site.environment.store.redo.waiting).rows_changed
    site.environment.apply_logged()

    assert [] == list(site.environment.rows("blocks")) == list(site.environment.rows("bodies"))


def test_a_body_of_several_messages_goes_with_the_last(site: SimpleNamespace) -> None:
    """References are counted down once, whether their records are only logged or not."""
    for is_applied in (False, True):
        message = Persistent(b"\x01x\x01k", bytes(5000), 1, None, 0, 3)
        copies = [site.writer.note(message, seq_id) for seq_id in (1, 2, 3)]
        site.writer.commit()
        assert site.writer.is_logged
        if is_applied:
            site.environment.apply_logged()
        for left in (2, 1, 0):
            site.writer.kill(copies.pop())
            site.environment = killed(site.environment)
            site.writer.environment = site.environment
            assert left == len(found(site.environment))
            assert (left > 0) == len(list(site.environment.rows("bodies")))


def test_a_larger_batch_goes_to_the_tables_with_what_was_logged_before(site: SimpleNamespace) -> None:
    """It is written once, and the log begins again."""
    site.writer.write(1)
    site.writer.write(2)
    assert site.environment.has_logged
    site.writer.write(3, size=environment_module.LOGGED_OCTETS)

    assert not site.writer.is_logged
    assert not site.environment.has_logged
    assert [1, 2, 3] == found(site.environment)
    site.writer.write(4)
    assert site.writer.is_logged
    site.environment = killed(site.environment)
    assert [1, 2, 3, 4] == found(site.environment)


@pytest.mark.parametrize("seed", range(10))
def test_what_replaces_other_messages_is_logged_with_their_ends(site: SimpleNamespace, seed: int) -> None:
    """A small batch with ends of messages that have moved is logged, and a start finds all of it."""
    draw, writer = random.Random(seed), site.writer
    live: dict[int, Entry] = {}
    logged = 0
    for number in range(0, 400, 10):
        fresh = [
            writer.note(Persistent(b"\x01x\x01k", bytes(draw.choice((10, 5000))), 1, None, 0, 1), number + at)
            for at in range(draw.randint(0, 6))
        ]
        for seq_id in draw.sample(list(live), draw.randint(0, min(len(live), 4))):
            writer.journal.dead(live.pop(seq_id), moved=draw.random() < 0.7)
        live |= {entry.seq_id: entry for entry in fresh}
        if writer.journal.has_work:
            writer.commit()
            logged += writer.is_logged
        if draw.random() < 0.1:
            site.environment.apply_logged()
    site.environment = killed(site.environment)

    assert list(live) == found(site.environment)
    assert logged > 20


def test_many_messages_are_not_logged(site: SimpleNamespace) -> None:
    """While many are published most are acked before a commit that takes longer is cut, and never written."""
    site.writer.write(*range(environment_module.LOGGED_MESSAGES - 1))
    assert site.writer.is_logged
    site.writer.write(*range(100, 100 + environment_module.LOGGED_MESSAGES))
    assert not site.writer.is_logged


def test_nothing_is_logged_while_the_disk_is_nearly_full(site: SimpleNamespace) -> None:
    """A commit has to find out whether there is space for the tables, before anything is confirmed."""
    with patch.object(Environment, "disk_free", return_value=environment_module.LOG_ROOM - 1):
        site.writer.write(1)

    assert not site.writer.is_logged
    assert [1] == found(site.environment)


def test_nothing_is_logged_while_the_free_space_is_unknown(site: SimpleNamespace) -> None:
    """The directory may have another name now: a commit writes to files that are open."""
    with patch.object(Environment, "disk_free", side_effect=FileNotFoundError(2, "no such directory")):
        site.writer.write(1)

    assert not site.writer.is_logged
    assert [1] == found(site.environment)


def test_a_program_may_leave_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path stays what it was when the data were opened."""
    monkeypatch.chdir(tmp_path)
    environment = Environment(Path("data"))
    begin_logging(environment)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    writer = LoggingWriter(environment)
    writer.write(1)
    environment.close()

    assert writer.is_logged
    assert [] == list((tmp_path / "elsewhere").iterdir())
    again = Environment(tmp_path / "data")
    assert [1] == found(again)
    again.close()


def test_what_is_logged_waits_for_room_in_the_tables(site: SimpleNamespace) -> None:
    """A full disk refuses the next batch alone; the log keeps the others, also over a kill."""
    store = site.environment.store
    site.writer.write(1)
    with (
        patch.object(store, "_widen_to", side_effect=lmdb.MapFullError("planted")),
        pytest.raises(DiskFullError) as error,
    ):
        site.writer.write(2, size=environment_module.LOGGED_OCTETS)

    assert 0 == error.value.applied
    assert site.environment.has_logged
    site.environment = killed(site.environment)
    assert [1] == found(site.environment)


def test_nothing_is_logged_while_the_root_page_on_disk_is_unknown(site: SimpleNamespace) -> None:
    """The disk may have a later place of the log than memory, and would not find what is logged then."""
    site.writer.write(1)
    site.environment.store._unsure_page = 1
    site.writer.write(2)

    assert not site.writer.is_logged
    site.writer.write(3)
    assert site.writer.is_logged


@pytest.mark.parametrize("paged", [False, True])
def test_what_waits_for_long_is_written_with_the_next_batch(site: SimpleNamespace, paged: bool) -> None:
    """Small batches one after the other, or batches that only page, do not keep it in the log for ever."""
    site.writer.write(1)
    with patch.object(redo_log, "monotonic", return_value=redo_log.monotonic() + MOST_SECONDS):
        if paged:
            site.writer.note(Persistent(b"\x01x\x01k", bytes(11), 1, None, 0, 1), 2, paged=True)
            site.environment.commit(site.writer.journal.cut())
        else:
            site.writer.write(2)

    assert not site.environment.store.redo.waiting
    assert [1, 2] == found(site.environment)


@needs_small_disks
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_disk_that_others_fill_has_room_for_what_was_logged(tmp_path: Path, is_killed: bool) -> None:
    """The reserve of the log is enough for it, so that acks free space, and a start succeeds."""
    with MemoryDisk(tmp_path, 24) as disk, patch.object(environment_module, "LOG_ROOM", 0):
        environment = Environment(disk.mount_point / "data")
        writer = LoggingWriter(environment)
        old = [
            entry
            for first in range(0, 100, 10)
            for entry in writer.write(*range(first, first + 10), size=250)
        ]
        assert writer.is_logged
        environment.apply_logged()
        for number in range(100, 115):
            writer.write(number, size=60_000)
        assert writer.is_logged
        with contextlib.suppress(OSError), (disk.mount_point / "others").open("wb", 0) as file:
            while True:
                file.write(bytes(4096))
        if is_killed:
            environment.close()
            environment = Environment(disk.mount_point / "data")
        else:
            with patch.object(environment_module, "LOGGED_OCTETS", -1):
                writer.kill(*old[:50])
            assert not writer.is_logged

        assert [*range(0 if is_killed else 50, 115)] == found(environment)
        environment.close()


def test_the_mark_of_a_clean_stop_goes_before_anything_is_logged(tmp_path: Path) -> None:
    """The state that it saved is of before, so the first batch is committed, with the end of the mark."""
    made = Environment(tmp_path)
    made.save([])
    made = killed(made)
    writer = LoggingWriter(made)
    writer.write(1)
    assert not writer.is_logged
    made = killed(made)

    assert not made.was_clean
    assert 1 == recover(made, [QID])[QID].messages

    made.close()


@pytest.mark.parametrize("tool", ["compact", "backup"])
def test_tools_have_what_was_only_logged(site: SimpleNamespace, tmp_path: Path, tool: str) -> None:
    """A compaction, and a copy, of what a killed broker has left include its log."""
    site.writer.write(1)
    site.writer.kill(*site.writer.write(2))
    site.environment.close()
    if tool == "compact":
        compact(tmp_path)
    else:
        with last(tmp_path):
            pass
    (tmp_path / "store" / "redo.log").unlink()
    site.environment = Environment(tmp_path)

    assert [1] == found(site.environment)


def test_a_check_tells_of_what_was_only_logged(site: SimpleNamespace, tmp_path: Path) -> None:
    """It is no damage: the next start writes it."""
    site.writer.write(1)
    site.writer.write(2)
    site.environment.close()
    findings: list[Finding] = []
    Check(tmp_path, findings.append).run()

    assert [("redo.log", "2 commits, which the next start writes to the tables", False)] == findings

    site.environment = Environment(tmp_path)


def test_a_last_entry_that_is_not_whole_is_told(site, tmp_path, caplog):
    """Nobody can tell a damaged one from one that was cut off before it was confirmed: the start and the check say so."""
    site.writer.write(1)
    with (tmp_path / "store" / "redo.log").open("rb+") as file:
        file.seek(PAGE + 40)
        file.write(b"?")
    site.environment.close()
    findings: list[Finding] = []
    Check(tmp_path, findings.append).run()
    site.environment = Environment(tmp_path)

    assert [(CUT_OFF, False)] == [each[1:] for each in findings]
    assert [f"storage: {CUT_OFF}"] == caplog.messages
    assert [] == found(site.environment)


def test_a_damaged_place_is_refused(site: SimpleNamespace, tmp_path: Path) -> None:
    """Nobody knows then what of the log is in the tables; without its file there is nothing to know."""
    site.writer.write(1)
    with site.environment.store.env.begin(write=True) as txn:
        txn.put(b"redo", b"damaged", db=site.environment.store.db["meta"])
    site.environment.close()
    with pytest.raises(DamagedError, match=r"row b'redo' is damaged.*reset-log"):
        Environment(tmp_path)
    with pytest.raises(StorageError, match="row b'redo' is damaged"):
        compact(tmp_path)
    findings: list[Finding] = []
    Check(tmp_path, findings.append).run()
    assert [("meta", "row b'redo' is damaged: wrong checksum", True)] == findings
    assert tmp_path / "store" / "redo.log.old" == reset_log(tmp_path)
    site.environment = Environment(tmp_path)

    assert [] == found(site.environment)


def test_an_older_copy_of_the_data_is_refused_with_a_later_log(site: SimpleNamespace, tmp_path: Path) -> None:
    """A file that was put back from a copy lacks the commits before those in the log; without it, it is as it was."""
    site.writer.write(1, size=environment_module.LOGGED_OCTETS)
    older = (tmp_path / "store" / "data.mdb").read_bytes()
    site.writer.write(2)
    site.writer.write(3, size=environment_module.LOGGED_OCTETS)
    site.writer.write(4)
    site.environment.close()
    (tmp_path / "store" / "data.mdb").write_bytes(older)
    with pytest.raises(
        DamagedError, match=r"redo.log has entry 2, and entry 1 is damaged or missing.*reset-log"
    ):
        Environment(tmp_path)
    reset_log(tmp_path)
    site.environment = Environment(tmp_path)

    assert [1] == found(site.environment)


# -- a file that is not the one ----------------------------------------------------------------------------------------


def whole_file(folder: Path, what: str) -> None:
    """Do something to a log as a whole."""
    path = folder / "store" / "redo.log"
    if what == "removed":
        path.unlink()
    elif what == "emptied":
        os.truncate(path, 0)
    elif what == "cut":
        os.truncate(path, SIZE - PAGE)
    elif what == "zeroed":
        path.write_bytes(bytes(SIZE + RESERVE))
    elif what == "a pipe":
        path.unlink()
        os.mkfifo(path)
    elif what == "a link":
        path.rename(folder / "elsewhere")
        path.symlink_to(folder / "elsewhere")
    elif what == "of another store":
        other = LoggingWriter(Environment(folder / "other"))
        other.write(1)
        other.write(2)
        other.environment.close()
        (folder / "other" / "store" / "redo.log").replace(path)
    else:
        path.write_bytes((folder / "earlier").read_bytes())


LOST = {
    "removed": "redo.log is missing or empty",
    "emptied": "redo.log is missing or empty",
    "cut": "redo.log is cut off, it has 1044480 bytes",
    "zeroed": "the header of redo.log is damaged",
    "of another store": "redo.log belongs to another store",
    "of an earlier start": "redo.log is of start 1, and not the one that the data file has in use",
    "a pipe": "not a regular file",
    "a link": "symbolic links",
}


@pytest.mark.parametrize("what", LOST)
def test_a_log_that_is_in_use_is_missed(site: SimpleNamespace, tmp_path: Path, what: str) -> None:
    """No other file, and no missing one, is taken for a log without commits: by no start, check, compaction or backup."""
    site.writer.write(1)
    (tmp_path / "earlier").write_bytes((tmp_path / "store" / "redo.log").read_bytes())
    site.environment = killed(site.environment)
    site.writer = LoggingWriter(site.environment)
    site.writer.write(2)
    site.environment.close()
    whole_file(tmp_path, what)
    data = (tmp_path / "store" / "data.mdb").read_bytes()

    with pytest.raises(StorageError, match=LOST[what]):
        Environment(tmp_path)
    findings: list[Finding] = []
    Check(tmp_path, findings.append).run()
    assert [True] == [each.damage for each in findings if each.where in {"meta", "redo.log"}]
    with pytest.raises(StorageError, match=LOST[what]):
        compact(tmp_path)
    with pytest.raises(StorageError, match=LOST[what]), last(tmp_path):
        pass
    assert data == (tmp_path / "store" / "data.mdb").read_bytes()

    reset_log(tmp_path)
    site.environment = Environment(tmp_path)
    assert [1] == found(site.environment)


@pytest.mark.parametrize("what", ["removed", "emptied", "cut", "zeroed", "of an earlier start"])
def test_a_log_that_is_not_in_use_may_be_lost(site: SimpleNamespace, tmp_path: Path, what: str) -> None:
    """A clean stop leaves nothing that only the log has."""
    site.writer.write(1)
    (tmp_path / "earlier").write_bytes((tmp_path / "store" / "redo.log").read_bytes())
    site.environment = killed(site.environment)
    LoggingWriter(site.environment).write(2)
    site.environment.save([])
    site.environment.close()
    whole_file(tmp_path, what)
    findings: list[Finding] = []
    Check(tmp_path, findings.append).run()
    site.environment = Environment(tmp_path)

    assert [] == [each for each in findings if each.where in {"meta", "redo.log"}]
    assert [1, 2] == found(site.environment)


def test_a_log_that_is_not_in_use_is_not_of_another_store(site: SimpleNamespace, tmp_path: Path) -> None:
    """That one of them is in the wrong place matters to the other."""
    site.writer.write(1)
    site.environment.save([])
    site.environment.close()
    whole_file(tmp_path, "of another store")
    with pytest.raises(DamagedError, match=r"redo.log belongs to another store"):
        Environment(tmp_path)
    (tmp_path / "store" / "redo.log").unlink()
    site.environment = Environment(tmp_path)

    assert [1] == found(site.environment)


@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize("is_used", [False, True])
def test_data_of_an_earlier_start_are_not_used_beside_the_log(site, tmp_path, is_clean, is_used):
    """A data file that was put back is told by the log of a later start, even if that has logged nothing."""
    site.writer.write(1, size=environment_module.LOGGED_OCTETS)
    site.environment.save([])
    site.environment.close()
    path = tmp_path / "store" / "data.mdb"
    earlier = path.read_bytes()
    site.environment = Environment(tmp_path)
    writer = LoggingWriter(site.environment)
    writer.write(2, size=environment_module.LOGGED_OCTETS)
    if is_used:
        writer.write(3)
    if is_clean:
        site.environment.save([])
    site.environment.close()
    path.write_bytes(earlier)

    with pytest.raises(DamagedError, match=r"redo.log is of start 2, and the data file of start 1"):
        Environment(tmp_path)
    reset_log(tmp_path)
    site.environment = Environment(tmp_path)
    assert [1] == found(site.environment)


def test_commits_that_follow_another_transaction_are_not_replayed(site, tmp_path):
    """Commits to the tables have no number in the log: each entry names the one on which it rests."""
    path = tmp_path / "store" / "data.mdb"
    site.writer.write(1)
    site.writer.write(2, size=environment_module.LOGGED_OCTETS)
    earlier = path.read_bytes()
    with site.environment.store.writing() as txn:
        txn.put(b"room", b"", db=site.environment.store.db["meta"])
    site.writer.write(3)
    site.environment.close()
    path.write_bytes(earlier)

    with pytest.raises(DamagedError, match=r"follow transaction \d+ of the data file, which is at \d+"):
        Environment(tmp_path)
    reset_log(tmp_path)
    site.environment = Environment(tmp_path)
    assert [1, 2] == found(site.environment)


def test_a_start_that_is_killed_before_the_log_is_in_use_is_repeated(site, tmp_path):
    """The header is written first: a log that is named by no row yet has no commits."""
    for _ in range(3):
        site.environment.close()
        site.environment = Environment(tmp_path)
    site.writer = LoggingWriter(site.environment)
    site.writer.write(1)
    assert not site.writer.is_logged
    site.writer.write(2)
    assert site.writer.is_logged
    site.environment = killed(site.environment)

    assert [1, 2] == found(site.environment)


def test_a_backup_needs_no_log_and_gets_no_other(site: SimpleNamespace, tmp_path: Path) -> None:
    """A copy of data whose log is in use says that none is; beside the log of a later moment it is refused."""
    site.writer.write(1)
    site.environment.apply_logged()
    copy = tmp_path / "copy"
    copy.mkdir()
    with contextlib.closing(latest(site.environment.store)) as moment:
        Backup(tmp_path, copy, moment, Pace(0, lambda _: False)).run()
    copied = (copy / "store" / "data.mdb").read_bytes()
    site.writer.write(2)
    assert site.writer.is_logged
    site.environment.close()
    again = Environment(copy)
    assert [1] == found(again)
    again.close()
    (tmp_path / "store" / "data.mdb").write_bytes(copied)
    with pytest.raises(DamagedError, match=r"redo.log has commits that .*: the two are of different moments"):
        Environment(tmp_path)
    reset_log(tmp_path)
    site.environment = Environment(tmp_path)

    assert [1] == found(site.environment)


def test_a_directory_without_data_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A start that finds nothing says so: the data may be elsewhere."""
    caplog.set_level("INFO", "leveret")
    for _ in range(2):
        Environment(tmp_path).close()

    assert [f"storage: no data in {tmp_path} yet: a new store was made"] == caplog.messages
