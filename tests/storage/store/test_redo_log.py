"""The redo log: small batches are safe after one flush, and a start finds what is only there."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import lmdb
import pytest
from crash.judged import needs_small_disks
from crash.loopdisk import MemoryDisk
from writer import QID, Writer, seq_ids

from leveret.storage.errors import DamagedError, DiskFullError, StorageError
from leveret.storage.journal.blocks import LAST_SEQ_ID, Entry
from leveret.storage.journal.logged import LoggedChanges, decode_batch, together
from leveret.storage.journal.reads import Range
from leveret.storage.message import Persistent
from leveret.storage.store import environment as environment_module, redo_log
from leveret.storage.store.check import Check, Finding
from leveret.storage.store.compact import compact
from leveret.storage.store.environment import Environment
from leveret.storage.store.moment import last
from leveret.storage.store.recovery import recover
from leveret.storage.store.redo_log import (
    MOST_SECONDS,
    PAGE,
    RESERVE,
    SIZE,
    Place,
    RedoLog,
    left_behind,
    read_place,
)

START = Place(b"this log", 7)


def changes(number: int, octets: int = 100) -> LoggedChanges:
    return LoggedChanges(1, blocks=[(b"%016d" % number, bytes(octets))])


def keys(folder: Path, place: Place) -> list[int]:
    left = left_behind(folder, place.row())
    return (
        []
        if left is None
        else [int(key) for octets in left.batches for key, _ in decode_batch(octets).blocks]
    )


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RedoLog]:
    made = RedoLog(tmp_path, START)
    yield made
    made.close()


# -- the file -------------------------------------------------------------------------------------------------------------


def test_what_was_appended_is_read_in_its_order(tmp_path: Path, log: RedoLog) -> None:
    """Batches of any size come back whole, and nothing else does."""
    for number, octets in enumerate((0, 1, PAGE - 60, PAGE, 3 * PAGE, 60_000)):
        assert log.append(changes(number, octets))

    assert [0, 1, 2, 3, 4, 5] == keys(tmp_path, START)
    assert [2, 3, 4, 5] == keys(tmp_path, START)[2:]
    assert Place(b"this log", 13) == log.place == read_place(log.place.row())
    assert 6 == len(log.waiting) == log.flushes


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


def test_a_new_log_has_no_file(tmp_path: Path, log: RedoLog) -> None:
    """The file is made when it is needed: a broker without persistent messages has none."""
    assert [] == keys(tmp_path, START)
    assert [] == list(tmp_path.iterdir())
    assert not log.is_ahead


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("offset", [0, 5, 12, 18, 30, 5000])
def test_an_entry_that_is_not_whole_ends_the_log(tmp_path: Path, log: RedoLog, at: int, offset: int) -> None:
    """The last one was cut off by a power failure, and not confirmed; one that others follow is damaged."""
    for number in range(3):
        log.append(changes(number, 2 * PAGE))
    path = tmp_path / "redo.log"
    octets = bytearray(path.read_bytes())
    octets[at * 3 * PAGE + offset] ^= 1
    path.write_bytes(octets)

    if at == 2:
        assert [0, 1] == keys(tmp_path, START)
    else:
        with pytest.raises(DamagedError, match=f"entry {9 + at}, and entry {8 + at} is damaged"):
            keys(tmp_path, START)


def test_a_log_that_is_cut_off_is_read_to_its_end(tmp_path: Path, log: RedoLog) -> None:
    """A file that is shorter than it was has the entries before its end."""
    for number in range(3):
        log.append(changes(number, 2 * PAGE))
    os.truncate(tmp_path / "redo.log", 5 * PAGE)

    assert [0] == keys(tmp_path, START)


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

    assert [] == keys(tmp_path, Place(b"that log", 7))


@pytest.mark.parametrize("octets", [100, 60_000])
def test_a_full_log_takes_nothing_more_until_it_was_written(
    tmp_path: Path, log: RedoLog, octets: int
) -> None:
    """It is full by bytes, or by rows that the next commit has to write."""
    count = 0
    while log.append(changes(count, octets)):
        count += 1

    assert list(range(count)) == keys(tmp_path, START)
    assert count == (SIZE // PAGE if octets == 100 else SIZE // (15 * PAGE))
    assert count == log.written()
    assert log.append(changes(count, octets))


def test_rows_are_limited(log: RedoLog) -> None:
    """Acks of many blocks are few bytes, and much work for whoever commits next."""
    many = LoggedChanges(1, deletes=[b"%016d" % number for number in range(300)])

    assert [True, False] == [log.append(many), log.append(many)]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_log_without_room_leaves_the_batch_to_the_data_file(
    tmp_path: Path, log: RedoLog, code: int
) -> None:
    """An entry that may be half written is never read for another batch, and nothing is logged until the data were written."""
    log.append(changes(0))
    with patch.object(redo_log, "sync_data", side_effect=OSError(code, "planted")):
        assert not log.append(changes(1))
    assert [0] == keys(tmp_path, START)
    assert not log.append(changes(2))

    assert log.is_ahead
    assert [changes(0)] == log.waiting
    assert 1 == log.written()
    assert Place(b"this log", 9) == log.place
    assert log.append(changes(3))
    assert [3] == keys(tmp_path, Place(b"this log", 9))


def test_a_broken_disk_is_an_error(log: RedoLog) -> None:
    """After any other error it is unknown what is on disk."""
    with (
        patch.object(redo_log, "sync_data", side_effect=OSError(errno.EIO, "planted")),
        pytest.raises(OSError),
    ):
        log.append(changes(0))


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EACCES, errno.ENOSPC])
def test_a_file_that_cannot_be_made_leaves_batches_to_the_data_file(
    tmp_path: Path, log: RedoLog, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    """Nothing was written then; the reason is logged once, and the next batch tries again."""
    with patch.object(redo_log, "_open", side_effect=OSError(code, "planted")):
        assert [False, False] == [log.append(changes(0)), log.append(changes(1))]

    assert ["storage: no redo log, small commits are flushed twice"] == [
        line[:53] for line in caplog.messages
    ]
    assert not log.is_ahead
    assert log.append(changes(2))
    assert [2] == keys(tmp_path, START)


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


def killed(environment: Environment, *, sync: bool = True) -> Environment:
    """Return the data as a start finds them."""
    environment.close()
    return Environment(environment.data_dir, sync=sync)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SimpleNamespace]:
    made = SimpleNamespace(environment=Environment(tmp_path))
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


def test_a_damaged_place_is_refused(site: SimpleNamespace, tmp_path: Path) -> None:
    """Nobody knows then what of the log is in the tables; without its file there is nothing to know."""
    site.writer.write(1)
    with site.environment.store.env.begin(write=True) as txn:
        txn.put(b"redo", b"damaged", db=site.environment.store.db["meta"])
    site.environment.close()
    with pytest.raises(DamagedError, match=r"row b'redo' is damaged.*redo.log away"):
        Environment(tmp_path)
    with pytest.raises(StorageError, match="row b'redo' is damaged"):
        compact(tmp_path)
    findings: list[Finding] = []
    Check(tmp_path, findings.append).run()
    assert [("meta", "row b'redo' is damaged: wrong checksum", True)] == findings
    (tmp_path / "store" / "redo.log").rename(tmp_path / "away")
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
        DamagedError, match=r"redo.log has entry 2, and entry 1 is damaged or missing.*redo.log away"
    ):
        Environment(tmp_path)
    (tmp_path / "store" / "redo.log").unlink()
    site.environment = Environment(tmp_path)

    assert [1] == found(site.environment)
