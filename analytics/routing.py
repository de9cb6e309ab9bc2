"""Job `routing`: fan-out of exchanges, unroutable messages, and the hit rate of the route cache."""

from typing import Final

from pyarrow.dataset import field
from pyspark.sql import DataFrame

from leveret.analytics.figures import Bars, bars_of
from leveret.analytics.job import Job, Page, Section, Written, number_of
from leveret.analytics.reading import Input
from leveret.analytics.series import FULL_US, each, query

COUNTERS: Final = (
    *("pub_in", "routed", "unroutable_returned", "unroutable_dropped", "fanout_sum", "route_lookups"),
)
SHOWN: Final = 20
_EXCHANGE: Final = ("node", "vhost", "exchange")


def compute(data: Input) -> dict[str, DataFrame]:
    """Return `exchanges`, and `patterns` if there are topic exchanges."""
    found = data.keep(exchanges(data.table("exchange_interval")))
    made = {"exchanges": found.orderBy(*_EXCHANGE)}
    if data.has("topic_pattern"):
        made["patterns"] = patterns(data.table("topic_pattern"), found).orderBy(*_EXCHANGE, "pattern")
    return made


def exchanges(rows: DataFrame) -> DataFrame:
    """Return a row for each exchange over all incarnations: its counters, and derived figures.

    `fanout` is copies per routed message, `unroutable` the share that reached no queue, `remembered` the share whose
    route was in the cache.
    """
    key = ", ".join(_EXCHANGE)
    # An exchange has one type until it is declared again. If this text were aggregated instead of grouped by, Spark
    # would sort all rows.
    return query(
        f"""
        WITH objects AS (
            SELECT {key}, since_ms, type, max(ts) AS ts, max(mono_us) AS mono_us,
                {each("max_by({0}, mono_us) AS {0}", ("bindings", *COUNTERS))}
            FROM {{rows}} GROUP BY {key}, boot_id, since_ms, type
        ),
        totals AS (
            SELECT {key}, {each("max_by({0}, struct(ts, since_ms, mono_us)) AS {0}", ("type", "bindings"))},
                {each("sum({0}) AS {0}", COUNTERS)}
            FROM objects GROUP BY {key}
        )
        SELECT *, try_divide(fanout_sum, routed) AS fanout,
            try_divide(unroutable_returned + unroutable_dropped, pub_in) AS unroutable,
            try_divide(pub_in - route_lookups, pub_in) AS remembered
        FROM totals
        """,
        rows=rows,
    )


def patterns(rows: DataFrame, exchanges: DataFrame) -> DataFrame:
    """Return a row for each pattern: its matches, their possible undercount, its share of incoming messages.

    `hours` is its observation time; `dead` is true if it is still bound, and has matched nothing in that time.
    """
    exchange, key = ", ".join(_EXCHANGE), ", ".join((*_EXCHANGE, "pattern"))
    # Counters began at 0 if the exchange was first seen just before. All patterns of an exchange are written
    # together, so one that is not among the last was removed.
    return query(
        f"""
        WITH objects AS (
            SELECT {key}, since_ms, {each("max_by({0}, mono_us) AS {0}", ("matches", "error"))},
                min_by(matches + error, mono_us) AS before, min(ts) AS first, max(ts) AS until
            FROM {{rows}} GROUP BY {key}, boot_id, since_ms
        ),
        begun AS (
            SELECT *, first - since_ms <= {FULL_US // 1000} AS is_begun,
                until = max(until) OVER (PARTITION BY {exchange}) AS is_bound
            FROM objects
        ),
        seen AS (
            SELECT *, matches + error - IF(is_begun, 0, before) AS grown,
                until - IF(is_begun, since_ms, first) AS looked_ms
            FROM begun
        ),
        found AS (
            SELECT {key}, sum(matches) AS matches, sum(error) AS error, sum(looked_ms) / 3600000 AS hours,
                max(is_bound) AND sum(grown) = 0 AND sum(looked_ms) > 0 AS dead
            FROM seen GROUP BY {key}
        )
        SELECT {key}, matches, error, try_divide(matches, pub_in) AS share, hours, dead
        FROM found LEFT JOIN {{exchanges}} USING ({exchange})
        """,
        rows=rows,
        exchanges=exchanges,
    )


def describe(written: Written) -> Page:
    """Return the report."""
    found = written.rows("exchanges", "-pub_in", *_EXCHANGE)
    order = ("-matches", *_EXCHANGE, "pattern")
    has_patterns = written.has("patterns")
    heavy = written.rows("patterns", *order)[:SHOWN] if has_patterns else []
    dead = written.rows("patterns", *order, where=field("dead")) if has_patterns else []
    vain = written.count("patterns", field("dead")) if has_patterns else 0
    busiest = found[:SHOWN]
    published, returned, dropped = (
        sum(written.column("exchanges", name))
        for name in ("pub_in", "unroutable_returned", "unroutable_dropped")
    )
    sections = [
        Section(
            "Exchanges",
            f"Numbers of messages. The figure shows the {SHOWN} busiest exchanges.",
            Bars(
                "messages published",
                [(f"{row['vhost']} {row['exchange'] or '(default)'}", row["pub_in"]) for row in busiest],
            ),
            "busiest",
            terms={
                "fanout": "copies of a routed message, on average",
                "unroutable": "part of the messages that reached no queue",
                "remembered": "part of the messages whose route was cached",
            },
            columns="exchange vhost type bindings pub_in routed fanout unroutable remembered node",
            rows=found,
        )
    ]
    if heavy:
        sections += [
            Section(
                f"The {SHOWN} most frequent patterns",
                "The broker exports the 64 most frequent patterns of an exchange.",
                bars_of("matches", heavy, "matches", "exchange", "pattern"),
                "patterns",
                terms={
                    "matches": "messages that the pattern matches",
                    "error": "the most by which the matches can be too low",
                    "share": "part of the exchange's messages",
                },
                columns="pattern exchange vhost matches error share hours node",
                rows=heavy,
            ),
            Section(
                "Bindings without a match",
                "These bindings exist, and no message matched them in the hours observed.",
                columns="pattern exchange vhost hours node",
                rows=dead,
            ),
        ]
    return Page(
        title="Routing",
        lead=f"{number_of(written.count('exchanges'), 'exchange')}; {number_of(published, 'message')} published, "
        f"{dropped + returned:,} unroutable.",
        facts=[
            number_of(dropped, "message was", "messages were")
            + " dropped as unroutable without notice to the publisher (published without the flag mandatory).",
            *([f"{number_of(vain, 'binding pattern')} without a match."] if heavy else []),
        ],
        sections=sections,
    )


JOB: Final = Job(
    name="routing",
    needs=("exchange_interval",),
    compute=compute,
    describe=describe,
    uses=("topic_pattern",),
)
