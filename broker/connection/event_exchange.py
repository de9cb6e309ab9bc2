"""The event exchange: what happens to objects of the broker, as messages of `amq.rabbitmq.event`.

Theory. RabbitMQ's plugin rabbitmq_event_exchange. Objects tell of events as they happen (`NodeContext.tell`), often in
the middle of a change: so a message is made at once, because the object may be gone later, but only if the routing key
of the event leads to a queue; it is published when the queues of the turn have run. What waits is bounded; what does
not fit is dropped, counted and logged. A queue that takes events is bounded by its own limits, like any other.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from leveret.broker.amqp.fastpath import content_frames
from leveret.broker.amqp.properties import build
from leveret.broker.amqp.publishes import PERSISTENT_MODE
from leveret.broker.amqp.tables import Table
from leveret.broker.connection.event_messages import EVENTS, Event, described
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.turn import Turn
from leveret.broker.vhost.fan_out import distribute
from leveret.broker.vhost.vhost import VHost
from leveret.exchanges.base import Exchange
from leveret.exchanges.errors import TooManyHopsError
from leveret.storage.message import Message

log = logging.getLogger("leveret")

EXCHANGE = "amq.rabbitmq.event"
MOST_WAITING = 10_000
"""Events that may wait to be published; only one step that changes a great many objects has more."""
MOST_OCTETS = 16 << 20
"""Sum of their octets."""
_NAME = bytes((len(EXCHANGE),)) + EXCHANGE.encode()


class EventExchange:
    """The event exchange of a broker.

    Args:
        turn: the work lists of the server.
        context: the context of the node.
        node_name: the name of the node.

    Attributes:
        lost: number of events that were dropped because too many waited.
        failed: number of events that were dropped because of an internal error.

    """

    durable = stores_input = False

    __slots__ = (
        "_context",
        "_node_name",
        "_octets",
        "_reported",
        "_turn",
        "_vhost",
        "_waiting",
        "failed",
        "lost",
        "touched",
    )

    def __init__(self, turn: Turn, context: NodeContext, node_name: str) -> None:
        self._turn = turn
        self._context = context
        self._node_name = node_name
        self._vhost: VHost | None = None
        self._waiting: deque[tuple[tuple[Queue, ...], Message]] = deque()
        self._octets = 0
        self.lost = self.failed = self._reported = 0
        self.touched = False

    def __repr__(self) -> str:
        return "<event exchange>"

    @property
    def vhost(self) -> str | None:
        """Name of the vhost; None before the exchange is opened."""
        return None if self._vhost is None else self._vhost.name

    def open(self, vhost: VHost) -> None:
        """Declare the exchange if it is not there yet, and publish events from now on."""
        if vhost.router.get(EXCHANGE) is None:
            vhost.declare_exchange(
                EXCHANGE, "topic", durable=True, auto_delete=False, internal=True, arguments={}
            )
        self._vhost = vhost

    def add(self, kind: str, vhost: str, name: str, actor: str, subject: tuple[Any, ...]) -> None:
        """Take an event; it is published after this turn's queues have run, if it can be routed.

        An internal error is logged, and never reaches what has changed the object.
        """
        known = EVENTS.get(kind)
        if self._vhost is None or known is None:
            return
        exchange = self._vhost.router.get(EXCHANGE)
        if exchange is None or not exchange.in_use:
            return
        try:
            self._take(exchange, *known, Event(vhost, name, actor, subject, self._node_name))
        except Exception:  # the change itself is done
            log.exception("internal error: the event '%s' of '%s' is lost", known[0], name)
            self.failed += 1

    def _take(self, exchange: Exchange, key: str, headers_of: Callable[[Event], Table], event: Event) -> None:
        now = self._context.clock()
        headers: Table = {}

        def all_headers() -> Table:
            if not headers:
                headers["timestamp_in_ms"] = "long", now
                headers.update(described(event, headers_of))
            return headers

        router = self._vhost.router  # type: ignore[union-attr] # or nothing is taken
        try:
            queues = router.route(exchange, (key,), all_headers)
        except TooManyHopsError as error:
            queues = error.reached
        if not queues:
            return
        if len(self._waiting) >= MOST_WAITING or self._octets >= MOST_OCTETS:
            self.lost += 1
            self._touch()
            return
        header = build(0, headers=all_headers(), delivery_mode=PERSISTENT_MODE, timestamp=now // 1000)
        address = b"%b%c%b" % (_NAME, len(key), key.encode())
        message = Message(address, content_frames(1, 0, header, b""), 1)
        self._waiting.append((queues, message))  # type: ignore[arg-type]
        self._octets += len(message.content)
        self._touch()

    def _touch(self) -> None:
        if not self.touched:
            self.touched = True
            self._turn.queues.append(self)

    # -- the turn -----------------------------------------------------------------------------------------------------

    @property
    def has_input(self) -> bool:
        """True if something waits to be published."""
        return bool(self._waiting)

    def run(self) -> bool:
        """Publish what waits while the step has time; return true if some is left."""
        if self.lost != self._reported:
            log.warning(
                "event exchange: dropped %d events, because %d events or %d MiB of them waited to be published",
                self.lost - self._reported,
                MOST_WAITING,
                MOST_OCTETS >> 20,
            )
            self._reported = self.lost
        waiting, is_over = self._waiting, self._turn.slices.is_over
        while waiting:
            queues, message = waiting.popleft()
            self._octets -= len(message.content)
            distribute(self._turn, queues, message, persistent=True)
            if is_over():
                break
        return bool(waiting)

    def give_up(self) -> None:
        """Drop what waits after an internal error."""
        self._waiting.clear()
        self._octets = 0
