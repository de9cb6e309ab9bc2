"""Channels, consumers and connections of an embedded broker, which can have faults, and their sockets.

Theory. These classes look at the `FaultState` of their server before they do what their base classes do. A broker of
its own uses the base classes. Faults of publishes need every publish to take the long way (`Route.plain` is false), so
cached routes are dropped when they begin and end.

A message that is to be delivered twice, because the broker is hostile, stays unacked in its queue after its first
delivery. In the channel's table of unacked deliveries a `Former` takes the place of its consumer: the client may settle
that delivery, which gives credit and has no other effect; so it is with all that is requeued without the client's
knowledge. After some younger messages the message is due: it is requeued, and becomes the next delivery, because its
position is before theirs. The order of deliveries depends on the seed and on the order of the messages, not on when the
client acks or how many messages a turn has: a hostile broker delivers one at a time, and the consumer has no room from
the moment at which a message is due until it is requeued.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from typing import Any, cast

from leveret.broker.amqp.fastpath import unpack_ack, unpack_method
from leveret.broker.channel.interfaces import FAILED
from leveret.broker.channel.late_settlement import Nowhere
from leveret.broker.channel.settlement import settle_records
from leveret.broker.connection.connection import Connection
from leveret.broker.connection.state import CLOSED, LOST, OPEN
from leveret.broker.embedded.fault_state import (
    AFTER_CONFIRM,
    BEFORE_CONFIRM,
    MID_BODY,
    Duplicates,
    FaultState,
    SingleConfirms,
    distance_of_duplicate,
    interleaved,
    middle_of_body,
)
from leveret.broker.embedded.recording import RecordedChannel, Recorder
from leveret.broker.network.gate import Gate
from leveret.broker.network.socket_driver import SocketDriver
from leveret.broker.queue.consumer import Consumer
from leveret.broker.queue.interfaces import OwningQueue
from leveret.broker.queue.queue import Queue, RunListener
from leveret.broker.scheduling.outbox import OUTBOX_LIMIT
from leveret.broker.scheduling.time_source import TimerHandle
from leveret.broker.vhost.publish_route import PropertyDemands, Route
from leveret.confirm.channel_confirms import ChannelConfirms
from leveret.storage.message import Message


class Former:
    """Takes the place of the consumer of a delivery that the client may settle without effect.

    The consumer, if there is one, gets credit when the client settles the delivery.
    """

    def __init__(self, consumer: Consumer | None = None) -> None:
        self.queue = Nowhere()
        self._consumer = consumer
        self._unacked = 0

    def __repr__(self) -> str:
        return "<consumer of a delivery that was requeued>"

    @property
    def unacked(self) -> int:
        """Number of unsettled deliveries of the consumer."""
        return self._unacked if self._consumer is None else self._consumer.unacked

    @unacked.setter
    def unacked(self, count: int) -> None:
        if self._consumer is None:
            self._unacked = count
        else:
            self._consumer.unacked = count

    @property
    def parked(self) -> bool:
        """True if the consumer waits for credit."""
        return self._consumer is not None and self._consumer.parked

    @property
    def ack_timeout(self) -> int | None:
        """Timeout for acks in ms, that of the consumer."""
        return 0 if self._consumer is None else self._consumer.ack_timeout

    def give_back(self, count: int) -> None:
        """Subtract deliveries that were requeued or rejected from the unacked count."""
        if self._consumer is not None:
            self._consumer.give_back(count)

    def wake(self) -> None:
        """Wake the consumer, as `Consumer.wake`."""
        if self._consumer is not None:
            self._consumer.wake()


class HostileConsumer(Consumer, RunListener):
    """A consumer, which gets some of its messages twice while the broker is hostile."""

    def __init__(self, tag: str, queue: OwningQueue, channel: "FaultyChannel", **options: Any) -> None:
        super().__init__(tag, queue, channel, **options)
        self._faults = channel.faults
        self._duplicates = Duplicates()

    @property
    def room(self) -> int:
        """Number of messages that may be delivered now: one at a time to a slow consumer, or of a hostile broker.

        A hostile broker has no room while a message is due.
        """
        room, faults = super().room, self._faults
        if faults.seed is None:
            return room if faults.rate is None else min(room, 1)
        return 0 if self._duplicates.is_due else min(room, 1)

    def deliver(self, seq_ids: Sequence[int], messages: Sequence[Message], *, redelivered: bool) -> None:
        """Send messages, as `Consumer.deliver`, and choose those that are to be delivered twice."""
        super().deliver(seq_ids, messages, redelivered=redelivered)
        seed = self._faults.seed
        if seed is None or self.no_ack or redelivered:
            return
        channel = self.channel
        for tag, seq_id in enumerate(seq_ids, channel.delivery_tag - len(seq_ids) + 1):
            # In the mode consumer-ack-light the queue does not keep what it has delivered: it has other keys.
            if type(seq_id) is int and self._duplicates.delivered(seed, seq_id):
                former: Any = Former(self)  # not kept: it refers back
                channel.unacked[tag] = former, 0
                cast("Queue", self.queue).add_listener(self)

    def queue_ran(self, queue: Queue) -> None:
        """Requeue messages that are due, or all if no younger ones are left to be delivered before them."""
        if not queue.backing.ready_count or self.cancelled:
            self.release()
        elif self._duplicates.is_due:
            self._requeue(self._duplicates.take_due())

    def release(self) -> None:
        """Requeue the messages that wait for their second delivery. A turn must run afterwards."""
        self._requeue(self._duplicates.take_all())

    def _requeue(self, seq_ids: list[int]) -> None:
        queue = cast("Queue", self.queue)
        if not self._duplicates:
            queue.remove_listener(self)
        if seq_ids:
            queue.requeue(seq_ids)
            self.wake()


_ACK = 60 << 16 | 80
_NACK = 60 << 16 | 120
PIECES_A_SECOND = 20  # pieces in which a slow consumer takes its bytes
LEAST_PIPE = 1024  # bytes that a slow consumer may have on their way, at least; else those of a second


class FaultyChannel(RecordedChannel):
    """A channel with faults."""

    consumer_class = HostileConsumer

    def __init__(self, recorder: Recorder, number: int, host: Any) -> None:
        super().__init__(recorder, number, host)
        self._connection: FaultyConnection = host
        self.faults = self._connection.server.faults
        self._single = SingleConfirms()
        self._former: Any = Former()

    def find_route(self, address: bytes, bits: int) -> Route:
        """Find the route of a publish, as `Channel.find_route`."""
        route = super().find_route(address, bits)
        if self.faults.watches_publishes:
            route.plain = False
        return route

    def publish(self, route: Route, demands: PropertyDemands | None, content: bytes) -> None:
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
        super().publish(route, demands, content)

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
        settle_records(self, records, FAILED)

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


class FaultyConnection(Connection):
    """A connection with faults."""

    channels: dict[int, FaultyChannel]  # type: ignore[assignment]

    @property
    def server(self) -> Any:
        """The server, an `EmbeddedServer`."""
        return self.node

    def watch_publishes(self) -> None:
        """Let the next publishes take the long way, or no longer, those too whose content is arriving."""
        self.forget_routes()
        for channel in self.channels.values():
            if channel.missing and channel.route is not None:
                channel.route.generation = -1

    def sever(self) -> None:
        """Drop the connection at once: nothing more is read or sent."""
        if self.state not in {CLOSED, LOST}:
            self.enter(CLOSED)
            self.stalled = True
            self.close_reason = "dropped by a fault"
            cast("FaultyDriver", self.driver).abort()

    def sever_after_flush(self) -> None:
        """Drop the connection when its outbox has been sent."""
        cast("FaultyDriver", self.driver).is_severed = True


class FaultyDriver(SocketDriver):
    """The driver of one connection. What it sends may wait in a pipe first."""

    connection_class = FaultyConnection
    connection: FaultyConnection

    def __init__(self, gate: Gate) -> None:
        super().__init__(gate)
        self._faults = cast("Any", gate.node).faults
        self.is_severed = False  # True if the connection is to be dropped after the next flush
        self._pipe: deque[tuple[float, bytes]] = deque()  # octets on their way, and when they arrive
        self._free_at = 0.0  # time at which a slow consumer has taken everything
        self._timer: TimerHandle | None = None
        self._is_choked = False
        self._is_finishing = False

    def admitted(self) -> None:
        """Called once the client has logged in."""
        super().admitted()
        self.limit_outbox()

    @property
    def descriptor(self) -> int:
        """The descriptor of the socket; -1 once it is closed."""
        return self._socket.fileno()

    def flush(self) -> None:
        """Write the outbox, as `SocketDriver.flush`, with the faults that concern it."""
        faults = self._faults
        connection = self.connection
        if connection.state == LOST or not (faults.shapes_output or self._pipe):
            super().flush()
        else:
            self._flush_faultily(faults)
        if self.is_severed:
            self.sever_gently()

    def _flush_faultily(self, faults: FaultState) -> None:
        connection = self.connection
        outbox = connection.outbox
        if outbox.frames:
            octets = b"".join(outbox.frames)
            outbox.frames.clear()
            connection.sent += 1
            if connection.state == OPEN:
                if faults.moment == MID_BODY and (cut := middle_of_body(octets)):
                    faults.take_drop(MID_BODY)
                    octets = octets[:cut]
                    self.is_severed = True
                elif faults.seed is not None:
                    octets = interleaved(octets, f"{faults.seed}/{connection.sent}")
            connection.octets_out += len(octets)
            self._pass(octets, faults)
        outbox.drained()

    def sever_gently(self) -> None:
        """Drop the connection after what was written; the client reads it before the end of the stream."""
        self.connection.enter(CLOSED)
        self.connection.close_reason = "dropped by a fault"
        self.release_pipe()
        self._transport.close()

    # -- the pipe ---------------------------------------------------------------------------------------------------

    def _pass(self, octets: bytes, faults: FaultState) -> None:
        rate = faults.rate if self.connection.state == OPEN and self.connection.consumes else None
        if self._transport.is_closing():
            return
        if not self._pipe and not faults.delay and rate is None:
            self._transport.write(octets)
            return
        now = self._loop.time_source.now()
        begin = max(now + faults.delay, self._free_at, self._pipe[-1][0] if self._pipe else 0.0)
        if rate is None:
            self._pipe.append((begin, octets))
        else:
            piece = max(1, ceil(rate / PIECES_A_SECOND))
            for at in range(0, len(octets), piece):
                part = octets[at : at + piece]
                begin += len(part) / rate
                self._pipe.append((begin, part))
            self._free_at = begin
            if self._piped > _pipe_limit(rate) and not self._is_choked:
                self._is_choked = True
                self.pause_writing()
        self._set_timer()

    @property
    def _piped(self) -> int:
        return sum([len(octets) for _, octets in self._pipe])

    @property
    def unsent(self) -> int:
        """Number of bytes queued for sending."""
        return super().unsent + self._piped

    def _set_timer(self) -> None:
        if self._timer is None and self._pipe:
            source = self._loop.time_source
            seconds = max(0.0, self._pipe[0][0] - source.now())
            self._timer = source.call_later(seconds, self._loop.run_step, "faults", self._write_due, "")

    def limit_outbox(self) -> None:
        """Let the messages of one turn, too, be no more than a slow consumer may have on their way."""
        rate = self._faults.rate
        self.connection.outbox.limit = OUTBOX_LIMIT if rate is None else min(OUTBOX_LIMIT, _pipe_limit(rate))

    def _write_due(self) -> None:
        self._timer = None
        now = self._loop.time_source.now() + 1e-9  # of rounding
        while self._pipe and self._pipe[0][0] <= now:
            self._write(self._pipe.popleft()[1])
        self._after_write()
        self._set_timer()

    def release_pipe(self) -> None:
        """Write everything that is on its way."""
        while self._pipe:
            self._write(self._pipe.popleft()[1])
        self._free_at = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._after_write()

    def _write(self, octets: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(octets)

    def _after_write(self) -> None:
        rate = self._faults.rate
        if self._is_choked and self._piped <= (0 if rate is None else _pipe_limit(rate) // 2):
            self._is_choked = False
            self.resume_writing()
        if not self._pipe and self._is_finishing:
            self._is_finishing = False
            super().finish()

    def finish(self) -> None:
        """Close the socket once everything is sent."""
        if self._pipe:
            self._is_finishing = True
        else:
            super().finish()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Handle the closing of the socket."""
        self._pipe.clear()
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)


def _pipe_limit(rate: float) -> int:
    return max(LEAST_PIPE, int(rate))


def _confirm_in(frame: bytes) -> Iterable[tuple[int, bool, bool]]:
    """Yield delivery tag, multiple and ack of a confirm; nothing for another frame."""
    _, _, _, method = unpack_method(frame, 0)
    if method in {_ACK, _NACK}:
        tag, bits, _ = unpack_ack(frame, 11)
        yield tag, bool(bits & 1), method == _ACK
