"""What a queue does beside keeping and delivering: it lets messages expire, keeps to limits, and expires itself.

Theory. A queue that is asked for any of this has `QueueLimits`, others have none and pay one look a turn. What a queue
discards goes to its dead letter exchange if it has one (`broker.queue.dead_letter_line`); only then it is forgotten,
in the same commit. A message that has to be read from disk first is waited for: the queue runs again when it is here.

All of it ends with the time of the loop's step. Until the rest is discarded the queue *is behind*: it delivers nothing,
and operations that need the exact state wait (`Queue.catch_up`).

Expiry looks at the head only, as in RabbitMQ: what expires behind a message that does not stays until it gets there.
The queue's one timer stands at whatever comes first, the head's expiry or the queue's own; it may come early, since
it is not moved when the head goes, but never late.

Hot path: see docs/performance.md.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Protocol

from leveret.broker.amqp.properties import Properties, expiration, may_expire, parse_expiration
from leveret.broker.counters.totals import QueueTally
from leveret.broker.queue.dead_letter_line import DiscardingQueue, Discards, Publisher
from leveret.broker.queue.settings import DROP_HEAD, NO_SETTINGS, REJECT_PUBLISH_DLX, QueueSettings
from leveret.broker.scheduling.wall_timers import Timer
from leveret.confirm.consumer_ack import ConsumerAckQueue
from leveret.storage.message import Message
from leveret.storage.queues.backing_queue import Fetched

EXPIRED, REJECTED, MAXLEN, DELIVERY_LIMIT = "expired", "rejected", "maxlen", "delivery_limit"
"""Why a queue discards a message."""
_STEP = 256
"""Messages discarded between two looks at the time."""


class RuledQueue(DiscardingQueue, Protocol):
    """What rules need of their queue."""

    name: str
    inbox: list[Message]
    acks: list[int]
    deleted: bool
    awaiting: ConsumerAckQueue | None
    tally: QueueTally

    @property
    def consumer_count(self) -> int:
        """Consumers, ready or not."""

    def settle(self) -> None:
        """Work off what this turn has collected."""

    def take_in(self, messages: list[Message], *, expires: int) -> None:
        """Hand arrivals to consumers, or keep them."""

    def taken(self, count: int) -> None:
        """So many of the first arrivals are in the queue, and then there was an error."""

    def finish(self) -> None:
        """Everything that a deleted queue had to discard is discarded."""


class Keeper(Publisher, Protocol):
    """The vhost: what becomes of queues and of what they discard."""

    def expire(self, queue: Any) -> None:
        """Delete a queue that nobody has used."""

    def queue_gone(self, queue: Any) -> None:
        """A deleted queue has discarded what it had to."""


class QueueLimits:
    """The rules of one queue.

    Args:
        queue: the queue.
        keeper: its vhost.

    """

    __slots__ = (
        "_census",
        "_clock",
        "_ended",
        "_has_expired",
        "_is_running",
        "_keeper",
        "_last_used",
        "_lost",
        "_octets",
        "_queue",
        "_returned",
        "_returns",
        "_sizes",
        "_timer",
        "discards",
        "settings",
    )

    def __init__(self, queue: RuledQueue, keeper: Keeper) -> None:
        self._queue = queue
        self._keeper = keeper
        self._clock = queue.turn.clock
        self.settings = NO_SETTINGS
        self.discards = Discards(queue, keeper)
        """Unacked messages on their way to the dead letter exchange."""
        self._has_expired = False
        """The next message has expired, and the queue had no time to discard it."""
        self._ended: int | None = None
        """When the queue was deleted (epoch ms): what expires later does so without it."""
        self._octets = 0
        """Octets of the bodies of ready messages, where they are limited."""
        self._census: Iterator[int] | None = None
        """What is still to be counted of the messages that were there before the limit."""
        self._lost = 0
        """Octets that the backing queue had given up as damaged when `_octets` was last corrected."""
        self._sizes: dict[int, int] = {}
        """Those of unacked ones, which may become ready again."""
        self._returns: dict[int, int] = {}
        """How often unacked messages came back, where that is limited."""
        self._returned: dict[int, int] = {}
        """The same of ready ones."""
        self._is_running = False
        """The queue's run is under way: a dead letter that comes back must not begin another."""
        self._last_used = self._clock()
        self._timer: Timer | None = None

    def configure(self, settings: QueueSettings) -> None:
        """Follow other settings from now on; the caller owes the queue a run."""
        if settings.expires != self.settings.expires:
            self._last_used = self._clock()
        was_limited = self.settings.max_octets is not None
        self.settings = settings
        if settings.max_octets is None:
            self._sizes.clear()
            self._census = None
        self._queue.backing.count_returns(counted=settings.delivery_limit is not None)
        if settings.delivery_limit is None:
            self._returns.clear()
            self._returned.clear()
        if not was_limited:
            self.recount()

    def recount(self) -> None:
        """Find out what is in the queue: it has had messages before these rules."""
        if self.settings.max_octets is not None:
            self._octets = 0
            self._lost = self._queue.backing.lost_octets
            self._census = summands = self._queue.backing.ready_octets()
            self._queue.turn.slices.add(self._count_octets(summands), f"octets of {self._queue}")

    def _count_octets(self, summands: Iterator[int]) -> Iterator[None]:
        """A job that adds what was ready when it began; `_octets` has what came and went since then."""
        for octets in summands:
            if self._census is not summands:
                return
            self._octets += octets
            yield
        self._census = None
        self._queue.touch()

    def _forget_lost(self) -> None:
        """Messages that turned out to be damaged take no room any more."""
        lost = self._queue.backing.lost_octets
        if lost != self._lost:
            self._octets -= lost - self._lost
            self._lost = lost

    def close(self) -> None:
        """There are no rules any more, or no queue."""
        self._census = None
        if self._timer is not None:
            self._queue.turn.timers.cancel(self._timer)
            self._timer = None

    def used(self) -> None:
        """Somebody has used the queue: its time begins anew."""
        self._last_used = self._clock()

    # -- what there is no time for ----------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """Whether messages are ready that have to be discarded first: they are too many, or have expired."""
        return self._has_expired or bool(self._excess())

    @property
    def wants_time(self) -> bool:
        """Whether the queue could go on to discard messages, but the step was over."""
        return self.discards.wants_time or (self.is_behind and self._queue.turn.slices.is_over())

    @property
    def is_discarding(self) -> bool:
        """Whether messages wait to be discarded, whatever for."""
        return bool(self.discards) or self.is_behind

    def queue_deleted(self) -> bool:
        """The queue is gone for everybody; returns whether it has nothing to discard any more.

        What was rejected, expired or too much by now still becomes a dead letter; the queue's `finish` is called after
        the last of them. Without a dead letter exchange there is nothing to wait for.
        """
        self.close()
        if self.settings.dead_letter_exchange is None:
            return True
        self._ended = self._clock()
        self._look_for_expired()
        return self._is_finished

    def _look_for_expired(self) -> None:
        """Find out whether the head has expired, or may have: it is being read."""
        backing = self._queue.backing
        if backing.expiring and backing.ready_count:
            length, expired = backing.head_run(self._now(), 1)
            self._has_expired = expired or not length

    @property
    def _is_finished(self) -> bool:
        return self.discards.is_done and not self.is_behind

    def _now(self) -> int:
        return self._clock() if self._ended is None else self._ended

    # -- publishes --------------------------------------------------------------------------------------------------

    def refuses(self, message: Message) -> bool:
        """Whether a publish has no room here; it may be dead-lettered instead."""
        settings = self.settings
        if not settings.rejects or not self._is_full_for(message):
            return False
        if settings.overflow == REJECT_PUBLISH_DLX:
            self._keeper.dead_letter(self._queue, [(-1, message)], MAXLEN)
        return True

    def _is_full_for(self, message: Message) -> bool:
        queue, length, octets = self._queue, self.settings.max_length, self.settings.max_octets
        inbox, backing = queue.inbox, queue.backing
        if (
            octets is not None or (length is not None and backing.ready_count + len(inbox) >= length)
        ) and not self._is_running:
            queue.settle()  # some of them go straight to consumers
        if length is not None and backing.ready_count + len(inbox) >= length:
            return True
        if octets is None:
            return False
        self._forget_lost()
        return self._octets + sum([each.body_size for each in inbox]) + message.body_size > octets

    def take_in(self, inbox: list[Message]) -> None:
        """Let arrivals in, each with the time when it expires."""
        ttl = self.settings.message_ttl
        if self.settings.max_octets is not None:
            self._octets += sum([message.body_size for message in inbox])
        now = self._clock()
        latest = 0 if ttl is None else max(1, now + ttl)
        if not any(may_expire(message.content) for message in inbox):
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
        """Before anything else: discard what was rejected and what has expired, as far as there is time."""
        self._is_running = True
        if self.settings.max_octets is not None:
            self._forget_lost()
        if self.discards:
            self.discards.work_off()
        self.shorten()  # what came back may have had to be read first
        self._discard_expired()

    def _discard_expired(self) -> None:
        """Discard what has expired, as far as there is time."""
        if self._queue.backing.ready_count:
            self.live(1)
        else:
            self._has_expired = False

    def live(self, count: int) -> int:
        """How many of the next `count` messages may be delivered; expired ones in front of them are discarded.

        0 if none is left, or none can be had now: the next one has to be read, or discarded when there is time.
        """
        backing = self._queue.backing
        if not backing.expiring:
            return count
        now = self._now()
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
        """Note that messages were taken out of the queue; returns them as they are to be delivered."""
        if self.settings.max_octets is not None:
            sizes = [message.body_size for message in batch.messages]
            self._octets -= sum(sizes)
            if ack_required:
                self._sizes.update(zip(batch.seq_ids, sizes, strict=True))
        if batch.redelivered and self.settings.delivery_limit is not None:
            return self._with_counts(batch, ack_required=ack_required)
        return batch

    def _with_counts(self, batch: Fetched, *, ack_required: bool) -> Fetched:
        """Redelivered messages that say how often they came back, before the last start included."""
        stored, returned = self._queue.backing.take_returns(batch.seq_ids), self._returned
        if not stored and not returned:
            return batch
        counts = [returned.pop(seq_id, 0) or stored.get(seq_id, 0) for seq_id in batch.seq_ids]
        if ack_required:
            self._returns.update([pair for pair in zip(batch.seq_ids, counts, strict=True) if pair[1]])
        messages = [_counted(*each) for each in zip(batch.messages, counts, strict=True)]
        return batch._replace(messages=messages)

    def end(self) -> bool:
        """After messages came and went: drop what is too much, and set the timer; true if that takes more time."""
        self.shorten()
        self._discard_expired()
        if not self._queue.backing.ready_count:
            self._octets = 0  # whatever was not known exactly is forgotten
            self._census = None
        if self._ended is None:
            self._set_timer()
        elif self._is_finished:
            self._queue.finish()
        self._is_running = False
        return self.wants_time

    def _excess(self) -> int:
        """How many messages are too many, as far as their number tells; 1 if they have too many octets."""
        settings, ready = self.settings, self._queue.backing.ready_count
        if not ready or settings.overflow != DROP_HEAD:
            return 0
        if settings.max_length is not None and ready > settings.max_length:
            return ready - settings.max_length
        return int(settings.max_octets is not None and self._octets > settings.max_octets)

    def shorten(self) -> None:
        """Drop what is too much, from the head, as far as there is time.

        Owed at once when messages come back, too: before consumers get any of them.
        """
        is_over = self._queue.turn.slices.is_over
        while (excess := self._excess()) and not is_over():
            if not self._drop(min(excess, _STEP), MAXLEN):
                return

    def _drop(self, count: int, reason: str) -> int:
        """Discard messages (>= 1) from the head; returns how many.

        None while the next one is being read, or while the line to the dead letter exchange is long.
        """
        backing = self._queue.backing
        discards = self.discards
        is_dead_letter = self.settings.dead_letter_exchange is not None
        if discards.is_long:
            discards.work_off()
            if discards.is_long:
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
            self._octets -= sum([message.body_size for message in batch.messages])
        if is_dead_letter:
            discards.add(batch.seq_ids, reason)
            discards.work_off()
        else:
            self._refuse(batch.seq_ids)
            backing.ack(batch.seq_ids)
        return len(batch.messages)

    def _count(self, discarded: int, reason: str) -> None:
        if reason == EXPIRED:
            self._queue.tally.expired += discarded
        else:
            self._queue.tally.dropped += discarded

    def _refuse(self, seq_ids: Iterable[int]) -> None:
        """Unacked messages are discarded, and not because a consumer said so."""
        if self._queue.awaiting is not None:
            self._queue.awaiting.refuse(seq_ids)

    # -- settling ---------------------------------------------------------------------------------------------------

    def acked(self, seq_ids: Iterable[int]) -> None:
        """Messages are settled."""
        for table in (self._sizes, self._returns):
            if table:
                for seq_id in seq_ids:
                    table.pop(seq_id, None)

    def rejected(self, seq_ids: Collection[int], reason: str = REJECTED) -> None:
        """Unacked messages are to be discarded; the caller owes the queue a run."""
        if self.settings.dead_letter_exchange is None:
            if reason != REJECTED:
                self._refuse(seq_ids)
            self._queue.acks.extend(seq_ids)
            self._queue.tally.discarded += len(seq_ids)
        else:
            self.discards.add(seq_ids, reason)

    def requeued(self, seq_ids: Collection[int]) -> Collection[int]:
        """Unacked messages are coming back; returns those that may."""
        limit = self.settings.delivery_limit
        if limit is not None:
            counts = {seq_id: self._returns.pop(seq_id, 0) + 1 for seq_id in seq_ids}
            over = sorted([seq_id for seq_id, count in counts.items() if count > limit])
            if over:
                self.rejected(over, DELIVERY_LIMIT)
                for seq_id in over:
                    del counts[seq_id]
            self._returned.update(counts)
            self._queue.backing.note_returns(counts)
            seq_ids = counts
        if self.settings.max_octets is not None:
            self._octets += sum([self._sizes.pop(seq_id, 0) for seq_id in seq_ids])
        return seq_ids

    def carried_over(self, seq_ids: Mapping[int, int]) -> None:
        """Fetched messages were published anew: new seq_ids by old ones. They came back as often as before."""
        if self.settings.delivery_limit is None:
            return
        stored, returned = self._queue.backing.take_returns(seq_ids), self._returned
        counts = {new: returned.pop(old, 0) or stored.get(old, 0) for old, new in seq_ids.items()}
        counts = {seq_id: count for seq_id, count in counts.items() if count}
        returned.update(counts)
        self._queue.backing.note_returns(counts)

    def purged(self) -> None:
        """No message is ready any more."""
        self._has_expired = False
        self._octets = 0
        self._census = None
        self._returned.clear()

    # -- time -------------------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        backing, lifetime = self._queue.backing, self.settings.expires
        when = backing.head_expires() or 0 if backing.expiring and backing.ready_count else 0
        if lifetime is not None:
            own = self._last_used + lifetime
            when = min(when, own) if when else own
        if when and (self._timer is None or self._timer.when > when):
            self.close()
            self._timer = self._queue.turn.timers.at(when, self._wake)

    def _wake(self) -> None:
        self._timer = None
        queue, lifetime = self._queue, self.settings.expires
        if queue.deleted:
            return
        if lifetime is not None:
            now = self._clock()
            if queue.consumer_count:
                self._last_used = now
            elif now >= self._last_used + lifetime:
                self._keeper.expire(queue)
                return
        queue.touch()


def _counted(message: Message, count: int) -> Message:
    """The message, saying how often it came back."""
    if not count:
        return message
    properties = Properties(message.header)
    headers = {**(properties.headers or {}), "x-delivery-count": ("long", count)}
    return message.with_header(properties.replace(headers=headers))
