"""Promises of a queue that are open, and messages that its consumers hold, with the time for which they do."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from leveret.broker.administration.messages import Steps
from leveret.broker.queue.consumer import Consumer
from leveret.broker.queue.queue import Queue

MOST_CONSUMERS: Final = 200
"""Consumers of a queue that are looked at."""
_SCANNED: Final = 4096
"""Unacknowledged deliveries of a channel among which the oldest of a consumer is looked for."""


def promises_of(queue: Queue) -> dict[str, int] | None:
    """Return the numbers of promises of a queue that confirms on acknowledgement; None of any other.

    Returns:
        `open`, those without a verdict, whose publishers wait; `accepted` and `refused`, since the queue was loaded.

    """
    awaiting = queue.awaiting
    if awaiting is None:
        return None
    return {"open": awaiting.open_count, "accepted": awaiting.accepted, "refused": awaiting.refused}


def holders_of(queue: Queue, now: float) -> Steps[list[dict[str, Any]]]:
    """Return the consumers of a queue that hold messages.

    Args:
        queue: the queue.
        now: seconds of the broker's time source.

    Returns:
        `consumer_tag` and `channel`; `messages_unacknowledged`; `unacked_for`, the seconds since the oldest of them was
        delivered, within a second or two, None if that is not found among the first deliveries of the channel.

    """
    found = []
    for consumer in list(islice(queue.consumers, MOST_CONSUMERS)):
        if consumer.unacked:
            found.append(_holder(consumer, now))
        yield None
    return found


def _holder(consumer: Consumer, now: float) -> dict[str, Any]:
    channel: Any = consumer.channel
    return {
        "consumer_tag": consumer.tag,
        "channel": f"{channel.host.name} ({channel.number})",
        "messages_unacknowledged": consumer.unacked,
        "unacked_for": next(_ages(channel, consumer, now), None),
    }


def _ages(channel: Any, consumer: Consumer, now: float) -> Iterator[float]:
    """Yield the age of the deliveries of a consumer, the oldest first."""
    for tag, (receiver, _) in islice(channel.unacked.items(), _SCANNED):
        if receiver is consumer:
            yield 0.0 if channel.ages is None else channel.ages.age(tag, now)
