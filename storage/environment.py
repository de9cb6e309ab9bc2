"""The LMDB environments of one data directory: where blocks, bodies and definitions lie.

Two environments: `store/` is durable, every commit is flushed before it returns; `paged/` keeps transient messages
that memory has no room for, is never flushed and made anew at every start. Tables: see docs/storage.md.

`commit` belongs to one thread, the writer. `read` may be called from one other thread at a time; it opens a read
transaction and closes it before it returns, so none is ever kept open while messages come and go, which would stop
pages from being used again. The map is opened far larger than any disk, so its size is never what fails.
"""

import contextlib
import errno
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Any
from zlib import crc32

import lmdb

from storage.blocks import (
    bits_of,
    read_header,
    read_records,
)
from storage.errors import DamagedError, DiskFullError, StorageError, UnknownFormatError
from storage.journal import LAST_SEQ_ID, Batch, Changes
from storage.loading import Loaded, Range, RawBlock
from storage.table import Table

log = logging.getLogger("leveret.storage")

FORMAT = b"1"
ROOM = 16 * 1024 * 1024
"""Octets of disk that a commit leaves free: a failed one with less around it failed for want of room."""

_LOCK_OCTETS = 4096
"""Of LMDB's lock file; it has room for more readers than there are."""

_U64 = Struct(">Q")
_COUNT = Struct(">I")
_SWEEP_KEY = Struct(">QQ")
_TABLES = ("meta", "defs", "blocks", "acks", "bodies", "refs", "sweeps", "queues")
_PAGED_TABLES = ("meta", "blocks", "acks", "bodies", "refs", "sweeps")


