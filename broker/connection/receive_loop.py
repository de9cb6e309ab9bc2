"""The receive loop: turns the bytes that a connection reads into publishes, acks and method calls.

`receive` does stops 2 to 5 of a message's path in one loop: frames are parsed in place, a publish whose method, header
and body are in one read goes straight to its queues' inboxes, an ack to its queue. Content that arrives in several
reads is assembled on its channel; every other method goes to the connection's `_method`.

What finds publishes by their bytes alone must live in `broker.amqp.publishes`, what puts messages into inboxes and
counts them in `Route.put`. Here is what changes a channel, and what would cost a call for each frame.

A scan consumes whole frames and returns the offset where it stopped; after an exception, `_resume_at` is the start of
the next frame, `_number` the channel and `_current` the method in which it happened.

Hot path: see docs/performance.md.
"""
# ruff: noqa: C901, PLR0912, PLR0915 - hot: one flat function is several times cheaper than small ones
# ruff: noqa: PLR2004 - offsets and numbers of the format are named beside them
# ruff: noqa: S101 - asserts tell the type checker what always holds; no input is checked by them

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from leveret.broker.amqp.codec import decode_method, frame_text
from leveret.broker.amqp.commands import Basic
from leveret.broker.amqp.errors import MalformedMethod, MethodTooLarge
from leveret.broker.amqp.fastpath import (
    BASIC_ACK,
    BASIC_CLASS,
    BASIC_PUBLISH,
    FRAME_END,
    FRAME_OVERHEAD,
    TYPE_BODY,
    TYPE_HEADER,
    TYPE_HEARTBEAT,
    TYPE_METHOD,
    content_frames,
    unpack_ack,
    unpack_acks,
    unpack_frame,
    unpack_header,
    unpack_method,
)
from leveret.broker.amqp.properties import FLAG_HEADERS
from leveret.broker.amqp.publishes import (
    ASKS_SOMETHING,
    LARGE,
    NEEDS_DECODER,
    UNIQUE,
    LargeBody,
    end_of_content,
    equal_contents,
    is_address,
    varied_contents,
    whole_content,
)
from leveret.broker.auth.permissions import (
    Asked,
    Permissions,
    Rights,
    TopicPermissions,
)
from leveret.broker.auth.users import User
from leveret.broker.channel.channel import Channel
from leveret.broker.connection.node import Node
from leveret.broker.connection.pending_reply import PendingReply
from leveret.broker.connection.state import HANDSHAKE, HEADER, OPEN
from leveret.broker.counters.totals import MOST_SIZES
from leveret.broker.errors import AMQPError, FrameError, NotYet, ReplyCode, precondition_failed
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.outbox import Outbox
from leveret.broker.vhost.copies import Copies
from leveret.broker.vhost.publish_route import (
    UNKNOWN,
    PropertyDemands,
    Route,
    inspect,
    inspect_unique,
)
from leveret.broker.vhost.vhost import VHost
from leveret.storage.message import Message

log = logging.getLogger("leveret.connection")

_ROUTES_LIMIT = 4096
_DEMANDS_LIMIT = 256
_LISTS_LIMIT = 32
_DEMANDS_OCTETS = 512  # longer property lists are not cached
_REPEAT_LIMIT = 65536  # largest message in octets whose prefix is remembered
_PARTS_LIMIT = 256  # body frames after which small ones are joined
_PACK_OCTETS = 4096  # if they have no more octets than this
_WOVEN_OCTETS = 16384  # of publishes that interrupt each other, after which they may no longer do so
_PIECE_OCTETS = 16384  # size in bytes from which a part of a body frame is taken before the rest has arrived
_NEVER: tuple[()] = ()  # no input starts with it
_Found = tuple[Channel, Route]
_Repeat = tuple[bytes | tuple[()], int, int, Channel | None, Route | None, bool, _Found | None]
"""The last publish that came twice: its bytes up to the body, its size, that of its method frame, its channel and
route, whether the route makes the message; and channel and route of the last publish, which may come again."""
_NO_REPEAT: _Repeat = (_NEVER, 0, 0, None, None, False, None)
_Content = tuple[bytes | tuple[()], int, int, int, PropertyDemands | None, bool, bool]
"""The last content that arrived whole: its bytes up to the body (`_NEVER` if they will hardly come again), its size,
its channel (-1 in that case), its body size, what it requires, whether that is at most persistence, whether it is
persistent."""
_NO_CONTENT: _Content = (_NEVER, 0, -1, 0, None, False, False)
_ACK_OCTETS = 13 + FRAME_OVERHEAD  # size in bytes of the frame of an ack
_SINGLE = FRAME_END  # the end of such a frame that is not `multiple`, as a number of two bytes
STALL_OCTETS = 1024 * 1024  # content sent in answer to one read, after which reading pauses
BODY_LIMIT = 536870912  # no configuration allows a larger body


class _Discarded(list[bytes | memoryview]):
    """The content of a publish that the user may not send: not stored, and refused when complete, as in RabbitMQ."""

    def append(self, part: bytes | memoryview) -> None:
        """Discard the part."""


_START_OCTETS = 7 + 17  # of an open frame: enough for the text of an error


class OpenFrame:
    """A body frame that has not arrived completely, but whose bytes so far are in the channel's parts.

    `start` are its first bytes, `left` is the number of those that are not in the parts, with the frame end.
    """

    __slots__ = ("channel", "is_begun", "left", "start")

    def __init__(self, channel: Channel, start: bytes, left: int) -> None:
        self.channel = channel
        self.start = start
        self.left = left
        self.is_begun = False


