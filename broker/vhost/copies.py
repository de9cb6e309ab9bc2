"""Copies of a message: the form in which each queue gets it, and their delivery, in several steps if they are many.

Theory. A queue gets a message in one of four forms, all with the same address and content:

- as a plain `Message`, which the queue keeps in memory;
- as a `Persistent` message, which all durable queues share and write to disk: those of a persistent message, and of
  any message if one of them is a quorum queue;
- as a `Moved` one, the same for a very large message that was in another queue: its original stays until the body is
  in a file;
- as a `Promised` message, if the queue confirms on consumer acks and the publisher waits for a confirm.

Everything that knows these forms must live here, with two exceptions. `Route.make` (`broker.vhost.publish_route`)
creates the messages of a run, which all have one form. A queue that moves messages to itself or to its retained ones
has a single form, too (`storage.message.moving`).

A message may reach its queues in several steps of the event loop, some of them may refuse it, and others may be
deleted meanwhile. So the number of its copies is known at the end only: until `finish` a `Copies` counts as one of
them, both for the disk and for the promise to the publisher.

One object for each message has a price where a publish leaves the fast path, as with an expiration. It takes 73,446
instructions instead of 66,863 for a loop of its own, and 78,577 instead of 70,079 in confirm mode.

`distribute` puts a published message into its queues: at once, or as a `FanOut` if there are more of them than one step
has time for. That is scheduled among the deferred queues (`broker.scheduling.turn`). Each run puts the message into
some of its queues, which run before it continues. If queues store the message, nothing is committed before all of them
have it, and other deferred queues wait; otherwise these take turns with it. The publishing connection is paused, so
that none of its later messages overtakes this one; others may publish to the same queues meanwhile.

The message reaches every queue that it was routed to, even if its exchange, channel or connection is closed or
deleted meanwhile. A queue that is deleted before its turn does not receive it.

Dead letters, and delayed messages that are due, have no connection to pause: they go through `Deliveries`, a FIFO of
messages that is deferred in the same way.

Hot path: see docs/performance.md.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.turn import Turn
from leveret.confirm.channel_confirms import ChannelConfirms
from leveret.confirm.promise import Promise
from leveret.storage.message import Message, Moved, Persistent, Promised, moving

AT_ONCE = 2048  # number of queues from which a message is delivered in several steps
PIECE = 256  # number of queues per step: each of them may have to create its expiration state


def saved_among(queues: Sequence[Queue], *, persistent: bool) -> tuple[Queue, ...]:
    """Return the queues that store a message: durable ones, if it is persistent or one of them is a quorum queue."""
    if persistent or any(queue.saves_all for queue in queues):
        return tuple(queue for queue in queues if queue.durable)
    return ()


def is_stored_by(queues: Sequence[Queue], *, persistent: bool, awaits: bool = False) -> bool:
    """Return whether some of the queues store a message: whether `saved_among` has any.

    `awaits`: not those whose consumers its publisher waits for, which keep it in memory.
    """
    if awaits:
        queues = [queue for queue in queues if not queue.awaits_consumers]
    for queue in queues:  # noqa: SIM110 - a generator costs more, for each message
        if queue.durable and (persistent or queue.saves_all):
            return True
    return False


class Copies:
    """The copies of one message. The caller must `put` it into each of its queues, and then call `finish`."""

    __slots__ = (
        "_awaits",
        "_nacks",
        "_promised",
        "_saved",
        "is_finished",
        "is_taken",
        "message",
        "on_refused",
        "promise",
    )

    def __init__(
        self,
        message: Message,  # the message; a `Persistent` one has its body in a file already
        queues: Sequence[Queue],  # all queues that it goes to, at least one
        *,
        persistent: bool,  # true if its delivery mode is 2
        # the promise to the waiting publisher; this object is one of its copies
        promise: Promise | None = None,
        # true if queues that confirm on consumer acks answer the promise when consumers do; otherwise they have
        # accepted their copies when these are safe
        awaits: bool = True,
        nacks: bool = True,  # true if the promise is broken by a queue that refuses the message
        # called when the original of the message may be removed, if `stays` (see `storage.message.Moved`); None if
        # there is no original
        on_safe: Callable[[bool], object] | None = None,
        blob_threshold: int = 0,  # bytes from which a body is written to a file of its own
    ) -> None:
        self.promise = promise
        self._promised: Promised | None = None  # the copy of queues that confirm on consumer acks
        self._saved: Persistent | None = None  # the copy of durable queues, if they store it
        self._awaits = awaits and promise is not None
        self._nacks = nacks
        self.is_finished = False  # True if no further queue gets it
        self.is_taken = True  # True while no queue has refused it
        self.on_refused: Callable[[], object] | None = None  # called when a queue refuses it
        if is_stored_by(queues, persistent=persistent, awaits=self._awaits):
            if promise is not None:
                promise.open += 1
            if isinstance(message, Persistent):
                message.copies = message.open_copies = 1
                message.publisher = promise
                self._saved = message
            else:
                message = self._saved = moving(message, blob_threshold, on_safe, promise)
        elif isinstance(message, Persistent):
            message = Message(message.address, message.content, message.channel_id)
        self.message = message  # the copy of all other queues

    @property
    def is_stored(self) -> bool:
        """True if queues write the message to disk."""
        return self._saved is not None

    @property
    def stays(self) -> bool:
        """True if the original has to stay where it is until `on_safe` is called."""
        return isinstance(self._saved, Moved)

    def put(self, queue: Queue, *, is_new: bool = True) -> bool:
        """Put the message into a queue in its form; false if it is refused or deleted. `is_new`: as `Queue.put`."""
        if queue.deleted:
            return True
        if self._awaits and queue.awaits_consumers:
            if self._promised is None:
                message = self.message
                self._promised = Promised(message.address, message.content, message.channel_id, self.promise)  # type: ignore[arg-type] # it awaits
            is_taken = queue.put(self._promised, is_new=is_new)
            self.promise.open += 1  # type: ignore[union-attr] # the same
        else:
            is_taken = queue.put(self.message, is_new=is_new)
            saved = self._saved
            if saved is not None and is_taken and queue.durable:  # only now: a bug must leave no copy open
                saved.copies += 1
                saved.open_copies += 1
        if not is_taken:
            self.refuse()
        return is_taken

    def forward(self, queue: Queue, *, is_new: bool = False) -> None:
        """Put the message, which comes from another queue, into a queue, and count it there."""
        if self.put(queue, is_new=is_new):
            queue.tally.forwarded += 1

    def refuse(self) -> None:
        """Break the promise to the publisher: the message has not reached a queue."""
        self.is_taken = False
        if self.on_refused is not None:
            self.on_refused()
        if self.promise is not None and self._nacks:
            self.promise.refused()

    def finish(self) -> None:
        """Stop counting as a copy: every queue has the message, or never gets it."""
        self.is_finished = True
        saved, promise = self._saved, self.promise
        if saved is not None:
            saved.copies -= 1
            saved.accepted()
        if promise is not None:
            promise.accepted()


def distribute(
    turn: Turn,
    queues: Sequence[Queue],
    message: Message,
    confirms: ChannelConfirms | None = None,
    *,
    persistent: bool,
) -> Copies:
    """Put a published message into its queues. The result is finished, unless that takes several steps.

    A `Persistent` message has its body in a file already. `confirms` are those of its channel, which has just numbered
    it, in confirm mode; they are resolved when the outcome in every queue is known, or when the first queue refuses it.
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


