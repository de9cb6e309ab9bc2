"""HTML pages from templates (Jinja2), and the files beside them: styles, scripts, the chart library.

Every name on a page was chosen by a client of the broker. Templates escape all that they are given, charts get it as
JSON in which no markup can end the element, and Plotly's own markup is escaped in `plots`.
"""

import dataclasses
import functools
import importlib.resources
import importlib.util
import math
import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

import jinja2

from leveret.analytics.findings import duration
from leveret.analytics.headings import TABLES, heading, unit_of
from leveret.analytics.job import Page, Section, number_of
from leveret.analytics.plots import Plot, plots
from leveret.analytics.reading import Counted

SHOWN_ROWS: Final = 200  # maximum rows of a table on a page; all of them are in the Parquet next to it
ASSETS: Final = "assets"  # directory of the output for what all pages need, once
INDEX: Final = "index.html"
_LEAST: Final = 1e-4  # number below which four significant digits would need an exponent
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
OWN_ASSETS: Final = ("pages.css", "pages.js", "charts.js")
LIBRARY: Final = "plotly.min.js"
OVERVIEW: Final = "Overview"
ROOT: Final = "../"  # address of the output, relative to the directory of a page


class PagesError(Exception):
    """Raised when the pages cannot be made; the text says what is missing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """Origin of a page."""

    source: str  # the command that made it
    at: datetime  # the time at which it was made
    about: Sequence[str] = ()  # the nodes, their range of time and their rows, in words


@dataclasses.dataclass(frozen=True, slots=True)
class Heading:
    """The heading of a column."""

    title: str
    is_number: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table on a page."""

    text: str  # what it shows
    is_number: bool = False  # whether it is aligned as a number
    sort: float | str | None = None  # number to sort by; None to sort by the text, empty for a missing number
    link: str = ""  # address that the text leads to
    level: str = ""  # class of a coloured label
    line: str = ""  # points of a small chart, which has the text as its description
    is_time: bool = False  # whether it is a time, which stays on one line


def page(shown: Page, made: Made, counted: Mapping[str, Counted], *, has_index: bool = False) -> str:
    """Return a job's page as HTML.

    `shown`: its contents; `made`: its origin; `counted`: counts of the input, by table; `has_index`: the output has an
    overview to link to.
    """
    return render(
        "report.html.j2",
        made,
        title=shown.title,
        lead=shown.lead,
        facts=shown.facts,
        sections=[_section(number, section) for number, section in enumerate(shown.sections, 1)],
        shown=SHOWN_ROWS,
        counted=[_counted(name, found) for name, found in sorted(counted.items())],
        root=ROOT,
        trail=[(OVERVIEW, f"{ROOT}{INDEX}")] if has_index else [],
    )


def index(pages: Sequence[tuple[str, Page]], skipped: Mapping[str, str], made: Made) -> str:
    """Return the index page of others: `pages` (directory, page), in their order; `skipped` jobs, with the reasons."""
    reports = listed(pages)
    return render("index.html.j2", made, title="Reports", reports=reports, skipped=skipped.items())


def listed(pages: Sequence[tuple[str, Page]]) -> list[dict[str, Any]]:
    """Return what `reports.html.j2` shows of pages, as (directory, page)."""
    return [
        {"link": f"{directory}/report.html", "title": each.title, "lead": each.lead, "facts": each.facts}
        for directory, each in pages
    ]


def render(template: str, made: Made, **values: Any) -> str:
    """Return a page made of a template, which gets these values."""
    known = {"made": f"{made.at:%Y-%m-%d %H:%M:%S}", "source": made.source, "about": made.about}
    return _environment().get_template(template).render(**known, **{"root": "", "trail": [], **values})


def write(target: Path, text: str) -> None:
    """Write a file atomically: readers see the old one or the new one."""
    _replace(target, text.encode("utf-8", "replace"))


def write_assets(output: Path) -> None:
    """Write the files that all pages need into a directory of the output, unless they are there.

    Raises PagesError: the chart library is not installed.
    """
    folder = output / ASSETS
    for name, octets in ((name, _own(ASSETS, name).read_bytes()) for name in OWN_ASSETS):
        if not _has(folder / name, octets):
            _replace(folder / name, octets)
    library = chart_library().read_bytes()
    if not _has(folder / LIBRARY, library):
        _replace(folder / LIBRARY, library)


