"""The table and the chart of a run of `bench.field`, for the README and the documentation."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- field: written by `make bench NAME=field ARGS=--write` -->", "<!-- end of field -->"
PLACES = ("README.md", "docs/performance.md")
CHART = "docs/figures/field.svg"
COLORS = ("#2b6cb0", "#dd6b20", "#2f855a", "#805ad5", "#b83280")
WIDTH, LABELS, BAR, GAP, FIGURES = 760, 150, 12, 14, 90


def rows(record: Mapping[str, Any]) -> list[tuple[str, list[float | None], list[str]]]:
    """Return the title of each row, and each broker's figure and how it is shown."""
    found = list(record["brokers"].values())
    made: list[tuple[str, list[float | None], list[str]]] = []
    names = list(dict.fromkeys(name for each in found for name in each["rates"]))
    for name in names:
        figures = [each["rates"].get(name) for each in found]
        made.append((name, figures, ["-" if value is None else f"{value:,.0f}" for value in figures]))
    for queues in dict.fromkeys(key for each in found for key in each["highest"]):
        entries = [each["highest"].get(queues) for each in found]
        title = f"p99 <= {record['limit_ms']:g} ms, {queues} queue{'s' * (queues != '1')}"
        shown = [
            "-" if each is None else ("over " if each["limited"] else "") + f"{each['rate']:,.0f}"
            for each in entries
        ]
        made.append((title, [each and each["rate"] for each in entries], shown))
    return made


def table(record: Mapping[str, Any]) -> str:
    """Return the table in Markdown, with date, revision and machine."""
    found = record["brokers"]
    lines = [
        f"| messages per second | {' | '.join(found)} |",
        f"|---|{'---|' * len(found)}",
        *[f"| {title} | {' | '.join(shown)} |" for title, _, shown in rows(record)],
        f"| flushed before the confirm | {' | '.join(each['flushed'] for each in found.values())} |",
    ]
    versions = "; ".join(f"{name}: {each['product'].strip()}" for name, each in found.items())
    how = (
        f"Medians of {record['rounds']} rounds of {record['seconds']} s under PerfTest; with p99, the highest rate of "
        "persistent messages of 1,500 bytes, 4 producers, 4 consumers, at which 99 % are delivered in time."
    )
    when = f"{record['time'][:10]}, revision {record['revision']}, {record['machine']}. {versions}."
    return "\n".join([*lines, "", f"{how} {when}"])


def chart(record: Mapping[str, Any]) -> str:
    """Return the chart as SVG: a group of bars for each row, relative to the highest of the row."""
    names = list(record["brokers"])
    lines = rows(record)
    group = len(names) * BAR + GAP
    height = 40 + group * len(lines) + 30
    box = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="sans-serif" font-size="11" fill="#1a202c">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for at, name in enumerate(names):
        left = LABELS + 110 * at
        parts.append(f'<rect x="{left}" y="12" width="12" height="12" fill="{COLORS[at % len(COLORS)]}"/>')
        parts.append(f'<text x="{left + 17}" y="22">{escape(name)}</text>')
    for row, (title, figures, shown) in enumerate(lines):
        top = 40 + row * group
        parts.append(f'<text x="{LABELS - 8}" y="{top + group / 2}" text-anchor="end">{escape(title)}</text>')
        parts += bars(figures, shown, top)
    note = f"{record['time'][:10]}, revision {record['revision']}, {record['machine']}"
    parts.append(f'<text x="{LABELS}" y="{height - 10}" fill="#4a5568">{escape(note)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def bars(figures: Sequence[float | None], shown: Sequence[str], top: int) -> list[str]:
    """Return the bars of a row, with their figures."""
    longest = max((value or 0.0 for value in figures), default=0.0) or 1.0
    parts = []
    for at, (value, text) in enumerate(zip(figures, shown, strict=True)):
        length = (WIDTH - LABELS - FIGURES) * (value or 0.0) / longest
        y = top + at * BAR
        parts.append(
            f'<rect x="{LABELS}" y="{y}" width="{length:.1f}" height="{BAR - 2}" fill="{COLORS[at % len(COLORS)]}"/>'
        )
        parts.append(f'<text x="{LABELS + length + 5:.1f}" y="{y + 9}">{escape(text)}</text>')
    return parts


def write(record: Mapping[str, Any], root: Path) -> None:
    """Put the table between its marks in the README and the documentation, and write the chart.

    Raises:
        ValueError: a page lacks the marks.

    """
    for name in PLACES:
        page = root / name
        before, mark, rest = page.read_text().partition(BEGIN)
        _, end, after = rest.partition(END)
        if not mark or not end:
            message = f"{name} lacks the marks of the table"
            raise ValueError(message)
        page.write_text(f"{before}{BEGIN}\n\n{table(record)}\n\n{END}{after}")
    (root / CHART).write_text(chart(record))
