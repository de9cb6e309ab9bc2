"""Job `paging`: messages by state, moves between memory and disk, and waiting times. Its own checks are `validate`'s.

By Little's law the mean number of waiting messages is their rate times their mean wait. The number comes from areas,
which the broker keeps exactly; the wait from samples. The law is exact for a period that begins and ends with an empty
queue; the messages that wait at its ends are reported as well (`boundary`).

A message is an alpha (in memory), a beta (transient, its body paged out), a gamma (persistent, its body only on disk)
or in the delta (entirely on disk). `BROKEN` lists the conditions under which rows contradict that.
"""

from typing import Final

from pyarrow.dataset import field
from pyspark.sql import Column, DataFrame, Window, functions as F

from leveret.analytics.figures import Bars, Panel, panels, series_of, with_gaps
from leveret.analytics.findings import duration
from leveret.analytics.job import Job, Page, Row, Section, Written, number_of
from leveret.analytics.reading import Input
from leveret.analytics.series import (
    FULL_US,
    MOST_BINS,
    OBJECT,
    QUEUE,
    contradictions,
    last,
    start_of_bin,
    steps,
)

STATES: Final = ("alpha", "beta", "gamma", "delta")
LEVELS: Final = (*STATES, "unacked")
MOVES: Final = ("t_ab", "t_ag", "t_to_delta", "t_from_delta", "t_unacked_out")
WORDS: Final = {  # names of states and moves for users
    "alpha": "in memory",
    "beta": "transient, body on disk",
    "gamma": "persistent, body on disk",
    "delta": "entirely on disk",
    "unacked": "unacked",
    "t_ab": "bodies paged out (transient)",
    "t_ag": "bodies paged out (persistent)",
    "t_to_delta": "moved entirely to disk",
    "t_from_delta": "read back from disk",
    "t_unacked_out": "bodies of unacked paged out",
}
COUNTERS: Final = ("pub", "delivered", "acked", "requeued", "expired", "dropped", "dead_lettered", "purged")
AREAS: Final = ("area_ready", *(f"area_{level}" for level in LEVELS))
_SUMMED: Final = (*COUNTERS, *MOVES, *AREAS)
SHOWN: Final = 20
SETTLED: Final = 0.05
"""Maximum share of messages at the ends, relative to those that left, for comparing a queue with Little's law."""
NEAR: Final = 0.1
_PAGED: Final = "t_unacked_out = 0"
BROKEN: Final = {  # conditions that no row may meet, by name
    "alpha + beta + gamma + delta differs from ready": "alpha + beta + gamma + delta != ready",
    "gamma messages in a transient queue": "not durable and gamma > 0",
    "beta messages, but no transient message was paged out": f"beta > 0 and t_ab = 0 and {_PAGED}",
    "gamma messages, but no persistent message was paged out": (
        f"gamma > 0 and t_ag = 0 and t_from_delta = 0 and {_PAGED}"
    ),
}
BROKEN_STEPS: Final = {
    "areas of the states do not add up to that of ready": (
        f"abs({' + '.join(f'd_area_{state}' for state in STATES)} - d_area_ready) > 8"
    ),
    "delta grew by more than the transitions to it": "d_delta > d_t_to_delta - d_t_from_delta",
}
"""Conditions on the increase since the previous row. Areas are truncated to microseconds one by one."""


def compute(data: Input) -> dict[str, DataFrame]:
    """Return `queues`, `residence`, `moves` and `totals`."""
    rows = data.table("queue_interval")
    seconds = data.bin_seconds("queue_interval")
    found = _parts(data, rows, seconds)
    timed = data.keep(over_time(found, seconds))
    return {
        "queues": by_queue(lives(found)).orderBy(*QUEUE),
        "residence": timed.select("node", "time", *LEVELS).orderBy("node", "time"),
        "moves": timed.select("node", "time", *MOVES).orderBy("node", "time"),
        "totals": totals(data).orderBy("node", "mode"),
    }


def checked(data: Input, histograms: DataFrame | None) -> tuple[DataFrame, DataFrame | None]:
    """Return the checks for `validate`: counts of contradictory rows, and the waits by Little's law and by samples.

    `data`: the input; it has `queue_interval`; `histograms`: rows of `latency_hist`; without them there are no samples
    to compare with.
    """
    rows = data.table("queue_interval")
    found = _parts(data, rows, data.bin_seconds("queue_interval"))
    if histograms is None:
        return broken(rows, found), None
    waits = with_measured(by_queue(lives(found)), histograms)
    return broken(rows, found), waits.filter(F.col("gap").isNotNull()).select(
        *QUEUE, "little_ms", "measured_ms", "samples", "boundary", "gap"
    )


