"""The table of delayed messages: reads the next ones, and removes those of deleted lines.

Every function runs inside the caller's transaction; `storage.store.environment` has the rules. `storage.delayed`
defines the rows.
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
"""Maximum number of rows of deleted lines that one commit deletes; later commits delete the rest."""


def is_line(key: bytes) -> bool:
    """Return whether a key stands for a whole line: the row of its count, whose deletion deletes the line."""
    return len(key) == LINE_SIZE


def read_rows(cursor: Any, line: int, start: Due, *, limit: int, octets: int) -> DelayedRows:
    """Read messages of a line from `start` on, in order, until `limit` messages or `octets` bytes are read."""
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
    """Return all lines that have rows, each with the value of its count row; empty if that is missing."""
    found: dict[int, bytes] = {}
    there = cursor.first()
    while there:
        key = cursor.key()
        line = int.from_bytes(key[:LINE_SIZE], "big")
        found[line] = cursor.value() if is_line(key) else b""
        there = cursor.set_range(pack_line(line + 1))
    return found


def count(cursor: Any, line: int, value: bytes) -> int:
    """Return the number of messages of a line from its count row or, if that is damaged, by counting."""
    try:
        return unpack_count(line, value)
    except DamagedError as error:
        log.error("storage: %s; recounting", error)  # noqa: TRY400 - no bug
    rows = 0
    found = cursor.set_range(pack_key(line, (0, 0)))
    while found and cursor.key().startswith(pack_line(line)):
        rows += 1
        found = cursor.next()
    return rows


def sweep(cursor: Any, gone: Collection[int]) -> list[int]:
    """Delete rows of deleted lines, as many as one transaction should; returns the lines that have rows left."""
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
