"""Jobs and their results: tables in Parquet, and a page made from them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Row, SparkSession, functions as F
from pyspark.sql.types import StructType, TimestampType

from leveret.analytics.figures import Chart
from leveret.analytics.locations import Location, source, url
from leveret.analytics.reading import Input
from leveret.analytics.writing import write_all

MOST_ROWS: Final = 10_000
"""Maximum rows of a table fetched for a page; a figure with more points shows no more detail."""


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """A part of a page: an optional paragraph, figure and table, in this order."""

    title: str  # its heading
    text: str  # the paragraph; plain text
    figure: Chart | None = None  # its chart
    name: str = ""  # its address in the page, and the name under which a reader saves the chart
    columns: Sequence[str] = ()  # names of the columns to show, in order
    rows: Sequence[Row] = ()  # rows with these columns
    terms: Mapping[str, str] = dataclasses.field(default_factory=dict)  # meanings of columns, by their names


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """A report: its subject, a paragraph about the input, the findings, and the evidence."""

    title: str
    lead: str
    facts: Sequence[str]
    sections: Sequence[Section]


class Written:
    """The tables written by a job, as input of its page.

    Args:
        spark: the session.
        directory: holds a directory for each table.
        schemas: columns of each table, by its name; the directory may have others from earlier runs.
    """

    def __init__(self, spark: SparkSession, directory: Location, schemas: Mapping[str, StructType]) -> None:
        self._spark = spark
        self._directory = directory
        self._schemas = schemas
        self._tables: dict[str, DataFrame] = {}

    def has(self, name: str) -> bool:
        """Return whether the table exists."""
        return name in self._schemas

    def table(self, name: str) -> DataFrame:
        """Return a table."""
        if name not in self._tables:
            # Without the schema, each read would start with a Spark job that finds it in the files.
            reader = self._spark.read.schema(self._schemas[name])
            self._tables[name] = reader.parquet(source((self._directory / name).resolve()))
        return self._tables[name]

    def count(self, name: str, where: Column) -> int:
        """Return the number of rows of a table that meet a condition."""
        return self.table(name).filter(where).count()

    def rows(self, name: str, *order: str | Column, where: Column | None = None) -> list[Row]:
        """Return the first `MOST_ROWS` rows of a table; times as text, in UTC.

        `name`: name of the table; `order`: columns to order by; `where`: condition on the rows.
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
    """One kind of analysis."""

    name: str  # its name on the command line and in the output
    needs: tuple[str, ...]  # required tables
    compute: Callable[[Input], Mapping[str, DataFrame]]  # returns the result's tables, by name
    describe: Callable[[Written], Page]  # returns the page from the tables that were written
    uses: tuple[str, ...] = ()  # optional tables

    @property
    def tables(self) -> tuple[str, ...]:
        """Return all tables that it may read."""
        return (*self.needs, *self.uses)


def number_of(count: int, one: str, more: str = "") -> str:
    """Return a number of things in words of the right grammatical number: `1 queue`, `1,200 queues`.

    `count`: the number; `one`: the words after 1, with a verb if that changes too (`queue is hot`); `more`: the words
    after any other number; if empty, `one` with an `s`.
    """
    return f"{count:,} {one if count == 1 else more or f'{one}s'}"


def run(job: Job, data: Input, output: Location, report_progress: Callable[[str], None]) -> Page:
    """Compute a job's tables, write them in place of those of an earlier run, and return its page.

    `output` is the job's own directory, `report_progress` is called with progress messages. Raises
    InputError: the input lacks tables that the job needs.
    """
    for name in job.needs:
        data.table(name)
    made = job.compute(data)
    report_progress(f"computing {', '.join(made)}")
    write_all({url((output / name).resolve()): table for name, table in made.items()})
    report_progress("drawing")
    return job.describe(Written(data.spark, output, {name: table.schema for name, table in made.items()}))
