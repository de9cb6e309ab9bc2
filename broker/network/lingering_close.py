"""Closes a socket after its last bytes, by a reset if `linger` is set, as RabbitMQ does (driver).

Theory. After a FIN the client's next write seems to succeed, and is lost; after a reset it fails. But a reset also
discards what the client's system has not acknowledged, so it waits until everything is: for a limited time, because a
peer may take nothing.
"""

import asyncio
import socket
from collections.abc import Callable

from leveret.broker.network import socket_state
from leveret.broker.scheduling.loop import Loop

ABORT_SECONDS = 30.0  # time until a peer that does not take the last bytes is disconnected
LINGER_SECONDS = 5.0  # time for them to be acknowledged, unless `linger` sets it
TAKEN_SECONDS = 0.05  # interval of checks whether they are acknowledged


class LingeringClose:
    """The closing of one socket, which begins at once.

    Args:
        loop: has the clock.
        linger: seconds for the last bytes to be acknowledged before a reset; None to close without one.
        transport: has been given the last bytes.
        sock: its socket.
        abort: closes the socket at once, by a reset if `linger` is set.

    """

    __slots__ = ("_abort", "_linger", "_loop", "_since", "_socket", "_timer", "_transport")

    def __init__(
        self,
        loop: Loop,
        linger: float | None,
        transport: asyncio.Transport,
        sock: socket.socket,
        abort: Callable[[], object],
    ) -> None:
        self._loop = loop
        self._linger = linger
        self._transport = transport
        self._socket = sock
        self._abort = abort
        self._since = loop.now()
        self._timer: asyncio.TimerHandle | None = None
        if linger is None:
            transport.close()
            self._timer = loop.call_later(ABORT_SECONDS, transport.abort)
        else:
            self._reset_when_taken()

    def cancel(self) -> None:
        """Do nothing more: the socket has closed."""
        if self._timer is not None:
            self._timer.cancel()

    def _reset_when_taken(self) -> None:
        loop, transport = self._loop, self._transport
        if transport.is_closing():
            return
        if transport.get_write_buffer_size():
            patience = ABORT_SECONDS
        elif socket_state.unacknowledged(self._socket):
            patience = self._linger or LINGER_SECONDS
        else:
            patience = 0.0
        if loop.now() - self._since < patience:
            self._timer = loop.call_later(TAKEN_SECONDS, self._reset_when_taken)
        else:
            self._abort()
