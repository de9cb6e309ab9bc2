"""Room in the destination queues, with what a batch is about to put into them."""

from collections.abc import Sequence

from leveret.broker.queue.queue import Queue
from leveret.storage.message import Message

RETURNS = "returns to its queue"


class Room:
    """Counts what goes to each queue, until it is there.

    Args:
        source: the queue from which messages come: none of them may return to it.

    """

    __slots__ = ("_counts", "_source")

    def __init__(self, source: Queue) -> None:
        self._source = source
        self._counts: dict[Queue, tuple[int, int]] = {}

    @property
    def is_empty(self) -> bool:
        """True if nothing is counted."""
        return not self._counts

    def obstacle(self, message: Message, queues: Sequence[Queue]) -> str:
        """Return why the queues cannot take a message; '' if all of them can."""
        for queue in queues:
            if queue is self._source:
                return RETURNS
            if queue.limits is not None:
                count, octets = self._counts.get(queue, (0, 0))
                cause = queue.limits.obstacle(message, count, octets)
                if cause:
                    return cause
        return ""

    def obstacle_now(self, message: Message, queues: Sequence[Queue]) -> str:
        """Return what `obstacle` does, after the arrivals of this turn, which may go straight to consumers."""
        for queue in queues:
            if queue.limits is not None and queue is not self._source:
                queue.settle()
        return self.obstacle(message, queues)

    def add(self, message: Message, queues: Sequence[Queue]) -> None:
        """Count a message."""
        for queue in queues:
            if queue.limits is not None:
                count, octets = self._counts.get(queue, (0, 0))
                self._counts[queue] = count + 1, octets + message.body_size
