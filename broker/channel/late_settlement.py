"""Deliveries that are in their queue again before the client has settled them.

Their records stay in the channel's table of unacked deliveries, because the client may settle each of them once; that
has no effect on messages. So something else takes the place of their consumer, and `Nowhere` that of their queue.
"""

from collections.abc import Collection, Iterable
from typing import Self, cast

from leveret.broker.queue.consumer import Consumer, GetRecipient
from leveret.broker.queue.interfaces import OwningQueue
from leveret.broker.queue.settings import NO_SETTINGS


class _Ignored(list[int]):
    def append(self, each: int) -> None:
        """Do nothing."""

    def __iadd__(self, others: Iterable[int]) -> Self:  # type: ignore[override, misc]
        return self


class Nowhere:
    """The queue of such deliveries: it ignores what becomes of them."""

    name = type = ""
    durable = False
    delivered = 0
    touched = True
    has_input = False
    settings = NO_SETTINGS
    ids = None

    def __init__(self) -> None:
        self.acks = _Ignored()

    def _ignore(self, *_: object, **_options: object) -> bool:
        return False

    run = give_up = touch = discard = requeue = ack_moved = rejoin = suspend = resume = _ignore

    def join(self, _keys: Collection[int]) -> list[object]:
        """Return the publishers that wait for the messages: none."""
        return []


class OverdueDeliveries:
    """Those that were requeued because a consumer did not settle them in time.

    The consumer gets no messages from the first one (`add`) until its client has settled all.
    """

    __slots__ = ("_consumer", "_limit", "_unacked", "queue")
    ack_timeout = 0  # none: they were late once
    parked = False

    def __init__(self, consumer: Consumer) -> None:
        self.queue = cast("OwningQueue", Nowhere())
        self._consumer = consumer
        self._limit = consumer.limit
        self._unacked = 0

    def add(self, count: int) -> None:
        """Add deliveries of the consumer, which has no room from now on."""
        consumer = self._consumer
        consumer.limit = 0
        consumer.give_back(count)
        self._unacked += count
        if not consumer.unacked:
            consumer.queue.consumers.step_down(consumer)

    @property
    def unacked(self) -> int:
        """Number of deliveries that the client has not settled."""
        return self._unacked

    @unacked.setter
    def unacked(self, count: int) -> None:
        self._unacked = count
        consumer = self._consumer
        if not count and not consumer.cancelled:
            consumer.limit = self._limit
            consumer.queue.consumers.step_up(consumer)
            consumer.wake()
            consumer.queue.touch()

    def give_back(self, count: int) -> None:
        """Subtract deliveries that were rejected from the count."""
        self.unacked -= count

    def wake(self) -> None:
        """Do nothing: the consumer is woken with the last settlement."""


Receiver = Consumer | GetRecipient | OverdueDeliveries  # the consumer of a delivery, or what stands for it
