"""Backends whose questions are counted, and guarded: few at once, for a bounded time, and none while one is down.

Theory. A service that does not answer must cost others nothing. Questions that find all places taken wait for one, and
the time they wait counts. If the backend could not be reached for `FAILURES` callers within `WINDOW` seconds, and
answered no caller in between, further questions fail at once for `PAUSE` seconds. Then the broker sends a question of
its own, and the outcome decides (a circuit breaker). Callers choose the values of questions, so no answer to one,
whatever it is, counts as a failure; one caller alone, an address with a name, counts once; and no caller is the one who
finds out. A question whose time is over while others were answered was one too many, or has hit a bad value: it is
undecided, and says nothing about the backend.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from typing import Final, TypeVar

from leveret.broker.auth.backends.backend import (
    Backend,
    BackendError,
    RemoteBackend,
    UnreachableError,
    Wrapper,
)
from leveret.broker.auth.users import LoginRefusedError
from leveret.broker.process.places import Places
from leveret.broker.process.shares import Shares

T = TypeVar("T")
log = logging.getLogger("leveret.connection")

FAILURES = 5  # callers for whom a backend could not be reached, after which it counts as down
WINDOW = 10.0  # seconds within which they have to happen
PAUSE = 5.0  # seconds for which a backend that is down is not asked
LOG_SECONDS = 1.0  # seconds between two log lines about failures


CALLER: Final[ContextVar[tuple[str, str]]] = ContextVar("caller", default=("", ""))
"""For whom the current task asks: the origin of the address (`shares.origin`), and the name of the user."""


class NotAskedError(UnreachableError):
    """A backend was not asked, because it is down."""


class Counted(Wrapper):
    """A backend whose questions are counted."""

    def __init__(self, backend: Backend, now: Callable[[], float]) -> None:
        super().__init__(backend)
        self._now = now
        self.module = backend.module
        self.outcomes = {"allowed": 0, "refused": 0, "failed": 0, "not_asked": 0}
        """Numbers of questions by outcome: allowed, refused, failed, and not asked because it is down."""
        self.seconds = 0.0  # time that all questions have taken, with the waits for their turn

    async def _put(self, question: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        del question
        began = self._now()
        outcome = "failed"
        try:
            answer = await self._answer(ask)
            outcome = "refused" if answer is False else "allowed"
        except LoginRefusedError:
            outcome = "refused"
            raise
        except NotAskedError:
            outcome = "not_asked"
            raise
        finally:
            self.outcomes[outcome] += 1
            self.seconds += self._now() - began
        return answer

    async def _answer(self, ask: Callable[[], Awaitable[T]]) -> T:
        return await ask()


class Guarded(Counted):
    """A guarded backend; `seconds`: after which a question has failed, with the time that it waits for its turn."""

    def __init__(self, backend: RemoteBackend, seconds: float, now: Callable[[], float]) -> None:
        super().__init__(backend, now)
        self._remote = backend
        self._seconds = seconds
        self._places = Places(Shares.of_addresses(backend.at_once))
        self._failures: dict[tuple[str, str], float] = {}
        """The time of the last failure of each caller, the latest last; of `FAILURES` callers at most."""
        self._answers = 0
        self._closed_until = float("-inf")
        self._is_down = False
        self._logged_at = float("-inf")
        self._unlogged = 0

    async def _answer(self, ask: Callable[[], Awaitable[T]]) -> T:
        if self._now() < self._closed_until:
            raise NotAskedError("it is down, and will be asked again within a few seconds")
        answers = self._answers
        try:
            async with asyncio.timeout(self._seconds), self._places.of(CALLER.get()[0]):
                if self._is_down:
                    await self._find_out()
                answer = await ask()
        except LoginRefusedError:
            self._answered()
            raise
        except TimeoutError:
            reason = f"no answer within {self._seconds:g} s"
            if self._answers != answers:
                self._log(reason)
                raise BackendError("timeout") from None
            self._failed(reason)
            raise UnreachableError("timeout") from None
        except UnreachableError as error:
            self._failed(str(error))
            raise
        except BackendError as error:
            self._answered()
            self._log(str(error))
            raise
        self._answered()
        return answer

    async def _find_out(self) -> None:
        """Ask whether the backend is back; the questions of others fail until that is known."""
        self._closed_until = self._now() + max(PAUSE, self._seconds)
        try:
            await self._remote.reach()
        except BackendError as error:
            if isinstance(error, UnreachableError):
                raise  # any other is an answer
        self._answered()

    def _answered(self) -> None:
        self._answers += 1
        self._failures.clear()
        if self._is_down:
            self._is_down = False
            self._closed_until = float("-inf")
            log.warning("authentication backend %s answers again", self.module)

    def _failed(self, reason: str) -> None:
        self._log(reason)
        now = self._now()
        caller = CALLER.get()
        self._failures.pop(caller, None)
        self._failures[caller] = now
        while now - next(iter(self._failures.values())) > WINDOW:
            del self._failures[next(iter(self._failures))]
        if self._is_down or len(self._failures) >= FAILURES:
            self._failures.clear()
            self._closed_until = now + PAUSE
            if not self._is_down:
                self._is_down = True
                log.error("authentication backend %s is down: it is not asked for %g s", self.module, PAUSE)

    def _log(self, reason: str) -> None:
        """Log that there is no decision, once in a while."""
        now = self._now()
        if now - self._logged_at < LOG_SECONDS:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more failures since the last such line)" if self._unlogged else ""
        text = "authentication backend %s failed: %s%s; logins and operations that need it are refused"
        log.error(text, self.module, reason, more)
        self._logged_at, self._unlogged = now, 0
