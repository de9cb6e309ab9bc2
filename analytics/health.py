"""Job `health`: hot queues, and consumers that are slow, stuck or gone, judged without thresholds of numbers.

The verdicts are those of LinkedIn's Burrow about consumers of a log, carried over to queues. They look at the last
intervals only, and ask whether a queue's backlog and its acks move:

- a queue that was empty at some time in the window is `ok`: its consumers keep up;
- nothing delivered and nothing acked in all of it: `stopped`;
- deliveries, but no acks, and the backlog does not shrink: `stalled`;
- acks, but the backlog grew in every step: `falling behind`;
- anything else is `ok`.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window, functions as F

from analytics.figures import bars
from analytics.job import Job, Page, Section, Written
from analytics.reading import Input
from analytics.series import last

OK: Final = "ok"
STOPPED: Final = "stopped"
STALLED: Final = "stalled"
BEHIND: Final = "falling behind"
INTERVALS: Final = 10
"""How many of them are looked at."""
FULL_MS: Final = 60_000
"""A queue in which nothing changes has a row so often."""
HOT: Final = 3.0
"""Times the median publish rate of a node's queues that make one hot."""
IDLE_CAPACITY: Final = 0.5
SHOWN: Final = 20
_QUEUE: Final = ("node", "boot_id", "vhost", "queue", "since_ms")


def compute(data: Input) -> dict[str, DataFrame]:
    """Return `queues`, each with its verdict, and `totals`."""
    rows = data.table("queue_interval")
    counters = ("pub", "delivered", "acked")
    return {
        "queues": hot(verdicts(rows)).orderBy("node", "vhost", "queue"),
        "totals": last(rows, "queue_interval", ("node",), counters).orderBy("node"),
    }


def interval_ms(rows: DataFrame) -> DataFrame:
    """Return for each node and boot its last row's time `until`, and the usual distance `interval` of its rows."""
    moments = rows.select("node", "boot_id", "ts").distinct()
    order = Window.partitionBy("node", "boot_id").orderBy("ts")
    return (
        moments.withColumn("step", F.col("ts") - F.lag("ts").over(order))
        .groupBy("node", "boot_id")
        .agg(
            F.max("ts").alias("until"),
            F.coalesce(F.median("step"), F.lit(5000)).cast("bigint").alias("interval"),
        )
    )


def verdicts(rows: DataFrame) -> DataFrame:
    """Return a row for each queue that is still there at the end, with its `verdict`."""
    placed = rows.join(F.broadcast(interval_ms(rows)), ["node", "boot_id"])
    since = F.col("until") - INTERVALS * F.col("interval")
    order = Window.partitionBy(*_QUEUE).orderBy("mono_us")
    stepped = placed.withColumn("window_start", since).select(
        "*",
        (F.col("ready") - F.lag("ready").over(order)).alias("d_ready"),
        F.lead("ts").over(order).alias("next_ts"),
    )
    # The row before the window counts for its beginning: where no row is written nothing has changed.
    seen = stepped.filter(F.col("next_ts").isNull() | (F.col("next_ts") > F.col("window_start")))
    inside = F.col("ts") > F.col("window_start")

    def grown(name: str) -> Column:
        return F.max_by(name, "mono_us") - F.min_by(name, "mono_us")

    judged = seen.groupBy(*_QUEUE).agg(
        F.max("until").alias("until"),
        F.max("interval").alias("interval"),
        F.max("ts").alias("last_ts"),
        F.max_by("mode", "mono_us").alias("mode"),
        F.max_by("ready", "mono_us").alias("ready"),
        F.max_by("unacked", "mono_us").alias("unacked"),
        F.max_by("consumers", "mono_us").alias("consumers"),
        F.max_by("capacity", "mono_us").alias("capacity"),
        F.min("ready").alias("least"),
        (F.max("ts") - F.min("ts")).alias("span_ms"),
        grown("ready").alias("grown"),
        grown("acked").alias("acked"),
        grown("delivered").alias("delivered"),
        grown("pub").alias("pub"),
        F.count_if(inside).alias("steps"),
        F.coalesce(F.min(F.when(inside, F.col("d_ready") > 0).cast("int")) == 1, F.lit(False)).alias(
            "rising"
        ),
    )
    there = judged.filter(F.col("until") - F.col("last_ts") <= FULL_MS + 2 * F.col("interval"))
    verdict = (
        F.when(F.col("least") == 0, OK)
        .when((F.col("acked") == 0) & (F.col("delivered") == 0), STOPPED)
        .when((F.col("acked") == 0) & (F.col("grown") >= 0), STALLED)
        .when((F.col("acked") > 0) & F.col("rising"), BEHIND)
        .otherwise(OK)
    )
    busy = (F.col("ready") > 0) & (F.col("consumers") > 0) & (F.col("capacity") < IDLE_CAPACITY)
    return there.withColumn("verdict", verdict).withColumn("consumers_busy", busy)


def hot(queues: DataFrame) -> DataFrame:
    """Add each queue's publish `rate` and its `share` of the node's, and whether it is `hot`."""
    node = Window.partitionBy("node", "boot_id")
    rated = queues.withColumn("rate", F.coalesce(F.try_divide(F.col("pub") * 1000, "span_ms"), F.lit(0.0)))
    usual = rated.filter(F.col("rate") > 0).groupBy("node", "boot_id").agg(F.median("rate").alias("usual"))
    return (
        rated.withColumn("share", F.try_divide("rate", F.sum("rate").over(node)))
        .join(usual, ["node", "boot_id"], "left")
        .withColumn("hot", F.coalesce(F.col("rate") > HOT * F.col("usual"), F.lit(False)))
        .drop("usual", "until", "interval", "last_ts", "least", "rising")
    )


def describe(written: Written) -> Page:
    """Return the report."""
    totals = written.rows("totals", "node")
    number = written.table("queues").count()
    wrong = written.rows("queues", "verdict", "node", "vhost", "queue", where=F.col("verdict") != OK)
    busiest = written.rows("queues", F.desc("rate"), "node", "vhost", "queue")[:SHOWN]
    columns = (
        "node",
        "vhost",
        "queue",
        "verdict",
        "ready",
        "grown",
        "acked",
        "delivered",
        "consumers",
        "capacity",
    )
    facts = [
        f"{written.count('queues', F.col('verdict') == verdict):,} of {number:,} queues: {verdict}."
        for verdict in (STOPPED, STALLED, BEHIND)
    ]
    facts.append(
        f"{written.count('queues', F.col('hot')):,} queues are hot: more than {HOT:g} times the median rate."
    )
    return Page(
        title="Queues and their consumers",
        lead=f"{number:,} queues at the end; since the start {sum(row['pub'] for row in totals):,} messages were "
        f"published, {sum(row['delivered'] for row in totals):,} delivered, "
        f"{sum(row['acked'] for row in totals):,} settled.",
        facts=facts,
        sections=[
            Section("Consumers that do not keep up", "Over the last intervals.", columns=columns, rows=wrong),
            Section(
                f"The {SHOWN} busiest queues",
                "",
                bars(
                    "messages a second", [(f"{row['vhost']} {row['queue']}", row["rate"]) for row in busiest]
                ),
                "busiest",
                columns=("node", "vhost", "queue", "rate", "share", "hot", "consumers_busy"),
                rows=busiest,
            ),
        ],
    )


JOB: Final = Job(
    name="health",
    summary="hot queues, and consumers that are slow, stuck or gone",
    needs=("queue_interval",),
    compute=compute,
    describe=describe,
)
