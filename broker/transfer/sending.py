"""Sending a message from one queue to others, with the promise to its publisher.

Theory. As for dead letters (`broker.vhost.dead_lettering`): the copies enter their queues' inboxes in the turn in which
the original is removed, so one commit has both. A publisher that waits for the original waits for the copies: for those
in queues that confirm on consumer acks until they are consumed, for the others until they are on disk.
"""

from collections.abc import Callable

from leveret.broker.amqp.properties import delivery_mode
from leveret.broker.transfer.destinations import Resolved
from leveret.broker.vhost.publish_route import PERSISTENT_MODE, saved_among
from leveret.confirm.promise import Promise, joined
from leveret.storage.message import Message, Moved, Persistent, Promised, moving


def send(
    original: Message, resolved: Resolved, blob_threshold: int, on_safe: Callable[[bool], object] | None
) -> bool:
    """Put a message into its destination queues, all of which have room for it.

    Args:
        original: the message where it was, with its promise.
        resolved: the message as it goes on.
        blob_threshold: bytes from which a content is written to a file of its own.
        on_safe: None for a copy, whose original keeps its promise. Otherwise called if the result is False, as by a
            `Moved`.

    Returns:
        Whether the original can be removed in this turn; if not, `on_safe` is called when it can.

    """
    message, queues = resolved
    copy = Message(message.address, message.content, message.channel_id)
    promise = original.promise if on_safe is not None else None
    others = [*queues]
    if isinstance(promise, Promise):
        awaited = [queue for queue in queues if queue.awaits_consumers]
        others = [queue for queue in queues if not queue.awaits_consumers]
        promised = Promised(copy.address, copy.content, copy.channel_id, promise)
        for queue in awaited:
            promise.open += 1
            if not queue.put(promised):
                promise.refused()
            queue.tally.forwarded += 1
    durable = saved_among(others, persistent=delivery_mode(copy.header) == PERSISTENT_MODE)
    if durable:
        publisher, seq_no = (None, 0) if on_safe is None else joined(original)
        copy = moving(copy, len(durable), blob_threshold, on_safe, publisher=publisher, seq_no=seq_no)
    for queue in others:
        queue.tally.forwarded += 1
        if not queue.put(copy) and queue.durable and isinstance(copy, Persistent):
            copy.refused()
            copy.accepted()
    return not isinstance(copy, Moved)
