"""Made-up tables of any size whose analysis is known beforehand: `python -m analytics.generate` (driver: files).

Every value is arithmetic on the row's number, so the same rows come out on any number of cores, and what a job has to
find in them follows from the formulas: `tests/analytics` reckons it without Spark.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import click
from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from analytics.histograms import highest, lowest
from analytics.reading import url
from analytics.schemas import VERSION, tables
from analytics.session import session

START_MS: Final = 1_800_000_000_000
INTERVAL_MS: Final = 5000
NODE: Final = "node@generated"
BOOT: Final = "boot"
WHAT: Final = (
    ("confirm", "standard"),
    ("confirm", "consumer-ack"),
    ("confirm", "consumer-ack-light"),
    ("deliver", ""),
)
"""Metric and mode of the histograms, by the row's number modulo 4."""
SPREAD: Final = 50
"""How many buckets the histograms of one kind begin in, one after the other."""
ROWS_OF_A_NODE: Final = 100_000
QUEUES: Final = 10_000
ROWS_OF_A_TASK: Final = 500_000
STATES: Final = ("alpha", "beta", "gamma", "delta")


def latency_hist(spark: SparkSession, rows: int) -> DataFrame:
    """Make histograms of nodes that have `ROWS_OF_A_NODE` each.

    Of row `id` = 4 n + k: kind k, two buckets, the lower with 1 + n mod 3, 7 above it 2.
    """
    nodes = max(1, rows // ROWS_OF_A_NODE)
    kind, number = F.col("id") % len(WHAT), F.floor(F.col("id") / len(WHAT))
    first = (64 + 32 * kind + number % SPREAD).cast("int")
    count = 1 + number % 3

    def bucket(index: Column, number: Column) -> Column:
        return F.struct(index.cast("int").alias("i"), number.cast("long").alias("c"))

    values: dict[str, Column] = {
        **_common(F.floor(number / nodes)),
        "node": F.concat((number % nodes).cast("string"), F.lit("@generated")),
        "scope": F.lit("node"),
        "vhost": F.lit(""),
        "name": F.lit(""),
        "metric": F.get(F.array(*[F.lit(metric) for metric, _ in WHAT]), kind.cast("int")),
        "mode": F.get(F.array(*[F.lit(mode) for _, mode in WHAT]), kind.cast("int")),
        "scheme": F.lit("ll5"),
        "count": count + 2,
        "sum_us": lowest(first) * count + lowest(first + 7) * 2,
        "min_us": lowest(first),
        "max_us": highest(first + 7),
        "b": F.array(bucket(first, count), bucket(first + 7, F.lit(2))),
    }
    return _table("latency_hist", _numbers(spark, rows), values)


def queue_interval(spark: SparkSession, rows: int) -> DataFrame:
    """Make the rows of queues that all live as long. Of row `id` = n q + i: queue i, its interval n.

    Queue i gets and delivers 10 + i mod 7 messages a second, and has i mod 10 in alpha, twice as many in gamma.
    """
    queues = min(QUEUES, max(1, rows // 100))
    number, queue = F.floor(F.col("id") / queues), F.col("id") % queues
    seconds = number * (INTERVAL_MS // 1000)
    handled, level = seconds * (10 + queue % 7), queue % 10
    values: dict[str, Column] = {
        **_common(number),
        "vhost": F.lit("/"),
        "queue": F.concat(F.lit("q"), queue.cast("string")),
        "since_ms": F.lit(START_MS),
        "type": F.lit("classic"),
        "durable": F.lit(True),
        "mode": F.lit("standard"),
        "ready": level * 3,
        "alpha": level,
        "gamma": level * 2,
        "consumers": F.lit(1),
        "target_ram": F.lit(-1.0),
        "capacity": F.lit(1.0),
        "pub": handled + level * 3,
        "delivered": handled,
        "acked": handled,
        "area_ready": seconds * level * 3_000_000,
        "area_alpha": seconds * level * 1_000_000,
        "area_gamma": seconds * level * 2_000_000,
        "t_ag": seconds,
    }
    return _table("queue_interval", _numbers(spark, rows), values)


TABLES: Final[Mapping[str, Callable[[SparkSession, int], DataFrame]]] = {
    "latency_hist": latency_hist,
    "queue_interval": queue_interval,
}


def _numbers(spark: SparkSession, rows: int) -> DataFrame:
    """Return the rows' numbers. They rise with time, so each task, however many there are, writes few hours."""
    return spark.range(0, rows, 1, max(2, rows // ROWS_OF_A_TASK))


def _common(number: Column) -> dict[str, Column]:
    return {
        "v": F.lit(VERSION),
        "ts": START_MS + number * INTERVAL_MS,
        "mono_us": number * INTERVAL_MS * 1000,
        "node": F.lit(NODE),
        "boot_id": F.lit(BOOT),
    }


def _table(name: str, numbers: DataFrame, values: Mapping[str, Column]) -> DataFrame:
    """Fill in 0 for what is not said, and give each column its declared type."""
    return numbers.select(
        *[
            values.get(field.name, F.lit(0)).cast(field.dataType).alias(field.name)
            for field in tables()[name].schema.fields
        ]
    )


def write(rows: DataFrame, name: str, directory: Path, *, parquet: bool) -> None:
    """Write a table as the export or `compact` lays it out, in place of what is there.

    Args:
        rows: of the table.
        name: of the table.
        directory: of all tables.
        parquet: Parquet instead of JSON Lines.

    """
    folder = (directory / name).resolve()
    time = F.timestamp_millis("ts")
    placed = rows.withColumn("dt", F.date_format(time, "yyyy-MM-dd")).withColumn(
        "hour", F.date_format(time, "HH")
    )
    written = placed.write.mode("overwrite").partitionBy("dt", "hour")
    if parquet:
        written.parquet(url(folder))
        return
    written.option("ignoreNullFields", "false").json(url(folder))
    for number, path in enumerate(sorted(folder.rglob("part-*.json"))):
        path.rename(path.with_name(f"{name}-{START_MS}-{number}.jsonl"))


@click.command()
@click.argument("names", metavar="TABLE...", nargs=-1, required=True, type=click.Choice(list(TABLES)))
@click.option("--output", required=True, type=click.Path(path_type=Path, file_okay=False))
@click.option("--rows", required=True, type=click.IntRange(min=1))
@click.option("--parquet", is_flag=True, help="Instead of JSON Lines.")
def main(names: tuple[str, ...], output: Path, rows: int, *, parquet: bool) -> None:
    """Make tables of so many rows each."""
    with session(progress=sys.stderr.isatty()) as spark:
        for name in names:
            write(TABLES[name](spark, rows), name, output, parquet=parquet)


if __name__ == "__main__":
    main()
