"""Job `capacity`: CPU time per message, and the maximum message rate of a node.

By the utilisation law the utilisation of a processor is the rate times the CPU time of a message: a line through the
intervals, whose slope is that time. The other limit is the permitted delay: the greatest rate at which the event loop
is late by at most `LATE_US`.

The line is no law for rates that were not seen: the broker batches more the more there is to do, so a message costs
less at higher rates, and a saturation found by the line is a lower bound. Beyond `FARTHEST` times the greatest rate
nothing is estimated.
"""

from typing import Final

from pyarrow.dataset import field
from pyspark.sql import DataFrame

from leveret.analytics.figures import Panel, Series, panels
from leveret.analytics.job import Job, Page, Row, Section, Written, number_of, texts
from leveret.analytics.reading import Input
from leveret.analytics.series import each, query, steps

COUNTERS: Final = ("published", "cpu_user_us", "cpu_sys_us")
LATE_US: Final = 10_000
GROUPS: Final = 20
FEW: Final = 3  # minimum number of intervals for a fitted line
FARTHEST: Final = 2  # multiple of the greatest rate seen up to which the line is believed
EXPLAINED: Final = 0.5  # minimum fraction of the variance that a line must explain
SHOWN: Final = 20  # number of nodes in the figures, those with the highest publish rates


def compute(data: Input) -> dict[str, DataFrame]:
    """Return `nodes` and `rates`."""
    taken = data.keep(loads(data.table("node_interval")))
    grouped = data.keep(by_rate(taken))
    return {"nodes": nodes(taken, grouped).orderBy("node"), "rates": grouped.orderBy("node", "number")}


def loads(rows: DataFrame) -> DataFrame:
    """Return for each interval of a node: publish rate, processor utilisation, lateness."""
    return steps(rows, "node_interval", COUNTERS, ("loop_lag_p99_us",)).selectExpr(
        *("node", "ts", "d_published AS published", "d_cpu_user_us + d_cpu_sys_us AS cpu_us"),
        *("d_published * 1e6 / step_us AS rate", "(d_cpu_user_us + d_cpu_sys_us) / step_us AS busy"),
        "loop_lag_p99_us AS late_us",
    )


def by_rate(taken: DataFrame) -> DataFrame:
    """Return the medians of each node's intervals in groups of similar rates."""
    return query(
        f"""
        WITH numbered AS (
            SELECT *, ntile({GROUPS}) OVER (PARTITION BY node ORDER BY rate) AS number FROM {{taken}} WHERE rate > 0
        )
        SELECT node, number, count(rate) AS intervals, {each("median({0}) AS {0}", ("rate", "busy", "late_us"))}
        FROM numbered GROUP BY node, number
        """,
        taken=taken,
    )


def nodes(taken: DataFrame, grouped: DataFrame) -> DataFrame:
    """Return the cost of a message on each node, and its maximum rate.

    `cpu_us` is the CPU time of a message, `rest` the utilisation without messages; null if the line explains too
    little, because the load hardly changed. `at_least` is a lower bound of the rate that saturates one processor: where
    the line reaches it (`saturated_at`), or `FARTHEST` times the greatest rate if that is less; then `saturated_at` is
    null. `at_most_us` is all CPU time divided by all messages. `borne` is the greatest rate of a group that is not
    late, or of all intervals if none is; `late_from` the least of those above it that are.
    """
    believed = f"IF(slope > 0 AND r2 >= {EXPLAINED}D, {{0}}, NULL) AS {{0}}"
    # Groups are of similar rates: if none is late, the greatest rate is on time, not only the median of its group.
    return query(
        f"""
        WITH lines AS (
            SELECT node, count(rate) AS intervals, max(rate) AS greatest, regr_slope(busy, rate) AS slope,
                regr_intercept(busy, rate) AS rest, IF(count(rate) >= {FEW}, regr_r2(busy, rate), NULL) AS r2,
                try_divide(sum(cpu_us), sum(published)) AS at_most_us
            FROM {{taken}} GROUP BY node
        ),
        costs AS (
            SELECT node, intervals, greatest, r2, at_most_us, {each(believed, ("slope", "rest"))}
            FROM lines
        ),
        on_time AS (
            SELECT node, max(IF(late_us <= {LATE_US}, rate, NULL)) AS on_time FROM {{grouped}} GROUP BY node
        ),
        late AS (
            SELECT node, min(rate) AS late_from FROM {{grouped}} JOIN on_time USING (node)
            WHERE late_us > {LATE_US} AND (on_time IS NULL OR rate > on_time) GROUP BY node
        ),
        ends AS (
            SELECT *, (1 - rest) / slope AS saturated, {FARTHEST} * greatest AS farthest
            FROM costs LEFT JOIN late USING (node) LEFT JOIN on_time USING (node)
        )
        SELECT node, intervals, slope * 1e6 AS cpu_us, at_most_us, rest, r2,
            IF(saturated <= farthest, saturated, NULL) AS saturated_at,
            IF(slope IS NULL, NULL, least(saturated, farthest)) AS at_least,
            IF(late_from IS NULL AND on_time IS NOT NULL, greatest, on_time) AS borne, late_from, greatest
        FROM ends
        """,
        taken=taken,
        grouped=grouped,
    )


