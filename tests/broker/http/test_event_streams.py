"""Streams of events over sockets."""

import asyncio
import contextlib
import json

import aiohttp
import pytest
from doubles.fakes import Node

from leveret.broker.http import answer_writer, server as http_server
from leveret.broker.http.route import Router
from leveret.broker.http.server import ManagementServer
from leveret.broker.management import events
from leveret.broker.management.routes import ROUTES
from leveret.broker.scheduling.time_slices import TimeSlices

SECONDS = 20.0
LOGIN = aiohttp.encode_basic_auth("guest", "guest")


@contextlib.asynccontextmanager
async def serving():
    """Serve the API of a new broker; yields the broker, the server, and a function that opens a stream."""
    node = Node()
    node.is_open = True
    node.turn.slices = TimeSlices(iter(range(10**9)).__next__)
    server = ManagementServer(node, Router(ROUTES))
    await server.start("127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.address[1]}/api/leveret/events"
    async with contextlib.AsyncExitStack() as ending:
        ending.push_async_callback(server.stop)
        client = await ending.enter_async_context(
            aiohttp.ClientSession(
                headers={"authorization": LOGIN},
                timeout=aiohttp.ClientTimeout(SECONDS),
                connector=aiohttp.TCPConnector(limit=0),
            )
        )

        async def opened(topics: str):
            return await ending.enter_async_context(client.get(url, params={"topics": topics}))

        yield node, server, opened


async def following(stream) -> tuple[str, dict]:
    """Return the name and the data of the next event."""
    name = ""
    async with asyncio.timeout(SECONDS):
        while True:
            line = (await stream.content.readline()).decode()
            if not line:
                return "", {}
            if line.startswith("event: "):
                name = line[7:-1]
            if line.startswith("data: "):
                return name, json.loads(line[6:])


async def test_watchers_are_told_what_changes():
    """Each from the beginning, and then what is new."""
    async with serving() as (node, _, opened):
        node.administration.topology.declare_queue(None, "/", "first")
        stream = await opened("queues")
        assert ("text/event-stream", "no") == (stream.content_type, stream.headers["x-accel-buffering"])
        name, whole = await following(stream)
        assert ("queues", ["first"]) == (name, [row[1] for row in whole["rows"]])

        node.administration.topology.declare_queue(None, "/", "second")
        found: list[str] = []
        while not found:
            _, change = await following(stream)
            found = [row[1] for row in change["rows"]]
        assert ["second"] == found

        later = await opened("queues")
        _, whole = await following(later)
        assert ["first", "second"] == [row[1] for row in whole["rows"]]


async def test_a_feed_is_sampled_once_for_all():
    """And not at all without watchers."""
    async with serving() as (_, server, opened):
        streams = [await opened("overview") for _ in range(5)]
        for stream in streams:
            await following(stream)
        assert 1 == len(server._event_streams._feeds)
        assert 5 == len(server._event_streams.places)

        for stream in streams:
            stream.close()
        async with asyncio.timeout(SECONDS):
            while len(server._event_streams.places) or server._event_streams._feeds:
                await asyncio.sleep(0.01)
            await server._event_streams._sampling


async def test_the_number_of_streams_is_bounded(monkeypatch):
    """One more is refused; requests are answered as before."""
    monkeypatch.setattr(http_server, "STREAMS", 8)
    async with serving() as (_, _, opened):
        streams = [await opened("overview") for _ in range(3)]

        assert [200, 200, 503] == [stream.status for stream in streams]


async def test_a_stream_ends_with_the_rights(monkeypatch):
    """With an event that says so."""
    monkeypatch.setattr(http_server, "RENEWAL_SECONDS", 0.0)
    async with serving() as (node, _, opened):
        stream = await opened("overview")
        await following(stream)
        node.administration.users.put(None, "guest", password="new", tags=("administrator",))
        name = "overview"
        while name == "overview":
            name, _ = await following(stream)

        assert "end" == name
        assert ("", {}) == await following(stream)


async def test_silence_is_broken_by_comments(monkeypatch):
    """So that no proxy takes the connection for dead."""
    monkeypatch.setattr(answer_writer, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(answer_writer, "IDLE_SECONDS", 0.01)
    async with serving() as (_, _, opened):
        stream = await opened("overview")
        await following(stream)
        async with asyncio.timeout(SECONDS):
            while b": \n" != await stream.content.readline():
                pass


async def test_a_stop_ends_streams():
    """At once, whoever watches."""
    async with serving() as (_, server, opened):
        stream = await opened("overview")
        await following(stream)
        async with asyncio.timeout(SECONDS):
            await server.stop()
        with contextlib.suppress(aiohttp.ClientError):
            while (await following(stream))[0]:
                pass


async def test_an_error_in_a_topic_is_logged_and_ends_no_other(monkeypatch, caplog):
    """The watchers of others go on."""
    async with serving() as (_, _, opened):
        monkeypatch.setattr(events, "node_facts", lambda _server: 1 / 0)
        broken = await opened("overview")
        stream = await opened("queues")

        assert "queues" == (await following(stream))[0]
        assert ("end", {}) == await following(broken)
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("count", [2000])
async def test_many_queues_come_in_short_slices(count):
    """All of them, in pieces."""
    async with serving() as (node, _, opened):
        for number in range(count):
            node.administration.topology.declare_queue(None, "/", f"q{number}")
        stream = await opened("queues")
        rows: list = []
        while True:
            _, event = await following(stream)
            rows += event["rows"]
            if "at" in event:
                break

        assert count == len(rows)
