"""Job `overview`: what is wrong, what has changed, and the history of each queue and node.

All is derived from bins of some seconds or minutes (`history`), so the rows are read once. A finding has a kind, an
object, a level, and from when to when it lasted; `findings` has the words for it.
"""

from collections import Counter
from typing import Final

from pyarrow.dataset import field
from pyspark.sql import DataFrame, functions as F

from leveret.analytics import episodes, latency
from leveret.analytics.episodes import COUNTERS, FEW, MODES
from leveret.analytics.findings import CRITICAL, GOOD, IDLE, WARNING, words
from leveret.analytics.histograms import quantiles, summed
from leveret.analytics.job import Job, Row, Written, number_of, texts
from leveret.analytics.reading import Input
from leveret.analytics.series import FULL_US, MOST_BINS, QUEUE, each, query, start_of_bin, steps
from leveret.analytics.site import MOST_PAGES, OverviewPage
from leveret.analytics.troubles import COLUMNS, boots, findings

_KEY: Final = ", ".join(QUEUE)
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
    times = timeline(data.table("node_interval"), seconds) if has_nodes else of_queues(past, seconds)
    return {
        "history": past.drop("mode").orderBy(*QUEUE, "bin"),
        "findings": found.orderBy(*COLUMNS),
        "queues": queues(past, found, waits(data)).orderBy(*QUEUE),
        "changes": changes(past, seconds).orderBy(*QUEUE, "what"),
        "timeline": times.orderBy("node", "bin"),
        "boots": boots(data).drop("is_last").orderBy("node", "from_ms", "until_ms", "boot_id"),
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

    `past`: bins of queues; `findings`: the findings; `waits`: the latencies of queues.
    """
    waited = (
        "SELECT * FROM {waits}" if waits is not None else f"SELECT {_KEY}, 0L, 0L FROM {{past}} WHERE false"
    )
    levels = ("ready", "unacked", "consumers", "capacity", "held", "promised", "mode")
    return query(
        f"""
        WITH worst AS (
            SELECT {_KEY}, max(CASE level WHEN '{CRITICAL}' THEN 2 WHEN '{WARNING}' THEN 1 ELSE 0 END) AS bad
            FROM {{findings}} WHERE kind NOT IN ('fan_out', 'lost') AND queue IS NOT NULL GROUP BY {_KEY}
        ),
        waited ({_KEY}, p50_us, p99_us) AS ({waited}),
        totals AS (
            SELECT {_KEY}, {each("sum({0}) AS {0}", COUNTERS)}, {each("max_by({0}, bin) AS {0}", levels)},
                max(most) AS worst, greatest(max(bin) - min(bin) + max(seconds) * 1000, 1) / 1000 AS lasted
            FROM {{past}} GROUP BY {_KEY}
        )
        SELECT {_KEY},
            CASE WHEN bad = 2 THEN '{CRITICAL}' WHEN bad = 1 THEN '{WARNING}'
                WHEN pub + delivered + ready = 0 THEN '{IDLE}' ELSE '{GOOD}' END AS level,
            pub, delivered, redelivered, acked, requeued, expired, rejected, dropped, dead_lettered,
            pub / lasted AS pub_rate, delivered / lasted AS delivered_rate, ready, worst, unacked, consumers, capacity,
            element_at(array({each("'{0}'", MODES)}), CAST(mode + 1 AS INT)) AS mode,
            held, promised, t_from_delta, p50_us, p99_us
        FROM totals LEFT JOIN waited USING ({_KEY}) LEFT JOIN worst USING ({_KEY})
        """,
        past=past,
        findings=findings,
        **({} if waits is None else {"waits": waits}),
    )


def changes(past: DataFrame, seconds: int) -> DataFrame:
    """Return what changed most from the first half of the range to the second: rates, and mean backlogs."""
    whats = {"published/s": "pub", "delivered/s": "delivered", "redelivered/s": "redelivered"}
    halves = {"before": "NOT is_after", "after": "is_after"}
    sums = ", ".join(
        f"coalesce(sum(IF({half}, {name}, NULL)), 0) / ((max(until) - max(first)) / 2000) AS {name}_{when}"
        for when, half in halves.items()
        for name in whats.values()
    )
    levels = ", ".join(
        f"coalesce(avg(IF({half}, CAST(ready AS DOUBLE), NULL)), 0D) AS ready_{when}"
        for when, half in halves.items()
    )
    pairs = ", ".join(
        f"struct('{what}' AS what, {name}_before AS before, {name}_after AS after, {least}D AS least)"
        for what, name, least in (
            *((what, name, LEAST_RATE) for what, name in whats.items()), ("ready, mean", "ready", float(FEW)),
        )
    )  # fmt: skip
    return query(
        f"""
        WITH spans AS (
            SELECT node, min(bin) AS first, max(bin) + {seconds * 1000} AS until FROM {{past}} GROUP BY node
        ),
        halves AS (
            SELECT /*+ BROADCAST(spans) */ *, bin >= floor((first + until) / 2) AS is_after
            FROM {{past}} JOIN spans USING (node)
        ),
        grouped AS (SELECT {_KEY}, {sums}, {levels} FROM halves GROUP BY {_KEY}),
        pairs AS (SELECT {_KEY}, inline(array({pairs})) FROM grouped)
        SELECT {_KEY}, what, before, after, (after + least) / (before + least) AS factor FROM pairs
        WHERE (after + least) / (before + least) >= {CHANGED}D
            OR (after + least) / (before + least) <= {1 / CHANGED!r}D
        """,
        past=past,
    )


def timeline(nodes: DataFrame, seconds: int) -> DataFrame:
    """Return the figures of each node over time."""
    levels = ("ready", "unacked", "mem_used", "mem_limit", "connections", "consumers", "disk_free")
    start = start_of_bin("ts - 1", seconds)
    return query(
        f"""
        SELECT node, {start} AS bin, {each("sum(d_{0}) * 1e6 / sum(step_us) AS {0}", NODE_COUNTERS[:4])},
            (sum(d_cpu_user_us) + sum(d_cpu_sys_us)) / sum(step_us) AS cpu,
            {each("max_by({0}, struct(ts, mono_us)) AS {0}", levels)}, max(size(alarms)) AS alarms,
            {seconds} AS seconds
        FROM {{taken}} GROUP BY node, {start}
        """,
        taken=steps(nodes, "node_interval", NODE_COUNTERS, (*levels, "alarms")),
    )


def of_queues(past: DataFrame, seconds: int) -> DataFrame:
    """Return the figures of each node as far as those of its queues tell them, by the time that a bin covers."""
    # A queue without a row is unchanged, or deleted if it has none for longer than that.
    return query(
        f"""
        WITH bins AS (
            SELECT node, bin AS at, max(least(step_us, {seconds * 1_000_000})) AS covered_us,
                {each("sum({0}) AS {0}", ("pub", "delivered", "acked"))}
            FROM {{past}} GROUP BY node, bin
        ),
        lasting AS (
            SELECT *, least(lead(bin) OVER (PARTITION BY {_KEY} ORDER BY bin) - 1,
                bin + {seconds * 1000 + FULL_US // 1000}) AS until
            FROM {{past}}
        ),
        held AS (
            SELECT /*+ BROADCAST(bins) */ node, at, {each("sum({0}) AS {0}", ("ready", "unacked", "consumers"))}
            FROM (SELECT node, bin, until, ready, unacked, consumers FROM lasting)
                JOIN (SELECT node, at FROM bins) AS bins USING (node)
            WHERE at BETWEEN bin AND until GROUP BY node, at
        )
        SELECT node, at AS bin, pub * 1e6 / covered_us AS published, delivered * 1e6 / covered_us AS delivered,
            CAST(NULL AS DOUBLE) AS confirmed, acked * 1e6 / covered_us AS acked, CAST(NULL AS DOUBLE) AS cpu,
            ready, unacked, {each("CAST(NULL AS BIGINT) AS {0}", ("mem_used", "mem_limit", "connections"))}, consumers,
            CAST(NULL AS BIGINT) AS disk_free, CAST(NULL AS INT) AS alarms, {seconds} AS seconds
        FROM bins JOIN held USING (node, at)
        """,
        past=past,
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
