"""The page of the metrics, from their declarations."""

from collections.abc import Iterable, Iterator, Sequence

from docs.generate.rabbitmq_differences import ABSENT, COMPARED, LABELS, LATER, VALUES
from leveret.broker.metrics.aggregates import (
    EXCHANGES as EXCHANGE_SUMS,
    GLOBAL,
    IDENTITY,
    NODE_GROUPS,
    OWN,
    TOTALS,
    Family,
)
from leveret.broker.metrics.per_object import CHANNELS, CONNECTIONS, EXCHANGES, QUEUES, Group

_HEAD = """\
# Metrics

This page is generated from the declarations of the metrics (`make docs`); edit `broker/metrics/aggregates.py`,
`broker/metrics/per_object.py` and `docs/generate/rabbitmq_differences.py`, not this file.

The broker serves metrics in Prometheus' text format and health checks over HTTP, on `127.0.0.1:15692`
([configuration](configuration.md#metrics-and-health-checks)). There is no login, so restrict access to hosts that may
see the names of queues and numbers of messages, or demand certificates of clients (`prometheus.ssl.*`). To set up
Prometheus, dashboards and alerts see [Monitor it with Prometheus and Grafana](howto/watch-with-grafana.md).

| `GET` | Response |
|---|---|
| `/metrics` | all metrics, summed over all queues, channels and connections |
| `/metrics/per-object` | all metrics, with a series for each queue, channel, connection and exchange |
| `/metrics/memory-breakdown` | the memory of the process, which RabbitMQ divides and Python does not |
| `/metrics/detailed?family=NAME` | only the given groups (below; may be repeated), with a series for each object |
| `/healthz` | 200 while the event loop is less than five seconds late |
| `/readyz` | 200 while clients can connect; 503 while the broker starts, stops or waits to lead, or has no files left |
| `/readyz?role=member` | the same, and 200 on a node that [waits to lead](howto/replicate.md) and has the whole log |

The latter two return `{"status": "ok"}`, or 503 and `{"status": "failed", "reason": "..."}`. If `/healthz` fails for
some time, restart the broker; if `/readyz` fails, send clients elsewhere or let them wait. `/readyz` has
`"warnings"` while `guest` may log in from any host with its default password. Alarms
(`rabbitmq_alarms_*`), including that of a full disk, do not cause 503, because consumers have to continue. A disk that
fails in another way ends the process.

Names in `/metrics/detailed` begin with `rabbitmq_detailed_` (`leveret_detailed_`). `vhost=NAME` (may be repeated) and
`queue=PATTERN` ([a regular expression](administration.md#patterns), anywhere in the name) select queues and exchanges.

A node that waits to lead has `leveret_build_info` and `leveret_replication_*` only.

Metrics that begin with `rabbitmq_` have RabbitMQ's names, types and labels, so that its Grafana dashboards (10991 and
others) and alert rules work; [differences](#differences-from-rabbitmq) are listed below. Those that begin with
`leveret_` are Leveret's own, and `python_*` describe the interpreter. Counters begin with 0 at each start and never
decrease: counts of closed connections, channels and deleted queues are kept in the sums. A series of a single object
ends with the object.

With a series per object, `rabbitmq_queue_info` has the type of each queue in its label `queue_type`. Channels and
connections have the names that RabbitMQ's management interface shows.

A scrape is answered in steps of about a millisecond, with an iteration of the event loop between them, so that it does
not delay clients. At most four scrapes are answered at once, others get 503; a scrape that takes more than 30 seconds
is aborted. There are at most 32 HTTP connections; the oldest is closed for a new one.
"""

_COMPARED = """\
## Differences from RabbitMQ

Found by comparison with a running RabbitMQ {version} under the same load
(`tests/broker/metrics/test_beside_rabbitmq.py`). Metrics that are not in these tables have the same name, type, labels
and value. `*` stands for any text; a row applies to the detailed form (`rabbitmq_detailed_`) as well.
"""


def render() -> str:
    """Return the whole page, Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD
    yield from _section("Identity", "In every response.", IDENTITY)
    yield from _section("Totals", "In `/metrics` and `/metrics/per-object`.", TOTALS)
    yield from _section("Messages", "In `/metrics` and `/metrics/per-object`.", GLOBAL)
    for name, families in NODE_GROUPS.items():
        yield from _section(f"Group {name}", "One series each, for the whole broker.", families)
    yield from _groups("Queues", QUEUES)
    yield from _groups("Channels", CHANNELS)
    yield from _groups("Connections", CONNECTIONS)
    yield from _groups("Exchanges", EXCHANGES)
    yield from _section("All exchanges", "In `/metrics` only.", EXCHANGE_SUMS)
    yield from _section("Leveret's own metrics", "In `/metrics` and `/metrics/per-object`.", OWN)
    yield from _differences()


def _section(title: str, text: str, families: Iterable[Family]) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    yield text
    yield ""
    yield "| Metric | Type | Labels | Description |"
    yield "|---|---|---|---|"
    for family in families:
        labels = ", ".join([f"`{label}`" for label in family.labels])
        yield f"| `{family.name}` | {family.kind} | {labels} | {family.text} |"
    yield ""


def _groups(title: str, groups: Sequence[Group]) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    yield "One series for each object; `/metrics` has their sums, without labels."
    yield ""
    yield "| Metric | Type | Labels | Group | Description |"
    yield "|---|---|---|---|---|"
    for group in groups:
        labels = ", ".join([f"`{label}`" for label in group.labels])
        for column in group.columns:
            mark = "" if column.adds_up and group.always else " (not in `/metrics`)"
            name = f"{group.prefix}{column.name}"
            yield f"| `{name}` | {column.kind} | {labels} | {group.name} | {column.text}{mark} |"
    yield ""


def _differences() -> Iterator[str]:
    yield _COMPARED.format(version=COMPARED)
    for title, differences in (
        ("Missing metrics", ABSENT),
        ("Other labels", LABELS),
        ("Other values", VALUES),
    ):
        yield f"| {title} | Reason |"
        yield "|---|---|"
        for difference in differences:
            names = ", ".join([f"`{name}`" for name in difference.names])
            yield f"| {names} | {difference.reason} |"
        yield ""
    yield f"Metric names of later RabbitMQ releases: {', '.join([f'`{name}`' for name in LATER])}."
    yield "Missing of 4.3: `rabbitmq_queue_exchange_messages_published_total`, as it would cost time for every message."
    yield ""
