"""Times in which something was wrong with a queue, in the whole range of the input: the one notion of all pages.

Rows are added up to bins of a minute. Three bins together decide, so that one slow moment is none:

- `unserved`: messages waited all the time, and there was neither a consumer nor a delivery (`unread`: nor ever before);
  not if they expire and are dead-lettered, as those of a retry queue;
- `stalled`: messages waited all the time, consumers held some, and nothing was settled;
- `behind`: messages were settled, but even the shortest backlog of a bin exceeded the longest of three bins before, in
  at least three bins in succession. A burst that is worked off is none, nor is a backlog that goes up and down;
- `repeated`: messages were redelivered in every bin, as one is that no consumer can process;
- `thrash`: more than two messages were read back from disk for each one delivered.

Slow growth that is hidden by fluctuations in minutes is found in the same way in bins of a quarter of an hour. An
episode ends when nothing is wrong for three minutes: it goes on across restarts and declarations of the queue.
"""

from typing import Final

from pyspark.sql import DataFrame, functions as F

from leveret.analytics import findings
from leveret.analytics.churn import ends
from leveret.analytics.reading import Input
from leveret.analytics.series import FULL_US, QUEUE, each, query, start_of_bin, steps

BEHIND: Final = "behind"
STALLED: Final = "stalled"
UNSERVED: Final = "unserved"
UNREAD: Final = "unread"
REPEATED: Final = "repeated"
THRASH: Final = "thrash"
MINUTE: Final = 60
QUARTER: Final = 900
TOGETHER: Final = 3
"""Number of bins that decide together, and number of successive bins that make a growing backlog an episode."""
APART_MS: Final = TOGETHER * MINUTE * 1000  # milliseconds up to which two times are one episode
FEW: Final = 10  # messages below which nothing is a trouble
READ_AGAIN: Final = 2  # messages read from disk for each one delivered beyond which a queue thrashes
RECOVERED: Final = 0.5  # fraction of its worst backlog below which a queue is recovering
NAMED: Final = 5  # maximum number of consumers that an episode names
REASONS: Final = tuple(findings.REASONS)
"""Counters of messages that leave a queue other than by a consumer, and are dead-lettered if it has an exchange."""
COUNTERS: Final = (
    *("pub", "delivered", "redelivered", "acked", "requeued", *REASONS, "dead_lettered", "t_from_delta"),
)
_KEY: Final = ", ".join(QUEUE)
_SUMMED: Final = (*COUNTERS, "settled", "step_us")
_LAST: Final = ("ready", "unacked", "consumers", "capacity", "promised", "held", "mode")
MODES: Final = ("", "standard", "consumer-ack", "consumer-ack-light")
"""Confirm modes by number from 0, for one that is unknown; bins have numbers, as Spark sorts rows to aggregate text."""


def of(data: Input) -> DataFrame:
    """Return the episodes of the input, as `found` does, with `who` consumed; computed once for all jobs."""

    def make() -> DataFrame:
        episodes = found(binned(data))
        return (
            with_consumers(data.keep(episodes), data.whole("event"))
            if data.has("event")
            else episodes.withColumn("who", F.lit(None).cast("string"))
        )

    return data.shared("episodes", make)


def binned(data: Input) -> DataFrame:
    """Return the bins of all queues, as `bins` does, of at most a minute; computed once for all jobs."""
    seconds = min(data.bin_seconds("queue_interval"), MINUTE)
    return data.shared("bins", lambda: bins(data.table("queue_interval"), seconds))


