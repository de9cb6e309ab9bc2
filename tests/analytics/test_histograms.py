import math
import random

import pytest
from hypothesis import given, strategies as st
from made_rows import histogram, index
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from analytics.histograms import QUANTILES, highest, lowest, merged, quantiles

HIST = "sum_us long, min_us long, max_us long, b array<struct<i:int,c:long>>"


def lowest_of(bucket):
    """The least value of a bucket, found by trying."""
    value = 0 if bucket < 64 else 1 << ((bucket >> 5) + 3)
    while index(value) < bucket:
        value += 1
    return value


@given(st.integers(0, 2**40))
def test_a_bucket_is_narrow(value):
    """By the definition of the scheme, neighbours of a value in its bucket differ by no more than 1/32 of it."""
    other = value + value // 32 + 1

    assert index(other) > index(value) >= index(max(0, value - 1))


def test_the_ends_of_buckets_are_those_of_the_definition(spark):
    """The expressions give each of the first buckets the values that the definition puts there."""
    rows = (
        spark.range(200)
        .select("id", lowest(F.col("id")).alias("low"), highest(F.col("id")).alias("high"))
        .collect()
    )

    assert [lowest_of(number) for number in range(200)] == [row["low"] for row in rows]
    assert [lowest_of(number + 1) - 1 for number in range(200)] == [row["high"] for row in rows]


def test_the_ends_of_large_buckets_do_not_overflow(spark):
    """Days in microseconds have buckets as well."""
    bucket = index(2**45 + 12345)
    (row,) = (
        spark.range(1)
        .select(lowest(F.lit(bucket)).alias("low"), highest(F.lit(bucket)).alias("high"))
        .collect()
    )

    assert index(row["low"]) == bucket == index(row["high"])
    assert index(row["low"] - 1) == bucket - 1
    assert index(row["high"] + 1) == bucket + 1


def frame(spark, groups):
    """Histograms of lists of samples: (name, samples)."""
    rows = []
    for name, samples in groups:
        made = histogram(samples)
        buckets = [(bucket["i"], bucket["c"]) for bucket in made["b"]]
        rows.append((name, made["sum_us"], made["min_us"], made["max_us"], buckets))
    return spark.createDataFrame(rows, f"name string, {HIST}")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_quantiles_are_those_of_the_samples_to_the_bucket(spark, seed):
    """Cut into any number of histograms, samples have the quantiles that sorting them gives, within 1/32."""
    chance = random.Random(seed)
    samples = {
        "wide": [round(chance.lognormvariate(8, 2)) for _ in range(20_000)],
        "two humps": [
            chance.choice([chance.randint(0, 50), chance.randint(10**6, 2 * 10**6)]) for _ in range(5000)
        ],
        "one": [77],
        "same": [1_000_000] * 500,
    }
    parts = [
        (name, values[start::7]) for name, values in samples.items() for start in range(7) if values[start::7]
    ]
    chance.shuffle(parts)

    found = {row["name"]: row for row in quantiles(merged(frame(spark, parts), ["name"]), ["name"]).collect()}

    for name, values in samples.items():
        row, ordered = found[name], sorted(values)
        assert (len(values), min(values), max(values)) == (row["count"], row["min_us"], row["max_us"])
        assert pytest.approx(sum(values) / len(values)) == row["mean_us"]
        for quantile, thousandths in QUANTILES.items():
            true = ordered[math.ceil(len(ordered) * thousandths / 1000) - 1]
            assert true <= row[f"{quantile}_us"] <= min(true + true / 32, max(values)), (name, quantile)


def test_merging_in_two_steps_is_merging_in_one(spark):
    """Histograms may be merged in any order: by hour first, or all at once."""
    chance = random.Random(4)
    parts = [(str(number % 5), [chance.randint(0, 10**5) for _ in range(50)]) for number in range(40)]
    rows = frame(spark, parts).withColumn("half", F.col("name") < "2")
    once = quantiles(merged(rows, []).withColumn("all", F.lit(1)), ["all"])
    halves = (
        merged(rows, ["half"])
        .groupBy("i")
        .agg(
            F.sum("c").alias("c"),
            F.sum("sum_us").alias("sum_us"),
            F.min("min_us").alias("min_us"),
            F.max("max_us").alias("max_us"),
        )
    )

    assertDataFrameEqual(quantiles(halves.withColumn("all", F.lit(1)), ["all"]), once)
