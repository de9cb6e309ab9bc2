"""Bodies stored apart from their records: in rows of their own, very large ones in files of their own."""

import contextlib
import errno
import os
import time
from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from struct import Struct
from typing import Any

from leveret.storage.damage import BODY, FILE as FILE_DAMAGED, MISSING_BODY, MISSING_FILE
from leveret.storage.errors import DamagedError
from leveret.storage.journal.blocks import read_bitmap, read_header, read_records
from leveret.storage.journal.reads import Range, RawBlock
from leveret.storage.permissions import FILE
from leveret.storage.regular_files import open_regular
from leveret.storage.store.flush import sync_data, sync_directory
from leveret.storage.store.tables import EnvironmentTables, body_checksum

_U64 = Struct(">Q")
_CHECKSUM = 4
_first_of = attrgetter("first")
_PIECE = 4 * 1024 * 1024
"""Bytes of a body that are flushed together: a commit waits for data that the file system has to write before its
own."""
_NO_FILE = frozenset((errno.EIO, errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.EISDIR))
"""Errors of a file that cannot be read, or of a name that is none of a regular file."""
_WAIT_SECONDS = 0.1
"""Seconds to wait for a file descriptor before the next try."""


class Bodies:
    """The bodies of one environment.

    Args:
        table: the tables, which have a row for each body.
        directory: the directory of the files.

    """

    def __init__(self, table: EnvironmentTables, directory: Path) -> None:
        self._table = table
        self._directory = directory

    def checksum(self, msg_id: int, content: bytes) -> bytes:
        """Return the checksum at the beginning of a very large body's file."""
        return body_checksum(msg_id, content, self._table.store_id)

    def path(self, msg_id: int) -> Path:
        """Return the path of a very large body's file."""
        return self._directory / f"{msg_id:016x}"

    def read_all(
        self,
        block: RawBlock,
        ranges: Sequence[Range],
        stop: int,
        bodies: dict[int, bytes | str],
        txn: Any = None,
    ) -> None:
        """Read the bodies that a block's records refer to, within the ranges and before `stop`; `txn` as for `read`."""
        with contextlib.suppress(DamagedError):
            header = read_header(block.key, block.value)
            if not header.has_references:
                return
            for record in read_records(block.value, header, read_bitmap(block.dead, header).dead):
                if isinstance(record, int) or not record.msg_id or record.msg_id in bodies:
                    continue
                at = bisect_right(ranges, record.seq_id, key=_first_of) - 1
                if at >= 0 and record.seq_id < min(ranges[at].stop, stop):
                    bodies[record.msg_id] = self.read(record.msg_id, txn)

    def read(self, msg_id: int, txn: Any = None) -> bytes | str:
        """Return a content or, if it is missing or damaged, the kind of damage (`storage.damage`).

        Waits while there is no file descriptor. Raises OSError for a file that exists but cannot be opened: the message
        is not lost then. `txn`: a read transaction to use; None for a new one.
        """
        octets = self._row(msg_id, txn)
        if octets is None:
            return MISSING_BODY
        if len(octets) == _CHECKSUM:
            return self._read_file(msg_id)
        content = bytes(octets[_CHECKSUM:])
        return content if octets[:_CHECKSUM] == body_checksum(msg_id, content) else BODY

    def _row(self, msg_id: int, txn: Any) -> bytes | None:
        if txn is None:
            with self._table.reading() as txn:  # noqa: PLR1704 - the one to use
                return self._row(msg_id, txn)
        octets = txn.get(_U64.pack(msg_id), db=self._table.db["bodies"])
        return None if octets is None else bytes(octets)

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

    def write(self, msg_id: int, content: bytes) -> None:
        """Write a body to its file: temporary name, flush, rename, flush of the directory. Takes a while.

        Raises OSError, after removing the file.
        """
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
