"""A client's connection: handshake, calls, heartbeats, and what the broker sends without being asked (driver)."""

import asyncio
import contextlib
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Final, cast

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, Channel, Connection, Frame, make
from leveret.broker.amqp.fastpath import HEARTBEAT
from leveret.broker.amqp.tables import plain, typed
from leveret.broker.client.errors import ClientError, RefusedError, ReplyError, UnreachableError
from leveret.broker.client.frames import Incoming
from leveret.broker.client.options import (
    DEFAULT,
    FRAME_MAX,
    Options,
    Product,
    negotiated,
    product_of,
    properties_of,
    response_of,
)
from leveret.broker.client.sockets import Contexts, connected, handed_over
from leveret.broker.client.uri import Address

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
CLOSE_SECONDS: Final = 2.0
HIGH_WATER: Final = 256 * 1024  # bytes that may wait for the socket before `is_writable` is False
PIECE: Final = 64 * 1024  # bytes that are processed at once; more waits for others after `SLICE_NS`
SLICE_NS: Final = 2_000_000
SILENT_TICKS: Final = 4  # half intervals without input after which the broker counts as gone (spec 4.2.7)
REFUSALS: Final = frozenset((403, 530))  # codes for a login, a vhost or a permission that is refused


def clock() -> int:
    """Return the time in nanoseconds, of the clock that all times of a run come from."""
    return time.perf_counter_ns()


