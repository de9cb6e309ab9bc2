"""Long lists that were sent a moment ago, encoded, so that ten dashboards cost little more than one. Pure.

As in RabbitMQ a list is kept for five times as long as it took, and not beyond the next samples: a list of few objects
is never old, and none is given after an object was declared or deleted. What is kept is bounded in octets, with what is
being collected and what slow clients still read.
"""

from collections.abc import Callable, Generator, Hashable, Iterator

MOST_OCTETS = 32 << 20
"""Maximum octets of all lists together; a longer list is not kept."""
MOST_LISTS = 64
LEAST_ROWS = 1000
"""Rows up to which a list is made anew for each request."""
FACTOR = 5
MOST_SECONDS = 5.0
"""Maximum age of a list in seconds, from when it was begun."""


class _Kept:
    """A list: its pieces, and how many responses read them.

    Attributes:
        until: time up to which it is given to others.
        is_dropped: whether only those who read it have it.

    """

    __slots__ = ("is_dropped", "octets", "pieces", "readers", "until")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.octets = 0
        self.readers = 0
        self.until = 0.0
        self.is_dropped = False


class ListCache:
    """The lists of one listener.

    Args:
        now: returns seconds of a monotonic clock.

    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lists: dict[Hashable, _Kept] = {}
        self.octets = 0
        """Octets in use."""

    def __len__(self) -> int:
        return len(self._lists)

    def find(self, key: Hashable) -> Iterator[bytes] | None:
        """Return the pieces of a list; None if it is not there, or too old."""
        self.expire()
        kept = self._lists.get(key)
        return None if kept is None else self._read(kept)

    def collect(
        self, key: Hashable, pieces: Generator[bytes | None, None, int]
    ) -> Generator[bytes | None, None, int]:
        """Yield the pieces of a list as they are made, and keep them at the end.

        Args:
            key: for whom it is, and what they asked for.
            pieces: the pieces, and None where others may have a turn.

        Returns:
            The number of rows, as `pieces` does.

        """
        began = self._now()
        kept = _Kept()
        is_whole, is_kept = True, False
        try:
            while True:
                try:
                    piece = next(pieces)
                except StopIteration as done:
                    rows: int = done.value
                    break
                if piece and is_whole:
                    is_whole = self._add(kept, piece)
                yield piece
            kept.until = began + min(MOST_SECONDS, FACTOR * (self._now() - began))
            if is_whole and rows > LEAST_ROWS:
                self._keep(key, kept)
                is_kept = True
            return rows
        finally:
            if not is_kept:
                self._release(kept)

    def clear(self) -> None:
        """Drop all lists: something was changed."""
        for key in tuple(self._lists):
            self._drop(key)

    def expire(self) -> None:
        """Drop the lists that are too old."""
        now = self._now()
        for key in [key for key, kept in self._lists.items() if kept.until <= now]:
            self._drop(key)

    def _add(self, kept: _Kept, piece: bytes) -> bool:
        """Add a piece to a list; returns False, and forgets the list, if there is no room for it."""
        while self._lists and self.octets + len(piece) > MOST_OCTETS:
            self._drop(next(iter(self._lists)))
        if self.octets + len(piece) > MOST_OCTETS:
            self._release(kept)
            kept.pieces.clear()
            return False
        kept.pieces.append(piece)
        kept.octets += len(piece)
        self.octets += len(piece)
        return True

    def _keep(self, key: Hashable, kept: _Kept) -> None:
        if key in self._lists:
            self._drop(key)
        elif len(self._lists) >= MOST_LISTS:
            self._drop(next(iter(self._lists)))
        self._lists[key] = kept

    def _read(self, kept: _Kept) -> Iterator[bytes]:
        kept.readers += 1
        try:
            yield from kept.pieces
        finally:
            kept.readers -= 1
            if kept.is_dropped and not kept.readers:
                self._release(kept)

    def _drop(self, key: Hashable) -> None:
        kept = self._lists.pop(key)
        kept.is_dropped = True
        if not kept.readers:
            self._release(kept)

    def _release(self, kept: _Kept) -> None:
        self.octets -= kept.octets
        kept.octets = 0
