"""Job `health`: hot queues, and slow, stalled or missing consumers, detected without fixed thresholds.

The episodes of the whole range are those of `episodes`; the rest of this module is about the end of the range.

The verdicts are those of LinkedIn's Burrow about consumers of a log, adapted to queues. They are based on the last
intervals only, on changes of a queue's backlog and on settled messages. Messages settled by consumers are those
delivered, minus those requeued and those unacked now: that includes consumers without acks.

- a queue that was empty at some time in the window is `ok`: its consumers keep up. If they settled nothing and
  had more messages in every step, they hold messages without acking them, and are `stalled`;
- nothing settled, the backlog does not shrink, and consumers have messages or received some: `stalled`;
- nothing settled and nothing delivered: `stopped`;
- messages settled, but the backlog grew in every step: `falling behind`;
- anything else is `ok`.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Row, Window, functions as F

from leveret.analytics import paging
from leveret.analytics.episodes import (
    ALONE,
    BEHIND,
    MINUTE,
    STALLED,
    bins,
    found,
    history,
    longer,
    with_consumers,
)
from leveret.analytics.figures import Panel, bars, panels, series_of
from leveret.analytics.job import Job, Page, Section, Written, number_of
from leveret.analytics.reading import Input, clocks_of
from leveret.analytics.series import FULL_US, OBJECT, QUEUE

OK: Final = "ok"
STOPPED: Final = "stopped"
INTERVALS: Final = 10
"""Number of intervals in the window."""
HOT: Final = 3.0
"""Multiple of a node's median publish rate from which a queue is hot, if it is one of the `SHOWN` busiest."""
IDLE_CAPACITY: Final = 0.5
SHOWN: Final = 20
DRAWN: Final = 7
"""Number of queues in a figure of lines."""
TOLD: Final = 5
"""Number of episodes among the facts."""
_STATE: Final = ("ready", "unacked", "consumers", "capacity", "delivered", "requeued", "pub")


def compute(data: Input) -> dict[str, DataFrame]:
    """Return `queues`, each with its verdict at the end, `episodes`, `history` and `totals`."""
    rows = data.table("queue_interval")
    seconds = data.bin_seconds("queue_interval")
    made = data.keep(bins(rows, min(seconds, MINUTE)))
    found_episodes = data.keep(found(made if seconds >= MINUTE else longer(made, MINUTE)))
    told = episodes(found_episodes, data.whole("event") if data.has("event") else None)
    clock = clocks_of(data)
    judged = data.keep(verdicts(rows, clock, data.keep(alive(placed(rows, clock)))))
    return {
        "queues": hot(judged.join(over_range(made, found_episodes), list(QUEUE), "left")).orderBy(*QUEUE),
        "episodes": told.orderBy(F.desc("worst"), *QUEUE, "start", "what"),
        "history": history(made, seconds).orderBy(*QUEUE, "time"),
        "totals": paging.totals(data)
        .groupBy("node")
        .agg(*[F.sum(name).alias(name) for name in ("pub", "delivered", "acked")])
        .orderBy("node"),
    }


def episodes(found: DataFrame, events: DataFrame | None) -> DataFrame:
    """Return episodes as users read them: with times, and who consumed."""
    named = (
        found.withColumn("who", F.lit(None).cast("string"))
        if events is None
        else with_consumers(found, events)
    )
    return named.select(
        *QUEUE,
        "what",
        F.timestamp_millis("start_ms").alias("start"),
        F.timestamp_millis("end_ms").alias("end"),
        ((F.col("end_ms") - F.col("start_ms")) / 60_000).alias("minutes"),
        "before",
        "worst",
        F.timestamp_millis("worst_ms").alias("worst_at"),
        "after",
        "pub",
        "settled",
        "fewest",
        "consumers",
        "who",
    )


