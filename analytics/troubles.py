"""Findings about queues, exchanges and nodes, which the overview and the health of queues tell."""

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window, functions as F

from leveret.analytics import episodes
from leveret.analytics.churn import alarms, ends
from leveret.analytics.episodes import (
    BEHIND,
    FEW,
    REASONS,
    REPEATED,
    STALLED,
    THRASH,
    UNREAD,
    UNSERVED,
    is_delay,
)
from leveret.analytics.findings import CRITICAL, WARNING
from leveret.analytics.reading import Input
from leveret.analytics.series import QUEUE, last

SAME: Final = 0.01
"""Greatest relative difference of the copies of an exchange from the messages of a queue that gets them all."""
COLUMNS: Final = (  # columns of a finding
    *("kind", "level", "node", "vhost", "queue", "detail", "from_ms", "until_ms", "amount", "came", "went"),
)
FIGURES: Final = {  # the `amount`, `came` and `went` of each kind of episode
    UNREAD: ("after", "pub", "promised"),
    UNSERVED: ("after", "pub", "promised"),
    STALLED: ("after", "unacked", "promised"),
    REPEATED: ("redelivered", "delivered", "requeued"),
    BEHIND: ("worst", "pub", "delivered"),
    THRASH: ("t_from_delta", "delivered", "worst"),
}


def findings(data: Input) -> DataFrame:
    """Return all findings about the input, with `COLUMNS`; computed once for all jobs."""

    def make() -> DataFrame:
        past = episodes.of(data)
        events = data.table("event") if data.has("event") else None
        found = [of_queues(past), dead_letters(episodes.binned(data)), restarts(boots(data), events)]
        if events is not None:
            found.append(alarmed(events, ends(*_seen(data))))
        if data.has("exchange_interval"):
            exchanges = data.table("exchange_interval")
            found += [fan_outs(past, data.table("queue_interval"), exchanges), lost(exchanges)]
        return reduce(DataFrame.unionByName, found)

    return data.shared("findings", make)


def _seen(data: Input) -> list[DataFrame]:
    return [data.table(name) for name in ("queue_interval", "node_interval", "event") if data.has(name)]


def of_queues(past: DataFrame) -> DataFrame:
    """Return the episodes of queues as findings: critical if they last and messages have consumers to lack."""

    def figure(at: int) -> Column:
        chosen = [F.when(F.col("what") == what, F.col(names[at])) for what, names in FIGURES.items()]
        return F.coalesce(*chosen)

    promises = F.col("what").isin(UNREAD, UNSERVED, STALLED) & (F.col("promised") > 0)
    is_critical = F.col("end_ms").isNull() & ((F.col("what") != UNREAD) | promises)
    told = past.withColumns({name: figure(at) for at, name in enumerate(("amount", "came", "went"))})
    return _finding(
        told,
        F.col("what"),
        F.when(is_critical, CRITICAL).otherwise(WARNING),
        amount="amount",
        came="came",
        went="went",
        began=F.col("start_ms"),
        ended=F.col("end_ms"),
    )


def dead_letters(made: DataFrame) -> DataFrame:  # bins of queues
    """Return queues whose messages were dead-lettered, by reason; a delay or retry queue is none."""
    counts = ("dead_lettered", "delivered", *REASONS)
    is_there = F.col("dead_lettered") > 0
    each = made.groupBy(*QUEUE).agg(
        *[F.sum(name).alias(name) for name in counts],
        F.max("served").alias("served"),
        F.min(F.when(is_there, F.col("from_ms"))).alias("from_ms"),
        F.max(F.when(is_there, F.col("until_ms"))).alias("until_ms"),
    )
    delays = is_delay(*map(F.col, ("served", "expired", "dead_lettered")))
    return _finding(
        each.filter((F.col("dead_lettered") >= FEW) & ~delays),
        "dead_letters",
        F.lit(WARNING),
        amount="dead_lettered",
        came="delivered",
        began=F.col("from_ms"),
        ended=F.col("until_ms"),
        detail=F.to_json(F.struct(*REASONS)),
    )


