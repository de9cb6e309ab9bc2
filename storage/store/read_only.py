"""Reads the data of a broker that is stopped, and the definitions of one that runs, from another process."""

import contextlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import lmdb

from leveret.storage.errors import StorageError
from leveret.storage.store.lmdb_environment import TABLES, open_mapped, unusable
from leveret.storage.store.lmdb_file import refuse_cut_off, refuse_links
from leveret.storage.store.store_header import check_format, format_of

ROWS = 500  # rows of definitions per transaction
TRIES = 6  # maximum number of attempts to read all rows in parts


def has_data(data_dir: Path) -> bool:
    """Return whether a broker has been started with this data directory."""
    return (data_dir / "store" / "data.mdb").is_file()


def open_environment(store: Path, *, lock: bool = False) -> Any:
    """Open an environment; with its `lock`, a running broker does not reuse pages that are being read."""
    return open_mapped(store, readonly=True, lock=lock, create=False)


@contextlib.contextmanager
def opened(data_dir: Path) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """Open the environment, a read transaction, and the tables that exist, of a stopped broker.

    Raises StorageError if the data cannot be read, UnknownFormatError if another version wrote it.
    """
    refuse_links(data_dir)
    _refuse_missing(data_dir)
    try:
        with open_environment(data_dir / "store") as env:
            tables = {}
            for name in TABLES:
                with contextlib.suppress(lmdb.NotFoundError):
                    tables[name] = env.open_db(name.encode(), create=False)
            with env.begin() as txn:
                check_format(data_dir, format_of(txn, tables["meta"]) if "meta" in tables else None)
                yield env, txn, tables
    except lmdb.Error as error:
        raise unusable(f"cannot read the data in {data_dir}", error) from error


def _refuse_missing(data_dir: Path) -> None:
    if not has_data(data_dir):
        raise StorageError(f"there is no data in {data_dir}")
    refuse_cut_off(data_dir / "store" / "data.mdb")


def stored_definitions(data_dir: Path) -> list[tuple[bytes, bytes]]:
    """Return all rows of definitions as of one moment: keys and values, see `storage.store.metadata_rows`.

    A running broker cannot reuse pages while a transaction reads, even if the reader is stopped meanwhile. So a
    transaction reads only `ROWS` rows, and everything is read until two successive results are the same: then it was so
    at the moment between them. If definitions change all the time, the last try reads them in one transaction.

    Raises UnknownFormatError for data of a later version, StorageError if there is none, or it cannot be read.
    """
    _refuse_missing(data_dir)
    try:
        with open_environment(data_dir / "store", lock=True) as env:
            meta, table = (env.open_db(name, create=False) for name in (b"meta", b"defs"))
            with env.begin() as txn:
                check_format(data_dir, format_of(txn, meta))
            return _rows(env, table)
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
