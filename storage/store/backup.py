"""Copies the data of a broker, which may be running, as of one moment after the copy has begun.

Theory. The data are the durable environment and the files of very large bodies; transient messages that are paged out
do not survive a restart, and are left out. Every confirmed message and every definition is in a committed state of the
environment, so a copy of a later state, and of the files that it refers to, has all that was confirmed before.

LMDB never changes a page that a state has in use: a commit writes only pages that are free, and none that an open read
transaction may need. So a state (`Moment`) is its root page, its list of free pages, and all other pages, for as long
as a read transaction of it is open. All pages that one state uses are copied in steps, each under a read transaction of
the latest state (`PageCopy`). The next one is opened before the last one is released, so a page that both states use
has not changed between them, and its copy is still good. Only pages that the new state uses and the last one did not
have to be copied (again). Which pages a state uses follows from its list of free pages. The copy is complete when it
has all pages of one state; the root page is written last, so an incomplete copy is not an LMDB file. So no read
transaction is open for longer than a step, and the broker can reuse freed pages, except for those of about two steps.

A file of a body never changes and its name is never used again, so files can be copied at any time (`BodyCopies`).
While a state is open the source removes no file, so all files of the last state are there at the end. Files that it
does not refer to are removed from the copy.

The broker may write faster than the limit of the copy allows. Then the limit is raised until the copy catches up. If it
never does, the last state stays open until it is copied.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from struct import Struct
from time import monotonic
from typing import Any, NamedTuple, Protocol

import lmdb

from leveret.storage.errors import NO_SPACE, DamagedError, DiskFullError, StorageError
from leveret.storage.files import DIRECTORY, FILE, open_regular, sync_data, sync_directory, write_at
from leveret.storage.store.bodies import is_in_file
from leveret.storage.store.compact import replay
from leveret.storage.store.lmdb_environment import LmdbEnvironment, forget_log, unused_octets
from leveret.storage.store.lmdb_file import DataFile
from leveret.storage.store.read_only import opened

STEP_SECONDS = 1.0  # time for which a state is kept, if its list of free pages is read in a fraction of it
_READING_SHARE = 4  # minimum length of a step as a multiple of the time to read that list
_WINDOW = 5  # steps after which the progress is evaluated
_NET_SHARE = 4  # A copy keeps up if the rest shrinks by at least this fraction (1 / n) of the copied bytes
_RAISES = 8  # number of times that the limit is doubled before the last state is kept until it is copied
ROOM = 16 * 1024 * 1024  # bytes that a backup leaves free on its disk in any case

_BODY = re.compile("[0-9a-f]{16}")
PIECE = 1024 * 1024  # bytes that are read, and written, at once
FLUSHED = 4 * 1024 * 1024
"""Bytes of a file that are flushed together: a commit waits for data that the file system has to write before its
own."""
_ROOTS = 2  # pages at the beginning of the file that are no part of its trees
_MERGED = 65536  # entries of a map that are computed at once
_NUMBER = Struct("=Q")
_TRANSACTION = 16 + 128  # offset of a root page's transaction
_BURST_SECONDS = 0.1  # time that may be caught up after a delay, so that a limit holds for any longer time
_WORK_SECONDS = 0.002
_PAUSE_SECONDS = 0.004
_MSG_ID = Struct(">Q")
_REOPENED = "the data file was reopened, because its disk is full"


# -- speed ------------------------------------------------------------------------------------------------------------


class CancelledError(StorageError):
    """Raised when a copy is to end before it is done."""


class Pace:
    """Limits how fast a thread copies, to `rate` bytes per second (0 for no limit), and ends it when it is cancelled.

    `wait` waits for some seconds and returns true, at once, if the copy is cancelled.
    """

    def __init__(self, rate: int, wait: Callable[[float], bool]) -> None:
        self.rate = rate
        self.octets = 0  # bytes copied so far
        self._wait = wait
        self._due = monotonic()
        self._worked_since = monotonic()

    def copied(self, octets: int) -> None:
        """Count bytes, and wait until as many more may be copied. Raises CancelledError."""
        self.octets += octets
        now = monotonic()
        delay = 0.0
        if self.rate:
            self._due = max(self._due, now - _BURST_SECONDS) + octets / self.rate
            delay = max(0.0, self._due - now)
        if self._wait(delay):
            raise CancelledError("cancelled")
        self._worked_since = monotonic()

    def breathe(self) -> None:
        """Let other threads run: called often during work that holds the interpreter's lock. Raises CancelledError."""
        if monotonic() - self._worked_since < _WORK_SECONDS:
            return
        if self._wait(_PAUSE_SECONDS):
            raise CancelledError("cancelled")
        self._worked_since = monotonic()


