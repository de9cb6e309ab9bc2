"""Incremental reading while the broker writes (driver: waits): each round costs what the new rows cost.

A Spark stream reads each closed file of a table once, or each row of a broker's stream. It stores rows as Parquet for
the jobs, in a directory for each batch. Its checkpoint records what was read, so a stop neither loses nor repeats rows:
a batch that is repeated replaces its earlier output.

After some batches, all are folded to one directory (`folding`), which keeps what the jobs read bounded, however long
the history. A directory counts once Spark has finished it (`_SUCCESS`), and the newest folded one takes the place of
all that it was made from, which are removed then: a kill at any moment leaves all rows in place, once.
"""

import dataclasses
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from pyspark import StorageLevel
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.types import StructType

from leveret.analytics.folding import fold
from leveret.analytics.locations import Location, is_broker, source, url
from leveret.analytics.objective import DEFAULT, Objective
from leveret.analytics.reading import (
    ASIDE,
    FILE,
    QUARANTINE,
    Counted,
    Input,
    InputError,
    lines,
    parsed,
    set_aside,
    whole,
)
from leveret.analytics.schemas import Table, tables
from leveret.analytics.scope import EVERYTHING, Scope

FOLLOWED: Final = "followed"  # directory of the output for rows, lines that were set aside, and checkpoints
FILES_AT_ONCE: Final = 200
TELEMETRY: Final = "leveret.telemetry"  # stream of a broker with the rows of its export
SLOW: Final = "Python worker failed to connect back"  # error of Spark's on a busy machine, after ten seconds
BATCHES: Final = 8  # number of batches from which they are folded
DONE: Final = "_SUCCESS"  # file that Spark writes last
_BATCH: Final = re.compile(r"batch=(\d+)")
_FOLDED: Final = re.compile(r"folded-(\d+)-(\d+)")


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """The directories with all rows of a stream so far."""

    folded: Path | None  # the directory of folded rows; None before the first
    through: int  # number of the last batch that is in it; -1 for none
    rows: int  # number of rows that were folded to it
    batches: Mapping[int, Path]  # directories of later batches, by number

    @property
    def folders(self) -> list[Path]:
        """Return all directories."""
        return [*([] if self.folded is None else [self.folded]), *self.batches.values()]


def stored(folder: Path) -> Stored:
    """Find the directories with all rows below a table's; what is unfinished or replaced does not count."""
    found = [path for path in folder.glob("*") if (path / DONE).exists()]
    folded = [(int(name[1]), int(name[2]), path) for path in found if (name := _FOLDED.fullmatch(path.name))]
    through, rows, newest = max(folded, default=(-1, 0, None))
    numbered = {int(name[1]): path for path in found if (name := _BATCH.fullmatch(path.name))}
    later = {number: numbered[number] for number in sorted(numbered) if number > through}
    return Stored(newest, through, rows, later)


def replace(
    spark: SparkSession, folder: Path, schema: StructType, folding: Callable[[DataFrame], DataFrame]
) -> None:
    """Fold the batches below a table's directory, with what was folded before, and remove what is replaced."""
    known = stored(folder)
    if not known.batches:
        return
    through = max(known.batches)
    new = spark.read.schema(schema).parquet(*map(source, known.batches.values())).count()
    rows = spark.read.schema(schema).parquet(*map(source, known.folders))
    target = folder / f"folded-{through}-{known.rows + new}"
    folding(rows).write.mode("overwrite").parquet(url(target))
    remove_replaced(folder)


def remove_replaced(folder: Path) -> None:
    """Remove directories whose rows are in a newer one, and folded ones that were not finished."""
    known = stored(folder)
    for path in folder.glob("*"):
        name = _BATCH.fullmatch(path.name)
        is_old = name is not None and int(name[1]) <= known.through
        if is_old or (_FOLDED.fullmatch(path.name) and path != known.folded):
            shutil.rmtree(path)


class Followed(Input):
    """The rows of a follower so far, as input of jobs."""

    is_folded = True

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,  # the follower's directory
        folders: Mapping[str, Sequence[Path]],  # the directories with the rows of each table
        read: Mapping[str, int],  # number of rows that were read of each table
        aside: Mapping[str, Mapping[str, int]],  # number of lines set aside, by table and reason
        scope: Scope = EVERYTHING,  # the rows to give to jobs
        objective: Objective = DEFAULT,  # the latency that users want
    ) -> None:
        super().__init__(spark, folder, folder, aside, scope, objective)
        self._folders = folders
        self._read = read

    def suffix(self, name: str) -> str | None:
        """Return the format of a table's files, if there are any."""
        return "parquet" if self._folders.get(name) else None

    def _parquet(self, table: Table) -> DataFrame:
        return self.spark.read.schema(table.schema).parquet(*map(source, self._folders[table.name]))

    def _count(self, table: Table, rows: int) -> Counted:
        return Counted(self._read.get(table.name, rows), self._aside.get(table.name, {}))