def bins(rows: DataFrame, seconds: int) -> DataFrame:
    """Return what happened in each bin of a queue, by the steps that end in it.

    `rows`: rows of `queue_interval`; `seconds`: length of a bin.

    Returns:
        For each queue and `bin` (ms): `from_ms`, `until_ms`; `step_us`, the time covered; `least` and `most` messages
        ready, with `most_ms`; `taken` (most unacked), `fewest` and `served` (most consumers); the last `ready`,
        `unacked`, `consumers`, `capacity`, `promised`, `held` and `mode` (its place in `MODES`); the increases of
        `COUNTERS`, and `settled`; the last time when consumers were there or no message waited (`served_ms`), when one
        was settled or none waited (`settled_ms`), and the first redelivery (`redelivered_ms`).
    """
    gauges = ("ready", "unacked", "consumers")
    taken = steps(rows, "queue_interval", (*gauges, *COUNTERS), ("capacity", "promised", "held", "mode"))
    before = {gauge: f"({gauge} - coalesce(d_{gauge}, {gauge}))" for gauge in gauges}
    # A queue that begins with messages has them from an earlier run: all that were not published since.
    before["ready"] = "(ready - coalesce(d_ready, least(ready, d_pub)))"
    settled = "(d_delivered - d_requeued - coalesce(d_unacked, unacked))"
    # The time of the most is before the first step that went up to it, if several rows are equally long.
    made = query(
        f"""
        SELECT {_KEY}, from_ts AS from_ms, ts AS until_ms, step_us,
            least({before["ready"]}, ready) AS least, greatest({before["ready"]}, ready) AS most,
            IF({before["ready"]} > ready, from_ts, ts) AS most_ms, unacked AS taken,
            least({before["consumers"]}, consumers) AS fewest, greatest({before["consumers"]}, consumers) AS served,
            {", ".join(_LAST[:-1])}, array_position(array({each("'{0}'", MODES[1:])}), mode) AS mode,
            {each("d_{0} AS {0}", COUNTERS)}, {settled} AS settled,
            IF(ready = 0 OR consumers > 0, ts, NULL) AS served_ms,
            IF(ready = 0 OR {settled} > 0, ts, NULL) AS settled_ms,
            IF(d_redelivered > 0, ts, NULL) AS redelivered_ms
        FROM {{taken}}
        """,
        taken=taken,
    )
    return longer(made, seconds)


def longer(made: DataFrame, seconds: int) -> DataFrame:
    """Add bins up to longer ones."""
    start = start_of_bin("until_ms - 1", seconds)
    return query(
        f"""
        SELECT {_KEY}, {start} AS bin, {each("min({0}) AS {0}", ("from_ms", "least", "fewest", "redelivered_ms"))},
            {each("max({0}) AS {0}", ("until_ms", "taken", "served", "served_ms", "settled_ms"))},
            min_by(most_ms, struct(-most, most_ms)) AS most_ms, max(most) AS most,
            {each("max_by({0}, until_ms) AS {0}", _LAST)}, {each("sum({0}) AS {0}", _SUMMED)}
        FROM {{made}} GROUP BY {_KEY}, {start}
        """,
        made=made,
    )


def history(made: DataFrame, seconds: int) -> DataFrame:
    """Return each queue over time: rates in messages per second, levels in messages."""
    return query(
        f"""
        SELECT {_KEY}, timestamp_millis(bin) AS time,
            {each("{0} * 1e6 / step_us AS {0}", ("pub", "delivered", "settled"))},
            ready, least, most, taken AS unacked, served AS consumers
        FROM {{longer}}
        """,
        longer=longer(made, seconds),
    )


