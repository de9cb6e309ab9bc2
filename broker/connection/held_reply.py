"""Why a connection reads no further for a while: a reply waits for the disk, or a method for what it needs.

Theory. A `*-ok` says that a change is safe, so it goes out after the commit, and whatever the client sent behind that
method is executed after it. The receive loop stops behind the method, keeps the octets it has, and the driver reads no
more; everyone else goes on, and so do deliveries to this connection. While a connection is held it has exactly one
`HeldReply`. The answer may come at once, before anything was stopped, and it may come when the connection is gone or
being closed: then `Connection.held` is another one or None, and nothing happens. If only its channel has been closed,
the connection waits on, without a reply.
"""

from collections.abc import Callable
from typing import Any, Protocol

from leveret.broker.scheduling.turn import Outbox


class Resumable(Protocol):
    """The driver of the connection."""

    def pause_reading(self) -> None:
        """Take no more octets."""

    def go_on(self) -> None:
        """Soon, in a call of its own: work off the octets that are kept, and then take octets again."""


class Holdable(Protocol):
    """The connection."""

    held: "HeldReply | None"
    outbox: Outbox

    @property
    def driver(self) -> Resumable:
        """What moves its octets."""

    def not_stored(self, number: int, class_id: int, method_id: int) -> None:
        """A change that a channel asked for by this method could not be written: the disk is full."""


class HeldReply:
    """One wait of one connection.

    Args:
        connection: who waits.
        number: the channel whose method it is.
        method: its class and method id.
        reply: the frame that is sent at the end, if all went well.

    """

    __slots__ = ("_connection", "_method", "_number", "_reply", "_stopped")

    def __init__(
        self, connection: Holdable, number: int, method: tuple[int, int], reply: bytes = b""
    ) -> None:
        self._connection = connection
        self._number = number
        self._method = method
        self._reply = reply
        self._stopped = False

    def until(self, subscribe: Callable[[Any], object]) -> None:
        """Wait until what was given to `subscribe` is called, which may be at once."""
        connection = self._connection
        connection.held = self
        subscribe(self.settled)
        if connection.held is self:
            self._stopped = True
            connection.driver.pause_reading()

    def settled(self, stored: bool = True) -> None:
        """What was waited for is there; False: it could not be stored."""
        connection = self._connection
        if connection.held is not self:
            return
        self.end()
        if stored:
            if self._reply:
                connection.outbox.send(self._reply)
        else:
            connection.not_stored(self._number, *self._method)

    def channel_closed(self, number: int) -> None:
        """Wait on, but send no reply if it is that channel's: nothing follows its `channel.close`."""
        if number == self._number:
            self._reply = b""

    def end(self) -> None:
        """Wait no longer; the reply is not sent."""
        self._connection.held = None
        if self._stopped:
            self._connection.driver.go_on()
