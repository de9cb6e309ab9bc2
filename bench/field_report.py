"""The table and the chart of a run of `bench.field`, for the README and the documentation."""

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from bench.field_cases import CASES
from bench.workloads import FIELD

BEGIN, END = "<!-- field: written by `make bench NAME=field ARGS=--write` -->", "<!-- end of field -->"
PLACES = ("README.md", "docs/performance.md")
CHART = "docs/figures/field.svg"
COLORS = ("#2b6cb0", "#dd6b20", "#2f855a", "#805ad5", "#b83280")
WIDTH, LABELS, BAR, GAP, FIGURES = 760, 270, 12, 14, 90
OURS = "leveret"
ANOTHER_PROTOCOL = "nats"
NAMES = {
    OURS: "Leveret",
    "rabbitmq": "RabbitMQ",
    "rabbitmq-4.3": "RabbitMQ 4.3",
    "lavinmq": "LavinMQ",
    ANOTHER_PROTOCOL: "NATS JetStream",
}


class Row(NamedTuple):
    """A row of the table, and of the chart.

    Attributes:
        title: its description.
        name: name of the workload; "" if it is none of PerfTest's.
        figures: each broker's rate in messages a second; None if there is none.
        shown: how each is shown.

    """

    title: str
    name: str
    figures: list[float | None]
    shown: list[str]


def rows(record: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a run."""
    found = list(record["brokers"].values())
    made: list[Row] = []
    names = list(dict.fromkeys(name for each in found for name in each["rates"]))
    for name in names:
        figures = [each["rates"].get(name) for each in found]
        shown = ["-" if value is None else f"{value:,.0f}" for value in figures]
        made.append(Row(described(name), name, figures, shown))
    for queues in dict.fromkeys(key for each in found for key in each["highest"]):
        entries = [each["highest"].get(queues) for each in found]
        title = f"p99 at most {record['limit_ms']:g} ms, {queues} queue{'s' * (queues != '1')}"
        shown = [
            "-" if each is None else ("over " if each["limited"] else "") + f"{each['rate']:,.0f}"
            for each in entries
        ]
        made.append(Row(title, "", [each and each["rate"] for each in entries], shown))
    return made


def described(workload: str) -> str:
    """Return what a workload does in some words, or its name if nobody has described it."""
    found = FIELD.get(workload)
    return (found and found.title) or workload


def version(name: str, product: str) -> str:
    """Return the product that a broker names, with the broker's name."""
    return product if product.startswith(name) else f"{name} {product}"


def times(figures: Mapping[str, float | None]) -> str:
    """Return how many times the figure of the fastest other broker of AMQP ours is; a dash if one is missing."""
    ours = figures.get(OURS)
    others = max(
        (value or 0.0 for name, value in figures.items() if name not in {OURS, ANOTHER_PROTOCOL}), default=0.0
    )
    return f"{ours / others:.2f}" if ours and others else "-"


def table(record: Mapping[str, Any], *, flushed: bool = True) -> str:
    """Return the table in Markdown, with date, revision and machine.

    Args:
        record: the run.
        flushed: with the row that says whether brokers flush before a confirm.
    """
    found = record["brokers"]
    others = [NAMES.get(name, name) for name in found if name != OURS]
    beside = others[0] if len(others) == 1 else "the fastest other"
    lines = [
        f"| messages per second | {' | '.join(NAMES.get(name, name) for name in found)} | times {beside} |",
        f"|---|{'---|' * len(found)}---|",
        *[
            f"| {row.title}{f' (`{row.name}`)' * bool(row.name)} | {' | '.join(row.shown)} | "
            f"{times(dict(zip(found, row.figures, strict=True)))} |"
            for row in rows(record)
        ],
    ]
    if flushed:
        lines.append(
            f"| flushed before the confirm | {' | '.join(each['flushed'] for each in found.values())} | |"
        )
    named = list(dict.fromkeys(case for each in found.values() for case in each.get("cases", ())))
    others_of = [name for name in found if found[name].get("cases")]
    if flushed and named:
        lines += [
            "",
            f"| once each | {' | '.join(NAMES.get(name, name) for name in others_of)} |",
            f"|---|{'---|' * len(others_of)}",
            *[
                f"| {CASES[case].title} | {' | '.join(found[name]['cases'].get(case, '-') for name in others_of)} |"
                for case in named
            ],
        ]
    protocol = " NATS JetStream is another protocol, with its own client." * (ANOTHER_PROTOCOL in found)
    versions = "; ".join(
        version(NAMES.get(name, name), each["product"].strip()) for name, each in found.items()
    )
    how = (
        f"Medians of {record['rounds']} rounds of {record['seconds']} s under PerfTest; with p99, the highest rate of "
        f"persistent messages of 1,500 bytes, 4 producers, 4 consumers, at which 99 % are delivered in time.{protocol}"
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
        name = NAMES.get(name, name)  # noqa: PLW2901 - as it is shown
        parts.append(f'<rect x="{left}" y="12" width="12" height="12" fill="{COLORS[at % len(COLORS)]}"/>')
        parts.append(f'<text x="{left + 17}" y="22">{escape(name)}</text>')
    for number, row in enumerate(lines):
        top = 40 + number * group
        middle = top + len(names) * BAR / 2 + 4
        parts.append(f'<text x="{LABELS - 8}" y="{middle:g}" text-anchor="end">{escape(row.title)}</text>')
        parts += bars(row.figures, row.shown, top)
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
        image = f"![Chart of the table below]({os.path.relpath(root / CHART, page.parent)})"
        shown = table(record, flushed=name != PLACES[0])
        page.write_text(f"{before}{BEGIN}\n\n{image}\n\n{shown}\n\n{END}{after}")
    (root / CHART).write_text(chart(record))
