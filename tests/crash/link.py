"""A connection to a broker that may die at any octet: everything that was sent to us before is handed on.

Fast enough to load a broker from the same machine: frames are made by hand where there are many of them, and what
comes in is parsed in one loop. It trusts the broker's framing, not its answers.
"""

import asyncio
import functools
import socket
import struct
from collections import deque
from typing import Any, Protocol, Self, cast

from pamqp import commands, frame
from pamqp.header import ContentHeader

_frame_at = struct.Struct(">BHI").unpack_from
_method_at = struct.Struct(">I").unpack_from
_settle_at = struct.Struct(">QB").unpack_from
_delivery_at = struct.Struct(">Q?").unpack_from
_size_at = struct.Struct(">Q").unpack_from
_settle = struct.Struct(">BHIHHQBB").pack
_head = struct.Struct(">BHI").pack

_METHOD, _HEADER, _BODY = 1, 2, 3
_DELIVER = 60 << 16 | 60
_RETURN = 60 << 16 | 50
_GET_OK = 60 << 16 | 71
_ACK = 60 << 16 | 80
_NACK = 60 << 16 | 120
FRAME_MAX = 131072
_HIGH_WATER = 1 << 20
CONNECT_SECONDS = 30.0
GONE_SECONDS = 60.0
"""Seconds within which a connection that was cut, or whose broker was killed, is gone."""


class LostError(ConnectionError):
    """The connection or the channel is gone; the text is the broker's reason where it gave one."""


class Watcher(Protocol):
    """Receiver of the asynchronous methods of a channel."""

    def delivery(self, tag: int, body: bytes, *, redelivered: bool) -> None:
        """A message for the channel's consumer."""

    def verdict(self, number: int, *, multiple: bool, ack: bool) -> None:
        """Take a confirm."""

    def came_back(self, body: bytes) -> None:
        """A mandatory message that has no queue."""


