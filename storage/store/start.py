"""The first transaction of a start: checks the format, counts starts, and reads how the last one ended.

Ids and deletions depend on the result, so damaged rows are rejected (`storage.store.row_checksums`).
"""

import logging
from pathlib import Path
from struct import error as StructError  # noqa: N812 - it is an exception, whatever its name
from typing import Any, NamedTuple

from leveret.storage.errors import DamagedError
from leveret.storage.journal.reads import Range
from leveret.storage.store.formats import FORMAT_ROW, check_format
from leveret.storage.store.owner import BOOT, STORE, Owner, new_store_row, read_owner
from leveret.storage.store.row_checksums import Saved, pack_number, read_saved, unpack_number
from leveret.storage.store.tables import SWEEP_KEY, EnvironmentTables

log = logging.getLogger("leveret.storage")


class Started(NamedTuple):
    """Result of the first transaction."""

    owner: Owner
    """The store, and the number of this start."""
    was_clean: bool
    """True if the previous start ended by a clean stop with intact state, or there was none."""
    is_marked: bool
    """True if the mark of a clean stop is in the file."""
    saved: Saved | None
    """The contents of the mark; None if there is none, or it is damaged."""
    sweeps: list[Range]
    """Ranges that are still to be deleted."""


def start(txn: Any, store: EnvironmentTables, data_dir: Path) -> Started:
    """Check the format and count a start.

    Raises UnknownFormatError for data of another format, DamagedError if the store has no id or might assign one twice.
    """
    meta = store.db["meta"]
    is_first = not any(txn.stat(db)["entries"] for db in store.db.values())
    written = txn.get(b"format", db=meta)
    if written is not None:
        check_format(data_dir, written)
    if is_first:
        log.info("storage: no data in %s yet: a new store was made", data_dir)
        txn.put(STORE, new_store_row(), db=meta)
    boot = 1 if is_first else _starts(txn, meta, data_dir) + 1
    if written != FORMAT_ROW:
        txn.put(b"format", FORMAT_ROW, db=meta)
    txn.put(BOOT, pack_number(BOOT, boot), db=meta)
    if store.span > 1:  # it may have been damaged
        txn.put(b"span", pack_number(b"span", store.span), db=meta)
    is_marked, saved, was_clean = _mark(txn, meta)
    sweeps, damaged = _sweeps(txn, store.db["sweeps"])
    if damaged:
        log.error("storage: %d pending deletions are damaged, their messages reappear", len(damaged))
        for key in damaged:
            txn.delete(key, db=store.db["sweeps"])
        txn.delete(b"clean", db=meta)
        is_marked = was_clean = False
    owner = read_owner(txn, meta)
    if not owner.store:
        raise DamagedError(f"the data in {data_dir} is damaged: the id of the store is missing")
    return Started(owner, was_clean or is_first, is_marked, saved, sweeps)


def _starts(txn: Any, meta: Any, data_dir: Path) -> int:
    """Return the number of earlier starts, which alone determines the ids that were assigned."""
    try:
        return unpack_number(BOOT, txn.get(BOOT, default=b"", db=meta))
    except DamagedError:
        raise DamagedError(
            f"the data in {data_dir} is damaged: the counter of starts, from which all ids are generated. "
            "Restore the directory from a copy; without one, move it away to start without data"
        ) from None


def _mark(txn: Any, meta: Any) -> tuple[bool, Saved | None, bool]:
    """Return whether there is a mark of a clean stop, its contents, and whether it is valid."""
    mark = txn.get(b"clean", db=meta)
    if mark is None:
        return False, None, False
    try:
        return True, read_saved(b"clean", mark), True
    except DamagedError as error:
        log.warning("storage: %s", error)
        return True, None, False


def _sweeps(txn: Any, table: Any) -> tuple[list[Range], list[bytes]]:
    """Return the ranges that are still to be deleted, and the keys of unreadable rows."""
    sweeps, damaged = [], []
    for key, value in txn.cursor(table):
        try:
            qid, first = SWEEP_KEY.unpack(key)
            sweeps.append(Range(qid, first, unpack_number(key, value)))
        except (DamagedError, StructError):
            damaged.append(key)
    return sweeps, damaged