def totals(data: Input) -> DataFrame:
    """Return the totals of `COUNTERS` since the queues began, by `node` and `mode`."""
    keys = ("node", "mode")
    return data.shared("totals", lambda: last(data.table("queue_interval"), "queue_interval", keys, COUNTERS))


def _parts(data: Input, rows: DataFrame, seconds: int) -> DataFrame:
    return data.shared("paging.parts", lambda: parts(_steps(rows), seconds))


def _steps(rows: DataFrame) -> DataFrame:
    return steps(rows, "queue_interval", (*COUNTERS, *MOVES, *AREAS, "ready", "delta"), ("mode", *LEVELS))


def parts(taken: DataFrame, seconds: int) -> DataFrame:
    """Add up the steps of each incarnation of a queue in the same bin: there are far fewer bins than steps.

    Returns:
        Sums; `bin`; `ts`, `mono_us`, `ready` and `LEVELS` at the end, `from_ts`, `begun_us` and `begun_with` (messages)
        at the beginning. A step over several bins is not added to others: it has the bin of its end, and `over_from`
        and `over_until` (ms), which are null for all others.
    """
    # The initial length of a queue that was declared or recovered is the difference from its counters.
    gone = F.col("d_delivered") + F.col("d_expired") + F.col("d_dropped") + F.col("d_purged")
    grown = F.coalesce("d_ready", F.col("d_pub") + F.col("d_requeued") - gone)
    first, end = start_of_bin(F.col("from_ts"), seconds), start_of_bin(F.col("ts") - 1, seconds)
    is_over = first < end
    # With numbers only, and with `mode` in the group key, Spark need not sort.
    return (
        taken.withColumn("d_ready", grown)
        .groupBy(
            *OBJECT,
            "mode",
            F.greatest(first, end).alias("bin"),
            F.when(is_over, F.col("from_ts")).alias("over_from"),
            F.when(is_over, F.col("ts")).alias("over_until"),
        )
        .agg(
            F.max("ts").alias("ts"),
            F.max("mono_us").alias("mono_us"),
            F.min("from_ts").alias("from_ts"),
            *[F.max_by(name, "mono_us").alias(name) for name in ("ready", *LEVELS)],
            F.min("mono_us").alias("begun_us"),
            F.min_by(F.col("ready") - F.col("d_ready"), "mono_us").alias("begun_with"),
            *[F.sum(name).alias(name) for name in ("step_us", "d_ready")],
            *[F.sum(f"d_{name}").alias(f"d_{name}") for name in (*COUNTERS, *MOVES)],
            *[F.sum(F.col(f"d_{name}").cast("double")).alias(f"d_{name}") for name in AREAS],
            *[F.count_if(F.expr(condition)).alias(what) for what, condition in BROKEN_STEPS.items()],
        )
    )


def lives(parts: DataFrame) -> DataFrame:
    """Return a row for each incarnation of a queue: its increases, and its final state.

    `at_ends` is the number of messages at its beginning and at its end.
    """
    return parts.groupBy(*OBJECT).agg(
        F.max_by("mode", "mono_us").alias("mode"),
        F.max("ts").alias("ts"),
        *[F.sum(name).alias(name) for name in ("step_us", "d_ready", *(f"d_{name}" for name in _SUMMED))],
        (F.min_by("begun_with", "begun_us") + F.max_by("ready", "mono_us")).alias("at_ends"),
    )


def by_queue(lives: DataFrame) -> DataFrame:
    """Return a row for each queue over all incarnations: means over time, shares, rates, Little's wait."""
    seconds = F.sum("step_us") / 1e6
    # Messages that left the ready ones for good: those that came in minus the growth. The broker's samples count the
    # same messages: one that is requeued is counted with all of its waits.
    left = F.sum("d_pub") - F.sum("d_ready")

    def share(state: str) -> Column:
        return F.try_divide(F.sum(f"d_area_{state}"), F.sum("d_area_ready"))

    return lives.groupBy(*QUEUE).agg(
        F.max_by("mode", F.struct("ts", "since_ms")).alias("mode"),
        seconds.alias("seconds"),
        *[F.sum(f"d_{name}").alias(name) for name in COUNTERS],
        (F.sum("d_area_ready") / F.sum("step_us")).alias("mean_ready"),
        (F.sum("d_area_unacked") / F.sum("step_us")).alias("mean_unacked"),
        *[share(state).alias(f"share_{state}") for state in STATES],
        *[(F.sum(f"d_{name}") / seconds).alias(f"{name}_per_s") for name in MOVES],
        F.try_divide(F.sum("d_t_from_delta"), F.sum("d_delivered")).alias("thrash"),
        F.when(left > 0, F.sum("d_area_ready") / left / 1000).alias("little_ms"),
        F.when(left > 0, F.sum("at_ends") / left).alias("boundary"),
    )


