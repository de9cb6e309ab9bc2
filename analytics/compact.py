"""Jobs `compact` and `validate`: lossless conversion of JSON Lines to Parquet, and checks of the tables."""

import json
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from leveret.analytics import paging
from leveret.analytics.job import Job, Page, Section, Written, number_of
from leveret.analytics.locations import has_files, source, url
from leveret.analytics.reading import Input, InputError
from leveret.analytics.schemas import Table, tables
from leveret.analytics.series import contradictions, query

TABLES: Final = "tables"  # directory of the output that serves as input of the other jobs
WRITTEN: Final = "written"
KEPT: Final = "kept"
GAP: Final = 2.5  # multiple of a node's usual row distance from which rows are missing
CLOCK_US: Final = 1_000_000
"""Permitted drift of the wall clock against the monotonic clock between two rows, in microseconds."""
INVARIANTS: Final = {
    "exchange_interval": {
        "pub_in differs from routed + returned + dropped": "pub_in != routed + unroutable_returned + unroutable_dropped"
    },
    "latency_hist": {
        "count differs from the sum of the buckets": "count != aggregate(b, 0L, (total, bucket) -> total + bucket.c)"
    },
}
"""Conditions that no row of a table may meet, by name; those of `queue_interval` are in `paging`."""
NEAR: Final = 0.1  # greatest relative difference of two means of the same waits, one of them of samples
_PARTITIONS: Final = (
    "table string",
    "dt string",
    "hour string",
    "rows bigint",
    "before bigint",
    "action string",
)
_COUNTS: Final = ("table string", "lines bigint", "rows bigint", "aside bigint")


def compact(data: Input) -> dict[str, DataFrame]:
    """Write each hour of each table as Parquet to the output's `tables`; return a summary by hour.

    Rows that exist already are not written again, and none is removed: repeating it changes nothing, rows whose JSON
    has been deleted are kept, and several brokers' exports may go to one output. Raises InputError: there is no JSON
    table, or it is not in directories by date and hour; or rows were lost in writing.
    """
    done = [
        record
        for name in tables()
        if data.suffix(name) == "jsonl"
        for record in _compacted(data, tables()[name])
    ]
    if not done:
        raise InputError(f"no JSON Lines tables in {data.directory}")
    return {"partitions": _made(data.spark, done, _PARTITIONS)}


def _made(spark: SparkSession, rows: Sequence[tuple[str | int, ...]], columns: Sequence[str]) -> DataFrame:
    """Return Python rows as a table. Spark's own way would start Python on the workers, which may lack it."""
    names = [column.partition(" ")[0] for column in columns]
    text = json.dumps([dict(zip(names, row, strict=True)) for row in rows])
    parsed = F.from_json(F.lit(text), f"array<struct<{', '.join(columns)}>>")
    return spark.range(1).select(F.inline(parsed))


def _compacted(data: Input, table: Table) -> Iterator[tuple[str, str, str, int, int, str]]:
    rows = data.placed(table.name)
    hours = data.counted[table.name].hours
    if sum(hours.values()) != data.counted[table.name].rows:
        raise InputError(f"no directories dt=.../hour=... for files in {data.directory / table.name}")
    stored = _stored(data, table)
    before = _summed(stored, table)
    there = [hour for hour in hours if hour in before]
    same = _summed(_in_hours(rows, there), table) if there else {}
    grown = [hour for hour in there if same[hour] != before[hour]]
    lacking = [_in_hours(rows, [hour for hour in hours if hour not in before])]
    if stored is not None and grown:
        lacking.append(_lacking(_in_hours(rows, grown), stored, table))
    if len(there) < len(hours) or (len(lacking) > 1 and not lacking[1].isEmpty()):
        order = [*table.of_kind("key"), *(("ts",) if table.has_clock else ())]
        (
            reduce(DataFrame.unionByName, lacking)
            .repartition("dt", "hour")
            .sortWithinPartitions("dt", "hour", *order)
            .write.mode("append")
            .partitionBy("dt", "hour")
            .parquet(url(data.output / TABLES / table.name))
        )
    stored = _stored(data, table)
    after = _summed(stored, table)
    lost = [hour for hour in hours if hour not in before and after.get(hour, (0,))[0] != hours[hour]]
    if stored is not None and grown and not _lacking(_in_hours(rows, grown), stored, table).isEmpty():
        lost += grown
    if lost:
        raise InputError(
            f"{table.name}: rows of these hours are missing in the output: {', '.join(map('/'.join, lost))}"
        )
    for hour in sorted(hours):
        count, known = after[hour][0], before.get(hour, (0,))[0]
        yield table.name, *hour, count, known, WRITTEN if count > known else KEPT


