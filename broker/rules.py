"""What a queue does beside keeping and delivering: it lets messages expire, keeps to limits, and expires itself.

Theory. A queue that is asked for any of this has `Rules`, others have none and pay one look a turn. What a queue
discards goes to its dead letter exchange if it has one (`Keeper.dead_letter`); only then it is forgotten, in the same
commit. A message that has to be read from disk first is waited for: the queue runs again when it is here.

Expiry looks at the head only, as in RabbitMQ: what expires behind a message that does not stays until it gets there.
The queue's one timer stands at whatever comes first, the head's expiry or the queue's own; it may come early, since
it is not moved when the head goes, but never late.

Hot path: see docs/performance.md.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import groupby, islice, takewhile
from typing import Any, Protocol

from broker.amqp.properties import Properties, expiration, may_expire, parse_expiration
from broker.settings import DROP_HEAD, NO_SETTINGS, REJECT_PUBLISH_DLX, QueueSettings
from broker.timers import Timer, Timers
from broker.totals import QueueTally
from storage.backing_queue import BackingQueue, Batch
from storage.consumer_ack import ConsumerAckQueue
from storage.message import Message

EXPIRED, REJECTED, MAXLEN, DELIVERY_LIMIT = "expired", "rejected", "maxlen", "delivery_limit"
"""Why a queue discards a message."""
BUDGET = 4096
"""Messages a queue discards in one step of its turn before others get theirs."""
LETTERS = 1024
"""The same where each of them becomes a dead letter, which costs ten times as much."""
_STEP = 256


class Clock(Protocol):
    """The turn, as far as time is concerned."""

    clock: Callable[[], int]
    timers: Timers


class RuledQueue(Protocol):
    """What rules need of their queue."""

    name: str
    backing: BackingQueue
    inbox: list[Message]
    acks: list[int]
    deleted: bool
    awaiting: ConsumerAckQueue | None
    tally: QueueTally

    @property
    def turn(self) -> Clock:
        """The server's work list."""

    @property
    def consumer_count(self) -> int:
        """Consumers, ready or not."""

    def touch(self) -> None:
        """Have the queue run at the end of this turn."""

    def settle(self) -> None:
        """Work off what this turn has collected."""

    def take_in(self, messages: list[Message], *, expires: int) -> None:
        """Hand arrivals to consumers, or keep them."""


class Keeper(Protocol):
    """The vhost: what becomes of queues and of what they discard."""

    def dead_letter(self, queue: Any, letters: Sequence[tuple[int, Message]], reason: str) -> Collection[int]:
        """Publish unacked messages of a queue to its dead letter exchange, as far as there is one and it has somewhere.

        A negative seq_id is that of a message that never was in the queue. Returns the seq_ids that may be forgotten
        in the same commit; the others are acked when what became of them is safe.
        """

    def expire(self, queue: Any) -> None:
        """Delete a queue that nobody has used."""


