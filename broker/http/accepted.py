"""Connections and requests as aiohttp has them: their limits, headers, and what is logged (driver)."""

import asyncio
import logging
from collections.abc import Collection
from typing import cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError


def headers_of(request: web.BaseRequest) -> dict[str, str]:
    """Return the headers of a request by their names in lower case; over TLS one says so, as a proxy would."""
    headers = {key.lower(): value for key, value in request.headers.items()}
    if request.transport is not None and request.transport.get_extra_info("ssl_object") is not None:
        headers["x-forwarded-proto"] = "https"
    return headers


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
