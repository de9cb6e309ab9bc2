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

from collections import Counter
from typing import Final

from pyarrow.dataset import field
from pyspark.sql import Column, DataFrame, Window, functions as F

from leveret.analytics import episodes, paging
from leveret.analytics.episodes import REASONS, STALLED
from leveret.analytics.figures import Bars, Panel, panels, series_of
from leveret.analytics.findings import LEVELS, Finding, listed, words
from leveret.analytics.job import Job, Page, Row, Section, Written, number_of
from leveret.analytics.reading import Input, clocks_of
from leveret.analytics.scope import written as date_and_time
from leveret.analytics.series import FULL_US, OBJECT, QUEUE
from leveret.analytics.troubles import COLUMNS, findings

OK: Final = "ok"
BEHIND: Final = "falling behind"
STOPPED: Final = "stopped"
INTERVALS: Final = 10  # number of intervals in the window
HOT: Final = 3.0
"""Multiple of a node's median publish rate from which a queue is hot, if it is one of the `SHOWN` busiest."""
IDLE_CAPACITY: Final = 0.5
SHOWN: Final = 20
DRAWN: Final = 7  # number of queues in a figure of lines
TOLD: Final = 5  # number of troubles among the facts
NOTHING: Final = "No queue fell behind, stalled or lacked a consumer for minutes in this range."
TROUBLES: Final = (  # columns of the table of troubles
    *("trouble", "level", "start", "end", "minutes"),
    *("worst", "pub", "settled", "consumers", "who"),
)
_STATE: Final = ("ready", "unacked", "held", "consumers", "capacity", "delivered", "requeued", "pub")


def compute(data: Input) -> dict[str, DataFrame]:
    """Return `queues`, each with its verdict at the end, `findings`, `episodes`, `history`, `dead` and `totals`."""
    rows = data.table("queue_interval")
    made, past = episodes.binned(data), episodes.of(data)
    clock = clocks_of(data)
    judged = data.keep(verdicts(rows, clock, data.keep(alive(placed(rows, clock)))))
    return {
        "queues": hot(judged.join(over_range(made, past), list(QUEUE), "left")).orderBy(*QUEUE),
        "findings": findings(data).orderBy(*COLUMNS),
        "episodes": as_told(past).orderBy(F.desc("worst"), *QUEUE, "start", "what"),
        "history": episodes.history(made, data.bin_seconds("queue_interval")).orderBy(*QUEUE, "time"),
        "dead": dead_letters(made).orderBy(*QUEUE),
        "totals": paging.totals(data)
        .groupBy("node")
        .agg(*[F.sum(name).alias(name) for name in ("pub", "delivered", "acked")])
        .orderBy("node"),
    }


def as_told(past: DataFrame) -> DataFrame:
    """Return episodes as users read them: with times; one without an end lasts."""
    return past.select(
        *(*QUEUE, "what", "start_ms"),
        F.timestamp_millis("start_ms").alias("start"),
        F.timestamp_millis("end_ms").alias("end"),
        ((F.col("until_ms") - F.col("start_ms")) / 60_000).alias("minutes"),
        *("before", "worst", F.timestamp_millis("worst_ms").alias("worst_at"), "after"),
        *("pub", "delivered", "settled", "fewest", "consumers", "who"),
    )


def over_range(made: DataFrame, found: DataFrame) -> DataFrame:
    """Return for each queue, over the whole range: publish `rate` (messages a second), longest backlog, `episodes`."""
    each = made.groupBy(*QUEUE).agg(
        (F.sum("pub") * 1e6 / F.sum("step_us")).alias("rate"),
        F.max("most").alias("longest"),
        F.timestamp_millis(F.min_by("most_ms", F.struct(-F.col("most"), "most_ms"))).alias("longest_at"),
    )
    counts = found.groupBy(*QUEUE).agg(F.count("what").alias("episodes"))
    return each.join(counts, list(QUEUE), "left").fillna(0, ["episodes"])


