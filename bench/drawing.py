"""Charts as SVG for print, by matplotlib without a display. Text remains text, which keeps the files small."""

import io
import math
import warnings
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LogNorm
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from leveret.analytics.figures import COLOURS, DASHED, Bars, Chart, Heat, Panel, Panels, Series, plain

STYLE: Final[dict[Any, Any]] = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "sans-serif",
    "font.size": 10,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "leveret",
    # A queue may be named $x_1$.
    "text.parse_math": False,
}
_WIDTH: Final = 5.6
_HEIGHT: Final = 3.8
_DAY: Final = len("2026-01-01")


def svg(chart: Chart) -> str:
    """Draw a chart."""
    match chart:
        case Panels():
            return _panels(chart)
        case Bars():
            return _bars(chart)
        case Heat():
            return _heat(chart)


def _panels(chart: Panels) -> str:
    drawn = chart.panels
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH * len(drawn), _HEIGHT), layout="constrained")
        for number, panel in enumerate(drawn, 1):
            _draw(figure.add_subplot(1, len(drawn), number), panel)
        return _svg(figure)


def _bars(chart: Bars) -> str:
    named = chart.named
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(1.5 * _WIDTH, 0.8 + 0.3 * max(1, len(named))), layout="constrained")
        axes = figure.add_subplot()
        axes.barh(range(len(named)), [value for _, value in named], color=COLOURS[0])
        axes.set_yticks(range(len(named)), [plain(name) for name, _ in named])
        axes.invert_yaxis()
        axes.set_xlabel(chart.x_label)
        axes.grid(visible=False, axis="y")
        return _svg(figure)


def _heat(chart: Heat) -> str:
    cells = chart.cells
    times = sorted({cell[0] for cell in cells})
    edges = sorted({edge for cell in cells for edge in cell[1:3]})
    column = {time: number for number, time in enumerate(times)}
    line = {edge: number for number, edge in enumerate(edges)}
    counts = [[math.nan] * len(times) for _ in edges[1:]]
    for time, low, _, count in cells:
        counts[line[low]][column[time]] = count
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(2 * _WIDTH, _HEIGHT), layout="constrained")
        axes = figure.add_subplot()
        axes.grid(visible=False)
        drawn = axes.pcolormesh(
            range(len(times) + 1),
            edges,
            counts,
            norm=LogNorm(1, max(2.0, *(cell[3] for cell in cells))),
            rasterized=True,  # thousands of rectangles are small as an image and large as SVG
        )
        axes.set_yscale("log")
        _powers(axes.yaxis)
        step = math.ceil(len(times) / 8)
        days = {time[:_DAY] for time in times}
        shown = slice(_DAY + 1 if len(days) == 1 else 5, None)
        axes.set_xticks(
            [number + 0.5 for number in range(0, len(times), step)], [time[shown] for time in times[::step]]
        )
        axes.set_xlabel(f"{min(days)}, UTC" if len(days) == 1 else "UTC")
        axes.set_ylabel(chart.y_label)
        _powers(figure.colorbar(drawn, ax=axes, label="samples").ax.yaxis)
        return _svg(figure)


def _draw(axes: Axes, panel: Panel) -> None:
    values = sorted({x for series in panel.series for x in series.x}) if panel.categories else []
    place = {value: number for number, value in enumerate(values)}
    for number, series in enumerate(panel.series):
        xs = [place[x] for x in series.x] if panel.categories else list(series.x)
        colour = COLOURS[number % len(COLOURS)]
        line = "--" if number >= DASHED else "-"
        style = f"{series.marker}{line}" if series.joined else series.marker
        ys = [math.nan if y is None else y for y in series.y]
        axes.plot(xs, ys, style, color=colour, label=plain(series.label), markersize=4, zorder=3)
        _whiskers(axes, xs, series, colour)
    if panel.categories:
        axes.set_xticks(range(len(values)), [str(value) for value in values])
    elif any(isinstance(x, datetime) for series in panel.series for x in series.x):
        locator = AutoDateLocator()  # type: ignore[no-untyped-call]  # matplotlib says no types here
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    if panel.log_x:
        axes.set_xscale("log")
        _powers(axes.xaxis)
    if panel.ticks:
        axes.set_xticks(list(panel.ticks), list(panel.ticks.values()))
    if panel.log_y:
        axes.set_yscale("log")
        _powers(axes.yaxis)
    if panel.rule is not None:
        axes.axhline(panel.rule, color="#666666", linewidth=1, linestyle="--")
    if panel.zero:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    if panel.series:
        axes.legend()


def _powers(axis: Axis) -> None:
    """Label a logarithmic axis in plain numbers: the powers of ten, and intermediate values if there are few."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0,) if high > 100 * low > 0 else (1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(
        FuncFormatter(lambda number, _: f"{number:,.0f}" if number >= 1 else f"{number:g}")
    )


def _whiskers(axes: Axes, xs: Sequence[Any], series: Series, colour: str) -> None:
    for x, low, high in zip(xs, series.low, series.high, strict=False):
        if low is not None and high is not None:
            axes.plot([x, x], [low, high], "_-", color=colour, linewidth=1)


def _svg(figure: Figure) -> str:
    FigureCanvasSVG(figure)
    target = io.StringIO()
    with warnings.catch_warnings():
        # Names may use any alphabet. They are written as text, for the reader's fonts.
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)
        figure.savefig(target, format="svg", metadata={"Date": None})
    return target.getvalue()
