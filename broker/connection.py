"""The server side of one connection: octets in, frames out, no socket and no clock.

`receive` is stops 2 to 5 of a message's way in one loop: frames are parsed where they lie, a publish whose method,
header and body lie together goes straight to its queues' inboxes, an ack to its queue. What does not arrive together
is assembled on its channel; every other method is decoded and dispatched through `broker.methods`.

Theory. `_scan` is swapped with the state: the handshake's, `_scan_open`, `_scan_closing` once we have sent
`connection.close` (only close-ok and close count then), `_scan_nothing` after the end. A scan consumes whole frames
and returns where it stopped; when something raises, `_resume_at` says where the next frame starts.

Hot path: see docs/performance.md.
"""

import logging
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from broker.amqp.codec import decode_method, encode_method, method_ids
from broker.amqp.commands import Basic, Channel as ChannelMethods, Connection as Wire, make
from broker.amqp.errors import MalformedMethod, UnknownMethod
from broker.amqp.fastpath import (
    BASIC_ACK,
    BASIC_CLASS,
    BASIC_PUBLISH,
    FRAME_END,
    FRAME_OVERHEAD,
    HEARTBEAT,
    TYPE_BODY,
    TYPE_HEADER,
    TYPE_HEARTBEAT,
    TYPE_METHOD,
    unpack_ack,
    unpack_frame,
    unpack_header,
    unpack_method,
)
from broker.auth import Permissions, TopicPermissions, User
from broker.channel import Channel
from broker.errors import AMQPError, FrameError, ReplyCode, not_allowed, precondition_failed
from broker.handshake import Handshake, Node, frame_text
from broker.methods import HANDLERS
from broker.queue import Queue
from broker.route import Route, Special, inspect
from broker.turn import Flushable, Outbox
from broker.vhost import VHost
from storage.message import Message

log = logging.getLogger("leveret.connection")
channel_log = logging.getLogger("leveret.channel")

_ROUTES_LIMIT = 4096
_SPECIALS_LIMIT = 1024
_SPECIAL_OCTETS = 1024  # longer property lists are looked at afresh each time
_REPEAT_LIMIT = 65536  # octets of a message up to which its prefix is remembered
_UNKNOWN = object()
_NEVER = b"\xff"  # starts no frame
BODY_LIMIT = 536870912  # no configuration allows a larger body
CLOSE_TIMEOUT = 30.0  # seconds we wait for close-ok, at most
FATAL_DELAY = 3.0  # seconds until a socket with broken framing is dropped (RabbitMQ's SILENT_CLOSE_DELAY)


class ConnectionDriver(Flushable, Protocol):
    """What moves the octets."""

    def close(self, delay: float = 0.0) -> None:
        """Stop reading, write what is queued, and close the socket after `delay` seconds."""


