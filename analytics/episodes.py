"""Times in which a queue's consumers did not keep up, in the whole range of the input.

Rows are added up to bins of a minute. Three bins together decide, so that one slow moment is none:

- `no consumer`: messages waited all the time, and there was neither a consumer nor a delivery;
- `stalled`: messages waited all the time, consumers held some, and nothing was settled;
- `falling behind`: messages were settled, but even the shortest backlog of a bin exceeded the longest of three bins
  before, in at least three bins in succession. A burst that is worked off is none, nor is a backlog that goes up and
  down.

Slow growth that is hidden by fluctuations in minutes is found in the same way in bins of a quarter of an hour.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window, functions as F

from leveret.analytics.series import OBJECT, QUEUE, start_of_bin, steps

BEHIND: Final = "falling behind"
STALLED: Final = "stalled"
ALONE: Final = "no consumer"
MINUTE: Final = 60
QUARTER: Final = 900
TOGETHER: Final = 3
"""Number of bins that decide together, and number of successive bins that make a growing backlog an episode."""
NAMED: Final = 5
"""Maximum number of consumers that an episode names."""
_COUNTS: Final = ("pub", "delivered", "settled")


def bins(rows: DataFrame, seconds: int) -> DataFrame:
    """Return what happened in each bin of a queue, by the steps that end in it.

    Args:
        rows: rows of `queue_interval`.
        seconds: length of a bin.

    Returns:
        For each queue, boot and declaration: `from_ms`, `until_ms`; `step_us`, the time covered; `least`, `most` and
        `ready` (the last), in messages, with `most_ms`; `unacked` (greatest), `fewest` and `consumers` (most); the
        messages published (`pub`), `delivered` and `settled`.
    """
    taken = steps(
        rows,
        "queue_interval",
        ("ready", "unacked", "consumers", "pub", "delivered", "requeued"),
    )

    def before(gauge: str) -> Column:
        return F.col(gauge) - F.coalesce(f"d_{gauge}", gauge)

    settled = F.col("d_delivered") - F.col("d_requeued") - F.coalesce("d_unacked", "unacked")
    each = taken.select(
        *OBJECT,
        F.col("from_ts").alias("from_ms"),
        F.col("ts").alias("until_ms"),
        "step_us",
        F.least(before("ready"), "ready").alias("least"),
        F.greatest(before("ready"), "ready").alias("most"),
        # before the first step that went up to it, if several rows are equally long
        F.when(before("ready") > F.col("ready"), F.col("from_ts")).otherwise(F.col("ts")).alias("most_ms"),
        "ready",
        "unacked",
        F.least(before("consumers"), "consumers").alias("fewest"),
        F.greatest(before("consumers"), "consumers").alias("consumers"),
        F.col("d_pub").alias("pub"),
        F.col("d_delivered").alias("delivered"),
        settled.alias("settled"),
    )
    return longer(each, seconds)


def longer(made: DataFrame, seconds: int) -> DataFrame:
    """Add bins up to longer ones."""
    return (
        made.withColumn("bin", start_of_bin(F.col("until_ms") - 1, seconds))
        .groupBy(*OBJECT, "bin")
        .agg(
            F.min("from_ms").alias("from_ms"),
            F.max("until_ms").alias("until_ms"),
            F.sum("step_us").alias("step_us"),
            F.min("least").alias("least"),
            F.min_by("most_ms", F.struct(-F.col("most"), "most_ms")).alias("most_ms"),
            F.max("most").alias("most"),
            F.max_by("ready", "until_ms").alias("ready"),
            F.max("unacked").alias("unacked"),
            F.min("fewest").alias("fewest"),
            F.max("consumers").alias("consumers"),
            *[F.sum(name).alias(name) for name in _COUNTS],
        )
    )


def found(minutes: DataFrame) -> DataFrame:
    """Return the episodes of all queues, from bins of a minute.

    Returns:
        `node`, `vhost`, `queue`, `what`, `start_ms`, `end_ms`, `before` (messages at the start), `worst`, `worst_ms`,
        `after` (messages at the end), `fewest` and `consumers`, `pub`, `settled`.
    """
    islands = _islands(minutes, (BEHIND, STALLED, ALONE)).unionByName(
        _islands(longer(minutes, QUARTER), (BEHIND,))
    )
    order = Window.partitionBy(*OBJECT, "what").orderBy("start_ms")
    so_far = F.max("end_ms").over(order.rowsBetween(Window.unboundedPreceding, -1))
    merged = (
        islands.withColumn("new", F.coalesce(F.col("start_ms") > so_far, F.lit(True)).cast("int"))
        .withColumn("number", F.sum("new").over(order))
        .groupBy(*OBJECT, "what", "number")
        .agg(F.min("start_ms").alias("start_ms"), F.max("end_ms").alias("end_ms"))
        .drop("number")
    )
    inside = minutes.join(F.broadcast(merged), list(OBJECT)).filter(
        (F.col("until_ms") > F.col("start_ms")) & (F.col("until_ms") <= F.col("end_ms"))
    )
    return (
        inside.groupBy(*OBJECT, "what", "start_ms", "end_ms")
        .agg(
            F.min_by("least", "until_ms").alias("before"),
            F.min_by("most_ms", F.struct(-F.col("most"), "most_ms")).alias("worst_ms"),
            F.max("most").alias("worst"),
            F.max_by("ready", "until_ms").alias("after"),
            F.min("fewest").alias("fewest"),
            F.max("consumers").alias("consumers"),
            F.sum("pub").alias("pub"),
            F.sum("settled").alias("settled"),
        )
        # Consumers catch up from the longest backlog on.
        .withColumn("end_ms", F.when(F.col("what") == BEHIND, F.col("worst_ms")).otherwise(F.col("end_ms")))
        .drop("since_ms")
    )


def _islands(made: DataFrame, kinds: Sequence[str]) -> DataFrame:
    """Return successive bins of the same of these kinds, as `what`, `start_ms`, `end_ms`."""
    order = Window.partitionBy(*OBJECT).orderBy("bin")
    recent = order.rowsBetween(1 - TOGETHER, Window.currentRow)
    nothing = F.sum("settled").over(recent) <= 0
    waited = (F.min("least").over(recent) > 0) & (F.count("bin").over(recent) == TOGETHER)
    served = (F.max("consumers").over(recent) > 0) | (F.sum("delivered").over(recent) > 0)
    held = F.min("unacked").over(recent) > 0
    what = (
        F.when(nothing & waited & ~served, ALONE)
        .when(nothing & waited & held, STALLED)
        .when(~nothing & (F.col("least") > F.lag("most", TOGETHER).over(order)), BEHIND)
    )

    def earlier(name: str, bins: int) -> Column:
        return F.lag(name, bins).over(order)

    # The start is that of the oldest bin that decided; for growth the end of the one compared with, or of the next
    # if that was no longer.
    still = earlier("most", TOGETHER - 1) <= earlier("most", TOGETHER)
    grown = F.when(still, earlier("until_ms", TOGETHER - 1)).otherwise(earlier("until_ms", TOGETHER))
    begun = F.when(F.col("what") == BEHIND, grown).otherwise(earlier("from_ms", TOGETHER - 1))
    marked = (
        made.withColumn("what", what)
        .withColumn("begun_ms", begun)
        .withColumn("what_before", F.lag("what").over(order))
    )
    changed = ~F.col("what").eqNullSafe(F.col("what_before"))
    return (
        marked.withColumn("island", F.sum(changed.cast("int")).over(order))
        .filter(F.col("what").isin(*kinds))
        .groupBy(*OBJECT, "what", "island")
        .agg(
            F.min("begun_ms").alias("start_ms"),
            F.max("until_ms").alias("end_ms"),
            F.count("bin").alias("bins"),
        )
        .filter((F.col("what") != BEHIND) | (F.col("bins") >= TOGETHER))
        .drop("island", "bins")
    )


def with_consumers(episodes: DataFrame, events: DataFrame) -> DataFrame:
    """Add who consumed: `who`, at most `NAMED` users with the names of their connections; null if none is known.

    Args:
        episodes: the result of `found`.
        events: the events of the broker, also from before the range.
    """
    place = ("node", "boot_id", "vhost", "queue")
    known = events.filter(F.col("kind").isin("consumer_added", "consumer_removed")).select(
        "node",
        "boot_id",
        "vhost",
        F.col("name").alias("queue"),
        F.try_element_at("detail", F.lit("user")).alias("user"),
        F.try_element_at("detail", F.lit("connection")).alias("connection"),
        "ts",
        (F.col("kind") == "consumer_added").alias("is_added"),
    )
    here = known.groupBy(*place, "user", "connection").agg(
        F.min("ts").alias("came_ms"),
        # As long as one of a connection's consumers is left, it consumes.
        F.when(F.count_if(F.col("is_added")) <= F.count_if(~F.col("is_added")), F.max("ts")).alias("left_ms"),
    )
    during = (F.col("came_ms") <= F.col("end_ms")) & (
        F.col("left_ms").isNull() | (F.col("left_ms") >= F.col("start_ms"))
    )
    key = (*place, "what", "start_ms")
    named = (
        here.join(F.broadcast(episodes.select(*key, "end_ms")), list(place))
        .filter(during)
        .groupBy(*key)
        .agg(F.array_sort(F.collect_set(F.concat_ws(" ", "user", "connection"))).alias("all"))
        .select(*key, F.concat_ws(", ", F.slice("all", 1, NAMED)).alias("who"))
    )
    return episodes.join(named, list(key), "left")


def history(made: DataFrame, seconds: int) -> DataFrame:
    """Return each queue over time: rates in messages per second, levels in messages."""
    return (
        longer(made, seconds)
        .groupBy(*QUEUE, "bin")
        .agg(
            F.sum("step_us").alias("step_us"),
            F.min("least").alias("least"),
            F.max("most").alias("most"),
            F.max_by("ready", "until_ms").alias("ready"),
            F.max("unacked").alias("unacked"),
            F.max("consumers").alias("consumers"),
            *[F.sum(name).alias(name) for name in _COUNTS],
        )
        .select(
            *QUEUE,
            F.timestamp_millis("bin").alias("time"),
            *[(F.col(name) * 1e6 / F.col("step_us")).alias(name) for name in _COUNTS],
            *("ready", "least", "most", "unacked", "consumers"),
        )
    )
