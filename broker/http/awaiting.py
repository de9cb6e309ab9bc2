"""Waiting for what a request needs: its body, and callbacks (driver)."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any

from leveret.broker.http.call import Callback


async def content_of(request: Any, most: int) -> tuple[bytes, bool]:
    """Read the body of a request until there are more than so many octets; returns it, and whether that is all."""
    buffer = bytearray()
    async for piece in request.content.iter_any():
        buffer += piece
        if len(buffer) > most:
            return bytes(buffer), False
    return bytes(buffer), True


async def called(need: Callback) -> Any:
    """Wait for a callback; returns its argument."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    need.subscribe(partial(resolve, future))
    return await future


async def called_without(
    held: AsyncExitStack, again: Callable[[], AbstractAsyncContextManager[object]], need: Callback
) -> Any:
    """Wait for a callback, give back meanwhile what is held, and hold it again; returns the argument."""
    await held.aclose()
    given = await called(need)
    await held.enter_async_context(again())
    return given


def resolve(future: asyncio.Future[Any], value: Any) -> None:
    """Resolve a future, unless nobody waits for it any more."""
    if not future.done():
        future.set_result(value)
