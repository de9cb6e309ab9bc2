"""Retained messages: the acked messages of a queue that are kept for a replay, as a queue of their own.

Theory. For paging, recovery, checks and limits they are messages like others, in a queue that no vhost lists: it has
neither consumers nor bindings, and is deleted with the queue they come from. Only expiry differs. Where other queues
note with each message when it expires, this one notes when it was acked, and a message expires when that is longer ago
than the current retention time. So a changed retention time applies to all of them, and a replay knows when each was
acked.

Small messages that were acked in the same turn are one message here, a bundle (`broker.queue.bundle`). They have the
same time and leave together, so the queue does once for hundreds what it does for each message. How many a bundle of an
earlier run has is not known before it is read: until it leaves it counts as one. The sizes of all others are kept here,
so nothing is read from disk when they leave.

Messages are gathered over several turns: a client that acks each message alone acks a dozen of them in a turn. They are
appended when there are enough for a bundle, when anything else is appended (so the order is that of the acks), when a
caller needs counts or contents (`settle`), and after `GATHERING` at the latest. Those to be written are also appended
when the next commit begins, which has the ends of their originals.

Nothing puts messages into it but `broker.queue.retention`.
"""

from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from leveret.broker.queue.bundle import bundle_length, bundles_of_alike, likeness, record_octets
from leveret.broker.queue.expiry import Expiry
from leveret.broker.queue.limits import QueueLimits
from leveret.broker.queue.queue import SMALL, Queue
from leveret.broker.queue.settings import QueueSettings
from leveret.storage.message import Message

GATHERING = 100  # milliseconds that messages may wait for others of their bundle


class RetainedExpiry(Expiry):
    """Expiry of retained messages: the backing queue has the time of the ack for each."""

    __slots__ = ()

    def now(self) -> int:
        """Return the time (epoch ms) until which acked messages have expired."""
        return self._clock() - (self.settings.message_ttl or 0)

    def head_due(self) -> int:
        """Return when the head expires (epoch ms); 0 for never, or if it is being read."""
        acked = super().head_due()
        return acked and acked + (self.settings.message_ttl or 0)


class RetainedLimits(QueueLimits):
    """Limits of retained messages."""

    __slots__ = ()

    expiry_class: ClassVar[type[Expiry]] = RetainedExpiry
    _queue: "RetainedQueue"

    def take_in(self, inbox: list[Message]) -> None:
        """Pass acked messages to the queue, with the time of the last ack among them."""
        queue = self._queue
        queue.known_count()  # notes damage before there are others
        queue.take_in(inbox, expires=max(1, queue.acked_at or self._parent.context.clock()))
        self.length.add(queue.came(inbox))

    def _drop(self, count: int, reason: str) -> int:
        queue = self._queue
        known = queue.known_count()
        unknown = queue.backing.ready_count - known
        if unknown:  # they have to be read, as their sizes are unknown
            return super()._drop(min(count, unknown), reason)
        dropped = queue.backing.drop(min(count, known))
        self.length.add(-queue.dropped(dropped))
        self._count(dropped, reason)
        return dropped

    def _left(self, messages: Collection[Message]) -> None:
        super()._left(messages)
        self._queue.left(messages)

    def end(self) -> bool:
        """End a run of the queue; see `QueueLimits.end`."""
        if not self._queue.backing.ready_count:
            self._queue.emptied()  # resets any inaccuracy, as after damage
        return super().end()


