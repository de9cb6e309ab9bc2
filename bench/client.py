"""A small, fast AMQP client for benchmarks: prebuilt frames out, deliveries counted in one loop.

It trusts the broker (no negotiation, no recovery, PLAIN guest/guest, frames up to 128 KiB) and needs uvloop to be fast
enough. Replies to synchronous methods come back in order, so each connection has one queue of waiting calls.
"""

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, cast

from pamqp import commands, frame

from bench.endpoint import Endpoint, endpoint

frame_at = struct.Struct(">BHI").unpack_from
method_at = struct.Struct(">BHII").unpack_from
tag_at = struct.Struct(">Q").unpack_from
settle_at = struct.Struct(">Q?").unpack_from
ack_frame = struct.Struct(">BHIHHQ?B").pack

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
DELIVER = 60 << 16 | 60
CONFIRM_ACK = 60 << 16 | 80
CONFIRM_NACK = 60 << 16 | 120
FRAME_MAX = 131072
HIGH_WATER = 256 * 1024
"""Bytes that may wait in the transport before `publish` pauses."""


class Confirms:
    """Counts the messages of one channel that are confirmed: a broker may confirm later ones first."""

    def __init__(self) -> None:
        self._last = 0  # all up to this tag are confirmed
        self._apart: set[int] = set()

    def add(self, tag: int, multiple: bool) -> int:
        """Count a confirm; returns how many messages are confirmed."""
        apart = self._apart
        if multiple:
            self._last = max(self._last, tag)
            if apart:
                self._apart = apart = {each for each in apart if each > tag}
        else:
            apart.add(tag)
        while self._last + 1 in apart:
            self._last += 1
            apart.remove(self._last)
        return self._last + len(apart)


class ClosedError(ConnectionError):
    """Raised when the broker closed the connection or the channel; the text is its reply."""


