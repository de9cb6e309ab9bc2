"""Job `paging`: where messages wait, how often they move between memory and disk, and whether the times agree.

By Little's law the mean number of waiting messages is their rate times their mean wait. The number comes from areas,
which the broker keeps exactly; the wait from samples. The law is exact for a time that begins and ends with an empty
queue; what waits at the ends is told beside it (`boundary`).
"""

from typing import Final

from pyspark.sql import Column, DataFrame, functions as F

from analytics.figures import Panel, Series, at, bars, panels
from analytics.job import Job, Page, Section, Written
from analytics.reading import Input
from analytics.series import bin_seconds, last, start_of_bin, steps

STATES: Final = ("alpha", "beta", "gamma", "delta")
MOVES: Final = ("t_ab", "t_ag", "t_to_delta", "t_from_delta", "t_unacked_out")
COUNTERS: Final = ("pub", "delivered", "acked", "requeued", "expired", "dropped", "dead_lettered", "purged")
AREAS: Final = ("area_ready", "area_unacked", *(f"area_{state}" for state in STATES))
_QUEUE: Final = ("node", "vhost", "queue")
SHOWN: Final = 20


def compute(data: Input) -> dict[str, DataFrame]:
    """Return `queues`, `residence`, `moves` and `totals`."""
    rows = data.table("queue_interval")
    taken = steps(rows, "queue_interval", (*COUNTERS, *MOVES, *AREAS, "ready"))
    queues = by_queue(taken)
    if data.has("latency_hist"):
        queues = with_measured(queues, data.table("latency_hist"))
    seconds = bin_seconds(rows)
    return {
        "queues": queues.orderBy(*_QUEUE),
        "residence": residence(taken, seconds).orderBy("node", "time"),
        "moves": moves(taken, seconds).orderBy("node", "time"),
        "totals": last(rows, "queue_interval", ("node", "mode"), COUNTERS).orderBy("node", "mode"),
    }


def by_queue(taken: DataFrame) -> DataFrame:
    """Return a row for each queue, however often it was made anew: means over time, shares, rates, Little's wait."""
    seconds = F.sum("step_us") / 1e6

    def share(state: str) -> Column:
        return F.try_divide(F.sum(f"d_area_{state}"), F.sum("d_area_ready"))

    # what left the ready messages: what came in less by how much they grew
    left = F.sum("d_pub") + F.sum("d_requeued") - F.sum("d_ready")
    at_ends = F.min_by(F.col("ready") - F.col("d_ready"), "ts") + F.max_by("ready", "ts")
    return taken.groupBy(*_QUEUE).agg(
        F.max_by("mode", "ts").alias("mode"),
        seconds.alias("seconds"),
        *[F.sum(f"d_{name}").alias(name) for name in COUNTERS],
        (F.sum("d_area_ready") / F.sum("step_us")).alias("mean_ready"),
        (F.sum("d_area_unacked") / F.sum("step_us")).alias("mean_unacked"),
        *[share(state).alias(f"share_{state}") for state in STATES],
        *[(F.sum(f"d_{name}") / seconds).alias(f"{name}_per_s") for name in MOVES],
        F.try_divide(F.sum("d_t_from_delta"), F.sum("d_pub")).alias("thrash"),
        F.when(left > 0, F.sum("d_area_ready") / left / 1000).alias("little_ms"),
        F.when(left > 0, at_ends / left).alias("boundary"),
    )


def with_measured(queues: DataFrame, histograms: DataFrame) -> DataFrame:
    """Add the mean wait of the samples, and by how much Little's differs from it."""
    sampled = (
        histograms.filter((F.col("scope") == "queue") & (F.col("metric") == "deliver"))
        .groupBy("node", "vhost", F.col("name").alias("queue"))
        .agg(
            (F.try_divide(F.sum("sum_us"), F.sum("count")) / 1000).alias("measured_ms"),
            F.sum("count").alias("samples"),
        )
    )
    return queues.join(sampled, list(_QUEUE), "left").withColumn(
        "gap", F.try_divide(F.abs(F.col("little_ms") - F.col("measured_ms")), "measured_ms")
    )


