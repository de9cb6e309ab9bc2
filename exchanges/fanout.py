"""The fanout exchange: routes to everything bound to it. Hot path: see docs/performance.md."""

from collections.abc import Collection
from typing import ClassVar

from leveret.exchanges.base import Exchange, Headers


class FanoutExchange(Exchange):
    """Routes to every destination; the index by destination is all it needs."""

    __slots__ = ()

    type: ClassVar[str] = "fanout"
    keyless: ClassVar[bool] = True

    def match(self, routing_key: str, headers: Headers = None) -> Collection[object]:  # noqa: ARG002
        """Return all destinations, as a live view."""
        return self._by_destination