class Client(asyncio.Protocol):
    """One connection. Await `connect`, then `call`."""

    def __init__(self, incoming: Incoming, options: Options = DEFAULT) -> None:
        self.incoming = incoming
        self._options = options
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails with a ClientError once the connection, or a channel without a call, was closed."""
        self.failed.add_done_callback(_ignore)
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.blocked: str | None = None  # reason if the broker blocks this connection, otherwise None
        self.is_writable = True  # False while more than `HIGH_WATER` bytes wait for the socket
        self.is_paused = False  # True while nothing is read
        self._unread = b""  # bytes read and not processed: meanwhile the socket is not read
        self.server = Product("", "")  # product and version of the broker
        self.frame_max = FRAME_MAX  # negotiated maximum size of a frame, in bytes
        self.reads = 0  # number of reads so far
        self.on_ready: Callable[[], None] = _nothing
        """Called when more can be written: after each read, when the socket is writable, when unblocked."""
        self.on_blocked: Callable[[str | None], None] = _nothing
        """Called with the reason, or None, when the broker blocks or unblocks the connection."""
        self._transport: asyncio.Transport
        self._calls: dict[int, deque[tuple[asyncio.Future[Any], Collection[str]]]] = {}
        """By channel: the replies that are waited for, and the methods that are one."""
        self._channels = 0
        self._error: ClientError | None = None
        self._timer: asyncio.TimerHandle | None = None  # of the next heartbeat; None if none are sent

    @classmethod
    async def connect(
        cls,
        address: Address,
        incoming: Incoming,
        options: Options = DEFAULT,
        contexts: Contexts | None = None,
    ) -> "Client":
        """Connect, log in, and open channel 1; `contexts`: of TLS, shared by the connections of a program.

        Raises UnreachableError: nothing listens there, or it does not speak AMQP 0-9-1 or does not reply in time;
        RefusedError: the broker refused the login or the vhost; ReplyError: the broker closed the connection for
        another reason.
        """
        tls = None if options.tls is None else await (contexts or Contexts()).get(options.tls)
        sock = await connected(address, options.seconds)
        client = await cls._over(sock, incoming, options, address, tls)
        try:
            await client.log_in(address)
        except BaseException:
            await client.abort()
            raise
        return client

    @classmethod
    async def attach(cls, sock: socket.socket, incoming: Incoming, options: Options = DEFAULT) -> "Client":
        """Open channel 1 of a connection that needs no login, on a connected socket; raises what `connect` raises."""
        client = await cls._over(sock, incoming, options)
        try:
            await client.open_channel()
        except BaseException:
            await client.abort()
            raise
        return client

    @classmethod
    async def _over(
        cls,
        sock: socket.socket,
        incoming: Incoming,
        options: Options,
        address: Address | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> "Client":
        """Return a client on a connected socket, which is closed if that fails."""
        loop = asyncio.get_running_loop()
        client = cls(incoming, options)
        more: dict[str, Any] = {}
        if tls is not None and options.tls is not None and address is not None:
            name = options.tls.server_name
            host = (address.host if name == "" else name) or ""
            more = {"ssl": tls, "server_hostname": host, "ssl_handshake_timeout": options.seconds}
        connect = loop.create_unix_connection if sock.family == socket.AF_UNIX else loop.create_connection
        try:
            await handed_over(sock, connect(lambda: client, sock=sock, **more))
        except (ssl.SSLError, OSError) as error:
            reason = getattr(error, "verify_message", "") or error.strerror or str(error)
            if getattr(error, "reason", "") == "WRONG_VERSION_NUMBER":
                reason = "there is no TLS on this port"
            where = "the broker" if address is None else address.endpoint
            raise UnreachableError(f"cannot connect to {where}: {reason}") from None
        return client

    async def log_in(self, address: Address) -> None:
        """Do the handshake and open channel 1; raises what `connect` raises."""
        options = self._options
        reply = self._expect(0, ("Connection.Start",))
        self.write(PROTOCOL_HEADER)
        start = await self._reply(reply, "connection.start")
        self.server = product_of(plain(start.server_properties))
        offered = start.mechanisms.split()
        mechanism = next((name for name in options.mechanisms if name in offered), None)
        if mechanism is None:
            wanted = " or ".join(options.mechanisms)
            raise UnreachableError(f"the broker offers no {wanted} login, only {start.mechanisms}")
        response = response_of(mechanism, address.user, address.password)
        start_ok = make(Connection.StartOk, typed(properties_of(options)), mechanism, response, "en_US")
        tune = await self.call(start_ok, 0, ("Connection.Tune",))
        self.frame_max = negotiated(options.frame_max, tune.frame_max or 0)
        channels = negotiated(options.channel_max, tune.channel_max or 0)
        self.incoming.frame_max = self.frame_max
        heartbeat = negotiated(options.heartbeat, tune.heartbeat or 0) if options.heartbeat else 0
        self.send(make(Connection.TuneOk, channels, self.frame_max, heartbeat), 0)
        if heartbeat:
            half = heartbeat / 2
            self._timer = asyncio.get_running_loop().call_later(half, self.beat, half, self.reads)
        await self.call(make(Connection.Open, address.vhost, "", False), 0)
        await self.open_channel()

    def beat(self, half: float, reads: int, silent: int = 0) -> None:
        """Send a heartbeat each `half` interval, whatever else is sent; end if the broker is silent for two intervals.

        `silent` is how often there were no more than `reads` reads. While nothing is read silence says nothing.
        """
        silent = 0 if self.reads != reads or self.is_paused else silent + 1
        if silent >= SILENT_TICKS:
            self._fail(UnreachableError("missed heartbeats from the broker"))
            self._transport.abort()
            return
        self.write(HEARTBEAT)
        self._timer = asyncio.get_running_loop().call_later(half, self.beat, half, self.reads, silent)

    async def open_channel(self) -> int:
        """Open another channel; returns its number."""
        self._channels += 1
        await self.call(make(Channel.Open, ""), self._channels)
        return self._channels

    async def call(self, method: Frame, channel: int = 1, replies: Collection[str] = ()) -> Any:
        """Send a method and return the reply; `replies`: names of methods, if they are not those of the protocol.

        Raises what `connect` raises: RefusedError also for a permission, ReplyError also for the channel.
        """
        reply = self._expect(channel, replies or method.valid_responses)
        if not reply.done():
            self.send(method, channel)
        return await self._reply(reply, method.name.lower())

    def _expect(self, channel: int, replies: Collection[str]) -> "asyncio.Future[Any]":
        """Return a future for the next reply on a channel; if the connection is closed it has the error."""
        self.incoming.expect()
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        reply.add_done_callback(_ignore)
        if self._error is not None:
            reply.set_exception(self._error)
        else:
            self._calls.setdefault(channel, deque()).append((reply, replies))
        return reply

    async def _reply(self, reply: "asyncio.Future[Any]", name: str) -> Any:
        try:
            return await asyncio.wait_for(reply, self._options.seconds)
        except TimeoutError:
            text = f"the broker did not reply in {self._options.seconds:g} s ({name})"
            raise UnreachableError(text) from None

    def send(self, method: Frame, channel: int = 1) -> None:
        """Write a method without waiting for a reply."""
        self.write(encode_method(channel, method))

    def write(self, octets: bytes) -> None:
        """Write frames."""
        self._transport.write(octets)

    def pause_reading(self) -> None:
        """Read nothing until `resume_reading`."""
        if not self.is_paused and not self._transport.is_closing():
            self.is_paused = True
            if not self._unread:
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if self.is_paused and not self._transport.is_closing():
            self.is_paused = False
            if self._unread:
                asyncio.get_running_loop().call_soon(self._go_on)
            else:
                self._read_again()

    def _read_again(self) -> None:
        if not self._unread and not self.is_paused and not self._transport.is_closing():
            self._transport.resume_reading()

    def drop(self) -> None:
        """Close the socket at once, without the protocol's handshake."""
        self._transport.abort()

    async def abort(self) -> None:
        """Close the socket as `drop` does, and wait until it is closed."""
        self.drop()
        await asyncio.wait([self._lost], timeout=CLOSE_SECONDS)

    async def close(self) -> None:
        """Close the connection; with the protocol's handshake if the broker takes part in it soon."""
        if self._error is None and self.blocked is None:
            with contextlib.suppress(ClientError, TimeoutError):
                closing = self.call(make(Connection.Close, 200, "Goodbye", 0, 0), 0)
                await asyncio.wait_for(closing, CLOSE_SECONDS)
        await self.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, and limit its buffer."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(HIGH_WATER)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the calls that wait."""
        self._lost.set_result(None)
        if self._unread and exc is None:  # the broker's last words
            unread, self._unread = self._unread, b""
            self._process(unread)
        if self._timer is not None:
            self._timer.cancel()
        reason = f": {exc.strerror or exc}" if isinstance(exc, OSError) else ""
        self._fail(UnreachableError(f"the broker closed the TCP connection{reason}"))

    def pause_writing(self) -> None:
        """Note that the socket takes no more for now."""
        self.is_writable = False

    def resume_writing(self) -> None:
        """Let the producer continue."""
        self.is_writable = True
        self.on_ready()

    def data_received(self, data: bytes) -> None:
        """Process received bytes and write the replies."""
        self.reads += 1
        if self._unread:  # of a transport that was about to pause
            self._unread += data
        else:
            self._work(data)

    def _work(self, data: bytes) -> None:
        """Process bytes; those for which there is no time now later, and read no others until then."""
        if len(data) <= PIECE:
            self._process(data)
            return
        until = clock() + SLICE_NS
        for at in range(0, len(data), PIECE):
            if at and (clock() > until or self.is_paused):
                self._unread = data[at:]
                if not self.is_paused:
                    self._transport.pause_reading()
                    asyncio.get_running_loop().call_soon(self._go_on)
                return
            if not self._process(data[at : at + PIECE]):
                return

    def _go_on(self) -> None:
        if self.is_paused or not self._unread or self._transport.is_closing():
            return
        data, self._unread = self._unread, b""
        self._work(data)
        self._read_again()

    def _process(self, data: bytes) -> bool:
        """Process bytes and write the replies; returns False if that has ended the connection."""
        try:
            for channel, method in self.incoming.feed(data, clock()):
                self._handle(channel, method)
        except UnreachableError as error:
            self._fail(error)
            self._transport.abort()
            return False
        if octets := self.incoming.replies():
            self.write(octets)
        self.on_ready()
        return True

    def _handle(self, channel: int, method: Frame) -> None:
        match method:
            case Connection.Close():
                self.send(make(Connection.CloseOk), 0)
                self._fail(_refusal(method))
            case Channel.Close():
                self.send(make(Channel.CloseOk), channel)
                self._fail_channel(channel, _refusal(method))
            case Connection.Blocked() | Connection.Unblocked():
                self.blocked = method.reason if isinstance(method, Connection.Blocked) else None
                self.on_blocked(self.blocked)
            case Channel.Flow():  # as brokers other than RabbitMQ block a publisher
                self.send(make(Channel.FlowOk, method.active), channel)
                self.blocked = None if method.active else "channel.flow"
                self.on_blocked(self.blocked)
            case Basic.Cancel():
                reason = "the broker cancelled a consumer: its queue was deleted, or may not be read"
                self._fail(UnreachableError(reason))
            case _:
                waiting = self._calls.get(channel) or deque([(self.failed, ())])
                reply, names = waiting[0]
                if method.name not in names:
                    instead = f"instead of {' or '.join(names).lower()}" if names else "unasked"
                    raise UnreachableError(f"the broker sent {method.name.lower()} {instead}")
                waiting.popleft()
                if not reply.done():
                    reply.set_result(method)

    def _fail_channel(self, channel: int, error: ClientError) -> None:
        waiting = self._calls.pop(channel, None)
        if not waiting:
            self._fail(error)
            return
        for reply, _ in waiting:
            if not reply.done():
                reply.set_exception(error)

    def _fail(self, error: ClientError) -> None:
        if self._error is not None:
            return
        self._error = error
        self.failed.set_exception(error)
        for waiting in self._calls.values():
            for reply, _ in waiting:
                if not reply.done():
                    reply.set_exception(error)
        self._calls.clear()


def _refusal(method: Connection.Close | Channel.Close) -> ClientError:
    error = ReplyError(method.reply_code or 0, method.reply_text)
    return RefusedError(str(error)) if error.code in REFUSALS else error


def _nothing(*_: object) -> None: ...


def _ignore(future: "asyncio.Future[Any]") -> None:
    """Mark the exception of a future as seen, so that it is not logged."""
    if not future.cancelled():
        future.exception()
