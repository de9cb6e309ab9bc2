"""Input tables of a command, as written by the export (JSON Lines) or by `compact` (Parquet).

A line of JSON counts only if it is a complete row of its table. Any other is *set aside*: counted by reason, and kept
with the name of its file under the output. No line is dropped silently: lines = rows + set aside.
"""

import dataclasses
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, DataFrameReader, Row, SparkSession, functions as F
from pyspark.sql.streaming.readwriter import DataStreamReader

from leveret.analytics.histograms import is_no_bucket
from leveret.analytics.locations import Location, exists, has_files, size_of, source, url
from leveret.analytics.objective import DEFAULT, Objective
from leveret.analytics.schemas import CORRUPT, VERSION, Table, tables
from leveret.analytics.scope import EVERYTHING, Scope, moment
from leveret.analytics.series import bin_seconds, clocks, each, query
from leveret.analytics.session import KEEPING
from leveret.analytics.writing import write_all

UNREADABLE: Final = "not a row of the table"
OTHER_VERSION: Final = "another version of the table"
INCOMPLETE: Final = "missing value"
IMPOSSIBLE: Final = "impossible number"
TIMES: Final = dict.fromkeys(("ts", "since_ms"), (0, 4_102_444_800_000))
"""Columns with times, and what they may be: 1970 to 2099. Memory has a place for each time between two of them."""
GREATEST: Final = 2**62  # the bound of other numbers: the modulus of areas
PLACE: Final = ("dt", "hour")
"""Partition directories below a table's: the date and hour at which a row was written."""
MARGIN: Final = timedelta(hours=1)
"""A row may be in the directory of the hour after its own, in which it was written."""
QUARANTINE: Final = "quarantine"
ASIDE: Final = "reason string, file string, line string"
"""Columns of lines that were set aside, as written by Spark."""
REASON: Final = "_reason"
FILE: Final = "_file"
LINE: Final = "_line"
PART_BYTES: Final = 48 << 20  # bytes of a table that one task parses: seconds
LONGEST: Final = 4 << 20
"""Bytes of a line from which it is no row: a worker has several copies of a line in its memory."""
TWO: Final = r'\x7D\s*\x7B"v":'
"""Two rows on a line: the parser would stop after the first. Within a string a quote has a backslash before it."""
JSON_OPTIONS: Final = (
    f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{CORRUPT}', 'allowNonNumericNumbers', 'false')"
)


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


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """The rows of a table that jobs get: their number, the first and the last time (ms), and the nodes."""

    rows: int
    first_ms: int | None = None
    last_ms: int | None = None
    nodes: Sequence[str] = ()


