"""The variable queue: a backing queue whose messages are in memory, on disk, or both.

Theory (after RabbitMQ's `rabbit_variable_queue`). A ready message is in one of four states:

=======  ================  =============================  ===========================
state    body              position                       where
=======  ================  =============================  ===========================
alpha    memory            memory                         q4, q1
beta     paged to disk     memory                         q3, q2 (transient message)
gamma    disk              memory and disk                q3, q2 (persistent message)
delta    disk              disk, as a range of seq_ids    delta
=======  ================  =============================  ===========================

In order of seq_id, which is the order of publishing: head, q4, q3, delta, q2, q1, tail. A message is published as an
alpha into q4, or into q1 if q3 or delta have any. Memory pressure turns alphas into betas or gammas (those farthest
from the head first: q1 from its head, q4 from its tail) and these into deltas (q3 from its tail, q2 from its head).
Messages are read back on demand: when q3 runs low the next blocks of the delta are read into it, with bodies; when q3
and delta are both empty q1 becomes q4. A persistent message in a durable queue is on disk, or on its way there, in
every state: once written it is an alpha, a gamma or a delta, never a beta.

Reading takes time, so it is started ahead of demand (`_prefetch`), one load at a time. `fetch` may return nothing
although messages are ready: then a load is in progress, and `on_loaded` is called when it is done. A body is dropped
from memory only when its commit is done, so a body that is not in memory can always be read.

Fetched messages are older than those never fetched. So a requeued message is in front of q4, q3 and the delta alike.
Requeued messages wait in `returned`, a sorted list that counts as the front of q4. It may hold betas and gammas, whose
body was dropped while they were unacked. No message is ever merged into q3 or the delta.

An entry that is settled before its commit is never written, and confirmed at once. With `Pager.early_confirm` off, for
measurements, it is as in RabbitMQ 3.6: every published message is written and confirmed when that commit is done. Then
an entry settled while NEW or WRITING is kept in `_settled_early`, and the journal writes it as if it were needed. As
soon as it is safe its end is noted (`Journal.delete_late`) and written by the next commit. Not written are messages
that moved to other queues, so that the disk never has both, and those whose queue is deleted or that were refused
because the disk is full. Their publisher is notified, unless another queue dropped its copy: then it waits for that
end.

A transient alpha is the bare `Message`: its seq_id follows from its place, since q4 and q1 have no gaps. A message that
is on disk, or has to go there, has an `Entry`. `storage.queues.invariants.check` has the invariants between calls.

Hot path: see docs/performance.md.
"""
# ruff: noqa: C901, PLR0912 - hot: one flat function is several times cheaper than small ones

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain, islice
from operator import itemgetter
from typing import Self

from leveret.storage.journal.blocks import GONE, LOGGED, NEW, NO_RETURNS, STORED, WRITING, Entry, octets_of
from leveret.storage.journal.reads import UNACKED
from leveret.storage.journal.shared_bodies import OVERHEAD
from leveret.storage.large_table import MANY, fitting
from leveret.storage.message import Dated, Message, dated, withhold
from leveret.storage.queues.backing_queue import Fetched, Peeked, Piece, never
from leveret.storage.queues.delta import Delta
from leveret.storage.queues.loading import Reading
from leveret.storage.queues.pager import LARGE, Releasable
from leveret.storage.queues.peek import Places
from leveret.storage.queues.requeued import NONE_REQUEUED, Item, Requeued
from leveret.storage.queues.sub_queues import NO_ENTRIES, NOTHING
from leveret.storage.queues.withdrawal import Withdrawal

_seq_id = itemgetter(0)
UNCOUNTED = 1024  # small messages (4 KiB at most) that a queue may have in memory before it counts bytes
_SAMPLE = 64  # maximum number of members in a sample that estimates the number of some of them


