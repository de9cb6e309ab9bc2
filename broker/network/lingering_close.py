"""Closes a socket after its last bytes, by a reset if `linger` is set, as RabbitMQ does (driver).

Theory. After a FIN the client's next write seems to succeed, and is lost; after a reset it fails. But a reset also
discards what the client's system has not acknowledged, so it waits until everything is: for a limited time, because a
peer may take nothing.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol

from leveret.broker.network import socket_state

ABORT_SECONDS = 30.0  # time until a peer that does not take the last bytes is disconnected
LINGER_SECONDS = 5.0  # time for them to be acknowledged, unless `linger` sets it
TAKEN_SECONDS = 0.05  # interval of checks whether they are acknowledged


class CloseHost(Protocol):
    """The part of the server that closes use."""

    linger: float | None
    """Seconds for the last bytes to be acknowledged before a socket is reset; None to close without a reset."""

    def now(self) -> float:
        """Return seconds of a monotonic clock."""

    def call_later(self, seconds: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Call a function later."""


class LingeringClose:
    """The closing of one socket, which begins at once.

    Args:
        host: has the clock and the time to linger.
        transport: has been given the last bytes.
        sock: its socket.
        abort: closes the socket at once, by a reset if `linger` is set.

    """

    __slots__ = ("_abort", "_host", "_since", "_socket", "_timer", "_transport")

    def __init__(
        self,
        host: CloseHost,
        transport: asyncio.Transport,
        sock: socket.socket,
        abort: Callable[[], object],
    ) -> None:
        self._host = host
        self._transport = transport
        self._socket = sock
        self._abort = abort
        self._since = host.now()
        self._timer: asyncio.TimerHandle | None = None
        if host.linger is None:
            transport.close()
            self._timer = host.call_later(ABORT_SECONDS, transport.abort)
        else:
            self._reset_when_taken()

    def cancel(self) -> None:
        """Do nothing more: the socket has closed."""
        if self._timer is not None:
            self._timer.cancel()

    def _reset_when_taken(self) -> None:
        """Reset the socket when everything is acknowledged, or has had its time."""
        host, transport = self._host, self._transport
        if transport.is_closing():
            return
        if transport.get_write_buffer_size():
            patience = ABORT_SECONDS
        elif socket_state.unacknowledged(self._socket):
            patience = host.linger or LINGER_SECONDS
        else:
            patience = 0.0
        if host.now() - self._since < patience:
            self._timer = host.call_later(TAKEN_SECONDS, self._reset_when_taken)
        else:
            self._abort()
