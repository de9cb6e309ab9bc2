"""The HTTP listeners of the management API (driver).

Requests are answered by `dispatch` in slices of two milliseconds, of which one runs in an iteration of the loop, so
that clients notice little of them, however many there are. There are two listeners: TCP, where users log in, and a Unix
socket in the data directory, which only its owner can open and whose users may do everything.
"""

import asyncio
import contextlib
import ipaddress
import logging
import math
import socket
from collections.abc import Awaitable, Callable, Collection, Iterator
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from aiohttp import web

from leveret.broker.administration.access import AdministeredBroker
from leveret.broker.administration.definitions_document import encoded
from leveret.broker.http.answer_writer import SLICE, AnswerWriter, StreamWriter
from leveret.broker.http.call import Callback, Events, Request, Stored, Stream
from leveret.broker.http.connections import (
    Connections,
    RequestsLog,
    Subscribe,
    Use,
    called,
    called_without,
    content_of,
    disconnect,
    headers_of,
    transports_of,
)
from leveret.broker.http.dispatch import HEADERS, Admitted, Response, admit, answer, failed
from leveret.broker.http.errors import ApiError, bad_request
from leveret.broker.http.feeds import Feed
from leveret.broker.http.late_server import listening, serve
from leveret.broker.http.listing import MOST_SECONDS, ListCache
from leveret.broker.http.login import UndecidedLogin, verdict_of
from leveret.broker.http.route import Router, Work
from leveret.broker.process.logs import RECENT
from leveret.broker.process.places import Places
from leveret.broker.process.resource_alarms import Unsent
from leveret.broker.process.shares import Shares
from leveret.broker.scheduling.time_slices import TimeSlices
from leveret.broker.statistics.node_figures import ListenerFacts
from leveret.broker.statistics.sampling import Sampling
from leveret.broker.tls.acceptor import Acceptor
from leveret.broker.tls.credentials import Credentials

log = logging.getLogger("leveret.management")
STREAMS = 50  # Maximum number of streams; further ones are refused. One user may have a quarter of them
PASS_SLICE = 1_000_000  # nanoseconds of a slice of a pass
RENEWAL_SECONDS = 5.0  # time between two checks whether the user may still see what it watches
_COMMENT = b": \n\n"
_END = b"event: end\ndata: {}\n\n"


class EventStreams:
    """The streams of one listener; work is done in turn with the slices of others."""

    def __init__(self, broker: AdministeredBroker, in_turn: Callable[[Callable[[], Any]], Any]) -> None:
        self._broker = broker
        self._in_turn = in_turn
        self._feeds: dict[Any, Feed] = {}
        self._sampling: asyncio.Task[None] | None = None
        self._waiting: list[Callable[[], object]] = []  # told at the end of each pass
        self._begun = asyncio.Event()  # set when there is a new feed
        self.places = Shares(STREAMS)  # the owners of the streams

    async def close(self) -> None:
        """End the passes."""
        if self._sampling is not None:
            self._sampling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sampling

    def stream(self, events: Events, owner: str) -> Stream | None:
        """Return the events of topics until the client leaves, or may no longer see them; None without a place."""
        if not self.places.acquire(owner):
            return None
        told = dict.fromkeys(map(self._watched, events.topics), 0)

        def when_there(tell: Callable[[], object]) -> None:
            if any(feed.number != number for feed, number in told.items()):
                tell()
            else:
                self._waiting.append(tell)

        def close() -> None:
            self.places.release(owner)
            for feed in told:
                feed.watchers -= 1
                if not feed.watchers:
                    self._feeds.pop(feed.topic.identity, None)

        return Stream(_events_of(told, events), when_there, close, "text/event-stream", _COMMENT, _END)

    def _watched(self, topic: Any) -> Feed:
        feed = self._feeds.get(topic.identity)
        if feed is None:
            feed = self._feeds[topic.identity] = Feed(topic, self._broker.wall_clock)
        feed.watchers += 1
        if self._sampling is None or self._sampling.done():
            self._sampling = asyncio.get_running_loop().create_task(self._sample(), name="feeds")
        self._begun.set()
        return feed

    # -- passes -----------------------------------------------------------------------------------------------------

    async def _sample(self) -> None:
        time = asyncio.get_running_loop().time
        while self._feeds:
            self._begun.clear()
            for feed in list(self._feeds.values()):
                if feed.due <= time():
                    try:
                        await self._pass(feed)
                    except Exception:
                        log.exception("events of %s failed", feed.topic.name)
                        feed.is_broken = True
                        feed.due = math.inf
            waiting, self._waiting = self._waiting, []
            for tell in waiting:
                tell()
            due = min((feed.due for feed in self._feeds.values()), default=0.0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due - time()) if due < math.inf else None):
                    await self._begun.wait()

    async def _pass(self, feed: Feed) -> None:
        now = asyncio.get_running_loop().time()
        steps = feed.sample()
        cost = 0
        is_over = False
        while not is_over:
            taken, is_over = await self._in_turn(partial(self._slice, steps))
            cost += taken
        feed.passed(now, cost / 1e9)

    def _slice(self, steps: Iterator[None]) -> tuple[int, bool]:
        """Run steps for the time of a slice; returns the nanoseconds that it took, and whether that was all."""
        slices = self._broker.turn.slices
        with slices.step("sample of", "feeds") as begun:
            is_over = not any(slices.clock() >= begun + PASS_SLICE for _ in steps)
            return slices.clock() - begun, is_over


