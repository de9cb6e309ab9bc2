"""Reads the stored definitions, also while a broker is using them."""

from itertools import islice
from pathlib import Path
from typing import Any

import lmdb

from leveret.storage.errors import StorageError
from leveret.storage.store.formats import check_format
from leveret.storage.store.lmdb_file import refuse_cut_off
from leveret.storage.store.tables import MAP_SIZE, unusable

ROWS = 500
"""Rows per transaction."""
TRIES = 6
"""Maximum number of attempts to read all rows in parts."""


def has_data(data_dir: Path) -> bool:
    """Return whether a broker has been started with this data directory."""
    return (data_dir / "store" / "data.mdb").is_file()


def stored_definitions(data_dir: Path) -> list[tuple[bytes, bytes]]:
    """Return all rows of definitions as of one moment: keys and values, see `storage.store.metadata_rows`.

    A running broker cannot reuse pages while a transaction reads, even if the reader is stopped meanwhile. So a
    transaction reads only `ROWS` rows, and everything is read until two successive results are the same: then it was so
    at the moment between them. If definitions change all the time, the last try reads them in one transaction.

    Raises:
        UnknownFormatError: a later version wrote the data.
        StorageError: there is no data, or it cannot be read.
    """
    path = data_dir / "store"
    if not has_data(data_dir):
        raise StorageError(f"there is no data in {data_dir}")
    refuse_cut_off(path / "data.mdb")
    try:
        # with its lock, so that a running broker does not reuse pages that are being read
        with lmdb.open(str(path), readonly=True, create=False, max_dbs=16, map_size=MAP_SIZE) as env:
            tables = {name: env.open_db(name, create=False) for name in (b"meta", b"defs")}
            with env.begin() as txn:
                check_format(data_dir, txn.get(b"format", db=tables[b"meta"]))
            return _rows(env, tables[b"defs"])
    except lmdb.Error as error:
        raise unusable(f"cannot read the data in {data_dir}", error) from None


def _rows(env: Any, table: Any) -> list[tuple[bytes, bytes]]:
    before = None
    for _ in range(TRIES):
        rows = _rows_in_parts(env, table)
        if rows == before:
            return rows
        before = rows
    with env.begin() as txn:
        return list(txn.cursor(table))


def _rows_in_parts(env: Any, table: Any) -> list[tuple[bytes, bytes]]:
    rows: list[tuple[bytes, bytes]] = []
    while True:
        with env.begin() as txn:
            cursor = txn.cursor(table)
            found = cursor.set_range(rows[-1][0] + b"\0") if rows else cursor.first()
            part = list(islice(cursor, ROWS)) if found else []
        rows += part
        if len(part) < ROWS:
            return rows