def found(made: DataFrame) -> DataFrame:
    """Return the episodes of all queues, from bins of at most a minute.

    Returns:
        `node`, `vhost`, `queue`, `what`; `start_ms`, `end_ms` (null if it lasts at the end of the input) and `until_ms`
        (the end of the input then); `before` (messages at the start), `worst`, `worst_ms`, `after` (messages at the
        end), `fewest` and `consumers`, the increases of `COUNTERS` and `settled`; `unacked` and `promised` at the end.
    """
    minutes = longer(made, MINUTE)
    so_far = f"OVER (PARTITION BY {_KEY}, what ORDER BY start_ms, end_ms ROWS BETWEEN UNBOUNDED PRECEDING AND"
    # The end of an episode for users depends on what the queue does later. A queue without a row for longer than rows
    # of an unchanged one are apart was deleted. Consumers catch up from the longest backlog on.
    return query(
        f"""
        WITH marked AS (
            SELECT * FROM {{minutes}} UNION ALL SELECT * FROM {{quarters}} WHERE what = '{BEHIND}'
        ),
        begun AS (
            SELECT *, coalesce(start_ms > max(end_ms) {so_far} 1 PRECEDING) + {APART_MS}, true) AS is_new FROM marked
        ),
        numbered AS (SELECT *, sum(CAST(is_new AS INT)) {so_far} CURRENT ROW) AS number FROM begun),
        merged AS (
            SELECT {_KEY}, what, min(start_ms) AS start_ms, max(end_ms) AS end_ms
            FROM numbered GROUP BY {_KEY}, what, number
        ),
        episodes AS (
            SELECT /*+ BROADCAST(merged) */ {_KEY}, what, start_ms, end_ms, min_by(least, until_ms) AS before,
                min_by(most_ms, struct(-most, most_ms)) AS worst_ms, max(most) AS worst,
                max_by(ready, until_ms) AS after, min(fewest) AS fewest, max(served) AS consumers,
                max_by(unacked, until_ms) AS unacked, max_by(promised, until_ms) AS promised,
                {each("sum({0}) AS {0}", (*COUNTERS, "settled"))}
            FROM {{made}} JOIN merged USING ({_KEY}) WHERE until_ms > start_ms AND until_ms <= end_ms
            GROUP BY {_KEY}, what, start_ms, end_ms
        ),
        queues AS (
            SELECT {_KEY}, max(until_ms) AS last_ms, max_by(ready, until_ms) AS remaining,
                max(served) = 0 AND sum(delivered) = 0 AS is_unread,
                max(max(until_ms)) OVER (PARTITION BY node) AS now_ms
            FROM {{made}} GROUP BY {_KEY}
        ),
        judged AS (
            SELECT *, now_ms - last_ms <= {2 * FULL_US // 1000} AND CASE
                WHEN what = '{BEHIND}' THEN remaining >= {RECOVERED}D * worst
                WHEN what IN ('{REPEATED}', '{THRASH}') THEN end_ms + {APART_MS} > last_ms
                ELSE end_ms >= last_ms END AS lasts
            FROM episodes JOIN queues USING ({_KEY}) WHERE what != '{REPEATED}' OR redelivered >= {FEW}
        ),
        ended AS (
            SELECT * EXCEPT (what, end_ms), IF(what = '{UNSERVED}' AND is_unread, '{UNREAD}', what) AS what,
                IF(NOT lasts, IF(what = '{BEHIND}', worst_ms, end_ms), NULL) AS end_ms
            FROM judged
        )
        SELECT * EXCEPT (last_ms, remaining, is_unread, now_ms, lasts), coalesce(end_ms, now_ms) AS until_ms FROM ended
        """,
        made=made,
        minutes=_marked(minutes),
        quarters=_marked(longer(minutes, QUARTER)),
    )


