"""Places that are waited for, in turns (driver)."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

from leveret.broker.process.shares import Shares


class Places:
    """Places for work, for which others wait; the waiting owners get a place in turn."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by owner, the next one first

    @contextlib.asynccontextmanager
    async def of(self, owner: str) -> AsyncIterator[None]:
        """Have a place of this owner meanwhile; waits for one."""
        if owner in self._waiting or not self._shares.acquire(owner):
            await self._wait(owner)
        try:
            yield
        finally:
            self._release(owner)

    async def _wait(self, owner: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it has got its place in the same moment
                self._release(owner)
            elif turn in self._waiting.get(owner, ()):  # a release may have passed it over already
                self._remove(owner, turn)
            raise

    def _release(self, owner: str) -> None:
        self._shares.release(owner)
        for each in list(self._waiting):
            while each in self._waiting and self._shares.acquire(each):
                turn = self._waiting[each][0]
                self._remove(each, turn)
                if each in self._waiting:
                    self._waiting[each] = self._waiting.pop(each)  # the others first
                if not turn.done():
                    turn.set_result(None)
                    break
                self._shares.release(each)

    def _remove(self, owner: str, turn: asyncio.Future[None]) -> None:
        waiting = self._waiting[owner]
        waiting.remove(turn)
        if not waiting:
            del self._waiting[owner]
