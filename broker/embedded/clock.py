"""The clock of an embedded broker, which a test can stop and advance (driver).

Theory. `advance` moves the time from one due time to the next. At each it calls what is due, then waits until all that
this causes is carried out, commits and reads from disk included; only then the time moves on. So the order of effects
is that of their due times, and it does not matter in how many steps the time is advanced.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from leveret.broker.embedded.embedded_server import EmbeddedServer
from leveret.broker.embedded.settable_time import MILLISECOND, SettableTime

STEPS_AT_ONCE = 50  # due times in a row without any effect after which others get their turn in the loop


def duration(by: timedelta | float | None, seconds: float, minutes: float, hours: float, days: float) -> int:
    """Return the sum of all arguments in nanoseconds, rounded to milliseconds. Raises ValueError if it is negative."""
    if isinstance(by, timedelta):
        by = by.total_seconds()
    given = timedelta(seconds=seconds + (by or 0.0), minutes=minutes, hours=hours, days=days)
    if given < timedelta():
        raise ValueError("the clock cannot go back")
    return round(given / timedelta(milliseconds=1)) * MILLISECOND


class Clock:
    """The clock of a broker in the running event loop: `AsyncBroker.clock`.

    Message and queue expiry, delayed messages, consumer and confirm timeouts, timeouts of the handshake, delays of
    refused logins and retries of a full disk follow it. It runs like the real time until it is advanced or frozen.
    """

    def __init__(self, time: SettableTime, server: Callable[[], EmbeddedServer]) -> None:
        self._time = time
        self._server = server
        self._lock = asyncio.Lock()

    @property
    def now(self) -> datetime:
        """The time of the broker, with time zone UTC."""
        return datetime.fromtimestamp(self._time.wall() / 1000, UTC)

    @property
    def is_frozen(self) -> bool:
        """True between `freeze` and `resume`."""
        return self._time.stands

    def freeze(self) -> None:
        """Stop the clock: nothing expires and nothing times out before `advance` or `resume`."""
        self._time.stop()

    def resume(self) -> None:
        """Let the clock run from its current time."""
        self._time.run()

    async def advance(
        self,
        by: timedelta | float | None = None,
        *,
        seconds: float = 0,
        minutes: float = 0,
        hours: float = 0,
        days: float = 0,
        heartbeats: bool = False,
    ) -> None:
        """Advance the clock by the sum of the arguments, and carry out everything that falls due, in order.

        When it returns, expired messages are dead-lettered and delivered, timeouts have closed their channels, and all
        resulting frames were passed to the sockets of the clients.

        Args:
            by: a timedelta, or seconds.
            seconds: seconds to add, and accordingly the following.
            minutes: minutes.
            hours: hours.
            days: days.
            heartbeats: true to disconnect clients that send no heartbeats meanwhile. Their own time does not advance.

        Raises:
            ValueError: the clock would go back.
            ClosedBrokerError: the broker is not running.
        """
        length = duration(by, seconds, minutes, hours, days)
        server, time = self._server(), self._time
        async with self._lock:
            was_running = not time.stands
            await server.settle()
            time.begin_moving()
            left = {} if heartbeats else server.suspend_heartbeats()
            try:
                await self._move(server, time.elapsed + length, None if heartbeats else left)
            finally:
                time.end_moving()
                server.resume_heartbeats(left)
                if was_running:
                    time.run()

    async def _move(self, server: EmbeddedServer, target: int, left: dict[Any, float] | None) -> None:
        """Move the time to a target, from one due time to the next; `left` collects suspended heartbeats."""
        time = self._time
        steps = 0
        while True:
            due = max(time.elapsed, min(time.next_due, server.next_timeout(time.elapsed)))
            if due > target:
                break
            time.move_to(int(due))
            while time.call_next():
                if server.is_busy:
                    await server.settle()
            if server.next_timeout(time.elapsed - 1) <= time.elapsed:
                server.loop.run_step("tick", partial(server.run_tick, time.elapsed), "")
            steps += 1
            if server.is_busy or not steps % STEPS_AT_ONCE:
                await server.settle()
            if left is not None:
                left |= server.suspend_heartbeats()  # of connections that were opened meanwhile
        time.move_to(target)
