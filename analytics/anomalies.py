"""Job `anomalies`: queues that behave as they never did at this hour, and limits that are coming near.

A rate is unusual when it is many times as far from the median of its hour of the day as rates of that hour usually
are. Median and median distance, unlike mean and deviation, are not moved by what is looked for.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window, functions as F

from analytics.figures import Panel, Series, at, panels
from analytics.job import Job, Page, Section, Written
from analytics.reading import Input
from analytics.series import steps

RATES: Final = ("pub", "delivered", "acked")
FAR: Final = 6.0
"""Robust deviations that are unusual."""
IN_A_ROW: Final = 3
NORMAL: Final = 1.4826
"""Times the median distance: the standard deviation, were it a normal distribution."""
LEAST_SHARE: Final = 0.05
"""Of the median: rates are not taken to be more even than this."""
ENOUGH: Final = 12
"""Rates of an hour of the day below which nothing is usual yet."""
TREND_MS: Final = 3_600_000
SOON_HOURS: Final = 24
SHOWN: Final = 5
LIMITS: Final = ("node", "what", "room", "per_hour", "hours_left")
_SERIES: Final = ("node", "vhost", "queue", "what")


def compute(data: Input) -> dict[str, DataFrame]:
    """Return `unusual` and `shown`, and `limits` where the node has rows."""
    rates = judged(data.table("queue_interval"))
    unusual = runs(rates)
    made = {
        "unusual": unusual.orderBy("start", *_SERIES),
        "shown": shown(rates, unusual).orderBy(*_SERIES, "time"),
    }
    if data.has("node_interval"):
        made["limits"] = limits(data.table("node_interval")).orderBy("node", "what")
    return made


def judged(rows: DataFrame) -> DataFrame:
    """Return each rate of each queue with its distance `z` from the usual of its hour of the day."""
    taken = steps(rows, "queue_interval", RATES)
    each = F.explode(
        F.array(
            *[
                F.struct(
                    F.lit(name).alias("what"), (F.col(f"d_{name}") * 1e6 / F.col("step_us")).alias("rate")
                )
                for name in RATES
            ]
        )
    )
    rates = taken.select(
        "node", "vhost", "queue", "ts", F.hour(F.timestamp_millis("ts")).alias("hour"), each.alias("one")
    ).select("node", "vhost", "queue", "ts", "hour", "one.*")
    group = [*_SERIES, "hour"]
    middle = rates.groupBy(*group).agg(F.median("rate").alias("median"), F.count("rate").alias("known"))
    placed = rates.join(middle, group)
    distance = F.abs(F.col("rate") - F.col("median"))
    usual = placed.groupBy(*group).agg(F.median(distance).alias("distance"))
    spread = F.greatest(NORMAL * F.col("distance"), LEAST_SHARE * F.col("median"), F.lit(1.0))
    z = F.when(F.col("known") >= ENOUGH, (F.col("rate") - F.col("median")) / spread)
    return placed.join(usual, group).withColumn("z", z)


def runs(rates: DataFrame) -> DataFrame:
    """Return each time that a rate was unusual in `IN_A_ROW` rows or more that follow each other."""
    order = Window.partitionBy(*_SERIES).orderBy("ts")
    far = F.coalesce(F.abs("z") > FAR, F.lit(False))
    side = F.when(far, F.signum("z")).otherwise(0)
    marked = rates.withColumn("side", side)
    changed = F.coalesce(F.col("side") != F.lag("side").over(order), F.lit(True)).cast("int")
    return (
        marked.withColumn("changed", changed)
        .withColumn(
            "run", F.sum("changed").over(order.rowsBetween(Window.unboundedPreceding, Window.currentRow))
        )
        .filter(F.col("side") != 0)
        .groupBy(*_SERIES, "run")
        .agg(
            F.timestamp_millis(F.min("ts")).alias("start"),
            F.timestamp_millis(F.max("ts")).alias("end"),
            F.count("*").alias("intervals"),
            F.max_by("rate", F.abs("z")).alias("rate"),
            F.max_by("median", F.abs("z")).alias("usual"),
            F.max_by("z", F.abs("z")).alias("z"),
        )
        .filter(F.col("intervals") >= IN_A_ROW)
        .drop("run")
    )


def shown(rates: DataFrame, unusual: DataFrame) -> DataFrame:
    """Return the rates of the series that were unusual by most, to be drawn."""
    worst = unusual.groupBy(*_SERIES).agg(F.max(F.abs("z")).alias("worst")).orderBy(F.desc("worst"), *_SERIES)
    return rates.join(F.broadcast(worst.limit(SHOWN)), list(_SERIES)).select(
        *_SERIES, F.timestamp_millis("ts").alias("time"), "rate", "median"
    )


def limits(nodes: DataFrame) -> DataFrame:
    """Return how far memory and disk are from their limits, and in how many hours they are there as things go.

    `hours_left` is null where the distance does not shrink.
    """
    node = Window.partitionBy("node")
    recent = (
        nodes.withColumn("until", F.max("ts").over(node))
        .filter(F.col("ts") > F.col("until") - TREND_MS)
        .withColumn("hours", (F.col("ts") - F.col("until")) / 3_600_000)
    )
    left: dict[str, Column] = {
        "memory": F.col("mem_limit") - F.col("mem_used"),
        "disk": F.col("disk_free") - F.col("disk_limit"),
    }
    each = recent.select(
        "node",
        "ts",
        "hours",
        F.explode(
            F.array(*[F.struct(F.lit(what).alias("what"), room.alias("room")) for what, room in left.items()])
        ).alias("one"),
    ).select("node", "ts", "hours", "one.*")
    found = each.groupBy("node", "what").agg(
        F.max_by("room", "ts").alias("room"),
        F.when(F.count("room") >= IN_A_ROW, F.regr_slope("room", "hours")).alias("per_hour"),
    )
    return found.withColumn(
        "hours_left",
        F.when(F.col("per_hour") < 0, F.greatest(F.col("room"), F.lit(0)) / -F.col("per_hour")),
    )


def describe(written: Written) -> Page:
    """Return the report."""
    unusual, drawn = written.rows("unusual", "start"), written.rows("shown", *_SERIES, "time")
    near = written.rows("limits", "node", "what") if written.has("limits") else []
    sections: list[Section] = []
    for series in sorted({tuple(row[name] for name in _SERIES) for row in drawn}):
        mine = [row for row in drawn if tuple(row[name] for name in _SERIES) == series]
        times = [at(row["time"]) for row in mine]
        lines = [
            Series(series[-1], times, [row["rate"] for row in mine], marker=""),
            Series("usual at this hour", times, [row["median"] for row in mine], marker=""),
        ]
        title = " ".join(series)
        sections.append(
            Section(
                title,
                "UTC.",
                panels(Panel("", "messages a second", lines, zero=True)),
                f"rate-{len(sections)}",
            )
        )
    columns = (*_SERIES, "start", "end", "intervals", "rate", "usual", "z")
    sections += [
        Section("Unusual rates", "", columns=columns, rows=unusual),
        Section("Room left", "Bytes; at the pace of the last hour.", columns=LIMITS, rows=near),
    ]
    full = [row for row in near if row["hours_left"] is not None and row["hours_left"] < SOON_HOURS]
    return Page(
        title="What is unusual, and what is running out",
        lead=f"{len(unusual):,} times a queue's rate was unusual for the hour of the day.",
        facts=[
            f"{row['node']}: {row['what']} reaches its limit in {row['hours_left']:.3g} hours."
            for row in full
        ]
        or [f"Neither memory nor disk reaches its limit within {SOON_HOURS} hours."],
        sections=sections,
    )


JOB: Final = Job(
    name="anomalies",
    summary="rates that are unusual for the hour of the day, and when memory or disk run out",
    needs=("queue_interval",),
    compute=compute,
    describe=describe,
    uses=("node_interval",),
)
