"""Findings of the job `overview` about queues, exchanges and nodes, each by a rule of its own."""

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window, functions as F

from leveret.analytics.churn import alarms
from leveret.analytics.findings import CRITICAL, WARNING
from leveret.analytics.series import FULL_US, QUEUE, last

LONG_MS: Final = 120_000
"""Milliseconds for which something must last to be a trouble."""
FEW: Final = 10
"""Messages below which nothing is a trouble."""
DRAINED: Final = 0.05
"""Fraction of its worst backlog at which a queue counts as drained."""
RECOVERED: Final = 0.5
"""Fraction of its worst backlog below which a queue is recovering."""
STEADY: Final = 0.5
"""Least fraction of bins with redeliveries, between the first and the last, of a message that comes again and again."""
SAME: Final = 0.01
"""Greatest relative difference of the copies of an exchange from the messages of a queue that gets them all."""
COLUMNS: Final = (
    *("kind", "level", "node", "vhost", "queue", "detail", "from_ms", "until_ms", "amount", "came", "went"),
)
"""Columns of a finding."""


def troubles(past: DataFrame, seconds: int) -> list[DataFrame]:
    """Return the findings about queues, from their history."""
    length = seconds * 1000
    until = past.groupBy("node").agg((F.max("bin") + length).alias("until"))
    totals = (
        past.groupBy(*QUEUE)
        .agg(
            F.min("bin").alias("first"),
            F.max("bin").alias("final"),
            *[F.sum(name).alias(name) for name in ("pub", "delivered", "redelivered", "acked", "requeued")],
            *[F.max_by(name, "bin").alias(name) for name in ("ready", "unacked", "consumers")],
            F.max("ready_most").alias("worst"),
            F.max_by("bin", "ready_most").alias("worst_at"),
            F.max("consumers_most").alias("consumers_most"),
            F.max(F.when(F.col("consumers_most") > 0, F.col("bin"))).alias("consumed_until"),
            F.max(F.when(F.col("delivered") > 0, F.col("bin"))).alias("delivered_until"),
            F.count_if(F.col("redelivered") > 0).alias("redelivering"),
            F.min(F.when(F.col("redelivered") > 0, F.col("bin"))).alias("redelivered_from"),
            F.max(F.when(F.col("redelivered") > 0, F.col("bin"))).alias("redelivered_until"),
        )
        .join(F.broadcast(until), "node")
        # A queue without a row for longer than rows of an unchanged one are apart was deleted.
        .filter(F.col("until") - F.col("final") <= 2 * FULL_US / 1000 + 2 * length)
    )
    return [
        unread(totals),
        unserved(totals, past, length),
        stalled(totals, length),
        repeated(totals, length),
        behind(totals, past, length),
    ]


def unread(totals: DataFrame) -> DataFrame:
    """Return queues that got messages and never had a consumer."""
    never = (F.col("consumers_most") == 0) & (F.col("delivered") == 0)
    return _finding(
        totals.filter(never & (F.col("pub") > 0) & (F.col("ready") > 0)),
        "unread",
        F.lit(WARNING),
        came="pub",
        amount="ready",
        began=F.col("first"),
    )


def unserved(totals: DataFrame, past: DataFrame, length: int) -> DataFrame:
    """Return queues that had consumers, have none at the end, and hold messages."""
    gone = totals.filter(
        (F.col("consumers") == 0)
        & (F.col("ready") > 0)
        & ((F.col("consumers_most") > 0) | (F.col("delivered") > 0))
    ).withColumn("from_ms", F.coalesce("consumed_until", "delivered_until", "first"))
    # Consumers that are gone for a moment, or because all ends, are no trouble.
    gone = gone.filter(F.col("until") - F.col("from_ms") - length >= LONG_MS / 2)
    came = (
        past.join(gone.select(*QUEUE, "from_ms"), list(QUEUE))
        .filter(F.col("bin") > F.col("from_ms"))
        .groupBy(*QUEUE)
        .agg(F.sum("pub").alias("came"))
    )
    return _finding(
        gone.join(came, list(QUEUE), "left"),
        "unserved",
        F.lit(CRITICAL),
        amount="ready",
        came="came",
        began=F.col("from_ms") + length,
    )


def stalled(totals: DataFrame, length: int) -> DataFrame:
    """Return queues whose consumers were given nothing and settled nothing for long, though messages wait."""
    since = F.coalesce(F.col("delivered_until") + length, F.col("first"))
    return _finding(
        totals.filter((F.col("consumers") > 0) & (F.col("ready") > 0) & (F.col("until") - since >= LONG_MS)),
        "stalled",
        F.lit(CRITICAL),
        amount="ready",
        came="unacked",
        began=since,
    )


