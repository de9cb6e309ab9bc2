"""Job `overview`: what is wrong, what has changed, and the history of each queue and node.

All is derived from bins of some seconds or minutes (`history`), so the rows are read once. A finding has a kind, an
object, a level, and from when to when it lasted; `findings` has the words for it.
"""

from collections import Counter
from typing import Final

from pyarrow.dataset import field
from pyspark.sql import Column, DataFrame, Window, functions as F

from leveret.analytics import episodes, latency
from leveret.analytics.episodes import COUNTERS, FEW, MODES
from leveret.analytics.findings import CRITICAL, GOOD, IDLE, WARNING, words
from leveret.analytics.histograms import quantiles, summed
from leveret.analytics.job import Job, Row, Written, number_of, texts
from leveret.analytics.reading import Input
from leveret.analytics.series import FULL_US, MOST_BINS, QUEUE, start_of_bin, steps
from leveret.analytics.site import MOST_PAGES, OverviewPage
from leveret.analytics.troubles import COLUMNS, boots, findings

NODE_COUNTERS: Final = ("published", "delivered", "confirmed", "acked", "cpu_user_us", "cpu_sys_us")
CHANGED: Final = 1.5  # least factor between two ranges for a change
LEAST_RATE: Final = 0.1
"""Messages a second that are added to rates before they are compared, so that trifles are no change."""


def compute(data: Input) -> dict[str, DataFrame]:
    """Return `history`, `queues`, `findings`, `changes`, `timeline` and `boots`."""
    seconds = data.bin_seconds("queue_interval")
    past = data.keep(episodes.longer(episodes.binned(data), seconds).withColumn("seconds", F.lit(seconds)))
    found = findings(data)
    # The figures of a whole node say nothing of a part of its queues.
    has_nodes = data.has("node_interval") and not data.scope.has_objects
    nodes = data.table("node_interval") if has_nodes else None
    return {
        "history": past.drop("mode").orderBy(*QUEUE, "bin"),
        "findings": found.orderBy(*COLUMNS),
        "queues": queues(past, found, waits(data)).orderBy(*QUEUE),
        "changes": changes(past, seconds).orderBy(*QUEUE, "what"),
        "timeline": (of_queues(past, seconds) if nodes is None else timeline(nodes, seconds)).orderBy(
            "node", "bin"
        ),
        "boots": boots(data).orderBy("node", "from_ms", "until_ms", "boot_id"),
    }


def waits(data: Input) -> DataFrame | None:
    """Return the median and the 99th percentile from publish to delivery of each queue; None without samples."""
    if not data.has("latency_hist"):
        return None
    keys = ("node", "vhost", "name")
    samples = latency.of_queues(data).filter(F.col("metric") == latency.FIRST)
    return quantiles(summed(samples, keys), keys).select(
        "node", "vhost", F.col("name").alias("queue"), "p50_us", "p99_us"
    )


def queues(past: DataFrame, findings: DataFrame, waits: DataFrame | None = None) -> DataFrame:
    """Return each queue with its totals, its state at the end, and its `level`: that of its worst finding.

    `past`: bins of queues; `findings`: the findings.
    """
    worst = (
        findings.filter(~F.col("kind").isin("fan_out", "lost") & F.col("queue").isNotNull())
        .groupBy(*QUEUE)
        .agg(
            F.max(
                F.when(F.col("level") == CRITICAL, 2).when(F.col("level") == WARNING, 1).otherwise(0)
            ).alias("bad")
        )
    )
    seconds = F.greatest(F.max("bin") - F.min("bin") + F.max("seconds") * 1000, F.lit(1)) / 1000
    totals = past.groupBy(*QUEUE).agg(
        *[F.sum(name).alias(name) for name in COUNTERS],
        (F.sum("pub") / seconds).alias("pub_rate"),
        (F.sum("delivered") / seconds).alias("delivered_rate"),
        *[
            F.max_by(name, "bin").alias(name)
            for name in ("ready", "unacked", "consumers", "capacity", "held", "promised", "mode")
        ],
        F.max("most").alias("worst"),
    )
    if waits is None:
        totals = totals.withColumns(dict.fromkeys(("p50_us", "p99_us"), F.lit(None).cast("bigint")))
    else:
        totals = totals.join(waits, list(QUEUE), "left")
    return totals.join(worst, list(QUEUE), "left").select(
        *QUEUE,
        F.when(F.col("bad") == 2, CRITICAL)  # noqa: PLR2004 - the greatest above
        .when(F.col("bad") == 1, WARNING)
        .when(F.col("pub") + F.col("delivered") + F.col("ready") == 0, IDLE)
        .otherwise(GOOD)
        .alias("level"),
        *(
            "pub",
            "delivered",
            "redelivered",
            "acked",
            "requeued",
            "expired",
            "rejected",
            "dropped",
            "dead_lettered",
        ),
        *("pub_rate", "delivered_rate", "ready", "worst", "unacked", "consumers", "capacity"),
        F.element_at(F.array(*map(F.lit, MODES)), (F.col("mode") + 1).cast("int")).alias("mode"),
        *("held", "promised", "t_from_delta", "p50_us", "p99_us"),
    )