def over_range(made: DataFrame, found: DataFrame) -> DataFrame:
    """Return for each queue, over the whole range: publish `rate` (messages a second), longest backlog, `episodes`."""
    each = made.groupBy(*QUEUE).agg(
        (F.sum("pub") * 1e6 / F.sum("step_us")).alias("rate"),
        F.max("most").alias("longest"),
        F.timestamp_millis(F.min_by("most_ms", F.struct(-F.col("most"), "most_ms"))).alias("longest_at"),
    )
    counts = found.groupBy(*QUEUE).agg(F.count("what").cast("bigint").alias("episodes"))
    return each.join(counts, list(QUEUE), "left").fillna(0, ["episodes"])


def placed(rows: DataFrame, clocks: DataFrame) -> DataFrame:
    """Return the rows of each node's last boot, with the end of it and the start of the window before."""
    return (
        rows.select(*OBJECT, "mono_us", "mode", *_STATE)
        .join(F.broadcast(clocks.filter("is_last").drop("is_last")), ["node", "boot_id"])
        .withColumn("window_start", F.col("until_us") - INTERVALS * F.col("interval_us"))
    )


def alive(placed: DataFrame) -> DataFrame:
    """Return the queues that exist at the end, with the time of their row before the window, which is null if none."""
    initial_us = F.max(F.when(F.col("mono_us") <= F.col("window_start"), F.col("mono_us")))
    silent_us = F.max("until_us") - F.max("mono_us") - 2 * F.max("interval_us")
    return (
        placed.groupBy(*OBJECT)
        .agg(initial_us.alias("initial_us"), silent_us.alias("silent_us"))
        .filter(F.col("silent_us") <= FULL_US)
        .drop("silent_us")
    )


def verdicts(rows: DataFrame, clocks: DataFrame, alive: DataFrame) -> DataFrame:
    """Return a row with a `verdict` for each queue that exists at the end of its node's last boot.

    Args:
        rows: rows of `queue_interval`.
        clocks: their clocks.
        alive: the queues that exist.
    """
    order = Window.partitionBy(*OBJECT).orderBy("mono_us")
    # The row before the window is the initial state: a missing row means that nothing has changed. Of most rows their
    # time is enough to leave them out, and only those that are left are put in order.
    earliest = alive.groupBy("node", "boot_id").agg(
        F.min(F.coalesce("initial_us", F.lit(0))).alias("earliest_us")
    )
    seen = (
        placed(rows, clocks.join(earliest, ["node", "boot_id"]))
        .filter(F.col("mono_us") >= F.col("earliest_us"))
        .join(F.broadcast(alive), list(OBJECT))
        .filter(F.col("mono_us") >= F.coalesce("initial_us", "mono_us"))
        .select(
            "*",
            (F.col("ready") - F.lag("ready").over(order)).alias("d_ready"),
            (F.col("unacked") - F.lag("unacked").over(order)).alias("d_unacked"),
        )
    )
    inside = F.col("mono_us") > F.col("window_start")

    def grown(name: str) -> Column:
        return F.max_by(name, "mono_us") - F.min_by(name, "mono_us")

    def rising(name: str) -> Column:
        """Return whether a column rose in every step (no row: no change), inexact at the window's ends."""
        return (F.count_if(inside & (F.col(name) > 0)) == F.count_if(inside)) & (
            F.count_if(inside) >= INTERVALS - 1
        )

    judged = seen.groupBy(*OBJECT).agg(
        (INTERVALS * F.max("interval_us") / 1e6).alias("window_s"),
        F.max_by("mode", "mono_us").alias("mode"),
        F.max_by("ready", "mono_us").alias("ready"),
        F.max_by("unacked", "mono_us").alias("unacked"),
        F.max_by("consumers", "mono_us").alias("consumers"),
        F.max_by("capacity", "mono_us").alias("capacity"),
        F.min("ready").alias("least"),
        grown("ready").alias("grown"),
        grown("delivered").alias("delivered"),
        (grown("delivered") - grown("requeued") - grown("unacked")).alias("settled"),
        grown("pub").alias("pub"),
        rising("d_ready").alias("rising"),
        rising("d_unacked").alias("hoarding"),
    )
    latest = F.max("since_ms").over(Window.partitionBy(*QUEUE))
    there = judged.withColumn("latest", latest).filter(F.col("since_ms") == F.col("latest"))
    has_some = (F.col("delivered") > 0) | ((F.col("consumers") > 0) & (F.col("unacked") > 0))
    nothing = F.col("settled") <= 0
    verdict = (
        F.when(nothing & F.col("hoarding"), STALLED)
        .when(F.col("least") == 0, OK)
        .when(nothing & has_some & (F.col("grown") >= 0), STALLED)
        .when(nothing & (F.col("delivered") == 0), STOPPED)
        .when(~nothing & F.col("rising"), BEHIND)
        .otherwise(OK)
    )
    busy = (F.col("ready") > 0) & (F.col("consumers") > 0) & (F.col("capacity") < IDLE_CAPACITY)
    return there.select(
        *QUEUE,
        "mode",
        verdict.alias("verdict"),
        busy.alias("consumers_busy"),
        *("window_s", "ready", "grown", "unacked", "pub", "delivered", "settled", "consumers"),
        "capacity",
    )


