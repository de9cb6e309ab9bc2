"""The delivery limit of a queue: `x-delivery-limit`, and the headers `x-delivery-count` and `x-acquired-count`.

How often a message was requeued is counted while the queue has a limit, in memory and, for those on disk, in its
backing queue. A count has two parts (`storage.journal.blocks.FAILURES`): in RabbitMQ 4.3 only deliveries that failed
count for the limit, and `x-acquired-count` has all that came back; in 3.13 all of them count as failed.

Hot path: see docs/performance.md.
"""

from collections.abc import Collection, Iterable, Mapping

from leveret.broker.amqp.properties import Properties
from leveret.broker.amqp.tables import Table
from leveret.broker.queue.interfaces import OwningQueue
from leveret.storage.journal.blocks import FAILURE_BITS, FAILURES
from leveret.storage.message import Message
from leveret.storage.queues.backing_queue import Fetched


class DeliveryLimit:
    """The requeue counts of one queue, and their limit; `most` is None without one.

    `tells_failures`: whether messages that a consumer gave back are counted apart from those that failed.
    """

    __slots__ = ("_queue", "_ready", "_unacked", "most", "tells_failures")

    def __init__(self, queue: OwningQueue, *, tells_failures: bool) -> None:
        self._queue = queue
        self.tells_failures = tells_failures
        self.most: int | None = None
        self._ready: dict[int, int] = {}
        self._unacked: dict[int, int] = {}  # requeue counts of ready and of unacked messages, by seq_id

    def configure(self, most: int | None) -> None:
        """Apply a changed limit."""
        self.most = most
        self._queue.backing.count_returns(counted=most is not None)
        if most is None:
            self._ready.clear()
            self._unacked.clear()

    @property
    def has_ready(self) -> bool:
        """True if some ready message has a count."""
        return bool(self._ready)

    def counts(self) -> dict[int, int]:
        """Return the counts of all messages that were requeued since the start, by seq_id."""
        return self._ready | self._unacked

    def count(self, seq_id: int) -> int:
        """Return the count of a message since the start."""
        return self._unacked.get(seq_id) or self._ready.get(seq_id) or 0

    def delivered(self, batch: Fetched, *, ack_required: bool) -> Fetched:
        """Return redelivered messages with their counts; requeues before the last restart are included."""
        stored, ready = self._queue.backing.take_returns(batch.seq_ids), self._ready
        if not stored and not ready:
            return batch
        counts = [ready.pop(seq_id, 0) or stored.get(seq_id, 0) for seq_id in batch.seq_ids]
        if ack_required:
            self._unacked.update([pair for pair in zip(batch.seq_ids, counts, strict=True) if pair[1]])
        tells = self.tells_failures
        messages = [
            _counted(message, count_headers(count, tells_failures=tells))
            for message, count in zip(batch.messages, counts, strict=True)
        ]
        return batch._replace(messages=messages)

    def left(self, seq_ids: Collection[int]) -> None:
        """Forget ready messages that leave other than by a delivery."""
        if self.most is not None:
            self._queue.backing.take_returns(seq_ids)
            for seq_id in seq_ids:
                self._ready.pop(seq_id, None)

    def settled(self, seq_ids: Iterable[int]) -> None:
        """Forget unacked messages that are settled."""
        if self._unacked:
            for seq_id in seq_ids:
                self._unacked.pop(seq_id, None)

    def requeued(
        self, seq_ids: Collection[int], most: int, *, failed: bool
    ) -> tuple[Collection[int], list[int]]:
        """Count messages that are being requeued; return those that may be, and those over the limit."""
        one = 1 if failed or not self.tells_failures else FAILURES + 1
        counts = {seq_id: self._unacked.pop(seq_id, 0) + one for seq_id in seq_ids}
        over = sorted([seq_id for seq_id, count in counts.items() if count & FAILURES > most])
        for seq_id in over:
            del counts[seq_id]
        self._ready.update(counts)
        self._queue.backing.note_returns(counts)
        return counts, over

    def carried_over(self, seq_ids: Mapping[int, int]) -> None:
        """Keep the counts of fetched messages that were published again: new seq_ids by old ones."""
        if self.most is None:
            return
        stored, ready = self._queue.backing.take_returns(seq_ids), self._ready
        counts = {new: ready.pop(old, 0) or stored.get(old, 0) for old, new in seq_ids.items()}
        counts = {seq_id: count for seq_id, count in counts.items() if count}
        ready.update(counts)
        self._queue.backing.note_returns(counts)

    def purged(self) -> None:
        """Forget the ready messages."""
        self._ready.clear()


def count_headers(count: int, *, tells_failures: bool = False) -> dict[str, int]:
    """Return the headers with which a message is redelivered that has this count; none if they would be 0."""
    failures = count & FAILURES
    acquired = failures + (count >> FAILURE_BITS) if tells_failures else 0
    named = {"x-acquired-count": acquired, "x-delivery-count": failures}
    return {name: number for name, number in named.items() if number}


def _counted(message: Message, counts: Mapping[str, int]) -> Message:
    if not counts:
        return message
    properties = Properties(message.header)
    headers: Table = {
        **(properties.headers or {}),
        **{name: ("long", count) for name, count in counts.items()},
    }
    return message.with_header(properties.replace(headers=headers))
