"""The redo log of a data file: a small commit is flushed here once, and written to the data file later with others.

LMDB flushes a commit twice, its pages and then the root page, and the pages are in several places of its file. A small
batch is appended here instead, by one write and one flush, and is safe then. The next transaction of the data file
begins with all that is only here, and with the row that has the number of the last entry; a start does the same after a
crash.

The file has a fixed size and all its blocks, so a flush writes data and nothing else. Behind the log it has a reserve,
which is released if there is no space to write logged batches to the data file. Entries begin at whole pages: no write
touches a page that has a safe one. After each transaction the next entry is written behind the header again. Entries
are numbered; a start reads those that follow the number in the row `redo` of the table `meta`, one after the other,
until one is missing or incomplete.

A log that is in use belongs to its data file, and a start must not take another file, or none, for one without entries.
So each start makes a new id of the log. The header has it, a page of its own that is flushed when the file is opened,
and so does the row. Before the first entry is written the row says that the log is in use. A clean stop, the next
start, a compaction, and a backup in its copy clear that: a log that is not in use may be lost. Each entry names the
last transaction of the data file, on which it rests; data at another one are of another moment. For the same reason the
header has the id of the store and the number of the start.
"""

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from time import monotonic
from typing import Any, NamedTuple, Self

from zlib_ng.zlib_ng import crc32

from leveret.storage.errors import NO_SPACE, DamagedError
from leveret.storage.files import FILE, open_regular, sync_data, sync_directory, write_at
from leveret.storage.journal.batch import LoggedChanges, encode_changes
from leveret.storage.store.store_header import Owner, read_owner, seal, unseal

log = logging.getLogger("leveret.storage")

NAME = "redo.log"  # name of the file, next to the data file
ROW = b"redo"  # key, in the table `meta`, of the place in the log that the data file has reached
SIZE = 1024 * 1024  # bytes of the log, with its header
PAGE = 4096  # an entry begins at a multiple of this number of bytes
RESERVE = 7 * 1024 * 1024  # bytes behind it: more than all rows of the log need, each on a page of its own
MOST_ROWS = 512  # maximum number of rows that wait for the data file: the next commit writes them, too
MOST_SECONDS = 1.0  # time after which what waits is to be written to the data file with the next batch

CUT_OFF = (  # the warning about a log whose last entry is not whole
    f"the last entry of {NAME} is left out: a power failure has cut it off unconfirmed, or it is damaged"
)

_HEADER = Struct(">8sI8s8sQ")  # magic, checksum, ids of store and log, number of the start
_HEADER_MAGIC = b"leveret\n"
_ENTRY = Struct(">4sIQQI")
"""Of an entry: the id of the log, checksum, number, transaction of the data file on which it rests, bytes."""
_ID = 4  # bytes of the id of the log there
_ALIKE = 2  # of an entry that is not whole: if so many of id, number, transaction are right, it was the next
_PLACE = Struct(">B8sQ?")
_LAYOUT = 2  # the layout of the file, and the only one that is read
_NUMBERS = Struct(">QQI")


class Place(NamedTuple):
    """A place in a log."""

    log: bytes  # the id of the log, eight bytes
    number: int  # the number of the last entry before it
    is_in_use: bool = False  # True if there may be entries behind it

    @classmethod
    def new(cls) -> Self:
        """Return the beginning of a new log."""
        return cls(os.urandom(8), 0)

    def unused(self) -> Self:
        """Return the same place in a log behind which there is nothing."""
        return self._replace(is_in_use=False)

    def row(self) -> bytes:
        """Return the value of the row."""
        return seal(ROW, _PLACE.pack(_LAYOUT, *self))


def read_place(row: bytes) -> Place:
    """Parse the value of the row; raises DamagedError."""
    octets = unseal(ROW, row)
    if len(octets) != _PLACE.size or octets[0] != _LAYOUT:
        raise DamagedError(f"row {ROW!r} is damaged: {len(octets)} bytes")
    return Place(*_PLACE.unpack(octets)[1:])


def _packed_header(owner: Owner, log_id: bytes) -> bytes:
    checksum = crc32(log_id, crc32(b"%s %d" % owner))
    return _HEADER.pack(_HEADER_MAGIC, checksum, owner.store, log_id, owner.boot)


