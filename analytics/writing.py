"""Writes the tables of a job at the same time (driver: threads, files).

Most queries of a job are small, and each waits for its own planning: together they use all cores. What several of them
use is computed once, as Spark has the others wait for it.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pyspark.sql import DataFrame

AT_ONCE: Final = 4  # number of tables that are computed at the same time


def write_all(tables: Mapping[str, DataFrame]) -> None:
    """Write tables as Parquet to their URLs, in place of what is there. All have ended when an error is raised."""
    with ThreadPoolExecutor(min(AT_ONCE, max(1, len(tables)))) as pool:
        writing = [
            pool.submit(table.write.mode("overwrite").parquet, place) for place, table in tables.items()
        ]
    for each in writing:
        each.result()
