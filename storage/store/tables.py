"""The tables of one LMDB environment: what one transaction does to them, and how they are read.

Everything here runs inside a transaction that somebody else has begun; `storage.store.environment` says who may.

LMDB gives an environment up for good if it cannot write its root ("meta") page, the last step of a commit, and refuses
every transaction from then on. On file systems that copy what is written (btrfs, ZFS, snapshots) that happens for want
of room. So the writer opens the file anew then, while nobody reads, and sees whether the transaction is in.
"""
# ruff: noqa: C901 - one case after the other

import contextlib
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Any
from zlib import crc32

import lmdb

from leveret.storage.damage import BITMAP, BLOCK, Damages
from leveret.storage.errors import DamagedError, StorageError
from leveret.storage.journal.batch import Changes
from leveret.storage.journal.blocks import (
    LAST_SEQ_ID,
    Plan,
    bits_of,
    encode_block,
    is_damaged,
    last_of,
    pack_bits,
    pack_key,
    read_header,
    read_records,
    returns_of,
    unpack_key,
)
from leveret.storage.journal.reads import Range, RawBlock
from leveret.storage.permissions import DIRECTORY, FILE
from leveret.storage.store.mapped_memory import Mapping
from leveret.storage.store.row_checksums import pack_number, unpack_number

log = logging.getLogger("leveret.storage")

MAP_SIZE = 1 << 40
SWEEP_WORK = 1000
"""Blocks, and bodies of their own, that one commit deletes for all sweeps, and at most one block's more; what is left
goes with later ones. Whoever waits for the commit waits for this, too; and the pages that a commit frees are one record
of LMDB's free list, written anew each time a part of it is used: so not too many at once."""

_LOCK_OCTETS = 4096
"""Of the lock file: room for more readers than there are."""

_GIVEN_UP_SECONDS = 10.0
"""How long a reader waits at most until an environment that was given up is open again."""

_U64 = Struct(">Q")
_COUNT = Struct(">I")
_SWEEP_KEY = Struct(">QQ")
_WHOLE_ID = 1 << 39
"""Set in ids of bodies that their checksums cover as a whole: format 1 never counted that far."""


