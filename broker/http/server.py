"""The HTTP listeners of the management API (driver).

Requests are answered by `dispatch` in slices of two milliseconds, a few at once, so that clients notice
little of them. There are two listeners: TCP, where users log in, and a Unix socket in the data directory, which only
its owner can open and whose users may do everything.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from leveret.broker.http.call import BoundListener, Callback, ManagedBroker, Stored
from leveret.broker.http.dispatch import HEADERS, Request, Response, admit, answer, failed
from leveret.broker.http.errors import bad_request
from leveret.broker.http.listing import encoded
from leveret.broker.http.route import Router
from leveret.broker.metadata.recorder import MetadataJournal
from leveret.broker.scheduling.time_slices import TimeSlices
from leveret.broker.statistics.sampling import Sampling

log = logging.getLogger("leveret.management")
T = TypeVar("T")
requests_log = logging.getLogger("leveret.http")

SLICE = 2_000_000
"""Nanoseconds for which one request is worked on before others have a turn."""
AT_WORK = 8
"""Maximum number of requests that are answered at once; the others wait."""
CONNECTIONS = 64
"""Maximum number of connections of each listener; a further one replaces the oldest idle one."""
BACKLOG = 16
BODY = 10_000_000
"""Maximum octets of the body of a request, as in RabbitMQ."""
SMALL_BODY = 256 * 1024
"""Octets of a body that is read without a place at work."""
BODY_WITHOUT_LOGIN = 16 * 1024
"""Maximum octets of the body of a request that needs no login."""
TOO_LARGE = "Exceeded HTTP request body size limit"
REQUEST_SECONDS = 30.0
"""Maximum duration of a request, with its body and its response."""
IDLE_SECONDS = 60.0
"""Maximum time between two requests of a connection."""
STOP_SECONDS = 1.0
"""Time that the shutdown waits for responses in progress."""


class ServingBroker(ManagedBroker, Protocol):
    """The broker, and what the driver needs of it beside (`broker.server.server.Server`)."""

    journal: MetadataJournal
    http_listeners: list[BoundListener]

    def run_turn(self) -> None:
        """Run a turn."""


class ManagementServer:
    """Serves the API of one broker.

    Args:
        broker: the broker.
        router: finds the routes.
        prefix: what paths on TCP begin with, before `/api/`; a slash and a name, or '' for nothing.

    """

    def __init__(self, broker: ServingBroker, router: Router, prefix: str = "") -> None:
        self._broker = broker
        self._prefix = prefix.rstrip("/")
        self._router = router
        self._at_work = asyncio.Semaphore(AT_WORK)
        self._busy: set[asyncio.Transport | None] = set()
        """Transports with a request that is being answered."""
        self._runners: list[web.ServerRunner] = []
        self._listeners: list[asyncio.Server] = []
        self._sampling = Sampling(broker)
        self.address = ("", 0)
        """The bound address."""

    async def start(self, host: str, port: int) -> None:
        """Start listening on TCP; port 0 picks a free one. Raises OSError for an address that is not available."""
        accept = await self._runner(self._from_network)
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(accept, host, port, backlog=BACKLOG)
        self._listeners.append(listener)
        self._sampling.start()
        self.address = listener.sockets[0].getsockname()[:2]
        self._broker.http_listeners.append(BoundListener("http", *self.address))

    async def serve_socket(self, sock: socket.socket) -> None:
        """Serve a listening Unix socket, whose clients may do everything."""
        accept = await self._runner(self._from_owner)
        loop = asyncio.get_running_loop()
        self._listeners.append(await loop.create_unix_server(accept, sock=sock, backlog=BACKLOG))
        self._sampling.start()

    async def stop(self) -> None:
        """Stop listening; responses in progress are cut off after a moment."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        await self._sampling.stop()
        runners, self._runners = self._runners, []
        for runner in runners:
            await runner.cleanup()

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

    async def _from_network(self, request: web.BaseRequest) -> web.StreamResponse:
        peer = request.transport.get_extra_info("peername") if request.transport is not None else None
        path = request.rel_url.raw_path
        inside = path.removeprefix(self._prefix) if path.startswith(f"{self._prefix}/") else "/"
        return await self._handle(request, inside, str(peer[0]) if peer else "unknown")

    async def _handle(self, request: web.BaseRequest, path: str, peer: str) -> web.StreamResponse:
        """Answer a request.

        A place at work is taken for the time of the work, not of waiting for a slow client, and a body is read only if
        the user may call what the request asks for; one that is large takes a place, so that few are in memory.
        """
        if self._broker.obstacle:
            body = encoded({"error": "service_unavailable", "reason": self._broker.obstacle})
            return web.Response(status=503, headers=HEADERS, body=body, content_type="application/json")
        received = Request(
            request.method,
            path,
            {key: request.query.getall(key)[0] for key in request.query},
            {key.lower(): value for key, value in request.headers.items()},
            peer,
        )
        transport = request.transport
        self._busy.add(transport)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                response = await self._answer(request, received)
            if response.delay:
                await asyncio.sleep(response.delay)
            async with asyncio.timeout(REQUEST_SECONDS):
                return await self._send(request, response)
        except TimeoutError:
            log.warning("request %s %s aborted: it took longer than %.0f s", request.method,
                        request.rel_url.raw_path[:200], REQUEST_SECONDS)  # fmt: skip
            if transport is not None:
                transport.abort()
            return web.Response(status=503)
        except (ConnectionError, web.RequestPayloadError):  # the client has left, or sends no valid body
            if transport is not None:
                transport.abort()
            return web.Response(status=400)
        finally:
            self._busy.discard(transport)

    async def _answer(self, request: web.BaseRequest, received: Request) -> Response:
        """Return the response to a request, of which nothing has been computed yet but the first piece."""
        admitted = self._in_slice(lambda: admit(self._broker, self._router, received), received.path)
        if isinstance(admitted, Response):
            return admitted
        most = BODY if admitted.operation.needs is not None else BODY_WITHOUT_LOGIN
        if (request.content_length or 0) > most:
            return failed(bad_request(TOO_LARGE))
        content, is_whole = await _content(request, min(most, SMALL_BODY))
        async with self._at_work:
            if not is_whole:
                rest, is_whole = await _content(request, most - len(content))
                content += rest
            if not is_whole:
                return failed(bad_request(TOO_LARGE))
            return await self._run(answer(self._broker, admitted, content), received.path)

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
            outcome, need = self._slice(steps, given, name)
            if outcome is not None:
                return outcome
            if need is None:
                await asyncio.sleep(0)
                given = None
            elif isinstance(need, Stored):
                given = await self._stored(files=need.files)
            elif isinstance(need, Callback):
                given = await _called(need)
            else:
                given = await asyncio.to_thread(need)

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

    async def _stored(self, *, files: bool) -> bool:
        """Wait until everything changed so far is on disk; False if the disk is full."""
        stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        journal = self._broker.journal
        wait = journal.when_all_safe if files else journal.when_safe
        wait(partial(_set, stored))
        self._broker.run_turn()
        return await stored

    async def _send(self, request: web.BaseRequest, response: Response) -> web.StreamResponse:
        """Write a response, in pieces if it is long, with an iteration of the loop between two of them."""
        pieces = iter(response.pieces)
        first = self._next(pieces, request.path)
        second = self._next(pieces, request.path) if first is not None else None
        if second is None or request.method == "HEAD":
            # an empty body must have no type
            plain = web.Response(status=response.status, headers=response.headers, body=first or b"")
            if first is None:
                plain.headers.popall("content-type", None)
            return plain
        stream = web.StreamResponse(status=response.status, headers=response.headers)
        await stream.prepare(request)
        with contextlib.suppress(ConnectionError):
            async with self._at_work:
                await self._stream(stream, request.path, (first, second), pieces)
            await stream.write_eof()
        return stream

    async def _stream(
        self,
        stream: web.StreamResponse,
        path: str,
        written: Iterable[bytes | None],
        pieces: Iterator[bytes | None],
    ) -> None:
        """Write pieces, with an iteration of the loop between two slices."""
        for begun in written:
            if begun:
                await stream.write(begun)
        while True:
            until = time.monotonic_ns() + SLICE
            piece = self._next(pieces, path)
            if piece is None:
                break
            if piece:
                await stream.write(piece)
            if time.monotonic_ns() >= until:
                await asyncio.sleep(0)

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


async def _content(request: web.BaseRequest, most: int) -> tuple[bytes, bool]:
    """Read the body of a request until there are more than so many octets; returns it, and whether that is all."""
    buffer = bytearray()
    async for piece in request.content.iter_any():
        buffer += piece
        if len(buffer) > most:
            return bytes(buffer), False
    return bytes(buffer), True


async def _called(need: Callback) -> Any:
    """Wait for a callback; returns its argument."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    need.subscribe(partial(_set, future))
    return await future


def _set(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def accept_limited(server: web.Server, most: int, busy: Collection[object] = ()) -> asyncio.Protocol:
    """Return the protocol of a new connection; if there are too many, others are closed.

    Args:
        server: makes the protocol.
        most: maximum number of connections.
        busy: transports with a request that is being answered: they are closed last, the oldest first.

    """
    transports = [each.transport for each in server.connections]
    living = [each for each in transports if each is not None and not each.is_closing()]
    living.sort(key=busy.__contains__)
    for transport in living[: max(0, len(living) + 1 - most)]:
        transport.abort()
    return cast("asyncio.Protocol", server())


def is_ours(record: logging.LogRecord) -> bool:
    """Return whether a record should be logged: not for malformed requests, which are reported to their sender."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
