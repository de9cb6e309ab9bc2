"""The header of a store: the rows of the table `meta`, and the transaction with which a start reads and renews them.

`format` is text: the number of the format, and the version that is needed to read it, in words. A version that does not
know the number shows the whole text, which names the version to install (docs/upgrade.md). Formats 1 to `FORMAT` - 1
were those of unreleased builds. A version with a new format changes `FORMAT` and `NEEDED`. If it upgrades older data,
`fault_of` accepts their numbers, too, and `begin` writes `FORMAT_ROW` in the transaction that counts the start, so that
no kill leaves a state between the two. Rows are not converted then: those of the new form are marked as such, the
others are read for as long as they exist (docs/adr/0021-store-formats.md).

`store` is an id, made at the first start, and `boot` the number of starts. Files next to the data file carry them
(`Owner`), so that those of another store, or of another moment, are not taken for its own. `clean` is the mark of a
clean stop.

Damage in such a small row could not be detected, as there is no other data to compare it with. A sweep with a wrong end
deletes messages, a wrong number of starts assigns ids twice, a queue with wrong positions hides messages. So each is
followed by a checksum that covers its key as well, and a start refuses damaged ones on which ids and deletions depend.
The state of queues saved by a clean stop is valid only as a whole. The mark of the stop has the number of rows, and the
checksum of each covers the start that wrote them all.
"""

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from struct import Struct, error as StructError  # noqa: N812 - it is an exception, whatever its name
from typing import Any, NamedTuple

from zlib_ng.zlib_ng import crc32

from leveret.storage.errors import DamagedError, UnknownFormatError

log = logging.getLogger("leveret.storage")

PLACE = b"replicated"  # the place in a replicated log that the data are a copy of (`storage.store.replica`)
STORE = b"store"
BOOT = b"boot"
CLEAN = b"clean"
FORMAT = 2  # the format that this version reads and writes
NEEDED = "0.2.0"  # the first version that reads `FORMAT`
FORMAT_ROW = f"{FORMAT} (needs leveret {NEEDED} or newer)".encode()
FORMAT_KEY = b"format"
_NEVER = (1 << 64) - 1
_CRC = Struct(">I")
_U64 = Struct(">Q")
_SAVED = Struct(">QQ")

# -- checksums --------------------------------------------------------------------------------------------------------


def seal(key: bytes, value: bytes, boot: int = 0) -> bytes:
    """Return a value followed by its checksum, which covers its key and a start."""
    return value + _CRC.pack(crc32(value, crc32(_U64.pack(boot), crc32(key))))


def unseal(key: bytes, value: bytes, boot: int = 0) -> bytes:
    """Return the value that was given to `seal`; raises DamagedError if the checksum does not match."""
    found = value[: -_CRC.size]
    if len(value) < _CRC.size or value != seal(key, found, boot):
        raise DamagedError(f"row {key!r} is damaged: wrong checksum")
    return found


def pack_number(key: bytes, number: int) -> bytes:
    """Return the value of a row that is a number."""
    return seal(key, _U64.pack(number))


def unpack_number(key: bytes, value: bytes) -> int:
    """Parse a number; raises DamagedError if it is none."""
    try:
        return int(_U64.unpack(unseal(key, value))[0])
    except StructError:
        raise DamagedError(f"row {key!r} is damaged: not a number") from None


# -- format -----------------------------------------------------------------------------------------------------------


def number_of(row: bytes | None) -> int | None:
    """Return the format number in a row; None if the row has none, or is missing."""
    number = (row or b"").partition(b" ")[0]
    return int(number) if number.isdigit() else None


def fault_of(row: bytes | None) -> str:
    """Describe a format's error for an administrator; "" for one that this version reads."""
    if number_of(row) == FORMAT:
        return ""
    shown = "no format" if row is None else f"format {row.decode('ascii', 'replace')}"
    return f"{shown}, this version reads format {FORMAT}"


