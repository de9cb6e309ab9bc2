"""A server whose time can be stopped and moved: what is due, what is under way, heartbeats meanwhile (driver)."""

import asyncio
from collections.abc import Iterable
from itertools import chain
from math import inf
from typing import TYPE_CHECKING

from leveret.broker.amqp.fastpath import HEARTBEAT
from leveret.broker.channel.channel import Channel
from leveret.broker.config.config import Config
from leveret.broker.connection.connection import Connection
from leveret.broker.connection.state import OPEN
from leveret.broker.embedded.settable_time import SECOND, SettableTime
from leveret.broker.scheduling.timer_wheel import TICK_SECONDS
from leveret.broker.server.server import Server

if TYPE_CHECKING:
    from leveret.broker.persistence.data_store import DataStore

CALM_ROUNDS = 2
"""Iterations of the loop without any work or input after which nothing is under way: sockets are polled in each."""
READ_SECONDS = 0.0005
"""Interval of checks whether the reader's thread has finished."""
_TICK = round(TICK_SECONDS * SECOND)
_LATE = (
    1e-6  # seconds by which ticks are late, because the products and quotients of their times are not exact
)


class ClockedServer(Server):
    """A server with a `SettableTime`."""

    time_source: SettableTime

    def __init__(self, config: Config, disk: "DataStore | None", time: SettableTime) -> None:
        super().__init__(config, disk, time)
        self._beats: dict[Connection, float] = {}
        """By connection, while the time stands still: the real time of its last heartbeat."""

    # -- what is due ------------------------------------------------------------------------------------------------

    def run_timeouts(self, now: float) -> None:
        """Carry out what is due at a tick; while the time stands still that is nothing, but clients get heartbeats."""
        if self.time_source.stands:
            self._keep_alive(self.now())
        else:
            if self._beats:  # the next ones are due by a clock that stood still
                self._beats.clear()
                self._keep_alive(self.now())
                self._beats.clear()
            super().run_timeouts(now)

    def _keep_alive(self, now: float) -> None:
        """Send heartbeats in real time: clients would miss them, and disconnect."""
        beats = {}
        for connection in self._beating():
            beats[connection] = self._beats.get(connection, -inf)
            if now - beats[connection] >= connection.heartbeat / 2:
                connection.outbox.send(HEARTBEAT)
                beats[connection] = now
        self._beats = beats

    def next_timeout(self, elapsed: int) -> float:
        """Return the time of the next tick after `elapsed` that may have something to do; infinite for none.

        Both in nanoseconds of the time source.
        """
        following = self._ticks.next_due * _TICK
        if any(map(_may_time_out, self._channels())):
            following = min(following, (elapsed // SECOND + 1) * SECOND)
        return max(following, elapsed)

    def run_tick(self, elapsed: int) -> None:
        """Carry out deadlines and heartbeats, and at each full second consumer and confirm timeouts."""
        now = elapsed / SECOND + _LATE
        self._ticks.run(now)
        if not elapsed % SECOND:
            for connection in list(self.clients.connections):
                connection.close_overdue(now)
        self.run_turn()

    def suspend_heartbeats(self) -> dict[Connection, float]:
        """Stop the heartbeats of open connections; return the seconds until the next one of each."""
        now, left = self.time_source.now(), {}
        for connection in self._beating():
            if connection.bucket >= 0:
                left[connection] = (
                    connection.bucket - 0.5
                ) * TICK_SECONDS - now  # it is put into the next bucket
                self._ticks.forget(connection)
        return left

    def resume_heartbeats(self, left: dict[Connection, float]) -> None:
        """Resume heartbeats, with the seconds left for each connection."""
        for connection, seconds in left.items():
            if connection.state == OPEN and connection.bucket < 0:
                self.wake(connection, seconds)

    def _beating(self) -> list[Connection]:
        """Return the open connections with heartbeats."""
        return [each for each in self.clients.connections if each.heartbeat and each.state == OPEN]

    def _channels(self) -> Iterable[Channel]:
        return chain.from_iterable(each.channels.values() for each in self.clients.connections)

    # -- what is under way ------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """True if work waits for a later step of the loop, for a commit or for a read."""
        turn = self.turn
        if self._turn_scheduled or turn.slices or turn.queues or turn.channels or turn.outboxes:
            return True
        if turn.unfinished or turn.has_deferred_input or turn.withheld:
            return True
        return self.disk is not None and (bool(self.disk.reads_pending) or self._is_writing)

    @property
    def _is_writing(self) -> bool:
        """True if a commit is under way or will be, unless the disk is full: then it waits for the next try."""
        journal = self.disk.journal  # type: ignore[union-attr]
        if journal.in_flight is not None:
            return True
        return not self.disk.commits.is_full and bool(journal.has_work or journal.files)  # type: ignore[union-attr]

    async def settle(self) -> None:
        """Wait until everything under way is carried out, including input that has arrived and its confirms.

        Frames for clients are passed to the transports then.
        """
        calm = 0
        received = -1
        while calm < CALM_ROUNDS:
            await asyncio.sleep(0)
            before, received = received, sum([each.octets_in for each in self.clients.connections])
            if self.is_busy:
                calm = 0
                await self.carry_on()
            elif received != before:
                calm = 0
            else:
                calm += 1

    async def carry_on(self) -> None:
        """Wait for some of the work that is under way."""
        self.send_withheld()
        await self.finish_jobs()
        if self.disk is None:
            return
        if self._is_writing and not self.disk.commits.is_full:
            await self.stored(files=True)
        elif self._is_writing or self.disk.reads_pending:
            await asyncio.sleep(READ_SECONDS)


def _may_time_out(channel: Channel) -> bool:
    return bool(channel.unacked) or (channel.confirms is not None and bool(channel.confirms.held))
