"""What a job is, and what becomes of its result: tables in Parquet, and a page made of what was written."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, Row, SparkSession, functions as F
from pyspark.sql.types import TimestampType

from leveret.analytics.reading import Input, source, url

MOST_ROWS: Final = 10_000
"""How many rows of a table are fetched for a page; a figure with more points shows nothing more."""


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """A part of a page: a paragraph, then a figure, then a table, what there is of them.

    Args:
        title: its heading.
        text: the paragraph; plain text.
        figure: SVG.
        name: of the figure's own file, without suffix; empty for a figure that is only in the page.
        columns: names of the columns to show, in order.
        rows: rows that have them.

    """

    title: str
    text: str
    figure: str | None = None
    name: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Row] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """A report: what it is about, one paragraph of what was looked at, the findings, and the evidence."""

    title: str
    lead: str
    facts: Sequence[str]
    sections: Sequence[Section]


class Written:
    """The tables that a job has written, to be drawn from.

    Args:
        spark: the session.
        directory: holds a directory for each table.
        names: of the tables; a directory may have others, of earlier runs.

    """

    def __init__(self, spark: SparkSession, directory: Path, names: Collection[str]) -> None:
        self._spark = spark
        self._directory = directory
        self._names = names

    def has(self, name: str) -> bool:
        """Say whether there is such a table."""
        return name in self._names

    def table(self, name: str) -> DataFrame:
        """Return a table."""
        return self._spark.read.parquet(source((self._directory / name).resolve()))

    def count(self, name: str, where: Column) -> int:
        """Return how many rows of a table there are of which something holds."""
        return self.table(name).filter(where).count()

    def rows(self, name: str, *order: str | Column, where: Column | None = None) -> list[Row]:
        """Return the first `MOST_ROWS` rows of a table; times as text, in UTC.

        Args:
            name: of the table.
            order: columns to order by.
            where: only rows of which this holds.

        """
        table = self.table(name)
        if where is not None:
            table = table.filter(where)
        shown: list[Column] = [
            F.date_format(field.name, "yyyy-MM-dd HH:mm:ss").alias(field.name)
            if isinstance(field.dataType, TimestampType)
            else F.col(field.name)
            for field in table.schema.fields
        ]
        if order:
            table = table.orderBy(*order)
        return table.limit(MOST_ROWS).select(*shown).collect()


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """One kind of analysis.

    Args:
        name: on the command line, and of its directory in the output.
        summary: half a sentence for the help.
        needs: tables without which there is nothing to do.
        compute: makes the result's tables, by name.
        describe: makes the page of the tables that were written.
        uses: tables that it takes into account where they are.

    """

    name: str
    summary: str
    needs: tuple[str, ...]
    compute: Callable[[Input], Mapping[str, DataFrame]]
    describe: Callable[[Written], Page]
    uses: tuple[str, ...] = ()


def number_of(count: int, one: str, more: str = "") -> str:
    """Return how many of something there are, in words that go with the number: `1 queue`, `1,200 queues`.

    Args:
        count: how many.
        one: what follows 1, with a verb where that changes too (`queue is hot`).
        more: what follows any other number; if empty, `one` with an `s`.

    """
    return f"{count:,} {one if count == 1 else more or f'{one}s'}"


def run(job: Job, data: Input, output: Path, told: Callable[[str], None]) -> Page:
    """Compute a job's tables, write them in place of those of an earlier run, and describe them.

    Args:
        job: what to do.
        data: where from.
        output: the job's own directory.
        told: is called with what is being done.

    Raises:
        InputError: the input has not what the job needs.

    """
    for name in job.needs:
        told(f"reading {name}")
        data.table(name)
    try:
        made = job.compute(data)
        for name, table in made.items():
            told(f"computing {name}")
            # Results are small and ordered; one file keeps them so.
            table.coalesce(1).write.mode("overwrite").parquet(url((output / name).resolve()))
    finally:
        data.release()
    told("drawing")
    return job.describe(Written(data.spark, output, made.keys()))
