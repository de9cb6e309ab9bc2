"""A copy of a replicated log's state: an environment that is changed by batches of the log, and by nothing else.

Each entry of the log is applied in one transaction with the place behind it, so that it is applied exactly once. A
start repairs and sweeps as it does without a log: such changes only remove what no message refers to, and each node
makes them by itself. There is no mark of a clean stop, so a node that begins to lead scans all blocks, as after
a crash.

The root page is not flushed with each entry: a power failure may undo the last one with its place, and the log
has it. That spares half of the flushes.

All bodies are in the tables: no files, so that one LMDB file is the whole copy, and a snapshot is a copy of it.
"""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct
from threading import Lock
from typing import Any, NamedTuple

import lmdb

from leveret.storage.errors import DamagedError, DiskFullError, Done, StorageError
from leveret.storage.files import DIRECTORY, sync_directory, sync_file, tighten
from leveret.storage.journal.batch import Batch, LoggedChanges, decode_batch, encode_batch
from leveret.storage.store.environment import Environment
from leveret.storage.store.redo_log import NAME as REDO_LOG
from leveret.storage.store.store_header import PLACE

PARTS = b"part"  # keys in `meta` of pieces of batches begin so, before number (8) and offset (8)
SNAPSHOT = "snapshot.tmp"
RESTORED = "restored.tmp"
_PART = Struct(">4sQQ")


class NotReplicatedError(StorageError):
    """The data directory has data that are not a copy of a log."""


class Part(NamedTuple):
    """The place of a piece of a batch."""

    batch: int  # its number
    offset: int  # bytes before the piece
    is_last: bool


