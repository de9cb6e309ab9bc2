"""What is done about logins that fail: the next refusal is later, and the log has few lines of them.

Pure. Passwords are judged fast, so that without this one address could try thousands in a second and fill the log. A
refused client keeps its place among those that have not logged in (`broker.network.half_open`) for a delay, even if
it leaves, and the delay grows for the pair of its address and the name that it tries. A password that is right is
taken at once, whatever others have done.
"""

from collections.abc import Iterator

MOST_TIMES = 8
"""What the delay of a refusal grows to, in times of the first; each failure doubles it."""
FORGET_SECONDS = 300.0
"""Without failures, after which they are forgotten."""
REMEMBERED = 10_000
"""Pairs, or addresses, that are remembered; of more the oldest are forgotten."""
SHOWN = 128
"""Characters of a name that a log line shows."""


class Guard:
    """Who has failed how often."""

    __slots__ = ("_failed",)

    def __init__(self) -> None:
        self._failed: dict[tuple[str, str], tuple[int, float]] = {}
        """By address and name: times of the delay at the last failure, and when that was."""

    def failed(self, address: str, name: str, now: float) -> int:
        """An attempt is refused; returns how many times the delay of a first refusal it is to wait.

        Args:
            address: of the client.
            name: of the user.
            now: seconds of a monotonic clock.

        """
        times, last = self._failed.pop((address, name), (0, now))
        times = 1 if not times or now - last > FORGET_SECONDS else min(2 * times, MOST_TIMES)
        self._failed[address, name] = times, now
        if len(self._failed) > REMEMBERED:
            del self._failed[next(iter(self._failed))]
        return times

    def succeeded(self, address: str, name: str) -> None:
        """The password was right."""
        self._failed.pop((address, name), None)


class Refusals:
    """Has one line a second and address in the log about clients that did not get in, with the number of the others."""

    __slots__ = ("_left_out", "_since")

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def admit(self, address: str, now: float) -> bool:
        """Whether there may be a line about another one of that address; if not, it is counted."""
        since = self._since.get(address)
        if since is not None and now - since < 1:
            self._left_out[address] = self._left_out.get(address, 0) + 1
            return False
        self._since.pop(address, None)
        self._since[address] = now
        if len(self._since) > REMEMBERED:
            del self._since[next(iter(self._since))]
        return True

    def left_out(self, now: float) -> Iterator[tuple[str, int]]:
        """Yield addresses for whose others there may be a line again, and how many there were; to be called often."""
        for address, count in list(self._left_out.items()):
            if now - self._since.get(address, 0.0) >= 1:
                del self._left_out[address]
                self._since.pop(address, None)
                self._since[address] = now
                yield address, count


def shown(name: str) -> str:
    """A name as it stands in the log."""
    return name if len(name) <= SHOWN else f"{name[:SHOWN]}... ({len(name)} characters)"
