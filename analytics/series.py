"""Differences of counters and areas between successive rows of the same object.

A counter counts from the beginning of its object, so a missing row loses resolution but no counts: the next difference
includes them. Where the broker wrote no row nothing had changed.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Final
from uuid import uuid4
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession

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

_VIEWS: Final[WeakKeyDictionary[DataFrame, str]] = WeakKeyDictionary()


def bin_seconds(span: float) -> int:
    """Return the shortest of `BINS_S` with which so many seconds fit in `MOST_BINS` bins."""
    return next((length for length in BINS_S if span / length <= MOST_BINS), BINS_S[-1])


def start_of_bin(ts: str, seconds: int) -> str:
    """Return the first millisecond of the bin of a time (ms), as the text of a column; `ts` is one, too."""
    return f"({ts}) - pmod({ts}, {seconds * 1000})"


def query(text: str, /, **tables: DataFrame) -> DataFrame:
    """Return the result of a query in Spark's SQL: it crosses to Java once, and is analysed as a whole.

    `tables`: the rows, by the names that the text has in braces.
    """
    spark = next(iter(tables.values())).sparkSession
    # Spark's own `sql` parses each text twice, makes views of the tables for each query, and drops them.
    made = spark._jsparkSession.sql(text.format(**{name: _view(table) for name, table in tables.items()}))  # noqa: SLF001
    return DataFrame(made, spark)


def _view(table: DataFrame) -> str:
    """Return the name of a view of a table, made when it is first asked for."""
    if (name := _VIEWS.get(table)) is None:
        name = f"leveret_{uuid4().hex}"
        table.createOrReplaceTempView(name)
        _VIEWS[table] = name
    return name


def forget_views(spark: SparkSession) -> None:
    """Drop the views of all tables, which keep their rows from being forgotten."""
    _VIEWS.clear()
    spark._jsparkSession.sessionState().catalog().clearTempTables()  # noqa: SLF001


def each(form: str, names: Iterable[str]) -> str:
    """Return a form for each name, with commas: of `sum({0}) AS {0}` the sums of some columns."""
    return ", ".join(form.format(name) for name in names)


def union(tables: Iterable[DataFrame], *columns: str) -> DataFrame:
    """Return these columns of all rows of some tables."""
    return reduce(DataFrame.unionAll, [table.select(*columns) for table in tables])


def clocks(*tables: DataFrame) -> DataFrame:
    """Return the interval and the end of the rows of each node and boot.

    `tables`: tables with `node`, `boot_id`, `ts`, `mono_us`; `node_interval` has a row for each interval, others only
    after changes. Returns `node`, `boot_id`, `interval_us`, `until_us` (`mono_us` of the last row), `is_last` (the
    node's last boot).
    """
    return query(
        f"""
        WITH moments AS (SELECT node, boot_id, ts, max(mono_us) AS at FROM {{rows}} GROUP BY node, boot_id, ts),
        stepped AS (SELECT *, ts - lag(ts) OVER (PARTITION BY node, boot_id ORDER BY ts) AS step FROM moments),
        boots AS (
            SELECT node, boot_id,
                CAST(coalesce(median(IF(step < {NEAR_MS}, step, NULL)), median(step), {USUAL_MS}) * 1000 AS BIGINT)
                    AS interval_us,
                max(at) AS until_us, max(ts) AS until
            FROM stepped GROUP BY node, boot_id
        )
        SELECT node, boot_id, interval_us, until_us, until = max(until) OVER (PARTITION BY node) AS is_last FROM boots
        """,
        rows=union(tables, "node", "boot_id", "ts", "mono_us"),
    )


def steps(
    rows: DataFrame,  # rows of the table `name`, which has counters
    name: str,  # name of the table
    columns: Sequence[str],  # the columns to take the difference of
    kept: Sequence[str] = (),  # other columns to return
    before: Sequence[str] = (),  # columns whose values in the earlier row are returned, too, as `before_...`
) -> DataFrame:
    """Return a row for each two successive rows: the values of the later one, and the increases since the earlier.

    Returns:
        `columns`, `kept`, `ts`, `mono_us` and the keys of the table, `step_us`, `from_ts` (ms: `step_us` before `ts`,
        even if the wall clock was set in between) and a `d_...` for each of `columns`. For an object's first row there
        is a step only if the row has the time of its creation and that was just before: counters and areas began at 0,
        a `d_...` of a gauge is null. The increase before any other first row is not in the input.
    """
    table = tables()[name]
    keys, areas, counters = (table.of_kind(*kinds) for kinds in (("key",), ("area",), ("counter", "area")))
    is_begun, step_us = "false", f"mono_us - {BEFORE}mono_us"
    if "since_ms" in keys:
        age_us = "(ts - since_ms) * 1000"
        is_begun = f"({BEFORE}mono_us IS NULL AND {age_us} <= {FULL_US})"
        step_us = f"IF({is_begun}, {age_us}, {step_us})"

    def added(column: str) -> str:
        difference = f"{column} - {BEFORE}{column}"
        if column in areas:
            difference = f"pmod({difference}, {AREA_MODULUS})"
        return f"IF({is_begun}, {column}, {difference})" if column in counters else difference

    shown = dict.fromkeys((*keys, "ts", "mono_us", *kept, *columns))
    earlier = dict.fromkeys(("mono_us", *columns, *before))
    increases = "".join(f", {added(column)} AS d_{column}" for column in columns)
    return query(
        f"""
        WITH following AS (
            SELECT {", ".join(shown)}, {each(f"lag({{0}}) OVER object AS {BEFORE}{{0}}", earlier)}
            FROM {{rows}} WINDOW object AS (PARTITION BY {", ".join(keys)} ORDER BY mono_us)
        ),
        taken AS (
            SELECT {", ".join([*shown, *(f"{BEFORE}{column}" for column in before)])}, {step_us} AS step_us{increases}
            FROM following
        )
        SELECT *, ts - CAST(round(step_us / 1000) AS BIGINT) AS from_ts FROM taken WHERE step_us > 0
        """,
        rows=rows,
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
    keys, final, group = tables()[name].of_kind("key"), "max_by({0}, mono_us) AS {0}", ", ".join(by)
    changing = [column for column in by if column not in keys]
    objects = ", ".join((*keys, *changing))
    # Only numbers are aggregated over all rows, as Spark would sort them to aggregate text.
    ends = (
        f"SELECT {objects}, max(mono_us) AS mono_us, {each(final, columns)} FROM {{rows}} GROUP BY {objects}"
    )
    if changing:
        key = ", ".join(keys)
        ends = f"SELECT {key}, {each(final, (*changing, *columns))} FROM ({ends}) GROUP BY {key}"
    sums = each("sum({0}) AS {0}", columns)
    return query(f"SELECT {group}, {sums} FROM ({ends}) GROUP BY {group}", rows=rows)


def contradictions(rows: DataFrame, checks: Mapping[str, str]) -> DataFrame:
    """Return each contradiction in rows: its name `what`, and the number of `rows`, 1. They are to be added up.

    `checks`: conditions that no row may meet, by name. They are not counted by an aggregate each, as there are many.
    """
    found = (
        ", ".join(f"IF({check}, '{what}', NULL)" for what, check in checks.items()) or "CAST(NULL AS STRING)"
    )
    any_of = " OR ".join(f"({check})" for check in checks.values()) or "false"
    return query(
        f"WITH each AS (SELECT explode(array({found})) AS what FROM {{rows}} WHERE {any_of}) "
        "SELECT what, 1L AS rows FROM each WHERE what IS NOT NULL",
        rows=rows,
    )
