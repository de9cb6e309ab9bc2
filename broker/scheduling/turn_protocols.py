"""Protocols of what a turn of the event loop runs, sends to or tells (`broker.scheduling.turn`)."""

from collections.abc import Callable
from typing import Protocol


class Runnable(Protocol):
    """A queue with work to do."""

    touched: bool

    @property
    def durable(self) -> bool:
        """True if its input may be written to disk. Constant."""

    @property
    def has_input(self) -> bool:
        """True if acks or arrivals wait for the next run."""

    @property
    def stores_input(self) -> bool:
        """True if some of them are written to disk: no commit begins while this is deferred."""

    def run(self) -> bool:
        """Do the accumulated work; return true if some is left because the turn's budget is used up."""

    def give_up(self) -> None:
        """Drop the accumulated work after an internal error."""


class Settling(Protocol):
    """Acks that have no effect yet (`broker.queue.retention`)."""

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call back once when they have."""


class Flushing(Protocol):
    """The outgoing frames of a connection (`broker.scheduling.outbox.Outbox`)."""

    def flush(self) -> None:
        """Hand the frames to the transport."""


class Read(Protocol):
    """A read from a socket whose messages and acks are noted, but not processed (`Turn.gather`)."""

    def turn_ran(self, *, is_deferred: bool) -> None:
        """Called once, after the next run of the turn.

        Args:
            is_deferred: as returned by `Turn.run`.

        """


class Confirming(Protocol):
    """A channel in confirm mode with published messages."""

    def may_wait(self) -> bool:
        """Return whether so many publishes are unconfirmed that its confirms may wait for others.

        If so, it is put on the list again when something changes.
        """

    def flush_confirms(self, since: int = 0) -> None:
        """Send the confirms that are due.

        Args:
            since: time (ns) from which on their publishes may have arrived; 0 for this turn.

        """
