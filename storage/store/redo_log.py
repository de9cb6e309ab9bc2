"""The redo log of a data file: a small commit is flushed here once, and written to the data file later with others.

LMDB flushes a commit twice, its pages and then the root page, and the pages are in several places of its file. A small
batch is appended here instead, by one write and one flush, and is safe then. The next transaction of the data file
begins with all that is only here, and with the row that tells up to where that is; a start does the same after a crash.

The file has a fixed size and all its blocks, so a flush writes data and nothing else. Behind the log it has a reserve,
which is given up if there is no space to write to the data file what is only logged. Entries begin at whole pages: no
write touches a page that has a safe one. After each transaction the next entry is written at the beginning of the file
again. Entries are numbered; a start reads those that follow the number in the row `redo` of the table `meta`, one after
the other, until one is not there or not whole. Its checksum covers the id of the log, which each start makes anew.
"""

import contextlib
import logging
import os
from pathlib import Path
from struct import Struct
from time import monotonic
from typing import NamedTuple, Self

from zlib_ng.zlib_ng import crc32

from leveret.storage.errors import NO_SPACE, DamagedError
from leveret.storage.journal.logged import LoggedChanges, encode_changes
from leveret.storage.permissions import FILE
from leveret.storage.store.flush import sync_data, sync_directory, write_at
from leveret.storage.store.row_checksums import seal, unseal

NAME = "redo.log"
"""Name of the file, next to the data file."""
ROW = b"redo"
"""Key, in the table `meta`, of the place in the log that the data file has reached."""
SIZE = 1024 * 1024
"""Bytes of the log."""
RESERVE = 7 * 1024 * 1024
"""Bytes behind it: more than it takes to write to the data file what the log has, each row on a page of its own."""
PAGE = 4096
"""Bytes of which an entry begins at a multiple."""
MOST_ROWS = 512
"""Rows that wait to be written to the data file at most: whoever commits next waits for them, too."""
MOST_SECONDS = 1.0
"""Time after which something that waits is to be written to the data file with the next batch."""

_HEADER = Struct(">4sIQI")  # magic, checksum, number, bytes of the entry
_MAGIC = b"redo"
_PLACE = Struct(">8sQ")
_NUMBER = Struct(">QI")

log = logging.getLogger("leveret.storage")


class Place(NamedTuple):
    """A place in a log."""

    log: bytes
    """The id of the log, eight bytes."""
    number: int
    """The number of the last entry before it."""

    @classmethod
    def new(cls) -> Self:
        """Return the beginning of a new log."""
        return cls(os.urandom(8), 0)

    def row(self) -> bytes:
        """Return the value of the row."""
        return seal(ROW, _PLACE.pack(*self))


def read_place(row: bytes) -> Place:
    """Parse the value of the row; raises DamagedError."""
    octets = unseal(ROW, row)
    if len(octets) != _PLACE.size:
        raise DamagedError(f"row {ROW!r} is damaged: {len(octets)} bytes")
    return Place(*_PLACE.unpack(octets))


class LogEntry(NamedTuple):
    """A batch on its way into the log."""

    changes: LoggedChanges
    rows: int
    """Number of rows that it changes."""
    octets: bytes
    at: int
    """Its place in the file: a multiple of `PAGE`."""
    direct: int
    """The file, open as `RedoLog.direct`."""


class RedoLog:
    """The redo log of a data file that is in use; for the thread that commits.

    An entry may also be written by somebody else, between `begin` and `finish`, or `write` if that is not possible. No
    transaction of the data file may begin meanwhile.

    Args:
        folder: the folder of the data file. The log's file is made when it is first needed.
        place: the place that the data file has reached.

    """

    def __init__(self, folder: Path, place: Place) -> None:
        self._folder = folder
        self._log = place.log
        self._seed = crc32(place.log)
        self._number = place.number
        """The number of the last entry."""
        self._reached = place.number
        self._descriptor = -1
        self.direct = -1
        """The file, each write to which is flushed (O_DSYNC) and goes around the page cache (O_DIRECT); -1 if it is not
        open, or that is not possible."""
        self._is_refused = False
        """True if the file could not be opened at the last try."""
        self._since = 0.0
        """Time (monotonic) of the oldest entry that waits."""
        self._at = 0
        """Bytes of the file that are in use."""
        self._rows = 0
        self.waiting: list[LoggedChanges] = []
        """Changes that are not in the data file yet, the oldest first."""
        self.flushes = 0

    @property
    def place(self) -> Place:
        """The place behind the last entry."""
        return Place(self._log, self._number)

    def append(self, changes: LoggedChanges) -> bool:
        """Append a small batch and flush it; returns false if that is not possible now, and nothing is logged then.

        Raises OSError if the disk fails, after which it is unknown whether the batch is there.
        """
        entry = self.begin(changes)
        return entry is not None and self.write(entry)

    def write(self, entry: LogEntry) -> bool:
        """Write an entry and flush it; returns false if there is no space. Raises OSError as `append`."""
        try:
            write_at(self._descriptor, entry.octets, entry.at)
            sync_data(self._descriptor)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            with contextlib.suppress(OSError):  # a start should not find it, as the batch may be refused
                os.pwrite(self._descriptor, bytes(_HEADER.size), entry.at)
            self._rows = MOST_ROWS  # nothing more before the data file has been written
            return False
        self.finish(entry)
        return True

    def begin(self, changes: LoggedChanges) -> LogEntry | None:
        """Return the next entry, to be written and flushed; None if that is not possible now."""
        rows = changes.rows_changed
        if self._rows + rows > MOST_ROWS:
            return None
        octets = encode_changes(changes)
        if self._at + _HEADER.size + len(octets) > SIZE or not self._is_open():
            return None
        # It counts even if it fails for lack of space: what may be half there must never be read for another one.
        self._number = number = self._number + 1
        header = _HEADER.pack(_MAGIC, _checksum(self._seed, number, octets), number, len(octets))
        return LogEntry(changes, rows, header + octets, self._at, self.direct)

    def finish(self, entry: LogEntry) -> None:
        """Note that an entry is on disk."""
        self.flushes += 1
        if not self.waiting:
            self._since = monotonic()
        self._at += _pages(len(entry.octets))
        self._rows += entry.rows
        self.waiting.append(entry.changes)

    def _is_open(self) -> bool:
        """Open the file, or make it, and its reserve, if that is necessary; returns whether it is there."""
        if self._at and self._descriptor >= 0:
            return True
        try:
            if self._descriptor < 0:
                self._descriptor = _open(self._folder)
            _reserve(self._descriptor)
            if self.direct < 0:
                self.direct = _open_direct(self._folder)
        except OSError as error:
            if not self._is_refused:
                log.warning("storage: no redo log, small commits are flushed twice: %s", error)
            self._is_refused = True
            return False
        self._is_refused = False
        return True

    @property
    def is_due(self) -> bool:
        """True if something has waited for long enough."""
        return bool(self.waiting) and monotonic() - self._since >= MOST_SECONDS

    def give_reserve(self) -> bool:
        """Give the reserve up, if something waits; returns false if it is given already."""
        return bool(self.waiting) and give_reserve(self._folder)

    @property
    def is_ahead(self) -> bool:
        """True if the data file has not reached the end of the log."""
        return self._number != self._reached

    def written(self) -> int:
        """Note that all that waits is in the data file, with the place; returns the number of these batches.

        The log begins again.
        """
        count = len(self.waiting)
        if self.is_ahead:
            self.waiting = []
            self._at = self._rows = 0
            self._reached = self._number
        return count

    def close(self) -> None:
        """Close the file."""
        for descriptor in (self._descriptor, self.direct):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self.direct = -1


