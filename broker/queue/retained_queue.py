"""Retained messages: the acked messages of a queue that are kept for a replay, as a queue of their own.

Theory. For paging, recovery, checks and limits they are messages like others, in a queue that no vhost lists: it has
neither consumers nor bindings, and is deleted with the queue they come from. Only expiry differs. Where other queues
note with each message when it expires, this one notes when it was acked, and a message expires when that is longer ago
than the current retention time. So a changed retention time applies to all of them, and a replay knows when each was
acked.

Nothing puts messages into it but `broker.queue.retention`.
"""

from collections.abc import Collection

from leveret.broker.queue.limits import QueueLimits
from leveret.broker.queue.queue import SMALL, Queue
from leveret.broker.queue.settings import QueueSettings
from leveret.storage.message import Message


class RetainedLimits(QueueLimits):
    """Limits of retained messages: the arguments are those of `QueueLimits`."""

    __slots__ = ()

    def now(self) -> int:
        """Return the time (epoch ms) until which acked messages have expired."""
        return self._clock() - (self.settings.message_ttl or 0)

    def take_in(self, inbox: list[Message]) -> None:
        """Pass acked messages to the queue, each with the current time."""
        if self.settings.max_octets is not None:
            self._octets += sum([message.body_size for message in inbox])
        self._queue.take_in(inbox, expires=max(1, self._clock()))

    def _head_due(self) -> int:
        acked = super()._head_due()
        return acked and acked + (self.settings.message_ttl or 0)


class RetainedQueue(Queue):
    """The retained messages of a queue, oldest ack first; the arguments are those of `Queue`.

    The expiry of each (`storage.message.Message.expires`) is the time of its ack in milliseconds since the epoch.
    """

    __slots__ = ()

    limits_class: type[QueueLimits] = RetainedLimits

    def retain(self, settings: QueueSettings) -> None:
        """Apply the settings of the queue that the messages come from."""
        own = QueueSettings(
            message_ttl=settings.retain_for, max_octets=settings.retain_octets, lazy=settings.lazy
        )
        if own != self.settings:
            self.configure(own)

    def keep(self, messages: Collection[Message], *, largest: int, persistent: bool) -> None:
        """Append acked messages at the end of this turn; their originals must be removed in the same turn.

        Args:
            messages: the messages; those to be written to disk are `Persistent`, and count this copy.
            largest: size in bytes of the largest content.
            persistent: true if some of them are to be written.

        """
        self.inbox += messages
        if largest > SMALL and largest > self.largest:
            self.largest = largest
        if persistent:
            self.inbox_persistent = True
        self.touch()
