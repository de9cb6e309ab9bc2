"""Reading a variable queue's messages from disk, ahead of demand.

The theory is in `storage.queues.variable_queue`.

Hot path: see docs/performance.md.
"""
# ruff: noqa: C901 - hot: one flat function is several times cheaper than small ones

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from leveret.storage.damage import BITMAP, BLOCK, MISSING, RECORD
from leveret.storage.journal.blocks import (
    STORED,
    Bitmap,
    Block,
    Entry,
    Header,
    Record,
    bodies_of,
    plain_entries,
    read_bitmap,
    read_records,
)
from leveret.storage.journal.reads import BODIES, DELTA, RETURNED, Loaded, LoadRequest, Range, RawBlock, Reads
from leveret.storage.message import Message
from leveret.storage.queues.paging import Paging
from leveret.storage.queues.peek import bodies_of_entries, headed, message_of, ranges_of, slot_of
from leveret.storage.queues.requeued import Item
from leveret.storage.queues.sub_queues import NO_ENTRIES

AHEAD_LOADS = 16  # maximum bytes read ahead of a consumer, in loads; one load may come on top
_seq_id = attrgetter("seq_id")


class _Source(NamedTuple):
    """A block of the delta as it was read, its state in memory, and its dead records."""

    block: Block
    raw: RawBlock
    header: Header
    dead: int