def dead_letters(made: DataFrame) -> DataFrame:
    """Return the queues that dead-lettered messages, with the numbers of what may be the reason."""
    sums = [F.sum(name).alias(name) for name in ("dead_lettered", *REASONS)]
    return made.groupBy(*QUEUE).agg(*sums).filter(F.col("dead_lettered") > 0)


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

    `rows`: rows of `queue_interval`; `clocks`: their clocks; `alive`: the queues that exist.
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
        F.max_by("held", "mono_us").alias("held"),
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
        *("window_s", "ready", "grown", "unacked", "held", "pub", "delivered", "settled", "consumers"),
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
    number = written.count("queues")
    told = [(row, words(row)) for row in written.rows("findings", "from_ms", *COLUMNS)]
    shown = listed(finding for _, finding in told)
    wrong = written.rows(
        "queues", "verdict", *QUEUE, where=(field("verdict") != OK) | field("consumers_busy")
    )
    busiest = written.rows("queues", "-rate", *QUEUE, where=field("rate") > 0)[:SHOWN]
    dead = written.rows("dead", "-dead_lettered", *QUEUE)
    counts = Counter(written.column("queues", "verdict"))
    alone = written.count("queues", (field("verdict") == STOPPED) & (field("consumers") == 0))
    at_end = ", ".join(f"{counts[verdict]:,} {verdict}" for verdict in (STOPPED, STALLED, BEHIND))
    busy = written.count("queues", field("consumers_busy"))
    rated = sum(row["hot"] for row in busiest)
    held = [each for each in written.column("queues", "held") if each]
    lettered = sum(row["dead_lettered"] for row in dead)
    reasons = ", ".join(f"{sum(row[each] for row in dead):,} {each}" for each in REASONS)
    facts = [
        *([finding.sentence for finding in shown[:TOLD]] or [NOTHING]),
        *([f"{number_of(len(shown) - TOLD, 'more trouble')} below."] if len(shown) > TOLD else []),
        f"At the end, of {number_of(number, 'queue')}: {at_end}. {alone:,} of the {STOPPED} queues had no consumer.",
        number_of(busy, "queue has", "queues have")
        + f" a backlog and consumers that are busy more than {1 - IDLE_CAPACITY:.0%} of the time.",
        *(
            [f"{number_of(lettered, 'message was', 'messages were')} dead-lettered ({reasons})."]
            if lettered
            else []
        ),
        *(
            [f"{number_of(len(held), 'queue holds', 'queues hold')} {sum(held):,} messages until their time."]
            if held
            else []
        ),
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
                "What was wrong",
                "Over the whole range, in the order of time. A trouble without an end still lasts. Times are in UTC.",
                terms={
                    "worst": "most ready messages",
                    "pub": "messages published meanwhile",
                    "settled": "messages settled meanwhile",
                    "who": "users and connections that consumed, if the export has them",
                },
                columns=TROUBLES,
                rows=_troubles(told, shown, written.rows("episodes", "start", *QUEUE)),
            ),
            Section(
                "Queues whose consumers do not keep up at the end",
                "Numbers of messages. Ready, unacked, consumers and consumer capacity (0 to 1) are those at the end. "
                "The others are of the window before it.",
                terms={"grown": "increase of the ready messages"},
                columns=(
                    *(
                        "queue",
                        "vhost",
                        "verdict",
                        "consumers_busy",
                        "ready",
                        "grown",
                        "unacked",
                        "delivered",
                    ),
                    *("settled", "consumers", "capacity", "window_s", "node"),
                ),
                rows=wrong,
            ),
            Section(
                f"The {SHOWN} busiest queues",
                "Over the whole range.",
                Bars(
                    "messages published/s",
                    [(f"{row['vhost']} {row['queue']}", row["rate"]) for row in busiest],
                )
                if busiest
                else None,
                "busiest",
                terms={
                    "rate": "messages published per second",
                    "share": "part of the node's rate",
                    "longest": "most ready messages",
                    "episodes": "number of times in which something was wrong",
                },
                columns=(*QUEUE, "rate", "share", "hot", "longest", "longest_at", "episodes"),
                rows=busiest,
            ),
            Section(
                "Totals",
                "Messages, over all runs of the node in the input.",
                columns=("node", "pub", "delivered", "acked"),
                rows=totals,
            ),
            Section(
                "Dead letters",
                "Messages over the whole range.",
                terms={
                    "dead_lettered": "for any reason",
                    "rejected": "by consumers",
                    "expired": "by their time to live",
                    "dropped": "over a limit of the queue",
                },
                columns=("queue", "vhost", "dead_lettered", *REASONS, "node"),
                rows=dead,
            ),
        ],
    )


def _troubles(told: list[tuple[Row, Finding]], shown: list[Finding], past: list[Row]) -> list[Row]:
    """Return a row for each finding that is shown, with what is known of the queue in that time."""
    details = {(*(row[name] for name in QUEUE), row["what"], row["start_ms"]): row for row in past}
    rows: list[Row] = []
    for row, finding in told:
        if finding not in shown:
            continue
        key = (*(row[name] for name in QUEUE), row["kind"], row["from_ms"])
        until = row["until_ms"]
        lasted = None if until is None else (until - row["from_ms"]) / 60_000
        known = details.get(key, {"minutes": lasted})
        own = {
            "trouble": finding.title,
            "level": LEVELS[finding.level],
            "start": date_and_time(row["from_ms"]),
            "end": None if until is None else date_and_time(until),
        }
        if row["kind"] == "fan_out":
            own |= {"worst": round(row["amount"]), "pub": round(row["came"])}
        rows.append({name: own.get(name, known.get(name)) for name in TROUBLES})
    return rows


def _backlogs(written: Written) -> Section:
    """Return a figure of the longest backlogs, or of the rates if there was none; none if nothing happened."""
    column, label = "most", "ready messages"
    if not written.count("history", field("most") > 0):
        column, label = "pub", "messages published/s"
    greatest: dict[tuple[str, ...], float] = {}
    for *queue, level in zip(*(written.column("history", name) for name in (*QUEUE, column)), strict=True):
        key = tuple(queue)
        greatest[key] = max(level or 0, greatest.get(key, 0))
    few = sorted((-level, key) for key, level in greatest.items() if level > 0)[:DRAWN]
    lines = [
        series_of(
            f"{vhost} {queue}",
            written.rows(
                "history",
                "time",
                where=(field("node") == node) & (field("vhost") == vhost) & (field("queue") == queue),
            ),
            column,
        )
        for _, (node, vhost, queue) in few
    ]
    title = f"The {DRAWN} longest backlogs" if column == "most" else f"The {DRAWN} busiest queues over time"
    if not lines:
        return Section(title, "Nothing was published, and no message waited.")
    return Section(title, "Times are in UTC.", panels(Panel("", label, lines, zero=True)), "backlogs")


JOB: Final = Job(
    name="health",
    needs=("queue_interval",),
    compute=compute,
    describe=describe,
    uses=("node_interval", "event", "exchange_interval"),
)
