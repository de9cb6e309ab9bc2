"""The firehose: RabbitMQ's trace of the publishes and deliveries of a virtual host, as messages.

Theory. While it is on, each publish of a client and each delivery is published a second time, to `amq.rabbitmq.trace`.
The routing key is `publish.EXCHANGE` or `deliver.QUEUE`, the body that of the message, and headers describe it
(rabbit_trace.erl). It sees a publish where its route is found (`broker.vhost.tail`), a delivery in the rotation of the
queue (`TracedRotation`), and the answer to a `basic.get` in the channel. Messages that came by the trace exchange are
not traced. As in RabbitMQ, acks are not traced, and messages that the broker itself publishes (dead letters, due
delayed messages) only when they are delivered.

A queue that is running must get no messages from its own deliveries: so traced messages wait, and are published when
the queues of the turn have run. While many wait, queues deliver nothing, and a publisher publishes the waiting ones
itself, so that deliveries get their share. Tracing slows a broker down, but takes no more memory than its queues.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from leveret.broker.amqp.fastpath import join_address, split_address
from leveret.broker.amqp.properties import PROPERTIES, Properties, build
from leveret.broker.amqp.tables import Field, Table, strings
from leveret.broker.queue.consumer import Consumer
from leveret.broker.queue.consumer_rotation import ConsumerRotation
from leveret.broker.queue.interfaces import ClientChannel
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.turn import Turn
from leveret.broker.vhost.copies import distribute
from leveret.exchanges.base import Exchange
from leveret.exchanges.router import Router
from leveret.storage.message import Message
from leveret.storage.queues.backing_queue import Fetched

EXCHANGE = "amq.rabbitmq.trace"
MOST_WAITING = 1000  # maximum number of traced messages that wait; deliveries are held back then
MOST_OCTETS = 16 << 20  # sum of their contents in bytes, likewise
MOST_NAMES = 1000  # queues of a publish that are named
_OWN = bytes((len(EXCHANGE),)) + EXCHANGE.encode()  # how addresses of messages by the trace exchange begin


class TraceEvent(NamedTuple):
    """A publish to an exchange or a delivery from a queue, of that name, that is to be traced.

    `keys` are the routing keys of a publish, `more` the headers that only one of the kinds has.
    """

    kind: str
    name: str
    message: Message
    keys: Sequence[str]
    more: Table
    connection: str
    channel: int
    user: str


def names_of(router: Router, queues: Sequence[Queue]) -> list[str]:
    """Return the names of the first `MOST_NAMES` that are queues, not delay lines or queues of direct replies."""
    known = router.queues
    return [queue.name for queue in queues[:MOST_NAMES] if known.get(queue.name) is queue]


class Firehose:
    """The firehose of one virtual host."""

    durable = stores_input = False

    def __init__(self, vhost: str, router: Router, turn: Turn, node_name: str) -> None:
        self._vhost = vhost
        self._router = router
        self._turn = turn
        self._node_name = node_name
        self._waiting: deque[TraceEvent] = deque()
        self._octets = 0
        self._held_back: list[Queue] = []
        self.touched = False

    def __repr__(self) -> str:
        return f"<firehose of vhost {self._vhost!r}>"

    # -- tracing ------------------------------------------------------------------------------------------------------

    def published(
        self,
        channel: ClientChannel,
        exchange: Exchange,
        keys: Sequence[str],
        message: Message,
        queues: Sequence[Queue],
    ) -> None:
        """Take a publish: `keys` are its routing key, and those of CC and BCC. Must not be called in a queue's run."""
        names: list[Field] = [("longstr", name) for name in names_of(self._router, queues)]
        self._add(channel, "publish", exchange.name, message, keys, {"routed_queues": ("array", names)})
        if self._held_back:
            # or publishers would take all the time, and nothing would be delivered
            enough = MOST_WAITING // 2
            while len(self._waiting) > enough or self.is_behind:
                self._publish_next()
            self._resume()
        while self.is_behind:
            self._publish_next()

    def delivered(self, queue: Queue, consumers: Sequence[Consumer], batch: Fetched) -> None:
        """Take deliveries: the messages of the batch went to the consumers in turn."""
        width = len(consumers)
        for number, message in enumerate(batch.messages):
            self.sent(consumers[number % width].channel, queue, message, redelivered=batch.redelivered)

    def sent(self, channel: ClientChannel, queue: Queue, message: Message, *, redelivered: bool) -> None:
        """Take a message that was delivered, or fetched by `basic.get`."""
        if not message.address.startswith(_OWN):
            more: Table = {"redelivered": ("signedint", int(redelivered))}
            self._add(channel, "deliver", queue.name, message, (), more)

    def _add(
        self, channel: ClientChannel, kind: str, name: str, message: Message, keys: Sequence[str], more: Table
    ) -> None:
        connection = channel.host
        self._waiting.append(
            TraceEvent(kind, name, message, keys, more, connection.name, channel.number, connection.user.name)
        )
        self._octets += len(message.content)
        if not self.touched:
            self.touched = True
            self._turn.queues.append(self)

    @property
    def is_behind(self) -> bool:
        """True while so much waits to be published that deliveries are held back."""
        return len(self._waiting) >= MOST_WAITING or self._octets >= MOST_OCTETS

    def hold_back(self, queue: Queue) -> None:
        """Resume a suspended queue when less waits to be published."""
        self._held_back.append(queue)

    # -- the turn -----------------------------------------------------------------------------------------------------

    @property
    def has_input(self) -> bool:
        """True if something waits to be published."""
        return bool(self._waiting)

    def run(self) -> bool:
        """Publish waiting messages while the step has time; return true if some are left."""
        is_over = self._turn.slices.is_over
        while self._waiting:
            self._publish_next()
            if is_over():
                break
        if not self.is_behind:
            self._resume()
        return bool(self._waiting)

    def give_up(self) -> None:
        """Drop waiting messages after an internal error."""
        self._waiting.clear()
        self._octets = 0
        self._resume()

    def _resume(self) -> None:
        held_back, self._held_back = self._held_back, []
        for queue in held_back:
            queue.resume()

    def _publish_next(self) -> None:
        traced = self._waiting.popleft()
        self._octets -= len(traced.message.content)
        exchange = self._router.get(EXCHANGE)
        if exchange is None:  # the virtual host is being deleted
            return
        key = f"{traced.kind}.{traced.name}"
        properties = Properties(traced.message.header, max_entries=1 << 62)
        headers: Table = {}

        def headers_of() -> Table:
            headers.update(self._headers(traced, properties))
            return headers

        queues: Any = self._router.route_anyway(exchange, (key,), headers_of)
        if not queues:
            return
        table = headers or headers_of()
        copy = traced.message.with_header(build(properties.body_size, headers=table))
        message = Message(join_address(EXCHANGE, key), copy.content, copy.channel_id)
        distribute(self._turn, queues, message, persistent=False)

    def _headers(self, traced: TraceEvent, properties: Properties) -> Table:
        """Return the headers that describe a message, in RabbitMQ's order and with its types."""
        exchange, key = split_address(traced.message.address)
        keys = traced.keys or (key, *strings((properties.headers or {}).get("CC", ("void", None))))
        return {
            "exchange_name": ("longstr", exchange),
            "routing_keys": ("array", [("longstr", key) for key in keys]),
            "properties": ("table", _shown(properties)),
            "node": ("longstr", self._node_name),
            **({} if traced.kind == "publish" else traced.more),
            "vhost": ("longstr", self._vhost),
            "connection": ("longstr", traced.connection),
            "channel": ("signedint", traced.channel),
            "user": ("longstr", traced.user),
            **(traced.more if traced.kind == "publish" else {}),
        }


