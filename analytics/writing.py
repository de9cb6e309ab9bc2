"""Writes the tables of a job at the same time (driver: threads, files).

Most queries of a job are small, and each waits for its own planning: together they use all cores. What several of them
use is computed once, as Spark has the others wait for it.
"""

import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.utils import is_remote

from leveret.analytics.locations import Location, parse

AT_ONCE: Final = 4
"""Number of tables that are computed at the same time."""


def write_all(tables: Mapping[str, DataFrame]) -> None:
    """Write tables as Parquet to their URLs, in place of what is there. All have ended when an error is raised."""
    with ThreadPoolExecutor(min(AT_ONCE, max(1, len(tables)))) as pool:
        writing = [pool.submit(_write, table, place) for place, table in tables.items()]
    for each in writing:
        each.result()


def _write(table: DataFrame, place: str) -> None:
    if is_remote():
        _write_here(table, parse(place))
    else:
        table.write.mode("overwrite").parquet(place)


def _write_here(table: DataFrame, folder: Location) -> None:
    """Write a table of an engine that is not Spark, as Spark does: in order, also one without rows, all or nothing."""
    import pyarrow as pa  # noqa: PLC0415 - only such engines need it
    import pyarrow.parquet as pq  # noqa: PLC0415

    assert isinstance(folder, Path)  # noqa: S101 - such engines have no other outputs
    rows = table.toArrow()
    unfinished = folder.with_name(f".{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    may_be_null = pa.schema([field.with_nullable(True) for field in rows.schema])
    pq.write_table(rows.cast(may_be_null), unfinished / "part-00000.parquet", compression="zstd")
    (unfinished / "_SUCCESS").touch()
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
