"""Metrics and probes of a node that waits to lead (driver)."""

from typing import Any

from aiohttp import web

from leveret import __version__
from leveret.broker.metrics.aggregates import REPLICATION
from leveret.broker.metrics.http import Monitor, verdict
from leveret.broker.metrics.node import Identity
from leveret.broker.metrics.text import CONTENT_TYPE, GAUGE, family, labels_text, sums


class WaitingMonitor(Monitor):
    """Serves HTTP requests about a node that waits.

    Args:
        broker: the broker of the node (`broker.server.waiting_broker`).

    """

    def __init__(self, broker: Any) -> None:
        super().__init__(broker, lambda: Identity("", "", ""))  # no scrape shows it

    async def _metrics(self, _request: web.Request) -> web.StreamResponse:
        labels = labels_text(("version",), (__version__,))
        build = family("leveret_build_info", GAUGE, "Version of Leveret", [("", labels, 1)])
        text = build + sums("", REPLICATION, self._broker.cluster.figures())
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})

    async def _per_object(self, request: web.Request) -> web.StreamResponse:
        return await self._metrics(request)

    async def _detailed(self, request: web.Request) -> web.StreamResponse:
        return await self._metrics(request)

    async def _health(self, _request: web.Request) -> web.StreamResponse:
        return verdict("")

    async def _ready(self, request: web.Request) -> web.StreamResponse:
        is_member = request.query.get("role") == "member"
        return verdict(self._broker.cluster.member_problem() if is_member else self._broker.obstacle)
