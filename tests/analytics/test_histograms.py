import math
import random

import pytest
from hypothesis import given, strategies as st
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual
from samples.made_rows import histogram, index

from leveret.analytics.histograms import QUANTILES, highest, lowest, merged, quantiles, summed
from leveret.broker.counters import histogram as recorded

HIST = "sum_us long, min_us long, max_us long, b array<struct<i:int,c:long>>"


@given(st.integers(0, 2**40))
def test_the_bucket_of_a_value_is_the_broker_s(value):
    """The broker, which fills the buckets, and these tests, which have them from the definition, mean the same."""
    assert index(value) == recorded.index(value)
    assert recorded.lowest(index(value)) <= value <= recorded.highest(index(value)) <= value + value / 32


def test_the_ends_of_buckets_are_those_of_the_broker(spark):
    """The expressions give each bucket the values that the broker puts there, up to those of years."""
    numbers = [*range(32), *range(64, 200), *map(index, (10**6, 10**9, 2**45 + 12345))]
    rows = (
        spark.createDataFrame([(number,) for number in numbers], "i int")
        .selectExpr("i", f"{lowest('i')} AS low", f"{highest('i')} AS high")
        .collect()
    )

    assert [(number, recorded.lowest(number), recorded.highest(number)) for number in numbers] == [
        (row["i"], row["low"], row["high"]) for row in rows
    ]


def frame(spark, groups):
    """Histograms of lists of samples: (name, samples)."""
    rows = []
    for name, samples in groups:
        made = histogram(samples)
        buckets = [(bucket["i"], bucket["c"]) for bucket in made["b"]]
        rows.append((name, made["sum_us"], made["min_us"], made["max_us"], buckets))
    return spark.createDataFrame(rows, f"name string, {HIST}")


def test_quantiles_are_those_of_the_samples_to_the_bucket(spark):
    """Cut into any number of histograms, a million samples have the quantiles that sorting them gives, within 1/32."""
    chance = random.Random(1)
    samples = {
        "wide": [round(chance.lognormvariate(8, 2)) for _ in range(1_000_000)],
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
        assert (len(values), ordered[0], ordered[-1]) == (row["count"], row["min_us"], row["max_us"])
        assert pytest.approx(sum(values) / len(values)) == row["mean_us"]
        for quantile, thousandths in QUANTILES.items():
            true = ordered[math.ceil(len(ordered) * thousandths / 1000) - 1]
            assert true <= row[f"{quantile}_us"] <= min(true + true / 32, ordered[-1]), (name, quantile)


def test_merging_in_two_steps_is_merging_in_one(spark):
    """Histograms may be merged in any order: by name first, or all at once."""
    chance = random.Random(4)
    parts = [(str(number % 5), [chance.randint(0, 10**5) for _ in range(50)]) for number in range(40)]
    rows = frame(spark, parts).withColumn("half", F.col("name") < "2")

    assertDataFrameEqual(
        quantiles(summed(merged(rows, ["name", "half"]), ["half"]), ["half"]),
        quantiles(merged(rows, ["half"]), ["half"]),
    )


def test_times_add_up_beyond_64_bits(spark):
    """Ten million messages that waited for two weeks, a few times over, have a mean."""
    wait, count = 14 * 86_400_000_000, 7_000_000
    parts = [("q", wait * count, wait, wait, [(index(wait), count)])] * 3

    (found,) = quantiles(
        merged(spark.createDataFrame(parts, f"name string, {HIST}"), ["name"]), ["name"]
    ).collect()

    assert 3 * wait * count > 2**63 > wait * count
    assert (3 * count, wait) == (found["count"], pytest.approx(found["mean_us"]))
