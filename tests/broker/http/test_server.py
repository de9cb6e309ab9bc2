"""The driver: real sockets, several requests at once, clients that misbehave."""

import asyncio
import contextlib
import gc
import io
import json
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial

import aiohttp
import pytest
from doubles.fakes import Client, Node, configure
from processes.waiting import until

from leveret.broker.amqp.commands import Queue as Wire, make
from leveret.broker.http import server as driver
from leveret.broker.http.answer_writer import AnswerWriter
from leveret.broker.http.call import Content, Item
from leveret.broker.http.connections import Use
from leveret.broker.http.listing import ListCache
from leveret.broker.http.route import Operation, Route, Router, Work
from leveret.broker.http.server import AT_WORK, BODY, SHARES, ManagementServer
from leveret.broker.management.routes import ROUTES
from leveret.broker.scheduling.time_slices import TimeSlices

SECONDS = 20.0
LOGIN = aiohttp.encode_basic_auth("guest", "guest")
WRONG = [aiohttp.encode_basic_auth(f"u{number}", "x") for number in range(AT_WORK + 4)]


class Tried:
    """A listener of a broker on a free port, and a client of it."""

    def __init__(self, node: Node, routes: list[Route], prefix: str = "") -> None:
        self.node = node
        self.server = ManagementServer(node, Router([*ROUTES, *routes]), prefix)
        self.client = aiohttp.ClientSession(
            headers={"authorization": LOGIN}, timeout=aiohttp.ClientTimeout(SECONDS)
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.address[1]}/api/"

    async def ask(self, method: str, path: str, **settings: object) -> tuple[int, object]:
        async with self.client.request(method, self.url + path, **settings) as answer:
            octets = await answer.read()
            return answer.status, json.loads(octets) if octets else None


@contextlib.asynccontextmanager
async def serving(*routes: Route, prefix: str = "") -> AsyncIterator[Tried]:
    """Serve the API of a new broker, and further routes."""
    node = Node()
    node.is_open = True
    tried = Tried(node, list(routes), prefix)
    await tried.server.start("127.0.0.1", 0)
    try:
        async with tried.client:
            yield tried
    finally:
        await tried.server.stop()


def at_work(tried: Tried) -> int:
    """Return the number of connections on which a request of a user is being answered."""
    uses = tried.server._connections._uses.items()
    return sum(use is Use.AT_WORK and not transport.is_closing() for transport, use in uses)


def endless() -> Iterator[bytes]:
    """Yield octets without an end."""
    while True:
        yield b"x" * 65536


async def begun(tried: Tried, length: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send the beginning of a request, whose body has that length."""
    reader, writer = await asyncio.open_connection(*tried.server.address)
    head = f"PUT /api/users/x HTTP/1.1\r\nhost: x\r\nauthorization: {LOGIN}\r\ncontent-length: {length}\r\n\r\n{{"
    writer.write(head.encode())
    return reader, writer


class Seconds:
    """A clock that goes on by a tenth of a second whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.1
        return self.now


def with_permissions(node: Node, count: int) -> None:
    for at in range(count):
        node.users.set_permissions(f"u{at:06}", "/", "", "", "")


async def test_a_broker_that_starts_says_so():
    """503 with the reason until clients may connect."""
    async with serving() as tried:
        tried.node.is_open = False
        body = {"error": "service_unavailable", "reason": "the broker is starting"}
        assert (503, body) == await tried.ask("GET", "whoami")
        tried.node.is_open = True
        assert 200 == (await tried.ask("GET", "whoami"))[0]


async def test_methods_and_bodies():
    """HEAD has the headers only, OPTIONS the methods, and what changed has no body."""
    async with serving() as tried:
        async with tried.client.head(tried.url + "users") as answer:
            assert (200, b"") == (answer.status, await answer.read())
            assert "application/json" == answer.headers["content-type"]
        async with tried.client.options(tried.url + "users") as answer:
            assert (200, "HEAD, GET, OPTIONS") == (answer.status, answer.headers["allow"])
        async with tried.client.patch(tried.url + "users") as answer:
            assert 405 == answer.status
        async with tried.client.put(tried.url + "vhosts/a%2Fb", json={}) as answer:
            assert (201, "0") == (answer.status, answer.headers["content-length"])
            assert "content-type" not in answer.headers
        assert "a/b" in tried.node.vhosts


async def test_a_long_list_is_sent_in_pieces():
    """Five thousand items come in chunks, all of them."""
    async with serving() as tried:
        with_permissions(tried.node, 5000)
        async with tried.client.get(tried.url + "permissions") as answer:
            assert "chunked" == answer.headers["transfer-encoding"]
            rows = await answer.json()

    assert 5001 == len(rows)


async def test_a_client_that_leaves_in_the_middle_is_no_error(caplog):
    """Others are served as before."""
    async with serving() as tried:
        with_permissions(tried.node, 20_000)
        for _ in range(3):
            reader, writer = await asyncio.open_connection(*tried.server.address)
            login = LOGIN
            writer.write(
                f"GET /api/permissions HTTP/1.1\r\nHost: x\r\nAuthorization: {login}\r\n\r\n".encode()
            )
            await reader.readexactly(1000)
            writer.transport.abort()
        assert 200 == (await tried.ask("GET", "whoami"))[0]
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]

    assert [] == errors


