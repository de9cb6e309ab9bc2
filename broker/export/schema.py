"""Schemas for readers and columns for docs/export.md, derived from the declaration of the tables."""

from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from leveret.broker.export.tables import (
    BenchCost,
    BenchRun,
    BenchSample,
    Bucket,
    Column,
    ConnInterval,
    Event,
    ExchangeInterval,
    Kind,
    LatencyHist,
    NodeInterval,
    QueueInterval,
    TopicPattern,
)


class ColumnInfo(NamedTuple):
    """A column of a table; `type` is a Spark type."""

    name: str
    type: str
    kind: Kind
    unit: str
    doc: str


TABLES: Final[Mapping[str, type[msgspec.Struct]]] = {
    "queue_interval": QueueInterval,
    "exchange_interval": ExchangeInterval,
    "topic_pattern": TopicPattern,
    "conn_interval": ConnInterval,
    "node_interval": NodeInterval,
    "latency_hist": LatencyHist,
    "event": Event,
    "bench_run": BenchRun,
    "bench_sample": BenchSample,
    "bench_cost": BenchCost,
}

EVENTS: Final[Mapping[str, str]] = {
    "start": "The broker started and accepts connections; `name` is its version",
    "stop": "The broker began to stop",
    "connection_opened": "A connection was opened; `name` is the connection, `detail` has `user`, `peer` and `client`",
    "connection_closed": "A connection was closed; `name` is the connection, `detail` has `user`, `peer` and `reason`",
    "auth_failed": "A login failed; `name` is the user, `detail` has `peer` and `mechanism`",
    "queue_created": "A queue was created; `name` is the queue",
    "queue_paused": "An operator paused the deliveries of the queue `name` to its consumers",
    "queue_resumed": "An operator resumed the deliveries of the queue `name`",
    "queue_deleted": "A queue was deleted; `name` is the queue, `detail` has its number of `ready` messages",
    "consumer_added": "A consumer of the queue `name` was added; `detail` has its `user` and `connection`",
    "consumer_removed": "A consumer of the queue `name` ended; `detail` has its `user` and `connection`",
    "exchange_created": "An exchange was created; `name` is the exchange, `detail` has its `type`",
    "exchange_deleted": "An exchange was deleted; `name` is the exchange",
    "alarm_raised": "A resource alarm was raised and publishers are blocked; `name` is `memory` or `disk`",
    "alarm_cleared": "A resource alarm was cleared; publishers continue when no alarm is left",
    "policies_changed": "Policies changed and were applied to the queues and exchanges of the virtual host",
    "trap": "Publishers and consumers of the queue `name` appear deadlocked (docs/confirms.md)",
    "export_gap": "The export resumed after a failure; `detail` has the number of `lost` rows",
}
"""Descriptions of the kinds of events."""

_SCALARS: Final[Mapping[Any, str]] = {int: "long", float: "double", str: "string", bool: "boolean"}


def _spark_type(hint: Any) -> Any:
    """Convert a type to Spark's JSON form of schemas."""
    if (scalar := _SCALARS.get(hint)) is not None:
        return scalar
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is UnionType:
        (some,) = [each for each in arguments if each is not NoneType]
        return _spark_type(some)
    if origin is list:
        return {"type": "array", "elementType": _spark_type(arguments[0]), "containsNull": True}
    if origin is dict:
        key, value = map(_spark_type, arguments)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if hint is Bucket:
        return _spark_struct([("i", "integer"), ("c", "long")])
    raise TypeError(f"no column type for {hint}")


def _spark_struct(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields],
    }


def _columns(table: str) -> Iterator[tuple[str, Any, Column]]:
    """Yield name, Spark type and description of each column, in the order they are written."""
    struct = TABLES[table]
    hints = get_type_hints(struct, include_extras=True)
    for name in struct.__struct_fields__:
        hint, column = get_args(hints[name])
        yield name, "integer" if name == "v" else _spark_type(hint), column


def spark_schema(table: str) -> dict[str, Any]:
    """Return the schema of a table in Spark's JSON form, for `StructType.fromJson`."""
    return _spark_struct([(name, kind) for name, kind, _ in _columns(table)])


def _simple(kind: Any) -> str:
    """Return Spark's `simpleString` of a type."""
    if isinstance(kind, str):
        return {"long": "bigint", "integer": "int"}.get(kind, kind)
    if kind["type"] == "array":
        return f"array<{_simple(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_simple(kind['keyType'])},{_simple(kind['valueType'])}>"
    inner = ",".join(f"{field['name']}:{_simple(field['type'])}" for field in kind["fields"])
    return f"struct<{inner}>"


def columns(table: str) -> tuple[ColumnInfo, ...]:
    """Return the columns of a table, in the order they are written."""
    return tuple(
        ColumnInfo(name, _simple(kind), column.kind, column.unit, column.doc)
        for name, kind, column in _columns(table)
    )
