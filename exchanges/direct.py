"""The direct exchange: destinations whose binding key equals the routing key; and the fanout exchange: all of them.

Hot path: see docs/performance.md.
"""

from collections.abc import Collection
from typing import ClassVar

from leveret.exchanges.base import (
    Destinations,
    Exchange,
    Headers,
    Identity,
    binding_key_of,
    with_destination,
    without_destination,
)


class DirectExchange(Exchange):
    """Routes by equality of keys."""

    __slots__ = ("_by_key",)

    type: ClassVar[str] = "direct"
    indexed: ClassVar[bool] = True

    def _prepare(self) -> None:
        self._by_key: dict[str, Destinations] = {}

    def match(self, routing_key: str, headers: Headers = None) -> Destinations:  # noqa: ARG002
        """Return the destinations bound with exactly this key."""
        return self._by_key.get(routing_key, ())

    def _bound(self, destination: object, identity: Identity) -> None:
        binding_key = binding_key_of(identity)
        bound = self._by_key.get(binding_key, ())
        if destination in bound:
            self._repeat(destination, binding_key)
        else:
            self._by_key[binding_key] = with_destination(bound, destination)

    def _unbound(self, destination: object, identity: Identity) -> None:
        binding_key = binding_key_of(identity)
        if self._repeat_gone(destination, binding_key):
            return
        left = without_destination(self._by_key[binding_key], destination)
        if left:
            self._by_key[binding_key] = left
        else:
            del self._by_key[binding_key]


class FanoutExchange(Exchange):
    """Routes to every destination; the index by destination is all it needs."""

    __slots__ = ()

    type: ClassVar[str] = "fanout"
    keyless: ClassVar[bool] = True

    def match(self, routing_key: str, headers: Headers = None) -> Collection[object]:  # noqa: ARG002
        """Return all destinations, as a live view."""
        return self._by_destination
