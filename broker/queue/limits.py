"""Limits of a queue together: the messages that it discards, and their way to dead letters.

Theory. A queue with a limit, an expiry or a dead letter exchange has `QueueLimits`; others have none and pay one check
per turn. Its parts are `broker.queue.expiry`, `broker.queue.max_length` and `broker.queue.delivery_limit`. Discarded
messages are published to the dead letter exchange if there is one (`broker.queue.dead_letter_line`), and removed only
then, in the same commit. A message that must be read from disk first is waited for: the queue runs again when it has
been read.

All of this stops when the step of the event loop is over. Until the remaining messages are discarded the queue *is
behind*: it delivers nothing, and operations that need the exact state wait (`Queue.catch_up`).

Hot path: see docs/performance.md.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import ClassVar

from leveret.broker.amqp.properties import any_may_expire
from leveret.broker.queue.dead_letter_line import DeadLetterLine
from leveret.broker.queue.deduplication import Deduplication
from leveret.broker.queue.delivery_limit import DeliveryLimit
from leveret.broker.queue.expiry import Expiry
from leveret.broker.queue.hold import Hold
from leveret.broker.queue.interfaces import OwningQueue, ParentVHost
from leveret.broker.queue.max_length import FULL, MaxLength
from leveret.broker.queue.retention import Retention
from leveret.broker.queue.retries import Retries
from leveret.broker.queue.settings import NO_SETTINGS, REJECT_PUBLISH_DLX, QueueSettings
from leveret.storage.journal.blocks import FAILURES
from leveret.storage.message import Message
from leveret.storage.queues.backing_queue import BackingQueue, Fetched

EXPIRED, REJECTED, MAXLEN, DELIVERY_LIMIT = "expired", "rejected", "maxlen", "delivery_limit"
"""Reasons for which a queue discards a message."""


class QueueLimits:
    """Limits and expiry of one queue."""

    __slots__ = (
        "_is_running",
        "_parent",
        "_queue",
        "_retained_before",
        "dead_letters",
        "deliveries",
        "expiry",
        "hold",
        "ids",
        "length",
        "retention",
        "retries",
        "settings",
    )

    expiry_class: ClassVar[type[Expiry]] = Expiry

    def __init__(self, queue: OwningQueue, parent: ParentVHost) -> None:
        self._queue = queue
        self._parent = parent
        self.settings = NO_SETTINGS
        # expiry, length, deliveries: its parts
        self.expiry = self.expiry_class(queue, parent)
        self.length = MaxLength(queue)
        tells_failures = parent.compatibility.delivery_count == "failures"
        self.deliveries = DeliveryLimit(queue, tells_failures=tells_failures)
        # unacked messages on their way to the dead letter exchange
        self.dead_letters = DeadLetterLine(queue, parent)
        self.retention: Retention | None = None  # takes the acks if the queue retains acked messages
        self.hold: Hold | None = None  # takes publishes whose time has not come, once the queue may hold them
        self.retries: Retries | None = None  # holds back requeued messages, once the queue delays retries
        self.ids: Deduplication | None = None  # drops repeats, once the queue takes each message once
        self._retained_before: BackingQueue | None = None  # that of the retention that was ended last
        self._is_running = False  # True during a run: a dead letter routed back must not start another

    def configure(self, settings: QueueSettings) -> None:
        """Apply changed settings; the caller must run the queue afterwards."""
        self.settings = settings
        self.expiry.configure(settings)
        self.length.configure(settings)
        self.deliveries.configure(settings.delivery_limit)
        if settings.holds:
            self.need_hold()
        if self.hold is not None:
            self.hold.configure(settings)
        if settings.deduplicate is not None:
            self.need_ids()
        if self.ids is not None:
            self.ids.configure(settings)
        if not settings.retains:
            self._close_retention()
        elif not self._queue.deleted:
            if self.retention is None:
                self.retention = self._parent.make_retention(self._queue, self._retained_before)
                self._retained_before = None
            self.retention.retained.retain(settings)

    def need_hold(self) -> Hold:
        """Return the hold, which is made if there is none."""
        if self.hold is None:
            self.hold = made = Hold(self._queue, self._parent)
            made.configure(self.settings)
            self.length.lines = (*self.length.lines, made)
        return self.hold

    def need_ids(self) -> Deduplication:
        """Return the ids that the queue knows, which are made if there are none."""
        if self.ids is None:
            disk = self._parent.disk if self._queue.qid else None
            self.ids = Deduplication(self._queue, self._parent.context, disk)
        return self.ids

    def need_retries(self) -> Retries:
        """Return the retries, which are made if there are none."""
        if self.retries is None:
            self.retries = made = Retries(self._queue, self._parent)
            self.length.lines = (*self.length.lines, made)
        return self.retries

    @property
    def keeps_fetched(self) -> bool:
        """True if fetched messages stay unacked in the backing queue, whether or not they are to be acked."""
        return self.retention is not None or (self.retries is not None and self.retries.watches)

    def _close_retention(self) -> None:
        if self.retention is not None:
            self._retained_before = self.retention.retained.backing
            self.retention.close()
            self.retention = None

    @property
    def octets(self) -> int:
        """Total body size of ready messages in bytes, if it is limited."""
        return self.length.octets

    # -- deferred work ----------------------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """True if ready messages must be discarded before deliveries: they exceed a limit, or have expired."""
        length = self.length
        return self.expiry.has_expired or (length.can_exceed and bool(length.excess()))

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
        self.length.stop_counting()
        self.expiry.cancel_timer()
        self._close_retention()
        for line in self.length.lines:
            line.delete()
        if self.ids is not None:
            self.ids.delete()
        if self.settings.dead_letter_exchange is None:
            return True
        self.expiry.ended = self.expiry.now()
        self.expiry.at_heads(self.expiry.check_head)
        return self._is_finished

    @property
    def _is_finished(self) -> bool:
        return self.dead_letters.is_done and not self.is_behind

    # -- publishes --------------------------------------------------------------------------------------------------

    def refuses(self, message: Message) -> bool:
        """Return whether a publish is refused because the queue is full; with `reject-publish-dlx` dead-letter it."""
        settings = self.settings
        if not settings.rejects or not self.length.is_full_for(message, is_running=self._is_running):
            return False
        if settings.overflow == REJECT_PUBLISH_DLX:
            self._parent.dead_letter(self._queue, [(-1, message)], MAXLEN)
        return True

    def obstacle(self, message: Message, count: int, octets: int) -> str:
        """Return why the queue would not enqueue or hold a message; '' if it takes it (see `MaxLength.obstacle`)."""
        hold = self.hold
        if hold is not None and hold.is_full(count) and hold.due_of(message):
            return FULL
        return self.length.obstacle(message, count, octets)

    def take_in(self, inbox: list[Message]) -> None:
        """Pass arrivals to the queue, each with its expiry time."""
        queue, expiry = self._queue, self.expiry
        if self.length.max_octets is not None:
            self.length.add(sum([message.body_size for message in inbox]))
        if not any_may_expire([each.content for each in inbox]):
            queue.take_in(inbox, expires=expiry.latest())
            return
        taken = 0
        try:
            for when, messages in expiry.runs(inbox):
                queue.take_in(messages, expires=when)
                taken += len(messages)
        except Exception:
            queue.taken(taken)
            raise

    # -- deliveries -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a run of the queue: discard rejected and expired messages, as far as time allows."""
        self._is_running = True
        if self.length.max_octets is not None:
            self.length.forget_lost()
        if self.dead_letters:
            self.dead_letters.publish_pending()
        self.shorten()  # requeued messages may have had to be read first
        self._discard_expired()

    def end(self) -> bool:
        """End a run of the queue: drop messages over a limit, and set the timer; return true if more time is needed."""
        self.shorten()
        self._discard_expired()
        if self.ids is not None:
            self.ids.note()
        if not self._queue.backing.ready_count:
            self.length.emptied()
        if self.expiry.ended is None:
            self.expiry.set_timer()
        elif self._is_finished:
            self._queue.finish()
        self._is_running = False
        return self.wants_time

    def _discard_expired(self) -> None:
        if self._queue.backing.ready_count:
            self.expiry.at_heads(partial(self.drop_expired, 1))
        else:
            self.expiry.has_expired = False

    def drop_expired(self, count: int) -> int:
        """Discard expired messages at the head; return how many of the next `count` messages may be delivered."""
        if not self._queue.backing.expiring:
            return count
        return self.expiry.drop_head(count, partial(self._drop, reason=EXPIRED))

    def shorten(self) -> None:
        """Drop messages over a limit from the head; also at once after a requeue, before any consumer gets them."""
        if self.length.can_exceed:
            self.length.drop_head(partial(self._drop, reason=MAXLEN))

    def _drop(self, count: int, reason: str) -> int:
        """Discard messages (>= 1) from the head; return how many: 0 while it is read, or many dead letters wait."""
        backing = self._queue.backing
        dead_letters = self.dead_letters
        is_dead_letter = self.settings.dead_letter_exchange is not None
        if dead_letters.is_long:
            dead_letters.publish_pending()
            if dead_letters.is_long:
                return 0
        is_plain = self.length.max_octets is None and not self.deliveries.has_ready and self.ids is None
        if not is_dead_letter and is_plain:
            dropped = backing.drop(count)
            self._count(dropped, reason)
            return dropped
        awaiting = self._queue.awaiting
        batch = backing.fetch(count, ack_required=True) if awaiting is None else awaiting.take(count)
        self._count(len(batch.messages), reason)
        self.deliveries.left(batch.seq_ids)
        self._left(batch.messages)
        if is_dead_letter:
            if self.ids is not None:
                self.ids.fetched(batch, ack_required=True)
            dead_letters.add(batch.seq_ids, reason)
            dead_letters.publish_pending()
        else:
            if self.ids is not None:
                left = zip(batch.seq_ids, batch.messages, strict=True)
                self.ids.dropped(left, is_over_limit=reason == MAXLEN)
            self._refuse(batch.seq_ids)
            backing.ack(batch.seq_ids, dropped=True)
        return len(batch.messages)

    def _left(self, messages: Collection[Message]) -> None:
        self.length.left(messages)

    def _count(self, discarded: int, reason: str) -> None:
        if reason == EXPIRED:
            self._queue.tally.expired += discarded
        else:
            self._queue.tally.dropped += discarded

    def _refuse(self, seq_ids: Iterable[int]) -> None:
        """Refuse the promises of unacked messages that are discarded, other than by a consumer."""
        if self._queue.awaiting is not None:
            self._queue.awaiting.refuse(seq_ids)

    def fetched(self, batch: Fetched, *, ack_required: bool) -> Fetched:
        """Update counts after messages were fetched; return the messages as they are to be delivered.

        Where acked messages are retained the backing queue has them as unacked, also if no ack is required.
        """
        is_acked = not ack_required and self.retention is None
        if self.retries is not None and self.retries.watches:
            batch = _without(batch, self.retries.set_aside(batch.seq_ids))
            if is_acked:
                self._queue.backing.ack(batch.seq_ids)
            if not batch.messages:
                return batch
        if self.length.max_octets is not None:
            self.length.left(batch.messages)
        if self.ids is not None and (gone := self.ids.fetched(batch, ack_required=ack_required)):
            batch = _without(batch, gone)
            if not is_acked:
                self._queue.backing.ack(gone)
        if not ack_required and self.retention is not None:
            self.retention.take_delivered(batch)
        if batch.redelivered and self.deliveries.most is not None:
            return self.deliveries.delivered(batch, ack_required=ack_required)
        return batch

    def withdrawn(self, messages: Mapping[int, Message]) -> None:
        """Forget ready messages, by seq_id, that were withdrawn from the middle of the queue."""
        self.length.left(messages.values())
        self.deliveries.left(list(messages))
        if self.ids is not None:
            self.ids.dropped(messages.items())

    # -- settling ---------------------------------------------------------------------------------------------------

    def removed(self, seq_ids: Collection[int], *, moved: bool = False) -> None:
        """Remove unacked messages that are not acked: they are not retained. `moved`: see `BackingQueue.ack`."""
        self.settled(seq_ids)
        self._queue.backing.ack(seq_ids, moved=moved)

    def settled(self, seq_ids: Collection[int]) -> None:
        """Forget unacked messages that are settled."""
        self.deliveries.settled(seq_ids)
        if self.ids is not None:
            self.ids.settled(seq_ids)

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

    def requeued(
        self, seq_ids: Collection[int], *, moved: bool = False, failed: bool = True
    ) -> Collection[int]:
        """Apply the delivery limit to messages being requeued; return those that may be. `moved`: see `rejected`."""
        most = self.deliveries.most
        if most is not None:
            seq_ids, over = self.deliveries.requeued(seq_ids, most, failed=failed)
            if over:
                self.rejected(over, DELIVERY_LIMIT, moved=moved)
        return seq_ids

    def holds_back(self, seq_ids: Collection[int], *, failed: bool) -> bool:
        """Have requeued messages wait for their next delivery; return whether they do."""
        backoff = self.settings.retry
        if backoff is None or max(seq_ids) >> 64:  # after 65,536 starts ids with a priority fit into no key
            return False
        delays = [
            backoff.delay(self.deliveries.count(seq_id) & FAILURES, failed=failed, seq_id=seq_id)
            for seq_id in seq_ids
        ]
        if any(delays):
            self.need_retries().hold_back(seq_ids, delays)
        return any(delays)

    def carried_over(self, seq_ids: Mapping[int, int]) -> None:
        """Keep the records of fetched messages that were published again: new seq_ids by old ones."""
        self.deliveries.carried_over(seq_ids)
        if self.retries is not None:
            self.retries.carried_over(seq_ids)

    def back(self, seq_ids: Collection[int]) -> None:
        """Count messages that are being requeued."""
        if self.ids is not None:
            self.ids.requeued(seq_ids)
        if self.length.max_octets is not None:
            self.length.add(self._queue.backing.octets_of(seq_ids))

    def purged(self) -> None:
        """Reset the counts of ready messages after a purge."""
        self.expiry.has_expired = False
        self.length.emptied()
        self.deliveries.purged()
        if self.ids is not None:
            self.ids.purged(() if self.retries is None else self.retries.waiting)


def _without(batch: Fetched, gone: Collection[int]) -> Fetched:
    """Return a batch but for messages that no consumer gets."""
    left = [pair for pair in zip(batch.seq_ids, batch.messages, strict=True) if pair[0] not in gone]
    return batch._replace(seq_ids=[seq_id for seq_id, _ in left], messages=[message for _, message in left])
