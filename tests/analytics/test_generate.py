from collections import Counter

import pytest
from made_rows import index
from pyspark.testing import assertDataFrameEqual

from analytics.generate import SPREAD, TABLES, WHAT, latency_hist, write
from analytics.histograms import QUANTILES
from analytics.latency import compute
from analytics.reading import Input

ROWS = 3000


def expected(rows):
    """What the formulas say of all histograms of each kind: bucket → samples."""
    counts = {what: Counter() for what in WHAT}
    for number in range(rows):
        kind, n = number % 4, number // 4
        first = 64 + 32 * kind + n % SPREAD
        counts[WHAT[kind]][first] += 1 + n % 3
        counts[WHAT[kind]][first + 7] += 2
    return counts


def quantile(counts, thousandths):
    """The bucket of a quantile."""
    rank, seen = -(-sum(counts.values()) * thousandths // 1000), 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= rank:
            return bucket
    raise AssertionError


@pytest.mark.parametrize("parquet", [False, True], ids=["lines", "parquet"])
def test_generated_histograms_have_the_quantiles_that_follow_from_their_formulas(spark, tmp_path, parquet):
    """Written as lines or as Parquet, read again and analysed, the made-up samples give what was put in."""
    write(latency_hist(spark, ROWS), "latency_hist", tmp_path, parquet=parquet)
    data = Input(spark, tmp_path, tmp_path / "out")

    found = {(row["metric"], row["mode"]): row for row in compute(data)["by_mode"].collect()}

    assert {} == data.counted["latency_hist"].aside
    for what, counts in expected(ROWS).items():
        assert sum(counts.values()) == found[what]["count"]
        for name, thousandths in QUANTILES.items():
            assert quantile(counts, thousandths) == index(found[what][f"{name}_us"])


@pytest.mark.parametrize("name", TABLES)
def test_generated_rows_do_not_depend_on_partitions(spark, name):
    """The same rows come out however many tasks make them."""
    assertDataFrameEqual(TABLES[name](spark, 500).repartition(3), TABLES[name](spark, 500))
