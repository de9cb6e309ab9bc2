"""The HTTP listener for whoever watches the broker: metrics and health (driver).

`GET /metrics`, `/metrics/per-object` and `/metrics/detailed?family=&vhost=&queue=` are RabbitMQ's; `/healthz` says
whether the process lives, `/readyz` whether clients may connect. Answers are written piece by piece, and the loop has
a round between two pieces, so that a scrape of ten thousand queues is not felt by clients.
"""

import asyncio
import base64
import hashlib
import logging
import os
import resource
from collections.abc import Iterator
from typing import Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, generate_latest

from broker.metrics.node import Identity, Process
from broker.metrics.scrape import Scraper, UnusablePatternError, pattern
from broker.metrics.text import CONTENT_TYPE
from broker.metrics.walk import Asked, Measured

log = logging.getLogger("leveret")

SCRAPES = 4
"""Scrapes that are answered at once; each keeps what it has seen in memory."""
SCRAPE_SECONDS = 60.0
"""How long one may take, with a client that reads slowly."""
STOP_SECONDS = 1.0
"""How long the end of the broker waits for answers that are being written."""
STALL_SECONDS = 5.0
"""How late the event loop may be before the broker counts as dead."""


class Watched(Measured, Protocol):
    """The broker (`broker.server.Server`)."""

    @property
    def lag(self) -> float:
        """How many seconds the loop is late to look at its clock."""

    @property
    def obstacle(self) -> str:
        """Why clients may not connect; '' if they may."""


def cluster_id(seed: str) -> str:
    """A name for a broker that is the same at each start, as RabbitMQ writes its own."""
    digest = hashlib.sha256(seed.encode("utf-8", "surrogateescape")).digest()[:16]
    return "rabbitmq-cluster-id-" + base64.urlsafe_b64encode(digest).decode("ascii").rstrip("=")


class Monitor:
    """Answers HTTP requests about one broker.

    Args:
        broker: the broker. It need not have been started.
        identity: who it is.
        per_object: whether `/metrics` tells objects apart.

    """

    def __init__(self, broker: Watched, identity: Identity, *, per_object: bool = False) -> None:
        self._broker = broker
        self._scraper = Scraper(broker, identity, per_object=per_object)
        self._scrapes = 0
        self._runtime = CollectorRegistry()
        GCCollector(self._runtime)
        PlatformCollector(self._runtime)
        self._runner: web.AppRunner | None = None
        self.address = ("", 0)
        """Where it listens."""

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 picks a free one. Raises OSError for an address that cannot be had."""
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/metrics/per-object", self._per_object)
        app.router.add_get("/metrics/detailed", self._detailed)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._ready)
        runner = web.AppRunner(app, access_log=None, logger=log, shutdown_timeout=STOP_SECONDS)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        self.address = runner.addresses[0][:2]

    async def stop(self) -> None:
        """Listen no more; what is being answered is cut."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    # -- metrics ----------------------------------------------------------------------------------------------------

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        process = await _process()
        return await self._send(request, self._scraper.metrics(process), generate_latest(self._runtime))

    async def _per_object(self, request: web.Request) -> web.StreamResponse:
        process = await _process()
        return await self._send(request, self._scraper.per_object(process), generate_latest(self._runtime))

    async def _detailed(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        queues = [each for each in query.getall("queue", []) if each]
        if len(queues) > 1:
            return web.Response(status=400, text="Only one 'queue' query parameter is allowed")
        try:
            matches = pattern(queues[0]) if queues else None
        except UnusablePatternError as error:
            return web.Response(status=400, text=str(error))
        vhosts = frozenset(query.getall("vhost", [])) & frozenset(self._broker.vhosts)
        asked = Asked(frozenset(query.getall("family", [])), vhosts if "vhost" in query else None, matches)
        return await self._send(request, self._scraper.detailed(asked, await _process()))

    async def _send(
        self, request: web.Request, pieces: Iterator[str], last: bytes = b""
    ) -> web.StreamResponse:
        """Write the pieces of an answer, and let others run between two of them."""
        if self._broker.obstacle:
            return web.Response(status=503, text=self._broker.obstacle)
        if self._scrapes >= SCRAPES:
            return web.Response(status=503, text="too many scrapes at once")
        response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE})
        self._scrapes += 1
        try:
            async with asyncio.timeout(SCRAPE_SECONDS):
                await response.prepare(request)
                if request.method != "HEAD":
                    for piece in pieces:
                        if piece:
                            await response.write(piece.encode())
                        await asyncio.sleep(0)
                    if last:
                        await response.write(last)
                await response.write_eof()
        except TimeoutError:
            log.warning(
                "a scrape of %s took longer than %.0f s and was given up", request.path, SCRAPE_SECONDS
            )
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._scrapes -= 1
        return response

    # -- health -----------------------------------------------------------------------------------------------------

    async def _health(self, _request: web.Request) -> web.StreamResponse:
        lag = self._broker.lag
        return _verdict("" if lag < STALL_SECONDS else f"the event loop is {lag:.1f} s late")

    async def _ready(self, _request: web.Request) -> web.StreamResponse:
        return _verdict(self._broker.obstacle)


def _verdict(obstacle: str) -> web.Response:
    """200, or 503 with the reason; bodies as those of RabbitMQ's health checks."""
    if not obstacle:
        return web.json_response({"status": "ok"})
    return web.json_response({"status": "failed", "reason": obstacle}, status=503)


async def _process() -> Process:
    """What the system says of this process; a long list of files is read in a thread."""
    open_files = await asyncio.get_running_loop().run_in_executor(None, _open_files)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return Process(open_files, limit, usage.ru_utime, usage.ru_stime)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd")) - 1  # noqa: PTH208 - names are enough; one is the list's own
