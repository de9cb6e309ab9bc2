"""Spark schemas of the export's tables, from `tables.json`, which the broker writes from its declarations.

So Spark needs nothing of the broker. `make docs` updates the file.
"""

import dataclasses
import functools
import importlib.resources
import json
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql.types import StringType, StructField, StructType

VERSION: Final = 1  # value of a row's `v` as long as its columns are these
CORRUPT: Final = "_corrupt_record"


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """One column. `kind` is the meaning of its numbers; `optional` is true if it may be null.

    Kinds: `key` identifies the object a row is about, together with `node` and `boot_id`; `gauge` is the state at
    the end of the interval; `counter` and `area` count up from the object's beginning; `sum` is of this row alone.
    """

    name: str
    type: str | dict[str, Any]
    kind: str
    optional: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """One table."""

    name: str
    columns: tuple[Column, ...]

    @property
    def schema(self) -> StructType:
        """Return its columns, in the order of the declaration."""
        fields = [
            {"name": column.name, "type": column.type, "nullable": True, "metadata": {}}
            for column in self.columns
        ]
        return StructType.fromJson({"type": "struct", "fields": fields})

    @property
    def read_schema(self) -> StructType:
        """Return its columns with one more, for input that could not be parsed."""
        return StructType([*self.schema.fields, StructField(CORRUPT, StringType())])

    @property
    def required(self) -> tuple[str, ...]:
        """Return the columns that must have a value in a complete row."""
        return tuple(column.name for column in self.columns if not column.optional)

    def of_kind(self, *kinds: str) -> tuple[str, ...]:
        """Return the names of the columns of these kinds."""
        return tuple(column.name for column in self.columns if column.kind in kinds)

    @property
    def numbers(self) -> tuple[str, ...]:
        """Return the columns that have numbers."""
        return tuple(column.name for column in self.columns if column.type in ("long", "double"))

    @property
    def has_clock(self) -> bool:
        """True if its rows are intervals of a broker, with `ts`, `mono_us`, `node` and `boot_id`."""
        return "boot_id" in {column.name for column in self.columns}


@functools.cache
def tables() -> Mapping[str, Table]:
    """Return all tables by name."""
    text = importlib.resources.files(__package__).joinpath("tables.json").read_text(encoding="utf-8")
    return {
        name: Table(name, tuple(Column(**column) for column in columns))
        for name, columns in json.loads(text).items()
    }
