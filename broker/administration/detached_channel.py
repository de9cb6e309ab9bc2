"""Channels without a connection: an administrator declares, publishes and fetches by the rules for clients.

RabbitMQ's management plugin opens a connection as the acting user, so that permissions, checks and texts are the same.
Here the handlers of `broker.methods` get a channel whose output is discarded; messages are published one at a time, as
by a client that waits for its confirm, and fetched by `basic.get`.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from leveret.broker.administration.access import (
    AdministeredBroker,
    BadRequestError,
    Group,
    NotFoundError,
    as_client_errors,
    entered,
)
from leveret.broker.amqp.fastpath import content_frames
from leveret.broker.amqp.properties import build
from leveret.broker.amqp.tables import typed
from leveret.broker.auth.permissions import Asked, Permissions, TopicPermissions
from leveret.broker.auth.users import BackendUser, User
from leveret.broker.channel.channel import Channel
from leveret.broker.channel.settings import Limits
from leveret.broker.errors import NotYet, Subscribe
from leveret.broker.methods import HANDLERS
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.outbox import Outbox
from leveret.broker.vhost.copies import Copies
from leveret.broker.vhost.publish_route import inspect
from leveret.broker.vhost.vhost import VHost
from leveret.confirm.channel_confirms import ChannelConfirms
from leveret.exchanges.base import Exchange
from leveret.storage.message import Message

_OPERATOR = User("", "")


class DetachedHost:
    """The stand-in for the channel's connection (`broker.channel.channel.ChannelHost`)."""

    def __init__(self, broker: AdministeredBroker, actor: User | None, vhost: VHost) -> None:
        self.vhost = vhost
        self.name = f"<{broker.clients.node_name}>"
        if actor is None:
            self.user = _OPERATOR
            self.permissions: Permissions | Asked = Permissions(".*", ".*", ".*")
            self.topic_permissions: TopicPermissions | Asked = TopicPermissions({})
        elif isinstance(actor, BackendUser):
            self.user = actor
            rights = actor.rights[vhost.name]
            self.permissions, self.topic_permissions = rights.permissions, rights.topics
        else:
            self.user = actor
            self.permissions = broker.users.permissions(actor.name, vhost.name)
            self.topic_permissions = broker.users.topic_permissions(actor.name, vhost.name)
        self.outbox = Outbox(broker.turn, self)
        self.frame_max = 0
        self.max_message_size = 0
        self.limits = Limits()
        self.compatibility = broker.config.compatibility
        self.notifies_cancel = False
        self.exclusive_queues: dict[str, Queue] = {}

    def flush(self) -> None:
        """Do nothing: output is discarded."""
        self.outbox.frames.clear()

    def run_in_slices(self, number: int, steps: Iterator[None], reply: bytes = b"") -> None:
        """Run the steps at once."""
        del number, reply
        for _ in steps:
            pass

    def wait_for_copies(self, copies: Copies) -> None:
        """Do nothing: nothing is published here."""

    def forget_routes(self) -> None:
        """Do nothing: there are none."""

    def reply_when_safe(
        self, number: int, reply: bytes, *, files: bool = False, after: Subscribe | None = None
    ) -> None:
        """Do nothing: the reply is kept by the channel."""


class _Channel(Channel):
    """A channel that keeps the last reply unencoded."""

    def __init__(self, host: DetachedHost) -> None:
        super().__init__(1, host)
        self.last_reply: Any = None

    def send(self, method: object) -> None:
        self.last_reply = method

    def reply(self, method: object, *, durable: bool) -> None:
        del durable
        self.last_reply = method

    def reply_when_gone(self, queue: Queue, *methods: object) -> None:
        del queue
        self.last_reply = methods[0]


def execute(broker: AdministeredBroker, actor: User | None, vhost: VHost, method: Any) -> Any:
    """Execute a method of the classes queue and exchange for a user; returns its reply. Raises AdministrationError."""
    broker.turn.run()
    channel = _Channel(DetachedHost(broker, actor, vhost))
    with as_client_errors():
        HANDLERS[type(method)](channel, method)
    return channel.last_reply


def check_permission(
    broker: AdministeredBroker, actor: User | None, vhost: VHost, kind: str, what: str, name: str
) -> None:
    """Check a permission (configure, write, read) for a queue or exchange; raises ForbiddenError as for a client."""
    with as_client_errors():
        _Channel(DetachedHost(broker, actor, vhost)).check_permission(kind, what, name)


def check_key(
    broker: AdministeredBroker, actor: User | None, vhost: VHost, exchange: Exchange, routing_key: str
) -> None:
    """Check that a user may publish with a routing key, for which topic exchanges have permissions; ForbiddenError."""
    host = DetachedHost(broker, actor, vhost)
    if exchange.type != "topic" or not host.topic_permissions:
        return
    with as_client_errors():
        _Channel(host).check_topic_permission("write", exchange.name, routing_key)


