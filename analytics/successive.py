"""Values of the row before of the same object, as columns beside those of each row. Pure.

A window function of an engine takes a multiple of the time that a scan of the rows takes. Rows that are kept are
sorted, so these values are those of the line above. Only the first row of an object among those that are kept as one
has its row before elsewhere: it is taken out (`parted`), and gets its values when all ends are known (`firsts`).
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from leveret.analytics.schemas import Table
from leveret.analytics.series import BEFORE

CLOCK: Final = "mono_us"
_IS_FIRST: Final = "_is_first"
_GROUP: Final = "_group"
_NUMBERS: Final = ("integer", "long")


def columns(table: Table) -> tuple[str, ...]:
    """Return the columns of a table whose values before are known: those of whole numbers that may change."""
    keys = table.of_kind("key")
    return tuple(
        column.name
        for column in table.columns
        if column.type in _NUMBERS and column.name not in keys and column.name != "v"
    )


def parted(rows: pa.Table, table: Table) -> tuple[pa.Table, pa.Table]:
    """Return all rows but the first of each object, with the values before, and the ends of all objects.

    Args:
        rows: rows of the table, in any order.
        table: its declaration; `has_clock`.

    Returns:
        The first table is in the order of objects and of their clock. The second has the first and the last row of each
        object, which may be the same.
    """
    keys = list(table.of_kind("key"))
    whole = rows.combine_chunks()
    order = pc.sort_indices(whole, sort_keys=[(name, "ascending") for name in (*keys, CLOCK)])
    follows = _follows(whole.select(keys).take(order), table)
    later, earlier = order[1:].filter(follows[1:]), order[:-1].filter(follows[1:])
    known = columns(table)
    # Taken by the order of the row before: that is faster than moving values that were put in order.
    before = whole.select(known).take(earlier).rename_columns([f"{BEFORE}{name}" for name in known])
    placed = whole.take(later)
    for name in before.column_names:
        placed = placed.append_column(name, before[name])
    first = pc.invert(follows)
    last = pa.concat_arrays([first[1:], pa.array([True] * min(len(order), 1), pa.bool_())])
    ends = []
    for which, is_first in ((first, True), (last, False)):
        some = whole.take(order.filter(which))
        ends.append(some.append_column(_IS_FIRST, pa.repeat(is_first, some.num_rows)))
    return placed, pa.concat_tables(ends)


def firsts(ends: Sequence[pa.Table], table: Table) -> pa.Table | None:
    """Return the first rows of objects with the values before; None if rows of an object are not one after another.

    Args:
        ends: the ends of objects among the rows that are kept as one, from `parted`.
        table: the declaration of the table.
    """
    numbered = [
        each.append_column(_GROUP, pa.repeat(pa.scalar(number, pa.int32()), each.num_rows))
        for number, each in enumerate(ends)
    ]
    order = [(name, "ascending") for name in (*table.of_kind("key"), CLOCK, _GROUP)]
    placed = pa.concat_tables(numbered).combine_chunks().sort_by([*order, (_IS_FIRST, "descending")])
    is_first, group = (placed[name].to_pylist() for name in (_IS_FIRST, _GROUP))
    if is_first != [True, False] * (len(is_first) // 2) or group[::2] != group[1::2]:
        return None
    placed = placed.drop_columns([_IS_FIRST, _GROUP])
    return _with_before(placed, _follows(placed, table), table).take(
        pa.array(range(0, placed.num_rows, 2), pa.int64())
    )


def without_before(ends: Sequence[pa.Table], table: Table) -> pa.Table:
    """Return the first rows of objects as `firsts` does, with nulls as the values before."""
    rows = pa.concat_tables(ends)
    rows = rows.filter(rows[_IS_FIRST]).drop_columns([_IS_FIRST])
    return _with_before(rows, pa.repeat(False, rows.num_rows), table)


def _follows(rows: pa.Table, table: Table) -> pa.Array:
    """Return for each row of a table in order if the one above is of the same object."""
    same = pa.repeat(True, max(rows.num_rows - 1, 0))
    for name in table.of_kind("key"):
        values = _whole(rows[name])
        same = pc.and_(same, pc.equal(values[1:], values[:-1]))
    return pa.concat_arrays([pa.array([False] * min(rows.num_rows, 1), pa.bool_()), same])


def _with_before(rows: pa.Table, follows: pa.Array, table: Table) -> pa.Table:
    for name in columns(table):
        values = _whole(rows[name])
        nothing = pa.nulls(min(len(values), 1), values.type)
        above = pa.concat_arrays([nothing, values[: max(len(values) - 1, 0)]])
        rows = rows.append_column(f"{BEFORE}{name}", pc.if_else(follows, above, pa.scalar(None, values.type)))
    return rows


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    chunks = column.chunks
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks or [pa.nulls(0, column.type)])
