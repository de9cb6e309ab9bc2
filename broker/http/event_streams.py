"""Server-sent events for all who watch topics: the passes of the feeds (driver)."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from leveret.broker.administration.access import AdministeredBroker
from leveret.broker.http.call import Events, Stream
from leveret.broker.http.feeds import Feed
from leveret.broker.process.shares import Shares

log = logging.getLogger("leveret.management")
STREAMS = 50  # Maximum number of streams; further ones are refused. One user may have a quarter of them
SLICE = 1_000_000  # nanoseconds of a slice of a pass
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
            is_over = not any(slices.clock() >= begun + SLICE for _ in steps)
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
