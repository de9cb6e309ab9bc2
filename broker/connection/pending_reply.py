"""Stops reading a connection until a pending commit or another condition lets its reply be sent.

Theory. A `*-ok` means that a change is safe, so it is sent after the commit, and whatever the client sent after that
method is executed after it. The receive loop stops behind the method, keeps the bytes it has, and the driver stops
reading; other connections continue, and so do deliveries to this one. A connection that waits has exactly one
`PendingReply`. The callback may come at once, before anything was stopped, and it may come when the connection is
closed or closing: then `Connection.pending_reply` is another one or None, and nothing happens. If only its channel has
been closed, the connection keeps waiting, without a reply.
"""

from collections.abc import Callable
from typing import Any, Protocol

from leveret.broker.scheduling.outbox import Outbox


class Resumable(Protocol):
    """The driver of the connection."""

    def pause_reading(self) -> None:
        """Stop reading."""

    def process_buffered(self) -> None:
        """Schedule processing of the buffered bytes; then resume reading."""


class WaitingConnection(Protocol):
    """The connection."""

    pending_reply: "PendingReply | None"
    outbox: Outbox

    @property
    def driver(self) -> Resumable:
        """Moves its bytes."""

    def not_stored(self, number: int, class_id: int, method_id: int) -> None:
        """Report that the change which a channel requested by this method could not be stored: the disk is full."""


class PendingReply:
    """A pending reply: one wait of one connection.

    Args:
        connection: the connection that waits.
        number: the channel of the method.
        method: its class and method id.
        reply: the frame that is sent at the end if the change was stored.

    """

    __slots__ = ("_connection", "_method", "_number", "_reply", "_stopped")

    def __init__(
        self, connection: WaitingConnection, number: int, method: tuple[int, int], reply: bytes = b""
    ) -> None:
        self._connection = connection
        self._number = number
        self._method = method
        self._reply = reply
        self._stopped = False

    def until(self, subscribe: Callable[[Any], object]) -> None:
        """Wait until the callback given to `subscribe` is called, which may be at once."""
        connection = self._connection
        connection.pending_reply = self
        subscribe(self.settled)
        if connection.pending_reply is self:
            self._stopped = True
            connection.driver.pause_reading()

    def settled(self, stored: bool = True) -> None:
        """End the wait; `stored` is False if the change could not be stored."""
        connection = self._connection
        if connection.pending_reply is not self:
            return
        self.end()
        if stored:
            if self._reply:
                connection.outbox.send(self._reply)
        else:
            connection.not_stored(self._number, *self._method)

    def channel_closed(self, number: int) -> None:
        """Keep waiting, but drop the reply if it belongs to that channel: nothing follows its `channel.close`."""
        if number == self._number:
            self._reply = b""

    def end(self) -> None:
        """Stop waiting; the reply is not sent."""
        self._connection.pending_reply = None
        if self._stopped:
            self._connection.driver.process_buffered()
