"""The HTTP listener for monitoring: metrics and health (driver).

`GET /metrics`, `/metrics/per-object` and `/metrics/detailed?family=&vhost=&queue=` are RabbitMQ's; `/healthz` reports
whether the process is alive, `/readyz` whether clients may connect. Responses are written in pieces, with an iteration
of the loop between two pieces, so that a scrape of ten thousand queues does not delay clients.

There is no login, so requests may be malicious: the numbers of connections and scrapes and the lengths of request lines
and patterns are limited, and none of it may use up the file descriptors or the time that clients need.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, generate_latest

from leveret.broker.administration.access import AdministeredBroker
from leveret.broker.auth.users import open_credentials
from leveret.broker.http.connections import Connections, RequestsLog
from leveret.broker.http.late_server import serve
from leveret.broker.metrics import scrape
from leveret.broker.metrics.aggregates import BUILD, REPLICATION, REPLICATION_INFO
from leveret.broker.metrics.sampler import Selection
from leveret.broker.metrics.scrape import UnusablePatternError, of_node, pattern
from leveret.broker.metrics.text import CONTENT_TYPE, sums
from leveret.broker.process.shares import Shares, origin
from leveret.broker.statistics.node_figures import Process, process_figures
from leveret.broker.tls.acceptor import Acceptor
from leveret.broker.tls.credentials import Credentials

log = logging.getLogger("leveret")
requests_log = logging.getLogger("leveret.http")

SCRAPES = 4  # most concurrent scrapes, each of which keeps its rows in memory; one address may have three
SCRAPE_SECONDS = 30.0  # longest time of a scrape by a slow reader; Prometheus gives up after 10 s by default
CONNECTIONS = 32
"""Maximum number of connections; a further one replaces the oldest of the address that has most.

