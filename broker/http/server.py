"""The HTTP listeners of the management API (driver).

Requests are answered by `dispatch` in slices of two milliseconds, of which one runs in an iteration of the loop, so
that clients notice little of them, however many there are. There are two listeners: TCP, where users log in, and a Unix
socket in the data directory, which only its owner can open and whose users may do everything.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any, Protocol, TypeVar

from aiohttp import web

from leveret.broker.http.accepted import accept_limited, headers_of, is_ours
from leveret.broker.http.awaiting import called, content_of, resolve
from leveret.broker.http.call import Callback, ManagedBroker, Stored
from leveret.broker.http.dispatch import (
    HEADERS,
    Request,
    Response,
    admit,
    answer,
    failed,
)
from leveret.broker.http.errors import bad_request
from leveret.broker.http.event_streams import EventStreams
from leveret.broker.http.late_server import BACKLOG, listening
from leveret.broker.http.list_cache import MOST_SECONDS, ListCache
from leveret.broker.http.listing import encoded
from leveret.broker.http.login import UndecidedLogin, verdict_of
from leveret.broker.http.route import Router
from leveret.broker.http.stream_writer import StreamWriter
from leveret.broker.metadata.recorder import MetadataJournal
from leveret.broker.process.recent_log import RECENT
from leveret.broker.scheduling.time_slices import TimeSlices
from leveret.broker.statistics.node_facts import ListenerFacts
from leveret.broker.statistics.sampling import Sampling
from leveret.broker.tls.acceptor import Acceptor
from leveret.broker.tls.credentials import Credentials

log = logging.getLogger("leveret.management")
T = TypeVar("T")
Following = Callable[[], bytes | None]
requests_log = logging.getLogger("leveret.http")

SLICE = 2_000_000
"""Nanoseconds for which one request is worked on before others have a turn."""
AT_WORK = 8
"""Maximum number of requests that are answered at once; the others wait."""
CONNECTIONS = 64
"""Maximum number of connections of each listener; a further one replaces the oldest idle one."""
LARGE_BODY = 10_000_000
"""Maximum octets of the body of an import or a publish, as in RabbitMQ."""
BODY = 256 * 1024
"""Maximum octets of other bodies, which are decoded in one step; so many are read without a place at work."""
BODY_WITHOUT_LOGIN = 16 * 1024
"""Maximum octets of the body of a request that needs no login."""
TOO_LARGE = "Exceeded HTTP request body size limit"
REQUEST_SECONDS = 30.0
"""Maximum duration of a request, with its body and its response."""
LONG_SECONDS = 600.0
"""Maximum duration of an import: cut off, it would leave half of its changes."""
IDLE_SECONDS = 60.0
"""Maximum time between two requests of a connection."""
STOP_SECONDS = 1.0
"""Time that the shutdown waits for responses in progress."""


class ServingBroker(ManagedBroker, Protocol):
    """The broker, and what the driver needs of it beside (`broker.server.server.Server`)."""

    journal: MetadataJournal
    http_listeners: list[ListenerFacts]

    def run_turn(self) -> None:
        """Run a turn."""

    def may_write(self) -> bool:
        """Return whether anything may be written to clients now."""


class StaleError(ConnectionError):
    """Another node may lead by now: the client gets no answer, as if this one had gone."""


class ManagementServer:
    """Serves the API of one broker.

    Args:
        broker: the broker.
        router: finds the routes.
        prefix: what paths on TCP begin with, before `/api/`; a slash and a name, or '' for nothing.
        host_names: further names under which browsers may reach a listener on loopback.

    """

    def __init__(
        self, broker: ServingBroker, router: Router, prefix: str = "", host_names: Collection[str] = ()
    ) -> None:
        self._broker = broker
        self._host_names = frozenset(map(str.lower, host_names))
        self._prefix = prefix.rstrip("/")
        self._router = router
        self._at_work, self._large_bodies = asyncio.Semaphore(AT_WORK), asyncio.Semaphore(AT_WORK)
        self._slices = asyncio.Lock()
        self._lists = ListCache(broker.now)
        self._streams = StreamWriter(broker.turn.slices, self._in_turn)
        self._busy: set[asyncio.Transport | None] = set()
        """Transports with a request that is being answered."""
        self._expiry: asyncio.TimerHandle | None = None
        self._runners: list[web.ServerRunner] = []
        self._listeners: list[asyncio.Server | Acceptor] = []
        self._sampling = Sampling(broker)
        self._event_streams = EventStreams(broker, self._in_turn)
        self.address = ("", 0)
        """The bound address."""

    async def start(self, host: str, port: int) -> None:
        """Start listening on TCP; port 0 picks a free one. Raises OSError for an address that is not available."""
        sock = listening(host, port)
        self.address = sock.getsockname()[:2]
        await self.serve_socket(sock)
        self._broker.http_listeners.append(ListenerFacts("http", *self.address))

    async def serve_socket(self, sock: socket.socket, tls: Credentials | None = None) -> None:
        """Serve a listening socket; the clients of a Unix socket may do everything, those of another log in."""
        listener: asyncio.Server | Acceptor
        loop = asyncio.get_running_loop()
        if sock.family == socket.AF_UNIX:
            accept = await self._runner(self._from_owner)
            listener = await loop.create_unix_server(accept, sock=sock, backlog=BACKLOG)
        else:
            is_local = ipaddress.ip_address(sock.getsockname()[0]).is_loopback
            names = self._host_names if is_local else None
            accept = await self._runner(partial(self._from_network, names))
            if tls is None:
                listener = await loop.create_server(accept, sock=sock, backlog=BACKLOG)
            else:
                listener = Acceptor(sock, accept, tls, "the management API")
        self._listeners.append(listener)
        RECENT.begin()
        self._sampling.start()

    async def stop(self) -> None:
        """Stop listening; responses in progress are cut off after a moment."""
        for listener in self._listeners:
            listener.close()
            RECENT.end()
        self._listeners.clear()
        await self._event_streams.close()
        if self._expiry is not None:
            self._expiry.cancel()
        await self._sampling.stop()
        self._streams.stop()
        runners, self._runners = self._runners, []
        for runner in runners:
            await runner.cleanup()

    def descriptors(self) -> list[int]:
        """Return the descriptors of all sockets, those of clients and those that listen; -1 for one that was closed."""
        connections = [
            each for runner in self._runners if runner.server for each in runner.server.connections
        ]
        clients = [each.transport.get_extra_info("socket") for each in connections if each.transport]
        listening = [sock for listener in self._listeners for sock in listener.sockets]
        return [sock.fileno() for sock in (*listening, *clients) if sock is not None]

    async def _runner(self, handle: Callable[[web.BaseRequest], Any]) -> Callable[[], asyncio.Protocol]:
        """Return the factory of the protocols of new connections."""
        server = web.Server(
            handle, access_log=None, logger=requests_log, keepalive_timeout=IDLE_SECONDS
        )  # fmt: skip
        requests_log.addFilter(is_ours)
        runner = web.ServerRunner(server, shutdown_timeout=STOP_SECONDS)
        await runner.setup()
        self._runners.append(runner)
        return partial(accept_limited, server, CONNECTIONS, self._busy)

    # -- requests ---------------------------------------------------------------------------------------------------

    async def _from_owner(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._handle(request, request.rel_url.raw_path, "")

    async def _from_network(
        self, names: Collection[str] | None, request: web.BaseRequest
    ) -> web.StreamResponse:
        peer = request.transport.get_extra_info("peername") if request.transport is not None else None
        path = request.rel_url.raw_path
        if path == self._prefix and path:
            return web.Response(status=308, headers={"location": f"{path}/"})
        inside = path.removeprefix(self._prefix) if path.startswith(f"{self._prefix}/") else ""
        return await self._handle(request, inside or "outside", str(peer[0]) if peer else "unknown", names)

    async def _handle(
        self, request: web.BaseRequest, path: str, peer: str, names: Collection[str] | None = None
    ) -> web.StreamResponse:
        """Answer a request.

        A place at work is taken for the time of the work, not of waiting for a slow client, and a body is read only if
        the user may call what the request asks for; large ones have places of their own, so that few are in memory.
        """
        if obstacle := self._obstacle(request.method, path):
            body = encoded({"error": "service_unavailable", "reason": obstacle})
            return web.Response(status=503, headers=HEADERS, body=body, content_type="application/json")
        received = Request(
            request.method,
            path,
            {key: request.query.getall(key)[0] for key in request.query},
            headers_of(request),
            peer,
            names,
        )
        transport = request.transport
        self._busy.add(transport)
        try:
            async with asyncio.timeout(REQUEST_SECONDS) as limit:
                response = await self._answer(request, received, limit)
            if response.delay:
                await asyncio.sleep(response.delay)
            if response.stream is not None:
                return await self._streams.write(request, response, response.stream)
            if response.events is not None:
                return await self._event_streams.serve(request, response.headers, response.events)
            async with asyncio.timeout(REQUEST_SECONDS):
                return await self._send(request, response)
        except TimeoutError:
            path = request.rel_url.raw_path[:200]
            log.warning("request %s %s aborted: it took too long", request.method, path)
            if transport is not None:
                transport.abort()
            return web.Response(status=503)
        except (ConnectionError, web.RequestPayloadError):  # the client has left, or sends no valid body
            if transport is not None:
                transport.abort()
            return web.Response(status=400)
        finally:
            self._busy.discard(transport)
            if len(self._lists) and self._expiry is None:
                self._expiry = asyncio.get_running_loop().call_later(MOST_SECONDS, self._expire)

    def _obstacle(self, _method: str, _path: str) -> str:
        """Return the reason for which a request cannot be answered now; '' if it can."""
        return self._broker.obstacle

    def _expire(self) -> None:
        """Free the memory of old lists, also if nobody asks any more."""
        self._expiry = None
        self._lists.expire()
        if len(self._lists):
            self._expiry = asyncio.get_running_loop().call_later(MOST_SECONDS, self._expire)

    async def _answer(self, request: web.BaseRequest, received: Request, limit: asyncio.Timeout) -> Response:
        """Return the response to a request, of which nothing has been computed yet but the first piece.

        `limit`: ends it; later for what must not be cut off, but not for its body.
        """
        try:
            admitted = self._in_slice(lambda: admit(self._broker, self._router, received), received.path)
        except UndecidedLogin as login:
            verdict = await verdict_of(self._broker, login, received.peer)
            admitted = self._in_slice(
                lambda: admit(self._broker, self._router, received, verdict), received.path
            )
        if isinstance(admitted, Response):
            return admitted
        most = LARGE_BODY if admitted.operation.is_large else BODY
        if admitted.operation.needs is None:
            most = BODY_WITHOUT_LOGIN
        if (request.content_length or 0) > most:
            return failed(bad_request(TOO_LARGE))
        content, is_whole = await content_of(request, min(most, BODY))
        async with contextlib.nullcontext() if is_whole else self._large_bodies:
            if not is_whole:
                rest, is_whole = await content_of(request, most - len(content))
                content += rest
            if not is_whole:
                return failed(bad_request(TOO_LARGE))
            async with self._at_work:
                if admitted.operation.is_long:
                    limit.reschedule(asyncio.get_running_loop().time() + LONG_SECONDS)
                lists = self._lists if received.peer else None
                return await self._run(answer(self._broker, admitted, content, lists), received.path)

    def _in_slice(self, work: Callable[[], T], name: str) -> T:
        slices = self._broker.turn.slices
        slices.begin()
        try:
            return work()
        finally:
            slices.end("request of", name)

    async def _run(self, steps: Any, name: str) -> Response:
        """Run the steps of a response, and supply what they need."""
        given: Any = None
        while True:
            outcome, need = await self._in_turn(partial(self._slice, steps, given, name))
            if outcome is not None:
                return outcome
            if need is None:
                given = None
            elif isinstance(need, Stored):
                given = await self._stored()
            elif isinstance(need, Callback):
                given = await called(need)
            else:
                given = await asyncio.to_thread(need)

    async def _in_turn(self, work: Callable[[], T]) -> T:
        """Do work of a slice, so that there is an iteration of the loop between the slices of all requests.

        Whatever is written to a client comes from here. Raises StaleError if nothing may be.
        """
        async with self._slices:
            try:
                result = work()
            finally:
                await asyncio.sleep(0)
        if not self._broker.may_write():
            raise StaleError
        return result

    def _slice(self, steps: Any, given: Any, name: str) -> tuple[Response | None, Any]:
        """Run steps for the time of a slice; returns the response, or what is needed first."""
        slices: TimeSlices = self._broker.turn.slices
        until = slices.begin() + SLICE
        try:
            while True:
                need = steps.send(given)
                given = None
                if need is not None or slices.clock() >= until:
                    return None, need
        except StopIteration as done:
            return done.value, None
        finally:
            self._broker.run_turn()
            slices.end("request of", name)

    async def _stored(self) -> bool:
        """Wait until everything changed so far is on disk; False if the disk is full."""
        stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._broker.journal.when_safe(partial(resolve, stored))
        self._broker.run_turn()
        return await stored

    async def _send(self, request: web.BaseRequest, response: Response) -> web.StreamResponse:
        """Write a response, in pieces if it is long, with an iteration of the loop between two of them."""
        pieces = iter(response.pieces)
        following = partial(self._next, pieces, request.path)
        first = await self._in_turn(following)
        second = await self._in_turn(following) if first is not None else None
        if second is None or request.method == "HEAD":
            # an empty body must have no type
            plain = web.Response(status=response.status, headers=response.headers, body=first or b"")
            if first is None:
                plain.headers.popall("content-type", None)
            return plain
        stream = web.StreamResponse(status=response.status, headers=response.headers)
        await stream.prepare(request)
        try:
            await self._stream(stream, (first, second), following)
            await stream.write_eof()
        except ConnectionError:  # cut off, so that nobody takes it for whole
            if request.transport is not None:
                request.transport.abort()
        return stream

    async def _stream(
        self, stream: web.StreamResponse, begun: Iterable[bytes | None], following: Following
    ) -> None:
        """Write the pieces that are there, and those that follow."""
        for piece in begun:
            if piece:
                await stream.write(piece)
        while True:
            async with self._at_work:
                piece = await self._in_turn(following)
            if piece is None:
                return
            if piece:
                await stream.write(piece)

    def _next(self, pieces: Iterator[bytes | None], path: str) -> bytes | None:
        """Return the next piece, b"" if it took a whole slice so far, None at the end."""
        slices = self._broker.turn.slices
        until = slices.begin() + SLICE
        try:
            for piece in pieces:
                if piece:
                    return piece
                if slices.clock() >= until:
                    return b""
            return None
        finally:
            slices.end("response to", path)
