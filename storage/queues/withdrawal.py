"""Walking over the ready messages of a variable queue, and withdrawing some of them from any place.

Theory. A walk goes from the head to the tail as it was when the walk began, a piece at a time, while the queue is used:
each piece shows the messages that are ready then, and what was published later is not in it. Messages on disk are read
in a thread, from a snapshot of that moment, as for a look (`storage.queues.peek`).

Withdrawn messages become unacked, so they are settled like deliveries; they were never delivered. In q4 and q1
positions follow from places, which have no gaps. So before a message is withdrawn from there the messages around it go
where each has its position, to q3 and q2, with their bodies (`prepare`): q4 from its tail, q1 from its head; if there
is nothing else, all of q4 becomes q1 first. A message in the delta gets its entry from what the walk has read. Its
neighbours may be read before its end is on disk, hence `storage.queues.gaps`.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from leveret.storage.errors import DamagedError
from leveret.storage.journal.blocks import (
    GONE,
    NEW,
    STORED,
    Bitmap,
    Entry,
    Header,
    Record,
    bodies_of,
    read_bitmap,
    read_header,
    read_records,
)
from leveret.storage.journal.reads import DELTA, Loaded, Range, RawBlock
from leveret.storage.large_table import fitting
from leveret.storage.queues.backing_queue import Peeked, Piece, Walk
from leveret.storage.queues.gaps import NO_GAPS, Gaps
from leveret.storage.queues.peek import ALWAYS, PIECE, is_away, make_run, message_of, run_pieces
from leveret.storage.queues.portions import Portions
from leveret.storage.queues.requeued import Item
from leveret.storage.queues.runs import PREPARED, index_of, some, take_out
from leveret.storage.queues.sub_queues import NO_ENTRIES, NOTHING

_seq_id_of = attrgetter("seq_id")


class _Place(NamedTuple):
    """A record of the delta that a walk has read."""

    raw: RawBlock
    header: Header
    bitmap: Bitmap
    record: Record
    body: int


def _alphas(run: deque[Item], first: int, at: int, end: int) -> tuple[Sequence[int], list[Item]] | None:
    """Return messages of a run without gaps, which begins with position `first`."""
    index = max(0, at - first)
    most = min(PIECE, end - first - index)
    if index >= len(run) or most <= 0:
        return None
    items = some(run, index, most)
    return range(first + index, first + index + len(items)), items


def _entries(run: deque[Entry], at: int, end: int) -> tuple[Sequence[int], list[Item]] | None:
    """Return messages of a run of entries."""
    found = some(run, index_of(run, at, _seq_id_of), PIECE) if run else []
    items = [entry for entry in found if entry.seq_id < end]
    return ([entry.seq_id for entry in items], [*items]) if items else None


class Withdrawing(Portions):
    """The part of a variable queue that withdraws messages from its middle."""

    __slots__ = ()

    # -- walking ----------------------------------------------------------------------------------------------------

    def walk(self) -> Walk:
        """Walk over the ready messages; see `BackingQueue.walk`."""
        return self._walk(0, self.next_seq, None)

    def _walk(self, at: int, end: int, only: Collection[int] | None) -> Walk:
        """Walk over the messages from position `at` on, before `end`; only those with certain positions if given."""
        while not self.deleted:
            if (run := self._in_memory(at, end)) is not None:
                seq_ids, items, below = run
                looked_at = make_run(seq_ids, items, redelivered_below=below)
                snapshot = self.pager.snapshot() if is_away(looked_at) else None
                at = seq_ids[-1] + 1
                try:
                    pieces = run_pieces(looked_at, snapshot, self.pager.load_octets)
                    answer: Any = None
                    while True:
                        piece = pieces.send(answer)
                        answer = None
                        if isinstance(piece, list):
                            yield from self._show(piece, {}, only)
                        else:
                            answer = yield piece
                except StopIteration:
                    pass
                finally:
                    if snapshot is not None:
                        snapshot.close()
            elif self.delta_count and at < min(self.delta_stop, end):
                first, last = max(at, self.delta_start), min(self.delta_stop, end)
                stop = min((first // self.segment + 1) * self.segment, last)
                gaps = self.gaps.copy()  # a purge forgets them
                snapshot = self.pager.snapshot()
                try:
                    found = yield partial(
                        snapshot.read, [Range(self.qid, first, stop)], self.pager.load_octets
                    )
                finally:
                    snapshot.close()
                at = min(found.stop, last)  # a start leaves out positions, which no read has to visit
                yield from self._show(*self._read_piece(found, range(first, at), gaps), only)
            else:
                return

    def _in_memory(self, at: int, end: int) -> tuple[Sequence[int], list[Item], float] | None:
        """Return the next ready messages from position `at` on, before `end`, that have a position in memory."""
        returned = [each for each in self.returned.after(at, PIECE) if each[0] < end]
        if returned:
            return [seq_id for seq_id, _ in returned], [item for _, item in returned], ALWAYS
        if (run := _alphas(self.q4, self._q4_first, at, end)) is not None:
            return *run, 0
        if (run := _entries(self.q3, at, end)) is not None:
            return *run, self.redelivered_below
        if self.delta_count and at < self.delta_stop:
            return None
        run = _entries(self.q2, at, end) or _alphas(self.q1, self._q1_first, at, end)
        return None if run is None else (*run, 0)

    def _show(
        self, messages: list[Peeked], places: Mapping[int, _Place], only: Collection[int] | None
    ) -> Walk:
        """Yield a piece, and once more those of its messages that went to the delta before they were withdrawn."""
        missed: list[int] = []
        if only is not None:
            messages = [each for each in messages if each.seq_id in only]
        if not messages:
            return
        yield Piece(messages, self._prepare, partial(self._withdraw, places, missed))
        if missed:
            yield from self._walk(missed[0], missed[-1] + 1, frozenset(missed))

    def _read_piece(self, found: Loaded, wanted: range, gaps: Gaps) -> tuple[list[Peeked], dict[int, _Place]]:
        """Return the messages of a part of the delta that was read, without those withdrawn before that or since."""
        messages: list[Peeked] = []
        places: dict[int, _Place] = {}
        for raw in found.blocks:
            try:
                header = read_header(raw.key, raw.value)
            except DamagedError:
                continue
            bitmap = read_bitmap(raw.dead, header)
            block = self.blocks.get(header.first * 2 + raw.paged)
            dead, returns = bitmap.dead, bitmap.returns
            if block is not None:
                dead |= block.bits | block.noted
                returns = block.returns
            bodies = bodies_of(raw.value, header)
            for record in read_records(raw.value, header, dead):
                if isinstance(record, int) or record.seq_id not in wanted:
                    continue
                if record.seq_id in gaps or record.seq_id in self.gaps:
                    continue
                message = message_of(record, found)
                if message is not None:
                    count = returns.get(record.place, 0) if self.counts_returns else 0
                    redelivered = record.seq_id < self.redelivered_below
                    messages.append(Peeked(record.seq_id, message, redelivered, record.expires, count))
                    places[record.seq_id] = _Place(raw, header, bitmap, record, bodies[record.place])
        messages.sort()
        return messages, places

    # -- withdrawing --------------------------------------------------------------------------------------------------

    def _prepare(self, first: int, last: int) -> bool:
        """See `Piece.prepare`."""
        if self.deleted:
            return True
        q4_stop = self._q4_first + len(self.q4)
        if self.q4 and first < q4_stop and last >= self._q4_first:
            self.count_octets()
            if self.q3 or self.delta_count:
                if not self._expose_q4(first):
                    return False
            else:
                self.q1, self.q4 = self.q4, NOTHING
                self._q1_first = self._q4_first
        if self.q1 and last >= self._q1_first:
            self._expose_q1(last)
        return not self.q1 or last < self._q1_first

    def _expose_q4(self, first: int) -> bool:
        """Move messages from the tail of q4 to q3, down to position `first`; returns whether that is done."""
        stop = self._q4_first + len(self.q4)
        count = min(PREPARED, stop - max(first, self._q4_first))
        pop = self.q4.pop
        self._q3().extendleft(
            self._exposed(range(stop - 1, stop - 1 - count, -1), [pop() for _ in range(count)])
        )
        self._ahead = 0
        return stop - count <= max(first, self._q4_first)

    def _expose_q1(self, last: int) -> None:
        """Move messages from the head of q1, up to position `last`, to where they have positions."""
        first = self._q1_first
        count = min(PREPARED, len(self.q1), last + 1 - first)
        popleft = self.q1.popleft
        entries = self._exposed(range(first, first + count), [popleft() for _ in range(count)])
        self._q1_first += count
        if not self.delta_count:
            self._q3().extend(entries)
        elif self.q2 is NO_ENTRIES:
            self.q2 = deque(entries)
        else:
            self.q2.extend(entries)

    def _withdraw(
        self, places: Mapping[int, _Place], missed: list[int], seq_ids: Collection[int]
    ) -> list[int]:
        """See `Piece.withdraw`. What can be taken only after a read is added to `missed`, with all that follows it."""
        if self.deleted:
            return []
        wanted = set(seq_ids)
        missed += self._paged_since(places, missed[:1], wanted)
        wanted.difference_update(missed)
        taken: list[tuple[int, Item]] = list(self.returned.remove_those(wanted))
        for run in (self.q3, self.q2):
            for entry in take_out(run, wanted, _seq_id_of):
                item: Item = entry
                if entry.evict:
                    self._keep(entry)
                if entry.state == NEW and not entry.durable:
                    entry.state = GONE
                    item = entry.message  # type: ignore[assignment]
                taken.append((entry.seq_id, item))
        self._ahead = 0
        for _, item in taken:
            if type(item) is not Entry:
                self.ram_octets -= len(item.content)  # type: ignore[union-attr]
            elif item.message is not None:
                self.ram_octets -= item.size
            else:
                self.away_octets -= item.size
        taken += self._from_delta(places, wanted)
        self.ready_count -= len(taken)
        for seq_id, item in taken:
            self._hold(seq_id, item)
        self._unacked, self._unacked_out = fitting(self._unacked), fitting(self._unacked_out)
        self._close_up()
        return sorted([seq_id for seq_id, _ in taken])

    def _paged_since(
        self, places: Mapping[int, _Place], missed: Sequence[int], wanted: Collection[int]
    ) -> list[int]:
        """Return positions from the first one on that is missed, or whose message memory and `places` do not have."""
        delta = range(self.delta_start, self.delta_stop if self.delta_count else 0)
        paged = [each for each in wanted if each in delta and each not in places and each not in self.gaps]
        first = min([*missed, *paged], default=self.next_seq)
        return sorted([each for each in wanted if each >= first])

    def _from_delta(self, places: Mapping[int, _Place], wanted: Collection[int]) -> list[tuple[int, Item]]:
        """Take messages out of the delta; they get entries."""
        taken: list[tuple[int, Item]] = []
        delta = range(self.delta_start, self.delta_stop)
        for seq_id in wanted:
            place = places.get(seq_id)
            if place is None or not self.delta_count or seq_id not in delta or seq_id in self.gaps:
                continue
            raw, header, bitmap, record, body = place
            block = self.blocks.get(header.first * 2 + raw.paged)
            if block is None:
                if (
                    bitmap.is_damaged
                ):  # how many of its records are counted is found out when they are read in order
                    continue
                block = self._new_block(raw, header, bitmap)
            entry = Entry(
                seq_id, None, record.size, durable=self.durable and not raw.paged, expires=record.expires
            )
            entry.state = STORED
            entry.block = block
            entry.index = record.place
            entry.msg_id = record.msg_id
            entry.body = body
            if self.counts_returns and (count := block.returns.get(record.place)):
                if not self.stored_returns:
                    self.stored_returns = {}
                self.stored_returns[seq_id] = count
            self._leave_delta(block, 1, body)
            self.delta_count -= 1
            taken.append((seq_id, entry))
        return taken

    def _hold(self, seq_id: int, item: Item) -> None:
        """Add a withdrawn message to the unacked ones."""
        if self.gaps is NO_GAPS:
            self.gaps = Gaps()
        self.gaps.add(seq_id)
        if type(item) is not Entry:
            self._unacked[seq_id] = item
            self.unacked_octets += len(item.content)  # type: ignore[union-attr]
            return
        self._unacked_entries += 1
        if item.message is None:
            self._unacked_out[seq_id] = item
            self.unacked_away_octets += item.size
        else:
            self._unacked[seq_id] = item
            self.unacked_octets += item.size

    def _close_up(self) -> None:
        """Restore the order of the sub-queues after messages were withdrawn."""
        if self.delta_stop and not self.delta_count:
            if self._loading is not None and self._loading.what == DELTA:
                self._loading = None
            self._delta_exhausted()
        elif not self.q3 and not self.delta_count:
            self._q1_to_q4()
        self.gaps.forget_before(self._first_unfetched())
        if self._starved and self._loading is None:
            self._starved = False
            self.on_loaded()
        self._keep_ahead()
