"""The data of one broker on disk: commits and logs batches, and reads blocks, bodies and definitions.

Two environments: `store/` is durable, every commit is flushed before it returns; `paged/` keeps transient messages that
are paged out of memory, is never flushed and is recreated at every start. Tables: see docs/storage.md.

Only one thread, the writer, may call `commit`. One other thread at a time may call `read`. It closes its read
transaction before it returns, because LMDB could not reuse pages while one stays open. Only a look at messages
(`snapshot`) keeps one open, for as long as it takes. The map is far larger than any disk, so its size is the limit only
where a process has few addresses (`open_mapped`).
"""

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import lmdb

from leveret.storage import delayed, message_ids
from leveret.storage.damage import Damages
from leveret.storage.errors import NO_SPACE, DamagedError, DiskFullError, Done, StorageError
from leveret.storage.files import DIRECTORY, sync_directory, tighten
from leveret.storage.journal.batch import Batch, Changes, LoggedChanges, small_changes
from leveret.storage.journal.blocks import LAST_SEQ_ID
from leveret.storage.journal.reads import Loaded, Range, RawBlock
from leveret.storage.journal.stream_rows import OFFSETS, SEGMENTS, Segment, read_offset, read_segment
from leveret.storage.store.bodies import Bodies
from leveret.storage.store.lmdb_environment import TABLES, LmdbEnvironment, file_octets, unusable
from leveret.storage.store.lmdb_file import refuse_links, refuse_lost
from leveret.storage.store.redo_log import NAME as REDO_LOG, ROW as REDO_ROW, LogEntry, Place, RedoLog
from leveret.storage.store.store_header import CLEAN, PLACE, Saved, begin, check_format, format_of, seal

log = logging.getLogger("leveret.storage")

R = TypeVar("R")

MAPPED = 24 * 1024 * 1024  # bytes of mapped files from which they are released after rows all over
ROOM = 16 * 1024 * 1024  # bytes of disk that a commit leaves free: if it fails with less, the disk is full

START_WORK = 20_000  # sweeping per commit while none waits, as `lmdb_environment.SWEEP_WORK`

LOGGED_OCTETS = 64 * 1024
"""Bytes of messages up to which a batch is logged first: to write more twice takes longer than a second flush."""
LOGGED_MESSAGES = 16
"""Messages from which a batch is not logged. With more, the next batch gathers during a longer commit, and many
messages are acked before the cut and never written. With commits of half the time most of them would be written."""
LOG_ROOM = 64 * 1024 * 1024
"""Bytes of disk that are free while batches are logged: with less a commit finds out whether they are enough."""

_first = itemgetter(0)
_PAGED_TABLES = ("meta", "blocks", "acks", "bodies", "refs", "sweeps")
_OF_LINES = (delayed.TABLE, message_ids.TABLE)
_NO_LIMIT = 1 << 62

Row = tuple[str, bytes, bytes | None]  # its table, its key, and its value; None: it is to be deleted


class Written(NamedTuple):
    """Result of a batch that is safe."""

    unlink: list[int]  # files that are no longer referenced
    is_logged: bool  # True if the batch is in the redo log, and in the tables later
    applied: int  # batches that were only logged, and are in the tables since the last result


LOGGED = Written([], is_logged=True, applied=0)  # the result of most small batches