def _events_of(told: dict[Feed, int], events: Events) -> Iterator[bytes | None]:
    """Yield the events of feeds, b"" where there are no more as yet; `told` has the number of the last one of each."""
    time = asyncio.get_running_loop().time
    wanted = [topic.identity for topic in events.topics]
    renewal = time() + RENEWAL_SECONDS
    while True:
        for feed, number in told.items():
            told[feed] = feed.number
            yield from feed.since(number)
        if any(feed.is_broken for feed in told):
            break
        if time() >= renewal:
            renewal = time() + RENEWAL_SECONDS
            if [topic.identity for topic in events.renewed()] != wanted:
                break
        yield b""
    yield _END


T = TypeVar("T")
requests_log = logging.getLogger("leveret.http")

AT_WORK = 16  # most requests of each kind of work (`route.Work`) that are answered at once; the others wait
SHARES = {Work.SHORT: AT_WORK // 4, Work.LONG: AT_WORK // 4, Work.BODIES: 1}
"""Maximum number of those of one user; of a client that has not logged in, if no login is needed."""
PLACE_SECONDS = 15.0  # time that a request waits for a place
CONNECTIONS = 64  # most connections of each listener; for a further one the address that has most loses one
LARGE_BODY = 10_000_000  # maximum octets of the body of an import or a publish, as in RabbitMQ
BODY = 256 * 1024  # most octets of other bodies, decoded in one step; so many need no place at work
BODY_WITHOUT_LOGIN = 16 * 1024  # maximum octets of the body of a request that needs no login
TOO_MANY = "too many requests of this kind are being answered, or their answers are not read; try again later"
TOO_LARGE = "Exceeded HTTP request body size limit"
REQUEST_SECONDS = 30.0  # maximum duration of a request, with its body and its response
LONG_SECONDS = 600.0  # maximum duration of an import: cut off, it would leave half of its changes
IDLE_SECONDS = 60.0  # maximum time between two requests of a connection
STOP_SECONDS = 1.0  # time that the shutdown waits for responses in progress


class Asked(NamedTuple):
    """A request whose user may call what it asks for; `limit` ends it, `held` keeps what is held until the response."""

    request: web.BaseRequest
    admitted: Admitted
    limit: asyncio.Timeout
    held: contextlib.AsyncExitStack


class StaleError(ConnectionError):
    """Another node may lead by now: the client gets no answer, as if this one had gone."""


class ManagementServer:
    """Serves the API of one broker.

    `prefix` is what paths on TCP begin with, before `/api/`: a slash and a name, or '' for nothing. `host_names` are
    further names under which browsers may reach a listener on loopback.
    """

    def __init__(
        self, broker: AdministeredBroker, router: Router, prefix: str = "", host_names: Collection[str] = ()
    ) -> None:
        self._broker = broker
        self._host_names = frozenset(map(str.lower, host_names))
        self._prefix = prefix.rstrip("/")
        self._router = router
        self._places = {work: Places(Shares(AT_WORK, share)) for work, share in SHARES.items()}
        self._large_bodies = Places(Shares(AT_WORK // 2))
        self._slices = asyncio.Lock()
        self._lists = ListCache(broker.now)
        self._streams = StreamWriter(broker.turn.slices, self._in_turn)
        self._answers = AnswerWriter(broker.turn.slices, self._in_turn, self._places[Work.SHORT])
        self._connections = Connections(CONNECTIONS)
        self._expiry: asyncio.TimerHandle | None = None
        self._runners: list[web.ServerRunner] = []
        self._listeners: list[asyncio.Server | Acceptor] = []
        self._sampling = Sampling(broker, broker.statistics)
        self._event_streams = EventStreams(broker, self._in_turn)
        self.address = ("", 0)  # the bound address

    async def start(self, host: str, port: int) -> None:
        """Start listening on TCP; port 0 picks a free one. Raises OSError for an address that is not available."""
        sock = listening(host, port)
        self.address = sock.getsockname()[:2]
        await self.serve_socket(sock)
        self._broker.listeners.append(ListenerFacts("http", *self.address))

    async def serve_socket(self, sock: socket.socket, tls: Credentials | None = None) -> None:
        """Serve a listening socket; the clients of a Unix socket may do everything, those of another log in."""
        handle: Callable[[web.BaseRequest], Any] = self._from_owner
        if sock.family != socket.AF_UNIX:
            is_local = ipaddress.ip_address(sock.getsockname()[0]).is_loopback
            handle = partial(self._from_network, self._host_names if is_local else None)
        self._listeners.append(await serve(await self._runner(handle), sock, tls, "the management API"))
        if self._unsent not in self._broker.gate.unsent_answers:
            self._broker.gate.unsent_answers.append(self._unsent)
        RECENT.begin()
        self._sampling.start()

    async def stop(self) -> None:
        """Stop listening; responses in progress are cut off after a moment."""
        for listener in self._listeners:
            listener.close()
            RECENT.end()
        self._listeners.clear()
        if self._unsent in self._broker.gate.unsent_answers:
            self._broker.gate.unsent_answers.remove(self._unsent)
        await self._event_streams.close()
        if self._expiry is not None:
            self._expiry.cancel()
        await self._sampling.stop()
        self._streams.stop()
        runners, self._runners = self._runners, []
        for runner in runners:
            await runner.cleanup()

    def _transports(self) -> list[asyncio.Transport]:
        return [each for runner in self._runners if runner.server for each in transports_of(runner.server)]

    def _unsent(self) -> Iterator[Unsent]:
        """Yield the octets that wait in memory for each client, and how it is disconnected."""
        for each in self._transports():
            held = self._answers.held.get(each, 0)
            yield held + each.get_write_buffer_size(), partial(disconnect, each)

    def descriptors(self) -> list[int]:
        """Return the descriptors of all sockets, those of clients and those that listen; -1 for one that was closed."""
        clients = [each.get_extra_info("socket") for each in self._transports()]
        listening = [sock for listener in self._listeners for sock in listener.sockets]
        return [sock.fileno() for sock in (*listening, *clients) if sock is not None]

    async def _runner(self, handle: Callable[[web.BaseRequest], Any]) -> Callable[[], asyncio.Protocol]:
        """Return the factory of the protocols of new connections."""
        errors: Any = RequestsLog(requests_log, self._broker.admits_line)
        server = web.Server(handle, access_log=None, logger=errors, keepalive_timeout=IDLE_SECONDS)
        runner = web.ServerRunner(server, shutdown_timeout=STOP_SECONDS)
        await runner.setup()
        self._runners.append(runner)
        return partial(self._connections.accept, server)

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
        host = str(peer[0]) if peer else "unknown"
        return await self._handle(request, inside or "outside", host, names)

    async def _handle(
        self, request: web.BaseRequest, path: str, peer: str, names: Collection[str] | None = None
    ) -> web.StreamResponse:
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
        self._connections.enter(transport, Use.UNKNOWN)
        try:
            async with contextlib.AsyncExitStack() as held:
                return await self._answered(request, received, held)
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
            self._connections.enter(transport, Use.IDLE)
            if len(self._lists) and self._expiry is None:
                self._expiry = asyncio.get_running_loop().call_later(MOST_SECONDS, self._expire)

    async def _answered(
        self, request: web.BaseRequest, received: Request, held: contextlib.AsyncExitStack
    ) -> web.StreamResponse:
        """Compute and write the response to a request."""
        # A place at work is taken for the time of the work, not of waiting for a slow client or for what others do,
        # unless bodies of messages wait, too. A body is read only if the user may call what the request asks for;
        # large ones have places of their own, so that few are in memory. `held` keeps what is held until the response
        # is written.
        async with asyncio.timeout(REQUEST_SECONDS) as limit:
            response, owner = await self._admitted(received), ""
            if isinstance(response, Admitted):
                if response.operation.needs is not None:
                    self._connections.enter(request.transport, Use.AT_WORK)
                owner = response.owner
                response = await self._answer(Asked(request, response, limit, held))
        if response.delay:
            await asyncio.sleep(response.delay)
        source = response.stream
        if response.events is not None:
            source = self._event_streams.stream(response.events, owner)
            if source is None:
                return web.Response(status=503, headers={"retry-after": "10"})
        if source is not None:
            return await self._streams.write(request, response, source)
        async with asyncio.timeout(REQUEST_SECONDS):
            return await self._answers.write(request, response, owner)

    def _obstacle(self, _method: str, _path: str) -> str:
        return self._broker.obstacle

    def _expire(self) -> None:
        """Free the memory of old lists, also without further requests."""
        self._expiry = None
        self._lists.expire()
        if len(self._lists):
            self._expiry = asyncio.get_running_loop().call_later(MOST_SECONDS, self._expire)

    async def _admitted(self, received: Request) -> Admitted | Response:
        slices = self._broker.turn.slices
        try:
            with slices.step("request of", received.path):
                return admit(self._broker, self._router, received)
        except UndecidedLogin as login:
            verdict = await verdict_of(self._broker, login, received.peer)
        with slices.step("request of", received.path):
            return admit(self._broker, self._router, received, verdict)

    async def _answer(self, asked: Asked) -> Response:
        """Return the response to a request, of which nothing has been computed yet but the first piece."""
        # The limit is moved for what must not be cut off, but not for its body.
        request, admitted, limit, held = asked
        received, owner, work = admitted.request, admitted.owner, admitted.operation.work
        most = LARGE_BODY if admitted.operation.is_large else BODY
        if admitted.operation.needs is None:
            most = BODY_WITHOUT_LOGIN
        if (request.content_length or 0) > most:
            return failed(bad_request(TOO_LARGE))
        content, is_whole = await content_of(request, min(most, BODY))
        async with contextlib.nullcontext() if is_whole else self._large_bodies.of(owner):
            if not is_whole:
                rest, is_whole = await content_of(request, most - len(content))
                content += rest
            if not is_whole:
                return failed(bad_request(TOO_LARGE))
            async with contextlib.AsyncExitStack() as working:
                places, place = (
                    held if work is Work.BODIES else working,
                    partial(self._places[work].of, owner),
                )
                try:
                    async with asyncio.timeout(PLACE_SECONDS):
                        await places.enter_async_context(place())
                except TimeoutError:
                    return failed(ApiError(503, "service_unavailable", TOO_MANY))
                if admitted.operation.is_long:
                    limit.reschedule(asyncio.get_running_loop().time() + LONG_SECONDS)
                lists = self._lists if received.peer else None
                wait = called if places is held else partial(called_without, working, place)
                return await self._run(answer(self._broker, admitted, content, lists), received.path, wait)

    async def _run(self, steps: Any, name: str, wait: Callable[[Subscribe], Awaitable[Any]]) -> Response:
        """Run the steps of a response, and supply what they need; `wait` waits for what others do."""
        given: Any = None
        while True:
            outcome, need = await self._in_turn(partial(self._slice, steps, given, name))
            if outcome is not None:
                return outcome
            if need is None:
                given = None
            elif isinstance(need, Stored):
                given = await wait(self._when_stored)
            elif isinstance(need, Callback):
                given = await wait(need.subscribe)
            else:
                given = await asyncio.to_thread(need)

    async def _in_turn(self, work: Callable[[], T]) -> T:
        """Do work of a slice, so that there is an iteration of the loop between the slices of all requests."""
        # Whatever is written to a client comes from here. Raises StaleError if nothing may be.
        async with self._slices:
            try:
                result = work()
            finally:
                await asyncio.sleep(0)
        if not self._broker.loop.may_write():
            raise StaleError
        return result

    def _slice(self, steps: Any, given: Any, name: str) -> tuple[Response | None, Any]:
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
            self._broker.loop.run_turn()
            slices.end("request of", name)

    def _when_stored(self, done: Callable[[bool], object]) -> None:
        """Call back when everything changed so far is on disk; with False if the disk is full."""
        self._broker.journal.when_safe(done)
        self._broker.loop.run_turn()


_CLUSTER: Final = "/api/leveret/cluster"
_LOOKED_AT: Final = ("/api/health", "/api/definitions")
_READS: Final = ("GET", "HEAD")


class WaitingServer(ManagementServer):
    """Serves the little that a waiting node can answer; `refreshed` returns its broker with the definitions of now."""

    def __init__(
        self,
        broker: AdministeredBroker,
        refreshed: Callable[[], Awaitable[AdministeredBroker]],
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
