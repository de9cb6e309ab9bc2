"""The overview and the pages of queues and nodes, from the tables of the job `overview`."""

import dataclasses
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from leveret.analytics import report
from leveret.analytics.episodes import COUNTERS, REASONS
from leveret.analytics.figures import Panel, Series, panels
from leveret.analytics.findings import GOOD, LEVELS, Finding, duration, listed
from leveret.analytics.job import Page, number_of
from leveret.analytics.plots import Plot, line_points, plots
from leveret.analytics.report import OVERVIEW, ROOT, Cell, Heading, Made
from leveret.analytics.scope import written as date_and_time

MOST_PAGES: Final = 200
"""Number of queues with a page of their own: those with findings, then those with the longest backlogs."""
SHOWN_CHANGES: Final = 20
SHOWN_FINDINGS: Final = 100
SHOWN_ROWS: Final = 500
QUEUES: Final = "queues"
NODES: Final = "nodes"
_MIB: Final = 1 << 20
_SPARK: Final = (96, 20)
_WORDS: Final = {  # columns in words
    "pub": "published", "dead_lettered": "dead-lettered", "mem_used": "used", "cpu": "processor",
}  # fmt: skip
_OF_QUEUE: Final = (  # charts: the address, the title, the unit, and the columns
    ("rates", "Messages per second", "messages/s", "pub delivered acked redelivered"),
    ("backlog", "Backlog", "messages", "ready unacked"),
    ("consumers", "Consumers", "consumers", "consumers"),
)
_DEAD: Final = ("dead", "Dead letters per second", "messages/s", " ".join(("dead_lettered", *REASONS)))
_OF_NODE: Final = (
    ("rates", "Messages per second", "messages/s", "published delivered confirmed acked"),
    ("backlog", "Backlog", "messages", "ready unacked"),
    ("memory", "Memory", "MiB", "mem_used"),
    ("clients", "Connections and consumers", "", "connections consumers"),
    ("processor", "Processor time", "processors", "cpu"),
    ("alarms", "Alarms in effect", "alarms", "alarms"),
)
_OF_ALL: Final = (
    ("traffic", "Messages per second", "messages/s", "published delivered"),
    ("backlog", "Backlog", "messages", "ready unacked"),
    ("memory", "Memory used", "MiB", "mem_used"),
    ("alarms", "Alarms in effect", "alarms", "alarms"),
)
_FACTS: Final = {  # what a queue's page says first, by column
    **{name: _WORDS.get(name, name) for name in ("pub", "delivered", "redelivered", "acked")},
    "ready": "ready at the end",
    "worst": "longest backlog",
    "unacked": "unacked at the end",
    "consumers": "consumers at the end",
    **{name: _WORDS.get(name, name) for name in ("expired", "rejected", "dropped", "dead_lettered")},
}
_NUMBERS: Final = {  # numbers of queues on the overview, by heading
    "published/s": "pub_rate",
    "delivered/s": "delivered_rate",
    "ready": "ready",
    "longest backlog": "worst",
    **{name: name for name in ("unacked", "consumers", "redelivered")},
}
_CHART: Final = {  # the chart of a queue's or node's page that shows a kind of finding
    "unread": "backlog",
    "unserved": "backlog",
    "stalled": "backlog",
    "repeated": "rates",
    "behind": "backlog",
    "thrash": "rates",
    "dead_letters": "dead",
    "restart": "rates",
    "alarm": "memory",
}

Key = tuple[str, str, str]
Values = Callable[[str], list[float | None]]
"""The values of a column in each bin of the range."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OverviewPage(Page):
    """The overview: a page of its own kind, with rows of the job's tables."""

    findings: Sequence[Finding]
    queues: Sequence[Any]
    history: Sequence[Any]
    timeline: Sequence[Any]
    changes: Sequence[Any]
    boots: Sequence[Any]
    published: int
    delivered: int
    ready: int


def slug(*names: str) -> str:
    """Return the name of a file for an object; names may have any characters, so a part of a hash makes it unique."""
    shown = re.sub(r"[^a-z0-9]+", "-", names[-1].lower()).strip("-")[:40] or "x"
    return f"{shown}-{hashlib.sha256(repr(names).encode('utf-8', 'replace')).hexdigest()[:10]}"


