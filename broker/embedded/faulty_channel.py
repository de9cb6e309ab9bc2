"""Channels of an embedded broker, which can have faults. Pure.

Theory. A channel looks at the `FaultState` of its server before it does what its base class does. Faults of publishes
need every publish to take the long way (`Route.plain` is false), so cached routes are dropped when they begin and end.
A delivery that is requeued without the client's knowledge stays in the table of unacked deliveries, with a consumer
whose queue ignores everything: so the client may settle it.
"""

from collections.abc import Collection, Iterable
from typing import Any, Protocol, Self

from leveret.broker.amqp.fastpath import unpack_ack, unpack_method
from leveret.broker.channel.settlement import settle_records
from leveret.broker.connection.state import OPEN
from leveret.broker.embedded.fault_state import (
    AFTER_CONFIRM,
    BEFORE_CONFIRM,
    MID_BODY,
    FaultState,
    SingleConfirms,
    is_duplicated,
)
from leveret.broker.embedded.recording import RecordedChannel, Recorder
from leveret.broker.queue.consumer import Consumer
from leveret.broker.queue.settings import NO_SETTINGS
from leveret.broker.vhost.publish_route import Route, Special
from leveret.confirm.channel_confirms import ChannelConfirms

_ACK = 60 << 16 | 80
_NACK = 60 << 16 | 120


class FaultyNode(Protocol):
    """The part of the server that these channels use."""

    faults: FaultState
    held_confirms: dict["FaultyChannel", None]
    duplicated: set[tuple[str, str, int]]


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


class _Ignored(list[int]):
    """A list that ignores what is added."""

    def append(self, each: int) -> None:
        """Do nothing."""

    def __iadd__(self, others: Iterable[int]) -> Self:  # type: ignore[override, misc]
        return self


class _Nowhere:
    """The queue of deliveries that were requeued without the client's knowledge: it ignores their settlement."""

    name = ""
    durable = False
    delivered = 0
    touched = True
    has_input = False
    settings = NO_SETTINGS

    def __init__(self) -> None:
        self.acks = _Ignored()

    def run(self) -> bool:
        """Do nothing."""
        return False

    def give_up(self) -> None:
        """Do nothing."""

    def touch(self) -> None:
        """Do nothing."""

    def discard(self, seq_ids: Collection[int]) -> None:
        """Do nothing."""

    def requeue(self, seq_ids: Collection[int]) -> None:
        """Do nothing."""

    def rejoin(self, consumer: Consumer) -> None:
        """Do nothing."""

    def suspend(self) -> None:
        """Do nothing."""

    def resume(self) -> None:
        """Do nothing."""


class _Former:
    """Takes the place of the consumer of such a delivery."""

    parked = False
    ack_timeout = 0

    def __init__(self) -> None:
        self.unacked = 0
        self.queue = _Nowhere()

    def __repr__(self) -> str:
        return "<consumer of a delivery that was requeued>"

    def give_back(self, count: int) -> None:
        """Do nothing."""

    def wake(self) -> None:
        """Do nothing."""


class FaultyChannel(RecordedChannel):
    """A channel.

    Args:
        recorder: records what is published.
        number: number of the channel.
        host: its connection.

    """

    __slots__ = ("_connection", "_faults", "_former", "_single", "seen_tag")

    def __init__(self, recorder: Recorder, number: int, host: Any) -> None:
        super().__init__(recorder, number, host)
        self._connection: FaultyChannelHost = host
        self._faults = self._connection.server.faults
        self._single = SingleConfirms()
        self._former: Any = _Former()
        self.seen_tag = 0
        """Delivery tags up to here have been judged by a hostile broker."""

    def find_route(self, address: bytes, bits: int) -> Route:
        """Find the route of a publish, as `Channel.find_route`."""
        route = super().find_route(address, bits)
        if self._faults.watches_publishes:
            route.plain = False
        return route

    def publish(self, route: Route, special: Special | None, content: bytes) -> None:
        """Publish a complete message, unless a fault prevents it."""
        faults = self._faults
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
        if self._faults.answers_late:
            self.number_publishes(route)
        else:
            super().confirm_unroutable(route, confirms)

    def flush_confirms(self) -> None:
        """Send the confirms that are due, unless a fault holds them or drops the connection."""
        faults = self._faults
        if self.confirms is None or self._connection.state != OPEN:
            return
        if faults.holds_confirms:
            self._connection.server.held_confirms[self] = None
            return
        frames = self.outbox.frames
        before = len(frames)
        super().flush_confirms()
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
            if record is not None and record[0] is not self._former:
                records.append(record)
                self.unacked[tag] = self._former, 0
        settle_records(self, records, outcome=True)

    def duplicate(self, seed: int) -> None:
        """Redeliver some of the deliveries of this turn, as a hostile broker; no message more than once."""
        first, self.seen_tag = self.seen_tag + 1, self.delivery_tag
        known, tags = self._connection.server.duplicated, []
        for tag in range(first, self.delivery_tag + 1):
            record = self.unacked.get(tag)
            if record is None:
                continue
            queue, seq_id = record[0].queue.name, record[1]
            message = self.vhost.name, queue, seq_id
            if message not in known and is_duplicated(f"{seed}/{queue}", seq_id):
                known.add(message)
                tags.append(tag)
        if tags:
            self.redeliver(tags)


def _confirm_in(frame: bytes) -> Iterable[tuple[int, bool, bool]]:
    """Yield delivery tag, multiple and ack of a confirm; nothing for another frame."""
    _, _, _, method = unpack_method(frame, 0)
    if method in {_ACK, _NACK}:
        tag, bits, _ = unpack_ack(frame, 11)
        yield tag, bool(bits & 1), method == _ACK
