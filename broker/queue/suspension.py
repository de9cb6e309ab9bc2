"""Keeps queues from delivering while more messages are coming back to their places.

A queue to which messages come back a piece at a time delivers nothing before all of them are there, or what is younger
would come first.
"""

from collections.abc import Iterable
from types import TracebackType
from typing import Protocol, Self


class Suspendable(Protocol):
    """A queue."""

    def suspend(self) -> None:
        """Deliver nothing until `resume` was called as often."""

    def resume(self) -> None:
        """Go on delivering."""


class Suspension:
    """Queues that deliver nothing until the end of a `with` block."""

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
        """Suspend queues that are not among the suspended yet."""
        for queue in dict.fromkeys(queues):
            if queue not in self._queues:
                self._queues[queue] = None
                queue.suspend()
