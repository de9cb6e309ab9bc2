"""Writes the tables of a job at the same time, and reads them for its page (driver: threads, files).

Most queries of a job are small, and each waits for its own planning: together they use all cores. What several of them
use is computed once, as Spark has the others wait for it. A table of a small input comes to this process whole, and is
written here; any other is written by Spark. Pages ask Spark nothing.
"""

import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from pyarrow import dataset, parquet
from pyspark.sql import DataFrame

from leveret.analytics.locations import Location, source, url

AT_ONCE: Final = 4  # number of tables that are computed at the same time


def write_all(tables: Mapping[Location, DataFrame], *, small: bool) -> list[dataset.Dataset]:
    """Write tables as Parquet to directories, in place of what is there; return what was written, in this order.

    `small`: they have few rows. All have ended when an error is raised.
    """
    with ThreadPoolExecutor(min(AT_ONCE, max(1, len(tables)))) as pool:
        writing = [pool.submit(_write, table, place, small) for place, table in tables.items()]
    return [each.result() for each in writing]


def _write(table: DataFrame, place: Location, small: bool) -> dataset.Dataset:
    if small and isinstance(place, Path):
        return _write_here(table, place)
    table.write.mode("overwrite").parquet(url(place))
    if isinstance(place, Path):
        return dataset.dataset(place, format="parquet")
    return dataset.dataset(table.sparkSession.read.schema(table.schema).parquet(source(place)).toArrow())


def _write_here(table: DataFrame, place: Path) -> dataset.Dataset:
    rows = table.toArrow()
    unfinished = place.with_name(f"_{place.name}")  # readers skip what begins so
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    parquet.write_table(rows, unfinished / "part-00000.parquet")
    (unfinished / "_SUCCESS").touch()
    shutil.rmtree(place, ignore_errors=True)
    unfinished.rename(place)
    return dataset.dataset(rows)
