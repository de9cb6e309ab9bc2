"""The delta of a variable queue: messages whose positions are on disk only; memory has their range.

The theory is in `storage.queues.variable_queue`. What enters or leaves a delta is counted here.
"""

from collections.abc import Collection, Iterable

from leveret.storage.empty import EmptyDict
from leveret.storage.journal.blocks import Bitmap, Block, Entry, Header
from leveret.storage.journal.reads import RawBlock

_BITS = 4096  # positions in one bitmap of `Gaps`


class Gaps:
    """The positions from which messages were withdrawn, one bit each, until everything before them has left the queue.

    Such a message may still be on disk when its neighbours are read: its end is written by the next commit, and a read
    may have begun before.
    """

    __slots__ = ("_bitmaps",)

    def __init__(self, bitmaps: dict[int, int] | None = None) -> None:
        self._bitmaps: dict[int, int] = {} if bitmaps is None else bitmaps

    def __bool__(self) -> bool:
        return bool(self._bitmaps)

    def __contains__(self, seq_id: int) -> bool:
        return bool(self._bitmaps.get(seq_id // _BITS, 0) >> seq_id % _BITS & 1)

    def add(self, seq_id: int) -> None:
        """Add a position."""
        self._bitmaps[seq_id // _BITS] = self._bitmaps.get(seq_id // _BITS, 0) | 1 << seq_id % _BITS

    def forget_before(self, seq_id: int) -> None:
        """Remove positions below `seq_id`, if not all of them: whole bitmaps only."""
        for number in [number for number in self._bitmaps if number < seq_id // _BITS]:
            del self._bitmaps[number]

    def copy(self) -> "Gaps":
        """Return a copy."""
        return Gaps(dict(self._bitmaps))


NO_GAPS = Gaps(EmptyDict())  # shared by all queues from which nothing was withdrawn


class Delta:
    """The delta of one queue: `count` messages with seq_ids from `start` to before `stop`."""

    __slots__ = ("blocks", "count", "gaps", "octets", "octets_paged", "paged", "start", "stop", "twice")

    def __init__(self) -> None:
        self.blocks: dict[int, Block] = {}  # blocks with records in the delta that are known in memory
        self.gaps = NO_GAPS  # positions of withdrawn messages, at least those behind the head of the queue
        self.clear()

    def clear(self) -> None:
        """Forget the range and the counts; blocks and gaps stay."""
        self.start = self.count = self.stop = 0
        self.octets = self.paged = self.octets_paged = 0
        """Body bytes of all messages; the number of the transient ones, and their body bytes."""
        self.twice = 0  # messages that may be counted twice, because a bitmap was damaged

    @property
    def positions(self) -> range:
        """The range of its positions, empty if it has no messages."""
        return range(self.start, self.stop) if self.count else range(0)

    def enter(self, entries: Collection[Entry]) -> None:
        """Add messages of one block, which counts their records as away."""
        block = next(iter(entries)).block
        self._count(block, len(entries), sum([entry.body for entry in entries]))
        if block.away == block.count:  # none of it is in memory or dead
            self.blocks.pop(block.slot, None)
            block.home = None
        else:
            self.know(block)

    def leave(self, block: Block, count: int, octets: int) -> None:
        """Remove `count` messages of one block, with `octets` bytes of bodies."""
        self._count(block, -count, -octets)

    def _count(self, block: Block, count: int, octets: int) -> None:
        block.away += count
        self.octets += octets
        if block.paged:
            self.paged += count
            self.octets_paged += octets

    def count_again(self, octets: int, count: int, *, paged: bool) -> None:
        """Add messages of a block whose bitmap is damaged: an unknown number of them is in the count already."""
        self.count += count
        self.twice += count
        self.octets += octets
        if paged:
            self.paged += count
            self.octets_paged += octets

    def know(self, block: Block) -> None:
        """Add a block to those that memory knows."""
        self.blocks[block.slot] = block
        block.home = self.blocks

    def new_block(self, raw: RawBlock, header: Header, bitmap: Bitmap) -> Block:
        """Return the state of a block that was unknown in memory."""
        block = Block(header.qid, header.first, header.records, paged=raw.paged)
        block.live = block.away = header.records - bitmap.dead.bit_count()
        block.bits = bitmap.dead
        block.marked = raw.dead is not None
        block.has_bad_bitmap = bitmap.is_damaged
        block.returns = bitmap.returns
        self.know(block)
        return block

    def blocks_in(self, start: int, stop: int) -> Iterable[Block]:
        """Return the known blocks that begin in a range of positions."""
        blocks = self.blocks
        if len(blocks) <= stop - start:
            return [block for block in blocks.values() if block.first < stop]
        return [blocks[slot] for slot in range(start * 2, stop * 2) if slot in blocks]

    def note_withdrawn(self, seq_id: int) -> None:
        """Note the position of a message that was withdrawn, from the delta or from anywhere else in the queue."""
        if self.gaps is NO_GAPS:
            self.gaps = Gaps()
        self.gaps.add(seq_id)


NO_DELTA = Delta()  # of queues that are in memory only