def describe(written: Written) -> Page:
    """Return the report."""
    found = written.rows("nodes", "node")
    busiest = {row["node"] for row in written.rows("nodes", "-greatest", "node")[:SHOWN]}
    shown = [row for row in found if row["node"] in busiest]
    groups = written.rows("rates", "node", "number", where=field("node").isin(texts(busiest)))
    sections: list[Section] = []
    for row in shown:
        mine = [group for group in groups if group["node"] == row["node"]]
        rates = [group["rate"] for group in mine]
        sections.append(
            Section(
                f"{row['node']}: load",
                f"Medians over intervals of similar rate. The dashed line is at {LATE_US / 1000:g} ms.",
                panels(
                    Panel(
                        "messages published/s",
                        "CPU use, cores",
                        [Series("measured", rates, [group["busy"] for group in mine])],
                        zero=True,
                    ),
                    Panel(
                        "messages published/s",
                        "event loop delay, p99 (ms)",
                        [Series("measured", rates, [group["late_us"] / 1000 for group in mine])],
                        zero=True,
                        rule=LATE_US / 1000,
                    ),
                ),
                f"load-{len(sections)}",
            )
        )
    sections.append(
        Section(
            "Nodes",
            "Rates are messages published per second.",
            terms={
                "cpu_us": "CPU time per message published and delivered: the slope of CPU use over the rate",
                "at_most_us": "total CPU time, divided by the number of messages",
                "rest": "CPU use without messages",
                "r2": f"coefficient of determination; below {EXPLAINED:g} the slope has no meaning",
                "saturated_at": "rate at full use of one core: a lower bound, as messages are batched; empty beyond "
                f"{FARTHEST} times the greatest rate seen",
                "at_least": "the same, and at most that multiple",
                "borne": f"highest rate with an event loop delay of at most {LATE_US / 1000:g} ms",
                "late_from": "lowest rate with a longer delay",
                "greatest": "highest measured rate",
            },
            columns="node intervals cpu_us at_most_us rest r2 saturated_at at_least borne late_from greatest",
            rows=found,
        )
    )
    return Page(
        title="Capacity",
        lead=f"{number_of(len(found), 'node')}, {number_of(sum(row['intervals'] for row in found), 'interval')}."
        + (f" The {SHOWN} nodes with the highest publish rates are shown." if len(found) > SHOWN else ""),
        facts=[_fact(row) for row in shown],
        sections=sections,
    )


def _fact(row: Row) -> str:
    if row["at_most_us"] is None:
        return f"{row['node']}: no messages were published, so no estimate is possible."
    if row["cpu_us"] is None:
        return (
            f"{row['node']}: {row['at_most_us']:.4g} µs of CPU time per message at most; the load varied too little "
            "to separate the cost of messages from the rest."
        )
    cost = f"{row['node']}: {row['cpu_us']:.4g} µs of CPU time per message at up to {row['greatest']:,.0f} per second"
    bound = "a lower bound, as messages are batched and cost less at higher rates"
    if row["saturated_at"] is None:
        return (
            f"{cost}; one core sustains at least {row['at_least']:,.0f} per second, {FARTHEST} times the greatest rate "
            f"seen ({bound}; nothing is estimated beyond)."
        )
    return f"{cost}; one core is saturated at {row['saturated_at']:,.0f} per second or more ({bound})."


JOB: Final = Job(
    name="capacity",
    needs=("node_interval",),
    compute=compute,
    describe=describe,
)