def residence(taken: DataFrame, seconds: int) -> DataFrame:
    """Return how many messages were in each state on average, by node and time.

    A step that is longer than a bin is spread over those it covers: as long as nothing was written, nothing changed.
    """
    length = seconds * 1000
    first, end = start_of_bin(F.col("from_ts"), seconds), start_of_bin(F.col("ts") - 1, seconds)
    spread = taken.filter(F.col("ts") > F.col("from_ts")).withColumn(
        "bin", F.explode(F.sequence(first, F.greatest(first, end), F.lit(length).cast("bigint")))
    )
    covered = F.least(F.col("ts"), F.col("bin") + length) - F.greatest(F.col("from_ts"), F.col("bin"))
    weight = covered / (F.col("ts") - F.col("from_ts")) / (length * 1000)
    return (
        spread.groupBy("node", "bin")
        .agg(*[F.sum(F.col(f"d_area_{name}") * weight).alias(name) for name in (*STATES, "unacked")])
        .select("node", F.timestamp_millis("bin").alias("time"), *STATES, "unacked")
    )


def moves(taken: DataFrame, seconds: int) -> DataFrame:
    """Return how many messages a second changed their state, by node and time."""
    return (
        taken.groupBy("node", start_of_bin(F.col("ts"), seconds).alias("bin"))
        .agg(*[(F.sum(f"d_{name}") / seconds).alias(name) for name in MOVES])
        .select("node", F.timestamp_millis("bin").alias("time"), *MOVES)
    )


def describe(written: Written) -> Page:
    """Return the report."""
    queues = written.rows("queues", F.desc("mean_ready"), *_QUEUE)
    totals = written.rows("totals", "node", "mode")
    over_time, moved = written.rows("residence", "time"), written.rows("moves", "time")
    sections: list[Section] = []
    for node in sorted({row["node"] for row in over_time}):
        mine = [row for row in over_time if row["node"] == node]
        changes = [row for row in moved if row["node"] == node]
        levels = [
            Series(state, [at(row["time"]) for row in mine], [row[state] for row in mine], marker=".")
            for state in (*STATES, "unacked")
        ]
        rates = [
            Series(
                move.removeprefix("t_"),
                [at(row["time"]) for row in changes],
                [row[move] for row in changes],
                marker=".",
            )
            for move in MOVES
        ]
        sections.append(
            Section(
                f"{node}: where messages are",
                "Left: ready messages by state, and unacked ones, averages. Right: changes of state. UTC.",
                panels(
                    Panel("", "messages", levels, zero=True), Panel("", "messages a second", rates, zero=True)
                ),
                f"states-{len(sections)}",
            )
        )
    fullest = queues[:SHOWN]
    sections.append(
        Section(
            f"The {SHOWN} fullest queues",
            "",
            bars(
                "ready messages, mean",
                [(f"{row['vhost']} {row['queue']}", row["mean_ready"]) for row in fullest],
            ),
            "fullest",
        )
    )
    columns = [*_QUEUE, "mode", "seconds", "pub", "delivered", "acked", "mean_ready", "mean_unacked"]
    columns += [f"share_{state}" for state in STATES] + ["thrash", "little_ms"]
    if queues and "measured_ms" in queues[0]:
        columns += ["measured_ms", "samples", "gap"]
    sections += [
        Section(
            "Queues", "thrash: read back from disk, per publish.", columns=[*columns, "boundary"], rows=queues
        ),
        Section("Since the start", "", columns=("node", "mode", *COUNTERS), rows=totals),
    ]
    number = written.table("queues").count()
    return Page(
        title="Paging",
        lead=f"{number:,} queues; {sum(row['pub'] for row in totals):,} messages were published into them and "
        f"{sum(row['acked'] for row in totals):,} settled since the start.",
        facts=[
            f"{written.count('queues', F.col('thrash') > 0):,} of {number:,} queues had messages read back from disk."
        ],
        sections=sections,
    )


JOB: Final = Job(
    name="paging",
    summary="where messages wait, in memory or on disk, how they move, and Little's law",
    needs=("queue_interval",),
    compute=compute,
    describe=describe,
    uses=("latency_hist",),
)
