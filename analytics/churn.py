"""Job `churn`: connection and channel churn, failed logins, and the duration of alarms."""

from collections import Counter
from typing import Final

from pyarrow.dataset import field
from pyspark.sql import DataFrame, functions as F

from leveret.analytics.figures import Panel, panels, series_of
from leveret.analytics.folding import COUNTED as TIMES
from leveret.analytics.job import Job, Page, Section, Written, number_of, texts
from leveret.analytics.reading import Input
from leveret.analytics.series import each, query, start_of_bin, union

COMING: Final = ("connection_opened", "connection_closed", "queue_created", "queue_deleted", "auth_failed")
_SPAN: Final = "timestamp_millis(min(ts)) AS first, timestamp_millis(max(ts)) AS last"
SHOWN: Final = 50
NODES: Final = 20  # number of nodes in the figures, those with the most events


def compute(data: Input) -> dict[str, DataFrame]:
    """Return `over_time`, `failures`, `clients` and `alarms`."""
    rows = data.table("event")
    seen = [rows, data.table("node_interval")] if data.has("node_interval") else [rows]
    seconds = max(data.bin_seconds(name) for name in ("event", "node_interval") if data.has(name))
    return {
        "over_time": over_time(rows, seconds, *seen).orderBy("node", "time"),
        "failures": failures(rows).orderBy(F.desc("failed"), "peer", "user"),
        "clients": clients(rows).orderBy(F.desc("opened"), "peer", "user"),
        "alarms": alarms(rows, ends(*seen)).orderBy("node", "start", "alarm"),
    }


def ends(*seen: DataFrame) -> DataFrame:
    """Return when each boot of each node was first and last seen: `from_ms`, `until_ms`, and whether it `is_last`."""
    return query(
        "SELECT node, boot_id, min(ts) AS from_ms, max(ts) AS until_ms, "
        "max(ts) = max(max(ts)) OVER (PARTITION BY node) AS is_last FROM {rows} GROUP BY node, boot_id",
        rows=union(seen, "node", "boot_id", "ts"),
    )


def over_time(rows: DataFrame, seconds: int, *seen: DataFrame) -> DataFrame:
    """Return the counts of each of `COMING` by node and bin of so many `seconds`, including zeros.

    `rows`: events; `seconds`: length of a bin; `seen`: tables of the node, which say from when to when it is known;
    without any the events do.
    """
    start = start_of_bin("ts", seconds)
    first, final = (start_of_bin(f"{end}(ts)", seconds) for end in ("min", "max"))
    counts = ", ".join(f"sum(IF(kind = '{kind}', {TIMES}, 0)) AS {kind}" for kind in COMING)
    return query(
        f"""
        WITH bins AS (
            SELECT node, explode(sequence({first}, {final}, {seconds * 1000}L)) AS bin FROM {{rows}} GROUP BY node
        ),
        counts AS (SELECT node, {start} AS bin, {counts} FROM {{events}} GROUP BY node, {start})
        SELECT node, timestamp_millis(bin) AS time, {seconds} AS seconds, {each("coalesce({0}, 0) AS {0}", COMING)}
        FROM bins LEFT JOIN counts USING (node, bin)
        """,
        rows=union(seen or (rows,), "node", "ts"),
        events=rows,
    )


def failures(rows: DataFrame) -> DataFrame:
    """Return the number of failed logins by address and user."""
    return query(
        f"""
        SELECT try_element_at(detail, 'peer') AS peer, name AS user, sum({TIMES}) AS failed, {_SPAN}
        FROM {{rows}} WHERE kind = 'auth_failed' GROUP BY try_element_at(detail, 'peer'), name
        """,
        rows=rows,
    )


def clients(rows: DataFrame) -> DataFrame:
    """Return connections opened and closed by address and user, and their median duration."""
    # A connection is named after both its ports: another one of the same name comes after the first has ended. Folded
    # events have no connection of their own.
    return query(
        f"""
        WITH known AS (
            SELECT try_element_at(detail, 'peer') AS peer, try_element_at(detail, 'user') AS user, kind, ts,
                {TIMES} AS times,
                IF(name != '' AND kind = 'connection_closed' AND lag(kind) OVER connection = 'connection_opened',
                    (mono_us - lag(mono_us) OVER connection) / 1e6, NULL) AS lasted
            FROM {{rows}} WHERE kind IN ('connection_opened', 'connection_closed')
            WINDOW connection AS (PARTITION BY node, boot_id, name ORDER BY mono_us)
        )
        SELECT peer, user, {each("sum(IF(kind = 'connection_{0}', times, 0)) AS {0}", ("opened", "closed"))},
            median(lasted) AS median_s, {_SPAN}
        FROM known GROUP BY peer, user
        """,
        rows=rows,
    )


