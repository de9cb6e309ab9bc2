"""Writes answers in pieces, with an iteration of the loop between two of them; some go on for long (driver)."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import Any

from aiohttp import web

from leveret.broker.http.call import Stream, signal
from leveret.broker.http.connections import called
from leveret.broker.http.dispatch import Response
from leveret.broker.process.places import Places
from leveret.broker.scheduling.time_slices import TimeSlices

Following = Callable[[], bytes | None]
InTurn = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Does work of a slice, with an iteration of the loop between the slices of all requests; returns its result."""

SLICE = 2_000_000  # ns for which one request is worked on, or its answer is made, before others have a turn
OCTETS = 64 * 1024  # octets that are written at once
IDLE_SECONDS = 15.0  # time without octets after which an answer shows that it goes on
LOOK_SECONDS = 1.0  # time between two looks whether the reader is still there
WRITE_SECONDS = 60.0  # time after which a reader that does not read is cut off
LAST_SECONDS = 0.5  # time while the broker stops after which one that does not read is cut off


class AnswerWriter:
    """Writes the answers of one server, computed in slices.

    `held` has the octets in memory for answers that are not read yet, besides what transports buffer, by transport.
    """

    def __init__(self, slices: TimeSlices, in_turn: InTurn, places: Places) -> None:
        self._slices = slices
        self._in_turn = in_turn
        self._places = places
        self.held: dict[asyncio.BaseTransport | None, int] = {}

    async def write(self, request: web.BaseRequest, response: Response, owner: str) -> web.StreamResponse:
        """Write a response, whose owner has a share of the places; returns it."""
        transport = request.transport
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
        self.held[transport] = response.octets
        try:
            await stream.prepare(request)
            await self._stream(stream, (first, second), following, owner)
            await stream.write_eof()
        except ConnectionError:  # cut off, so that nobody takes it for whole
            if transport is not None:
                transport.abort()
        finally:
            del self.held[transport]
        return stream

    async def _stream(
        self, stream: web.StreamResponse, begun: Iterable[bytes | None], following: Following, owner: str
    ) -> None:
        for piece in begun:
            if piece:
                await stream.write(piece)
        while True:
            async with self._places.of(owner):
                piece = await self._in_turn(following)
            if piece is None:
                return
            if piece:
                await stream.write(piece)

    def _next(self, pieces: Iterator[bytes | None], path: str) -> bytes | None:
        """Return the next piece, b"" if it took a whole slice so far, None at the end."""
        with self._slices.step("response to", path) as begun:
            for piece in pieces:
                if piece:
                    return piece
                if self._slices.clock() >= begun + SLICE:
                    return b""
        return None


class StreamWriter:
    """Writes the answers of one server that go on until their reader leaves."""

    def __init__(self, slices: TimeSlices, in_turn: InTurn) -> None:
        self._slices = slices
        self._in_turn = in_turn
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_stopping = False

    def stop(self) -> None:
        """Have all answers end with their last octets; those whose readers do not read are cut off."""
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()

    async def write(self, request: web.BaseRequest, response: Response, source: Stream) -> web.StreamResponse:
        """Write an answer until it ends, its reader leaves, or the task is cancelled; then close it.

        Raises TimeoutError if the reader does not read, and ConnectionError if it has left.
        """
        stream = web.StreamResponse(status=response.status, headers=response.headers)
        loop = asyncio.get_running_loop()
        sent = loop.time()
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker: a request has a task of its own
        self._tasks.add(task)
        try:
            await stream.prepare(request)
            while True:
                octets, is_ended = await self._in_turn(partial(self._made, source, request.path))
                if not octets and not is_ended and loop.time() - sent >= IDLE_SECONDS:
                    octets = source.idle
                if octets:
                    async with asyncio.timeout(WRITE_SECONDS):
                        await stream.write(octets)
                    sent = loop.time()
                if is_ended or request.transport is None or request.transport.is_closing():
                    break
                if not octets:
                    await _arrival(source)
            await stream.write_eof()
        except asyncio.CancelledError:
            if not (self._is_stopping and stream.prepared):
                raise
            # What was written before is whole: a write is cancelled only while it waits for the reader.
            async with asyncio.timeout(LAST_SECONDS):
                await stream.write_eof(source.last)
        finally:
            self._tasks.discard(task)
            source.close()
        return stream

    def _made(self, source: Stream, path: str) -> tuple[bytes, bool]:
        """Return the next octets, as many as a slice makes, and whether they are the last."""
        slices = self._slices
        octets = bytearray()
        with slices.step("response to", path) as begun:
            for piece in source.pieces:
                if piece:
                    octets += piece
                if piece == b"" or len(octets) >= OCTETS or slices.clock() >= begun + SLICE:
                    return bytes(octets), False
        return bytes(octets), True


async def _arrival(source: Stream) -> None:
    """Wait until there may be more octets, but no longer than a reader that has left may stay unnoticed."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LOOK_SECONDS):
            await called(signal(source.when_there).subscribe)