def changes(past: DataFrame, seconds: int) -> DataFrame:
    """Return what changed most from the first half of the range to the second: rates, and mean backlogs."""
    length = seconds * 1000
    both = past.groupBy("node").agg(F.min("bin").alias("first"), (F.max("bin") + length).alias("until"))
    split = F.floor((F.col("first") + F.col("until")) / 2)
    halves = past.join(F.broadcast(both), "node").withColumn("is_after", F.col("bin") >= split)
    each_s = (F.max("until") - F.max("first")) / 2000

    def rate(name: str, *, after: bool) -> Column:
        wanted = F.col("is_after") if after else ~F.col("is_after")
        return F.coalesce(F.sum(F.when(wanted, F.col(name))), F.lit(0)) / each_s

    def level(*, after: bool) -> Column:
        wanted = F.col("is_after") if after else ~F.col("is_after")
        return F.coalesce(F.avg(F.when(wanted, F.col("ready").cast("double"))), F.lit(0.0))

    whats = {"published/s": "pub", "delivered/s": "delivered", "redelivered/s": "redelivered"}
    grouped = halves.groupBy(*QUEUE).agg(
        *[
            rate(name, after=after).alias(f"{name}_{after}")
            for name in whats.values()
            for after in (False, True)
        ],
        level(after=False).alias("ready_False"),
        level(after=True).alias("ready_True"),
    )
    pairs = [
        F.struct(
            F.lit(what).alias("what"),
            F.col(f"{name}_False").alias("before"),
            F.col(f"{name}_True").alias("after"),
        )
        for what, name in {**whats, "ready, mean": "ready"}.items()
    ]
    least = F.when(F.col("what") == "ready, mean", float(FEW)).otherwise(LEAST_RATE)
    factor = (F.col("after") + least) / (F.col("before") + least)
    return (
        grouped.select(*QUEUE, F.explode(F.array(*pairs)).alias("one"))
        .select(*QUEUE, "one.*")
        .withColumn("factor", factor)
        .filter((F.col("factor") >= CHANGED) | (F.col("factor") <= 1 / CHANGED))
    )


def timeline(nodes: DataFrame, seconds: int) -> DataFrame:
    """Return the figures of each node over time."""
    levels = ("ready", "unacked", "mem_used", "mem_limit", "connections", "consumers", "disk_free")
    taken = steps(nodes, "node_interval", NODE_COUNTERS, (*levels, "alarms")).withColumn(
        "bin", start_of_bin(F.col("ts") - 1, seconds)
    )
    at = F.struct("ts", "mono_us")

    def per_second(name: str) -> Column:
        return F.sum(f"d_{name}") * 1e6 / F.sum("step_us")

    return taken.groupBy("node", "bin").agg(
        *[per_second(name).alias(name) for name in ("published", "delivered", "confirmed", "acked")],
        ((F.sum("d_cpu_user_us") + F.sum("d_cpu_sys_us")) / F.sum("step_us")).alias("cpu"),
        *[F.max_by(name, at).alias(name) for name in levels],
        F.max(F.size("alarms")).alias("alarms"),
        F.lit(seconds).alias("seconds"),
    )


