"""The journal: collects changes for disk turn by turn, cuts them into batches, settles them after the commit.

Theory. Every change for disk is noted here, without waiting. `cut` takes everything noted so far, so no turn is split
over two commits. A transaction, a declaration with its bindings, and a message with all its copies are on disk as a
whole or not at all. The next batch gathers during a commit (group commit). A message that is settled before the cut is
never written: its entry is GONE by then.

A cut makes an entry WRITING, and the batch decides how it becomes safe:

===============  ==========================  ==================================  =====================================
batch            at `settled`                at `applied`                        counts as waiting for the disk
===============  ==========================  ==================================  =====================================
committed        STORED                      is not called                       until it is settled
in a redo log    LOGGED: safe, not readable  STORED                              until it is settled: the log is small
in a replicated  LOGGED                      STORED                              until it is applied
log
===============  ==========================  ==================================  =====================================

Without a replicated log, small batches are in a redo log (`storage.store.redo_log`). With one (`is_logged_first`),
every batch is in that log. The next may be cut while one is on its way (`following`), as they are logged in the order
of the cuts. Very large bodies are in files before their entries are cut (`files`).

Nothing is confirmed before `settled`. The end of a record whose own batch is being committed is written by the next
batch, which is strictly later. Pure: the driver (`broker.persistence.committer`) decides when to cut, never while
queues of a turn are deferred, and runs the commit.

Hot path: see docs/performance.md.
"""
# ruff: noqa: C901, PLR0912, PLR0915 - hot: one flat function is several times cheaper than small ones
# ruff: noqa: S101 - asserts tell the type checker what always holds; no input is checked by them

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, takewhile
from math import inf
from operator import attrgetter
from struct import Struct

from leveret.storage.delayed import TABLE as DELAYED, is_line
from leveret.storage.errors import DiskFullError, Done
from leveret.storage.journal.batch import BODIES, NOTHING, Batch, Changes, Journaled, body_row, pack_body_key
from leveret.storage.journal.blocks import (
    GONE,
    LOGGED,
    NEW,
    STORED,
    WRITING,
    Block,
    Entry,
    bits_of,
    pack_bits,
    pack_key,
    plan_blocks,
)
from leveret.storage.journal.reads import Range
from leveret.storage.journal.runs import messages_of
from leveret.storage.journal.shared_bodies import OVERHEAD, SharedBodies
from leveret.storage.message import Persistent, Stored, withhold

EMBED_BELOW = 4096
MOST_BEFORE_CUT = 64  # number of callbacks at the start of a cut, each of which may take tens of us
ROW_OCTETS = 4096  # bytes of memory that a row counts for besides its own: the commit copies its page
_MSG_ID = Struct(">Q").pack
_COUNT = Struct(">I").pack
_seq_id = attrgetter("seq_id")


