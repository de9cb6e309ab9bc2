"""Job `paging`: messages by state, moves between memory and disk, and waiting times. Its own checks are `validate`'s.

By Little's law the mean number of waiting messages is their rate times their mean wait. The number comes from areas,
which the broker keeps exactly; the wait from samples. The law is exact for a period that begins and ends with an empty
queue; the messages that wait at its ends are reported as well (`boundary`).

A message is an alpha (in memory), a beta (transient, its body paged out), a gamma (persistent, its body only on disk)
or in the delta (entirely on disk). `BROKEN` lists the conditions under which rows contradict that.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Row, functions as F

from leveret.analytics.figures import Panel, bars, panels, series_of
from leveret.analytics.findings import duration
from leveret.analytics.job import Job, Page, Section, Written, number_of
from leveret.analytics.reading import Input
from leveret.analytics.series import MOST_BINS, OBJECT, QUEUE, counted, last, start_of_bin, steps

STATES: Final = ("alpha", "beta", "gamma", "delta")
MOVES: Final = ("t_ab", "t_ag", "t_to_delta", "t_from_delta", "t_unacked_out")
WORDS: Final = {
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
"""Names of states and moves for users."""
COUNTERS: Final = ("pub", "delivered", "acked", "requeued", "expired", "dropped", "dead_lettered", "purged")
AREAS: Final = ("area_ready", "area_unacked", *(f"area_{state}" for state in STATES))
_SUMMED: Final = (*COUNTERS, *MOVES, *AREAS)
SHOWN: Final = 20
SETTLED: Final = 0.05
"""Maximum share of messages at the ends, relative to those that left, for comparing a queue with Little's law."""
NEAR: Final = 0.1
_PAGED: Final = "t_unacked_out = 0"
BROKEN: Final = {
    "alpha + beta + gamma + delta differs from ready": "alpha + beta + gamma + delta != ready",
    "gamma messages in a transient queue": "not durable and gamma > 0",
    "beta messages, but no transient message was paged out": f"beta > 0 and t_ab = 0 and {_PAGED}",
    "gamma messages, but no persistent message was paged out": (
        f"gamma > 0 and t_ag = 0 and t_from_delta = 0 and {_PAGED}"
    ),
}
"""Conditions that no row may meet, by name."""
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
    return {
        "queues": by_queue(lives(found)).orderBy(*QUEUE),
        "residence": residence(found, seconds).orderBy("node", "time"),
        "moves": moves(found, seconds).orderBy("node", "time"),
        "totals": totals(data).orderBy("node", "mode"),
    }


def checked(data: Input, histograms: DataFrame | None) -> tuple[DataFrame, DataFrame | None]:
    """Return the checks for `validate`: counts of contradictory rows, and the waits by Little's law and by samples.

    Args:
        data: the input; it has `queue_interval`.
        histograms: rows of `latency_hist`; without them there are no samples to compare with.
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
    return steps(rows, "queue_interval", (*COUNTERS, *MOVES, *AREAS, "ready", "delta"), ("mode",))


def parts(taken: DataFrame, seconds: int) -> DataFrame:
    """Add up the steps of each incarnation of a queue in the same bin: there are far fewer bins than steps.

    Returns:
        Sums; `bin`; `ts`, `mono_us` and `ready` at the end, `begun_us` and `begun_with` (messages) at the beginning.
        A step over several bins is not added to others: it has the bin of its end, and `over_from` and `over_until`
        (ms), which are null for all others.
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
            F.max_by("ready", "mono_us").alias("ready"),
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
    """Return the number of rows that meet each of `BROKEN` and `BROKEN_STEPS`; zeros included."""
    of_rows = counted(rows, {what: F.count_if(F.expr(condition)) for what, condition in BROKEN.items()})
    return of_rows.unionByName(counted(parts, {what: F.sum(F.col(f"`{what}`")) for what in BROKEN_STEPS}))


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


def residence(parts: DataFrame, seconds: int) -> DataFrame:
    """Return the mean number of messages in each state, by node and time.

    A step over several bins is spread over them: while no row was written, nothing changed.
    """
    length = seconds * 1000
    # No step is longer than the range of all rows, which is at most `MOST_BINS`, unless its clock is wrong.
    least = F.col("bin") - F.lit(2 * MOST_BINS * length)
    first = F.greatest(start_of_bin(F.coalesce("over_from", "bin"), seconds), least)
    spread = parts.withColumn("bin", F.explode(F.sequence(first, "bin", F.lit(length).cast("bigint"))))
    covered = F.least(F.col("over_until"), F.col("bin") + length) - F.greatest(
        F.col("over_from"), F.col("bin")
    )
    share = F.when(F.col("over_from").isNull(), 1.0).otherwise(
        covered / (F.col("over_until") - F.col("over_from"))
    )
    return (
        spread.groupBy("node", "bin")
        .agg(
            *[
                (F.sum(F.col(f"d_area_{name}") * share) / (length * 1000)).alias(name)
                for name in (*STATES, "unacked")
            ]
        )
        .select("node", F.timestamp_millis("bin").alias("time"), *STATES, "unacked")
    )


def moves(parts: DataFrame, seconds: int) -> DataFrame:
    """Return the rate of state transitions, by node and time."""
    return (
        parts.groupBy("node", "bin")
        .agg(*[(F.sum(f"d_{name}") / seconds).alias(name) for name in MOVES])
        .select("node", F.timestamp_millis("bin").alias("time"), *MOVES)
    )


def describe(written: Written) -> Page:
    """Return the report."""
    queues = written.rows("queues", F.desc("mean_ready"), *QUEUE)
    totals = written.rows("totals", "node", "mode")
    over_time, moved = written.rows("residence", "time"), written.rows("moves", "time")
    sections: list[Section] = []
    for node in sorted({row["node"] for row in over_time}):
        mine = [row for row in over_time if row["node"] == node]
        changes = [row for row in moved if row["node"] == node]
        levels = [series_of(WORDS[state], mine, state) for state in (*STATES, "unacked")]
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
            bars(
                "ready messages, average",
                [(f"{row['vhost']} {row['queue']}", row["mean_ready"]) for row in fullest],
            ),
            "fullest",
        )
    )
    columns = [*QUEUE, "mode", "seconds", "pub", "delivered", "acked", "mean_ready", "mean_unacked"]
    columns += [f"share_{state}" for state in STATES] + ["thrash", "little_ms"]
    sections += [
        Section(
            "Queues",
            "pub, delivered, acked: messages in the time covered; mean ...: average numbers of messages; share ...: "
            "fraction of the ready time spent in each state; thrash: messages read back from disk / messages "
            "delivered; little_ms: mean time in the ready state by Little's law, in ms; boundary: messages waiting at "
            "the start and end / messages that left, roughly the error of Little's law. alpha: in memory; beta and "
            "gamma: body on disk, of transient and persistent messages; delta: entirely on disk.",
            columns=[*columns, "boundary"],
            rows=queues,
        ),
        Section(
            "Totals",
            "Messages, since the creation of the queues.",
            columns=("node", "mode", *COUNTERS),
            rows=totals,
        ),
    ]
    number = written.table("queues").count()
    thrashing = written.count("queues", F.col("thrash") > 0)
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
