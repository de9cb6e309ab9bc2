"""Suspends delivery of queues while messages are being requeued.

A queue to which messages are requeued in pieces delivers nothing before all of them are back; otherwise younger
messages would be delivered first.
"""

from collections.abc import Iterable
from types import TracebackType
from typing import Protocol, Self


class Suspendable(Protocol):
    """A queue."""

    def suspend(self) -> None:
        """Deliver nothing until `resume` has been called as many times."""

    def resume(self) -> None:
        """Resume delivery."""


class Suspension:
    """Context manager: the queues added to it deliver nothing until its end."""

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: dict[Suspendable, None] = {}

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for queue in self._queues:
            queue.resume()

    def add(self, queues: Iterable[Suspendable]) -> None:
        """Suspend queues, except those that were added before."""
        for queue in dict.fromkeys(queues):
            if queue not in self._queues:
                self._queues[queue] = None
                queue.suspend()
