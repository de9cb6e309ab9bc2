"""FIFO of the messages that a queue discards, until they are published to its dead letter exchange.

All dead letters pass through this line, unacked: rejected messages, expired ones, and those over a limit. The head of
the line is published while the step of the event loop has time (`broker.scheduling.time_slices`). The rest waits for
one of

- the next step (`wants_time`),
- deferred arrivals of other queues, which go first, but not for long (`broker.scheduling.turn.INPUT_PRIORITY_NS`),
- bodies that are being read from disk: nothing overtakes them, and the queue runs again when they have been read,
- the disk, if too many writes are pending: the queue runs again when it has caught up
  (`broker.scheduling.turn.Turn.is_backlogged`).

Dead letters are therefore published in the order in which messages were discarded. The queue may have been deleted
meanwhile; it keeps its messages until the line is empty (`broker.queue.queue.Queue.delete`).
"""

from collections import deque
from collections.abc import Collection, Sequence
from itertools import islice

from leveret.broker.queue.interfaces import OwningQueue, ParentVHost
from leveret.storage.message import Message

STEP = 64  # number of messages whose bodies are fetched together
ENOUGH = 256  # length of the line from which the queue stops expiry and drops, to keep few messages in memory


class DeadLetterLine:
    """The line of dead letters of one queue; `wants_time` if messages could be published, but the step was over."""

    __slots__ = ("_line", "_queue", "_vhost", "wants_time")

    def __init__(self, queue: OwningQueue, vhost: ParentVHost) -> None:
        self._queue = queue
        self._vhost = vhost
        self._line: deque[tuple[str, deque[int]]] = deque()  # runs of messages discarded for the same reason
        self.wants_time = False

    def __bool__(self) -> bool:
        return bool(self._line)

    @property
    def is_done(self) -> bool:
        """True if everything discarded is published, and nothing that has moved is still being written to a file."""
        return not self._line and not self._queue.moving

    @property
    def is_long(self) -> bool:
        """True if the queue should wait before it discards more."""
        return len(self._line) > 1 or (bool(self._line) and len(self._line[0][1]) >= ENOUGH)

    def add(self, seq_ids: Collection[int], reason: str) -> None:
        """Append unacked messages; the caller must call `publish_pending`, or run the queue."""
        line = self._line
        if line and line[-1][0] == reason:
            line[-1][1].extend(seq_ids)
        elif seq_ids:
            line.append((reason, deque(seq_ids)))

    def publish_pending(self) -> int:
        """Publish the messages that can be published now; return how many."""
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
        if not letters:
            return 0
        count, moved = self._vhost.dead_letter(self._queue, letters, reason)
        self._queue.moving += count - len(moved)
        self._queue.dead_lettered(count, moved)
        return count
