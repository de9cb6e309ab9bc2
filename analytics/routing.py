"""Job `routing`: fan-out of exchanges, unroutable messages, and the hit rate of the route cache."""

from typing import Final

from pyarrow.dataset import field
from pyspark.sql import Column, DataFrame, Window, functions as F

from leveret.analytics.figures import Bars
from leveret.analytics.job import Job, Page, Section, Written, number_of
from leveret.analytics.reading import Input
from leveret.analytics.series import FULL_US

COUNTERS: Final = (
    *("pub_in", "routed", "unroutable_returned", "unroutable_dropped", "fanout_sum", "route_lookups"),
)
SHOWN: Final = 20
_EXCHANGE: Final = ("node", "vhost", "exchange")


def compute(data: Input) -> dict[str, DataFrame]:
    """Return `exchanges`, and `patterns` if there are topic exchanges."""
    found = data.keep(exchanges(data.table("exchange_interval")))
    made = {"exchanges": found.orderBy(*_EXCHANGE)}
    if data.has("topic_pattern"):
        made["patterns"] = patterns(data.table("topic_pattern"), found).orderBy(*_EXCHANGE, "pattern")
    return made


def exchanges(rows: DataFrame) -> DataFrame:
    """Return a row for each exchange over all incarnations: its counters, and derived figures.

    `fanout` is copies per routed message, `unroutable` the share that reached no queue, `remembered` the share whose
    route was in the cache.
    """
    # An exchange has one type until it is declared again. If this text were aggregated instead of grouped by, Spark
    # would sort all rows.
    making = rows.groupBy(*_EXCHANGE, "boot_id", "since_ms", "type").agg(
        F.max("ts").alias("ts"),
        F.max("mono_us").alias("mono_us"),
        *[F.max_by(name, "mono_us").alias(name) for name in ("bindings", *COUNTERS)],
    )
    when = F.struct("ts", "since_ms", "mono_us")
    totals = making.groupBy(*_EXCHANGE).agg(
        F.max_by("type", when).alias("type"),
        F.max_by("bindings", when).alias("bindings"),
        *[F.sum(name).alias(name) for name in COUNTERS],
    )

    def per(part: Column, whole: str) -> Column:
        return F.try_divide(part, F.col(whole))

    return totals.select(
        *_EXCHANGE,
        "type",
        "bindings",
        *COUNTERS,
        per(F.col("fanout_sum"), "routed").alias("fanout"),
        per(F.col("unroutable_returned") + F.col("unroutable_dropped"), "pub_in").alias("unroutable"),
        per(F.col("pub_in") - F.col("route_lookups"), "pub_in").alias("remembered"),
    )


def patterns(rows: DataFrame, exchanges: DataFrame) -> DataFrame:
    """Return a row for each pattern: its matches, their possible undercount, its share of incoming messages.

    `hours` is its observation time; `dead` is true if it is still bound, and has matched nothing in that time.
    """
    key = (*_EXCHANGE, "pattern")
    found = F.col("matches") + F.col("error")
    making = rows.groupBy(*key, "boot_id", "since_ms").agg(
        F.max_by("matches", "mono_us").alias("matches"),
        F.max_by("error", "mono_us").alias("error"),
        F.min_by(found, "mono_us").alias("before"),
        F.min("ts").alias("first"),
        F.max("ts").alias("until"),
    )
    # Counters began at 0 if the exchange was first seen just before. All patterns of an exchange are written
    # together, so one that is not among the last was removed.
    is_begun = F.col("first") - F.col("since_ms") <= FULL_US / 1000
    latest = F.max("until").over(Window.partitionBy(*_EXCHANGE))
    grown = found - F.when(is_begun, 0).otherwise(F.col("before"))
    looked_ms = F.col("until") - F.when(is_begun, F.col("since_ms")).otherwise(F.col("first"))
    return (
        making.withColumn("bound", F.col("until") == latest)
        .groupBy(*key)
        .agg(
            F.sum("matches").alias("matches"),
            F.sum("error").alias("error"),
            (F.sum(looked_ms) / 3_600_000).alias("hours"),
            (F.max("bound") & (F.sum(grown) == 0) & (F.sum(looked_ms) > 0)).alias("dead"),
        )
        .join(exchanges.select(*_EXCHANGE, "pub_in"), list(_EXCHANGE), "left")
        .select(*key, "matches", "error", F.try_divide("matches", "pub_in").alias("share"), "hours", "dead")
    )


def describe(written: Written) -> Page:
    """Return the report."""
    found = written.rows("exchanges", "-pub_in", *_EXCHANGE)
    order = ("-matches", *_EXCHANGE, "pattern")
    has_patterns = written.has("patterns")
    heavy = written.rows("patterns", *order)[:SHOWN] if has_patterns else []
    dead = written.rows("patterns", *order, where=field("dead")) if has_patterns else []
    vain = written.count("patterns", field("dead")) if has_patterns else 0
    busiest = found[:SHOWN]
    published, returned, dropped = (
        sum(written.column("exchanges", name))
        for name in ("pub_in", "unroutable_returned", "unroutable_dropped")
    )
    sections = [
        Section(
            "Exchanges",
            f"Numbers of messages. The figure shows the {SHOWN} busiest exchanges.",
            Bars(
                "messages published",
                [(f"{row['vhost']} {row['exchange'] or '(default)'}", row["pub_in"]) for row in busiest],
            ),
            "busiest",
            terms={
                "fanout": "copies of a routed message, on average",
                "unroutable": "part of the messages that reached no queue",
                "remembered": "part of the messages whose route was cached",
            },
            columns=(
                *_EXCHANGE,
                "type",
                "bindings",
                "pub_in",
                "routed",
                "fanout",
                "unroutable",
                "remembered",
            ),
            rows=found,
        )
    ]
    if heavy:
        columns = (*_EXCHANGE, "pattern", "matches", "error", "share", "hours")
        sections += [
            Section(
                f"The {SHOWN} most frequent patterns",
                "The broker exports the 64 most frequent patterns of an exchange.",
                Bars("matches", [(f"{row['exchange']} {row['pattern']}", row["matches"]) for row in heavy]),
                "patterns",
                terms={
                    "matches": "messages that the pattern matches",
                    "error": "the most by which the matches can be too low",
                    "share": "part of the exchange's messages",
                },
                columns=columns,
                rows=heavy,
            ),
            Section(
                "Bindings without a match",
                "These bindings exist, and no message matched them in the hours observed.",
                columns=(*_EXCHANGE, "pattern", "hours"),
                rows=dead,
            ),
        ]
    return Page(
        title="Routing",
        lead=f"{number_of(written.count('exchanges'), 'exchange')}; {number_of(published, 'message')} published, "
        f"{dropped + returned:,} unroutable.",
        facts=[
            number_of(dropped, "message was", "messages were")
            + " dropped as unroutable without notice to the publisher (published without the flag mandatory).",
            *([f"{number_of(vain, 'binding pattern')} without a match."] if heavy else []),
        ],
        sections=sections,
    )


JOB: Final = Job(
    name="routing",
    needs=("exchange_interval",),
    compute=compute,
    describe=describe,
    uses=("topic_pattern",),
)