# -- sources ----------------------------------------------------------------------------------------------------------


class Moment:
    """The state after the last commit. Create and release it while no commit runs, usually in the writer's thread.

    `held_open` keeps the environment from being reopened while it is entered. Raises OSError if the file cannot be
    read, StorageError if its root page is not the one that LMDB uses.
    """

    def __init__(
        self,
        path: Path,
        env: Any,
        tables: Mapping[str, Any],
        held_open: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self._tables = tables
        self._held_open = held_open
        self._txn = env.begin(buffers=True)
        with contextlib.ExitStack() as stack:
            stack.callback(self._txn.abort)
            self.file = stack.enter_context(DataFile(path))  # as of this state; one thread only
            if self.file.meta.transaction != self._txn.id():
                raise StorageError(f"the root page of {path} is not the one in use")
            self.root = self.file.root_page()  # the bytes of the root page
            self.listed = unused_octets(env, self._txn, tables.values()) // self.file.meta.page_size
            """Number of pages that are free or belong to the list of free pages, as LMDB counts them."""
            stack.pop_all()

    def advance(self) -> "Moment":
        """Return this state, as the `Source` of unused data, which have no other."""
        return self

    def check(self) -> None:
        """Check that the read transaction is still open; raises StorageError if the file was reopened meanwhile."""
        with self._in_use():
            self._txn.id()

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        with self._held_open():
            try:
                yield
            except lmdb.Error:
                raise StorageError(_REOPENED) from None

    def files(self, names: Sequence[str]) -> list[str]:
        """Return those of some body files that messages of this state refer to. Raises StorageError as `check`."""
        with self._in_use():
            return [name for name in names if self._refers_to(name)]

    def _refers_to(self, name: str) -> bool:
        if "bodies" not in self._tables:
            return False
        row = self._txn.get(_MSG_ID.pack(int(name, 16)), db=self._tables["bodies"])
        return row is not None and is_in_file(row)

    def release(self) -> None:
        """End the read transaction: from now on the pages may change. May be called twice."""
        with self._held_open():
            self._txn.abort()

    def close(self) -> None:
        """Release the state, and close the file."""
        self.release()
        self.file.close()


def latest(table: LmdbEnvironment) -> Moment:
    """Return the last committed state of an environment in use. Called by the committing thread only.

    Raises StorageError while it is unknown which root page is on disk, and what `Moment` raises.
    """
    if table.is_unsure:
        raise StorageError(f"the root page of {table.path} could not be written, because its disk is full")
    try:
        return Moment(table.path / "data.mdb", table.env, table.db, table.held_open)
    except lmdb.Error as error:
        raise StorageError(f"cannot read the data in {table.path}: {error}") from error


@contextlib.contextmanager
def last(data_dir: Path) -> Iterator[Moment]:
    """Open the state of unused data; raises StorageError, UnknownFormatError if a later version wrote them."""
    replay(data_dir)
    with opened(data_dir) as (env, _, tables):
        moment = Moment(data_dir / "store" / "data.mdb", env, tables)
        with contextlib.closing(moment):
            yield moment


class Source(Protocol):
    """The data that are copied."""

    def advance(self) -> Moment:
        """Return a state at least as late as the last one, which is released after this one is open."""

    def release(self) -> None:
        """Release the last state, and let files be removed again. No method but this one is called afterwards."""


class Copied(NamedTuple):
    """Result of a backup."""

    octets: int  # bytes that were copied, including those that were copied again
    files: int  # bodies in files of their own


# -- the copy ---------------------------------------------------------------------------------------------------------


class Output:
    """A new file, written in any order, whose contents are flushed as they grow. All methods raise OSError."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE)
        self._unflushed = 0

    def write(self, octets: memoryview | bytes, offset: int) -> None:
        """Write bytes at an offset."""
        write_at(self._descriptor, octets, offset)
        self._unflushed += len(octets)
        if self._unflushed >= FLUSHED:
            self.flush()

    def flush(self) -> None:
        """Flush the written bytes, and release the memory that caches them."""
        sync_data(self._descriptor)
        self._unflushed = 0
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def resize(self, octets: int) -> None:
        """Set the size of the file in bytes; parts that were never written take no space."""
        os.ftruncate(self._descriptor, octets)

    def finish(self) -> None:
        """Flush everything, with the size."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class PageCopy:
    """The copy of one data file. All methods raise OSError; the file is closed by `close`."""

    def __init__(self, target: Path, pace: Pace) -> None:
        self._output = Output(target)
        self._pace = pace
        self._buffer = memoryview(bytearray(PIECE))
        self._moment: Moment
        self._used = bytearray()  # for each page of the state 1 if the state uses it, else 0
        self._wanted = bytearray()  # for each page 1 if it is used and not copied yet
        self._at = 0  # the page before which nothing is wanted in this pass

    @property
    def left(self) -> int:
        """The bytes that are not copied yet."""
        return self._wanted.count(1) * self._moment.file.meta.page_size if self._wanted else 0

    def advance(self, moment: Moment) -> None:
        """Go on with a later state. The last one must not be released before the new one is opened.

        Raises DamagedError if the list of free pages is wrong, CancelledError.
        """
        used = self._pages_of(moment)
        wanted = bytearray()
        for start in range(0, len(used), _MERGED):
            stop = start + _MERGED
            now, before, missing = (
                int.from_bytes(each[start:stop].ljust(_MERGED, b"\0"))
                for each in (used, self._used, self._wanted)
            )
            merged = now & ~(before & ~missing)
            wanted += merged.to_bytes(_MERGED)
            self._pace.breathe()
        del wanted[len(used) :]
        self._moment, self._used, self._wanted = moment, used, wanted

    def _pages_of(self, moment: Moment) -> bytearray:
        """Return the map of the pages that a state uses, with an entry for each."""
        meta = moment.file.meta
        used = bytearray(b"\1") * (meta.last_page + 1)
        used[:_ROOTS] = bytes(_ROOTS)
        free = 0
        for _, pages in moment.file.free_pages():
            free += len(pages)
            for page in pages:
                if not _ROOTS <= page <= meta.last_page:
                    raise DamagedError(f"page {page} is free and outside the data file")
                used[page] = 0
            self._pace.breathe()
        own = meta.branch_pages + meta.leaf_pages + meta.overflow_pages
        if free + own != moment.listed:
            text = f"{moment.listed} pages of the data file are unused, {free} free and {own} list them"
            raise DamagedError(text)
        return used

    def copy(self, until: float) -> bool:
        """Copy pages until a monotonic time; true if none is left. Raises DamagedError, CancelledError."""
        size = self._moment.file.meta.page_size
        while (first := self._next()) >= 0:
            stop = self._wanted.find(0, first, first + PIECE // size)
            count = (stop if stop >= 0 else min(first + PIECE // size, len(self._wanted))) - first
            self._copy(first * size, count * size)
            self._wanted[first : first + count] = bytes(count)
            self._at = first + count
            self._pace.copied(count * size)
            if monotonic() >= until:
                return not self._wanted.count(1)
        return True

    def _next(self) -> int:
        found = self._wanted.find(1, self._at)
        if found < 0 and self._at:
            found = self._wanted.find(1)
        return found

    def _copy(self, offset: int, octets: int) -> None:
        rest = self._buffer[:octets]
        while rest:
            read = os.preadv(self._moment.file.descriptor, [rest], offset + octets - len(rest))
            if not read:
                raise DamagedError("the data file is truncated")
            rest = rest[read:]
        self._output.write(self._buffer[:octets], offset)

    def finish(self) -> None:
        """Flush all pages, then write the root page and flush it: the file is whole afterwards."""
        meta = self._moment.file.meta
        self._output.resize((meta.last_page + 1) * meta.page_size)
        self._output.finish()
        # LMDB uses the one with the higher transaction. The other is the same, of the transaction before.
        other = bytearray(self._moment.root)
        _NUMBER.pack_into(other, 0, 1 - meta.transaction % 2)
        _NUMBER.pack_into(other, _TRANSACTION, max(0, meta.transaction - 1))
        for root in (other, self._moment.root):
            self._output.write(memoryview(root), _NUMBER.unpack_from(root)[0] * meta.page_size)
        self._output.finish()

    def close(self) -> None:
        """Close the file, whole or not."""
        self._output.close()


class BodyCopies:
    """The copies of bodies in files of their own; their directory, `source`, need not exist."""

    def __init__(self, source: Path, target: Path, pace: Pace) -> None:
        self._source = source
        self._target = target
        self._pace = pace
        self._copied: set[str] = set()
        self._pieces: Generator[None] | None = None  # the rest of the file that is being copied

    @property
    def copied(self) -> list[str]:
        """The names of the files that were copied."""
        return sorted(self._copied)

    def names(self) -> list[str]:
        """Return the names of the existing files."""
        if not self._source.is_dir():
            return []
        with os.scandir(self._source) as entries:
            return sorted(entry.name for entry in entries if _BODY.fullmatch(entry.name))

    def missing(self) -> list[str]:
        """Return those that were not copied."""
        return [name for name in self.names() if name not in self._copied]

    def octets(self, names: Sequence[str]) -> int:
        """Return the bytes of those files that exist and are not copied."""
        total = 0
        for name in names:
            if name not in self._copied:
                try:
                    total += (self._source / name).stat().st_size
                except FileNotFoundError:
                    continue
                self._pace.breathe()
        return total

    def copy(self, names: Sequence[str], until: float) -> bool:
        """Copy files until that time (monotonic); returns true if all are copied. A missing one is left out."""
        left = [name for name in names if name not in self._copied]
        while self._pieces is not None or left:
            if self._pieces is None:
                name = left.pop(0)
                if name in self._copied:
                    continue
                self._pieces = self._copy(name)
            for _ in self._pieces:
                if monotonic() >= until:
                    return False
            self._pieces = None
        return True

    def _copy(self, name: str) -> Generator[None]:
        """Copy a file; yields after each piece of it."""
        try:
            descriptor = open_regular(self._source / name)
        except FileNotFoundError:
            return
        try:
            output = Output(self._target / name)
            try:
                offset = 0
                while octets := os.pread(descriptor, PIECE, offset):
                    output.write(octets, offset)
                    offset += len(octets)
                    self._pace.copied(len(octets))
                    yield
                output.finish()
            finally:
                output.close()
        finally:
            os.close(descriptor)
        self._copied.add(name)

    def keep(self, names: Sequence[str]) -> int:
        """Remove the copies of all other files; returns the number of those that stay."""
        for name in self._copied.difference(names):
            (self._target / name).unlink()
        return len(names)

    def close(self) -> None:
        """Close the file that is being copied."""
        if self._pieces is not None:
            self._pieces.close()


class Backup:
    """One backup of a data directory, whose data are `source`.

    `target` is an existing directory for the copy, without data, and `reserve` are bytes to leave free on its disk.
    """

    def __init__(self, data_dir: Path, target: Path, source: Source, pace: Pace, reserve: int = 0) -> None:
        self._data_dir = data_dir
        self._target = target
        self._source = source
        self._pace = pace
        self._reserve = max(reserve, ROOM)
        self._raises = 0
        self.total = 0  # bytes to copy, as far as known; 0 at first

    def run(self) -> Copied:
        """Copy everything and flush it; a part stays in `target` if that fails.

        Raises DiskFullError if there is no space for the copy, CancelledError, StorageError for any other error.
        """
        try:
            return self._run()
        except OSError as error:
            if error.errno in NO_SPACE:
                raise DiskFullError(f"not enough disk space in {self._target.parent}") from error
            raise StorageError(f"cannot copy the data to {self._target.parent}: {error.strerror}") from error

    def _run(self) -> Copied:
        store, blobs = self._target / "store", self._target / "blobs"
        store.mkdir(DIRECTORY)
        blobs.mkdir(DIRECTORY)
        pages = PageCopy(store / "data.mdb", self._pace)
        bodies = BodyCopies(self._data_dir / "blobs", blobs, self._pace)
        try:
            names = bodies.names()
            self.total = bodies.octets(names) + _octets_of(self._data_dir / "store" / "data.mdb")
            self._check_room(self.total)
            while not bodies.copy(names, monotonic() + STEP_SECONDS):
                self._check_room()
            moment = self._source.advance()
            pages.advance(moment)
            moment = self._catch_up(moment, pages, bodies)
            files = bodies.keep(moment.files(bodies.copied))
            moment.check()
            self._source.release()
            pages.finish()
            forget_log(store)
        finally:
            self._source.release()
            bodies.close()
            pages.close()
        for directory in (store, blobs, self._target):
            sync_directory(directory)
        return Copied(self._pace.octets, files)

    def _catch_up(self, moment: Moment, pages: PageCopy, bodies: BodyCopies) -> Moment:
        """Copy until the copy is complete; returns its state, which is still open."""
        trend = _Trend()
        took = 0.0
        while True:
            until = monotonic() + max(STEP_SECONDS, _READING_SHARE * took)
            if self._raises > _RAISES:
                until = inf
            missing: Sequence[str] = ()
            has_pages = pages.copy(until)
            if has_pages:
                missing = moment.files(bodies.missing())
                if bodies.copy(missing, until):
                    return moment
            left = bodies.octets(missing) if has_pages else pages.left
            if trend.is_behind(left, self._pace.octets, has_pages):
                self._raises += 1
                self._pace.rate *= 2
            self.total = self._pace.octets + left
            self._check_room()
            began = monotonic()
            following = self._source.advance()
            if following is not moment:
                moment = following
                pages.advance(moment)
            took = monotonic() - began

    def _check_room(self, needed: int = 0) -> None:
        free = shutil.disk_usage(self._target).free
        if free < needed + self._reserve:
            where = f"not enough disk space in {self._target.parent}"
            raise DiskFullError(f"{where}: {needed + self._reserve} bytes are needed, {free} are free")


def _octets_of(path: Path) -> int:
    """Return the bytes that a file takes of its disk, or its size if that is less."""
    stat = path.stat()
    return min(stat.st_size, stat.st_blocks * 512)


class _Trend:
    """Tells whether a copy keeps up with the changes of its source."""

    def __init__(self) -> None:
        self._steps = 0
        self._kind: bool | None = None
        self._left = self._copied = 0

    def is_behind(self, left: int, copied: int, kind: bool) -> bool:
        """Evaluate a step: the bytes left, of one kind, and those copied so far, of both."""
        self._steps += 1
        if kind is self._kind and self._steps < _WINDOW:
            return False
        is_behind = kind is self._kind and (self._left - left) * _NET_SHARE < copied - self._copied
        self._steps, self._kind, self._left, self._copied = 0, kind, left, copied
        return is_behind
