"""Graceful shutdown: closes connections, writes to disk what only memory has, and closes the data store (driver)."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Protocol

from leveret.broker.administration import Administration
from leveret.broker.network.socket_driver import SocketDriver
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.turn import Turn
from leveret.broker.server.shutdown_flush import COMMIT_OCTETS, ShutdownFlush
from leveret.broker.vhost.vhost import VHost

if TYPE_CHECKING:
    from leveret.broker.persistence.data_store import DataStore

_Commits = deque[tuple["asyncio.Future[bool]", int]]
"""Commits that are under way, in order, and the number of messages of each."""

log = logging.getLogger("leveret.connection")
loop_log = logging.getLogger("leveret")

STOP_SECONDS = 5.0
"""Time for clients to answer `connection.close`."""
BEHIND_SECONDS = 0.05
"""Pause in which a replicated log is applied that has come far ahead of the copy."""
CUT_SECONDS = 0.001
"""Interval of looks whether a commit is on its way."""
ABORT_SECONDS = 1.0
"""Time for the sockets of those that did not to be closed."""


class Telemetry(Protocol):
    """The telemetry export (`broker.export.writer.Export`)."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the export; clients may connect from now on."""

    async def stop(self, reason: str) -> None:
        """Write the final state, and finish all files."""


class ShutdownHost(Protocol):
    """The part of the server that a shutdown uses."""

    turn: Turn
    context: NodeContext
    vhosts: dict[str, VHost]
    administration: Administration
    disk: "DataStore | None"
    export: Telemetry | None
    drivers: set[SocketDriver]
    all_closed: asyncio.Event

    def close_listeners(self) -> None:
        """Stop accepting connections."""

    async def stop_shovels(self) -> None:
        """Stop the shovels."""

    def stop_timers(self) -> None:
        """Stop the ticks, the wall-clock timers and the checks of memory and disk."""

    def finish_turn(self) -> None:
        """Write to every connection touched by the turn."""

    def schedule_turn(self) -> None:
        """Run the turn in the next step."""

    async def finish_jobs(self) -> None:
        """Wait until no work is deferred any more."""

    async def stored(self, *, files: bool = False) -> bool:
        """Wait until everything journaled so far is on disk; False if the disk is full."""

    def log_damage(self) -> None:
        """Log unreadable data."""