def check_format(data_dir: Path, row: bytes | None) -> None:
    """Raise UnknownFormatError unless this version reads the row's format; the text names the version that does."""
    fault = fault_of(row)
    if fault:
        raise UnknownFormatError(f"the data in {data_dir} has {fault}")


def format_of(txn: Any, meta: Any) -> bytes | None:
    """Return the row of the format; None in a store that was never started."""
    return txn.get(FORMAT_KEY, db=meta)  # type: ignore[no-any-return]


# -- id, starts, clean stop -------------------------------------------------------------------------------------------


class Owner(NamedTuple):
    """The data that a file belongs to."""

    store: bytes  # the id of the store, eight bytes; empty before its first start
    boot: int  # the number of the last start


def read_owner(txn: Any, meta: Any) -> Owner:
    """Return the owner as of a transaction; raises DamagedError if the id of the store is damaged.

    A damaged number of starts, which a start refuses, is read as the highest one.
    """
    store, boot = txn.get(STORE, db=meta), _NEVER
    with suppress(DamagedError):
        boot = unpack_number(BOOT, txn.get(BOOT, default=b"", db=meta))
    return Owner(b"" if store is None else unseal(STORE, store), boot)


class Saved(NamedTuple):
    """The mark of a clean stop, which describes the rows that it has saved."""

    boot: int  # the start that saved them
    queues: int

    def row(self) -> bytes:
        """Return the value of the mark's row."""
        return seal(CLEAN, _SAVED.pack(*self))


def read_saved(value: bytes) -> Saved:
    """Parse a mark; raises DamagedError."""
    try:
        return Saved(*_SAVED.unpack(unseal(CLEAN, value)))
    except StructError:
        raise DamagedError("the mark of the clean shutdown is damaged") from None


class Started(NamedTuple):
    """Result of a start's first transaction."""

    owner: Owner  # the store, and the number of this start
    was_clean: bool  # True if the previous start ended by a clean stop with an intact mark, or there was none
    is_marked: bool  # True if the mark of a clean stop is in the file
    saved: Saved | None  # the contents of the mark; None if there is none, or it is damaged


def begin(txn: Any, db: Mapping[str, Any], data_dir: Path) -> Started:
    """Check the format, count a start, and return how the last one ended.

    Raises UnknownFormatError for data of another format, DamagedError if the store has no id or might assign one twice.
    """
    meta = db["meta"]
    is_first = not any(txn.stat(each)["entries"] for each in db.values())
    written = format_of(txn, meta)
    if written is not None:
        check_format(data_dir, written)
    if is_first:
        log.info("storage: no data in %s yet: a new store was made", data_dir)
        txn.put(STORE, seal(STORE, os.urandom(8)), db=meta)
    boot = 1 if is_first else _starts(txn, meta, data_dir) + 1
    if written != FORMAT_ROW:
        txn.put(FORMAT_KEY, FORMAT_ROW, db=meta)
    txn.put(BOOT, pack_number(BOOT, boot), db=meta)
    mark, saved = txn.get(CLEAN, db=meta), None
    if mark is not None:
        try:
            saved = read_saved(mark)
        except DamagedError as error:
            log.warning("storage: %s", error)
    owner = read_owner(txn, meta)
    if not owner.store:
        raise DamagedError(f"the data in {data_dir} is damaged: the id of the store is missing")
    return Started(owner, is_first or saved is not None, mark is not None, saved)


def _starts(txn: Any, meta: Any, data_dir: Path) -> int:
    """Return the number of earlier starts, which alone determines the ids that were assigned."""
    try:
        return unpack_number(BOOT, txn.get(BOOT, default=b"", db=meta))
    except DamagedError:
        raise DamagedError(
            f"the data in {data_dir} is damaged: the counter of starts, from which all ids are generated. "
            "Restore the directory from a copy; without one, move it away to start without data"
        ) from None
