"""Moves bytes between a socket and a `Connection` (driver).

All connections read into one buffer of the server: a read is copied out of it before the next can begin, and an idle
connection has no buffer of its own.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import cast

from leveret.broker.connection.connection import Connection
from leveret.broker.connection.flow_control import FlowControl
from leveret.broker.connection.publish_limits import PublishPace
from leveret.broker.network import socket_state
from leveret.broker.network.gate import Gate
from leveret.broker.network.proxy_protocol import Header
from leveret.broker.network.socket_state import PeerCheck
from leveret.broker.scheduling.loop import Loop
from leveret.broker.scheduling.time_slices import SLICE

log = logging.getLogger("leveret.connection")

MANY = 16
"""Reads of other sockets since the last of this one from which its queues run once for all sockets that are read in the
same round of the event loop. With fewer the round's second step costs more than it saves."""
JOIN_LIMIT = 128 * 1024  # bytes up to which frames are joined before they are written
OUTPUT_LIMIT = 4 * 1024 * 1024
"""Bytes queued for sending from which a connection is no longer read. Deliveries stop long before; only a client that
sends command after command without reading the replies gets there."""
ABORT_SECONDS = 30.0  # time until a peer that does not take the last bytes is disconnected
LINGER_SECONDS = 5.0  # time for them to be acknowledged, unless `linger` sets it
TAKEN_SECONDS = 0.05  # interval of checks whether they are acknowledged


class LingeringClose:
    """The closing of one socket, which begins at once: by a reset if `linger` is set, as RabbitMQ does.

    Theory. After a FIN the client's next write seems to succeed, and is lost; after a reset it fails. But a reset also
    discards what the client's system has not acknowledged, so it waits until everything is: for a limited time, because
    a peer may take nothing.

    `linger` is the seconds for that, None to close without a reset. The transport has been given the last bytes;
    `abort` closes the socket at once, by a reset if `linger` is set.
    """

    __slots__ = ("_abort", "_linger", "_loop", "_since", "_socket", "_timer", "_transport")

    def __init__(
        self,
        loop: Loop,
        linger: float | None,
        transport: asyncio.Transport,
        sock: socket.socket,
        abort: Callable[[], object],
    ) -> None:
        self._loop = loop
        self._linger = linger
        self._transport = transport
        self._socket = sock
        self._abort = abort
        self._since = loop.now()
        self._timer: asyncio.TimerHandle | None = None
        if linger is None:
            transport.close()
            self._timer = loop.call_later(ABORT_SECONDS, transport.abort)
        else:
            self._reset_when_taken()

    def cancel(self) -> None:
        """Do nothing more: the socket has closed."""
        if self._timer is not None:
            self._timer.cancel()

    def _reset_when_taken(self) -> None:
        loop, transport = self._loop, self._transport
        if transport.is_closing():
            return
        if transport.get_write_buffer_size():
            patience = ABORT_SECONDS
        elif socket_state.unacknowledged(self._socket):
            patience = self._linger or LINGER_SECONDS
        else:
            patience = 0.0
        if loop.now() - self._since < patience:
            self._timer = loop.call_later(TAKEN_SECONDS, self._reset_when_taken)
        else:
            self._abort()


