"""Connections and requests as aiohttp has them: limits, headers, bodies, waits, and what is logged (driver)."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from enum import IntEnum
from functools import partial
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from leveret.broker.process.shares import Shares, origin
from leveret.broker.scheduling.loop import resolve

log = logging.getLogger("leveret.management")


def headers_of(request: web.BaseRequest) -> dict[str, str]:
    """Return the headers of a request by their names in lower case; over TLS one says so, as a proxy would."""
    headers = {key.lower(): value for key, value in request.headers.items()}
    if request.transport is not None and request.transport.get_extra_info("ssl_object") is not None:
        headers["x-forwarded-proto"] = "https"
    return headers


class Use(IntEnum):
    """The use of a connection: if one is closed for another, it is one of the first use that there is."""

    IDLE = 0  # it has had an answer, and no request since
    UNKNOWN = 1  # it has sent no request, or one without a login, perhaps a part of it
    AT_WORK = 2  # A request with a login is being answered


class Connections:
    """The connections of servers, so many for each; for a further one the address with most loses one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._uses: dict[asyncio.BaseTransport, Use] = {}

    def accept(self, server: web.Server) -> asyncio.Protocol:
        """Return the protocol of a new connection of the server."""
        living = [each for each in transports_of(server) if not each.is_closing()]
        self._uses = {each: use for each, use in self._uses.items() if not each.is_closing()}
        places = Shares(self._most, self._most)
        for transport in living:
            places.acquire(_origin(transport))
        while (yielding := places.yielding("")) is not None:  # several, if many have come at once
            theirs = [each for each in living if _origin(each) == yielding]
            transport = min(
                theirs, key=lambda each: self._uses.get(each, Use.UNKNOWN)
            )  # of those with the same use the oldest
            transport.abort()
            living.remove(transport)
            places.release(yielding)
        return cast("asyncio.Protocol", server())

    def enter(self, transport: asyncio.BaseTransport | None, use: Use) -> None:
        """Say what a connection is used for from now on."""
        if transport is not None and not transport.is_closing():
            self._uses[transport] = use


def transports_of(server: web.Server) -> list[asyncio.Transport]:
    """Return the transports of the connections of a server, the oldest first."""
    return [each.transport for each in server.connections if each.transport is not None]


def disconnect(transport: asyncio.Transport, reason: str) -> None:
    """Close a connection at once, and log why."""
    log.warning("closing connection of %s: %s", _origin(transport) or "the operator", reason)
    transport.abort()


def _origin(transport: asyncio.BaseTransport) -> str:
    peer = transport.get_extra_info("peername")
    return origin(str(peer[0])) if peer else ""


class RequestsLog(logging.LoggerAdapter[logging.Logger]):
    """The log that aiohttp gets: without malformed requests, which are reported to their sender, but with AMQP clients.

    `admits` says whether one more line about an address may be logged now.
    """

    def __init__(self, logger: logging.Logger, admits: Callable[[str], bool]) -> None:
        super().__init__(logger)
        self._admits = admits

    def debug(self, msg: object, *args: object, **more: Any) -> None:  # noqa: ARG002 - as aiohttp calls it
        """Log a client that speaks AMQP; aiohttp says here that the first octets of a client are no HTTP."""
        peer = str(args[0]) if args else ""
        if "'AMQP" in str(more.get("exc_info")) and self._admits(peer):
            text = (
                "a client from %s speaks AMQP on an HTTP port: let it use the port of AMQP, 5672 by default"
            )
            log.error(text, peer)

    def exception(self, msg: object, *args: object, exc_info: Any = True, **more: Any) -> None:
        """Log an error that is not the sender's."""
        if not isinstance(exc_info, HttpProcessingError):
            super().exception(msg, *args, exc_info=exc_info, **more)


async def content_of(request: Any, most: int) -> tuple[bytes, bool]:
    """Read the body of a request until there are more than so many octets; returns it, and whether that is all."""
    buffer = bytearray()
    async for piece in request.content.iter_any():
        buffer += piece
        if len(buffer) > most:
            return bytes(buffer), False
    return bytes(buffer), True


Subscribe = Callable[[Callable[[Any], object]], object]  # has a function called once with what is waited for


async def called(subscribe: Subscribe) -> Any:
    """Wait for a callback; returns its argument."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    subscribe(partial(resolve, future))
    return await future


async def called_without(
    held: AsyncExitStack, again: Callable[[], AbstractAsyncContextManager[object]], subscribe: Subscribe
) -> Any:
    """Wait for a callback, give back meanwhile what is held, and hold it again; returns the argument."""
    await held.aclose()
    given = await called(subscribe)
    await held.enter_async_context(again())
    return given