def broken(rows: DataFrame, parts: DataFrame) -> DataFrame:
    """Return the rows that meet one of `BROKEN` or `BROKEN_STEPS`, as `series.contradictions` does."""
    of_steps = [
        F.struct(F.lit(what).alias("what"), F.col(f"`{what}`").alias("rows")) for what in BROKEN_STEPS
    ]
    return contradictions(rows, {what: F.expr(condition) for what, condition in BROKEN.items()}).unionByName(
        parts.select(F.inline(F.array(*of_steps))).filter(F.col("rows") > 0)
    )


def with_measured(queues: DataFrame, histograms: DataFrame) -> DataFrame:
    """Add the mean wait of the samples, and Little's difference from it, unless too many messages wait at the ends."""
    sampled = (
        histograms.filter((F.col("scope") == "queue") & (F.col("metric") == "deliver"))
        .groupBy("node", "vhost", F.col("name").alias("queue"))
        .agg(
            (F.try_divide(F.sum(F.col("sum_us").cast("double")), F.sum("count")) / 1000).alias("measured_ms"),
            F.sum("count").alias("samples"),
        )
    )
    return queues.join(sampled, list(QUEUE), "left").withColumn(
        "gap",
        F.when(
            F.col("boundary") <= SETTLED,
            F.try_divide(F.abs(F.col("little_ms") - F.col("measured_ms")), "measured_ms"),
        ),
    )


def over_time(parts: DataFrame, seconds: int) -> DataFrame:
    """Return each node's mean number of messages in each state and rates of moves, by the time that a bin covers.

    A step over several bins is spread over them: while no row was written, nothing changed. A bin in which the broker
    did not run has no row.
    """
    length = seconds * 1000
    sums = (*(f"d_area_{name}" for name in LEVELS), *(f"d_{name}" for name in MOVES))
    taken = parts.select(*OBJECT, "bin", "over_from", "over_until", "step_us", *sums).unionByName(
        unwritten(parts, seconds), allowMissingColumns=True
    )
    # No step is longer than the range of all rows, which is at most `MOST_BINS`, unless its clock is wrong.
    least = F.col("bin") - F.lit(2 * MOST_BINS * length)
    first = F.greatest(start_of_bin(F.coalesce("over_from", "bin"), seconds), least)
    inside = F.least(F.col("over_until"), F.col("bin") + length) - F.greatest(
        F.col("over_from"), F.col("bin")
    )
    is_whole = F.col("over_from").isNull()
    share = F.when(is_whole, 1.0).otherwise(inside / (F.col("over_until") - F.col("over_from")))
    of_objects = (
        taken.withColumn("bin", F.explode(F.sequence(first, "bin", F.lit(length).cast("bigint"))))
        .groupBy(*OBJECT, "bin")
        .agg(
            F.sum(F.when(is_whole, F.col("step_us")).otherwise(inside * 1000)).alias("covered_us"),
            *[F.sum(F.col(name) * share).alias(name) for name in sums],
        )
    )
    # A queue that was declared or deleted meanwhile covers less than the others.
    of_boots = of_objects.groupBy("node", "boot_id", "bin").agg(
        F.max("covered_us").alias("covered_us"), *[F.sum(name).alias(name) for name in sums]
    )
    covered = F.sum("covered_us")
    return (
        of_boots.groupBy("node", "bin")
        .agg(
            *[(F.sum(f"d_area_{name}") / covered).alias(name) for name in LEVELS],
            *[(F.coalesce(F.sum(f"d_{name}"), F.lit(0.0)) * 1e6 / covered).alias(name) for name in MOVES],
        )
        .select("node", F.timestamp_millis("bin").alias("time"), *LEVELS, *MOVES)
    )