They and the backlog are fewer than the descriptors that `broker.network.gate.RESERVED_FILES` leaves.
"""
IDLE_SECONDS = 180.0  # maximum time between two requests of a connection
STOP_SECONDS = 1.0  # time that the shutdown waits for responses in progress
STALL_SECONDS = 5.0  # delay of the event loop from which the broker counts as dead


class Monitor:
    """Serves HTTP about a broker, started or not; with `per_object` `/metrics` has a series for each object."""

    def __init__(self, broker: AdministeredBroker, *, per_object: bool = False) -> None:
        self._broker = broker
        self._aggregated = scrape.per_object if per_object else scrape.aggregated
        self._scrapes = Shares.of_addresses(SCRAPES)
        self._runtime = CollectorRegistry()
        GCCollector(self._runtime)
        PlatformCollector(self._runtime)
        self._began = time.time()
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | Acceptor | None = None

    async def serve_socket(self, sock: socket.socket, tls: Credentials | None = None) -> None:
        """Serve a listening socket."""
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/metrics/per-object", self._per_object)
        app.router.add_get("/metrics/memory-breakdown", self._memory)
        app.router.add_get("/metrics/detailed", self._detailed)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._ready)
        errors: Any = RequestsLog(requests_log, self._broker.admits_line)
        runner = web.AppRunner(
            app,
            access_log=None,
            logger=errors,
            shutdown_timeout=STOP_SECONDS,
            keepalive_timeout=IDLE_SECONDS,
        )
        await runner.setup()
        assert runner.server is not None  # noqa: S101 - after the set-up
        accept = partial(Connections(CONNECTIONS).accept, runner.server)
        self._runner, self._listener = runner, await serve(accept, sock, tls, "metrics and health")

    async def stop(self) -> None:
        """Stop listening; responses in progress are cut off after a moment."""
        if self._listener is not None and self._runner is not None:
            self._listener.close()
            await self._runner.cleanup()
            self._listener = self._runner = None

    # -- metrics ----------------------------------------------------------------------------------------------------

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        process = await self._process()
        return await self._send(request, self._with_runtime(self._aggregated(self._broker, process)))

    async def _per_object(self, request: web.Request) -> web.StreamResponse:
        process = await self._process()
        return await self._send(request, self._with_runtime(scrape.per_object(self._broker, process)))

    def _with_runtime(self, pieces: Iterator[str]) -> Iterator[str]:
        return chain(pieces, (generate_latest(self._runtime).decode(),))

    async def _memory(self, request: web.Request) -> web.StreamResponse:
        return await self._send(request, scrape.memory(self._broker, await self._process()))

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
        selection = Selection(
            frozenset(query.getall("family", [])), vhosts if "vhost" in query else None, matches
        )
        return await self._send(request, scrape.detailed(self._broker, selection, await self._process()))

    async def _send(self, request: web.Request, pieces: Iterator[str]) -> web.StreamResponse:
        """Write the pieces of a response, yielding to the loop between two of them."""
        if self._broker.obstacle:
            return web.Response(status=503, text=self._broker.obstacle)
        peer = request.transport.get_extra_info("peername") if request.transport is not None else None
        owner = origin(str(peer[0])) if peer else ""
        if owner and not self._scrapes.acquire(owner):  # a front has limits of its own
            return web.Response(status=503, text="too many scrapes at once")
        response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE})
        try:
            async with asyncio.timeout(SCRAPE_SECONDS):
                pieces = await self._whole(request, pieces)
                await response.prepare(request)
                if request.method != "HEAD":
                    while (piece := self._next(pieces, request.path)) is not None:
                        if piece:
                            await response.write(piece.encode())
                        await asyncio.sleep(0)
                await response.write_eof()
        except TimeoutError:
            log.warning("scrape of %s aborted: it took longer than %.0f s", request.path, SCRAPE_SECONDS)
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            pass  # the client has disconnected
        finally:
            if owner:
                self._scrapes.release(owner)
        return response

    async def _whole(self, _request: web.Request, pieces: Iterator[str]) -> Iterator[str]:
        """Return the pieces of a response; a front adds those of its processes."""
        return pieces

    def _next(self, pieces: Iterator[str], path: str) -> str | None:
        """Return the next piece of a response, computed in a step of its own; None at the end."""
        with self._broker.turn.slices.step("scrape of", path):
            return next(pieces, None)

    async def _process(self) -> Process:
        """Return the system's figures of this process; a long list of files is read in a thread."""
        return (await asyncio.to_thread(process_figures))._replace(began=self._began)

    # -- health -----------------------------------------------------------------------------------------------------

    async def _health(self, _request: web.Request) -> web.StreamResponse:
        lag = self._broker.loop.lag
        return verdict("" if lag < STALL_SECONDS else f"the event loop is {lag:.1f} s late")

    async def _ready(self, _request: web.Request) -> web.StreamResponse:
        broker = self._broker
        short = "no file descriptors left for connections" if broker.gate.out_of_files else ""
        return verdict(broker.obstacle or short, open_credentials(broker.users))


class WaitingMonitor(Monitor):
    """Serves HTTP requests about a node that waits to lead (`broker.server.replicated_server`)."""

    def __init__(self, broker: Any) -> None:
        super().__init__(broker)
        self.broker = broker

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        del request
        node: Any = self  # as far as these families read one
        text = "".join(of_node(node, (BUILD, REPLICATION_INFO)))
        text += sums("", REPLICATION, self._broker.cluster.figures())
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})

    _per_object = _metrics
    _detailed = _metrics

    async def _health(self, _request: web.Request) -> web.StreamResponse:
        return verdict("")

    async def _ready(self, request: web.Request) -> web.StreamResponse:
        is_member = request.query.get("role") == "member"
        return verdict(self._broker.cluster.member_problem() if is_member else self._broker.obstacle)


def verdict(obstacle: str, warning: str = "") -> web.Response:
    """Return 200, or 503 with the reason; bodies as those of RabbitMQ's health checks, but for warnings."""
    if not obstacle:
        return web.json_response({"status": "ok", **({"warnings": [warning]} if warning else {})})
    return web.json_response({"status": "failed", "reason": obstacle}, status=503)