async def test_a_reader_that_does_not_read_is_cut(monkeypatch):
    """After the time of a request, and what it has not read is not kept."""
    monkeypatch.setattr(driver, "REQUEST_SECONDS", 0.5)

    route = Route("x", "x", {"GET": Operation(lambda _call: Content(endless(), "text/plain"), "All.", None)})
    async with serving(route) as tried:
        sock = socket.create_connection(tried.server.address)
        sock.sendall(b"GET /api/x HTTP/1.1\r\nHost: x\r\n\r\n")
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await asyncio.sleep(1.0)
        received = 0
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(SECONDS):
                while piece := await loop.sock_recv(sock, 1 << 20):
                    received += len(piece)
        sock.close()

        assert received < 64 << 20
        assert 200 == (await tried.ask("GET", "whoami"))[0]


async def test_a_few_requests_are_worked_on_at_once():
    """Others wait until one is answered."""
    begun: list[threading.Event] = []

    def wait(_call):
        begun.append(end := threading.Event())
        yield partial(end.wait, SECONDS)
        return Item({})

    route = Route("wait", "x", {"GET": Operation(wait, "Wait.", None)})
    async with serving(route) as tried:
        most = SHARES[Work.SHORT]  # all come from one address
        asked = [asyncio.create_task(tried.ask("GET", "wait")) for _ in range(most + 4)]
        await until(lambda: len(begun) == most)
        for _ in range(100):
            await asyncio.sleep(0)
        assert most == len(begun)
        for answer in begun[:most]:
            answer.set()
        await until(lambda: len(begun) == most + 4)
        for answer in begun[most:]:
            answer.set()
        assert [(200, {})] * (most + 4) == await asyncio.gather(*asked)


async def test_a_wrong_login_is_answered_later():
    """Its answer takes the time that is set."""
    async with serving() as tried:
        configure(tried.node, auth_failure_delay=0.2)
        began = time.monotonic()
        status, _ = await tried.ask("GET", "whoami", headers={"authorization": WRONG[0]})

    assert 401 == status
    assert time.monotonic() - began >= 0.2


async def test_wrong_logins_hold_nobody():
    """While they wait for their answers others are served, however many they are."""
    async with serving() as tried:
        configure(tried.node, auth_failure_delay=3600.0)
        wrong = [
            asyncio.create_task(tried.ask("GET", "whoami", headers={"authorization": each})) for each in WRONG
        ]
        await until(lambda: tried.node.context.totals.auth_failed == len(wrong))
        assert 200 == (await tried.ask("GET", "whoami"))[0]
        assert not any(each.done() for each in wrong)
        for each in wrong:
            each.cancel()


