"""Changes of the properties of messages on their way: properties that are set, and headers of the shovel."""

from collections.abc import Callable, Mapping
from typing import Any

from leveret.broker.amqp.errors import WireError
from leveret.broker.amqp.fastpath import FRAME_OVERHEAD
from leveret.broker.amqp.properties import Properties
from leveret.broker.amqp.tables import Table, decode_value, encode_value, join_fields
from leveret.broker.shovel.definition import Definition

SHOVELLED = b"x-shovelled"
TIMESTAMP = b"x-shovelled-timestamp"
INVALID = b"x-invalid-headers"
_ARRAY = b"A"
_LENGTH_SIZE = 5
"""Bytes of the type and the length of an array."""

Rewrite = Callable[[bytes], bytes]
"""Given the payload of a content header, returns the changed one."""


def rewriting(
    definition: Definition,
    cluster: str,
    shown: tuple[str, str],
    seconds: Callable[[], float],
    frame_max: int,
) -> Rewrite | None:
    """Return what changes the messages of a shovel; None if they stay as they are.

    A message whose header would need more than a frame goes on as it is, rather than end the connection each time.

    Args:
        definition: the shovel.
        cluster: name of this cluster.
        shown: URIs of source and destination, without passwords.
        seconds: returns the time since the epoch.
        frame_max: maximum size of a frame at the destination in bytes.

    """
    to = definition.destination
    if not (to.properties or to.adds_headers or to.adds_timestamp):
        return None
    entry = _entry(definition, cluster, shown)

    def rewrite(payload: bytes) -> bytes:
        try:
            made = changed(Properties(payload))
        except (WireError, LookupError):
            return payload  # of no client: it goes on as it is, rather than stop all others
        return made if len(made) + FRAME_OVERHEAD <= frame_max else payload

    def changed(properties: Properties) -> bytes:
        changes: dict[str, Any] = dict(to.properties)
        if to.adds_headers or to.adds_timestamp:
            headers = properties.split_headers()
            if to.adds_headers:
                _prepend(headers, entry)
            if to.adds_timestamp:
                headers[TIMESTAMP] = encode_value(("long", int(seconds())))
            changes["headers"] = join_fields(headers.items())
        return properties.replace(**changes)

    return rewrite


def _entry(definition: Definition, cluster: str, shown: tuple[str, str]) -> bytes:
    """Return RabbitMQ's note about one move, encoded as a field, in its order."""
    texts: Mapping[str, str] = {
        "shovelled-by": cluster,
        "shovel-type": "dynamic",
        "shovel-name": definition.name,
        "shovel-vhost": definition.vhost,
        "src-uri": shown[0],
        "dest-uri": shown[1],
        **definition.ends(),
    }
    return encode_value(("table", {name: ("longstr", text) for name, text in texts.items()}))


def _prepend(headers: dict[bytes, bytes], entry: bytes) -> None:
    """Put the note before those of earlier moves (rabbit_basic:prepend_table_header)."""
    found = headers.get(SHOVELLED, _ARRAY)
    if found[:1] == _ARRAY:
        headers[SHOVELLED] = _array(entry + found[_LENGTH_SIZE:])
        return
    headers[SHOVELLED] = _array(entry)
    invalid = decode_value(headers.get(INVALID, b"V"))
    kept: Table = dict(invalid[1]) if invalid[0] == "table" else {}
    earlier = kept.get("x-shovelled", ("array", []))
    kept["x-shovelled"] = "array", [decode_value(found), *(earlier[1] if earlier[0] == "array" else [])]
    headers[INVALID] = encode_value(("table", kept))


def _array(items: bytes) -> bytes:
    return _ARRAY + len(items).to_bytes(4, "big") + items
