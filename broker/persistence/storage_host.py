"""The interface through which persistence uses the server."""

from typing import Protocol

from leveret.broker.scheduling.turn import Turn


class StorageHost(Protocol):
    """The part of the server that persistence uses."""

    turn: Turn

    def run_turn(self) -> None:
        """Process queues affected by a result, then write."""

    def storage_failed(self, error: BaseException) -> None:
        """Report a failure of the disk: nothing may be confirmed any more."""

    def backlog_cleared(self) -> None:
        """Resume reading from publishers."""
