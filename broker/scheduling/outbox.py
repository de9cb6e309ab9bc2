"""Outgoing frames of a connection, which are written once a turn.

Hot path: see docs/performance.md.
"""

from typing import Protocol

from leveret.broker.scheduling.turn import Flushable, Turn

OUTBOX_LIMIT = 256 * 1024  # bytes that the deliveries of one turn may put into an outbox


class Parkable(Protocol):
    """A consumer that waits until its connection can be written to again."""

    def wake(self) -> None:
        """Rejoin the queue's rotation if nothing else prevents it."""


class Outbox:
    """Outgoing frames of one connection.

    An outbox is *full* while its transport has paused writing or this turn has put more than `limit` bytes into it;
    consumers then leave their queues' rotation and rejoin when it has drained. So a client that does not read costs a
    bounded buffer, and does not slow down others.
    """

    __slots__ = (
        "_driver",
        "frames",
        "full",
        "limit",
        "parked",
        "pending",
        "scheduled",
        "transport_full",
        "turn",
    )

    def __init__(self, turn: Turn, driver: Flushable, limit: int = OUTBOX_LIMIT) -> None:
        self.turn = turn
        self._driver = driver
        self.limit = limit
        self.frames: list[bytes | memoryview] = []
        self.pending = 0  # bytes added by deliveries since the last flush
        self.scheduled = False
        self.full = False
        self.transport_full = False
        self.parked: dict[Parkable, None] = {}

    def schedule(self) -> None:
        """Schedule a flush at the end of the turn."""
        if not self.scheduled:
            self.scheduled = True
            self.turn.outboxes.append(self)

    def send(self, *frames: bytes) -> None:
        """Queue frames (the cold path; deliveries append to `frames` themselves)."""
        self.frames += frames
        if not self.scheduled:
            self.scheduled = True
            self.turn.outboxes.append(self)

    def flush(self) -> None:
        """Hand the frames to the transport; the turn's driver calls this once a turn."""
        self.scheduled = False
        self._driver.flush()

    def detach(self, driver: Flushable) -> None:
        """Replace the driver after the connection was closed: further frames go to `driver`, which discards them."""
        self._driver = driver

    def drained(self) -> None:
        """Wake parked consumers, if possible; called when the transport took the frames or can be written to again."""
        self.pending = 0
        if self.full and not self.transport_full:
            self.full = False
            parked, self.parked = self.parked, {}
            for consumer in parked:
                consumer.wake()
