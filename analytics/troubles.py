"""Findings about queues, exchanges and nodes, which the overview and the health of queues tell."""

from functools import reduce
from typing import Final

from pyspark.sql import DataFrame

from leveret.analytics import episodes
from leveret.analytics.churn import alarms, ends
from leveret.analytics.episodes import (
    BEHIND,
    FEW,
    REASONS,
    REPEATED,
    STALLED,
    THRASH,
    UNREAD,
    UNSERVED,
    is_delay,
)
from leveret.analytics.findings import CRITICAL, WARNING
from leveret.analytics.reading import Input
from leveret.analytics.series import QUEUE, each, last, query

SAME: Final = 0.01
"""Greatest relative difference of the copies of an exchange from the messages of a queue that gets them all."""
COLUMNS: Final = {  # columns of a finding, with their types
    **dict.fromkeys(("kind", "level", "node", "vhost", "queue", "detail"), "STRING"),
    **dict.fromkeys(("from_ms", "until_ms"), "BIGINT"),
    **dict.fromkeys(("amount", "came", "went"), "DOUBLE"),
}
_EXCHANGE: Final = ("node", "vhost", "exchange")
FIGURES: Final = {  # the `amount`, `came` and `went` of each kind of episode
    UNREAD: ("after", "pub", "promised"),
    UNSERVED: ("after", "pub", "promised"),
    STALLED: ("after", "unacked", "promised"),
    REPEATED: ("redelivered", "delivered", "requeued"),
    BEHIND: ("worst", "pub", "delivered"),
    THRASH: ("t_from_delta", "delivered", "worst"),
}


def findings(data: Input) -> DataFrame:
    """Return all findings about the input, with `COLUMNS`; computed once for all jobs."""

    def make() -> DataFrame:
        past = episodes.of(data)
        events = data.table("event") if data.has("event") else None
        found = [of_queues(past), dead_letters(episodes.binned(data)), restarts(boots(data), events)]
        if events is not None:
            found.append(alarmed(alarms(events, boots(data))))
        if data.has("exchange_interval"):
            exchanges = data.table("exchange_interval")
            found += [fan_outs(past, data.table("queue_interval"), exchanges), lost(exchanges)]
        return reduce(DataFrame.unionByName, found)

    return data.shared("findings", make)


def of_queues(past: DataFrame) -> DataFrame:
    """Return the episodes of queues as findings: critical if they last and messages have consumers to lack."""

    def figure(at: int) -> str:
        chosen = " ".join(f"WHEN '{what}' THEN {names[at]}" for what, names in FIGURES.items())
        return f"CASE what {chosen} END"

    promises = f"(what IN ('{UNREAD}', '{UNSERVED}', '{STALLED}') AND promised > 0)"
    return _finding(
        "{past}",
        kind="what",
        is_critical=f"end_ms IS NULL AND (what != '{UNREAD}' OR {promises})",
        queue="queue",
        from_ms="start_ms",
        until_ms="end_ms",
        amount=figure(0),
        came=figure(1),
        went=figure(2),
        past=past,
    )


def dead_letters(made: DataFrame) -> DataFrame:  # bins of queues
    """Return queues whose messages were dead-lettered, by reason; a delay or retry queue is none."""
    counts = ("dead_lettered", "delivered", *REASONS)
    key = ", ".join(QUEUE)
    return _finding(
        f"""(
            SELECT {key}, {each("sum({0}) AS {0}", counts)}, max(served) AS served,
                min(IF(dead_lettered > 0, from_ms, NULL)) AS first_ms,
                max(IF(dead_lettered > 0, until_ms, NULL)) AS last_ms
            FROM {{made}} GROUP BY {key}
        ) WHERE dead_lettered >= {FEW} AND NOT {is_delay("served", "expired", "dead_lettered")}""",
        kind="'dead_letters'",
        queue="queue",
        detail=f"to_json(struct({', '.join(REASONS)}))",
        from_ms="first_ms",
        until_ms="last_ms",
        amount="dead_lettered",
        came="delivered",
        made=made,
    )


