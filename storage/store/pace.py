"""The speed of a long copy: a limit in bytes per second, and the question whether to go on."""

from collections.abc import Callable
from time import monotonic

from leveret.storage.errors import StorageError

_BURST_SECONDS = 0.1
"""Time that may be caught up after a delay, so that the limit holds for any longer time."""
_WORK_SECONDS = 0.002
_PAUSE_SECONDS = 0.004


class CancelledError(StorageError):
    """Raised when a copy is to end before it is done."""


class Pace:
    """Limits how fast a thread copies, and ends it when it is cancelled.

    Args:
        rate: maximum bytes per second; 0 for no limit.
        wait: waits for some seconds and returns true, at once, if the copy is cancelled.

    Attributes:
        octets: bytes copied so far.

    """

    def __init__(self, rate: int, wait: Callable[[float], bool]) -> None:
        self.rate = rate
        self.octets = 0
        self._wait = wait
        self._due = monotonic()
        self._worked_since = monotonic()

    def copied(self, octets: int) -> None:
        """Count bytes, and wait until as many more may be copied. Raises CancelledError."""
        self.octets += octets
        now = monotonic()
        delay = 0.0
        if self.rate:
            self._due = max(self._due, now - _BURST_SECONDS) + octets / self.rate
            delay = max(0.0, self._due - now)
        if self._wait(delay):
            raise CancelledError("cancelled")
        self._worked_since = monotonic()

    def breathe(self) -> None:
        """Let other threads run: called often during work that holds the interpreter's lock. Raises CancelledError."""
        if monotonic() - self._worked_since < _WORK_SECONDS:
            return
        if self._wait(_PAUSE_SECONDS):
            raise CancelledError("cancelled")
        self._worked_since = monotonic()
