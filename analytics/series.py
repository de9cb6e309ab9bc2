"""Differences of counters and areas between successive rows of the same object.

A counter counts from the beginning of its object, so a missing row loses resolution but no counts: the next difference
includes them. Where the broker wrote no row nothing had changed.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame, Window, functions as F

from leveret.analytics.schemas import tables

AREA_MODULUS: Final = 2**62  # modulus of areas
BINS_S: Final = (5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 7 * 24 * 3600)
"""Permitted lengths of a bin in figures, in seconds."""
MOST_BINS: Final = 240
FULL_US: Final = 60_000_000  # maximum time in microseconds between two rows of an unchanged object
NEAR_MS: Final = 50_000
"""Distance in milliseconds below which two rows are not folded ones, which are a minute or more apart."""
QUEUE: Final = ("node", "vhost", "queue")  # columns that name a queue
OBJECT: Final = (*QUEUE, "boot_id", "since_ms")
"""Columns that name a queue from its declaration to its deletion, within one run of a broker."""
BEFORE: Final = "before_"
"""Beginning of the name of a column with the value that another one has in the row before."""
USUAL_MS: Final = 5000
"""Sampling interval of a broker in milliseconds that is assumed if there are too few rows to derive it."""


def bin_seconds(span: float) -> int:
    """Return the shortest of `BINS_S` with which so many seconds fit in `MOST_BINS` bins."""
    return next((length for length in BINS_S if span / length <= MOST_BINS), BINS_S[-1])


def start_of_bin(ts: Column, seconds: int) -> Column:
    """Return the first millisecond of the bin of a time (ms)."""
    return ts - F.pmod(ts, F.lit(seconds * 1000))


def clocks(*tables: DataFrame) -> DataFrame:
    """Return the interval and the end of the rows of each node and boot.

    `tables`: tables with `node`, `boot_id`, `ts`, `mono_us`; `node_interval` has a row for each interval, others only
    after changes. Returns `node`, `boot_id`, `interval_us`, `until_us` (`mono_us` of the last row), `is_last` (the
    node's last boot).
    """
    boot, node = Window.partitionBy("node", "boot_id"), Window.partitionBy("node")
    each = [table.select("node", "boot_id", "ts", "mono_us") for table in tables]
    moments = (
        reduce(DataFrame.unionByName, each).groupBy("node", "boot_id", "ts").agg(F.max("mono_us").alias("at"))
    )
    near = F.when(F.col("step") < NEAR_MS, F.col("step"))
    return (
        moments.withColumn("step", F.col("ts") - F.lag("ts").over(boot.orderBy("ts")))
        .groupBy("node", "boot_id")
        .agg(
            (F.coalesce(F.median(near), F.median("step"), F.lit(USUAL_MS)) * 1000)
            .cast("bigint")
            .alias("interval_us"),
            F.max("at").alias("until_us"),
            F.max("ts").alias("until"),
        )
        .withColumn("is_last", F.col("until") == F.max("until").over(node))
        .drop("until")
    )


def with_before(rows: DataFrame, name: str, columns: Iterable[str], kept: Iterable[str] = ()) -> DataFrame:
    """Return rows with the values that columns have in the row before of the same object: `before_...`, or null.

    Args:
        rows: rows of the table `name`.
        name: name of the table, which has a clock.
        columns: the columns.
        kept: other columns to return, besides `ts`, `mono_us` and the keys. Unused ones would be sorted, too.
    """
    keys = tables()[name].of_kind("key")
    order = Window.partitionBy(*keys).orderBy("mono_us")
    narrow = rows.select(*dict.fromkeys((*keys, "ts", "mono_us", *kept, *columns)))
    return narrow.select("*", *[F.lag(column).over(order).alias(f"{BEFORE}{column}") for column in columns])


def steps(
    rows: DataFrame,  # rows of the table `name`, which has counters
    name: str,  # name of the table
    columns: Sequence[str],  # the columns to take the difference of
    kept: Sequence[str] = (),  # other columns to return
    # columns whose values in the earlier row are returned, too, as `with_before` names them
    before: Sequence[str] = (),
) -> DataFrame:
    """Return a row for each two successive rows: the values of the later one, and the increases since the earlier.

    Returns:
        `columns`, `kept`, `ts`, `mono_us` and the keys of the table, `step_us`, `from_ts` (ms: `step_us` before `ts`,
        even if the wall clock was set in between) and a `d_...` for each of `columns`. For an object's first row there
        is a step only if the row has the time of its creation and that was just before: counters and areas began at 0,
        a `d_...` of a gauge is null. The increase before any other first row is not in the input.
    """
    table = tables()[name]
    areas, counters = table.of_kind("area"), table.of_kind("counter", "area")
    earlier_us = F.col(f"{BEFORE}mono_us")
    step_us = F.col("mono_us") - earlier_us
    is_begun = F.lit(False)
    if "since_ms" in table.of_kind("key"):
        age_us = (F.col("ts") - F.col("since_ms")) * 1000
        is_begun = earlier_us.isNull() & (age_us <= FULL_US)
        step_us = F.when(is_begun, age_us).otherwise(step_us)

    def added(column: str) -> Column:
        difference = F.col(column) - F.col(f"{BEFORE}{column}")
        if column in areas:
            difference = F.pmod(difference, F.lit(AREA_MODULUS))
        return F.when(is_begun, F.col(column)).otherwise(difference) if column in counters else difference

    keys = table.of_kind("key")
    return (
        with_before(rows, name, dict.fromkeys(("mono_us", *columns, *before)), kept)
        .select(
            *dict.fromkeys((*keys, "ts", "mono_us", *kept, *columns)),
            *[f"{BEFORE}{column}" for column in before],
            step_us.alias("step_us"),
            *[added(column).alias(f"d_{column}") for column in columns],
        )
        .filter(F.col("step_us") > 0)
        .withColumn("from_ts", F.col("ts") - F.round(F.col("step_us") / 1000).cast("bigint"))
    )


def last(rows: DataFrame, name: str, by: Sequence[str], columns: Iterable[str]) -> DataFrame:
    """Return the sums of the final counters of all objects: the totals since they began.

    Args:
        rows: rows of the table `name`.
        name: name of the table.
        by: columns that define a group; objects of a group are added up. For one that is no key of the table the last
            value is used.
        columns: the counters.
    """
    keys = tables()[name].of_kind("key")
    changing = [column for column in by if column not in keys]
    # Only numbers are aggregated over all rows, as Spark would sort them to aggregate text.
    ends = rows.groupBy(*keys, *changing).agg(
        F.max("mono_us").alias("mono_us"), *[F.max_by(column, "mono_us").alias(column) for column in columns]
    )
    if changing:
        ends = ends.groupBy(*keys).agg(
            *[F.max_by(column, "mono_us").alias(column) for column in (*changing, *columns)]
        )
    return ends.groupBy(*by).agg(*[F.sum(column).alias(column) for column in columns])


def contradictions(rows: DataFrame, checks: Mapping[str, Column]) -> DataFrame:
    """Return each contradiction in rows: its name `what`, and the number of `rows`, 1. They are to be added up.

    `checks`: conditions that no row may meet, by name. They are not counted by an aggregate each, as there are many.
    """
    each = [F.when(check, F.lit(what)) for what, check in checks.items()]
    found = rows.filter(reduce(or_, checks.values(), F.lit(False))).select(
        F.explode(F.array(*each)).alias("what")
    )
    return found.filter(F.col("what").isNotNull()).select("what", F.lit(1).cast("bigint").alias("rows"))
