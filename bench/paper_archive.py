"""The records of finished sweeps that the repository keeps: Parquet files, one for each table, and the plan.

Written and read by Spark, in this process, so that the jobs of `leveret analyze` and the page have the same rows.
"""

import shutil
from pathlib import Path

from pyspark.sql import SparkSession

from bench.paper_plan import Plan
from bench.paper_records import PLAN, TABLES, Records, RecordsError
from leveret.analytics.schemas import tables

ARCHIVE = Path(__file__).resolve().parent / "records"
LIMIT = 20 * 1024 * 1024
"""Bytes that all records in the repository may have."""


def pack(spark: SparkSession, records: Records, target: Path) -> None:
    """Write a sweep's records as Parquet to a directory, in place of what is there.

    Raises:
        RecordsError: there is no sweep, or it has no run.
    """
    records.plan()
    if not records.done(records.plan()):
        message = f"{records.directory} holds no run"
        raise RecordsError(message)
    target.mkdir(parents=True, exist_ok=True)
    for table in TABLES.values():
        folder = target / f".{table}"
        (
            spark.read.schema(tables()[table].schema)
            .option("recursiveFileLookup", "true")
            .json(str(records.directory / table))
            .coalesce(1)
            .sortWithinPartitions("run_id", *(("t_s",) if table == "bench_sample" else ()))
            .write.mode("overwrite")
            .option("compression", "zstd")
            .parquet(str(folder))
        )
        (part,) = folder.glob("part-*.parquet")
        part.replace(target / f"{table}.parquet")
        shutil.rmtree(folder)
    shutil.copyfile(records.directory / PLAN, target / PLAN)


def plan_of(directory: Path) -> Plan:
    """Return the plan of a packed sweep.

    Raises:
        RecordsError: there is none, or it is invalid.
    """
    return Records(directory).plan()
