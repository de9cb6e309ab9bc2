"""Replays: copies of messages that consumers have acked, marked as such."""

import sys

from leveret.broker.amqp.properties import Properties
from leveret.broker.amqp.tables import Field, encode_value, join_fields
from leveret.broker.transfer.destinations import Destination, Resolved
from leveret.storage.message import Message

HEADER = "x-leveret-replayed"
"""Header of a copy: the name of the queue from which its original was acked."""


class Replay:
    """A destination that marks the messages for another one.

    Args:
        to: the other destination.
        queue: name of the queue from which they were acked.

    """

    def __init__(self, to: Destination, queue: str) -> None:
        self._to = to
        self._queue = queue

    def __str__(self) -> str:
        return str(self._to)

    def obstacle(self) -> str:
        """Return why nothing can go there any more; '' if it can."""
        return self._to.obstacle()

    def resolve(self, message: Message) -> Resolved | str:
        """Return where a message goes, or a cause."""
        found = self._to.resolve(message)
        if isinstance(found, str):
            return found
        return Resolved(with_field(found.message, HEADER, ("longstr", self._queue)), found.queues)


def with_field(message: Message, name: str, value: Field) -> Message:
    """Return a message with a field in its headers; all others stay octet for octet."""
    properties = Properties(message.header, max_entries=sys.maxsize)
    fields = properties.split_headers()
    fields[name.encode()] = encode_value(value)
    return message.with_header(properties.replace(headers=join_fields(list(fields.items()))))
