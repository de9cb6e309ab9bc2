"""Reading a variable queue's messages from disk, ahead of those who want them.

The theory is in `storage.variable_queue`.

Hot path: see docs/performance.md.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest
from operator import attrgetter

from storage.blocks import (
    STORED,
    Block,
    Entry,
    Header,
    Record,
    bits_of,
    plain_entries,
    read_header,
    read_records,
)
from storage.errors import DamagedError
from storage.loading import BODIES, DELTA, RETURNED, Loaded, LoadRequest, Range, RawBlock
from storage.message import Message
from storage.paging import Paging
from storage.sub_queues import NO_ENTRIES, Item

_seq_id = attrgetter("seq_id")


class Reading(Paging):
    """A variable queue's way back into memory."""

    __slots__ = ()

    def _prefetch(self) -> None:
        """Have the next messages read, unless something is being read already."""
        if self._loading is not None or self.deleted:
            return
        if self.returned:
            self._load_bodies(nsmallest(256, self.returned, key=_first), RETURNED)
            return
        ahead = octets = 0
        enough, limit = self.segment // 2, self.pager.load_octets
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
            elif ahead >= enough or octets >= limit:
                self._ahead = ahead
                return
            else:
                if entry.evict:  # it would have to be read again at once
                    self._keep(entry)
                    octets += entry.size
                ahead += 1
        self._ahead = ahead
        if wanted:
            self._load([Range(self.qid, wanted[0].seq_id, wanted[-1].seq_id + 1)], BODIES, wanted)
        elif self.delta_count and ahead < enough:
            boundary = (self.delta_start // self.segment + 1) * self.segment
            self._load([Range(self.qid, self.delta_start, min(boundary, self.delta_stop))], DELTA)

    def _load_bodies(self, items: Iterable[tuple[int, Item]], what: str) -> None:
        """Have the bodies read of those of some messages (ascending by seq_id) that have none."""
        ranges: list[Range] = []
        wanted: list[Entry] = []
        octets = 0
        for seq_id, item in items:
            if type(item) is Entry and item.message is None:
                octets += item.size
                if octets > self.pager.load_octets and ranges:
                    break
                wanted.append(item)
                if ranges and ranges[-1].stop == seq_id:
                    ranges[-1] = Range(self.qid, ranges[-1].first, seq_id + 1)
                else:
                    ranges.append(Range(self.qid, seq_id, seq_id + 1))
        if ranges:
            self._load(ranges, what, wanted)

    def _load(self, ranges: Sequence[Range], what: str, entries: Sequence[Entry] = ()) -> None:
        request = LoadRequest(self, tuple(ranges), self.pager.load_octets, what, entries, self.delta_stop)
        self._loading = request
        self.pager.load(request)

    def loaded(self, request: LoadRequest, found: Loaded) -> None:
        """Take what was read. The caller owes a turn afterwards: messages may have become available."""
        if self._loading is not request:
            return  # overtaken by a purge
        self._loading = None
        if request.what == DELTA:
            self._take_delta(request, found)
        else:
            self._take_bodies(request, found)
        self.on_loaded()

    def _take_delta(self, request: LoadRequest, found: Loaded) -> None:
        """Append a part of the delta to q3."""
        first = self.delta_start
        stop = min(found.stop, request.horizon)
        entries: list[Entry] = []
        for raw, header in self._headed(found):
            dead = bits_of(raw.dead)
            slot = header.first * 2 + raw.paged
            block = self.blocks.get(slot)
            is_new = block is None
            if block is None:
                block = Block(self.qid, header.first, header.records, paged=raw.paged)
                block.live = block.away = header.records - dead.bit_count()
                block.bits = dead
                block.home = self.blocks
                self.blocks[slot] = block
            is_wholly_away = is_new and first <= header.first and header.last < stop
            self._take_block(block, raw, header, range(first, stop), found, entries)
            if is_wholly_away and block.away:
                self._give_up_damaged(block, raw.value, header, dead)
        entries.sort(key=_seq_id)
        self._q3().extend(entries)
        self._ahead = 0
        self.ram_octets += sum([entry.size for entry in entries])
        self.delta_start = stop
        self.delta_count -= len(entries)
        self._moved("from_delta", len(entries))
        lost = self.delta_count - (self.delta_stop - stop)
        if lost > 0:  # damaged ones were counted; they are not there
            self.delta_count -= lost
            self.ready_count -= lost
        if self.delta_count <= 0 or stop >= self.delta_stop:
            self._delta_exhausted()
        if not entries and self.delta_count:
            self._prefetch()

    def _headed(self, found: Loaded) -> Iterator[tuple[RawBlock, Header]]:
        """The blocks of a load with their headers; those whose header is damaged are counted and left out."""
        for raw in found.blocks:
            try:
                header = read_header(raw.value)
            except DamagedError:
                self.damaged += 1
            else:
                yield raw, header

    def _take_block(
        self, block: Block, raw: RawBlock, header: Header, wanted: range, found: Loaded, entries: list[Entry]
    ) -> None:
        """Make entries of those records of a block that belong to a part of the delta."""
        dead = bits_of(raw.dead)
        durable = self.durable and not raw.paged
        plain = plain_entries(raw.value, header, dead, block, wanted, durable=durable)
        if plain is not None:
            block.away -= len(plain)
            self.delta_octets -= sum([entry.size for entry in plain])
            self.delta_paged -= raw.paged * len(plain)
            entries += plain
            return
        address = b""
        for record in read_records(raw.value, header, dead):
            if isinstance(record, int):
                self.damaged += 1
                continue
            if record.seq_id not in wanted:
                continue
            if record.address != address:
                address = record.address
            message = _message(record, address, found)
            block.away -= 1
            self.delta_octets -= record.size
            self.delta_paged -= raw.paged
            entry = Entry(record.seq_id, message, record.size, durable=durable, expires=record.expires)
            entry.state = STORED
            entry.block = block
            entry.index = record.place
            entry.msg_id = record.msg_id
            if message is None:  # damaged: it cannot be served
                self.damaged += 1
                self.delta_count -= 1
                self.ready_count -= 1
                self._journal.dead(entry)
            else:
                entries.append(entry)

    def _give_up_damaged(self, block: Block, value: bytes, header: Header, dead: int) -> None:
        """Note as dead what cannot be read of a block that nothing in memory stands for."""
        for record in read_records(value, header, dead):
            if isinstance(record, int):
                block.away -= 1
                entry = Entry(0, None, 0, durable=False)
                entry.block = block
                entry.index = record
                self._journal.dead(entry)

    def _delta_exhausted(self) -> None:
        """All of the delta has been read: q2 follows q3."""
        if self.delta_count:  # damaged ones were counted; they are not there
            self.ready_count -= self.delta_count
        self.delta_start = self.delta_count = self.delta_stop = self.delta_paged = self.delta_octets = 0
        if self.q2:
            self._q3().extend(self.q2)
            self.q2 = NO_ENTRIES
        if not self.q3:
            self._q1_to_q4()

    def _take_bodies(self, request: LoadRequest, found: Loaded) -> None:
        """Give entries in q3, or returned ones, their bodies."""
        waiting = {
            entry.seq_id: entry
            for entry in request.entries
            if entry.message is None and entry.state == STORED
        }
        address = b""
        for raw, header in self._headed(found):
            for record in read_records(raw.value, header):
                wanted = None if isinstance(record, int) else waiting.get(record.seq_id)
                if wanted is None or wanted.block.first != header.first or wanted.block.paged != raw.paged:
                    continue
                if record.address != address:  # type: ignore[union-attr]
                    address = record.address  # type: ignore[union-attr]
                message = _message(record, address, found)  # type: ignore[arg-type]
                if message is not None:
                    del waiting[wanted.seq_id]
                    wanted.message = message
                    if wanted.seq_id in self._unacked_out:
                        self.unacked_octets += wanted.size
                        self._unacked[wanted.seq_id] = self._unacked_out.pop(wanted.seq_id)
                    else:
                        self.ram_octets += wanted.size
        for seq_id, entry in waiting.items():
            if seq_id < found.stop:
                self._lose(entry, request.what)

    def _lose(self, entry: Entry, what: str) -> None:
        """A body cannot be read: its message is given up, and the damage counted."""
        self.damaged += 1
        self._journal.dead(entry)
        if self._unacked_out.pop(entry.seq_id, None) is not None:
            self._unacked_entries -= 1
            return
        self.ready_count -= 1
        if what != BODIES:
            self.returned = sorted(each for each in self.returned if each[1] is not entry)
            return
        self.q3.remove(entry)
        self._ahead = 0
        if not self.q3 and not self.delta_count:
            self._q1_to_q4()


def _first(pair: tuple[int, Item]) -> int:
    return pair[0]


def _message(record: Record, address: bytes, found: Loaded) -> Message | None:
    content = record.content if not record.msg_id else found.bodies.get(record.msg_id)
    if content is None or len(content) < 7:
        return None
    return Message(address, content, content[1] << 8 | content[2])
