"""Generates tables of any size with a known analysis: `python -m bench.generate` (driver: files).

Every value is computed from the row's number, so the same rows result on any number of cores, and the expected result
of a job follows from the formulas: `tests/analytics` computes it without Spark.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import click
from pyspark.sql import Column, DataFrame, SparkSession, functions as F  # noqa: N812 - Spark's own custom

from leveret.analytics.histograms import highest, lowest
from leveret.analytics.locations import url
from leveret.analytics.schemas import VERSION, tables
from leveret.analytics.session import session

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
"""Number of successive start buckets of the histograms of one kind."""
ROWS_OF_A_NODE: Final = 100_000
ROWS_OF_A_BOOT: Final = 25_000
QUEUES: Final = 10_000
EXCHANGES: Final = 1000
PATTERNS: Final = 64
"""Patterns of each exchange: as many as the broker exports."""
BURST: Final = (600, 604)
"""Intervals of each hour in which every thousandth queue has ten times the usual messages."""
HOUR: Final = 3_600_000 // INTERVAL_MS
EVENTS: Final = (
    *("connection_opened", "queue_created", "auth_failed", "queue_created"),
    *("connection_closed", "queue_deleted", "queue_deleted"),
)
"""Events of a node, one second apart, repeated."""
ALARM: Final = (*EVENTS[:3], "alarm_raised", *EVENTS[4:6], "alarm_cleared")
"""Events with an alarm in place of a queue, used once in `ALARMED` cycles."""
ALARMED: Final = 100
CYCLE_MS: Final = 10_000
LATE_RATE: Final = 9000
LINES: Final = {"default": 10, "paper-standard": 5, "consumer-ack": 40, "consumer-ack-light": 50}
"""The lines of a comparison, and the rate of each."""
BLOCKS: Final = 10
QUEUE_COUNTS: Final = 10
WINDOWS: Final = (50, 200)
RUNS: Final = len(LINES) * BLOCKS * QUEUE_COUNTS * len(WINDOWS)
LEAST_SECONDS: Final = 60
"""Minimum length of a run in seconds."""
ROWS_OF_A_TASK: Final = 500_000


def latency_hist(spark: SparkSession, rows: int) -> DataFrame:
    """Make histograms of nodes that have `ROWS_OF_A_NODE` each.

    Of row `id` = 4 n + k: kind k, two buckets, the lower with 1 + n mod 3, 7 above it 2.
    """
    nodes = _nodes(rows)
    kind, number = F.col("id") % len(WHAT), F.floor(F.col("id") / len(WHAT))
    first = f"CAST(64 + 32 * (id % {len(WHAT)}) + floor(id / {len(WHAT)}) % {SPREAD} AS INT)"
    eighth = f"({first} + 7)"
    count = 1 + number % 3

    def bucket(index: str, number: Column) -> Column:
        return F.struct(F.expr(index).alias("i"), number.cast("long").alias("c"))

    values: dict[str, Column] = {
        **_common(F.floor(number / nodes), number % nodes),
        "scope": F.lit("node"),
        "vhost": F.lit(""),
        "name": F.lit(""),
        "metric": _nth([metric for metric, _ in WHAT], kind),
        "mode": _nth([mode for _, mode in WHAT], kind),
        "scheme": F.lit("ll5"),
        "count": count + 2,
        "sum_us": F.expr(lowest(first)) * count + F.expr(lowest(eighth)) * 2,
        "min_us": F.expr(lowest(first)),
        "max_us": F.expr(highest(eighth)),
        "b": F.array(bucket(first, count), bucket(eighth, F.lit(2))),
    }
    return _table("latency_hist", _numbers(spark, rows), values)


def queue_interval(spark: SparkSession, rows: int) -> DataFrame:
    """Make rows of queues with equal lifetimes. Of row `id` = n q + i: queue i, its interval n.

    Queue i gets and delivers 10 + i mod 7 messages a second, and has i mod 10 in alpha, twice as many in gamma (paged
    out before). Where i mod 1000 is 1 it gets and delivers ten times as many in the intervals `BURST` of each hour.
    """
    queues = min(QUEUES, max(1, rows // 100))
    number, queue = F.floor(F.col("id") / queues), F.col("id") % queues
    seconds = number * (INTERVAL_MS // 1000)
    first, end = BURST
    burst = F.floor(number / HOUR) * (end - first) + F.least(
        F.greatest(number % HOUR - first, F.lit(0)), F.lit(end - first)
    )
    more = F.when(queue % 1000 == 1, 9 * burst * (INTERVAL_MS // 1000)).otherwise(0)
    handled, level = (seconds + more) * (10 + queue % 7), queue % 10
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
        "t_ag": seconds + level * 2,
    }
    return _table("queue_interval", _numbers(spark, rows), values)


def exchange_interval(spark: SparkSession, rows: int) -> DataFrame:
    """Make rows of exchanges with equal lifetimes. Of row `id` = n e + i: exchange i, its interval n.

    In each interval 100 (1 + i mod 7) messages come in: 90 % are routed, to 1 + i mod 4 queues each, 4 % are returned,
    6 % dropped; for 10 % the route must be computed.
    """
    exchanges = min(EXCHANGES, max(1, rows // 100))
    number, exchange = F.floor(F.col("id") / exchanges), F.col("id") % exchanges
    hundreds, copies = number * (1 + exchange % 7), 1 + exchange % 4
    values: dict[str, Column] = {
        **_common(number),
        "vhost": F.lit("/"),
        "exchange": F.concat(F.lit("e"), exchange.cast("string")),
        "since_ms": F.lit(START_MS),
        "type": F.lit("topic"),
        "bindings": F.lit(PATTERNS),
        "pub_in": hundreds * 100,
        "routed": hundreds * 90,
        "unroutable_returned": hundreds * 4,
        "unroutable_dropped": hundreds * 6,
        "fanout_sum": hundreds * 90 * copies,
        "route_lookups": hundreds * 10,
    }
    return _table("exchange_interval", _numbers(spark, rows), values)


def topic_pattern(spark: SparkSession, rows: int) -> DataFrame:
    """Make rows of these exchanges' patterns. Of row `id` = 64 (n e + i) + p: pattern p, its interval n.

    In each interval it matches p (1 + i mod 7) messages, so that the first pattern of each exchange is dead.
    """
    exchanges = min(EXCHANGES, max(1, rows // (100 * PATTERNS)))
    pattern, each = F.col("id") % PATTERNS, F.floor(F.col("id") / PATTERNS)
    number, exchange = F.floor(each / exchanges), each % exchanges
    values: dict[str, Column] = {
        **_common(number),
        "vhost": F.lit("/"),
        "exchange": F.concat(F.lit("e"), exchange.cast("string")),
        "pattern": F.concat(F.lit("#."), pattern.cast("string")),
        "since_ms": F.lit(START_MS),
        "matches": number * pattern * (1 + exchange % 7),
    }
    return _table("topic_pattern", _numbers(spark, rows), values)


def node_interval(spark: SparkSession, rows: int) -> DataFrame:
    """Make intervals of nodes that have `ROWS_OF_A_NODE` each, and restart every `ROWS_OF_A_BOOT`.

    In the interval up to row k of a boot 100 + 10 ((k - 1) mod 1000) messages a second are published. On node i each
    takes 40 + i mod 10 microseconds of the processor, and other work takes 2 % of it; a fifth of the time is system
    time. Above a rate of `LATE_RATE` the event loop is late.
    """
    nodes = _nodes(rows)
    node, interval = F.col("id") % nodes, F.floor(F.col("id") / nodes)
    number, boot = interval % ROWS_OF_A_BOOT, F.floor(interval / ROWS_OF_A_BOOT)
    rise, seconds = 1000, INTERVAL_MS // 1000
    whole, part = F.floor(number / rise), number % rise
    risen = whole * (rise * (rise - 1) // 2) + F.floor(part * (part - 1) / 2)  # the sum of (k - 1) mod 1000
    published = seconds * (100 * number + 10 * risen)
    busy_us = published * (40 + node % 10) + number * (INTERVAL_MS * 20)
    last = F.when(number > 0, 100 + 10 * ((number - 1) % rise)).otherwise(0)
    values: dict[str, Column] = {
        **_common(interval, node),
        "boot_id": F.concat(F.lit(BOOT), boot.cast("string")),
        "alarms": F.array(),
        "mem_used": F.lit(10**8),
        "mem_limit": F.lit(10**9),
        "disk_free": F.lit(10**10),
        "disk_limit": F.lit(10**9),
        "published": published,
        "cpu_user_us": busy_us - F.floor(busy_us / 5),
        "cpu_sys_us": F.floor(busy_us / 5),
        "loop_lag_p99_us": F.when(last > LATE_RATE, 30_000).otherwise(2000),
    }
    return _table("node_interval", _numbers(spark, rows), values)


def event(spark: SparkSession, rows: int) -> DataFrame:
    """Make events of nodes that have `ROWS_OF_A_NODE` each, repeating `EVENTS`.

    Of row `id` = 7 (n m + i) + k: event k of cycle m of node i. The connection that is closed was opened i mod 7
    cycles before, and closed up to a second later than usual. Clients of 100 addresses and 10 users open connections,
    attackers of 50 addresses fail to log in. Alarms last three seconds.
    """
    nodes = _nodes(rows)
    place, each = F.col("id") % len(EVENTS), F.floor(F.col("id") / len(EVENTS))
    node, cycle = each % nodes, F.floor(each / nodes)
    kind = F.when(cycle % ALARMED == 0, _nth(ALARM, place)).otherwise(_nth(EVENTS, place))
    number = F.when(kind == "connection_closed", cycle - node % 7).otherwise(cycle)
    late_ms = F.when(kind == "connection_closed", F.pmod(number * 7919, F.lit(1000))).otherwise(0)
    since_ms = cycle * CYCLE_MS + place * 1000 + late_ms
    peer = F.when(kind == "auth_failed", F.concat(F.lit("10.1.0."), (cycle % 50).cast("string"))).otherwise(
        F.concat(F.lit("10.0.0."), F.pmod(number, F.lit(100)).cast("string"))
    )
    user = F.concat(F.lit("u"), F.pmod(number, F.lit(10)).cast("string"))
    values: dict[str, Column] = {
        **_common(cycle, node),
        "ts": START_MS + since_ms,
        "mono_us": since_ms * 1000,
        "kind": kind,
        "vhost": F.when(kind.startswith("queue"), "/").otherwise(""),
        "name": F.when(kind.startswith("alarm"), "memory")
        .when(kind == "auth_failed", "root")
        .otherwise(number.cast("string")),
        "detail": F.when(
            kind.startswith("connection"), F.create_map(F.lit("peer"), peer, F.lit("user"), user)
        )
        .when(kind == "auth_failed", F.create_map(F.lit("peer"), peer))
        .otherwise(F.create_map().cast("map<string,string>")),
    }
    return _table("event", _numbers(spark, rows), values)


def bench_run(spark: SparkSession, rows: int) -> DataFrame:
    """Make the runs of `bench_sample` with that many rows: at most `RUNS`, of at least `LEAST_SECONDS`.

    Of run r: the line r mod 4, the block floor(r / 4) mod 10, then queues, then the window.
    """
    runs, run = _runs(rows), F.col("id")
    line, block, queues = _cell(run)
    values: dict[str, Column] = {
        "v": F.lit(VERSION),
        "run_id": run.cast("string"),
        **{name: F.lit("made up") for name in ("git", "host", "cpu", "kernel", "version", "sync")},
        "broker": F.lit("leveret"),
        "mode": F.when(line.startswith("consumer-ack"), line).otherwise("standard"),
        "queues": queues,
        "persistent": F.lit(True),
        "block": block,
        "start_ts": START_MS + run * 1000,
        "dur_s": F.lit(rows // runs),
    }
    return _table("bench_run", spark.range(0, runs, 1, 2), values)


def bench_cost(spark: SparkSession, rows: int) -> DataFrame:
    """Make the costs of the runs of `bench_run`: 50 microseconds of CPU time per message."""
    runs, run = _runs(rows), F.col("id")
    values: dict[str, Column] = {
        "v": F.lit(VERSION),
        "run_id": run.cast("string"),
        "line": _cell(run)[0],
        "window": _nth(WINDOWS, F.floor(run / (RUNS // len(WINDOWS)))),
        "settings": F.lit(""),
        "messages": F.lit(1_000_000),
        "cpu_s": F.lit(50),
        "counters": F.create_map(F.lit("commits"), F.lit(10_000)),
    }
    return _table("bench_cost", spark.range(0, runs, 1, 2), values)


def bench_sample(spark: SparkSession, rows: int) -> DataFrame:
    """Make seconds of the runs of `bench_run`. Of row `id` = s n + r: run r, the second up to s + 1.

    Its rate is that of its line (`LINES`) times 100 queues + block + s mod 7: lines of a block have the same ratio in
    all of them.
    """
    runs = _runs(rows)
    run, second = F.col("id") % runs, F.floor(F.col("id") / runs)
    _, block, queues = _cell(run)
    rate = _nth(LINES.values(), run % len(LINES)) * (100 * queues + block + second % 7)
    values: dict[str, Column] = {
        "v": F.lit(VERSION),
        "run_id": run.cast("string"),
        "t_s": second + 1,
        "published": rate,
        "confirmed": rate,
        "received": rate,
        **{f"{kind}_p{part}": 1000 + second % 100 for kind in "cl" for part in (50, 75, 95, 99)},
    }
    return _table("bench_sample", _numbers(spark, rows), values)


TABLES: Final[Mapping[str, Callable[[SparkSession, int], DataFrame]]] = {
    "latency_hist": latency_hist,
    "queue_interval": queue_interval,
    "exchange_interval": exchange_interval,
    "topic_pattern": topic_pattern,
    "node_interval": node_interval,
    "event": event,
    "bench_run": bench_run,
    "bench_cost": bench_cost,
    "bench_sample": bench_sample,
}


def _nth(values: Iterable[str | int], number: Column) -> Column:
    return F.get(F.array(*map(F.lit, values)), number.cast("int"))


def _nodes(rows: int) -> int:
    return max(1, rows // ROWS_OF_A_NODE)


def _runs(samples: int) -> int:
    return min(RUNS, max(1, samples // LEAST_SECONDS))


def _cell(run: Column) -> tuple[Column, Column, Column]:
    """Return the line, block and number of queues of a run."""
    block, queues = F.floor(run / len(LINES)), F.floor(run / (len(LINES) * BLOCKS))
    return _nth(LINES, run % len(LINES)), 1 + block % BLOCKS, 1 + queues % QUEUE_COUNTS


def _numbers(spark: SparkSession, rows: int) -> DataFrame:
    """Return the rows' numbers, ascending with time, so that each of any number of tasks writes few hours."""
    return spark.range(0, rows, 1, max(2, rows // ROWS_OF_A_TASK))


def _common(number: Column, node: Column | None = None) -> dict[str, Column]:
    return {
        "v": F.lit(VERSION),
        "ts": START_MS + number * INTERVAL_MS,
        "mono_us": number * INTERVAL_MS * 1000,
        "node": F.lit(NODE) if node is None else F.concat(node.cast("string"), F.lit("@generated")),
        "boot_id": F.lit(BOOT),
    }


def _table(name: str, numbers: DataFrame, values: Mapping[str, Column]) -> DataFrame:
    """Set missing numbers to 0, and convert each column to its declared type."""
    return numbers.select(
        *[
            values.get(field.name, F.lit(0)).cast(field.dataType).alias(field.name)
            for field in tables()[name].schema.fields
        ]
    )


def write(rows: DataFrame, name: str, directory: Path, *, parquet: bool) -> None:
    """Write a table in the layout of the export or of `compact`, replacing an existing one.

    Args:
        rows: the rows of the table.
        name: the name of the table.
        directory: the directory of all tables.
        parquet: Parquet instead of JSON Lines.
    """
    folder = (directory / name).resolve()
    # Seconds of a run have no time of their own; no job uses their hour.
    time = F.timestamp_millis("ts" if "ts" in rows.columns else F.lit(START_MS))
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
@click.option("--parquet", is_flag=True, help="Write Parquet instead of JSON Lines.")
def main(names: tuple[str, ...], output: Path, rows: int, *, parquet: bool) -> None:
    """Make tables of ROWS rows each; for a comparison's runs, ROWS is the number of their seconds."""
    with session(progress=sys.stderr.isatty()) as spark:
        for name in names:
            write(TABLES[name](spark, rows), name, output, parquet=parquet)


if __name__ == "__main__":
    main()