class ReplicaEnvironment(Environment):
    """A copy, in an empty directory or its own; NotReplicatedError for other data, otherwise as `Environment`."""

    is_replica = True

    def __init__(self, data_dir: Path, *, sync: bool = True) -> None:
        for name in (SNAPSHOT, RESTORED):
            shutil.rmtree(data_dir / name, ignore_errors=True)
        self._copying = Lock()  # held while a snapshot is copied, and while the file is closed
        self._reading = Lock()  # held while definitions are read, and while the file is closed
        self._is_closed = False
        super().__init__(data_dir, sync=sync)
        self._place: bytes | None = None
        with self.store.env.begin() as txn:
            self._place = txn.get(PLACE, db=self.store.db["meta"])
        if self._place is None:
            if not self._is_empty():
                self.close()
                raise NotReplicatedError(
                    f"{data_dir} has data of a broker that was not replicated. Nothing was changed. Export its "
                    "definitions, move its messages with a shovel, and begin with an empty directory"
                )
            with self.store.writing() as txn:
                txn.put(PLACE, b"", db=self.store.db["meta"])
            self._place = b""
        self.was_clean = False
        self._is_marked = False
        self.saved = None

    def _is_empty(self) -> bool:
        """Return whether there are only the rows of a first start."""
        with self.store.env.begin() as txn:
            return not any(txn.stat(db)["entries"] for name, db in self.store.db.items() if name != "meta")

    @property
    def place(self) -> bytes:
        """The place in the log behind the last entry that was applied; empty for an empty copy."""
        return self._place or b""

    # -- what others do at start and stop, and a copy does not --------------------------------------------------------

    def begin_use(self) -> None:
        """Do nothing: there is no mark of a clean stop."""

    def save(self, rows: Iterable[tuple[str, bytes, bytes | None]]) -> None:
        """Do nothing: the state of queues at a stop is not part of the log."""

    def close(self) -> None:
        """Close both environments, once no snapshot is being copied; no other method may be called afterwards."""
        with self._copying, self._reading:
            self._is_closed = True
            super().close()

    def definitions(self) -> list[tuple[bytes, bytes]] | None:
        """Return the rows of the definitions; None once this is closed. May run in any thread."""
        with self._reading:
            return None if self._is_closed else list(self.rows("defs"))

    # -- the writer's thread ------------------------------------------------------------------------------------------

    def prepare(self, batch: Batch) -> tuple[bytes | None, DiskFullError | None]:
        """Page transient messages, and return the durable part of a batch as bytes; None if it has none.

        Also returns the error of the paging if there was no room for it. What is only left to sweep is swept.
        """
        error = None
        if batch.paged or (batch.pages and self.paged.unfinished):
            paged, reason = self._commit_paged(batch.paged)
            if paged is not Done.ALL:
                error = DiskFullError(reason, durable=Done.ALL, paged=paged)
        if batch.needs_sync:
            return encode_batch(batch), error
        if self.has_unfinished_durable:
            self.sweep_on()
        return None, error

    def sweep_on(self) -> None:
        """Continue unfinished deletions; a full disk leaves them for later."""
        with suppress(DiskFullError), self._writing() as txn:
            self._put_changes(txn, LoggedChanges(1))

    @contextmanager
    def _writing(self, octets: int = 0) -> Iterator[Any]:
        """Open a write transaction, which also continues deletions. Raises DiskFullError if there is no room for it."""
        lines = self._gone_lines[:]
        try:
            with self._finding_full(octets), self.store.writing() as txn:
                yield txn
                self._gone_lines = self._sweep_lines(txn, self._gone_lines)
        except BaseException:
            self._gone_lines = lines
            raise

    def keep_part(self, place: bytes, part: Part, data: bytes, forgotten: Iterable[int]) -> None:
        """Keep a piece of a batch, with the place behind its entry; arguments and errors as for `apply`."""
        row = _PART.pack(PARTS, part.batch, part.offset), bytes((part.is_last,)) + data
        self._write(place, len(data), (), (row,), forgotten)

    def apply(
        self,
        place: bytes,
        batches: Sequence[tuple[bytes, tuple[int, ...], tuple[int, ...]]],
        forgotten: Iterable[int],
    ) -> None:
        """Apply batches, some of which are kept in pieces; `place` is that behind their entry.

        `batches` has the bytes of each, or the number of one in pieces that follow, or that never will. `forgotten` are
        numbers of batches whose pieces a former leader has left. Raises DiskFullError if there was no room, and nothing
        was applied; DamagedError for bytes that are no batch.
        """
        logged = []
        gone = list(forgotten)
        octets = 0
        for payload, named, dropped in batches:
            for each in ([payload] if payload else []) + [self._whole(number) for number in named]:
                octets += len(each)
                logged.append(decode_batch(each))
            gone += [*named, *dropped]
        self._write(place, octets, logged, (), gone)

    def _whole(self, number: int) -> bytes:
        with self.store.env.begin() as txn:
            return b"".join([value[1:] for _, value in self._parts(txn, number)])

    def _parts(self, txn: Any, number: int | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the pieces of a batch, or of all, in their order."""
        beginning = PARTS if number is None else PARTS + number.to_bytes(8, "big")
        cursor = txn.cursor(self.store.db["meta"])
        found = cursor.set_range(beginning)
        while found and cursor.key().startswith(beginning) and len(cursor.key()) == _PART.size:
            yield cursor.item()
            found = cursor.next()

    def open_batches(self) -> tuple[dict[int, int], frozenset[int]]:
        """Return the bytes of each batch that is kept in pieces, by its number, and those that are complete."""
        sizes: dict[int, int] = {}
        whole = set()
        with self.store.env.begin() as txn:
            for key, value in self._parts(txn):
                number = _PART.unpack(key)[1]
                sizes[number] = sizes.get(number, 0) + len(value) - 1
                if value[0]:
                    whole.add(number)
        return sizes, frozenset(whole)

    def _write(
        self,
        place: bytes,
        octets: int,
        logged: Iterable[LoggedChanges],
        parts: Iterable[tuple[bytes, bytes]],
        gone: Iterable[int],
    ) -> None:
        with self._writing(octets) as txn:
            meta = self.store.db["meta"]
            for each in logged:
                self._put_changes(txn, each)
            for key, value in parts:
                txn.put(key, value, db=meta)
            for number in gone:
                for key, _ in list(self._parts(txn, number)):
                    txn.delete(key, db=meta)
            txn.put(PLACE, place, db=meta)
        self._place = place
        self.store.unlink = []  # all bodies are in the tables

    def _put_changes(self, txn: Any, logged: LoggedChanges) -> None:
        self._gone_lines += self._put_rows(txn, logged.rows)
        self.store.continue_sweep(txn)
        self.store.apply(txn, logged)

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def copy_to_file(self) -> tuple[Path, bytes]:
        """Copy everything into a file of its own, in any thread; returns it and its place. Raises StorageError."""
        with self._copying:
            file = _new_file(self.data_dir / SNAPSHOT)
            try:
                self.store.env.copy(str(file.parent), compact=True)
                place = _place_in(file.parent)
            except (lmdb.Error, OSError) as error:
                self.forget_copy()
                raise StorageError(f"no snapshot could be made: {error}") from error
            return file, place or b""

    def forget_copy(self) -> None:
        """Remove the file of `copy_to_file`."""
        shutil.rmtree(self.data_dir / SNAPSHOT, ignore_errors=True)


def begin_restore(data_dir: Path) -> Path:
    """Return the path of a new, empty file for the chunks of a snapshot."""
    return _new_file(data_dir / RESTORED)


def _new_file(folder: Path) -> Path:
    """Return the path of a data file that is to be made, alone in its folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=DIRECTORY, parents=True)
    return folder / "data.mdb"


def _place_in(folder: Path) -> bytes | None:
    """Return the place of the copy in an unused folder; raises lmdb.Error."""
    with lmdb.open(str(folder), readonly=True, lock=False, max_dbs=16) as env:
        meta = env.open_db(b"meta", create=False)
        with env.begin() as txn:
            return txn.get(PLACE, db=meta)


def remove_copy(data_dir: Path) -> None:
    """Remove the copy of a data directory, whose environment is closed."""
    # first: without its file the folder is a sign of a loss
    shutil.rmtree(data_dir / "blobs", ignore_errors=True)
    (data_dir / "store" / REDO_LOG).unlink(missing_ok=True)  # another one
    shutil.rmtree(data_dir / "store", ignore_errors=True)


def put_in_place(data_dir: Path, place: bytes) -> None:
    """Make a restored file the copy in a directory that has none; raises DamagedError for another file or place."""
    folder = data_dir / RESTORED
    try:
        found = _place_in(folder)
    except lmdb.Error as error:
        raise DamagedError(f"the snapshot cannot be read: {error}") from error
    if found != place:
        raise DamagedError("the snapshot is of another place in the log than it claims")
    sync_file(folder / "data.mdb")
    remove_copy(data_dir)
    folder.rename(data_dir / "store")
    sync_directory(data_dir)
    tighten(data_dir)
