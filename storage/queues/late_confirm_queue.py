"""A variable queue that writes every persistent message, even if it is acked before its commit.

Theory. A `VariableQueue` forgets messages that are settled before their commit: they are never written, and confirmed
at once. A `LateQueue` does what RabbitMQ 3.6 did with the small messages in its queue index: every published message is
written and confirmed when that commit is done, and its end is written after that. So its entries have one more state.
An entry may be settled while NEW or WRITING, which is called early: the queue has no message for it any more, the
journal writes it as if it were needed, and as soon as it is STORED its end is noted (`Journal.delete_late`) and written
by the next commit. Callbacks that wait for everything noted so far (`Journal.when_safe`) wait for that commit.

There are exceptions where the message is kept elsewhere or cannot be written. Messages that move to other queues (dead
letters) move as in a `VariableQueue`, so the disk has the original or the dead letter and never both. Entries settled
early are not written if their queue is deleted, or if they were refused because the disk is full: then their publisher
hears that, unless another queue dropped its copy, so that the publisher waits for that end alone.

This is for measurements (`storage.early_confirm = false`): it guarantees nothing more and costs a write for each
message.
"""

from collections.abc import Iterable

from leveret.storage.journal.blocks import GONE, NEW, WRITING, Entry
from leveret.storage.message import Message
from leveret.storage.queues.pager import Pager
from leveret.storage.queues.requeued import Item
from leveret.storage.queues.variable_queue import VariableQueue


class LateQueue(VariableQueue):
    """A variable queue that also writes settled messages; the arguments are those of `sub_queues.SubQueues`."""

    __slots__ = ("_settled_early",)

    def __init__(self, pager: Pager, qid: int, *, durable: bool, next_seq: int = 0) -> None:
        super().__init__(pager, qid, durable=durable, next_seq=next_seq)
        self._settled_early: dict[int, Entry] = {}
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
        """Settle messages; those not on disk yet are kept until they are, unless they have moved to other queues."""
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
                entry.evict = True  # so that the journal reports when it is on disk
                self._settled_early[entry.seq_id] = entry
            else:
                others.append(entry)
        super()._forget(others)

    def _withhold(self, items: Iterable[Item]) -> None:
        """Withhold nothing: nobody hears before what is dropped is written."""

    def logged(self, entries: list[Entry]) -> None:
        """Handle entries to be evicted, or settled early, that are safe (called by the journal)."""
        self._end_settled(entries)

    def stored(self, entries: list[Entry]) -> None:
        """Handle entries to be evicted, or settled early, that are on disk now (called by the journal)."""
        super().stored(self._end_settled(entries))

    def _end_settled(self, entries: list[Entry]) -> list[Entry]:
        """Note the ends of entries that were settled early; returns the others."""
        settled = self._settled_early
        if settled:
            kept = []
            for entry in entries:
                if settled.pop(entry.seq_id, None) is None:
                    kept.append(entry)
                else:
                    entry.evict = False
                    self._journal.delete_late(entry)
            entries = kept
        return entries

    def unstored(self, entries: Iterable[Entry]) -> None:
        """Handle entries that found no space on disk (called by the journal): settled ones need none any more."""
        for entry in entries:
            if self._settled_early.pop(entry.seq_id, None) is not None:
                self._discard(entry)

    def delete(self) -> None:
        """Delete the queue with its unacked messages and those settled early."""
        if any(entry.state == WRITING for entry in self._settled_early.values()):
            self._journal.await_sweep()
        self._settled_early.clear()
        super().delete()

    @staticmethod
    def _discard(entry: Entry) -> None:
        entry.state = GONE
        entry.evict = False
        entry.message.accepted()  # type: ignore[union-attr]
