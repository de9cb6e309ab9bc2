"""Answers that go on until their reader leaves, over real sockets."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import aiohttp
from doubles.fakes import Client, Node, publish_frames
from processes.waiting import until

from leveret.broker.administration import tailing
from leveret.broker.http import answer_writer as driver, server as server_module
from leveret.broker.http.route import Router, Work
from leveret.broker.http.server import SHARES, ManagementServer
from leveret.broker.management.routes import ROUTES
from leveret.broker.vhost import tail

SECONDS = 20.0
LOGIN = aiohttp.encode_basic_auth("guest", "guest")
PATH = "/api/leveret/exchanges/%2F/amq.fanout/tail"


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[Node, ManagementServer]]:
    """Serve the API of a new broker."""
    node = Node()
    node.is_open = True
    server = ManagementServer(node, Router(ROUTES))
    await server.start("127.0.0.1", 0)
    try:
        yield node, server
    finally:
        await server.stop()


def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(headers={"authorization": LOGIN}, timeout=aiohttp.ClientTimeout(SECONDS))


def url(server: ManagementServer) -> str:
    return f"http://127.0.0.1:{server.address[1]}{PATH}"


def tails(node: Node) -> int:
    return len(node.vhosts["/"].taps.tails)


async def test_lines_come_as_messages_are_published():
    """The first octets come at once, each message when it is published, and the end when its reader has enough."""
    async with serving() as (node, server), session() as client:
        publisher = Client(node)
        async with client.get(url(server) + "?count=2") as answer:
            assert (200, "application/x-ndjson") == (answer.status, answer.headers["content-type"])
            assert b"\n" == await answer.content.readline()
            for body in (b"one", b"two"):
                publisher.publish("", body, exchange="amq.fanout")
                assert body.decode() == json.loads(await answer.content.readline())["payload"]
            assert b"" == await answer.content.read()
        await until(lambda: not tails(node))


async def test_a_reader_that_leaves_is_noticed(monkeypatch):
    """Its tail is closed soon, though nothing is published; meanwhile empty lines show that it goes on."""
    monkeypatch.setattr(driver, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(driver, "IDLE_SECONDS", 0.05)
    async with serving() as (node, server), session() as client:
        answer = await client.get(url(server))
        for _ in range(3):
            assert b"\n" == await answer.content.readline()
        assert 1 == tails(node)
        answer.close()
        await until(lambda: not tails(node))


async def test_many_readers_leave_the_api_free(monkeypatch):
    """A tail has no place at work: with more tails than a user has places, other requests are answered."""
    monkeypatch.setattr(tailing, "MOST_TAILS", 4 * (SHARES[Work.SHORT] + 2))
    async with serving() as (node, server), session() as client:
        answers = [await client.get(url(server)) for _ in range(SHARES[Work.SHORT] + 2)]
        async with client.get(f"http://127.0.0.1:{server.address[1]}/api/whoami") as other:
            assert 200 == other.status
        assert SHARES[Work.SHORT] + 2 == tails(node)
        for answer in answers:
            answer.close()


async def test_a_slow_reader_loses_messages_and_is_told(monkeypatch):
    """Publishers go on while it does not read; what it gets and what it is told to have lost is everything."""
    monkeypatch.setattr(tail, "MOST_WAITING", 50)
    count = 600
    async with serving() as (node, server):
        reader, writer = await asyncio.open_connection(*server.address, limit=1024)
        writer.write(f"GET {PATH} HTTP/1.0\r\nauthorization: {LOGIN}\r\n\r\n".encode())
        await until(lambda: tails(node))
        publisher = Client(node)
        made = node.vhosts["/"].taps.tails[0]
        for number in range(count):
            publisher.receive(publish_frames("", b"%06d" % number * 10_000, exchange="amq.fanout"))
            if not number % 10:
                await asyncio.sleep(0)
            assert len(made._items) <= 51
        assert any(isinstance(item, int) for item in made._items)
        node.vhosts["/"].taps.remove_tail(made)
        seen = lost = 0
        async with asyncio.timeout(SECONDS):
            octets = bytearray()
            while seen + lost < count:
                octets += await reader.read(1 << 16)
                *lines, rest = octets.split(b"\n")
                octets = bytearray(rest)
                for line in lines:
                    if line.startswith(b"{"):
                        found = json.loads(line)
                        seen, lost = (seen, lost + found["lost"]) if "lost" in found else (seen + 1, lost)
        assert lost
        assert count == seen + lost
        writer.close()


async def test_a_reader_that_does_not_read_at_all_is_cut_off(monkeypatch):
    """Its connection is closed after some time, and its tail with it."""
    monkeypatch.setattr(driver, "WRITE_SECONDS", 0.2)
    async with serving() as (node, server):
        _, writer = await asyncio.open_connection(*server.address, limit=1024)
        writer.write(f"GET {PATH} HTTP/1.1\r\nhost: x\r\nauthorization: {LOGIN}\r\n\r\n".encode())
        await until(lambda: tails(node))
        publisher = Client(node)

        def publishes() -> bool:
            publisher.publish("", b"x" * 100_000, exchange="amq.fanout")
            return not tails(node)

        await until(publishes)
        writer.transport.abort()


async def test_a_stop_ends_streams(monkeypatch):
    """Each ends in order with a line that says why, and the server does not wait for their readers."""
    monkeypatch.setattr(server_module, "STOP_SECONDS", SECONDS)
    async with session() as client:
        async with serving() as (node, server):
            answer = await client.get(url(server))
            assert 1 == tails(node)
            async with asyncio.timeout(SECONDS / 2):
                await server.stop()
        assert 0 == tails(node)
        assert [b"", b'{"end":"the broker is stopping"}', b""] == (await answer.content.read()).split(b"\n")


async def test_a_stop_cuts_off_readers_that_do_not_read(monkeypatch):
    """The server waits for them for a moment only."""
    monkeypatch.setattr(server_module, "STOP_SECONDS", SECONDS)
    monkeypatch.setattr(driver, "LAST_SECONDS", 0.05)
    async with serving() as (node, server):
        _, writer = await asyncio.open_connection(*server.address, limit=1024)
        writer.write(f"GET {PATH} HTTP/1.1\r\nhost: x\r\nauthorization: {LOGIN}\r\n\r\n".encode())
        await until(lambda: tails(node))
        publisher = Client(node)
        made = node.vhosts["/"].taps.tails[0]

        def is_stuck() -> bool:
            publisher.publish("", b"x" * 100_000, exchange="amq.fanout")
            return len(made._items) > 50

        await until(is_stuck)
        async with asyncio.timeout(SECONDS / 2):
            await server.stop()
        assert 0 == tails(node)
        writer.transport.abort()