class Follower:
    """The tables under a growing directory, as far as they have been read."""

    def __init__(
        self,
        spark: SparkSession,
        directory: Location,  # the directory of the export
        output: Path,  # receives the rows and checkpoints
        scope: Scope = EVERYTHING,  # the rows to give to jobs; all are read
        objective: Objective = DEFAULT,  # the latency that users want
        batches: int = BATCHES,  # number of batches from which they are folded
    ) -> None:
        self._spark = spark
        self._scope = scope
        self._objective = objective
        self._batches = batches
        self._source = Input(spark, directory, output)
        self._is_stream = is_broker(directory)
        # Retention is no error: counters continue, and files are removed, too.
        self._options = {"uri": str(directory), "stream": TELEMETRY, "startingOffset": "earliest"}
        self._options |= {"body_format": "text", "failOnDataLoss": "false"}
        self._folder = output.resolve() / FOLLOWED

    def catch_up(self, names: Iterable[str]) -> Followed:
        """Read new rows of these tables, as far as they exist; return all rows so far, old ones folded.

        Raises InputError: the stream cannot be read now. Raises StreamingQueryException: Spark could not read or write
        something.
        """
        folders: dict[str, list[Path]] = {}
        read: dict[str, int] = {}
        aside: dict[str, dict[str, int]] = {}
        if self._is_stream:
            self._check()
            self._run("stream", self._messages(), self._keep_all)
        for name in names:
            if not self._is_stream and self._source.suffix(name) == "jsonl":
                reader = self._spark.readStream.option("maxFilesPerTrigger", FILES_AT_ONCE)
                found = lines(reader, self._source.directory / name, tables()[name])
                self._run(name, found, partial(self._keep, tables()[name]))
            rows, bad = self._folder / "rows" / name, self._folder / QUARANTINE / name
            if not stored(rows).folders:
                continue
            self._fold(tables()[name], rows, bad)
            known = stored(rows)
            folders[name] = known.folders
            read[name] = known.rows
            if known.batches:
                fresh = self._spark.read.schema(tables()[name].schema)
                read[name] += fresh.parquet(*map(source, known.batches.values())).count()
            kept = self._spark.read.schema(ASIDE).parquet(*map(source, stored(bad).folders))
            aside[name] = {row["reason"]: row["count"] for row in kept.groupBy("reason").count().collect()}
        return Followed(self._spark, self._folder, folders, read, aside, self._scope, self._objective)

    def _fold(self, table: Table, rows: Path, bad: Path) -> None:
        for folder in (rows, bad):
            remove_replaced(folder)
        if len(stored(rows).batches) >= self._batches:
            replace(self._spark, rows, table.schema, lambda found: _folded(found, table))
        if len(stored(bad).batches) >= self._batches:
            schema = self._spark.createDataFrame([], ASIDE).schema
            replace(self._spark, bad, schema, lambda found: found.coalesce(1))

    def _run(self, name: str, stream: DataFrame, keep: Callable[[DataFrame, int], None]) -> None:
        """Have batches of what is new in a stream kept; `name` is that of its checkpoint."""
        query = (
            stream.writeStream.foreachBatch(keep)
            .option("checkpointLocation", url(self._folder / "checkpoints" / name))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if SLOW in str(error):
                raise InputError(SLOW) from error
            if self._is_stream:
                self._check()
            raise

    def _keep(self, table: Table, batch: DataFrame, number: int) -> None:
        """Store the parsed lines of a table."""
        kept, aside = self._folder / "rows" / table.name, self._folder / QUARANTINE / table.name
        batch.persist(StorageLevel.DISK_ONLY)  # parsed once, written twice
        whole(batch).select(*table.schema.names).write.mode("overwrite").parquet(
            url(kept / f"batch={number}")
        )
        set_aside(batch).write.mode("overwrite").parquet(url(aside / f"batch={number}"))
        batch.unpersist()

    def _messages(self) -> DataFrame:
        """Return the lines in the stream of a broker, with their tables, and their offsets as names of files."""
        found = self._spark.readStream.format("leveret").options(**self._options).load()
        offset = F.col("offset").cast("string")
        known = found.filter(F.col("properties.type").isin(*tables()))
        return known.select("properties.type", F.col("body").alias("value"), offset.alias(FILE))

    def _keep_all(self, batch: DataFrame, number: int) -> None:
        """Store lines of all tables, also of those that no round has needed yet: the stream is read once."""
        batch.persist(StorageLevel.DISK_ONLY)
        for (name,) in batch.select("type").distinct().collect():
            table = tables()[name]
            self._keep(table, parsed(batch.filter(F.col("type") == name), table), number)
        batch.unpersist()

    def _check(self) -> None:
        """Raise InputError if the stream cannot be read now."""
        from leveret.spark import LeveretDataSource  # noqa: PLC0415 - files need no AMQP

        if obstacle := LeveretDataSource.obstacle(self._options):
            raise InputError(obstacle)
        self._spark.dataSource.register(LeveretDataSource)


def _folded(rows: DataFrame, table: Table) -> DataFrame:
    """Return a table's rows with old ones folded, from its newest row."""
    if not table.has_clock:
        return rows
    newest = rows.agg(F.max("ts").alias("newest")).collect()[0]["newest"]
    return rows if newest is None else fold(rows, table, newest)
