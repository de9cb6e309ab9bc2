"""The LMDB environments of one data directory: where blocks, bodies and definitions lie.

Two environments: `store/` is durable, every commit is flushed before it returns; `paged/` keeps transient messages
that memory has no room for, is never flushed and made anew at every start. Tables: see docs/storage.md.

`commit` belongs to one thread, the writer. `read` may be called from one other thread at a time; it opens a read
transaction and closes it before it returns, so none is ever kept open while messages come and go, which would stop
pages from being used again. The map is opened far larger than any disk, so its size is never what fails.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Any
from zlib import crc32

import lmdb

from storage.blocks import bits_of, pack_bits, pack_key, read_header, read_records, unpack_key
from storage.errors import DamagedError, DiskFullError, StorageError, UnknownFormatError
from storage.journal import Batch, Changes
from storage.loading import Loaded, Range, RawBlock

FORMAT = b"1"
MAP_SIZE = 1 << 40
SWEEP_BLOCKS = 1000
"""Blocks that one commit deletes at most for one sweep; what is left goes with later ones."""
ROOM = 16 * 1024 * 1024
"""Octets of disk that a commit leaves free: a failed one with less around it failed for want of room."""

_U64 = Struct(">Q")
_COUNT = Struct(">I")
_SWEEP_KEY = Struct(">QQ")
_TABLES = ("meta", "defs", "blocks", "acks", "bodies", "refs", "sweeps", "queues")
_PAGED_TABLES = ("blocks", "acks", "bodies", "refs", "sweeps")


class Table:
    """The tables of one environment and what is common to both."""

    def __init__(self, path: Path, names: Sequence[str], *, sync: bool, read_only: bool = False) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
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
        self.unfinished: list[Range] = []
        """Sweeps that are marked as done and not yet carried out to their end."""
        self.unlink: list[int] = []
        """Files whose last reference went with the commit under way."""

    def apply(self, txn: Any, changes: Changes) -> None:
        """Carry out changes inside a write transaction."""
        db = self.db
        if changes.bodies:
            txn.cursor(db["bodies"]).putmulti(changes.bodies)
            for key, count in changes.refs:
                txn.put(key, count, db=db["refs"])
        if changes.blocks:
            txn.cursor(db["blocks"]).putmulti(changes.blocks)
        self.apply_deletions(txn, changes)

    def apply_deletions(self, txn: Any, changes: Changes) -> None:
        """Carry out those changes that only take away."""
        db = self.db
        blocks, acks = db["blocks"], db["acks"]
        # LMDB's binding gives the interpreter away at each call: the fewer calls, the sooner the commit
        if changes.marks:
            txn.cursor(acks).putmulti(changes.marks)
        for key, bits in changes.merges:
            before = txn.get(key, db=acks)
            txn.put(key, pack_bits(8 * len(bits), bits_of(before) | bits_of(bits)), db=acks)
        for key in changes.deletes:
            txn.delete(key, db=blocks)
        for key in changes.unmarks:
            txn.delete(key, db=acks)
        for msg_id in changes.unrefs:
            self._unref(txn, msg_id)
        for sweep in changes.sweeps:
            self._sweep(txn, sweep)

    def _unref(self, txn: Any, msg_id: int) -> None:
        """One record less refers to a body."""
        key = _U64.pack(msg_id)
        refs = self.db["refs"]
        octets = txn.get(key, db=refs)
        if octets is None:
            body = txn.get(key, db=self.db["bodies"])
            if body is not None:
                txn.delete(key, db=self.db["bodies"])
                if len(body) == _COUNT.size:
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
        found = cursor.set_range(pack_key(sweep.qid, 0))
        first = sweep.first
        if sweep.first:
            # the block that holds the first seq_id may begin before it
            found = self._seek(cursor, sweep.qid, sweep.first)
        while found:
            qid, at = unpack_key(cursor.key())
            if qid != sweep.qid or at >= sweep.stop:
                break
            if not left:
                self._mark(txn, Range(sweep.qid, first, sweep.stop), sweep)
                return
            left -= 1
            first = max(at, sweep.first)
            found = self._sweep_block(txn, cursor, sweep)
        txn.delete(_SWEEP_KEY.pack(sweep.qid, sweep.first), db=self.db["sweeps"])

    def _mark(self, txn: Any, rest: Range, sweep: Range) -> None:
        txn.delete(_SWEEP_KEY.pack(sweep.qid, sweep.first), db=self.db["sweeps"])
        txn.put(_SWEEP_KEY.pack(rest.qid, rest.first), _U64.pack(rest.stop), db=self.db["sweeps"])
        self.unfinished.append(rest)

    @staticmethod
    def _seek(cursor: Any, qid: int, seq_id: int) -> bool:
        """Put the cursor on the first block that may hold `seq_id` or a later one."""
        if not cursor.set_range(pack_key(qid, seq_id)):
            if not cursor.last():
                return False
        elif cursor.key() == pack_key(qid, seq_id):
            return True
        elif not cursor.prev():
            return bool(cursor.first())
        # blocks of different commits may interleave where a body went to a file: go back while they reach here
        while True:
            key_qid, _ = unpack_key(cursor.key())
            if key_qid != qid or read_header(cursor.value()).last < seq_id:
                return bool(cursor.next())
            if not cursor.prev():
                return bool(cursor.first())

    def _sweep_block(self, txn: Any, cursor: Any, sweep: Range) -> bool:
        """Delete the records of one block that are in the range; moves the cursor on."""
        key, value = cursor.key(), cursor.value()
        acks = self.db["acks"]
        try:
            header = read_header(value)
        except DamagedError:
            header = None
        if header is None or (sweep.first <= header.first and header.last < sweep.stop):
            if header is not None and header.has_references:
                for record in read_records(value, header, bits_of(txn.get(key, db=acks))):
                    if not isinstance(record, int) and record.msg_id:
                        self._unref(txn, record.msg_id)
            txn.delete(key, db=acks)
            cursor.delete()  # moves on
            return bool(cursor.key())
        dead = bits_of(txn.get(key, db=acks))
        for record in read_records(value, header, dead):
            if not isinstance(record, int) and sweep.first <= record.seq_id < sweep.stop:
                dead |= 1 << record.place
                if record.msg_id:
                    self._unref(txn, record.msg_id)
        if dead.bit_count() == header.records:
            txn.delete(key, db=acks)
            cursor.delete()
            return bool(cursor.key())
        txn.put(key, pack_bits(header.records, dead), db=acks)
        return bool(cursor.next())

    def read(
        self, txn: Any, ranges: Iterable[Range], limit: int, *, paged: bool
    ) -> tuple[list[RawBlock], int]:
        """The blocks of some ranges, and where it ended because they had `limit` octets."""
        found: list[RawBlock] = []
        octets = 0
        acks = self.db["acks"]
        cursor = txn.cursor(self.db["blocks"])
        stop = 0
        for qid, first, end in ranges:
            stop = end
            more = self._seek(cursor, qid, first)
            while more:
                key = cursor.key()
                key_qid, at = unpack_key(key)
                if key_qid != qid or at >= end:
                    break
                if octets >= limit:
                    return found, at
                value = cursor.value()
                octets += len(value)
                found.append(RawBlock(paged, value, txn.get(key, db=acks)))
                more = cursor.next()
        return found, stop

    def free_octets(self) -> int:
        """Octets of the file that hold nothing any more and will be used again."""
        used = 0
        with self.env.begin() as txn:
            for db in (None, *self.db.values()):
                stat = txn.stat(db) if db is not None else self.env.stat()
                used += stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        last = int(self.env.info()["last_pgno"]) + 1
        return max(0, last - used - 2) * self.page_size


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
        except lmdb.Error as error:
            raise StorageError(f"cannot open the data in {data_dir}: {error}") from None
        try:
            self.was_clean, self.boot = self._begin()
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
        _sync_directory(self.data_dir)
        _sync_directory(self.data_dir / "store")
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
            self._commit_paged(batch.paged)
        if not batch.needs_sync and not self.store.unfinished:
            return []
        store = self.store
        store.unlink = []
        unfinished, store.unfinished = store.unfinished, []
        try:
            with store.env.begin(write=True) as txn:
                self._put_rows(txn, batch.rows)
                store.apply(txn, batch.durable)
                for sweep in unfinished:
                    store._sweep(txn, sweep)
        except lmdb.MapFullError as error:
            store.unfinished = unfinished
            raise DiskFullError(str(error)) from error
        except lmdb.Error as error:
            store.unfinished = unfinished
            if not self._no_room(batch.octets, error):
                raise
            raise DiskFullError(str(error), deletions_done=self._commit_deletions(batch)) from error
        return store.unlink

    def _put_rows(self, txn: Any, rows: Iterable[tuple[str, bytes, bytes | None]]) -> None:
        for table, key, value in rows:
            db = self.store.db[table]
            if value is None:
                txn.delete(key, db=db)
            else:
                txn.put(key, value, db=db)

    def _commit_paged(self, changes: Changes) -> None:
        paged = self.paged
        unfinished, paged.unfinished = paged.unfinished, []
        try:
            with paged.env.begin(write=True) as txn:
                paged.apply(txn, changes)
                for sweep in unfinished:
                    paged._sweep(txn, sweep)
        except lmdb.Error as error:
            paged.unfinished = unfinished
            if not self._no_room(changes.octets, error):
                raise
            raise DiskFullError(str(error)) from error

    def _commit_deletions(self, batch: Batch) -> bool:
        """Commit at least what frees room."""
        try:
            with self.store.env.begin(write=True) as txn:
                self.store.apply_deletions(txn, batch.durable)
        except lmdb.Error:
            return False
        return True

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

    def save(self, rows: Iterable[tuple[str, bytes, bytes | None]]) -> None:
        """Write what makes the next start quick, and that the stop was clean; nothing may follow but `close`."""
        with self.store.env.begin(write=True) as txn:
            self._put_rows(txn, rows)
            txn.put(b"clean", b"", db=self.store.db["meta"])

    @property
    def has_unfinished(self) -> bool:
        """Whether a sweep waits to be carried on by the next commit."""
        return bool(self.store.unfinished or self.paged.unfinished)

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, ranges: Sequence[Range], limit: int) -> Loaded:
        """Read the blocks of some ranges of one queue from both environments, and the bodies they refer to.

        `limit` octets are enough: with one range only, reading may end before it does.
        """
        blocks: list[RawBlock] = []
        stop = ranges[-1].stop
        for table, is_paged in ((self.store, False), (self.paged, True)):
            with table.env.begin() as txn:
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


def _sync_directory(path: Path) -> None:
    """Make names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
