"""State of the peer of a socket that is not read, as far as the operating system knows it (driver).

A connection that is not read, because of an alarm for example, gets no event when its client disconnects, so it polls
these functions now and then. They use `poll` rather than `epoll`, which not every system has: for one socket per call
it costs two system calls and keeps no state.
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