class Link(asyncio.Protocol):
    """One connection. Await `connect`, then `call`."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.writable = True
        self.blocked = False
        """True between connection.blocked and connection.unblocked."""
        self.lost = asyncio.get_running_loop().create_future()
        """Done, with the reason, once the connection is gone and all that it carried was handed on."""
        self.header = b""
        """The content header of what is being handed on."""
        self.watchers: dict[int, Watcher] = {}
        self.on_writable: Any = None
        self._waiting: dict[int, deque[asyncio.Future[Any]]] = {}
        self._reason = ""
        self._rest = b""
        self._content: dict[int, tuple[int, bytes, bytes, int, list[bytes]]] = {}

    @classmethod
    async def connect(cls, port: int, user: str = "guest", vhost: str = "/") -> Self:
        """Connect to 127.0.0.1 as a user whose password is its name.

        Raises OSError or LostError, AssertionError if nobody answers.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                transport, link = await loop.create_connection(cls, "127.0.0.1", port)
        except TimeoutError:
            raise AssertionError(f"no connection to port {port} within {CONNECT_SECONDS} s") from None
        if (sock := transport.get_extra_info("socket")) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        start = link._expect(0)
        transport.write(b"AMQP\0\0\x09\x01")
        await link._within(start, CONNECT_SECONDS, "connection.start")
        capabilities = {"basic.nack": True, "publisher_confirms": True, "connection.blocked": True}
        properties = {"product": "crash", "capabilities": capabilities}
        response = f"\0{user}\0{user}"
        await link.call(commands.Connection.StartOk(properties, "PLAIN", response, "en_US"), 0)
        link.send(commands.Connection.TuneOk(2047, FRAME_MAX, 0), 0)
        await link.call(commands.Connection.Open(vhost), 0)
        return link

    def check(self) -> None:
        """Raise LostError if the connection is gone."""
        if self.lost.done():
            raise LostError(self.lost.result())

    def send(self, method: Any, channel: int = 1) -> None:
        """Write a method for which no reply comes."""
        self.transport.write(frame.marshal(method, channel))

    async def call(self, method: Any, channel: int = 1, *, seconds: float = 30.0) -> Any:
        """Write a method and wait for its reply; raises LostError."""
        reply = self._expect(channel)
        if not reply.done():
            self.send(method, channel)
        return await self._within(reply, seconds, f"reply to {method.name}")

    async def call_often(self, method: Any, channel: int, count: int, *, seconds: float = 30.0) -> None:
        """Write the same method so often at once and wait for all replies; raises LostError."""
        replies = [self._expect(channel) for _ in range(count)]
        if not self.lost.done():
            self.transport.write(frame.marshal(method, channel) * count)
        _, waiting = await asyncio.wait(replies, timeout=seconds)
        if waiting:
            self.cut()
            raise AssertionError(
                f"{len(waiting)} of {count} replies to {method.name} missing after {seconds} s"
            )
        for reply in replies:
            reply.result()

    async def open(self, channel: int, watcher: Watcher | None = None) -> None:
        """Open a channel; the watcher gets its asynchronous methods."""
        if watcher is not None:
            self.watchers[channel] = watcher
        await self.call(commands.Channel.Open(), channel)

    def settle(self, channel: int, tag: int, *, multiple: bool = False, requeue: bool | None = None) -> None:
        """Ack, or nack where `requeue` is given."""
        if requeue is None:
            octets = _settle(_METHOD, channel, 13, 60, 80, tag, multiple, 0xCE)
        else:
            octets = _settle(_METHOD, channel, 13, 60, 120, tag, multiple | requeue << 1, 0xCE)
        self.transport.write(octets)

    async def close(self) -> None:
        """End the connection in good order."""
        if not self.lost.done():
            self.send(commands.Connection.Close(200, "", 0, 0), 0)
        await self.gone()

    async def gone(self, seconds: float = GONE_SECONDS) -> None:
        """Wait until the connection is gone; raises AssertionError if it stays."""
        await asyncio.wait([self.lost], timeout=seconds)
        if not self.lost.done():
            self.cut()
            raise AssertionError(f"the connection is still there after {seconds} s")

    def cut(self) -> None:
        self.transport.abort()

    async def _within(self, reply: "asyncio.Future[Any]", seconds: float, what: str) -> Any:
        """Return the reply within so many seconds; else the connection is cut, so that no socket stays open."""
        try:
            return await asyncio.wait_for(reply, seconds)
        except TimeoutError:
            self.cut()
            raise AssertionError(f"no {what} within {seconds} s") from None

    def _expect(self, channel: int) -> "asyncio.Future[Any]":
        future = asyncio.get_running_loop().create_future()
        if self.lost.done():
            future.set_exception(LostError(self.lost.result()))
        else:
            self._waiting.setdefault(channel, deque()).append(future)
        return future

    # -- asyncio ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport and bound what waits in it."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(_HIGH_WATER)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = self._reason or f"connection lost: {exc}"
        if not self.lost.done():
            self.lost.set_result(reason)
        for channel in list(self._waiting):
            self._fail(channel, reason)

    def _fail(self, channel: int, reason: str) -> None:
        for future in self._waiting.pop(channel, ()):
            if not future.done():
                future.set_exception(LostError(reason))
                future.exception()  # a waiter raises it, if there is one

    def pause_writing(self) -> None:
        """Note that the socket is full."""
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        if self.on_writable is not None:
            self.on_writable()

    def data_received(self, data: bytes) -> None:
        """Pass on whole frames."""
        if self._rest:
            data = self._rest + data
        at, size = 0, len(data)
        while size - at >= 8:
            kind, channel, length = _frame_at(data, at)
            end = at + length + 8
            if end > size:
                break
            if kind == _METHOD:
                (method,) = _method_at(data, at + 7)
                if method in {_ACK, _NACK}:
                    number, bits = _settle_at(data, at + 11)
                    watcher = self.watchers[channel]
                    watcher.verdict(number, multiple=bool(bits & 1), ack=method == _ACK)
                elif method in {_DELIVER, _RETURN, _GET_OK}:
                    self._content[channel] = (method, data[at:end], b"", -1, [])
                else:
                    self._method(data[at:end], channel)
            elif kind == _HEADER:
                self._part(channel, data[at + 7 : end - 1], None)
            elif kind == _BODY:
                self._part(channel, b"", data[at + 7 : end - 1])
            at = end
        self._rest = data[at:] if at < size else b""

    def _part(self, channel: int, head: bytes, octets: bytes | None) -> None:
        method, octets_of_method, header, missing, parts = self._content[channel]
        if octets is None:
            header = head
            (missing,) = _size_at(header, 4)
        else:
            missing -= len(octets)
            parts.append(octets)
        if missing:
            self._content[channel] = (method, octets_of_method, header, missing, parts)
            return
        del self._content[channel]
        self.header = header
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        if method == _RETURN:
            self.watchers[channel].came_back(body)
            return
        at = 11 if method == _GET_OK else 12 + octets_of_method[11]
        tag, redelivered = _delivery_at(octets_of_method, at)
        self.watchers[channel].delivery(tag, body, redelivered=bool(redelivered))
        if method == _GET_OK:
            self._method(octets_of_method, channel)

    def _method(self, octets: bytes, channel: int) -> None:
        _, _, method = frame.unmarshal(octets)
        if isinstance(method, commands.Connection.Close):
            self._reason = f"{method.reply_code} {method.reply_text}"
            self.send(commands.Connection.CloseOk(), 0)
        elif isinstance(method, commands.Connection.CloseOk):
            self._reason = "closed"
            self.transport.close()
        elif isinstance(method, commands.Channel.Close):
            self.send(commands.Channel.CloseOk(), channel)
            self._fail(channel, f"{method.reply_code} {method.reply_text}")
        elif isinstance(method, commands.Connection.Blocked):
            self.blocked = True
        elif isinstance(method, commands.Connection.Unblocked):
            self.blocked = False
        elif waiting := self._waiting.get(channel):
            future = waiting.popleft()
            if not future.done():
                future.set_result(method)


