"""Message interceptors of RabbitMQ: what the broker writes into each message that a client publishes."""

import sys
from collections.abc import Callable
from typing import Annotated

import msgspec

from leveret.broker.amqp.properties import Properties
from leveret.broker.amqp.tables import Field, encode_value, join_fields
from leveret.broker.config_key import Key
from leveret.storage.message import Message

_PREFIX = "message_interceptors.incoming.set_header_"


class Interceptors(msgspec.Struct, frozen=True):
    """Which are enabled; False keeps what the client has written, None is off."""

    # fmt: off
    timestamp: Annotated[bool | None, Key(_PREFIX + "timestamp.overwrite",
        doc="If set, each message gets the time of its publish: in the header `timestamp_in_ms`, and in the property "
        "`timestamp`. `true` replaces those of the client. Such publishes take longer.")] = None
    routing_node: Annotated[bool | None, Key(_PREFIX + "routing_node.overwrite",
        doc="If set, each message gets the name of this broker in the header `x-routed-by`; `true` replaces the "
        "client's.")] = None
    # fmt: on

    def intercepted(self, node: str, clock: Callable[[], int], message: Message) -> Message:
        """Return a message with what it gets on a node of this name; the clock has ms since the epoch."""
        now = clock()
        properties = Properties(message.header, max_entries=sys.maxsize)
        fields = properties.split_headers()
        timestamp = properties.timestamp
        added: tuple[tuple[str, bool | None, Field], ...] = (
            ("timestamp_in_ms", self.timestamp, ("long", now)),
            ("x-routed-by", self.routing_node, ("longstr", node)),
        )
        for name, overwrites, value in added:
            if overwrites or (overwrites is not None and name.encode() not in fields):
                fields[name.encode()] = encode_value(value)
        if self.timestamp or (self.timestamp is not None and timestamp is None):
            timestamp = now // 1000
        headers = join_fields(list(fields.items()))
        return message.with_header(properties.replace(headers=headers, timestamp=timestamp))
