"""Input tables of a command, as written by the export (JSON Lines) or by `compact` (Parquet).

A line of JSON counts only if it is a complete row of its table. Any other is *set aside*: counted by reason, and kept
with the name of its file under the output. No line is dropped silently: lines = rows + set aside.
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession, functions as F
from pyspark.sql.streaming.readwriter import DataStreamReader

from leveret.analytics.schemas import CORRUPT, VERSION, Table, tables

UNREADABLE: Final = "not a row of the table"
OTHER_VERSION: Final = "another version of the table"
INCOMPLETE: Final = "missing value"
PLACE: Final = ("dt", "hour")
"""Partition directories below a table's: the date and hour at which a row was written."""
QUARANTINE: Final = "quarantine"
ASIDE: Final = "reason string, file string, line string"
"""Columns of lines that were set aside, as written by Spark."""
REASON: Final = "_reason"
FILE: Final = "_file"
LINE: Final = "_line"
TWO: Final = r'\}\s*\{"v":'
"""Two rows on a line: the parser would stop after the first. Within a string a quote has a backslash before it."""
_WILD: Final = re.compile(r"[*?{}\[\]\\]")
"""Glob characters of paths, which a backslash escapes."""
JSON_OPTIONS: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": CORRUPT,
    "allowNonNumericNumbers": "false",
}


class InputError(Exception):
    """Raised when the input lacks something that a job needs; the text says what."""


@dataclasses.dataclass(frozen=True, slots=True)
class Counted:
    """Counts of one table: rows, and lines that were set aside, by reason.

    `hours` are the rows of each (dt, hour) by directory; empty if there are no such directories.
    """

    rows: int
    aside: Mapping[str, int]
    hours: Mapping[tuple[str, str], int] = dataclasses.field(default_factory=dict)

    @property
    def lines(self) -> int:
        """Return the number of lines."""
        return self.rows + sum(self.aside.values())


class Input:
    """The tables under one directory. Each is checked once, on first use.

    Args:
        spark: the session.
        directory: holds a directory for each table; every worker of a cluster must see it under this name.
        output: the output directory; lines that were set aside are kept in its `quarantine`, by table.
        aside: number of lines set aside when the Parquet in `directory` was made, by table and reason.
    """

    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        output: Path,
        aside: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        self.spark = spark
        self.directory = directory.resolve()
        self.output = output.resolve()
        self.counted: dict[str, Counted] = {}
        self._aside = aside or {}
        self._rows: dict[str, DataFrame] = {}
        self._kept: list[DataFrame] = []

    def has(self, name: str) -> bool:
        """Return whether a table has any files."""
        return self.suffix(name) is not None

    def suffix(self, name: str) -> str | None:
        """Return the format of a table's files, `jsonl` or `parquet`; None if there are none."""
        for suffix in ("jsonl", "parquet"):
            for path in (self.directory / name).rglob(f"*.{suffix}"):
                if not path.name.startswith((".", "_")):
                    return suffix
        return None

    def table(self, name: str) -> DataFrame:
        """Return the rows of a table: the columns of its declaration only.

        Raises:
            InputError: the table has no files.
        """
        return self.placed(name).select(*tables()[name].schema.names)

    def placed(self, name: str) -> DataFrame:
        """Return the rows of a table with `dt` and `hour`, if it has such directories.

        Raises:
            InputError: the table has no files.
        """
        if name not in self._rows:
            suffix = self.suffix(name)
            if suffix is None:
                raise InputError(f"no table {name} in {self.directory}")
            table = tables()[name]
            self._rows[name] = self._compacted(table) if suffix == "parquet" else self._exported(table)
        return self._rows[name]

    def keep(self, rows: DataFrame) -> DataFrame:
        """Cache rows used by several results on disk until `release`; return them."""
        # Spark identifies cached data by its plan, in which directories appear only by name.
        rows.unpersist()
        self._kept.append(rows.persist(StorageLevel.DISK_ONLY))
        return rows

    def release(self) -> None:
        """Drop all cached rows."""
        while self._kept:
            self._kept.pop().unpersist()

    def _compacted(self, table: Table) -> DataFrame:
        rows = self.spark.read.schema(table.schema).parquet(source(self.directory / table.name))
        self.counted[table.name] = Counted(rows.count(), self._aside.get(table.name, {}))
        return rows

    def _exported(self, table: Table) -> DataFrame:
        read = lines(self.spark.read, self.directory / table.name, table)
        # Lines are parsed only once for all later queries; cached as by `keep`.
        read.unpersist()
        read.persist(StorageLevel.DISK_ONLY)
        place = [name for name in PLACE if name in read.columns]
        aside: dict[str, int] = {}
        hours: dict[tuple[str, str], int] = {}
        rows = 0
        for found in read.groupBy(REASON, *place).count().collect():
            if found[REASON] is not None:
                aside[found[REASON]] = aside.get(found[REASON], 0) + found["count"]
                continue
            rows += found["count"]
            if len(place) == len(PLACE):
                hours[found["dt"], found["hour"]] = found["count"]
        self.counted[table.name] = Counted(rows, aside, hours)
        kept = self.output / QUARANTINE / table.name
        if aside or kept.exists():
            set_aside(read).write.mode("overwrite").parquet(url(kept))
        return whole(read)


