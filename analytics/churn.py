"""Job `churn`: who comes and goes, who fails to log in, and how long alarms lasted."""

from typing import Final

from pyspark.sql import Column, DataFrame, Window, functions as F

from analytics.figures import Panel, Series, at, panels
from analytics.job import Job, Page, Section, Written
from analytics.reading import Input
from analytics.series import bin_seconds, start_of_bin

COMING: Final = ("connection_opened", "connection_closed", "queue_created", "queue_deleted", "auth_failed")
SHOWN: Final = 50


def compute(data: Input) -> dict[str, DataFrame]:
    """Return `over_time`, `failures`, `clients` and `alarms`."""
    rows = data.table("event")
    return {
        "over_time": over_time(rows, bin_seconds(rows)).orderBy("node", "time"),
        "failures": failures(rows).orderBy(F.desc("failed"), "peer", "user"),
        "clients": clients(rows).orderBy(F.desc("opened"), "peer", "user"),
        "alarms": alarms(rows).orderBy("node", "alarm", "start"),
    }


def over_time(rows: DataFrame, seconds: int) -> DataFrame:
    """Return how often each of `COMING` happened, by node and time."""
    return (
        rows.groupBy("node", start_of_bin(F.col("ts"), seconds).alias("bin"))
        .agg(*[F.count_if(F.col("kind") == kind).alias(kind) for kind in COMING])
        .select("node", F.timestamp_millis("bin").alias("time"), *COMING)
    )


def failures(rows: DataFrame) -> DataFrame:
    """Return how often an address failed to log in, as which user; the port is not part of the address."""
    return (
        rows.filter(F.col("kind") == "auth_failed")
        .groupBy(_address().alias("peer"), F.col("name").alias("user"))
        .agg(F.count("*").alias("failed"), *_span())
    )


def clients(rows: DataFrame) -> DataFrame:
    """Return how often an address and user opened and closed connections."""
    user = F.try_element_at("detail", F.lit("user"))
    return (
        rows.filter(F.col("kind").isin("connection_opened", "connection_closed"))
        .groupBy(_address().alias("peer"), user.alias("user"))
        .agg(
            F.count_if(F.col("kind") == "connection_opened").alias("opened"),
            F.count_if(F.col("kind") == "connection_closed").alias("closed"),
            *_span(),
        )
    )


def _address() -> Column:
    return F.regexp_replace(F.try_element_at("detail", F.lit("peer")), r":\d+$", "")


def _span() -> tuple[Column, Column]:
    return F.timestamp_millis(F.min("ts")).alias("first"), F.timestamp_millis(F.max("ts")).alias("last")


def alarms(rows: DataFrame) -> DataFrame:
    """Return each alarm with its end and its minutes; one that is on at the end of the input has no end.

    An alarm that was on when the broker stopped ends there.
    """
    order = Window.partitionBy("node", "boot_id", "name").orderBy("ts", F.desc("kind"))
    boot = Window.partitionBy("node", "boot_id")
    stopped = F.max(F.when(F.col("kind") == "stop", F.col("ts"))).over(boot)
    paired = (
        rows.withColumn("stopped", stopped)
        .filter(F.col("kind").isin("alarm_raised", "alarm_cleared"))
        .withColumn("next_kind", F.lead("kind").over(order))
        .withColumn("next_ts", F.lead("ts").over(order))
        .filter(F.col("kind") == "alarm_raised")
    )
    cleared = F.when(F.col("next_kind") == "alarm_cleared", F.col("next_ts"))
    end = F.coalesce(cleared, F.col("stopped"))
    return paired.select(
        "node",
        F.col("name").alias("alarm"),
        F.timestamp_millis("ts").alias("start"),
        F.timestamp_millis(end).alias("end"),
        ((end - F.col("ts")) / 60_000).alias("minutes"),
    )


def describe(written: Written) -> Page:
    """Return the report."""
    times = written.rows("over_time", "time")
    failed = written.rows("failures", F.desc("failed"), "peer", "user")
    came = written.rows("clients", F.desc("opened"), "peer", "user")
    alarmed = written.rows("alarms", "start")
    sections: list[Section] = []
    for node in sorted({row["node"] for row in times}):
        mine = [row for row in times if row["node"] == node]
        drawn = [
            Series(
                kind.replace("_", " "),
                [at(row["time"]) for row in mine],
                [row[kind] for row in mine],
                marker=".",
            )
            for kind in COMING
        ]
        sections.append(
            Section(node, "UTC.", panels(Panel("", "events", drawn, zero=True)), f"events-{len(sections)}")
        )
    addresses = len({row["peer"] for row in failed})
    minutes = sum(row["minutes"] or 0 for row in alarmed)
    sections += [
        Section(
            "Failed logins", "", columns=("peer", "user", "failed", "first", "last"), rows=failed[:SHOWN]
        ),
        Section(
            "Connections",
            "",
            columns=("peer", "user", "opened", "closed", "first", "last"),
            rows=came[:SHOWN],
        ),
        Section("Alarms", "", columns=("node", "alarm", "start", "end", "minutes"), rows=alarmed),
    ]
    return Page(
        title="Coming and going",
        lead=f"{sum(row['opened'] for row in came):,} connections opened, "
        f"{sum(row['closed'] for row in came):,} closed.",
        facts=[
            f"{sum(row['failed'] for row in failed):,} logins failed, from {addresses:,} addresses.",
            f"{len(alarmed):,} alarms, {minutes:,.1f} minutes together.",
        ],
        sections=sections,
    )


JOB: Final = Job(
    name="churn",
    summary="connections and queues that come and go, failed logins, minutes of alarm",
    needs=("event",),
    compute=compute,
    describe=describe,
)
