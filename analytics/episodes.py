"""Times in which something was wrong with a queue, in the whole range of the input: the one notion of all pages.

Rows are added up to bins of a minute. Three bins together decide, so that one slow moment is none:

- `unserved`: messages waited all the time, and there was neither a consumer nor a delivery (`unread`: nor ever before);
  not if they expire and are dead-lettered, as those of a retry queue;
- `stalled`: messages waited all the time, consumers held some, and nothing was settled;
- `behind`: messages were settled, but even the shortest backlog of a bin exceeded the longest of three bins before, in
  at least three bins in succession. A burst that is worked off is none, nor is a backlog that goes up and down;
- `repeated`: messages were redelivered in every bin, as one is that no consumer can process;
- `thrash`: more than two messages were read back from disk for each one delivered.

Slow growth that is hidden by fluctuations in minutes is found in the same way in bins of a quarter of an hour. An
episode ends when nothing is wrong for three minutes: it goes on across restarts and declarations of the queue.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window, functions as F

from leveret.analytics import findings
from leveret.analytics.churn import ends
from leveret.analytics.reading import Input
from leveret.analytics.series import FULL_US, QUEUE, start_of_bin, steps

BEHIND: Final = "behind"
STALLED: Final = "stalled"
UNSERVED: Final = "unserved"
UNREAD: Final = "unread"
REPEATED: Final = "repeated"
THRASH: Final = "thrash"
MINUTE: Final = 60
QUARTER: Final = 900
TOGETHER: Final = 3
"""Number of bins that decide together, and number of successive bins that make a growing backlog an episode."""
APART_MS: Final = TOGETHER * MINUTE * 1000  # milliseconds up to which two times are one episode
FEW: Final = 10  # messages below which nothing is a trouble
READ_AGAIN: Final = 2  # messages read from disk for each one delivered beyond which a queue thrashes
RECOVERED: Final = 0.5  # fraction of its worst backlog below which a queue is recovering
NAMED: Final = 5  # maximum number of consumers that an episode names
REASONS: Final = tuple(findings.REASONS)
"""Counters of messages that leave a queue other than by a consumer, and are dead-lettered if it has an exchange."""
COUNTERS: Final = (
    *("pub", "delivered", "redelivered", "acked", "requeued", *REASONS, "dead_lettered", "t_from_delta"),
)
_SUMMED: Final = (*COUNTERS, "settled", "step_us")
_LAST: Final = ("ready", "unacked", "consumers", "capacity", "promised", "held", "mode")
MODES: Final = ("", "standard", "consumer-ack", "consumer-ack-light")
"""Confirm modes by number from 0, for one that is unknown; bins have numbers, as Spark sorts rows to aggregate text."""


def of(data: Input) -> DataFrame:
    """Return the episodes of the input, as `found` does, with `who` consumed; computed once for all jobs."""

    def make() -> DataFrame:
        episodes = found(binned(data))
        return (
            with_consumers(data.keep(episodes), data.whole("event"))
            if data.has("event")
            else episodes.withColumn("who", F.lit(None).cast("string"))
        )

    return data.shared("episodes", make)


def binned(data: Input) -> DataFrame:
    """Return the bins of all queues, as `bins` does, of at most a minute; computed once for all jobs."""
    seconds = min(data.bin_seconds("queue_interval"), MINUTE)
    return data.shared("bins", lambda: bins(data.table("queue_interval"), seconds))


def bins(rows: DataFrame, seconds: int) -> DataFrame:
    """Return what happened in each bin of a queue, by the steps that end in it.

    `rows`: rows of `queue_interval`; `seconds`: length of a bin.

    Returns:
        For each queue and `bin` (ms): `from_ms`, `until_ms`; `step_us`, the time covered; `least` and `most` messages
        ready, with `most_ms`; `taken` (most unacked), `fewest` and `served` (most consumers); the last `ready`,
        `unacked`, `consumers`, `capacity`, `promised`, `held` and `mode` (its place in `MODES`); the increases of
        `COUNTERS`, and `settled`; the last time when consumers were there or no message waited (`served_ms`), when one
        was settled or none waited (`settled_ms`), and the first redelivery (`redelivered_ms`).
    """
    gauges = ("ready", "unacked", "consumers")
    taken = steps(rows, "queue_interval", (*gauges, *COUNTERS), ("capacity", "promised", "held", "mode"))

    def before(gauge: str) -> Column:
        return F.col(gauge) - F.coalesce(f"d_{gauge}", gauge)

    settled = F.col("d_delivered") - F.col("d_requeued") - F.coalesce("d_unacked", "unacked")
    is_empty = F.col("ready") == 0
    each = taken.select(
        *QUEUE,
        F.col("from_ts").alias("from_ms"),
        F.col("ts").alias("until_ms"),
        "step_us",
        F.least(before("ready"), "ready").alias("least"),
        F.greatest(before("ready"), "ready").alias("most"),
        # before the first step that went up to it, if several rows are equally long
        F.when(before("ready") > F.col("ready"), F.col("from_ts")).otherwise(F.col("ts")).alias("most_ms"),
        F.col("unacked").alias("taken"),
        F.least(before("consumers"), "consumers").alias("fewest"),
        F.greatest(before("consumers"), "consumers").alias("served"),
        *_LAST[:-1],
        F.array_position(F.array(*map(F.lit, MODES[1:])), F.col("mode")).alias("mode"),
        *[F.col(f"d_{name}").alias(name) for name in COUNTERS],
        settled.alias("settled"),
        F.when(is_empty | (F.col("consumers") > 0), F.col("ts")).alias("served_ms"),
        F.when(is_empty | (settled > 0), F.col("ts")).alias("settled_ms"),
        F.when(F.col("d_redelivered") > 0, F.col("ts")).alias("redelivered_ms"),
    )
    return longer(each, seconds)


def longer(made: DataFrame, seconds: int) -> DataFrame:
    """Add bins up to longer ones."""
    return (
        made.withColumn("bin", start_of_bin(F.col("until_ms") - 1, seconds))
        .groupBy(*QUEUE, "bin")
        .agg(
            *[F.min(name).alias(name) for name in ("from_ms", "least", "fewest", "redelivered_ms")],
            *[F.max(name).alias(name) for name in ("until_ms", "taken", "served", "served_ms", "settled_ms")],
            F.min_by("most_ms", F.struct(-F.col("most"), "most_ms")).alias("most_ms"),
            F.max("most").alias("most"),
            *[F.max_by(name, "until_ms").alias(name) for name in _LAST],
            *[F.sum(name).alias(name) for name in _SUMMED],
        )
    )


def history(made: DataFrame, seconds: int) -> DataFrame:
    """Return each queue over time: rates in messages per second, levels in messages."""
    return longer(made, seconds).select(
        *QUEUE,
        F.timestamp_millis("bin").alias("time"),
        *[(F.col(name) * 1e6 / F.col("step_us")).alias(name) for name in ("pub", "delivered", "settled")],
        *("ready", "least", "most", F.col("taken").alias("unacked"), F.col("served").alias("consumers")),
    )


def found(made: DataFrame) -> DataFrame:
    """Return the episodes of all queues, from bins of at most a minute.

    Returns:
        `node`, `vhost`, `queue`, `what`; `start_ms`, `end_ms` (null if it lasts at the end of the input) and `until_ms`
        (the end of the input then); `before` (messages at the start), `worst`, `worst_ms`, `after` (messages at the
        end), `fewest` and `consumers`, the increases of `COUNTERS` and `settled`; `unacked` and `promised` at the end.
    """
    minutes = longer(made, MINUTE)
    grown = _marked(longer(minutes, QUARTER)).filter(F.col("what") == BEHIND)
    order = Window.partitionBy(*QUEUE, "what").orderBy("start_ms", "end_ms")
    so_far = F.max("end_ms").over(order.rowsBetween(Window.unboundedPreceding, -1))
    merged = (
        _marked(minutes)
        .unionByName(grown)
        .withColumn("new", F.coalesce(F.col("start_ms") > so_far + APART_MS, F.lit(True)).cast("int"))
        .withColumn("number", F.sum("new").over(order.rowsBetween(Window.unboundedPreceding, 0)))
        .groupBy(*QUEUE, "what", "number")
        .agg(F.min("start_ms").alias("start_ms"), F.max("end_ms").alias("end_ms"))
        .drop("number")
    )
    inside = made.join(F.broadcast(merged), list(QUEUE)).filter(
        (F.col("until_ms") > F.col("start_ms")) & (F.col("until_ms") <= F.col("end_ms"))
    )
    each = inside.groupBy(*QUEUE, "what", "start_ms", "end_ms").agg(
        F.min_by("least", "until_ms").alias("before"),
        F.min_by("most_ms", F.struct(-F.col("most"), "most_ms")).alias("worst_ms"),
        F.max("most").alias("worst"),
        F.max_by("ready", "until_ms").alias("after"),
        F.min("fewest").alias("fewest"),
        F.max("served").alias("consumers"),
        *[F.max_by(name, "until_ms").alias(name) for name in ("unacked", "promised")],
        *[F.sum(name).alias(name) for name in (*COUNTERS, "settled")],
    )
    return _judged(each, made)


def _judged(each: DataFrame, made: DataFrame) -> DataFrame:
    """Return episodes with the end that they have for users, which depends on what the queue does later."""
    queues = (
        made.groupBy(*QUEUE)
        .agg(
            F.max("until_ms").alias("last_ms"),
            F.max_by("ready", "until_ms").alias("left"),
            ((F.max("served") == 0) & (F.sum("delivered") == 0)).alias("is_unread"),
        )
        .withColumn("until_ms", F.max("last_ms").over(Window.partitionBy("node")))
        # One without a row for longer than rows of an unchanged one are apart was deleted.
        .withColumn("is_there", F.col("until_ms") - F.col("last_ms") <= 2 * FULL_US // 1000)
    )
    is_behind = F.col("what") == BEHIND
    lasts = (
        F.when(is_behind, F.col("left") >= RECOVERED * F.col("worst"))
        .when(F.col("what").isin(REPEATED, THRASH), F.col("end_ms") + APART_MS > F.col("last_ms"))
        .otherwise(F.col("end_ms") >= F.col("last_ms"))
    )
    # Consumers catch up from the longest backlog on.
    end = F.when(is_behind, F.col("worst_ms")).otherwise(F.col("end_ms"))
    return (
        each.join(queues, list(QUEUE))
        .filter((F.col("what") != REPEATED) | (F.col("redelivered") >= FEW))
        .withColumn(
            "what", F.when((F.col("what") == UNSERVED) & F.col("is_unread"), UNREAD).otherwise(F.col("what"))
        )
        .withColumn("end_ms", F.when(~(lasts & F.col("is_there")), end))
        .withColumn("until_ms", F.coalesce("end_ms", "until_ms"))
        .drop("last_ms", "left", "is_unread", "is_there")
    )


def _marked(made: DataFrame) -> DataFrame:
    """Return the bins in which something is wrong, as `what`, since when (`start_ms`), and their ends (`end_ms`)."""
    order = Window.partitionBy(*QUEUE).orderBy("bin")
    recent = order.rowsBetween(1 - TOGETHER, Window.currentRow)
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    first = F.first("from_ms").over(so_far)
    nothing = F.sum("settled").over(recent) <= 0
    is_full = F.count("bin").over(recent) == TOGETHER
    waited = (F.min("least").over(recent) > 0) & is_full
    served = (F.max("served").over(recent) > 0) | (F.sum("delivered").over(recent) > 0)
    read = F.sum("t_from_delta").over(recent)

    delays = is_delay(
        *(each.over(so_far) for each in (F.max("served"), F.sum("expired"), F.sum("dead_lettered")))
    )

    def earlier(name: str, bins: int) -> Column:
        return F.lag(name, bins).over(order)

    # Growth starts at the end of the bin compared with, or of the next if that was no longer.
    still = earlier("most", TOGETHER - 1) <= earlier("most", TOGETHER)
    grown = F.when(still, earlier("until_ms", TOGETHER - 1)).otherwise(earlier("until_ms", TOGETHER))
    slow = ~nothing & (F.col("least") > earlier("most", TOGETHER))
    judged = made.withColumn("is_slow", F.coalesce(slow, F.lit(False)).cast("int")).withColumn(
        "is_slower", (F.min("is_slow").over(recent) * is_full.cast("int"))
    )
    is_behind = (F.col("is_slow") == 1) & (
        F.max("is_slower").over(order.rowsBetween(Window.currentRow, TOGETHER - 1)) == 1
    )
    starts: dict[str, tuple[Column, Column]] = {
        UNSERVED: (nothing & waited & ~served & ~delays, F.coalesce(F.max("served_ms").over(so_far), first)),
        STALLED: (
            nothing & waited & served & (F.min("taken").over(recent) > 0),
            F.coalesce(F.max("settled_ms").over(so_far), first),
        ),
        BEHIND: (is_behind, grown),
        REPEATED: (
            (F.min("redelivered").over(recent) > 0) & is_full,
            F.first("redelivered_ms").over(recent),
        ),
        THRASH: (
            (F.min("t_from_delta").over(recent) >= FEW)
            & (read > READ_AGAIN * F.sum("delivered").over(recent))
            & is_full,
            F.first("from_ms").over(recent),
        ),
    }
    each = [
        F.struct(F.lit(what).alias("what"), F.when(is_wrong, start).alias("start_ms"))
        for what, (is_wrong, start) in starts.items()
    ]
    return (
        judged.select(*QUEUE, F.col("until_ms").alias("end_ms"), F.array(*each).alias("each"))
        .select(*QUEUE, "end_ms", F.inline("each"))
        .filter(F.col("start_ms").isNotNull())
    )


def is_delay(served: Column, expired: Column, dead_lettered: Column) -> Column:
    """Return whether it is a delay or retry queue, as the broker judges it: its messages expire and go on.

    `served`: most consumers; `expired`: messages that expired; `dead_lettered`: messages that were dead-lettered.
    """
    return (served == 0) & (expired > 0) & (dead_lettered > 0)


def with_consumers(episodes: DataFrame, events: DataFrame) -> DataFrame:
    """Add who consumed: `who`, at most `NAMED` users with the names of their connections; null if none is known.

    `events`: the events of the broker, also from before the range.
    """
    known = events.filter(F.col("kind").isin("consumer_added", "consumer_removed")).select(
        *("node", "boot_id", "vhost", F.col("name").alias("queue")),
        F.try_element_at("detail", F.lit("user")).alias("user"),
        F.try_element_at("detail", F.lit("connection")).alias("connection"),
        "ts",
        (F.col("kind") == "consumer_added").alias("is_added"),
    )
    here = (
        known.groupBy(*QUEUE, "boot_id", "user", "connection")
        .agg(
            F.min("ts").alias("came_ms"),
            # As long as one of a connection's consumers is left, it consumes.
            F.when(F.count_if(F.col("is_added")) <= F.count_if(~F.col("is_added")), F.max("ts")).alias(
                "left_ms"
            ),
        )
        .join(F.broadcast(ends(events)), ["node", "boot_id"])
        .withColumn("left_ms", F.coalesce("left_ms", F.when(~F.col("is_last"), F.col("until"))))
    )
    during = (F.col("came_ms") <= F.col("until_ms")) & (
        F.col("left_ms").isNull() | (F.col("left_ms") >= F.col("start_ms"))
    )
    key = (*QUEUE, "what", "start_ms")
    named = (
        here.join(F.broadcast(episodes.select(*key, "until_ms")), list(QUEUE))
        .filter(during)
        .groupBy(*key)
        .agg(F.array_sort(F.collect_set(F.concat_ws(" ", "user", "connection"))).alias("all"))
        .select(*key, F.concat_ws(", ", F.slice("all", 1, NAMED)).alias("who"))
    )
    return episodes.join(named, list(key), "left")
