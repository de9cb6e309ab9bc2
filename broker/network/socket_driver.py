"""Moves octets between a socket and a `Connection` (driver).

All connections read into one buffer of the server: a read is copied out of it before the next can begin, and an idle
connection owns none.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Protocol, cast

from leveret.broker.connection.connection import Connection
from leveret.broker.connection.flow_control import PAUSE_SECONDS, Pause, congested
from leveret.broker.connection.node import Node
from leveret.broker.network import socket_state
from leveret.broker.scheduling.time_slices import SLICE

log = logging.getLogger("leveret.connection")

JOIN_LIMIT = 128 * 1024  # octets up to which frames are joined before they are written
LIGHT_OCTETS = 32 * 1024
"""Octets of a read up to which a publisher has sent little: 1 MB/s, if the loop looks at it every 30 ms."""
DEAF_LIMIT = 4 * 1024 * 1024
"""Octets waiting to be sent from which a connection is not read any more. Deliveries stop long before; only a client
that sends command after command without reading the replies gets there."""
ABORT_SECONDS = 30.0  # a peer that does not take our last octets is cut off after so long
LINGER_SECONDS = 5.0  # that they may take to be acknowledged, where `linger` does not say it
TAKEN_SECONDS = 0.05  # between two looks whether it has taken them
LOOK_SECONDS = 0.5
"""Between two calls of `SocketDriver.look`."""
STUCK_LOOKS = 2
"""Looks in a row at a connection that an alarm blocks, after which the end of its client ends it."""
PATIENT_LOOKS = 60  # the same while it waits for anything else: what the client had sent is still answered


class DriverHost(Node, Protocol):
    """What a driver needs of the server."""

    read_buffer: memoryview
    write_high: int
    send_timeout: float | None
    """Seconds after which a client that takes nothing of what is sent to it is cut; None for never."""
    linger: float | None
    """Seconds that the last octets may take to be acknowledged before a socket is reset; None to end it without."""

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

    def settled(self, driver: "SocketDriver") -> None:
        """The client of a socket has logged in."""

    def close_soon(self, driver: "SocketDriver", delay: float) -> None:
        """Close a socket after its outbox has been flushed, and `delay` seconds."""

    def set_socket_options(self, sock: socket.socket) -> None:
        """Apply the configured TCP options."""

    def wait_for_disk(
        self, driver: "SocketDriver", *, publishes: bool = True, is_light: bool = False
    ) -> bool:
        """Whether a publisher, or who does something else, must wait for the disk; it is resumed then, once."""


class SocketDriver(asyncio.BufferedProtocol):
    """The driver of one connection."""

    __slots__ = (
        "_abort_timer",
        "_arrived",
        "_closing",
        "_deaf",
        "_full_since",
        "_is_behind",
        "_pauses",
        "_resumed",
        "_server",
        "_socket",
        "_steps",
        "_stuck",
        "_taken",
        "_taken_at",
        "_transport",
        "_waiting",
        "appetite",
        "connection",
        "kept_until",
        "origin",
    )

    connection: Connection
    _transport: asyncio.Transport
    _socket: socket.socket

    def __init__(self, server: DriverHost) -> None:
        self._server = server
        self.origin = ""
        """In whose name it has a place among those that have not logged in; '' once it has none."""
        self.kept_until = 0.0
        """When that place is given back at the earliest, however early the client leaves."""
        self._closing = False
        self._pauses = 0
        self._deaf = False
        self._waiting = 0
        self._is_behind = False
        """It waits for the disk with a part of a read."""
        self._full_since = 0
        """When the first of the latest reads began that have filled the buffer; 0 if the last did not."""
        self._abort_timer: asyncio.TimerHandle | None = None
        # as the last look has found it
        self._resumed = 0
        """How often it went on with what it had kept."""
        self._steps = 0
        self._stuck = 0
        self._arrived = 0
        self._taken = 0
        self._taken_at = 0.0
        self.appetite = len(server.read_buffer)
        """Octets to read at most in one go."""

    def __repr__(self) -> str:
        """Name the connection."""
        return f"<driver of connection {self.connection.name!r}>"

    # -- asyncio's side ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast("asyncio.Transport", transport)
        self._socket = cast("socket.socket", transport.get_extra_info("socket"))
        server = self._server
        peer = socket_state.address(transport.get_extra_info("peername"))
        local = socket_state.address(transport.get_extra_info("sockname"))
        self.connection = Connection(server, self, peer, local, server.now())
        if not server.accepted(self):
            self._closing = True
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=server.write_high, low=server.write_high // 2)
        server.set_socket_options(self._socket)

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
        turn = server.turn
        turn.now = began = turn.slices.begin()
        is_full = nbytes == self.appetite
        connection.receive(bytes(server.read_buffer[:nbytes]))
        server.finish_turn()
        if connection.stalled:
            self.pause_reading()
            self._wait()
        elif connection.published:
            self._pace(nbytes)
        if not is_full:
            self._full_since = 0
        elif not self._full_since:
            self._full_since = began
        elif turn.slices.clock() - self._full_since >= SLICE:
            self._give_way()
        turn.slices.end("read of connection", connection.name)

    def _give_way(self) -> None:
        """Read on in the next round of the loop: libuv goes on with a socket that fills the buffer, up to 32 times."""
        self._full_since = 0
        self.pause_reading()
        self._server.call_later(0, self.resume_reading)

    def go_on(self) -> None:
        """Work off what the connection has kept, soon; ends one `pause_reading`."""
        self._server.call_later(0, self._go_on)

    def _go_on(self) -> None:
        """Work off the rest of a read: its replies have been written, or what it waited for is there."""
        connection = self.connection
        if connection.outbox.transport_full:
            self._waiting += 1  # each call ends one pause
            return
        self._resumed += 1
        turn = self._server.turn
        turn.now = turn.slices.renew()
        connection.receive(b"")
        self._server.finish_turn()
        if connection.stalled:
            self._wait()
        else:
            self.resume_reading()
            if connection.published:
                self._pace(0)

    def _wait(self) -> None:
        """Work off the rest of a read when others had their turn, and the disk has taken what it was given."""
        server = self._server
        if server.wait_for_disk(self, publishes=self.connection.published):
            self._is_behind = True
            self._waits_for_disk()
        else:
            server.turn.when_caught_up(self.go_on)

    def _waits_for_disk(self) -> None:
        self._server.turn.totals.pauses_disk += 1
        self.connection.paced_at = float("inf")

    def disk_caught_up(self) -> None:
        """What waited for the disk is there: take octets again."""
        self.connection.paced_at = self._server.now()
        if self._is_behind:
            self._is_behind = False
            self.go_on()
        else:
            self.resume_reading()

    def _pace(self, nbytes: int) -> None:
        """Wait a moment if what was just published meets a backlog that is being worked off."""
        server, connection = self._server, self.connection
        if server.wait_for_disk(self, is_light=0 < nbytes <= LIGHT_OCTETS):
            self._waits_for_disk()
            self.pause_reading()
            return
        now = server.now()
        queue = congested(connection.published_to, now)
        if queue is not None and (queue.is_behind or not connection.consumes):
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
        turn = self._server.turn
        turn.now = turn.slices.begin()
        try:
            self.connection.lost()
        finally:
            self._server.dropped(self)
            self._server.finish_turn()
            turn.slices.end("loss of connection", self.connection.name)

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        outbox = self.connection.outbox
        outbox.transport_full = outbox.full = True

    def resume_writing(self) -> None:
        """The transport's buffer has drained."""
        slices = self._server.turn.slices
        slices.begin()
        outbox = self.connection.outbox
        outbox.transport_full = False
        if self._deaf:
            self._deaf = False
            self.resume_reading()
        outbox.drained()
        waiting, self._waiting = self._waiting, 0
        for _ in range(waiting):
            self._go_on()
        self._server.run_turn()
        slices.end("drained connection", self.connection.name)

    # -- the connection's side -------------------------------------------------------------------------------------

    def admitted(self) -> None:
        """The client has logged in."""
        self._server.settled(self)

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
        if delay:
            self.kept_until = self._server.now() + delay
        self._server.close_soon(self, delay)

    def finish(self) -> None:
        """Close the socket once the client has what is queued, by a reset where `linger` is on, as RabbitMQ does."""
        linger = self._server.linger
        if linger is None:
            self._transport.close()
            self._abort_timer = self._server.call_later(ABORT_SECONDS, self._transport.abort)
        else:
            self._reset_when_taken(self._server.now(), linger or LINGER_SECONDS)

    def _reset_when_taken(self, since: float, linger: float) -> None:
        """Reset the socket when everything is acknowledged: a reset throws away what is not."""
        if self._transport.is_closing():
            return
        patience = (
            ABORT_SECONDS if self.unsent else linger if socket_state.unacknowledged(self._socket) else 0.0
        )
        if self._server.now() - since < patience:
            self._abort_timer = self._server.call_later(
                TAKEN_SECONDS, lambda: self._reset_when_taken(since, linger)
            )
        else:
            self.abort()

    # -- the other end ----------------------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """End the connection if its client has gone while it is not read, or takes nothing of what is sent to it.

        To be called every `LOOK_SECONDS`, with seconds of a monotonic clock.
        """
        if self._closing or self._transport.is_closing():
            return
        connection = self.connection
        steps = connection.reads + self._resumed
        if self._pauses and steps == self._steps and not connection.outbox.transport_full:
            self._stuck += 1
            looks = STUCK_LOOKS if connection.blocked else PATIENT_LOOKS
            if self._stuck > looks and socket_state.has_ended(self._socket):
                self.abort()
                return
        else:
            self._stuck = 0
            self._steps = steps
        unsent = self.unsent
        taken = connection.octets_out - unsent
        if not unsent or taken != self._taken:
            self._taken = taken
            self._taken_at = now
        elif self._server.send_timeout is not None and now - self._taken_at > self._server.send_timeout:
            seconds = now - self._taken_at
            self.cut(f"the client has taken nothing of {unsent} octets for {seconds:.0f} s")

    def cut(self, reason: str) -> None:
        """End the connection at once, because of its client."""
        log.warning("closing connection %s: %s", self.connection.name, reason)
        self.connection.close_reason = reason
        self.abort()

    def is_heard(self) -> bool:
        """Whether octets have arrived since the last call, or none can because too many wait to be read."""
        before, self._arrived = self._arrived, socket_state.unread(self._socket)
        return self._arrived != before or not socket_state.takes_more(self._socket, self._arrived)

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
        """Close the socket at once; what was not sent is lost."""
        if self._server.linger is not None:
            socket_state.reset_when_closed(self._socket)
        self._transport.abort()