class _ClosedTransport(asyncio.Transport):
    """The transport of a socket that has closed."""

    def is_closing(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        """Do nothing."""

    def abort(self) -> None:
        """Do nothing."""


_CLOSED_TRANSPORT = _ClosedTransport()


class SocketDriver(asyncio.BufferedProtocol):
    """The driver of one connection."""

    __slots__ = (
        "_close",
        "_closing",
        "_flow",
        "_full_since",
        "_gate",
        "_gathered",
        "_is_output_full",
        "_loop",
        "_pauses",
        "_peer_check",
        "_read_number",
        "_socket",
        "_transport",
        "_waiting",
        "connection",
        "half_open_until",
        "header",
        "origin",
        "read_limit",
        "resumed",
    )

    connection_class: type[Connection] = Connection
    connection: Connection
    _transport: asyncio.Transport
    _socket: socket.socket

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._loop = gate.loop
        self.origin = ""  # the origin whose half-open place it holds; '' once it has none
        self.header: Header | None = None  # client's addresses from a proxy's header; None without a proxy
        self.half_open_until = 0.0
        """Earliest time (`time_source`) at which that place is released, even if the client disconnects earlier."""
        self._closing = False
        self._pauses = 0
        self._is_output_full = False
        self._waiting = 0
        self._full_since = 0  # start of the reads in a row that filled the buffer; 0 for none
        self._read_number = gate.loop.turn.reads  # `Turn.reads` after the last read
        self._gathered = 0  # size in bytes of the last read while the turn has not processed it yet
        self._close: LingeringClose | None = None
        self._peer_check = PeerCheck()
        self.resumed = 0
        self.read_limit = len(gate.read_buffer)  # maximum number of bytes per read
        self._flow = FlowControl(gate.node, self)

    def __repr__(self) -> str:
        return f"<driver of connection {self.connection.name!r}>"

    # -- asyncio's side ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the socket of a new client."""
        self._transport = cast("asyncio.Transport", transport)
        self._socket = cast("socket.socket", transport.get_extra_info("socket"))
        gate = self._gate
        peer = socket_state.address(transport.get_extra_info("peername"))
        local = socket_state.address(transport.get_extra_info("sockname"))
        if self.header is not None:
            peer, local = self.header.peer or peer, self.header.local or local
        self.connection = self.connection_class(gate.node, self, peer, local, gate.loop.time_source.now())
        handshake = transport.get_extra_info("ssl_object")
        if handshake is not None:
            from leveret.broker.tls.certificate import peer_of  # noqa: PLC0415 - only with TLS

            self.connection.tls = peer_of(handshake)
        if not gate.register(self):
            self._closing = True
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=gate.write_high, low=gate.write_high // 2)
        self._set_options()

    def _set_options(self) -> None:
        config, sock = self._gate.config, self._socket
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(config.nodelay))
            if config.keepalive:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if config.sndbuf:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.sndbuf)
            if config.recbuf:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.recbuf)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Return the buffer for the next read."""
        return self._gate.read_buffer[: self.read_limit]

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes of a read."""
        loop, connection = self._loop, self.connection
        connection.reads += 1
        connection.octets_in += nbytes
        turn = loop.turn
        loop.context.now = began = turn.slices.begin()
        is_full = nbytes == self.read_limit
        data = bytes(self._gate.read_buffer[:nbytes])
        others = turn.reads - self._read_number
        turn.reads += 1
        self._read_number = turn.reads
        if self._gathered and self._must_wait():
            connection.hold(data)
            loop.finish_turn()
        elif others < MANY or is_full:
            connection.receive(data)
            loop.finish_turn(is_alone=not others)
            if connection.stalled or connection.published:
                self._flow.after_read(nbytes)
        else:
            self._gather(data, began)
        if not is_full:
            self._full_since = 0
        elif not self._full_since:
            self._full_since = began
        elif turn.slices.clock() - self._full_since >= SLICE:
            self._pause_for_others()
        turn.slices.end("read of connection", connection.name)

    def _gather(self, data: bytes, began: int) -> None:
        """Process the bytes of a read whose queues the turn runs at the end of this round of the event loop."""
        loop, connection = self._loop, self.connection
        if not connection.read(data):
            loop.finish_turn()
            if connection.stalled:
                self._flow.after_read(len(data))
            return
        self._gathered = len(data)
        turn = loop.turn
        turn.is_shared = True
        if turn.gather(self, len(data), began) or connection.stalled:
            turn.run()
            loop.finish_turn()
        else:
            loop.schedule_turn()

    def _must_wait(self) -> bool:
        """Run the turn for the last read; returns whether nothing more may be processed now."""
        self._loop.turn.run()
        return self.connection.stalled

    def turn_ran(self, *, is_deferred: bool) -> None:
        """Pause reading if that is necessary after the last read; called by the turn that has processed it."""
        size, self._gathered = self._gathered, 0
        connection = self.connection
        connection.turn_ran(is_deferred=is_deferred)
        if connection.stalled or connection.published:
            self._flow.after_read(size)

    def _pause_for_others(self) -> None:
        """Pause until the next loop iteration: libuv reads a socket that fills the buffer up to 32 times in a row."""
        self._full_since = 0
        self.pause_reading()
        self._loop.call_later(0, self.resume_reading)

    def process_buffered(self) -> None:
        """Schedule processing of the connection's buffered input; ends one `pause_reading`."""
        self._loop.call_later(0, self._process_buffered)

    def limit_reads(self, pace: PublishPace) -> None:
        """Read no more at once than a limit of publishes allows."""
        self._flow.limit_reads(pace)

    def _process_buffered(self) -> None:
        """Process the rest of a read, after its replies were written or its wait has ended."""
        connection = self.connection
        if connection.outbox.transport_full:
            self._waiting += 1  # each call ends one pause
            return
        self.resumed += 1
        loop = self._loop
        loop.context.now = loop.turn.slices.renew()
        if self._gathered and self._must_wait():  # with a pause of its own, after which this is called again
            self.resume_reading()
            return
        connection.receive(b"")
        self._loop.finish_turn()
        self._flow.after_rest()

    def eof_received(self) -> bool:
        """Close the sending side after the client has closed its own."""
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        """Handle the closing of the socket."""
        del exc
        if self._close is not None:
            self._close.cancel()
            self._close = None
        # The protocol of TLS keeps this driver, so its transport must not be kept here: all of it would wait for the
        # garbage collector, 27 KiB for each connection (docs/adr/0039-memory-of-tls-connections.md).
        self._transport = _CLOSED_TRANSPORT
        self._loop.run_step("loss of connection", self._end_connection, self.connection.name)

    def _end_connection(self) -> None:
        try:
            if self._gathered:
                self._loop.turn.run()
            self.connection.lost()
        finally:
            self._gate.unregister(self)
            self._loop.finish_turn()

    def pause_writing(self) -> None:
        """Called when the transport's buffer is full."""
        outbox = self.connection.outbox
        outbox.transport_full = outbox.full = True

    def resume_writing(self) -> None:
        """Called when the transport's buffer has drained."""
        self._loop.run_step("drained connection", self._resume_output, self.connection.name)

    def _resume_output(self) -> None:
        outbox = self.connection.outbox
        outbox.transport_full = False
        if self._is_output_full:
            self._is_output_full = False
            self.resume_reading()
        outbox.drained()
        waiting, self._waiting = self._waiting, 0
        for _ in range(waiting):
            self._process_buffered()
        self._loop.run_turn()

    # -- the connection's and the server's side --------------------------------------------------------------------

    def admitted(self) -> None:
        """Called once the client has logged in."""
        self._gate.release_half_open(self)

    def flush(self) -> None:
        """Write the outbox."""
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
            if outbox.transport_full and not self._is_output_full and self.unsent > OUTPUT_LIMIT:
                self._is_output_full = True
                self.pause_reading()
        outbox.pending = 0
        if outbox.full:
            outbox.drained()

    def close(self, delay: float = 0.0) -> None:
        """Stop reading, write what is queued, and close the socket after `delay` seconds."""
        if self._closing:
            return
        self._closing = True
        if delay:
            self.half_open_until = self._loop.time_source.now() + delay
        self._loop.call_soon(partial(self._close_after, delay))

    def _close_after(self, delay: float) -> None:
        self.flush()
        if delay:
            self.stop_reading()
            run_step = self._loop.run_step
            self._loop.time_source.call_later(delay, run_step, "timer", self.finish, self.finish)
        else:
            self.finish()

    def finish(self) -> None:
        """Close the socket once everything is sent."""
        self._close = LingeringClose(self._loop, self._gate.linger, self._transport, self._socket, self.abort)

    def check_peer(self, now: float) -> None:
        """Check, every `socket_state.CHECK_SECONDS` of a monotonic clock, whether the client is there and reads."""
        if not self._pauses and not self._transport.get_write_buffer_size():
            self._peer_check.was_fine = True
        elif not self._closing and not self._transport.is_closing():
            self._peer_check.run(self, self._socket, now, self._gate.send_timeout)

    def disconnect(self, reason: str) -> None:
        """Close the connection at once, because of a fault of the client."""
        log.warning("closing connection %s: %s", self.connection.name, reason)
        self.connection.close_reason = reason
        self.abort()

    def is_heard(self) -> bool:
        """Return whether bytes have arrived since the last call, or cannot because the receive buffer is full."""
        return self._peer_check.has_input(self._socket)

    @property
    def reading(self) -> bool:
        """True while bytes are being read."""
        return not self._pauses

    @property
    def unsent(self) -> int:
        """Number of bytes queued for sending."""
        return self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        """Stop reading until each call was followed by its `resume_reading`."""
        self._pauses += 1
        if self._pauses == 1 and not self._closing and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading, unless another pause is in effect."""
        self._pauses -= 1
        if not self._pauses and not self._closing and not self._transport.is_closing():
            self._transport.resume_reading()

    def stop_reading(self) -> None:
        """Stop reading for good."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def abort(self) -> None:
        """Close the socket at once; unsent data is lost."""
        if self._gate.linger is not None:
            socket_state.reset_when_closed(self._socket)
        self._transport.abort()
