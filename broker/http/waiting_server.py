"""The management API of a node that waits to lead (driver): health, the cluster, definitions."""

from collections.abc import Awaitable, Callable, Collection
from typing import Final

from aiohttp import web

from leveret.broker.http.route import Router
from leveret.broker.http.server import ManagementServer, ServingBroker

_CLUSTER: Final = "/api/leveret/cluster"
_LOOKED_AT: Final = ("/api/health", "/api/definitions")
_READS: Final = ("GET", "HEAD")


class WaitingServer(ManagementServer):
    """Serves the little that a waiting node can answer.

    Args:
        broker: the broker of the node.
        refreshed: returns it with the definitions as they are now.
        router: finds the routes.
        prefix: as for `ManagementServer`.
        host_names: as for `ManagementServer`.

    """

    def __init__(
        self,
        broker: ServingBroker,
        refreshed: Callable[[], Awaitable[ServingBroker]],
        router: Router,
        prefix: str = "",
        host_names: Collection[str] = (),
    ) -> None:
        super().__init__(broker, router, prefix, host_names)
        self._refreshed = refreshed

    async def _handle(
        self, request: web.BaseRequest, path: str, peer: str, names: Collection[str] | None = None
    ) -> web.StreamResponse:
        if is_answered(request.method, path):
            self._broker = await self._refreshed()
        return await super()._handle(request, path, peer, names)

    def _obstacle(self, method: str, path: str) -> str:
        return "" if is_answered(method, path) else self._broker.obstacle


def is_answered(method: str, path: str) -> bool:
    """Return whether a waiting node answers a request."""
    if path == _CLUSTER or path.startswith(f"{_CLUSTER}/"):
        return True
    return method in _READS and any(path == each or path.startswith(f"{each}/") for each in _LOOKED_AT)
