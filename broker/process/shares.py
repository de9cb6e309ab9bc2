"""Shared places, of which no owner gets all: for connections, requests, sessions and others. Pure.

Theory. A limit on the total protects the broker only: the owner with most requests takes every place, and the others
are refused, wait, or lose theirs. So each owner has a share of the places. Owners are users, by their names, after a
login; otherwise clients, by their addresses (`origin`). An address of a proxy or a NAT stands for many, so its share is
large (`Shares.of_addresses`). If no place is free, the keeper of the places decides: the owner is refused, waits
(`broker.process.places`), or the owner with most places gives one back (`yielding`).
"""

import ipaddress
from collections import Counter
from collections.abc import Iterator

_NETWORK_BITS = 64  # of an IPv6 address; a host can use all addresses of its network


def origin(host: str) -> str:
    """Return the key for all clients of an address: itself, or the /64 network of an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:  # noqa: PLR2004 - of the protocol
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False))


class Shares:
    """Some places, `most` of them, and who has how many; one owner has at most `share`, by default a quarter."""

    def __init__(self, most: int, share: int | None = None) -> None:
        self.most = most
        self.share = max(1, most // 4) if share is None else share
        self._taken = 0
        self._of_owners: Counter[str] = Counter()

    @classmethod
    def of_addresses(cls, most: int) -> "Shares":
        """Return places of which one address, which may be that of many clients, can have three quarters."""
        return cls(most, max(1, 3 * most // 4))

    def __len__(self) -> int:
        return self._taken

    @property
    def is_full(self) -> bool:
        """Return whether no place is free."""
        return self._taken >= self.most

    def acquire(self, owner: str) -> bool:
        """Take a place; False if none is free, or none for that owner."""
        if self.is_full or self._of_owners[owner] >= self.share:
            return False
        self._taken += 1
        self._of_owners[owner] += 1
        return True

    def release(self, owner: str) -> None:
        """Release a place that was taken."""
        self._taken -= 1
        self._of_owners[owner] -= 1
        if not self._of_owners[owner]:
            del self._of_owners[owner]

    def yielding(self, owner: str) -> str | None:
        """Return who has to release a place so that this owner can take one; None if it can.

        That is itself if it has its share, or would have most of all; otherwise who has most.
        """
        own = self._of_owners[owner] + 1
        if own > self.share:
            return owner
        if not self.is_full:
            return None
        most = max(self._of_owners, key=self._of_owners.__getitem__)
        return owner if own > self._of_owners[most] else most


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
