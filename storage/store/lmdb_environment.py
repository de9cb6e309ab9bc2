"""One LMDB environment: its transactions, the changes that they apply to its tables, and reads of blocks.

A function that takes a transaction runs inside the caller's; `storage.store.environment` has the rules. Bodies that are
stored apart from their records are counted in `storage.store.bodies`.

If LMDB cannot write the root ("meta") page of an environment, the last step of a commit, it refuses every transaction
from then on. On copy-on-write file systems (btrfs, ZFS, snapshots) that happens when the disk is full. So the writer
then reopens the file, while no thread reads, and checks whether the transaction was written.

LMDB reads through a map of its file. Every page it has touched, and some around it, count as memory of the process
until the kernel needs them for something else, which on an idle machine is never. So after rows are written all over a
large file, the whole file is counted. That has no benefit, as the pages stay in the page cache, and it looks like a
memory leak. So they are released (`Mapping`); pages that are needed are mapped again on access.
"""

import contextlib
import ctypes
import logging
import os
import resource
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from math import inf
from operator import itemgetter
from pathlib import Path
from struct import Struct, error as StructError  # noqa: N812 - it is an exception, whatever its name
from time import monotonic
from typing import Any

import lmdb

from leveret.storage import delayed, message_ids
from leveret.storage.damage import BITMAP, BLOCK, Damages
from leveret.storage.errors import DamagedError, StorageError, UnknownStateError
from leveret.storage.files import DIRECTORY, FILE, sync_data
from leveret.storage.journal.batch import Changes, LoggedChanges, decode_batch, together
from leveret.storage.journal.blocks import (
    LAST_SEQ_ID,
    last_of,
    pack_bits,
    pack_key,
    read_bitmap,
    read_header,
    read_records,
    unpack_key,
)
from leveret.storage.journal.reads import Range, RawBlock
from leveret.storage.journal.stream_rows import OFFSETS, SEGMENTS
from leveret.storage.store.bodies import put_bodies, remove_reference, share_bodies
from leveret.storage.store.redo_log import CUT_OFF, ROW, RedoLog, give_reserve, left_behind, read_place
from leveret.storage.store.store_header import CLEAN, pack_number, unpack_number

log = logging.getLogger("leveret.storage")

TABLES = (  # the tables of the environment with what survives the end of the broker
    "meta",
    "defs",
    "queues",
    "blocks",
    "acks",
    "bodies",
    "refs",
    "sweeps",
    delayed.TABLE,
    message_ids.TABLE,
    SEGMENTS,
    OFFSETS,
)
MAP_SIZE = 1 << 40
LEAST_MAP = 1 << 30  # bytes of a map below which an environment is not opened
SWEEP_WORK = 1000
"""Maximum number of blocks, and of separate bodies, that one commit deletes for all sweeps, plus at most one block's;
later commits delete the rest. Callbacks that wait for the commit wait for this, too. The pages that a commit frees are
one record of LMDB's free list, which is rewritten each time a part of it is used, so there must not be too many."""
SWEEP_TIME = 0.02
"""Seconds after which a commit sweeps no further, and confirms that wait for it no longer. While the loop is busy, the
thread that commits waits for the interpreter at each of three or four calls a block."""

_DAMAGE = (lmdb.InvalidError, lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.VersionMismatchError)
"""Errors that are due to the contents of the file."""
_LOCK_OCTETS = 4096  # bytes of the lock file: space for more readers than there are

_GIVEN_UP_SECONDS = 10.0  # maximum seconds that a reader waits until a failed environment is open again

_U64 = Struct(">Q")
_SPAN = b"span"  # key, in the table `meta`, of the maximum number of seq_ids that a block spans
_SWEEP_KEY = Struct(">QQ")  # of an unfinished sweep: queue, first seq_id; the value is where it stops
_DONTNEED = 4  # MADV_DONTNEED, the same on every Linux


