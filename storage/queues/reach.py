"""The offset up to which the messages of a stream have reached a state.

Hot path: see docs/performance.md.
"""

from collections.abc import Sequence

from leveret.storage.journal.blocks import Entry


class Reach:
    """The offset before which all messages have reached a state, whatever the order in which they reach it."""

    __slots__ = ("_early", "stop")

    def __init__(self, stop: int) -> None:
        self.stop = stop
        self._early: set[int] = set()

    def add(self, entries: Sequence[Entry]) -> None:
        """Note entries in that state, ascending."""
        count = len(entries)
        if not self._early and entries[0].seq_id == self.stop and entries[-1].seq_id == self.stop + count - 1:
            self.stop += count
            return
        self._early.update([entry.seq_id for entry in entries if entry.seq_id >= self.stop])
        while self.stop in self._early:
            self._early.remove(self.stop)
            self.stop += 1
