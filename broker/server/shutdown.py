"""Graceful shutdown: closes connections, writes to disk what only memory has, and closes the data store (driver).

Theory. A stopping broker closes its connections first, so publishers get no more confirms of messages that consumers
have not settled yet. They will publish these again, unless they have ended by then. So persistent messages that queues
have only promised are written as if they had been published in standard mode: they may be delivered twice then, but are
never lost.

The queue is rotated once, so that its order stays: each message is taken from its head, appended to its tail, and
removed from its old place in the same commit. Transient messages are lost with the broker, as always. Each level of a
priority queue is rotated by itself: messages appended to the highest level would be at its head again and again.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from leveret.broker.administration.access import AdministeredBroker
from leveret.broker.amqp.properties import is_persistent
from leveret.broker.queue.queue import Queue
from leveret.storage.message import Message, Moved, moving
from leveret.storage.queues.backing_queue import BackingQueue, Fetched
from leveret.storage.queues.priority_queue import PriorityQueue, parts
from leveret.storage.queues.variable_queue import VariableQueue

if TYPE_CHECKING:
    from leveret.broker.persistence.data_store import DataStore

Stored = Callable[..., Awaitable[bool]]
_Commits = deque[tuple["asyncio.Future[bool]", int]]  # those under way, in order, each with its messages

log = logging.getLogger("leveret.connection")

STOP_SECONDS = 5.0  # time for clients to answer `connection.close`
BEHIND_SECONDS = 0.05  # pause in which a replicated log is applied that has come far ahead of the copy
CUT_SECONDS = 0.001  # interval of looks whether a commit is on its way
ABORT_SECONDS = 1.0  # time for the sockets of those that did not to be closed
STEP = 4096  # messages that are moved in one step
STEP_OCTETS = 512 * 1024  # approximate bytes of messages that end a step earlier
COMMIT_OCTETS = 3 * 1024 * 1024
"""Bytes of moved messages from which they are committed. With what a step adds, less than a replicated log takes in one
piece."""
_BATCH = 64


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
    lost = await _flush_promised(host, disk, stored)
    if lost:
        text = "disk full at shutdown: messages=%d not written; publishers must resend the unconfirmed ones"
        log.error(text, lost)
    return await disk.stop(store for queue in _queues(host) for store in queue.stores)


async def _on_its_way(disk: "DataStore", commits: "_Commits") -> None:
    """Wait until the last commit is cut and on its way: the next messages are moved meanwhile, not before."""
    # an event would be set by each commit of a running broker
    while disk.journal.octets >= COMMIT_OCTETS or disk.commits.is_preparing:
        if any(commit.done() and not commit.result() for commit, _ in commits):
            return
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
    return 0 if await _stored_with_ids(host, disk, stored) else uncommitted


async def _stored_with_ids(host: AdministeredBroker, disk: "DataStore", stored: Stored) -> bool:
    """Write the last messages, and with them the ids of exchanges, of which none may be there without its message."""
    if disk.journal.blob_octets and not await stored(files=True):
        return False
    for vhost in host.vhosts.values():
        for ids in vhost.once.values():
            ids.save()
    return await stored(files=True)


async def _finished(commits: _Commits, left: int) -> bool:
    while len(commits) > left:
        if not await commits[0][0]:
            return False
        commits.popleft()
    return True


class ShutdownFlush:
    """The flush of one durable queue without consumers and publishers, or of one level (`part`) of it.

    Only discarded messages of it are unacked. From `blob_threshold` bytes on a body is written to a file of its own.
    """

    def __init__(self, queue: Queue, part: BackingQueue, blob_threshold: int) -> None:
        self.queue = queue
        self._store = queue.store
        self._part = part
        self._blob_threshold = blob_threshold
        self.left = part.ready_count + self._is_discarding
        """Messages that were not moved yet; at least 1 while others wait to be dead-lettered."""
        self._rotated = 0  # messages that were moved, and are behind them
        self._watermark = 0  # limit up to which messages may have been delivered before

    @classmethod
    def all_of(cls, queue: Queue, blob_threshold: int) -> Iterator["ShutdownFlush"]:
        """Yield the flushes of a queue; none unless it has promised messages that a restart would lose."""
        if queue.durable and queue.awaiting is not None and queue.awaiting.promised_count > 0:
            for part in parts((queue.store,)):
                yield cls(queue, part, blob_threshold)

    @property
    def _is_discarding(self) -> bool:
        """True while rejected messages wait to be read: they are dead-lettered before the stop."""
        return self.queue.limits is not None and self.queue.limits.is_discarding

    def step(self) -> bool:
        """Move some messages; False if something has to be read first: the queue is touched when that is in memory.

        The caller must commit after `COMMIT_OCTETS`, or the whole queue would be read into memory.
        """
        if self._is_discarding:
            return False
        store = self._store
        if not isinstance(store, PriorityQueue):
            return self._step()
        store.restrict_to(self._part)
        try:
            return self._step()
        finally:
            store.recount()

    def _step(self) -> bool:
        store = self._store
        taken = octets = 0
        self.left = max(0, store.ready_count - self._rotated)  # some may have expired meanwhile, at the head
        while self.left and taken < STEP and octets < STEP_OCTETS:
            expires = store.head_expires() or 0 if store.expiring else 0
            count = min(self.left, _BATCH) if not store.expiring else 1  # one by one to keep expirations
            batch = store.fetch(count, ack_required=True)
            if not batch.messages:
                return taken > 0
            self._rotate(batch, expires)
            taken += len(batch.messages)
            octets += sum([len(message.content) for message in batch.messages])
            self.left -= len(batch.messages)
        if not self.left and self._watermark and isinstance(self._part, VariableQueue):
            self._part.redelivered_below = self._watermark
        return True

    def _rotate(self, batch: Fetched, expires: int) -> None:
        store = self._store
        copies: list[Message] = []
        originals: list[int] = []
        left = []
        for seq_id, message in zip(batch.seq_ids, batch.messages, strict=True):
            if is_persistent(message.content):
                copy = moving(message, self._blob_threshold, partial(self.queue.remove_moved, seq_id))
                copies.append(copy)
                originals.append(seq_id)
                if isinstance(copy, Moved):
                    self.queue.moving += 1
                    continue  # the original stays until then
            left.append(seq_id)
        if copies:
            seq_ids = store.publish(copies, persistent=True, expires=expires)
            if self.queue.limits is not None:
                self.queue.limits.carried_over(dict(zip(originals, seq_ids, strict=True)))
            if self.queue.ids is not None:
                self.queue.ids.stored(copies)
            self._rotated += len(copies)
        store.ack(left, moved=True)
        if batch.redelivered and isinstance(self._part, VariableQueue):
            self._watermark = self._part.next_seq
