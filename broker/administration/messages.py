"""Messages: what is in a queue, or delayed at an exchange, without taking any of it.

A look is an operation in steps (`Steps`): it begins at once, so that its answer shows one moment, and goes on in
pieces, between which others are served. A step may need a read from disk, which only the caller can run in a thread.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar

import msgspec

from leveret.broker.administration.access import (
    AdministeredBroker,
    NotFoundError,
    Right,
    authorize,
    found_vhost,
    translated,
)
from leveret.broker.administration.detached_channel import check_permission
from leveret.broker.auth.users import User
from leveret.broker.errors import AMQPError, resource
from leveret.broker.message_filter.message_facts import MessageFacts
from leveret.broker.queue.queue import Queue
from leveret.broker.vhost.delayed_delivery import DelayLine
from leveret.broker.vhost.vhost import VHost
from leveret.storage.message import Message
from leveret.storage.queues.backing_queue import Look, Peeked

T = TypeVar("T")
Steps = Generator[Callable[[], Any] | None, Any, T]
"""An operation in steps: it yields None after each, or a read to be run in a thread, whose result must be sent back."""

PIECE = 64
"""Messages that are decoded between two checks of the time."""


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """A message as a look has found it.

    Attributes:
        body: the body.
        properties: the properties that are set, by their AMQP names, without `headers`.
        headers: the headers as plain values.
        exchange: the exchange that it was published to; '' for the default exchange.
        routing_key: the routing key.
        redelivered: whether the next delivery of it will be marked as redelivered.
        deaths: the entries of `x-death` as plain values, the latest first; empty if it was never dead-lettered.
        state: 'ready'; 'unacked' if it was delivered and not settled yet; 'delayed' if its exchange still keeps it;
            'published' in a record of what was published.
        consumer: tag of the consumer that has it; '' unless it is unacked by one.
        channel: the channel that has it, as `channels` are named; '' unless it is unacked by a client.
        expires: time at which it expires, in milliseconds since the epoch; None for never.
        due: time at which its exchange will route it, in milliseconds since the epoch; None unless it is delayed.
        queues: names of the queues that it was routed to; empty unless it is 'published'.
        size: bytes of its body, of which `body` may be the beginning only.
        number: its place among the ready messages, 1 for the next to be delivered; 0 if it is not known.
        age: seconds since it came to its queue; None if that is not known.
        unacked_for: seconds since it was delivered, within a second or two; None unless it is unacked by a client.

    """

    body: bytes
    properties: dict[str, Any]
    headers: dict[str, Any]
    exchange: str
    routing_key: str
    redelivered: bool = False
    deaths: list[dict[str, Any]] = []
    state: Literal["ready", "unacked", "delayed", "published"] = "ready"
    consumer: str = ""
    channel: str = ""
    expires: int | None = None
    due: int | None = None
    queues: tuple[str, ...] = ()
    size: int = 0
    number: int = 0
    age: float | None = None
    unacked_for: float | None = None


class MessageAdministration:
    """Messages. Every method takes the acting user first (`access.authorize`).

    Args:
        broker: the administered broker.

    """

    def __init__(self, broker: AdministeredBroker) -> None:
        self._broker = broker

    def peek_queue(
        self, actor: User | None, vhost: str, name: str, most: int | None = None
    ) -> Steps[list[MessageView]]:
        """Look at the messages of a queue; the user needs the permission to read it.

        Returns:
            The ready messages from the head on (at most `most`), in the order in which they will be delivered; then the
            unacked ones in the order of the queue; then those delayed in this vhost that would be routed to it now.

        Raises:
            NotFoundError, ForbiddenError: as for a client.

        """
        place, queue = found_queue(self._broker, actor, vhost, name)
        queue.settle()
        holders = dict(self._holders(place, queue))
        counts = {} if queue.limits is None else queue.limits.delivery_counts()
        snapshots: list[Any] = []
        looks = [(line, line.peek(snapshots)) for line in place.delay_lines() if line.count]
        return _looked_at(queue, queue.backing.peek(most), holders, counts, looks)

    def peek_delayed(self, actor: User | None, vhost: str, name: str) -> Steps[list[MessageView]]:
        """Look at the messages that an exchange delays, in the order in which they are due; none if it never does.

        Raises as `peek_queue`.
        """
        authorize(self._broker.users, actor, Right.MANAGEMENT, vhost, change=True)
        place = found_vhost(self._broker, vhost)
        exchange = place.router.get(name)
        if exchange is None:
            raise NotFoundError(f"no {resource('exchange', name, vhost)}")
        check_permission(self._broker, actor, place, "read", "exchange", name)
        return _delayed(exchange.line.peek([]) if isinstance(exchange.line, DelayLine) else None)

    def _holders(self, vhost: VHost, queue: Queue) -> Iterator[tuple[Any, tuple[str, str]]]:
        """Yield the unacked messages of a queue, by their keys, with consumer tag and name of the channel."""
        left = queue.backing.unacked_count
        for connection in self._broker.clients.connections if left else ():
            if connection.vhost is not vhost:
                continue
            for channel in connection.channels.values():
                name = f"{connection.name} ({channel.number})"
                for consumer, key in channel.unacked.values():
                    if consumer.queue is queue:
                        left -= 1
                        yield key, (getattr(consumer, "tag", ""), name)
                if not left:
                    return


def found_queue(
    broker: AdministeredBroker, actor: User | None, vhost: str, name: str, permission: str = "read"
) -> tuple[VHost, Queue]:
    """Return a queue for whose messages a user has a permission; raises NotFoundError, ForbiddenError as a client's."""
    authorize(broker.users, actor, Right.MANAGEMENT, vhost, change=True)
    place = found_vhost(broker, vhost)
    queue = place.queues.get(name)
    if queue is None:
        raise NotFoundError(f"no {resource('queue', name, vhost)}")
    check_permission(broker, actor, place, permission, "queue", name)
    if actor is not None:
        try:
            place.check_access(queue, None)
        except AMQPError as error:  # it is exclusive to a connection
            raise translated(error) from None
    return place, queue


