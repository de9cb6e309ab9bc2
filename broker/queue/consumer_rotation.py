"""Consumers of a queue: the rotation of those with room, priorities, and the single active consumer.

Theory. Consumers that can take a message are in `ready`, in the order in which they are served. One without credit or
with a full outbox is parked and rejoins at the end, or at the end of its priority, so the round-robin is strict among
those that are ready. Cancelled consumers stay in `ready` until the next run of the queue. With a single active consumer
the others wait outside the rotation, in a heap. While a queue is paused by an operator, or suspended because messages
are being requeued, all are held back, and `ready` is empty: nothing else checks for a pause.

Hot path: see docs/performance.md.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from types import MappingProxyType
from typing import cast

from leveret.broker.queue.consumer import Consumer
from leveret.storage.queues.backing_queue import Fetched

_SHARE = 256  # messages delivered at a time
_SHARE_OCTETS = 1024 * 1024  # and about so many bytes, where messages are large
_FEW = 8  # maximum number of consumers removed from the rotation one by one
_CAPACITY_WEIGHT = 0.13  # of one sample per second: a sample from five seconds ago has half the weight


class ConsumerRotation:
    """All consumers of a queue, and the rotation of those that can take a message.

    Iterating yields the consumers in the order in which they were added, whether they can take a message or not.
    """

    __slots__ = (
        "_added",
        "_capacity",
        "_consumers",
        "_held_back",
        "_is_alike",
        "_prioritised",
        "_suspensions",
        "_waiting",
        "active",
        "cancelled",
        "exclusive",
        "is_paused",
        "ready",
        "single_active",
    )

    def __init__(self, *, single_active: bool = False) -> None:
        self.single_active = single_active  # one at a time gets messages (`x-single-active-consumer`)
        self._consumers = _NOBODY
        self.ready = _NOBODY_READY  # those with room, in the order of service; some may be cancelled
        self.cancelled = 0  # number of cancelled consumers in `ready`; `sweep` removes them
        self.active: Consumer | None = None  # with `single_active`; others wait outside the rotation
        self.exclusive: Consumer | None = None  # the exclusive consumer, or None
        self._waiting = _NOBODY_WAITING
        """Heap of the consumers that wait to become active, by priority, then age; some may be cancelled."""
        self._added = 0  # number of consumers that have been added to `_waiting`
        self._prioritised = False
        """True if some consumer has (or had) a priority other than 0, so that `ready` is ordered by priority."""
        self._is_alike: bool | None = None  # that of `_are_alike`; None once consumers were added or removed
        self.is_paused = False  # true between `pause` and `unpause`
        self._suspensions = 0  # number of reasons to hold back the consumers, the pause among them
        self._held_back = _NOBODY  # consumers that would be in the rotation if the queue were not suspended
        self._capacity = 1.0

    def __len__(self) -> int:
        return len(self._consumers)

    def __iter__(self) -> Iterator[Consumer]:
        return iter(self._consumers)

    # -- delivery -----------------------------------------------------------------------------------------------------

    def next_share(self, available: int, largest: int) -> tuple[Sequence[Consumer], int]:
        """Return the next consumers in the rotation, and the number of messages they take together (<= `available`).

        The number is 0 if the first has no room left: others have used up the prefetch of the channel or the outbox
        that it shares with them. `largest` is the size in bytes of the largest message, 0 if all are small.

        Several consumers are served in one stride if each has a channel of its own and either all or none need acks.
        Each channel then sees the same order as with one message at a time. With fewer messages than consumers, or if
        some have no room, a stride has the first of them, with one message each.
        """
        ready = self.ready
        step = max(1, _SHARE_OCTETS // largest) if largest else _SHARE
        width = len(ready)
        first = ready[0]
        room = first.room
        if room <= 0:
            return (first,), 0
        if width == 1:
            return (first,), min(available, room, step)
        if available >= width:
            if self._is_alike is None:
                self._is_alike = self._are_alike()
            if self._is_alike:
                consumers = list(ready)
                room = min(available // width, max(1, step // width))
                for consumer in consumers:
                    left = consumer.limit - consumer.unacked
                    if consumer.outbox.full or consumer.channel.global_prefetch:
                        left = consumer.room
                    room = min(room, left)
                    if room <= 0:
                        break
                else:
                    return consumers, room * width
        most = min(available, step)
        if most == 1:
            return (first,), 1
        consumers = self._first_alike(most)
        return consumers, len(consumers)

    def _first_alike(self, most: int) -> list[Consumer]:
        """Return the first consumers in the rotation, of which the first has room, that may be served in one stride."""
        first = self.ready[0]
        if self._prioritised:
            return [first]
        found: list[Consumer] = []
        channels = set()
        for consumer in islice(self.ready, most):
            channel = consumer.channel
            if (
                consumer.unacked >= consumer.limit
                or consumer.outbox.full
                or channel in channels
                or consumer.no_ack is not first.no_ack
                or type(consumer).room is not Consumer.room
                or (channel.global_prefetch and consumer.room <= 0)
            ):
                break
            channels.add(channel)
            found.append(consumer)
        return found or [first]

    def _are_alike(self) -> bool:
        """Return whether consumers may be served in strides; evaluated again when consumers are added or removed."""
        consumers = list(self._consumers)
        first = consumers[0]
        return (
            not self._prioritised
            and len({consumer.channel for consumer in consumers}) == len(consumers)
            and all(consumer.no_ack is first.no_ack for consumer in consumers)
            and all(type(consumer).room is Consumer.room for consumer in consumers)
        )

    def park_first(self) -> None:
        """Remove the first consumer from the rotation until it has room again."""
        self.ready.popleft().park()

    def deliver(self, consumers: Sequence[Consumer], batch: Fetched) -> None:
        """Deliver a share round-robin; park consumers without room, and keep the order of the others."""
        seq_ids, messages, redelivered = batch
        width = len(consumers)
        ready = self.ready
        if width == 1:
            consumer = consumers[0]
            consumer.deliver(seq_ids, messages, redelivered=redelivered)
            if consumer.room <= 0:
                ready.popleft()
                consumer.park()
            elif self._prioritised:
                ready.popleft()
                _insert_by_priority(ready, consumer)
            elif len(ready) > 1:
                ready.rotate(-1)
            return
        if len(messages) <= width < len(ready):
            self._deliver_one_each(consumers, batch)
            return
        for at in range(min(width, len(messages))):
            consumers[at].deliver(seq_ids[at::width], messages[at::width], redelivered=redelivered)
        ready.rotate(-len(messages))
        full = [
            consumer
            for consumer in consumers
            if consumer.unacked >= consumer.limit
            or consumer.outbox.full
            or (consumer.channel.global_prefetch and consumer.room <= 0)
        ]
        if len(full) > _FEW:
            out = set(full)
            left = [consumer for consumer in ready if consumer not in out]
            ready.clear()
            ready.extend(left)
        for consumer in full:
            if len(full) <= _FEW:
                ready.remove(consumer)
            consumer.park()

    def _deliver_one_each(self, consumers: Sequence[Consumer], batch: Fetched) -> None:
        ready = self.ready
        for consumer, seq_id, message in zip(consumers, batch.seq_ids, batch.messages, strict=False):
            consumer.deliver((seq_id,), (message,), redelivered=batch.redelivered)
            ready.popleft()
            if consumer.room <= 0:
                consumer.park()
            else:
                ready.append(consumer)

    # -- consumers that come and go -----------------------------------------------------------------------------------

    def add(self, consumer: Consumer) -> None:
        """Add a consumer, and wake it unless it has to wait for the active one."""
        if not self._consumers:
            self._consumers = {}
            self.ready = deque()
            self._capacity = 1.0
        self._consumers[consumer] = None
        self._is_alike = None
        if consumer.exclusive:
            self.exclusive = consumer
        if consumer.priority:
            self._prioritised = True
        if self.single_active:
            if self.active is not None:
                self._add_waiting(consumer)
                return
            self.active = consumer
        consumer.parked = True
        consumer.wake()

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer and mark it as cancelled; if it was the active one, the next becomes active."""
        _cancel(consumer)
        del self._consumers[consumer]
        self._is_alike = None
        if not consumer.parked and self.is_active(consumer):
            self.cancelled += 1
            if self.cancelled > len(self.ready) // 2:
                self.sweep()
        if self._held_back:
            self._held_back.pop(consumer, None)  # a pause may last, while consumers come and go
        if self.exclusive is consumer:
            self.exclusive = None
        if self.active is consumer:
            self._activate_next()
        if not self._consumers:
            self._reset()

    def clear(self) -> list[Consumer]:
        """Remove all consumers, as `remove` does, and return them; none of them becomes active meanwhile."""
        removed = list(self._consumers)
        for consumer in removed:
            _cancel(consumer)
        self.active = self.exclusive = None
        self._reset()
        return removed

    def _reset(self) -> None:
        self._consumers = _NOBODY
        self.ready = _NOBODY_READY
        self.cancelled = 0
        self._waiting = _NOBODY_WAITING
        self._held_back = _NOBODY
        self._prioritised = False
        self._is_alike = None

    def _add_waiting(self, consumer: Consumer) -> None:
        if not self._waiting:
            self._waiting = []
        elif len(self._waiting) > 2 * len(self._consumers):  # most of them are cancelled
            self._waiting = [entry for entry in self._waiting if not entry[2].cancelled]
            heapify(self._waiting)
        self._added += 1
        heappush(self._waiting, (-consumer.priority, self._added, consumer))

    def _activate_next(self) -> None:
        """Replace the single active consumer by the waiting one of the highest priority, then the oldest."""
        self.active = None
        waiting = self._waiting
        while waiting:
            consumer = heappop(waiting)[2]
            if not consumer.cancelled:
                self.active = consumer
                consumer.parked = True
                consumer.wake()
                return

    def step_down(self, consumer: Consumer) -> None:
        """Replace a single active consumer that may get nothing before `step_up`."""
        if self.active is consumer:
            if not consumer.parked:
                self.ready.remove(consumer)
            elif self._held_back:
                self._held_back.pop(consumer, None)
            consumer.parked = False
            self._activate_next()

    def step_up(self, consumer: Consumer) -> None:
        """Let a consumer wait to become active again, at once if there is no active one."""
        if self.single_active and self.active is not consumer:
            self._add_waiting(consumer)
            if self.active is None:
                self._activate_next()

    def is_active(self, consumer: Consumer) -> bool:
        """Return whether a consumer would get messages if there were any and it had room."""
        return not self.single_active or self.active is consumer

    def activity_status(self, consumer: Consumer) -> str:
        """Return RabbitMQ's activity status of a consumer: up, or with `single_active` single_active or waiting."""
        if not self.single_active:
            return "up"
        return "single_active" if self.active is consumer else "waiting"

    def sweep(self) -> None:
        """Remove cancelled consumers from the rotation; done for many at once, because it scans the whole rotation."""
        self.cancelled = 0
        left = [consumer for consumer in self.ready if not consumer.cancelled]
        self.ready.clear()
        self.ready.extend(left)

    # -- room ---------------------------------------------------------------------------------------------------------

    def rejoin(self, consumer: Consumer) -> bool:
        """Put a consumer with room at the end of the rotation, or of its priority; return false if it is suspended."""
        if self._suspensions:
            self._hold_back(consumer)
            return False
        if self._prioritised:
            _insert_by_priority(self.ready, consumer)
        else:
            self.ready.append(consumer)
        return True

    @property
    def is_suspended(self) -> bool:
        """True between `suspend` and `resume`; a pause does not count."""
        return self._suspensions > self.is_paused

    def pause(self) -> None:
        """Take all consumers out of the rotation until `unpause`, as `suspend` does; must not be paused."""
        self.suspend()
        self.is_paused = True

    def unpause(self) -> bool:
        """Wake the consumers again, unless they are suspended; return true if they are not. Must be paused."""
        self.is_paused = False
        return self.resume()

    def suspend(self) -> None:
        """Take all consumers out of the rotation until `resume` has been called as many times."""
        self._suspensions += 1
        if self.ready:
            for consumer in self.ready:
                if not consumer.cancelled:
                    self._hold_back(consumer)
            self.ready.clear()
        self.cancelled = 0

    def resume(self) -> bool:
        """Wake the consumers again; return true if the rotation is no longer suspended."""
        self._suspensions -= 1
        if self._suspensions:
            return False
        held_back, self._held_back = self._held_back, _NOBODY
        for consumer in held_back:
            consumer.wake()
        return True

    def _hold_back(self, consumer: Consumer) -> None:
        """Keep a consumer out of the rotation until `resume`."""
        consumer.parked = True
        if not self._held_back:
            self._held_back = {}
        self._held_back[consumer] = None

    # -- capacity -----------------------------------------------------------------------------------------------------

    @property
    def capacity(self) -> float:
        """Fraction of the last seconds, 0 to 1, in which an arrival would have been delivered immediately.

        As RabbitMQ's `consumer_capacity`: 0 without consumers, and it decreases while no consumer has room for ready
        messages.
        """
        return self._capacity if self._consumers else 0.0

    def sample_capacity(self, *, is_idle: bool) -> None:
        """Sample whether consumers have room, or no message is ready (`is_idle`); call it about once a second."""
        if self._consumers:
            able = is_idle or len(self.ready) > self.cancelled
            self._capacity += (able - self._capacity) * _CAPACITY_WEIGHT


# Shared by all queues without consumers: ten thousand idle queues should not own empty tables. They are immutable, so a
# write without a check raises an exception instead of giving a consumer to every queue.
_NOBODY = cast("dict[Consumer, None]", MappingProxyType({}))
_NOBODY_READY = cast("deque[Consumer]", ())
_NOBODY_WAITING = cast("list[tuple[int, int, Consumer]]", ())


def _cancel(consumer: Consumer) -> None:
    consumer.cancelled = True
    consumer.outbox.parked.pop(consumer, None)


def _descending(consumer: Consumer) -> int:
    return -consumer.priority


def _insert_by_priority(ready: deque[Consumer], consumer: Consumer) -> None:
    """Insert a consumer after those of its priority; cheap at both ends."""
    priority = consumer.priority
    if not ready or ready[-1].priority >= priority:
        ready.append(consumer)
    elif ready[0].priority < priority:
        ready.appendleft(consumer)
    else:
        ready.insert(bisect_right(ready, -priority, key=_descending), consumer)
