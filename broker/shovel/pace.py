"""The rests of shovels, so that other clients of the broker need not wait for them. No clock.

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
"""

from collections import deque
from typing import Final, Protocol

FACTOR: Final = 3
"""Times the processor time that a rest lasts. A step also causes work during its rest, so the loop is idle for less."""
MOST_NS: Final = 2_000_000
"""Nanoseconds of processor time that count, at most: others may use much of the loop, and must not stop the shovel."""
SHARED_AMONG: Final = 2
"""Number of waiting shovels that divide these nanoseconds, at most: a part is about what a step of a shovel takes."""
BESIDE_NS: Final = 1_000_000_000
"""Nanoseconds after a read of another client for which there are others."""


class Reading(Protocol):
    """A connection: counts the reads from it, and the heartbeats among them."""

    reads: int
    heartbeats: int


def _busy_reads(connection: Reading) -> int:
    return connection.reads - connection.heartbeats


class OwnReads:
    """Counts the reads from the connections of a broker's shovels to the broker itself, without heartbeats."""

    __slots__ = ("_connections", "_ended")

    def __init__(self) -> None:
        self._connections: set[Reading] = set()
        self._ended = 0
        """Reads of connections that were removed."""

    def add(self, connection: Reading) -> None:
        """Count the reads of a connection from now on."""
        self._connections.add(connection)

    def remove(self, connection: Reading) -> None:
        """Forget a connection that has ended, and not what was read from it; no effect if that was done before."""
        if connection in self._connections:
            self._connections.remove(connection)
            self._ended += _busy_reads(connection)

    def total(self) -> int:
        """Return the number of reads so far."""
        return self._ended + sum(map(_busy_reads, self._connections))


class Pace:
    """The pace of all shovels of a broker.

    Args:
        used: processor time of the event loop so far, in nanoseconds.
        reads: number of reads from all clients so far, without heartbeats.

    Attributes:
        own_reads: those of the shovels themselves.

    """

    __slots__ = ("_beside_until", "_reads", "_rests", "_used", "own_reads")

    def __init__(self, used: int = 0, reads: int = 0) -> None:
        self.own_reads = OwnReads()
        self._used = used
        self._reads = reads
        self._beside_until = 0
        self._rests: deque[int] = deque()
        """Times at which rests are over, ascending."""

    def rest(self, used: int, reads: int, now: int) -> int:
        """Return the nanoseconds until the next step of the shovel that has just done one; 0 for no rest.

        Args:
            used: processor time of the event loop so far, in nanoseconds.
            reads: number of reads from all clients so far, without heartbeats.
            now: time of a monotonic clock in nanoseconds.

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
