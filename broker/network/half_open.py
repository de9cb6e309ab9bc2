"""Limits on half-open connections, those between connecting and `connection.open`: in total and per address.

A client that has not logged in yet occupies a socket and may take its time. Without a limit one client that connects
repeatedly uses up the file descriptors, and nobody can log in.
"""

from collections import Counter


class HalfOpen:
    """The places for clients that have not logged in.

    Args:
        most: the number of places, at least 1.
        share: the maximum number of places for one origin, at least 1.

    """

    __slots__ = ("_of_origins", "_taken", "most", "share")

    def __init__(self, most: int, share: int) -> None:
        self.most = most
        self.share = share
        self._taken = 0
        self._of_origins: Counter[str] = Counter()

    def __len__(self) -> int:
        """Return the number of places taken."""
        return self._taken

    @property
    def is_full(self) -> bool:
        """Return whether no place is free."""
        return self._taken >= self.most

    def acquire(self, origin: str) -> bool:
        """Take a place; False if none is free, or none for that origin."""
        if self.is_full or self._of_origins[origin] >= self.share:
            return False
        self._taken += 1
        self._of_origins[origin] += 1
        return True

    def release(self, origin: str) -> None:
        """Release a place that was taken."""
        self._taken -= 1
        self._of_origins[origin] -= 1
        if not self._of_origins[origin]:
            del self._of_origins[origin]