class Environment:
    """The data of one broker on disk.

    Args:
        data_dir: the data directory; created if it does not exist.
        sync: flush every commit. Without it a power failure loses confirmed messages, and may destroy all data: for
            measurements only.

    Raises UnknownFormatError for data of another format, StorageError if it cannot be opened.
    """

    is_replica = False  # True for a copy of a replicated log
    bodies_class: type[Bodies] = Bodies

    def __init__(self, data_dir: Path, *, sync: bool = True) -> None:
        # Files are opened later, too, and the program may change its directory.
        self.data_dir = data_dir = data_dir.absolute()
        self.blobs = data_dir / "blobs"
        self.damages = Damages()
        refuse_links(data_dir)
        tighten(data_dir)
        refuse_lost(data_dir)
        try:
            shutil.rmtree(data_dir / "paged", ignore_errors=True)
            self.store = LmdbEnvironment(
                data_dir / "store", TABLES, self.damages, sync=sync, flushes_roots=not self.is_replica
            )
            self.paged = LmdbEnvironment(data_dir / "paged", _PAGED_TABLES, self.damages, sync=False)
        except (lmdb.Error, OSError) as error:
            raise unusable(f"cannot open the data in {data_dir}", error) from None
        self._is_marked = False  # True if the mark of a clean stop is in the file
        self._is_full = False  # True if the last commit found no space
        self.saved: Saved | None = None  # state saved by the clean stop before this start; None for none
        self._gone_lines: list[tuple[str, int]] = []
        """Lines of delayed messages and of ids, with their tables, that are deleted and still have rows."""
        try:
            self._replay()
            self._begin(is_logging=sync and not self.is_replica)
            self.blobs.mkdir(mode=DIRECTORY, exist_ok=True)  # not before there is data: see `refuse_lost`
        except (lmdb.Error, OSError) as error:
            self.close()
            raise unusable(f"cannot count this start in {data_dir}", error) from None
        except BaseException:
            self.close()
            raise

    def _replay(self) -> None:
        """Write the logged commits of a killed broker to the tables."""
        with self.store.env.begin() as txn:
            written = format_of(txn, self.store.db["meta"])
        if written is not None:
            check_format(self.data_dir, written)
        try:
            batches = self.store.replay()
        except DamagedError as error:
            raise DamagedError(
                f"the data in {self.data_dir} is damaged: {error}. Nothing was changed. Restore the whole directory "
                f"from a copy, or find the file that belongs to it; to start without the commits that only {REDO_LOG} "
                f"may have: leveret store reset-log --data-dir {self.data_dir}"
            ) from None
        if batches:
            log.info("storage: redo log replayed: batches=%d", batches)

    def _begin(self, *, is_logging: bool) -> None:
        """Check the format and count this start, so that ids are assigned once; `is_logging`: with a redo log."""
        place, store = Place.new(), self.store
        meta = store.db["meta"]
        with store.env.begin(write=True) as txn:
            started = begin(txn, store.db, self.data_dir)
            sweeps, is_damaged = store.begin_sweeps(txn)
            if is_logging:
                txn.put(REDO_ROW, place.row(), db=meta)
            else:
                txn.delete(REDO_ROW, db=meta)
            if not self.is_replica and txn.delete(PLACE, db=meta):
                log.warning("storage: the data was a copy of a replicated log, and is not any more")
        owner = started.owner
        self.boot, self.saved = owner.boot, started.saved
        self.was_clean = started.was_clean and not is_damaged
        self._is_marked = started.is_marked and not is_damaged
        self.bodies = self.bodies_class(self.blobs, owner.store)
        with contextlib.suppress(PermissionError):  # another user created it earlier
            sync_directory(self.data_dir.resolve().parent)
        sync_directory(self.data_dir)
        sync_directory(store.path)
        store.unfinished += sweeps
        if is_logging:
            store.redo = RedoLog(store.path, owner, place, store.last_transaction)
            if (store.path / REDO_LOG).exists():
                store.redo.open()  # its header names the last start that used the data

    def begin_use(self) -> None:
        """Remove the mark of the clean stop, because messages are about to be delivered.

        A start that fails before that leaves it. The first commit that changes messages removes it, too: the saved
        state of queues is valid until then. Raises DiskFullError if there is no space for it, lmdb.Error for any other
        error.
        """
        if self._is_marked:
            with self._finding_full(), self.store.writing() as txn:
                self._unmark(txn)
            self._is_marked = False

    def _unmark(self, txn: Any) -> None:
        """Mark the store as not cleanly stopped; effective only if the transaction is committed."""
        if self._is_marked:
            txn.delete(CLEAN, db=self.store.db["meta"])

    def forget_bitmaps(self, keys: Iterable[bytes]) -> None:
        """Remove damaged bitmaps, and the mark of the clean stop, which did not count the messages that come back.

        Without space they stay, and the next start finds them again. Raises lmdb.Error for any other error.
        """
        with contextlib.suppress(DiskFullError):
            with self._finding_full(), self.store.writing() as txn:
                self._unmark(txn)
                for key in keys:
                    txn.delete(key, db=self.store.db["acks"])
            self._is_marked = False

    def close(self) -> None:
        """Close both environments; no other method may be called afterwards."""
        if self.store.redo is not None:
            self.store.redo.close()
        self.store.env.close()
        self.paged.env.close()

    # -- room -------------------------------------------------------------------------------------------------------

    def disk_free(self) -> int:
        """Return the free bytes of the file system, not counting free pages of the data files."""
        stat = os.statvfs(self.data_dir)
        return stat.f_bavail * stat.f_frsize

    def is_full(self, error: Exception, octets: int = 0) -> bool:
        """Return whether a write of so many bytes has failed for a full disk, which LMDB reports as an I/O error."""
        if isinstance(error, lmdb.MapFullError) or (isinstance(error, OSError) and error.errno in NO_SPACE):
            return True
        if any(os.strerror(code) in str(error) for code in NO_SPACE):
            return True
        return self.disk_free() < octets + ROOM

    @contextlib.contextmanager
    def _finding_full(self, octets: int = 0) -> Iterator[None]:
        """Raise DiskFullError for an error of LMDB that means that there was no space for so many bytes."""
        try:
            yield
        except lmdb.Error as error:
            if not self.is_full(error, octets):
                raise
            raise DiskFullError(str(error)) from error

    # -- the log: the writer's thread ---------------------------------------------------------------------------------

    def write(self, batch: Batch, entry: LogEntry | None = None) -> Written:
        """Make a batch safe: log it if it is small, else commit it, with all logged ones. Errors as `commit`.

        `entry` is what `begin_log` returned for it, if the caller could not write that.
        """
        try:
            is_logged = self.log(batch) if entry is None else self._redo.write(entry)
            return Written([] if is_logged else self.commit(batch), is_logged, self._take_applied())
        except DiskFullError as error:
            error.applied = self._take_applied()
            raise

    def _take_applied(self) -> int:
        applied, self.store.applied = self.store.applied, 0
        return applied

    def log(self, batch: Batch) -> bool:
        """Log a batch; returns false, and does nothing, if it is not small, or cannot be logged now.

        Messages of a batch that is logged can be read once a commit has written it to the tables.
        """
        redo = self.store.redo
        changes = self.changes_to_log(batch)
        if redo is None or changes is None:
            return False
        if not redo.waiting and not self._has_log_room():  # looked for once, for all that fill the log
            return False
        return redo.append(changes)

    def begin_log(self, batch: Batch) -> LogEntry | None:
        """Return the entry of a batch, for the caller to write to its file.

        None if the batch cannot be logged without waiting: the file has to be opened, or the space looked for, or the
        batch is not small. Then call `end_log`, or `write` with the entry if that was not possible. Nothing else may
        write before.
        """
        redo = self.store.redo
        if redo is None or redo.direct < 0 or not redo.waiting:
            return None
        changes = self.changes_to_log(batch)
        return None if changes is None else redo.begin(changes)

    def end_log(self, entry: LogEntry) -> Written:
        """Note that an entry is on disk, and return the result of its batch."""
        self._redo.finish(entry)
        return Written([], is_logged=True, applied=self._take_applied()) if self.store.applied else LOGGED

    @property
    def _redo(self) -> RedoLog:
        """The redo log, in which an entry has begun."""
        assert self.store.redo is not None  # noqa: S101 - tells the type checker
        return self.store.redo

    def changes_to_log(self, batch: Batch) -> LoggedChanges | None:
        """Return the changes of a batch if it is small and may be logged before the next transaction of the tables."""
        store = self.store
        redo = store.redo
        if redo is None or redo.is_due or self._is_marked or store.unfinished or self._gone_lines:
            return None
        # After a failed root page the disk may have another place of the log than memory.
        if self._is_full or store.is_unsure:
            return None
        if batch.copies >= LOGGED_MESSAGES or batch.paged or (batch.pages and self.paged.unfinished):
            return None
        return small_changes(batch, LOGGED_OCTETS)

    def _has_log_room(self) -> bool:
        try:
            return self.disk_free() >= LOG_ROOM
        except OSError:  # the directory was renamed, for example; a commit needs no path
            return False

    @property
    def has_logged(self) -> bool:
        """Return whether a batch is logged, and not in the tables by the results of `write`."""
        return self.store.redo is not None and bool(self.store.redo.waiting or self.store.applied)

    def apply_logged(self) -> None:
        """Write the batches that are only logged to the tables. Raises StorageError if that is impossible now."""
        if self.store.redo is not None and self.store.redo.is_ahead:
            try:
                with self.store.writing():
                    pass
            except lmdb.Error as error:
                raise StorageError(f"cannot write the data in {self.data_dir}: {error}") from error

    # -- commits: the writer's thread ---------------------------------------------------------------------------------

    def commit(self, batch: Batch) -> list[int]:
        """Commit a batch; all of it is on disk when this returns. Returns the files that are no longer referenced.

        Raises DiskFullError if one environment, or both, had no space, with the parts that were written; lmdb.Error or
        OSError for any other error, after which the state of the disk is unknown and the process should end.
        """
        durable = paged = Done.ALL
        reason = ""
        if batch.paged or (batch.pages and self.paged.unfinished):
            paged, reason = self._commit_paged(batch.paged)
        is_to_apply = self.has_logged and not (batch.paged or batch.waiters)  # else somebody waits
        if self.store.redo is not None and self.store.redo.is_due:
            is_to_apply = True
        if batch.needs_sync or self.store.unfinished or self._gone_lines or is_to_apply:
            durable, why = self._commit_durable(batch)
            reason = why or reason
        unlink, self.store.unlink = self.store.unlink, []
        if durable is not Done.ALL or paged is not Done.ALL:
            raise DiskFullError(reason, durable=durable, paged=paged, unlink=unlink)
        return unlink

    def _commit_durable(self, batch: Batch) -> tuple[Done, str]:
        """Return the part that was committed, and the reason if it is not all."""
        store = self.store
        try:
            with self._finding_full(batch.octets), store.writing() as txn:
                gone = self._sweep_lines(txn, [*self._gone_lines, *self._put_rows(txn, batch.rows)])
                store.continue_sweep(txn)
                if batch.durable:
                    self._unmark(txn)
                    store.apply(txn, batch.durable)
        except DiskFullError as error:
            if store.redo is not None and store.redo.give_reserve():
                return self._commit_durable(batch)
            self._is_full = True
            if not self.commit_ends(batch.rows):
                return Done.NOTHING, str(error)
            return self._commit_deletions(store, batch.durable), str(error)
        self._is_full = False
        self._is_marked = self._is_marked and not batch.durable
        self._gone_lines = gone
        if any(row[0] == delayed.TABLE for row in batch.rows):
            self.give_back()
        return Done.ALL, ""

    def give_back(self) -> None:
        """Release the pages of the file from the process's memory if delayed messages have touched many."""
        if file_octets() > MAPPED:
            self.store.mapping.give_back()

    def commit_ends(self, rows: Iterable[Row]) -> bool:
        """Commit the rows that free ids before messages are deleted, in case of a kill; returns if there was space."""
        ends = [row for row in rows if row[0] == message_ids.TABLE and message_ids.frees(*row[1:])]
        if not ends:
            return True
        try:
            with self._finding_full(), self.store.writing() as txn:
                gone = self._put_rows(txn, ends)
        except DiskFullError:
            return False
        self._gone_lines += gone
        return True

    def _put_rows(self, txn: Any, rows: Iterable[Row]) -> list[tuple[str, int]]:
        """Write and delete rows, in their order; returns the lines that this deletes, with their tables."""
        gone = []
        for (table, is_deletion), some in groupby(rows, key=_kind_of_row):
            db = self.store.db[table]
            if not is_deletion:  # fewer calls, and neighbouring rows in sequence
                txn.cursor(db).putmulti(sorted([(key, value) for _, key, value in some], key=_first))
                continue
            for _, key, _ in some:
                txn.delete(key, db=db)
                if table in _OF_LINES and delayed.is_line(key):
                    gone.append((table, int.from_bytes(key, "big")))
        return gone

    def _sweep_lines(self, txn: Any, gone: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Delete rows of deleted lines, as many as one transaction should; returns what is left."""
        left = []
        for table in dict.fromkeys([table for table, _ in gone]):
            lines = [line for each, line in gone if each == table]
            forget_body = partial(self.store.remove_reference, txn) if table == delayed.TABLE else None
            cursor = txn.cursor(self.store.db[table])
            left += [(table, line) for line in delayed.sweep_lines(cursor, lines, forget_body)]
        return left

    def _commit_paged(self, changes: Changes) -> tuple[Done, str]:
        """Return the part that was committed, and the reason if it is not all."""
        # The store's file may fill the disk and have free pages itself, so a failure here does not stop durable
        # writes.
        paged = self.paged
        try:
            with self._finding_full(changes.octets), paged.writing() as txn:
                paged.continue_sweep(txn)
                paged.apply(txn, changes)
        except DiskFullError as error:
            return self._commit_deletions(paged, changes), str(error)
        return Done.ALL, ""

    def _commit_deletions(self, table: LmdbEnvironment, changes: Changes) -> Done:
        """Commit at least the changes that free space, except rows that report a deletion, which follow later."""
        # A row is written in any case: LMDB uses the pages that a commit has freed only after the next one, so
        # without it a batch that needs them would fail forever.
        part = len(changes.deletes) + len(changes.unrefs)
        while not self._try_deletions(table, changes):
            # Pages are copied before they are changed, so deletions need space, too: fewer deletions need less.
            part //= 4
            while part and self._delete_some(table, changes, part):
                pass
            if not part:
                return Done.NOTHING
        return Done.DELETIONS

    def _try_deletions(self, table: LmdbEnvironment, changes: Changes) -> bool:
        try:
            with table.writing() as txn:
                if table is self.store:
                    self._unmark(txn)
                table.apply_deletions(txn, changes)
                txn.put(b"room", b"", db=table.db["meta"])
        except lmdb.Error:
            return False
        self._is_marked = self._is_marked and table is not self.store
        return True

    def _delete_some(self, table: LmdbEnvironment, changes: Changes, count: int) -> bool:
        """Delete `count` rows of one kind in a commit of their own; False if none are left or there is no space."""
        # Records go before the bodies they refer to, so a crash between two of these commits leaves bodies without
        # records, which the next start removes. Committed changes are not noted again: references must not be counted
        # down twice; all others may be repeated.
        some = Changes()
        for name in ("marks", "merges", "deletes", "unrefs"):
            left = getattr(changes, name)
            if left:
                setattr(some, name, left[:count])
                some.unmarks = some.deletes
                if not self._try_deletions(table, some):
                    return False
                del left[:count]
                return True
        return False

    @property
    def has_unfinished_durable(self) -> bool:
        """Return whether there is unfinished work besides sweeps of paged messages, which wait for another commit."""
        return bool(self.store.unfinished or self.store.unlink or self._gone_lines)

    def save(self, rows: Iterable[Row]) -> None:
        """Mark a clean stop and save the state of queues for the next start. This must be the last commit.

        Raises DiskFullError if there is no space for it: the next start must scan all blocks then; lmdb.Error for any
        other error.
        """
        db, redo = self.store.db, self.store.redo
        with self._finding_full(), self.store.writing() as txn:
            txn.drop(db["queues"], delete=False)
            self._put_rows(
                txn, [(table, key, value and seal(key, value, self.boot)) for table, key, value in rows]
            )
            saved = Saved(self.boot, int(txn.stat(db["queues"])["entries"]))
            txn.put(CLEAN, saved.row(), db=db["meta"])
            if redo is not None:
                txn.put(REDO_ROW, redo.place.unused().row(), db=db["meta"])
        if redo is not None:
            redo.given_up()
        self._is_marked = True

    def finish_sweeps(self) -> None:
        """Finish all sweeps, however long it takes."""
        while self.store.unfinished:
            with self.store.writing(START_WORK) as txn:
                self.store.continue_sweep(txn)

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, ranges: Sequence[Range], limit: int) -> Loaded:
        """Read the blocks of ascending ranges of one queue from both environments, and the bodies they refer to."""
        return self.read_bodies(*self.read_blocks(ranges, limit), ranges)

    def read_blocks(self, ranges: Sequence[Range], limit: int) -> tuple[list[RawBlock], int]:
        """Read the blocks, and return where that ended: with one range, before its end once `limit` bytes are read."""
        blocks: list[RawBlock] = []
        stop = LAST_SEQ_ID
        for table, is_paged in ((self.store, False), (self.paged, True)):
            with table.reading(buffers=True) as txn:
                found, end = table.read(txn, ranges, limit if len(ranges) == 1 else _NO_LIMIT, paged=is_paged)
            blocks += found
            stop = min(stop, end)
        return blocks, stop

    def read_bodies(self, blocks: list[RawBlock], stop: int, ranges: Sequence[Range]) -> Loaded:
        """Read the bodies that blocks refer to, those that are not gone since the blocks were read."""
        bodies: dict[int, bytes | str] = {}
        for block in blocks:
            table = self.paged if block.paged else self.store
            self.bodies.read_all(block, ranges, stop, bodies, table.row_of_body)
        return Loaded(blocks, stop, bodies)

    def snapshot(self) -> "FileSnapshot":
        """Open a snapshot of both environments; may be called from the event loop. Raises StorageError."""
        try:
            return FileSnapshot((self.store, self.paged), self.bodies)
        except lmdb.Error as error:
            raise StorageError(f"cannot look into the data in {self.data_dir} now: {error}") from error

    def read_delayed(
        self, line: int, start: delayed.Start, table: str = delayed.TABLE
    ) -> delayed.DelayedRows:
        """Read the next delayed messages of a line, from `start` on, as many as a window takes."""
        with self.store.reading() as txn:
            body_of = partial(_content, self.bodies, self.store, txn) if table == delayed.TABLE else None
            found = delayed.read_rows(txn.cursor(self.store.db[table]), line, start, body_of=body_of)
        self.give_back()
        return found

    def recover_lines(self, table: str, lines: Collection[int], owners: Collection[int]) -> dict[int, bytes]:
        """Return the rows of the lines in use, each by its number; the next commits delete other lines.

        `lines` are those of exchanges that delay messages, `owners` the ids of queues, and of exchanges with ids.
        """
        with self.store.env.begin() as txn:
            found = delayed.stored_lines(txn.cursor(self.store.db[table]))
        known = delayed.current_lines(found, lines, owners)
        self._gone_lines += [(table, line) for line in found if line not in known]
        return {line: value for line, value in found.items() if line in known}

    def segments(self) -> dict[int, list[Segment]]:
        """Return the segments of each stream, ascending. Damaged rows are left out: two segments are one then."""
        found: dict[int, list[Segment]] = {}
        for qid, segment in self._sound_rows(SEGMENTS, read_segment):
            found.setdefault(qid, []).append(segment)
        return found

    def offsets(self) -> dict[int, dict[str, int]]:
        """Return the offsets of the consumers of each stream, by their tags. Damaged rows are left out."""
        found: dict[int, dict[str, int]] = {}
        for qid, tag, offset in self._sound_rows(OFFSETS, read_offset):
            found.setdefault(qid, {})[tag] = offset
        return found

    def _sound_rows(self, table: str, unpack: Callable[[bytes, bytes], R]) -> Iterator[R]:
        for key, value in self.rows(table):
            try:
                yield unpack(key, value)
            except DamagedError as error:
                log.error("storage: %s", error)  # noqa: TRY400 - it says all

    def forget_streams(self, qids: Collection[int]) -> None:
        """Remove the rows of streams that no longer exist: those of segments and offsets."""
        gone = {
            table: [key for key, _ in self.rows(table) if int.from_bytes(key[:8], "big") in qids]
            for table in (SEGMENTS, OFFSETS)
        }
        if any(gone.values()):
            with self.store.env.begin(write=True) as txn:
                for table, keys in gone.items():
                    for key in keys:
                        txn.delete(key, db=self.store.db[table])

    def rows(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield all rows of a table of the durable environment."""
        with self.store.env.begin() as txn:
            yield from txn.cursor(self.store.db[table])


def _kind_of_row(row: Row) -> tuple[str, bool]:
    """Return the table of a row, and whether the row is deleted."""
    return row[0], row[2] is None


def _content(bodies: Bodies, store: LmdbEnvironment, txn: Any, msg_id: int) -> bytes:
    """Return the content of a delayed message that is stored apart; empty if it is missing or damaged."""
    content = bodies.content(msg_id, store.row_of_body(msg_id, txn))
    return content if isinstance(content, bytes) else b""


class FileSnapshot:
    """A `Snapshot` (`storage.queues.peek`): one read transaction per environment, open until `close`.

    While it is open, pages that are freed cannot be reused, so it should not be open for long. It is opened by one
    thread and read by another, but never by two at the same time; any thread may close it at any time. If an
    environment has to be reopened because the disk is full, a snapshot is void, and its reads raise lmdb.Error.
    The durable environment is the first one. Raises lmdb.Error or StorageError if a transaction cannot be opened now.
    """

    def __init__(self, environments: Iterable[LmdbEnvironment], bodies: Bodies) -> None:
        self._bodies = bodies
        self._opened: list[tuple[LmdbEnvironment, Any]] = []
        self._lock = Lock()  # held for the moments in which a read begins or ends
        self._is_read = self._is_closed = False
        try:
            for table in environments:
                self._opened.append((table, table.env.begin(buffers=True)))
        except BaseException:
            self.close()
            raise

    def read(self, ranges: Sequence[Range], limit: int) -> Loaded:
        """Read the blocks of ascending ranges of one queue, and the bodies they refer to, as `Environment.read`.

        Raises StorageError if the snapshot is closed.
        """
        blocks: list[RawBlock] = []
        bodies: dict[int, bytes | str] = {}
        stop = LAST_SEQ_ID
        with self._in_use():
            for number, (table, txn) in enumerate(self._opened):
                with table.held_open():
                    most = limit if len(ranges) == 1 else _NO_LIMIT
                    found, end = table.read(txn, ranges, most, paged=bool(number))
                blocks += found
                stop = min(stop, end)
            for block in blocks:
                table, txn = self._opened[block.paged]
                with table.held_open():
                    self._bodies.read_all(block, ranges, stop, bodies, partial(table.row_of_body, txn=txn))
        return Loaded(blocks, stop, bodies)

    def read_delayed(self, line: int, start: delayed.Start) -> delayed.DelayedRows:
        """Read the next delayed messages of a line, as `Environment.read_delayed`; raises as `read`."""
        with self._in_use():
            table, txn = self._opened[0]
            with table.held_open():
                body_of = partial(_content, self._bodies, table, txn)
                return delayed.read_rows(txn.cursor(table.db[delayed.TABLE]), line, start, body_of=body_of)

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        """Keep the transactions open during a read."""
        with self._lock:
            if self._is_closed:
                raise StorageError("the snapshot is closed: nobody waits for what it has")
            self._is_read = True
        try:
            yield
        finally:
            self._end_read()

    def _end_read(self) -> None:
        with self._lock:
            self._is_read = False
            if self._is_closed:
                self._end()

    def close(self) -> None:
        """End the transactions; during a read without a waiting caller, they end with it. May be repeated."""
        with self._lock:
            self._is_closed = True
            if not self._is_read:
                self._end()

    def _end(self) -> None:
        for _, txn in self._opened:
            txn.abort()
        self._opened.clear()
