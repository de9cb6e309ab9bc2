"""Tails: what is published to one exchange from now on, kept for a reader for a moment.

Theory. A publisher does no more for a tail than to compare a key and to append to a list; everything else is the
reader's work. The list is bounded: what does not fit is counted, and the reader is told how many messages it has lost
at the place where they are missing. So neither a slow reader nor one that has gone holds a publisher up or fills the
memory.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from leveret.broker.amqp.properties import Properties
from leveret.broker.amqp.tables import Table
from leveret.broker.queue.queue import Queue
from leveret.broker.vhost.firehose import RoutingVHost, names_of
from leveret.broker.vhost.publish_route import ClientChannel
from leveret.exchanges.base import Exchange
from leveret.exchanges.trie import TopicTrie
from leveret.storage.message import Message

MOST_WAITING: Final = 10_000
"""Maximum number of messages that wait for the reader."""
MOST_OCTETS: Final = 16 << 20
"""Maximum sum of their contents in bytes; a single larger one is kept, too."""
EVERYTHING = "#"
"""The pattern that all routing keys match."""


class Published(NamedTuple):
    """A message as it was published.

    Attributes:
        time: when, in milliseconds since the epoch.
        message: the message.
        queues: names of the queues that it was routed to.
        user: name of the user; '' for the broker itself.
        connection: name of the connection; '' for the broker itself.
        channel: number of the channel; 0 for the broker itself.

    """

    time: int
    message: Message
    queues: list[str]
    user: str
    connection: str
    channel: int


class Tail:
    """A tail of an exchange, which need not exist.

    Args:
        vhost: the virtual host.
        exchange: name of the exchange; '' for the default exchange.
        pattern: what routing keys must match, as the key of a binding to a topic exchange, whatever the type is.
        clock: returns milliseconds since the epoch.

    """

    __slots__ = ("_clock", "_items", "_octets", "_on_arrival", "_trie", "_vhost", "exchange")

    def __init__(self, vhost: RoutingVHost, exchange: str, pattern: str, clock: Callable[[], int]) -> None:
        self._vhost = vhost
        self.exchange = exchange
        self._trie: TopicTrie | None = None
        if pattern != EVERYTHING:
            self._trie = TopicTrie()
            self._trie.add(pattern, True)
        self._clock = clock
        self._items: deque[Published | int] = deque()
        """Messages, and between them numbers of lost ones."""
        self._octets = 0
        self._on_arrival: Callable[[], object] | None = None

    def published(
        self,
        channel: ClientChannel,
        exchange: Exchange,
        keys: Sequence[str],
        message: Message,
        queues: Sequence[Queue],
    ) -> None:
        """Take a publish: its routing key and those of CC and BCC, and the queues that it was routed to."""
        if self._wants(exchange, keys, message):
            connection = channel.host
            self._add(message, queues, connection.user.name, connection.name, channel.number)

    def dead_lettered(
        self, exchange: Exchange, keys: Sequence[str], message: Message, queues: Sequence[Queue]
    ) -> None:
        """Take a dead letter, as `published` does."""
        if self._wants(exchange, keys, message):
            self._add(message, queues, "", "", 0)

    def _wants(self, exchange: Exchange, keys: Sequence[str], message: Message) -> bool:
        trie = self._trie
        if trie is not None and not any(trie.match(key) for key in keys):
            return False
        if exchange.name == self.exchange:
            return True

        def headers() -> Table:
            return Properties(message.header, max_entries=1 << 62).headers or {}

        reached = self._vhost.router.reached(exchange, keys, headers())
        return any(each.name == self.exchange for each in reached)

    def _add(
        self, message: Message, queues: Sequence[Queue], user: str, connection: str, channel: int
    ) -> None:
        items = self._items
        if items and (len(items) >= MOST_WAITING or self._octets >= MOST_OCTETS):
            last = items[-1]
            if isinstance(last, int):
                items[-1] = last + 1
            else:
                items.append(1)
            return
        names = names_of(self._vhost, queues)
        items.append(Published(self._clock(), message, names, user, connection, channel))
        self._octets += len(message.content)
        if self._on_arrival is not None:
            on_arrival, self._on_arrival = self._on_arrival, None
            on_arrival()

    def take(self) -> Published | int | None:
        """Return the next message, or the number of messages that are lost here; None if there is none yet."""
        if not self._items:
            return None
        item = self._items.popleft()
        if not isinstance(item, int):
            self._octets -= len(item.message.content)
        return item

    def when_there(self, callback: Callable[[], object]) -> None:
        """Call back once there is something to take; at once if there is."""
        if self._items:
            callback()
        else:
            self._on_arrival = callback
