"""Writes docs/metrics.md from the declarations of the metrics: `python -m broker.metrics.page`."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from broker.metrics.columns import CHANNELS, CONNECTIONS, EXCHANGES, QUEUES, Group
from broker.metrics.differences import ABSENT, COMPARED, LABELS, LATER, VALUES
from broker.metrics.families import (
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

This page is generated from the declarations of the metrics (`make docs`); edit `broker/metrics/families.py`,
`broker/metrics/columns.py` and `broker/metrics/differences.py`, not this file.

The broker answers HTTP requests on `127.0.0.1:15692` ([configuration](configuration.md): `prometheus.tcp.port`,
`prometheus.tcp.ip`, `prometheus.enabled`). There is no login, so only those who may see names of queues and numbers of
messages should reach that address.

| `GET` | What it answers |
|---|---|
| `/metrics` | everything, summed up over all queues, channels and connections |
| `/metrics/per-object` | everything, with a series for each queue, channel, connection and exchange |
| `/metrics/detailed?family=NAME` | only those groups (below), any number of them, with a series for each object |
| `/healthz` | 200 while the process lives: its event loop is less than five seconds late |
| `/readyz` | 200 while clients may connect; not while the broker starts or stops, or has no file descriptors left |

The latter two say `{"status": "ok"}`, or 503 and `{"status": "failed", "reason": "..."}`. Without a good answer from
`/healthz` for a while the broker is to be started anew; without one from `/readyz` clients are to wait, or to go
elsewhere. An alarm is no reason for 503: publishers are blocked, and consumers are needed more than ever
(`rabbitmq_alarms_*`). Nor is a full disk: it raises the alarm, and confirms wait. A disk that fails in another way ends
the process, since nobody knows what is on it.

Names in `/metrics/detailed` begin with `rabbitmq_detailed_` (`leveret_detailed_`). `vhost=NAME`, any number of them,
and `queue=PATTERN` (RE2, found anywhere in the name) leave out other queues and exchanges.

Metrics beginning with `rabbitmq_` are RabbitMQ's: the same names, types and labels, so that its Grafana dashboards
(10991 and others) and alert rules work; [below](#beside-rabbitmq) is where they differ. Those beginning with
`leveret_` are our own, and `python_*` tell of the interpreter. Counters begin with 0 at each start and never fall: what
connections, channels and queues have counted stays when they are gone. Where objects are told apart a series ends with
its object.

How to let Prometheus in, what to look at and what to be told of: [watch it with Grafana](howto/watch-with-grafana.md).

Where objects are told apart `rabbitmq_queue_info` says in its labels of which type each queue is (`queue_type`). What
is said of a channel or a connection names it as the management interface does.

A scrape is answered in steps of about a millisecond, with a round of the event loop between two of them: it does not
hold up clients, whatever it is asked for. Four are answered at once, more get 503; one that takes more than 30 seconds
is cut. There are 32 connections at most, of which the oldest one is closed for the next.
"""

_COMPARED = """\
## Beside RabbitMQ

Compared with a running RabbitMQ {version} that has done the same work (`tests/broker/metrics/test_beside_rabbitmq.py`):
whatever is not in these tables has the same name, type, labels and value there. `*` stands for any text, and what is
said of a metric holds for its detailed form (`rabbitmq_detailed_`).
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
    yield from _groups("Queues", QUEUES)
    yield from _groups("Channels", CHANNELS)
    yield from _groups("Connections", CONNECTIONS)
    yield from _groups("Exchanges", EXCHANGES)
    yield from _section("All exchanges", "In `/metrics` only.", EXCHANGE_SUMS)
    yield from _section("Our own", "In `/metrics` and `/metrics/per-object`.", OWN)
    yield from _differences()


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


def _groups(title: str, groups: Sequence[Group[Any]]) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    yield "One series for each of them; in `/metrics` their sum, without labels."
    yield ""
    yield "| Metric | Type | Labels | Group | What it tells |"
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
    for title, differences in (("Not here", ABSENT), ("Other labels", LABELS), ("Other values", VALUES)):
        yield f"| {title} | Why |"
        yield "|---|---|"
        for difference in differences:
            names = ", ".join([f"`{name}`" for name in difference.names])
            yield f"| {names} | {difference.reason} |"
        yield ""
    yield f"Names of later releases: {', '.join([f'`{name}`' for name in LATER])}."
    yield ""


if __name__ == "__main__":
    sys.stdout.write(render())