async def test_a_body_has_a_limit():
    """Announced or not."""

    async def endless():
        for _ in range(2 * BODY // 65536):
            yield b" " * 65536

    expected = {"error": "bad_request", "reason": "Exceeded HTTP request body size limit"}
    async with serving() as tried:
        with contextlib.suppress(aiohttp.ClientError):
            assert (400, expected) == await tried.ask("PUT", "vhosts/v", data=io.BytesIO(b" " * (BODY + 1)))
        with contextlib.suppress(aiohttp.ClientError):
            assert (400, expected) == await tried.ask("PUT", "vhosts/v", data=endless())
        assert "v" not in tried.node.vhosts


async def test_messages_and_definitions_may_be_larger():
    """A publish and an import, not what is decoded in one step."""
    payload = "x" * 2 * BODY
    body = {"routing_key": "q", "payload": payload, "payload_encoding": "string", "properties": {}}
    definitions = {"queues": [{"name": "q", "vhost": "/"}], "description": payload}
    async with serving() as tried:
        assert 204 == (await tried.ask("POST", "definitions", json=definitions))[0]
        assert (200, {"routed": True}) == await tried.ask(
            "POST", "exchanges/%2F/amq.default/publish", json=body
        )
        assert 400 == (await tried.ask("PUT", "vhosts/v", json={"description": payload}))[0]


async def test_an_import_is_not_cut_off(monkeypatch):
    """Half of its changes would be left; other requests end after their time."""
    monkeypatch.setattr(driver, "REQUEST_SECONDS", 0.2)
    queues = [{"name": f"q{number}", "vhost": "/"} for number in range(25_000)]
    async with serving() as tried:
        tried.node.turn.slices.clock = lambda: 1 << 62  # so that every step is a slice
        began = time.monotonic()
        status, answer = await tried.ask("POST", "leveret/definitions", json={"queues": queues})

        assert (200, "queues: 25000 added") == (status, answer["summary"])
        assert time.monotonic() - began > 0.2


async def test_paths_may_begin_with_a_prefix():
    """Then nothing is found without it."""
    async with serving(prefix="/broker/") as tried:
        base = f"http://127.0.0.1:{tried.server.address[1]}"
        for path, status in (("/broker/api/whoami", 200), ("/api/whoami", 404), ("/brokerx/api/whoami", 404)):
            async with tried.client.get(base + path) as answer:
                assert status == answer.status, path


async def test_slices_of_a_long_list_are_short():
    """A list of a hundred thousand rows is worked on in slices of two milliseconds of processor time."""
    longest: list[float] = []

    class Timed(ManagementServer):
        def _slice(self, *arguments):
            before = time.thread_time()
            try:
                return super()._slice(*arguments)
            finally:
                longest.append(time.thread_time() - before)

        def _next(self, *arguments):
            before = time.thread_time()
            try:
                return super()._next(*arguments)
            finally:
                longest.append(time.thread_time() - before)

    async with serving() as tried:
        with_permissions(tried.node, 100_000)
        tried.server.__class__ = Timed
        tried.node.turn.slices = TimeSlices(time.monotonic_ns, time.thread_time_ns)
        tried.node.turn.slices.on_waiting = tried.node.loop.schedule_jobs
        gc.disable()
        try:
            async with tried.client.get(
                tried.url + "permissions?sort=user&sort_reverse=true&columns=user"
            ) as answer:
                rows = await answer.json()
        finally:
            gc.enable()

    assert 100_001 == len(rows)
    assert "u099999" == rows[0]["user"]
    longest.sort()
    # a slice ends after two milliseconds and the step that it is in, which a busy machine makes longer; a few are
    # interrupted by the system
    assert longest[-5] < 0.01, longest[-10:]
    assert len(longest) > 100


async def test_requests_take_turns():
    """In an iteration of the loop one of many requests has a slice, so that messages wait for one slice only."""
    iteration = 0
    slices: list[int] = []

    class Counted(ManagementServer):
        def _slice(self, *arguments):
            slices.append(iteration)
            return super()._slice(*arguments)

    class CountedWriter(AnswerWriter):
        def _next(self, *arguments):
            slices.append(iteration)
            return super()._next(*arguments)

    async def count():
        nonlocal iteration
        while True:
            iteration += 1
            await asyncio.sleep(0)

    async with serving() as tried:
        with_permissions(tried.node, 5000)
        tried.server.__class__ = Counted
        tried.server._answers.__class__ = CountedWriter
        counting = asyncio.create_task(count())
        answers = await asyncio.gather(*[tried.ask("GET", "permissions") for _ in range(AT_WORK)])
        counting.cancel()

    assert [5001] * AT_WORK == [len(rows) for _, rows in answers]
    assert len(slices) > 4 * AT_WORK
    assert len(slices) == len(set(slices))


async def test_a_long_list_is_given_again():
    """To the same user, until something is changed or time has passed."""
    now = Seconds()
    async with serving() as tried:
        with_permissions(tried.node, 3000)
        tried.node.administration.users.put(None, "ann", tags=("administrator",), password="x")
        tried.server._lists = ListCache(now)

        async def count(login: str = LOGIN) -> int:
            _, rows = await tried.ask("GET", "permissions", headers={"authorization": login})
            return len(rows)

        assert 3001 == await count()
        tried.node.users.set_permissions("late", "/", "", "", "")
        assert 3001 == await count()
        assert 3002 == await count(aiohttp.encode_basic_auth("ann", "x"))
        assert 204 == (await tried.ask("PUT", "cluster-name", json={"name": "c"}))[0]
        assert 3002 == await count()
        tried.node.users.set_permissions("later", "/", "", "", "")
        assert 3002 == await count()
        now.now += 5.0
        assert 3003 == await count()
        assert tried.server._expiry is not None
        now.now += 5.0
        tried.server._expire()
        assert 0 == len(tried.server._lists)
        assert 0 == tried.server._lists.octets


async def test_a_long_list_has_what_clients_have_just_declared():
    """As by RabbitMQ: figures of a list may be old, and its objects are not."""
    now = Seconds()
    async with serving() as tried:
        tried.server._lists = ListCache(now)
        client = Client(tried.node)
        for number in range(1001):
            client.declare(f"q{number}")

        async def count(path: str) -> int:
            return len((await tried.ask("GET", path))[1])

        assert (1001, 1001) == (await count("queues"), await count("bindings"))
        assert 2 == len(tried.server._lists)
        client.publish("q0", b"")
        assert 1001 == await count("queues")
        assert 2 == len(tried.server._lists)
        client.declare("new")
        assert (1002, 1002) == (await count("queues"), await count("bindings"))
        client.send(make(Wire.Bind, 0, "new", "amq.topic", "key", False, {}))
        assert 1003 == await count("bindings")
        client.send(make(Wire.Delete, 0, "new", False, False, False))
        assert (1001, 1001) == (await count("queues"), await count("bindings"))


async def test_a_body_without_a_login_is_not_read():
    """Whoever may not call a route is refused before the body, so that clients without a login cannot fill memory."""
    async with serving() as tried:
        reader, writer = await asyncio.open_connection(*tried.server.address)
        writer.write(b"PUT /api/users/x HTTP/1.1\r\nhost: x\r\ncontent-length: 9000000\r\n\r\n")
        async with asyncio.timeout(SECONDS):
            assert b"HTTP/1.1 401 Unauthorized\r\n" == await reader.readline()
        writer.close()


async def test_slow_bodies_hold_up_nobody():
    """More clients than may be at work send the beginning of a body; another request is answered meanwhile."""
    async with serving() as tried:
        writers = [(await begun(tried, 100))[1] for _ in range(AT_WORK + 1)]
        await until(lambda: at_work(tried) == len(writers))

        assert 200 == (await tried.ask("GET", "whoami"))[0]
        for writer in writers:
            writer.close()


async def test_slow_large_bodies_hold_up_nobody():
    """More clients than may be at work send the beginning of an import; another request is answered meanwhile."""
    async with serving() as tried:
        sent = tried.server._large_bodies
        head = f"POST /api/definitions HTTP/1.1\r\nhost: x\r\nauthorization: {LOGIN}\r\ncontent-length: 9000000\r\n\r\n"
        begun = head.encode() + b"{" + b" " * 2 * BODY
        writers = []
        for _ in range(AT_WORK + 1):
            _, writer = await asyncio.open_connection(*tried.server.address)
            writer.write(begun)
            writers.append(writer)
        await until(lambda: len(sent._shares) == sent._shares.share)

        assert 200 == (await tried.ask("GET", "whoami"))[0]
        for writer in writers:
            writer.transport.abort()


async def test_slow_readers_hold_up_nobody():
    """More clients than may be at work ask for a long answer and do not read it; another request is answered."""
    made = 0

    def endless() -> Iterator[bytes]:
        nonlocal made
        while True:
            made += 1
            yield b"x" * 65536

    operation = Operation(lambda _call: Content(endless(), "text/plain"), "All.", None)
    async with serving(Route("x", "x", {"GET": operation})) as tried:
        writers = []
        for _ in range(AT_WORK + 1):
            sock = socket.create_connection(tried.server.address)
            sock.sendall(b"GET /api/x HTTP/1.1\r\nHost: x\r\n\r\n")
            writers.append(sock)
        before = -1
        async with asyncio.timeout(SECONDS):
            while (
                len(tried.server._answers.held) < len(writers) or made != before
            ):  # until all wait for their readers
                before = made
                for _ in range(200):
                    await asyncio.sleep(0)

        assert 200 == (await tried.ask("GET", "whoami"))[0]
        for sock in writers:
            sock.close()


async def test_too_many_connections_end_idle_ones():
    """A new connection takes the place of an idle one, not of one whose request is being answered."""
    async with serving() as tried:
        reader, busy = await begun(tried, 2)
        await until(lambda: at_work(tried) == 1)
        idle = [await asyncio.open_connection(*tried.server.address) for _ in range(driver.CONNECTIONS)]
        async with asyncio.timeout(SECONDS):
            assert b"" == await idle[0][0].read()
        busy.write(b"}")
        async with asyncio.timeout(SECONDS):
            assert b"HTTP/1.1 400 Bad Request\r\n" == await reader.readline()
        for _, writer in (*idle, (reader, busy)):
            writer.close()


async def test_a_client_that_leaves_while_it_sends_is_no_error(caplog):
    """Its request ends without a line in the log."""
    async with serving() as tried:
        _, writer = await begun(tried, 9)
        await until(lambda: at_work(tried) == 1)
        writer.transport.abort()
        await until(lambda: not at_work(tried))

    assert [] == [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_node_that_may_lead_no_more_answers_nothing():
    """The connection is closed instead, also in the middle of a list: another node may have changed what it would say."""
    pieces = Content([b"begin", None, b"end"] * 4, "text/plain")

    def stale(call):
        call.broker.loop.may_write = lambda: False
        return Item({"is": "old"})

    def old(call):
        def made():
            yield from pieces.pieces[:3]
            call.broker.loop.may_write = lambda: False
            yield from pieces.pieces[3:]

        return Content(made(), "text/plain")

    for handler in (stale, old):
        route = Route("test/stale", "test", {"GET": Operation(handler, "Become stale.")})
        async with serving(route) as tried:
            assert 200 == (await tried.ask("GET", "whoami"))[0]
            with pytest.raises(aiohttp.ClientError):
                await tried.ask("GET", "test/stale")
            tried.node.loop.may_write = lambda: True
            assert 200 == (await tried.ask("GET", "whoami"))[0]
