"""Which objects have a row in a table of the export, and when they need another one."""

from typing import Generic, TypeVar

FULL_MS = 60_000
"""After so long an object has a row though nothing has changed."""

T = TypeVar("T")


class Last:
    """An object's latest row."""

    __slots__ = ("facts", "round", "since", "written")

    def __init__(self, since: int) -> None:
        self.since = since
        self.facts: object = None
        self.written = 0
        self.round = 0


class Seen(Generic[T]):
    """What was written of the objects of a kind."""

    __slots__ = ("_last", "_round")

    def __init__(self) -> None:
        self._last: dict[T, Last] = {}
        self._round = 0

    def begin(self) -> None:
        """Another round begins."""
        self._round += 1

    def visit(self, thing: T, ts: int) -> Last:
        """It is still there."""
        last = self._last.get(thing)
        if last is None:
            last = self._last[thing] = Last(ts)
        last.round = self._round
        return last

    @staticmethod
    def is_due(last: Last, facts: object, ts: int) -> bool:
        """Whether it is to have a row: its facts are other ones, or long ago. The caller owes the row."""
        if facts == last.facts and ts - last.written < FULL_MS:
            return False
        last.facts, last.written = facts, ts
        return True

    def gone(self) -> list[tuple[T, Last]]:
        """Those that were not visited in this round; they are forgotten."""
        gone = [(thing, last) for thing, last in self._last.items() if last.round != self._round]
        for thing, _ in gone:
            del self._last[thing]
        return gone

    def forget(self) -> None:
        """What was written is lost: everything has a row in the next round."""
        for last in self._last.values():
            last.facts = None
