"""Stops reading a connection until a pending commit or another condition lets its reply be sent.

Theory. A `*-ok` means that a change is safe, so it is sent after the commit, and whatever the client sent after that
method is executed after it. The receive loop stops behind the method, keeps the bytes it has, and the driver stops
reading; other connections continue, and so do deliveries to this one. A connection that waits has exactly one
`PendingReply`. The callback may come at once, before anything was stopped, and it may come when the connection is
closed or closing: then `Connection.pending_reply` is another one or None, and nothing happens. If only its channel has
been closed, the connection keeps waiting, without a reply.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from leveret.broker.auth.users import User
from leveret.broker.connection.node import Node
from leveret.broker.connection.publish_limits import PublishPace
from leveret.broker.errors import AMQPError
from leveret.broker.scheduling.outbox import Outbox
from leveret.broker.scheduling.turn import Flushable
from leveret.broker.vhost.vhost import VHost

if TYPE_CHECKING:
    from leveret.broker.tls.certificate import Peer


class ConnectionDriver(Flushable, Protocol):
    """The driver that moves the connection's bytes."""

    def close(self, delay: float = 0.0) -> None:
        """Stop reading, write what is queued, and close the socket after `delay` seconds."""

    @property
    def reading(self) -> bool:
        """True while bytes are being read."""

    @property
    def unsent(self) -> int:
        """Number of bytes queued that the client has not received yet."""

    def admitted(self) -> None:
        """Called once the client has logged in."""

    def is_heard(self) -> bool:
        """While reading is paused: True if bytes have arrived since the last call, or cannot as a buffer is full."""

    def pause_reading(self) -> None:
        """Stop reading until `resume_reading`."""

    def resume_reading(self) -> None:
        """Resume reading."""

    def process_buffered(self) -> None:
        """Schedule a call of `receive(b"")` followed by `resume_reading`."""

    def limit_reads(self, pace: PublishPace) -> None:
        """Read no more at once than a limit of publishes allows."""


class ClientConnection(Protocol):
    """The connection (`broker.connection.connection.Connection`), as its handshake and its waits see it."""

    node: Node
    driver: ConnectionDriver
    outbox: Outbox
    pending_reply: "PendingReply | None"
    state: str
    name: str
    peer: tuple[str, int]
    client_properties: bytes
    auth_mechanism: str
    tls: "Peer | None"
    capabilities: frozenset[str]
    frame_max: int
    frame_limit: int
    channel_max: int

    def enter(self, state: str) -> None:
        """Change the state."""

    def tuned(self, heartbeat: int) -> None:
        """Wait for `connection.open`; `heartbeat`: the negotiated interval in seconds, 0 for none."""

    def opened(self, user: User, vhost: VHost) -> None:
        """Complete the handshake."""

    def refuse(self, error: AMQPError, class_id: int, method_id: int) -> None:
        """Close after a handshake error that is reported to the client."""

    def end(self, delay: float) -> None:
        """Close after a handshake error that is not reported; the socket is closed after `delay` seconds."""

    def not_stored(self, number: int, class_id: int, method_id: int) -> None:
        """Report that the change which a channel requested by this method could not be stored: the disk is full."""


class PendingReply:
    """One wait of one connection, for a method on channel `number`; a `reply` is sent if the change was stored."""

    __slots__ = ("_connection", "_method", "_number", "_reply", "_stopped")

    def __init__(
        self, connection: ClientConnection, number: int, method: tuple[int, int], reply: bytes = b""
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
