"""Expiry: the time to live of messages (`x-message-ttl`, `expiration`), and of an unused queue (`x-expires`).

Only the head is checked for expiry, as in RabbitMQ, or the head of each priority (`PriorityQueue.expires_each`): an
expired message behind one that has not expired stays until it reaches the head. The queue has one timer, for the expiry
of the head or of the queue, whichever is first. It may fire early, since it is not moved when the head is removed, but
never late.

Hot path: see docs/performance.md.
"""

from collections.abc import Callable, Iterator
from itertools import groupby

from leveret.broker.amqp.properties import expiration, may_expire, parse_expiration
from leveret.broker.queue.interfaces import OwningQueue, ParentVHost
from leveret.broker.queue.settings import NO_SETTINGS, QueueSettings
from leveret.broker.scheduling.wall_timers import Timer
from leveret.storage.message import Message
from leveret.storage.queues.priority_queue import PriorityQueue

STEP = 256  # messages discarded between two checks of the time


class Expiry:
    """The expiry of one queue and of its messages."""

    __slots__ = ("_clock", "_last_used", "_parent", "_queue", "_timer", "ended", "has_expired", "settings")

    def __init__(self, queue: OwningQueue, parent: ParentVHost) -> None:
        self._queue = queue
        self._parent = parent
        self._clock = parent.context.clock
        self.settings = NO_SETTINGS
        self.has_expired = False  # True if the head has expired, but the queue had no time to discard it
        self.ended: int | None = None
        """Time of the deletion of the queue (epoch ms): messages that expire later are not dead-lettered."""
        self._last_used = self._clock()
        self._timer: Timer | None = None

    def configure(self, settings: QueueSettings) -> None:
        """Apply changed settings."""
        if settings.expires != self.settings.expires:
            self._last_used = self._clock()
        self.settings = settings

    # -- messages -----------------------------------------------------------------------------------------------------

    def now(self) -> int:
        """Return the time (epoch ms) until which messages have expired."""
        return self._clock() if self.ended is None else self.ended

    def latest(self, now: int = 0) -> int:
        """Return when messages that arrive now expire, by the setting of the queue; 0 for never."""
        ttl = self.settings.message_ttl
        return 0 if ttl is None else max(1, (now or self._clock()) + ttl)

    def runs(self, inbox: list[Message]) -> Iterator[tuple[int, list[Message]]]:
        """Yield runs of arrivals with the same expiry time, some of which have an expiration of their own."""
        now = self._clock()
        latest = self.latest(now)
        times: dict[bytes, int] = {}  # mostly there is one

        def expires(message: Message) -> int:
            if not may_expire(message.content):
                return latest
            text = expiration(message.content)
            if text not in times:
                own = max(1, now + parse_expiration(text.decode() or "0"))
                times[text] = min(own, latest) if latest else own
            return times[text]

        for when, run in groupby(inbox, key=expires):
            yield when, list(run)

    def at_heads(self, step: Callable[[], object]) -> None:
        """Call `step` with each head that may expire, up to one that has expired and stays."""
        self.has_expired = False
        store = self._queue.store
        if isinstance(store, PriorityQueue):
            store.at_heads(lambda: self.has_expired or step())
        else:
            step()

    def check_head(self) -> None:
        """Check whether the head has expired; a head that is being read from disk counts as expired."""
        backing = self._queue.backing
        if backing.expiring and backing.ready_count:
            length, expired = backing.head_run(self.now(), 1)
            self.has_expired = expired or not length

    def drop_head(self, count: int, drop: Callable[[int], int]) -> int:
        """Discard expired messages at the head; return how many of the next `count` messages may be delivered.

        0 if none is left, or none is available now: the head must be read first, or discarded when there is time.
        `drop` discards messages, and returns how many.
        """
        backing = self._queue.backing
        now = self.now()
        is_over = self._queue.turn.slices.is_over
        while backing.ready_count:
            length, expired = backing.head_run(now, count)
            if not expired:
                self.has_expired = self.ended is not None and not length and backing.head_expires() is None
                return length
            self.has_expired = True
            if is_over():
                return 0
            length, _ = backing.head_run(now, STEP)
            if not drop(length):
                return 0
        self.has_expired = False
        return 0

    # -- the queue, and the timer -----------------------------------------------------------------------------------

    def used(self) -> None:
        """Restart the time until the unused queue expires."""
        self._last_used = self._clock()

    @property
    def has_lapsed(self) -> bool:
        """True if the queue has no consumer and was unused for `x-expires`."""
        lifetime = self.settings.expires
        if lifetime is None or self._queue.consumer_count or self._queue.held_count:
            return False
        return self._clock() >= self._last_used + lifetime

    def set_timer(self) -> None:
        """Set the timer for the expiry of the head or of the queue.

        While an expired head waits to be discarded, a timer would fire at once, again and again. The event that the
        head waits for (time, arrivals, the disk) runs the queue.
        """
        backing, lifetime = self._queue.backing, self.settings.expires
        has_expiry = backing.expiring and backing.ready_count and not self.has_expired
        when = (backing.head_expires() or 0) if has_expiry else 0  # 0 also while the head is being read
        if lifetime is not None:
            own = self._last_used + lifetime
            when = min(when, own) if when else own
        if when:
            self._timer = self._parent.context.timers.sooner(self._timer, when, self._wake)

    def cancel_timer(self) -> None:
        """Cancel the timer."""
        self._parent.context.timers.cancel(self._timer)

    def _wake(self) -> None:
        queue = self._queue
        if queue.deleted:
            return
        if self.has_lapsed:
            self._parent.expire(queue)
            return
        if queue.consumer_count or queue.held_count:
            self._last_used = self._clock()
        queue.touch()