def of_queues(past: DataFrame, seconds: int) -> DataFrame:
    """Return the figures of each node as far as those of its queues tell them, by the time that a bin covers."""
    unknown = F.lit(None)
    order = Window.partitionBy(*QUEUE).orderBy("bin")
    covered_us = F.max(F.least("step_us", F.lit(seconds * 1_000_000)))
    counters = ("pub", "delivered", "acked")
    levels = ("ready", "unacked", "consumers")
    bins = past.groupBy("node", "bin").agg(
        covered_us.alias("covered_us"), *[F.sum(name).alias(name) for name in counters]
    )
    # A queue without a row is unchanged, or deleted if it has none for longer than that.
    lasting = F.col("bin") + seconds * 1000 + FULL_US // 1000
    held = (
        past.withColumn("until", F.least(F.lead("bin").over(order) - 1, lasting))
        .join(F.broadcast(bins.select("node", F.col("bin").alias("at"))), "node")
        .filter(F.col("at").between(F.col("bin"), F.col("until")))
        .groupBy("node", F.col("at").alias("bin"))
        .agg(*[F.sum(name).alias(name) for name in levels])
    )
    per_second = {name: F.col(name) * 1e6 / F.col("covered_us") for name in counters}
    return bins.join(held, ["node", "bin"]).select(
        "node",
        "bin",
        per_second["pub"].alias("published"),
        per_second["delivered"].alias("delivered"),
        unknown.cast("double").alias("confirmed"),
        per_second["acked"].alias("acked"),
        unknown.cast("double").alias("cpu"),
        "ready",
        "unacked",
        *[unknown.cast("bigint").alias(name) for name in ("mem_used", "mem_limit", "connections")],
        "consumers",
        unknown.cast("bigint").alias("disk_free"),
        unknown.cast("int").alias("alarms"),
        F.lit(seconds).alias("seconds"),
    )


def describe(written: Written) -> OverviewPage:
    """Return the overview."""
    levels = {CRITICAL: 2, WARNING: 1}

    def severity(row: Row) -> int:
        return -levels.get(row["level"], 0)

    queues = written.rows("queues", severity, "-worst", "-pub_rate", *QUEUE)
    shown = {tuple(row[name] for name in QUEUE) for row in queues[:MOST_PAGES]}
    past = written.rows(
        "history",
        *QUEUE,
        "bin",
        where=field("queue").isin(texts(each[-1] for each in shown)),
        most=MOST_BINS * MOST_PAGES,
    )
    counts = Counter(written.column("queues", "level"))
    published, delivered, ready = (
        sum(written.column("queues", name)) for name in ("pub", "delivered", "ready")
    )
    number = counts.total()
    told = [
        words(row)
        for row in sorted(
            written.rows("findings", *COLUMNS), key=lambda row: (severity(row), row["from_ms"] or 0)
        )
    ]
    bad, poor = counts[CRITICAL], counts[WARNING]
    return OverviewPage(
        title="Overview",
        lead=f"{number_of(number, 'queue')}: {bad:,} critical, {poor:,} with warnings. "
        f"{number_of(published, 'message')} published, {delivered:,} delivered, "
        f"{ready:,} ready at the end.",
        facts=[each.sentence for each in told],
        sections=[],
        findings=told,
        queues=queues,
        history=past,
        timeline=written.rows("timeline", "node", "bin"),
        changes=written.rows("changes", lambda row: -abs(row["after"] - row["before"]), *QUEUE, "what"),
        boots=written.rows("boots", "node", "from_ms"),
        published=published,
        delivered=delivered,
        ready=ready,
    )


JOB: Final = Job(
    name="overview",
    needs=("queue_interval",),
    compute=compute,
    describe=describe,
    uses=("node_interval", "event", "exchange_interval", "latency_hist"),
)
