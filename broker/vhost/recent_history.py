"""The last messages of each recent history exchange of a virtual host, which a queue gets when it is bound.

As in RabbitMQ's plugin, a message that is published or dead-lettered to the exchange, or comes to it through others, is
kept when it is routed, also by a transaction that is rolled back later. A queue that is bound, with any further key
again, gets the messages, the oldest first; an exchange that is bound routes them. They are kept in memory, so a restart
forgets them, and take `MOST_OCTETS` in each virtual host at most: every exchange may have its share of that.
"""

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

from leveret.broker.amqp.properties import Properties, is_persistent
from leveret.broker.errors import resource
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.turn import Turn
from leveret.broker.vhost.copies import Copies, Deliveries
from leveret.broker.vhost.publish_route import PropertyDemands
from leveret.broker.vhost.tail import ExchangeTap, Taps
from leveret.exchanges.base import Envelope, Exchange
from leveret.exchanges.recent_history import NO_STORE, RecentHistoryExchange
from leveret.exchanges.router import Router
from leveret.storage.message import Message

MOST_OCTETS: Final = 64 << 20  # maximum size in bytes of all messages that are kept in one virtual host
_NO_STORE = NO_STORE.encode()
log = logging.getLogger("leveret.queue")


class RecentHistories:
    """The histories of one virtual host, by the names of their exchanges."""

    def __init__(self, vhost: str, router: Router, taps: Taps, turn: Turn) -> None:
        self.vhost = vhost
        self.router = router
        self._taps = taps
        self.turn = turn
        self.by_name: dict[str, RecentHistory] = {}

    def declared(self, exchange: Exchange) -> None:
        """Begin to keep messages if this new exchange is of the type; must be called for each."""
        if isinstance(exchange, RecentHistoryExchange):
            history = self.by_name[exchange.name] = RecentHistory(self, exchange)
            self._taps.add_tail(history)

    def deleted(self, exchange: Exchange) -> None:
        """Forget the messages of a deleted exchange."""
        history = self.by_name.pop(exchange.name, None)
        if history is not None:
            self._taps.remove_tail(history)

    def bound(self, source: Exchange, destination: object) -> None:
        """Send the kept messages to a new binding's destination; must be called for each, and a turn must follow."""
        history = self.by_name.get(source.name)
        if history is not None:
            history.send(destination)

    @property
    def share(self) -> int:
        """Bytes that one exchange may keep."""
        return MOST_OCTETS // len(self.by_name)


class RecentHistory(ExchangeTap):
    """The last messages of one exchange: `length` of them, fewer if they are too large together."""

    def __init__(self, histories: RecentHistories, exchange: RecentHistoryExchange) -> None:
        super().__init__(histories.router, exchange.name)
        self._histories = histories
        self._length = exchange.length
        self._deliveries = Deliveries(histories.turn)
        self._messages: deque[Message] = deque()
        self.octets = 0  # their size in bytes
        self._is_cut = False

    @property
    def count(self) -> int:
        """Number of messages."""
        return len(self._messages)

    def _add(
        self, message: Message, queues: Sequence[Queue], user: str, connection: str, channel: int
    ) -> None:
        del queues, user, connection, channel
        if _NO_STORE in message.header:
            headers = Properties(message.header, max_entries=1 << 62).headers or {}
            if headers.get(NO_STORE) == ("bool", True):
                return
        self._messages.append(message)
        self.octets += len(message.content)
        share = self._histories.share
        if self.octets > share and not self._is_cut:
            self._is_cut = True
            name = resource("exchange", self.exchange, self._histories.vhost)
            log.warning(
                "%s keeps fewer than its last %d messages: they exceed %d bytes", name, self._length, share
            )
        while len(self._messages) > self._length or self.octets > share:
            self.octets -= len(self._messages.popleft().content)

    def send(self, destination: object) -> None:
        """Put the messages into a queue, or route them from an exchange."""
        for kept in tuple(self._messages):
            queues = self._routed(destination, kept) if isinstance(destination, Exchange) else (destination,)
            if queues:
                message = Message(kept.address, kept.content, kept.channel_id)
                persistent = is_persistent(kept.content)
                copies = Copies(message, queues, persistent=persistent)  # type: ignore[arg-type] # queues
                self._deliveries.add(queues, copies.put, copies, is_stored=copies.is_stored)  # type: ignore[arg-type]

    def _routed(self, exchange: Exchange, message: Message) -> Sequence[object]:
        properties = Properties(message.header, max_entries=1 << 62)
        demands = PropertyDemands(properties)
        keys = demands.keys(message.address)
        return self._histories.router.route_anyway(exchange, keys, Envelope(demands.headers, properties))
