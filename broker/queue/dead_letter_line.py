"""The messages that a queue discards, in order, on their way to its dead letter exchange.

Whatever has a dead letter goes through this line, unacked: what consumers reject, what expires, what is too much. The
head of the line is published as long as the step of the loop has time (`broker.scheduling.time_slices`). The rest
waits for one of

- the next step (`wants_time`),
- arrivals of other queues that were put off, which go first, but not for long (`broker.scheduling.turn.PATIENCE`),
- bodies that are being read from disk: nothing overtakes them, and the queue runs again when they are here,
- the disk, which has more to write than it should: the queue runs again when it has caught up
  (`broker.scheduling.turn.Turn.is_backlogged`).

The order of dead letters is therefore that in which messages were discarded. The queue may have been deleted
meanwhile; it keeps its messages until the line is empty (`broker.queue.queue.Queue.delete`).
"""

from collections import deque
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any, Protocol

from leveret.broker.scheduling.turn import Runnable, Turn
from leveret.storage.message import Message
from leveret.storage.queues.backing_queue import BackingQueue

STEP = 64
"""Messages whose bodies are looked up together."""
ENOUGH = 256
"""Messages in the line from which a queue adds no more that it discards by itself, so that few are in memory."""


class DiscardingQueue(Runnable, Protocol):
    """What the line needs of its queue."""

    backing: BackingQueue

    @property
    def turn(self) -> Turn:
        """The server's work list."""

    def touch(self) -> None:
        """Have the queue run at the end of this turn."""

    def dead_lettered(self, count: int, moved: Collection[int]) -> None:
        """So many messages were published to the dead letter exchange; those that `moved` are to be forgotten."""


class Publisher(Protocol):
    """The vhost, as far as dead letters are concerned."""

    def dead_letter(
        self, queue: Any, letters: Sequence[tuple[int, Message]], reason: str
    ) -> tuple[int, Collection[int]]:
        """Publish unacked messages of a queue to its dead letter exchange, as far as there is one and it has somewhere.

        A negative seq_id is that of a message that never was in the queue.

        Returns:
            How many of them were taken, from the first on: at least one, fewer than all if the step is over. And the
            seq_ids of those of them that may be forgotten in the same commit; the others are let go when what became
            of them is safe (`Queue.letter_is_safe`).

        """


class Discards:
    """The line of one queue.

    Args:
        queue: the queue.
        publisher: publishes the dead letters.

    Attributes:
        wants_time: messages could go on at once, but the step was over.
        moving: messages whose dead letters are on their way into files; the queue lets them go when these are written.

    """

    __slots__ = ("_line", "_publisher", "_queue", "moving", "wants_time")

    def __init__(self, queue: DiscardingQueue, publisher: Publisher) -> None:
        self._queue = queue
        self._publisher = publisher
        self._line: deque[tuple[str, deque[int]]] = deque()
        """Runs of messages that are discarded for the same reason."""
        self.wants_time = False
        self.moving = 0

    def __bool__(self) -> bool:
        """Whether messages wait to be published."""
        return bool(self._line)

    @property
    def is_done(self) -> bool:
        """Whether everything that was discarded is published, and safe as far as its commit is concerned."""
        return not self._line and not self.moving

    @property
    def is_long(self) -> bool:
        """Whether the queue should wait before it discards more."""
        return len(self._line) > 1 or (bool(self._line) and len(self._line[0][1]) >= ENOUGH)

    def add(self, seq_ids: Collection[int], reason: str) -> None:
        """Append unacked messages; the caller owes `work_off`, or a run of the queue."""
        line = self._line
        if line and line[-1][0] == reason:
            line[-1][1].extend(seq_ids)
        elif seq_ids:
            line.append((reason, deque(seq_ids)))

    def work_off(self) -> int:
        """Publish what can be published now; returns how many messages were."""
        line, turn = self._line, self._queue.turn
        published = 0
        self.wants_time = False
        while line:
            if turn.slices.is_over():
                self.wants_time = True
                break
            if turn.wait_for_arrivals(self._queue) or turn.wait_for_disk(self._queue):
                break
            reason, seq_ids = line[0]
            asked = list(islice(seq_ids, STEP))
            found, waiting = self._queue.backing.unacked_messages(asked)
            if waiting:  # nothing overtakes the first of them
                missing = set(waiting)
                asked = asked[: next(at for at, seq_id in enumerate(asked) if seq_id in missing)]
                before = set(asked)
                found = [each for each in found if each[0] in before]
            count = self._publish(found, reason)
            published += count
            left = asked.index(found[count][0]) if count < len(found) else len(asked)
            for _ in range(left):
                seq_ids.popleft()
            if not seq_ids:
                line.popleft()
            if waiting and left == len(asked):
                break
        return published

    def _publish(self, letters: Sequence[tuple[int, Message]], reason: str) -> int:
        """Publish messages and forget them, as many as there is time for; returns how many."""
        if not letters:
            return 0
        count, moved = self._publisher.dead_letter(self._queue, letters, reason)
        self.moving += count - len(moved)
        self._queue.dead_lettered(count, moved)
        return count
