"""Puts one message into more queues than a step of the loop has time for.

A `FanOut` stands among the queues that are put off (`broker.scheduling.turn`), and reaches some of its queues each
time it runs; these run before it goes on. So nothing is committed before all queues have the message, and whoever
waits for what was put off waits for all of them. The connection that has published waits, so that nothing of it
overtakes the message; others may publish to the same queues meanwhile.

The message reaches every queue that it was routed to, whatever becomes of its exchange, channel and connection. A queue
that is deleted before its turn has never had it.
"""

from collections.abc import Sequence
from operator import attrgetter

from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.turn import Turn
from leveret.confirm.channel_confirms import ChannelConfirms
from leveret.confirm.promise import Promise
from leveret.storage.message import Message, Persistent, Promised

AT_ONCE = 2048
"""Queues from which a message does not reach all of them in one step."""
PIECE = 256
"""Queues that a message reaches in a row: each of them may have to make what expiration needs."""
_saves_all = attrgetter("saves_all")


class FanOut:
    """A message on its way.

    Args:
        turn: runs it.
        queues: where it goes; at least one.
        message: the message as it came.
        confirms: those of its channel, which has just numbered it; None without any. They are told when it is known
            what each queue says, or when the first refuses it.
        persistent: whether it was published as such.

    """

    __slots__ = (
        "_at",
        "_message",
        "_persistent",
        "_promise",
        "_promised",
        "_queues",
        "_turn",
        "is_taken",
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
        """What queues get that have publishers wait for consumers."""
        self._persistent: Persistent | None = None
        """What the others get, if some of them keep it on disk."""
        self._message = message
        self.is_taken = True
        """No queue has refused it."""
        self.touched = False
        if confirms is not None:
            confirms.hold(confirms.seq_no)
            self._promise = Promise(confirms, confirms.seq_no, 1)
        if persistent or any(map(_saves_all, queues)):
            self._make_persistent()
        turn.put_off(self)

    def _make_persistent(self) -> None:
        """Have queues keep the message on disk. Until all of them have it one copy too many is open."""
        message, promise = self._message, self._promise
        seq_no = 0
        if promise is not None:
            promise.open += 1
            seq_no = promise.seq_no
        self._message = self._persistent = Persistent(
            message.address, message.content, message.channel_id, promise, seq_no, 1
        )

    @property
    def has_input(self) -> bool:
        """Whether there are queues that it has not reached."""
        return self._at < len(self._queues)

    def run(self) -> bool:
        """Reach the next queues; these run now, and then it goes on."""
        turn = self._turn
        touched = len(turn.queues)
        piece = self._queues[self._at : self._at + PIECE]
        self._at += len(piece)
        for queue in piece:
            if not queue.deleted:
                self._put(queue)
        if not self.has_input:
            self._finish()
        turn.go_first(touched, self)
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
        is_kept = persistent is not None and queue.durable
        if is_kept:
            persistent.copies += 1  # type: ignore[union-attr]
            persistent.open_copies += 1  # type: ignore[union-attr]
        if not queue.put(self._message):
            self._refused()
            if is_kept:
                persistent.accepted()  # type: ignore[union-attr]

    def _refused(self) -> None:
        self.is_taken = False
        if self._promise is not None:
            self._promise.refused()

    def _finish(self) -> None:
        """All queues have it: nothing is held any more that is not theirs."""
        promise, persistent = self._promise, self._persistent
        self._promise = self._persistent = self._promised = None
        self._queues, self._at = (), 0
        if persistent is not None:
            persistent.copies -= 1
            persistent.accepted()
        if promise is not None:
            promise.accepted()

    def give_up(self) -> None:
        """After an internal error: the queues that it has not reached do not get it, and the publisher is told."""
        self._refused()
        self._finish()

    def __repr__(self) -> str:
        """Tell what it is, for the log."""
        return f"<message to {len(self._queues)} queues>"
