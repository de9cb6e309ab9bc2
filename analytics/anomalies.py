"""Job `anomalies`: unusual queue rates for the hour of the day, and limits that will soon be reached.

A rate is unusual when its distance from the median of its hour of the day is many times the usual distance of that
hour's rates. Unlike mean and standard deviation, median and median distance are not distorted by the outliers.
"""

from typing import Final

from pyspark.sql import DataFrame, functions as F

from leveret.analytics.figures import Panel, Series, at, panels
from leveret.analytics.job import Job, Page, Row, Section, Written, number_of
from leveret.analytics.reading import Input, clocks_of
from leveret.analytics.series import BEFORE, FULL_US, NEAR_MS, QUEUE, clocks, each, query, steps

RATES: Final = ("pub", "delivered", "acked")
FAR: Final = 6.0  # number of robust deviations from which a rate is unusual
IN_A_ROW: Final = 3
NORMAL: Final = 1.4826  # factor from the median distance to the standard deviation of a normal distribution
LEAST_SHARE: Final = 0.05  # minimum deviation, as a fraction of the median
ENOUGH_US: Final = 1_800_000_000
"""Minimum observation time of an hour of the day, in microseconds, before any rate in it is unusual."""
TREND_US: Final = 3_600_000_000
LEAST_TREND_US: Final = 600_000_000  # minimum time covered by a trend, in microseconds
SOON_HOURS: Final = 24
DAY_MS: Final = 86_400_000
SHOWN: Final = 5
_SERIES: Final = (*QUEUE, "what")


def compute(data: Input) -> dict[str, DataFrame]:
    """Return `unusual`, `shown` and `days`, and `limits` if the node has rows."""
    # Every step of `rated` is per queue, so rows are partitioned only once.
    rows = data.grouped(data.table("queue_interval"), *QUEUE)
    clock = clocks_of(data)
    rates = judged(rows, clock, is_folded=data.is_folded)
    if data.is_small:
        rates = data.keep(rates)
    unusual = data.keep(runs(rates))
    worst = unusual.groupBy(*_SERIES).agg(F.max(F.abs("z")).alias("worst")).orderBy(F.desc("worst"), *_SERIES)
    few = F.broadcast(worst.limit(SHOWN))
    if not data.is_small:  # those of few queues are computed again, not kept of all
        rates = judged(rows.join(few, list(QUEUE), "left_semi"), clock, is_folded=data.is_folded)
    made = {
        "unusual": unusual.orderBy("start", *_SERIES),
        "shown": shown(rates, few).orderBy(*_SERIES, "time"),
        "days": rows.selectExpr(f"(max(ts) - min(ts)) / {DAY_MS} AS days"),
    }
    if data.has("node_interval"):
        nodes = data.table("node_interval")
        made["limits"] = limits(nodes, clocks(nodes)).orderBy("node", "what")
    return made


def rated(rows: DataFrame, clocks: DataFrame, *, is_folded: bool = False) -> DataFrame:
    """Return the rates of each queue: a column for each of `RATES`, over the number of `intervals` up to `ts`.

    `after` is the `ts` of the rates before, and null for the first ones of a queue and boot.

    As a queue has a row whenever something changes, the increase over several intervals belongs to the last of them. It
    is spread over all of them only if an expected row is missing, or if the row may stand for several that were folded
    and then has the weight of all of them.
    """
    longest_us = f"{NEAR_MS * 1000}" if is_folded else f"{FULL_US} + 2 * interval_us"
    intervals = "IF(is_two, 1, greatest(1, quiet + 1))" if is_folded else "1"
    rate = "IF(is_quiet, 0D, d_{0} * 1e6 / IF(is_two, interval_us, greatest(interval_us, step_us))) AS {0}"
    # A step of a time in which nothing happened and an interval in which everything did is two parts, others are one.
    return query(
        f"""
        WITH timed AS (
            SELECT /*+ BROADCAST(clocks) */ *, CAST(round(step_us / interval_us) - 1 AS INT) AS quiet
            FROM {{taken}} JOIN {{clocks}} AS clocks USING (node, boot_id)
        ),
        judged AS (SELECT *, quiet > 0 AND step_us <= {longest_us} AS is_two FROM timed),
        split AS (
            SELECT *, explode(IF(is_two, array(true, false), array(false))) AS is_quiet,
                ts - CAST(round(interval_us / 1000) AS BIGINT) AS until
            FROM judged
        )
        SELECT {", ".join(QUEUE)}, interval_us, IF(is_two AND NOT is_quiet, until, {BEFORE}ts) AS after,
            IF(is_quiet, until, ts) AS ts, IF(is_quiet, quiet, {intervals}) AS intervals, {each(rate, RATES)}
        FROM split
        """,
        taken=steps(rows, "queue_interval", RATES, before=["ts"]),
        clocks=clocks,
    )


