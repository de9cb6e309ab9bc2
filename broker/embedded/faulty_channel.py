"""Channels of an embedded broker, which can have faults. Pure.

Theory. A channel looks at the `FaultState` of its server before it does what its base class does. Faults of publishes
need every publish to take the long way (`Route.plain` is false), so cached routes are dropped when they begin and end.
A delivery that is requeued without the client's knowledge stays in the table of unacked deliveries, as that of a
`Former`: so the client may settle it.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from leveret.broker.amqp.fastpath import unpack_ack, unpack_method
from leveret.broker.channel.settlement import settle_records
from leveret.broker.connection.state import OPEN
from leveret.broker.embedded.fault_state import (
    AFTER_CONFIRM,
    BEFORE_CONFIRM,
    MID_BODY,
    FaultState,
    SingleConfirms,
    distance_of_duplicate,
)
from leveret.broker.embedded.hostile_consumer import Former, HostileConsumer
from leveret.broker.embedded.recording import RecordedChannel, Recorder
from leveret.broker.queue.consumer import Consumer
from leveret.broker.queue.queue import Queue
from leveret.broker.vhost.publish_route import Route, Special
from leveret.confirm.channel_confirms import ChannelConfirms

_ACK = 60 << 16 | 80
_NACK = 60 << 16 | 120


class FaultyNode(Protocol):
    """The part of the server that these channels use."""

    faults: FaultState
    held_confirms: dict["FaultyChannel", None]


class FaultyChannelHost(Protocol):
    """A connection, as these channels see it."""

    state: str

    @property
    def server(self) -> FaultyNode:
        """The server."""

    def forget_routes(self) -> None:
        """Drop the cached routes."""

    def sever(self) -> None:
        """Drop the connection at once."""

    def sever_after_flush(self) -> None:
        """Drop the connection when its outbox has been sent."""


class FaultyChannel(RecordedChannel):
    """A channel.

    Args:
        recorder: records what is published.
        number: number of the channel.
        host: its connection.

    """

    __slots__ = ("_connection", "_former", "_single", "faults")

    consumer_class = HostileConsumer

    def __init__(self, recorder: Recorder, number: int, host: Any) -> None:
        super().__init__(recorder, number, host)
        self._connection: FaultyChannelHost = host
        self.faults = self._connection.server.faults
        self._single = SingleConfirms()
        self._former: Any = Former()

    def find_route(self, address: bytes, bits: int) -> Route:
        """Find the route of a publish, as `Channel.find_route`."""
        route = super().find_route(address, bits)
        if self.faults.watches_publishes:
            route.plain = False
        return route

    def publish(self, route: Route, special: Special | None, content: bytes) -> None:
        """Publish a complete message, unless a fault prevents it."""
        faults = self.faults
        if route.error is None and faults.take_drop(MID_BODY):
            self._connection.sever()
            return
        confirms = self.confirms
        if route.error is None and confirms is not None and faults.nacks:
            faults.nacks -= 1
            self.published += 1
            self.number_publishes(route)
            confirms.refused(confirms.seq_no)
            if not faults.nacks:
                self._connection.forget_routes()
            return
        super().publish(route, special, content)

    def confirm_unroutable(self, route: Route, confirms: ChannelConfirms) -> None:
        """Confirm a publish without a queue, as `Channel.confirm_unroutable`, or at the end of the turn."""
        if self.faults.answers_late:
            self.number_publishes(route)
        else:
            super().confirm_unroutable(route, confirms)

    def flush_confirms(self, since: int = 0) -> None:
        """Send the confirms that are due, unless a fault holds them or drops the connection."""
        faults = self.faults
        if self.confirms is None or self._connection.state != OPEN:
            return
        if faults.holds_confirms:
            self._connection.server.held_confirms[self] = None
            return
        frames = self.outbox.frames
        before = len(frames)
        super().flush_confirms(since)
        if len(frames) == before:
            return
        confirms = [confirm for frame in frames[before:] for confirm in _confirm_in(bytes(frame))]
        is_acked = any(ack for _, _, ack in confirms)
        if is_acked and faults.take_drop(BEFORE_CONFIRM):
            del frames[before:]
            self._connection.sever()
            return
        seed = "" if faults.seed is None else f"{faults.seed}/{self.number}"
        single = self._single.told(confirms, self.number, seed)
        if single:
            frames[before:] = single
        if is_acked and faults.take_drop(AFTER_CONFIRM):
            self._connection.sever_after_flush()

    def redeliver(self, tags: Iterable[int]) -> None:
        """Requeue unacked deliveries; the client settling them will have no effect. A turn must run afterwards."""
        records = []
        for tag in tags:
            record = self.unacked.get(tag)
            owner: object = None if record is None else record[0]
            if record is not None and not isinstance(owner, Former):
                records.append(record)
                self.unacked[tag] = self._former, 0
        settle_records(self, records, outcome=True)

    def get(self, queue: Queue, *, no_ack: bool) -> None:
        """Handle `basic.get`, as `Channel.get`; a hostile broker requeues some of the messages at once."""
        before = self.delivery_tag, self.redelivered
        super().get(queue, no_ack=no_ack)
        seed, tag = self.faults.seed, self.delivery_tag
        if seed is None or (tag, self.redelivered) != (before[0] + 1, before[1]) or tag not in self.unacked:
            return
        seq_id = self.unacked[tag][1]
        if type(seq_id) is int and distance_of_duplicate(seed, seq_id) is not None:
            self.redeliver([tag])

    def cancel(self, consumer: Consumer) -> None:
        """Cancel a consumer, as `Channel.cancel`."""
        super().cancel(consumer)
        if isinstance(consumer, HostileConsumer):
            consumer.release()

    def closing(self) -> Iterator[None]:
        """Close the channel, as `Channel.closing`."""
        self.release_duplicates()
        yield from super().closing()

    def release_duplicates(self) -> None:
        """Requeue the messages that wait for their second delivery. A turn must run afterwards."""
        for consumer in self.consumers.values():
            if isinstance(consumer, HostileConsumer):
                consumer.release()


def _confirm_in(frame: bytes) -> Iterable[tuple[int, bool, bool]]:
    """Yield delivery tag, multiple and ack of a confirm; nothing for another frame."""
    _, _, _, method = unpack_method(frame, 0)
    if method in {_ACK, _NACK}:
        tag, bits, _ = unpack_ack(frame, 11)
        yield tag, bool(bits & 1), method == _ACK
