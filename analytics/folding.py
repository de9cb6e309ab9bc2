"""Folding of old rows: a row for each object and span of time takes the place of all its rows in it.

Counters and areas count from the beginning, so the last row of a span says what all of them said, at a lower
resolution: totals and averages over time remain exact. Histograms of a span are added up, and their percentiles remain
those of all samples. Repeated events of connections are counted. Gauges have their last value: short peaks are lost.

Folding what was folded before gives the same as folding all rows at once.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window, functions as F

from leveret.analytics.schemas import Table

RECENT_MS: Final = 10 * 60_000  # age of the oldest row that is kept as it is
SPANS: Final = ((2 * 3_600_000, 60_000), (2 * 86_400_000, 900_000))
"""Ages up to which rows have spans of such a length; both in milliseconds. Older ones have spans of `LONGEST_MS`."""
LONGEST_MS: Final = 3_600_000
TIMES: Final = "times"  # key in the detail of an event: the number of events that it stands for
COUNTED: Final = f"coalesce(try_cast(try_element_at(detail, '{TIMES}') AS BIGINT), 1)"
"""The number of events that a row of `event` stands for, as the text of a column."""
REPEATED: Final = ("connection_opened", "connection_closed", "auth_failed")
_SPAN: Final = "_span"


def fold(rows: DataFrame, table: Table, now_ms: int) -> DataFrame:
    """Return rows with those that are old folded.

    `rows`: rows of the table; `table`: its declaration. Tables without a clock are returned as they are; `now_ms`: the
    time from which ages are reckoned, that of the newest row.
    """
    if not table.has_clock:
        return rows
    is_old = F.col("ts") <= now_ms - RECENT_MS
    old, recent = rows.filter(is_old), rows.filter(~is_old)
    age, length = now_ms - F.col("ts"), F.lit(LONGEST_MS)
    for oldest, span in reversed(SPANS):
        length = F.when(age <= oldest, span).otherwise(length)
    placed = old.withColumn(
        _SPAN, F.struct(length.alias("length"), F.floor(F.col("ts") / length).alias("at"))
    )
    made = {"latency_hist": _added, "event": _counted}.get(table.name, _last)(placed, table)
    return made.select(*table.schema.names).unionByName(recent)


def _last(rows: DataFrame, table: Table) -> DataFrame:
    """Return the last row of each object in each span, and its first of all, from which differences are taken."""
    keys = table.of_kind("key")
    span = Window.partitionBy(*keys, _SPAN)
    ends = rows.withColumn("_end", F.max("mono_us").over(span)).withColumn(
        "_first", F.min("mono_us").over(Window.partitionBy(*keys))
    )
    # What is of a row alone is the greatest of something.
    for name in table.of_kind("sum"):
        ends = ends.withColumn(name, F.max(name).over(span))
    return ends.filter((F.col("mono_us") == F.col("_end")) | (F.col("mono_us") == F.col("_first")))


def _added(rows: DataFrame, table: Table) -> DataFrame:
    """Return the histograms of each object in each span as one."""
    by = (*table.of_kind("key"), "scheme", _SPAN)
    buckets = rows.select("*", F.posexplode_outer("b").alias("at", "bucket"))
    is_first = F.coalesce(F.col("at"), F.lit(0)) == 0

    def once(name: str) -> Column:
        return F.sum(F.when(is_first, F.col(name)).otherwise(0)).alias(name)

    each = buckets.groupBy(*by, F.col("bucket.i").alias("i")).agg(
        F.sum("bucket.c").alias("c"),
        *[once(name) for name in ("count", "sum_us")],
        F.min("min_us").alias("min_us"),
        *[F.max(name).alias(name) for name in ("max_us", "v", "ts", "mono_us")],
    )
    counts = F.collect_list(F.when(F.col("i").isNotNull(), F.struct("i", "c")))
    return each.groupBy(*by).agg(
        *[F.sum(name).alias(name) for name in ("count", "sum_us")],
        F.min("min_us").alias("min_us"),
        *[F.max(name).alias(name) for name in ("max_us", "v", "ts", "mono_us")],
        F.array_sort(counts).alias("b"),
    )


def _counted(rows: DataFrame, table: Table) -> DataFrame:
    """Return one event for repeated ones of a client in a span, and all others."""
    repeated = F.col("kind").isin(*REPEATED)
    known = ("peer", "user")
    told = rows.filter(repeated).select(
        "*",
        *[F.try_element_at("detail", F.lit(name)).alias(name) for name in known],
        F.expr(COUNTED).alias(TIMES),
        # A failed login is named after the user, a connection after its ports.
        F.when(F.col("kind") == "auth_failed", F.col("name")).otherwise("").alias("_name"),
    )
    counts = (
        told.groupBy("node", "boot_id", "kind", "vhost", "_name", *known, _SPAN)
        .agg(F.sum(TIMES).alias(TIMES), *[F.max(name).alias(name) for name in ("v", "ts", "mono_us")])
        .withColumnRenamed("_name", "name")
    )
    pairs = [
        F.struct(F.lit(name).alias("key"), F.col(name).cast("string").alias("value"))
        for name in (*known, TIMES)
    ]
    detail = F.map_from_entries(F.filter(F.array(*pairs), lambda pair: pair["value"].isNotNull()))
    return (
        rows.filter(~repeated)
        .select(*table.schema.names)
        .unionByName(counts.withColumn("detail", detail).select(*table.schema.names))
    )
