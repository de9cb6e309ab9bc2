"""Job `churn`: connection and channel churn, failed logins, and the duration of alarms."""

from collections import Counter
from functools import reduce
from typing import Final

from pyarrow.dataset import field
from pyspark.sql import Column, DataFrame, Window, functions as F

from leveret.analytics.figures import Panel, panels, series_of
from leveret.analytics.folding import times
from leveret.analytics.job import Job, Page, Section, Written, number_of, texts
from leveret.analytics.reading import Input
from leveret.analytics.series import start_of_bin

COMING: Final = ("connection_opened", "connection_closed", "queue_created", "queue_deleted", "auth_failed")
SHOWN: Final = 50
NODES: Final = 20  # number of nodes in the figures, those with the most events


def compute(data: Input) -> dict[str, DataFrame]:
    """Return `over_time`, `failures`, `clients` and `alarms`."""
    rows = data.table("event")
    seen = [rows, data.table("node_interval")] if data.has("node_interval") else [rows]
    seconds = max(data.bin_seconds(name) for name in ("event", "node_interval") if data.has(name))
    return {
        "over_time": over_time(rows, seconds, *seen).orderBy("node", "time"),
        "failures": failures(rows).orderBy(F.desc("failed"), "peer", "user"),
        "clients": clients(rows).orderBy(F.desc("opened"), "peer", "user"),
        "alarms": alarms(rows, ends(*seen)).orderBy("node", "start", "alarm"),
    }


def ends(*seen: DataFrame) -> DataFrame:
    """Return when each boot of each node was last seen: `until` (ms), and whether it `is_last`."""
    each = [table.select("node", "boot_id", "ts") for table in seen]
    boots = reduce(DataFrame.unionByName, each).groupBy("node", "boot_id").agg(F.max("ts").alias("until"))
    latest = F.max("until").over(Window.partitionBy("node"))
    return boots.withColumn("is_last", F.col("until") == latest)


def over_time(rows: DataFrame, seconds: int, *seen: DataFrame) -> DataFrame:
    """Return the counts of each of `COMING` by node and bin of so many `seconds`, including zeros.

    `rows`: events; `seconds`: length of a bin; `seen`: tables of the node, which say from when to when it is known;
    without any the events do.
    """
    placed = rows.select("node", "kind", "detail", start_of_bin(F.col("ts"), seconds).alias("bin"))
    known = reduce(DataFrame.unionByName, [table.select("node", "ts") for table in seen or (rows,)])
    first, last = (start_of_bin(each("ts"), seconds) for each in (F.min, F.max))
    bins = known.groupBy("node").agg(
        F.explode(F.sequence(first, last, F.lit(seconds * 1000).cast("bigint"))).alias("bin")
    )
    counts = placed.groupBy("node", "bin").agg(
        *[F.sum(F.when(F.col("kind") == kind, times()).otherwise(0)).alias(kind) for kind in COMING]
    )
    return (
        bins.join(counts, ["node", "bin"], "left")
        .fillna(0, list(COMING))
        .select("node", F.timestamp_millis("bin").alias("time"), F.lit(seconds).alias("seconds"), *COMING)
    )


def failures(rows: DataFrame) -> DataFrame:
    """Return the number of failed logins by address and user."""
    return (
        rows.filter(F.col("kind") == "auth_failed")
        .groupBy(_detail("peer").alias("peer"), F.col("name").alias("user"))
        .agg(F.sum(times()).alias("failed"), *_span())
    )


def clients(rows: DataFrame) -> DataFrame:
    """Return connections opened and closed by address and user, and their median duration."""
    # A connection is named after both its ports: another one of the same name comes after the first has ended.
    order = Window.partitionBy("node", "boot_id", "name").orderBy("mono_us")
    known = rows.filter(F.col("kind").isin("connection_opened", "connection_closed"))
    # Folded events have no connection of their own.
    lasted = F.when(
        (F.col("name") != "")
        & (F.col("kind") == "connection_closed")
        & (F.lag("kind").over(order) == "connection_opened"),
        (F.col("mono_us") - F.lag("mono_us").over(order)) / 1e6,
    )
    return (
        known.withColumn("lasted", lasted)
        .groupBy(_detail("peer").alias("peer"), _detail("user").alias("user"))
        .agg(
            *[
                F.sum(F.when(F.col("kind") == f"connection_{way}", times()).otherwise(0)).alias(way)
                for way in ("opened", "closed")
            ],
            F.median("lasted").alias("median_s"),
            *_span(),
        )
    )


