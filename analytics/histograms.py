"""Merges histograms of the scheme ll5 and computes their quantiles.

Buckets are numbered as in `broker/counters/histogram.py`: a value below 32 is its own bucket, any other is placed by
its highest bit and the five below, so buckets 32 to 63 have no values and those from 64 on are one of 32 equal parts of
a power of two: the greatest value of a bucket is at most 1/32 above any other in it. Adding up the counts of each
bucket gives the histogram of all samples together, in any order and for any number of nodes. Quantiles cannot be added
up; those of the sum are exact to the bucket.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window, functions as F

SCHEME: Final = "ll5"
QUANTILES: Final[Mapping[str, int]] = {"p50": 500, "p90": 900, "p95": 950, "p99": 990, "p999": 999}
"""Quantiles in thousandths, by name."""
_PARTS: Final = 32
_LAST: Final = 1919  # the bucket of the greatest value of 63 bits
_MOST: Final = 2**50  # samples in a bucket of a row: thousandths of their sums are computed in 64 bits


def is_no_bucket(bucket: Column) -> Column:
    """Return whether an element of a row's `b` is none that a broker writes."""
    possible = bucket["i"].between(0, _LAST) & bucket["c"].between(0, _MOST)
    return F.coalesce(~possible, F.lit(True))


def lowest(index: Column) -> Column:
    """Return the least value of a bucket, microseconds."""
    return F.when(index < _PARTS, index.cast("long")).otherwise(
        F.call_function("shiftleft", (index.bitwiseAND(_PARTS - 1) + _PARTS).cast("long"), _shift(index))
    )


def highest(index: Column) -> Column:
    """Return the greatest value of a bucket, microseconds."""
    return lowest(index) + F.call_function("shiftleft", F.lit(1).cast("long"), _shift(index)) - 1


def _shift(index: Column) -> Column:
    return F.greatest(F.shiftright(index, 5) - 2, F.lit(0)).cast("int")


def merged(rows: DataFrame, by: Sequence[str]) -> DataFrame:
    """Add up the histograms of each group.

    `rows`: rows of the table `latency_hist`; `by`: the columns that define a group. Returns a row for each group and
    bucket `i`: the number of samples `c`; and `sum_us`, `min_us`, `max_us`, which are to be added up, or compared, over
    all buckets of the group.
    """
    buckets = rows.select(*by, "sum_us", "min_us", "max_us", F.posexplode("b").alias("at", "bucket"))
    return buckets.groupBy(*by, F.col("bucket.i").alias("i")).agg(
        F.sum("bucket.c").alias("c"),
        # A row's sum counts once, with its first bucket. Sums of many long waits exceed 64 bits.
        F.sum(F.when(F.col("at") == 0, F.col("sum_us").cast("double")).otherwise(0)).alias("sum_us"),
        F.min("min_us").alias("min_us"),
        F.max("max_us").alias("max_us"),
    )


def summed(merged: DataFrame, by: Sequence[str]) -> DataFrame:
    """Add up groups of the result of `merged` to larger ones."""
    return merged.groupBy(*by, "i").agg(
        F.sum("c").alias("c"),
        F.sum("sum_us").alias("sum_us"),
        F.min("min_us").alias("min_us"),
        F.max("max_us").alias("max_us"),
    )


def cumulated(merged: DataFrame, by: Sequence[str]) -> DataFrame:
    """Add to each bucket its group's number of samples up to it (`up_to`) and in total (`total`)."""
    group = Window.partitionBy(*by)
    return merged.withColumn("up_to", F.sum("c").over(group.orderBy("i"))).withColumn(
        "total", F.sum("c").over(group)
    )


def quantiles(merged: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return the quantiles of each group.

    A quantile is the greatest value of the bucket in which it lies, but no more than the greatest sample.

    Returns:
        A row for each group: `count`, `mean_us`, `min_us`, `p50_us` and the other `QUANTILES`, `max_us`.
    """
    rank = {name: F.ceil(F.col("total") * thousandths / 1000) for name, thousandths in QUANTILES.items()}
    found = (
        cumulated(merged, by)
        .groupBy(*by)
        .agg(
            F.sum("c").alias("count"),
            F.sum("sum_us").alias("sum_us"),
            F.min("min_us").alias("min_us"),
            F.max("max_us").alias("max_us"),
            *[
                F.min(F.when(F.col("up_to") >= rank[name], highest(F.col("i")))).alias(name)
                for name in QUANTILES
            ],
        )
    )
    return found.select(
        *by,
        "count",
        (F.col("sum_us") / F.col("count")).alias("mean_us"),
        "min_us",
        *[F.least(name, "max_us").alias(f"{name}_us") for name in QUANTILES],
        "max_us",
    )
