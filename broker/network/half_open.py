"""Who may be between connecting and `connection.open`: so many in all, and a share of them for each address.

Whoever has not logged in yet costs a socket and may take its time. Without a bound one client that connects again and
again uses up the file descriptors, and nobody can log in.
"""

import ipaddress
from collections import Counter

_NETWORK_BITS = 64  # of an IPv6 address; who has one has all that begin with them


def origin(host: str) -> str:
    """What stands for everybody at an address: itself, or the /64 network of an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:  # noqa: PLR2004 - of the protocol
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False))


class HalfOpen:
    """The places for those who have not logged in.

    Args:
        most: how many there are, at least 1.
        share: how many of them one origin may have, at least 1.

    """

    __slots__ = ("_of_origins", "_taken", "most", "share")

    def __init__(self, most: int, share: int) -> None:
        self.most = most
        self.share = share
        self._taken = 0
        self._of_origins: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many places are taken."""
        return self._taken

    @property
    def is_full(self) -> bool:
        """Whether no place is left for anybody."""
        return self._taken >= self.most

    def take(self, origin: str) -> bool:
        """Take a place; False if there is none, or none for that origin."""
        if self.is_full or self._of_origins[origin] >= self.share:
            return False
        self._taken += 1
        self._of_origins[origin] += 1
        return True

    def give(self, origin: str) -> None:
        """Give a place back that was taken."""
        self._taken -= 1
        self._of_origins[origin] -= 1
        if not self._of_origins[origin]:
            del self._of_origins[origin]
