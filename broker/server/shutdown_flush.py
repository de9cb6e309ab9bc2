"""Shutdown flush: writes persistent messages to disk that queues have only promised to publishers.

A stopping broker closes its connections first, so publishers get no more confirms of messages that consumers have not
settled yet. They will publish these again, unless they have ended by then. So persistent messages are written as if
they had been published in standard mode: they may be delivered twice then, but are never lost.

The queue is rotated once, so that its order stays: each message is taken from its head, appended to its tail, and
removed from its old place in the same commit. Transient messages are lost with the broker, as always. Each level of a
priority queue is rotated by itself: messages appended to the highest level would be at its head again and again.
"""

from collections.abc import Iterator
from functools import partial

from leveret.broker.amqp.properties import is_persistent
from leveret.broker.queue.queue import Queue
from leveret.storage.message import Message, Moved, moving
from leveret.storage.queues.backing_queue import BackingQueue, Fetched
from leveret.storage.queues.priority_queue import PriorityQueue, parts
from leveret.storage.queues.variable_queue import VariableQueue

STEP = 4096  # messages that are moved in one step
STEP_OCTETS = 512 * 1024  # approximate bytes of messages that end a step earlier
COMMIT_OCTETS = 3 * 1024 * 1024
"""Bytes of moved messages from which they are committed. With what a step adds, less than a replicated log takes in one
piece."""
_BATCH = 64


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