def unwritten(parts: DataFrame, seconds: int) -> DataFrame:
    """Return the areas of queues before their first and after their last row of a boot, as if they had one.

    An unchanged queue has a row every `FULL_US` only. One that has none for longer was declared or deleted meanwhile.
    """
    boot = Window.partitionBy("node", "boot_id")
    ends = (
        parts.groupBy(*OBJECT)
        .agg(
            F.min("from_ts").alias("first"),
            F.max("ts").alias("last"),
            *[F.max_by(name, "mono_us").alias(f"last_{name}") for name in LEVELS],
            *[
                F.min_by(F.col(f"d_area_{name}") / F.col("step_us"), "mono_us").alias(f"first_{name}")
                for name in LEVELS
            ],
        )
        .withColumn("begun", F.min("first").over(boot))
        .withColumn("until", F.max("last").over(boot))
    )

    def part(end: str, over_from: str, over_until: str, rows: DataFrame) -> DataFrame:
        lasted = F.col(over_until) - F.col(over_from)
        return rows.filter((lasted > 0) & (lasted <= FULL_US / 1000)).select(
            *OBJECT,
            start_of_bin(F.col(over_until) - 1, seconds).alias("bin"),
            F.col(over_from).alias("over_from"),
            F.col(over_until).alias("over_until"),
            *[(F.col(f"{end}_{name}") * lasted * 1000.0).alias(f"d_area_{name}") for name in LEVELS],
        )

    return part("last", "last", "until", ends).unionByName(
        part("first", "begun", "first", ends.filter(F.col("since_ms") < F.col("begun")))
    )


def describe(written: Written) -> Page:
    """Return the report."""
    queues = written.rows("queues", "-mean_ready", *QUEUE)
    totals = written.rows("totals", "node", "mode")
    in_states, moved = written.rows("residence", "time"), written.rows("moves", "time")
    sections: list[Section] = []
    for node in sorted({row["node"] for row in in_states}):
        mine = with_gaps([row for row in in_states if row["node"] == node])
        changes = with_gaps([row for row in moved if row["node"] == node])
        levels = [series_of(WORDS[state], mine, state) for state in LEVELS]
        # Moves that never happened would only fill the legend.
        rates = [series_of(WORDS[move], changes, move) for move in MOVES if any(row[move] for row in changes)]
        drawn = [Panel("", "messages", levels, zero=True)]
        if rates:
            drawn.append(Panel("", "messages/s", rates, zero=True))
        told = (
            "Right: moves between memory and disk." if rates else "No message moved between memory and disk."
        )
        sections.append(
            Section(
                f"{node}: messages by state",
                f"Average numbers of ready messages by state and of unacked messages. {told} Times are in UTC.",
                panels(*drawn),
                f"states-{len(sections)}",
            )
        )
    fullest = queues[:SHOWN]
    sections.append(
        Section(
            f"The {SHOWN} longest queues",
            "By average number of ready messages.",
            Bars(
                "ready messages, average",
                [(f"{row['vhost']} {row['queue']}", row["mean_ready"]) for row in fullest],
            ),
            "fullest",
        )
    )
    columns = ["queue", "vhost", "mean_ready", "thrash", "little_ms", *(f"share_{state}" for state in STATES)]
    columns += ["mode", "pub", "delivered", "acked", "mean_unacked", "boundary", "seconds", "node"]
    sections += [
        Section(
            "Queues",
            "Shares are parts of the time that messages were ready. A message is in memory (alpha), has its body on "
            "disk (beta if it is transient, gamma if it is persistent), or is entirely on disk (delta).",
            terms={
                "thrash": "messages read back from disk, divided by messages delivered",
                "little_ms": "mean time in the ready state, by Little's law",
                "boundary": "messages that waited at the start and at the end, divided by those that left: about the "
                "error of Little's law",
            },
            columns=columns,
            rows=queues,
        ),
        Section(
            "Totals",
            "Messages, since the creation of the queues.",
            columns=("node", "mode", *COUNTERS),
            rows=totals,
        ),
    ]
    number = written.count("queues")
    thrashing = written.count("queues", field("thrash") > 0)
    return Page(
        title="Paging",
        lead=f"{number_of(number, 'queue')}. Since the start: "
        f"{number_of(sum(row['pub'] for row in totals), 'message')} published, "
        f"{sum(row['acked'] for row in totals):,} acked.",
        facts=[
            f"{thrashing:,} of {number_of(number, 'queue')} had messages read back from disk.",
            *_longest(queues),
        ],
        sections=sections,
    )


def _longest(queues: list[Row]) -> list[str]:
    if not queues or not queues[0]["mean_ready"]:
        return []
    row = queues[0]
    wait = "" if row["little_ms"] is None else f", each for {duration(row['little_ms'] / 1000)} on average"
    return [
        f"Most messages waited in {row['queue']} ({row['vhost']}): {row['mean_ready']:,.4g} on average{wait}."
    ]


JOB: Final = Job(
    name="paging",
    needs=("queue_interval",),
    compute=compute,
    describe=describe,
)
