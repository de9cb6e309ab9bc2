"""Charts for pages, as figures of Plotly.js: plain mappings, which the page's script draws in its own colours.

The Python classes of Plotly are not used: they take a second to load, and check what a test checks once
(docs/adr/0045). Names come from clients, and Plotly reads its texts as a small HTML, so each name is escaped.
"""

import html
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from leveret.analytics.figures import DASHED, Bars, Chart, Heat, Panel, Panels, Series, plain

BAR_PIXELS: Final = 26  # height of a bar with its distance from the next
FEW: Final = 5  # greatest value of whole numbers of which an axis shows each
MOST_POWERS: Final = 6  # number of labels of a logarithmic axis
_LEAST_PIXELS: Final = 110

Plot = Mapping[str, Any]  # A figure: `data` and `layout`


def plots(chart: Chart) -> list[Plot]:
    """Return the figures of a chart: one for each panel, so that a narrow page shows them below each other."""
    match chart:
        case Panels():
            return [_panel(each) for each in chart.panels]
        case Bars():
            return [_bars(chart)]
        case Heat():
            return [_heat(chart)]


def text(name: str) -> str:
    """Return a name as Plotly's text."""
    return html.escape(plain(name), quote=False)


def _panel(panel: Panel) -> Plot:
    is_time = any(isinstance(x, datetime) for series in panel.series for x in series.x)
    y_axis: dict[str, Any] = {"title": {"text": text(panel.y_label)}, "automargin": True}
    if panel.log_y:
        y_axis |= {"type": "log", "dtick": _powers(panel), "exponentformat": "none"}
    else:
        if panel.zero:
            y_axis["rangemode"] = "tozero"
        if _is_few(panel):
            y_axis["dtick"] = 1
    layout: dict[str, Any] = {
        "xaxis": _x_axis(panel, is_time=is_time),
        "yaxis": y_axis,
        "showlegend": len(panel.series) > 1,
    }
    if is_time and len(panel.series) > 1:
        layout["hovermode"] = "x unified"
    if panel.rule is not None:
        rule = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": panel.rule, "y1": panel.rule}
        layout["shapes"] = [rule | {"line": {"dash": "dash", "width": 1}}]
    data = [_series(each) for each in panel.series]
    for each in data[DASHED:]:
        each["line"] = {"dash": "dash"}
    return {"data": data, "layout": layout}


def _x_axis(panel: Panel, *, is_time: bool) -> dict[str, Any]:
    axis: dict[str, Any] = {"title": {"text": text(panel.x_label)}, "automargin": True}
    if is_time:
        axis["type"] = "date"
    elif panel.categories:
        values = sorted({x for series in panel.series for x in series.x})
        axis |= {"type": "category", "categoryorder": "array", "categoryarray": [_value(x) for x in values]}
    if panel.log_x:
        axis["type"] = "log"
    if panel.ticks:
        axis |= {"tickvals": list(panel.ticks), "ticktext": list(panel.ticks.values())}
    return axis


def _powers(panel: Panel) -> int:
    """Return of how many powers of ten an axis labels one: a narrow page has no place for more than `MOST_POWERS`."""
    values = [y for series in panel.series for y in series.y if y is not None and 0 < y < math.inf]
    return math.ceil(math.log10(max(values, default=1) / min(values, default=1)) / MOST_POWERS) or 1


def _is_few(panel: Panel) -> bool:
    """Return whether a panel counts a few things, such as consumers: there is no half of one on its axis."""
    values = [y for series in panel.series for y in series.y if y is not None and math.isfinite(y)]
    return max(values, default=0.0) <= FEW and all(y == int(y) for y in values)


def _series(series: Series) -> dict[str, Any]:
    shown = series.marker not in {"", "."} or len(series.x) == 1
    mode = "lines+markers" if series.joined and shown else "lines" if series.joined else "markers"
    made: dict[str, Any] = {
        "type": "scatter",
        "name": text(series.label),
        "x": [_value(x) for x in series.x],
        "y": [None if y is None or not math.isfinite(y) else y for y in series.y],
        "mode": mode,
    }
    if series.low and series.high:
        ends = list(zip(series.y, series.low, series.high, strict=False))
        known = [None not in each for each in ends]
        made["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [h - y if ok else 0 for ok, (y, _, h) in zip(known, ends, strict=True)],  # type: ignore[operator]
            "arrayminus": [y - low if ok else 0 for ok, (y, low, _) in zip(known, ends, strict=True)],  # type: ignore[operator]
        }
    return made


def _value(x: Any) -> Any:
    if isinstance(x, datetime):
        return x.isoformat(sep=" ")
    return text(x) if isinstance(x, str) else x


def _bars(chart: Bars) -> Plot:
    places = list(range(len(chart.named)))
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "y": places,
                "x": [value for _, value in chart.named],
                "hovertext": [text(name) for name, _ in chart.named],
                "hovertemplate": "%{hovertext}: %{x:,.4~g}<extra></extra>",
            }
        ],
        "layout": {
            "height": _LEAST_PIXELS + BAR_PIXELS * len(chart.named),
            "hovermode": "closest",
            "xaxis": {"title": {"text": text(chart.x_label)}, "rangemode": "tozero", "automargin": True},
            # By place: two names may look alike once they are shortened.
            "yaxis": {
                "tickmode": "array",
                "tickvals": places,
                "ticktext": [text(name) for name, _ in chart.named],
                "autorange": "reversed",
                "automargin": True,
                "showgrid": False,
            },
        },
    }


def _heat(chart: Heat) -> Plot:
    times = sorted({cell[0] for cell in chart.cells})
    edges = sorted({edge for cell in chart.cells for edge in cell[1:3]})
    column = {time: number for number, time in enumerate(times)}
    line = {edge: number for number, edge in enumerate(edges)}
    counts: list[list[float | None]] = [[None] * len(times) for _ in edges[1:]]
    for time, low, _, count in chart.cells:
        counts[line[low]][column[time]] = count
    greatest = max(2.0, *(cell[3] for cell in chart.cells))
    powers = [10**power for power in range(math.floor(math.log10(greatest)) + 1)]
    return {
        "data": [
            {
                "type": "heatmap",
                "x": times,
                "y": edges,
                "z": [
                    [None if each is None else math.log10(each) for each in each_line] for each_line in counts
                ],
                "customdata": counts,
                "hovertemplate": "%{x}<br>%{y:,.3~g}: %{customdata:,} samples<extra></extra>",
                "colorscale": "Viridis",
                "zmin": 0,
                "colorbar": {
                    "title": {"text": "samples"},
                    "tickvals": [math.log10(each) for each in powers],
                    "ticktext": [f"{each:,}" for each in powers],
                },
            }
        ],
        "layout": {
            "xaxis": {"type": "date", "automargin": True},
            "yaxis": {"type": "log", "title": {"text": text(chart.y_label)}, "automargin": True},
        },
    }


def line_points(values: Sequence[float | None], width: float, height: float) -> str:
    """Return the points of a small line (SVG's `points`), from the lower left; empty for less than two values."""
    known = [0.0 if value is None else max(0.0, value) for value in values]
    greatest = max(known, default=0.0)
    if len(known) < 2:  # noqa: PLR2004 - a line has two ends
        return ""
    step = width / (len(known) - 1)
    scale = (height - 2) / greatest if greatest else 0.0
    return " ".join(
        f"{number * step:.1f},{height - 1 - value * scale:.1f}" for number, value in enumerate(known)
    )
