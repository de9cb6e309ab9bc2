"""Merges histograms of the scheme ll5 and computes their quantiles.

Buckets are numbered as in `broker/counters/histogram.py`: a value below 32 is its own bucket, any other is placed by
its highest bit and the five below, so buckets 32 to 63 have no values and those from 64 on are one of 32 equal parts of
a power of two: the greatest value of a bucket is at most 1/32 above any other in it. Adding up the counts of each
bucket gives the histogram of all samples together, in any order and for any number of nodes. Quantiles cannot be added
up; those of the sum are exact to the bucket.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame

from leveret.analytics.series import query

SCHEME: Final = "ll5"
QUANTILES: Final[Mapping[str, int]] = {"p50": 500, "p90": 900, "p95": 950, "p99": 990, "p999": 999}
"""Quantiles in thousandths, by name."""
_PARTS: Final = 32
_LAST: Final = 1919  # the bucket of the greatest value of 63 bits
_MOST: Final = 2**50  # samples in a bucket of a row: thousandths of their sums are computed in 64 bits


def is_no_bucket(bucket: str) -> str:
    """Return whether an element of a row's `b` is none that a broker writes; both are texts of columns."""
    return f"NOT coalesce({bucket}.i BETWEEN 0 AND {_LAST} AND {bucket}.c BETWEEN 0 AND {_MOST}, false)"


def lowest(index: str) -> str:
    """Return the least value of a bucket, microseconds, as the text of a column; `index` is one, too."""
    return f"IF({index} < {_PARTS}, CAST({index} AS BIGINT), ({_PARTS} + ({index} & {_PARTS - 1})) * {_width(index)})"


def highest(index: str) -> str:
    """Return the greatest value of a bucket, microseconds, as `lowest` does."""
    return f"({lowest(index)} + {_width(index)} - 1)"


def _width(index: str) -> str:
    return f"shiftleft(1L, CAST(greatest(shiftright({index}, 5) - 2, 0) AS INT))"


def merged(rows: DataFrame, by: Sequence[str]) -> DataFrame:
    """Add up the histograms of each group.

    `rows`: rows of the table `latency_hist`; `by`: the columns that define a group. Returns a row for each group and
    bucket `i`: the number of samples `c`; and `sum_us`, `min_us`, `max_us`, which are to be added up, or compared, over
    all buckets of the group.
    """
    # A row's sum counts once, with its first bucket. Sums of many long waits exceed 64 bits.
    key = ", ".join(by)
    return query(
        f"""
        WITH buckets AS (SELECT {key}, sum_us, min_us, max_us, posexplode(b) AS (at, bucket) FROM {{rows}})
        SELECT {key}, bucket.i AS i, sum(bucket.c) AS c, sum(IF(at = 0, CAST(sum_us AS DOUBLE), 0D)) AS sum_us,
            min(min_us) AS min_us, max(max_us) AS max_us
        FROM buckets GROUP BY {key}, bucket.i
        """,
        rows=rows,
    )


def summed(merged: DataFrame, by: Sequence[str]) -> DataFrame:
    """Add up groups of the result of `merged` to larger ones."""
    key = ", ".join(by)
    return query(
        f"SELECT {key}, i, sum(c) AS c, sum(sum_us) AS sum_us, min(min_us) AS min_us, max(max_us) AS max_us "
        f"FROM {{merged}} GROUP BY {key}, i",
        merged=merged,
    )


def cumulated(merged: DataFrame, by: Sequence[str]) -> DataFrame:
    """Add to each bucket its group's number of samples up to it (`up_to`) and in total (`total`)."""
    key = ", ".join(by)
    return query(
        f"SELECT *, sum(c) OVER (PARTITION BY {key} ORDER BY i) AS up_to, sum(c) OVER (PARTITION BY {key}) AS total "
        "FROM {merged}",
        merged=merged,
    )


def quantiles(merged: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return the quantiles of each group.

    A quantile is the greatest value of the bucket in which it lies, but no more than the greatest sample.

    Returns:
        A row for each group: `count`, `mean_us`, `min_us`, `p50_us` and the other `QUANTILES`, `max_us`.
    """
    found = ", ".join(
        f"least(min(IF(up_to >= ceil(total * {thousandths} / 1000), {highest('i')}, NULL)), max(max_us)) AS {name}_us"
        for name, thousandths in QUANTILES.items()
    )
    key = ", ".join(by)
    return query(
        f"SELECT {key}, sum(c) AS count, sum(sum_us) / sum(c) AS mean_us, min(min_us) AS min_us, {found}, "
        f"max(max_us) AS max_us FROM {{cumulated}} GROUP BY {key}",
        cumulated=cumulated(merged, by),
    )
