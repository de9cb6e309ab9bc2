"""Limits on lines of the log that clients can cause. Pure."""

from collections.abc import Iterator

REMEMBERED = 10_000  # maximum number of keys that are remembered; beyond it the oldest are forgotten
SECONDS = 1.0  # the time in which lines are counted


class LogLimit:
    """Limits the log to at most `most` lines per second and key, and counts the suppressed ones."""

    def __init__(self, most: int = 1) -> None:
        self._most = most
        self._since: dict[str, tuple[float, int]] = {}  # by key: start of its second, and the lines in it
        self._suppressed: dict[str, int] = {}

    def admit(self, key: str, now: float) -> bool:
        """Return whether a line about this key may be logged; if not, count it."""
        since, lines = self._since.pop(key, (now, 0))
        if now - since >= SECONDS:
            since, lines = now, 0
        self._since[key] = since, lines + 1
        if len(self._since) > REMEMBERED:
            del self._since[next(iter(self._since))]
        if lines < self._most:
            return True
        self._suppressed[key] = self._suppressed.get(key, 0) + 1
        return False

    def take_suppressed(self, now: float) -> Iterator[tuple[str, int]]:
        """Yield each key whose suppressed lines may be summed up now, and their number; must be called often."""
        for key, count in list(self._suppressed.items()):
            if now - self._since.get(key, (0.0, 0))[0] >= SECONDS:
                del self._suppressed[key]
                self._since.pop(key, None)
                self._since[key] = now, 1
                yield key, count
