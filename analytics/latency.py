"""Job `latency`: latency of confirms and deliveries, from merged histograms."""

from typing import Final

from pyarrow.dataset import field
from pyspark.sql import DataFrame, functions as F

from leveret.analytics.figures import Heat, Panel, Series, at, panels, series_of
from leveret.analytics.findings import duration
from leveret.analytics.histograms import (
    QUANTILES,
    SCHEME,
    cumulated,
    highest,
    lowest,
    merged,
    quantiles,
    summed,
)
from leveret.analytics.job import Job, Page, Row, Section, Written, number_of
from leveret.analytics.objective import Objective
from leveret.analytics.reading import Input, InputError
from leveret.analytics.series import query, start_of_bin

SLOWEST: Final = 100
FIRST: Final = "deliver"  # the metric that users ask for
NAMES: Final = {FIRST: "Message latency, publish to delivery"}
_WHAT: Final = ("metric", "mode")
_COLUMNS: Final = f"metric mode count mean_us min_us {' '.join(f'{name}_us' for name in QUANTILES)} max_us"


def compute(data: Input) -> dict[str, DataFrame]:
    """Return `by_mode`, `by_time`, `by_queue`, `curves`, `heat` and `objective`.

    Raises InputError: the histograms are of another, unknown bucket scheme.
    """
    rows = data.table("latency_hist")
    # A node's histograms have no queues, so for some queues theirs are added up.
    wanted = f"scope = '{'queue' if data.scope.has_objects else 'node'}'"
    is_first = f"metric = '{FIRST}'"
    (found,) = rows.selectExpr(
        "collect_set(scheme) AS schemes", f"count_if({wanted} AND {is_first}) AS first"
    ).collect()
    if foreign := sorted({*found["schemes"]} - {SCHEME}):
        raise InputError(
            f"unsupported histogram scheme in latency_hist: {', '.join(foreign)} (expected {SCHEME})"
        )
    if not found["first"]:
        # A broker measures from publish to delivery for each queue only.
        wanted += f" OR scope = 'queue' AND {is_first}"
    start = start_of_bin("ts", data.bin_seconds("latency_hist"))
    node = rows.filter(wanted).selectExpr("*", f"timestamp_millis({start}) AS time")
    timed = data.keep(merged(node, (*_WHAT, "time")))
    whole = summed(timed, _WHAT)
    queues = summed(of_queues(data), ("vhost", "name", *_WHAT))
    curve = cumulated(whole, _WHAT).selectExpr(*_WHAT, f"{highest('i')} AS us", "up_to / total AS share")
    return {
        "by_mode": quantiles(whole, _WHAT).orderBy(*_WHAT),
        "by_time": quantiles(timed, (*_WHAT, "time")).orderBy(*_WHAT, "time"),
        "by_queue": quantiles(queues, ("vhost", "name", *_WHAT)).orderBy(
            F.desc("p99_us"), "vhost", "name", *_WHAT
        ),
        "curves": curve.orderBy(*_WHAT, "us"),
        "heat": bands(timed).orderBy("metric", "time", "low_us"),
        "objective": objective(timed, data.objective).orderBy(*_WHAT, "time"),
    }


def bands(timed: DataFrame) -> DataFrame:
    """Return each time's number of samples per quarter of a power of two: from `low_us` to below `end_us`."""
    return query(
        f"""
        WITH bands AS (
            SELECT metric, time, i - pmod(i, 8) AS first, sum(c) AS count FROM {{timed}}
            GROUP BY metric, time, i - pmod(i, 8)
        )
        SELECT metric, time, {lowest("first")} AS low_us, {highest("(first + 7)")} + 1 AS end_us, count FROM bands
        """,
        timed=timed,
    )


def objective(timed: DataFrame, wanted: Objective) -> DataFrame:
    """Return the share of samples beyond an objective for each time, and the burn rate of the error budget.

    A burn rate of 1 uses up exactly what the objective permits; 10 is ten times as fast. A bucket counts as beyond if
    its least value is.
    """
    key = ", ".join((*_WHAT, "time"))
    above = f"sum(IF({lowest('i')} > {wanted.us}, c, 0)) / sum(c)"
    return query(
        f"SELECT {key}, {above} AS above, {above} / {1 - wanted.share!r}D AS burn, '{wanted.words()}' AS objective "
        f"FROM {{timed}} GROUP BY {key}",
        timed=timed,
    )


def of_queues(data: Input) -> DataFrame:
    """Return the histograms of each queue, as `merged` does; computed once for all jobs."""
    rows = data.table("latency_hist").filter(f"scope = 'queue' AND scheme = '{SCHEME}'")
    return data.shared("latency.queues", lambda: merged(rows, ("node", "vhost", "name", *_WHAT)))