def hot(queues: DataFrame) -> DataFrame:
    """Add each queue's `share` of its node's publish `rate`, and whether it is `hot`."""
    node = Window.partitionBy("node")
    rated = queues.fillna(0, ["rate", "episodes"])
    usual = rated.filter(F.col("rate") > 0).groupBy("node").agg(F.median("rate").alias("usual"))
    place = F.row_number().over(node.orderBy(F.desc("rate"), *QUEUE))
    return (
        rated.withColumn("share", F.try_divide("rate", F.sum("rate").over(node)))
        .withColumn("place", place)
        .join(usual, "node", "left")
        .withColumn(
            "hot",
            (F.col("place") <= SHOWN) & F.coalesce(F.col("rate") > HOT * F.col("usual"), F.lit(False)),
        )
        .drop("usual", "place")
    )


def describe(written: Written) -> Page:
    """Return the report."""
    totals = written.rows("totals", "node")
    number = written.table("queues").count()
    past = written.rows("episodes", F.desc("worst"), *QUEUE, "start", "what")
    wrong = written.rows(
        "queues", "verdict", *QUEUE, where=(F.col("verdict") != OK) | F.col("consumers_busy")
    )
    busiest = written.rows("queues", F.desc("rate"), *QUEUE, where=F.col("rate") > 0)[:SHOWN]
    judged = written.table("queues").groupBy("verdict").count().collect()
    counts = {row["verdict"]: row["count"] for row in judged}
    alone = written.count("queues", (F.col("verdict") == STOPPED) & (F.col("consumers") == 0))
    at_end = ", ".join(f"{counts.get(verdict, 0):,} {verdict}" for verdict in (STOPPED, STALLED, BEHIND))
    busy = written.count("queues", F.col("consumers_busy"))
    rated = sum(row["hot"] for row in busiest)
    facts = [
        *_told(past),
        f"At the end, of {number_of(number, 'queue')}: {at_end}. {alone:,} of the {STOPPED} queues had no consumer.",
        number_of(busy, "queue has", "queues have")
        + f" a backlog and consumers that are busy more than {1 - IDLE_CAPACITY:.0%} of the time.",
        f"{number_of(rated, 'queue is hot', 'queues are hot')}: more than {HOT:g} times the median rate.",
    ]
    return Page(
        title="Queue health",
        lead=f"{number_of(number, 'queue')} at the end. Total, including deleted queues: "
        f"{number_of(sum(row['pub'] for row in totals), 'message')} published, "
        f"{sum(row['delivered'] for row in totals):,} delivered, {sum(row['acked'] for row in totals):,} acked.",
        facts=facts,
        sections=[
            _backlogs(written),
            Section(
                "When consumers did not keep up",
                "Over the whole range, longest backlog first. before, worst and after: ready messages at the start, at "
                "most (worst_at) and at the end; pub and settled: messages meanwhile; fewest and consumers: least and "
                "greatest number of consumers; who: their users and connections, where the export has them. Times "
                "are in UTC.",
                columns=(
                    *(*QUEUE, "what", "start", "end", "minutes", "before", "worst", "worst_at", "after"),
                    *("pub", "settled", "fewest", "consumers", "who"),
                ),
                rows=past,
            ),
            Section(
                "Queues whose consumers do not keep up at the end",
                "In messages. ready, unacked, consumers and capacity (consumer capacity, 0 to 1) are the values at the "
                "end; grown (the increase of ready), delivered and settled cover the last window_s seconds.",
                columns=(
                    *QUEUE,
                    *("verdict", "consumers_busy", "ready", "grown", "unacked", "delivered", "settled"),
                    *("consumers", "capacity", "window_s"),
                ),
                rows=wrong,
            ),
            Section(
                f"The {SHOWN} busiest queues",
                "rate: messages published per second over the range; share: fraction of the node's rate; longest: "
                "longest backlog, in messages; episodes: number of times above.",
                bars(
                    "messages published/s",
                    [(f"{row['vhost']} {row['queue']}", row["rate"]) for row in busiest],
                )
                if busiest
                else None,
                "busiest",
                columns=(*QUEUE, "rate", "share", "hot", "longest", "longest_at", "episodes"),
                rows=busiest,
            ),
            Section(
                "Totals",
                "Messages, over all runs of the node in the input.",
                columns=("node", "pub", "delivered", "acked"),
                rows=totals,
            ),
        ],
    )


