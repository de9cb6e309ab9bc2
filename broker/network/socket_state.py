"""What the system knows of the client at the other end of a socket that is not read (driver).

A connection that is not read, for an alarm or for anything else, gives no event when its client goes away. Whoever
does not read asks here now and then. `poll` is asked rather than `epoll`, which not every system has: with a socket
per call it costs two system calls and keeps nothing.
"""

import contextlib
import fcntl
import select
import socket
import struct
import termios
from typing import Any

_ENDED = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)
"""Without POLLRDHUP (macOS, older BSDs) POLLHUP tells of a peer's FIN, too."""
_INT = struct.Struct("i")
_RESET = struct.pack("ii", 1, 0)


def address(name: Any) -> tuple[str, int]:
    """Host and port of what a transport says of one end."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else ("unknown", 0)


def has_ended(sock: socket.socket) -> bool:
    """Whether the client has closed or reset the connection, or its host is unreachable; unread octets may be left."""
    poll = select.poll()
    poll.register(sock.fileno(), getattr(select, "POLLRDHUP", 0))
    return any(events & _ENDED for _, events in poll.poll(0))


def unread(sock: socket.socket) -> int:
    """Octets that have arrived and were not read."""
    return _asked(sock, termios.FIONREAD)


def unacknowledged(sock: socket.socket) -> int:
    """Octets that the client's system has not acknowledged yet."""
    return _asked(sock, termios.TIOCOUTQ)


def takes_more(sock: socket.socket, arrived: int) -> bool:
    """Whether there is room for more octets of the client's besides the `arrived`, so that its silence means something.

    The system counts what keeping them costs, which is more than the octets: half of the room is taken for all of it.
    """
    return arrived < sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 4


def reset_when_closed(sock: socket.socket) -> None:
    """Have `close` send a reset instead of an end: the client's next write fails instead of vanishing."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def _asked(sock: socket.socket, question: int) -> int:
    try:
        answer: int = _INT.unpack(fcntl.ioctl(sock.fileno(), question, bytes(_INT.size)))[0]
    except OSError:
        return 0
    return answer
