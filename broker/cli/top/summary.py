"""The lines above the table: the broker, its rates, its messages, its memory and disk, its alarms."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from leveret.broker.cli.ctl.output import duration
from leveret.broker.cli.top.cells import Line, grouped, memory, rate, safe, shown_width
from leveret.broker.cli.top.views import at

_RATES = (
    ("in", "publish"),
    ("out", "deliver_get"),
    ("acks", "ack"),
    ("confirms", "confirm"),
    ("unroutable", "drop_unroutable"),
    ("redelivered", "redeliver"),
)
_GAP = "  "
_BEGIN = 12  # cells of the word that begins a line
Node = Mapping[str, Any]


class Broker(NamedTuple):
    """Figures of a broker: `/api/overview`, and its item of `/api/nodes`, empty if the user may not see it."""

    overview: Mapping[str, Any]
    node: Node


def summary(broker: Broker, width: int) -> list[Line]:
    """Return the lines about a broker, each at most `width` cells."""
    return [
        _fitting("messages/s", _messages(broker.overview), width),
        _fitting("messages", _objects(broker.overview), width),
        _fitting("node", _resources(broker.node), width),
    ]


def name(broker: Broker) -> list[str]:
    """Return the name of a broker, its version and its uptime, as far as they are known."""
    overview, node = broker.overview, broker.node
    ours = overview.get("leveret_version")
    version = f"Leveret {ours}" if ours else f"RabbitMQ {overview.get('rabbitmq_version', '')}"
    known = [safe(str(overview.get("node") or overview.get("cluster_name") or "")), version]
    if (uptime := node.get("uptime")) is not None:
        known.append(f"up {duration(uptime / 1000)}")
    if missing := overview.get("missing_processes"):
        known.append(f"without process {', '.join(map(str, missing))}")
    return known


def alarms(node: Node) -> list[str]:
    """Return what each alarm is about: the figure, and its limit."""
    found = []
    if node.get("mem_alarm"):
        found.append(f"memory {memory(node.get('mem_used'))} (limit {memory(node.get('mem_limit'))})")
    if node.get("disk_free_alarm"):
        found.append(
            f"disk free {memory(node.get('disk_free'))} (limit {memory(node.get('disk_free_limit'))})"
        )
    return found


def _fitting(begin: str, fields: list[Line], width: int) -> Line:
    """Return the fields that have space, as one line; a field that has none ends it."""
    line: Line = [(f"{begin:<{_BEGIN}}", "label")]
    for number, field in enumerate(fields):
        gap: Line = [(_GAP if number else "", "")]
        if shown_width([*line, *gap, *field]) > width:
            break
        line += [*gap, *field]
    return line


def _field(label: str, value: str, style: str = "value") -> Line:
    return [(f"{label} ", "label"), (value, style)]


def _messages(overview: Mapping[str, Any]) -> list[Line]:
    stats = overview.get("message_stats") or {}
    fields = []
    for label, key in _RATES:
        value = at(stats, f"{key}_details.rate")
        style = "warning" if key == "drop_unroutable" and value else "value"
        fields.append(_field(label, rate(value) if value is None or value < 10 else grouped(value), style))  # noqa: PLR2004
    return fields


def _objects(overview: Mapping[str, Any]) -> list[Line]:
    totals, objects = overview.get("queue_totals") or {}, overview.get("object_totals") or {}
    return [
        _field("ready", grouped(totals.get("messages_ready"))),
        _field("unacked", grouped(totals.get("messages_unacknowledged"))),
        _field("consumers", grouped(objects.get("consumers"))),
        _field("exchanges", grouped(objects.get("exchanges"))),
    ]


def _resources(node: Node) -> list[Line]:
    if not node:
        return [[("memory and disk are for users with the tag monitoring", "label")]]
    used, limit = node.get("mem_used"), node.get("mem_limit")
    files, most = node.get("fd_used"), node.get("fd_total")
    disk = "alarm" if node.get("disk_free_alarm") else "value"
    return [
        [
            *_field("memory", memory(used), "alarm" if node.get("mem_alarm") else "value"),
            (f" of {memory(limit)}", "label"),
        ],
        _field("disk free", memory(node.get("disk_free")), disk),
        [*_field("files", grouped(files)), (f" of {grouped(most)}", "label")],
        _field("disk limit", memory(node.get("disk_free_limit"))),
    ]
