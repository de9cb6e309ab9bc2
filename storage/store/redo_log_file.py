"""The file of a redo log (`storage.store.redo_log`): its header and its entries, and what a start reads in it."""

import os
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple, Self

from zlib_ng.zlib_ng import crc32

from leveret.storage.errors import DamagedError
from leveret.storage.regular_files import open_regular
from leveret.storage.store.owner import Owner, read_owner
from leveret.storage.store.row_checksums import seal, unseal

NAME = "redo.log"
"""Name of the file, next to the data file."""
ROW = b"redo"
"""Key, in the table `meta`, of the place in the log that the data file has reached."""
SIZE = 1024 * 1024
"""Bytes of the log, with its header."""
PAGE = 4096
"""Bytes of which an entry begins at a multiple."""

CUT_OFF = (
    f"the last entry of {NAME} is left out: a power failure has cut it off unconfirmed, or it is damaged"
)
"""The warning about a log whose last entry is not whole."""

_HEADER = Struct(">8sI8s8sQ")  # magic, checksum, ids of store and log, number of the start
_HEADER_MAGIC = b"leveret\n"
ENTRY = Struct(">4sIQQI")
"""Of an entry: the id of the log, checksum, number, transaction of the data file on which it rests, bytes."""
ID = 4
"""Bytes of the id of the log there."""
_ALIKE = 2
"""Of an entry that is not whole, id, number and transaction: if so many are right, it was to be the next one."""
_PLACE = Struct(">B8sQ?")
_LAYOUT = 2
"""The layout of the file, and the only one that is read."""
_NUMBERS = Struct(">QQI")


class Place(NamedTuple):
    """A place in a log."""

    log: bytes
    """The id of the log, eight bytes."""
    number: int
    """The number of the last entry before it."""
    is_in_use: bool = False
    """True if there may be entries behind it."""

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


class Left(NamedTuple):
    """Batches that a broker that was killed has only logged."""

    batches: list[bytes]
    place: Place
    """The place behind them."""
    is_cut_off: bool
    """True if another one follows that is not whole."""


def left_behind(folder: Path, txn: Any, meta: Any) -> Left | None:
    """Return what `read_log` does, of a data file; `txn` is a transaction of it, `meta` its table."""
    return read_log(folder, txn.get(ROW, db=meta), read_owner(txn, meta), txn.id())


def read_log(folder: Path, row: bytes | None, owner: Owner, transaction: int) -> Left | None:
    """Return the batches that the data file lacks, in their order; None if there are none, whole or not.

    Args:
        folder: the folder of the data file.
        row: the value of the row with the place that it has reached, None if no log is in use.
        owner: its store, and its last start.
        transaction: its last transaction.

    Raises DamagedError, with what is wrong, if a log is in use and its file is missing, incomplete, not the one that
    belongs to these data, or damaged before its last entry; or if a log that is not in use shows that the data file is
    not the one of today. Raises OSError if the file cannot be read.
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
        at += pages(ENTRY.size + len(entry.octets))
    for later in range(at, len(octets), PAGE):  # the last one may be cut off, and was not confirmed then
        entry = _entry_at(octets, later, log_id)
        if entry is not None and entry.number > place.number + 1:
            raise DamagedError(
                f"{NAME} has entry {entry.number}, and entry {place.number + 1} is damaged or missing"
            )
    is_cut_off = _is_next(octets[at:], log_id, place.number + 1, transaction)
    return Left(batches, place, is_cut_off) if batches or is_cut_off else None


def _contents(folder: Path) -> memoryview:
    """Return the log, without the reserve; empty if there is none."""
    try:
        descriptor = open_regular(folder / NAME)
    except FileNotFoundError:
        return memoryview(b"")
    with os.fdopen(descriptor, "rb") as file:
        return memoryview(file.read(SIZE))


def packed_header(owner: Owner, log_id: bytes) -> bytes:
    """Return the header of a log."""
    checksum = crc32(log_id, crc32(b"%s %d" % owner))
    return _HEADER.pack(_HEADER_MAGIC, checksum, owner.store, log_id, owner.boot)


def _header_of(octets: memoryview) -> tuple[Owner, bytes] | None:
    """Return the owner of a log, and its id; None if it has no header, or a damaged one."""
    if len(octets) < _HEADER.size:
        return None
    _, _, store, log_id, boot = _HEADER.unpack_from(octets)
    owner = Owner(store, boot)
    return (owner, log_id) if octets[: _HEADER.size] == packed_header(owner, log_id) else None


class _Found(NamedTuple):
    """An entry in the file."""

    number: int
    transaction: int
    octets: memoryview


def _entry_at(octets: memoryview, at: int, log_id: bytes) -> _Found | None:
    """Return an entry of the log with that id; None if there is none, or not whole."""
    if at + ENTRY.size > len(octets):
        return None
    found, checksum, number, transaction, size = ENTRY.unpack_from(octets, at)
    entry = octets[at + ENTRY.size :][:size]
    if found != log_id[:ID] or len(entry) != size:
        return None
    is_whole = checksum_of(crc32(log_id), number, transaction, entry) == checksum
    return _Found(number, transaction, entry) if is_whole else None


def _is_next(octets: memoryview, log_id: bytes, number: int, transaction: int) -> bool:
    """Return whether a part of the log begins with what is, or was to be, a certain entry."""
    if len(octets) < ENTRY.size:
        return False
    found, _, *numbers, _ = ENTRY.unpack_from(octets)
    alike = [found == log_id[:ID], numbers[0] == number, numbers[1] == transaction]
    return alike.count(True) >= _ALIKE


def pages(octets: int) -> int:
    """Return the size in bytes on disk of an entry of so many bytes."""
    return -(-octets // PAGE) * PAGE


def checksum_of(seed: int, number: int, transaction: int, octets: bytes | memoryview) -> int:
    """Return the checksum of an entry; `seed` is that of the id of its log."""
    return crc32(octets, crc32(_NUMBERS.pack(number, transaction, len(octets)), seed))