class VariableQueue(Reading):
    """A `BackingQueue` that pages; the arguments are those of `storage.queues.sub_queues.SubQueues`."""

    __slots__ = ()

    # -- publishing -------------------------------------------------------------------------------------------------

    def publish(
        self,
        messages: Collection[Message],
        *,
        persistent: bool = False,
        small: bool = False,
        expires: int = 0,
    ) -> range:
        """Append messages at the tail, in order; returns their seq_ids."""
        seq_id = self.next_seq
        if expires:
            self.expiring = True
            if not (persistent and self.durable):
                messages = dated(messages, expires)
        if self.q3 or self.delta.count:
            run = self.q1
            if run is NOTHING:
                run = self.q1 = deque()
            if not run:
                self._q1_first = seq_id
        else:
            run = self.q4
            if run is NOTHING:
                run = self.q4 = deque()
            if not run:
                self._q4_first = seq_id
                self._q4_counted = False
            if not self._q4_counted and (persistent or not small or len(run) > UNCOUNTED):
                self.count_octets()
        count = len(messages)
        if persistent and self.durable:
            items = self._journaled(messages, seq_id, expires)
            run.extend(items)
            for item in items:
                if type(item) is Entry:
                    self._run_entries += 1
        else:
            run.extend(messages)
        self.next_seq = seq_id + count
        self.ready_count += count
        if self._q4_counted or run is self.q1:
            self.ram_octets += sum([len(message.content) for message in messages])
        if (
            self.ram_octets + OVERHEAD * self.ready_count > self.ram_limit
            or self.ready_count > self.target_ram_count
        ):
            self.reduce_memory_use(count)
        self.pager.active.add(self)
        return range(seq_id, self.next_seq)

    def publish_delivered(
        self, messages: list[Message], *, ack_required: bool, persistent: bool = False, expires: int = 0
    ) -> range:
        """Record messages that go straight to a consumer; `ready_count` must be 0. Returns their seq_ids."""
        first = self.next_seq
        if expires:
            self.expiring = True
            if not (persistent and self.durable):
                messages = dated(messages, expires)
        self.next_seq = stop = first + len(messages)
        seq_ids = range(first, stop)
        if persistent and self.durable:
            if ack_required:
                items = self._journaled(messages, first, expires)
                self._unacked.update(zip(seq_ids, items, strict=True))
                self._unacked_entries += sum([type(item) is Entry for item in items])
                self._delivered(messages)
            elif self._settled_early is not None:
                self._forget(self._journaled(messages, first, expires))
            else:
                for message in messages:
                    if message.persistent:
                        self._journal.early += 1
                        message.accepted()  # type: ignore[attr-defined]
        elif ack_required:
            self._unacked.update(zip(seq_ids, messages, strict=True))
            self._delivered(messages)
        return seq_ids

    def _delivered(self, messages: list[Message]) -> None:
        """Handle messages that were added to the unacked ones directly, which may be too many now."""
        self.unacked_octets += len(messages[0].content) * len(messages)
        self.pager.active.add(self)
        count = len(self._unacked)
        if count > MANY:
            self._unacked = fitting(self._unacked)
        if self.unacked_octets + OVERHEAD * count > self.ram_limit or count > self.target_ram_count:
            self.reduce_memory_use(len(messages))

    def _journaled(self, messages: Collection[Message], seq_id: int, expires: int) -> list[Item]:
        """Return the messages, those that must be written as entries noted in the journal."""
        items: list[Item] = []
        journal, fresh, blob_threshold = self._journal, self.journal_fresh, self.pager.blob_threshold
        octets = 0
        known = len(fresh)
        for message in messages:
            if message.persistent:
                size = len(message.content)
                octets += size + OVERHEAD
                if message.publisher is not None:  # type: ignore[attr-defined]
                    journal.urgent = True
                entry = Entry(seq_id, message, size, durable=True, expires=expires)
                items.append(entry)
                if size < blob_threshold:
                    fresh.append(entry)
                else:
                    octets -= size  # it counts in `blob_octets`
                    journal.write_blob(self, entry, message)  # type: ignore[arg-type]
            else:
                items.append(Dated(message, expires) if expires else message)
            seq_id += 1
        journal.octets += octets
        journal.records += len(fresh) - known
        if not self.journaled:
            journal.touch(self)
        return items

    # -- fetching ---------------------------------------------------------------------------------------------------

    def fetch(self, count: int, *, ack_required: bool) -> Fetched:
        """Take at most `count` messages from the head, none if the next one is being read; see `BackingQueue.fetch`."""
        if self.returned is not NONE_REQUEUED and self.returned:
            return self._fetch_returned(count, ack_required=ack_required)
        run = self.q4
        if not run:
            return self._fetch_read(count, ack_required=ack_required)
        items: list[Item]
        if count >= len(run):
            items = list(run)
            run.clear()
            count = len(items)
        else:
            popleft = run.popleft
            items = [popleft() for _ in range(count)]
        first = self._q4_first
        self._q4_first = first + count
        seq_ids = range(first, first + count)
        self.ready_count -= count
        messages: list[Message]
        if self._run_entries:
            messages = self._bodies(items)
            entries = sum([type(item) is Entry for item in items])
            self._run_entries -= entries
            if ack_required:
                self._unacked.update(zip(seq_ids, items, strict=True))
                self._unacked_entries += entries
            else:
                self._forget(items)
        else:
            messages = items  # type: ignore[assignment]
            if ack_required:
                self._unacked.update(zip(seq_ids, items, strict=True))
        if self._q4_counted:
            octets = sum([len(message.content) for message in messages])
            self.ram_octets -= octets
        else:
            octets = len(messages[0].content) * count
        if ack_required:
            self.unacked_octets += octets
            if len(self._unacked) > MANY:
                self._unacked = fitting(self._unacked)
        return Fetched(seq_ids, messages, redelivered=False)

    def _fetch_returned(self, count: int, *, ack_required: bool) -> Fetched:
        taken = self.returned.take(count, _has_body)
        if not taken:
            self._want()
            return Fetched((), [], redelivered=False)
        batch = self._take(taken, ack_required=ack_required, redelivered=True)
        self._keep_ahead()
        return batch

    def _fetch_read(self, count: int, *, ack_required: bool) -> Fetched:
        """Take from q3, as far as its bodies are in memory."""
        q3 = self.q3
        taken: list[tuple[int, Item]] = []
        watermark = self.redelivered_below
        redelivered = bool(q3) and q3[0].seq_id < watermark
        while q3 and len(taken) < count:
            entry = q3[0]
            if entry.message is None or (entry.seq_id < watermark) is not redelivered:
                break
            del q3[0]
            item: Item = entry
            if entry.evict:
                self._keep(entry)
            if entry.state == NEW and not entry.durable:  # was to be paged, which is no longer needed
                entry.state = GONE
                item = entry.message
            taken.append((entry.seq_id, item))
        self._ahead = max(0, self._ahead - len(taken))
        batch = Fetched((), [], redelivered=False)
        if taken:
            batch = self._take(taken, ack_required=ack_required, redelivered=redelivered)
            if self.unacked_octets + OVERHEAD * len(self._unacked) > self.ram_limit:
                self.reduce_memory_use(len(taken))
        if not q3 and not self.delta.count:
            self._q1_to_q4()
        elif not taken:
            self._want()
        elif self._ahead < self.read_ahead and (self._ahead < len(q3) or self.delta.count):
            self._asked = True
            self._prefetch()
        return batch

    def _take(self, taken: list[tuple[int, Item]], *, ack_required: bool, redelivered: bool) -> Fetched:
        self.ready_count -= len(taken)
        items = [item for _, item in taken]
        messages = self._bodies(items)
        octets = sum([len(message.content) for message in messages])
        self.ram_octets -= octets
        if ack_required:
            self.unacked_octets += octets
            self._unacked.update(taken)
            self._unacked_entries += sum([type(item) is Entry for item in items])
            self._unacked = fitting(self._unacked)
        else:
            self._forget(items)
        return Fetched([seq_id for seq_id, _ in taken], messages, redelivered=redelivered)

    # -- settling ---------------------------------------------------------------------------------------------------

    def follow(self, predecessor: Self) -> None:
        """Give no seq_id that a deleted queue of the same id has given; see `BackingQueue.follow`."""
        self.next_seq = max(self.next_seq, predecessor.next_seq)
        self._q4_first = self._q1_first = self._not_fetched = self.next_seq

    def before_commit(self, callback: Callable[[], object]) -> bool:
        """Call back once, before the next commit; see `BackingQueue.before_commit`."""
        return self._journal.before_cut(callback)

    def ack(self, seq_ids: Collection[int], *, moved: bool = False, dropped: bool = False) -> None:
        """Remove fetched messages for good; `moved`, `dropped`: see `BackingQueue.ack`."""
        if self.deleted:
            return
        unacked = self._unacked
        self.acked += len(seq_ids)
        before = len(unacked)
        if not self._unacked_entries:
            for seq_id in seq_ids:
                del unacked[seq_id]
            if before:
                self.unacked_octets = self.unacked_octets * len(unacked) // before
            if type(unacked) is not dict:
                self._unacked = fitting(unacked)
            return
        if self._unacked_out:
            items = [self._take_unacked(seq_id) for seq_id in seq_ids]
        else:
            pop = unacked.pop
            items = [pop(seq_id) for seq_id in seq_ids]
        if before:
            self.unacked_octets = self.unacked_octets * len(unacked) // before
        if not type(unacked) is type(self._unacked_out) is dict:
            self._fit_unacked()
        entries = [item for item in items if type(item) is Entry]
        self._unacked_entries -= len(entries)
        tell = self._withhold(entries) if dropped else None
        self._forget(entries, moved=moved)
        if tell is not None:
            self._journal.when_all_safe(tell)

    def _take_unacked(self, seq_id: int) -> Item:
        entry = self._unacked_out.pop(seq_id, None)
        if entry is None:
            return self._unacked.pop(seq_id)
        self.unacked_away_octets -= entry.size
        entry.evict = False
        return entry

    def requeue(self, seq_ids: Collection[int]) -> None:
        """Put fetched messages back to their original positions, marked redelivered."""
        seq_ids = list(seq_ids)
        before = len(self._unacked)
        items = [self._take_unacked(seq_id) for seq_id in seq_ids]
        self._unacked_entries -= sum([type(item) is Entry for item in items])
        self._count_ready(items, 1)
        if before:
            self.unacked_octets = self.unacked_octets * len(self._unacked) // before
        self._fit_unacked()
        if self.returned is NONE_REQUEUED:
            self.returned = Requeued()
        self.returned.add(seq_ids, items)
        self.ready_count += len(seq_ids)
        self._not_fetched -= len(seq_ids)
        self.pager.active.add(self)

    def drop(self, count: int) -> int:
        """Drop at most `count` messages from the head without reading their bodies; returns how many."""
        dropped: list[Item] = []
        while self.ready_count and len(dropped) < count:
            if self.returned:
                ((_, item),) = self.returned.take(1)
            elif self.q4:
                item = self.q4.popleft()
                self._q4_first += 1
                self._run_entries -= type(item) is Entry
                if not self._q4_counted:
                    self.ram_octets += len(item.content)  # type: ignore[union-attr] # what is subtracted below
            elif self.q3:
                item = self.q3.popleft()
                self._ahead = max(0, self._ahead - 1)
                if not self.q3 and not self.delta.count:
                    self._q1_to_q4()
            else:
                self._want()
                break
            self.ready_count -= 1
            if self.stored_returns and type(item) is Entry:
                self.stored_returns.pop(item.seq_id, None)
            dropped.append(item)
        self._count_ready(dropped, -1)
        tell = self._withhold(dropped) if self.durable else None
        self._forget(dropped)
        if tell is not None:
            self._journal.when_all_safe(tell)
        self._keep_ahead()
        return len(dropped)

    @property
    def head_is_new(self) -> bool:
        """True only if the next message is in memory and was never delivered; may be False even then."""
        return bool(self.q4) and not self.returned

    def _front(self) -> Iterable[Item]:
        return self.returned.items if self.returned else self.q4 or self.q3

    def _head_item(self) -> Item | None:
        head = next(iter(self._front()), None)
        if head is None and self.delta.count:
            self._want()
        return head

    def persistent_count(self) -> int:
        """Return the number of persistent messages; see `BackingQueue.persistent_count`."""
        if not self.durable:
            return 0
        others = (self._unacked.values(), self._unacked_out.values(), self.q4, self.q3, self.q2, self.q1)
        parts: tuple[tuple[Iterable[Item], int], ...] = (
            (self.returned.items, len(self.returned)),
            *[(part, len(part)) for part in others],
        )
        return max(0, self.delta.count - self.delta.paged) + sum([_durable_of(*part) for part in parts])

    def octets_of(self, seq_ids: Iterable[int]) -> int:
        """Return the body bytes of unacked messages; see `BackingQueue.octets_of`."""
        out = self._unacked_out
        return octets_of([self._unacked.get(seq_id) or out[seq_id] for seq_id in seq_ids])

    def _piece(self, messages: list[Peeked], places: Places, missed: list[int]) -> Piece:
        withdrawal = Withdrawal(self, places, missed)
        return Piece(messages, withdrawal.prepare, withdrawal.withdraw)

    def count_returns(self, *, counted: bool) -> None:
        """Enable or disable delivery counts of messages that are read from disk."""
        self.counts_returns = counted
        if not counted:
            self.stored_returns = NO_RETURNS

    def take_returns(self, seq_ids: Collection[int]) -> dict[int, int]:
        """Return the delivery counts from before the start of messages that were just fetched, if any."""
        stored = self.stored_returns
        if not stored:
            return {}
        return {seq_id: stored.pop(seq_id) for seq_id in seq_ids if seq_id in stored}

    def note_returns(self, counts: Mapping[int, int]) -> None:
        """Note the delivery counts of requeued messages that survive a restart, for the next commits."""
        if not self.durable:
            return
        for seq_id, count in counts.items():
            item = self._unacked.get(seq_id) or self._unacked_out.get(seq_id)
            if type(item) is Entry and item.state in {STORED, LOGGED}:
                if item.durable:
                    self._journal.returned(item, count)
                continue
            if item is None or (type(item) is Entry and item.durable):
                if not self.journal_returns:
                    self.journal_returns = {}
                self.journal_returns[seq_id] = count

    def unacked_messages(self, seq_ids: Iterable[int]) -> tuple[list[tuple[int, Message]], list[int]]:
        """Return unacked messages with their bodies, and the seq_ids of those that are being read."""
        seq_ids = list(seq_ids)
        if not self._unacked_out:  # as usual, all of them are in memory
            items = list(map(self._unacked.get, seq_ids))
            messages = items
            if self._unacked_entries:
                messages = [item.message if type(item) is Entry else item for item in items]
            if all(messages):
                return list(zip(seq_ids, messages, strict=True)), []  # type: ignore[arg-type] # none is None
        found: list[tuple[int, Message]] = []
        missing: list[tuple[int, Item]] = []
        for seq_id in seq_ids:
            item: Item | None = self._unacked.get(seq_id) or self._unacked_out.get(seq_id)
            message = item.message if type(item) is Entry else item
            if message is not None:
                found.append((seq_id, message))  # type: ignore[arg-type]
            elif item is not None:
                missing.append((seq_id, item))
        if missing and self._loading is None:
            self._load_bodies(sorted(missing, key=_seq_id), UNACKED)
        return found, [seq_id for seq_id, _ in missing]

    def awaited(self, seq_ids: Collection[int]) -> Iterable[Message]:
        """Return those of some unacked messages whose commit is not done."""
        if not self._unacked_entries:
            return ()
        items = [self._unacked.get(seq_id) or self._unacked_out.get(seq_id) for seq_id in seq_ids]
        entries = [item for item in items if type(item) is Entry and item.durable]
        return self._bodies([entry for entry in entries if entry.state in {NEW, WRITING}])

    def purge(self) -> int:
        """Drop every ready message; returns how many. Unacked messages stay."""
        purged = self.ready_count
        unacked, out = self._unacked, self._unacked_out
        tell = self._withhold(
            entry
            for entry in self._journal.unwritten_of(self)
            if entry.seq_id not in unacked and entry.seq_id not in out
        )
        self._forget(self.returned.items)
        for run in (self.q4, self.q1):
            if self._run_entries:
                self._forget(run)
        self._forget(self.q3)
        self._forget(self.q2)
        if self.delta.count:
            paged = self.transitions is not None
            for first, stop in self._swept_ranges():
                self._journal.sweep(self.qid, first, stop, paged=paged)
            for block in self.delta.blocks.values():
                block.swept = block.marked = True
        if tell is not None:
            self._journal.when_all_safe(tell)
        self._empty()
        return purged

    def _withhold(self, items: Iterable[Item]) -> Callable[[bool], object] | None:
        """Withhold the confirms of messages that are about to be dropped; see `withhold`."""
        if self._settled_early is not None:  # nobody hears before what is dropped is written
            return None
        return withhold([item.message for item in items if type(item) is Entry])

    def _swept_ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the parts of the delta without messages that were withdrawn and are still unacked."""
        first = self.delta.start
        delta = range(first, self.delta.stop)
        held = chain(self._unacked, self._unacked_out) if self.delta.gaps else ()
        for seq_id in sorted([seq_id for seq_id in held if seq_id in delta]):
            if first < seq_id:
                yield first, seq_id
            first = seq_id + 1
        if first < self.delta.stop:
            yield first, self.delta.stop

    def _empty(self) -> None:
        self._release(self.returned, self.q4, self.q1, self.q3, self.q2)
        self.returned = NONE_REQUEUED
        self.q4 = self.q1 = NOTHING
        self.q3 = self.q2 = NO_ENTRIES
        self.delta = Delta()
        self.stored_returns = NO_RETURNS
        self._q4_counted = self._asked = self._starved = False
        self._not_fetched += self.ready_count
        self.ready_count = self.ram_octets = self.away_octets = 0
        self._evicting = self._run_entries = self._ahead = 0
        self._loading = None

    def _release(self, *runs: Releasable) -> None:
        """Release dropped messages that are referenced nowhere else; small runs are freed immediately."""
        for run in runs:
            if len(run) > LARGE:
                self.pager.release(run)

    def delete(self) -> None:
        """Delete the queue with its unacked messages: later acks are ignored, and nothing else may be called."""
        journal = self._journal
        if self._settled_early:
            if any(entry.state == WRITING for entry in self._settled_early.values()):
                journal.await_sweep()
            self._settled_early.clear()
        tell = journal.end_unwritten(self)
        self._empty()
        self._release(self._unacked, self._unacked_out)
        self._unacked, self._unacked_out = {}, {}
        self._unacked_entries = self.unacked_octets = self.unacked_away_octets = 0
        self.on_loaded = never  # breaks the reference cycle with its owner
        self.deleted = True
        self.pager.active.discard(self)
        self.pager.waiting.pop(self, None)
        paged = self.transitions is not None
        if self.durable or paged:
            journal.sweep(self.qid, 0, self.next_seq, paged=paged)  # not what a queue that follows it writes
        if tell is not None:
            journal.when_all_safe(tell)


def _has_body(item: Item) -> bool:
    return type(item) is not Entry or item.message is not None


def _durable_of(items: Iterable[Item], length: int) -> int:
    """Return about how many of some messages are durable: exact if all or none are, or if there are few."""
    some = [type(item) is Entry and item.durable for item in islice(items, _SAMPLE)]
    return some.count(True) * length // len(some) if some else 0