def _shown(properties: Properties) -> Table:
    """Return the properties that are set as a table: the last first, and numbers as 32 bits, as RabbitMQ does."""
    shown: Table = {}
    for name in reversed(PROPERTIES):
        value = getattr(properties, name)
        if isinstance(value, dict):
            shown[name] = "table", value
        elif isinstance(value, int):
            shown[name] = "signedint", (value + (1 << 31)) % (1 << 32) - (1 << 31)
        elif value is not None:
            shown[name] = "longstr", value
    return shown


class TracedRotation(ConsumerRotation):
    """The rotation of a queue whose deliveries are traced; it stops while the firehose is behind.

    A queue without tracing pays nothing for it: this takes the place of its rotation, with everything that it had.
    """

    __slots__ = ("_queue", "firehose")

    def __init__(self, queue: Queue, firehose: Firehose) -> None:
        _copy(queue.consumers, self)
        self._queue = queue
        self.firehose = firehose

    def deliver(self, consumers: Sequence[Consumer], batch: Fetched) -> None:
        """Deliver the messages of a share, and notify the firehose."""
        super().deliver(consumers, batch)
        firehose, queue = self.firehose, self._queue
        firehose.delivered(queue, consumers, batch)
        if firehose.is_behind:
            queue.suspend()
            firehose.hold_back(queue)


def trace(queue: Queue, firehose: Firehose | None) -> None:
    """Trace the deliveries of a queue from now on, or no longer for None; must be called between two turns."""
    rotation = queue.consumers
    if firehose is not None:
        if not isinstance(rotation, TracedRotation) or rotation.firehose is not firehose:
            queue.consumers = TracedRotation(queue, firehose)
    elif isinstance(rotation, TracedRotation):
        queue.consumers = ConsumerRotation()
        _copy(rotation, queue.consumers)


def _copy(source: ConsumerRotation, target: ConsumerRotation) -> None:
    """Give a rotation the state of another one, which is no longer used."""
    slots: Any = ConsumerRotation.__slots__
    for slot in slots:
        setattr(target, slot, getattr(source, slot))