class EnvironmentTables:
    """The tables of one environment and what is common to both."""

    env: Any
    db: dict[str, Any]
    mapping: Mapping

    def __init__(self, path: Path, names: Sequence[str], damages: Damages, *, sync: bool) -> None:
        self._damages = damages
        path.mkdir(mode=DIRECTORY, parents=True, exist_ok=True)
        self.path = path
        self._names = names
        self._sync = sync
        self._in_use = threading.Condition()
        """Held by whoever reads in another thread than the writer's, and while the file is opened anew."""
        self._unsure_page = -1
        """A root page that may be another on disk than what is read of it."""
        _reserve_lock(path / "lock.mdb")
        self._open()
        self.span = self._read_span()
        """No block spans more seq_ids than that."""
        self.unfinished: list[Range] = []
        """Sweeps that are marked as done and not yet carried out to their end."""
        self._work_left = SWEEP_WORK
        self.unlink: list[int] = []
        """Files whose last reference went with the commit under way."""
        self.commits = 0

    def _open(self) -> None:
        self.env = lmdb.open(
            str(self.path),
            map_size=MAP_SIZE,
            max_dbs=16,
            max_readers=16,
            meminit=False,
            readahead=False,
            sync=self._sync,
            mode=FILE,
        )
        self.env.reader_check()
        self.db = {name: self.env.open_db(name.encode()) for name in self._names}
        self.mapping = Mapping(self.path / "data.mdb")

    def _read_span(self) -> int:
        """How many seq_ids a block spans at most; by what the blocks say if the row that has it is damaged."""
        with self.env.begin() as txn:
            octets = txn.get(b"span", db=self.db["meta"])
            try:
                return 1 if octets is None else unpack_number(b"span", octets)
            except DamagedError:
                log.warning("storage: the span of blocks is damaged: looking through all of them")
            span = 1
            for key, value in txn.cursor(self.db["blocks"]):
                with contextlib.suppress(DamagedError):
                    header = read_header(key, value)
                    span = max(span, header.last - header.first + 1)
            return span

    @contextlib.contextmanager
    def writing(self, work: int = 0) -> Iterator[Any]:
        """A write transaction. If it fails, what memory knows of the tables is what it knew before, too.

        `work` is how much of it sweeps may do; 0 for `SWEEP_WORK`. Raises lmdb.Error if nothing was written;
        StorageError if that is not known.
        """
        before = self.unfinished[:], self.unlink[:], self.span
        self._work_left = work or SWEEP_WORK
        number = 0
        try:
            if self.is_unsure:
                self._rewrite_root_page()
            with self.env.begin(write=True) as txn:
                number = txn.id()
                yield txn
            self.commits += 1
        except BaseException as error:
            self.unfinished, self.unlink, self.span = before
            if number and isinstance(error, lmdb.Error) and self._is_given_up():
                self._open_again(number)
            raise

    @property
    def is_unsure(self) -> bool:
        """Whether the disk may have another root page than that which is read, and need pages that are free by it."""
        return self._unsure_page >= 0

    def _is_given_up(self) -> bool:
        """Whether LMDB could not write the root page, and refuses everything now."""
        try:
            self.env.begin().abort()
        except lmdb.PanicError:
            return True
        return False

    def _open_again(self, number: int) -> None:
        """Open the file anew after the transaction with this number could not write its root page."""
        with self._in_use:
            self.env.close()
            self._open()
            self._in_use.notify_all()
        if self.env.info()["last_txnid"] >= number:
            raise StorageError(f"{self.path}: a transaction was written whose root page could not be flushed")
        self._unsure_page = number % 2 if self._sync else -1

    def _rewrite_root_page(self) -> None:
        """Have that root page on disk which is read, not the one that could not be written.

        LMDB puts back what makes it count for nothing, but does not flush it. If the disk had the other one after all,
        and the power failed, the pages that it refers to might be those of another transaction.
        """
        size = self.env.stat()["psize"]
        try:
            descriptor = os.open(self.path / "data.mdb", os.O_RDWR | os.O_CLOEXEC)
            try:
                os.pwrite(
                    descriptor, os.pread(descriptor, size, size * self._unsure_page), size * self._unsure_page
                )
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise lmdb.DiskError(f"{self.path}: {error.strerror}") from error
        self._unsure_page = -1

    @contextlib.contextmanager
    def reading(self, *, buffers: bool = False) -> Iterator[Any]:
        """A read transaction of another thread than the writer's; the file is not opened anew meanwhile."""
        with self._in_use:
            while True:
                try:
                    txn = self.env.begin(buffers=buffers)
                    break
                except lmdb.PanicError:  # the writer is about to open it again
                    if not self._in_use.wait(_GIVEN_UP_SECONDS):
                        raise
            with txn:
                yield txn

    def go_on_sweeping(self, txn: Any) -> None:
        """Carry on sweeps that are not at their end, the oldest first, as far as one transaction should."""
        unfinished, self.unfinished = self.unfinished, []
        for at, sweep in enumerate(unfinished):
            if self._work_left <= 0:
                self.unfinished += unfinished[at:]
                break
            self._sweep(txn, sweep)

    def apply(self, txn: Any, changes: Changes) -> None:
        """Carry out changes inside a write transaction."""
        db = self.db
        if changes.bodies:
            txn.cursor(db["bodies"]).putmulti([_body_row(*each) for each in changes.bodies])
            for key, count in changes.refs:
                txn.put(key, count, db=db["refs"])
        if changes.shared:
            self._share_all(txn, changes.shared)
        if changes.blocks:
            self._widen(txn, changes.blocks)
            txn.cursor(db["blocks"]).putmulti(
                [(plan.block.key, encode_block(plan)) for plan in changes.blocks]
            )
        if changes.moves is not None:
            self.apply_deletions(txn, changes.moves)  # before sweeps, which may take the rest
        self.apply_deletions(txn, changes)

    def apply_deletions(self, txn: Any, changes: Changes) -> None:
        """Carry out those changes that only take away."""
        db = self.db
        blocks, acks = db["blocks"], db["acks"]
        # LMDB's binding gives the interpreter away at each call: the fewer calls, the sooner the commit
        if changes.marks:
            txn.cursor(acks).putmulti(changes.marks)
        for key, bits in changes.merges:
            self._merge(txn, key, bits)
        for key in changes.deletes:
            txn.delete(key, db=blocks)
        for key in changes.unmarks:
            txn.delete(key, db=acks)
        for msg_id in changes.unrefs:
            self._unref(txn, msg_id)
        for sweep in changes.sweeps:
            self._sweep(txn, sweep)

    def _merge(self, txn: Any, key: bytes, bitmap: bytes) -> None:
        """Set bits in a bitmap where others may be set; the block goes if that are all. Its delivery counts count."""
        acks = self.db["acks"]
        value = txn.get(key, db=self.db["blocks"])
        if value is None:  # swept meanwhile
            return
        try:
            header = read_header(key, value)
        except DamagedError:
            self._damages.note(unpack_key(key), BLOCK)  # its messages cannot be read, whatever their bits say
            return
        before = txn.get(key, db=acks)
        if before and is_damaged(before, header):
            self._damages.note(unpack_key(key), BITMAP)
        dead = bits_of(bitmap, header) | bits_of(before, header)
        if dead.bit_count() < header.records:
            txn.put(key, pack_bits(key, header.records, dead, returns_of(bitmap, header)), db=acks)
        else:
            txn.delete(key, db=acks)
            txn.delete(key, db=self.db["blocks"])

    def _share_all(self, txn: Any, shared: dict[int, tuple[bytes, int]]) -> None:
        """Write bodies that several queues have, the new ones together, and count what refers to each."""
        cursor = txn.cursor(self.db["bodies"])
        last = _U64.unpack(cursor.key())[0] if cursor.last() else 0
        new = [(msg_id, *shared[msg_id]) for msg_id in sorted(shared) if msg_id > last]
        for msg_id, (content, records) in shared.items():
            if msg_id <= last:
                self._share(txn, msg_id, content, records)
        if new:
            cursor.putmulti([_body_row(msg_id, content) for msg_id, content, _ in new])
        counts = [(_U64.pack(msg_id), _COUNT.pack(records)) for msg_id, _, records in new if records > 1]
        if counts:
            txn.cursor(self.db["refs"]).putmulti(counts)

    def _share(self, txn: Any, msg_id: int, content: bytes, count: int) -> None:
        """So many records more refer to a body, which is written if it is not there."""
        key = _U64.pack(msg_id)
        bodies, refs = self.db["bodies"], self.db["refs"]
        if txn.cursor(bodies).set_key(key):
            octets = txn.get(key, db=refs)
            count += 1 if octets is None else _COUNT.unpack(octets)[0]
        else:
            txn.put(*_body_row(msg_id, content), db=bodies)
        if count > 1:
            txn.put(key, _COUNT.pack(count), db=refs)

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
        if count > 2:  # noqa: PLR2004 - the last but one needs no count
            txn.put(key, _COUNT.pack(count - 1), db=refs)
        else:
            txn.delete(key, db=refs)

    def _sweep(self, txn: Any, sweep: Range) -> None:
        """Delete a range as far as one transaction should; what is left is marked as gone."""
        cursor = txn.cursor(self.db["blocks"])
        found = self._seek(cursor, sweep.qid, sweep.first)
        first = sweep.first
        txn.delete(_SWEEP_KEY.pack(sweep.qid, sweep.first), db=self.db["sweeps"])
        while found:
            qid, at = unpack_key(cursor.key())
            if qid != sweep.qid or at >= sweep.stop:
                break
            if self._work_left <= 0:
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
        """Put the cursor before every block that may hold `seq_id` or a later one.

        Blocks interleave: a body that goes to a file comes later than its neighbours, and paging takes what it likes.
        How far back one may begin is known only because no block spans more than `span` seq_ids.
        """
        return bool(cursor.set_range(pack_key(qid, max(0, seq_id - self.span + 1))))

    def _widen(self, txn: Any, blocks: Iterable[Plan]) -> None:
        """Note how many seq_ids a block spans at most."""
        before = span = self.span
        for _, entries, _ in blocks:
            width = entries[-1].seq_id - entries[0].seq_id
            if width >= span:
                span = 1 << width.bit_length()
        if span > before:
            self.span = span
            txn.put(b"span", pack_number(b"span", span), db=self.db["meta"])

    def _sweep_block(self, txn: Any, cursor: Any, sweep: Range) -> bool:
        """Delete the records of one block that are in the range; moves the cursor on."""
        key, value = cursor.key(), cursor.value()
        acks = self.db["acks"]
        self._work_left -= 1
        try:
            header = read_header(key, value)
        except DamagedError:
            self._damages.note(unpack_key(key), BLOCK)  # it is deleted with what is around it
            txn.delete(key, db=acks)
            cursor.delete()
            return bool(cursor.key())
        bitmap = txn.get(key, db=acks)
        before = dead = bits_of(bitmap, header)
        if sweep.first <= header.first and header.last < sweep.stop:
            dead = (1 << header.records) - 1
            if header.has_references:
                for record in read_records(value, header, before):
                    if not isinstance(record, int) and record.msg_id:
                        self._unref(txn, record.msg_id)
                        self._work_left -= 1
        else:
            for record in read_records(value, header, before):
                if not isinstance(record, int) and sweep.first <= record.seq_id < sweep.stop:
                    dead |= 1 << record.place
                    if record.msg_id:
                        self._unref(txn, record.msg_id)
                        self._work_left -= 1
        if dead.bit_count() >= header.records:
            txn.delete(key, db=acks)
            cursor.delete()  # moves on
            return bool(cursor.key())
        if dead != before:
            txn.put(key, pack_bits(key, header.records, dead, returns_of(bitmap, header)), db=acks)
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
        """How many commits the oldest transaction that reads is behind; 0 without one.

        A process that died while it read is forgotten. Pages that were freed since that transaction cannot be used
        again, so the file grows while it lasts.
        """
        with self._in_use:
            self.env.reader_check()
            return self.lag()

    def lag(self) -> int:
        """The same without looking whether the processes of readers live."""
        readers = [line.split()[-1] for line in self.env.readers().splitlines()[1:]]
        last = int(self.env.info()["last_txnid"])
        return max((last - int(txnid) for txnid in readers if txnid.isdigit()), default=0)

    def free_octets(self) -> int:
        """Octets of the file that hold nothing any more and will be used again."""
        with self.reading() as txn:
            return unused_octets(self.env, txn, self.db.values())


