"""Throttling of failed logins: growing delays before a refusal, and a limit on log lines.

Pure. Checking a password is fast, so without this one address could try thousands per second and fill the log. A
refused client keeps its place among the unauthenticated connections (`broker.network.half_open`) for a delay, even if
it disconnects, and the delay grows for each pair of address and user name. A correct password is accepted
immediately, whatever others have done.
"""

from collections.abc import Iterator

MOST_TIMES = 8
"""Maximum delay of a refusal, as a multiple of the first; each failure doubles it."""
FORGET_SECONDS = 300.0
"""Seconds without a failure after which earlier ones are forgotten."""
REMEMBERED = 10_000
"""Maximum number of pairs, or addresses, that are remembered; beyond it the oldest are forgotten."""
SHOWN = 128
"""Maximum number of characters of a name in a log line."""


class LoginThrottle:
    """Counters of failed logins by address and user name."""

    __slots__ = ("_failed",)

    def __init__(self) -> None:
        self._failed: dict[tuple[str, str], tuple[int, float]] = {}
        """By address and name: the multiple of the delay at the last failure, and its time."""

    def failed(self, address: str, name: str, now: float) -> int:
        """Record a refused login; return its delay as a multiple of the delay of a first refusal.

        Args:
            address: address of the client.
            name: name of the user.
            now: seconds of a monotonic clock.

        """
        times, last = self._failed.pop((address, name), (0, now))
        times = 1 if not times or now - last > FORGET_SECONDS else min(2 * times, MOST_TIMES)
        self._failed[address, name] = times, now
        if len(self._failed) > REMEMBERED:
            del self._failed[next(iter(self._failed))]
        return times

    def succeeded(self, address: str, name: str) -> None:
        """Record a successful login: forget the failures of this address and name."""
        self._failed.pop((address, name), None)


class HTTPLogins:
    """Numbers of logins of HTTP requests since they were last set to 0.

    Attributes:
        failed: refused ones.
        succeeded: accepted ones.

    """

    __slots__ = ("failed", "succeeded")

    def __init__(self) -> None:
        self.failed = self.succeeded = 0


class RefusalLog:
    """Limits the log to one line per second and address about refused clients, and counts the suppressed ones."""

    __slots__ = ("_since", "_suppressed")

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._suppressed: dict[str, int] = {}

    def admit(self, address: str, now: float) -> bool:
        """Return whether a refusal of this address may be logged; if not, count it."""
        since = self._since.get(address)
        if since is not None and now - since < 1:
            self._suppressed[address] = self._suppressed.get(address, 0) + 1
            return False
        self._since.pop(address, None)
        self._since[address] = now
        if len(self._since) > REMEMBERED:
            del self._since[next(iter(self._since))]
        return True

    def take_suppressed(self, now: float) -> Iterator[tuple[str, int]]:
        """Yield each address whose suppressed refusals may be logged now, and their number; must be called often."""
        for address, count in list(self._suppressed.items()):
            if now - self._since.get(address, 0.0) >= 1:
                del self._suppressed[address]
                self._since.pop(address, None)
                self._since[address] = now
                yield address, count


def shown(name: str) -> str:
    """Return a name as it is logged: truncated if it is long."""
    return name if len(name) <= SHOWN else f"{name[:SHOWN]}... ({len(name)} characters)"