<<<<<<< Updated upstream
=======
class Table:
    """The tables of one environment and what is common to both."""

    def __init__(self, path: Path, names: Sequence[str], *, sync: bool, read_only: bool = False) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        if not read_only:
            _reserve_lock(path / "lock.mdb")
        self.env = lmdb.open(
            str(path),
            map_size=MAP_SIZE,
            max_dbs=16,
            max_readers=16,
            meminit=False,
            readahead=False,
            sync=sync,
            readonly=read_only,
        )
        self.db: dict[str, Any] = {}
        if read_only:
            with self.env.begin() as txn:
                for name in names:
                    with contextlib.suppress(lmdb.NotFoundError):
                        self.db[name] = self.env.open_db(name.encode(), txn=txn, create=False)
        else:
            self.env.reader_check()
            for name in names:
                self.db[name] = self.env.open_db(name.encode())
        self.page_size = int(self.env.stat()["psize"])
        self.span = 1
        """No block spans more seq_ids than that."""
        if "meta" in self.db:
            with self.env.begin() as txn:
                octets = txn.get(b"span", db=self.db["meta"])
            self.span = 1 if octets is None else _U64.unpack(octets)[0]
        self.unfinished: list[Range] = []
        """Sweeps that are marked as done and not yet carried out to their end."""
        self.unlink: list[int] = []
        """Files whose last reference went with the commit under way."""

    def apply(self, txn: Any, changes: Changes) -> None:
        """Carry out changes inside a write transaction."""
        db = self.db
        if changes.bodies:
            txn.cursor(db["bodies"]).putmulti([_body_row(*each) for each in changes.bodies])
            for key, count in changes.refs:
                txn.put(key, count, db=db["refs"])
        if changes.blocks:
            self._widen(txn, changes.blocks)
            txn.cursor(db["blocks"]).putmulti(
                [(plan.block.key, encode_block(plan)) for plan in changes.blocks]
            )
        self.apply_deletions(txn, changes)

    def apply_deletions(self, txn: Any, changes: Changes) -> None:
        """Carry out those changes that only take away."""
        db = self.db
        blocks, acks = db["blocks"], db["acks"]
        # LMDB's binding gives the interpreter away at each call: the fewer calls, the sooner the commit
        if changes.marks:
            txn.cursor(acks).putmulti(changes.marks)
        for key, bits in changes.merges:
            self._merge(txn, key, bits_of(bits))
        for key in changes.deletes:
            txn.delete(key, db=blocks)
        for key in changes.unmarks:
            txn.delete(key, db=acks)
        for msg_id in changes.unrefs:
            self._unref(txn, msg_id)
        for sweep in changes.sweeps:
            self._sweep(txn, sweep)

    def _merge(self, txn: Any, key: bytes, dead: int) -> None:
        """Set bits in a bitmap where others may be set; the block goes if that are all."""
        acks = self.db["acks"]
        value = txn.get(key, db=self.db["blocks"])
        if value is None:  # swept meanwhile
            return
        count = read_header(value).records
        dead |= bits_of(txn.get(key, db=acks))
        if dead.bit_count() < count:
            txn.put(key, pack_bits(count, dead), db=acks)
        else:
            txn.delete(key, db=acks)
            txn.delete(key, db=self.db["blocks"])

    def _unref(self, txn: Any, msg_id: int) -> None:
        """One record less refers to a body."""
        key = _U64.pack(msg_id)
        refs = self.db["refs"]
        octets = txn.get(key, db=refs)
        if octets is None:
            body = txn.get(key, db=self.db["bodies"])
            if body is not None:
                txn.delete(key, db=self.db["bodies"])
            if (
                body is None or len(body) == _COUNT.size
            ):  # a file without a row: settled before it was written
                self.unlink.append(msg_id)
            return
        (count,) = _COUNT.unpack(octets)
        if count > 2:
            txn.put(key, _COUNT.pack(count - 1), db=refs)
        else:
            txn.delete(key, db=refs)

    def _sweep(self, txn: Any, sweep: Range) -> None:
        """Delete a range as far as one transaction should; what is left is marked as gone."""
        left = SWEEP_BLOCKS
        cursor = txn.cursor(self.db["blocks"])
        found = self._seek(cursor, sweep.qid, sweep.first)
        first = sweep.first
        txn.delete(_SWEEP_KEY.pack(sweep.qid, sweep.first), db=self.db["sweeps"])
        while found:
            qid, at = unpack_key(cursor.key())
            if qid != sweep.qid or at >= sweep.stop:
                break
            if not left:
                rest = Range(qid, first, sweep.stop)
                txn.put(_SWEEP_KEY.pack(qid, first), _U64.pack(sweep.stop), db=self.db["sweeps"])
                self.unfinished.append(rest)
                break
            if at < sweep.first and _last_of(cursor.value()) < sweep.first:
                found = cursor.next()
                continue
            if at >= sweep.first:
                left -= 1
                first = at
            found = self._sweep_block(txn, cursor, sweep)

    def _seek(self, cursor: Any, qid: int, seq_id: int) -> bool:
        """Put the cursor before every block that may hold `seq_id` or a later one.

        Blocks interleave: a body that goes to a file comes later than its neighbours, and paging takes what it likes.
        How far back one may begin is known only because no block spans more than `span` seq_ids.
        """
        return bool(cursor.set_range(pack_key(qid, max(0, seq_id - self.span + 1))))

    def _widen(self, txn: Any, blocks: Iterable[Plan]) -> None:
        """Note how many seq_ids a block spans at most."""
        span = self.span
        for _, entries, _ in blocks:
            width = entries[-1].seq_id - entries[0].seq_id
            if width >= span:
                span = 1 << width.bit_length()
        self.span = span
        meta = self.db.get("meta")
        if meta is not None and txn.get(b"span", db=meta) != _U64.pack(span):
            txn.put(b"span", _U64.pack(span), db=meta)

    def _sweep_block(self, txn: Any, cursor: Any, sweep: Range) -> bool:
        """Delete the records of one block that are in the range; moves the cursor on."""
        key, value = cursor.key(), cursor.value()
        acks = self.db["acks"]
        try:
            header = read_header(value)
        except DamagedError as error:
            log.error("storage: %s; it is deleted with what is around it", error)  # noqa: TRY400 - no bug
            txn.delete(key, db=acks)
            cursor.delete()
            return bool(cursor.key())
        before = dead = bits_of(txn.get(key, db=acks))
        if sweep.first <= header.first and header.last < sweep.stop:
            dead = (1 << header.records) - 1
            if header.has_references:
                for record in read_records(value, header, before):
                    if not isinstance(record, int) and record.msg_id:
                        self._unref(txn, record.msg_id)
        else:
            for record in read_records(value, header, before):
                if not isinstance(record, int) and sweep.first <= record.seq_id < sweep.stop:
                    dead |= 1 << record.place
                    if record.msg_id:
                        self._unref(txn, record.msg_id)
        if dead.bit_count() >= header.records:
            txn.delete(key, db=acks)
            cursor.delete()  # moves on
            return bool(cursor.key())
        if dead != before:
            txn.put(key, pack_bits(header.records, dead), db=acks)
        return bool(cursor.next())

    def read(
        self, txn: Any, ranges: Iterable[Range], limit: int, *, paged: bool
    ) -> tuple[list[RawBlock], int]:
        """The blocks of some ranges, and up to where there are no others (see `Loaded.stop`).

        With several ranges the limit does not count. The transaction gives out buffers.
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
                value = cursor.value()
                last = _last_of(value)
                if last >= first and key not in found:
                    octets += max(len(value), _octets_of(value))
                    dead = txn.get(key, db=acks)
                    found[key] = RawBlock(paged, bytes(value), dead and bytes(dead))
                crossing = crossing or last >= end
                more = cursor.next()
            if crossing:
                stop = min(stop, end)
        return list(found.values()), stop

    def free_octets(self) -> int:
        """Octets of the file that hold nothing any more and will be used again."""
        used = 0
        with self.env.begin() as txn:
            for db in (None, *self.db.values()):
                stat = txn.stat(db) if db is not None else self.env.stat()
                used += stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        last = int(self.env.info()["last_pgno"]) + 1
        return max(0, last - used - 2) * self.page_size


>>>>>>> Stashed changes
class Environment:
    """The data of one broker on disk.

    Args:
        data_dir: where they are; made if it is not there.
        sync: flush every commit. Without it a power failure loses what was confirmed, and may destroy everything:
            for measurements only.

    Raises UnknownFormatError for data that a later version wrote, StorageError if they cannot be opened.
    """

    def __init__(self, data_dir: Path, *, sync: bool = True) -> None:
        self.data_dir = data_dir
        self.blobs = data_dir / "blobs"
        try:
            shutil.rmtree(data_dir / "paged", ignore_errors=True)
            self.store = Table(data_dir / "store", _TABLES, sync=sync)
            self.paged = Table(data_dir / "paged", _PAGED_TABLES, sync=False)
            self.blobs.mkdir(exist_ok=True)
        except (lmdb.Error, OSError) as error:
            raise StorageError(f"cannot open the data in {data_dir}: {error}") from None
        try:
            self.was_clean, self.boot = self._begin()
        except lmdb.Error as error:
            self.close()
            raise StorageError(f"cannot count this start in {data_dir}: {error}") from None
        except BaseException:
            self.close()
            raise

    def _begin(self) -> tuple[bool, int]:
        """Check the format and count this start, so that no id is given twice; also after a crash right now."""
        meta = self.store.db["meta"]
        with self.store.env.begin(write=True) as txn:
            written = txn.get(b"format", db=meta)
            if written is None:
                txn.put(b"format", FORMAT, db=meta)
            elif written != FORMAT:
                shown = written.decode("ascii", "replace")
                text = (
                    f"the data in {self.data_dir} have format {shown}, this version knows {FORMAT.decode()}"
                )
                raise UnknownFormatError(text)
            octets = txn.get(b"boot", db=meta)
            boot = 1 if octets is None else _U64.unpack(octets)[0] + 1
            txn.put(b"boot", _U64.pack(boot), db=meta)
            clean = txn.delete(b"clean", db=meta)
        with contextlib.suppress(PermissionError):  # somebody else made it, long ago
            sync_directory(self.data_dir.resolve().parent)
        sync_directory(self.data_dir)
        sync_directory(self.data_dir / "store")
        for key, value in self.rows("sweeps"):
            qid, first = _SWEEP_KEY.unpack(key)
            self.store.unfinished.append(Range(qid, first, _U64.unpack(value)[0]))
        return clean or octets is None, boot

    def close(self) -> None:
        """Close both environments; nothing may be called afterwards."""
        self.store.env.close()
        self.paged.env.close()

    # -- the writer's thread ------------------------------------------------------------------------------------------

    def commit(self, batch: Batch) -> list[int]:
        """Commit a batch; all of it is on disk when this returns. Returns the files nobody refers to any more.

        Raises DiskFullError if there was no room (nothing new was written then), lmdb.Error or OSError for anything
        else, after which the state of the disk is unknown and the process should end.
        """
        if batch.paged or self.paged.unfinished:
            self._commit_paged(batch.paged, batch.durable)
        store = self.store
        if not batch.needs_sync and not store.unfinished:
            unlink, store.unlink = store.unlink, []
            return unlink
        unfinished, store.unfinished = store.unfinished, []
        unlink = store.unlink[:]
        try:
            with store.env.begin(write=True) as txn:
                self._put_rows(txn, batch.rows)
                store.apply(txn, batch.durable)
                for sweep in unfinished:
                    store._sweep(txn, sweep)
        except lmdb.Error as error:
            store.unfinished, store.unlink = unfinished, unlink
            if not isinstance(error, lmdb.MapFullError) and not self._no_room(batch.octets, error):
                raise
            done = self._commit_deletions(store, batch.durable)
            raise DiskFullError(str(error), deletions_done=done, paged_done=True) from error
        unlink, store.unlink = store.unlink, []
        return unlink

    def _put_rows(self, txn: Any, rows: Iterable[tuple[str, bytes, bytes | None]]) -> None:
        for table, key, value in rows:
            db = self.store.db[table]
            if value is None:
                txn.delete(key, db=db)
            else:
                txn.put(key, value, db=db)

    def _commit_paged(self, changes: Changes, durable: Changes) -> None:
        paged = self.paged
        unfinished, paged.unfinished = paged.unfinished, []
        try:
            with paged.env.begin(write=True) as txn:
                paged.apply(txn, changes)
                for sweep in unfinished:
                    paged._sweep(txn, sweep)
        except lmdb.Error as error:
            paged.unfinished = unfinished
            if not isinstance(error, lmdb.MapFullError) and not self._no_room(changes.octets, error):
                raise
            done = self._commit_deletions(paged, changes) and self._commit_deletions(self.store, durable)
            raise DiskFullError(str(error), deletions_done=done) from error

    def _commit_deletions(self, table: Table, changes: Changes) -> bool:
        """Commit at least what frees room; not a row that says something was deleted, though: that is told later.

        A row is written in any case: LMDB uses the pages that a commit has freed only after the next one, so without
        it a batch that needs them would fail for ever.
        """
        part = len(changes.deletes) + len(changes.unrefs)
        while not self._try_deletions(table, changes):
            # Pages are copied before they are changed, so deleting needs room too: the less, the less is deleted.
            part //= 4
            while part and self._delete_some(table, changes, part):
                pass
            if not part:
                return False
        return True

    def _try_deletions(self, table: Table, changes: Changes) -> bool:
        unfinished, unlink = table.unfinished[:], table.unlink[:]
        try:
            with table.env.begin(write=True) as txn:
                table.apply_deletions(txn, changes)
                txn.put(b"room", b"", db=table.db["meta"])
        except lmdb.Error:
            table.unfinished, table.unlink = unfinished, unlink
            return False
        return True

    def _delete_some(self, table: Table, changes: Changes, count: int) -> bool:
        """Delete that many of one kind in a commit of their own; False if none are left, or there is no room.

        Records go before the bodies they refer to, so that what a crash leaves between two of these is bodies without
        records, which the next start removes. What is done is not noted again: references must not be counted down
        twice; all else may be repeated.
        """
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

    def _no_room(self, octets: int, error: Exception) -> bool:
        """Whether a write failed because the disk is full, which LMDB does not tell from a broken disk."""
        text = str(error)
        if os.strerror(errno.ENOSPC) in text or os.strerror(errno.EDQUOT) in text:
            return True
        stat = os.statvfs(self.data_dir)
        return stat.f_bavail * stat.f_frsize < octets + ROOM

    def is_full(self, error: OSError, octets: int) -> bool:
        """Whether writing a file of that size failed because the disk is full."""
        return error.errno in {errno.ENOSPC, errno.EDQUOT} or self._no_room(octets, error)

    @property
    def has_unfinished(self) -> bool:
        """Whether a sweep waits to be carried on by the next commit, or files to be named by it."""
        return bool(self.store.unfinished or self.paged.unfinished or self.store.unlink)

    def save(self, rows: Iterable[tuple[str, bytes, bytes | None]]) -> None:
        """Note that everything is written and what the next start needs to know. The last commit there is.

        Raises DiskFullError if there is no room for that: the next start has to look for itself then; lmdb.Error for
        anything else.
        """
        db = self.store.db
        try:
            with self.store.env.begin(write=True) as txn:
                txn.drop(db["queues"], delete=False)
                self._put_rows(txn, rows)
                txn.put(b"clean", b"", db=db["meta"])
        except lmdb.Error as error:
            if not isinstance(error, lmdb.MapFullError) and not self._no_room(0, error):
                raise
            raise DiskFullError(str(error)) from error

    def finish_sweeps(self) -> None:
        """Carry out what is left of sweeps, however long it takes."""
        while unfinished := self.store.unfinished:
            self.store.unfinished = []
            with self.store.env.begin(write=True) as txn:
                for sweep in unfinished:
                    self.store._sweep(txn, sweep)

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, ranges: Sequence[Range], limit: int) -> Loaded:
        """Read the blocks of some ranges of one queue from both environments, and the bodies they refer to.

        `limit` octets are enough: with one range only, reading may end before it does.
        """
        blocks: list[RawBlock] = []
        stop = LAST_SEQ_ID
        for table, is_paged in ((self.store, False), (self.paged, True)):
            with table.env.begin(buffers=True) as txn:
                found, end = table.read(txn, ranges, limit if len(ranges) == 1 else 1 << 62, paged=is_paged)
            blocks += found
            stop = min(stop, end)
        bodies: dict[int, bytes | None] = {}
        for block in blocks:
            if not block.paged:
                self._read_bodies(block, ranges, stop, bodies)
        return Loaded(blocks, stop, bodies)

    def _read_bodies(
        self, block: RawBlock, ranges: Sequence[Range], stop: int, bodies: dict[int, bytes | None]
    ) -> None:
        with contextlib.suppress(DamagedError):
            header = read_header(block.value)
            if not header.has_references:
                return
            for record in read_records(block.value, header, bits_of(block.dead)):
                if isinstance(record, int) or not record.msg_id or record.msg_id in bodies:
                    continue
                if any(each.first <= record.seq_id < min(each.stop, stop) for each in ranges):
                    bodies[record.msg_id] = self.read_body(record.msg_id)

    def read_body(self, msg_id: int) -> bytes | None:
        """A content that lies apart from its records; None if it is missing or damaged."""
        with self.store.env.begin() as txn:
            octets = txn.get(_U64.pack(msg_id), db=self.store.db["bodies"])
        if octets is None:
            return None
        if len(octets) == _COUNT.size:
            try:
                octets = self.blob_path(msg_id).read_bytes()
            except OSError:
                return None
        content = bytes(octets[4:])
        if _COUNT.unpack_from(octets)[0] != crc32(content, msg_id & 0xFFFFFFFF):
            return None
        return content

    def blob_path(self, msg_id: int) -> Path:
        """Where a very large body is."""
        return self.blobs / f"{msg_id:016x}"

    def rows(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """All rows of a table of the durable environment."""
        with self.store.env.begin() as txn:
            yield from txn.cursor(self.store.db[table])

    # -- room ------------------------------------------------------------------------------------------------------

    def disk_free(self) -> int:
        """Octets that can still be written: the disk's free ones and those of the file that will be used again."""
        stat = os.statvfs(self.data_dir)
        return stat.f_bavail * stat.f_frsize + self.store.free_octets()


def pack_blob(msg_id: int, content: bytes) -> bytes:
    """The octets in front of a content in a file of its own."""
    return _COUNT.pack(crc32(content, msg_id & 0xFFFFFFFF))


<<<<<<< Updated upstream
def sync_directory(path: Path) -> None:
=======
def _reserve_lock(path: Path) -> None:
    """Have room for LMDB's lock file, which it maps with a hole: on a full disk the first use would be a SIGBUS."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, _LOCK_OCTETS)
    finally:
        os.close(descriptor)


def _sync_directory(path: Path) -> None:
>>>>>>> Stashed changes
    """Make names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
