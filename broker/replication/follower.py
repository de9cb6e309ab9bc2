"""The follower: reads the log, keeps what is not settled in memory, applies the rest in order, each entry once.

A durable copy of `position` belongs to the applied state and is written in the same transaction, so that each start
continues behind the last entry that was applied. Entries that have gathered while others were applied are applied in
one transaction, because each costs a flush, whatever its size. Every read also shows the place before the first entry
that it returns: a copy that does not fit the log is noticed at the first read.
"""

from collections import deque
from enum import Enum
from typing import Final

from leveret.broker.replication.chain import CHUNK, BadEntryError, check_entry
from leveret.broker.replication.engine import Entry, Found, Position

MARK_SECONDS: Final = 0.1  # time between two marks of the end of the log; of sooner ends the last counts
MARKS: Final = 10_000  # most marks; ends that are seen while there are as many are behind the last one anyway


class Fit(Enum):
    """The relation of a copy to the log."""

    FITS = "fits"
    BEHIND = "the log is trimmed beyond the copy"
    AHEAD = "the copy has entries that the log has not"
    DIFFERS = "the copy has another history than the log"


class Follower:
    """A copy of the log's state; `position` is that of the copy on disk."""

    def __init__(self, position: Position) -> None:
        self.position = position  # the place up to which the copy is applied and on disk
        self._tail: deque[Entry] = deque()
        self.end = position  # the place up to which the log is read
        self.settled = position.index  # the highest index known to be settled
        self.tail_octets = 0
        self._applying: Position | None = None  # the place behind the entries that are being applied
        self.is_checked = False  # True once a read has shown that the copy fits the log

    def read(self, found: Found) -> Fit:
        """Take the answer to a read of what follows `end`. Raises BadEntryError: an entry is damaged."""
        if found.previous != self.end:
            return self._compare(found)
        self.is_checked = True
        for entry in found.entries:
            check_entry(self.end, entry)
            self.append(entry)
        self.note_settled(found.lease.settled)
        return Fit.FITS

    def _compare(self, found: Found) -> Fit:
        """Judge a copy that does not fit at its end; what is not settled may have been replaced by a new leader."""
        if self.end != self._last_settled:
            self.drop_tail()
            return Fit.FITS
        if found.previous is not None:
            return Fit.DIFFERS
        return Fit.BEHIND if found.lease.last >= self.end.index else Fit.AHEAD

    @property
    def _last_settled(self) -> Position:
        """The place behind the last entry that is being applied, or is applied."""
        return self.position if self._applying is None else self._applying

    def append(self, entry: Entry) -> None:
        """Add an entry that follows `end`: read, or made by this node as the leader."""
        self._tail.append(entry)
        self.tail_octets += len(entry.payload)
        self.end = entry.position
        self.note_settled(entry.settled)

    def drop_tail(self) -> None:
        """Forget what is read and not being applied."""
        self._tail.clear()
        self.tail_octets = 0
        self.end = self._last_settled
        self.settled = min(self.settled, self.end.index)
        self.is_checked = False

    def note_settled(self, index: int) -> None:
        """Take note that entries up to an index are settled."""
        self.settled = max(self.settled, min(index, self.end.index))

    def next_to_apply(self, octets: int) -> tuple[Entry, ...]:
        """Return the next entries to apply, in one transaction, once.

        Empty while others are being applied, and if none is settled. A piece of a large body goes alone: the entry that
        names the body reads it from the copy. From so many `octets` of payload on no further entry is taken.
        """
        if self._applying is not None:
            return ()
        tail = self._tail
        taken: list[Entry] = []
        size = 0
        while tail and tail[0].index <= self.settled and size < octets:
            if taken and CHUNK in {tail[0].kind, taken[-1].kind}:
                break
            taken.append(entry := tail.popleft())
            size += len(entry.payload)
        if taken:
            self.tail_octets -= size
            self._applying = taken[-1].position
        return tuple(taken)

    def applied(self) -> Position:
        """Take note that the entries being applied are on disk, together with their position, which is returned."""
        if self._applying is None:
            raise BadEntryError("no entry is being applied")
        self.position = self._applying
        self._applying = None
        return self.position

    @property
    def is_applying(self) -> bool:
        """True between `next_to_apply` and `applied`."""
        return self._applying is not None

    @property
    def is_waiting_for_settled(self) -> bool:
        """True if nothing that is read can be applied before more is settled."""
        return self._applying is None and (not self._tail or self._tail[0].index > self.settled)


class Lag:
    """The time by which a copy is behind its log: marks of the end of the log, with the time at which each was seen."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, float]] = deque()
        self._applied = 0

    def note(self, last: int, now: float) -> None:
        """Take note of the index of the last entry; to be called again, at least a few times a second."""
        if last <= self._applied or len(self._marks) >= MARKS:
            return
        if not self._marks or (last > self._marks[-1][0] and now - self._marks[-1][1] >= MARK_SECONDS):
            self._marks.append((last, now))

    def applied(self, index: int) -> None:
        """Take note that all entries up to an index are applied."""
        self._applied = index
        while self._marks and self._marks[0][0] <= index:
            self._marks.popleft()

    def seconds(self, now: float) -> float:
        """Return the time since the oldest entry that is not applied was seen; 0 if there is none."""
        return now - self._marks[0][1] if self._marks else 0.0
