"""Delayed retries: messages that come back to a queue wait before they are delivered again.

Theory. A message that waits stays in the queue with its body, unacked without a consumer. At its time it is requeued
like any other, at its old place, marked as redelivered. Its time is a row of a line like that of held messages
(`broker.queue.due_line`), with the message's seq_id as number and nothing else. After a restart the messages of an
earlier run are ready again. So those that have such a row are *expected*: one that is fetched before its time is set
aside instead of being delivered, and waits as before.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from leveret.broker.queue.due_line import DueLine
from leveret.broker.queue.interfaces import OwningQueue, ParentVHost
from leveret.storage.delayed import TABLE, Due, pack_key, pack_row
from leveret.storage.queues.queue_ids import retained_qid

_NO_ADDRESS = b"\0\0"


class Retries(DueLine):
    """The messages of one queue that wait for their next delivery; all of them are in memory."""

    keeps_rest_on_disk = False

    def __init__(self, queue: OwningQueue, parent: ParentVHost) -> None:
        super().__init__(queue.turn, parent.context, parent.disk if queue.qid else None)
        self._queue = queue
        self.number = retained_qid(queue.qid)
        self.waiting: dict[int, Due] = {}  # unacked messages that wait, by seq_id
        self._expected: dict[int, Due] = {}  # messages from before the start that were not fetched since
        self._back: list[int] = []
        self.watches = False  # True if fetched messages may be set aside, before any is removed

    def __repr__(self) -> str:
        return f"<retries of queue {self._queue.name!r}>"

    @property
    def count(self) -> int:
        """Number of messages that wait; those that are expected are ready still."""
        return len(self.waiting)

    def hold_back(self, seq_ids: Iterable[int], delays: Iterable[int]) -> None:
        """Have unacked messages wait for so many milliseconds each."""
        now = self._context.clock()
        for seq_id, delay in zip(seq_ids, delays, strict=True):
            self.waiting[seq_id] = due = now + delay, seq_id
            key = pack_key(self.number, due)
            self._added[due] = value = pack_row(key, _NO_ADDRESS, b"")
            self._rows.append((TABLE, key, value))
        self._written()
        if self._stopped:  # those of many unacked messages come back after it
            self._end_waits()

    def recover(self, line: int, count: int, rows: Callable[[], Iterable[tuple[Due, bytes]]]) -> None:
        """Take over the rows of an earlier run; see `DueLine.recover`."""
        del count  # each of them is put again
        super().recover(line, 0, rows)
        found = dict(rows())
        self.window.put(found)
        self._expected |= {due[1]: due for due in found}
        self.watches = bool(self._expected)

    def set_aside(self, seq_ids: Iterable[int]) -> Collection[int]:
        """Have those of fetched messages wait that are expected; return their seq_ids."""
        later = {seq_id: due for seq_id in seq_ids if (due := self._expected.pop(seq_id, None))}
        self.waiting |= later
        return later

    def run(self) -> bool:
        """Store new rows and requeue due messages."""
        more = super().run()
        self.watches = bool(self._expected)
        back, self._back = self._back, []
        if back:
            self._queue.used()
            self._queue.bring_back(back)
        return more

    def _give_back(self, due: Due, row: bytes) -> bool:
        del row
        self._expected.pop(due[1], None)
        if self.waiting.pop(due[1], None) is not None:
            self._back.append(due[1])
        return True

    def stop(self) -> None:
        """Release no more messages; those in memory only are ready again, and are written with others."""
        super().stop()
        self._end_waits()

    def _end_waits(self) -> None:
        if self._queue.awaiting is not None and self.waiting:
            waiting, self.waiting = self.waiting, {}
            self._expected |= waiting
            self._queue.bring_back(waiting)

    def carried_over(self, seq_ids: Mapping[int, int]) -> None:
        """Expect messages that were published again after the stop: new seq_ids by old ones."""
        for old, new in seq_ids.items():
            due = self._expected.pop(old, None)
            if due is not None and self._disk is not None:
                self._disk.journal.delete(TABLE, pack_key(self.number, due))
                key = pack_key(self.number, (due[0], new))
                self._disk.journal.put(TABLE, key, pack_row(key, _NO_ADDRESS, b""))

    def purge(self) -> int:
        """Remove all messages that wait; returns how many."""
        gone, self.waiting = list(self.waiting), {}
        self._expected.clear()
        super().purge()
        if self._queue.awaiting is not None:
            self._queue.awaiting.refuse(gone)
        self._queue.backing.ack(gone, dropped=True)
        return len(gone)
