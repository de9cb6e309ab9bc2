"""A transfer: moves, copies, discards or replays those ready messages of a queue that meet a condition.

Theory. A job walks over the queue as it was when the job began (`BackingQueue.walk`), in slices of time, beside all
other work. A batch of messages is withdrawn, put into the inboxes of its destination queues and removed in one step,
hence in one commit: whenever the broker is killed, each message is in exactly one place. Bodies in files of their own
take longer; their originals stay, as those of dead letters, until the commit that follows their files. A publisher that
waits for the original waits for the copies: for those in queues that confirm on consumer acks until they are consumed,
for the others until they are on disk.
A message stays where it is if its destination cannot take it, which is found out before it is withdrawn; causes are
counted. A transfer goes on when its user leaves, and ends after a whole batch when it is cancelled, or its user may no
longer do that. It is over when all that it has done is on disk. A replay copies the retained messages of a queue
(`broker.queue.retained_queue`); those that have expired are left out, also if they could not be discarded yet.

Pure: reads and waits are left to its host.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, Protocol

from leveret.broker.amqp.properties import is_persistent
from leveret.broker.errors import NotYet
from leveret.broker.queue.max_length import FULL
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.turn import Turn
from leveret.broker.scheduling.wall_timers import Timer
from leveret.broker.transfer.destinations import Destination, Resolved
from leveret.broker.vhost.copies import Copies
from leveret.confirm.promise import joined
from leveret.storage.message import Message
from leveret.storage.queues.backing_queue import Peeked, Piece, Read

BATCH = 256  # maximum number of messages that are moved in one step
_LOOKED_AT = 16  # messages between two checks of the time while they are compared with the condition
_FULL_MS = 500  # milliseconds until a full disk is retried
_BATCHES = 10  # batches a second of a transfer with a rate, if that is high enough
RETURNS = "returns to its queue"


class Action(StrEnum):
    """An action of a transfer on the messages that it finds."""

    MOVE = "move"
    COPY = "copy"
    DISCARD = "discard"
    RETRY = "retry"
    REPLAY = "replay"


class State(StrEnum):
    """A state of a transfer."""

    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


class SafeJournal(Protocol):
    """The part of the journal that a transfer uses (`storage.journal.journal.Journal`)."""

    def when_all_safe(self, callback: Callable[[bool], object]) -> None:
        """Call back when all that was noted so far is on disk, or failed to get there (False); perhaps at once."""


class Host(Protocol):
    """The broker, as far as a transfer needs it."""

    turn: Turn
    context: NodeContext

    @property
    def journal(self) -> SafeJournal:
        """The pending writes to disk."""

    def run_read(self, read: Read, done: Callable[[Any, BaseException | None], None]) -> None:
        """Run a read in a thread, and `done` in a step of the loop with its result or exception."""


class Wish(NamedTuple):
    """A transfer as it was asked for."""

    action: Action
    source: Queue
    destination: Destination | None  # the destination; None to discard
    where: Callable[[Peeked], bool] | None = None  # the condition; None for all messages
    limit: int | None = None  # maximum number of messages; None for no limit
    rate: int = 0  # maximum number of messages a second; 0 for no limit
    is_dry: bool = False  # True to count only
    blob_threshold: int = 1 << 62  # bytes from which a content is written to a file of its own
    refusal: Callable[[], str] = str  # why its user may not go on, '' for no reason; may raise NotYet


class Room:
    """Counts what goes to each queue, until it is there; nothing may return to the source."""

    def __init__(self, source: Queue) -> None:
        self._source = source
        self._counts: dict[Queue, tuple[int, int]] = {}

    @property
    def is_empty(self) -> bool:
        """True if nothing is counted."""
        return not self._counts

    def obstacle(self, message: Message, queues: Sequence[Queue]) -> str:
        """Return why the queues cannot take a message; '' if all of them can."""
        for queue in queues:
            if queue is self._source:
                return RETURNS
            if queue.limits is not None:
                count, octets = self._counts.get(queue, (0, 0))
                cause = queue.limits.obstacle(message, count, octets)
                if cause:
                    return cause
        return ""

    def obstacle_now(self, message: Message, queues: Sequence[Queue]) -> str:
        """Return what `obstacle` does, after the arrivals of this turn, which may go straight to consumers."""
        for queue in queues:
            if queue.limits is not None and queue is not self._source:
                queue.settle()
        return self.obstacle(message, queues)

    def add(self, message: Message, queues: Sequence[Queue]) -> None:
        """Count a message."""
        for queue in queues:
            if queue.limits is not None:
                count, octets = self._counts.get(queue, (0, 0))
                self._counts[queue] = count + 1, octets + message.body_size


class Transfer:
    """A transfer of messages."""

    def __init__(self, wish: Wish, host: Host) -> None:
        self.wish = wish
        self._host = host
        self.state = State.RUNNING
        self.error = ""  # the reason if it failed; '' otherwise
        # total: messages that were ready when it began
        # examined: messages that were compared with the condition so far
        # matched: those that meet it and were still there when their turn came
        # done: messages that were moved, copied or discarded; in a dry run those that would be
        self.total = self.examined = self.matched = self.done = 0
        self.refused: Counter[str] = Counter()  # messages that stay because of their destination, by cause
        # began, ended: times in milliseconds since the epoch; `ended` is None while it runs
        self.began = host.context.clock()
        self.ended: int | None = None
        self.on_ended: Callable[[], object] = str  # called once, when it is over
        self._room = Room(wish.source)
        self._due = 0  # time (epoch ms) before which the rate allows no further batch
        self._undecided: NotYet | None = None  # whether the next message may go where it should
        self._answer: Any = None
        self._timer: Timer | None = None
        self._steps = self._run()
        self._go_on()

    @property
    def name(self) -> str:
        """Description for the log."""
        return f"{self.wish.action} from {self.wish.source}"

    def cancel(self) -> None:
        """End the transfer after the current batch; no effect if it is over."""
        if self.state is not State.RUNNING:
            return
        self.state = State.CANCELLED
        if self._timer is not None:
            self._host.context.timers.cancel(self._timer)
            self._resume()

    # -- the job ----------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Run the job in a later step, after which a turn follows."""
        turn = self._host.turn
        turn.slices.later(lambda: turn.add_writing_job(self._job(), self.name))

    def _job(self) -> Iterator[None]:
        """Run the steps until they need something else than time."""
        while True:
            try:
                answer, self._answer = self._answer, None
                wanted = self._steps.send(answer)
            except StopIteration:
                break
            except Exception as error:
                self._end(State.FAILED, f"internal error: {error!r}")
                raise
            if wanted is None:
                yield
            elif isinstance(wanted, NotYet):
                wanted.subscribe(self._resume)
                return
            else:
                self._host.run_read(wanted, self._has_read)
                return
        self._end(State.DONE)

    def _resume(self) -> None:
        self._timer = None
        self._go_on()

    def _at(self, when: int, then: Callable[[], object]) -> None:
        self._timer = self._host.context.timers.at(when, then)

    def _when_safe(self, then: Callable[[], object]) -> None:
        """Wait until queues that this step's turn may defer have journaled what they got, and until that is on disk."""
        turn, when_safe = self._host.turn, self._host.journal.when_all_safe
        turn.slices.later(partial(turn.when_caught_up, partial(when_safe, partial(self._is_safe, then))))

    def _is_safe(self, then: Callable[[], object], is_safe: bool) -> None:
        if not is_safe and self.state is State.RUNNING:
            self.state, self.error = State.FAILED, "the disk is full: what was done may not be on disk yet"
        then()

    def _has_read(self, found: Any, error: BaseException | None) -> None:
        if error is not None:
            self._end(State.FAILED, f"cannot read the data now: {error}")
            return
        self._answer = found
        self._go_on()

    def _end(self, state: State, error: str = "") -> None:
        if self.state is State.RUNNING:
            self.state = state
            self.error = error
        if self.ended is None:
            self.ended = self._host.context.clock()
            self.on_ended()

    # -- the steps ----------------------------------------------------------------------------------------------------

    def _run(self) -> Any:
        yield from self._walk()
        if self.done and not self.wish.is_dry:
            yield NotYet(self._when_safe)

    def _walk(self) -> Any:
        source = self.wish.source
        source.settle()
        self.total = source.backing.ready_count
        walk = source.backing.walk()
        answer: Any = None
        while self._may_go_on():
            try:
                found = walk.send(answer)
            except StopIteration:
                return
            answer = None
            if isinstance(found, Piece):
                yield from self._use(found)
            else:
                answer = yield found

    def _may_go_on(self) -> bool:
        """Return whether there is anything left to do; note the reason if there is an error."""
        wish = self.wish
        if self.state is not State.RUNNING or (wish.limit is not None and self.done >= wish.limit):
            return False
        reason = "" if wish.destination is None else wish.destination.obstacle()
        if wish.source.deleted:
            gone = "retains no messages any more" if wish.action is Action.REPLAY else "was deleted"
            reason = f"queue '{wish.source.name}' {gone}"
        if reason:
            self.state, self.error = State.FAILED, reason
        return not reason

    def _use(self, piece: Piece) -> Any:
        wish, is_over = self.wish, self._host.turn.slices.is_over
        chosen: list[Peeked] = []
        for number, peeked in enumerate(piece.messages, 1):
            self.examined += 1
            if not self._has_expired(peeked) and (wish.where is None or wish.where(peeked)):
                chosen.append(peeked)
            if not number % _LOOKED_AT and is_over():
                yield None
        self.matched += len(chosen)
        yield None
        at = 0
        while at < len(chosen):
            while (pause := self._pause()) is not None and self.state is State.RUNNING:
                yield pause
            while not (wish.is_dry or piece.prepare(chosen[at].seq_id, chosen[-1].seq_id)):
                yield None
            if not self._may_go_on():
                self.matched -= len(chosen) - at
                return
            at = self._batch(piece, chosen, at)
            undecided, self._undecided = self._undecided, None
            yield undecided

    def _pause(self) -> NotYet | None:
        """Return the wait that is necessary now: for the rate, for space on the disk, or for an answer about rights."""
        context = self._host.context
        if self._due > context.clock():
            return NotYet(partial(self._at, self._due))
        if not self.wish.is_dry and self._host.turn.is_full():
            return NotYet(partial(self._at, context.clock() + _FULL_MS))
        try:
            refusal = self.wish.refusal()
        except NotYet as wait:
            return wait
        if refusal and self.state is State.RUNNING:
            self.state, self.error = State.FAILED, refusal
        return None

    def _batch(self, piece: Piece, chosen: list[Peeked], at: int) -> int:
        """Transfer the next messages from index `at` on; returns the index of the first one left."""
        wish, is_over = self.wish, self._host.turn.slices.is_over
        most = BATCH if not wish.rate else max(1, min(BATCH, wish.rate // _BATCHES))
        if wish.limit is not None:
            most = min(most, wish.limit - self.done)
        if not wish.is_dry:
            self._room = Room(wish.source)
        batch: list[tuple[Peeked, Resolved | None]] = []
        while at < len(chosen) and len(batch) < most:
            peeked = chosen[at]
            if self._has_expired(peeked):  # since it was chosen: the rate, or the disk, has made it wait
                self.matched -= 1
                at += 1
                continue
            try:
                resolved = None if wish.destination is None else wish.destination.resolve(peeked.message)
            except NotYet as wait:
                self._undecided = wait
                break
            cause = resolved if isinstance(resolved, str) else self._obstacle(peeked.message, resolved)
            if cause == FULL and batch:
                break  # which may go straight to consumers
            if cause:
                self.refused[cause] += 1
            else:
                batch.append((peeked, resolved))  # type: ignore[arg-type] # a text is a cause
            at += 1
            if is_over():
                break
        if batch:
            self._carry_out(piece, batch)
        return at

    def _has_expired(self, peeked: Peeked) -> bool:
        if not peeked.expires:
            return False
        source, now = self.wish.source, self._host.context.clock()
        if self.wish.action is Action.REPLAY:
            return peeked.expires <= now - (source.settings.max_age or 0)
        return peeked.expires <= (now if source.limits is None else source.limits.expiry.now())

    def _obstacle(self, message: Message, resolved: Resolved | None) -> str:
        """Return why the destination cannot take a message; '' if it can, and then count it there."""
        if resolved is None:
            return ""
        room, queues = self._room, resolved.queues
        cause = room.obstacle(message, queues)
        if cause == FULL and room.is_empty and not self.wish.is_dry:
            cause = room.obstacle_now(message, queues)
        if not cause:
            room.add(message, queues)
        return cause

    def _carry_out(self, piece: Piece, batch: list[tuple[Peeked, Resolved | None]]) -> None:
        wish = self.wish
        done = len(batch)
        if not wish.is_dry:
            if wish.action in {Action.COPY, Action.REPLAY}:
                for peeked, resolved in batch:
                    if resolved is not None:
                        is_new = wish.action is Action.COPY
                        send(peeked.message, resolved, wish.blob_threshold, None, is_new=is_new)
            else:
                done = self._take_out(piece, batch)
        self.done += done
        self.matched -= len(batch) - done  # those that are gone, or that the walk shows once more
        if wish.rate:
            now = self._host.context.clock()
            self._due = max(self._due, now) + max(1, done * 1000 // wish.rate)

    def _take_out(self, piece: Piece, batch: list[tuple[Peeked, Resolved | None]]) -> int:
        """Move or discard a batch; returns how many of the messages were still there."""
        wish, source = self.wish, self.wish.source
        taken = piece.withdraw([peeked.seq_id for peeked, _ in batch])
        messages: dict[int, Message] = {peeked.seq_id: peeked.message for peeked, _ in batch}
        messages = {seq_id: messages[seq_id] for seq_id in taken}
        if source.limits is not None:
            source.limits.withdrawn(messages)
        if source.awaiting is not None:
            messages = dict(source.awaiting.with_promises(messages.items()))
        gone: list[int] = []
        for peeked, resolved in batch:
            seq_id = peeked.seq_id
            if seq_id not in messages:
                continue
            source.moving += 1
            if resolved is None or send(
                messages[seq_id], resolved, wish.blob_threshold, partial(source.remove_moved, seq_id)
            ):
                source.moving -= 1
                gone.append(seq_id)
        if wish.action is Action.DISCARD and source.awaiting is not None:
            source.awaiting.refuse(gone)
        is_dropped = wish.action is Action.DISCARD
        source.backing.ack(gone, moved=not is_dropped, dropped=is_dropped)
        source.tally.purged += len(taken)
        source.touch()
        return len(taken)


def send(
    original: Message,
    resolved: Resolved,
    blob_threshold: int,
    on_safe: Callable[[bool], object] | None,
    *,
    is_new: bool = False,
) -> bool:
    """Put a message into its destination queues, which have room; false if it stays until `on_safe` is called.

    A copy, whose original keeps its promise, has no `on_safe`; it may be a repeat if it `is_new`.
    """
    message, queues = resolved
    copies = Copies(
        Message(message.address, message.content, message.channel_id),
        queues,
        persistent=is_persistent(message.content),
        promise=None if on_safe is None else joined(original),
        awaits=original.promise is not None,
        on_safe=on_safe,
        blob_threshold=blob_threshold,
    )
    for queue in queues:
        copies.forward(queue, is_new=is_new)
    copies.finish()
    return not copies.stays
