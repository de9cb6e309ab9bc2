"""Recording: what was published to exchanges of an embedded broker, and assertions about it.

Theory. An ordinary broker has no place where every message passes as an object: most are put into their queues as the
bytes that arrived. So the classes of channels and virtual hosts are chosen when a server is created, as those of queues
are for the export, and only the server of an embedded broker has these. While something is recorded in a virtual host,
its routes are not `plain`: then every publish is a call of `Channel.publish`, and recorded here. Dead letters are
recorded where their virtual host publishes them.

A record must not fill the memory of a program that publishes without end. So a recorder has a limit for all exchanges
together, and forgets the oldest messages. Nothing that would need them is answered as if they had never been there:
each record tells how many it has forgotten, and the assertions, which raise AssertionError, say so.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from leveret.broker.administration.messages import MessageView, view_of
from leveret.broker.amqp.fastpath import split_address
from leveret.broker.amqp.properties import Properties
from leveret.broker.channel.channel import Channel
from leveret.broker.embedded.errors import NotRecordedError
from leveret.broker.queue.queue import Queue
from leveret.broker.vhost.copies import Copies
from leveret.broker.vhost.publish_route import PropertyDemands, Route
from leveret.broker.vhost.vhost import VHost
from leveret.exchanges.base import Envelope, Exchange
from leveret.storage.message import Message

MOST_MESSAGES: Final = 100_000  # messages in all records of a broker
MOST_OCTETS: Final = 64 << 20  # sum of their bodies in bytes


class Record(msgspec.Struct):
    """The recorded messages of one exchange, the oldest first, and the number of those before them, now forgotten."""

    messages: deque[MessageView] = msgspec.field(default_factory=deque)
    forgotten: int = 0

    def copy(self) -> "Record":
        """Return a copy, which other threads can have."""
        return Record(self.messages.copy(), self.forgotten)


class Recorder:
    """The recorded messages of one broker, the oldest of which it forgets."""

    def __init__(self, *, records_all: bool = False) -> None:
        self.records_all = records_all
        self._records: dict[tuple[str, str], Record] = {}
        self._order: deque[Record] = deque()  # the record of each message, the oldest first
        self._octets = 0
        self._vhosts: set[str] = set()

    def record(self, vhost: str, exchange: str) -> None:
        """Record an exchange from now on; the caller must have cached routes dropped."""
        self._vhosts.add(vhost)
        self._records.setdefault((vhost, exchange), Record())

    def forget(self, vhost: str) -> None:
        """Forget what was recorded in a virtual host, and record there what the broker records from its start only."""
        self._vhosts.discard(vhost)
        gone = [self._records.pop(key) for key in list(self._records) if key[0] == vhost]
        if any(record.messages for record in gone):
            kept = {id(record) for record in self._records.values()}
            self._order = deque(record for record in self._order if id(record) in kept)
            self._octets -= sum(len(message.body) for record in gone for message in record.messages)

    def is_active(self, vhost: str) -> bool:
        """Return whether something is recorded in a virtual host."""
        return self.records_all or vhost in self._vhosts

    def published(self, vhost: str, exchange: str) -> Record | None:
        """Return a copy of what was published to an exchange, in order; None if it is not recorded."""
        record = self._records.get((vhost, exchange))
        if record is None:
            return Record() if self.records_all else None
        return record.copy()

    def recorded(self, vhost: str) -> dict[str, Record] | None:
        """Return copies of what was published in a virtual host, by exchange; None if nothing is recorded there."""
        if not self.is_active(vhost):
            return None
        return {
            exchange: record.copy() for (place, exchange), record in self._records.items() if place == vhost
        }

    def _append(self, place: tuple[str, str], view: MessageView) -> None:
        """Add a message to a record, and forget the oldest ones of all if there are too many now."""
        record = self._records.setdefault(place, Record())
        record.messages.append(view)
        self._order.append(record)
        self._octets += len(view.body)
        while len(self._order) > MOST_MESSAGES or self._octets > MOST_OCTETS:
            oldest = self._order.popleft()
            self._octets -= len(oldest.messages.popleft().body)
            oldest.forgotten += 1

    def add(
        self, vhost: VHost, exchange: Exchange, message: Message, queues: Sequence[Queue] | None = None
    ) -> None:
        """Record a message that was published to an exchange: there, and at those that it has reached from there.

        `queues` are those that it was put into; None if that is not known: it is routed again then.
        """
        properties = Properties(message.header)
        demands = PropertyDemands(properties)
        keys = demands.keys(message.address)
        envelope = Envelope(demands.headers, properties)
        found = vhost.route_anyway(exchange, keys, envelope) if queues is None else queues
        names = tuple(queue.name for queue in found)
        view: MessageView | None = None
        for reached in vhost.router.reached(exchange, keys, envelope):
            place = vhost.name, reached.name
            if self.records_all or place in self._records:
                view = view or view_of(message, state="published", queues=names)
                self._append(place, view)


class RecordedChannel(Channel):
    """A channel whose publishes are recorded, if a recorder wants them."""

    def __init__(self, recorder: Recorder, number: int, host: Any) -> None:
        super().__init__(number, host)
        self._recorder = recorder
        self._queues: Sequence[Queue] = ()  # queues of the last publish: chance may have chosen them

    def find_route(self, address: bytes, bits: int) -> Route:
        """Find the route of a publish; it is not plain while something is recorded."""
        route = super().find_route(address, bits)
        if self._recorder.is_active(self.vhost.name):
            route.plain = False
        return route

    def publish(self, route: Route, demands: PropertyDemands | None, content: bytes) -> None:
        """Publish a message, and record it unless that fails; those of a transaction are recorded by its commit."""
        super().publish(route, demands, content)
        if self.tx is None and self._recorder.is_active(self.vhost.name) and route.exchange is not None:
            message = Message(route.address, content, self.number)
            self._recorder.add(self.vhost, route.exchange, message, self._queues)

    def enqueue(
        self, queues: Sequence[Queue], message: Message, *, mandatory: bool, persistent: bool
    ) -> Copies | None:
        """Pass a message to its queues, and record it if it belongs to a transaction."""
        self._queues = queues
        if self.tx is not None:
            self._record(queues, message)
        return super().enqueue(queues, message, mandatory=mandatory, persistent=persistent)

    def enqueue_all(self, queues: Sequence[Queue], messages: Sequence[Message], *, persistent: bool) -> None:
        """Pass messages of a transaction to the same queues, and record them."""
        for message in messages:
            self._record(queues, message)
        super().enqueue_all(queues, messages, persistent=persistent)

    def _record(self, queues: Sequence[Queue], message: Message) -> None:
        exchange = self.vhost.router.get(split_address(message.address)[0])
        if exchange is not None and self._recorder.is_active(self.vhost.name):
            self._recorder.add(self.vhost, exchange, message, queues)


class RecordedVHost(VHost):
    """A virtual host whose dead letters are recorded, if a recorder wants them: it taps its own."""

    def __init__(self, recorder: Recorder, *arguments: Any, **options: Any) -> None:
        self._recorder = recorder
        super().__init__(*arguments, **options)
        self._dead_lettering.tails_on = self._tails_on

    def _tails_on(self, exchange: Exchange) -> Sequence[Any]:
        tails = self.taps.tails_on(exchange)
        return (*tails, self) if self._recorder.is_active(self.name) else tails

    def dead_lettered(self, exchange: Exchange, _keys: object, message: Message, _queues: object) -> None:
        """Record a dead letter."""
        self._recorder.add(self, exchange, message)


# -- assertions -------------------------------------------------------------------------------------------------------

SHOWN_MESSAGES: Final = 5  # messages in the text of an error, the latest
_SHOWN_OCTETS: Final = 200


def check_published(
    exchange: str,
    record: Record,
    *,
    body: bytes | str | None = None,
    routing_key: str | None = None,
    headers: Mapping[str, Any] | None = None,
    times: int | None = None,
) -> None:
    """Check what was published to an exchange, as `AsyncVHost.assert_published`."""
    __tracebackhide__ = True
    messages = list(record.messages)
    wanted = body.encode() if isinstance(body, str) else body
    found = sum(
        wanted in {None, message.body}
        and routing_key in {None, message.routing_key}
        and (headers or {}).items() <= message.headers.items()
        for message in messages
    )
    if times is None and found:
        return
    if times is None or found <= times:
        _check_complete(exchange, record)
    if found == times:
        return
    conditions = {"body": body, "routing_key": routing_key, "headers": headers}
    matching = ", ".join(f"{name}={value!r}" for name, value in conditions.items() if value is not None)
    count = "no message" if not found else f"{found} message{'s' if found > 1 else ''}"
    expected = "" if times is None else f", expected {times}"
    text = f"{count} with {matching}" if matching else count
    raise AssertionError(f"exchange {exchange!r}: {text} published{expected}{listed(messages)}")


def check_no_unroutable(recorded: Sequence[tuple[str, Record]]) -> None:
    """Check that every recorded message has reached a queue, given exchanges with their records."""
    __tracebackhide__ = True
    lost = [
        message
        for exchange, record in recorded
        for message in record.messages
        if message.exchange == exchange and not message.queues
    ]
    if lost:
        raise AssertionError(f"{len(lost)} messages have reached no queue{listed(lost)}")
    for exchange, record in recorded:
        _check_complete(exchange, record)


def _check_complete(exchange: str, record: Record) -> None:
    __tracebackhide__ = True
    if record.forgotten:
        raise NotRecordedError(
            f"exchange {exchange!r}: the first {record.forgotten} messages are no longer recorded, because a broker "
            f"records at most {MOST_MESSAGES} messages, and {MOST_OCTETS >> 20} MiB of bodies; "
            "call forget_published() in between"
        )


def listed(messages: Sequence[MessageView]) -> str:
    """Return the last messages, a line each, for the end of a text; empty if there are none."""
    left = len(messages) - SHOWN_MESSAGES
    more = [f"... {left} more"] if left > 0 else []
    return "".join(f"\n    {line}" for line in [*more, *map(shown, messages[-SHOWN_MESSAGES:])])


def shown(message: MessageView) -> str:
    """Return one line about a message."""
    body = message.body if len(message.body) <= _SHOWN_OCTETS else message.body[:_SHOWN_OCTETS] + b"..."
    state = f"{message.state}{', redelivered' if message.redelivered else ''}"
    headers = f" {message.headers}" if message.headers else ""
    return f"{state}: {message.exchange!r} -> {message.routing_key!r} {body!r}{headers}"