def write(
    output: Path,
    page: OverviewPage,
    reports: Sequence[tuple[str, Page]],  # (directory, page) of the other jobs
    skipped: Mapping[str, str],  # jobs that were not run, with the reasons
    made: Made,  # how the pages were made
) -> None:
    """Write the overview as the index of the output, and a page for each queue and node."""
    site = _Site(output, page, made)
    site.overview(reports, skipped)
    for row in page.queues[:MOST_PAGES]:
        site.queue(row)
    for node in site.nodes:
        site.node(node)


class _Site:
    def __init__(self, output: Path, page: OverviewPage, made: Made) -> None:
        self._output = output
        self._page = page
        self._made = made
        self.nodes = sorted({row["node"] for row in page.timeline})
        self._history: dict[Key, list[Any]] = {}
        for row in page.history:
            self._history.setdefault(_key(row), []).append(row)
        self._has_page = {_key(row) for row in page.queues[:MOST_PAGES]}
        steps = [row["seconds"] * 1000 for row in page.timeline] or [5000]
        self._step = steps[0]
        bins = [row["bin"] for row in page.timeline]
        self._bins = list(range(min(bins), max(bins) + 1, self._step)) if bins else []
        self._restarts = _restarts(page.boots)

    # -- pages ------------------------------------------------------------------------------------------------------

    def overview(self, reports: Sequence[tuple[str, Page]], skipped: Mapping[str, str]) -> None:
        page = self._page
        told = listed(page.findings)
        changed = page.changes[:SHOWN_CHANGES]
        self._write(
            report.INDEX,
            "overview.html.j2",
            title=OVERVIEW,
            lead=page.lead,
            tiles=self._tiles(told),
            findings=[self._listed(each, "") for each in told[:SHOWN_FINDINGS]],
            more=max(0, len(told) - SHOWN_FINDINGS),
            timeline=self._charts(_OF_ALL, lambda column: self._of_bins(column, page.timeline)),
            split=self._split(),
            change_columns=[
                Heading("queue"),
                Heading("what"),
                *(Heading(each, True) for each in ("before", "after", "change")),
            ],
            changes=[self._changed(row) for row in changed],
            queue_columns=self._queue_columns(),
            queues=[self._queue_row(row) for row in page.queues],
            node_columns=[
                Heading("node"),
                *(Heading(each, True) for each in ("starts", "published/s", "memory (MiB)", "connections")),
            ],
            nodes=[self._node_row(node) for node in self.nodes],
            reports=report.listed(reports),
            skipped=skipped.items(),
            shown=SHOWN_ROWS,
        )

    def queue(self, row: Any) -> None:
        key = _key(row)
        vhost, name = row["vhost"], row["queue"]
        mine = [
            each
            for each in self._page.findings
            if each.node == row["node"]
            and (each.queue == (vhost, name) or (each.vhost == vhost and name in each.also))
        ]
        past = self._filled(row["node"], self._history.get(key, ()))

        def values(column: str) -> list[float | None]:
            if column not in COUNTERS:
                return [None if each is None else each[column] for each in past]
            return [None if each is None else each[column] * 1e6 / max(each["step_us"], 1) for each in past]

        facts = {
            **{name: f"{row[column]:,}" for column, name in _FACTS.items()},
            "confirm mode": row["mode"],
            **_latency(row),
            **{
                name: f"{row[column]:,}"
                for name, column in {
                    "publishes that wait for an ack": "promised",
                    "held until their time": "held",
                    "read back from disk": "t_from_delta",
                }.items()
                if row[column]
            },
        }
        self._write(
            f"{QUEUES}/{slug(*key)}.html",
            "object.html.j2",
            title=f"Queue {name}",
            here=name,
            lead=f"Virtual host {vhost}, node {row['node']}.",
            level=row["level"],
            level_name=LEVELS[row["level"]],
            tiles=facts.items(),
            findings=[self._listed(each, ROOT) for each in mine],
            charts=self._charts((*_OF_QUEUE, _DEAD) if row["dead_lettered"] else _OF_QUEUE, values),
            links=[(row["node"], f"{ROOT}{NODES}/{slug(row['node'])}.html")],
            section=QUEUES,
        )

    def node(self, node: str) -> None:
        rows = {row["bin"]: row for row in self._page.timeline if row["node"] == node}
        mine = [each for each in self._page.findings if each.node == node and each.queue is None]
        last = rows[max(rows)]

        runs = [row for row in self._page.boots if row["node"] == node]
        self._write(
            f"{NODES}/{slug(node)}.html",
            "object.html.j2",
            title=f"Node {node}",
            here=node,
            lead=f"{number_of(len(runs), 'run')} in the input.",
            level="",
            level_name="",
            tiles=[
                ("ready at the end", f"{last['ready']:,}"),
                ("unacked at the end", f"{last['unacked']:,}"),
                *(
                    [("memory limit", f"{last['mem_limit'] / _MIB:,.0f} MiB")]
                    if last["mem_limit"] is not None
                    else []
                ),
                *([("connections", f"{last['connections']:,}")] if last["connections"] is not None else []),
            ],
            findings=[self._listed(each, ROOT) for each in mine],
            charts=self._charts(_OF_NODE, lambda column: self._of_bins(column, rows.values())),
            links=[],
            section=NODES,
        )

    # -- parts ------------------------------------------------------------------------------------------------------

    def _write(self, name: str, template: str, section: str = "", **values: Any) -> None:
        """Write a page; that of an object is below a section of the overview."""
        if section:
            index = f"{ROOT}{report.INDEX}"
            values |= {
                "root": ROOT,
                "trail": [(OVERVIEW, index), (section.capitalize(), f"{index}#{section}")],
            }
        report.write(self._output / name, report.render(template, self._made, **{"here": "", **values}))

    def _listed(self, finding: Finding, root: str) -> dict[str, str]:
        return {
            "level": finding.level,
            "level_name": LEVELS[finding.level],
            "title": finding.title,
            "text": finding.text,
            "link": f"{root}{self._link(finding)}",
        }

    def _link(self, finding: Finding) -> str:
        """Return the address of the chart that shows a finding."""
        chart = _CHART.get(finding.kind, "")
        if finding.queue is not None and (finding.node, *finding.queue) in self._has_page:
            return f"{QUEUES}/{slug(finding.node, *finding.queue)}.html#{chart}"
        for name in sorted(finding.also):
            if (finding.node, finding.vhost, name) in self._has_page:
                return f"{QUEUES}/{slug(finding.node, finding.vhost, name)}.html#backlog"
        if finding.queue is None and finding.node in self.nodes:
            return f"{NODES}/{slug(finding.node)}.html#{chart or 'rates'}"
        return f"{report.INDEX}#queues"

    def _tiles(self, told: Sequence[Finding]) -> list[tuple[str, str]]:
        page = self._page
        levels = [row["level"] for row in page.queues]
        held = sum(row["held"] or 0 for row in page.queues)
        seconds = len(self._bins) * self._step / 1000 or 1
        return [
            ("findings", f"{len(told):,}"),
            ("queues that are fine", f"{sum(level == GOOD for level in levels):,} of {len(levels):,}"),
            ("published/s", f"{page.published / seconds:,.1f}"),
            ("delivered/s", f"{page.delivered / seconds:,.1f}"),
            ("ready at the end", f"{page.ready:,}"),
            ("dead-lettered", f"{sum(row['dead_lettered'] for row in page.queues):,}"),
            *([("held until their time", f"{held:,}")] if held else []),
        ]

    def _of_bins(self, column: str, rows: Iterable[Any]) -> list[float | None]:
        """Return the sum of a column of the timeline in each bin."""
        sums: dict[int, float] = {}
        for row in rows:
            if row[column] is not None:
                sums[row["bin"]] = sums.get(row["bin"], 0) + row[column]
        scale = 1 / _MIB if column == "mem_used" else 1
        return [None if (found := sums.get(each)) is None else found * scale for each in self._bins]

    def _charts(self, charts: Iterable[tuple[str, str, str, str]], values: Values) -> list[dict[str, Any]]:
        """Return charts over time; one whose first column is not known has none."""
        times = [datetime.fromtimestamp(each / 1000, UTC).replace(tzinfo=None) for each in self._bins]
        made = []
        for name, title, unit, columns in charts:
            lines = [
                Series(_WORDS.get(each, each), times, values(each), marker="") for each in columns.split()
            ]
            if any(y is not None for y in lines[0].y):
                (plot,) = plots(panels(Panel("", unit, lines, zero=True)))
                made.append({"id": name, "title": title, "plots": [self._marked(plot)]})
        return made

    def _marked(self, plot: Plot) -> Plot:
        """Return a figure with a line at each restart."""
        lines = [
            {
                "type": "line",
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "x0": at,
                "x1": at,
                "line": {"dash": "dot", "width": 1},
            }
            for at in self._restarts
        ]
        notes = [
            {
                "x": at,
                "y": 1,
                "yref": "paper",
                "text": "restart",
                "showarrow": False,
                "xanchor": "left",
                "yanchor": "top",
            }
            for at in self._restarts[:3]
        ]
        ends = [date_and_time(self._bins[0]), date_and_time(self._bins[-1] + self._step)]
        layout = dict(plot["layout"]) | {"shapes": lines, "annotations": notes, "height": 230}
        layout["xaxis"] = {**layout["xaxis"], "range": ends}
        return {"data": plot["data"], "layout": layout}

    def _filled(self, node: str, rows: Iterable[Any]) -> list[Mapping[str, Any] | None]:
        """Return a row for each bin: where there is none nothing has happened, and levels are those before.

        A bin in which the node did not run is None.
        """
        by_bin = {row["bin"]: row for row in rows}
        ran = {row["bin"] for row in self._page.timeline if row["node"] == node}
        found: list[Mapping[str, Any] | None] = []
        last: Mapping[str, Any] | None = None
        for each in self._bins:
            row = by_bin.get(each)
            if row is not None:
                last = row
                found.append(row)
            elif last is None or each not in ran:
                found.append(None)
            else:
                found.append({**last, **dict.fromkeys(COUNTERS, 0)})
        return found

    def _split(self) -> tuple[str, str, str]:
        if not self._bins:
            return "", "", ""
        first, until = self._bins[0], self._bins[-1] + self._step
        return date_and_time(first), date_and_time((first + until) // 2), date_and_time(until)

    def _queue_cell(self, row: Any) -> Cell:
        key = _key(row)
        name = row["queue"] if row["vhost"] == "/" else f"{row['queue']} ({row['vhost']})"
        return Cell(name, link=f"{QUEUES}/{slug(*key)}.html" if key in self._has_page else "")

    def _changed(self, row: Any) -> list[Cell]:
        before, after = row["before"], row["after"]
        return [
            self._queue_cell(row),
            Cell(row["what"]),
            report.cell(before),
            report.cell(after),
            Cell(_change(before, after), is_number=True, sort=row["factor"]),
        ]

    def _queue_columns(self) -> list[Heading]:
        many = [Heading("node")] if len(self.nodes) > 1 else []
        return [
            Heading("queue"),
            *many,
            Heading("state"),
            Heading("backlog"),
            *(Heading(name, True) for name in _NUMBERS),
        ]

    def _queue_row(self, row: Any) -> list[Cell]:
        past = self._filled(row["node"], self._history.get(_key(row), ()))
        points = line_points([None if each is None else each["ready"] for each in past], *_SPARK)
        order = float(list(LEVELS).index(row["level"]))
        many = [Cell(row["node"])] if len(self.nodes) > 1 else []
        return [
            self._queue_cell(row),
            *many,
            Cell(LEVELS[row["level"]], level=row["level"], sort=order),
            Cell(f"backlog over time, at most {row['worst']:,}", line=points, sort=row["worst"]),
            *[
                Cell(f"{row[name]:,.2f}", is_number=True, sort=row[name])
                if name.endswith("_rate")
                else report.cell(row[name])
                for name in _NUMBERS.values()
            ],
        ]

    def _node_row(self, node: str) -> list[Cell]:
        rows = [row for row in self._page.timeline if row["node"] == node]
        last = rows[-1]
        rate = sum(row["published"] or 0 for row in rows) / len(rows)
        return [
            Cell(node, link=f"{NODES}/{slug(node)}.html"),
            report.cell(sum(row["node"] == node for row in self._page.boots)),
            report.cell(rate),
            report.cell(None if last["mem_used"] is None else last["mem_used"] / _MIB),
            report.cell(last["connections"]),
        ]


def _key(row: Any) -> Key:
    return row["node"], row["vhost"], row["queue"]


def _latency(row: Any) -> dict[str, str]:
    """Return the latency of a queue, from publish to delivery, in words; empty without samples."""
    if row["p50_us"] is None:
        return {}
    return {
        "latency, median": duration(row["p50_us"] / 1e6),
        "latency, 99 % within": duration(row["p99_us"] / 1e6),
    }


def _restarts(boots: Sequence[Any]) -> list[str]:
    """Return the times at which a node was started again."""
    first: dict[str, int] = {}
    for row in boots:
        first[row["node"]] = min(first.get(row["node"], row["from_ms"]), row["from_ms"])
    return [date_and_time(row["from_ms"]) for row in boots if row["from_ms"] != first[row["node"]]]


def _change(before: float, after: float) -> str:
    if before == 0:
        return "new"
    if after == 0:
        return "stopped"
    return f"{(after - before) / before:+,.0%}"
