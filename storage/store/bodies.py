"""Bodies stored apart from their records: their rows and reference counts, and very large ones in files of their own.

The table `bodies` has a row for each, with a checksum and the content, or the checksum alone if that is in a file.
`refs` has the number of records that refer to it, if there are several. What takes a transaction runs inside the
caller's; `db` are the tables of its environment.
"""

import contextlib
import errno
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from struct import Struct
from typing import Any

from leveret.storage.damage import BODY, FILE as FILE_DAMAGED, MISSING_BODY, MISSING_FILE
from leveret.storage.errors import DamagedError
from leveret.storage.files import FILE, open_regular, sync_data, sync_directory
from leveret.storage.journal.batch import Changes, LoggedChanges, body_checksum, body_row
from leveret.storage.journal.blocks import read_bitmap, read_header, read_records
from leveret.storage.journal.reads import Range, RawBlock
from leveret.storage.message import HEAD_OCTETS, body_octets

_U64 = Struct(">Q")
_COUNT = Struct(">I")
_CHECKSUM = 4
_first_of = attrgetter("first")
_PIECE = 4 * 1024 * 1024
"""Bytes of a body that are flushed together: a commit waits for data that the file system has to write before its
own."""
_NO_FILE = frozenset((errno.EIO, errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.EISDIR))
"""Errors of a file that cannot be read, or of a name that is none of a regular file."""
_WAIT_SECONDS = 0.1  # seconds to wait for a file descriptor before the next try


def is_in_file(row: bytes) -> bool:
    """Return whether the content of a row is in a file."""
    return len(row) == _CHECKSUM


def first_msg_id(boot: int) -> int:
    """Return the first body id that the start with this number assigns."""
    return boot << 40


# -- rows and reference counts ----------------------------------------------------------------------------------------


def put_bodies(txn: Any, db: Mapping[str, Any], changes: Changes | LoggedChanges) -> None:
    """Write the bodies of a batch, and how many records refer to each."""
    if changes.bodies:
        txn.cursor(db["bodies"]).putmulti([body_row(*each) for each in changes.bodies])
        for key, count in changes.refs:
            txn.put(key, count, db=db["refs"])


def share_bodies(txn: Any, db: Mapping[str, Any], shared: Mapping[int, tuple[bytes, int]]) -> None:
    """Write bodies that several queues share, new ones together, and count the references to each."""
    cursor = txn.cursor(db["bodies"])
    last = _U64.unpack(cursor.key())[0] if cursor.last() else 0
    new = [(msg_id, *shared[msg_id]) for msg_id in sorted(shared) if msg_id > last]
    for msg_id, (content, records) in shared.items():
        if msg_id <= last:
            _share(txn, db, msg_id, content, records)
    if new:
        cursor.putmulti([body_row(msg_id, content) for msg_id, content, _ in new])
    counts = [(_U64.pack(msg_id), _COUNT.pack(records)) for msg_id, _, records in new if records > 1]
    if counts:
        txn.cursor(db["refs"]).putmulti(counts)


def _share(txn: Any, db: Mapping[str, Any], msg_id: int, content: bytes, count: int) -> None:
    """Add `count` references to a body, which is written if it does not exist."""
    key = _U64.pack(msg_id)
    if txn.cursor(db["bodies"]).set_key(key):
        octets = txn.get(key, db=db["refs"])
        count += 1 if octets is None else _COUNT.unpack(octets)[0]
    else:
        txn.put(*body_row(msg_id, content), db=db["bodies"])
    if count > 1:
        txn.put(key, _COUNT.pack(count), db=db["refs"])


def remove_reference(txn: Any, db: Mapping[str, Any], msg_id: int) -> bool:
    """Remove one reference to a body; returns whether its file, if it has one, is to be removed."""
    key = _U64.pack(msg_id)
    octets = txn.get(key, db=db["refs"])
    if octets is None:
        body = txn.get(key, db=db["bodies"])
        if body is None:  # a file without a row: settled before it was written
            return True
        txn.delete(key, db=db["bodies"])
        return is_in_file(body)
    (count,) = _COUNT.unpack(octets)
    if count > 2:  # noqa: PLR2004 - the last but one needs no count
        txn.put(key, _COUNT.pack(count - 1), db=db["refs"])
    else:
        txn.delete(key, db=db["refs"])
    return False


