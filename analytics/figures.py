"""Descriptions of charts, without a drawing library. `plots` makes those of pages, `bench.drawing` SVG for print."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
"""The Okabe-Ito palette, which is distinguishable with colour vision deficiency."""

DASHED: Final = 4
"""Number of lines in a figure after which they are dashed: more colours are hard to tell from each other."""


@dataclasses.dataclass(frozen=True, slots=True)
class Series:
    """Points with one label. `low` and `high` are the ends of error bars, or None; x may be times (`at`)."""

    label: str
    x: Sequence[Any]
    y: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    marker: str = "o"
    joined: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Panel:
    """A pair of axes. `categories`: x values are categories at equal distances; `rule`: a reference level.

    `ticks`: labels of x values.
    """

    x_label: str
    y_label: str
    series: Sequence[Series]
    categories: bool = False
    zero: bool = False
    log_x: bool = False
    log_y: bool = False
    rule: float | None = None
    ticks: Mapping[float, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Panels:
    """Panels side by side."""

    panels: Sequence[Panel]


@dataclasses.dataclass(frozen=True, slots=True)
class Bars:
    """A horizontal bar for each name, the first on top."""

    x_label: str
    named: Sequence[tuple[str, float]]


@dataclasses.dataclass(frozen=True, slots=True)
class Heat:
    """A heat map of counts, with a column for each time."""

    y_label: str  # label of the logarithmic axis
    # time as text, lower end (above 0), upper end, count (above 0); no two overlap, at least one
    cells: Sequence[tuple[str, float, float, float]]


Chart = Panels | Bars | Heat


def at(text: str) -> datetime:
    """Parse a time from a table's row."""
    return datetime.fromisoformat(text)  # without a zone, as all of a figure's times are UTC


def series_of(label: str, rows: Sequence[Any], column: str) -> Series:
    """Return a column of rows that have a `time` as a series over time."""
    return Series(label, [at(row["time"]) for row in rows], [row[column] for row in rows], marker=".")


def bars_of(label: str, rows: Sequence[Any], column: str, *names: str) -> Bars:
    """Return a bar for a column of each row, which is called by these columns."""
    return Bars(label, [(" ".join(row[name] for name in names), row[column]) for row in rows])


def with_gaps(rows: Sequence[Any]) -> list[Any]:
    """Return rows in the order of their `time`, with an empty one where two are further apart than others.

    A line has a gap there, instead of a bridge over a time in which nothing ran.
    """
    times = [at(row["time"]) for row in rows]
    apart = [after - before for before, after in itertools.pairwise(times)]
    usual = min(apart, default=timedelta())
    made: list[Any] = []
    for row, before, distance in zip(rows, times, [*apart, usual], strict=True):
        made.append(row)
        if distance > usual:
            made.append({**dict.fromkeys(row), "time": f"{before + usual}"})
    return made


def panels(*drawn: Panel) -> Panels:
    """Return a chart of panels side by side."""
    return Panels(drawn)


def plain(text: str) -> str:
    """Return a user-defined name in drawable form: without control characters, at most 60 characters."""
    seen = "".join(character if character.isprintable() else "\ufffd" for character in text)
    return seen if len(seen) <= 60 else f"{seen[:57]}..."  # noqa: PLR2004 - said above