def piece(data: bytes, at: int, end: int) -> bytes | memoryview:
    """Return a part of a read, without a copy if that keeps at most as many other bytes in memory."""
    size = end - at
    if size < _PIECE_OCTETS or 2 * size < len(data):
        return data[at:end]
    return data if size == len(data) else memoryview(data)[at:end]


class ReceiveLoop:
    """The receiving half of a connection; `broker.connection.connection.Connection` is the other half."""

    __slots__ = (
        "_chunks",
        "_closing_channels",
        "_content",
        "_contents",
        "_copies",
        "_current",
        "_demands",
        "_have",
        "_heads",
        "_lists",
        "_most_plain",
        "_needed",
        "_number",
        "_open_frame",
        "_repeat",
        "_resume_at",
        "_routes",
        "_scan",
        "_seen_router",
        "_seen_users",
        "_sizes",
        "blocked",
        "channels",
        "frame_limit",
        "has_declared",
        "heartbeats",
        "is_trusted",
        "max_message_size",
        "name",
        "node",
        "pending_reply",
        "permissions",
        "published",
        "published_to",
        "received",
        "rights",
        "stalled",
        "state",
        "topic_permissions",
        "user",
        "vhost",
    )

    # set by the handshake, before the first frame is scanned here
    vhost: VHost
    user: User
    permissions: Permissions | Asked
    topic_permissions: TopicPermissions | Asked
    outbox: Outbox
    _scan: Callable[[bytes, int], int]

    def __init__(self, node: Node, name: str) -> None:
        # per process
        self.node = node
        self.max_message_size = node.config.limits.max_message_size
        self._most_plain = min(self.max_message_size, node.config.storage.blob_threshold - 1)
        """Bytes of content up to which a publish may need nothing but its route."""
        self._sizes = node.context.totals.sizes
        # per connection
        self.name = name
        self.state = HEADER
        self.channels: dict[int, Channel] = {}
        self.frame_limit = node.config.initial_frame_max
        self.received = False
        self.is_trusted = False  # True for the broker's own one without a user: it may do everything
        self.rights: Rights | None = None
        """The decisions of the backends about the user; None for a user of the internal database."""
        self._closing_channels: set[int] = set()
        self._routes: dict[bytes, tuple[Channel, Route]] = {}
        self._demands: dict[bytes, PropertyDemands | None] = {}
        self._lists: set[bytes] = set()  # property lists that are worth decoding if they come again
        self._repeat: _Repeat = _NO_REPEAT
        self._content: _Content = _NO_CONTENT
        self._contents: dict[int, _Content] = {}  # former values of `_content`, by channel
        self._heads: dict[bytes, tuple[bytes, int, PropertyDemands | None]] = {}
        """Header frames with body size and what they require, of publishes that other channels have interrupted."""
        self._seen_router = -1
        self._seen_users = -1
        self._open_frame: OpenFrame | None = None
        """The body frame whose first bytes have been taken while others have not arrived."""
        self._copies: Copies | None = None
        """Those of the last message published to so many queues that it needs several steps."""
        # per read
        self._chunks: list[bytes] = []
        self._have = 0
        self._needed = 0
        self._resume_at = 0
        self._number = 0
        self._current = (0, 0)
        self.published_to: Sequence[Queue] = ()  # those of the last route of the last read, for flow control
        self.published = False  # True if the last read had a publish, or some of its content
        self.has_declared = False
        """True if a declaration, binding or deletion has stopped the last read, because the disk has a backlog."""
        self.heartbeats = 0  # number of reads that were a heartbeat and nothing else
        self.stalled = False
        """True if the last read is unfinished because its replies are large or its time slice was over: the driver must
        call `receive(b"")` when they have been written and `Turn.when_caught_up`, and reads nothing before."""
        self.blocked = False  # True while it waits for an alarm to clear; nothing more is read
        self.pending_reply: PendingReply | None = None
        """The pending reply that reading waits for; the driver reads nothing meanwhile."""

    # -- what the connection adds -----------------------------------------------------------------------------------

    def _fail(self, error: AMQPError) -> None:
        raise NotImplementedError

    def _method(self, number: int, data: bytes, at: int, end: int) -> None:
        """Execute any method but a publish or a plain ack."""
        raise NotImplementedError

    def _block(self, reason: str) -> None:
        raise NotImplementedError

    def _no_channel(self, number: int, method: type) -> None:
        raise NotImplementedError

    # -- octets in --------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Process the bytes of one read and run the turn. Never raises because of a peer's input."""
        if self.read(data):
            self.turn_ran(is_deferred=self.node.turn.run())

    def hold(self, data: bytes) -> None:
        """Keep the bytes of a read to be processed later, before any others."""
        self._chunks.append(data)
        self._have = self._needed = 0

    def read(self, data: bytes) -> bool:
        """Process the bytes of one read but for what the turn does; replies are in the outbox.

        Never raises because of a peer's input. Returns true if the caller has to run the turn and call `turn_ran`
        before anything else is read; false if the bytes are kept: their processing continues elsewhere, or later if
        `stalled`.
        """
        if self.pending_reply is not None or self.blocked:  # read before the driver was notified
            self.hold(data)
            self.stalled = self.published = False  # processing continues elsewhere
            return False
        if self._copies is not None:
            if not self._copies.is_finished:
                self.hold(data)
                self.stalled = True
                return False
            self._copies = None
        self.received = True
        self.published_to = ()
        self.published = False
        self.stalled = False
        if self._chunks:
            self._chunks.append(data)
            self._have += len(data)
            if data and self._have < self._needed:
                return False
            data = b"".join(self._chunks)
            self._chunks.clear()
        at = 0
        while True:
            try:
                scan = self._scan
                at = scan(data, at)
                if scan == self._scan:
                    break
                if self.state == OPEN and (self.stalled or (self.published and self.node.alarm)):
                    break
                continue
            except AMQPError as error:
                # a route keeps its exception, which would keep this frame, which holds the route
                self._fail(error.with_traceback(None))
            except NotYet as wait:
                self._hold(wait)
            except Exception:  # a bug in the broker: RabbitMQ, too, would report a crash this way
                log.exception("internal error on connection %s", self.name)
                self._fail(AMQPError(ReplyCode.INTERNAL_ERROR))
            at = self._resume_at
            self.stalled = self.node.turn.slices.is_over()
            if self.stalled or self.pending_reply is not None:
                break
        if at < len(data):
            self._keep(data[at:])
            if self.stalled or self.pending_reply is not None:
                self._needed = 0
        if len(self._sizes.fresh) > MOST_SIZES:
            self._sizes.fold()
        return True

    def turn_ran(self, *, is_deferred: bool) -> None:
        """Go on after the turn has processed the last read; `is_deferred` is what `Turn.run` has returned."""
        if is_deferred:
            self.stalled = True
        if self.published and self.node.alarm:
            self._block(self.node.alarm)

    def _hold(self, wait: NotYet) -> None:
        """Execute nothing more until a backend has decided whether the user may publish what was sent last."""
        self.published = True
        pending = PendingReply(self, self._number, self._current)  # type: ignore[arg-type]
        retry = wait.retry
        if retry is None:
            pending.until(wait.subscribe)
        else:
            rest = partial(self._publish_rest, pending, self._number, retry)
            pending.until(lambda _settled: wait.subscribe(rest))

    def _publish_rest(self, pending: PendingReply, number: int, retry: Callable[[], object]) -> None:
        """Go on with a publish that has waited for a decision, unless its connection or channel was closed."""
        if self.pending_reply is not pending:
            return
        if number in self.channels:
            try:
                retry()
            except NotYet as wait:
                wait.subscribe(partial(self._publish_rest, pending, number, wait.retry or retry))
                return
            except AMQPError as error:
                self._number, self._current = number, (60, 40)
                self._fail(error.with_traceback(None))
            except Exception:  # a bug in the broker
                log.exception("internal error on connection %s", self.name)
                self._fail(AMQPError(ReplyCode.INTERNAL_ERROR))
        pending.settled()

    def _keep(self, rest: bytes) -> None:
        """Buffer an incomplete frame until it can be complete."""
        self._chunks = [rest]
        self._have = len(rest)
        if self._open_frame is not None:
            self._needed = min(self._open_frame.left, _PIECE_OCTETS)
        elif self._have >= 7 and self.state not in HANDSHAKE:
            self._needed = unpack_frame(rest, 0)[2] + FRAME_OVERHEAD
        else:
            self._needed = self._have + 1

    def _scan_open(self, data: bytes, at: int) -> int:
        size, begin = len(data), at
        if self.node.alarm:
            size = end_of_content(data, at)
            self.published = size < len(data) or self.published
        if (
            self._seen_router != self.vhost.router.generation
            or self._seen_users != self.node.users.generation
        ):
            self._refresh()
        startswith = data.startswith
        channels, routes, contents = self.channels, self._routes, self._contents
        limit = self.frame_limit
        turn = self.node.turn
        is_over = turn.slices.is_over
        sizes = self._sizes.fresh
        prefix, total, head, channel, route, is_made, candidate = self._repeat
        content = self._content
        start, rest, rest_number, body_size, demands, is_plain, persistent = content
        messages: Sequence[Message]
        latest: Route | None = None
        begun = False
        while True:
            if startswith(prefix, at) and not channel.missing:  # type: ignore[union-attr]
                # The same publish as the last except for its body: method, header and body frame start are equal.
                if is_made:
                    equal, at = equal_contents(data, at, size, prefix, total, head)  # type: ignore[arg-type]
                    messages = route.make(channel, equal) if equal else ()  # type: ignore[union-attr, arg-type]
                else:  # made here: from the list of contents they take 10 % more instructions (9,289, not 8,416)
                    messages = []
                    address, number = route.address, channel.number  # type: ignore[union-attr]
                    stop = at + total
                    while stop <= size and data[stop - 1] == FRAME_END:
                        messages.append(Message(address, data[at + head : stop], number))
                        at = stop
                        if not startswith(prefix, at):
                            break
                        stop = at + total
                if messages:
                    latest = route
                    route.put(channel, messages, total - head)  # type: ignore[union-attr, arg-type]
                    octets = total - len(prefix)
                    sizes[octets - 1 if octets else 0] += len(
                        messages
                    )  # the last octet ends the body's frame
                    if route.wide and is_over():  # type: ignore[union-attr]
                        self.stalled = True
                        break
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
                if kind == TYPE_BODY and left >= _PIECE_OCTETS:
                    at = self._begin_frame(number, data, at, end)
                break
            if data[end - 1] != FRAME_END:
                self._bad_frame_end(data, at, end, kind)
            if kind != TYPE_METHOD:
                self._resume_at = end
                self._number = number
                if kind == TYPE_BODY:
                    self._body(number, data, at, end)
                elif kind == TYPE_HEADER:
                    self._header(number, data, at, end)
                else:
                    self._other_frame(kind, number, data, at, end)
                at = end
                if self.stalled:
                    break
                continue
            if ids == BASIC_PUBLISH:
                found = routes.get(data[at:end])
                if found is None:
                    self._resume_at = end
                    self._number = number
                    if at != begin and is_over():
                        self.stalled = True
                        break
                    found = self._find_route(number, data, at, end)
                    if found is None:
                        if self.stalled:
                            break
                        at = end
                        continue
                publishing, way = found
                latest = way
                if publishing.missing:
                    self._resume_at = end
                    self._number = number
                    self._unexpected_frame(publishing)
                if number != rest_number and rest_number >= 0:
                    if len(start) <= _DEMANDS_OCTETS:
                        contents[rest_number] = content
                    content = contents.get(number, _NO_CONTENT)
                    start, rest, rest_number, body_size, demands, is_plain, persistent = content
                last = end + rest
                if not (startswith(start, end) and last <= size and data[last - 1] == FRAME_END):
                    new = self._find_content(number, data, end, size, is_plain_route=way.plain)
                    if new is None:  # it comes later, or between frames of other channels
                        publishing.route = way
                        publishing.missing = -1
                        begun = True
                        at = end
                        if size - at >= FRAME_OVERHEAD:
                            at, latest = self._scan_woven(data, at, size, way)
                        continue
                    content = new
                    start, rest, rest_number, body_size, demands, is_plain, persistent = content
                    last = end + rest
                if not (way.plain and is_plain):
                    self._resume_at = last
                    self._number = number
                    self._current = (60, 40)
                    publishing.publish(way, demands, data[end:last])
                    sizes[body_size] += 1
                    if (
                        demands is not None
                        and (demands.expiration is not None or way.may_hold)
                        and startswith(data[at:end], last)
                    ):
                        last = self._scan_following(data, last, size, data[at:end], found, demands)
                    at = last
                    if self.stalled or is_over():
                        self.stalled = True
                        break
                    continue
                made = (persistent and bool(way.durable)) or way.makes_all
                if rest_number < 0 and found is candidate and startswith(data[at:end], last) and not way.wide:
                    last = self._scan_varied(data, at, size, data[at:end], publishing, way, made=made)
                    if last > at:
                        at = last
                        continue
                    last = end + rest
                whole = data[end:last]
                message = way.make_one(publishing, whole) if made else Message(way.address, whole, number)
                way.put(publishing, (message,), rest)
                sizes[body_size] += 1
                if found is not candidate:
                    candidate = found
                elif rest_number >= 0:
                    prefix = data[at:end] + start  # type: ignore[operator] # bytes, as it has a channel
                    total, head = last - at, end - at
                    channel, route, is_made = publishing, way, made
                at = last
                if way.wide and is_over():
                    self.stalled = True
                    break
                continue
            if ids == BASIC_ACK and length == 13:
                acking = channels.get(number)
                if acking is not None and not acking.missing:
                    tag, multiple, _ = unpack_ack(data, at + 11)
                    at = end
                    if not multiple and acking.tx is None:
                        record = acking.unacked.pop(tag, None)
                        is_other = True
                        while is_other and record is not None:
                            consumer, seq_id = record
                            acked = consumer.queue
                            acked.acks.append(seq_id)
                            count, is_other = 1, False
                            if not acking.global_prefetch and size - at > 20 and data[at + 2] == number & 255:
                                # acks of the same channel that follow differ in their tags only
                                ack = data[end - _ACK_OCTETS : end - 10]
                                pop, settle = acking.unacked.pop, acked.acks.append
                                stop = size - (size - at) % _ACK_OCTETS
                                for same, tag, single in unpack_acks(memoryview(data)[at:stop]):
                                    if single != _SINGLE or same != ack:
                                        break
                                    at += _ACK_OCTETS
                                    record = pop(tag, None)
                                    if record is None or record[0] is not consumer:
                                        is_other = True
                                        break
                                    settle(record[1])
                                    count += 1
                            consumer.unacked -= count
                            acking.acked += count
                            if acking.global_prefetch:
                                acking.credit_global(consumer)  # before the touch: first woken, first served
                            elif consumer.parked:
                                consumer.wake()
                            if not acked.touched:
                                acked.touched = True
                                turn.queues.append(acked)
                        if record is None:
                            self._resume_at = at
                            self._number = number
                            raise _unknown_tag(tag)
                        continue
                    self._resume_at = end
                    self._number = number
                    self._current = (60, 80)
                    acking.ack(tag, multiple=bool(multiple))
                    if self.pending_reply is not None:
                        break
                    if is_over():
                        self.stalled = True
                        break
                    continue
            self._resume_at = end
            self._number = number
            self._method(number, data, at, end)
            at = self._resume_at  # its end, or its start if it has to be executed again
            if self.state != OPEN:
                return at
            if self.pending_reply is not None:
                break
            if self.stalled or self.outbox.pending > STALL_OCTETS or is_over():
                self.stalled = True
                break
            if self._seen_router != self.vhost.router.generation:
                self._refresh()
            prefix, total, head, channel, route, is_made, candidate = self._repeat
            content = self._content
            start, rest, rest_number, body_size, demands, is_plain, persistent = content
        if latest is not None:
            if not begun:  # otherwise counted with its header, as in RabbitMQ
                self.published = True
            self.published_to = latest.queues
        self._repeat = prefix, total, head, channel, route, is_made, candidate
        self._content = content
        return at

    def _find_content(
        self, number: int, data: bytes, at: int, size: int, *, is_plain_route: bool
    ) -> _Content | None:
        """Return the content of a publish, if it has arrived whole and is not as the last one of its channel.

        The two calls cost publishers whose bodies differ in size each time 3.9 % of their instructions.
        """
        found = whole_content(data, at, size, number, self.frame_limit)
        if found is None:
            return None
        end, stop, body_size, word = found
        is_decoded = word & (NEEDS_DECODER if is_plain_route else ASKS_SOMETHING)
        is_unique = word & UNIQUE and not is_decoded
        if not is_unique:
            octets = data[at + 19 : end - 1]
            demands = self._demands.get(octets, UNKNOWN)
            is_unique = demands is UNKNOWN and word & FLAG_HEADERS and not is_decoded and self._is_new(octets)
        if is_unique:
            demands = inspect_unique(data, at + 21, end - 1, word)
        if demands is UNKNOWN:
            self._resume_at = stop
            self._number = number
            self._current = (60, 40)
            demands = self._inspect(data[at + 7 : end - 1])
        is_plain = (demands is None or demands.plain_route) and stop - at <= self._most_plain
        persistent = demands is not None and demands.persistent
        rest = stop - at
        if is_unique or not is_plain or rest > _REPEAT_LIMIT:
            return _NEVER, rest, -1, body_size, demands, is_plain, persistent
        start = data[at : stop - body_size - 1 if body_size else stop]
        return start, rest, number, body_size, demands, is_plain, persistent

    # -- body frames that arrive in pieces --------------------------------------------------------------------------

    def _begin_frame(self, number: int, data: bytes, at: int, end: int) -> int:
        """Take the first bytes of a body frame whose end has not arrived; returns the end of what was taken."""
        channel = self.channels.get(number)
        if (
            channel is None
            or channel.missing < end - at - FRAME_OVERHEAD
            or type(channel.parts) is _Discarded
        ):
            return at  # processed, or refused, when it is complete
        self._open_frame = OpenFrame(channel, data[at : at + _START_OCTETS], end - at)
        self._scan = self._scan_frame
        return self._scan_frame(data, at)

    def _scan_frame(self, data: bytes, at: int) -> int:
        """Process the next bytes of an incomplete body frame, and of those that follow it in the same body."""
        frame, size = self._open_frame, len(data)
        assert frame is not None  # set together with this scan
        channel, limit = frame.channel, self.frame_limit
        parts, number = channel.parts, channel.number
        while size - at >= min(frame.left, _PIECE_OCTETS):
            stop = at + frame.left
            if stop <= size and data[stop - 1] != FRAME_END:
                self._close_frame(number, size)
                self._wrong_frame_end(TYPE_BODY, frame.start[FRAME_OVERHEAD - 1 :], data[stop - 1])
            if channel.missing > 0:
                if type(parts) is LargeBody:
                    begin = at if frame.is_begun else at + FRAME_OVERHEAD - 1
                    parts.extend_body(memoryview(data)[begin : min(stop - 1, size)])
                else:
                    parts.append(piece(data, at, min(stop, size)))
            if stop > size:
                frame.left = stop - size
                frame.is_begun = True
                return size
            at = stop
            if channel.missing <= 0:  # closed meanwhile
                self._close_frame(number, at)
                self._stray_content(number, b"", 0, 0, TYPE_BODY)
                return at
            self.published = True
            missing = channel.missing - unpack_frame(frame.start, 0)[2]
            if not missing and (
                self._seen_router != self.vhost.router.generation
                or self._seen_users != self.node.users.generation
            ):
                self._refresh()
            channel.missing = missing
            if missing and size - at >= _PIECE_OCTETS and not self.node.alarm:
                kind, another, length = unpack_frame(data, at)
                if kind == TYPE_BODY and another == number and _PIECE_OCTETS <= length <= min(limit, missing):
                    frame.start = data[at : at + _START_OCTETS]
                    frame.left = length + FRAME_OVERHEAD
                    frame.is_begun = False
                    continue
            self._close_frame(number, at)
            channel.packed = len(parts)
            if not missing and self._body_complete(channel, 0) and self.node.turn.slices.is_over():
                self.stalled = True
            return at
        return at

    def _close_frame(self, number: int, end: int) -> None:
        self._open_frame = None
        self._scan = self._scan_open
        self._resume_at = end
        self._number = number

    def _skip_frame(self, data: bytes, at: int) -> int:
        """Discard what has arrived of an incomplete body frame; returns its end."""
        frame = self._open_frame
        if frame is None:
            return at
        taken = min(frame.left, len(data) - at)
        frame.left -= taken
        if not frame.left:
            self._open_frame = None
        return at + taken

    # -- publishing -------------------------------------------------------------------------------------------------

    def _scan_varied(
        self,
        data: bytes,
        at: int,
        size: int,
        method: bytes,
        channel: Channel,
        route: Route,
        *,
        made: bool,
        expires: bool = False,
    ) -> int:
        """Process the run of publishes at `at` whose method frame is the same; returns its end (`made`: by it)."""
        contents, at = varied_contents(
            data,
            at,
            size,
            method,
            channel.number,
            self.frame_limit,
            self._most_plain,
            self._sizes.fresh,
            persistent=made if route.durable and not route.makes_all else None,
            expires=expires,
        )
        if contents:
            messages: Sequence[Message]
            if made:
                messages = route.make(channel, contents)
            else:
                address, number = route.address, channel.number
                messages = [Message(address, content, number) for content in contents]
            route.put(channel, messages, max(map(len, contents)))
        return at

    def _scan_following(
        self, data: bytes, at: int, size: int, method: bytes, found: _Found, demands: PropertyDemands
    ) -> int:
        """Process the run of publishes at `at` after one with an expiration, or to a queue that may hold it.

        Returns its end. Queues look for expirations once they have limits, which the first such message has given them.
        """
        channel, route = found
        if not route.takes_runs or route.wide or any([queue.limits is None for queue in route.queues]):  # noqa: C419
            return at
        made = (demands.persistent and bool(route.durable)) or route.makes_all
        return self._scan_varied(data, at, size, method, channel, route, made=made, expires=True)

    def _scan_woven(self, data: bytes, at: int, size: int, latest: Route) -> tuple[int, Route]:
        """Process publishes on several channels that interrupt each other; returns their end and the last route.

        Stops before a frame that is incomplete or no such frame, or needs more than its bytes, and after
        `_WOVEN_OCTETS`.
        """
        channels, routes, heads = self.channels, self._routes, self._heads
        generation = self.vhost.router.generation
        limit = min(
            self.frame_limit, _PIECE_OCTETS - 1
        )  # larger bodies are assembled without copies of their frames
        sizes = self._sizes.fresh
        has_content, most = False, min(size, at + _WOVEN_OCTETS) - FRAME_OVERHEAD
        while at <= most:
            kind, number, length = unpack_frame(data, at)
            end = at + length + FRAME_OVERHEAD
            if kind == TYPE_METHOD:
                found = routes.get(data[at:end])  # complete if it is there
                if found is None:
                    break
                publishing, way = found
                if publishing.missing:
                    break
                publishing.route = latest = way
                publishing.missing = -1
                at = end
                continue
            channel = channels.get(number)
            if channel is None:
                break
            route: Route = channel.route  # type: ignore[assignment]
            if kind == TYPE_BODY:
                if end > size or length > limit or data[end - 1] != FRAME_END:
                    break
                parts = channel.parts
                if (
                    length != channel.missing
                    or not length
                    or not route.plain
                    or route.wide
                    or route.generation != generation
                    or type(parts) is not list
                    or len(parts) != 1
                ):
                    break
                demands = channel.demands
                if demands is None:
                    made = route.makes_all
                elif demands.plain_route:
                    made = (demands.persistent and bool(route.durable)) or route.makes_all
                else:
                    break
                content = parts[0] + data[at:end]  # type: ignore[operator] # a header is bytes
                channel.missing = 0  # its parts are replaced by the next header
                message = (
                    route.make_one(channel, content) if made else Message(route.address, content, number)
                )
                route.put(channel, (message,), len(content))
                has_content = True
                at = end
                continue
            if kind != TYPE_HEADER or channel.missing >= 0 or not route.plain:
                break
            head = heads.get(data[at:end])  # complete if it is there
            if head is None:
                if end > size or length > limit or data[end - 1] != FRAME_END:
                    break
                head = self._find_head(data, at, end)
                if head is None:
                    break
            header, octets, channel.demands = head
            channel.parts = [header]
            channel.missing = octets
            sizes[octets] += 1
            has_content = True
            at = end
        if has_content:
            self.published = True
        return at, latest

    def _find_head(self, data: bytes, at: int, end: int) -> tuple[bytes, int, PropertyDemands | None] | None:
        """Return a content header with body size and what it requires; None if it is empty, large, wrong or unknown."""
        if end - at < 14 + FRAME_OVERHEAD:
            return None
        _, _, _, ids, octets, word = unpack_header(data, at)
        size = end - at + octets + FRAME_OVERHEAD
        if ids != BASIC_CLASS or not octets or size > self._most_plain or octets > LARGE:
            return None
        is_unique = word & UNIQUE and not word & ASKS_SOMETHING
        if is_unique:
            demands = inspect_unique(data, at + 21, end - 1, word)
        else:
            demands = self._demands.get(data[at + 19 : end - 1], UNKNOWN)
        if demands is UNKNOWN:
            return None
        head = data[at:end], octets, demands
        if not is_unique and end - at <= _DEMANDS_OCTETS:
            if len(self._heads) >= _DEMANDS_LIMIT:
                self._heads.clear()
            self._heads[head[0]] = head
        return head

    def _refresh(self) -> None:
        """Discard everything derived from the topology or permissions, which have changed."""
        self.forget_routes()
        self._seen_router = self.vhost.router.generation
        if self._seen_users != self.node.users.generation and not self.is_trusted:
            self._seen_users = self.node.users.generation
            users, name, vhost = self.node.users, self.user.name, self.vhost.name
            if self.rights is not None:
                self.rights.users_changed()
            else:
                self.user = users.get(name) or self.user
                self.permissions = users.permissions(name, vhost)
                self.topic_permissions = users.topic_permissions(name, vhost)
            for channel in self.channels.values():
                if channel.missing and channel.route is not None:
                    channel.route.generation = -1  # looked up again when the body is complete

    def wait_for_copies(self, copies: Copies) -> None:
        """Execute nothing more until a message has reached all its queues."""
        self._copies = copies
        self.stalled = True

    def forget_routes(self) -> None:
        """Clear the cached routes."""
        self._routes.clear()
        self._repeat = _NO_REPEAT
        self._content = _NO_CONTENT
        self._contents.clear()

    def _find_route(self, number: int, data: bytes, at: int, end: int) -> tuple[Channel, Route] | None:
        """Return channel and route for a new publish frame; None to ignore it or, if `stalled`, to wait."""
        self._current = (60, 40)
        channel = self.channels.get(number)
        if channel is None:
            self._no_channel(number, Basic.Publish)
            return None
        if channel.missing:
            self._unexpected_frame(channel)
        address = data[at + 13 : end - 2]
        if not is_address(address):
            try:
                decode_method(data, at + 7, end - 1)
            except MalformedMethod as error:
                raise malformed(error) from None
        if not channel.is_prepared(address):
            self.stalled = True
            return None
        try:
            route = channel.find_route(address, data[end - 2])
        except NotYet:
            self._resume_at = at
            raise
        found = channel, route
        if route.error is None:
            if len(self._routes) >= _ROUTES_LIMIT:
                self._routes.clear()
            self._routes[data[at:end]] = found
        return found

    def _is_new(self, octets: bytes) -> bool:
        """Return whether a property list is the first of its kind, as far as is remembered."""
        if octets in self._lists:
            return False
        if len(octets) <= _DEMANDS_OCTETS:
            if len(self._lists) >= _LISTS_LIMIT:
                self._lists.clear()
            self._lists.add(octets)
        return True

    def _inspect(self, payload: bytes) -> PropertyDemands | None:
        demands = inspect(payload, self.user.name)
        octets = payload[12:]
        if len(octets) <= _DEMANDS_OCTETS:
            if len(self._demands) >= _DEMANDS_LIMIT:
                self._demands.clear()
            self._demands[octets] = demands
        return demands

    def _header(self, number: int, data: bytes, at: int, end: int) -> None:
        """Process a content header that did not arrive together with its publish."""
        channel = self.channels.get(number)
        if channel is None or channel.missing >= 0:
            self._stray_content(number, data, at, end, TYPE_HEADER)
            return
        self.published = True
        self._current = (60, 40)
        length = end - at - FRAME_OVERHEAD
        if length < 14:
            raise AMQPError(ReplyCode.INTERNAL_ERROR)
        _, _, _, ids, body_size, _ = unpack_header(data, at)
        if ids >> 16 != 60:
            text = f"expected content header for class 60, got one for class {ids >> 16} instead"
            raise AMQPError(ReplyCode.UNEXPECTED_FRAME, text)
        demands = self._demands.get(data[at + 19 : end - 1], UNKNOWN)
        if demands is UNKNOWN:
            demands = self._inspect(data[at + 7 : end - 1])
        channel.demands = demands
        if body_size > BODY_LIMIT:
            text = f"content body size {body_size} exceeds maximum allowed size {BODY_LIMIT}"
            raise AMQPError(ReplyCode.FRAME_ERROR, text)
        if body_size > self.max_message_size:
            text = f"message size {body_size} is larger than configured max size {self.max_message_size}"
            raise precondition_failed(text)
        error = channel.route.error  # type: ignore[union-attr]  # set together with `missing`
        if error is not None and error.code is ReplyCode.ACCESS_REFUSED:
            channel.parts = _Discarded()
        elif body_size > LARGE:
            channel.parts = LargeBody(data[at:end], number, body_size, self.frame_limit)
        else:
            channel.parts = [data[at:end]]
        channel.packed = 0
        channel.missing = body_size
        self._sizes.fresh[body_size] += 1
        if not body_size:
            self._body_complete(channel, 0)

    def _body(self, number: int, data: bytes, at: int, end: int) -> None:
        """Process a body frame that did not arrive together with its publish."""
        self.published = True
        channel = self.channels.get(number)
        if channel is None or channel.missing <= 0:
            self._stray_content(number, data, at, end, TYPE_BODY)
            return
        length = end - at - FRAME_OVERHEAD
        if length:  # empty frames are legal, and could be sent endlessly
            parts = channel.parts
            parts.append(piece(data, at, end))
            if len(parts) - channel.packed > _PARTS_LIMIT:
                self._pack(channel)
        channel.missing = missing = channel.missing - length
        if missing <= 0 and self._body_complete(channel, missing) and self.node.turn.slices.is_over():
            self.stalled = True

    def _pack(self, channel: Channel) -> None:
        """Join the latest body frames if they are small: a frame with one octet of content takes nine."""
        parts, first = channel.parts, max(1, channel.packed)
        octets = sum(map(len, parts[first:]))
        if octets <= _PACK_OCTETS:
            body = b"".join(part[7:-1] for part in parts[first:])
            parts[first:] = [content_frames(channel.number, 0, b"", body)[FRAME_OVERHEAD:]]
        channel.packed = len(parts)

    def _repacked(self, channel: Channel, content: bytes) -> bytes:
        """Return the content in frames of a reasonable size, for everything that iterates over them later."""
        message = Message(b"", content, channel.number)
        return content_frames(channel.number, self.frame_limit, message.header, message.body)

    def _body_complete(self, channel: Channel, missing: int) -> bool:
        """Publish a complete body (`missing` < 0: more octets than declared); returns whether that may be much work."""
        parts = channel.parts
        is_kept = type(parts) is not _Discarded
        if type(parts) is LargeBody:
            content = parts.content()
        else:
            content = b"".join(parts)
            if len(parts) > 2 + len(content) // _PACK_OCTETS:
                content = self._repacked(channel, content)
        channel.parts = []
        channel.packed = 0
        channel.missing = 0
        if missing < 0:
            self._current = (60, 40)
            raise AMQPError(ReplyCode.FRAME_ERROR, "content body frame exceeds remaining content size")
        return self._content_complete(channel, content, is_kept=is_kept)

    def _content_complete(self, channel: Channel, content: bytes, *, is_kept: bool = True) -> bool:
        self._current = (60, 40)
        route, demands = channel.route, channel.demands
        assert route is not None  # set together with `missing`
        if is_kept and route.generation != self.vhost.router.generation:
            self._publish_late(channel, route, demands, content)  # topology or permissions may have changed
            return True
        if route.plain and (demands is None or demands.plain_route) and len(content) <= self._most_plain:
            made = (demands is not None and demands.persistent and bool(route.durable)) or route.makes_all
            message = (
                route.make_one(channel, content) if made else Message(route.address, content, channel.number)
            )
            route.put(channel, (message,), len(content))
            return route.wide
        channel.publish(route, demands, content)
        return True

    def _publish_late(
        self, channel: Channel, route: Route, demands: PropertyDemands | None, content: bytes
    ) -> None:
        try:
            found = channel.find_route(route.address, route.bits)
        except NotYet as wait:
            rest = partial(self._publish_late, channel, route, demands, content)
            raise NotYet(wait.subscribe, rest) from None
        channel.publish(found, demands, content)

    # -- other frames -----------------------------------------------------------------------------------------------

    def _other_frame(self, kind: int, number: int, data: bytes, at: int, end: int) -> None:
        if kind != TYPE_HEARTBEAT or (end - at > FRAME_OVERHEAD and not number):
            self._current = (0, 0)
            raise AMQPError(
                ReplyCode.FRAME_ERROR, f"{self._quoted(kind, data[at + 7 : end - 1])}: unknown_frame"
            )
        if number:
            self._current = (0, 0)
            raise AMQPError(ReplyCode.UNEXPECTED_FRAME, self._quoted(kind, data[at + 7 : end - 1]))
        if not at and end == len(data):  # all of its read
            self.heartbeats += 1
            self.node.turn.heartbeats += 1

    def _stray_content(self, number: int, data: bytes, at: int, end: int, kind: int) -> None:
        if number in self._closing_channels:
            return
        self._current = (0, 0)
        channel = self.channels.get(number)
        if channel is None:
            if number:
                raise AMQPError(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'")
            raise AMQPError(ReplyCode.UNEXPECTED_FRAME, self._quoted(kind, data[at + 7 : end - 1]))
        self._unexpected_frame(channel)

    def _quoted(self, kind: int, payload: bytes) -> str:
        return frame_text(kind, payload, self.node.config.compatibility.protocol_errors)

    def _unexpected_frame(self, channel: Channel) -> NoReturn:
        """Raise 505: the frame is not what the channel's content assembly expects next."""
        self._current = (60, 40)
        if channel.missing < 0:
            text = "expected content header for class 60, got non content header frame instead"
        elif channel.missing > 0:
            text = "expected content body, got non content body frame instead"
        else:
            self._current = (0, 0)
            text = "expected method frame, got non method frame instead"
        raise AMQPError(ReplyCode.UNEXPECTED_FRAME, text)

    def _frame_too_large(self, data: bytes, at: int, kind: int, length: int) -> NoReturn:
        self._resume_at = len(data)
        text = self._quoted(kind, data[at + 7 : at + 7])
        limit = self.frame_limit - FRAME_OVERHEAD  # without the grace of 8 octets
        raise FrameError(f"{text}: {{frame_too_large,{length},{limit}}}")

    def _bad_frame_end(self, data: bytes, at: int, end: int, kind: int) -> NoReturn:
        self._resume_at = len(data)
        self._wrong_frame_end(kind, data[at + 7 : end - 1], data[end - 1])

    def _wrong_frame_end(self, kind: int, payload: bytes, octet: int) -> NoReturn:
        text = f"{self._quoted(kind, payload)}: "
        width = len(text) + 1
        is_split = self.node.config.compatibility.protocol_errors == "4.3" and width + len(str(octet)) > 52
        between = f"\n{' ' * width}" if is_split else ""  # as `~tp` splits what would pass column 78
        raise FrameError(f"{text}{{invalid_frame_end_marker,{between}{octet}}}")

    @property
    def message_size(self) -> int:
        """Bytes on the wire of the content of the last message that arrived whole; 0 if unknown."""
        return self._content[1]


def _unknown_tag(tag: int) -> AMQPError:
    return AMQPError(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {tag}", 60, 80)


def malformed(error: MalformedMethod, *, has_channel: bool = True) -> AMQPError:
    """Return the error for a payload that cannot be decoded (as observed, see `broker.amqp.errors`)."""
    if not error.explanation:
        return AMQPError(ReplyCode.INTERNAL_ERROR)
    is_soft = has_channel and isinstance(error, MethodTooLarge)
    code = ReplyCode.PRECONDITION_FAILED if is_soft else ReplyCode.FRAME_ERROR
    return AMQPError(code, error.explanation, error.class_id, error.method_id)
