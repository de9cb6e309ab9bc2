"""Heartbeats of a client's connection (driver)."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from leveret.broker.amqp.fastpath import HEARTBEAT

SILENT_TICKS = 4
"""Half intervals without input after which the broker counts as gone (spec 4.2.7)."""


class Beating(Protocol):
    """The connection."""

    reads: int
    """Number of reads so far."""
    is_paused: bool
    """True while nothing is read: then silence says nothing about the broker."""

    def write(self, octets: bytes) -> None:
        """Write frames."""


class Heartbeats:
    """Sends a heartbeat at each half interval, whatever else is sent, and notices a broker that is silent.

    Args:
        connection: the connection.
        seconds: the negotiated interval, more than 0.
        on_silence: called once if the broker has been silent for two intervals.

    """

    def __init__(self, connection: Beating, seconds: int, on_silence: Callable[[], object]) -> None:
        self._connection = connection
        self._half = seconds / 2
        self._on_silence = on_silence
        self._reads = connection.reads
        self._silent = 0
        self._timer = asyncio.get_running_loop().call_later(self._half, self._tick)

    def stop(self) -> None:
        """Send none any more."""
        self._timer.cancel()

    def _tick(self) -> None:
        connection = self._connection
        if connection.reads != self._reads or connection.is_paused:
            self._reads = connection.reads
            self._silent = 0
        else:
            self._silent += 1
            if self._silent >= SILENT_TICKS:
                self._on_silence()
                return
        connection.write(HEARTBEAT)
        self._timer = asyncio.get_running_loop().call_later(self._half, self._tick)
