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
from pyspark.sql import DataFrame, functions as F

from leveret.analytics import episodes, paging
from leveret.analytics.episodes import REASONS, STALLED
from leveret.analytics.figures import Panel, bars_of, panels, series_of
from leveret.analytics.findings import CRITICAL, LEVELS, Finding, listed, words
from leveret.analytics.job import Job, Page, Row, Section, Written, number_of
from leveret.analytics.reading import Input, clocks_of
from leveret.analytics.scope import written as date_and_time
from leveret.analytics.series import FULL_US, OBJECT, QUEUE, each, query
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
TOLD: Final = 5  # number of troubles among the facts, critical ones first
NOTHING: Final = "No queue fell behind, stalled or lacked a consumer for minutes in this range."
TROUBLES: Final = "trouble level start end minutes worst pub settled consumers who"
_KEY: Final = ", ".join(QUEUE)
_STATE: Final = ("ready", "unacked", "held", "consumers", "capacity", "delivered", "requeued", "pub")


def compute(data: Input) -> dict[str, DataFrame]:
    """Return `queues`, each with its verdict at the end, `findings`, `episodes`, `history`, `dead` and `totals`."""
    made, past = episodes.binned(data), episodes.of(data)
    judged = data.keep(verdicts(data.table("queue_interval"), clocks_of(data)))
    return {
        "queues": with_range(judged, made, past).orderBy(*QUEUE),
        "findings": findings(data).orderBy(*COLUMNS),
        "episodes": as_told(past).orderBy(F.desc("worst"), *QUEUE, "start", "what"),
        "history": episodes.history(made, data.bin_seconds("queue_interval")).orderBy(*QUEUE, "time"),
        "dead": dead_letters(made).orderBy(*QUEUE),
        "totals": query(
            f"SELECT node, {each('sum({0}) AS {0}', ('pub', 'delivered', 'acked'))} FROM {{totals}} GROUP BY node",
            totals=paging.totals(data),
        ).orderBy("node"),
    }


def as_told(past: DataFrame) -> DataFrame:
    """Return episodes as users read them: with times; one without an end lasts."""
    return past.selectExpr(
        *(*QUEUE, "what", "start_ms"),
        *("timestamp_millis(start_ms) AS start", "timestamp_millis(end_ms) AS end"),
        *(
            "(until_ms - start_ms) / 60000 AS minutes",
            "before",
            "worst",
            "timestamp_millis(worst_ms) AS worst_at",
        ),
        *("after", "pub", "delivered", "settled", "fewest", "consumers", "who"),
    )


def dead_letters(made: DataFrame) -> DataFrame:
    """Return the queues that dead-lettered messages, with the numbers of what may be the reason."""
    sums = each("sum({0}) AS {0}", ("dead_lettered", *REASONS))
    return query(
        f"SELECT {_KEY}, {sums} FROM {{made}} GROUP BY {_KEY} HAVING sum(dead_lettered) > 0", made=made
    )


def verdicts(rows: DataFrame, clocks: DataFrame) -> DataFrame:
    """Return a row with a `verdict` for each queue that exists at the end of its node's last boot.

    `rows`: rows of `queue_interval`; `clocks`: their clocks.
    """
    key = ", ".join(OBJECT)
    grown = "max_by({0}, mono_us) - min_by({0}, mono_us)"
    # Whether a column rose in every step (no row: no change), inexact at the window's ends.
    rising = f"count_if(inside AND d_{{0}} > 0) = count_if(inside) AND count_if(inside) >= {INTERVALS - 1}"
    # The row before the window is the initial state: a missing row means that nothing has changed. Only rows from there
    # on are put in order.
    return query(
        f"""
        WITH boots AS (
            SELECT node, boot_id, interval_us, until_us, until_us - {INTERVALS} * interval_us AS window_start
            FROM {{clocks}} WHERE is_last
        ),
        placed AS (
            SELECT /*+ BROADCAST(boots) */ {key}, mono_us, mode, {", ".join(_STATE)}, interval_us, until_us,
                mono_us > window_start AS inside
            FROM {{rows}} JOIN boots USING (node, boot_id)
        ),
        alive AS (
            SELECT {key}, max(IF(inside, NULL, mono_us)) AS initial_us FROM placed GROUP BY {key}
            HAVING max(until_us) - max(mono_us) - 2 * max(interval_us) <= {FULL_US}
        ),
        seen AS (
            SELECT /*+ BROADCAST(alive) */ *, ready - lag(ready) OVER object AS d_ready,
                unacked - lag(unacked) OVER object AS d_unacked
            FROM placed JOIN alive USING ({key}) WHERE mono_us >= coalesce(initial_us, mono_us)
            WINDOW object AS (PARTITION BY {key} ORDER BY mono_us)
        ),
        judged AS (
            SELECT {key}, {INTERVALS} * max(interval_us) / 1e6 AS window_s,
                {each("max_by({0}, mono_us) AS {0}", ("mode", "ready", "unacked", "held", "consumers", "capacity"))},
                min(ready) AS least, {grown.format("ready")} AS grown, {grown.format("delivered")} AS delivered,
                {" - ".join(f"({grown.format(name)})" for name in ("delivered", "requeued", "unacked"))} AS settled,
                {grown.format("pub")} AS pub, {rising.format("ready")} AS rising,
                {rising.format("unacked")} AS hoarding,
                since_ms < max(since_ms) OVER (PARTITION BY {_KEY}) AS is_old
            FROM seen GROUP BY {key}
        )
        SELECT {_KEY}, mode,
            CASE WHEN settled <= 0 AND hoarding THEN '{STALLED}' WHEN least = 0 THEN '{OK}'
                WHEN settled <= 0 AND (delivered > 0 OR consumers > 0 AND unacked > 0) AND grown >= 0 THEN '{STALLED}'
                WHEN settled <= 0 AND delivered = 0 THEN '{STOPPED}'
                WHEN settled > 0 AND rising THEN '{BEHIND}' ELSE '{OK}' END AS verdict,
            ready > 0 AND consumers > 0 AND capacity < {IDLE_CAPACITY}D AS consumers_busy,
            window_s, ready, grown, unacked, held, pub, delivered, settled, consumers, capacity
        FROM judged WHERE NOT is_old
        """,
        rows=rows,
        clocks=clocks,
    )


