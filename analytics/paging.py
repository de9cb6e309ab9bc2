"""Job `paging`: messages by state, moves between memory and disk, and waiting times. Its own checks are `validate`'s.

By Little's law the mean number of waiting messages is their rate times their mean wait. The number comes from areas,
which the broker keeps exactly; the wait from samples. The law is exact for a period that begins and ends with an empty
queue; the messages that wait at its ends are reported as well (`boundary`).

A message is an alpha (in memory), a beta (transient, its body paged out), a gamma (persistent, its body only on disk)
or in the delta (entirely on disk). `BROKEN` lists the conditions under which rows contradict that.
"""

from typing import Final

from pyarrow.dataset import field
from pyspark.sql import DataFrame

from leveret.analytics.figures import Panel, bars_of, panels, series_of, with_gaps
from leveret.analytics.findings import duration
from leveret.analytics.job import Job, Page, Row, Section, Written, number_of
from leveret.analytics.reading import Input
from leveret.analytics.series import (
    FULL_US,
    MOST_BINS,
    OBJECT,
    QUEUE,
    contradictions,
    each,
    last,
    query,
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
    found = _parts(data)
    timed = data.keep(over_time(found, data.bin_seconds("queue_interval")))
    return {
        "queues": by_queue(found).orderBy(*QUEUE),
        "residence": timed.select("node", "time", *LEVELS).orderBy("node", "time"),
        "moves": timed.select("node", "time", *MOVES).orderBy("node", "time"),
        "totals": totals(data).orderBy("node", "mode"),
    }


def checked(data: Input, histograms: DataFrame | None) -> tuple[DataFrame, DataFrame | None]:
    """Return the checks for `validate`: counts of contradictory rows, and the waits by Little's law and by samples.

    `data`: the input; it has `queue_interval`; `histograms`: rows of `latency_hist`; without them there are no samples
    to compare with. The waits are of queues at whose ends few messages wait.
    """
    found = _parts(data)
    of_steps = ", ".join(f"struct('{what}' AS what, `{what}` AS rows)" for what in BROKEN_STEPS)
    broken = contradictions(data.table("queue_interval"), BROKEN).unionByName(
        query(f"SELECT * FROM (SELECT inline(array({of_steps})) FROM {{found}}) WHERE rows > 0", found=found)
    )
    if histograms is None:
        return broken, None
    waits = query(
        f"""
        WITH sampled AS (
            SELECT node, vhost, name AS queue, sum(count) AS samples,
                try_divide(sum(CAST(sum_us AS DOUBLE)), sum(count)) / 1000 AS measured_ms
            FROM {{histograms}} WHERE scope = 'queue' AND metric = 'deliver' GROUP BY node, vhost, name
        ),
        compared AS (
            SELECT node, vhost, queue, little_ms, measured_ms, samples, boundary,
                try_divide(abs(little_ms - measured_ms), measured_ms) AS gap
            FROM {{queues}} JOIN sampled USING (node, vhost, queue) WHERE boundary <= {SETTLED}D
        )
        SELECT * FROM compared WHERE gap IS NOT NULL
        """,
        histograms=histograms,
        queues=by_queue(found),
    )
    return broken, waits


def totals(data: Input) -> DataFrame:
    """Return the totals of `COUNTERS` since the queues began, by `node` and `mode`."""
    keys = ("node", "mode")
    return data.shared("totals", lambda: last(data.table("queue_interval"), "queue_interval", keys, COUNTERS))


def _parts(data: Input) -> DataFrame:
    rows, seconds = data.table("queue_interval"), data.bin_seconds("queue_interval")
    return data.shared("paging.parts", lambda: parts(rows, seconds))


def parts(rows: DataFrame, seconds: int) -> DataFrame:
    """Add up the steps of each incarnation of a queue in the same bin: there are far fewer bins than steps.

    `rows`: rows of `queue_interval`.

    Returns:
        Sums; `bin`; `ts`, `mono_us`, `ready` and `LEVELS` at the end, `from_ts`, `begun_us` and `begun_with` (messages)
        at the beginning. A step over several bins is not added to others: it has the bin of its end, and `over_from`
        and `over_until` (ms), which are null for all others.
    """
    taken = steps(rows, "queue_interval", (*COUNTERS, *MOVES, *AREAS, "ready", "delta"), ("mode", *LEVELS))
    broken = ", ".join(f"count_if({condition}) AS `{what}`" for what, condition in BROKEN_STEPS.items())
    # The initial length of a queue that was declared or recovered is the difference from its counters. With numbers
    # only, and with `mode` in the group key, Spark need not sort.
    return query(
        f"""
        WITH placed AS (
            SELECT * EXCEPT (d_ready),
                coalesce(d_ready, d_pub + d_requeued - d_delivered - d_expired - d_dropped - d_purged) AS d_ready,
                {start_of_bin("from_ts", seconds)} AS first, {start_of_bin("ts - 1", seconds)} AS final
            FROM {{taken}}
        ),
        binned AS (
            SELECT *, greatest(first, final) AS bin, IF(first < final, from_ts, NULL) AS over_from,
                IF(first < final, ts, NULL) AS over_until
            FROM placed
        )
        SELECT {", ".join(OBJECT)}, mode, bin, over_from, over_until, max(ts) AS ts, max(mono_us) AS mono_us,
            min(from_ts) AS from_ts, {each("max_by({0}, mono_us) AS {0}", ("ready", *LEVELS))},
            min(mono_us) AS begun_us, min_by(ready - d_ready, mono_us) AS begun_with, sum(step_us) AS step_us,
            sum(d_ready) AS d_ready, {each("sum(d_{0}) AS d_{0}", (*COUNTERS, *MOVES))},
            {each("sum(CAST(d_{0} AS DOUBLE)) AS d_{0}", AREAS)}, {broken}
        FROM binned GROUP BY {", ".join(OBJECT)}, mode, bin, over_from, over_until
        """,
        taken=taken,
    )


def by_queue(parts: DataFrame) -> DataFrame:
    """Return a row for each queue over all incarnations: means over time, shares, rates, Little's wait."""
    # Messages that left the ready ones for good: those that came in minus the growth. The broker's samples count the
    # same messages: one that is requeued is counted with all of its waits.
    left = "(sum(d_pub) - sum(d_ready))"
    key = ", ".join(OBJECT)
    return query(
        f"""
        WITH lives AS (
            SELECT {key}, max_by(mode, mono_us) AS mode, max(ts) AS ts, sum(step_us) AS step_us,
                sum(d_ready) AS d_ready, {each("sum(d_{0}) AS d_{0}", (*COUNTERS, *MOVES, *AREAS))},
                min_by(begun_with, begun_us) + max_by(ready, mono_us) AS at_ends
            FROM {{parts}} GROUP BY {key}
        )
        SELECT {", ".join(QUEUE)}, max_by(mode, struct(ts, since_ms)) AS mode, sum(step_us) / 1e6 AS seconds,
            {each("sum(d_{0}) AS {0}", COUNTERS)}, sum(d_area_ready) / sum(step_us) AS mean_ready,
            sum(d_area_unacked) / sum(step_us) AS mean_unacked,
            {each("try_divide(sum(d_area_{0}), sum(d_area_ready)) AS share_{0}", STATES)},
            {each("sum(d_{0}) / (sum(step_us) / 1e6) AS {0}_per_s", MOVES)},
            try_divide(sum(d_t_from_delta), sum(d_delivered)) AS thrash,
            IF({left} > 0, sum(d_area_ready) / {left} / 1000, NULL) AS little_ms,
            IF({left} > 0, sum(at_ends) / {left}, NULL) AS boundary
        FROM lives GROUP BY {", ".join(QUEUE)}
        """,
        parts=parts,
    )


def over_time(parts: DataFrame, seconds: int) -> DataFrame:
    """Return each node's mean number of messages in each state and rates of moves, by the time that a bin covers.

    A step over several bins is spread over them: while no row was written, nothing changed. A bin in which the broker
    did not run has no row.
    """
    length = seconds * 1000
    areas, moves = (
        [f"d_{name}" for name in names] for names in ((f"area_{level}" for level in LEVELS), MOVES)
    )
    sums = (*areas, *moves)
    key = ", ".join(OBJECT)
    # No step is longer than the range of all rows, which is at most `MOST_BINS`, unless its clock is wrong. A queue
    # that was declared or deleted meanwhile covers less than the others of its boot.
    return query(
        f"""
        WITH taken AS (
            SELECT {key}, bin, over_from, over_until, step_us, {", ".join(sums)} FROM {{parts}}
            UNION ALL
            SELECT {key}, bin, over_from, over_until, NULL, {", ".join(areas)}, {each("NULL", moves)} FROM {{unwritten}}
        ),
        spread AS (
            SELECT * EXCEPT (bin), explode(sequence(
                greatest({start_of_bin("coalesce(over_from, bin)", seconds)}, bin - {2 * MOST_BINS * length}),
                bin, {length}L
            )) AS bin
            FROM taken
        ),
        shared AS (SELECT *, least(over_until, bin + {length}) - greatest(over_from, bin) AS inside FROM spread),
        weighed AS (
            SELECT *, IF(over_from IS NULL, 1D, inside / (over_until - over_from)) AS share FROM shared
        ),
        of_objects AS (
            SELECT {key}, bin, sum(IF(over_from IS NULL, step_us, inside * 1000)) AS covered_us,
                {each("sum({0} * share) AS {0}", sums)}
            FROM weighed GROUP BY {key}, bin
        ),
        of_boots AS (
            SELECT node, bin, max(covered_us) AS covered_us, {each("sum({0}) AS {0}", sums)}
            FROM of_objects GROUP BY node, boot_id, bin
        )
        SELECT node, timestamp_millis(bin) AS time,
            {each("sum(d_area_{0}) / sum(covered_us) AS {0}", LEVELS)},
            {each("coalesce(sum(d_{0}), 0D) * 1e6 / sum(covered_us) AS {0}", MOVES)}
        FROM of_boots GROUP BY node, bin
        """,
        parts=parts,
        unwritten=unwritten(parts, seconds),
    )


def unwritten(parts: DataFrame, seconds: int) -> DataFrame:
    """Return the areas of queues before their first and after their last row of a boot, as if they had one.

    An unchanged queue has a row every `FULL_US` only. One that has none for longer was declared or deleted meanwhile.
    """
    key = ", ".join(OBJECT)

    def part(end: str, over_from: str, over_until: str, wanted: str) -> str:
        lasted = f"({over_until} - {over_from})"
        areas = each(f"{end}_{{0}} * {lasted} * 1000D AS d_area_{{0}}", LEVELS)
        return (
            f"SELECT {key}, {start_of_bin(f'{over_until} - 1', seconds)} AS bin, {over_from} AS over_from, "
            f"{over_until} AS over_until, {areas} "
            f"FROM ends WHERE {lasted} > 0 AND {lasted} <= {FULL_US // 1000} AND {wanted}"
        )

    return query(
        f"""
        WITH objects AS (
            SELECT {key}, min(from_ts) AS first, max(ts) AS last, {each("max_by({0}, mono_us) AS last_{0}", LEVELS)},
                {each("min_by(d_area_{0} / step_us, mono_us) AS first_{0}", LEVELS)}
            FROM {{parts}} GROUP BY {key}
        ),
        ends AS (
            SELECT *, min(first) OVER boot AS begun, max(last) OVER boot AS until
            FROM objects WINDOW boot AS (PARTITION BY node, boot_id)
        )
        {part("last", "last", "until", "true")} UNION ALL {part("first", "begun", "first", "since_ms < begun")}
        """,
        parts=parts,
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
            "The second chart has moves between memory and disk."
            if rates
            else "No message moved between memory and disk."
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
            bars_of("ready messages, average", fullest, "mean_ready", "vhost", "queue"),
            "fullest",
        )
    )
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
            columns="queue vhost mean_ready thrash little_ms share_alpha share_beta share_gamma share_delta mode pub "
            "delivered acked mean_unacked boundary seconds node",
            rows=queues,
        ),
        Section(
            "Totals",
            "Messages, since the creation of the queues.",
            columns=f"node mode {' '.join(COUNTERS)}",
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
