"""Job `anomalies`: unusual queue rates for the hour of the day, and limits that will soon be reached.

A rate is unusual when its distance from the median of its hour of the day is many times the usual distance of that
hour's rates. Unlike mean and standard deviation, median and median distance are not distorted by the outliers.
"""

from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame, Window, functions as F

from leveret.analytics.figures import Panel, Series, at, panels
from leveret.analytics.job import Job, Page, Row, Section, Written, number_of
from leveret.analytics.reading import Input, clocks_of
from leveret.analytics.series import BEFORE, FULL_US, NEAR_MS, QUEUE, clocks, steps

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
LIMITS: Final = ("node", "what", "room", "per_hour", "hours_left")
_SERIES: Final = (*QUEUE, "what")


def compute(data: Input) -> dict[str, DataFrame]:
    """Return `unusual`, `shown` and `days`, and `limits` if the node has rows."""
    # Every step of `rated` is per queue, so rows are partitioned only once.
    rows = data.grouped(data.table("queue_interval"), *QUEUE)
    nodes = data.table("node_interval") if data.has("node_interval") else None
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
        "days": rows.agg(((F.max("ts") - F.min("ts")) / DAY_MS).alias("days")),
    }
    if nodes is not None:
        made["limits"] = limits(nodes).orderBy("node", "what")
    return made


def rated(rows: DataFrame, clocks: DataFrame, *, is_folded: bool = False) -> DataFrame:
    """Return the rates of each queue: a column for each of `RATES`, over the number of `intervals` up to `ts`.

    `after` is the `ts` of the rates before, and null for the first ones of a queue and boot.

    As a queue has a row whenever something changes, the increase over several intervals belongs to the last of them. It
    is spread over all of them only if an expected row is missing, or if the row may stand for several that were folded
    and then has the weight of all of them.
    """
    taken = steps(rows, "queue_interval", RATES, before=["ts"]).join(F.broadcast(clocks), ["node", "boot_id"])
    interval = F.col("interval_us")
    quiet = (F.round(F.col("step_us") / interval) - 1).cast("int")
    is_whole = F.col("step_us") <= (F.lit(NEAR_MS * 1000) if is_folded else FULL_US + 2 * interval)
    # A step of a time in which nothing happened and an interval in which everything did is two parts, others are one.
    parts = F.when(F.col("is_two"), F.array(F.lit(True), F.lit(False))).otherwise(F.array(F.lit(False)))
    increases = [f"d_{name}" for name in RATES]
    split = taken.select(
        *(*QUEUE, "ts", f"{BEFORE}ts", "step_us", "interval_us", *increases),
        quiet.alias("quiet"),
        ((quiet > 0) & is_whole).alias("is_two"),
    ).select("*", F.explode(parts).alias("is_quiet"))
    until = F.col("ts") - F.round(interval / 1000).cast("bigint")
    over_us = F.when(F.col("is_two"), interval).otherwise(F.greatest(interval, "step_us"))
    one = F.lit(1)
    intervals = (
        F.when(F.col("is_two"), one).otherwise(F.greatest(one, F.col("quiet") + 1)) if is_folded else one
    )
    is_quiet = F.col("is_quiet")
    return split.select(
        *QUEUE,
        "interval_us",
        F.when(F.col("is_two") & ~is_quiet, until).otherwise(F.col(f"{BEFORE}ts")).alias("after"),
        F.when(is_quiet, until).otherwise(F.col("ts")).alias("ts"),
        F.when(is_quiet, F.col("quiet")).otherwise(intervals).alias("intervals"),
        *[
            F.when(is_quiet, F.lit(0.0)).otherwise(F.col(f"d_{name}") * 1e6 / over_us).alias(name)
            for name in RATES
        ],
    )


def judged(rows: DataFrame, clocks: DataFrame, *, is_folded: bool = False) -> DataFrame:
    """Return the rates of each queue with the usual ones of the hour of the day, and their distances from these.

    These are `after`, `ts`, `intervals` and `RATES` as in `rated`, and a `usual_...` and a `z_...` for each of `RATES`.
    """
    rates = rated(rows, clocks, is_folded=is_folded).withColumn("hour", F.hour(F.timestamp_millis("ts")))
    group = Window.partitionBy(*QUEUE, "hour")

    def median(value: Column) -> Column:
        return F.percentile(value, 0.5, F.col("intervals")).over(group)

    def z(name: str) -> Column:
        usual = F.col(f"usual_{name}")
        spread = F.greatest(NORMAL * F.col(f"distance_{name}"), LEAST_SHARE * usual, F.lit(1.0))
        return F.when(F.col("known_us") >= ENOUGH_US, (F.col(name) - usual) / spread)

    return (
        rates.select(
            "*",
            F.sum(F.col("intervals") * F.col("interval_us")).over(group).alias("known_us"),
            *[median(F.col(name)).alias(f"usual_{name}") for name in RATES],
        )
        .select(
            "*",
            *[
                median(F.abs(F.col(name) - F.col(f"usual_{name}"))).alias(f"distance_{name}")
                for name in RATES
            ],
        )
        .select(
            *QUEUE,
            "after",
            "ts",
            "intervals",
            *RATES,
            *[f"usual_{name}" for name in RATES],
            *[z(name).alias(f"z_{name}") for name in RATES],
        )
    )


