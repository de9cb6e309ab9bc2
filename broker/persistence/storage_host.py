"""The interface through which persistence uses the server."""

from collections.abc import Callable
from typing import Protocol

from leveret.broker.scheduling.turn import Turn


class StorageHost(Protocol):
    """The part of the server that persistence uses."""

    turn: Turn

    def run_turn(self) -> None:
        """Process queues affected by a result, then write."""

    def run_step(self, kind: str, work: Callable[[], object], whom: object = None) -> None:
        """Do some work as one step of the event loop; `whom` is by default the queue or job that ran last."""

    def storage_failed(self, error: BaseException) -> None:
        """Report a failure of the disk: nothing may be confirmed any more."""

    def backlog_cleared(self) -> None:
        """Resume reading from publishers."""
