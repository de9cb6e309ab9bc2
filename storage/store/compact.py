"""Compacts the data file while the broker is stopped.

Theory. An LMDB file never shrinks: free pages are reused, which is enough while a broker runs, but the file keeps the
size of a backlog that has been drained. Within blocks, dead records take space until their whole block is dead. So
everything is written to a new file next to the old one, row by row in key order, blocks without their dead records. The
new file is flushed and renamed to the old name, in one step. Until then the old file is the data, afterwards the new
one is; an interrupted compaction leaves a file that is never read and that the next one removes. LMDB's own copy is not
used because it keeps dead records.

Damage is preserved: rows are copied unchanged, and so is a block with a wrong header. seq_ids, and so the order, do not
change; a block's key may, if its first record was dead.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from stat import S_IMODE
from struct import error as StructError  # noqa: N812 - it is an exception, whatever its name
from typing import Any, NamedTuple

import lmdb

from leveret.storage.damage import Damages
from leveret.storage.errors import DamagedError, DiskFullError, StorageError
from leveret.storage.files import FILE, sync_directory, sync_file
from leveret.storage.journal.batch import decode_batch
from leveret.storage.journal.blocks import (
    NO_RETURNS,
    RECORD,
    REFERENCE,
    RUN,
    Header,
    bodies_of,
    join_block,
    moved_record,
    offsets_of,
    pack_bits,
    pack_key,
    read_bitmap,
    read_header,
)
from leveret.storage.journal.runs import unpacked
from leveret.storage.store.lmdb_environment import (
    TABLES,
    LmdbEnvironment,
    forget_log,
    open_mapped,
    unused_octets,
)
from leveret.storage.store.read_only import opened
from leveret.storage.store.redo_log import NAME as REDO_LOG, ROW as REDO_ROW, left_behind
from leveret.storage.store.store_header import PLACE

WORTH_OCTETS = 64 * 1024 * 1024  # size in bytes of a file from which compaction at start-up may be worth it
LEFT_BEHIND = "data.mdb.new"  # name of the file that a compaction writes; an interrupted one leaves it behind
OLD_LOG = "redo.log.old"  # name of a redo log that `reset_log` has put aside
AT_ONCE = 32 * 1024 * 1024  # approximate bytes copied in one transaction


class Garbage(NamedTuple):
    """Garbage in a data file; sizes in bytes."""

    file: int
    unused: int  # bytes in free pages
    dead: int  # bytes in records of settled messages

    @property
    def fraction(self) -> float:
        """Garbage as a fraction of the file."""
        return min(1.0, (self.unused + self.dead) / self.file) if self.file else 0.0


class Compacted(NamedTuple):
    """Result of a compaction; sizes of the data file in bytes."""

    before: int
    after: int
    records: int  # dead records that were left out


def measure(data_dir: Path) -> Garbage:
    """Measure the garbage, without reading messages; errors as of `opened`."""
    with opened(data_dir) as (env, txn, tables):
        dead = 0
        for key, value in txn.cursor(tables["acks"]) if "acks" in tables else ():
            block = txn.get(key, db=tables["blocks"])
            if block is not None:
                with contextlib.suppress(DamagedError):
                    header = read_header(key, block)
                    dead += sum(
                        stop - start
                        for start, stop in _extents(block, header, read_bitmap(value, header).dead, dead=True)
                    )
        return Garbage(_size(data_dir), unused_octets(env, txn, tables.values()), dead)


def compact(data_dir: Path, *, replacing: Callable[[], object] = lambda: None) -> Compacted:
    """Rewrite the data without garbage; it must not be in use. `replacing` is called before the old file is replaced.

    Raises DiskFullError if there is no space next to the old file, StorageError if something cannot be read or written,
    UnknownFormatError if another version wrote the data; the data is unchanged then.
    """
    store = data_dir / "store"
    new = store / LEFT_BEHIND
    new.unlink(missing_ok=True)
    replay(data_dir)
    before = _size(data_dir)
    try:
        with opened(data_dir) as (env, txn, tables):
            if "meta" in tables and txn.get(PLACE, db=tables["meta"]) is not None:
                raise StorageError(
                    "a copy of a replicated log is not compacted: remove it, and it is made again"
                )
            needed = before - unused_octets(env, txn, tables.values())
            stat = os.statvfs(store)
            if stat.f_bavail * stat.f_frsize < needed + needed // 20:
                raise DiskFullError(f"not enough disk space to compact: {needed} bytes are needed in {store}")
            records = _Copy(txn, tables, new).run()
        _take_over(store / "data.mdb", new)
        replacing()
        new.replace(store / "data.mdb")
        sync_directory(store)
    except (lmdb.Error, OSError) as error:
        raise StorageError(f"cannot compact the data in {data_dir}: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
    return Compacted(before, _size(data_dir), records)


def replay(data_dir: Path) -> None:
    """Write the logged commits of a killed broker to the data, which must not be in use. Errors as for `compact`."""
    store = data_dir / "store"
    try:
        with opened(data_dir) as (_, txn, tables):
            if "meta" not in tables or left_behind(store, txn, tables["meta"]) is None:
                return
        written = LmdbEnvironment(store, TABLES, Damages(), sync=True)
        with contextlib.closing(written.env):
            written.replay()
    except (lmdb.Error, OSError) as error:
        raise StorageError(f"cannot write the data in {data_dir}: {error}") from error


def reset_log(data_dir: Path) -> Path | None:
    """Have the next start do without the commits that only a redo log may have; the data must not be in use.

    Returns the new name of the log's file, which is kept; None if there is none. Raises StorageError, also if a start
    would find all of these commits: they are not lost.
    """
    path = data_dir / "store" / REDO_LOG
    kept = path.with_name(OLD_LOG)
    with opened(data_dir) as (_, txn, tables):
        count = _logged_commits(path.parent, txn, tables["meta"]) if "meta" in tables else 0
    if count:
        raise StorageError(
            f"{REDO_LOG} belongs to these data, and has {count} commits for the next start: nothing was changed"
        )
    if kept.exists():
        raise StorageError(f"{kept} exists: move it away first")
    try:
        forget_log(path.parent)
        if not path.exists():
            return None
        path.rename(kept)
        sync_directory(path.parent)
    except OSError as error:
        raise StorageError(f"cannot rename {path}: {error.strerror}") from error
    return kept


def _logged_commits(store: Path, txn: Any, meta: Any) -> int:
    """Return the number of commits that a start would find in a redo log; 0 if it would refuse the log."""
    try:
        left = left_behind(store, txn, meta)
        return 0 if left is None else len([decode_batch(each) for each in left.batches])
    except (DamagedError, OSError):
        return 0


class _Copy:
    def __init__(self, txn: Any, tables: dict[str, Any], path: Path) -> None:
        self._txn = txn
        self._tables = tables
        self._path = path
        self._omitted = 0
        self._marks: dict[bytes, bytes] = {}  # of blocks not rewritten, and of those with delivery counts

    def run(self) -> int:
        with open_mapped(self._path, subdir=False, lock=False, sync=False, mode=FILE) as env:
            for name, table in self._tables.items():
                if name == "blocks":
                    rows: Iterator[tuple[bytes, bytes]] = self._blocks(table)
                elif name == "acks":
                    rows = iter(sorted(self._marks.items()))
                elif name == "meta":
                    # transactions are counted anew, and nothing is only logged
                    rows = (each for each in self._txn.cursor(table) if each[0] != REDO_ROW)
                else:
                    rows = iter(self._txn.cursor(table))
                _fill(env, env.open_db(name.encode()), rows)
            env.sync(True)
        sync_file(self._path)
        return self._omitted

    def _blocks(self, table: Any) -> Iterator[tuple[bytes, bytes]]:
        """Yield the blocks without their dead records, before the bitmaps: some of those are dropped then."""
        acks = self._tables.get("acks")
        for key, value in self._txn.cursor(table):
            bitmap = None if acks is None else self._txn.get(key, db=acks)
            if bitmap is None:
                yield key, value
                continue
            try:
                new = rewritten(key, value, bitmap)
            except DamagedError:
                self._marks[key] = bitmap
                yield key, value
                continue
            self._omitted += read_bitmap(bitmap, read_header(key, value)).dead.bit_count()
            if new is not None:
                new_key, block, marks = new
                if marks is not None:
                    self._marks[new_key] = marks
                yield new_key, block


def _fill(env: Any, table: Any, rows: Iterator[tuple[bytes, bytes]]) -> None:
    """Write rows, in a few transactions."""
    octets = 0
    some: list[tuple[bytes, bytes]] = []
    for row in rows:
        some.append(row)
        octets += len(row[0]) + len(row[1])
        if octets >= AT_ONCE:
            _put(env, table, some)
            some, octets = [], 0
    _put(env, table, some)


def _put(env: Any, table: Any, rows: list[tuple[bytes, bytes]]) -> None:
    rows.sort()  # a block that now begins later may belong after the next one
    with env.begin(write=True) as txn:
        cursor = txn.cursor(table)
        if rows and cursor.last() and cursor.key() >= rows[0][0]:
            cursor.putmulti(rows)
        else:
            cursor.putmulti(rows, append=True)


def rewritten(key: bytes, value: bytes, bitmap: bytes | None) -> tuple[bytes, bytes, bytes | None] | None:
    """Return a block without its dead records: key, block, bitmap; None if nothing is left of it.

    The new bitmap has the delivery counts of the old one; None if there are none. Raises DamagedError if the block
    cannot be parsed.
    """
    header = read_header(key, value)
    dead, returns, _ = read_bitmap(bitmap, header)
    extents = _extents(value, header, dead, dead=False)
    if not extents:
        return None
    places = [place for place in range(header.records) if not dead >> place & 1]
    bodies = bodies_of(value, header)
    records = [value[start:stop] for start, stop in extents]
    seq_ids = []
    octets = last = 0
    has_references = has_expiries = False
    for record in records:
        if len(record) < RECORD.size:
            raise DamagedError(f"a record of a block of queue {header.qid} is too short")
        _, length, seq_id, expires, kind, _, address = RECORD.unpack_from(record)
        has_expiries = has_expiries or bool(expires)
        seq_ids.append(seq_id)
        last = seq_id
        if kind == RUN:
            try:
                _, contents = unpacked(
                    record[RECORD.size : RECORD.size + address], record[RECORD.size + address :]
                )
            except StructError:
                raise DamagedError(f"a run of a block of queue {header.qid} is too short") from None
            last += len(contents) - 1
            octets += sum(map(len, contents))
        elif kind:
            has_references = True
            if len(record) < RECORD.size + address + REFERENCE.size:
                raise DamagedError(f"a record of a block of queue {header.qid} is too short")
            octets += REFERENCE.unpack_from(record, RECORD.size + address)[1]
        else:
            octets += length - (RECORD.size - 8) - address
    if seq_ids != sorted(set(seq_ids)) or not header.first <= seq_ids[0] <= last <= header.last:
        raise DamagedError(f"the records of a block of queue {header.qid} are out of order")
    new_key = pack_key(header.qid, seq_ids[0])
    records = [
        moved_record(record, header, place, new_key, new_place)
        for new_place, (place, record) in enumerate(zip(places, records, strict=True))
    ]
    lengths = [len(record) for record in records]
    block = join_block(
        header.qid,
        seq_ids[0],
        last,
        lengths,
        [bodies[place] for place in places],
        records,
        octets=octets,
        references=has_references,
        expiries=has_expiries,
    )
    left = {new: returns[old] for new, old in enumerate(places) if old in returns} or NO_RETURNS
    marks = pack_bits(new_key, len(places), 0, left) if left else None
    return new_key, block, marks


def _extents(value: bytes, header: Header, bits: int, *, dead: bool) -> list[tuple[int, int]]:
    """Return the start and end of each run of dead records of a block, or of the live ones."""
    edges = pairwise((*offsets_of(value, header), len(value)))
    return [extent for at, extent in enumerate(edges) if bool(bits >> at & 1) == dead]


def _take_over(old: Path, new: Path) -> None:
    """Give the new file the old one's owner and mode: compaction may run as root, the broker as another user."""
    was = old.stat()
    new.chmod(S_IMODE(was.st_mode))
    if (was.st_uid, was.st_gid) != (os.geteuid(), os.getegid()):
        os.chown(new, was.st_uid, was.st_gid)


def _size(data_dir: Path) -> int:
    return (data_dir / "store" / "data.mdb").stat().st_size
