"""Which process has which virtual host. Pure.

A virtual host is where its data are, so nothing is stored about it here: the processes tell what they have.
"""

from collections.abc import Iterable, Mapping


class PlacementError(Exception):
    """Raised if virtual hosts are in other processes than the configuration says; the text is one line."""


class Placement:
    """The processes, numbered from 1, of virtual hosts; `pins` has those that the configuration has chosen."""

    def __init__(self, count: int, pins: Mapping[str, int]) -> None:
        self._pins = pins
        self._vhosts: dict[int, set[str]] = {number: set() for number in range(1, count + 1)}

    def found(self, number: int, vhosts: Iterable[str]) -> None:
        """Note what a process has; raises PlacementError."""
        for name in vhosts:
            if (other := self.of(name)) not in {None, number}:
                raise PlacementError(f"virtual host '{name}' is in the processes {other} and {number}")
            if (pin := self._pins.get(name, number)) != number:
                raise PlacementError(
                    f"vhosts.process.{name} = {pin}, but its data are in process {number}: they cannot be moved"
                )
            self._vhosts[number].add(name)

    def of(self, vhost: str) -> int | None:
        """Return the process of a virtual host; None for an unknown one."""
        return next((number for number, names in self._vhosts.items() if vhost in names), None)

    def place(self, vhost: str) -> int:
        """Return the process of a virtual host: a new one gets that of its pin, or the one with the fewest."""
        number = self.of(vhost)
        if number is None:
            number = self._pins.get(vhost) or min(
                self._vhosts, key=lambda each: (len(self._vhosts[each]), each)
            )
            self._vhosts[number].add(vhost)
        return number

    def remove(self, vhost: str) -> int | None:
        """Forget a virtual host; returns its process, None for an unknown one."""
        number = self.of(vhost)
        if number is not None:
            self._vhosts[number].remove(vhost)
        return number

    def vhosts(self, number: int) -> frozenset[str]:
        """Return the virtual hosts of a process."""
        return frozenset(self._vhosts[number])
