"""Change tracker: decides which objects need a new row in a table of the export."""

from typing import Generic, TypeVar

FULL_MS = 60_000
"""Interval after which an object gets a row even if unchanged."""

T = TypeVar("T")


class Last:
    """The latest row of an object."""

    __slots__ = ("facts", "round", "since", "written")

    def __init__(self, since: int) -> None:
        self.since = since
        self.facts: object = None
        self.written = 0
        self.round = 0


class Seen(Generic[T]):
    """Tracks the rows written for the objects of one kind."""

    __slots__ = ("_last", "_round")

    def __init__(self) -> None:
        self._last: dict[T, Last] = {}
        self._round = 0

    def begin(self) -> None:
        """Begin another round."""
        self._round += 1

    def visit(self, thing: T, ts: int) -> Last:
        """Record that an object still exists; returns its latest row."""
        last = self._last.get(thing)
        if last is None:
            last = self._last[thing] = Last(ts)
        last.round = self._round
        return last

    @staticmethod
    def is_due(last: Last, facts: object, ts: int) -> bool:
        """Return whether the object needs a row, because its facts changed or are old. The caller then writes it."""
        if facts == last.facts and ts - last.written < FULL_MS:
            return False
        last.facts, last.written = facts, ts
        return True

    def gone(self) -> list[tuple[T, Last]]:
        """Return the objects that were not visited in this round, and stop tracking them."""
        gone = [(thing, last) for thing, last in self._last.items() if last.round != self._round]
        for thing, _ in gone:
            del self._last[thing]
        return gone

    def forget(self) -> None:
        """Note that written rows were lost: every object gets a row in the next round."""
        for last in self._last.values():
            last.facts = None