class Connection:
    """One AMQP connection.

    Args:
        node: what all connections of the server share.
        driver: moves the octets.
        peer: the client's address, (host, port).
        local: our address, (host, port).
        now: the time, in seconds of a monotonic clock.

    """

    __slots__ = (
        "_chunks",
        "_closing_channels",
        "_current",
        "_deadline",
        "_have",
        "_listed",
        "_needed",
        "_number",
        "_repeat",
        "_resume_at",
        "_routes",
        "_scan",
        "_seen_router",
        "_seen_users",
        "_silent",
        "_specials",
        "alarmed",
        "capabilities",
        "channel_max",
        "channels",
        "client_properties",
        "close_reason",
        "consumer_max",
        "driver",
        "exclusive_queues",
        "frame_limit",
        "frame_max",
        "global_qos",
        "heartbeat",
        "local",
        "max_message_size",
        "name",
        "node",
        "notifies_cancel",
        "outbox",
        "peer",
        "permissions",
        "published_to",
        "received",
        "sent",
        "state",
        "topic_max_hash",
        "topic_permissions",
        "user",
        "vhost",
    )

    # set by the handshake, before `opened`
    vhost: VHost
    user: User
    permissions: Permissions
    topic_permissions: TopicPermissions

    def __init__(
        self, node: Node, driver: ConnectionDriver, peer: tuple[str, int], local: tuple[str, int], now: float
    ) -> None:
        # per process
        self.node = node
        self.max_message_size = node.max_message_size
        self.consumer_max = node.consumer_max
        self.topic_max_hash = node.topic_max_hash
        self.global_qos = node.global_qos
        # per connection
        self.driver = driver
        self.peer = peer
        self.local = local
        self.name = f"{peer[0]}:{peer[1]} -> {local[0]}:{local[1]}"
        self.outbox = Outbox(node.turn, driver)
        self.channels: dict[int, Channel] = {}
        self.exclusive_queues: dict[str, Queue] = {}
        self.client_properties = b""
        self.capabilities: frozenset[str] = frozenset()
        self.notifies_cancel = False
        self.frame_max = 0
        self.frame_limit = node.initial_frame_max
        self.channel_max = 0
        self.heartbeat = 0
        self.state = "handshake"
        self.close_reason = ""
        self.alarmed = False
        self.received = False
        self.sent = False
        self._silent = 0
        self._listed = False
        self._deadline: float | None = now + node.handshake_timeout
        self._closing_channels: set[int] = set()
        # per read
        self._chunks: list[bytes] = []
        self._have = 0
        self._needed = 0
        self._resume_at = 0
        self._number = 0
        self._current = (0, 0)
        self._routes: dict[bytes, tuple[Channel, Route]] = {}
        self._specials: dict[bytes, Special | None] = {}
        self._repeat: tuple[bytes, int, int, Channel | None, Route | None] = (_NEVER, 0, 0, None, None)
        self._seen_router = -1
        self._seen_users = -1
        self.published_to: tuple[Queue, ...] | list[Queue] = ()
        """The queues of the last route published to in the last read, for flow control."""
        self._scan: Callable[[bytes, int], int] = Handshake(self).scan

    # -- octets in --------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Take the octets of one read. Never raises for what a peer sends; answers are in the outbox."""
        self.received = True
        self.published_to = ()
        if self._chunks:
            self._chunks.append(data)
            self._have += len(data)
            if self._have < self._needed:
                return
            data = b"".join(self._chunks)
            self._chunks.clear()
        at = 0
        while True:
            try:
                scan = self._scan
                at = scan(data, at)
                if scan == self._scan:
                    break
            except AMQPError as error:
                self._fail(error)
                at = self._resume_at
            except Exception:  # a bug of ours: RabbitMQ would answer a crash so, too
                log.exception("internal error on connection %s", self.name)
                self._fail(AMQPError(ReplyCode.INTERNAL_ERROR))
                at = self._resume_at
        if at < len(data):
            self._keep(data[at:])
        self.node.turn.run()

    def _keep(self, rest: bytes) -> None:
        """Keep an incomplete frame until it can be complete."""
        self._chunks = [rest]
        self._have = len(rest)
        if self._have >= 7 and self.state != "handshake":
            self._needed = unpack_frame(rest, 0)[2] + FRAME_OVERHEAD
        else:
            self._needed = self._have + 1

    def _scan_open(self, data: bytes, at: int) -> int:
        """Work through the frames of an open connection."""
        size = len(data)
        if (
            self._seen_router != self.vhost.router.generation
            or self._seen_users != self.node.users.generation
        ):
            self._refresh()
        startswith = data.startswith
        channels = self.channels
        routes, specials = self._routes, self._specials
        limit = self.frame_limit
        touched = self.node.turn.queues
        prefix, total, head, channel, route = self._repeat
        latest: Route | None = None
        while True:
            if startswith(prefix, at):
                # The same publish as the last but for its body: method, header and the body frame's head are equal.
                messages: list[Message] = []
                address, number = route.address, channel.number  # type: ignore[union-attr]
                stop = at + total
                while stop <= size and data[stop - 1] == FRAME_END:
                    messages.append(Message(address, data[at + head : stop], number))
                    at = stop
                    if not startswith(prefix, at):
                        break
                    stop = at + total
                if messages:
                    count = len(messages)
                    latest = route
                    for queue in route.queues:  # type: ignore[union-attr]
                        queue.inbox += messages
                        if not queue.touched:
                            queue.touched = True
                            touched.append(queue)
                    channel.published += count  # type: ignore[union-attr]
                    route.exchange.published_in += count  # type: ignore[union-attr]
                    confirms = channel.confirms  # type: ignore[union-attr]
                    if confirms is not None:
                        confirms.seq_no += count
                        if not channel.confirm_scheduled:  # type: ignore[union-attr]
                            channel.schedule_confirms()  # type: ignore[union-attr]
                    continue
            left = size - at
            if left < 11:
                if left < 7:
                    break
                kind, number, length = unpack_frame(data, at)
                ids = 0
            else:
                kind, number, length, ids = unpack_method(data, at)
            end = at + length + FRAME_OVERHEAD
            if length > limit:
                self._frame_too_large(data, at, kind, length)
            if end > size:
                break
            if data[end - 1] != FRAME_END:
                self._bad_frame_end(data, at, end, kind)
            if kind == TYPE_METHOD:
                if ids == BASIC_PUBLISH:
                    found = routes.get(data[at:end])
                    if found is None:
                        self._resume_at = end
                        self._number = number
                        found = self._find_route(number, data, at, end)
                        if found is None:
                            at = end
                            continue
                    publishing, way = found
                    latest = way
                    if publishing.missing:
                        self._resume_at = end
                        self._number = number
                        self._unexpected_frame(publishing, kind)
                    if size - end >= 22:
                        kind, header_number, length, ids, body_size, _ = unpack_header(data, end)
                        stop = end + length + FRAME_OVERHEAD
                        last = 0
                        if (
                            kind == TYPE_HEADER
                            and header_number == number
                            and ids == BASIC_CLASS
                            and 14 <= length <= limit
                            and stop <= size
                        ):
                            if not body_size:
                                last = stop
                            elif size - stop >= 7:
                                kind, header_number, length = unpack_frame(data, stop)
                                if (
                                    kind == TYPE_BODY
                                    and header_number == number
                                    and length == body_size <= limit
                                ):
                                    last = stop + length + FRAME_OVERHEAD
                        if (
                            last
                            and last <= size
                            and data[stop - 1] == FRAME_END
                            and data[last - 1] == FRAME_END
                        ):
                            special = specials.get(data[end + 19 : stop - 1], _UNKNOWN)
                            if special is _UNKNOWN:
                                self._resume_at = last
                                self._number = number
                                self._current = (60, 40)
                                special = self._inspect(data[end + 7 : stop - 1])
                            if (
                                way.plain
                                and (special is None or special.plain_route)  # type: ignore[attr-defined]
                                and body_size <= self.max_message_size
                            ):
                                message = Message(way.address, data[end:last], number)
                                for queue in way.queues:
                                    queue.inbox.append(message)
                                    if not queue.touched:
                                        queue.touched = True
                                        touched.append(queue)
                                publishing.published += 1
                                way.exchange.published_in += 1  # type: ignore[union-attr]
                                confirms = publishing.confirms
                                if confirms is not None:
                                    confirms.seq_no += 1
                                    if not publishing.confirm_scheduled:
                                        publishing.schedule_confirms()
                                total = last - at
                                if total <= _REPEAT_LIMIT:
                                    prefix = data[at : last - body_size - 1 if body_size else last]
                                    head = end - at
                                    channel, route = publishing, way
                                else:
                                    prefix = _NEVER
                                if total > 4096:
                                    for queue in way.queues:
                                        queue.largest = max(queue.largest, total)
                            else:
                                self._resume_at = last
                                self._number = number
                                self._current = (60, 40)
                                publishing.publish(way, special, data[end:last])  # type: ignore[arg-type]
                            at = last
                            continue
                    publishing.route = way
                    publishing.missing = -1
                    at = end
                    continue
                if ids == BASIC_ACK and length == 13:
                    acking = channels.get(number)
                    if acking is not None and acking.tx is None and not acking.missing:
                        tag, multiple, _ = unpack_ack(data, at + 11)
                        if multiple:
                            self._resume_at = end
                            self._number = number
                            self._current = (60, 80)
                            acking.ack(tag, multiple=True)
                        else:
                            record = acking.unacked.pop(tag, None)
                            if record is None:
                                self._resume_at = end
                                self._number = number
                                raise _unknown_tag(tag)
                            consumer, seq_id = record
                            consumer.unacked -= 1
                            acking.acked += 1
                            acked = consumer.queue
                            acked.acks.append(seq_id)
                            if not acked.touched:
                                acked.touched = True
                                touched.append(acked)
                            if consumer.parked:
                                consumer.wake()
                            if acking.global_prefetch:
                                acking.wake_consumers()
                        at = end
                        continue
                self._resume_at = end
                self._number = number
                self._method(number, data, at, end)
                at = end
                if self.state != "open":
                    return at
                if self._seen_router != self.vhost.router.generation:
                    self._refresh()
                prefix, total, head, channel, route = self._repeat
                continue
            if kind == TYPE_BODY:
                self._resume_at = end
                self._number = number
                assembling = channels.get(number)
                if assembling is None or assembling.missing <= 0:
                    self._stray_content(number, data, at, end, kind)
                else:
                    assembling.parts.append(data[at:end])
                    assembling.missing = missing = assembling.missing - length
                    if missing <= 0:
                        self._body_complete(assembling, missing)
            elif kind == TYPE_HEADER:
                self._resume_at = end
                self._number = number
                assembling = channels.get(number)
                if assembling is None or assembling.missing >= 0:
                    self._stray_content(number, data, at, end, kind)
                else:
                    self._header(assembling, data, at, end)
            else:
                self._resume_at = end
                self._number = number
                self._other_frame(kind, number, data, at, end)
            at = end
        if latest is not None:
            self.published_to = latest.queues  # type: ignore[assignment]
        self._repeat = prefix, total, head, channel, route
        return at

    # -- publishing -------------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Topology or permissions changed: what was worked out from them is void."""
        self.forget_routes()
        self._seen_router = self.vhost.router.generation
        if self._seen_users != self.node.users.generation:
            self._seen_users = self.node.users.generation
            users, name, vhost = self.node.users, self.user.name, self.vhost.name
            self.user = users.get(name) or self.user
            self.permissions = users.permissions(name, vhost)
            self.topic_permissions = users.topic_permissions(name, vhost)

    def forget_routes(self) -> None:
        """Drop the cached routes."""
        self._routes.clear()
        self._repeat = (_NEVER, 0, 0, None, None)

    def _find_route(self, number: int, data: bytes, at: int, end: int) -> tuple[Channel, Route] | None:
        """Work out the route for a publish frame met for the first time; None if the frame is to be ignored."""
        self._current = (60, 40)
        channel = self.channels.get(number)
        if channel is None:
            self._no_channel(number, Basic.Publish)
            return None
        if channel.missing:
            self._unexpected_frame(channel, TYPE_METHOD)
        try:
            decode_method(data, at + 7, end - 1)
        except MalformedMethod as error:
            raise _malformed(error) from None
        self.node.turn.run()  # what was published before must not meet a queue that is looked up now
        self._current = (60, 40)
        address = data[at + 13 : end - 2]
        route = channel.find_route(address, data[end - 2])
        found = channel, route
        if route.error is None:
            if len(self._routes) >= _ROUTES_LIMIT:
                self._routes.clear()
            self._routes[data[at:end]] = found
        return found

    def _inspect(self, payload: bytes) -> Special | None:
        special = inspect(payload)
        octets = payload[12:]
        if len(octets) <= _SPECIAL_OCTETS:
            if len(self._specials) >= _SPECIALS_LIMIT:
                self._specials.clear()
            self._specials[octets] = special
        return special

    def _header(self, channel: Channel, data: bytes, at: int, end: int) -> None:
        """A content header that did not arrive together with its publish."""
        self._current = (60, 40)
        length = end - at - FRAME_OVERHEAD
        if length < 14:
            raise AMQPError(ReplyCode.INTERNAL_ERROR)
        _, _, _, ids, body_size, _ = unpack_header(data, at)
        if ids >> 16 != 60:
            text = f"expected content header for class 60, got one for class {ids >> 16} instead"
            raise AMQPError(ReplyCode.UNEXPECTED_FRAME, text)
        octets = data[at + 19 : end - 1]
        special = self._specials.get(octets, _UNKNOWN)
        if special is _UNKNOWN:
            special = self._inspect(data[at + 7 : end - 1])
        channel.special = special  # type: ignore[assignment]
        if body_size > BODY_LIMIT:
            text = f"content body size {body_size} exceeds maximum allowed size {BODY_LIMIT}"
            raise AMQPError(ReplyCode.FRAME_ERROR, text)
        if body_size > self.max_message_size:
            text = f"message size {body_size} is larger than configured max size {self.max_message_size}"
            raise precondition_failed(text)
        channel.parts = [data[at:end]]
        channel.missing = body_size
        if not body_size:
            self._body_complete(channel, 0)

    def _body_complete(self, channel: Channel, missing: int) -> None:
        """All octets of a body are here (or more than were declared: `missing` < 0)."""
        self._current = (60, 40)
        content = b"".join(channel.parts)
        channel.parts = []
        channel.missing = 0
        if missing < 0:
            raise AMQPError(ReplyCode.FRAME_ERROR, "content body frame exceeds remaining content size")
        route, special = channel.route, channel.special
        assert route is not None
        channel.publish(route, special, content)

    # -- other frames -----------------------------------------------------------------------------------------------

    def _method(self, number: int, data: bytes, at: int, end: int) -> None:
        """Any method but a publish or a plain ack."""
        self.node.turn.run()  # everything before it takes effect before it
        self._current = (0, 0)
        try:
            method = decode_method(data, at + 7, end - 1)
        except UnknownMethod as error:
            raise AMQPError(
                ReplyCode.COMMAND_INVALID, "unimplemented method", error.class_id, error.method_id
            ) from None
        except MalformedMethod as error:
            if number == 0 and error.class_id:
                raise AMQPError(ReplyCode.INTERNAL_ERROR) from None
            raise _malformed(error) from None
        self._current = method_ids(method)
        if number == 0:
            self._connection_method(method)
            return
        channel = self.channels.get(number)
        if channel is None:
            if isinstance(method, ChannelMethods.Open) and number not in self._closing_channels:
                self._open_channel(number)
            else:
                self._no_channel(number, type(method))
            return
        if channel.missing:
            self._unexpected_frame(channel, TYPE_METHOD)
        handler = HANDLERS.get(type(method))
        if handler is not None:
            handler(channel, method)
        elif isinstance(method, ChannelMethods.Close):
            self._drop_channel(channel)
            self.outbox.send(encode_method(number, ChannelMethods.CloseOk()))
        elif isinstance(method, ChannelMethods.Open):
            raise AMQPError(ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen")
        else:
            raise AMQPError(ReplyCode.COMMAND_INVALID, "unimplemented method")

    def _open_channel(self, number: int) -> None:
        opened = len(self.channels)
        self._current = (0, 0)
        if self.channel_max and opened >= self.channel_max:
            text = f"number of channels opened ({opened}) has reached the negotiated channel_max ({self.channel_max})"
            raise not_allowed(text)
        self.node.check_channel_limits(self.user)
        self.channels[number] = Channel(number, self)
        self.node.channel_opened(self.user)
        self.outbox.send(encode_method(number, ChannelMethods.OpenOk()))

    def _no_channel(self, number: int, method: type) -> None:
        """A method on a channel that is not open: swallowed while we await close-ok, else an error."""
        if number in self._closing_channels:
            if method is ChannelMethods.CloseOk:
                self._closing_channels.discard(number)
            elif method is ChannelMethods.Close:  # crossed ours
                self.outbox.send(encode_method(number, ChannelMethods.CloseOk()))
            return
        if number == 0:
            raise AMQPError(ReplyCode.CHANNEL_ERROR, "unexpected method in connection state running")
        raise AMQPError(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'")

    def _connection_method(self, method: Any) -> None:
        if isinstance(method, Wire.Close):
            self.close_reason = method.reply_text or "closed by the client"
            self._release()
            self.outbox.send(encode_method(0, Wire.CloseOk()))
            self._end(0.0)
        elif isinstance(method, Wire.UpdateSecret):
            # users with passwords have no secret that expires: RabbitMQ's internal backend accepts any
            self.outbox.send(encode_method(0, Wire.UpdateSecretOk()))
        else:
            raise AMQPError(ReplyCode.CHANNEL_ERROR, "unexpected method in connection state running")

    def _other_frame(self, kind: int, number: int, data: bytes, at: int, end: int) -> None:
        """A heartbeat, or a type that is none."""
        if kind != TYPE_HEARTBEAT or (end - at > FRAME_OVERHEAD and not number):
            self._current = (0, 0)
            raise AMQPError(
                ReplyCode.FRAME_ERROR, f"{frame_text(kind, data[at + 7 : end - 1])}: unknown_frame"
            )
        if number:
            self._current = (0, 0)
            raise AMQPError(ReplyCode.UNEXPECTED_FRAME, frame_text(kind, data[at + 7 : end - 1]))

    def _stray_content(self, number: int, data: bytes, at: int, end: int, kind: int) -> None:
        """A content frame that nothing announced."""
        if number in self._closing_channels:
            return
        self._current = (0, 0)
        channel = self.channels.get(number)
        if channel is None:
            if number:
                raise AMQPError(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'")
            raise AMQPError(ReplyCode.UNEXPECTED_FRAME, frame_text(kind, data[at + 7 : end - 1]))
        self._unexpected_frame(channel, kind)

    def _unexpected_frame(self, channel: Channel, kind: int) -> NoReturn:
        """505: the frame is not what the channel's content assembly needs next."""
        self._current = (60, 40)
        if channel.missing < 0:
            text = "expected content header for class 60, got non content header frame instead"
        elif channel.missing > 0:
            text = "expected content body, got non content body frame instead"
        else:
            self._current = (0, 0)
            text = "expected method frame, got non method frame instead"
        del kind
        raise AMQPError(ReplyCode.UNEXPECTED_FRAME, text)

    def _frame_too_large(self, data: bytes, at: int, kind: int, length: int) -> NoReturn:
        self._resume_at = len(data)
        text = frame_text(kind, data[at + 7 : at + 7])
        limit = self.frame_limit - FRAME_OVERHEAD  # the grace of 8 octets is not named
        raise FrameError(f"{text}: {{frame_too_large,{length},{limit}}}")

    def _bad_frame_end(self, data: bytes, at: int, end: int, kind: int) -> NoReturn:
        self._resume_at = len(data)
        marker = f"{{invalid_frame_end_marker,{data[end - 1]}}}"
        raise FrameError(f"{frame_text(kind, data[at + 7 : end - 1])}: {marker}")

    # -- closing ----------------------------------------------------------------------------------------------------

    def _fail(self, error: AMQPError) -> None:
        """Turn an error into a Close: the one place where that happens."""
        if self.state == "closed":
            return
        class_id, method_id = (error.class_id, error.method_id) if error.class_id else self._current
        if isinstance(error, FrameError) or (
            error.code is ReplyCode.INTERNAL_ERROR and not error.explanation
        ):
            class_id = method_id = 0
        self._current = (0, 0)
        channel = self._failing_channel(error)
        if channel is None:
            self._close(error, class_id, method_id)
            return
        channel_log.error(
            "error on connection %s, channel %d: %s", self.name, channel.number, error.reply_text
        )
        self.node.turn.run()
        self._drop_channel(channel)
        self._closing_channels.add(channel.number)
        close = make(ChannelMethods.Close, int(error.code), error.reply_text, class_id, method_id)
        self.outbox.send(encode_method(channel.number, close))

    def _failing_channel(self, error: AMQPError) -> Channel | None:
        """The channel a soft error closes: that of the frame that ended at `_resume_at`."""
        return None if error.is_hard else self.channels.get(self._number)

    def _close(self, error: AMQPError, class_id: int, method_id: int) -> None:
        """Send `connection.close` and wait for close-ok."""
        log.error("error on connection %s: %s", self.name, error.reply_text)
        self.close_reason = error.reply_text
        self._release()
        self.outbox.send(
            encode_method(0, make(Wire.Close, int(error.code), error.reply_text, class_id, method_id))
        )
        if isinstance(error, FrameError):
            self._end(FATAL_DELAY)
        else:
            self.state = "closing"
            self._scan = self._scan_closing
            self.node.deadline(self, min(float(self.heartbeat) or CLOSE_TIMEOUT, CLOSE_TIMEOUT))

    def _scan_closing(self, data: bytes, at: int) -> int:
        """We have sent `connection.close`: only close-ok and close count."""
        size = len(data)
        while size - at >= FRAME_OVERHEAD:
            kind, number, length = unpack_frame(data, at)
            end = at + length + FRAME_OVERHEAD
            if length > self.frame_limit or (end <= size and data[end - 1] != FRAME_END):
                self._end(0.0)
                return size
            if end > size:
                break
            if kind == TYPE_METHOD and number == 0 and length >= 4:
                if data[at + 7 : at + 11] == _CLOSE:
                    self.outbox.send(encode_method(0, Wire.CloseOk()))
                elif data[at + 7 : at + 11] == _CLOSE_OK:
                    self._end(0.0)
                    return size
            at = end
        return at

    def _scan_nothing(self, data: bytes, at: int) -> int:
        """The connection is over; what still arrives does not matter."""
        del at
        return len(data)

    def _drop_channel(self, channel: Channel) -> None:
        """A channel is over: everything it holds goes back."""
        self.channels.pop(channel.number, None)
        self.forget_routes()
        channel.missing = 0
        channel.parts = []
        channel.close()
        self.node.channel_closed(self.user, channel)

    def _release(self) -> None:
        """Channels and exclusive queues go; nothing of this connection is left in the vhost. May be called again."""
        self.node.turn.run()
        for channel in list(self.channels.values()):
            self._drop_channel(channel)
        for queue in list(self.exclusive_queues.values()):
            self.vhost.delete_queue(queue)
        self.exclusive_queues.clear()
        self._closing_channels.clear()
        self.node.turn.run()

    def _end(self, delay: float) -> None:
        """Nothing more is read; the socket goes once the outbox is written and `delay` seconds have passed."""
        self.state = "closed"
        self._scan = self._scan_nothing
        self.driver.close(delay)

    def force_close(self, reason: str) -> None:
        """Close with 320 CONNECTION_FORCED, as for a shutdown or an administrator."""
        if self.state == "open":
            self._current = (0, 0)
            self._fail(AMQPError(ReplyCode.CONNECTION_FORCED, reason))
        elif self.state == "handshake":
            self._end(0.0)

    def lost(self) -> None:
        """The socket is gone. May be called again."""
        if self.state != "lost":
            self.state = "lost"
            if self._listed:
                self._release()
                self.node.connection_closed(self)
            self._scan = self._scan_nothing
            self._chunks.clear()

    # -- the handshake's side ---------------------------------------------------------------------------------------

    def opened(self, user: User, vhost: VHost) -> None:
        """The handshake is through."""
        self.user = user
        self.vhost = vhost
        self.notifies_cancel = "consumer_cancel_notify" in self.capabilities
        self.state = "open"
        self._deadline = None
        self._listed = True
        self.node.connection_opened(self)
        self._scan = self._scan_open

    @property
    def consumes(self) -> bool:
        """Whether it has consumers, or deliveries to settle."""
        return any(channel.consumers or channel.unacked for channel in self.channels.values())

    @property
    def message_size(self) -> int:
        """Octets on the wire of the last message that could be remembered; 0 if unknown."""
        return self._repeat[1]

    def refuse(self, error: AMQPError, class_id: int, method_id: int) -> None:
        """The handshake failed with an error the client is told."""
        self._close(error, class_id, method_id)

    def end(self, delay: float) -> None:
        """The handshake failed, and the client is told nothing."""
        self._end(delay)

    def check_transient_queue(self, *, durable: bool, exclusive: bool) -> None:
        """541 where transient queues that are not exclusive are denied, as in RabbitMQ 4.3."""
        if self.node.transient_denied and not durable and not exclusive:
            text = "Feature `transient_nonexcl_queues` is deprecated and denied by the configuration."
            raise AMQPError(ReplyCode.INTERNAL_ERROR, text)

    # -- time -------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> float | None:
        """Do what is due; returns when to call again (monotonic seconds), or None for never."""
        if self.state == "lost":
            return None
        if self._deadline is not None:
            if now < self._deadline:
                return self._deadline
            if self.state == "handshake":
                log.warning("closing connection %s: handshake_timeout", self.name)
            self._end(0.0)
            return None
        if not self.heartbeat:
            return None
        half = self.heartbeat / 2
        if self.received:
            self.received = False
            self._silent = 0
        else:
            self._silent += 1
            if self._silent >= 4:  # two whole intervals (spec 4.2.7)
                log.warning(
                    "closing connection %s: missed heartbeats from client, timeout: %ds",
                    self.name,
                    self.heartbeat,
                )
                self.close_reason = "missed heartbeats"
                self._release()
                self._end(0.0)
                return None
        if not self.sent:
            self.outbox.send(HEARTBEAT)
        self.sent = False
        return now + half

    def set_deadline(self, at: float) -> None:
        """End the connection at that time unless its state changes before."""
        self._deadline = at


_CLOSE = (10 << 16 | 50).to_bytes(4, "big")
_CLOSE_OK = (10 << 16 | 51).to_bytes(4, "big")


def _unknown_tag(tag: int) -> AMQPError:
    return AMQPError(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {tag}", 60, 80)


def _malformed(error: MalformedMethod) -> AMQPError:
    """What a payload that does not decode is answered with (as observed, see `broker.amqp.errors`)."""
    if not error.explanation:
        return AMQPError(ReplyCode.INTERNAL_ERROR)
    return AMQPError(ReplyCode.FRAME_ERROR, error.explanation, error.class_id, error.method_id)