class Rules:
    """The rules of one queue.

    Args:
        queue: the queue.
        keeper: its vhost.

    """

    __slots__ = (
        "_clock",
        "_is_running",
        "_keeper",
        "_last_used",
        "_leaving",
        "_octets",
        "_queue",
        "_returned",
        "_returns",
        "_sizes",
        "_timer",
        "settings",
    )

    def __init__(self, queue: RuledQueue, keeper: Keeper) -> None:
        self._queue = queue
        self._keeper = keeper
        self._clock = queue.turn.clock
        self.settings = NO_SETTINGS
        self._leaving: deque[tuple[int, str]] = deque()
        """Unacked messages that are discarded as soon as their bodies are here, and why."""
        self._octets = 0
        """Octets of the bodies of ready messages, where they are limited."""
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
        if settings.delivery_limit is None:
            self._returns.clear()
            self._returned.clear()
        if not was_limited:
            self.recount()

    def recount(self) -> None:
        """Find out what is in the queue: it has had messages before these rules."""
        if self.settings.max_octets is not None:
            self._octets = self._queue.backing.ready_octets()

    def close(self) -> None:
        """There are no rules any more, or no queue."""
        if self._timer is not None:
            self._queue.turn.timers.cancel(self._timer)
            self._timer = None

    def used(self) -> None:
        """Somebody has used the queue: its time begins anew."""
        self._last_used = self._clock()

    @property
    def _budget(self) -> int:
        return BUDGET if self.settings.dead_letter_exchange is None else LETTERS

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

        for when, run in groupby(inbox, key=expires):
            self._queue.take_in(list(run), expires=when)

    # -- deliveries -------------------------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Before anything else: discard what was rejected and what has expired; true if the budget ran out."""
        self._is_running = True
        more = bool(self._leaving) and self._let_leave()
        more = self.shorten() or more  # what came back may have had to be read first
        return self._has_more_expired() or more

    def _has_more_expired(self) -> bool:
        """Discard what has expired; true if the budget ran out."""
        return bool(self._queue.backing.ready_count) and self.live(1) < 0

    def live(self, count: int) -> int:
        """How many of the next `count` messages may be delivered; expired ones in front of them are discarded.

        0 if the next one has to be read first, or if none is left; -1 if the budget ran out first.
        """
        backing = self._queue.backing
        if not backing.expiring:
            return count
        now = self._clock()
        budget = self._budget
        while backing.ready_count:
            length, expired = backing.head_run(now, count)
            if not expired:
                return length
            if budget <= 0:
                return -1
            length, _ = backing.head_run(now, _STEP)
            if not self._drop(length, EXPIRED):
                return 0
            budget -= length
        return 0

    def fetched(self, batch: Batch, *, ack_required: bool) -> Batch:
        """Note that messages were taken out of the queue; returns them as they are to be delivered."""
        if self.settings.max_octets is not None:
            sizes = [message.body_size for message in batch.messages]
            self._octets -= sum(sizes)
            if ack_required:
                self._sizes.update(zip(batch.seq_ids, sizes, strict=True))
        if batch.redelivered and self._returned:
            counts = [self._returned.pop(seq_id, 0) for seq_id in batch.seq_ids]
            if ack_required:
                self._returns.update([pair for pair in zip(batch.seq_ids, counts, strict=True) if pair[1]])
            messages = [_counted(*each) for each in zip(batch.messages, counts, strict=True)]
            return batch._replace(messages=messages)
        return batch

    def end(self) -> bool:
        """After messages came and went: drop what is too much, and set the timer; true if the budget ran out."""
        more = self.shorten()
        more = self._has_more_expired() or more
        if not self._queue.backing.ready_count:
            self._octets = 0  # whatever was not known exactly is forgotten
        self._set_timer()
        self._is_running = False
        return more

    def shorten(self) -> bool:
        """Drop what is too much, from the head; true if the budget ran out.

        Owed at once when messages come back, too: before consumers get any of them.
        """
        if self.settings.overflow != DROP_HEAD:
            return False
        backing, length, octets = self._queue.backing, self.settings.max_length, self.settings.max_octets
        budget = self._budget
        while backing.ready_count:
            excess = 0 if length is None else backing.ready_count - length
            if excess <= 0:
                if octets is None or self._octets <= octets:
                    return False
                excess = 1
            if budget <= 0:
                return True
            dropped = self._drop(min(excess, _STEP), MAXLEN)
            if not dropped:
                return False
            budget -= dropped
        return False

    def _drop(self, count: int, reason: str) -> int:
        """Discard messages (>= 1) from the head; returns how many, perhaps none while the next one is being read."""
        backing = self._queue.backing
        is_dead_letter = self.settings.dead_letter_exchange is not None
        if not is_dead_letter and self.settings.max_octets is None and not self._returned:
            dropped = backing.drop(count)
            self._count(dropped, reason)
            return dropped
        batch = backing.fetch(count, ack_required=True)
        self._count(len(batch.messages), reason)
        if self._returned:
            for seq_id in batch.seq_ids:
                self._returned.pop(seq_id, None)
        if self.settings.max_octets is not None:
            self._octets -= sum([message.body_size for message in batch.messages])
        if is_dead_letter:
            letters = list(zip(batch.seq_ids, batch.messages, strict=True))
            awaiting = self._queue.awaiting
            self._dead_letter(letters if awaiting is None else awaiting.with_promises(letters), reason)
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
            self._leaving.extend([(seq_id, reason) for seq_id in seq_ids])

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
            seq_ids = counts
        if self.settings.max_octets is not None:
            self._octets += sum([self._sizes.pop(seq_id, 0) for seq_id in seq_ids])
        return seq_ids

    def purged(self) -> None:
        """No message is ready any more."""
        self._octets = 0
        self._returned.clear()

    @property
    def is_discarding(self) -> bool:
        """Whether messages that were rejected wait for their bodies, or for the next run."""
        return bool(self._leaving)

    def _let_leave(self) -> bool:
        """Discard what was rejected; true if the budget ran out."""
        leaving, backing = self._leaving, self._queue.backing
        budget = self._budget
        while leaving:
            if budget <= 0:
                return True
            reason = leaving[0][1]
            first = islice(leaving, _STEP)
            chunk = list(takewhile(lambda each, why=reason: each[1] == why, first))  # type: ignore[misc]
            for _ in chunk:
                leaving.popleft()
            budget -= len(chunk)
            found, waiting = backing.unacked_messages([seq_id for seq_id, _ in chunk])
            self._dead_letter(found, reason)
            if waiting:
                leaving.extendleft([(seq_id, reason) for seq_id in reversed(waiting)])
                break
        return False

    def _dead_letter(self, letters: Sequence[tuple[int, Message]], reason: str) -> None:
        """Publish unacked messages to the dead letter exchange, and forget them."""
        if letters:
            self._queue.tally.dead_lettered += len(letters)
            moved = self._keeper.dead_letter(self._queue, letters, reason)
            self.acked(moved)
            self._queue.backing.ack(moved, moved=True)

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
