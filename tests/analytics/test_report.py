import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime

import plotly.graph_objects
import pytest
from pyspark.sql import Row

from bench.drawing import svg
from leveret.analytics import report
from leveret.analytics.figures import Bars, Heat, Panel, Series, at, panels, plain
from leveret.analytics.job import Page, Section
from leveret.analytics.plots import plots
from leveret.analytics.reading import Counted

MADE = report.Made("leveret analyze latency", datetime(2026, 11, 21, 7, 20, tzinfo=UTC))
NASTY = '<script>alert("1")</script> & $\\frac{1}{2}$ очередь \x00\n'


def shown(page, counted=None):
    """Return a page as HTML."""
    return report.page(page, MADE, counted or {})


def test_a_page_loads_only_what_lies_beside_it():
    """Nothing comes from elsewhere, and no program or style is in the page, so that a strict policy allows it."""
    figure = Bars("messages", [("q", 1.0)])
    text = shown(Page("Title", "Lead", ["fact"], [Section("Part", "text", figure, "part")]))

    assert {"assets/", "#input"} >= {
        address.removeprefix("../")[: len("assets/")] if "assets/" in address else address
        for address in re.findall(r"""(?:src|href)=["']([^"']*)""", text)
    }
    assert [] == re.findall(r"<script>|<style| style=| on[a-z]+=", text)
    assert 'type="application/json"' in text


def test_what_clients_named_cannot_break_a_page():
    """A name with markup in it is text wherever it stands, in tables, charts, and what is read to people."""
    row = Row(name=NASTY, count=3)
    section = Section(NASTY, NASTY, Bars("x", [(NASTY, 1.0), ("😀", 2.0)]), "x", "name count", [row])
    text = shown(Page(NASTY, NASTY, [NASTY], [section]), {NASTY: Counted(1, {NASTY: 2})})
    made = report.Made(NASTY, MADE.at)
    text += report.index([("latency", Page(NASTY, NASTY, [NASTY], []))], {NASTY: NASTY}, made)

    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_lines_that_were_set_aside_are_reported():
    """The page says how many lines of which table are no rows, and why."""
    text = shown(Page("T", "L", [], []), {"event": Counted(1200, {"missing value": 3})})

    assert "Events: 1,200" in text
    assert "3 lines set aside</span> (missing value 3)" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""), (True, "yes"), (1234567, "1,234,567"), (0.123456, "0.1235"), (12345.678, "12,346"),
        (1.5, "1.5"), ("a", "a"), (-2345.6, "-2,346"), (float("nan"), "nan"),
        (0.0000939, "0.000094"), (0.0001234, "0.0001234"), (1e-9, "about 0"), (0.0, "0"),
    ],
)  # fmt: skip
def test_values_are_written_as_people_read_them(value, text):
    """Thousands apart, no more digits than count, nothing for null."""
    assert text == report.value(value)


def test_a_long_table_says_that_there_is_more():
    """A page has the first rows of a long table and says so; an empty one says None."""
    rows = [Row(number=number) for number in range(report.SHOWN_ROWS + 1)]
    long = shown(Page("T", "L", [], [Section("S", "", columns="number", rows=rows)]))
    empty = shown(Page("T", "L", [], [Section("S", "", columns="number")]))

    assert report.SHOWN_ROWS == long.count("<tr><td")
    assert "The first 200 rows" in long
    assert "<p>None.</p>" in empty


def test_a_file_is_there_as_a_whole_or_not_at_all(tmp_path):
    """Writing replaces the file in one step and leaves nothing else."""
    report.write(tmp_path / "a" / "report.html", "old")
    report.write(tmp_path / "a" / "report.html", "new")

    assert ["report.html"] == [path.name for path in (tmp_path / "a").iterdir()]
    assert "new" == (tmp_path / "a" / "report.html").read_text()


