"""The length limits of a queue: `x-max-length` and `x-max-length-bytes`, with the overflow behaviours.

With `drop-head` the queue drops messages from its head while it has an excess; with the others it refuses publishes
while it is full.

Hot path: see docs/performance.md.
"""

from collections.abc import Callable, Iterable, Iterator

from leveret.broker.queue.due_line import DueLine
from leveret.broker.queue.expiry import STEP
from leveret.broker.queue.interfaces import OwningQueue
from leveret.broker.queue.settings import DROP_HEAD, NO_SETTINGS, QueueSettings
from leveret.storage.message import Message

FULL, TOO_LARGE = "full", "too large"  # reasons for which a queue cannot take a message


class MaxLength:
    """The length limits of one queue, and the size of its ready messages in bytes if that is limited."""

    __slots__ = ("_lost", "_octets", "_queue", "_size_count", "can_exceed", "lines", "max_octets", "settings")

    def __init__(self, queue: OwningQueue) -> None:
        self._queue = queue
        self.settings = NO_SETTINGS
        self.max_octets: int | None = None  # the limit in bytes
        self.lines: tuple[DueLine, ...] = ()
        """Messages that are held or wait for a retry: they count like ready ones for the number, not for the bytes."""
        self.can_exceed = False  # True if the queue drops messages over a limit
        self._octets = 0
        self._size_count: Iterator[int] | None = None
        """Iterator over the sizes still to be added for messages that were ready before the limit was set."""
        self._lost = 0  # bytes that the backing queue had lost as damaged when `_octets` was last corrected

    def configure(self, settings: QueueSettings) -> None:
        """Apply changed settings."""
        was_limited = self.max_octets is not None
        self.settings = settings
        self.max_octets = settings.max_octets
        is_limited = settings.max_length is not None or settings.max_octets is not None
        self.can_exceed = is_limited and settings.overflow == DROP_HEAD
        if settings.max_octets is None:
            self._size_count = None
        if not was_limited:
            self.recount()

    # -- the size in bytes --------------------------------------------------------------------------------------------

    def recount(self) -> None:
        """Count the bytes of messages that were ready before the limit was set."""
        if self.max_octets is not None:
            self._octets = 0
            self._lost = self._queue.backing.lost_octets
            self._size_count = summands = self._queue.backing.ready_octets()
            self._queue.turn.slices.add(self._count(summands), f"size of {self._queue}")

    def _count(self, summands: Iterator[int]) -> Iterator[None]:
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
        self.forget_lost()
        return max(0, self._octets)

    def forget_lost(self) -> None:
        """Subtract the sizes of messages that turned out to be damaged."""
        lost = self._queue.backing.lost_octets
        if lost != self._lost:
            self._octets -= lost - self._lost
            self._lost = lost

    def add(self, octets: int) -> None:
        """Add the bytes of messages that are ready now, or subtract those of messages that are no longer."""
        self._octets += octets

    def left(self, messages: Iterable[Message]) -> None:
        """Subtract the sizes of messages that are no longer ready, if there is a limit in bytes."""
        if self.max_octets is not None:
            self._octets -= sum([message.body_size for message in messages])

    def emptied(self) -> None:
        """Count nothing: no message is ready. Ends any inaccuracy, too."""
        self._octets = 0
        self._size_count = None

    def stop_counting(self) -> None:
        """End the counting job."""
        self._size_count = None

    # -- the limits -------------------------------------------------------------------------------------------------

    def excess(self) -> int:
        """Return the number of messages to drop; 1 if only the limit in bytes is exceeded."""
        ready = self._queue.backing.ready_count
        if not ready or not self.can_exceed:
            return 0
        most = self._most_ready
        if most is not None and ready > most:
            return ready - most
        return int(self.max_octets is not None and self._octets > self.max_octets)

    @property
    def _most_ready(self) -> int | None:
        """Maximum number of ready messages, beside those that are held; None for no limit."""
        most = self.settings.max_length
        if most is None or not self.lines:
            return most
        return max(0, most - sum([line.count for line in self.lines]))

    def drop_head(self, drop: Callable[[int], int]) -> None:
        """Drop messages over a limit from the head while there is time; `drop` discards some, and returns how many."""
        is_over = self._queue.turn.slices.is_over
        while (excess := self.excess()) and not is_over():
            if not drop(min(excess, STEP)):
                return

    def has_room_for(self, count: int) -> bool:
        """Return whether so many publishes are not refused, whatever becomes of those before them."""
        return not self.settings.rejects or (self.max_octets is None and not self._is_too_many(count))

    def _is_too_many(self, count: int) -> bool:
        """Return whether the queue would have more messages than it may after so many more."""
        queue, length = self._queue, self._most_ready
        return length is not None and queue.backing.ready_count + len(queue.inbox) + count > length

    def is_full_for(self, message: Message, *, is_running: bool) -> bool:
        """Return whether a publish is to be refused; arrivals are delivered first, unless the queue `is_running`."""
        octets = self.max_octets
        if not is_running and (octets is not None or self._is_too_many(1)):
            self._queue.settle()  # some arrivals are delivered directly to consumers
        if self._is_too_many(1):
            return True
        return octets is not None and self._with_inbox(message) > octets

    def _with_inbox(self, message: Message) -> int:
        self.forget_lost()
        return self._octets + sum([each.body_size for each in self._queue.inbox]) + message.body_size

    def obstacle(self, message: Message, count: int, octets: int) -> str:
        """Return why the queue would refuse a message, or could not even keep it alone; '' if it takes it.

        Nothing is changed, and arrivals of this turn count as ready, as do `count` messages before it with so many
        `octets`.
        """
        most = self.max_octets
        if most is not None and message.body_size > most:
            return TOO_LARGE
        if self._most_ready == 0:
            return FULL
        if not self.settings.rejects:
            return ""
        if self._is_too_many(count + 1):
            return FULL
        return FULL if most is not None and self._with_inbox(message) + octets > most else ""
