"""Spark expressions for paired ratios, their confidence intervals, and a bootstrap over blocks."""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame

from leveret.analytics.series import each, query

T_95: Final = (  # student's t, two-sided 95 %, for 1 to 30 degrees of freedom
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
RESAMPLES: Final = 2000
SEED: Final = 20


def half_width(values: str) -> str:
    """Return half the 95 % interval of a column's mean, as the text of an aggregate; null for fewer than two values.

    For more than 31 values the last entry of the table is used, which is slightly wide.
    """
    freedom = f"CAST(least(count({values}) - 1, {len(T_95)}) AS INT)"
    t = f"get(array({each('{0}D', map(str, T_95))}), {freedom} - 1)"
    return f"({t} * stddev_samp({values}) / sqrt(count({values})))"


def paired(rates: DataFrame, baselines: Sequence[str], cell: Sequence[str]) -> DataFrame:
    """Pair each line with each baseline of the same block.

    `rates`: `line`, `block`, `rate` and the columns of a cell; one row each, all rates above 0; `baselines`: names of
    lines; `cell`: the columns that have to be equal, except the block. Returns the columns of a cell, `block`, `line`,
    `baseline`, `log_ratio`, `rate`, `old_rate`.
    """
    key = ", ".join((*cell, "block"))
    return query(
        f"""
        WITH old AS (
            SELECT {key}, line AS baseline, rate AS old_rate FROM {{rates}}
            WHERE line IN ({each("'{0}'", baselines)})
        )
        SELECT {key}, line, baseline, rate, old_rate, ln(rate / old_rate) AS log_ratio
        FROM {{rates}} JOIN old USING ({key}) WHERE line != baseline
        """,
        rates=rates,
    )


def ratios(pairs: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return the speed-up of each pairing from `paired`, with its 95 % interval.

    Returns:
        `by`, `n` pairs, `ratio` (geometric mean), `low`, `high` (null of one pair), `least` and `greatest` of a
        single block, `by_means` (the mean rate divided by the mean rate of the baseline), `improvement` ((new - old) /
        old), `faster` (whether the interval lies above 1).
    """
    key = ", ".join(by)
    return query(
        f"""
        WITH found AS (
            SELECT {key}, count(log_ratio) AS n, avg(log_ratio) AS mean, {half_width("log_ratio")} AS half,
                exp(min(log_ratio)) AS least, exp(max(log_ratio)) AS greatest, avg(rate) / avg(old_rate) AS by_means
            FROM {{pairs}} GROUP BY {key}
        )
        SELECT {key}, n, exp(mean) AS ratio, exp(mean - half) AS low, exp(mean + half) AS high, least, greatest,
            by_means, exp(mean) - 1 AS improvement, coalesce(exp(mean - half) > 1, false) AS faster
        FROM found
        """,
        pairs=pairs,
    )


def mean_of_ratios(pairs: DataFrame, over: str, by: Sequence[str]) -> DataFrame:
    """Return the arithmetic mean of the ratios over the values of a column, with a bootstrapped 95 % interval.

    Blocks are sampled, each with all its measurements, because a disturbance of a block affects all of them. The
    samples are a hash of their number, so the result does not depend on how rows are spread over partitions.

    `over`: the column, `queues`; `by`: the columns that define a group.

    Returns:
        `by`, `cells` (how many values of `over`), `blocks`, `ratio`, `low`, `high` (null of one block).
    """
    key = ", ".join(by)
    return query(
        f"""
        WITH numbered AS (
            SELECT *, dense_rank() OVER (PARTITION BY {key} ORDER BY block) AS number FROM {{pairs}}
        ),
        cells AS (
            SELECT {key}, exp(avg(log_ratio)) AS ratio, max(number) AS number FROM numbered GROUP BY {key}, {over}
        ),
        found AS (
            SELECT {key}, avg(ratio) AS ratio, count(ratio) AS cells, CAST(max(number) AS BIGINT) AS blocks
            FROM cells GROUP BY {key}
        ),
        resamples AS (SELECT {key}, blocks, explode(sequence(1, {RESAMPLES})) AS resample FROM found),
        draws AS (SELECT *, explode(sequence(1L, blocks)) AS draw FROM resamples),
        drawn AS (
            SELECT {key}, resample, CAST(pmod(xxhash64(resample, draw, {SEED}), blocks) + 1 AS INT) AS number FROM draws
        ),
        each AS (
            SELECT {key}, resample, exp(avg(log_ratio)) AS ratio FROM drawn JOIN numbered USING ({key}, number)
            GROUP BY {key}, resample, {over}
        ),
        means AS (SELECT {key}, resample, avg(ratio) AS ratio FROM each GROUP BY {key}, resample),
        spread AS (
            SELECT {key}, percentile(ratio, 0.025D) AS low, percentile(ratio, 0.975D) AS high FROM means GROUP BY {key}
        )
        SELECT {key}, cells, blocks, ratio, IF(blocks > 1, low, NULL) AS low, IF(blocks > 1, high, NULL) AS high
        FROM found JOIN spread USING ({key})
        """,
        pairs=pairs,
    )
