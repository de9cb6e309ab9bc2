"""Writes answers in pieces, with an iteration of the loop between two of them (driver)."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from aiohttp import web

from leveret.broker.http.dispatch import Response
from leveret.broker.http.stream_writer import SLICE, InTurn
from leveret.broker.process.places import Places
from leveret.broker.scheduling.time_slices import TimeSlices

Following = Callable[[], bytes | None]


class AnswerWriter:
    """Writes the answers of one server.

    Args:
        slices: the slices of the broker.
        in_turn: does work in slices.
        places: places for the computation of pieces.

    Attributes:
        held: octets in memory for answers that are not read yet, besides what transports buffer, by transport.

    """

    def __init__(self, slices: TimeSlices, in_turn: InTurn, places: Places) -> None:
        self._slices = slices
        self._in_turn = in_turn
        self._places = places
        self.held: dict[asyncio.BaseTransport | None, int] = {}

    async def write(self, request: web.BaseRequest, response: Response, owner: str) -> web.StreamResponse:
        """Write a response; returns it.

        Args:
            request: the request.
            response: the response.
            owner: has a share of the places.

        """
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
        """Write the pieces that are there, and those that follow."""
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
        until = self._slices.begin() + SLICE
        try:
            for piece in pieces:
                if piece:
                    return piece
                if self._slices.clock() >= until:
                    return b""
            return None
        finally:
            self._slices.end("response to", path)
