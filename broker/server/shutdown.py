"""Graceful shutdown: closes connections, writes to disk what only memory has, and closes the data store (driver)."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from leveret.broker.administration.access import AdministeredBroker
from leveret.broker.queue.queue import Queue
from leveret.broker.server.shutdown_flush import COMMIT_OCTETS, ShutdownFlush

if TYPE_CHECKING:
    from leveret.broker.persistence.data_store import DataStore

Stored = Callable[..., Awaitable[bool]]
_Commits = deque[tuple["asyncio.Future[bool]", int]]  # those under way, in order, each with its messages

log = logging.getLogger("leveret.connection")

STOP_SECONDS = 5.0  # time for clients to answer `connection.close`
BEHIND_SECONDS = 0.05  # pause in which a replicated log is applied that has come far ahead of the copy
CUT_SECONDS = 0.001  # interval of looks whether a commit is on its way
ABORT_SECONDS = 1.0  # time for the sockets of those that did not to be closed


async def disconnect(host: AdministeredBroker, reason: str, seconds: float) -> None:
    """Close every connection of a server with 320; those that do not answer within `seconds` are aborted.

    It must refuse connections already.
    """
    gate = host.gate
    gate.close()
    for driver in list(gate.drivers):
        driver.connection.force_close(f"broker forced connection closure with reason '{reason}'")
    host.loop.finish_turn()
    await _wait_until_closed(host, seconds)
    if gate.drivers:
        log.warning("%d connections did not close within %g s", len(gate.drivers), seconds)
    for driver in list(gate.drivers):
        driver.abort()
    await _wait_until_closed(host, ABORT_SECONDS)


async def _wait_until_closed(host: AdministeredBroker, seconds: float) -> None:
    closed = host.gate.all_closed
    closed.clear()
    if host.gate.drivers:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(closed.wait(), seconds)


async def close_store(host: AdministeredBroker, disk: "DataStore", stored: Stored) -> int:
    """Write to disk what is in memory only, and close the store; returns the number of entries that are lost.

    `stored` waits until everything journaled so far is on disk, and is false if that is full.
    """
    await host.loop.finish_jobs()
    await _publish_dead_letters(host, disk)
    disk.commits.prepare_stop()
    for vhost in host.vhosts.values():
        for ids in vhost.once.values():
            ids.save()
    lost = await _flush_promised(host, disk, stored)
    if lost:
        text = "disk full at shutdown: messages=%d not written; publishers must resend the unconfirmed ones"
        log.error(text, lost)
    return await disk.stop(store for queue in _queues(host) for store in queue.stores)


async def _on_its_way(disk: "DataStore", commits: "_Commits") -> None:
    """Wait until the last commit is cut and on its way: the next messages are moved meanwhile, not before."""
    while not _has_failed(commits) and (  # noqa: ASYNC110 - an event would be set by each commit of a running broker
        disk.journal.octets >= COMMIT_OCTETS or disk.commits.is_preparing
    ):
        await asyncio.sleep(CUT_SECONDS)


def _queues(host: AdministeredBroker) -> Iterator[Queue]:
    """Yield all queues, and the deleted ones that still have messages to discard."""
    for vhost in host.vhosts.values():
        yield from (*vhost.queues.values(), *vhost.ending)


async def _publish_dead_letters(host: AdministeredBroker, disk: "DataStore") -> None:
    """Wait until queues have published the dead letters of discarded messages, unless the disk is full."""
    queues = [queue for queue in _queues(host) if queue.limits is not None and queue.limits.is_discarding]
    loop = asyncio.get_running_loop()
    for queue in queues:
        queue.touch()
        host.loop.schedule_turn()
        while queue.limits is not None and queue.limits.is_discarding and not disk.commits.is_full:
            ran = loop.create_future()
            queue.after_next_run(partial(ran.set_result, None))
            await ran


async def _flush_promised(host: AdministeredBroker, disk: "DataStore", stored: Stored) -> int:
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
    commits: _Commits = deque()  # commits that go on while the next messages are moved
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
                commits.append((asyncio.ensure_future(stored(files=True)), uncommitted))
                uncommitted = 0
                await _on_its_way(disk, commits)
                if not await _finished(commits, 1):
                    return sum(count for _, count in commits) + sum(each.left for each in flushes)
            await asyncio.sleep(0)  # a step is long, and the commit has results meanwhile
    if not await _finished(commits, 0):
        return sum(count for _, count in commits) + uncommitted
    return 0 if await stored(files=True) else uncommitted


async def _finished(commits: _Commits, left: int) -> bool:
    while len(commits) > left:
        if not await commits[0][0]:
            return False
        commits.popleft()
    return True


def _has_failed(commits: _Commits) -> bool:
    return any(commit.done() and not commit.result() for commit, _ in commits)