def _detail(name: str) -> Column:
    return F.try_element_at("detail", F.lit(name))


def _span() -> tuple[Column, Column]:
    return F.timestamp_millis(F.min("ts")).alias("first"), F.timestamp_millis(F.max("ts")).alias("last")


def alarms(rows: DataFrame, ends: DataFrame) -> DataFrame:
    """Return each alarm with its end and duration in minutes; an alarm still active at the end of the input has no end.

    An alarm that was active when the broker stopped, or at its last row before another boot, ends there. `rows`:
    events.
    """
    order = Window.partitionBy("node", "boot_id", "name").orderBy("mono_us")
    stops = rows.filter(F.col("kind") == "stop").groupBy("node", "boot_id")
    paired = (
        rows.filter(F.col("kind").isin("alarm_raised", "alarm_cleared"))
        .withColumn("next", F.lead(F.struct("ts", "mono_us")).over(order))
        .filter(F.col("kind") == "alarm_raised")
        .join(F.broadcast(ends), ["node", "boot_id"])
        .join(
            F.broadcast(stops.agg(F.max(F.struct("ts", "mono_us")).alias("stopped"))),
            ["node", "boot_id"],
            "left",
        )
    )
    end = F.coalesce("next", "stopped")
    gone = F.when(~F.col("is_last"), F.col("until"))
    return paired.select(
        "node",
        F.col("name").alias("alarm"),
        F.timestamp_millis("ts").alias("start"),
        F.timestamp_millis(F.coalesce(end["ts"], gone)).alias("end"),
        F.coalesce((end["mono_us"] - F.col("mono_us")) / 60_000_000, (gone - F.col("ts")) / 60_000).alias(
            "minutes"
        ),
    )


def describe(written: Written) -> Page:
    """Return the report."""
    many: Counter[str] = Counter()
    for node, *numbers in zip(
        *(written.column("over_time", name) for name in ("node", *COMING)), strict=True
    ):
        many[node] += sum(numbers)
    drawn_nodes = sorted(many, key=lambda node: (-many[node], node))[:NODES]
    times = written.rows("over_time", "time", where=field("node").isin(texts(drawn_nodes)))
    failed = written.rows("failures", "-failed", "peer", "user")
    came = written.rows("clients", "-opened", "peer", "user")
    alarmed = written.rows("alarms", "start", "node", "alarm")
    sections: list[Section] = []
    for node in sorted(drawn_nodes):
        mine = [row for row in times if row["node"] == node]
        drawn = [series_of(kind.replace("_", " "), mine, kind) for kind in COMING]
        sections.append(
            Section(
                f"{node}: events",
                f"Events per {mine[0]['seconds']:,} seconds. Times are in UTC.",
                panels(Panel("", "events", drawn, zero=True)),
                f"events-{len(sections)}",
            )
        )
    sections += [
        Section(
            "Failed logins",
            f"By client address and user name, the {SHOWN} most frequent. Times are in UTC.",
            columns=("peer", "user", "failed", "first", "last"),
            rows=failed[:SHOWN],
        ),
        Section(
            "Connections",
            f"The {SHOWN} pairs of client address and user that opened most connections. Many short-lived connections "
            "can cost a broker more than their messages.",
            terms={"median_s": "of closed connections"},
            columns=("peer", "user", "opened", "closed", "median_s", "first", "last"),
            rows=came[:SHOWN],
        ),
        Section(
            "Alarms",
            "Publishers are blocked during an alarm. Times are in UTC; an alarm without an end is still in effect.",
            columns=("node", "alarm", "start", "end", "minutes"),
            rows=alarmed,
        ),
    ]
    opened, closed = (sum(written.column("clients", name)) for name in ("opened", "closed"))
    tried, addresses = sum(written.column("failures", "failed")), len(set(written.column("failures", "peer")))
    minutes = sum(each for each in written.column("alarms", "minutes") if each is not None)
    still = written.count("alarms", field("end").is_null())
    return Page(
        title="Churn",
        lead=f"{number_of(opened, 'connection')} opened, {closed:,} closed.",
        facts=[
            f"{number_of(tried, 'failed login')} from {number_of(addresses, 'address', 'addresses')}.",
            f"{number_of(written.count('alarms'), 'alarm')}, {minutes:,.1f} minutes in total"
            + (f"; {still:,} still in effect at the end." if still else "."),
        ],
        sections=sections,
    )


JOB: Final = Job(
    name="churn",
    needs=("event",),
    compute=compute,
    describe=describe,
    uses=("node_interval",),
)