def fan_outs(past: DataFrame, rows: DataFrame, exchanges: DataFrame) -> DataFrame:
    """Return fan-out exchanges without readers of their copies: unread queues that got as many messages as it routed.

    `past`: the episodes; `rows`: rows of `queue_interval`; `exchanges`: rows of `exchange_interval`.
    """
    fans = exchanges.filter("type = 'fanout'")
    return _finding(
        f"""(
            SELECT node, vhost, exchange, to_json(array_sort(collect_set(queue))) AS queues, sum(after) AS copies,
                max(routed) AS routed, min(start_ms) AS first_ms, count(*) AS readers
            FROM {{past}} JOIN {{published}} USING ({", ".join(QUEUE)}) JOIN {{routed}} USING (node, vhost)
            WHERE what = '{UNREAD}' AND end_ms IS NULL AND pub >= {FEW} AND routed > 0
                AND abs(pub - routed) <= greatest(1D, {SAME}D * routed)
            GROUP BY node, vhost, exchange
        )""",
        kind="'fan_out'",
        queue="exchange",
        detail="queues",
        from_ms="first_ms",
        amount="copies",
        came="routed",
        went="readers",
        past=past.select(*QUEUE, "what", "end_ms", "start_ms", "after"),
        published=last(rows, "queue_interval", QUEUE, ("pub",)),
        routed=last(fans, "exchange_interval", _EXCHANGE, ("routed",)),
    )


def lost(exchanges: DataFrame) -> DataFrame:
    """Return exchanges that dropped messages, because no queue was bound for them."""
    key = ", ".join(_EXCHANGE)
    return _finding(
        f"{{counted}} JOIN (SELECT {key}, min(ts) AS first_ms FROM {{exchanges}} GROUP BY {key}) USING ({key}) "
        f"WHERE unroutable_dropped >= {FEW}",
        kind="'lost'",
        queue="exchange",
        from_ms="first_ms",
        amount="unroutable_dropped",
        came="pub_in",
        counted=last(exchanges, "exchange_interval", _EXCHANGE, ("pub_in", "unroutable_dropped")),
        exchanges=exchanges,
    )


def boots(data: Input) -> DataFrame:
    """Return the runs of each node, as `churn.ends` does; computed once for all jobs."""
    seen = [data.table(name) for name in ("queue_interval", "node_interval", "event") if data.has(name)]
    return data.shared("boots", lambda: ends(*seen))


def restarts(started: DataFrame, events: DataFrame | None) -> DataFrame:
    """Return each time that a node was started again: planned if its last run had an event of its stop."""
    stops = (
        "SELECT node, boot_id AS before, max(name) AS reason FROM {events} WHERE kind = 'stop' GROUP BY node, boot_id"
        if events is not None
        else "SELECT DISTINCT node, boot_id AS before, 'unknown' AS reason FROM {events}"
    )
    order = "(PARTITION BY node ORDER BY from_ms, until_ms, boot_id)"
    return _finding(
        f"""(
            SELECT node, lag(until_ms) OVER {order} AS gone_ms, from_ms AS back_ms, lag(boot_id) OVER {order} AS before
            FROM {{started}}
        ) LEFT JOIN ({stops}) USING (node, before) WHERE gone_ms IS NOT NULL""",
        kind="'restart'",
        is_critical="reason IS NULL",
        detail="reason",
        from_ms="gone_ms",
        until_ms="back_ms",
        amount="(back_ms - gone_ms) / 1000",
        started=started,
        events=started if events is None else events,
    )


def alarmed(raised: DataFrame) -> DataFrame:
    """Return each alarm, which blocked publishers. `raised`: the result of `churn.alarms`."""
    return _finding(
        "{raised}",
        kind="'alarm'",
        is_critical="end IS NULL",
        detail="alarm",
        from_ms="unix_millis(start)",
        until_ms="unix_millis(end)",
        amount="minutes * 60",
        raised=raised,
    )


def _finding(
    rows: str,
    *,
    kind: str,
    from_ms: str,
    amount: str,
    is_critical: str = "false",
    queue: str = "",
    detail: str = "NULL",
    until_ms: str = "NULL",
    came: str = "NULL",
    went: str = "NULL",
    **tables: DataFrame,
) -> DataFrame:
    """Return findings, by the text of each column; one without an end lasts until the end of the input.

    `queue`: a column with names within a virtual host; empty if it is about a node.
    """
    level = f"IF({is_critical}, '{CRITICAL}', '{WARNING}')"
    named = ("vhost", queue) if queue else ("NULL", "NULL")
    texts = (kind, level, "node", *named, detail, from_ms, until_ms, amount, came, went)
    made = (
        f"CAST({text} AS {of}) AS {name}" for text, (name, of) in zip(texts, COLUMNS.items(), strict=True)
    )
    return query(f"SELECT {', '.join(made)} FROM {rows}", **tables)
