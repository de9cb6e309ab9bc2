"""Replays: copies of messages that consumers have acked, marked as such."""

import sys
from collections.abc import Iterator

from leveret.broker.amqp.properties import Properties
from leveret.broker.amqp.tables import Field, encode_value, join_fields
from leveret.broker.queue.bundle import is_bundle, unbundled
from leveret.broker.queue.queue import Queue
from leveret.broker.queue.retained_queue import RetainedQueue
from leveret.broker.transfer.destinations import Destination, Resolved
from leveret.storage.message import Message
from leveret.storage.queues.backing_queue import Peeked, Piece

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


def ready_count(source: Queue) -> int:
    """Return the number of ready messages, those of bundles too; there may be more bundles from an earlier run."""
    return source.message_count if isinstance(source, RetainedQueue) else source.backing.ready_count


def parts(piece: Piece) -> Iterator[Piece]:
    """Yield the parts of a piece: each bundle of retained messages as its messages, and what is between bundles."""
    others: list[Peeked] = []
    for peeked in piece.messages:
        if not is_bundle(peeked.message):
            others.append(peeked)
            continue
        if others:
            yield piece._replace(messages=others)
            others = []
        yield piece._replace(messages=[peeked._replace(message=each) for each in unbundled(peeked.message)])
    if others:
        yield piece._replace(messages=others)
