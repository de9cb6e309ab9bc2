"""Putting on disk, at the end, what queues have only promised.

A broker that stops closes its connections first, so publishers hear nothing more of what consumers have not settled
yet. They will send it again; but those that are gone for good by then cannot. So what was published as persistent is
written as if it had come in standard mode: it may come twice then, and is never lost.

The queue is turned round once, so that its order stays: each message is taken from its head, appended to its tail, and
forgotten at its old place in the same commit. What is transient goes with the broker, as always. Each level of a queue
with priorities is turned by itself: what is appended to the highest would be its head again and again.
"""

from collections.abc import Iterator
from functools import partial

from leveret.broker.amqp.properties import delivery_mode
from leveret.broker.queue.queue import Queue
from leveret.broker.vhost.publish_route import PERSISTENT_MODE
from leveret.storage.message import Message, Moved, moving
from leveret.storage.queues.backing_queue import BackingQueue, Fetched
from leveret.storage.queues.priority_queue import PriorityQueue, parts
from leveret.storage.queues.variable_queue import VariableQueue

STEP = 4096
"""Messages that are moved in one commit."""
STEP_OCTETS = 4 * 1024 * 1024
"""Or fewer, where they are large; about."""
_BATCH = 64


class ShutdownFlush:
    """One durable queue, or one level of it, on its way to disk.

    Args:
        queue: nobody consumes from it or publishes to it any more; nothing of it is unacked but what it discards.
        part: what of it is turned round (see `storage.queues.priority_queue.parts`).
        file_from: octets from which a content is written to a file of its own.

    """

    def __init__(self, queue: Queue, part: BackingQueue, file_from: int) -> None:
        self.queue = queue
        self._store = queue.store
        self._part = part
        self._file_from = file_from
        self.left = part.ready_count + self._is_discarding
        """Messages that have not had their turn; at least 1 while others wait to become dead letters."""
        self._turned = 0
        """Those that have, and are behind them."""
        self._watermark = 0
        """Up to where messages may have been delivered before."""

    @classmethod
    def all_of(cls, queue: Queue, file_from: int) -> Iterator["ShutdownFlush"]:
        """What a queue needs: nothing unless it has promised something that a restart would break."""
        if queue.durable and queue.awaiting is not None and queue.awaiting.promised_count > 0:
            for part in parts((queue.store,)):
                yield cls(queue, part, file_from)

    @property
    def _is_discarding(self) -> bool:
        """Whether what consumers have rejected waits to be read: it becomes dead letters before the stop."""
        return self.queue.rules is not None and self.queue.rules.is_discarding

    def step(self) -> bool:
        """Move some messages; false if something has to be read first: the queue is touched when it is here.

        The caller owes a commit after `STEP_OCTETS`, or all of the queue would be in memory.
        """
        if self._is_discarding:
            return False
        store = self._store
        if not isinstance(store, PriorityQueue):
            return self._step()
        store.narrow(self._part)
        try:
            return self._step()
        finally:
            store.recount()

    def _step(self) -> bool:
        store = self._store
        taken = octets = 0
        self.left = max(0, store.ready_count - self._turned)  # some may have expired meanwhile, at the head
        while self.left and taken < STEP and octets < STEP_OCTETS:
            expires = store.head_expires() or 0 if store.expiring else 0
            count = min(self.left, _BATCH) if not store.expiring else 1  # each when it did before
            batch = store.fetch(count, ack_required=True)
            if not batch.messages:
                return taken > 0
            self._turn_round(batch, expires)
            taken += len(batch.messages)
            octets += sum([len(message.content) for message in batch.messages])
            self.left -= len(batch.messages)
        if not self.left and self._watermark and isinstance(self._part, VariableQueue):
            self._part.redelivered_below = self._watermark
        return True

    def _turn_round(self, batch: Fetched, expires: int) -> None:
        store = self._store
        copies: list[Message] = []
        originals: list[int] = []
        left = []
        for seq_id, message in zip(batch.seq_ids, batch.messages, strict=True):
            if delivery_mode(message.header) == PERSISTENT_MODE:
                copy = moving(message, 1, self._file_from, partial(self.queue.let_go, seq_id))
                copies.append(copy)
                originals.append(seq_id)
                if isinstance(copy, Moved):
                    continue  # the original stays until then
            left.append(seq_id)
        if copies:
            seq_ids = store.publish(copies, persistent=True, expires=expires)
            if self.queue.rules is not None:
                self.queue.rules.carried_over(dict(zip(originals, seq_ids, strict=True)))
            self._turned += len(copies)
        store.ack(left, moved=True)
        if batch.redelivered and isinstance(self._part, VariableQueue):
            self._watermark = self._part.next_seq
