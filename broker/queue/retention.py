"""Retention: acked messages of a queue go to its retained ones, in the commit that has their acks.

Theory. A queue that retains has a `Retention`, which its acks go to instead of its backing queue (`take`). Each acked
message is appended to a stream, which no listing shows (`broker.queue.retained_queue`). It leaves its own queue
as a message that moves, so after a kill it is in one of the two. Its publisher gets the confirm when it is safe in
either: a message that is acked before its commit is written to the retained ones only.

Usually that happens at once. Acked messages wait in a line, still unacked for the backing queue, if the step of the
event loop is over, if their bodies have to be read from disk, or while too many writes are pending. Nothing overtakes
them, so the retained ones are in the order of acks. A body that goes to a file of its own takes longer than a commit:
its original stays until the file is written.

Some are not retained: while the disk is full, since acks have to free space then, and those that `skipped` counts.

Hot path: see docs/performance.md.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import islice
from typing import Any

from leveret.broker.amqp.properties import any_may_expire, may_expire
from leveret.broker.queue.interfaces import OwningQueue, RetainedMessages
from leveret.confirm.promise import joined
from leveret.storage.message import Message, Moved, Persistent, moving
from leveret.storage.queues.backing_queue import Fetched

STEP = 512  # number of messages between two checks of the time
HAS_EXPIRATION, LARGE, DISK_FULL = "own expiration", "too large", "disk full"
"""Causes for which an acked message is not retained."""


class Retention:
    """The way of acked messages from a queue to its retained ones; `skipped` counts those that are not, by cause."""

    __slots__ = (
        "_blob_threshold",
        "_callbacks",
        "_is_closed",
        "_is_waiting",
        "_line",
        "_moving",
        "_queue",
        "_safe",
        "_tied",
        "retained",
        "skipped",
        "touched",
    )

    durable = has_input = stores_input = False
    """For the turn: messages that wait here are not noted for the disk yet, so no commit has to wait for them."""

    def __init__(self, queue: OwningQueue, retained: RetainedMessages, blob_threshold: int) -> None:
        self._queue = queue
        self._blob_threshold = blob_threshold
        self._line: deque[int] = deque()  # acked messages that are neither retained nor removed
        self._tied: set[int] = set()  # those leaving in one commit with what replaces them
        self._moving = 0  # messages whose bodies are being written to files for their copies
        self._safe: list[int] = []  # those whose copies are settled
        self._is_closed = False
        self._is_waiting = False  # True if the next run of the queue runs this
        self._callbacks: list[Callable[[], object]] = []
        self.retained = retained
        self.skipped: Counter[str] = Counter()
        self.touched = False

    def __repr__(self) -> str:
        return f"<retention of queue {self._queue.name!r}>"

    @property
    def is_done(self) -> bool:
        """True if every message taken is retained and removed."""
        return not (self._line or self._moving or self._safe)

    # -- arrivals ---------------------------------------------------------------------------------------------------

    def take(self, keys: Collection[Any], *, moved: bool = False) -> None:
        """Take messages that consumers have acked, and remove them from the queue, now or later.

        The keys are seq_ids, and promises of light deliveries, which are no longer kept and so not retained. `moved`:
        something was published instead of them; see `BackingQueue.ack`.
        """
        queue = self._queue
        if queue.awaiting is not None:
            keys, settled = queue.awaiting.split(keys)
            if settled:
                queue.backing.ack(settled)  # type: ignore[arg-type] # a promise is a key, too
        if queue.deleted:
            queue.backing.ack(keys)
            return
        if moved:
            self._tied.update(keys)
        turn, line = queue.turn, self._line
        if line or len(keys) > STEP or turn.is_full() or (queue.durable and turn.wait_for_disk(self)):
            line.extend(keys)
            if self._proceed() and line:
                self.touch()
            return
        if waiting := self._move(list(keys)):  # as usual, there are none
            line.extend(waiting)
            self._await_read()
        self._moved()

    def take_delivered(self, batch: Fetched) -> None:
        """Take messages that are delivered without waiting for an ack: all of them are acked at once.

        The queue keeps no light deliveries, so that these are retained as they are delivered.
        """
        keys = batch.seq_ids
        if self._queue.awaiting is not None:
            settled: frozenset[object] = frozenset(self._queue.awaiting.split(keys)[1])
            pairs = zip(keys, batch.messages, strict=True)
            light = [(-1, message) for key, message in pairs if key in settled]
            if self._queue.turn.is_full():
                self.skipped[DISK_FULL] += len(light)
            else:
                self._keep(light)
        self.take(keys)

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call back once when `is_done`, in a step of the event loop."""
        self._callbacks.append(callback)

    def close(self) -> None:
        """Delete the retained messages, and those that are still in the line."""
        self._is_closed = True
        self.retained.delete()
        if self._line:
            self._queue.turn.add_writing_job(self._drain(), f"acks of {self._queue}")

    def _drain(self) -> Iterator[None]:
        while self._line:
            self._remove(STEP)
            yield
        self._ended()

    def forget(self, seq_ids: Collection[int]) -> None:
        """Leave messages to the queue that requeues them after an internal error."""
        gone = frozenset(seq_ids)
        self._line = deque(seq_id for seq_id in self._line if seq_id not in gone)
        self._tied -= gone
        self.touch()  # a caller may wait for the line to end

    # -- the turn ---------------------------------------------------------------------------------------------------

    def touch(self) -> None:
        """Schedule a run at the end of this turn."""
        if not self.touched:
            self.touched = True
            self._queue.turn.queues.append(self)

    def run(self) -> bool:
        """Go on; return true if there was not enough time."""
        queue = self._queue
        if self._safe:
            safe, self._safe = self._safe, []
            self._moving -= len(safe)
            self._end(safe)
            queue.touch()
        if self._is_closed or not self._line:
            self._ended()
            return False
        if queue.turn.wait_for_arrivals(self):
            return False
        before = len(self._line)
        more = self._proceed()
        if len(self._line) < before:  # else it would run this again, and again
            queue.touch()
        return more

    def give_up(self) -> None:
        """Recover from an internal error: remove the messages without retaining them."""
        self._remove(len(self._line))
        self._ended()

    # -- the way ----------------------------------------------------------------------------------------------------

    def _proceed(self) -> bool:
        """Retain and remove messages at the head of the line; return true if the time is over."""
        line, turn = self._line, self._queue.turn
        while line:
            if turn.is_full():
                self.skipped[DISK_FULL] += min(STEP, len(line))
                self._remove(STEP)
            elif self._queue.durable and turn.wait_for_disk(self):
                break
            else:
                seq_ids = list(islice(line, STEP))
                waiting = self._move(seq_ids)
                for _ in range(len(seq_ids) - len(waiting)):
                    line.popleft()
                if waiting:
                    self._await_read()
                    break
            if line and turn.slices.is_over():
                turn.settling[self] = None
                return True
        self._moved()
        return False

    def _moved(self) -> None:
        """Note whether anything is left after some were moved."""
        if self._line or self._moving:
            self._queue.turn.settling[self] = None
        else:
            self._ended()

    def _await_read(self) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            self._queue.after_next_run(self._has_run)

    def _has_run(self) -> None:
        self._is_waiting = False
        self.touch()

    def _ended(self) -> None:
        if self.is_done:
            self._queue.turn.settling.pop(self, None)
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback()

    def _remove(self, most: int) -> None:
        popleft = self._line.popleft
        self._end([popleft() for _ in range(min(most, len(self._line)))])

    def _end(self, seq_ids: Collection[int]) -> None:
        if self._tied and (tied := self._tied.intersection(seq_ids)):
            self._tied -= tied
            self._queue.backing.ack(tied, moved=True)
            seq_ids = [seq_id for seq_id in seq_ids if seq_id not in tied]
        self._queue.backing.ack(seq_ids)

    def _move(self, seq_ids: list[int]) -> list[int]:
        """Move these messages, as far as their bodies are in memory; return the others, from the first one on."""
        queue = self._queue
        found, missing = queue.store.unacked_messages(seq_ids)
        waiting: list[int] = []
        if missing:
            first = seq_ids.index(next(filter(frozenset(missing).__contains__, seq_ids)))
            waiting = seq_ids[first:]
            before = frozenset(seq_ids[:first])
            found = [each for each in found if each[0] in before]
        moved, left = self._keep(found)
        if moved:
            queue.backing.ack(moved, moved=True)
            if self._tied:
                self._tied.difference_update(moved)
        if left:
            self._end(left)
        return waiting

    def _keep(self, messages: Collection[tuple[int, Message]]) -> tuple[list[int], list[int]]:
        """Append messages by seq_id (-1: no longer in the queue) to the retained ones.

        Returns the seq_ids of those that are in this commit, and of those that are not retained. The others are removed
        when their files are written.
        """
        contents = [message.content for _, message in messages]
        most = min(self._blob_threshold, (self.retained.settings.max_octets or 0) + 1)
        expires = self._queue.backing.expiring and any_may_expire(contents)
        if not expires and max(map(len, contents), default=most) < most:  # as usual: 0.2 us a message less
            self.retained.keep([message for _, message in messages])
            return [seq_id for seq_id, _ in messages], []
        kept: list[Message] = []
        moved: list[int] = []
        left: list[int] = []
        for seq_id, message in messages:
            if cause := self._obstacle(message):
                self.skipped[cause] += 1
                left.append(seq_id)
                continue
            is_small = len(message.content) < self._blob_threshold
            kept.append(message if is_small else self._copied(seq_id, message))
            if not isinstance(kept[-1], Moved):
                moved.append(seq_id)
        if kept:
            self.retained.keep(kept)
        return moved, left

    def _obstacle(self, message: Message) -> str:
        """Return why a message is not retained; '' if it is."""
        if may_expire(message.content):
            return HAS_EXPIRATION
        return LARGE if len(message.content) > (self.retained.settings.max_octets or 0) else ""

    def _copied(self, seq_id: int, message: Message) -> Persistent:
        """Return a copy to be written; the original of a very large one stays until then."""
        waits = isinstance(message, Persistent) and message.publisher is not None
        on_safe = None if seq_id < 0 else partial(self._is_safe, seq_id)
        copy = moving(message, self._blob_threshold, on_safe, joined(message) if waits else None)
        if isinstance(copy, Moved):
            self._moving += 1
        return copy

    def _is_safe(self, seq_id: int, is_written: bool) -> None:
        """Remove the original of a copy: with the commit that has the copy, or after this run if that is settled."""
        if is_written:
            self._moving -= 1
            self._tied.discard(seq_id)
            self._queue.backing.ack((seq_id,), moved=True)
            self._queue.touch()
        else:
            self._safe.append(seq_id)
        self.touch()
