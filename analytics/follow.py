"""Incremental reading while the broker writes (driver: waits): only new files are read in each round.

A Spark stream reads each closed file of a table once, and stores its rows as Parquet for the jobs. The stream's
checkpoint records the files read, so a stop neither loses nor repeats rows: a batch that is repeated replaces its
earlier output.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from leveret.analytics.objective import DEFAULT, Objective
from leveret.analytics.reading import ASIDE, QUARANTINE, Input, lines, set_aside, source, url, whole
from leveret.analytics.schemas import tables
from leveret.analytics.scope import EVERYTHING, Scope

FOLLOWED: Final = "followed"
"""Directory of the output for rows, lines that were set aside, and checkpoints."""
FILES_AT_ONCE: Final = 200


class Follower:
    """The tables under a growing directory, as far as they have been read.

    Args:
        spark: the session.
        directory: the directory of the export.
        output: receives the rows and checkpoints.
        scope: the rows to give to jobs; all are read.
        objective: the latency that users want.
    """

    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        output: Path,
        scope: Scope = EVERYTHING,
        objective: Objective = DEFAULT,
    ) -> None:
        self._spark = spark
        self._scope = scope
        self._objective = objective
        self._source = Input(spark, directory, output)
        self._folder = output.resolve() / FOLLOWED

    def catch_up(self, names: Iterable[str]) -> Input:
        """Read new files of these tables, as far as they exist; return all rows so far.

        Raises:
            StreamingQueryException: Spark could not read or write something.
        """
        aside = {}
        for name in names:
            if self._source.suffix(name) == "jsonl":
                self._read(name)
                kept = self._spark.read.schema(ASIDE).parquet(source(self._folder / QUARANTINE / name))
                aside[name] = {
                    row["reason"]: row["count"] for row in kept.groupBy("reason").count().collect()
                }
        return Input(self._spark, self._folder / "rows", self._folder, aside, self._scope, self._objective)

    def _read(self, name: str) -> None:
        table = tables()[name]
        reader = self._spark.readStream.option("maxFilesPerTrigger", FILES_AT_ONCE)
        stream = lines(reader, self._source.directory / name, table)
        kept, aside = self._folder / "rows" / name, self._folder / QUARANTINE / name

        def keep(batch: DataFrame, number: int) -> None:
            batch.persist(StorageLevel.DISK_ONLY)  # parsed once, written twice
            rows = whole(batch).select(*table.schema.names)
            rows.write.mode("overwrite").parquet(url(kept / f"batch={number}"))
            set_aside(batch).write.mode("overwrite").parquet(url(aside / f"batch={number}"))
            batch.unpersist()

        query = (
            stream.writeStream.foreachBatch(keep)
            .option("checkpointLocation", url(self._folder / "checkpoints" / name))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