def describe(written: Written) -> Page:
    """Return the report."""
    whole, timed = written.rows("by_mode", _is_other, *_WHAT), written.rows("by_time", "time")
    curves = written.rows("curves", *_WHAT, "us")
    burnt = written.rows("objective", "time")
    sections = []
    for metric in sorted({row["metric"] for row in whole}, key=_order):
        sections += _metric(
            metric, *([row for row in rows if row["metric"] == metric] for rows in (curves, timed, burnt))
        )
        cells = [
            (row["time"], _ms(row["low_us"]), _ms(row["end_us"]), row["count"])
            for row in written.rows("heat", "time", "low_us", where=field("metric") == metric)
        ]
        sections.append(
            Section(
                f"{metric_name(metric)}: distribution over time",
                "All modes. Times are in UTC.",
                Heat("ms", cells),
                f"{metric}-heat",
            )
        )
    slowest = written.rows("by_queue", _is_other, "-p99_us", "vhost", "name", *_WHAT, most=SLOWEST)
    sections += [
        Section(
            "By metric and mode",
            "",
            columns=_COLUMNS,
            rows=whole,
        ),
        Section(
            f"The {SLOWEST} slowest queues",
            "By the 99th percentile, those from publish to delivery first. Queues of the same name on several nodes "
            "are merged.",
            columns=f"name vhost {_COLUMNS}",
            rows=slowest,
        ),
    ]
    samples = sum(row["count"] for row in whole)
    return Page(
        title="Latency",
        lead=f"{number_of(samples, 'sample')} of "
        f"{number_of(len({row['metric'] for row in whole}), 'metric')}. Percentiles are accurate to 1/32 of their "
        "value.",
        facts=[
            *[
                f"{_label(row)}: 50 % within {duration(row['p50_us'] / 1e6)}, 99 % within "
                f"{duration(row['p99_us'] / 1e6)}, 99.9 % within {duration(row['p999_us'] / 1e6)} "
                f"({number_of(row['count'], 'sample')})."
                for row in whole
            ],
            *_met(burnt),
        ],
        sections=sections,
    )


def _is_other(row: Row) -> bool:
    return bool(row["metric"] != FIRST)


def _met(burnt: list[Row]) -> list[str]:
    """Return the metrics that were within the objective all the time, which have no figure of their burn rate."""
    missed = {row["metric"] for row in burnt if row["burn"]}
    met = sorted({row["metric"] for row in burnt} - missed, key=_order)
    names = ", ".join(map(metric_name, met))
    return [f"Within the objective of {burnt[0]['objective']} all the time: {names}."] if met else []


def _order(metric: str) -> tuple[bool, str]:
    return metric != FIRST, metric


def metric_name(metric: str) -> str:
    """Return a metric as titles have it."""
    return NAMES.get(metric, metric.replace("_", " ").capitalize())


def _label(row: Row) -> str:
    name = metric_name(row["metric"])
    return f"{name} ({row['mode']})" if row["mode"] else name


def _ms(us: int) -> float:
    return max(us, 0.5) / 1000  # 0 has no place on a logarithmic axis


def _percentiles(shares: list[Series]) -> dict[float, str]:
    """Return labels for an axis of messages of which one is beyond a percentile: 50 %, 90 %, 99 %, 99.9 %, ..."""
    last = max((x for series in shares for x in series.x), default=1.0)
    nines = {10.0**power: f"{100 - 10.0 ** (2 - power):.{max(0, power - 2)}f} %" for power in range(1, 8)}
    return {x: label for x, label in {2.0: "50 %", **nines}.items() if x <= last}


def _metric(metric: str, curves: list[Row], timed: list[Row], burnt: list[Row]) -> list[Section]:
    modes = sorted({row["mode"] for row in timed})
    shares = []
    over = []
    burns = []
    for mode in modes:
        mine = [row for row in curves if row["mode"] == mode]
        label = mode or metric_name(metric)
        beyond = [1.0, *(1 / (1 - row["share"]) for row in mine if row["share"] < 1)]
        shares.append(Series(label, beyond, [_ms(row["us"]) for row in (mine[0], *mine[:-1])], marker=""))
        points = [row for row in timed if row["mode"] == mode]
        times = [at(row["time"]) for row in points]
        over += [
            Series(f"{label} {name}", times, [_ms(row[f"{name}_us"]) for row in points], marker=".")
            for name in ("p50", "p99")
        ]
        here = [row for row in burnt if row["mode"] == mode]
        burns.append(series_of(label, here, "burn"))
    drawn = [
        Section(
            f"{metric_name(metric)}: percentiles",
            "The first chart has the latency within which a part of the messages was, the second that over time, UTC.",
            panels(
                Panel("percentile", "ms", shares, log_x=True, log_y=True, ticks=_percentiles(shares)),
                Panel("", "ms", over, log_y=True),
            ),
            f"{metric}-quantiles",
        ),
    ]
    if any(row["burn"] for row in burnt):
        drawn.append(
            Section(
                f"{metric_name(metric)}: burn rate of the error budget",
                f"Objective: {burnt[0]['objective']}. At a burn rate of 1 it is just met. Times are in UTC.",
                panels(Panel("", "burn rate", burns, zero=True, rule=1)),
                f"{metric}-burn",
            )
        )
    return drawn


JOB: Final = Job(
    name="latency",
    needs=("latency_hist",),
    compute=compute,
    describe=describe,
)
