"""Throttling of failed logins: growing delays before a refusal.

Pure. Checking a password is fast, so without this one address could try thousands per second and fill the log. A
refused client keeps its place among the unauthenticated connections (`broker.network.listener`) for a delay, even if it
disconnects, and the delay grows for each pair of address and user name. A correct password is accepted immediately,
whatever others have done, unless very many logins from the address have failed: then only users who have logged in from
there before may log in for a minute.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from leveret.broker.auth.users import LoginRefusedError, is_loopback
from leveret.broker.process.shares import LogLimit, origin

K = TypeVar("K")
V = TypeVar("V")

MOST_TIMES = 8  # maximum delay of a refusal, as a multiple of the first; each failure doubles it
FORGET_SECONDS = 300.0  # seconds without a failure after which earlier ones are forgotten
REMEMBERED = 10_000  # most pairs, or addresses, that are remembered; beyond it the oldest are forgotten
SOURCES = 1_000  # maximum number of sources whose logins are counted; beyond it the oldest are forgotten
SHOWN = 128  # maximum number of characters of a name in a log line


class TooManyFailuresError(LoginRefusedError):
    """A login was refused without looking at its password, because too many from the address have failed."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(f"user '{name}' - too many logins from this address have failed")
        self.seconds = seconds  # time for which that will be so


def _put_last(table: dict[K, V], key: K, value: V, most: int) -> None:
    """Put a value at the end of a table, and forget the first one if there are too many."""
    table.pop(key, None)
    table[key] = value
    if len(table) > most:
        del table[next(iter(table))]


class LoginThrottle:
    """Counters of failed logins by address and user name.

    Args:
        max_failures: failed logins of one address (for IPv6, one /64 network) in a period, after which its logins are
            refused unread for as long; None for any number. Addresses of this host have no such limit: they may be
            those of a proxy.
        period: its length in seconds.
    """

    def __init__(self, max_failures: int | None = None, period: float = 60.0) -> None:
        self._max_failures = max_failures
        self._period = period
        self._failed: dict[tuple[str, str], tuple[int, float]] = {}
        """By address and name: the multiple of the delay at the last failure, and its time."""
        self._failures: dict[str, deque[float]] = {}  # by origin: the times of its last failures
        self._welcome: dict[tuple[str, str], None] = {}  # pairs of origin and name that have logged in

    def failed(self, address: str, name: str, now: float) -> int:
        """Record a refused login; return its delay as a multiple of that of a first one. `now`: seconds, monotonic."""
        times, last = self._failed.get((address, name), (0, now))
        times = 1 if not times or now - last > FORGET_SECONDS else min(2 * times, MOST_TIMES)
        _put_last(self._failed, (address, name), (times, now), REMEMBERED)
        came_from = origin(address)
        is_open = self._max_failures is not None and not self.blocked_for(address, "", now)
        if is_open and not is_loopback(address):
            at = self._failures.get(came_from) or deque(maxlen=self._max_failures)
            at.append(now)
            _put_last(self._failures, came_from, at, REMEMBERED)
        self._welcome.pop((came_from, name), None)
        return times

    def check(self, address: str, name: str, clock: Callable[[], float]) -> None:
        """Raise TooManyFailuresError if the login is to be refused unread (see `blocked_for`).

        `clock` returns seconds of a monotonic clock; it is asked only if any login has failed.
        """
        seconds = self.blocked_for(address, name, clock()) if self._failures else 0.0
        if seconds > 0:
            raise TooManyFailuresError(name, seconds)

    def blocked_for(self, address: str, name: str, now: float) -> float:
        """Return the seconds for which logins of an address are refused unread, because too many have failed; 0 if not.

        A user who has logged in from the address before is let through, until a password is wrong: one client with an
        old password must not keep the others on its host out. The name '' is any other.
        """
        if self._max_failures is None or not self._failures:
            return 0.0
        came_from = origin(address)
        at = self._failures.get(came_from)
        if at is None or len(at) < self._max_failures or at[-1] - at[0] > self._period:
            return 0.0
        if (came_from, name) in self._welcome:
            return 0.0
        return max(0.0, at[-1] + self._period - now)

    def succeeded(self, address: str, name: str) -> None:
        """Record a successful login: forget the failures of this address and name."""
        self._failed.pop((address, name), None)
        if self._max_failures is not None:
            _put_last(self._welcome, (origin(address), name), None, REMEMBERED)


class LoginCounts(NamedTuple):
    """Numbers of logins by one protocol."""

    failed: int
    succeeded: int


class LoginSources:
    """Numbers of logins by address, user name and protocol, as far as they are recent."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], LoginCounts] = {}

    def count(self, address: str, name: str, protocol: str, *, ok: bool) -> None:
        """Count a login."""
        key = address, shown(name), protocol
        failed, succeeded = self._counts.get(key, (0, 0))
        _put_last(self._counts, key, LoginCounts(failed + (not ok), succeeded + ok), SOURCES)

    def rows(self) -> list[tuple[tuple[str, str, str], LoginCounts]]:
        """Return all numbers: by address, name and protocol."""
        return list(self._counts.items())

    def reset(self) -> None:
        """Count from now on."""
        self._counts.clear()


class Logins:
    """The memory of a broker for logins by any protocol; arguments as for `LoginThrottle`."""

    def __init__(self, max_failures: int | None, period: float) -> None:
        self.throttle = LoginThrottle(max_failures, period)  # delays the answers to failed ones
        self.sources = LoginSources()
        self.refusal_log = LogLimit()  # limits the lines of the log about clients that were refused
        self._failed = self._succeeded = 0  # those of HTTP requests
        self._before = self._all(0, 0)

    def count_http(self, address: str, name: str, *, ok: bool) -> None:
        """Count the login of an HTTP request."""
        self._succeeded += ok
        self._failed += not ok
        self.sources.count(address, name, "http", ok=ok)

    def attempts(self, failed: int, succeeded: int) -> dict[str, LoginCounts]:
        """Return the numbers by protocol since the last reset, without unused protocols.

        The arguments are numbers since the start: refused logins of any protocol, and accepted ones of AMQP.
        """
        since = {
            name: LoginCounts(now.failed - before.failed, now.succeeded - before.succeeded)
            for (name, now), before in zip(
                self._all(failed, succeeded).items(), self._before.values(), strict=True
            )
        }
        return {name: counts for name, counts in since.items() if any(counts)}

    def reset(self, failed: int, succeeded: int) -> None:
        """Count from now on; the arguments are those of `attempts`."""
        self._before = self._all(failed, succeeded)
        self.sources.reset()

    def _all(self, failed: int, succeeded: int) -> dict[str, LoginCounts]:
        return {
            "amqp091": LoginCounts(failed - self._failed, succeeded),
            "http": LoginCounts(self._failed, self._succeeded),
        }


def shown(name: str) -> str:
    """Return a name as it is logged: truncated if it is long."""
    return name if len(name) <= SHOWN else f"{name[:SHOWN]}... ({len(name)} characters)"
