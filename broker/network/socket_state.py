"""State of the peer of a socket that is not read, and the end of connections whose peer has gone (driver).

A connection that is not read, because of an alarm for example, gets no event when its client disconnects, so it polls
these functions now and then. They use `poll` rather than `epoll`, which not every system has: for one socket per call
it costs two system calls and keeps no state.

A client that reads nothing causes no event either. So each driver is checked every `CHECK_SECONDS`, and compared with
its state at the last check: has it processed input since, has the client taken any bytes? One that is read and has sent
everything needs no check: there may be ten thousand of them.
"""

import contextlib
import fcntl
import select
import socket
import struct
import termios
from typing import Any

_ENDED = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)
"""Without POLLRDHUP (macOS, older BSDs) POLLHUP also reports a FIN of the peer."""
_INT = struct.Struct("i")
_RESET = struct.pack("ii", 1, 0)


def address(name: Any) -> tuple[str, int]:
    """Return host and port of a transport's address."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else ("unknown", 0)


def has_ended(sock: socket.socket) -> bool:
    """Return whether the client has closed or reset the connection, or is unreachable; unread bytes may remain."""
    poll = select.poll()
    poll.register(sock.fileno(), getattr(select, "POLLRDHUP", 0))
    return any(events & _ENDED for _, events in poll.poll(0))


def unread(sock: socket.socket) -> int:
    """Return the number of bytes that have arrived and were not read."""
    return _asked(sock, termios.FIONREAD)


def unacknowledged(sock: socket.socket) -> int:
    """Return the number of bytes that the client's system has not acknowledged yet."""
    return _asked(sock, termios.TIOCOUTQ)


def takes_more(sock: socket.socket, arrived: int) -> bool:
    """Return whether there is room for more than the `arrived` bytes, so that silence of the client is significant.

    The system counts its own overhead, too: half of the buffer is assumed to be available for data.
    """
    return arrived < sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 4


def reset_when_closed(sock: socket.socket) -> None:
    """Make `close` send a reset instead of a FIN: then the client's next write fails instead of being lost."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def _asked(sock: socket.socket, question: int) -> int:
    try:
        answer: int = _INT.unpack(fcntl.ioctl(sock.fileno(), question, bytes(_INT.size)))[0]
    except OSError:
        return 0
    return answer


CHECK_SECONDS = 0.5  # interval between two checks of a connection
BLOCKED_CHECKS = 2  # checks in a row of a connection blocked by an alarm that find its client gone
WAITING_CHECKS = 60  # for any other wait: replies to earlier requests are still computed


class PeerCheck:
    """The checks of one connection, with its state at the last of them."""

    __slots__ = ("_arrived", "_idle_checks", "_steps", "_taken", "_taken_at", "was_fine")

    def __init__(self) -> None:
        self._steps = 0
        self._idle_checks = 0  # checks in a row that have found it not read and without progress
        self._taken = 0
        self._taken_at = 0.0
        self._arrived = 0
        self.was_fine = True
        """True if the connection was being read, with everything sent, at the last check; the driver sets it instead of
        a `run`."""

    def run(self, driver: Any, sock: socket.socket, now: float, send_timeout: float | None) -> None:
        """End the connection if its client has gone or does not read; the `SocketDriver` is not closing.

        `now` is seconds of a monotonic clock; after `send_timeout` seconds a client that does not read is disconnected,
        None for never.
        """
        connection = driver.connection
        steps = connection.reads + driver.resumed
        unsent = driver.unsent
        taken = connection.octets_out - unsent
        if self.was_fine:
            self.was_fine = False
            self._idle_checks = 0
            self._steps, self._taken, self._taken_at = steps, taken, now
            return
        if not driver.reading and steps == self._steps and not connection.outbox.transport_full:
            self._idle_checks += 1
            checks = BLOCKED_CHECKS if connection.blocked else WAITING_CHECKS
            if self._idle_checks > checks and has_ended(sock):
                driver.abort()
                return
        else:
            self._idle_checks = 0
            self._steps = steps
        if not unsent or taken != self._taken:
            self._taken = taken
            self._taken_at = now
        elif send_timeout is not None and now - self._taken_at > send_timeout:
            seconds = now - self._taken_at
            driver.disconnect(f"the client has not read any of {unsent} pending bytes for {seconds:.0f} s")

    def has_input(self, sock: socket.socket) -> bool:
        """Return whether bytes have arrived since the last call, or cannot because the receive buffer is full."""
        before, self._arrived = self._arrived, unread(sock)
        return self._arrived != before or not takes_more(sock, self._arrived)