def _marked(made: DataFrame) -> DataFrame:
    """Return the bins in which something is wrong, as `what`, since when (`start_ms`), and their ends (`end_ms`)."""
    order = f"PARTITION BY {_KEY} ORDER BY bin"
    starts = {
        UNSERVED: ("nothing AND waited AND NOT is_served AND NOT delays", "coalesce(was_served, first_ms)"),
        STALLED: ("nothing AND waited AND is_served AND least_taken > 0", "coalesce(was_settled, first_ms)"),
        BEHIND: ("is_behind", "grown_ms"),
        REPEATED: ("least_redelivered > 0 AND is_full", "again_ms"),
        THRASH: (f"least_read >= {FEW} AND read > {READ_AGAIN} * given AND is_full", "recent_ms"),
    }
    marks = ", ".join(
        f"struct('{what}' AS what, IF({is_wrong}, {start}, NULL) AS start_ms)"
        for what, (is_wrong, start) in starts.items()
    )
    # Growth starts at the end of the bin compared with, or of the next if that was no longer.
    return query(
        f"""
        WITH looked AS (
            SELECT *, sum(settled) OVER recent <= 0 AS nothing, count(bin) OVER recent = {TOGETHER} AS is_full,
                min(least) OVER recent AS shortest,
                max(served) OVER recent > 0 OR sum(delivered) OVER recent > 0 AS is_served,
                sum(t_from_delta) OVER recent AS read, sum(delivered) OVER recent AS given,
                {each("min({0}) OVER recent AS least_{0}", ("taken", "redelivered"))},
                min(t_from_delta) OVER recent AS least_read, first(redelivered_ms) OVER recent AS again_ms,
                first(from_ms) OVER recent AS recent_ms, first(from_ms) OVER so_far AS first_ms,
                max(served_ms) OVER so_far AS was_served, max(settled_ms) OVER so_far AS was_settled,
                {is_delay(*(f"{most} OVER so_far" for most in ("max(served)", "sum(expired)", "sum(dead_lettered)")))}
                    AS delays,
                lag(most, {TOGETHER}) OVER ordered AS most_before,
                IF(lag(most, {TOGETHER - 1}) OVER ordered <= lag(most, {TOGETHER}) OVER ordered,
                    lag(until_ms, {TOGETHER - 1}) OVER ordered, lag(until_ms, {TOGETHER}) OVER ordered) AS grown_ms
            FROM {{made}}
            WINDOW ordered AS ({order}), recent AS ({order} ROWS BETWEEN {TOGETHER - 1} PRECEDING AND CURRENT ROW),
                so_far AS ({order} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
        ),
        slow AS (
            SELECT *, shortest > 0 AND is_full AS waited,
                coalesce(NOT nothing AND least > most_before, false) AS is_slow
            FROM looked
        ),
        slower AS (
            SELECT *, is_full AND min(is_slow) OVER (
                {order} ROWS BETWEEN {TOGETHER - 1} PRECEDING AND CURRENT ROW) AS is_slower
            FROM slow
        ),
        judged AS (
            SELECT *, is_slow AND max(is_slower) OVER (
                {order} ROWS BETWEEN CURRENT ROW AND {TOGETHER - 1} FOLLOWING) AS is_behind
            FROM slower
        ),
        marks AS (SELECT {_KEY}, until_ms AS end_ms, inline(array({marks})) FROM judged)
        SELECT * FROM marks WHERE start_ms IS NOT NULL
        """,
        made=made,
    )


def is_delay(served: str, expired: str, dead_lettered: str) -> str:
    """Return whether it is a delay or retry queue, as the broker judges it: its messages expire and go on.

    `served`: most consumers; `expired`: messages that expired; `dead_lettered`: messages that were dead-lettered. All
    are texts of columns, as is what is returned.
    """
    return f"({served} = 0 AND {expired} > 0 AND {dead_lettered} > 0)"


def with_consumers(episodes: DataFrame, events: DataFrame) -> DataFrame:
    """Add who consumed: `who`, at most `NAMED` users with the names of their connections; null if none is known.

    `events`: the events of the broker, also from before the range.
    """
    # As long as one of a connection's consumers is left, it consumes.
    return query(
        f"""
        WITH known AS (
            SELECT node, boot_id, vhost, name AS queue, try_element_at(detail, 'user') AS user,
                try_element_at(detail, 'connection') AS connection, ts, kind = 'consumer_added' AS is_added
            FROM {{events}} WHERE kind IN ('consumer_added', 'consumer_removed')
        ),
        consumers AS (
            SELECT {_KEY}, boot_id, user, connection, min(ts) AS came_ms,
                IF(count_if(is_added) <= count_if(NOT is_added), max(ts), NULL) AS gone_ms
            FROM known GROUP BY {_KEY}, boot_id, user, connection
        ),
        here AS (
            SELECT consumers.*, coalesce(gone_ms, IF(NOT is_last, ends.until_ms, NULL)) AS left_ms
            FROM consumers JOIN {{ends}} AS ends USING (node, boot_id)
        ),
        named AS (
            SELECT {_KEY}, what, start_ms,
                concat_ws(', ', slice(array_sort(collect_set(concat_ws(' ', user, connection))), 1, {NAMED})) AS who
            FROM here JOIN (SELECT {_KEY}, what, start_ms, until_ms FROM {{episodes}}) USING ({_KEY})
            WHERE came_ms <= until_ms AND (left_ms IS NULL OR left_ms >= start_ms)
            GROUP BY {_KEY}, what, start_ms
        )
        SELECT episodes.*, who FROM {{episodes}} AS episodes LEFT JOIN named USING ({_KEY}, what, start_ms)
        """,
        episodes=episodes,
        events=events,
        ends=ends(events),
    )
