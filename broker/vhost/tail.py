"""Taps of a virtual host: the firehose, and tails of exchanges, which get messages beside the queues.

A tail keeps new messages of one exchange for a reader, for a moment.

Theory. A publisher only compares a key and appends to a list for a tail; everything else is the reader's work. The list
is bounded. Messages that do not fit are counted, and the reader gets their number at the place where they are missing.
So neither a slow reader nor one that has gone holds a publisher up or fills the memory.

Nothing of this costs a message anything while it is off. Channels keep the route of a publish until the generation of
the router changes, and each switch changes it. Routes found from then on have the taps that concern them. They are not
plain, so each of their publishes is a call of `Channel.publish`.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from leveret.broker.amqp.properties import Properties
from leveret.broker.queue.interfaces import ClientChannel
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.turn import Turn
from leveret.broker.vhost.firehose import Firehose, names_of, trace
from leveret.exchanges.base import Envelope, Exchange
from leveret.exchanges.router import Router
from leveret.exchanges.topic import TopicTrie
from leveret.storage.message import Message

MOST_WAITING: Final = 10_000  # maximum number of messages that wait for the reader
MOST_OCTETS: Final = 16 << 20  # maximum sum of their contents in bytes; a single larger one is kept, too
EVERYTHING = "#"
"""The pattern that all routing keys match."""


class Published(NamedTuple):
    """A message as it was published; user and connection are '' and the channel 0 for the broker itself.

    `due` is the time (epoch ms) until which a queue holds it, the latest of several; None if none does.
    """

    time: int
    message: Message
    queues: list[str]
    due: int | None
    user: str
    connection: str
    channel: int


class ExchangeTap:
    """Receives the messages of one exchange, which need not exist: those published or routed to it."""

    def __init__(self, router: Router, exchange: str) -> None:
        self._router = router
        self.exchange = exchange

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
        """Take a dead letter, or a delayed message that is due, as `published` does."""
        if self._wants(exchange, keys, message):
            self._add(message, queues, "", "", 0)

    def _wants(self, exchange: Exchange, keys: Sequence[str], message: Message) -> bool:
        if exchange.name == self.exchange:
            return True

        properties = Properties(message.header, max_entries=1 << 62)
        reached = self._router.reached(exchange, keys, Envelope(properties.headers or {}, properties))
        return any(each.name == self.exchange for each in reached)

    def _add(
        self, message: Message, queues: Sequence[Queue], user: str, connection: str, channel: int
    ) -> None:
        raise NotImplementedError


class Tail(ExchangeTap):
    """A tail of an exchange of any type; routing keys must match `pattern`, as at a topic exchange."""

    def __init__(self, router: Router, exchange: str, pattern: str, clock: Callable[[], int]) -> None:
        super().__init__(router, exchange)
        self._trie: TopicTrie | None = None
        if pattern != EVERYTHING:
            self._trie = TopicTrie()
            self._trie.add(pattern, True)
        self._clock = clock
        self._items: deque[Published | int] = deque()  # messages, and between them numbers of lost ones
        self._octets = 0
        self._on_arrival: Callable[[], object] | None = None

    def _wants(self, exchange: Exchange, keys: Sequence[str], message: Message) -> bool:
        trie = self._trie
        if trie is not None and not any(trie.match(key) for key in keys):
            return False
        return super()._wants(exchange, keys, message)

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
        names = names_of(self._router, queues)
        holds = filter(None, [getattr(each, "hold", None) for each in queues])  # a delay line has none
        due = max([hold.due_of(message) for hold in holds], default=0) or None
        items.append(Published(self._clock(), message, names, due, user, connection, channel))
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


class Taps:
    """The taps of one virtual host: its firehose, unless that is off, and the tails of its exchanges."""

    def __init__(self, vhost: str, router: Router, queues: dict[str, Queue], turn: Turn) -> None:
        self._vhost = vhost
        self._router = router
        self._queues = queues
        self._turn = turn
        self.firehose: Firehose | None = None
        self.tails: tuple[ExchangeTap, ...] = ()

    def on(self, exchange: Exchange) -> tuple[Firehose | ExchangeTap, ...]:
        """Return the taps that concern publishes to an exchange; must be called again when the generation changes."""
        firehose: tuple[Firehose | ExchangeTap, ...] = () if self.firehose is None else (self.firehose,)
        return (*firehose, *self.tails_on(exchange)) if self.tails else firehose

    def tails_on(self, exchange: Exchange) -> tuple[ExchangeTap, ...]:
        """Return the tails of an exchange, and of those that messages may reach from there."""
        if not self.tails:
            return ()
        names = {each.name for each in self._router.reachable(exchange)}
        return tuple(tail for tail in self.tails if tail.exchange in names)

    def add_tail(self, tail: ExchangeTap) -> None:
        """Tell a tail of messages from now on."""
        self.tails = (*self.tails, tail)
        self._router.generation += 1

    def remove_tail(self, tail: ExchangeTap) -> None:
        """Stop a tail; no effect if it has stopped."""
        self.tails = tuple(each for each in self.tails if each is not tail)
        self._router.generation += 1

    def trace(self, node_name: str | None) -> None:
        """Switch the firehose on, with the name of the node for its messages, or off for None."""
        if (self.firehose is None) is (node_name is None):
            return
        self.firehose = (
            None if node_name is None else Firehose(self._vhost, self._router, self._turn, node_name)
        )
        self._router.generation += 1
        self._turn.slices.add(self._follow_all(), f"tracing of vhost '{self._vhost}'")

    def _follow_all(self) -> Iterator[None]:
        for queue in tuple(self._queues.values()):
            if not queue.deleted:
                trace(queue, self.firehose)
            yield
