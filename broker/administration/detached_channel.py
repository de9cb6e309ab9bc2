"""A channel without a connection: declares, binds and deletes for an administrator by the rules for clients.

RabbitMQ's management plugin opens a connection as the acting user, so that permissions, checks and texts are the same.
Here the handlers of `broker.methods` get a channel whose output is discarded.
"""

from collections.abc import Iterator
from typing import Any

from leveret.broker.administration.access import AdministeredBroker, translated
from leveret.broker.auth.rights import AskedPermissions, AskedTopics, BackendUser
from leveret.broker.auth.users import Permissions, TopicPermissions, User
from leveret.broker.channel.channel import Channel
from leveret.broker.channel.settings import Compatibility, Limits
from leveret.broker.errors import AMQPError, Subscribe
from leveret.broker.methods import HANDLERS
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.outbox import Outbox
from leveret.broker.vhost.copies import Copies
from leveret.broker.vhost.vhost import VHost
from leveret.exchanges.base import Exchange

_OPERATOR = User("", "")


class DetachedHost:
    """The stand-in for the channel's connection (`broker.channel.channel.ChannelHost`)."""

    def __init__(self, broker: AdministeredBroker, actor: User | None, vhost: VHost) -> None:
        self.vhost = vhost
        self.name = f"<{broker.clients.node_name}>"
        if actor is None:
            self.user = _OPERATOR
            self.permissions: Permissions | AskedPermissions = Permissions(".*", ".*", ".*")
            self.topic_permissions: TopicPermissions | AskedTopics = TopicPermissions({})
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
        self.compatibility = Compatibility()
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

    def check_transient_queue(self, *, durable: bool, exclusive: bool) -> None:
        """Do nothing: an administrator may declare them."""


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

    def await_exact(self, queue: Queue) -> None:
        """Do not wait."""

    def await_name(self, name: str) -> None:
        """Do not wait: the name is taken from a queue that still discards messages."""


def execute(broker: AdministeredBroker, actor: User | None, vhost: VHost, method: Any) -> Any:
    """Execute a method of the classes queue and exchange for a user; returns its reply.

    Raises:
        AdministrationError: an error that would have closed a client's channel or connection.

    """
    broker.turn.run()
    channel = _Channel(DetachedHost(broker, actor, vhost))
    try:
        HANDLERS[type(method)](channel, method)
    except AMQPError as error:
        raise translated(error) from None
    return channel.last_reply


def check_permission(
    broker: AdministeredBroker, actor: User | None, vhost: VHost, kind: str, what: str, name: str
) -> None:
    """Check that a user has a permission (configure, write, read) for the named queue or exchange.

    Raises:
        ForbiddenError: with the text that a client gets.

    """
    try:
        _Channel(DetachedHost(broker, actor, vhost)).check_permission(kind, what, name)
    except AMQPError as error:
        raise translated(error) from None


def check_key(
    broker: AdministeredBroker, actor: User | None, vhost: VHost, exchange: Exchange, routing_key: str
) -> None:
    """Check that a user may publish to an exchange with a routing key: topic exchanges have permissions for these.

    Raises:
        ForbiddenError: with the text that a client gets.

    """
    host = DetachedHost(broker, actor, vhost)
    if exchange.type != "topic" or not host.topic_permissions:
        return
    try:
        _Channel(host).check_topic_permission("write", exchange.name, routing_key)
    except AMQPError as error:
        raise translated(error) from None