def repeated(totals: DataFrame, length: int) -> DataFrame:
    """Return queues in which messages are redelivered again and again, as one that no consumer can process is."""
    lasted = F.col("redelivered_until") - F.col("redelivered_from") + length
    is_on = F.col("until") - F.col("redelivered_until") <= LONG_MS
    return _finding(
        totals.filter(
            (lasted >= LONG_MS)
            & (F.col("redelivered") >= FEW)
            & (F.col("redelivering") * length >= STEADY * lasted)
        ),
        "repeated",
        F.when(is_on, F.lit(CRITICAL)).otherwise(F.lit(WARNING)),
        amount="redelivered",
        came="delivered",
        went="requeued",
        began=F.col("redelivered_from"),
        ended=F.when(~is_on, F.col("redelivered_until") + length),
    )


def behind(totals: DataFrame, past: DataFrame, length: int) -> DataFrame:
    """Return queues whose consumers took messages, but fewer than came, until the worst backlog was reached."""
    marked = past.join(
        totals.filter((F.col("worst") >= 2 * FEW) & (F.col("consumers_most") > 0)).select(
            *QUEUE, "worst", "worst_at", "until", "first", F.col("ready").alias("left"), "consumed_until"
        ),
        list(QUEUE),
    )
    low = F.max(
        F.when(
            (F.col("bin") < F.col("worst_at")) & (F.col("ready") <= DRAINED * F.col("worst")), F.col("bin")
        )
    )
    begun = marked.groupBy(*QUEUE).agg(low.alias("low"))
    grown = (
        marked.join(begun, list(QUEUE))
        .withColumn("from_ms", F.coalesce(F.col("low") + length, F.col("first")))
        .filter((F.col("bin") >= F.col("from_ms")) & (F.col("bin") <= F.col("worst_at")))
        .groupBy(*QUEUE, "from_ms", "worst", "worst_at", "until", "left", "consumed_until")
        .agg(
            F.sum("pub").alias("pub"),
            F.sum("delivered").alias("delivered"),
            # A burst grows in one bin and is worked off: no trouble.
            F.count_if(F.col("pub") > F.col("delivered")).alias("growing"),
            F.count("*").alias("bins"),
        )
    )
    is_on = F.col("left") >= RECOVERED * F.col("worst")
    lasted = F.col("worst_at") + length - F.col("from_ms")
    return _finding(
        grown.filter(
            (lasted >= LONG_MS)
            & (F.col("delivered") > 0)
            & (F.col("growing") >= F.col("bins") / 2)
            # Without consumers it is another trouble; the last row of a broker that stops has none, and all unacked.
            & (F.col("consumed_until") + LONG_MS / 2 >= F.col("worst_at"))
        ),
        "behind",
        F.when(is_on, F.lit(CRITICAL)).otherwise(F.lit(WARNING)),
        amount="worst",
        came="pub",
        went="delivered",
        began=F.col("from_ms"),
        ended=F.when(~is_on, F.col("worst_at") + length),
    )


def fan_outs(past: DataFrame, rows: DataFrame, exchanges: DataFrame) -> DataFrame:
    """Return fan-out exchanges whose copies nobody reads: unread queues that got as many messages as it routed."""
    of_queues = last(rows, "queue_interval", QUEUE, ("pub",))
    never = (
        past.groupBy(*QUEUE)
        .agg(
            F.max("consumers_most").alias("most"),
            F.sum("delivered").alias("delivered"),
            F.min("bin").alias("first"),
            F.max_by("ready", "bin").alias("ready"),
        )
        .filter((F.col("most") == 0) & (F.col("delivered") == 0))
        .join(of_queues, list(QUEUE))
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
        F.sum("ready").alias("amount"),
        F.max("routed").alias("came"),
        F.min("first").alias("from_ms"),
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


def boots(*seen: DataFrame) -> DataFrame:
    """Return the runs of each node: `from_ms` and `until_ms` of their rows."""
    each = [table.select("node", "boot_id", "ts") for table in seen]
    return (
        reduce(DataFrame.unionByName, each)
        .groupBy("node", "boot_id")
        .agg(F.min("ts").alias("from_ms"), F.max("ts").alias("until_ms"))
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
    kind: str,
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
        F.lit(kind).alias("kind"),
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
