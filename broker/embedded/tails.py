"""Tails of embedded brokers: the messages of an exchange as they are published (driver)."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from leveret.broker.administration import AdministrationError
from leveret.broker.administration.messages import MessageView
from leveret.broker.embedded.core import Core, EmbeddedServer
from leveret.broker.embedded.errors import ClosedBrokerError, RefusedError

if TYPE_CHECKING:
    from leveret.broker.administration.tailing import Follower, Line

T = TypeVar("T")
LOOK_SECONDS = 1.0
"""Time between two looks whether the broker still runs."""


class AsyncTail:
    """Messages as they are published, from `async with` on: `async for`, or `next`.

    It ends, and so does a loop over it, when the broker stops or the virtual host is deleted.

    Args:
        core: the broker.
        vhost: name of the virtual host.
        exchange: name of the exchange; '' for the default exchange.
        pattern: what routing keys must match, as in a binding to a topic exchange.
        where: a condition that messages must meet; '' for all.

    Attributes:
        lost: number of messages that were missed so far, because 10,000 messages, or 16 MiB, were waiting already.

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
        self.lost = 0

    async def __aenter__(self) -> Self:
        """Begin. Raises RefusedError if there is no such exchange, or the condition is invalid."""
        from leveret.broker.administration.tailing import Wish  # noqa: PLC0415

        self._server = server = self._core.server
        try:
            self._follower = server.administration.tailing.start(
                None, self._vhost, self._exchange, Wish(self._pattern, self._where)
            )
        except AdministrationError as error:
            raise RefusedError(str(error)) from None
        self._follower.begin()
        self._lines = self._follower.lines()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """Return the next message; None if none is published for so many seconds, or the tail has ended."""
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
                self.lost += line.lost
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


class Call(Protocol):
    """Runs a coroutine in the loop of the broker, and returns its result."""

    def __call__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Raises ClosedBrokerError, and what the coroutine raises."""


class Tail:
    """Messages as they are published, from `with` on: `for`, or `next`; see `AsyncTail`.

    Args:
        tail: the tail in the loop of the broker.
        call: forwards calls to it.

    """

    def __init__(self, tail: AsyncTail, call: Call) -> None:
        self._tail = tail
        self._call = call

    @property
    def lost(self) -> int:
        """Number of messages that were missed so far, because 10,000 messages, or 16 MiB, were waiting already."""
        return self._tail.lost

    def __enter__(self) -> Self:
        """Begin. Raises RefusedError if there is no such exchange, or the condition is invalid."""
        self._call(self._tail.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ClosedBrokerError):
            self._call(lambda: self._tail.__aexit__(None, None, None))

    def next(self, timeout: float) -> MessageView | None:
        """Return the next message; None if none is published for so many seconds (at most 50)."""
        return self._call(lambda: self._tail.next(timeout))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> MessageView:
        with contextlib.suppress(ClosedBrokerError):
            while not self._tail.is_ended:
                found = self._call(lambda: self._tail.next(LOOK_SECONDS))
                if found is not None:
                    return found
        raise StopIteration