class Input:
    """The tables under one directory. Each is checked once, on first use."""

    is_folded = False  # True if old rows were folded (`folding`)

    def __init__(
        self,
        spark: SparkSession,
        # holds a directory for each table; every worker of a cluster must see it under this name
        directory: Location,
        # the output directory; lines that were set aside are kept in its `quarantine`, by table
        output: Location,
        # number of lines set aside when the Parquet in `directory` was made, by table and reason
        aside: Mapping[str, Mapping[str, int]] | None = None,
        scope: Scope = EVERYTHING,  # the rows to give to jobs
        objective: Objective = DEFAULT,  # the latency that users want
    ) -> None:
        self.spark = spark
        self.directory = directory.resolve()
        self.output = output.resolve()
        self.scope = scope
        self.objective = objective
        self.counted: dict[str, Counted] = {}
        self.seen: dict[str, Seen] = {}
        self._aside = aside or {}
        self._rows: dict[str, DataFrame] = {}
        self._wanted: dict[str, DataFrame] = {}
        self._shared: dict[str, DataFrame] = {}
        self._versions: Mapping[str, str] | None = None
        self.is_small = spark.conf.get(KEEPING, "") == "cut"
        self._making = threading.RLock()

    def has(self, name: str) -> bool:
        """Return whether a table has any files."""
        return self.suffix(name) is not None

    def suffix(self, name: str) -> str | None:
        """Return the format of a table's files, `jsonl` or `parquet`; None if there are none."""
        for suffix in ("jsonl", "parquet"):
            if has_files(self.spark, self.directory / name, suffix):
                return suffix
        return "parquet" if exists(self.spark, self._single(name)) else None

    def _single(self, name: str) -> Location:
        """Return the file of a table that has only one, as the records of `bench.paper` in its repository."""
        return self.directory / f"{name}.parquet"

    def table(self, name: str) -> DataFrame:
        """Return the rows of a table that are in the scope: the columns of its declaration only.

        Raises InputError: the table has no files.
        """
        if name not in self._wanted:
            rows = self.placed(name)
            if not self.scope.is_all:
                rows = rows.filter(condition_of(self.scope, tables()[name]))
            self._wanted[name] = rows.select(*tables()[name].schema.names)
        return self._wanted[name]

    def bin_seconds(self, name: str) -> int:
        """Return the length of a bin (`series.bin_seconds`) of the rows of `table`, which has a clock.

        Raises InputError: the table has no files.
        """
        self.placed(name)
        seen = self.seen[name]
        return bin_seconds(((seen.last_ms or 0) - (seen.first_ms or 0)) / 1000)

    def versions(self) -> Mapping[str, str]:
        """Return the version of each node's broker, as it was in the end; empty if there are no events of starts."""
        if self._versions is None:
            found: Mapping[str, str] = {}
            if self.has("event"):
                starts = self.whole("event").filter(F.col("kind") == "start")
                if self.scope.until_ms is not None:
                    starts = starts.filter(F.col("ts") <= self.scope.until_ms)
                latest = starts.groupBy("node").agg(F.max_by("name", "ts").alias("version"))
                found = {row["node"]: row["version"] for row in latest.collect()}
            self._versions = found
        return self._versions

    def whole(self, name: str) -> DataFrame:
        """Return the rows of a table at all times, whatever the scope. Raises InputError: the table has no files."""
        if not self.scope.has_range:
            return self.placed(name)
        table = tables()[name]
        is_parquet = self.suffix(name) == "parquet"
        return whole(self._judged(table) if is_parquet else self._lines(table))

    def placed(self, name: str) -> DataFrame:
        """Return the rows of a table with `dt` and `hour`, if it has such directories.

        Raises InputError: the table has no files.
        """
        if name not in self._rows:
            suffix = self.suffix(name)
            if suffix is None:
                raise InputError(f"no table {name} in {self.directory}")
            table = tables()[name]
            self._rows[name] = self._compacted(table) if suffix == "parquet" else self._exported(table)
        return self._rows[name]

    def keep(self, rows: DataFrame) -> DataFrame:
        """Return rows that are computed once, when they are first used: on disk, or as a table without a plan."""
        if self.is_small:
            return rows.localCheckpoint(eager=False)
        # Spark identifies cached data by its plan, in which directories appear only by name.
        rows.unpersist()
        return rows.persist(StorageLevel.DISK_ONLY)

    def shared(self, name: str, make: Callable[[], DataFrame]) -> DataFrame:
        """Return rows that several jobs use under this name, kept as by `keep`."""
        with self._making:
            if name not in self._shared:
                self._shared[name] = self.keep(self._together(make(), 1))
            return self._shared[name]

    def _together(self, rows: DataFrame, parts: int) -> DataFrame:
        """Return rows of a small input in so few tasks; no query distributes those of one task again."""
        return rows.coalesce(parts) if self.is_small else rows

    def grouped(self, rows: DataFrame, *columns: str) -> DataFrame:
        """Return rows of a large input with those that are equal in these columns in the same task."""
        return rows if self.is_small else rows.repartition(*columns)

    @property
    def at_once(self) -> int:
        """Return how many jobs may use the input at the same time: of large tables each needs all memory."""
        return 2 if self.is_small else 1

    def _compacted(self, table: Table) -> DataFrame:
        rows = self._judged(table)
        if self.scope.has_range and set(PLACE) <= set(rows.columns):
            rows = rows.filter(hours_of(self.scope))
        each = rows.groupBy(REASON).agg(F.count("*").alias("count"), *self._sights(table)).collect()
        good = [found for found in each if found[REASON] is None]
        counted = self._count(table, sum(found["count"] for found in good))
        aside = {found[REASON]: found["count"] for found in each if found[REASON] is not None}
        self.counted[table.name] = dataclasses.replace(counted, aside={**counted.aside, **aside})
        self.seen[table.name] = _seen(good)
        return whole(rows)

    def _judged(self, table: Table) -> DataFrame:
        """Return all rows of a table in Parquet, with `REASON`: only their times are looked at."""
        return self._parquet(table).selectExpr(
            "*", f"IF({_is_impossible(table, TIMES)}, '{IMPOSSIBLE}', NULL) AS {REASON}"
        )

    def _parquet(self, table: Table) -> DataFrame:
        """Return all rows of a table in Parquet."""
        single = self._single(table.name)
        place = single if exists(self.spark, single) else self.directory / table.name
        return self.spark.read.schema(table.schema).parquet(source(place))

    def _count(self, table: Table, rows: int) -> Counted:
        """Return the counts of a table in Parquet that has so many rows."""
        return Counted(rows, self._aside.get(table.name, {}))

    def _exported(self, table: Table) -> DataFrame:
        read = self._lines(table)
        if self.scope.has_range and set(PLACE) <= set(read.columns):
            read = read.filter(hours_of(self.scope))
        read = self._together(read, 1 + (size_of(self.directory / table.name) or 0) // PART_BYTES)
        if self.is_small and table.has_clock:
            # Once for all windows over an object's rows: Spark knows the order of what it keeps.
            read = read.sortWithinPartitions(*table.of_kind("key"), "mono_us")
        read = self.keep(read)
        place = [name for name in PLACE if name in read.columns]
        aside: dict[str, int] = {}
        hours: dict[tuple[str, str], int] = {}
        rows = 0
        each = read.groupBy(REASON, *place).agg(F.count("*").alias("count"), *self._sights(table)).collect()
        self.seen[table.name] = _seen([found for found in each if found[REASON] is None])
        for found in each:
            if found[REASON] is not None:
                aside[found[REASON]] = aside.get(found[REASON], 0) + found["count"]
                continue
            rows += found["count"]
            if len(place) == len(PLACE) and None not in (found["dt"], found["hour"]):
                hours[found["dt"], found["hour"]] = found["count"]
        self.counted[table.name] = Counted(rows, aside, hours)
        kept = self.output / QUARANTINE / table.name
        if aside or exists(self.spark, kept):
            write_all({kept: set_aside(read)}, small=self.is_small)
        return whole(read)

    def _lines(self, table: Table) -> DataFrame:
        """Return the lines of a table in JSON Lines, as `lines` does."""
        return lines(self.spark.read, self.directory / table.name, table)

    def _sights(self, table: Table) -> list[Column]:
        """Return the aggregates of a table that `_seen` needs."""
        wanted = condition_of(self.scope, table)
        made = [F.count_if(wanted).alias("seen")]
        if table.has_clock:
            made += [
                F.min(F.when(wanted, F.col("ts"))).alias("first_ms"),
                F.max(F.when(wanted, F.col("ts"))).alias("last_ms"),
                F.collect_set(F.when(wanted, F.col("node"))).alias("nodes"),
            ]
        return made


def hours_of(scope: Scope) -> Column:
    """Return the condition on `dt` and `hour` of directories that may have rows of the range."""
    hour = F.concat_ws("T", "dt", "hour")
    wanted = F.lit(True)
    if scope.since_ms is not None:
        wanted &= hour >= f"{moment(scope.since_ms) - MARGIN:%Y-%m-%dT%H}"
    if scope.until_ms is not None:
        wanted &= hour <= f"{moment(scope.until_ms) + MARGIN:%Y-%m-%dT%H}"
    return wanted


def condition_of(scope: Scope, table: Table) -> Column:
    """Return the condition on the rows of a table that are asked for."""
    names = {column.name for column in table.columns}
    wanted = F.lit(True)
    if "ts" in names and scope.since_ms is not None:
        wanted &= F.col("ts") >= scope.since_ms
    if "ts" in names and scope.until_ms is not None:
        wanted &= F.col("ts") <= scope.until_ms
    if "vhost" in names and scope.vhost is not None:
        wanted &= F.col("vhost") == scope.vhost
    if scope.queue is not None:
        if "queue" in names:
            wanted &= F.col("queue") == scope.queue
        elif table.name == "latency_hist":
            wanted &= (F.col("scope") == "queue") & (F.col("name") == scope.queue)
        elif table.name == "event":
            # The name of an event is that of its object, which is a queue or not.
            wanted &= F.col("kind").rlike("^(queue|consumer)_") & (F.col("name") == scope.queue)
    return wanted


def _seen(found: Sequence[Row]) -> Seen:
    """Return the sum of rows with the columns of `Input._sights`."""
    rows = sum(row["seen"] for row in found)
    if not rows or "nodes" not in found[0]:
        return Seen(rows)
    some = [row for row in found if row["seen"]]
    return Seen(
        rows,
        min(row["first_ms"] for row in some),
        max(row["last_ms"] for row in some),
        tuple(sorted({node for row in some for node in row["nodes"]})),
    )


def lines(reader: DataFrameReader | DataStreamReader, folder: Location, table: Table) -> DataFrame:
    """Return every line of a table's files, parsed and checked as `parsed` does."""
    # A stream does not detect partition directories by itself if the path has glob characters.
    placed = reader.option("basePath", url(folder))
    text = placed.text(source(folder), lineSep="\n", pathGlobFilter="*.jsonl")
    return parsed(text.select("*", F.col("_metadata.file_path").alias(FILE)), table)


def parsed(text: DataFrame, table: Table) -> DataFrame:
    """Return every line of a table, parsed and checked: `value` of `text`, which has the name of its file as `FILE`.

    Lines are read as text and parsed by an expression, not by Spark's JSON reader: that one reads only the columns that
    a query uses, and accepts or rejects a line by those.

    Returns:
        The table's columns, `dt` and `hour` if there are such directories, and `REASON`: the reason why the line is
        invalid, null if it is valid. An invalid line has `LINE`, at most `LONGEST` characters of it, and `FILE`.
    """
    place = [name for name in PLACE if name in text.columns]
    row = f"from_json({{0}}, '{table.read_schema.simpleString()}', {JSON_OPTIONS})"
    is_short = f"octet_length(value) < {LONGEST}"
    # A line without any JSON has no row, not even a corrupt one. inline: stops uses of the columns from being pushed
    # down to the line, where each would parse it again. Without compiled code a field of a struct takes several times
    # as long as a column. explode: the same for the reason, which three columns use: otherwise Spark plans its
    # comparisons for minutes.
    return query(
        f"""
        WITH read AS (
            SELECT {", ".join((FILE, *place))}, IF({is_short}, value, substring(value, 1, {LONGEST})) AS {LINE},
                inline(array(coalesce({row.format(f"IF({is_short}, value, NULL)")}, {row.format("'?'")})))
            FROM {{text}}
        ),
        judged AS (SELECT *, explode(array({_reason(table)})) AS {REASON} FROM read)
        SELECT {", ".join((*table.schema.names, *place, REASON))},
            {each(f"IF({REASON} IS NOT NULL, {{0}}, NULL) AS {{0}}", (FILE, LINE))}
        FROM judged
        """,
        text=text,
    )


def whole(read: DataFrame) -> DataFrame:
    """Return the valid rows of the result of `lines`, with `dt` and `hour` if present."""
    return read.filter(F.col(REASON).isNull()).drop(REASON, FILE, LINE)


def set_aside(read: DataFrame) -> DataFrame:
    """Return the invalid lines of the result of `lines`, with the reasons."""
    aside = read.filter(F.col(REASON).isNotNull())
    return aside.select(*[F.col(name).alias(name.removeprefix("_")) for name in (REASON, FILE, LINE)])


def _reason(table: Table) -> str:
    missing = " OR ".join(f"{name} IS NULL" for name in table.required)
    return (
        f"CASE WHEN {CORRUPT} IS NOT NULL OR {LINE} RLIKE r'{TWO}' THEN '{UNREADABLE}' "
        f"WHEN v != {VERSION} THEN '{OTHER_VERSION}' WHEN {missing} THEN '{INCOMPLETE}' "
        f"WHEN {_is_impossible(table, table.numbers, buckets=True)} THEN '{IMPOSSIBLE}' END"
    )


def _is_impossible(table: Table, names: Iterable[str], *, buckets: bool = False) -> str:
    """Return whether one of these columns has a value that no broker writes: memory would not hold what follows."""
    alike: dict[tuple[str, int, int], list[str]] = {}
    for column in table.columns:
        if column.name in names:
            # Numbers of one type are compared as they are, together: an expression for each takes longer.
            bounds = TIMES.get(column.name, (-GREATEST, GREATEST))
            alike.setdefault((str(column.type), *bounds), []).append(column.name)
    found = ["false"]
    for (_, low, high), columns in alike.items():
        some = [
            f"{function}({', '.join(columns)})" if columns[1:] else columns[0]
            for function in ("least", "greatest")
        ]
        found.append(f"coalesce({some[0]} < {low} OR {some[1]} > {high}, false)")
    if buckets and "b" in table.schema.names:
        found.append(f"exists(b, bucket -> {is_no_bucket('bucket')})")
    return f"({' OR '.join(found)})"


def clocks_of(data: Input) -> DataFrame:
    """Return the clocks (`series.clocks`) of the rows of queues and nodes, which several jobs use."""
    names = [name for name in ("queue_interval", "node_interval") if data.has(name)]
    return data.shared("clocks", lambda: clocks(*map(data.table, names)))