def of_each(rates: DataFrame) -> DataFrame:
    """Return a row for each rate of the result of `judged`: `what` it is of, `rate`, `usual` and `z`."""
    each = [
        F.struct(
            F.lit(name).alias("what"),
            F.col(name).alias("rate"),
            F.col(f"usual_{name}").alias("usual"),
            F.col(f"z_{name}").alias("z"),
        )
        for name in RATES
    ]
    common = (*QUEUE, "after", "ts", "intervals")
    return rates.select(*common, F.explode(F.array(*each)).alias("one")).select(*common, "one.*")


def runs(rates: DataFrame) -> DataFrame:
    """Return each time that a rate was unusual in at least `IN_A_ROW` successive intervals."""
    # Unusual rates are few: only these are taken apart and put in order.
    some = reduce(or_, [F.coalesce(F.abs(f"z_{name}") > FAR, F.lit(False)) for name in RATES])
    order = Window.partitionBy(*_SERIES).orderBy("ts")
    goes_on = (F.col("after") == F.lag("ts").over(order)) & (F.col("side") == F.lag("side").over(order))
    return (
        of_each(rates.filter(some))
        .filter(F.abs("z") > FAR)
        .withColumn("side", F.signum("z"))
        .withColumn("changed", (~F.coalesce(goes_on, F.lit(False))).cast("int"))
        .withColumn(
            "run", F.sum("changed").over(order.rowsBetween(Window.unboundedPreceding, Window.currentRow))
        )
        .groupBy(*_SERIES, "run")
        .agg(
            F.timestamp_millis(F.min("ts")).alias("start"),
            F.timestamp_millis(F.max("ts")).alias("end"),
            F.sum("intervals").alias("intervals"),
            F.max_by("rate", F.abs("z")).alias("rate"),
            F.max_by("usual", F.abs("z")).alias("usual"),
            F.max_by("z", F.abs("z")).alias("z"),
        )
        .filter(F.col("intervals") >= IN_A_ROW)
        .drop("run")
    )


def shown(rates: DataFrame, few: DataFrame) -> DataFrame:
    """Return the rates of a few series, for the figure; `rates`: a result of `judged`."""
    return (
        of_each(rates.join(few.select(*QUEUE), list(QUEUE), "left_semi"))
        .join(few, list(_SERIES))
        .select(*_SERIES, F.timestamp_millis("ts").alias("time"), "rate", F.col("usual").alias("median"))
    )


def limits(nodes: DataFrame) -> DataFrame:
    """Return the distances of memory and disk from their limits, and the hours until these are reached.

    Only a node's last boot is used, and of it the last hour. `hours_left` is 0 if the limit is reached, and null if the
    distance does not shrink or the rows cover less than `LEAST_TREND_US`.
    """
    recent = (
        nodes.join(F.broadcast(clocks(nodes).filter("is_last")), ["node", "boot_id"])
        .filter(F.col("mono_us") > F.col("until_us") - TREND_US)
        .withColumn("hours", (F.col("mono_us") - F.col("until_us")) / 3.6e9)
    )
    left: dict[str, Column] = {
        "memory": F.col("mem_limit") - F.col("mem_used"),
        # a broker without a disk reports -1
        "disk": F.when(F.col("disk_free") >= 0, F.col("disk_free") - F.col("disk_limit")),
    }
    each = recent.select(
        "node",
        "hours",
        F.explode(
            F.array(*[F.struct(F.lit(what).alias("what"), room.alias("room")) for what, room in left.items()])
        ).alias("one"),
    ).select("node", "hours", "one.*")
    found = (
        each.filter(F.col("room").isNotNull())
        .groupBy("node", "what")
        .agg(
            F.max_by("room", "hours").alias("room"),
            F.when(
                F.max("hours") - F.min("hours") >= LEAST_TREND_US / 3.6e9, F.regr_slope("room", "hours")
            ).alias("per_hour"),
        )
    )
    hours_left = F.when(F.col("room") <= 0, F.lit(0.0)).when(
        F.col("per_hour") < 0, F.col("room") / -F.col("per_hour")
    )
    return found.withColumn("hours_left", hours_left)


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
    lead = number_of(number, "queue rate was", "queue rates were") + " unusual for the hour of the day."
    if days <= 1 and not number:
        # Within one day the usual rate of an hour is that of the hour itself, which has nothing to be compared with.
        lead = "Not judged: one day of data."
    columns = (*_SERIES, "start", "end", "intervals", "rate", "usual", "z")
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
            columns=columns,
            rows=unusual,
        ),
        Section(
            "Remaining memory and disk space",
            "Publishers are blocked when no bytes are left. The change per hour is a linear regression over the last "
            "hour. The hours left are empty if the space does not shrink, or if there are less than "
            f"{LEAST_TREND_US // 60_000_000} minutes of data.",
            columns=LIMITS,
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