class Reading(Paging):
    """The part of a variable queue that reads messages back into memory."""

    __slots__ = ()

    def _want(self) -> None:
        """Read the head for a consumer, as it is not in memory, and call `on_loaded` when it is."""
        self._asked = self._starved = True
        self._prefetch()

    def _keep_ahead(self) -> None:
        """Start a read if no message is in memory for the next fetch."""
        if self.delta.count and self._asked and not (self.returned or self.q4 or self.q3):
            self._prefetch()

    def _prefetch(self) -> None:
        """Start a read of the next messages, unless another one is in progress."""
        if self._loading is not None or self.deleted:
            return
        if self.returned:
            self._load_bodies(islice(self.returned, self.read_ahead), RETURNED)
            return
        ahead = octets = held = 0
        enough, limit = self.read_ahead, self.pager.load_octets
        most = AHEAD_LOADS * limit
        wanted: list[Entry] = []
        for entry in self.q3:
            if wanted:
                if octets >= limit or entry.seq_id - wanted[0].seq_id >= enough:
                    break
                if entry.message is None:
                    wanted.append(entry)
                    octets += entry.size
            elif entry.message is None:
                wanted.append(entry)
                octets = entry.size
            elif ahead >= enough or octets >= limit or held >= most:
                self._ahead = ahead
                return
            else:
                held += entry.size
                if entry.evict:  # it would have to be read again immediately
                    self._keep(entry)
                    octets += entry.size
                ahead += 1
        self._ahead = ahead
        if wanted:
            self._load([Range(self.qid, wanted[0].seq_id, wanted[-1].seq_id + 1)], BODIES, wanted)
        elif self.delta.count and ahead < enough:
            boundary = (self.delta.start // enough + 1) * enough
            self._load([Range(self.qid, self.delta.start, min(boundary, self.delta.stop))], DELTA)

    def _load_bodies(self, items: Iterable[tuple[int, Item]], what: str) -> None:
        """Start a read of the missing bodies of some messages (ascending by seq_id)."""
        wanted: list[Entry] = []
        octets = 0
        for _, item in items:
            if type(item) is Entry and item.message is None:
                octets += item.size
                if octets > self.pager.load_octets and wanted:
                    break
                wanted.append(item)
        if wanted:
            self._load(ranges_of(self.qid, map(_seq_id, wanted)), what, wanted)

    def _load(self, ranges: Sequence[Range], what: str, entries: Sequence[Entry] = ()) -> None:
        request = LoadRequest(self, tuple(ranges), self.pager.load_octets, what, entries, self.delta.stop)
        self._loading = request
        self.pager.load(request)

    def loaded(self, request: LoadRequest, found: Loaded) -> None:
        """Take the result of a read. The caller must run a turn afterwards: messages may have become available."""
        if self._loading is not request:
            return  # overtaken by a purge
        self._loading = None
        if request.what == DELTA:
            reads = self.pager.read_delta
            self._take_delta(request, found, reads)
        else:
            reads = self.pager.read_entries
            self._take_bodies(request, found, reads)
        reads.took(found)
        self._starved = False
        self._keep_ahead()
        self.on_loaded()

    def _take_delta(self, request: LoadRequest, found: Loaded, reads: Reads) -> None:
        """Append a part of the delta to q3."""
        delta = self.delta
        first = delta.start
        damaged = self.damaged
        stop = min(found.stop, request.horizon)
        entries: list[Entry] = []
        for raw, header in self._headed(request, found):
            slot = slot_of(raw, header)
            block = delta.blocks.get(slot)
            bitmap = read_bitmap(raw.dead, header)
            if bitmap.is_damaged:
                bitmap = self._without_bitmap(raw, header, block, first)
            if block is None:
                block = delta.new_block(raw, header, bitmap)
                if header.first < first or delta.gaps:
                    self._note_ended(block, raw, header, first)
            dead = bitmap.dead | block.bits | block.noted  # ends that were not on disk when this was read
            source = _Source(block, raw, header, dead)
            entries += self._take_block(source, range(first, stop), found)
            if not block.live:  # all of it was withdrawn, after the read began
                delta.blocks.pop(slot, None)
                block.home = None
            elif block.away and header.last < stop:  # all that could be read of it is in memory now
                self._give_up_damaged(source)
        entries.sort(key=_seq_id)
        self._q3().extend(entries)
        self._ahead = 0
        self.ram_octets += sum([entry.size for entry in entries])
        delta.start = stop
        delta.count -= len(entries)
        delta.gaps.forget_before(self._first_unfetched())
        self._moved("from_delta", len(entries))
        reads.messages += len(entries)
        lost = delta.count - (delta.stop - stop)
        if lost > 0:  # damaged ones were counted, or some twice; they do not exist
            missing = min(lost, delta.count) - delta.twice
            if self.damaged == damaged and missing > 0:
                self._note_damage(first, MISSING, missing)
            delta.twice = max(0, delta.twice - lost)
            delta.count -= lost
            self._leave_ready(lost)
        if delta.count <= 0 or stop >= delta.stop:
            self._delta_exhausted()
        if not entries and delta.count:
            self._prefetch()

    def _note_ended(self, block: Block, raw: RawBlock, header: Header, first: int) -> None:
        """Note records that have ended, although a read of a block that memory had forgotten has found them."""
        # They are those before `first`, and those that were withdrawn: with the last of them memory forgot the block.
        for record in read_records(raw.value, header, block.bits):
            if not isinstance(record, int) and (record.seq_id < first or record.seq_id in self.delta.gaps):
                block.live -= 1
                block.away -= 1
                block.bits |= 1 << record.place

    def _without_bitmap(self, raw: RawBlock, header: Header, block: Block | None, first: int) -> Bitmap:
        """Return the replacement of a damaged bitmap: the one of the block's state in memory."""
        # Without such a state all its messages come back. An unknown number of them is in the delta's count, so all
        # are added to it; otherwise other messages would seem not to exist when it reaches 0. At the end of the delta
        # those counted twice are subtracted.
        if block is not None:
            if not block.has_bad_bitmap:
                self._note_damage(header.first, BITMAP)
                block.has_bad_bitmap = True
            return Bitmap(block.bits, block.returns)
        self._note_damage(header.first, BITMAP)
        bodies = bodies_of(raw.value, header)
        octets = [
            bodies[record.place]
            for record in read_records(raw.value, header)
            if not isinstance(record, int) and first <= record.seq_id < self.delta.stop
        ]
        self.delta.count_again(sum(octets), len(octets), paged=raw.paged)
        self._leave_ready(-len(octets))
        self.lost_octets -= sum(octets)
        return Bitmap(is_damaged=True)

    def _note_damage(self, position: int, kind: str, count: int = 1) -> None:
        """Count and report unreadable data."""
        self.damaged += count
        self.pager.damages.note((self.qid, position), kind, count)

    def _headed(self, request: LoadRequest, found: Loaded) -> Iterator[tuple[RawBlock, Header]]:
        """Yield the blocks of a load with their headers; those with a damaged header are counted and left out."""
        return headed(found, partial(self._note_damage, request.ranges[0].first, BLOCK))

    def _take_block(self, source: _Source, wanted: range, found: Loaded) -> list[Entry]:
        """Return entries of a block's records that belong to a part of the delta, which they leave."""
        block, raw, header, dead = source
        durable = self.durable and not raw.paged
        taken = plain_entries(raw.value, header, dead, block, wanted, durable=durable)
        if taken is None:
            taken = self._take_records(source, wanted, found, durable=durable)
        if self.delta.gaps:
            taken = [entry for entry in taken if entry.seq_id not in self.delta.gaps]
        self.delta.leave(block, len(taken), sum([entry.body for entry in taken]))
        self._note_stored_returns(block, taken)
        return taken

    def _note_stored_returns(self, block: Block, taken: Sequence[Entry]) -> None:
        """Note the delivery counts that are on disk for messages of a block, if they are counted."""
        returns = block.returns
        if returns and self.counts_returns:
            stored = {entry.seq_id: returns[entry.index] for entry in taken if entry.index in returns}
            if self.stored_returns:
                self.stored_returns.update(stored)
            else:
                self.stored_returns = stored

    def _take_records(self, source: _Source, wanted: range, found: Loaded, *, durable: bool) -> list[Entry]:
        """Return entries of a block's records that belong to a part of the delta; drop damaged ones."""
        block, raw, header, dead = source
        bodies = bodies_of(raw.value, header)
        entries: list[Entry] = []
        address = b""
        for record in read_records(raw.value, header, dead):
            if isinstance(record, int) or record.seq_id not in wanted:
                continue
            if record.address != address:
                address = record.address
            message = message_of(record, found, address)
            entry = entry_of(record, block, message, bodies[record.place], durable=durable)
            # the body of one that was withdrawn may be gone, as it is read later than the block
            if message is None and record.seq_id not in self.delta.gaps:  # damaged: it cannot be delivered
                self._note_damage(record.seq_id, _kind(record.msg_id, found))
                self._give_up(entry)
            else:
                entries.append(entry)
        return entries

    def _leave_ready(self, count: int) -> None:
        """Subtract damaged messages from the ready ones; they do not count as fetched."""
        self.ready_count -= count
        self._not_fetched += count

    def _give_up(self, entry: Entry) -> None:
        """Drop a damaged message of the delta: note its record as dead and stop counting it."""
        self.delta.leave(entry.block, 1, entry.body)
        self.lost_octets += entry.body
        self.delta.count -= 1
        self._leave_ready(1)
        self._journal.dead(entry)

    def _give_up_damaged(self, source: _Source) -> None:
        """Drop the unreadable records of a block that have no entries in memory; count them."""
        block, raw, header, dead = source
        self._note_damage(header.first, RECORD, block.away)
        places = [record for record in read_records(raw.value, header, dead) if isinstance(record, int)]
        if len(places) != block.away:  # some are those of messages in memory, and it is unknown which
            return
        bodies = bodies_of(raw.value, header)
        for place in places:
            entry = Entry(0, None, 0, durable=False)
            entry.block = block
            entry.index = place
            entry.body = bodies[place]
            self._give_up(entry)

    def _delta_exhausted(self) -> None:
        """Handle the end of the delta: q2 follows q3."""
        if self.delta.count:  # damaged ones were counted; they do not exist
            self._leave_ready(self.delta.count)
        self.lost_octets += self.delta.octets  # the count may be right already if a whole block is lost
        self.delta.clear()
        if self.q2:
            self._q3().extend(self.q2)
            self.q2 = NO_ENTRIES
        if not self.q3:
            self._q1_to_q4()

    def _take_bodies(self, request: LoadRequest, found: Loaded, reads: Reads) -> None:
        """Attach bodies that were read to entries in q3, or to requeued ones."""
        waiting = {
            entry.seq_id: entry
            for entry in request.entries
            if entry.message is None and entry.state == STORED
        }
        for entry, message in bodies_of_entries(found, self._headed(request, found), waiting):
            del waiting[entry.seq_id]
            entry.message = message
            reads.messages += 1
            if entry.seq_id in self._unacked_out:
                self.unacked_octets += entry.size
                self.unacked_away_octets -= entry.size
                self._unacked[entry.seq_id] = self._unacked_out.pop(entry.seq_id)
            else:
                self.ram_octets += entry.size
                self.away_octets -= entry.size
        for seq_id, entry in waiting.items():
            if seq_id < found.stop:
                self._lose(entry, request.what, _kind(entry.msg_id, found))

    def _lose(self, entry: Entry, what: str, kind: str) -> None:
        """Drop a message whose body cannot be read, and count the damage."""
        self._note_damage(entry.seq_id, kind)
        self._journal.dead(entry)
        if self._unacked_out.pop(entry.seq_id, None) is not None:
            self._unacked_entries -= 1
            self.unacked_away_octets -= entry.size
            return
        self._leave_ready(1)
        self.away_octets -= entry.size
        self.lost_octets += entry.body
        if what != BODIES:
            self.returned.remove_those((entry.seq_id,))
            return
        self.q3.remove(entry)
        self._ahead = 0
        if not self.q3 and not self.delta.count:
            self._q1_to_q4()


def _kind(msg_id: int, found: Loaded) -> str:
    """Return the kind of damage of a message that was not found; `msg_id` is its body's id, or 0."""
    body = found.bodies.get(msg_id)
    return body if isinstance(body, str) else RECORD


def entry_of(record: Record, block: Block, message: Message | None, body: int, *, durable: bool) -> Entry:
    """Return the entry of a record that was read; `body` is the size of its body."""
    entry = Entry(record.seq_id, message, record.size, durable=durable, expires=record.expires)
    entry.state = STORED
    entry.block = block
    entry.index = record.place
    entry.msg_id = record.msg_id
    entry.body = body
    return entry