class Journal:
    """The changes that are not on disk yet.

    Args:
        first_msg_id: no body on disk has this id or a higher one.
        embed_below: bytes of content, times copies, from which a body is written apart from its records
            (`queue_index_embed_msgs_below`).
    """

    __slots__ = (
        "_before_cut",
        "_body_rows",
        "_dirty",
        "_file_callbacks",
        "_file_waiters",
        "_late_waiters",
        "_moved_refs",
        "_next_msg_id",
        "_paged_dirty",
        "_paged_sweeps",
        "_paged_unrefs",
        "_paging",
        "_postponed",
        "_queues",
        "_rows",
        "_sweeps",
        "_unapplied",
        "_unrefs",
        "_waiters",
        "awaits_ids",
        "blob_octets",
        "commits",
        "early",
        "embed_below",
        "files",
        "following",
        "in_flight",
        "in_vain",
        "is_logged_first",
        "messages_to_page",
        "octets",
        "octets_in_flight",
        "octets_to_page",
        "octets_unapplied",
        "octets_written",
        "paged_out",
        "records",
        "records_in_flight",
        "shared",
        "urgent",
        "written",
    )

    def __init__(self, first_msg_id: int = 1, embed_below: int = EMBED_BELOW) -> None:
        self.embed_below = max(1, embed_below)  # of a body that is in its record the copies are 0
        self.shared = SharedBodies(self.next_msg_id)  # bodies that are paged once for several queues
        self.files: dict[int, tuple[Persistent, list[tuple[Journaled, Entry]]]] = {}
        """Bodies to be written to files, by msg_id."""
        self._file_waiters: list[tuple[set[int], Callable[[bool], object]]] = []
        """Callbacks that wait for some of those files, and for the commit that refers to them."""
        self._file_callbacks: dict[int, list[Callable[[bool], bool]]] = {}
        """Callbacks that wait for one of those files alone, by msg_id."""
        self._next_msg_id = first_msg_id
        self._queues: list[Journaled] = []
        self._dirty: list[Block] = []
        self._paging: dict[Journaled, None] = {}  # queues with entries for the next cut that pages
        self._paged_dirty: list[Block] = []  # dirty blocks for such a cut
        self._unrefs: list[int] = []
        self._paged_unrefs: list[int] = []  # msg_ids that lose one reference, in each environment
        self._moved_refs: list[int] = []
        self._sweeps: list[Range] = []
        self._paged_sweeps: list[Range] = []
        self._rows: list[tuple[str, bytes, bytes | None]] = []
        self._body_rows: list[tuple[str, bytes, bytes | None]] = []  # first: of bodies without a record
        self._before_cut: list[Callable[[], object]] = []  # called when the next batch is cut, to note more
        self._waiters: list[Callable[[bool], object]] = []
        self._late_waiters: list[Callable[[bool], object]] = []
        """Callbacks that wait for ends that could be noted only when a commit was done, and are not cut yet."""
        self._postponed = 0  # number of batches, those settled next, whose callbacks wait for such ends, too
        self.in_flight: Batch | None = None  # the current batch: the one that is settled next
        self.following: Batch | None = None  # A batch that was cut while another one is in flight
        self.is_logged_first = False
        """True if every batch is in a replicated log when it is settled, and not on disk before `applied`."""
        self._unapplied: deque[tuple[list[tuple[Journaled, list[Entry]]], int, int]] = deque()
        """Entries of batches that are settled and not applied, with the bytes and records that each counts for."""
        self.octets_unapplied = 0  # bytes of batches that are settled and not applied
        self.octets = 0  # approximate bytes of memory that wait for a cut; some may be settled already
        self.octets_in_flight = 0  # bytes of batches that are cut and not settled, or not applied
        self.records = 0  # copies of persistent messages that wait for a cut; some may be settled already
        self.records_in_flight = 0
        self.octets_to_page = 0  # bytes of transient messages that wait, or waited for an earlier cut
        self.messages_to_page = 0  # number of these messages
        self.blob_octets = 0  # bytes of bodies whose files are not written yet
        self.awaits_ids = False  # True if a caller waits for ids, whose messages may be acked before the cut
        self.urgent = False  # True if a caller waits for a noted change
        # counters
        self.commits = 0
        self.written = 0  # copies of persistent messages written
        self.paged_out = 0  # copies of transient messages written
        self.early = 0  # copies of persistent messages that were settled before they were written
        self.in_vain = 0  # of these, copies that were being written then
        self.octets_written = 0

    # -- notes ------------------------------------------------------------------------------------------------------

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Write a row of `table`."""
        self.put_all(((table, key, value),))

    def put_all(self, rows: Sequence[tuple[str, bytes, bytes | None]]) -> None:
        """Write rows: table, key and value of each; None deletes."""
        self._rows += rows
        self.octets += sum([len(value or b"") + ROW_OCTETS for _, _, value in rows])
        self.urgent = True

    def delete(self, table: str, key: bytes) -> None:
        """Delete a row of `table`."""
        self.put_all(((table, key, None),))

    def put_body(self, content: bytes) -> int:
        """Write a body to which a row refers, and no record; returns its id.

        The row is noted in the same turn. Its deletion comes with that of the body, or with a `Stored` message.
        """
        msg_id = self.next_msg_id()
        self._body_rows.append((BODIES, *body_row(msg_id, content)))
        self.octets += len(content) + ROW_OCTETS
        return msg_id

    def delete_body(self, msg_id: int) -> None:
        """Delete a body to which no record refers, or ever will."""
        self.delete(BODIES, pack_body_key(msg_id))

    def before_cut(self, callback: Callable[[], object]) -> bool:
        """Call back at the beginning of the next cut, which includes the notes of the callback.

        Returns false, and does not call, if `MOST_BEFORE_CUT` are to be called already: they are one step of the loop.
        """
        if len(self._before_cut) >= MOST_BEFORE_CUT:
            return False
        self._before_cut.append(callback)
        return True

    def when_safe(self, callback: Callable[[bool], object]) -> None:
        """Call back, perhaps at once, when all noted so far is on disk (True), or failed to get there (False)."""
        if self.has_work:
            self._waiters.append(callback)
            self.urgent = True
        elif (last := self.in_flight if self.following is None else self.following) is not None:
            last.waiters.append(callback)
        else:
            callback(True)

    def when_all_safe(self, callback: Callable[[bool], object]) -> None:
        """Call back as `when_safe` does, after bodies that are being written to files are on disk, too."""
        if self.files:
            self._file_waiters.append((set(self.files), callback))
        else:
            self.when_safe(callback)

    def touch(self, queue: Journaled) -> None:
        """Include a queue's new and paged entries in the next cut."""
        if not queue.journaled:
            queue.journaled = True
            self._queues.append(queue)

    def dead(self, entry: Entry, *, moved: bool = False) -> None:
        """Note that a record, written or about to be, is no longer needed.

        `moved`: the message lives on in copies noted in this turn; both changes must be in one commit.
        """
        block = entry.block
        entry.state = GONE
        block.live -= 1
        moved = moved and not block.paged
        if moved:
            if block.moved is None:
                block.moved = []
            block.moved.append(entry.index)
        else:
            block.acked.append(entry.index)
        if not block.dirty:
            block.dirty = True
            self._dirty.append(block)
        if entry.msg_id:
            if moved:
                self._moved_refs.append(entry.msg_id)
            else:
                (self._paged_unrefs if block.paged else self._unrefs).append(entry.msg_id)

    def returned(self, entry: Entry, count: int) -> None:
        """Note the delivery count of a requeued message whose record is written. The next commit writes it."""
        block = entry.block
        if not block.returns:
            block.returns = {}
        block.returns[entry.index] = count
        if not block.dirty:
            block.dirty = True
            self._dirty.append(block)

    def delete_late(self, entry: Entry) -> None:
        """Note that a record is no longer needed which was settled before its commit and is written by now.

        Called only while a batch is settled. Callbacks that wait for that batch, or for the one that was cut behind it,
        wait for this deletion, too.
        """
        self._postponed = 1 if self.in_flight is None else 2
        self.dead(entry)

    def await_sweep(self) -> None:
        """Make callbacks that wait for the cut wait also for the sweep of its settled records."""
        self._postponed = 1 if self.following is None else 2

    def sweep(self, qid: int, first: int, stop: int, *, paged: bool = True) -> None:
        """Delete all records of a queue from seq_id `first` to before `stop`; `paged` if any may have been paged."""
        gone = Range(qid, first, stop)
        self._sweeps.append(gone)
        if paged:
            self._paged_sweeps.append(gone)
        self.urgent = True

    def probe(self) -> None:
        """Make the next commit write something durable in any case, to find out whether the disk has space."""
        if not self._rows:
            self.put("meta", b"room", b"")

    @property
    def row_count(self) -> int:
        """Number of rows that wait for a cut, also because the last commit found the disk full."""
        return len(self._rows)

    def is_small(self, most: int) -> bool:
        """Return whether less than `most` messages, rows and blocks with ends wait for a cut, and none to be paged."""
        is_much = self.records >= most or len(self._rows) >= most or len(self._dirty) >= most
        return not (is_much or self.octets_to_page)

    @property
    def has_work(self) -> bool:
        """Return whether a cut would have any work, apart from work for a cut that pages."""
        return bool(
            self._queues
            or self._dirty
            or self._rows
            or self._sweeps
            or self._unrefs
            or self._waiters
            or self._before_cut
        )

    @property
    def has_unpaged(self) -> bool:
        """Return whether there is work for a cut that pages."""
        return bool(self._paging or self._paged_dirty or self._paged_unrefs or self._paged_sweeps)

    # -- commits ----------------------------------------------------------------------------------------------------

    def cut(self, page: float = inf) -> Batch:
        """Take everything noted so far as one batch. The caller must call `settled` before the next cut.

        If batches are logged first, one more may be cut before that, with `page` 0.

        `page` is the maximum number of bytes of transient messages to write, including `OVERHEAD` for each. With 0 the
        environment of paged messages is not touched; the rest waits for another cut (`has_unpaged`).
        """
        assert self.in_flight is None or (self.is_logged_first and self.following is None and not page)
        callbacks, self._before_cut = self._before_cut, []
        for callback in callbacks:
            callback()
        durable, paged, moves = Changes(), NOTHING, None
        entries: list[tuple[Journaled, list[Entry]]] = []
        for queue in self._queues:
            queue.journaled = False
            fresh, queue.journal_fresh = queue.journal_fresh, []
            self._cut_entries(queue, fresh, durable, entries, is_paged=False)
            if queue.journal_paged:
                self._paging[queue] = None
        if page and (self.has_unpaged or self.octets_to_page):
            paged = Changes()
            self._cut_paged(page, paged, entries)
        acked: list[tuple[Block, list[int]]] = []
        moved: list[tuple[Block, list[int]]] = []
        if self._moved_refs:
            moves = Changes()
            moves.unrefs, self._moved_refs = self._moved_refs, []
        for block in self._dirty:
            if block.paged:
                if not page:
                    self._paged_dirty.append(block)
                    continue
                if paged is NOTHING:
                    paged = Changes()
            block.dirty = False
            if block.live < 0:
                continue
            if block.moved:
                if moves is None:
                    moves = Changes()
                self._cut_moved(block, durable, moves)
                moved.append((block, block.moved))
                block.moved = None
            elif block.live:
                bits = block.bits
                for index in block.acked:
                    bits |= 1 << index
                block.bits = bits
                block.marked = True
                changes = paged if block.paged else durable
                marks = changes.merges if block.swept else changes.marks
                key = pack_key(block.qid, block.first)
                marks.append((key, pack_bits(key, block.count, bits, block.returns)))
            else:
                self._cut_block(block, paged if block.paged else durable)
            acked.append((block, block.acked))
            block.acked = []
        if self._sweeps:
            moving = {block.qid for block, _ in moved}
            for sweep in self._sweeps:  # one that takes what moves waits with it
                (moves if moves is not None and sweep.qid in moving else durable).sweeps.append(sweep)
            self._sweeps = []
        if moves:
            durable.moves = moves
        durable.unrefs += self._unrefs
        octets, copies = durable.octets + paged.octets, 0
        rows = self._body_rows + self._rows if self._body_rows else self._rows
        for _, _, value in rows:
            if value:
                octets += len(value)
        for _, fresh in entries:
            copies += len(fresh)
        late, self._late_waiters = self._late_waiters, []
        batch = Batch(
            durable,
            paged,
            rows,
            entries,
            acked,
            moved,
            self._waiters,
            late,
            copies,
            octets,
            page > 0,
            self.octets,
            self.records,
        )
        self._queues = []
        self._dirty = []
        self._unrefs = []
        self._rows = []
        self._body_rows = []
        self._waiters = []
        self.octets_in_flight += self.octets
        self.records_in_flight += self.records
        self.octets = self.records = 0
        self.urgent = self.awaits_ids = False
        if self.in_flight is None:
            self.in_flight = batch
        else:
            self.following = batch
        return batch

    def _cut_moved(self, block: Block, durable: Changes, moves: Changes) -> None:
        """Take the ends of a block's records apart: of those that moved, and of the others."""
        # The latter, and the references to their bodies, may be deleted without the former.
        if not (
            block.live or block.acked or block.returns
        ):  # all of it moved: there is nothing to take apart
            self._cut_block(block, moves)
            return
        key = pack_key(block.qid, block.first)
        moved, others = bits_of(block.moved or ()), bits_of(block.acked)
        block.bits |= moved | others
        block.marked = True
        if others or block.returns:
            durable.merges.append((key, pack_bits(key, block.count, others, block.returns)))
        if block.live:
            moves.merges.append((key, pack_bits(key, block.count, moved, block.returns)))
        else:
            self._cut_block(block, moves)

    @staticmethod
    def _cut_block(block: Block, changes: Changes) -> None:
        """Take the end of a block, the last record of which is dead."""
        key = pack_key(block.qid, block.first)
        changes.deletes.append(key)
        if block.marked:
            changes.unmarks.append(key)
        if block.home is not None:
            block.home.pop(block.slot, None)

    def _cut_paged(self, page: float, paged: Changes, entries: list[tuple[Journaled, list[Entry]]]) -> None:
        """Take the ends of paged messages, and up to `page` bytes of messages to be paged: at least one."""
        waiting, self._paging = self._paging, {}
        self.octets_to_page = self.messages_to_page = 0
        paged.unrefs, self._paged_unrefs = self._paged_unrefs, []
        room = page
        for queue in waiting:
            fresh = [entry for entry in queue.journal_paged if entry.state == NEW]
            count = len(fresh)
            if room <= 0:
                count = 0
            elif room < inf:
                fitting = list(takewhile(room.__ge__, accumulate(_octets_to_page(fresh, paged))))
                count = len(fitting)
                if fitting:
                    room -= fitting[-1]
                elif fresh and not paged.octets:
                    count, room = 1, 0
            queue.journal_paged = left = fresh[count:]
            self._cut_entries(queue, fresh[:count], paged, entries, is_paged=True)
            if left:
                self._paging[queue] = None
                self.octets_to_page += sum([entry.size for entry in left]) + OVERHEAD * len(left)
                self.messages_to_page += len(left)
        self._dirty += self._paged_dirty
        self._paged_dirty = []
        paged.sweeps, self._paged_sweeps = self._paged_sweeps, []

    def _cut_entries(
        self,
        queue: Journaled,
        fresh: list[Entry],
        changes: Changes,
        entries: list[tuple[Journaled, list[Entry]]],
        *,
        is_paged: bool,
    ) -> None:
        """Pack the entries of one queue that are still to be written."""
        left = [entry for entry in fresh if entry.state == NEW]
        if len(left) < len(fresh) and not is_paged:
            returns = queue.journal_returns
            for entry in fresh:
                if entry.state != GONE:
                    continue
                if returns:
                    returns.pop(entry.seq_id, None)
                message = entry.message
                if message.in_blob and not (message.in_table or message.open_copies):  # type: ignore[union-attr]
                    changes.unrefs.append(message.msg_id)  # type: ignore[union-attr] # the file goes
        if not left:
            return
        if len(left) > 1:
            left.sort(key=_seq_id)  # nearly always sorted already
        if not is_paged:
            embed_below = self.embed_below
            for entry in left:
                message = entry.message
                if entry.size * message.copies >= embed_below or message.msg_id:  # type: ignore[union-attr]
                    self._write_body(entry, message, changes)  # type: ignore[arg-type]
        else:
            for entry in left:
                if entry.msg_id:
                    self._write_shared(entry, changes)
        plans = plan_blocks(queue.qid, left, queue.segment, paged=is_paged)
        changes.plans += plans
        for plan in plans:
            changes.octets += plan.octets
        entries.append((queue, left))

    def _write_body(self, entry: Entry, message: Persistent, changes: Changes) -> None:
        """Add a body to be written once, for any number of records that refer to it."""
        # All copies of a message are noted in one turn, so those that are not settled by now are in this batch.
        if not message.msg_id:
            message.msg_id = self.next_msg_id()
            self._put_body(message, message.content, changes)
        elif message.in_blob and not message.in_table:
            self._put_body(message, b"", changes)
        elif isinstance(message, Stored):
            message.is_referenced = True
        entry.msg_id = message.msg_id

    @staticmethod
    def _write_shared(entry: Entry, changes: Changes) -> None:
        """Add a paged body that several queues share, unless it is on disk already."""
        content = entry.message.content  # type: ignore[union-attr]
        _, count = changes.shared.get(entry.msg_id, (b"", 0))
        changes.shared[entry.msg_id] = content, count + 1
        if not count:
            changes.octets += len(content)

    def _put_body(self, message: Persistent, content: bytes, changes: Changes) -> None:
        key = _MSG_ID(message.msg_id)
        message.in_table = True
        changes.bodies.append((message.msg_id, content))
        changes.octets += len(content)
        if message.open_copies > 1:
            changes.refs.append((key, _COUNT(message.open_copies)))

    def settled(self, error: DiskFullError | None = None, *, is_logged: bool = False) -> Batch:
        """Settle the current batch after its commit or, with an error, after it found no space. Returns it.

        `is_logged` is true if a redo log has the batch, which is in the tables when `applied` is called for it. It no
        longer counts for the bytes and records in flight, as the log has a limit of its own.

        Without space, waiting publishes are nacked and the changes that were not written are noted again: the messages
        are still in their queues, and go to disk when there is space. Transient messages that were not written stay in
        memory until another cut pages them; no caller waits for that.
        """
        batch = self.in_flight
        assert batch is not None
        self.in_flight, self.following = self.following, None
        if self.is_logged_first and batch.needs_sync:
            is_logged = True
            self._unapplied.append((batch.entries, batch.memory, batch.records))
            self.octets_unapplied += batch.memory
        else:
            self.octets_in_flight -= batch.memory
            self.records_in_flight -= batch.records
            if is_logged:
                self._unapplied.append((batch.entries, 0, 0))
        safe = error is None or error.durable is Done.ALL
        self.commits += safe
        self.octets_written += batch.written(error)
        state = LOGGED if is_logged else STORED
        if error is None:
            for queue, entries in batch.entries:
                self._settle_entries(queue, entries, state)
        else:
            self._note_again(batch, error, state)
        due = batch.late_waiters
        if self._postponed:
            self._postponed -= 1
            self._late_waiters += batch.waiters
            self.urgent |= bool(batch.waiters)
        else:
            due = due + batch.waiters
        for waiter in due:
            waiter(safe)
        return batch

    def _settle_entries(self, queue: Journaled, entries: list[Entry], state: int) -> None:
        """Mark entries of one queue as STORED, or as LOGGED if they are to be applied later; paged ones are stored."""
        is_paged = entries[0].block.paged
        if is_paged:
            self.paged_out += len(entries)
            state = STORED
        else:
            self.written += len(entries)
        evicted: list[Entry] = []
        for entry in entries:
            if entry.state == WRITING:
                entry.state = state
                if entry.durable:
                    entry.message.accepted()  # type: ignore[union-attr]
                if entry.evict:
                    evicted.append(entry)
        if queue.journal_returns and not is_paged:
            self._settle_returns(queue.journal_returns, entries)
        if evicted:
            (queue.logged if state == LOGGED else queue.stored)(evicted)

    def _settle_returns(self, returns: dict[int, int], entries: list[Entry]) -> None:
        """Note the delivery counts of messages that were requeued before their commit was done."""
        for entry in entries:
            count = returns.pop(entry.seq_id, 0)
            if count and entry.state in {STORED, LOGGED}:
                self.returned(entry, count)

    def applied(self) -> None:
        """Take note that the oldest batch that was settled and not applied is on disk."""
        by_queue, octets, records = self._unapplied.popleft()
        self.octets_unapplied -= octets
        self.octets_in_flight -= octets
        self.records_in_flight -= records
        for queue, entries in by_queue:
            if entries[0].block.paged:
                continue
            evicted: list[Entry] = []
            for entry in entries:
                if entry.state == LOGGED:
                    entry.state = STORED
                    if entry.evict:
                        evicted.append(entry)
            if evicted:
                queue.stored(evicted)

    def _note_again(self, batch: Batch, error: DiskFullError, state: int) -> None:
        """Settle the part of a batch that found space, in this state, and note the rest again."""
        not_written: set[int] = set()
        not_paged: Counter[int] = Counter()  # dead records that were to refer to a body and do not, by msg_id
        for queue, entries in batch.entries:
            is_paged = entries[0].block.paged
            if (error.paged if is_paged else error.durable) is Done.ALL:
                self._settle_entries(queue, entries, state)
                continue
            block, ended = None, frozenset[int]()
            for entry in entries:
                if block is not entry.block:
                    block, ended = entry.block, frozenset(entry.block.acked)
                    block.live = -1  # it was never written, whatever was settled in it meanwhile
                message = entry.message
                if entry.state == WRITING:
                    entry.state = NEW
                    if is_paged:
                        queue.journal_paged.append(entry)
                        self.octets_to_page += entry.size + OVERHEAD
                        self.messages_to_page += 1
                    else:
                        entry.msg_id = 0
                        queue.journal_fresh.append(entry)
                        assert isinstance(message, Persistent)
                        if isinstance(message, Stored):
                            message.is_referenced = False
                            continue
                        if not message.in_blob:
                            message.msg_id = 0
                        message.in_table = False
                        message.refused()
                elif is_paged:
                    # Entries that ended with their queue have noted no reference that would have to be removed.
                    if entry.index in ended:
                        not_paged[entry.msg_id] += 1
                else:
                    queue.journal_returns.pop(entry.seq_id, None)
                    if isinstance(message, Stored):  # the record that it has counted on is not there
                        not_written.add(entry.msg_id)
                        self.delete_body(entry.msg_id)
                    elif entry.msg_id and isinstance(message, Persistent):
                        if message.open_copies:
                            not_written.add(entry.msg_id)
                        elif message.in_blob:  # the file is no longer needed
                            self._unrefs.append(entry.msg_id)
            queue.unstored(entries)
            if is_paged:  # after the others: there may be space for fewer bytes
                self._paging.pop(queue, None)
                self._paging[queue] = None
            else:
                self.touch(queue)
        self._paged_unrefs = _without(self._paged_unrefs, not_paged)
        if error.paged is Done.NOTHING:
            self._paged_unrefs += batch.paged.unrefs
            for block, acked in batch.acked:
                if block.paged:
                    self._note_dead_again(block, acked)
            self._paged_sweeps[:0] = batch.paged.sweeps
        if error.durable is Done.ALL:
            return
        if not_written:  # other copies will be written under that id, and must keep their references
            self._unrefs = [msg_id for msg_id in self._unrefs if msg_id not in not_written]
            self._moved_refs = [msg_id for msg_id in self._moved_refs if msg_id not in not_written]
        self._rows[:0] = batch.rows
        if batch.durable.moves is not None:
            for block, moved in batch.moved:
                block.moved = [*moved, *(block.moved or ())]
                self._note_dead_again(block, [])
            self._moved_refs += batch.durable.moves.unrefs
            self._sweeps[:0] = batch.durable.moves.sweeps
        if error.durable is Done.DELETIONS:
            return
        for block, acked in batch.acked:
            if not block.paged:
                self._note_dead_again(block, acked)
        self._unrefs += batch.durable.unrefs
        self._sweeps[:0] = batch.durable.sweeps

    def _note_dead_again(self, block: Block, acked: list[int]) -> None:
        block.acked += acked
        if not block.dirty and block.live >= 0:
            block.dirty = True
            (self._paged_dirty if block.paged else self._dirty).append(block)

    def unwritten_of(self, queue: Journaled) -> Iterator[Entry]:
        """Yield one queue's entries that are not known to be on disk; some may be settled."""
        yield from queue.journal_fresh
        yield from queue.journal_paged
        cut = [by_queue for by_queue, _, _ in self._unapplied]
        cut += [batch.entries for batch in (self.in_flight, self.following) if batch is not None]
        for by_queue in cut:
            for whose, entries in by_queue:
                if whose is queue:
                    yield from entries
        for _, copies in self.files.values():
            yield from [entry for whose, entry in copies if whose is queue]

    def end_unwritten(self, queue: Journaled) -> Callable[[bool], object] | None:
        """End one queue's entries that are not known to be on disk, because it is deleted; returns as `withhold`.

        Records on disk are swept, as found on disk, and none of them is noted as dead any more.
        """
        unwritten = list(self.unwritten_of(queue))
        tell = withhold(chain.from_iterable(messages_of(entry.message) for entry in unwritten))
        for entry in unwritten:
            if entry.state in {NEW, WRITING}:
                if entry.durable:
                    self.early += 1
                    entry.message.accepted()  # type: ignore[union-attr]
                entry.state = GONE
                entry.evict = False
            elif entry.state == LOGGED:
                entry.state = GONE
                entry.evict = False
        return tell

    def unwritten(self) -> tuple[int, int]:
        """Return the numbers of copies of persistent messages and of definitions that wait to be written."""
        entries = [entry for queue in self._queues for entry in queue.journal_fresh]
        entries += [entry for _, copies in self.files.values() for _, entry in copies]
        rows = {key for table, key, _ in self._rows if table == "defs"}
        delayed = {key: value for table, key, value in self._rows if table == DELAYED and not is_line(key)}
        messages = sum([entry.span for entry in entries if entry.state == NEW])
        return messages + sum([value is not None for value in delayed.values()]), len(rows)

    # -- bodies in files --------------------------------------------------------------------------------------------

    def next_msg_id(self) -> int:
        """Return a new id for a body, never used before."""
        msg_id = self._next_msg_id
        self._next_msg_id = msg_id + 1
        return msg_id

    def write_blob(self, queue: Journaled, entry: Entry, message: Persistent) -> None:
        """Queue a very large body for writing to a file of its own, before its record is written."""
        if not message.msg_id:
            self._begin_file(message)
        file = self.files.get(message.msg_id)
        if file is None:  # it was written before any queue had the message
            queue.journal_fresh.append(entry)
        else:
            file[1].append((queue, entry))

    def write_file(self, message: Persistent, callback: Callable[[bool], bool]) -> None:
        """Queue a very large body for writing to a file of its own, whether or not a queue has the message yet.

        `message`: the message, whose file is not written yet; `callback`: called with true when it is, in the step that
        notes the records of queues that have the message, and returns whether the file is needed although there may be
        none; then `drop_file` has to remove it if there never is one. Before that it is called with false whenever
        there is no space; that is retried.
        """
        if not message.msg_id:
            self._begin_file(message)
        self._file_callbacks.setdefault(message.msg_id, []).append(callback)

    def _begin_file(self, message: Persistent) -> None:
        message.msg_id = self.next_msg_id()
        message.in_blob = True
        self.files[message.msg_id] = message, []
        self.blob_octets += len(message.content)

    def has_file(self, message: Persistent) -> bool:
        """Return whether the body of a message is in a file of its own, which is written."""
        return message.in_blob and message.msg_id not in self.files

    def drop_file(self, message: Persistent) -> None:
        """Have the next commit remove the file of a body to which no record refers, or ever will."""
        self._unrefs.append(message.msg_id)

    def file_written(self, msg_id: int) -> bool:
        """Note that a body's file is on disk, so its records may follow. Returns False if it is no longer needed."""
        message, copies = self.files.pop(msg_id)
        self.blob_octets -= len(message.content)
        needed = False
        for told in self._file_callbacks.pop(msg_id, ()):
            needed |= told(True)
        for queue, entry in copies:
            if entry.state == NEW:
                needed = True
                queue.journal_fresh.append(entry)
                self.touch(queue)
                self.urgent = True
            else:
                queue.journal_returns.pop(entry.seq_id, None)
        message.written()
        for waiter in list(self._file_waiters):
            missing, callback = waiter
            missing.discard(msg_id)
            if not missing:
                self._file_waiters.remove(waiter)
                self.when_safe(callback)
        return needed

    def file_failed(self, msg_id: int) -> None:
        """Note that there was no space for a body's file: the publish is nacked, the message stays in memory."""
        message, copies = self.files[msg_id]
        message.refused()
        for told in self._file_callbacks.get(msg_id, ()):
            told(False)
        for queue, entry in copies:
            queue.unstored((entry,))
        failed = [waiter for waiter in self._file_waiters if msg_id in waiter[0]]
        for waiter in failed:
            self._file_waiters.remove(waiter)
            waiter[1](False)


def _octets_to_page(entries: list[Entry], paged: Changes) -> Iterator[int]:
    """Yield the bytes that each entry counts in a commit, overhead included; a shared body counts once."""
    bodies = set(paged.shared)
    for entry in entries:
        if not entry.msg_id:
            yield entry.size + OVERHEAD
        elif entry.msg_id in bodies:
            yield OVERHEAD
        else:
            bodies.add(entry.msg_id)
            yield entry.size + OVERHEAD


def _without(msg_ids: list[int], gone: Counter[int]) -> list[int]:
    """Return ids without those in `gone`, each removed as often as it is counted there."""
    if not gone:
        return msg_ids
    left = []
    for msg_id in msg_ids:
        if gone[msg_id]:
            gone[msg_id] -= 1
        else:
            left.append(msg_id)
    return left
