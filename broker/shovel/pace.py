"""The rests of a shovel, so that other clients of the broker need not wait for it. No clock.

Theory. A shovel always has more to do, and all of it happens in the event loop that serves the clients: at full speed
the loop is never idle, so each read of another client waits for what the shovel, its two connections and its two queues
do. Clients of other processes do not fill the loop like that, because a part of the work is their own. So while there
are other clients, a shovel rests after each of its two steps (messages to the destination, acks to the source) for a
multiple of the processor time that the loop has used since the last one. Whatever a message costs, on whatever machine,
that leaves the loop idle for most of the time, and between two steps: a client on the same processor waits for that
even after a confirm is sent to it. Without other clients a shovel does not rest; other shovels within the broker are
none.
"""

from typing import Final, Protocol

FACTOR: Final = 3
"""Times the processor time that a rest lasts. A step also causes work during its rest, so the loop is idle for less."""
MOST_NS: Final = 2_000_000
"""Nanoseconds of processor time that count, at most: others may use much of the loop, and must not stop the shovel."""
BESIDE_NS: Final = 1_000_000_000
"""Nanoseconds after a read of another client for which there are others."""


class Reading(Protocol):
    """A connection: counts the reads from it."""

    reads: int


class OwnReads:
    """Counts the reads from the connections of a broker's shovels to the broker itself."""

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
            self._ended += connection.reads

    def total(self) -> int:
        """Return the number of reads so far."""
        return self._ended + sum([each.reads for each in self._connections])


class Pace:
    """The pace of one shovel.

    Args:
        used: processor time of the event loop so far, in nanoseconds.
        reads: number of reads from other clients so far.

    """

    __slots__ = ("_beside_until", "_reads", "_used")

    def __init__(self, used: int = 0, reads: int = 0) -> None:
        self._used = used
        self._reads = reads
        self._beside_until = 0

    def rest(self, used: int, reads: int, now: int) -> int:
        """Return the nanoseconds to rest after a step; 0 for no rest.

        Args:
            used: processor time of the event loop so far, in nanoseconds.
            reads: number of reads from other clients so far.
            now: time of a monotonic clock in nanoseconds.

        """
        work = min(used - self._used, MOST_NS)
        self._used = used
        if reads != self._reads:
            self._reads = reads
            self._beside_until = now + BESIDE_NS
        return round(FACTOR * work) if now < self._beside_until else 0
