"""Publish routes to queues that take each message once: the ids of a run of publishes are read in one go.

Hot path: see docs/performance.md.
"""

from collections.abc import Sequence

from leveret.broker.queue.interfaces import ClientChannel
from leveret.broker.queue.queue import SMALL
from leveret.broker.vhost.publish_route import Route
from leveret.storage.message import Message, Persistent


class OnceRoute(Route):
    """The route to queues of which some take each message once (`broker.queue.deduplication.Deduplication.sifts`)."""

    __slots__ = ()

    def put(self, channel: ClientChannel, messages: Sequence[Message], largest: int) -> None:
        """Put the next messages of a channel into the inboxes of its queues, but for repeats; see `Route.put`."""
        count = len(messages)
        for queue in self.queues:
            taken = messages
            if (ids := queue.ids) is not None and ids.sifts:
                taken, refused = ids.sift(messages, largest)
                for at in refused:
                    _refuse(channel, messages[at], at, is_durable=queue.durable)
            queue.inbox += taken
            queue.touch()
            if not queue.inbox:
                queue.inbox_persistent = False
            if largest > SMALL and largest > queue.largest:
                queue.largest = largest
        channel.published += count
        self.tally.published += count
        if channel.confirms is not None:
            channel.number_publishes(self, count)


def _refuse(channel: ClientChannel, message: Message, at: int, *, is_durable: bool) -> None:
    """Nack the publish that is `at` a place in the run that follows; the queue has no copy of its message."""
    if isinstance(message, Persistent):
        message.refused()
        if is_durable:
            message.copies -= 1
            message.accepted()
    elif channel.confirms is not None:
        channel.confirms.refused(channel.confirms.seq_no + 1 + at)
