"""The variable queue that confirms late: what a message was published for is no reason not to write it.

Theory. A `VariableQueue` forgets what is settled before its commit: it is never written, and its publisher is told at
once. A `LateQueue` does what RabbitMQ 3.6 did with the small messages in its queue index: whatever was published is
written, its publisher is told when that commit is done, and its end is written down after it. So its entries have one
more fate. What is settled while it is NEW or WRITING is *doomed*: nothing in the queue stands for it any more, the
journal goes on with it as if it were needed, and as soon as it is STORED it is buried (`Journal.bury`), which the next
commit writes down. Whoever waits for what was noted so far (`Journal.when_safe`) waits for that one.

The exceptions are those in which somebody else has become responsible. What moves to other queues (dead letters) goes
as ever, so the disk has the original or the letter and never both. What is doomed in a queue that is deleted is not
written, nor is what was refused because the disk is full.

This is for measurements (`storage.early_confirm = false`): it promises nothing more and costs a write for each message.
"""

from collections.abc import Iterable

from leveret.storage.journal.blocks import GONE, NEW, WRITING, Entry
from leveret.storage.message import Message
from leveret.storage.queues.pager import Pager
from leveret.storage.queues.requeued import Item
from leveret.storage.queues.variable_queue import VariableQueue


class LateQueue(VariableQueue):
    """A variable queue that writes what is settled, too; the arguments are those of `sub_queues.SubQueues`."""

    __slots__ = ("_doomed",)

    def __init__(self, pager: Pager, qid: int, *, durable: bool, next_seq: int = 0) -> None:
        super().__init__(pager, qid, durable=durable, next_seq=next_seq)
        self._doomed: dict[int, Entry] = {}
        """Entries that are settled and not on disk yet, by seq_id."""

    def publish_delivered(
        self, messages: list[Message], *, ack_required: bool, persistent: bool = False, expires: int = 0
    ) -> range:
        """Record messages that go straight to a consumer; `ready_count` must be 0. Returns their seq_ids."""
        if ack_required or not (persistent and self.durable):
            return super().publish_delivered(
                messages, ack_required=ack_required, persistent=persistent, expires=expires
            )
        first = self.next_seq
        self.next_seq = stop = first + len(messages)
        self._forget(self._journaled(messages, first, expires))
        return range(first, stop)

    def _forget(self, items: Iterable[Item], *, moved: bool = False) -> None:
        """Settled: what is not on disk yet is doomed, unless it has moved to other queues."""
        if moved:
            super()._forget(items, moved=True)
            return
        others: list[Entry] = []
        for entry in items:
            if type(entry) is not Entry:
                continue
            if entry.durable and entry.state in {NEW, WRITING}:
                if entry.evict:
                    self._keep(entry)
                entry.evict = True  # so that the journal says when it is on disk
                self._doomed[entry.seq_id] = entry
            else:
                others.append(entry)
        super()._forget(others)

    def stored(self, entries: list[Entry]) -> None:
        """Entries that shall be evicted, or are doomed, are on disk now (the journal calls this)."""
        doomed = self._doomed
        if doomed:
            kept = []
            for entry in entries:
                if doomed.pop(entry.seq_id, None) is None:
                    kept.append(entry)
                else:
                    entry.evict = False
                    self._journal.bury(entry)
            entries = kept
        super().stored(entries)

    def unstored(self, entries: Iterable[Entry]) -> None:
        """Entries have found no room (the journal calls this): doomed ones need none any more."""
        for entry in entries:
            if self._doomed.pop(entry.seq_id, None) is not None:
                self._release_doomed(entry)

    def delete(self) -> None:
        """The queue goes, with its unacked messages and what is doomed."""
        for entry in self._doomed.values():
            if entry.state == WRITING:
                self._journal.outlast()
            self._release_doomed(entry)
        self._doomed.clear()
        super().delete()

    @staticmethod
    def _release_doomed(entry: Entry) -> None:
        entry.state = GONE
        entry.evict = False
        entry.message.accepted()  # type: ignore[union-attr]