def distribute_all(queues: Sequence[Queue], messages: Sequence[Message], *, persistent: bool) -> None:
    """Put messages of a transaction into queues without limits, as `distribute` does for which no publisher waits."""
    stored = saved_among(queues, persistent=persistent)
    if stored:
        copies = len(stored)
        messages = [
            Persistent(message.address, message.content, message.channel_id, None, 0, copies)
            for message in messages
        ]
    for queue in queues:
        queue.admit_all(messages)


class Deliveries:
    """FIFO of messages on their way to queues, for messages that no connection sends.

    A message is put into its queues at once, as far as the step has time and nothing is ahead of it. The rest is
    scheduled as a `FanOut` is: it runs before queues discard more messages and, if messages are stored, before any
    commit begins.
    """

    durable = True

    __slots__ = ("_line", "_stored", "_turn", "touched")

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._line: deque[tuple[Iterator[Queue], Callable[[Queue], object], Copies, bool]] = deque()
        """Queues that a message has not reached yet, what puts it into one, its copies, if it is stored.

        A message leaves it when all queues have it; while there is one, a step for it is running or scheduled.
        """
        self._stored = 0  # number of messages in it that concern the disk
        self.touched = False

    def add(
        self, queues: Sequence[Queue], put: Callable[[Queue], object], copies: Copies, *, is_stored: bool
    ) -> None:
        """Deliver a message after those that are on their way; its queues must not change, but may be deleted.

        `put` puts it into a queue, and may add messages itself, such as those that a full queue discards. The copies
        are finished when all queues have or have refused it. `is_stored`: queues store the message on disk, or its
        removal from where it was is written there.
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
        return f"<{len(self._line)} messages on their way to queues>"


class FanOut(Deliveries):
    """A published message that is being put into many queues; its copies are finished when all queues have it."""

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
