"""Server-sent events for all who watch topics: the passes of the feeds, and the writes (driver)."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from aiohttp import web

from leveret.broker.administration.access import AdministeredBroker
from leveret.broker.http.call import Events
from leveret.broker.http.feeds import Feed
from leveret.broker.process.shares import Shares

log = logging.getLogger("leveret.management")
STREAMS = 50  # Maximum number of streams; further ones are refused. One user may have a quarter of them
SLICE = 1_000_000  # nanoseconds of a slice of a pass
SILENCE_SECONDS = 15.0  # time after which a comment is sent, so that proxies keep the connection
RENEWAL_SECONDS = 5.0  # time between two checks whether the user may still see what it watches
WRITE_SECONDS = 30.0  # time that a client may take to read a piece
_COMMENT = b": \n\n"
_END = b"event: end\ndata: {}\n\n"


class EventStreams:
    """The streams of one listener; work is done in turn with the slices of others."""

    def __init__(self, broker: AdministeredBroker, in_turn: Callable[[Callable[[], Any]], Any]) -> None:
        self._broker = broker
        self._in_turn = in_turn
        self._feeds: dict[Any, Feed] = {}
        self._sampling: asyncio.Task[None] | None = None
        self._news = asyncio.Event()  # set, and replaced, at the end of each pass
        self._begun = asyncio.Event()  # set when there is a new feed
        self._closing = False
        self.places = Shares(STREAMS)  # the owners of the streams

    async def close(self) -> None:
        """End all streams."""
        self._closing = True
        self._news.set()
        if self._sampling is not None:
            self._sampling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sampling

    async def serve(
        self, request: web.BaseRequest, headers: Mapping[str, str], events: Events, owner: str
    ) -> web.StreamResponse:
        """Write the events of topics until the client leaves, or may no longer see them; 503 without a place.

        Raises ConnectionError if the client has left, and TimeoutError if it does not read.
        """
        if self._closing or not self.places.acquire(owner):
            return web.Response(status=503, headers={"retry-after": "10"})
        stream = web.StreamResponse(headers=headers)
        feeds = [self._watched(topic) for topic in events.topics]
        try:
            await stream.prepare(request)
            await self._follow(stream, events, dict.fromkeys(feeds, 0))
        finally:
            self.places.release(owner)
            for feed in feeds:
                feed.watchers -= 1
                if not feed.watchers:
                    self._feeds.pop(feed.topic.identity, None)
        return stream

    def _watched(self, topic: Any) -> Feed:
        feed = self._feeds.get(topic.identity)
        if feed is None:
            feed = self._feeds[topic.identity] = Feed(topic, self._broker.wall_clock)
        feed.watchers += 1
        if self._sampling is None or self._sampling.done():
            self._sampling = asyncio.get_running_loop().create_task(self._sample(), name="feeds")
        self._begun.set()
        return feed

    async def _follow(self, stream: web.StreamResponse, events: Events, told: dict[Feed, int]) -> None:
        time = asyncio.get_running_loop().time
        wanted = [topic.identity for topic in events.topics]
        renewal = time() + RENEWAL_SECONDS
        while not self._closing:
            news = self._news
            for feed, number in told.items():
                told[feed] = feed.number
                await self._write(stream, feed.since(number))
            if any(feed.is_broken for feed in told):
                break
            if time() >= renewal:
                renewal = time() + RENEWAL_SECONDS
                if [topic.identity for topic in events.renewed()] != wanted:
                    break
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    await news.wait()
            except TimeoutError:
                await self._write(stream, iter((_COMMENT,)))
        await self._write(stream, iter((_END,)))
        await stream.write_eof()

    async def _write(self, stream: web.StreamResponse, pieces: Iterator[bytes | None]) -> None:
        following = partial(next, pieces, b"")
        async with asyncio.timeout(WRITE_SECONDS):
            while (piece := await self._in_turn(following)) != b"":
                if piece is not None:
                    await stream.write(piece)

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
            self._news.set()
            self._news = asyncio.Event()
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
            is_over = not any(slices.clock() >= begun + SLICE for _ in steps)
            return slices.clock() - begun, is_over
