"""The positions from which messages were withdrawn, in the part of a queue that may be read from disk.

Theory. A message that is withdrawn from the middle of a queue may still be on disk when its neighbours are read: its
end is written by the next commit, and a read may have begun before. So the queue remembers the position, as one bit,
until everything before it has left the queue.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Self

_BITS = 4096
"""Positions in one bitmap."""


class Gaps:
    """A set of positions, kept as bitmaps."""

    __slots__ = ("_bitmaps",)

    def __init__(self, bitmaps: Mapping[int, int] = MappingProxyType({})) -> None:
        self._bitmaps = dict(bitmaps)

    def __bool__(self) -> bool:
        return bool(self._bitmaps)

    def __contains__(self, seq_id: int) -> bool:
        return bool(self._bitmaps.get(seq_id // _BITS, 0) >> seq_id % _BITS & 1)

    def add(self, seq_id: int) -> None:
        """Add a position."""
        self._bitmaps[seq_id // _BITS] = self._bitmaps.get(seq_id // _BITS, 0) | 1 << seq_id % _BITS

    def forget_before(self, seq_id: int) -> None:
        """Remove positions below `seq_id`, if not all of them: whole bitmaps only."""
        for number in [number for number in self._bitmaps if number < seq_id // _BITS]:
            del self._bitmaps[number]

    def copy(self) -> Self:
        """Return a copy."""
        return type(self)(self._bitmaps)


class NoGaps(Gaps):
    """The empty set, shared by all queues from which nothing was withdrawn."""

    __slots__ = ()

    def add(self, seq_id: int) -> None:
        """Raise an error: it is shared."""
        raise TypeError(seq_id)

    def copy(self) -> Self:
        """Return itself."""
        return self


NO_GAPS: Gaps = NoGaps()