FIGURES = {
    "categories": lambda: panels(
        Panel(
            "queues",
            "msg/s",
            [Series("$a_1$", [1, 30], [1.0, None], [0.5, None], [2.0, None])],
            categories=True,
        )
    ),
    "times": lambda: panels(Panel("", "ms", [Series("a", [at("2026-11-21 07:20:00")], [1.0])], log_y=True)),
    "nothing": lambda: panels(Panel("x", "y", [])),
    "points": lambda: panels(
        Panel("x", "y", [Series("a", [1, 2], [3, 4], joined=False)], zero=True, rule=1, log_x=True)
    ),
    "bars": lambda: Bars("x", [(NASTY, 1.0), ("b", 0.0)]),
    "no bars": lambda: Bars("x", []),
    "heat": lambda: Heat("ms", [("2026-11-21 07:20:00", 0.1, 0.2, 3), ("2026-11-21 07:20:05", 4.0, 8.0, 1)]),
    "one cell": lambda: Heat("ms", [("2026-11-21 07:20:00", 0.1, 0.2, 1)]),
}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_svg_and_the_same_each_time(name):
    """A figure is well-formed, has no date in it, and the same input gives the same octets."""
    figure = svg(FIGURES[name]())

    assert ET.fromstring(figure).tag.endswith("svg")
    assert figure == svg(FIGURES[name]())


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_what_the_library_understands(name):
    """Plotly's own check of names and values accepts each figure of a page."""
    for each in plots(FIGURES[name]()):
        plotly.graph_objects.Figure(each)  # raises ValueError


def test_a_few_whole_things_have_no_halves_between_them():
    """An axis of two consumers, or of none, shows whole numbers only; one of rates, or of many, is the library's."""

    def marks(*values):
        line = Series("consumers", list(range(len(values))), list(values))
        (figure,) = plots(panels(Panel("x", "y", [line], zero=True)))
        return figure["layout"]["yaxis"].get("dtick")

    assert [1, 1] == [marks(2, 0, None, 2), marks(0, 0)]
    assert [None, None] == [marks(0.5, 2), marks(0, 600)]


def test_an_axis_of_many_powers_of_ten_labels_some():
    """Up to six powers each have a label; of more it is every other, as a narrow page has no place for them."""

    def marks(*values):
        line = Series("deliver", list(range(len(values))), list(values))
        (figure,) = plots(panels(Panel("x", "ms", [line], log_y=True)))
        return figure["layout"]["yaxis"]["dtick"]

    assert [1, 1, 1, 2] == [marks(None), marks(5.0), marks(0.001, None, 1000), marks(0.001, 1_000_000)]


def test_the_library_reads_names_as_text():
    """Plotly reads a text as HTML: names are escaped for it."""
    (plot,) = plots(Bars("x", [("<a href=x>", 1.0)]))

    assert ["&lt;a href=x&gt;"] == plot["layout"]["yaxis"]["ticktext"]


def test_what_all_pages_need_lies_beside_them_once(tmp_path):
    """Styles, programs and the chart library, at most 5 MB, are written once and replaced only if they change."""
    report.write_assets(tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "assets").iterdir()}
    report.write_assets(tmp_path)

    assert {*report.OWN_ASSETS, report.LIBRARY} == before.keys()
    assert before == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "assets").iterdir()}
    assert sum(path.stat().st_size for path in (tmp_path / "assets").iterdir()) <= 5_000_000


def test_names_are_cut_and_cleaned():
    """A name that is drawn is short and has nothing that cannot be printed."""
    assert "a\ufffdb" == plain("a\x00b")
    assert 60 == len(plain("x" * 255))


def test_columns_are_explained_by_their_headings():
    """Each in a line above the table, not within a paragraph."""
    terms = {"cpu_us": "the slope", "r2": "its <fit>", "settled": "messages"}
    text = shown(Page("Title", "Lead", [], [Section("Part", "A sentence.", terms=terms)]))

    assert "<p>A sentence.</p>" in text
    assert (
        "<dt>CPU per message</dt><dd>the slope</dd>\n<dt>fit (r²)</dt><dd>its &lt;fit&gt;</dd>\n"
        "<dt>settled</dt><dd>messages</dd>" in text
    )


def test_durations_have_their_units_and_numbers_of_a_column_equally_many_decimals():
    """Whatever the unit of the column; what is not 0 is not shown as 0, and nothing is sorted by its text."""
    waits = report.column("p99_us", [352_321_535, 1_250, 12, None])
    rates = report.column("rate", [8.501, 8.4, 0.8451, 0.0, 1e-3])

    assert ["6 min", "1.25 ms", "12 µs", ""] == [cell.text for cell in waits]
    assert ["8.501", "8.400", "0.845", "0.000", "0.001"] == [cell.text for cell in rates]
    assert [352_321_535, 1_250, 12] == [cell.sort for cell in waits[:3]]
    assert ["120,000", "12"] == [cell.text for cell in report.column("count", [120_000, 12])]
    assert ["34.50"] == [cell.text for cell in report.column("messages_per_s", [34.5])]
