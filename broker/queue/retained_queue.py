"""Retained messages: the acked messages of a queue that are kept for a replay, as a queue of their own.

Theory. For paging, recovery, checks and limits they are messages like others, in a queue that no vhost lists: it has
neither consumers nor bindings, and is deleted with the queue they come from. Only expiry differs. Where other queues
note with each message when it expires, this one notes when it was acked, and a message expires when that is longer ago
than the current retention time. So a changed retention time applies to all of them, and a replay knows when each was
acked.

Small messages that were acked in the same turn are one message here, a bundle (`broker.queue.bundle`): they have the
same time and leave together, so all that a queue does for each of its messages is done once for hundreds. How many a
bundle of an earlier run has is not known before it is read: until it leaves it counts as one.

Nothing puts messages into it but `broker.queue.retention`.
"""

from collections.abc import Collection
from typing import Any

from leveret.broker.queue.bundle import bundle_length
from leveret.broker.queue.limits import QueueLimits
from leveret.broker.queue.queue import SMALL, Queue
from leveret.broker.queue.settings import QueueSettings
from leveret.storage.message import Message


class RetainedLimits(QueueLimits):
    """Limits of retained messages: the arguments are those of `QueueLimits`."""

    __slots__ = ()

    _queue: "RetainedQueue"

    def now(self) -> int:
        """Return the time (epoch ms) until which acked messages have expired."""
        return self._clock() - (self.settings.message_ttl or 0)

    def take_in(self, inbox: list[Message]) -> None:
        """Pass acked messages to the queue, each with the current time."""
        if self.settings.max_octets is not None:
            self._octets += sum([message.body_size for message in inbox])
        self._queue.take_in(inbox, expires=max(1, self._clock()))

    def _left(self, messages: Collection[Message]) -> None:
        super()._left(messages)
        self._queue.left(messages)

    def end(self) -> bool:
        """End a run of the queue; see `QueueLimits.end`."""
        if not self._queue.backing.ready_count:
            self._queue.emptied()  # resets any inaccuracy, as after damage
        return super().end()

    def _head_due(self) -> int:
        acked = super()._head_due()
        return acked and acked + (self.settings.message_ttl or 0)


class RetainedQueue(Queue):
    """The retained messages of a queue, oldest ack first; the arguments are those of `Queue`.

    The expiry of each (`storage.message.Message.expires`) is the time of its ack in milliseconds since the epoch.
    """

    __slots__ = ("_not_counted", "message_count")

    limits_class: type[QueueLimits] = RetainedLimits

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.message_count = 0
        """Number of acked messages, those of bundles included; at least so many if `is_counted` is false."""
        self._not_counted = 0
        """Messages from an earlier run at the head, which may be bundles, each counted as one."""

    @property
    def is_counted(self) -> bool:
        """True if `message_count` is exact."""
        return not self._not_counted

    def recovered(self) -> None:
        """Apply limits and expiry to the messages of an earlier run, after they were recovered."""
        self.message_count = self._not_counted = self.backing.ready_count
        super().recovered()

    def left(self, messages: Collection[Message]) -> None:
        """Count messages that leave the head."""
        known = messages
        if self._not_counted:
            earlier = min(self._not_counted, len(messages))
            self._not_counted -= earlier
            self.message_count -= earlier
            known = list(messages)[earlier:]
        self.message_count -= sum(map(bundle_length, known))

    def emptied(self) -> None:
        """Count nothing: no message is left."""
        self.message_count = self._not_counted = 0

    def retain(self, settings: QueueSettings) -> None:
        """Apply the settings of the queue that the messages come from."""
        own = QueueSettings(
            message_ttl=settings.retain_for, max_octets=settings.retain_octets, lazy=settings.lazy
        )
        if own != self.settings:
            self.configure(own)

    def keep(self, messages: Collection[Message], *, count: int, largest: int, persistent: bool) -> None:
        """Append acked messages at the end of this turn; their originals must be removed in the same turn.

        Args:
            messages: the messages, or bundles; those to be written to disk are `Persistent`, and count this copy.
            count: number of acked messages.
            largest: size in bytes of the largest content.
            persistent: true if some of them are to be written.

        """
        self.inbox += messages
        self.message_count += count
        if largest > SMALL and largest > self.largest:
            self.largest = largest
        if persistent:
            self.inbox_persistent = True
        self.touch()