def _stored(data: Input, table: Table) -> DataFrame | None:
    """Return the rows of a table in an output, with `dt` and `hour`; None if it has none."""
    folder = data.output / TABLES / table.name
    if not has_files(data.spark, folder, "parquet"):
        return None
    return data.spark.read.parquet(source(folder))


def _in_hours(rows: DataFrame, hours: Sequence[tuple[str, str]]) -> DataFrame:
    return rows.filter(F.concat_ws("/", "dt", "hour").isin(*map("/".join, hours)))


def _identity(table: Table) -> Column:
    """Return a hash that is the same for equal rows, and practically never for others."""
    return F.xxhash64(F.to_json(F.struct(*table.schema.names)))


def _summed(rows: DataFrame | None, table: Table) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the number of rows of each hour, and the sum of their identities."""
    if rows is None:
        return {}
    total = F.sum(_identity(table).cast("decimal(20)"))
    found = rows.groupBy("dt", "hour").agg(F.count("*").alias("count"), total.alias("total")).collect()
    return {(row["dt"], row["hour"]): (row["count"], int(row["total"])) for row in found}


def _lacking(rows: DataFrame, stored: DataFrame, table: Table) -> DataFrame:
    """Return the rows of an input that the output lacks."""
    known = stored.select("dt", "hour", _identity(table).alias("_identity"))
    return (
        rows.withColumn("_identity", _identity(table))
        .join(known, ["dt", "hour", "_identity"], "left_anti")
        .drop("_identity")
    )


def validate(data: Input) -> dict[str, DataFrame]:
    """Return `tables` (rows read), `findings` (contradictory rows), `gaps` (times without rows of a node) and `waits`.

    `waits` compares the mean waits of queues by Little's law with those of the samples. Raises InputError: there is no
    table at all.
    """
    there = [table for name, table in tables().items() if data.has(name)]
    if not there:
        raise InputError(
            f"no tables in {data.directory}: the input is the export.dir of a broker, with a directory for each table"
        )
    found = [findings(data.table(table.name), table) for table in there]
    waits = None
    if data.has("queue_interval"):
        histograms = data.table("latency_hist") if data.has("latency_hist") else None
        broken, waits = paging.checked(data, histograms)
        found.append(broken.select(F.lit("queue_interval").alias("table"), "what", "rows"))
    counted = [
        (name, count.lines, count.rows, sum(count.aside.values()))
        for name, count in sorted(data.counted.items())
    ]
    each = reduce(DataFrame.unionByName, found).groupBy("table", "what").agg(F.sum("rows").alias("rows"))
    result = {"tables": _made(data.spark, counted, _COUNTS), "findings": each.orderBy("table", "what")}
    if waits is not None:
        result["waits"] = waits.orderBy(F.desc("gap"), "node", "vhost", "queue")
    if data.has("node_interval"):
        result["gaps"] = gaps(data.table("node_interval")).orderBy("node", "start")
    return result


def findings(rows: DataFrame, table: Table) -> DataFrame:
    """Return the rows of a table that contradict others or themselves, as `series.contradictions` does."""
    checks = dict(INVARIANTS.get(table.name, {}))
    if table.has_clock and table.name != "event":
        counters, keys = table.of_kind("counter"), ", ".join(table.of_kind("key"))
        rows = rows.selectExpr(
            "*",
            f"lag(struct({', '.join(('ts', 'mono_us', *counters))})) OVER (PARTITION BY {keys} ORDER BY mono_us) "
            "AS before",
        )
        checks |= {f"{name} decreased": f"{name} < before.{name}" for name in counters}
        checks["duplicate row"] = "mono_us = before.mono_us"
        checks["wall clock was changed"] = (
            f"abs((ts - before.ts) * 1000 - (mono_us - before.mono_us)) > {CLOCK_US}"
        )
    return contradictions(rows, checks).selectExpr(f"'{table.name}' AS table", "what", "rows")


def gaps(nodes: DataFrame) -> DataFrame:
    """Return the times in which a running node wrote nothing for more than `GAP` times its usual interval."""
    return query(
        f"""
        WITH following AS (
            SELECT node, boot_id, ts, lag(ts) OVER boot AS before, mono_us - lag(mono_us) OVER boot AS step
            FROM {{nodes}} WINDOW boot AS (PARTITION BY node, boot_id ORDER BY mono_us)
        ),
        usual AS (SELECT node, boot_id, median(step) AS usual FROM following GROUP BY node, boot_id)
        SELECT node, boot_id, timestamp_millis(before) AS start, timestamp_millis(ts) AS end,
            (step - usual) / 1e6 AS missing_s
        FROM following JOIN usual USING (node, boot_id) WHERE step > {GAP}D * usual
        """,
        nodes=nodes,
    )


def describe_compact(written: Written) -> Page:
    """Return the report of `compact`."""
    rows = written.rows("partitions", "table", "dt", "hour")
    new = sum(row["rows"] - row["before"] for row in rows)
    return Page(
        title="Tables in Parquet",
        lead=f"{number_of(sum(row['rows'] for row in rows), 'row')} of "
        f"{number_of(len({row['table'] for row in rows}), 'table')} in {number_of(len(rows), 'hour')}; "
        f"{number_of(new, 'new row')}.",
        facts=[],
        sections=[Section("Hours", "", columns="table dt hour rows before action", rows=rows)],
    )


def describe_validate(written: Written) -> Page:
    """Return the report of `validate`."""
    counted, found = written.rows("tables", "table"), written.rows("findings", "table", "what")
    missing = written.rows("gaps", "node", "start") if written.has("gaps") else []
    aside = sum(row["aside"] for row in counted)
    facts = [
        f"Lines set aside: {aside:,} of {sum(row['lines'] for row in counted):,}.",
        f"{number_of(len(found), 'kind of contradiction', 'kinds of contradictions')}, "
        f"{number_of(len(missing), 'gap')}."
        if found or missing
        else "No contradictions and no gaps.",
    ]
    waits = written.rows("waits", "-gap", "node", "vhost", "queue") if written.has("waits") else []
    if waits:
        near = sum(row["gap"] <= NEAR for row in waits)
        facts.append(
            f"Mean waits by Little's law and by samples agree to {NEAR:.0%} in {near:,} of "
            f"{number_of(len(waits), 'queue in a steady state', 'queues in a steady state')}."
        )
    return Page(
        title="Data quality",
        lead="Checks that every line is a valid row, counters never decrease, sums agree and no interval is missing.",
        facts=facts,
        sections=[
            Section("Tables", "", columns="table lines rows aside", rows=counted),
            Section("Contradictions", "", columns="table what rows", rows=found),
            Section("Gaps", "", columns="node boot_id start end missing_s", rows=missing),
            Section(
                "Waiting times, computed in two ways",
                "Only queues in which few messages waited at the start and at the end.",
                terms={
                    "boundary": "messages that waited at the start and at the end, as a share of all",
                    "gap": "relative difference of the two means",
                },
                columns="queue vhost little_ms measured_ms samples boundary gap node",
                rows=waits,
            ),
        ],
    )


COMPACT: Final = Job(
    name="compact",
    needs=(),
    compute=compact,
    describe=describe_compact,
)
VALIDATE: Final = Job(
    name="validate",
    needs=(),
    compute=validate,
    describe=describe_validate,
    uses=tuple(tables()),
)
