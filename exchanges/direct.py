"""The direct exchange: destinations whose binding key equals the routing key; and the fanout exchange: all of them.

Hot path: see docs/performance.md.
"""

from collections.abc import Collection
from typing import ClassVar

from leveret.exchanges.base import Destinations, Exchange, Headers, Identity, binding_key_of


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
        self._add_to(self._by_key, binding_key_of(identity), destination)

    def _unbound(self, destination: object, identity: Identity) -> None:
        self._drop_from(self._by_key, binding_key_of(identity), destination)


class FanoutExchange(Exchange):
    """Routes to every destination; the index by destination is all it needs."""

    __slots__ = ()

    type: ClassVar[str] = "fanout"
    keyless: ClassVar[bool] = True

    def match(self, routing_key: str, headers: Headers = None) -> Collection[object]:  # noqa: ARG002
        """Return all destinations, as a live view."""
        return self._by_destination