class Left(NamedTuple):
    """Batches that a broker that was killed has only logged."""

    batches: list[bytes]
    place: Place
    """The place behind them."""


def left_behind(folder: Path, row: bytes | None) -> Left | None:
    """Return the batches that the data file lacks, in their order; None if there are none.

    Args:
        folder: the folder of the data file.
        row: the value of the row with the place that it has reached, None if there is none.

    Raises DamagedError if there is a log, and the row is damaged, or an entry that another one follows; OSError if the
    log cannot be read.
    """
    try:
        with (folder / NAME).open("rb") as file:
            octets = memoryview(file.read(SIZE))
    except FileNotFoundError:
        return None
    if row is None:
        return None
    place = read_place(row)
    batches = []
    at = 0
    seed = crc32(place.log)
    while (entry := _entry_at(octets, at, seed)) is not None and entry[0] == place.number + 1:
        place = Place(place.log, entry[0])
        batches.append(bytes(entry[1]))
        at += _pages(_HEADER.size + len(entry[1]))
    for later in range(at, len(octets), PAGE):  # the last one may be cut off, and was not confirmed then
        entry = _entry_at(octets, later, seed)
        if entry is not None and entry[0] > place.number + 1:
            raise DamagedError(
                f"{NAME} has entry {entry[0]}, and entry {place.number + 1} is damaged or missing"
            )
    return Left(batches, place) if batches else None


def give_reserve(folder: Path) -> bool:
    """Give up the reserve of a log; returns false if there is none."""
    try:
        with (folder / NAME).open("rb+") as file:
            if os.fstat(file.fileno()).st_size <= SIZE:
                return False
            file.truncate(SIZE)
    except OSError:
        return False
    return True


def _entry_at(octets: memoryview, at: int, seed: int) -> tuple[int, memoryview] | None:
    """Return the number and the bytes of an entry of the log with that seed; None if there is none, or not whole."""
    if at + _HEADER.size > len(octets):
        return None
    magic, checksum, number, size = _HEADER.unpack_from(octets, at)
    start = at + _HEADER.size
    entry = octets[start : start + size]
    if magic != _MAGIC or len(entry) != size or _checksum(seed, number, entry) != checksum:
        return None
    return number, entry


def _pages(octets: int) -> int:
    """Return the size in bytes on disk of an entry of so many bytes."""
    return -(-octets // PAGE) * PAGE


def _checksum(seed: int, number: int, octets: bytes | memoryview) -> int:
    """Return the checksum of an entry; `seed` is that of the id of its log."""
    return crc32(octets, crc32(_NUMBER.pack(number, len(octets)), seed))


def _open(folder: Path) -> int:
    """Open the file, or make it, with all its blocks written; returns its descriptor."""
    path = folder / NAME
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE)
    try:
        if os.fstat(descriptor).st_size < SIZE:
            write_at(descriptor, bytes(SIZE), 0)
            os.fsync(descriptor)
            sync_directory(folder)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _open_direct(folder: Path) -> int:
    """Open the file once more, for flushed writes around the page cache; returns -1 where that is impossible."""
    if not hasattr(os, "O_DIRECT"):  # macOS
        return -1
    try:
        flags = os.O_WRONLY | os.O_DIRECT | os.O_DSYNC | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(folder / NAME, flags)
    except OSError:
        return -1


def _reserve(descriptor: int) -> None:
    """Have the file take the disk space of the reserve, too."""
    if os.fstat(descriptor).st_size < SIZE + RESERVE:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, SIZE, RESERVE)
        else:  # macOS
            write_at(descriptor, bytes(RESERVE), SIZE)
        os.fsync(descriptor)