def chart_library() -> Path:
    """Return the path of Plotly.js in the installed package, which is not imported: that takes a second.

    Raises PagesError: it is not installed.
    """
    found = importlib.util.find_spec("plotly")
    if found is None or not found.submodule_search_locations:
        raise PagesError("plotly is not installed: pip install 'leveret[analytics]'")
    return Path(next(iter(found.submodule_search_locations)), "package_data", LIBRARY)


def value(found: Any) -> str:
    """Format a value for people: thousands separators, four significant digits, empty for null."""
    if found is None:
        return ""
    if isinstance(found, bool):
        return "yes" if found else "no"
    if isinstance(found, int):
        return f"{found:,}"
    if isinstance(found, float):
        if 0 < abs(found) < _LEAST:
            return f"{found:.6f}" if abs(found) >= _LEAST / 100 else "about 0"
        return f"{found:,.0f}" if abs(found) >= 1000 else f"{found:.4g}"  # noqa: PLR2004 - from there the decimals say nothing
    return str(found)


def cell(found: Any) -> Cell:
    """Return the cell of a value."""
    if isinstance(found, bool) or not isinstance(found, int | float):
        text = value(found)
        return Cell(text, is_time=_TIME.fullmatch(text) is not None)
    return Cell(value(found), is_number=True, sort=found if math.isfinite(found) else "")


def column(name: str, values: Sequence[Any]) -> list[Cell]:
    """Return the cells of a column: durations with their units, other numbers with equally many decimals."""
    unit = unit_of(name)
    numbers = [each for each in values if isinstance(each, float) and math.isfinite(each)]
    greatest = max(map(abs, numbers), default=0.0)
    decimals = 3 - math.floor(math.log10(greatest)) if greatest >= 1 else 4 if greatest else 0
    return [_of_column(each, unit, max(0, decimals)) for each in values]


def _of_column(found: Any, unit: float | None, decimals: int) -> Cell:
    shown = cell(found)
    if not shown.is_number or not math.isfinite(found):
        return shown
    if unit is not None:
        return dataclasses.replace(shown, text=duration(found * unit))
    # What would be shown as 0 and is not has its own decimals.
    if isinstance(found, float) and (found == 0 or abs(found) >= 10.0**-decimals):
        return dataclasses.replace(shown, text=f"{found:,.{decimals}f}")
    return shown


def headings(columns: Sequence[str], rows: Sequence[Any]) -> list[Heading]:
    """Return the headings of a table's columns: numbers are those that have one in any row."""
    return [
        Heading(heading(name), any(cell(row[name]).is_number for row in rows[:SHOWN_ROWS]))
        for name in columns
    ]


@functools.cache
def _environment() -> jinja2.Environment:
    def source(name: str) -> str:
        return _own("templates", name).read_text(encoding="utf-8")

    # Not the loader of packages, which does not read from the archive that spark-submit is given.
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _own(folder: str, name: str) -> Traversable:
    return importlib.resources.files("leveret.analytics").joinpath(folder, name)


def _has(target: Path, octets: bytes) -> bool:
    try:
        return target.stat().st_size == len(octets) and target.read_bytes() == octets
    except OSError:
        return False


def _replace(target: Path, octets: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    unfinished.write_bytes(octets)
    unfinished.replace(target)


def _section(number: int, section: Section) -> dict[str, Any]:
    shown = section.rows[: SHOWN_ROWS + 1]
    drawn: list[Plot] = [] if section.figure is None else plots(section.figure)
    columns = section.columns.split()
    return {
        "id": section.name or f"part-{number}",
        "title": section.title,
        "text": section.text,
        "terms": [(heading(name), meaning) for name, meaning in section.terms.items()],
        "plots": drawn,
        "columns": headings(columns, shown),
        "rows": list(zip(*[column(name, [row[name] for row in shown]) for name in columns], strict=True)),
    }


def _counted(name: str, found: Counted) -> dict[str, str]:
    reasons = ", ".join(f"{why} {number:,}" for why, number in sorted(found.aside.items()))
    return {
        "text": f"{TABLES.get(name, name)}: {found.rows:,}",
        "aside": number_of(sum(found.aside.values()), "line") if found.aside else "",
        "reasons": reasons,
    }
