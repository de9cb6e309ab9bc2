"""Consumers of an embedded broker: while it is hostile, some of their messages are delivered twice. Pure.

Theory. A message that is to be delivered twice stays unacked in its queue after its first delivery. In the channel's
table of unacked deliveries a `Former` takes the place of its consumer: the client may settle that delivery, which gives
credit and has no other effect. After some younger messages the message is due: it is requeued, and becomes the next
delivery, because its position is before theirs.

The order of deliveries depends on the seed and on the order of the messages, not on when the client acks or how many
messages a turn has: a hostile broker delivers one at a time, and the consumer has no room from the moment at which a
message is due until it is requeued.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, Self, cast

from leveret.broker.embedded.fault_state import Duplicates, FaultState
from leveret.broker.queue.consumer import ConsumedQueue, Consumer, DeliveryChannel
from leveret.broker.queue.queue import Queue, RunListener
from leveret.broker.queue.settings import NO_SETTINGS
from leveret.storage.message import Message


class FaultyDeliveryChannel(DeliveryChannel, Protocol):
    """A channel, as these consumers see it."""

    faults: FaultState


class _Ignored(list[int]):
    """A list that ignores what is added."""

    def append(self, each: int) -> None:
        """Do nothing."""

    def __iadd__(self, others: Iterable[int]) -> Self:  # type: ignore[override, misc]
        return self


class _Nowhere:
    """The queue of deliveries that were requeued without the client's knowledge: it ignores their settlement."""

    name = ""
    durable = False
    delivered = 0
    touched = True
    has_input = False
    settings = NO_SETTINGS

    def __init__(self) -> None:
        self.acks = _Ignored()

    def _ignore(self, *_: object) -> bool:
        return False

    run = give_up = touch = discard = requeue = rejoin = suspend = resume = _ignore


class Former:
    """Takes the place of the consumer of a delivery that the client may settle without effect.

    Args:
        consumer: the consumer that gets credit when the client settles the delivery; None if it got it already.

    """

    def __init__(self, consumer: Consumer | None = None) -> None:
        self.queue = _Nowhere()
        self._consumer = consumer
        self._unacked = 0

    def __repr__(self) -> str:
        return "<consumer of a delivery that was requeued>"

    @property
    def unacked(self) -> int:
        """Number of unsettled deliveries of the consumer."""
        return self._unacked if self._consumer is None else self._consumer.unacked

    @unacked.setter
    def unacked(self, count: int) -> None:
        if self._consumer is None:
            self._unacked = count
        else:
            self._consumer.unacked = count

    @property
    def parked(self) -> bool:
        """True if the consumer waits for credit."""
        return self._consumer is not None and self._consumer.parked

    @property
    def ack_timeout(self) -> int | None:
        """Timeout for acks in ms, that of the consumer."""
        return 0 if self._consumer is None else self._consumer.ack_timeout

    def give_back(self, count: int) -> None:
        """Subtract deliveries that were requeued or rejected from the unacked count."""
        if self._consumer is not None:
            self._consumer.give_back(count)

    def wake(self) -> None:
        """Wake the consumer, as `Consumer.wake`."""
        if self._consumer is not None:
            self._consumer.wake()


class HostileConsumer(Consumer, RunListener):
    """A consumer, which gets some of its messages twice while the broker is hostile."""

    __slots__ = ("_duplicates", "_faults")

    def __init__(
        self, tag: str, queue: ConsumedQueue, channel: FaultyDeliveryChannel, **options: Any
    ) -> None:
        super().__init__(tag, queue, channel, **options)
        self._faults = channel.faults
        self._duplicates = Duplicates()

    @property
    def room(self) -> int:
        """Number of messages that may be delivered now: one at a time to a slow consumer, or of a hostile broker.

        A hostile broker has no room while a message is due.
        """
        room, faults = super().room, self._faults
        if faults.seed is None:
            return room if faults.rate is None else min(room, 1)
        return 0 if self._duplicates.is_due else min(room, 1)

    def deliver(self, seq_ids: Sequence[int], messages: Sequence[Message], *, redelivered: bool) -> None:
        """Send messages, as `Consumer.deliver`, and choose those that are to be delivered twice."""
        super().deliver(seq_ids, messages, redelivered=redelivered)
        seed = self._faults.seed
        if seed is None or self.no_ack or redelivered:
            return
        channel = self.channel
        for tag, seq_id in enumerate(seq_ids, channel.delivery_tag - len(seq_ids) + 1):
            # In the mode consumer-ack-light the queue does not keep what it has delivered: it has other keys.
            if type(seq_id) is int and self._duplicates.delivered(seed, seq_id):
                former: Any = Former(self)  # not kept: it refers back
                channel.unacked[tag] = former, 0
                cast("Queue", self.queue).add_listener(self)

    def queue_ran(self, queue: Queue) -> None:
        """Requeue messages that are due, or all if no younger ones are left to be delivered before them."""
        if not queue.backing.ready_count or self.cancelled:
            self.release()
        elif self._duplicates.is_due:
            self._requeue(self._duplicates.take_due())

    def release(self) -> None:
        """Requeue the messages that wait for their second delivery. A turn must run afterwards."""
        self._requeue(self._duplicates.take_all())

    def _requeue(self, seq_ids: list[int]) -> None:
        queue = cast("Queue", self.queue)
        if not self._duplicates:
            queue.remove_listener(self)
        if seq_ids:
            queue.requeue(seq_ids)
            self.wake()
