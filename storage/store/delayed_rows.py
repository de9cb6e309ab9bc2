"""The table of delayed messages: reading the next ones, and removing those of a line that is gone.

Everything here runs inside a transaction that somebody else has begun; `storage.store.environment` says who may. What
the rows mean: `storage.delayed`.
"""

import logging
from collections.abc import Collection
from typing import Any

from leveret.storage.delayed import (
    KEY_SIZE,
    LINE_SIZE,
    DelayedRows,
    Due,
    pack_key,
    pack_line,
    unpack_count,
    unpack_key,
)
from leveret.storage.errors import DamagedError

log = logging.getLogger("leveret.storage")

SWEEP_ROWS = 1000
"""Rows of lines that are gone which one commit deletes at most; what is left goes with later ones."""


def is_line(key: bytes) -> bool:
    """Whether a key is that of a whole line: its count, and deleted the whole line goes."""
    return len(key) == LINE_SIZE


def read_rows(cursor: Any, line: int, start: Due, *, limit: int, octets: int) -> DelayedRows:
    """Read messages of a line from `start` on, in order: `limit` of them or `octets` are enough."""
    rows: list[tuple[Due, bytes]] = []
    found = cursor.set_range(pack_key(line, start))
    while found:
        key, value = cursor.item()
        if len(key) != KEY_SIZE:  # the next line's count
            break
        owner, due, number = unpack_key(key)
        if owner != line:
            break
        if rows and (len(rows) >= limit or octets <= 0):
            return DelayedRows(rows, more=True)
        rows.append(((due, number), value))
        octets -= len(value)
        found = cursor.next()
    return DelayedRows(rows, more=False)


def lines(cursor: Any) -> dict[int, bytes]:
    """All lines that have rows, each with the value of the row that counts them; empty where that is missing."""
    found: dict[int, bytes] = {}
    there = cursor.first()
    while there:
        key = cursor.key()
        line = int.from_bytes(key[:LINE_SIZE], "big")
        found[line] = cursor.value() if is_line(key) else b""
        there = cursor.set_range(pack_line(line + 1))
    return found


def count(cursor: Any, line: int, value: bytes) -> int:
    """How many messages a line has, by the value of the row that counts them or, where that is damaged, by looking."""
    try:
        return unpack_count(line, value)
    except DamagedError as error:
        log.error("storage: %s; they are counted anew", error)  # noqa: TRY400 - no bug
    rows = 0
    found = cursor.set_range(pack_key(line, (0, 0)))
    while found and cursor.key().startswith(pack_line(line)):
        rows += 1
        found = cursor.next()
    return rows


def sweep(cursor: Any, gone: Collection[int]) -> list[int]:
    """Delete rows of lines that are gone, as many as one transaction should; returns the lines that have some left."""
    left = SWEEP_ROWS
    unfinished = []
    for line in gone:
        prefix = pack_line(line)
        found = cursor.set_range(prefix)
        while found and left and cursor.key().startswith(prefix):
            found = cursor.delete()
            left -= 1
        if found and cursor.key().startswith(prefix):
            unfinished.append(line)
    return unfinished
