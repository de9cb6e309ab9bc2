"""The rests of shovels, so that other clients of the broker need not wait for them, and a timer for them (driver).

Theory. A shovel always has more to do, and all of it happens in the event loop that serves the clients: at full speed
the loop is never idle, so each read of another client waits for what the shovel, its two connections and its two queues
do. Clients of other processes do not fill the loop like that, because a part of the work is their own. So while there
are other clients, a shovel rests after each of its two steps (messages to the destination, acks to the source) for a
multiple of the processor time that the loop has used since the last one. Whatever a message costs, on whatever machine,
that leaves the loop idle for most of the time, and between two steps: a client on the same processor waits for that
even after a confirm is sent to it. All shovels of a broker share these rests: the next step of any of them comes when
the rest after the last step of any is over, so that ten shovels leave as much of the loop to others as one does. But
where others use most of the loop, ten need more steps than one: less of the work counts if several of them wait.
Without other clients a shovel does not rest; other shovels within the broker are none, nor are connections that only
send heartbeats.

The timers of event loops have milliseconds, counted from the last poll: one of a millisecond takes anything from
nothing to two. A timer of Linux is a file descriptor that becomes readable some ten microseconds after it is due.
"""

import asyncio
import ctypes
import os
from collections import deque
from collections.abc import Callable
from struct import Struct
from time import CLOCK_MONOTONIC
from typing import Final

from leveret.broker.connection.connection import Connection

FACTOR: Final = 3  # times the processor time that a rest lasts, in which a step causes work, too
MOST_NS: Final = 2_000_000  # ns of processor time that count, at most: others may use much of the loop
SHARED_AMONG: Final = 2  # maximum number of waiting shovels that divide these ns, about a step each
BESIDE_NS: Final = 1_000_000_000  # nanoseconds after a read of another client for which there are others


def _busy_reads(connection: Connection) -> int:
    return connection.reads - connection.heartbeats


class OwnReads:
    """Counts the reads from the connections of a broker's shovels to the broker itself, without heartbeats."""

    def __init__(self) -> None:
        self._connections: set[Connection] = set()
        self._ended = 0  # reads of connections that were removed

    def add(self, connection: Connection) -> None:
        """Count the reads of a connection from now on."""
        self._connections.add(connection)

    def remove(self, connection: Connection) -> None:
        """Forget a connection that has ended, and not what was read from it; may be called again."""
        if connection in self._connections:
            self._connections.remove(connection)
            self._ended += _busy_reads(connection)

    def total(self) -> int:
        """Return the number of reads so far."""
        return self._ended + sum(map(_busy_reads, self._connections))


class Pace:
    """The pace of all shovels of a broker.

    Both numbers are those so far: `used` nanoseconds of processor time of the event loop, and `reads` from all clients,
    without heartbeats. `own_reads` are those of the shovels themselves.
    """

    def __init__(self, used: int = 0, reads: int = 0) -> None:
        self.own_reads = OwnReads()
        self._used = used
        self._reads = reads
        self._beside_until = 0
        self._rests: deque[int] = deque()  # times at which rests are over, ascending

    def rest(self, used: int, reads: int, now: int) -> int:
        """Return the nanoseconds until the next step of the shovel that has just done one; 0 for no rest.

        `now` is the time of a monotonic clock in nanoseconds, the others are those of the class.
        """
        rests = self._rests
        while rests and rests[0] <= now:
            rests.popleft()
        waiting = len(rests) + 1  # those whose rests are not over, and this shovel
        work = min(used - self._used, MOST_NS // min(waiting, SHARED_AMONG))
        self._used = used
        others = reads - self.own_reads.total()
        if others != self._reads:
            self._reads = others
            self._beside_until = now + BESIDE_NS
        if now >= self._beside_until:
            return 0
        over = (rests[-1] if rests else now) + FACTOR * work
        rests.append(over)
        return over - now


_BILLION = 1_000_000_000
_pack_times = Struct("@llll").pack
"""`struct itimerspec`: seconds and nanoseconds of an interval, here 0, and of the first time."""
_OCTETS = 8  # bytes that are read from a timer that was due


class Timer:
    """A timer of a running event loop; `callback` is called when it is due, once each time it is set."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self._library = ctypes.CDLL(None)
        self._descriptor = -1
        if hasattr(self._library, "timerfd_create"):
            self._descriptor = self._library.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor >= 0:
            self._loop.add_reader(self._descriptor, self._read)

    def set(self, nanoseconds: int) -> None:
        """Call back in this time (more than 0); must not be called again before that."""
        if self._descriptor >= 0:
            times = _pack_times(0, 0, *divmod(nanoseconds, _BILLION))
            self._library.timerfd_settime(self._descriptor, 0, times, None)
        else:
            self._handle = self._loop.call_later(nanoseconds / _BILLION, self._callback)

    def _read(self) -> None:
        try:
            os.read(self._descriptor, _OCTETS)
        except BlockingIOError:
            return
        self._callback()

    def close(self) -> None:
        """Forget the callback; the timer may not be set any more."""
        if self._handle is not None:
            self._handle.cancel()
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
