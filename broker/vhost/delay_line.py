"""The delay line of an x-delayed-message exchange: holds its messages until they are due.

A message that is due is routed as if it had just been published, perhaps in several steps that put it into very many
queues (`broker.vhost.copies.Deliveries`). Rows, window, timer and confirms are those of any `broker.queue.due_line`.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from leveret.broker.amqp.properties import Properties
from leveret.broker.amqp.tables import Table
from leveret.broker.queue.due_line import DueLine, message_of
from leveret.broker.queue.interfaces import DelayDisk
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.turn import Turn
from leveret.broker.vhost.copies import Copies, Deliveries
from leveret.broker.vhost.publish_route import PropertyDemands
from leveret.broker.vhost.tail import ExchangeTap
from leveret.exchanges.base import Envelope, Exchange
from leveret.exchanges.delayed import LONGEST, delay_of, due_headers
from leveret.exchanges.router import Router
from leveret.storage.delayed import Due
from leveret.storage.message import Message


class DelayLine(DueLine):
    """The delayed messages of one exchange; a durable one shares the `number` of its line with its definition.

    `longest`: the longest delay (ms) that it takes; a message with a longer one is routed at once.
    """

    name = ""  # a name that no queue can have, because dead-letter cycles are detected by queue names
    ids = None  # its queues may take each message once

    def __init__(
        self,
        exchange: Exchange,
        router: Router,
        turn: Turn,
        context: NodeContext,
        disk: DelayDisk | None,
        longest: int = LONGEST,
    ) -> None:
        super().__init__(turn, context, disk)
        self.longest = longest
        self._exchange = exchange
        self._router = router
        self.tails_on: Callable[[Exchange], Sequence[ExchangeTap]] = lambda _exchange: ()
        """Returns the taps that get due messages."""
        self._deliveries = Deliveries(turn)

    def __repr__(self) -> str:
        return f"<delay line of {self._exchange!r}>"

    def ignored(self, delay: int) -> None:
        """Warn that a message with a longer delay is routed at once, the first time."""
        text = f"an x-delay of {delay} ms is ignored, as by RabbitMQ's plugin (compatibility.long_delays)"
        self._warn(repr(self._exchange), text)

    def put(self, message: Message, *, is_new: bool = True) -> bool:
        """Accept a message that was published with a delay; a line refuses none."""
        del is_new  # its queues find out when it is due
        return self.accept(message, self._context.clock() + delay_of(Properties(message.header).headers))

    def destinations(self, message: Message) -> Collection[Any]:
        """Return the queues to which a delayed message would be routed now."""
        properties = Properties(message.header)
        demands = PropertyDemands(properties)
        return self._route(demands.keys(message.address), due_headers(demands.headers), properties)

    def _route(self, keys: Sequence[str], headers: Table, properties: Properties) -> Sequence[Any]:
        return self._router.route_anyway(self._exchange, keys, Envelope(headers, properties))

    @property
    def _is_blocked(self) -> bool:
        """True while a message is on its way to very many queues."""
        return self._deliveries.has_input

    def _give_back(self, due: Due, row: bytes) -> bool:
        """Route a due message; False if its row has to stay until its body is in a file."""
        message = message_of(self.number, due, row)
        properties = Properties(message.header)
        demands = PropertyDemands(properties)
        keys, headers = demands.keys(message.address), due_headers(demands.headers)
        found = self._route(keys, headers, properties)
        headers.pop("BCC", None)
        message = message.with_header(properties.replace(headers=headers))
        for tail in self.tails_on(self._exchange):
            if tail.exchange != self._exchange.name:  # it has the message since the publish
                tail.dead_lettered(self._exchange, keys, message, found)
        if not found:
            return True
        disk, persistent = self._disk, demands.persistent
        copies = Copies(
            message,
            found,
            persistent=persistent,
            on_safe=None if disk is None else partial(self._moved, self.number, due),
            blob_threshold=0 if disk is None else disk.blob_threshold,
        )
        is_stored = copies.is_stored or (persistent and disk is not None)
        self._deliveries.add(found, copies.put, copies, is_stored=is_stored)
        return not copies.stays
