"""Publishing by an administrator: one message at a time, as by a client that waits for its confirm."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from leveret.broker.administration.access import (
    AdministeredBroker,
    BadRequestError,
    Right,
    authorize,
    found_vhost,
    translated,
)
from leveret.broker.administration.detached_channel import DetachedHost
from leveret.broker.amqp.fastpath import content_frames
from leveret.broker.amqp.properties import build
from leveret.broker.amqp.tables import typed
from leveret.broker.auth.users import User
from leveret.broker.channel.channel import Channel
from leveret.broker.channel.settings import Limits
from leveret.broker.errors import AMQPError
from leveret.broker.queue.queue import Queue
from leveret.broker.vhost.copies import Copies
from leveret.broker.vhost.publish_route import inspect
from leveret.confirm.channel_confirms import ChannelConfirms
from leveret.storage.message import Message

Outcome = Literal["confirmed", "unroutable", "nacked"]
"""Outcome of a publish. An unroutable one is confirmed by the broker, too, but has reached no queue."""

_FRAME_MAX = 131_072
_SHORT = 255
"""Maximum octets of the name of an exchange, and of a routing key."""


class Publishing:
    """Publishes messages. Its method takes the acting user first (`access.authorize`).

    Args:
        broker: the administered broker.

    """

    def __init__(self, broker: AdministeredBroker) -> None:
        self._broker = broker

    def publish(
        self,
        actor: User | None,
        vhost: str,
        exchange: str,
        routing_key: str,
        body: bytes,
        on_done: Callable[[Outcome], object],
        *,
        properties: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> Message:
        """Publish a message on a channel of its own in confirm mode.

        Args:
            actor: the acting user.
            vhost: the virtual host.
            exchange: name of the exchange; '' for the default exchange.
            routing_key: the routing key.
            body: the body.
            on_done: called with the outcome, possibly before this returns: when a client would get its confirm.
            properties: properties by their AMQP names, without `headers`.
            headers: the headers as plain values.

        Returns:
            The message as it was published.

        Raises:
            NotFoundError, ForbiddenError, BadRequestError: as for a client.

        """
        authorize(self._broker.users, actor, Right.MANAGEMENT, vhost, change=True)
        host = DetachedHost(self._broker, actor, found_vhost(self._broker, vhost))
        host.max_message_size = sys.maxsize
        host.limits = Limits(cc_keys=sys.maxsize)
        address = _short("exchange", exchange) + _short("routing key", routing_key)
        header = _header(len(body), properties or {}, headers)
        channel = _PublishingChannel(host, on_done)
        self._broker.turn.run()
        try:
            special = inspect(header)
            content = content_frames(channel.number, _FRAME_MAX, header, body)
            channel.publish(channel.find_route(address, 0), special, content)
        except AMQPError as error:
            raise translated(error) from None
        if channel.is_unroutable:
            channel.end()
            on_done("unroutable")
        return Message(address, content, channel.number)


class _PublishingChannel(Channel):
    """A channel in confirm mode for a single publish."""

    def __init__(self, host: DetachedHost, on_done: Callable[[Outcome], object]) -> None:
        super().__init__(1, host)
        self.confirms = ChannelConfirms(self.schedule_confirms)
        self.is_unroutable = False
        self._on_done = on_done

    def enqueue(
        self, queues: Sequence[Queue], message: Message, *, mandatory: bool, persistent: bool
    ) -> Copies | None:
        """Put the message into its queues; if there are none it counts as returned, as the publisher is told."""
        self.is_unroutable = not queues
        if self.is_unroutable:
            self.returned += 1
            return None
        return super().enqueue(queues, message, mandatory=mandatory, persistent=persistent)

    def flush_confirms(self, since: int = 0) -> None:
        """Report the verdict on the message."""
        del since
        confirms = self.confirms
        assert confirms is not None  # noqa: S101 - set above
        for _, _, is_ack in confirms.take():
            if not self.is_unroutable:
                self.end()
                self._on_done("confirmed" if is_ack else "nacked")

    def end(self) -> None:
        """Count the message with those of closed channels."""
        self.vhost.count_closed(self.counts())


def _short(what: str, text: str) -> bytes:
    octets = text.encode("utf-8", "surrogateescape")
    if len(octets) > _SHORT:
        raise BadRequestError(f"{what} of {len(octets)} bytes: the limit is {_SHORT}")
    return bytes((len(octets),)) + octets


def _header(size: int, properties: Mapping[str, Any], headers: Mapping[str, Any] | None) -> bytes:
    given = dict(properties)
    if headers:
        given["headers"] = {**given.get("headers", {}), **headers}
    try:
        if "headers" in given:
            given["headers"] = typed(given["headers"])
        return build(size, **given)
    except (TypeError, ValueError, AttributeError) as error:
        raise BadRequestError(f"invalid properties: {error}") from None
