import math
import random
import statistics

import pytest
from pyspark.testing import assertDataFrameEqual

from leveret.analytics.ratios import T_95, mean_of_ratios, paired, ratios

RATES = "window long, queues long, block long, line string, rate double"
CELL = ("window", "queues")


def frame(spark, rates):
    """Rates by (queues, block, line)."""
    return spark.createDataFrame([(200, *key, float(rate)) for key, rate in rates.items()], RATES)


def test_students_t():
    """Known values; the table falls towards that of the normal distribution."""
    assert (12.706, 2.571, 2.042) == (T_95[0], T_95[4], T_95[29])
    assert sorted(T_95, reverse=True) == list(T_95)


def test_the_interval_of_known_values(spark):
    """Ratios 1, 2 and 4: the mean of their logarithms is ln 2, their deviation ln 2, t for 2 is 4.303.

    By the paper's definition rates of 10, 20 and 40 beside 10 each are 70 / 30. One block has no interval, and more than
    31 have the last entry of the table.
    """
    rates = {(1, block, "new"): rate for block, rate in enumerate((10, 20, 40), 1)}
    rates |= {(1, block, "old"): 10 for block in (1, 2, 3)}
    rates |= {(2, 1, "new"): 3, (2, 1, "old"): 2}
    for block in range(1, 41):
        rates |= {(3, block, "new"): 1 + block % 2, (3, block, "old"): 1}

    by = (*CELL, "line", "baseline")
    three, one, many = ratios(paired(frame(spark, rates), ["old"], CELL), by).orderBy("queues").collect()

    half = 4.303 * math.log(2) / math.sqrt(3)
    assert pytest.approx((2.0, 2 * math.exp(-half), 2 * math.exp(half), 1.0, 4.0, 7 / 3)) == tuple(
        three[name] for name in ("ratio", "low", "high", "least", "greatest", "by_means")
    )
    assert (3, False, 1, None, None) == (three["n"], three["faster"], one["n"], one["low"], one["high"])
    assert pytest.approx((1.5, 1.5)) == (one["ratio"], one["by_means"])
    deviation = statistics.stdev([0.0, math.log(2)] * 20)
    assert pytest.approx(math.sqrt(2) * math.exp(2.042 * deviation / math.sqrt(40))) == many["high"]
    assert many["faster"]


def test_only_what_was_measured_in_the_same_block_is_compared(spark):
    """A block without its baseline counts nothing, however fast it was."""
    rates = {(1, 1, "old"): 100, (1, 1, "new"): 200, (1, 2, "new"): 9000, (1, 3, "old"): 1}

    (found,) = ratios(paired(frame(spark, rates), ["old"], CELL), ("line",)).collect()

    assert (1, 2.0) == (found["n"], pytest.approx(found["ratio"]))


def test_the_interval_covers_the_truth_as_often_as_it_says(spark):
    """Intervals of 1,000 sweeps, with a known ratio under noise that blocks share, contain it in 93 to 97 % of cases."""
    chance, truth, rates = random.Random(7), 1.43, {}
    for sweep in range(1000):
        for block in range(1, 7):
            slow = chance.lognormvariate(0, 0.5)
            rates[sweep, block, "old"] = 10_000 * slow * chance.lognormvariate(0, 0.1)
            rates[sweep, block, "new"] = 10_000 * truth * slow * chance.lognormvariate(0, 0.1)

    found = ratios(paired(frame(spark, rates), ["old"], CELL), (*CELL, "line")).collect()

    assert 1000 == len(found)
    assert 930 <= sum(row["low"] <= truth <= row["high"] for row in found) <= 970


def test_the_mean_over_queues_is_that_of_the_ratios(spark):
    """The mean over queue counts is the arithmetic mean of each one's ratio, as the paper's."""
    rates = {}
    for queues, gain in ((5, 1.2), (10, 1.4), (30, 1.9)):
        for block, slow in enumerate((1, 0.5, 0.8, 1.1), 1):
            rates[queues, block, "old"], rates[queues, block, "new"] = 1000 * slow, 1000 * slow * gain

    (found,) = mean_of_ratios(paired(frame(spark, rates), ["old"], CELL), "queues", ("line",)).collect()

    assert (3, 4) == (found["cells"], found["blocks"])
    assert pytest.approx([1.5] * 3) == [found["ratio"], found["low"], found["high"]]


def test_the_bootstrap_is_near_the_interval_of_the_mean(spark):
    """Drawing blocks again gives about what the spread of blocks says: not wider, and not much narrower."""
    chance, rates, logs = random.Random(3), {}, []
    for block in range(1, 21):
        logs.append(chance.gauss(0.3, 0.2))
        rates[5, block, "old"], rates[5, block, "new"] = 1000, 1000 * math.exp(logs[-1])

    (found,) = mean_of_ratios(paired(frame(spark, rates), ["old"], CELL), "queues", ("line",)).collect()
    half = 2.093 * statistics.stdev(logs) / math.sqrt(20)
    width = math.log(found["high"]) - math.log(found["low"])

    assert pytest.approx(math.exp(statistics.fmean(logs))) == found["ratio"]
    assert 0.75 * 2 * half <= width <= 1.1 * 2 * half


@pytest.mark.parametrize("seed", range(5))
def test_an_interval_contains_its_mean(spark, seed):
    """The interval over several queue counts has a width and contains the mean, however the blocks differ."""
    chance = random.Random(seed)
    rates = {
        (queues, block, line): chance.lognormvariate(9, 0.3)
        for queues in chance.sample(range(1, 31), 4)
        for block in range(1, 7)
        for line in ("old", "new")
    }

    (found,) = mean_of_ratios(paired(frame(spark, rates), ["old"], CELL), "queues", ("line",)).collect()

    assert found["low"] < found["ratio"] < found["high"]


def test_the_mean_of_two_blocks_is_that_reckoned_by_hand(spark):
    """Two queue counts and two blocks: ratios 2 and 8 have the mean 4, 1 and 4 the mean 2; their mean is 3."""
    rates = {(1, 1, "old"): 1, (1, 1, "new"): 2, (1, 2, "old"): 1, (1, 2, "new"): 8}
    rates |= {(2, 1, "old"): 1, (2, 1, "new"): 1, (2, 2, "old"): 1, (2, 2, "new"): 4}

    (found,) = mean_of_ratios(paired(frame(spark, rates), ["old"], CELL), "queues", ("line",)).collect()

    # A draw is the first block twice (1.5), the second twice (6), or both (3).
    assert pytest.approx([3, 1.5, 6]) == [found["ratio"], found["low"], found["high"]]


def test_one_block_has_no_interval(spark):
    """A single block says nothing about the spread."""
    rates = {(5, 1, "old"): 100, (5, 1, "new"): 150}

    (found,) = mean_of_ratios(paired(frame(spark, rates), ["old"], CELL), "queues", ("line",)).collect()

    assert (1, None, None) == (found["blocks"], found["low"], found["high"])


def test_neither_order_nor_partitions_change_the_result(spark):
    """Rates in another order on other partitions have the same means and the same drawn intervals."""
    chance = random.Random(5)
    rates = {
        (queues, block, line): chance.lognormvariate(9, 0.3)
        for queues in (5, 8)
        for block in range(1, 6)
        for line in ("old", "new")
    }
    shuffled = dict(chance.sample(list(rates.items()), len(rates)))
    here = mean_of_ratios(paired(frame(spark, rates), ["old"], CELL), "queues", ("line",))
    there = mean_of_ratios(paired(frame(spark, shuffled).repartition(5), ["old"], CELL), "queues", ("line",))

    assertDataFrameEqual(there, here)
