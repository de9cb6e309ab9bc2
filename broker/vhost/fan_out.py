"""Delivery of messages to their queues, in several steps of the event loop if these are many.

`distribute` puts a published message into its queues: at once, or as a `FanOut` if there are more of them than one step
has time for. That is scheduled among the deferred queues (`broker.scheduling.turn`). Each run puts the message into
some of its queues, which run before it continues. If queues store the message, nothing is committed before all of them
have it, and other deferred queues wait; otherwise these take turns with it. The publishing connection is paused, so
that none of its later messages overtakes this one; others may publish to the same queues meanwhile.

The message reaches every queue that it was routed to, even if its exchange, channel or connection is closed or
deleted meanwhile. A queue that is deleted before its turn does not receive it.

Dead letters, and delayed messages that are due, have no connection to pause: they go through `Deliveries`, a FIFO of
messages that is deferred in the same way.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.turn import Turn
from leveret.broker.vhost.copies import Copies, is_stored_by
from leveret.confirm.channel_confirms import ChannelConfirms
from leveret.confirm.promise import Promise
from leveret.storage.message import Message

AT_ONCE = 2048
"""Number of queues from which a message is delivered in several steps."""
PIECE = 256
"""Number of queues per step: each of them may have to create its expiration state."""


def distribute(
    turn: Turn,
    queues: Sequence[Queue],
    message: Message,
    confirms: ChannelConfirms | None = None,
    *,
    persistent: bool,
) -> Copies:
    """Put a published message into its queues; what is returned is finished unless that takes several steps.

    Args:
        turn: schedules these steps.
        queues: the target queues; at least one.
        message: the message as it arrived; a `Persistent` one has its body in a file already.
        confirms: those of its channel, which has just numbered it; None if not in confirm mode. They are resolved when
            the outcome in every queue is known, or when the first queue refuses it.
        persistent: True if it was published with delivery mode 2.

    """
    promise: Promise | None = None
    if confirms is not None and (
        len(queues) > AT_ONCE
        or is_stored_by(queues, persistent=persistent)
        or any([queue.awaits_consumers for queue in queues])  # noqa: C419 - a generator costs more
    ):
        promise = Promise(confirms, confirms.seq_no, 1)
        confirms.hold(promise.seq_no)
    copies = Copies(message, queues, persistent=persistent, promise=promise)
    if len(queues) > AT_ONCE:
        FanOut(turn, queues, copies)
    else:
        for queue in queues:
            copies.put(queue)
        copies.finish()
        if confirms is not None and promise is None and not copies.is_taken:
            confirms.refused(confirms.seq_no)
    return copies


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
        self._line: deque[tuple[Iterator[Queue], Callable[[Queue], object], Copies, bool]] = deque()
        """Queues that a message has not reached yet, what puts it into one, its copies, if it is stored.

        A message leaves it when all queues have it: while there is one, somebody works on it or will.
        """
        self._stored = 0
        """Number of messages in it that concern the disk."""
        self.touched = False

    def add(
        self, queues: Sequence[Queue], put: Callable[[Queue], object], copies: Copies, *, is_stored: bool
    ) -> None:
        """Deliver a message after those that are on their way.

        Args:
            queues: the target queues, which must not change.
            put: puts the message into a queue, which may have been deleted; it may add messages itself, for example
                those that a full queue discards.
            copies: finished when all queues have or have refused the message, perhaps in a later step.
            is_stored: True if queues store the message on disk, or its removal from where it was is written there.

        """
        is_first = not self._line
        self._line.append((iter(queues), put, copies, is_stored))
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
            queues, put, copies, is_stored = line[0]
            left = PIECE
            for queue in queues:
                put(queue)
                left -= 1
                if not left:
                    break
            else:
                line.popleft()
                self._stored -= is_stored
                copies.finish()
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


class FanOut(Deliveries):
    """A published message that is being put into many queues.

    Args:
        turn: schedules the runs.
        queues: the target queues.
        copies: its copies, which are finished when all queues have it.

    """

    __slots__ = ()

    def __init__(self, turn: Turn, queues: Sequence[Queue], copies: Copies) -> None:
        super().__init__(turn)
        self._line.append((iter(queues), copies.put, copies, copies.is_stored))
        self._stored += copies.is_stored
        self._defer_rest()

    def give_up(self) -> None:
        """Nack the publish after an internal error; the remaining queues do not receive the message."""
        for _, _, copies, _ in self._line:
            copies.refuse()
            copies.finish()
        self._line.clear()
        self._stored = 0