@functools.cache
def property_octets(
    *,
    persistent: bool = True,
    priority: int | None = None,
    expiration: int | None = None,
    delay: int | None = None,
) -> bytes:
    """Flags and values of a property list; `expiration` and the header `x-delay` in milliseconds."""
    flags, values = 0x1000, b""
    if delay is not None:
        flags |= 0x2000
        field = b"\x07x-delayI" + struct.pack(">i", delay)
        values += struct.pack(">I", len(field)) + field
    values += b"\x02" if persistent else b"\x01"
    if priority is not None:
        flags |= 0x0800
        values += bytes([priority])
    if expiration is not None:
        flags |= 0x0100
        values += bytes([len(str(expiration))]) + str(expiration).encode()
    return struct.pack(">H", flags) + values


def headers_of(header: bytes) -> dict[str, Any]:
    """The headers in a content header; empty without any."""
    if not header[12] & 0x20:
        return {}
    content = ContentHeader()
    content.unmarshal(header)
    return content.properties.headers or {}


_PERSISTENT, _TRANSIENT = property_octets(), property_octets(persistent=False)


def publish_frames(
    key: str,
    body: bytes,
    *,
    exchange: str = "",
    channel: int = 1,
    persistent: bool = True,
    mandatory: bool = False,
    properties: bytes = b"",
) -> bytes:
    """The octets of one publish.

    `properties` are the flags and values of `property_octets`; without them there is a delivery mode only.
    """
    name, route = exchange.encode(), key.encode()
    method = b"".join(
        [
            b"\x00\x3c\x00\x28\x00\x00",
            bytes([len(name)]),
            name,
            bytes([len(route)]),
            route,
            b"\x01" if mandatory else b"\x00",
        ]
    )
    properties = properties or (_PERSISTENT if persistent else _TRANSIENT)
    header = struct.pack(">HHQ", 60, 0, len(body)) + properties
    parts = [_frame(_METHOD, channel, method), _frame(_HEADER, channel, header)]
    room = FRAME_MAX - 8
    parts += [_frame(_BODY, channel, body[at : at + room]) for at in range(0, len(body), room)]
    return b"".join(parts)


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _head(kind, channel, len(payload)) + payload + b"\xce"
