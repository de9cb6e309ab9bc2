"""Queue limits: message TTL, queue expiry, length limits, overflow and delivery limit.

Theory. A queue with any of these has `QueueLimits`; others have none and pay one check per turn. Discarded messages are
published to the dead letter exchange if there is one (`broker.queue.dead_letter_line`), and removed only then, in the
same commit. A message that must be read from disk first is waited for: the queue runs again when it has been read.

All of this stops when the step of the event loop is over. Until the remaining messages are discarded the queue *is
behind*: it delivers nothing, and operations that need the exact state wait (`Queue.catch_up`).

Only the head is checked for expiry, as in RabbitMQ: an expired message behind one that has not expired stays until it
reaches the head. The queue has one timer, for the expiry of the head or of the queue, whichever is first; it may fire
early, since it is not moved when the head is removed, but never late.

Hot path: see docs/performance.md.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Protocol

from leveret.broker.amqp.properties import (
    Properties,
    any_may_expire,
    expiration,
    may_expire,
    parse_expiration,
)
from leveret.broker.counters.totals import QueueTally
from leveret.broker.queue.dead_letter_line import DeadLetterLine, DeadLetterPublisher, DiscardingQueue
from leveret.broker.queue.retention import Retention
from leveret.broker.queue.retention_protocols import RetainingQueue
from leveret.broker.queue.settings import DROP_HEAD, NO_SETTINGS, REJECT_PUBLISH_DLX, QueueSettings
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.wall_timers import Timer
from leveret.storage.message import Message
from leveret.storage.queues.backing_queue import BackingQueue, Fetched

EXPIRED, REJECTED, MAXLEN, DELIVERY_LIMIT = "expired", "rejected", "maxlen", "delivery_limit"
"""Reasons for which a queue discards a message."""
FULL, TOO_LARGE = "full", "too large"
"""Reasons for which a queue cannot take a message."""
_STEP = 256
"""Messages discarded between two checks of the time."""


class LimitedQueue(DiscardingQueue, RetainingQueue, Protocol):
    """A queue, as its limits see it."""

    inbox: list[Message]
    acks: list[int]
    tally: QueueTally

    @property
    def consumer_count(self) -> int:
        """Number of consumers, ready or not."""

    def settle(self) -> None:
        """Process the acks and arrivals collected in this turn."""

    def take_in(self, messages: list[Message], *, expires: int) -> None:
        """Deliver arrivals to consumers, or enqueue them."""

    def taken(self, count: int) -> None:
        """Record that the first `count` arrivals were enqueued before an error."""

    def drop_rejected(self, keys: Collection[int], *, moved: bool) -> None:
        """Remove rejected messages that do not become dead letters."""

    def finish(self) -> None:
        """Empty a deleted queue after it has discarded what it had to."""


class ParentVHost(DeadLetterPublisher, Protocol):
    """The vhost, which expires queues and publishes their dead letters."""

    context: NodeContext

    def expire(self, queue: Any) -> None:
        """Delete an unused queue."""

    def queue_finished(self, queue: Any) -> None:
        """Called when a deleted queue has discarded what it had to."""

    def make_retention(self, queue: Any, before: BackingQueue | None) -> Retention:
        """Create the retention of a queue, with the queue of its retained messages; `before` had the last ones."""


class QueueLimits:
    """Limits and expiry of one queue.

    Args:
        queue: the queue.
        parent: its vhost.

    """

    __slots__ = (
        "_can_exceed",
        "_clock",
        "_ended",
        "_has_expired",
        "_is_running",
        "_last_used",
        "_lost",
        "_octets",
        "_parent",
        "_queue",
        "_retained_before",
        "_returned",
        "_returns",
        "_size_count",
        "_timer",
        "dead_letters",
        "retention",
        "settings",
    )

    def __init__(self, queue: LimitedQueue, parent: ParentVHost) -> None:
        self._queue = queue
        self._parent = parent
        self._clock = parent.context.clock
        self.settings = NO_SETTINGS
        self.dead_letters = DeadLetterLine(queue, parent)
        """Unacked messages on their way to the dead letter exchange."""
        self.retention: Retention | None = None
        """Takes the acks if the queue retains acked messages."""
        self._retained_before: BackingQueue | None = None
        """The backing queue of the retention that was ended last."""
        self._can_exceed = False
        """True if the queue drops messages over a limit."""
        self._has_expired = False
        """True if the head has expired, but the queue had no time to discard it."""
        self._ended: int | None = None
        """Time of the deletion of the queue (epoch ms): messages that expire later are not dead-lettered."""
        self._octets = 0
        """Total body size of ready messages in bytes, if it is limited."""
        self._size_count: Iterator[int] | None = None
        """Iterator over the sizes still to be added for messages that were ready before the limit was set."""
        self._lost = 0
        """Bytes that the backing queue had lost as damaged when `_octets` was last corrected."""
        self._returns: dict[int, int] = {}
        """Requeue counts of unacked messages, if there is a delivery limit."""
        self._returned: dict[int, int] = {}
        """Requeue counts of ready messages, if there is a delivery limit."""
        self._is_running = False
        """True during a run of the queue: a dead letter routed back to it must not start another."""
        self._last_used = self._clock()
        self._timer: Timer | None = None

    def configure(self, settings: QueueSettings) -> None:
        """Apply changed settings; the caller must run the queue afterwards."""
        if settings.expires != self.settings.expires:
            self._last_used = self._clock()
        was_limited = self.settings.max_octets is not None
        self.settings = settings
        is_limited = settings.max_length is not None or settings.max_octets is not None
        self._can_exceed = is_limited and settings.overflow == DROP_HEAD
        if settings.max_octets is None:
            self._size_count = None
        self._queue.backing.count_returns(counted=settings.delivery_limit is not None)
        if settings.delivery_limit is None:
            self._returns.clear()
            self._returned.clear()
        if not was_limited:
            self.recount()
        self._configure_retention(settings)

    def _configure_retention(self, settings: QueueSettings) -> None:
        """Begin or end to retain acked messages, or apply other limits to them."""
        if not settings.retains:
            self._close_retention()
        elif not self._queue.deleted:
            if self.retention is None:
                self.retention = self._parent.make_retention(self._queue, self._retained_before)
                self._retained_before = None
            self.retention.retained.retain(settings)

    def _close_retention(self) -> None:
        if self.retention is not None:
            self._retained_before = self.retention.retained.backing
            self.retention.close()
            self.retention = None

    def recount(self) -> None:
        """Count the bytes of messages that were ready before the limit was set."""
        if self.settings.max_octets is not None:
            self._octets = 0
            self._lost = self._queue.backing.lost_octets
            self._size_count = summands = self._queue.backing.ready_octets()
            self._queue.turn.slices.add(self._count_octets(summands), f"size of {self._queue}")

    def _count_octets(self, summands: Iterator[int]) -> Iterator[None]:
        """Job that adds the sizes of messages ready when it began; `_octets` has the changes since then."""
        for octets in summands:
            if self._size_count is not summands:
                return
            self._octets += octets
            yield
        self._size_count = None
        self._queue.touch()

    @property
    def octets(self) -> int:
        """Total body size of ready messages in bytes, if it is limited."""
        self._forget_lost()
        return max(0, self._octets)

    def _forget_lost(self) -> None:
        """Subtract the sizes of messages that turned out to be damaged."""
        lost = self._queue.backing.lost_octets
        if lost != self._lost:
            self._octets -= lost - self._lost
            self._lost = lost

    def close(self) -> None:
        """Cancel the timer and the counting job."""
        self._size_count = None
        if self._timer is not None:
            self._parent.context.timers.cancel(self._timer)
            self._timer = None

    def used(self) -> None:
        """Restart the time until the unused queue expires."""
        self._last_used = self._clock()

    @property
    def has_lapsed(self) -> bool:
        """True if the queue has no consumer and was unused for `x-expires`."""
        lifetime = self.settings.expires
        if lifetime is None or self._queue.consumer_count:
            return False
        return self._clock() >= self._last_used + lifetime

    # -- deferred work ----------------------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """True if ready messages must be discarded before deliveries: they exceed a limit, or have expired."""
        return self._has_expired or (self._can_exceed and bool(self._excess()))

    @property
    def wants_time(self) -> bool:
        """True if the queue could discard more messages, but the step was over."""
        return self.dead_letters.wants_time or (self.is_behind and self._queue.turn.slices.is_over())

    @property
    def is_discarding(self) -> bool:
        """True if messages wait to be discarded, for any reason, or acked ones to be retained."""
        is_retaining = self.retention is not None and not self.retention.is_done
        return bool(self.dead_letters) or self.is_behind or is_retaining

    def queue_deleted(self) -> bool:
        """Handle the deletion of the queue; return whether there is nothing left to discard.

        Messages rejected, expired or over a limit by now are still dead-lettered; the queue's `finish` is called after
        the last of them. Without a dead letter exchange there is nothing to wait for.
        """
        self.close()
        self._close_retention()
        if self.settings.dead_letter_exchange is None:
            return True
        self._ended = self._clock()
        self._check_head()
        return self._is_finished

    def _check_head(self) -> None:
        """Check whether the head has expired; a head that is being read from disk counts as expired."""
        backing = self._queue.backing
        if backing.expiring and backing.ready_count:
            length, expired = backing.head_run(self.now(), 1)
            self._has_expired = expired or not length

    @property
    def _is_finished(self) -> bool:
        return self.dead_letters.is_done and not self.is_behind

    def now(self) -> int:
        """Return the time (epoch ms) until which messages have expired."""
        return self._clock() if self._ended is None else self._ended

    # -- publishes --------------------------------------------------------------------------------------------------

    def refuses(self, message: Message) -> bool:
        """Return whether a publish is refused because the queue is full; with `reject-publish-dlx` dead-letter it."""
        settings = self.settings
        if not settings.rejects or not self._is_full_for(message):
            return False
        if settings.overflow == REJECT_PUBLISH_DLX:
            self._parent.dead_letter(self._queue, [(-1, message)], MAXLEN)
        return True

    def _is_full_for(self, message: Message) -> bool:
        queue, length, octets = self._queue, self.settings.max_length, self.settings.max_octets
        inbox, backing = queue.inbox, queue.backing
        if (
            octets is not None or (length is not None and backing.ready_count + len(inbox) >= length)
        ) and not self._is_running:
            queue.settle()  # some arrivals are delivered directly to consumers
        if length is not None and backing.ready_count + len(inbox) >= length:
            return True
        if octets is None:
            return False
        self._forget_lost()
        return self._octets + sum([each.body_size for each in inbox]) + message.body_size > octets

    def obstacle(self, message: Message, count: int, octets: int) -> str:
        """Return why the queue would refuse a message, or could not even keep it alone; '' if it takes it.

        Nothing is changed, and arrivals of this turn count as ready.

        Args:
            message: the message.
            count: messages that go to the queue before it.
            octets: bytes of their bodies.

        """
        queue, length, most = self._queue, self.settings.max_length, self.settings.max_octets
        if most is not None and message.body_size > most:
            return TOO_LARGE
        if length == 0:
            return FULL
        if not self.settings.rejects:
            return ""
        if length is not None and queue.backing.ready_count + len(queue.inbox) + count >= length:
            return FULL
        if most is None:
            return ""
        self._forget_lost()
        there = self._octets + sum([each.body_size for each in queue.inbox]) + octets
        return FULL if there + message.body_size > most else ""

    def take_in(self, inbox: list[Message]) -> None:
        """Pass arrivals to the queue, each with its expiry time."""
        ttl = self.settings.message_ttl
        if self.settings.max_octets is not None:
            self._octets += sum([message.body_size for message in inbox])
        now = self._clock()
        latest = 0 if ttl is None else max(1, now + ttl)
        if not any_may_expire([each.content for each in inbox]):
            self._queue.take_in(inbox, expires=latest)
            return

        def expires(message: Message) -> int:
            if not may_expire(message.content):
                return latest
            own = max(1, now + parse_expiration(expiration(message.header) or "0"))
            return min(own, latest) if latest else own

        taken = 0
        try:
            for when, run in groupby(inbox, key=expires):
                messages = list(run)
                self._queue.take_in(messages, expires=when)
                taken += len(messages)
        except Exception:
            self._queue.taken(taken)
            raise

    # -- deliveries -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a run of the queue: discard rejected and expired messages, as far as time allows."""
        self._is_running = True
        if self.settings.max_octets is not None:
            self._forget_lost()
        if self.dead_letters:
            self.dead_letters.publish_pending()
        self.shorten()  # requeued messages may have had to be read first
        self._discard_expired()

    def _discard_expired(self) -> None:
        """Discard expired messages, as far as time allows."""
        if self._queue.backing.ready_count:
            self.drop_expired(1)
        else:
            self._has_expired = False

    def drop_expired(self, count: int) -> int:
        """Discard expired messages at the head; return how many of the next `count` messages may be delivered.

        0 if none is left, or none is available now: the head must be read first, or discarded when there is time.
        """
        backing = self._queue.backing
        if not backing.expiring:
            return count
        now = self.now()
        is_over = self._queue.turn.slices.is_over
        while backing.ready_count:
            length, expired = backing.head_run(now, count)
            if not expired:
                self._has_expired = self._ended is not None and not length
                return length
            self._has_expired = True
            if is_over():
                return 0
            length, _ = backing.head_run(now, _STEP)
            if not self._drop(length, EXPIRED):
                return 0
        self._has_expired = False
        return 0

    def fetched(self, batch: Fetched, *, ack_required: bool) -> Fetched:
        """Update counts after messages were fetched; return the messages as they are to be delivered.

        Where acked messages are retained the backing queue has them as unacked, also if no ack is required.
        """
        if not ack_required and self.retention is not None:
            self.retention.take_delivered(batch)
        if self.settings.max_octets is not None:
            self._octets -= sum([message.body_size for message in batch.messages])
        if batch.redelivered and self.settings.delivery_limit is not None:
            return self._with_counts(batch, ack_required=ack_required)
        return batch

    def withdrawn(self, messages: Mapping[int, Message]) -> None:
        """Forget ready messages, by seq_id, that were withdrawn from the middle of the queue."""
        if self.settings.max_octets is not None:
            self._octets -= sum([message.body_size for message in messages.values()])
        if self.settings.delivery_limit is not None:
            self._queue.backing.take_returns(list(messages))
            for seq_id in messages:
                self._returned.pop(seq_id, None)

    def _with_counts(self, batch: Fetched, *, ack_required: bool) -> Fetched:
        """Return redelivered messages with `x-delivery-count`; requeues before the last restart are included."""
        stored, returned = self._queue.backing.take_returns(batch.seq_ids), self._returned
        if not stored and not returned:
            return batch
        counts = [returned.pop(seq_id, 0) or stored.get(seq_id, 0) for seq_id in batch.seq_ids]
        if ack_required:
            self._returns.update([pair for pair in zip(batch.seq_ids, counts, strict=True) if pair[1]])
        messages = [_counted(*each) for each in zip(batch.messages, counts, strict=True)]
        return batch._replace(messages=messages)

    def delivery_counts(self) -> dict[int, int]:
        """Return the requeue counts of ready and unacked messages that were requeued since the start."""
        return self._returned | self._returns

    def delivery_count(self, seq_id: int) -> int:
        """Return how often a message was requeued since the start."""
        return self._returns.get(seq_id) or self._returned.get(seq_id) or 0

    def end(self) -> bool:
        """End a run of the queue: drop messages over a limit, and set the timer; return true if more time is needed."""
        self.shorten()
        self._discard_expired()
        if not self._queue.backing.ready_count:
            self._octets = 0  # resets any inaccuracy
            self._size_count = None
        if self._ended is None:
            self._set_timer()
        elif self._is_finished:
            self._queue.finish()
        self._is_running = False
        return self.wants_time

    def _excess(self) -> int:
        """Return the number of messages over the length limit; 1 if only the limit in bytes is exceeded."""
        settings, ready = self.settings, self._queue.backing.ready_count
        if not ready or not self._can_exceed:
            return 0
        if settings.max_length is not None and ready > settings.max_length:
            return ready - settings.max_length
        return int(settings.max_octets is not None and self._octets > settings.max_octets)

    def shorten(self) -> None:
        """Drop messages over a limit from the head, as far as time allows.

        Must also be called immediately after a requeue, before consumers get any of the messages.
        """
        if not self._can_exceed:
            return
        is_over = self._queue.turn.slices.is_over
        while (excess := self._excess()) and not is_over():
            if not self._drop(min(excess, _STEP), MAXLEN):
                return

    def _drop(self, count: int, reason: str) -> int:
        """Discard messages (>= 1) from the head; return how many.

        0 while the head is being read from disk, or while too many dead letters wait.
        """
        backing = self._queue.backing
        dead_letters = self.dead_letters
        is_dead_letter = self.settings.dead_letter_exchange is not None
        if dead_letters.is_long:
            dead_letters.publish_pending()
            if dead_letters.is_long:
                return 0
        if not is_dead_letter and self.settings.max_octets is None and not self._returned:
            dropped = backing.drop(count)
            self._count(dropped, reason)
            return dropped
        awaiting = self._queue.awaiting
        batch = backing.fetch(count, ack_required=True) if awaiting is None else awaiting.take(count)
        self._count(len(batch.messages), reason)
        if self.settings.delivery_limit is not None:
            backing.take_returns(batch.seq_ids)
            for seq_id in batch.seq_ids:
                self._returned.pop(seq_id, None)
        if self.settings.max_octets is not None:
            self._left(batch.messages)
        if is_dead_letter:
            dead_letters.add(batch.seq_ids, reason)
            dead_letters.publish_pending()
        else:
            self._refuse(batch.seq_ids)
            backing.ack(batch.seq_ids, dropped=True)
        return len(batch.messages)

    def _left(self, messages: Collection[Message]) -> None:
        """Subtract the sizes of messages that leave the head, if the size of the queue is limited."""
        self._octets -= sum([message.body_size for message in messages])

    def _count(self, discarded: int, reason: str) -> None:
        if reason == EXPIRED:
            self._queue.tally.expired += discarded
        else:
            self._queue.tally.dropped += discarded

    def _refuse(self, seq_ids: Iterable[int]) -> None:
        """Refuse the promises of unacked messages that are discarded, other than by a consumer."""
        if self._queue.awaiting is not None:
            self._queue.awaiting.refuse(seq_ids)

    # -- settling ---------------------------------------------------------------------------------------------------

    def acked(self, seq_ids: Iterable[int]) -> None:
        """Remove the entries of settled messages."""
        if self._returns:
            for seq_id in seq_ids:
                self._returns.pop(seq_id, None)

    def removed(self, seq_ids: Collection[int], *, moved: bool = False) -> None:
        """Remove unacked messages that are not acked: they are not retained. `moved`: see `BackingQueue.ack`."""
        self.acked(seq_ids)
        self._queue.backing.ack(seq_ids, moved=moved)

    def rejected(self, seq_ids: Collection[int], reason: str = REJECTED, *, moved: bool = False) -> None:
        """Discard unacked messages; the caller must run the queue afterwards. `moved`: see `BackingQueue.ack`."""
        if self.settings.dead_letter_exchange is None:
            if reason != REJECTED:
                self._refuse(seq_ids)
            if self.retention is not None:
                self.removed(seq_ids, moved=moved)
            else:
                self._queue.drop_rejected(seq_ids, moved=moved)
        else:
            self.dead_letters.add(seq_ids, reason)

    def requeued(self, seq_ids: Collection[int], *, moved: bool = False) -> Collection[int]:
        """Apply the delivery limit to messages being requeued; return those that may be. `moved`: see `rejected`."""
        limit = self.settings.delivery_limit
        if limit is not None:
            counts = {seq_id: self._returns.pop(seq_id, 0) + 1 for seq_id in seq_ids}
            over = sorted([seq_id for seq_id, count in counts.items() if count > limit])
            if over:
                self.rejected(over, DELIVERY_LIMIT, moved=moved)
                for seq_id in over:
                    del counts[seq_id]
            self._returned.update(counts)
            self._queue.backing.note_returns(counts)
            seq_ids = counts
        if self.settings.max_octets is not None:
            self._octets += self._queue.backing.octets_of(seq_ids)
        return seq_ids

    def carried_over(self, seq_ids: Mapping[int, int]) -> None:
        """Keep the requeue counts of fetched messages that were published again: new seq_ids by old ones."""
        if self.settings.delivery_limit is None:
            return
        stored, returned = self._queue.backing.take_returns(seq_ids), self._returned
        counts = {new: returned.pop(old, 0) or stored.get(old, 0) for old, new in seq_ids.items()}
        counts = {seq_id: count for seq_id, count in counts.items() if count}
        returned.update(counts)
        self._queue.backing.note_returns(counts)

    def purged(self) -> None:
        """Reset the counts of ready messages after a purge."""
        self._has_expired = False
        self._octets = 0
        self._size_count = None
        self._returned.clear()

    # -- time -------------------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        """Set the timer for the expiry of the head or of the queue.

        While the head is expired and waits to be discarded, a timer would fire at once, again and again: what it waits
        for (time, arrivals, the disk) runs the queue.
        """
        backing, lifetime = self._queue.backing, self.settings.expires
        has_expiry = backing.expiring and backing.ready_count and not self._has_expired
        when = self._head_due() if has_expiry else 0
        if lifetime is not None:
            own = self._last_used + lifetime
            when = min(when, own) if when else own
        if when and (self._timer is None or self._timer.when > when):
            self.close()
            self._timer = self._parent.context.timers.at(when, self._wake)

    def _head_due(self) -> int:
        """Return when the head expires (epoch ms); 0 for never, or if it is being read."""
        return self._queue.backing.head_expires() or 0

    def _wake(self) -> None:
        self._timer = None
        queue = self._queue
        if queue.deleted:
            return
        if self.has_lapsed:
            self._parent.expire(queue)
            return
        if queue.consumer_count:
            self._last_used = self._clock()
        queue.touch()


def _counted(message: Message, count: int) -> Message:
    """Return the message with its requeue count in the header `x-delivery-count`."""
    if not count:
        return message
    properties = Properties(message.header)
    headers = {**(properties.headers or {}), "x-delivery-count": ("long", count)}
    return message.with_header(properties.replace(headers=headers))
