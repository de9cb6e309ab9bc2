"""The rotation of a queue whose deliveries are traced.

Theory. A queue without tracing pays nothing for it: while deliveries are traced, another class of rotation is in its
place (`traced`, `untraced`), with everything that the one before had.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from leveret.broker.queue.consumer import Consumer
from leveret.broker.queue.consumer_rotation import ConsumerRotation
from leveret.broker.queue.queue import Queue
from leveret.storage.queues.backing_queue import Fetched


class DeliveryTracer(Protocol):
    """Is told of deliveries (`broker.vhost.firehose.Firehose`)."""

    @property
    def is_behind(self) -> bool:
        """True while it must be told of no more deliveries."""

    def delivered(self, queue: Queue, consumers: Sequence[Consumer], batch: Fetched) -> None:
        """Take deliveries: the messages of the batch went to the consumers in turn."""

    def hold_back(self, queue: Queue) -> None:
        """Resume a suspended queue when it is no longer behind."""


class TracedRotation(ConsumerRotation):
    """A rotation that tells a tracer of each delivery, and that stops while the tracer is behind.

    Args:
        queue: the queue.
        tracer: is told.

    """

    __slots__ = ("_queue", "tracer")

    def __init__(self, queue: Queue, tracer: DeliveryTracer) -> None:
        _copy(queue.consumers, self)
        self._queue = queue
        self.tracer = tracer

    def deliver(self, consumers: Sequence[Consumer], batch: Fetched) -> None:
        """Deliver the messages of a share, and tell the tracer."""
        super().deliver(consumers, batch)
        tracer, queue = self.tracer, self._queue
        tracer.delivered(queue, consumers, batch)
        if tracer.is_behind:
            queue.suspend()
            tracer.hold_back(queue)


def traced(queue: Queue, tracer: DeliveryTracer) -> None:
    """Trace the deliveries of a queue from now on; must be called between two turns."""
    if not isinstance(queue.consumers, TracedRotation) or queue.consumers.tracer is not tracer:
        queue.consumers = TracedRotation(queue, tracer)


def untraced(queue: Queue) -> None:
    """Trace the deliveries of a queue no longer; must be called between two turns."""
    if isinstance(queue.consumers, TracedRotation):
        rotation = ConsumerRotation()
        _copy(queue.consumers, rotation)
        queue.consumers = rotation


def _copy(source: ConsumerRotation, target: ConsumerRotation) -> None:
    """Give a rotation the state of another one, which is not used any more."""
    slots: Any = ConsumerRotation.__slots__
    for slot in slots:
        setattr(target, slot, getattr(source, slot))