def judged(rows: DataFrame, clocks: DataFrame, *, is_folded: bool = False) -> DataFrame:
    """Return the rates of each queue with the usual ones of the hour of the day, and their distances from these.

    These are `after`, `ts`, `intervals` and `RATES` as in `rated`, and a `usual_...` and a `z_...` for each of `RATES`.
    """
    window = f"WINDOW hours AS (PARTITION BY {', '.join(QUEUE)}, hour)"
    spread = f"greatest({NORMAL}D * distance_{{0}}, {LEAST_SHARE}D * usual_{{0}}, 1D)"
    z = f"IF(known_us >= {ENOUGH_US}, ({{0}} - usual_{{0}}) / {spread}, NULL) AS z_{{0}}"
    return query(
        f"""
        WITH rates AS (SELECT *, hour(timestamp_millis(ts)) AS hour FROM {{rated}}),
        usual AS (
            SELECT *, sum(intervals * interval_us) OVER hours AS known_us,
                {each("percentile({0}, 0.5D, intervals) OVER hours AS usual_{0}", RATES)}
            FROM rates {window}
        ),
        apart AS (
            SELECT *, {each("percentile(abs({0} - usual_{0}), 0.5D, intervals) OVER hours AS distance_{0}", RATES)}
            FROM usual {window}
        )
        SELECT {", ".join((*QUEUE, "after", "ts", "intervals", *RATES))}, {each("usual_{0}", RATES)}, {each(z, RATES)}
        FROM apart
        """,
        rated=rated(rows, clocks, is_folded=is_folded),
    )


def of_each(rates: DataFrame) -> DataFrame:
    """Return a row for each rate of the result of `judged`: `what` it is of, `rate`, `usual` and `z`."""
    one = each("struct('{0}' AS what, {0} AS rate, usual_{0} AS usual, z_{0} AS z)", RATES)
    return rates.selectExpr(*QUEUE, "after", "ts", "intervals", f"inline(array({one}))")


def runs(rates: DataFrame) -> DataFrame:
    """Return each time that a rate was unusual in at least `IN_A_ROW` successive intervals."""
    key = ", ".join(_SERIES)
    # Unusual rates are few: only these are taken apart and put in order.
    some = " OR ".join(f"abs(z_{name}) > {FAR}D" for name in RATES)
    return query(
        f"""
        WITH far AS (SELECT *, signum(z) AS side FROM {{rates}} WHERE abs(z) > {FAR}D),
        changing AS (
            SELECT *, NOT coalesce(after = lag(ts) OVER series AND side = lag(side) OVER series, false) AS is_new
            FROM far WINDOW series AS (PARTITION BY {key} ORDER BY ts)
        ),
        numbered AS (
            SELECT *, sum(CAST(is_new AS INT)) OVER (
                PARTITION BY {key} ORDER BY ts ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS run
            FROM changing
        )
        SELECT {key}, timestamp_millis(min(ts)) AS start, timestamp_millis(max(ts)) AS end,
            sum(intervals) AS intervals, {each("max_by({0}, abs(z)) AS {0}", ("rate", "usual", "z"))}
        FROM numbered GROUP BY {key}, run HAVING sum(intervals) >= {IN_A_ROW}
        """,
        rates=of_each(rates.filter(some)),
    )


def shown(rates: DataFrame, few: DataFrame) -> DataFrame:
    """Return the rates of a few series, for the figure; `rates`: a result of `judged`."""
    some = of_each(rates.join(few.select(*QUEUE), list(QUEUE), "left_semi")).join(few, list(_SERIES))
    # Of an hour that is not judged nothing is usual.
    return some.selectExpr(
        *_SERIES, "timestamp_millis(ts) AS time", "rate", "IF(z IS NULL, NULL, usual) AS median"
    )