def _reserve_lock(path: Path) -> None:
    """Have room for the lock file, which LMDB maps with a hole: on a full disk its first use would be a SIGBUS."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, FILE)
    try:
        os.posix_fallocate(descriptor, 0, _LOCK_OCTETS)
    finally:
        os.close(descriptor)


def _octets_of(key: bytes, value: bytes | memoryview) -> int:
    """Octets of content of a block, if its header is right; those that lie elsewhere are read with it."""
    try:
        return read_header(key, value).octets
    except DamagedError:
        return 0


def unused_octets(env: Any, txn: Any, tables: Iterable[Any]) -> int:
    """Octets of an environment's file in pages that hold nothing and will be used again."""
    used = 2  # LMDB's own two first pages
    for stat in (env.stat(), *(txn.stat(db) for db in tables)):
        used += stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
    return max(0, int(env.info()["last_pgno"]) + 1 - used) * int(env.stat()["psize"])


def first_msg_id(boot: int) -> int:
    """The first id of a body that the start with this number gives."""
    return boot << 40 | _WHOLE_ID


def pack_blob(msg_id: int, content: bytes) -> bytes:
    """The checksum in front of a content that lies apart from its records, in a row or in a file.

    It covers the id; of ids that were given by format 1 the lower half only, which recurs with each start.
    """
    seed = crc32(_U64.pack(msg_id)) if msg_id & _WHOLE_ID else msg_id & 0xFFFFFFFF
    return _COUNT.pack(crc32(content, seed))


def _body_row(msg_id: int, content: bytes) -> tuple[bytes, bytes]:
    """The row of a body; only a checksum for one that is in a file."""
    return _U64.pack(msg_id), pack_blob(msg_id, content) + content
