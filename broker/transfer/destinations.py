"""Destinations of transfers: a queue, an exchange with the queues to which it routes, or a replay to one of these."""

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol
from urllib.parse import unquote

from leveret.broker.amqp.fastpath import join_address
from leveret.broker.amqp.properties import FLAGS_AT, Properties
from leveret.broker.amqp.tables import Field, encode_value, join_fields
from leveret.broker.auth.permissions import DEFAULT_EXCHANGE
from leveret.broker.errors import resource
from leveret.broker.queue.queue import Queue
from leveret.broker.vhost.publish_route import PropertyDemands
from leveret.broker.vhost.vhost import VHost
from leveret.exchanges.base import Envelope, Exchange
from leveret.storage.message import Message

UNROUTABLE, FORBIDDEN = "unroutable", "not permitted"
REPLAYED = "x-leveret-replayed"  # header of a replayed copy: the queue from which its original was acked
_EXCHANGE = "exchange:"


class Resolved(NamedTuple):
    """A message with its new address and headers, as it goes to at least one queue or delay line."""

    message: Message
    queues: Sequence[Queue]


class Destination(Protocol):
    """A destination of messages."""

    def obstacle(self) -> str:
        """Return why nothing can go there any more; '' if it can.

        Asked before each batch. What was decided about the user's rights for earlier messages is forgotten.
        """

    def resolve(self, message: Message) -> Resolved | str:
        """Return where a message goes, or the cause why it cannot; raises NotYet if rights must be asked first."""


class ToQueue:
    """Straight to a queue, through no exchange: messages keep exchange and routing key as they were published."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def __str__(self) -> str:
        return f"queue '{self._queue.name}'"

    def obstacle(self) -> str:
        """Return why nothing can go there any more; '' if it can."""
        return f"{self} was deleted" if self._queue.deleted else ""

    def resolve(self, message: Message) -> Resolved:
        """Return where a message goes."""
        return Resolved(message, (self._queue,))


class ToExchange:
    """To the queues of an exchange, as if published there.

    Without a `routing_key` each message keeps its own, with those in its header `CC`. `may_write` says whether a key is
    allowed; it raises NotYet if that has to be asked for first.
    """

    def __init__(
        self,
        vhost: VHost,
        exchange: Exchange,
        routing_key: str | None,
        may_write: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._vhost = vhost
        self._exchange = exchange
        self._routing_key = routing_key
        self._may_write = may_write
        self._latest: tuple[object, Resolved | str] = (None, UNROUTABLE)  # the last outcome, and its cause

    def __str__(self) -> str:
        return resource("exchange", self._exchange.name or DEFAULT_EXCHANGE, self._vhost.name)

    def obstacle(self) -> str:
        """Return why nothing can go there any more; '' if it can."""
        self._latest = None, UNROUTABLE
        is_there = self._vhost.router.get(self._exchange.name) is self._exchange
        return "" if is_there else f"{self} was deleted"

    def resolve(self, message: Message) -> Resolved | str:
        """Return where a message goes, or a cause."""
        header = message.header
        on = self._vhost.router.generation, message.address, header[FLAGS_AT:]
        if self._latest[0] != on:
            self._latest = on, self._resolve(message, header)
        found = self._latest[1]
        if isinstance(found, str):
            return found
        return Resolved(Message(found.message.address, message.content, message.channel_id), found.queues)

    def _resolve(self, message: Message, header: bytes) -> Resolved | str:
        properties = Properties(header)
        demands = PropertyDemands(properties)
        keys = demands.keys(message.address) if self._routing_key is None else (self._routing_key,)
        if not all(map(self._may_write, keys)):
            return FORBIDDEN
        queues = self._vhost.route_anyway(self._exchange, keys, Envelope(demands.headers, properties))
        if not queues:
            return UNROUTABLE
        address = join_address(self._exchange.name, keys[0])
        return Resolved(Message(address, message.content, message.channel_id), queues)


class Replay:
    """A destination that marks the messages for another one with the queue from which they were acked."""

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
        return Resolved(with_field(found.message, REPLAYED, ("longstr", self._queue)), found.queues)


def with_field(message: Message, name: str, value: Field) -> Message:
    """Return a message with a field in its headers; all others stay octet for octet."""
    properties = Properties(message.header, max_entries=sys.maxsize)
    fields = properties.split_headers()
    fields[name.encode()] = encode_value(value)
    return message.with_header(properties.replace(headers=join_fields(list(fields.items()))))


class DestinationName(NamedTuple):
    """A destination as users write it; `kind` is 'queue' or 'exchange', `name` '' for the default exchange."""

    kind: str
    name: str
    routing_key: str | None = None


def parsed(text: str) -> DestinationName:
    """Parse a destination: the name of a queue, or `exchange:NAME` or `exchange:NAME/KEY`.

    The name of the exchange ends at the first slash; slashes of its own are %2F, percent signs %25, as in a URL. The
    default exchange is '' or amq.default.
    """
    if not text.startswith(_EXCHANGE):
        return DestinationName("queue", text)
    name, slash, key = text.removeprefix(_EXCHANGE).partition("/")
    name = unquote(name, errors="surrogateescape")
    return DestinationName("exchange", "" if name == DEFAULT_EXCHANGE else name, key if slash else None)