def _told(past: list[Row]) -> list[str]:
    """Return the worst episodes in words."""
    if not past:
        return ["No queue fell behind, stalled or lacked a consumer for minutes in this range."]
    queues = {tuple(row[name] for name in QUEUE) for row in past}
    words = {ALONE: "had no consumer", STALLED: "was stalled", BEHIND: "fell behind"}
    facts = []
    for row in past[:TOLD]:
        few = "" if row["fewest"] == row["consumers"] else f"{row['fewest']:,} to "
        who = f" ({row['who']})" if row["who"] else ""
        served = "" if row["what"] == ALONE else f"; {few}{number_of(row['consumers'], 'consumer')}{who}"
        facts.append(
            f"{row['queue']} ({row['vhost']}, {row['node']}) {words[row['what']]} from {row['start']} to "
            f"{row['end']}: {number_of(row['worst'], 'message')} at worst ({row['worst_at']}){served}."
        )
    more = len(past) - TOLD
    return [
        number_of(len(queues), "queue did", "queues did") + " not keep up at some time in this range.",
        *facts,
        *([f"{number_of(more, 'more time', 'more times')} below."] if more > 0 else []),
    ]


def _backlogs(written: Written) -> Section:
    """Return a figure of the longest backlogs, or of the rates if there was none; none if nothing happened."""
    column, label = "most", "ready messages"
    if not written.count("history", F.col("most") > 0):
        column, label = "pub", "messages published/s"
    longest = (
        written.table("history").groupBy(*QUEUE).agg(F.max(column).alias("level")).filter(F.col("level") > 0)
    )
    few = longest.orderBy(F.desc("level"), *QUEUE).limit(DRAWN).collect()
    lines = [
        series_of(
            f"{row['vhost']} {row['queue']}",
            written.rows("history", "time", where=_is(row)),
            column,
        )
        for row in few
    ]
    title = f"The {DRAWN} longest backlogs" if column == "most" else f"The {DRAWN} busiest queues over time"
    if not lines:
        return Section(title, "Nothing was published, and no message waited.")
    return Section(title, "Times are in UTC.", panels(Panel("", label, lines, zero=True)), "backlogs")


def _is(queue: Row) -> Column:
    condition = F.lit(True)
    for name in QUEUE:
        condition &= F.col(name) == F.lit(queue[name])
    return condition


JOB: Final = Job(
    name="health",
    needs=("queue_interval",),
    compute=compute,
    describe=describe,
    uses=("node_interval", "event"),
)