def alarms(rows: DataFrame, ends: DataFrame) -> DataFrame:
    """Return each alarm with its end and duration in minutes; an alarm still active at the end of the input has no end.

    An alarm that was active when the broker stopped, or at its last row before another boot, ends there. `rows`:
    events.
    """
    return query(
        """
        WITH raised AS (
            SELECT node, boot_id, kind, name AS alarm, ts, mono_us, lead(struct(ts, mono_us)) OVER alarm AS next
            FROM {rows} WHERE kind IN ('alarm_raised', 'alarm_cleared')
            WINDOW alarm AS (PARTITION BY node, boot_id, name ORDER BY mono_us)
        ),
        stops AS (
            SELECT node, boot_id, max(struct(ts, mono_us)) AS stopped FROM {rows} WHERE kind = 'stop'
            GROUP BY node, boot_id
        ),
        ended AS (
            SELECT /*+ BROADCAST(stops) */ *, coalesce(next, stopped) AS over, IF(NOT is_last, until_ms, NULL) AS gone
            FROM raised JOIN {ends} USING (node, boot_id) LEFT JOIN stops USING (node, boot_id)
            WHERE kind = 'alarm_raised'
        )
        SELECT node, alarm, timestamp_millis(ts) AS start, timestamp_millis(coalesce(over.ts, gone)) AS end,
            coalesce((over.mono_us - mono_us) / 60000000, (gone - ts) / 60000) AS minutes
        FROM ended
        """,
        rows=rows,
        ends=ends,
    )


def describe(written: Written) -> Page:
    """Return the report."""
    many: Counter[str] = Counter()
    for node, *numbers in zip(
        *(written.column("over_time", name) for name in ("node", *COMING)), strict=True
    ):
        many[node] += sum(numbers)
    drawn_nodes = sorted(many, key=lambda node: (-many[node], node))[:NODES]
    times = written.rows("over_time", "time", where=field("node").isin(texts(drawn_nodes)))
    failed = written.rows("failures", "-failed", "peer", "user")
    came = written.rows("clients", "-opened", "peer", "user")
    alarmed = written.rows("alarms", "start", "node", "alarm")
    sections: list[Section] = []
    for node in sorted(drawn_nodes):
        mine = [row for row in times if row["node"] == node]
        drawn = [series_of(kind.replace("_", " "), mine, kind) for kind in COMING]
        sections.append(
            Section(
                f"{node}: events",
                f"Events per {mine[0]['seconds']:,} seconds. Times are in UTC.",
                panels(Panel("", "events", drawn, zero=True)),
                f"events-{len(sections)}",
            )
        )
    sections += [
        Section(
            "Failed logins",
            f"By client address and user name, the {SHOWN} most frequent. Times are in UTC.",
            columns="peer user failed first last",
            rows=failed[:SHOWN],
        ),
        Section(
            "Connections",
            f"The {SHOWN} pairs of client address and user that opened most connections. Many short-lived connections "
            "can cost a broker more than their messages.",
            terms={"median_s": "of closed connections"},
            columns="peer user opened closed median_s first last",
            rows=came[:SHOWN],
        ),
        Section(
            "Alarms",
            "Publishers are blocked during an alarm. Times are in UTC; an alarm without an end is still in effect.",
            columns="node alarm start end minutes",
            rows=alarmed,
        ),
    ]
    opened, closed = (sum(written.column("clients", name)) for name in ("opened", "closed"))
    tried, addresses = sum(written.column("failures", "failed")), len(set(written.column("failures", "peer")))
    minutes = sum(each for each in written.column("alarms", "minutes") if each is not None)
    still = written.count("alarms", field("end").is_null())
    return Page(
        title="Churn",
        lead=f"{number_of(opened, 'connection')} opened, {closed:,} closed.",
        facts=[
            f"{number_of(tried, 'failed login')} from {number_of(addresses, 'address', 'addresses')}.",
            f"{number_of(written.count('alarms'), 'alarm')}, {minutes:,.1f} minutes in total"
            + (f"; {still:,} still in effect at the end." if still else "."),
        ],
        sections=sections,
    )


JOB: Final = Job(
    name="churn",
    needs=("event",),
    compute=compute,
    describe=describe,
    uses=("node_interval",),
)
