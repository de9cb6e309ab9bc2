"""Connections of an embedded broker, which can have faults, and their sockets (driver).

Theory. The faults are in the `FaultState` of the server, which these classes look at before they do what their base
classes do. A broker of its own uses the base classes.
"""

from collections import deque
from math import ceil
from typing import Protocol, cast

from leveret.broker.connection.connection import Connection
from leveret.broker.connection.state import CLOSED, LOST, OPEN
from leveret.broker.embedded.fault_state import (
    MID_BODY,
    FaultState,
    interleaved,
    middle_of_body,
)
from leveret.broker.embedded.faulty_channel import FaultyChannel, FaultyNode
from leveret.broker.network.socket_driver import DriverHost, SocketDriver
from leveret.broker.scheduling.outbox import OUTBOX_LIMIT
from leveret.broker.scheduling.time_source import TimerHandle

_ACK = 60 << 16 | 80
_NACK = 60 << 16 | 120
PIECES_A_SECOND = 20
"""Pieces in which a slow consumer takes its bytes."""
LEAST_PIPE = 1024
"""Bytes that a slow consumer may have on their way, at least; else those of a second."""


def _pipe_limit(rate: float) -> int:
    return max(LEAST_PIPE, int(rate))


class FaultyHost(DriverHost, FaultyNode, Protocol):
    """The part of the server that these classes use."""


class FaultyConnection(Connection):
    """A connection."""

    __slots__ = ()

    channels: dict[int, FaultyChannel]  # type: ignore[assignment]

    @property
    def server(self) -> "FaultyHost":
        """The server."""
        return cast("FaultyHost", self.node)

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

    __slots__ = ("_free_at", "_is_choked", "_is_finishing", "_pipe", "_timer", "is_severed")

    connection_class = FaultyConnection
    connection: FaultyConnection
    _server: FaultyHost

    def __init__(self, server: DriverHost) -> None:
        super().__init__(server)
        self.is_severed = False
        """True if the connection is to be dropped after the next flush."""
        self._pipe: deque[tuple[float, bytes]] = deque()
        """Octets on their way, with the times at which they arrive."""
        self._free_at = 0.0
        """Time at which a slow consumer has taken everything."""
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
        faults = self._server.faults
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
        """Write octets, or put them into the pipe."""
        rate = faults.rate if self.connection.state == OPEN and self.connection.consumes else None
        if self._transport.is_closing():
            return
        if not self._pipe and not faults.delay and rate is None:
            self._transport.write(octets)
            return
        now = self._server.time_source.now()
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
            source = self._server.time_source
            seconds = max(0.0, self._pipe[0][0] - source.now())
            self._timer = source.call_later(seconds, self._server.run_step, "faults", self._write_due, "")

    def limit_outbox(self) -> None:
        """Let the messages of one turn, too, be no more than a slow consumer may have on their way."""
        rate = self._server.faults.rate
        self.connection.outbox.limit = OUTBOX_LIMIT if rate is None else min(OUTBOX_LIMIT, _pipe_limit(rate))

    def _write_due(self) -> None:
        """Write what has arrived."""
        self._timer = None
        now = self._server.time_source.now() + 1e-9  # of rounding
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
        rate = self._server.faults.rate
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