def url(path: Path) -> str:
    """Return the URL of a path for Spark to write to; not `Path.as_uri`, as Spark does not decode `%3D`."""
    return f"file://{path}"


def source(path: Path) -> str:
    """Return the escaped form of an absolute path for Spark to read from, which takes it for a glob pattern."""
    return _WILD.sub(r"\\\g<0>", url(path))


def lines(reader: DataFrameReader | DataStreamReader, folder: Path, table: Table) -> DataFrame:
    """Return every line of a table's files, parsed and checked.

    Lines are read as text and parsed by an expression, not by Spark's JSON reader: that one reads only the columns that
    a query uses, and accepts or rejects a line by those.

    Returns:
        The table's columns, `dt` and `hour` if there are such directories, and `REASON`: the reason why the line is
        invalid, null if it is valid. An invalid line has `LINE` and `FILE`, the name of its file.
    """
    # A stream does not detect partition directories by itself if the path has glob characters.
    placed = reader.option("basePath", url(folder))
    text = placed.text(source(folder), lineSep="\n", pathGlobFilter="*.jsonl")
    place = [name for name in PLACE if name in text.columns]
    parsed = F.from_json(F.col("value"), table.read_schema, JSON_OPTIONS)
    once = text.select(
        F.col("_metadata.file_path").alias("file"),
        F.col("value").alias("line"),
        *place,
        # explode: stops uses of `row` below from being pushed down to the line, where each would parse it again.
        F.explode(F.array(parsed)).alias("row"),
    ).withColumn("reason", _reason(table))
    bad = F.col("reason").isNotNull()
    return once.select(
        *[F.col(f"row.{name}").alias(name) for name in table.schema.names],
        *place,
        F.col("reason").alias(REASON),
        F.when(bad, F.col("file")).alias(FILE),
        F.when(bad, F.col("line")).alias(LINE),
    )


def whole(read: DataFrame) -> DataFrame:
    """Return the valid rows of the result of `lines`, with `dt` and `hour` if present."""
    return read.filter(F.col(REASON).isNull()).drop(REASON, FILE, LINE)


def set_aside(read: DataFrame) -> DataFrame:
    """Return the invalid lines of the result of `lines`, with the reasons."""
    aside = read.filter(F.col(REASON).isNotNull())
    return aside.select(*[F.col(name).alias(name.removeprefix("_")) for name in (REASON, FILE, LINE)])


def _reason(table: Table) -> Column:
    missing = F.lit(False)
    for name in table.required:
        missing |= F.col(f"row.{name}").isNull()
    return (
        F.when(
            F.col("row").isNull() | F.col(f"row.{CORRUPT}").isNotNull() | F.col("line").rlike(TWO), UNREADABLE
        )
        .when(F.col("row.v") != VERSION, OTHER_VERSION)
        .when(missing, INCOMPLETE)
    )
