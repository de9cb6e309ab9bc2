"""Fetching by an administrator: `basic.get` on a channel of its own, as by a client of the user."""

from typing import Literal, NamedTuple

from leveret.broker.administration.access import (
    AdministeredBroker,
    NotFoundError,
    Right,
    authorize,
    found_vhost,
    translated,
)
from leveret.broker.administration.detached_channel import DetachedHost
from leveret.broker.auth.users import User
from leveret.broker.channel.channel import Channel
from leveret.broker.errors import AMQPError
from leveret.broker.queue.queue import Queue
from leveret.storage.message import Message

AckMode = Literal["ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false"]
"""Fate of fetched messages, by RabbitMQ's names. Only the two that end in `false` remove them."""


class Got(NamedTuple):
    """A fetched message.

    Attributes:
        message: the message.
        redelivered: whether it had been delivered before.
        left: ready messages behind it.

    """

    message: Message
    redelivered: bool
    left: int


class Getting:
    """A channel on which the messages of one queue are fetched. `finish` must be called at the end.

    Args:
        broker: the administered broker.
        actor: the acting user, who needs the permission to read.
        vhost: the virtual host.
        name: name of the queue.
        ack_mode: what becomes of the messages.

    Raises:
        NotFoundError, ForbiddenError, BadRequestError: as for a client.

    """

    def __init__(
        self, broker: AdministeredBroker, actor: User | None, vhost: str, name: str, ack_mode: AckMode
    ) -> None:
        authorize(broker.users, actor, Right.MANAGEMENT, vhost, change=True)
        broker.turn.run()
        host = DetachedHost(broker, actor, found_vhost(broker, vhost))
        self._channel = _GettingChannel(host)
        self._ack_mode = ack_mode
        self._queue = self._found(name)

    def _found(self, name: str) -> Queue:
        channel = self._channel
        try:
            channel.check_permission("read", "queue", name)
            return channel.vhost.queue(name, channel.host)
        except AMQPError as error:
            raise translated(error) from None

    def fetch(self) -> Got | None:
        """Return the next message; None if there is none.

        Raises:
            NotYet: it has to be read from disk first.
            NotFoundError: the queue was deleted meanwhile.

        """
        queue, channel = self._queue, self._channel
        if queue.deleted:
            raise NotFoundError(f"queue '{queue.name}' was deleted")
        before = channel.redelivered
        channel.get(queue, no_ack=self._ack_mode == "ack_requeue_false")
        message = channel.take()
        if message is None:
            return None
        return Got(message, channel.redelivered > before, queue.backing.ready_count)

    def finish(self) -> None:
        """Requeue or discard what was fetched and not acked, and close the channel. The caller runs a turn."""
        channel = self._channel
        if self._ack_mode == "reject_requeue_false" and channel.unacked:
            channel.reject(0, multiple=True, requeue=False)
        channel.close()
        channel.vhost.count_closed(channel.counts())


class _GettingChannel(Channel):
    """A channel that keeps the last message instead of sending it, and also gets messages of a paused queue."""

    gets_from_paused = True

    def __init__(self, host: DetachedHost) -> None:
        super().__init__(1, host)
        self._last: Message | None = None

    def take(self) -> Message | None:
        """Return the message that was fetched last, once."""
        message, self._last = self._last, None
        return message

    def send(self, method: object) -> None:
        """Do nothing: only get-empty is sent."""

    def _send_content(self, message: Message) -> None:
        self._last = message