# -- contents ---------------------------------------------------------------------------------------------------------


class Bodies:
    """The contents of bodies; those in files are in one directory, and have the id of the store."""

    def __init__(self, directory: Path, store_id: bytes) -> None:
        self._directory = directory
        self._store_id = store_id

    def path(self, msg_id: int) -> Path:
        """Return the path of a very large body's file."""
        return self._directory / f"{msg_id:016x}"

    def checksum(self, msg_id: int, content: bytes) -> bytes:
        """Return the checksum at the beginning of a very large body's file."""
        return body_checksum(msg_id, content, self._store_id)

    def read_all(
        self,
        block: RawBlock,
        ranges: Sequence[Range],
        stop: int,
        found: dict[int, bytes | str],
        row_of: Callable[[int], bytes | None],
    ) -> None:
        """Read the bodies that a block's records refer to, within the ranges and before `stop`."""
        with contextlib.suppress(DamagedError):
            header = read_header(block.key, block.value)
            if not header.has_references:
                return
            for record in read_records(block.value, header, read_bitmap(block.dead, header).dead):
                if isinstance(record, int) or not record.msg_id or record.msg_id in found:
                    continue
                at = bisect_right(ranges, record.seq_id, key=_first_of) - 1
                if at >= 0 and record.seq_id < min(ranges[at].stop, stop):
                    found[record.msg_id] = self.content(record.msg_id, row_of(record.msg_id))

    def content(self, msg_id: int, row: bytes | None) -> bytes | str:
        """Return a content or, if it is missing or damaged, the kind of damage (`storage.damage`).

        Waits while there is no file descriptor. Raises OSError for a file that exists but cannot be opened: the message
        is not lost then.
        """
        if row is None:
            return MISSING_BODY
        if is_in_file(row):
            return self._read_file(msg_id)
        content = row[_CHECKSUM:]
        return content if row[:_CHECKSUM] == body_checksum(msg_id, content) else BODY

    def _read_file(self, msg_id: int) -> bytes | str:
        while True:
            try:
                # in two reads, because a body may have 128 MiB and a slice of it would be a copy
                with os.fdopen(open_regular(self.path(msg_id)), "rb", 0) as file:
                    checksum, content = file.read(_CHECKSUM), file.readall()
            except FileNotFoundError:
                return MISSING_FILE
            except OSError as error:
                if error.errno in _NO_FILE:
                    return FILE_DAMAGED
                if error.errno not in {errno.EMFILE, errno.ENFILE}:
                    raise
                time.sleep(_WAIT_SECONDS)
            else:
                return content if checksum == self.checksum(msg_id, content) else FILE_DAMAGED

    def size(self, msg_id: int, row: bytes | None) -> int:
        """Return the body size in bytes; 0 if it is missing. Only its beginning is read, so damage is not found."""
        if row is not None and is_in_file(row):
            try:
                with os.fdopen(open_regular(self.path(msg_id)), "rb") as file:
                    row = file.read(_CHECKSUM + HEAD_OCTETS)
            except OSError:
                return 0
        return 0 if row is None else body_octets(row[_CHECKSUM : _CHECKSUM + HEAD_OCTETS])

    def write(self, msg_id: int, content: bytes) -> None:
        """Write a body to its file, flushed and renamed, which takes time; raises OSError, with the file removed."""
        path = self.path(msg_id)
        part = path.with_suffix(".part")
        try:
            with open(part, "wb", 0, opener=_for_the_owner) as file:
                file.write(self.checksum(msg_id, content))
                rest = memoryview(content)
                while rest:
                    rest = rest[file.write(rest[:_PIECE]) :]
                    if rest:
                        sync_data(file.fileno())
                os.fsync(file.fileno())
            part.rename(path)
            sync_directory(self._directory)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags, FILE)
