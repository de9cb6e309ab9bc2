"""Complete rows of the export's tables for tests: given values, and zeros otherwise."""

import json
import random
import re
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from leveret.analytics import report
from leveret.analytics.job import run
from leveret.analytics.objective import DEFAULT
from leveret.analytics.schemas import tables
from leveret.analytics.scope import EVERYTHING
from leveret.analytics.series import bin_seconds

TABLES = json.loads((Path(__file__).parents[2] / "analytics" / "tables.json").read_text(encoding="utf-8"))
START = 1_795_245_600_000
"""2026-11-21 07:20 UTC, ms."""
EMPTY = {"integer": 0, "long": 0, "double": 0.0, "string": "", "boolean": False}


def row(table, seconds=0.0, **values):
    """Return a row of a table, so many seconds after the start."""
    made = {}
    for column in TABLES[table]:
        kind = column["type"]
        made[column["name"]] = (
            EMPTY[kind] if isinstance(kind, str) else {"array": [], "map": {}}[kind["type"]]
        )
    made["v"] = 1
    if "boot_id" in made:
        made |= {
            "ts": START + round(seconds * 1000),
            "mono_us": round(seconds * 1_000_000),
            "node": "here",
            "boot_id": "boot",
        }
    unknown = values.keys() - made.keys()
    assert not unknown, unknown
    return made | values


def index(value):
    """Return the bucket of a value in the scheme ll5, by its definition."""
    bits = value.bit_length()
    return value if value < 32 else ((bits - 5) << 5) + (value >> (bits - 6))


def histogram(values):
    """Return the columns of a `latency_hist` row for these samples."""
    counts = {}
    for value in values:
        counts[index(value)] = counts.get(index(value), 0) + 1
    return {
        "scheme": "ll5",
        "count": len(values),
        "sum_us": sum(values),
        "min_us": min(values),
        "max_us": max(values),
        "b": [{"i": bucket, "c": count} for bucket, count in sorted(counts.items())],
    }


def frame(spark, rows, schema):
    """Return a table of rows. By Arrow they are in Spark's Java; rows of Python would be a process of each query."""
    return spark.createDataFrame(pa.Table.from_pylist(rows, to_arrow_schema(schema, timezone="UTC")), schema)


def table(folder):
    """Return the columns and the rows of a table, in the order of its files."""
    files = sorted(folder.glob("*.parquet"))
    found = pa.concat_tables(map(parquet.read_table, files))
    names = [(field.name, field.type) for field in found.schema]
    return names, [tuple(values.values()) for values in found.to_pylist()]


def is_same(one, other):
    """Return whether two values are equal; sums of floats were made in another order."""
    if isinstance(one, float) and isinstance(other, float):
        return one == pytest.approx(other, rel=1e-9, abs=1e-12, nan_ok=True)
    return one == other


class Made:
    """An input of tables that were never written, so nothing is parsed, and any scope may have one.

    Args:
        spark: the session.
        rows: lists of rows, by table; or tables.

    """

    directory = Path("nowhere")
    scope = EVERYTHING
    objective = DEFAULT
    is_folded = False
    is_small = True

    def __init__(self, spark, rows):
        self.spark = spark
        self._shared = {}
        self._tables = {
            name: frame(spark, made, tables()[name].schema) if isinstance(made, list) else made
            for name, made in rows.items()
        }

    def has(self, name):
        return name in self._tables

    def table(self, name):
        return self._tables[name]

    whole = successive = table

    def bin_seconds(self, name):
        first, last = self.table(name).agg(F.min("ts"), F.max("ts")).first()
        return bin_seconds(((last or 0) - (first or 0)) / 1000)

    def keep(self, rows):
        """Return the rows as a table without a plan, as a small input does: planning takes longer than they do."""
        return rows.localCheckpoint(eager=False)

    def grouped(self, rows, *_columns):
        return rows

    def shared(self, name, make):
        """Return rows that are made once, kept as by `keep`."""
        if name not in self._shared:
            self._shared[name] = self.keep(make())
        return self._shared[name]

    def release(self):
        self._shared.clear()


def quiet(_text):
    """Discard the description of a job."""


def drawn(page):
    """Return a page as displayed: sums of floats differ in digits that are not shown, but that tables sort by."""
    text = report.page(page, report.Made("", datetime.fromtimestamp(0, UTC)), {})
    return re.sub(r' data-sort="[^"]*"', "", text)


def run_twice(job, rows, data, folder):
    """Run a job, and again on the same rows shuffled into several files; both results must be equal, in the same order.

    Args:
        job: the job.
        rows: lists of rows, by table.
        data: the fixture that writes them.
        folder: for the results; those of the second run replace the first ones.

    Returns:
        The page.

    """
    chance = random.Random(1)
    made = data({name: chance.sample(each, len(each)) for name, each in rows.items()}, files=3)
    page = run(job, Made(made.spark, rows), folder, quiet)
    first = {path.name: table(path) for path in folder.iterdir()}

    assert drawn(page) == drawn(run(job, made, folder, quiet))
    for name, (columns, expected) in first.items():
        again = table(folder / name)
        assert (columns, len(expected)) == (again[0], len(again[1])), name
        for one, other in zip(expected, again[1], strict=True):
            assert all(map(is_same, one, other)), (name, one, other)
    return page
