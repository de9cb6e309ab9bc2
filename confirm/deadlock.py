"""Finds queues in which publishers and consumers wait for each other, in the modes that confirm on consumer ack.

Theory. A publisher waits for confirms before it publishes more, and a consumer for more deliveries before it acks
what it has. Neither ever moves. It looks like this: nothing is ready, nothing comes and nothing is acked, and who
has deliveries has room for more. That may also be a slow consumer, so nothing is done about it; it is told, once
for each queue.
"""

from collections.abc import Iterable
from typing import Protocol

TRAP_SECONDS = 10.0
"""How long nothing may have moved before it is told."""
TRAP = (
    "%r: %d messages wait for the acks of consumers that have room for more, and for %d seconds nothing was published "
    "or acked. If publishers wait for their confirms now, this never ends: let them have at least as many messages "
    "unconfirmed as all consumers together collect before they ack (their batches, or their prefetch counts), or "
    "set confirm.timeout"
)


class Taker(Protocol):
    """A consumer."""

    unacked: int

    @property
    def room(self) -> int:
        """How many more messages it may be given."""


class Promises(Protocol):
    """What a queue keeps of publishers who wait for its consumers."""

    @property
    def open_count(self) -> int:
        """Promises without a verdict."""

    @property
    def ready_count(self) -> int:
        """Messages that nobody has been given."""


class AwaitedQueue(Protocol):
    """A queue that may be such a trap."""

    published: int
    acked: int
    stillness: "Stillness | None"

    @property
    def awaiting(self) -> Promises | None:
        """None where nobody has ever waited for consumers."""

    @property
    def consumers(self) -> Iterable[Taker]:
        """Those it has."""


class Stillness:
    """Since when nothing has moved in a queue."""

    __slots__ = ("_counts", "_is_told", "_since")

    def __init__(self) -> None:
        self._counts = (-1, -1)
        self._since = 0.0
        self._is_told = False

    def lasts(self, now: float, *, published: int, acked: int, is_still: bool) -> bool:
        """Note how things are; true, once, if nothing has moved for too long."""
        if not is_still or (published, acked) != self._counts:
            self._counts = published, acked
            self._since = now
        if self._is_told or now - self._since < TRAP_SECONDS:
            return False
        self._is_told = True
        return True


def is_trapped(queue: AwaitedQueue, now: float) -> bool:
    """Whether a queue seems to be a trap, and nobody was told before.

    To be asked about once a second; `now` is seconds of a monotonic clock.
    """
    promises = queue.awaiting
    if promises is None:
        return False
    if queue.stillness is None:
        queue.stillness = Stillness()
    is_still = (
        promises.open_count > 0
        and not promises.ready_count
        and any(consumer.unacked and consumer.room > 0 for consumer in queue.consumers)
    )
    return queue.stillness.lasts(now, published=queue.published, acked=queue.acked, is_still=is_still)
