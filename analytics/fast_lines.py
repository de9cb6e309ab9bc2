"""A fast parser of the lines of a file, for those that it surely reads as Spark does. Pure.

Arrow's parser is strict about types, unknown and repeated columns, and numbers that do not fit. What it is not strict
about is checked here: rows that share a line, values that are missing, `NaN`, texts that are not UTF-8. A file with any
of these, or with what it cannot read, is for a parser that judges each line (`stored_input`, and Spark after it).
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from leveret.analytics.schemas import VERSION, Table

_PLAIN: Final = {
    "long": pa.int64(),
    "integer": pa.int32(),
    "double": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
}
MOST_BYTES: Final = 256 << 20
"""Size of the largest file to be parsed: its rows are in memory, which takes four times as much. Arrow cannot parse
2 GiB at once at all."""
_BLOCK_BYTES: Final = 1 << 20
"""Size of what is parsed at once: more than a processor's cache is slower, and so is less."""
_BEGIN: Final = f'{{"v":{VERSION},'.encode()
_LINE_END, _OBJECT_END = b"\n}"


def is_readable(table: Table) -> bool:
    """Return whether rows of a table can be parsed here: maps cannot."""
    return all(isinstance(column.type, str) or column.type["type"] != "map" for column in table.columns)


def schema_of(table: Table) -> pa.Schema:
    """Return the columns of a table that has no maps."""
    return pa.schema([(column.name, _type(column.type)) for column in table.columns])


def parse(data: bytes | bytearray, table: Table) -> pa.Table | None:
    """Return the rows of a file, or of several; None if a line is not surely a row.

    Args:
        data: the whole file; or files one after another, of which each is empty or ends with the end of a line.
        table: its declaration; `is_readable`.
    """
    schema = schema_of(table)
    if not data:
        return schema.empty_table()
    lines = _lines(data)
    if not lines:
        return None
    try:
        rows = pj.read_json(
            pa.BufferReader(data),
            read_options=pj.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
        )
        rows.validate(full=True)  # texts are UTF-8
    except pa.ArrowInvalid:
        return None
    # A column that no line has is the last one.
    rows = rows.select(schema.names)
    is_whole = rows.num_rows == lines and all(
        _has_values(rows[column.name]) for column in table.columns if not column.optional
    )
    return rows if is_whole else None


def _lines(data: bytes | bytearray) -> int:
    r"""Return the number of lines if each begins with an object, and none goes on after the end of it; otherwise 0.

    The parser ends the process if it finds a value that is no object outside of objects. Here it finds none: a `}` is
    at the end of a line, where the next line begins with `{"v":1,` or nothing follows, or is before `,` or `]`, with
    which no value begins. Nor do two lines make one row, as there is no `}{` within an object.
    """
    # Unlike `bytes.count` this leaves the interpreter to other threads.
    octets = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(octets == _LINE_END)
    lines = len(ends)
    if not data.endswith(b"}\n") or np.diff(ends, prepend=-1).min() <= len(_BEGIN):
        return 0
    begins = np.concatenate([[0], ends[:-1] + 1])
    begun = all((octets[begins + place] == octet).all() for place, octet in enumerate(_BEGIN))
    if not begun or not (octets[ends - 1] == _OBJECT_END).all():
        return 0
    closed = np.count_nonzero(octets == _OBJECT_END)
    return lines if closed == lines or closed == lines + data.count(b"},") + data.count(b"}]") else 0


def _has_values(column: pa.ChunkedArray) -> bool:
    """Return whether all values of a column are there, also those within lists, and are numbers if they should be."""
    if column.null_count:
        return False
    kind = column.type
    if pa.types.is_floating(kind):
        return bool(pc.all(pc.is_finite(column)).as_py())
    if pa.types.is_list(kind):
        return _has_values(pc.list_flatten(column))
    if pa.types.is_struct(kind):
        return all(_has_values(pc.struct_field(column, [index])) for index in range(kind.num_fields))
    return True


def _type(kind: str | dict[str, Any]) -> pa.DataType:
    if isinstance(kind, str):
        return _PLAIN[kind]
    if kind["type"] == "array":
        return pa.list_(_type(kind["elementType"]))
    fields: Sequence[dict[str, Any]] = kind["fields"]
    return pa.struct([(field["name"], _type(field["type"])) for field in fields])