def _pages(octets: int) -> int:
    """Return the size in bytes on disk of an entry of so many bytes."""
    return -(-octets // PAGE) * PAGE


def _checksum_of(seed: int, number: int, transaction: int, octets: bytes | memoryview) -> int:
    """Return the checksum of an entry; `seed` is that of the id of its log."""
    return crc32(octets, crc32(_NUMBERS.pack(number, transaction, len(octets)), seed))


# -- reads of a start -------------------------------------------------------------------------------------------------


class Left(NamedTuple):
    """Batches that a broker that was killed has only logged."""

    batches: list[bytes]
    place: Place  # the place behind them
    is_cut_off: bool  # True if another one follows that is not whole


def left_behind(folder: Path, txn: Any, meta: Any) -> Left | None:
    """Return what `read_log` does, of a data file; `txn` is a transaction of it, `meta` its table."""
    return read_log(folder, txn.get(ROW, db=meta), read_owner(txn, meta), txn.id())


def read_log(folder: Path, row: bytes | None, owner: Owner, transaction: int) -> Left | None:
    """Return the batches that the data file lacks, in their order; None if there are none, whole or not.

    `row` is the value of the row with the place that the data file has reached, None if no log is in use. `owner` has
    the store and the last start of the data file, `transaction` is its last one.

    Raises DamagedError, with the fault, if a log is in use and its file is missing, incomplete, of other data, or
    damaged before its last entry. Raises it, too, if a log that is not in use shows that the data file is older than
    the log. Raises OSError if the file cannot be read.
    """
    octets = _contents(folder)
    header = _header_of(octets)
    place = None if row is None else read_place(row)
    if place is not None and place.is_in_use:
        if len(octets) < SIZE:
            what = f"is cut off, it has {len(octets)} bytes" if octets else "is missing or empty"
            raise DamagedError(
                f"{NAME} {what}, and the last commits may be there alone: there was no clean stop"
            )
        if header is None:
            raise DamagedError(f"the header of {NAME} is damaged")
    if header is None:
        return None
    found, log_id = header
    if found.store != owner.store:
        raise DamagedError(f"{NAME} belongs to another store than the data file")
    if found.boot > owner.boot:
        raise DamagedError(
            f"{NAME} is of start {found.boot}, and the data file of start {owner.boot}: an earlier moment"
        )
    if place is None or log_id != place.log:
        if place is not None and place.is_in_use:
            raise DamagedError(
                f"{NAME} is of start {found.boot}, and not the one that the data file has in use"
            )
        return None
    left = _entries(octets, place, transaction)
    if left is not None and left.batches and not place.is_in_use:
        raise DamagedError(f"{NAME} has commits that came after the moment of the data file")
    return left


def _entries(octets: memoryview, place: Place, transaction: int) -> Left | None:
    batches = []
    at = PAGE
    log_id = place.log
    while (entry := _entry_at(octets, at, log_id)) is not None and entry.number == place.number + 1:
        if entry.transaction != transaction:
            raise DamagedError(
                f"{NAME} has commits that follow transaction {entry.transaction} of the data file, which is at "
                f"{transaction}: the two are of different moments"
            )
        place = place._replace(number=entry.number)
        batches.append(bytes(entry.octets))
        at += _pages(_ENTRY.size + len(entry.octets))
    for later in range(at, len(octets), PAGE):  # the last one may be cut off, and was not confirmed then
        entry = _entry_at(octets, later, log_id)
        if entry is not None and entry.number > place.number + 1:
            raise DamagedError(
                f"{NAME} has entry {entry.number}, and entry {place.number + 1} is damaged or missing"
            )
    is_cut_off = _is_next(octets[at:], log_id, place.number + 1, transaction)
    return Left(batches, place, is_cut_off) if batches or is_cut_off else None


def _contents(folder: Path) -> memoryview:
    try:
        descriptor = open_regular(folder / NAME)
    except FileNotFoundError:
        return memoryview(b"")
    with os.fdopen(descriptor, "rb") as file:
        return memoryview(file.read(SIZE))


def _header_of(octets: memoryview) -> tuple[Owner, bytes] | None:
    """Return the owner of a log, and its id; None if it has no header, or a damaged one."""
    if len(octets) < _HEADER.size:
        return None
    _, _, store, log_id, boot = _HEADER.unpack_from(octets)
    owner = Owner(store, boot)
    return (owner, log_id) if octets[: _HEADER.size] == _packed_header(owner, log_id) else None


class _Found(NamedTuple):
    """An entry in the file."""

    number: int
    transaction: int
    octets: memoryview


def _entry_at(octets: memoryview, at: int, log_id: bytes) -> _Found | None:
    """Return an entry of the log with that id; None if there is none, or not whole."""
    if at + _ENTRY.size > len(octets):
        return None
    found, checksum, number, transaction, size = _ENTRY.unpack_from(octets, at)
    entry = octets[at + _ENTRY.size :][:size]
    if found != log_id[:_ID] or len(entry) != size:
        return None
    is_whole = _checksum_of(crc32(log_id), number, transaction, entry) == checksum
    return _Found(number, transaction, entry) if is_whole else None


def _is_next(octets: memoryview, log_id: bytes, number: int, transaction: int) -> bool:
    """Return whether a part of the log begins with a certain entry, complete or not."""
    if len(octets) < _ENTRY.size:
        return False
    found, _, *numbers, _ = _ENTRY.unpack_from(octets)
    alike = [found == log_id[:_ID], numbers[0] == number, numbers[1] == transaction]
    return alike.count(True) >= _ALIKE


# -- writes -----------------------------------------------------------------------------------------------------------


class LogEntry(NamedTuple):
    """A batch on its way into the log."""

    changes: LoggedChanges
    rows: int  # number of rows that it changes
    octets: bytes
    at: int  # its place in the file: a multiple of `PAGE`
    direct: int  # the file, open as `RedoLog.direct`


class RedoLog:
    """The redo log of a data file that is in use; for the thread that commits.

    The caller may also write an entry itself, between `begin` and `finish`, or use `write` if that is not possible. No
    transaction of the data file may begin meanwhile.

    Args:
        folder: the folder of the data file. The log's file is made when it is first needed.
        owner: the data that it belongs to.
        place: the place that the data file has reached.
        transaction: returns the number of the data file's last transaction.
    """

    def __init__(self, folder: Path, owner: Owner, place: Place, transaction: Callable[[], int]) -> None:
        self._folder = folder
        self._owner = owner
        self._transaction = transaction
        self._rests_on = 0  # the data file's last transaction, since the log has begun again
        self._log = place.log
        self._seed = crc32(place.log)
        self._number = place.number  # the number of the last entry
        self._reached = place.number
        self._descriptor = -1
        self.direct = -1
        """The file, each write to which is flushed (O_DSYNC) and goes around the page cache (O_DIRECT); -1 if it is not
        open, or that is not possible."""
        self._is_refused = False  # True if the file could not be opened at the last try
        self._since = 0.0  # time (monotonic) of the oldest entry that waits
        self._at = PAGE  # bytes of the file that are in use
        self._is_in_use = False  # True if the data file says so: nothing is logged before
        self._rows = 0
        self.waiting: list[LoggedChanges] = []  # changes that are not in the data file yet, the oldest first
        self.flushes = 0

    @property
    def place(self) -> Place:
        """The place behind the last entry."""
        return Place(self._log, self._number, is_in_use=self._descriptor >= 0)

    def append(self, changes: LoggedChanges) -> bool:
        """Append a small batch and flush it; returns false if that is not possible now, and nothing is logged then.

        Raises OSError if the disk fails, after which it is unknown whether the log has the batch.
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
                os.pwrite(self._descriptor, bytes(_ENTRY.size), entry.at)
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
        if self._at + _ENTRY.size + len(octets) > SIZE or not self.open() or not self._is_in_use:
            return None
        if self._at == PAGE:
            self._rests_on = self._transaction()
        # It counts even if it fails for lack of space: what may be half there must never be read for another one.
        self._number = number = self._number + 1
        checksum = _checksum_of(self._seed, number, self._rests_on, octets)
        header = _ENTRY.pack(self._log[:_ID], checksum, number, self._rests_on, len(octets))
        return LogEntry(changes, rows, header + octets, self._at, self.direct)

    def finish(self, entry: LogEntry) -> None:
        """Note that an entry is on disk."""
        self.flushes += 1
        if not self.waiting:
            self._since = monotonic()
        self._at += _pages(len(entry.octets))
        self._rows += entry.rows
        self.waiting.append(entry.changes)

    def open(self) -> bool:
        """Open the file, or make it, with its header and its reserve, if necessary; returns whether it exists.

        From then on the log `is_ahead`, and in use after the next transaction of the data file.
        """
        if self._at > PAGE and self._descriptor >= 0:
            return True
        try:
            if self._descriptor < 0:
                self._descriptor = self._opened()
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

    def _opened(self) -> int:
        """Open the file, or make it, with all its blocks written, and its header; returns its descriptor."""
        descriptor = open_regular(self._folder / NAME, os.O_RDWR | os.O_CREAT, FILE)
        try:
            is_new = os.fstat(descriptor).st_size < SIZE
            header = _packed_header(self._owner, self._log)
            write_at(descriptor, header.ljust(SIZE, b"\0") if is_new else header, 0)
            os.fsync(descriptor)
            if is_new:
                sync_directory(self._folder)
            self.flushes += 1 + is_new
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    @property
    def is_due(self) -> bool:
        """True if something has waited for long enough."""
        return bool(self.waiting) and monotonic() - self._since >= MOST_SECONDS

    def give_reserve(self) -> bool:
        """Give the reserve up, if something waits; returns false if it is given already."""
        return bool(self.waiting) and give_reserve(self._folder)

    @property
    def is_ahead(self) -> bool:
        """True if the data file has not reached the end of the log, or does not say that it is in use."""
        return self._number != self._reached or (self._descriptor >= 0 and not self._is_in_use)

    def written(self) -> int:
        """Note that all that waits, and the place, are in the data file; returns the number of batches."""
        count = len(self.waiting)
        if self.is_ahead:
            self.waiting = []
            self._at, self._rows = PAGE, 0
            self._reached = self._number
            self._is_in_use = self._descriptor >= 0
        return count

    def given_up(self) -> None:
        """Note that the data file says that the log is not in use."""
        self._is_in_use = False

    def close(self) -> None:
        """Close the file."""
        for descriptor in (self._descriptor, self.direct):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self.direct = -1


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