def fan_outs(past: DataFrame, rows: DataFrame, exchanges: DataFrame) -> DataFrame:
    """Return fan-out exchanges without readers of their copies: unread queues that got as many messages as it routed.

    `past`: the episodes; `rows`: rows of `queue_interval`; `exchanges`: rows of `exchange_interval`.
    """
    never = (
        past.filter((F.col("what") == UNREAD) & F.col("end_ms").isNull())
        .select(*QUEUE, "start_ms", "after")
        .join(last(rows, "queue_interval", QUEUE, ("pub",)), list(QUEUE))
        .filter(F.col("pub") >= FEW)
    )
    key = ("node", "vhost", "exchange")
    routed = last(exchanges.filter(F.col("type") == "fanout"), "exchange_interval", key, ("routed",)).filter(
        F.col("routed") > 0
    )
    matched = never.join(routed, ["node", "vhost"]).filter(
        F.abs(F.col("pub") - F.col("routed")) <= F.greatest(F.lit(1.0), SAME * F.col("routed"))
    )
    named = matched.groupBy(*key).agg(
        F.to_json(F.array_sort(F.collect_set("queue"))).alias("detail_queues"),
        F.sum("after").alias("amount"),
        F.max("routed").alias("came"),
        F.min("start_ms").alias("from_ms"),
        F.count("*").alias("went"),
    )
    return _finding(
        named,
        "fan_out",
        F.lit(WARNING),
        amount="amount",
        came="came",
        went="went",
        began=F.col("from_ms"),
        queue=F.col("exchange"),
        detail=F.col("detail_queues"),
    )


def lost(exchanges: DataFrame) -> DataFrame:
    """Return exchanges that dropped messages, because no queue was bound for them."""
    key = ("node", "vhost", "exchange")
    counted = last(exchanges, "exchange_interval", key, ("pub_in", "unroutable_dropped"))
    times = exchanges.groupBy(*key).agg(F.min("ts").alias("from_ms"))
    return _finding(
        counted.filter(F.col("unroutable_dropped") >= FEW).join(times, list(key)),
        "lost",
        F.lit(WARNING),
        amount="unroutable_dropped",
        came="pub_in",
        began=F.col("from_ms"),
        queue=F.col("exchange"),
    )


def boots(data: Input) -> DataFrame:
    """Return the runs of each node: `from_ms` and `until_ms` of their rows."""
    each = [table.select("node", "boot_id", "ts") for table in _seen(data)]
    times = (F.min("ts").alias("from_ms"), F.max("ts").alias("until_ms"))
    return data.shared(
        "boots", lambda: reduce(DataFrame.unionByName, each).groupBy("node", "boot_id").agg(*times)
    )


def restarts(started: DataFrame, events: DataFrame | None) -> DataFrame:
    """Return each time that a node was started again: planned if its last run had an event of its stop."""
    order = Window.partitionBy("node").orderBy("from_ms", "until_ms", "boot_id")
    again = started.withColumn("gone_ms", F.lag("until_ms").over(order)).withColumn(
        "before", F.lag("boot_id").over(order)
    )
    again = again.filter(F.col("gone_ms").isNotNull())
    if events is not None:
        stops = events.filter(F.col("kind") == "stop").groupBy("node", F.col("boot_id").alias("before"))
        again = again.join(F.broadcast(stops.agg(F.max("name").alias("reason"))), ["node", "before"], "left")
    else:
        again = again.withColumn("reason", F.lit("unknown"))
    return _finding(
        again.withColumn("away", (F.col("from_ms") - F.col("gone_ms")) / 1000),
        "restart",
        F.when(F.col("reason").isNull(), F.lit(CRITICAL)).otherwise(F.lit(WARNING)),
        amount="away",
        began=F.col("gone_ms"),
        ended=F.col("from_ms"),
        detail=F.col("reason"),
    )


def alarmed(events: DataFrame, last_seen: DataFrame) -> DataFrame:
    """Return each alarm, which blocked publishers."""
    return _finding(
        alarms(events, last_seen).withColumn("minutes", F.col("minutes") * 60),
        "alarm",
        F.when(F.col("end").isNull(), F.lit(CRITICAL)).otherwise(F.lit(WARNING)),
        amount="minutes",
        began=F.unix_millis("start"),
        ended=F.unix_millis("end"),
        detail=F.col("alarm"),
    )


def _finding(
    rows: DataFrame,
    kind: str | Column,
    level: Column,
    *,
    amount: str,
    began: Column,
    came: str | None = None,
    went: str | None = None,
    ended: Column | None = None,
    queue: Column | None = None,
    detail: Column | None = None,
) -> DataFrame:
    """Return findings with the columns of all kinds; a finding without an end lasts until the end of the input."""

    def number(name: str | None) -> Column:
        return F.lit(None).cast("double") if name is None else F.col(name).cast("double")

    text = F.lit(None).cast("string")
    has = set(rows.columns)
    return rows.select(
        (F.lit(kind) if isinstance(kind, str) else kind).alias("kind"),
        level.alias("level"),
        "node",
        (F.col("vhost") if "vhost" in has else text).alias("vhost"),
        (queue if queue is not None else F.col("queue") if "queue" in has else text).alias("queue"),
        (text if detail is None else detail).alias("detail"),
        began.cast("bigint").alias("from_ms"),
        (F.lit(None) if ended is None else ended).cast("bigint").alias("until_ms"),
        number(amount).alias("amount"),
        number(came).alias("came"),
        number(went).alias("went"),
    )
