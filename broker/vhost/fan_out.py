"""Delivery of one message to more queues than fit into one step of the event loop.

A `FanOut` is scheduled among the deferred queues (`broker.scheduling.turn`). Each run puts the message into some of
its queues, which run before it continues. If queues store the message, nothing is committed before all of them have it,
and other deferred queues wait; otherwise these take turns with it. The publishing connection is paused, so that
none of its later messages overtakes this one; others may publish to the same queues meanwhile.

The message reaches every queue that it was routed to, even if its exchange, channel or connection is closed or
deleted meanwhile. A queue that is deleted before its turn does not receive it.

Dead letters, and delayed messages that are due, have no connection to pause: they go through `Deliveries`, a FIFO of
messages that is deferred in the same way.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.turn import Turn
from leveret.broker.vhost.publish_route import saved_among
from leveret.confirm.channel_confirms import ChannelConfirms
from leveret.confirm.promise import Promise
from leveret.storage.message import Message, Persistent, Promised

AT_ONCE = 2048
"""Number of queues from which a message is delivered in several steps."""
PIECE = 256
"""Number of queues per step: each of them may have to create its expiration state."""


class FanOut:
    """A message that is being put into many queues.

    Args:
        turn: schedules the runs.
        queues: the target queues; at least one.
        message: the message as it arrived; a `Persistent` one has its body in a file already.
        confirms: those of its channel, which has just numbered it; None if not in confirm mode. They are resolved when
            the
            outcome in every queue is known, or when the first queue refuses it.
        persistent: True if it was published with delivery mode 2.

    """

    __slots__ = (
        "_at",
        "_message",
        "_persistent",
        "_promise",
        "_promised",
        "_queues",
        "_turn",
        "durable",
        "is_taken",
        "stores_input",
        "touched",
    )

    def __init__(
        self,
        turn: Turn,
        queues: Sequence[Queue],
        message: Message,
        confirms: ChannelConfirms | None,
        *,
        persistent: bool,
    ) -> None:
        self._turn = turn
        self._queues = queues
        self._at = 0
        self._promise: Promise | None = None
        self._promised: Promised | None = None
        """The copy for queues that confirm on consumer acks."""
        self._persistent: Persistent | None = None
        """The copy for the other queues, if some of them store it on disk."""
        self._message = message
        self.is_taken = True
        """True while no queue has refused it."""
        self.touched = False
        if confirms is not None:
            confirms.hold(confirms.seq_no)
            self._promise = Promise(confirms, confirms.seq_no, 1)
        self.durable = self.stores_input = bool(saved_among(queues, persistent=persistent))
        """True if queues store the message on disk."""
        if self.stores_input:
            self._make_persistent()
        turn.defer(self)

    def _make_persistent(self) -> None:
        """Make the copy that queues store on disk. It counts one extra open copy until all queues have it."""
        message, promise = self._message, self._promise
        if isinstance(message, Persistent):
            message.copies = message.open_copies = 1
            self._persistent = message
            return
        seq_no = 0
        if promise is not None:
            promise.open += 1
            seq_no = promise.seq_no
        self._message = self._persistent = Persistent(
            message.address, message.content, message.channel_id, promise, seq_no, 1
        )

    @property
    def has_input(self) -> bool:
        """True if there are queues that it has not reached."""
        return self._at < len(self._queues)

    def run(self) -> bool:
        """Put the message into the next queues, as many as time allows; these run now, before it continues."""
        turn = self._turn
        touched = len(turn.queues)
        while True:
            piece = self._queues[self._at : self._at + PIECE]
            self._at += len(piece)
            for queue in piece:
                if not queue.deleted:
                    self._put(queue)
            if not self.has_input:
                self._finish()
                break
            if turn.slices.is_over():
                break
        turn.defer_touched(touched, self)
        return False

    def _put(self, queue: Queue) -> None:
        promise, persistent = self._promise, self._persistent
        if queue.awaits_consumers and promise is not None:
            if self._promised is None:
                message = self._message
                self._promised = Promised(message.address, message.content, message.channel_id, promise)
            promise.open += 1
            if not queue.put(self._promised):
                self._refused()
            return
        if not queue.put(self._message):
            self._refused()
        elif persistent is not None and queue.durable:  # only now: a bug must leave no copy open
            persistent.copies += 1
            persistent.open_copies += 1

    def _refused(self) -> None:
        self.is_taken = False
        if self._promise is not None:
            self._promise.refused()

    def _finish(self) -> None:
        """Release the extra copy and all references once every queue has the message."""
        promise, persistent = self._promise, self._persistent
        self._promise = self._persistent = self._promised = None
        self._queues, self._at = (), 0
        if persistent is not None:
            persistent.copies -= 1
            persistent.accepted()
        if promise is not None:
            promise.accepted()

    def give_up(self) -> None:
        """Nack the publish after an internal error; the remaining queues do not receive the message."""
        self._refused()
        self._finish()

    def __repr__(self) -> str:
        """Return a description for the log."""
        return f"<message to {len(self._queues)} queues>"


class Deliveries:
    """FIFO of messages on their way to queues, for messages that no connection sends.

    A message is put into its queues at once, as far as the step has time and nothing is ahead of it. The rest is
    scheduled as a `FanOut` is: it runs before queues discard more messages and, if messages are stored, before any
    commit begins.

    Args:
        turn: schedules the rest.

    """

    durable = True

    __slots__ = ("_line", "_stored", "_turn", "touched")

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._line: deque[
            tuple[Iterator[Queue], Callable[[Queue], object], Callable[[], object] | None, bool]
        ] = deque()
        """Queues that a message has not reached yet, what puts it into one, what is called at the end, if it is stored.

        A message leaves it when all queues have it: while there is one, somebody works on it or will.
        """
        self._stored = 0
        """Number of messages in it that concern the disk."""
        self.touched = False

    def add(
        self,
        queues: Iterable[Queue],
        put: Callable[[Queue], object],
        finish: Callable[[], object] | None = None,
        *,
        is_stored: bool,
    ) -> None:
        """Deliver a message after those that are on their way.

        Args:
            queues: the target queues, which must not change.
            put: puts the message into a queue, which may have been deleted; it may add messages itself, for example
                those that a full queue discards.
            finish: called when all queues have or have refused the message, perhaps in a later step.
            is_stored: True if queues store the message on disk, or its removal from where it was is written there.

        """
        is_first = not self._line
        self._line.append((iter(queues), put, finish, is_stored))
        self._stored += is_stored
        if is_first:
            try:
                self._put_while_time()
            finally:
                self._defer_rest()

    def _put_while_time(self) -> None:
        """Put messages into queues until none is left, or the step is over."""
        line, is_over = self._line, self._turn.slices.is_over
        while line:
            queues, put, finish, is_stored = line[0]
            left = PIECE
            for queue in queues:
                put(queue)
                left -= 1
                if not left:
                    break
            else:
                line.popleft()
                self._stored -= is_stored
                if finish is not None:
                    finish()
            if line and is_over():
                break

    @property
    def has_input(self) -> bool:
        """True if messages have not reached all of their queues."""
        return bool(self._line)

    @property
    def stores_input(self) -> bool:
        """True if some of these messages concern the disk."""
        return self._stored > 0

    def run(self) -> bool:
        """Continue; the queues that have received messages run before the next step of this."""
        turn = self._turn
        touched = len(turn.queues)
        self._put_while_time()
        turn.defer_touched(touched, self)
        return False

    def give_up(self) -> None:
        """Continue with the next queue after an internal error in one."""
        self._defer_rest()

    def _defer_rest(self) -> None:
        if self._line:
            self._turn.defer(self)

    def __repr__(self) -> str:
        """Return a description for the log."""
        return f"<{len(self._line)} messages on their way to queues>"