class RetainedQueue(Queue):
    """The retained messages of a queue, oldest ack first; the arguments are those of `Queue`.

    The expiry of each (`storage.message.Message.expires`) is the time of its ack in milliseconds since the epoch.
    """

    __slots__ = (
        "_damaged",
        "_gathered",
        "_gathered_at",
        "_is_awaited",
        "_is_timed",
        "_likeness",
        "_share",
        "_sizes",
        "acked_at",
        "message_count",
    )

    limits_class: type[QueueLimits] = RetainedLimits

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.message_count = 0  # acked messages, bundled ones too; at least so many unless `is_counted`
        self._sizes: deque[tuple[int, int]] = deque()
        """Bytes of bodies, and numbers of acked messages, of the messages at the tail that came in this run."""
        self._damaged = 0  # known damage in this queue: lost messages leave no gap among the sizes

        self._gathered: list[Message] = []  # messages, all alike, that wait for others of their bundle
        self._likeness: tuple[Any, ...] = ()  # that of all of them; first whether they are written
        self._share = 0  # bytes that their bundle may have
        self._is_timed = False  # True if a timer ends their wait
        self._is_awaited = False  # True if the next commit does
        self._gathered_at = 0  # time (epoch ms) of the last ack of one of them; 0 if it is unknown
        self.acked_at = 0  # that of the messages that the next run appends; 0 for the current time

    @property
    def is_counted(self) -> bool:
        """True if `message_count` is exact."""
        return self.known_count() == self.backing.ready_count

    def recovered(self) -> None:
        """Apply limits and expiry to the messages of an earlier run, after they were recovered."""
        self.message_count = self.backing.ready_count
        super().recovered()

    def known_count(self) -> int:
        """Return the number of messages of known size, at the tail."""
        if self.backing.damaged != self._damaged:  # it is unknown which of them
            self._damaged = self.backing.damaged
            self._sizes.clear()
            self.message_count = self.backing.ready_count
        return len(self._sizes)

    def came(self, messages: Sequence[Message]) -> int:
        """Note the sizes of messages that were appended; returns the bytes of their bodies together."""
        sizes = [(message.body_size, bundle_length(message)) for message in messages]
        self._sizes += sizes
        self.message_count += sum([number for _, number in sizes])
        return sum([octets for octets, _ in sizes])

    def dropped(self, count: int) -> int:
        """Forget messages with known sizes that have left the head; returns the bytes of their bodies together."""
        popleft = self._sizes.popleft
        sizes = [popleft() for _ in range(count)]
        self.message_count -= sum([number for _, number in sizes])
        return sum([octets for octets, _ in sizes])

    def left(self, messages: Collection[Message]) -> None:
        """Count messages of an earlier run that leave the head; each counts as one."""
        self.message_count -= len(messages)

    def emptied(self) -> None:
        """Count nothing: no message is left."""
        self.message_count = 0
        self._sizes.clear()

    def retain(self, settings: QueueSettings) -> None:
        """Apply the settings of the queue that the messages come from."""
        own = QueueSettings(
            message_ttl=settings.retain_for, max_octets=settings.retain_octets, lazy=settings.lazy
        )
        if own != self.settings:
            self.configure(own)

    def gather(self, messages: Sequence[Message], share: int, *, is_saved: bool) -> None:
        """Append small and alike messages: at the latest after `GATHERING`, or with the next commit.

        `share` is the maximum number of bytes of a bundle. With `is_saved` they are written to disk, in the commit with
        the ends of their originals.
        """
        first, gathered = messages[0], self._gathered
        most = share // record_octets(first)
        same = is_saved, *likeness(first)
        if gathered and (len(gathered) + len(messages) > most or same != self._likeness):
            self._end_gathering()
            self.touch()
        self._likeness = same
        gathered += messages
        self._share = share
        if self._parent is not None:
            self._gathered_at = self._parent.context.clock()
        if len(gathered) >= most or not self._may_wait(is_saved=is_saved):
            self._end_gathering()
            self.touch()

    def _may_wait(self, *, is_saved: bool) -> bool:
        """Make sure that the wait of gathered messages ends; returns false if they may not wait at all."""
        if not self._is_timed and self._parent is not None:
            self._is_timed = True
            context = self._parent.context
            context.timers.at(context.clock() + GATHERING, self._timed_out)
        if is_saved and not self._is_awaited:
            self._is_awaited = self.backing.before_commit(self._commit_begins)
        return self._is_awaited or not is_saved

    def _commit_begins(self) -> None:
        self._is_awaited = False
        if not self.deleted:
            self._end_gathering()
            if self.inbox:
                self.turn.run_one(self)

    def _timed_out(self) -> None:
        self._is_timed = False
        if self._gathered and not self.deleted:
            self._end_gathering()
            self.touch()

    def _end_gathering(self) -> None:
        gathered = self._gathered
        if gathered:
            is_saved = self._likeness[0]
            bundles = bundles_of_alike(gathered, self._share, is_saved=is_saved)
            gathered.clear()
            self.inbox_persistent = self.inbox_persistent or is_saved
            self.acked_at = self._gathered_at
            self._put(bundles, max([len(each.content) for each in bundles]))

    def settle(self) -> None:
        """Process all arrivals, gathered messages included, so that counts and contents are exact."""
        self._end_gathering()
        super().settle()

    def keep(self, messages: Collection[Message], *, largest: int, persistent: bool) -> None:
        """Append messages, or bundles, at the end of this turn; their originals must be removed in the same turn.

        Those to be written to disk (`persistent`: some are) are `Persistent`, and count this copy. `largest` is the
        size of the largest content.
        """
        self._end_gathering()
        if persistent:
            self.inbox_persistent = True
        self.acked_at = 0
        self._put(messages, largest)
        self.touch()

    def _put(self, messages: Collection[Message], largest: int) -> None:
        self.inbox += messages
        if largest > SMALL and largest > self.largest:
            self.largest = largest