class _LostEnvironment:
    """An environment that could not be reopened: any use of it, by whichever thread, raises UnknownStateError."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def close(self) -> None:
        """Do nothing: it is closed."""

    def __getattr__(self, _name: str) -> Any:
        raise UnknownStateError(self.reason)


class LmdbEnvironment:
    """One environment; its folder is created if it does not exist.

    Args:
        path: the folder.
        names: of the tables.
        damages: for what is found.
        sync: flush every commit.
        flushes_roots: flush the root page, too, before a commit counts. Without it a power failure may undo the last
            commit, and nothing else.
    """

    env: Any
    db: dict[str, Any]
    mapping: "Mapping"

    def __init__(
        self, path: Path, names: Sequence[str], damages: Damages, *, sync: bool, flushes_roots: bool = True
    ) -> None:
        self._damages = damages
        path.mkdir(mode=DIRECTORY, parents=True, exist_ok=True)
        self.path = path
        self._names = names
        self._sync = sync
        self._flushes_roots = flushes_roots
        self._in_use = threading.Condition()
        """Held by threads other than the writer's while they read, and while the file is reopened."""
        self._unsure_page = -1  # A root page that may differ on disk from the one in memory
        _reserve_lock(path / "lock.mdb")
        self._open()
        self.span = self._read_span()  # maximum number of seq_ids that any block spans
        self.unfinished: list[Range] = []  # sweeps that are committed as done and not yet finished
        self._work_left = SWEEP_WORK
        self._sweep_until: float | None = None  # monotonic end of this commit's sweeps; None before them
        self.unlink: list[int] = []  # files whose last reference was removed by the current commit
        self.commits = 0
        self.redo: RedoLog | None = None  # the redo log, if small batches are logged first
        self.applied = 0  # number of logged batches that were written since it was set to 0

    def _open(self) -> None:
        # meminit is left on: without it the unused parts of pages have freed memory of the process, as passwords.
        self.env = open_mapped(
            self.path,
            max_readers=16,
            readahead=False,
            sync=self._sync,
            metasync=self._flushes_roots,
            mode=FILE,
        )
        self.env.reader_check()
        self.db = {name: self.env.open_db(name.encode()) for name in self._names}
        self.mapping = Mapping(self.path / "data.mdb")

    def _read_span(self) -> int:
        """Return how many seq_ids a block spans at most; from the blocks if its row is damaged."""
        with self.env.begin() as txn:
            octets = txn.get(_SPAN, db=self.db["meta"])
            try:
                return 1 if octets is None else unpack_number(_SPAN, octets)
            except DamagedError:
                log.warning("storage: the span of blocks is damaged, scanning all blocks")
            span = 1
            for key, value in txn.cursor(self.db["blocks"]):
                with contextlib.suppress(DamagedError):
                    header = read_header(key, value)
                    span = max(span, header.last - header.first + 1)
            return span

    # -- transactions -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def writing(self, work: int = 0) -> Iterator[Any]:
        """Open a write transaction that begins with the logged batches; a failure restores the state in memory.

        `work` is the limit for sweeps; 0 for `SWEEP_WORK`. Raises lmdb.Error if nothing was written; UnknownStateError
        if that is unknown.
        """
        before = self.unfinished[:], self.unlink[:], self.span
        self._work_left = work or SWEEP_WORK
        self._sweep_until = inf if work else None
        number = 0
        try:
            if self.is_unsure:
                self._rewrite_root_page()
            with self.env.begin(write=True) as txn:
                number = txn.id()
                redo = self.redo
                if redo is not None and redo.is_ahead:
                    self._apply_logged(txn, together(redo.waiting))
                    txn.put(ROW, redo.place.row(), db=self.db["meta"])
                yield txn
            self.commits += 1
            if redo is not None:
                self.applied += redo.written()
        except BaseException as error:
            self.unfinished, self.unlink, self.span = before
            if number and isinstance(error, lmdb.Error) and self._is_given_up():
                self._open_again(number)
            raise

    @property
    def is_unsure(self) -> bool:
        """Return whether the root page on disk may differ, and need pages that are free by the one in memory."""
        return self._unsure_page >= 0

    def _is_given_up(self) -> bool:
        """Return whether LMDB could not write the root page, and refuses all transactions now."""
        try:
            self.env.begin().abort()
        except lmdb.PanicError:
            return True
        return False

    def _open_again(self, number: int) -> None:
        """Reopen the file after the transaction with this number could not write its root page.

        Raises UnknownStateError if that fails, or the transaction was written.
        """
        with self._in_use:
            self.env.close()
            try:
                self._open()
            except (lmdb.Error, OSError) as error:
                self.env.close()  # it may have been opened, and its tables not
                self.env = _LostEnvironment(f"{self.path}: cannot be reopened after a failed write: {error}")
                raise UnknownStateError(self.env.reason) from error
            finally:
                self._in_use.notify_all()
        if self.last_transaction() >= number:
            raise UnknownStateError(
                f"{self.path}: a transaction was written whose root page could not be flushed"
            )
        self._unsure_page = number % 2 if self._sync else -1

    def _rewrite_root_page(self) -> None:
        """Write the valid root page to disk again, in place of the one that could not be written."""
        # LMDB restores the page in memory so that the failed transaction is void, but does not flush it. If the disk
        # had the failed page after all, and the power failed, the pages that it refers to might be those of another
        # transaction.
        size = self.env.stat()["psize"]
        try:
            descriptor = os.open(self.path / "data.mdb", os.O_RDWR | os.O_CLOEXEC)
            try:
                at = size * self._unsure_page
                os.pwrite(descriptor, os.pread(descriptor, size, at), at)
                sync_data(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise lmdb.DiskError(f"{self.path}: {error.strerror}") from error
        self._unsure_page = -1

    @contextlib.contextmanager
    def reading(self, *, buffers: bool = False) -> Iterator[Any]:
        """Open a read transaction for a thread other than the writer's; the file is not reopened meanwhile."""
        with self._in_use:
            while True:
                try:
                    txn = self.env.begin(buffers=buffers)
                    break
                except lmdb.PanicError:  # the writer is about to reopen it
                    if not self._in_use.wait(_GIVEN_UP_SECONDS):
                        raise
            with txn:
                yield txn

    @contextlib.contextmanager
    def held_open(self) -> Iterator[None]:
        """Keep the file from being reopened during a read in a transaction that is open already."""
        with self._in_use:
            yield

    def replay(self) -> int:
        """Write the batches of the redo log that the tables lack; returns their number.

        Raises DamagedError if that is unreadable, OSError, and what `writing` raises.
        """
        with self.env.begin() as txn:
            left = left_behind(self.path, txn, self.db["meta"])
        if left is None:
            return 0
        if left.is_cut_off:
            log.warning("storage: %s", CUT_OFF)
        changes = together(map(decode_batch, left.batches))
        while True:
            try:
                with self.writing() as txn:
                    self._apply_logged(txn, changes)
                    txn.put(ROW, left.place.unused().row(), db=self.db["meta"])
            except lmdb.Error:
                if not give_reserve(self.path):
                    raise
            else:
                return len(left.batches)

    def last_transaction(self) -> int:
        """Return the number of the last transaction."""
        return int(self.env.info()["last_txnid"])

    # -- changes ------------------------------------------------------------------------------------------------------

    def _apply_logged(self, txn: Any, changes: LoggedChanges) -> None:
        """Apply small batches, whose rows are none of definitions (`batch.small_changes`), sorted."""
        for table, rows in groupby(changes.rows, key=itemgetter(0)):
            txn.cursor(self.db[table]).putmulti([(key, value) for _, key, value in rows])
        self.apply(txn, changes)

    def apply(self, txn: Any, changes: Changes | LoggedChanges) -> None:
        """Apply changes inside a write transaction, rows of other tables left out."""
        put_bodies(txn, self.db, changes)
        if isinstance(changes, Changes) and changes.shared:
            share_bodies(txn, self.db, changes.shared)
        blocks = changes.blocks
        if blocks:
            self._widen_to(txn, changes.width)
            txn.cursor(self.db["blocks"]).putmulti(blocks)
        self.apply_deletions(txn, changes)
        if changes.moves is not None:
            self.apply_deletions(txn, changes.moves)  # whose sweeps may take the rest

    def apply_deletions(self, txn: Any, changes: Changes | LoggedChanges) -> None:
        """Apply those changes that only delete."""
        blocks, acks = self.db["blocks"], self.db["acks"]
        # LMDB's binding releases the GIL at each call: fewer calls make the commit faster
        if changes.marks:
            txn.cursor(acks).putmulti(changes.marks)
        for key, bits in changes.merges:
            self._merge(txn, key, bits)
        for key in changes.deletes:
            txn.delete(key, db=blocks)
        for key in changes.unmarks:
            txn.delete(key, db=acks)
        for msg_id in changes.unrefs:
            self.remove_reference(txn, msg_id)
        for sweep in changes.sweeps:
            self._sweep(txn, sweep)

    def _merge(self, txn: Any, key: bytes, bitmap: bytes) -> None:
        """Set bits in a bitmap that may have others, and replace its delivery counts; delete a dead block."""
        acks = self.db["acks"]
        value = txn.get(key, db=self.db["blocks"])
        if value is None:  # swept meanwhile
            return
        try:
            header = read_header(key, value)
        except DamagedError:
            self._damages.note(unpack_key(key), BLOCK)  # its messages cannot be read anyway
            return
        before, new = read_bitmap(txn.get(key, db=acks), header), read_bitmap(bitmap, header)
        if before.is_damaged:
            self._damages.note(unpack_key(key), BITMAP)
        dead = new.dead | before.dead
        if dead.bit_count() < header.records:
            txn.put(key, pack_bits(key, header.records, dead, new.returns), db=acks)
        else:
            txn.delete(key, db=acks)
            txn.delete(key, db=self.db["blocks"])

    def remove_reference(self, txn: Any, msg_id: int) -> None:
        """Remove one reference to a body, which goes with the last one."""
        if remove_reference(txn, self.db, msg_id):
            self.unlink.append(msg_id)

    # -- sweeps -------------------------------------------------------------------------------------------------------

    def begin_sweeps(self, txn: Any) -> tuple[list[Range], bool]:
        """Return the ranges that are still to be deleted, in the first transaction of a start.

        And whether others were damaged, which are forgotten, with the mark of the clean stop: their messages reappear.
        """
        meta, table = self.db["meta"], self.db["sweeps"]
        if self.span > 1:  # it may have been damaged
            txn.put(_SPAN, pack_number(_SPAN, self.span), db=meta)
        sweeps, damaged = [], []
        for key, value in txn.cursor(table):
            try:
                qid, first = _SWEEP_KEY.unpack(key)
                sweeps.append(Range(qid, first, unpack_number(key, value)))
            except (DamagedError, StructError):
                damaged.append(key)
        if damaged:
            log.error("storage: %d pending deletions are damaged, their messages reappear", len(damaged))
            for key in damaged:
                txn.delete(key, db=table)
            txn.delete(CLEAN, db=meta)
        return sweeps, bool(damaged)

    def continue_sweep(self, txn: Any) -> None:
        """Continue unfinished sweeps, the oldest first, as far as one transaction should."""
        unfinished, self.unfinished = self.unfinished, []
        for at, sweep in enumerate(unfinished):
            if self._has_swept_enough():
                self.unfinished += unfinished[at:]
                break
            self._sweep(txn, sweep)

    def _has_swept_enough(self) -> bool:
        """Return whether this transaction should sweep no further; false at the first call."""
        now = monotonic()
        if self._sweep_until is None:
            self._sweep_until = now + SWEEP_TIME
        return self._work_left <= 0 or now >= self._sweep_until

    def _sweep(self, txn: Any, sweep: Range) -> None:
        """Delete a range as far as one transaction should; the rest is marked as deleted."""
        cursor = txn.cursor(self.db["blocks"])
        found = self._seek(cursor, sweep.qid, sweep.first)
        first = sweep.first
        txn.delete(_SWEEP_KEY.pack(sweep.qid, sweep.first), db=self.db["sweeps"])
        while found:
            qid, at = unpack_key(cursor.key())
            if qid != sweep.qid or at >= sweep.stop:
                break
            if self._has_swept_enough():
                rest = Range(qid, first, sweep.stop)
                key = _SWEEP_KEY.pack(qid, first)
                txn.put(key, pack_number(key, sweep.stop), db=self.db["sweeps"])
                self.unfinished.append(rest)
                break
            if at < sweep.first and last_of(cursor.value()) < sweep.first:
                found = cursor.next()
                continue
            if at >= sweep.first:
                first = at
            found = self._sweep_block(txn, cursor, sweep)

    def _seek(self, cursor: Any, qid: int, seq_id: int) -> bool:
        """Position the cursor before every block that may hold `seq_id` or a later one."""
        # Blocks interleave: a body that goes to a file is written later than its neighbours, and paging selects any
        # messages. The distance to go back is known only because no block spans more than `span` seq_ids.
        return bool(cursor.set_range(pack_key(qid, max(0, seq_id - self.span + 1))))

    def _widen_to(self, txn: Any, width: int) -> None:
        """Update the maximum number of seq_ids that a block spans; `width` is the last one minus the first."""
        if width >= self.span:
            self.span = 1 << width.bit_length()
            txn.put(_SPAN, pack_number(_SPAN, self.span), db=self.db["meta"])

    def _sweep_block(self, txn: Any, cursor: Any, sweep: Range) -> bool:
        """Delete the records of one block that are in the range; advances the cursor."""
        key, value = cursor.key(), cursor.value()
        acks = self.db["acks"]
        self._work_left -= 1
        try:
            header = read_header(key, value)
        except DamagedError:
            self._damages.note(unpack_key(key), BLOCK)  # it is deleted with the blocks around it
            txn.delete(key, db=acks)
            cursor.delete()
            return bool(cursor.key())
        before, returns, _ = read_bitmap(txn.get(key, db=acks), header)
        dead = before
        is_whole = sweep.first <= header.first and header.last < sweep.stop
        if is_whole:
            dead = (1 << header.records) - 1
        if header.has_references or not is_whole:
            for record in read_records(value, header, before):
                if not isinstance(record, int) and sweep.first <= record.seq_id < sweep.stop:
                    dead |= 1 << record.place
                    if record.msg_id:
                        self.remove_reference(txn, record.msg_id)
                        self._work_left -= 1
        if dead.bit_count() >= header.records:
            txn.delete(key, db=acks)
            cursor.delete()  # advances
            return bool(cursor.key())
        if dead != before:
            txn.put(key, pack_bits(key, header.records, dead, returns), db=acks)
        return bool(cursor.next())

    # -- reads --------------------------------------------------------------------------------------------------------

    def row_of_body(self, msg_id: int, txn: Any = None) -> bytes | None:
        """Return the row of a body, as of a transaction or of now; None if there is none."""
        if txn is None:
            with self.reading() as now:
                return self.row_of_body(msg_id, now)
        octets = txn.get(_U64.pack(msg_id), db=self.db["bodies"])
        return None if octets is None else bytes(octets)

    def read(
        self, txn: Any, ranges: Iterable[Range], limit: int, *, paged: bool
    ) -> tuple[list[RawBlock], int]:
        """Return the blocks of some ranges, and the end of the range without others (see `Loaded.stop`).

        The limit is ignored with several ranges. The transaction must return buffers.
        """
        found: dict[bytes, RawBlock] = {}
        octets = 0
        acks = self.db["acks"]
        cursor = txn.cursor(self.db["blocks"])
        stop = LAST_SEQ_ID
        for qid, first, end in ranges:
            more = self._seek(cursor, qid, first)
            crossing = False
            stop = LAST_SEQ_ID
            while more:
                key = bytes(cursor.key())
                key_qid, at = unpack_key(key)
                if key_qid != qid:
                    break
                if at >= end or (octets >= limit and at > first):
                    stop = at
                    break
                # The binding reads the pages from disk here, without the interpreter's lock. The copy below has the
                # lock, and finds them in memory.
                value = cursor.value()
                last = last_of(value)
                if last >= first and key not in found:
                    octets += max(len(value), _octets_of(key, value))
                    dead = txn.get(key, db=acks)
                    found[key] = RawBlock(paged, key, bytes(value), dead and bytes(dead))
                crossing = crossing or last >= end
                more = cursor.next()
            if crossing:
                stop = min(stop, end)
        return list(found.values()), stop

    def reader_lag(self) -> int:
        """Return how many commits the oldest read transaction is behind; 0 without one.

        Readers of dead processes are removed. Pages that were freed since that transaction cannot be reused, so the
        file grows while it lasts.
        """
        with self._in_use:
            self.env.reader_check()
            return self.lag()

    def lag(self) -> int:
        """Return the same number as `reader_lag`, without checking whether the readers' processes are alive."""
        readers = [line.split()[-1] for line in self.env.readers().splitlines()[1:]]
        last = self.last_transaction()
        return max((last - int(txnid) for txnid in readers if txnid.isdigit()), default=0)

    def free_octets(self) -> int:
        """Return the bytes of the file in free pages, which will be reused."""
        with self.reading() as txn:
            return unused_octets(self.env, txn, self.db.values())


def open_mapped(path: Path, **options: Any) -> Any:
    """Open an environment whose map is larger than any disk, or else as large as the address space permits.

    Some kernels for ARM give a process 512 GB, and `ulimit -v` may give it less. A full map counts as a full disk.
    Raises lmdb.Error.
    """
    size = MAP_SIZE
    while True:
        try:
            env = lmdb.open(str(path), map_size=size, max_dbs=16, **options)
        except lmdb.MemoryError:
            size //= 2
            if size < LEAST_MAP:
                raise
        else:
            if size < MAP_SIZE:
                log.warning("storage: the address space limits the data in %s to %d GB", path, size >> 30)
            return env


def forget_log(path: Path) -> None:
    """Note in an unopened environment that no redo log is in use. Raises StorageError."""
    try:
        with open_mapped(path, lock=False, mode=FILE) as env:
            meta = env.open_db(b"meta", create=False)
            with env.begin(write=True) as txn:
                try:
                    place = read_place(txn.get(ROW, default=b"", db=meta))
                except DamagedError:  # or there is none
                    txn.delete(ROW, db=meta)
                else:
                    txn.put(ROW, place.unused().row(), db=meta)
    except lmdb.Error as error:
        raise unusable(f"cannot change the data in {path}", error) from error


def unusable(what: str, error: Exception) -> StorageError:
    """Return the error to raise for data that cannot be used; it says whether that is because of the data."""
    return (DamagedError if isinstance(error, _DAMAGE) else StorageError)(f"{what}: {error}")


def _reserve_lock(path: Path) -> None:
    """Allocate the lock file, which LMDB maps sparse: on a full disk its first use would raise SIGBUS."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, FILE)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, _LOCK_OCTETS)
        elif os.fstat(descriptor).st_size < _LOCK_OCTETS:  # macOS
            os.pwrite(descriptor, bytes(_LOCK_OCTETS), 0)
    finally:
        os.close(descriptor)


def _octets_of(key: bytes, value: bytes | memoryview) -> int:
    """Return the content bytes of a block, including those stored elsewhere; 0 if its header is damaged."""
    try:
        return read_header(key, value).octets
    except DamagedError:
        return 0


def unused_octets(env: Any, txn: Any, tables: Iterable[Any]) -> int:
    """Return the bytes of an environment's file in free pages, which will be reused."""
    used = 2  # LMDB's own two first pages
    for stat in (env.stat(), *(txn.stat(db) for db in tables)):
        used += stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
    return max(0, int(env.info()["last_pgno"]) + 1 - used) * int(env.stat()["psize"])


def file_octets() -> int:
    """Return the bytes of mapped files counted as memory of this process (the kernel's RssFile); 0 if unknown."""
    try:
        fields = Path("/proc/self/statm").read_bytes().split()
    except OSError:
        return 0
    return int(fields[2]) * resource.getpagesize()


class Mapping:
    """The map of one file, which must be mapped already and stay so."""

    def __init__(self, path: Path) -> None:
        self._spans: list[tuple[int, int]] = []
        self._advise = None
        with contextlib.suppress(OSError, AttributeError, ValueError):
            wanted = os.fsencode(path.resolve())
            for line in Path("/proc/self/maps").read_bytes().splitlines():
                span, _, _, _, _, *name = line.split(None, 5)
                if name == [wanted]:
                    start, stop = (int(each, 16) for each in span.split(b"-"))
                    self._spans.append((start, stop - start))
            advise = ctypes.CDLL(None).madvise
            advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
            self._advise = advise

    def give_back(self) -> None:
        """Release the map's pages from the process's memory; it may be in use."""
        if self._advise is not None:
            for start, length in self._spans:
                self._advise(start, length, _DONTNEED)
