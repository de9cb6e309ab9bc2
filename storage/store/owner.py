"""The owner of a file: each store has an id, made at its first start, and each start a number.

Files next to the data file carry them (`storage.store.redo_log`, `storage.store.bodies`), so that those of another
store, or of another moment, are not taken for its own.
"""

import os
from contextlib import suppress
from typing import Any, NamedTuple

from leveret.storage.errors import DamagedError
from leveret.storage.store.row_checksums import seal, unpack_number, unseal

STORE = b"store"
"""Key, in the table `meta`, of the id of the store."""
BOOT = b"boot"
"""Key of the number of starts."""
_NEVER = (1 << 64) - 1


class Owner(NamedTuple):
    """The data that a file belongs to."""

    store: bytes
    """The id of the store, eight bytes; empty before its first start."""
    boot: int
    """The number of the last start."""


def new_store_row() -> bytes:
    """Return the value of the row with the id of a new store."""
    return seal(STORE, os.urandom(8))


def read_owner(txn: Any, meta: Any) -> Owner:
    """Return the owner as of a transaction; raises DamagedError if the id of the store is damaged.

    A damaged number of starts, which a start refuses, is read as the highest one.
    """
    store, boot = txn.get(STORE, db=meta), _NEVER
    with suppress(DamagedError):
        boot = unpack_number(BOOT, txn.get(BOOT, default=b"", db=meta))
    return Owner(b"" if store is None else unseal(STORE, store), boot)
