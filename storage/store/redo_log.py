"""The redo log of a data file: a small commit is flushed here once, and written to the data file later with others.

LMDB flushes a commit twice, its pages and then the root page, and the pages are in several places of its file. A small
batch is appended here instead, by one write and one flush, and is safe then. The next transaction of the data file
begins with all that is only here, and with the row that tells up to where that is; a start does the same after a crash.

The file has a fixed size and all its blocks, so a flush writes data and nothing else. Entries begin at whole pages: no
write touches a page that has a safe one. After each transaction the next entry is written at the beginning of the file
again. Entries are numbered; a start reads those that follow the number in the row `redo` of the table `meta`, one after
the other, until one is not there or not whole. Its checksum covers the id of the log, which each start makes anew.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple, Self

from zlib_ng.zlib_ng import crc32

from leveret.storage.errors import DamagedError
from leveret.storage.journal.logged import LoggedChanges, encode_changes
from leveret.storage.permissions import FILE
from leveret.storage.store.flush import sync_data, sync_directory
from leveret.storage.store.row_checksums import seal, unseal

NAME = "redo.log"
"""Name of the file, next to the data file."""
ROW = b"redo"
"""Key, in the table `meta`, of the place in the log that the data file has reached."""
SIZE = 1024 * 1024
"""Bytes of the file."""
PAGE = 4096
"""Bytes of which an entry begins at a multiple."""
MOST_ROWS = 512
"""Rows that wait to be written to the data file at most: whoever commits next waits for them, too."""

_HEADER = Struct(">4sIQI")  # magic, checksum, number, bytes of the entry
_MAGIC = b"redo"
_PLACE = Struct(">8sQ")
_NUMBER = Struct(">QI")
_NO_SPACE = frozenset((errno.ENOSPC, errno.EDQUOT))


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


class RedoLog:
    """The redo log of a data file that is in use; for the thread that commits.

    Args:
        folder: the folder of the data file. The log's file is made when it is first needed.
        place: the place that the data file has reached.

    """

    def __init__(self, folder: Path, place: Place) -> None:
        self._folder = folder
        self._place = place
        self._reached = place.number
        self._descriptor = -1
        self._at = 0
        """Bytes of the file that are in use."""
        self._rows = 0
        self.waiting: list[LoggedChanges] = []
        """Changes that are not in the data file yet, the oldest first."""
        self.flushes = 0

    @property
    def place(self) -> Place:
        """The place behind the last entry."""
        return self._place

    def append(self, changes: LoggedChanges) -> bool:
        """Append a small batch and flush it; returns false if that is not possible now, and nothing is logged then.

        Raises OSError if the disk fails, after which it is unknown whether the batch is there.
        """
        octets = encode_changes(changes)
        rows = self._rows + changes.rows_changed
        size = _HEADER.size + len(octets)
        if rows > MOST_ROWS or self._at + size > SIZE:
            return False
        # It counts even if it fails for lack of space: what may be half there must never be read for another one.
        self._place = log, number = Place(self._place.log, self._place.number + 1)
        header = _HEADER.pack(_MAGIC, _checksum(log, number, octets), number, len(octets))
        try:
            if self._descriptor < 0:
                self._descriptor = _open(self._folder)
            _write(self._descriptor, header + octets, self._at)
            sync_data(self._descriptor)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            self._rows = MOST_ROWS  # nothing more before the data file has been written
            return False
        self.flushes += 1
        self._at += -(-size // PAGE) * PAGE
        self._rows = rows
        self.waiting.append(changes)
        return True

    @property
    def is_ahead(self) -> bool:
        """True if the data file has not reached the end of the log."""
        return self._place.number != self._reached

    def written(self) -> int:
        """Note that all that waits is in the data file, with the place; returns the number of these batches.

        The log begins again.
        """
        count = len(self.waiting)
        if self.is_ahead:
            self.waiting = []
            self._at = self._rows = 0
            self._reached = self._place.number
        return count

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


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

    Raises DamagedError if the row is damaged, and there is a log; OSError if the log cannot be read.
    """
    if row is None or not (folder / NAME).exists():
        return None
    log, number = read_place(row)
    batches = list(entries(folder, Place(log, number)))
    return Left(batches, Place(log, number + len(batches))) if batches else None


def entries(folder: Path, place: Place) -> Iterator[bytes]:
    """Yield the batches behind a place, in their order. Raises OSError if the file cannot be read."""
    octets = memoryview((folder / NAME).read_bytes())
    at, (log, number) = 0, place
    while at + _HEADER.size <= len(octets):
        magic, checksum, found, size = _HEADER.unpack_from(octets, at)
        start = at + _HEADER.size
        entry = octets[start : start + size]
        number += 1
        if magic != _MAGIC or found != number or len(entry) != size:
            return
        if _checksum(log, number, entry) != checksum:
            return
        yield bytes(entry)
        at += -(-(_HEADER.size + size) // PAGE) * PAGE


def _checksum(log: bytes, number: int, octets: bytes | memoryview) -> int:
    return crc32(octets, crc32(_NUMBER.pack(number, len(octets)), crc32(log)))


def _open(folder: Path) -> int:
    """Open the file, or make it, with all its blocks written; returns its descriptor."""
    path = folder / NAME
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE)
    try:
        if os.fstat(descriptor).st_size != SIZE:
            _write(descriptor, bytes(SIZE), 0)
            os.ftruncate(descriptor, SIZE)
            os.fsync(descriptor)
            sync_directory(folder)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _write(descriptor: int, octets: bytes, offset: int) -> None:
    rest = memoryview(octets)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written
