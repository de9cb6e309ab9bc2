"""Publish routes to queues that take out some of a run of publishes: repeats, what is too much, what is not due yet.

Hot path: see docs/performance.md.
"""

from collections.abc import Sequence

from leveret.broker.queue.hold import Hold
from leveret.broker.queue.interfaces import ClientChannel
from leveret.broker.queue.queue import SMALL, Queue
from leveret.broker.vhost.exchange_ids import ExchangeIds
from leveret.broker.vhost.publish_route import Route
from leveret.storage.message import Message, Persistent


class OnceRoute(Route):
    """The route to queues, or of an exchange, that take each message once (`Deduplication.sifts`)."""

    __slots__ = ("ids",)

    ids: ExchangeIds | None
    """The ids that the exchange knows, which come first; None if only queues take each message once."""

    def put(self, channel: ClientChannel, messages: Sequence[Message], largest: int) -> None:
        """Put the next messages of a channel into the inboxes of its queues, but for repeats; see `Route.put`."""
        count, once = len(messages), self.ids
        if once is not None:
            taken, refused = once.sift(messages)
            for at in refused:
                _refuse(channel, messages[at], at, copies=len(self.durable))
            messages = taken
        for queue in self.queues:
            taken = messages
            if (ids := queue.ids) is not None and ids.sifts:
                taken, refused = ids.sift(messages)
                for at in refused:
                    _refuse(channel, messages[at], at, copies=queue.durable)
            _fill(queue, taken, largest)
            if not queue.inbox:
                queue.inbox_persistent = False
        self._published(channel, count)


class RejectRoute(Route):
    """The route to queues of which some refuse publishes while they are full."""

    __slots__ = ()

    def put(self, channel: ClientChannel, messages: Sequence[Message], largest: int) -> None:
        """Put the next messages of a channel into the inboxes of its queues, but for refused ones; see `Route.put`."""
        for queue in self.queues:
            if queue.has_room_for(len(messages)):
                _fill(queue, messages, largest)
                continue
            for at, message in enumerate(messages):
                if not queue.put(message):
                    _refuse(channel, message, at, copies=queue.durable)
            if not queue.inbox:
                queue.inbox_persistent = False
        self._published(channel, len(messages))


class HoldRoute(Route):
    """The route to one queue, which may hold messages and is not plain only for that."""

    __slots__ = ()
    may_hold = True

    def put(self, channel: ClientChannel, messages: Sequence[Message], largest: int) -> None:
        """Put the next messages of a channel into the queue's hold or its inbox; raises 406 at a malformed time."""
        (queue,) = self.queues
        hold: Hold = queue.hold  # type: ignore[assignment] # or it would have another route
        ready, count = [], 0
        try:
            for message, due in zip(messages, hold.dues_of(messages), strict=True):
                if not due:
                    ready.append(message)
                elif hold.is_full():
                    _refuse(channel, message, count, copies=queue.durable)
                else:
                    hold.inbox.append((due, message))
                count += 1
        finally:
            if count > len(ready):
                hold.touch()
            super().put(channel, ready, largest)
            self._published(channel, count - len(ready))
            if not queue.inbox:
                queue.inbox_persistent = False


def _fill(queue: Queue, messages: Sequence[Message], largest: int) -> None:
    """Put messages into the inbox of a queue; see `Route.put`."""
    queue.inbox += messages
    queue.touch()
    if largest > SMALL and largest > queue.largest:
        queue.largest = largest


def _refuse(channel: ClientChannel, message: Message, at: int, *, copies: int) -> None:
    """Nack the publish that is `at` a place in the run that follows; so many of its stored copies are not there."""
    if isinstance(message, Persistent):
        message.refused()
        for _ in range(copies):
            message.copies -= 1
            message.accepted()
    elif channel.confirms is not None:
        channel.confirms.refused(channel.confirms.seq_no + 1 + at)