class Shutdown:
    """The shutdown of one server.

    Args:
        host: the server; it must refuse connections already.
        seconds: time for clients to answer `connection.close`.

    """

    def __init__(self, host: ShutdownHost, seconds: float = STOP_SECONDS) -> None:
        self._host = host
        self._seconds = seconds

    async def run(self, reason: str) -> int:
        """Close every connection with 320, which names the reason, then the data store and the export.

        Returns the number of entries, messages and definitions, that are lost because the disk is full.
        """
        host = self._host
        slices = host.turn.slices
        slices.watch(on=False)
        loop_log.info(
            "longest step of the event loop: %.1f ms, %s", slices.longest / 1e6, slices.longest_step or "none"
        )
        await host.stop_shovels()
        await self._disconnect(reason)
        host.stop_timers()
        host.administration.stop()
        for vhost in host.vhosts.values():
            for line in vhost.delay_lines():
                line.stop()
        lost = 0 if host.disk is None else await self._close_store(host.disk)
        host.log_damage()
        if host.export is not None:  # last, as its folder may be on a disk that does not respond
            await host.export.stop(reason)
        done = host.context.totals.channels
        log.info(
            "totals: published=%d delivered=%d acked=%d cpu_seconds=%.2f",
            done.published,
            done.delivered,
            done.acked,
            time.process_time(),
        )
        return lost

    async def _disconnect(self, reason: str) -> None:
        """Close every connection with 320; those that do not answer in time are aborted."""
        host = self._host
        host.close_listeners()
        for driver in list(host.drivers):
            driver.connection.force_close(f"broker forced connection closure with reason '{reason}'")
        host.finish_turn()
        await self._wait_until_closed(self._seconds)
        if host.drivers:
            log.warning("%d connections did not close within %g s", len(host.drivers), self._seconds)
        for driver in list(host.drivers):
            driver.abort()
        await self._wait_until_closed(ABORT_SECONDS)

    async def _wait_until_closed(self, seconds: float) -> None:
        """Wait until no socket is left, at most that many seconds."""
        closed = self._host.all_closed
        closed.clear()
        if self._host.drivers:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(closed.wait(), seconds)

    async def _close_store(self, disk: "DataStore") -> int:
        """Write to disk what is in memory only, and close the store; returns the number of entries that are lost."""
        await self._host.finish_jobs()
        await self._publish_dead_letters(disk)
        disk.commits.prepare_stop()
        lost = await self._flush_promised(disk)
        if lost:
            text = (
                "disk full at shutdown: messages=%d not written; publishers must resend the unconfirmed ones"
            )
            log.error(text, lost)
        return await disk.stop(store for queue in self._queues() for store in queue.stores)

    @staticmethod
    async def _on_its_way(disk: "DataStore", commits: "_Commits") -> None:
        """Wait until the last commit is cut and on its way: the next messages are moved meanwhile, not before."""
        while not _has_failed(commits) and (  # noqa: ASYNC110 - an event would be set by each commit of a running broker
            disk.journal.octets >= COMMIT_OCTETS or disk.commits.is_preparing
        ):
            await asyncio.sleep(CUT_SECONDS)

    def _queues(self) -> Iterator[Queue]:
        """Yield all queues, and the deleted ones that still have messages to discard."""
        for vhost in self._host.vhosts.values():
            yield from (*vhost.queues.values(), *vhost.ending)

    async def _publish_dead_letters(self, disk: "DataStore") -> None:
        """Wait until queues have published the dead letters of discarded messages, unless the disk is full."""
        queues = [
            queue for queue in self._queues() if queue.limits is not None and queue.limits.is_discarding
        ]
        loop = asyncio.get_running_loop()
        for queue in queues:
            queue.touch()
            self._host.schedule_turn()
            while queue.limits is not None and queue.limits.is_discarding and not disk.commits.is_full:
                ran = loop.create_future()
                queue.after_next_run(partial(ran.set_result, None))
                await ran

    async def _flush_promised(self, disk: "DataStore") -> int:
        """Write the promised messages of queues to disk; returns the number of those for which there was no space."""
        host = self._host
        flushes = [
            flush
            for vhost in host.vhosts.values()
            for queue in vhost.queues.values()
            for flush in ShutdownFlush.all_of(queue, disk.blob_threshold)
        ]
        if flushes:
            total = sum(flush.left for flush in flushes)
            log.info("writing unconfirmed messages of consumer-ack queues to disk: messages=%d", total)
        loop = asyncio.get_running_loop()
        journal = disk.journal
        commits: _Commits = deque()
        """Commits that go on while the next messages are moved."""
        uncommitted = 0
        for flush in flushes:
            while flush.left:
                if disk.commits.is_behind:
                    await asyncio.sleep(BEHIND_SECONDS)
                    continue
                before = flush.left
                if not flush.step():
                    read = loop.create_future()
                    flush.queue.after_next_run(partial(read.set_result, None))
                    await read
                    continue
                uncommitted += before - flush.left
                if journal.octets + journal.blob_octets >= COMMIT_OCTETS:
                    commits.append((asyncio.ensure_future(host.stored(files=True)), uncommitted))
                    uncommitted = 0
                    await self._on_its_way(disk, commits)
                    if not await _finished(commits, 1):
                        return sum(count for _, count in commits) + sum(each.left for each in flushes)
                await asyncio.sleep(0)  # a step is long, and the commit has results meanwhile
        if not await _finished(commits, 0):
            return sum(count for _, count in commits) + uncommitted
        return 0 if await host.stored(files=True) else uncommitted


async def _finished(commits: _Commits, left: int) -> bool:
    """Wait until no more than some commits are left; False if one has failed, which is the first of those left."""
    while len(commits) > left:
        if not await commits[0][0]:
            return False
        commits.popleft()
    return True


def _has_failed(commits: _Commits) -> bool:
    return any(commit.done() and not commit.result() for commit, _ in commits)
