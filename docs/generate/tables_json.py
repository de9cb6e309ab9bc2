"""The export's tables, for readers elsewhere.

Analysis runs where the broker need not be installed, so it reads the declaration from a file.
"""

import json
from typing import Any

import msgspec

from leveret.broker.export.tables import TABLES, columns, spark_schema


def declared(table: str) -> list[dict[str, Any]]:
    """Return the columns of a table, in the order they are written: `name`, Spark's `type`, `kind`, `optional`."""
    described = msgspec.inspect.type_info(TABLES[table].struct)
    if not isinstance(described, msgspec.inspect.StructType):
        raise TypeError(f"{table} is no struct")
    return [
        {
            "name": column.name,
            "type": kind["type"],
            "kind": column.kind,
            "optional": isinstance(field.type, msgspec.inspect.UnionType) and field.type.includes_none,
        }
        for column, kind, field in zip(
            columns(table), spark_schema(table)["fields"], described.fields, strict=True
        )
    ]


def render() -> str:
    """Return the file's text: one line per column, so that a change shows as a line."""
    tables = (
        f'"{table}": [\n' + ",\n".join(f" {json.dumps(column)}" for column in declared(table)) + "\n]"
        for table in TABLES
    )
    return "{\n" + ",\n".join(tables) + "\n}\n"
