"""Jobs and their results: tables in Parquet, and a page made from them."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
from pyarrow import dataset
from pyspark.sql import DataFrame

from leveret.analytics.figures import Chart
from leveret.analytics.locations import Location
from leveret.analytics.reading import Input
from leveret.analytics.writing import write_all

MOST_ROWS: Final = 10_000
"""Maximum rows of a table fetched for a page; a figure with more points shows no more detail."""
Row = Mapping[str, Any]
Order = str | Callable[[Row], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """A part of a page: an optional paragraph, figure and table, in this order."""

    title: str  # its heading
    text: str  # the paragraph; plain text
    figure: Chart | None = None  # its chart
    name: str = ""  # its address in the page, and the name under which a reader saves the chart
    columns: str = ""  # names of the columns to show, in order, with spaces
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
    """The tables written by a job, by name, as input of its page."""

    def __init__(self, tables: Mapping[str, dataset.Dataset]) -> None:
        self._tables = tables

    def has(self, name: str) -> bool:
        """Return whether the table exists."""
        return name in self._tables

    def count(self, name: str, where: dataset.Expression | None = None) -> int:
        """Return the number of rows of a table that meet a condition."""
        return int(self._tables[name].count_rows(filter=where))

    def column(self, name: str, column: str) -> list[Any]:
        """Return all values of a column."""
        return list(self._tables[name].to_table(columns=[column])[column].to_pylist())

    def rows(
        self,
        name: str,  # name of the table
        *order: Order,  # what to order by: columns, descending with `-` before them; null is the least
        where: dataset.Expression | None = None,  # condition on the rows
        most: int = MOST_ROWS,  # greatest number of rows
    ) -> list[Row]:
        """Return the first rows of a table; times as text, in UTC."""
        found: list[Row] = self._tables[name].to_table(filter=where).to_pylist()
        for each in reversed(order):
            descends = isinstance(each, str) and each.startswith("-")
            by = itemgetter(each.removeprefix("-")) if isinstance(each, str) else each
            found.sort(key=lambda row, by=by: ((value := by(row)) is not None, value), reverse=descends)  # type: ignore[misc]
        return [{key: _shown(value) for key, value in row.items()} for row in found[:most]]


def _shown(value: Any) -> Any:
    return f"{value:%Y-%m-%d %H:%M:%S}" if isinstance(value, datetime) else value


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


def texts(values: Iterable[str]) -> pa.Array:
    """Return texts as a condition takes them, which may be none."""
    return pa.array(list(values), pa.string())


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
    places = {(output / name).resolve(): table for name, table in made.items()}
    written = write_all(places, small=data.is_small)
    report_progress("drawing")
    return job.describe(Written(dict(zip(made, written, strict=True))))
