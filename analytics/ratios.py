"""Spark expressions for paired ratios, their confidence intervals, and a bootstrap over blocks."""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window, functions as F

T_95: Final = (  # student's t, two-sided 95 %, for 1 to 30 degrees of freedom
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
RESAMPLES: Final = 2000
SEED: Final = 20


def half_width(values: str) -> Column:
    """Return half the 95 % interval of a column's mean, as an aggregate; null for fewer than two values.

    For more than 31 values the last entry of the table is used, which is slightly wide.
    """
    number = F.count(values)
    freedom = F.least(number - 1, F.lit(len(T_95))).cast("int")
    t = F.get(F.array(*map(F.lit, T_95)), freedom - 1)
    return t * F.stddev_samp(values) / F.sqrt(number)


def paired(rates: DataFrame, baselines: Sequence[str], cell: Sequence[str]) -> DataFrame:
    """Pair each line with each baseline of the same block.

    `rates`: `line`, `block`, `rate` and the columns of a cell; one row each, all rates above 0; `baselines`: names of
    lines; `cell`: the columns that have to be equal, except the block. Returns the columns of a cell, `block`, `line`,
    `baseline`, `log_ratio`, `rate`, `old_rate`.
    """
    old = rates.filter(F.col("line").isin(*baselines)).select(
        *cell, "block", F.col("line").alias("baseline"), F.col("rate").alias("old_rate")
    )
    return (
        rates.join(old, [*cell, "block"])
        .filter(F.col("line") != F.col("baseline"))
        .select(
            *cell,
            *("block", "line", "baseline", "rate", "old_rate"),
            F.log(F.col("rate") / F.col("old_rate")).alias("log_ratio"),
        )
    )


def ratios(pairs: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return the speed-up of each pairing from `paired`, with its 95 % interval.

    Returns:
        `by`, `n` pairs, `ratio` (geometric mean), `low`, `high` (null of one pair), `least` and `greatest` of a
        single block, `by_means` (the mean rate divided by the mean rate of the baseline), `improvement` ((new - old) /
        old), `faster` (whether the interval lies above 1).
    """
    found = pairs.groupBy(*by).agg(
        F.count("log_ratio").alias("n"),
        F.avg("log_ratio").alias("mean"),
        half_width("log_ratio").alias("half"),
        F.exp(F.min("log_ratio")).alias("least"),
        F.exp(F.max("log_ratio")).alias("greatest"),
        (F.avg("rate") / F.avg("old_rate")).alias("by_means"),
    )
    low = F.exp(F.col("mean") - F.col("half"))
    return found.select(
        *by,
        "n",
        F.exp("mean").alias("ratio"),
        low.alias("low"),
        F.exp(F.col("mean") + F.col("half")).alias("high"),
        "least",
        "greatest",
        "by_means",
        (F.exp("mean") - 1).alias("improvement"),
        F.coalesce(low > 1, F.lit(False)).alias("faster"),
    )


def mean_of_ratios(pairs: DataFrame, over: str, by: Sequence[str]) -> DataFrame:
    """Return the arithmetic mean of the ratios over the values of a column, with a bootstrapped 95 % interval.

    Blocks are sampled, each with all its measurements, because a disturbance of a block affects all of them. The
    samples are a hash of their number, so the result does not depend on how rows are spread over partitions.

    `over`: the column, `queues`; `by`: the columns that define a group.

    Returns:
        `by`, `cells` (how many values of `over`), `blocks`, `ratio`, `low`, `high` (null of one block).
    """
    group = Window.partitionBy(*by).orderBy("block")
    numbered = pairs.withColumn("number", F.dense_rank().over(group))
    found = (
        numbered.groupBy(*by, over)
        .agg(F.exp(F.avg("log_ratio")).alias("ratio"), F.max("number").alias("number"))
        .groupBy(*by)
        .agg(
            F.avg("ratio").alias("ratio"),
            F.count("ratio").alias("cells"),
            F.max("number").cast("long").alias("blocks"),
        )
    )
    drawn = (
        found.select(*by, "blocks", F.explode(F.sequence(F.lit(1), F.lit(RESAMPLES))).alias("resample"))
        .withColumn("draw", F.explode(F.sequence(F.lit(1).cast("long"), F.col("blocks"))))
        .withColumn(
            "number",
            (F.pmod(F.xxhash64("resample", "draw", F.lit(SEED)), F.col("blocks")) + 1).cast("int"),
        )
    )
    spread = (
        drawn.join(numbered.select(*by, "number", over, "log_ratio"), [*by, "number"])
        .groupBy(*by, "resample", over)
        .agg(F.exp(F.avg("log_ratio")).alias("ratio"))
        .groupBy(*by, "resample")
        .agg(F.avg("ratio").alias("ratio"))
        .groupBy(*by)
        .agg(F.percentile("ratio", 0.025).alias("low"), F.percentile("ratio", 0.975).alias("high"))
    )
    several = F.col("blocks") > 1
    return found.join(spread, list(by)).select(
        *by,
        "cells",
        "blocks",
        "ratio",
        F.when(several, F.col("low")).alias("low"),
        F.when(several, F.col("high")).alias("high"),
    )
