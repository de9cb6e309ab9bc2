"""Queues that are measured for the export (`broker.counters.sampling`).

Whether a queue is measured is decided once, when it is created (`queue_class`): `Queue` knows nothing of meters.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from leveret.broker.amqp.tables import Table
from leveret.broker.counters.sampling import QueueMeter
from leveret.broker.queue.arguments import STREAM, queue_type
from leveret.broker.queue.consumer import Consumer
from leveret.broker.queue.queue import Queue
from leveret.broker.queue.stream_queue import StreamQueue
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.turn import Turn
from leveret.storage.queues.backing_queue import BackingQueue, Fetched


def queue_class(context: NodeContext, arguments: Table) -> Callable[..., Queue]:
    """Return the class of new queues: `MeteredQueue` if there is an export, `StreamQueue` for streams."""
    if queue_type(arguments) == STREAM:
        return StreamQueue
    return Queue if context.events is None else partial(MeteredQueue, context)


class MeteredQueue(Queue):
    """A queue that reports to a meter of areas and latencies."""

    __slots__ = ("_context", "meter")

    meter: QueueMeter

    def __init__(
        self, context: NodeContext, name: str, vhost: str, backing: BackingQueue, turn: Turn, **options: Any
    ) -> None:
        super().__init__(name, vhost, backing, turn, **options)
        self._context = context
        self.meter = QueueMeter(context.now, context.clock())

    def run(self) -> bool:
        """Do the accumulated work, as `Queue.run`, and update the meter."""
        acks = self.acks
        if acks:
            self.meter.removed(acks, self.tally.discarded, self._context.latencies)
        more = Queue.run(self)  # `super` takes longer
        self.meter.ran(self, self._context)
        return more

    def deliver_to(self, consumers: Sequence[Consumer], batch: Fetched) -> None:
        """Deliver a batch, as `Queue.deliver_to`, and time an ack of it."""
        if not consumers[0].no_ack:
            self.meter.delivered(batch.seq_ids[-1], self._context.now)
        Queue.deliver_to(self, consumers, batch)

    def get(self, *, no_ack: bool) -> Fetched | None:
        """Fetch one message for `basic.get`, as `Queue.get`; the run that follows updates the meter."""
        batch = super().get(no_ack=no_ack)
        if batch is not None and batch.messages:  # one that has to wait would run the queue again and again
            self.touch()
        return batch

    def requeue(self, seq_ids: Collection[int], *, moved: bool = False, failed: bool = True) -> None:
        """Requeue unacked messages, as `Queue.requeue`; their acks are not timed."""
        self.meter.requeued(seq_ids)
        super().requeue(seq_ids, moved=moved, failed=failed)

    def ack_moved(self, keys: Collection[int]) -> None:
        """Remove messages, as `Queue.ack_moved`, and time their acks."""
        self.meter.removed(keys, self.tally.discarded, self._context.latencies)
        super().ack_moved(keys)

    def drop_rejected(self, keys: Collection[int], *, moved: bool) -> None:
        """Remove rejected messages, as `Queue.drop_rejected`; a run counts those that it removes."""
        super().drop_rejected(keys, moved=moved)
        if moved:
            self.meter.removed(keys, self.tally.discarded, self._context.latencies)

    def discard(self, seq_ids: Collection[int], *, moved: bool = False) -> None:
        """Discard unacked messages, as `Queue.discard`; they count as settled."""
        self.meter.settled(seq_ids, self._context.latencies)
        super().discard(seq_ids, moved=moved)