def with_range(judged: DataFrame, made: DataFrame, past: DataFrame) -> DataFrame:
    """Add figures of the whole range to the verdicts of queues, from their bins and episodes.

    These are the publish `rate` (messages a second), the longest backlog, the number of `episodes`, each queue's
    `share` of its node's rate, and whether it is `hot`.
    """
    return query(
        f"""
        WITH ranges AS (
            SELECT {_KEY}, sum(pub) * 1e6 / sum(step_us) AS rate, max(most) AS longest,
                IF(max(most) > 0, timestamp_millis(min_by(most_ms, struct(-most, most_ms))), NULL) AS longest_at
            FROM {{made}} GROUP BY {_KEY}
        ),
        counts AS (SELECT {_KEY}, count(what) AS episodes FROM {{past}} GROUP BY {_KEY}),
        rated AS (
            SELECT judged.*, coalesce(rate, 0D) AS rate, longest, longest_at, coalesce(episodes, 0L) AS episodes
            FROM {{judged}} AS judged LEFT JOIN ranges USING ({_KEY}) LEFT JOIN counts USING ({_KEY})
        ),
        usual AS (SELECT node, median(rate) AS usual FROM rated WHERE rate > 0 GROUP BY node)
        SELECT rated.*, try_divide(rate, sum(rate) OVER (PARTITION BY node)) AS share,
            row_number() OVER (PARTITION BY node ORDER BY rate DESC, {_KEY}) <= {SHOWN}
                AND coalesce(rate > {HOT}D * usual, false) AS hot
        FROM rated LEFT JOIN usual USING (node)
        """,
        judged=judged,
        made=made,
        past=past,
    )


def describe(written: Written) -> Page:
    """Return the report."""
    totals = written.rows("totals", "node")
    number = written.count("queues")
    told = [(row, words(row)) for row in written.rows("findings", "from_ms", *COLUMNS)]
    shown = listed(finding for _, finding in told)
    urgent = sorted(shown, key=lambda finding: finding.level != CRITICAL)
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
        *([finding.sentence for finding in urgent[:TOLD]] or [NOTHING]),
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
                columns="queue vhost verdict consumers_busy ready grown unacked delivered settled consumers capacity "
                "window_s node",
                rows=wrong,
            ),
            Section(
                f"The {SHOWN} busiest queues",
                "Over the whole range.",
                bars_of("messages published/s", busiest, "rate", "vhost", "queue") if busiest else None,
                "busiest",
                terms={
                    "rate": "messages published per second",
                    "share": "part of the node's rate",
                    "longest": "most ready messages",
                    "episodes": "number of times in which something was wrong",
                },
                columns="queue vhost rate share hot longest longest_at episodes node",
                rows=busiest,
            ),
            Section(
                "Totals",
                "Messages, over all runs of the node in the input.",
                columns="node pub delivered acked",
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
                columns=f"queue vhost dead_lettered {' '.join(REASONS)} node",
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
        rows.append({name: own.get(name, known.get(name)) for name in TROUBLES.split()})
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
