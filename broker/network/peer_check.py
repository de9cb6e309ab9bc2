"""Ends connections whose client has gone while it is not read, or does not read what is sent to it (driver).

Theory. A socket that is not read gets no event when its client disconnects, and one whose client reads nothing gets
none at all. So each driver is checked every `CHECK_SECONDS`, and compared with its state at the last check: has it
processed input since, has the client taken any bytes? One that is read and has sent everything needs no check: there
may be ten thousand of them.
"""

import socket
from typing import Any

from leveret.broker.network import socket_state

CHECK_SECONDS = 0.5  # interval between two checks of a connection
BLOCKED_CHECKS = 2  # checks in a row of a connection blocked by an alarm that find its client gone
WAITING_CHECKS = 60  # for any other wait: replies to earlier requests are still computed


class PeerCheck:
    """The checks of one connection, with its state at the last of them."""

    __slots__ = ("_arrived", "_idle_checks", "_steps", "_taken", "_taken_at", "was_fine")

    def __init__(self) -> None:
        self._steps = 0
        self._idle_checks = 0  # checks in a row that have found it not read and without progress
        self._taken = 0
        self._taken_at = 0.0
        self._arrived = 0
        self.was_fine = True
        """True if the connection was being read, with everything sent, at the last check; the driver sets it instead of
        a `run`."""

    def run(self, driver: Any, sock: socket.socket, now: float, send_timeout: float | None) -> None:
        """End the connection if its client has gone or does not read; the `SocketDriver` is not closing.

        `now` is seconds of a monotonic clock; after `send_timeout` seconds a client that does not read is disconnected,
        None for never.
        """
        connection = driver.connection
        steps = connection.reads + driver.resumed
        unsent = driver.unsent
        taken = connection.octets_out - unsent
        if self.was_fine:
            self.was_fine = False
            self._idle_checks = 0
            self._steps, self._taken, self._taken_at = steps, taken, now
            return
        if not driver.reading and steps == self._steps and not connection.outbox.transport_full:
            self._idle_checks += 1
            checks = BLOCKED_CHECKS if connection.blocked else WAITING_CHECKS
            if self._idle_checks > checks and socket_state.has_ended(sock):
                driver.abort()
                return
        else:
            self._idle_checks = 0
            self._steps = steps
        if not unsent or taken != self._taken:
            self._taken = taken
            self._taken_at = now
        elif send_timeout is not None and now - self._taken_at > send_timeout:
            seconds = now - self._taken_at
            driver.disconnect(f"the client has not read any of {unsent} pending bytes for {seconds:.0f} s")

    def has_input(self, sock: socket.socket) -> bool:
        """Return whether bytes have arrived since the last call, or cannot because the receive buffer is full."""
        before, self._arrived = self._arrived, socket_state.unread(sock)
        return self._arrived != before or not socket_state.takes_more(sock, self._arrived)