def _looked_at(
    queue: Queue,
    peeking: Steps[Look],
    holders: Mapping[Any, tuple[str, str]],
    counts: Mapping[int, int],
    lines: Iterable[tuple[DelayLine, Steps[list[tuple[int, Message]]]]],
) -> Steps[list[MessageView]]:
    """Finish a look at a queue."""
    found: list[MessageView] = []
    look = yield from peeking
    for messages, state in ((look.ready, "ready"), (look.unacked, "unacked")):
        for number, peeked in enumerate(messages, 1):
            found.append(_shown(peeked, state, holders, counts))
            if not number % PIECE:
                yield None
    for line, delayed in lines:
        waiting = yield from delayed
        for number, (due, message) in enumerate(waiting, 1):
            if queue in line.destinations(message):
                found.append(view_of(message, state="delayed", due=due))
            if not number % PIECE:
                yield None
    return found


def _delayed(peeking: Steps[list[tuple[int, Message]]] | None) -> Steps[list[MessageView]]:
    """Finish a look at the delayed messages of an exchange."""
    found: list[MessageView] = []
    if peeking is not None:
        messages = yield from peeking
        for number, (due, message) in enumerate(messages, 1):
            found.append(view_of(message, state="delayed", due=due))
            if not number % PIECE:
                yield None
    return found


def _shown(
    peeked: Peeked, state: Any, holders: Mapping[int, tuple[str, str]], counts: Mapping[int, int]
) -> MessageView:
    consumer, channel = holders.get(peeked.seq_id, ("", ""))
    return view_of(
        peeked.message,
        state=state,
        redelivered=peeked.redelivered,
        consumer=consumer,
        channel=channel,
        expires=peeked.expires or None,
        count=counts.get(peeked.seq_id, 0) or peeked.returns,
    )


def view_of(message: Message, *, count: int = 0, octets: int | None = None, **attributes: Any) -> MessageView:
    """Return what a message contains.

    Args:
        message: the message.
        count: how often it was requeued, if its queue counts that: consumers get it in `x-delivery-count`.
        octets: maximum bytes of its body; None for all.
        attributes: further attributes of the view.

    """
    facts = MessageFacts(message, count=count)
    return MessageView(
        body=message.body if octets is None else facts.beginning(octets),
        properties=facts.properties,
        headers=facts.headers,
        exchange=facts.exchange,
        routing_key=facts.routing_key,
        deaths=facts.deaths,
        size=facts.size,
        **attributes,
    )
