"""Writes docs/metrics.md from the declarations of the metrics: `python -m broker.metrics.page`."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from broker.metrics.columns import (
    CHANNEL_LABELS,
    CHANNELS,
    CONNECTION_LABELS,
    CONNECTIONS,
    EXCHANGE_LABELS,
    EXCHANGES,
    QUEUE_LABELS,
    QUEUES,
    Group,
)
from broker.metrics.node import (
    EXCHANGES as EXCHANGE_SUMS,
    GLOBAL,
    IDENTITY,
    NODE_GROUPS,
    OWN,
    TOTALS,
    Family,
)

_HEAD = """\
# Metrics

This page is generated from the declarations of the metrics (`make docs`); edit `broker/metrics/node.py` and
`broker/metrics/columns.py`, not this file.

The broker answers HTTP requests on `127.0.0.1:15692` ([configuration](configuration.md): `prometheus.tcp.port`,
`prometheus.tcp.ip`, `prometheus.enabled`). There is no login, so only those who may see names of queues and numbers of
messages should reach that address.

| `GET` | What it answers |
|---|---|
| `/metrics` | everything, summed up over all queues, channels and connections |
| `/metrics/per-object` | everything, with a series for each queue, channel, connection and exchange |
| `/metrics/detailed?family=NAME` | only those groups (below), any number of them, with a series for each object |
| `/healthz` | 200 while the process lives: its event loop is less than five seconds late |
| `/readyz` | 200 while clients may connect, 503 with the reason while the broker starts or stops |

Names in `/metrics/detailed` begin with `rabbitmq_detailed_` (`leveret_detailed_`). `vhost=NAME`, any number of them,
and `queue=PATTERN` (RE2, found anywhere in the name) leave out other queues and exchanges.

Metrics beginning with `rabbitmq_` are RabbitMQ's: the same names, types and labels, so that its Grafana dashboards
(10991 and others) and alert rules work. Those that tell of the Erlang runtime are missing, except for its uptime, as
are octets of ready messages, which nobody counts. Those beginning with `leveret_` are our own, and `python_*` tell of
the interpreter. Counters begin with 0 at each start and never fall: what connections, channels and queues have counted
stays when they are gone. Where objects are told apart a series ends with its object.

Where objects are told apart `rabbitmq_queue_info` says in its labels of which type each queue is (`queue_type`).

Differences from RabbitMQ: a channel counts by itself, so its series have the label `channel` alone, without exchange
and queue. What is said of a channel or a connection names it as the management interface does, not by a process.
`rabbitmq_process_resident_memory_bytes` is the memory that the memory alarm judges. `rabbitmq_message_size_bytes` came
with RabbitMQ 4.1.

A scrape is answered in steps of about a millisecond, with a round of the event loop between two of them: it does not
hold up clients, whatever it is asked for. Four are answered at once.
"""


def render() -> str:
    """The whole page, Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD
    yield from _section("Identity", "In every answer.", IDENTITY)
    yield from _section("Totals", "In `/metrics` and `/metrics/per-object`.", TOTALS)
    yield from _section("Messages", "In `/metrics` and `/metrics/per-object`.", GLOBAL)
    for name, families in NODE_GROUPS.items():
        yield from _section(f"Group {name}", "Of the broker as a whole.", families)
    yield from _groups("Queues", QUEUES, QUEUE_LABELS)
    yield from _groups("Channels", CHANNELS, CHANNEL_LABELS)
    yield from _groups("Connections", CONNECTIONS, CONNECTION_LABELS)
    yield from _groups("Exchanges", EXCHANGES, EXCHANGE_LABELS)
    yield from _section("All exchanges", "In `/metrics` only.", EXCHANGE_SUMS)
    yield from _section("Our own", "In `/metrics` and `/metrics/per-object`.", OWN)


def _section(title: str, text: str, families: Iterable[Family]) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    yield text
    yield ""
    yield "| Metric | Type | Labels | What it tells |"
    yield "|---|---|---|---|"
    for family in families:
        labels = ", ".join([f"`{label}`" for label in family.labels])
        yield f"| `{family.name}` | {family.kind} | {labels} | {family.text} |"
    yield ""


def _groups(title: str, groups: Sequence[Group[Any]], labels: Sequence[str]) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    shown = ", ".join([f"`{label}`" for label in labels])
    yield f"One series for each of them, with the labels {shown}; in `/metrics` their sum."
    yield ""
    yield "| Metric | Type | Group | What it tells |"
    yield "|---|---|---|---|"
    for group in groups:
        for column in group.columns:
            mark = "" if column.adds_up and group.always else " (not in `/metrics`)"
            yield f"| `{group.prefix}{column.name}` | {column.kind} | {group.name} | {column.text}{mark} |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(render())
