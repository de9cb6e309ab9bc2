"""Tails of embedded brokers: the messages of an exchange as they are published (driver)."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

from leveret.broker.administration.messages import MessageView
from leveret.broker.embedded.core import Core
from leveret.broker.embedded.embedded_server import EmbeddedServer

if TYPE_CHECKING:
    from leveret.broker.administration.tailing import Follower, Line

LOOK_SECONDS = 1.0  # time between two looks whether the broker still runs


class AsyncTail:
    """Messages as they are published, from `async with` on: `async for`, or `next`.

    It ends, and so does a loop over it, when the broker stops or the virtual host is deleted.
    """

    def __init__(self, core: Core, vhost: str, exchange: str, pattern: str, where: str) -> None:
        self._core = core
        self._vhost = vhost
        self._exchange = exchange
        self._pattern = pattern
        self._where = where
        self._server: EmbeddedServer | None = None
        self._follower: Follower | None = None
        self._lines: Iterator[Line | None] = iter(())
        self._lost = 0

    @property
    def lost(self) -> int:
        """Number of missed messages, because 10,000 messages or 16 MiB were waiting."""
        return self._lost

    async def __aenter__(self) -> Self:
        """Begin. Raises RefusedError if there is no such exchange, or the condition is invalid."""
        from leveret.broker.administration.tailing import Wish  # noqa: PLC0415

        wish = Wish(self._pattern, self._where)
        self._server = self._core.server
        self._follower = self._core.see(
            lambda each: each.tailing.start(None, self._vhost, self._exchange, wish)
        )
        self._follower.begin()
        self._lines = self._follower.lines()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._follower is not None:
            self._follower.close()
        self._lines = iter(())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MessageView:
        while True:
            found, is_ended = await self._found()
            if found is not None:
                return found
            if is_ended:
                raise StopAsyncIteration
            await self._arrival()

    async def next(self, timeout: float) -> MessageView | None:  # noqa: ASYNC109 - None is an answer, not an error
        """Return the next message; None if none is published for so many seconds, or the tail has ended.

        For a `Broker` it is at most 50 s.
        """
        with contextlib.suppress(TimeoutError, StopAsyncIteration):
            async with asyncio.timeout(timeout):
                return await anext(self)
        return None

    @property
    def is_ended(self) -> bool:
        """True if no more messages will come: the broker has stopped."""
        return not self._core.is_running or self._core.server is not self._server

    async def _found(self) -> tuple[MessageView | None, bool]:
        """Return the next message if it is there, and whether no more will come."""
        for line in self._lines:
            if line is None:
                await asyncio.sleep(0)
            elif line.view is not None:
                return line.view, False
            elif line.lost:
                self._lost += line.lost
            elif line.end:
                break
            else:
                return None, self.is_ended
        return None, True

    async def _arrival(self) -> None:
        """Wait until there may be a message, or until it is time to look whether the broker still runs."""
        arrived = asyncio.Event()
        if self._follower is not None:
            self._follower.when_there(arrived.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await arrived.wait()