class Client(asyncio.Protocol):
    """One connection. Await `connect`, then the methods; read the counters at any time.

    `on_body`, if given, is called with every delivered body (one frame each) as it is parsed. `ack` makes
    the client acknowledge everything a read delivered with one `multiple` ack per channel.
    """

    __slots__ = (
        "_closed",
        "_confirms",
        "_line",
        "_rest",
        "_writable",
        "ack",
        "confirmed",
        "delivered",
        "greeting",
        "last_delivery",
        "longest_gap",
        "nacked",
        "on_body",
        "published",
        "transport",
    )

    def __init__(self, *, ack: bool = False, on_body: Callable[[bytes], None] | None = None) -> None:
        self.transport: asyncio.Transport
        self.ack, self.on_body = ack, on_body
        self.greeting: commands.Connection.Start | None = None
        self.published = self.delivered = self.confirmed = self.nacked = 0
        self._confirms = Confirms()
        self.last_delivery = self.longest_gap = 0.0
        self._line: deque[asyncio.Future[Any]] = deque()
        self._rest = b""
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed: str | None = None

    @classmethod
    async def connect(
        cls, place: int | Endpoint, channels: int = 1, *, narrow: bool = False, **options: Any
    ) -> Self:
        """Connect to 127.0.0.1 and open channels 1 to `channels`.

        Args:
            place: the broker's port, or its endpoint.
            channels: number of channels.
            narrow: give the socket the smallest receive buffer, so that less data waits in the kernel.
            options: see the class.

        Raises:
            OSError: no broker listens on the port.
            ClosedError: the broker refused.

        """
        where = endpoint(place)
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        if narrow:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", where.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport, client = await loop.create_connection(lambda: cls(**options), sock=sock)
        start = client.expect()
        transport.write(b"AMQP\0\0\x09\x01")
        client.greeting = await start
        properties: dict[str, Any] = {
            "product": "bench",
            "capabilities": {"basic.nack": True, "publisher_confirms": True},
        }
        await client.call(commands.Connection.StartOk(properties, "PLAIN", where.response, "en_US"), 0)
        client.send(commands.Connection.TuneOk(2047, FRAME_MAX, 0), 0)
        await client.call(commands.Connection.Open(where.vhost), 0)
        await client.open(range(1, channels + 1))
        return client

    async def open(self, channels: Iterable[int]) -> None:
        """Open channels concurrently."""
        await asyncio.gather(*[self.call(commands.Channel.Open(), channel) for channel in channels])

    def expect(self) -> "asyncio.Future[Any]":
        """Return a future for the next reply that has no waiting call yet."""
        future = asyncio.get_running_loop().create_future()
        if self._closed is not None:
            future.set_exception(ClosedError(self._closed))
        else:
            self._line.append(future)
        return future

    def send(self, method: Any, channel: int = 1) -> None:
        """Write a method that has no reply."""
        self.transport.write(frame.marshal(method, channel))

    def call(self, method: Any, channel: int = 1) -> "asyncio.Future[Any]":
        """Write a method now; the returned future holds the reply. Several may be pending."""
        future = self.expect()
        if not future.done():
            self.send(method, channel)
        return future

    async def declare(self, queue: str, *, durable: bool = False, auto_delete: bool = False) -> None:
        """Declare a classic queue."""
        await self.call(commands.Queue.Declare(queue=queue, durable=durable, auto_delete=auto_delete))

    async def consume(self, queue: str, *, no_ack: bool = True, prefetch: int = 0, channel: int = 1) -> None:
        """Consume from a queue, with a prefetch count if given."""
        if prefetch:
            await self.call(commands.Basic.Qos(prefetch_count=prefetch), channel)
        await self.call(commands.Basic.Consume(queue=queue, no_ack=no_ack), channel)

    async def ready_messages(self, queue: str) -> int:
        """Return the number of ready messages in a queue.

        Raises:
            ClosedError: there is no such queue (which closes the channel).
        """
        return int((await self.call(commands.Queue.Declare(queue=queue, passive=True))).message_count)

    async def delete(self, queue: str) -> int:
        """Delete a queue; return the number of ready messages deleted with it."""
        return int((await self.call(commands.Queue.Delete(queue=queue))).message_count)

    async def publish(self, octets: bytes, count: int) -> None:
        """Write frames from `publish_frames` that hold `count` messages, once the transport has space."""
        if not self._writable.is_set():
            await self._writable.wait()
        if self._closed is not None:
            raise ClosedError(self._closed)
        self.transport.write(octets)
        self.published += count

    async def flood(self, queue: str, seconds: float, *, size: int = 12, batch: int = 64) -> float:
        """Publish to a queue as fast as the broker accepts messages; return the rate until it has accepted all."""
        octets = publish_batch(queue, size, batch)
        began = now = time.perf_counter()
        before = self.published
        while now - began < seconds:
            await self.publish(octets, batch)
            await asyncio.sleep(0)
            now = time.perf_counter()
        await self.ready_messages(queue)  # the reply comes after all earlier frames were handled
        return (self.published - before) / (time.perf_counter() - began)

    def close(self) -> None:
        """Close the transport without the protocol's close handshake."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport and limit its write buffer."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(HIGH_WATER)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all waiting calls."""
        self._fail(self._closed or f"connection lost: {exc}")
        self._writable.set()

    def pause_writing(self) -> None:
        """Pause `publish`."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Resume `publish`."""
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """Count deliveries and confirms, and pass replies to the waiting calls."""
        if self._rest:
            data = self._rest + data
        at, size, before = 0, len(data), self.delivered
        last: dict[int, int] = {}
        on_body = self.on_body
        while size - at >= 8:
            kind, channel, length = frame_at(data, at)
            end = at + length + 8
            if end > size:
                break
            if kind == METHOD:
                method = method_at(data, at)[3]
                if method == DELIVER:
                    self.delivered += 1
                    (last[channel],) = tag_at(data, at + 12 + data[at + 11])
                elif method == CONFIRM_ACK:
                    self.confirmed = self._confirms.add(*settle_at(data, at + 11))
                elif method == CONFIRM_NACK:
                    self.nacked += 1
                else:
                    self._reply(data[at:end], channel)
            elif kind == BODY and on_body is not None:
                on_body(data[at + 7 : end - 1])
            elif kind == HEARTBEAT:
                self.transport.write(b"\x08\0\0\0\0\0\0\xce")
            at = end
        self._rest = data[at:] if at < size else b""
        if self.delivered > before:
            self._delivered(last)

    def _delivered(self, last: dict[int, int]) -> None:
        now = time.perf_counter()
        if self.last_delivery:
            self.longest_gap = max(self.longest_gap, now - self.last_delivery)
        self.last_delivery = now
        if self.ack:
            acks = [ack_frame(METHOD, channel, 13, 60, 80, tag, True, 0xCE) for channel, tag in last.items()]
            self.transport.write(b"".join(acks))

    def _reply(self, octets: bytes, channel: int) -> None:
        _, _, method = frame.unmarshal(octets)
        if isinstance(method, (commands.Connection.Close, commands.Channel.Close)):
            if isinstance(method, commands.Connection.Close):
                self._closed = f"{method.reply_code} {method.reply_text}"
                self.send(commands.Connection.CloseOk(), 0)
            else:
                self.send(commands.Channel.CloseOk(), channel)
            self._fail(f"{method.reply_code} {method.reply_text}")
        elif isinstance(method, (commands.Basic.Cancel, commands.Basic.Return, commands.Connection.Blocked)):
            pass
        elif self._line and not (future := self._line.popleft()).done():
            future.set_result(method)

    def _fail(self, reason: str) -> None:
        while self._line:
            future = self._line.popleft()
            if not future.done():
                future.set_exception(ClosedError(reason))


def publish_frames(
    routing_key: str,
    body: bytes,
    *,
    exchange: str = "",
    channel: int = 1,
    persistent: bool = False,
    headers: Mapping[str, Any] | None = None,
    message_id: str | None = None,
) -> bytes:
    """Return the publish, header and body frames of one message (body at most one frame long)."""
    properties = commands.Basic.Properties(
        delivery_mode=2 if persistent else 1,
        headers=dict(headers) if headers else None,
        message_id=message_id,
    )
    header = struct.pack(">HHQ", 60, 0, len(body)) + properties.marshal()
    parts = [frame.marshal(commands.Basic.Publish(exchange=exchange, routing_key=routing_key), channel)]
    parts += (
        [_frame(HEADER, channel, header), _frame(BODY, channel, body)]
        if body
        else [_frame(HEADER, channel, header)]
    )
    return b"".join(parts)


def publish_batch(routing_key: str, size: int, count: int) -> bytes:
    """Return the frames of `count` messages to the default exchange, with distinct bodies."""
    return b"".join(publish_frames(routing_key, number.to_bytes(size)) for number in range(count))


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"
