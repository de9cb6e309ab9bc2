"""Moves octets between a socket and a `Connection` (driver).

All connections read into one buffer of the server: a read is copied out of it before the next can begin, and an idle
connection owns none.
"""

import asyncio
import socket
from collections.abc import Callable
from time import monotonic_ns
from typing import Any, Protocol, cast

from broker.connection import Connection
from broker.flow import PAUSE_SECONDS, Pause, congested
from broker.handshake import Node

JOIN_LIMIT = 128 * 1024  # octets up to which frames are joined before they are written
DEAF_LIMIT = 4 * 1024 * 1024
"""Octets waiting to be sent from which a connection is not read any more. Deliveries stop long before; only a client
that sends command after command without reading the replies gets there."""
ABORT_SECONDS = 30.0  # a peer that does not take our last octets is cut off after so long


class DriverHost(Node, Protocol):
    """What a driver needs of the server."""

    read_buffer: memoryview
    write_high: int

    def now(self) -> float:
        """Seconds of a monotonic clock."""

    def call_later(self, seconds: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Call a function later."""

    def finish_turn(self) -> None:
        """Write to every connection the turn touched."""

    def run_turn(self) -> None:
        """Work off what is touched, then write."""

    def accepted(self, driver: "SocketDriver") -> bool:
        """List a new socket; False to refuse it."""

    def dropped(self, driver: "SocketDriver") -> None:
        """Forget a socket."""

    def close_soon(self, driver: "SocketDriver", delay: float) -> None:
        """Close a socket after its outbox has been flushed, and `delay` seconds."""

    def set_socket_options(self, sock: socket.socket) -> None:
        """Apply the configured TCP options."""

    def wait_for_disk(self, driver: "SocketDriver") -> bool:
        """Whether a publisher must wait for the disk; it is resumed then, once."""


class SocketDriver(asyncio.BufferedProtocol):
    """The driver of one connection."""

    __slots__ = (
        "_abort_timer",
        "_closing",
        "_deaf",
        "_pauses",
        "_server",
        "_transport",
        "_waiting",
        "appetite",
        "connection",
    )

    connection: Connection
    _transport: asyncio.Transport

    def __init__(self, server: DriverHost) -> None:
        self._server = server
        self._closing = False
        self._pauses = 0
        self._deaf = False
        self._waiting = False
        self._abort_timer: asyncio.TimerHandle | None = None
        self.appetite = len(server.read_buffer)
        """Octets to read at most in one go."""

    # -- asyncio's side ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast("asyncio.Transport", transport)
        server = self._server
        peer = _address(transport.get_extra_info("peername"))
        local = _address(transport.get_extra_info("sockname"))
        self.connection = Connection(server, self, peer, local, server.now())
        if not server.accepted(self):
            self._closing = True
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=server.write_high, low=server.write_high // 2)
        server.set_socket_options(cast("socket.socket", transport.get_extra_info("socket")))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next read goes."""
        del sizehint
        return self._server.read_buffer[: self.appetite]

    def buffer_updated(self, nbytes: int) -> None:
        """A read is done."""
        server = self._server
        connection = self.connection
        connection.reads += 1
        connection.octets_in += nbytes
        server.turn.now = monotonic_ns()
        connection.receive(bytes(server.read_buffer[:nbytes]))
        server.finish_turn()
        if connection.stalled:
            self.pause_reading()
            self._server.call_later(0, self._go_on)
        elif connection.published:
            self._pace(nbytes)

    def go_on(self) -> None:
        """Work off what the connection has kept, soon; ends one `pause_reading`."""
        self._server.call_later(0, self._go_on)

    def _go_on(self) -> None:
        """Work off the rest of a read: its replies have been written, or what it waited for is there."""
        connection = self.connection
        if connection.outbox.transport_full:
            self._waiting = True
            return
        self._server.turn.now = monotonic_ns()
        connection.receive(b"")
        self._server.finish_turn()
        if connection.stalled:
            self._server.call_later(0, self._go_on)
        else:
            self.resume_reading()

    def _pace(self, nbytes: int) -> None:
        """Wait a moment if what was just published meets a backlog that is being worked off."""
        server, connection = self._server, self.connection
        if server.wait_for_disk(self):
            server.turn.totals.pauses_disk += 1
            connection.paced_at = float("inf")
            self.pause_reading()
            return
        now = server.now()
        queue = congested(connection.published_to, now)
        if queue is not None and not connection.consumes:
            connection.paced_at = queue.paced_at = now
            server.turn.totals.pauses_queue += 1
            pause = Pause(queue, self, connection.message_size)
            server.call_later(PAUSE_SECONDS, lambda: pause.expire(server.now()))
        elif nbytes == self.appetite:
            self.appetite = min(2 * nbytes, len(server.read_buffer))

    def eof_received(self) -> bool:
        """The client has sent its last octet: so do we."""
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        """The socket is closed."""
        del exc
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._server.turn.now = monotonic_ns()
        try:
            self.connection.lost()
        finally:
            self._server.dropped(self)
            self._server.finish_turn()

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        outbox = self.connection.outbox
        outbox.transport_full = outbox.full = True

    def resume_writing(self) -> None:
        """The transport's buffer has drained."""
        outbox = self.connection.outbox
        outbox.transport_full = False
        if self._deaf:
            self._deaf = False
            self.resume_reading()
        outbox.drained()
        if self._waiting:
            self._waiting = False
            self._go_on()
        self._server.run_turn()

    # -- the connection's side --------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what is in the outbox."""
        connection = self.connection
        outbox = connection.outbox
        frames = outbox.frames
        if frames:
            if not self._transport.is_closing():
                if outbox.pending > JOIN_LIMIT:
                    connection.octets_out += sum(map(len, frames))
                    self._transport.writelines(frames)
                else:
                    octets = b"".join(frames)
                    connection.octets_out += len(octets)
                    self._transport.write(octets)
            frames.clear()
            connection.sent += 1
            if outbox.transport_full and not self._deaf:
                self._deaf = self._transport.get_write_buffer_size() > DEAF_LIMIT
                if self._deaf:
                    self.pause_reading()
        outbox.drained()

    def close(self, delay: float = 0.0) -> None:
        """Stop reading, write what is queued, and close the socket after `delay` seconds."""
        if self._closing:
            return
        self._closing = True
        self._server.close_soon(self, delay)

    def finish(self) -> None:
        """Close the socket once what is queued has been written."""
        self._transport.close()
        self._abort_timer = self._server.call_later(ABORT_SECONDS, self._transport.abort)

    @property
    def reading(self) -> bool:
        """Whether octets are being taken."""
        return not self._pauses

    @property
    def unsent(self) -> int:
        """Octets that wait to be sent."""
        return self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        """Take no more octets until each call has had its `resume_reading`."""
        self._pauses += 1
        if self._pauses == 1 and not self._closing and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take octets again, unless somebody else still wants none."""
        self._pauses -= 1
        if not self._pauses and not self._closing and not self._transport.is_closing():
            self._transport.resume_reading()

    def stop_reading(self) -> None:
        """Take no more octets, ever."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def abort(self) -> None:
        """Close the socket at once."""
        self._transport.abort()


def _address(name: Any) -> tuple[str, int]:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else ("unknown", 0)