def limits(nodes: DataFrame, clocks: DataFrame) -> DataFrame:
    """Return the distances of memory and disk from their limits, and the hours until these are reached.

    Only a node's last boot is used, and of it the last hour. `hours_left` is 0 if the limit is reached, and null if the
    distance does not shrink or the rows cover less than `LEAST_TREND_US`. `clocks`: those of the rows.
    """
    # A broker without a disk reports -1.
    return query(
        f"""
        WITH recent AS (
            SELECT /*+ BROADCAST(clocks) */ node, (mono_us - until_us) / 3.6e9 AS hours, inline(array(
                struct('memory' AS what, mem_limit - mem_used AS room),
                struct('disk' AS what, IF(disk_free >= 0, disk_free - disk_limit, NULL) AS room)
            ))
            FROM {{nodes}} JOIN {{clocks}} AS clocks USING (node, boot_id)
            WHERE is_last AND mono_us > until_us - {TREND_US}
        ),
        found AS (
            SELECT node, what, max_by(room, hours) AS room,
                IF(max(hours) - min(hours) >= {LEAST_TREND_US} / 3.6e9, regr_slope(room, hours), NULL) AS per_hour
            FROM recent WHERE room IS NOT NULL GROUP BY node, what
        )
        SELECT *, CASE WHEN room <= 0 THEN 0D WHEN per_hour < 0 THEN room / -per_hour END AS hours_left FROM found
        """,
        nodes=nodes,
        clocks=clocks,
    )


def describe(written: Written) -> Page:
    """Return the report."""
    unusual, drawn = written.rows("unusual", "start", *_SERIES), written.rows("shown", *_SERIES, "time")
    near = written.rows("limits", "node", "what") if written.has("limits") else []
    sections: list[Section] = []
    for series in sorted({tuple(row[name] for name in _SERIES) for row in drawn}):
        mine = [row for row in drawn if tuple(row[name] for name in _SERIES) == series]
        times = [at(row["time"]) for row in mine]
        lines = [
            Series(series[-1], times, [row["rate"] for row in mine], marker=""),
            Series("usual for the hour of the day", times, [row["median"] for row in mine], marker=""),
        ]
        title = " ".join(series)
        sections.append(
            Section(
                title,
                "Messages per second. Times are in UTC.",
                panels(Panel("", "messages/s", lines, zero=True)),
                f"rate-{len(sections)}",
            )
        )
    number = written.count("unusual")
    days = written.rows("days")[0]["days"] or 0
    unusual_rates = number_of(number, "queue rate was", "queue rates were") + " unusual"
    lead = f"{unusual_rates} for the hour of the day."
    if days <= 1:
        # Within one day the usual rate of an hour is that of the hour itself, which has nothing to be compared with.
        lead = "Not judged: one day of data." + (f" {unusual_rates} within an hour." if number else "")
    sections += [
        Section(
            "Unusual rates",
            f"A rate is unusual if its deviation exceeds {FAR:g} in {IN_A_ROW} consecutive intervals. Hours of the day "
            f"with less than {ENOUGH_US // 60_000_000} minutes of data are not judged. Times are in UTC.",
            terms={
                "rate": "the rate that deviates most from the usual rate",
                "usual": "the median of the rates in this hour of the day",
                "z": "the deviation as a robust z-score",
            },
            columns="queue vhost what start end intervals rate usual z node",
            rows=unusual,
        ),
        Section(
            "Remaining memory and disk space",
            "Publishers are blocked when no bytes are left. The change per hour is a linear regression over the last "
            "hour. The hours left are empty if the space does not shrink, or if there are less than "
            f"{LEAST_TREND_US // 60_000_000} minutes of data.",
            columns="node what room per_hour hours_left",
            rows=near,
        ),
    ]
    return Page(
        title="Anomalies",
        lead=lead,
        facts=_warnings(near),
        sections=sections,
    )


def _warnings(near: list[Row]) -> list[str]:
    if not near:
        return ["No forecast for memory and disk: the input has no rows of node_interval."]
    warnings = [
        f"{row['node']}: {row['what']} is at its limit."
        if row["hours_left"] == 0
        else f"{row['node']}: {row['what']} reaches its limit in {row['hours_left']:.3g} hours."
        for row in near
        if row["hours_left"] is not None and row["hours_left"] < SOON_HOURS
    ]
    if warnings or all(row["per_hour"] is None for row in near):
        return warnings or ["Not enough data to forecast when memory or disk reach their limits."]
    return [f"Neither memory nor disk reaches its limit within {SOON_HOURS} hours at the current rate."]


JOB: Final = Job(
    name="anomalies",
    needs=("queue_interval",),
    compute=compute,
    describe=describe,
    uses=("node_interval",),
)