# -- publishing: one message at a time, as by a client that waits for its confirm -------------------------------------


Outcome = Literal["confirmed", "unroutable", "nacked"]
"""Outcome of a publish. An unroutable one is confirmed by the broker, too, but has reached no queue."""

_FRAME_MAX = 131_072
_SHORT = 255  # maximum octets of the name of an exchange, and of a routing key


class Publishing(Group):
    """Publishes messages."""

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
        """Publish a message on a channel of its own in confirm mode; returns it as it was published.

        `on_done` is called with the outcome when a client would get its confirm, possibly before this returns.
        Properties are by their AMQP names, without `headers`, which are plain values. Raises NotFoundError,
        ForbiddenError and BadRequestError as for a client.
        """
        host = DetachedHost(self._broker, actor, entered(self._broker, actor, vhost, change=True))
        host.max_message_size = sys.maxsize
        host.limits = Limits(cc_keys=sys.maxsize)
        address = _short("exchange", exchange) + _short("routing key", routing_key)
        header = _header(len(body), properties or {}, headers)
        channel = _PublishingChannel(host, on_done)
        self._broker.turn.run()
        with as_client_errors():
            demands = inspect(header)
            content = content_frames(channel.number, _FRAME_MAX, header, body)
            channel.publish(channel.find_route(address, 0), demands, content)
        if channel.is_unroutable:
            channel.end()
            on_done("unroutable")
        return Message(address, content, channel.number)


class _PublishingChannel(Channel):
    def __init__(self, host: DetachedHost, on_done: Callable[[Outcome], object]) -> None:
        super().__init__(1, host)
        self.confirms = ChannelConfirms(self.schedule_confirms)
        self.is_unroutable = False
        self._on_done = on_done

    def enqueue(
        self, queues: Sequence[Queue], message: Message, *, mandatory: bool, persistent: bool
    ) -> Copies | None:
        """Put the message into its queues; if there are none it counts as returned to the publisher."""
        self.is_unroutable = not queues
        if self.is_unroutable:
            self.returned += 1
            return None
        return super().enqueue(queues, message, mandatory=mandatory, persistent=persistent)

    def _put_off(self, wait: NotYet) -> None:
        wait.subscribe(wait.retry)  # type: ignore[arg-type] # it has one

    def flush_confirms(self, since: int = 0) -> None:
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


# -- fetching: `basic.get` on a channel of its own --------------------------------------------------------------------


AckMode = Literal["ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false"]
"""Fate of fetched messages, by RabbitMQ's names. Only the two that end in `false` remove them."""


class Got(NamedTuple):
    """A fetched message, whether it had been delivered before, and the number of ready messages behind it."""

    message: Message
    redelivered: bool
    left: int


class Getting:
    """A channel on which the messages of one queue are fetched. `finish` must be called at the end.

    Raises NotFoundError, ForbiddenError and BadRequestError as for a client.
    """

    def __init__(
        self, broker: AdministeredBroker, actor: User | None, vhost: str, name: str, ack_mode: AckMode
    ) -> None:
        place = entered(broker, actor, vhost, change=True)
        broker.turn.run()
        host = DetachedHost(broker, actor, place)
        self._channel = _GettingChannel(host)
        self._ack_mode = ack_mode
        with as_client_errors():
            self._channel.check_permission("read", "queue", name)
            self._queue = self._channel.vhost.queue(name, host)

    def fetch(self) -> Got | None:
        """Return the next message, None if there is none; raises NotYet, and NotFoundError if the queue was deleted."""
        queue, channel = self._queue, self._channel
        if queue.deleted:
            raise NotFoundError(f"queue '{queue.name}' was deleted")
        before = channel.redelivered
        with as_client_errors():
            channel.get(queue, no_ack=self._ack_mode == "ack_requeue_false")
        message = channel.take()
        if message is None:
            return None
        return Got(message, channel.redelivered > before, queue.backing.ready_count)

    def finish(self) -> None:
        """Requeue or discard what was fetched and not acked, and close the channel. The caller runs a turn."""
        channel = self._channel
        if self._ack_mode == "reject_requeue_false" and channel.unacked:
            channel.reject(0, multiple=True, outcome=False)
        channel.close()
        channel.vhost.count_closed(channel.counts())


class _GettingChannel(Channel):
    """A channel that keeps the last message instead of sending it, and also gets messages of a paused queue."""

    gets_from_paused = True

    def __init__(self, host: DetachedHost) -> None:
        super().__init__(1, host)
        self._last: Message | None = None

    def take(self) -> Message | None:
        message, self._last = self._last, None
        return message

    def send(self, method: object) -> None:
        """Do nothing: only get-empty is sent."""

    def _send_content(self, message: Message) -> None:
        self._last = message
