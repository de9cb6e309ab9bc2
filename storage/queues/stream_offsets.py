"""Offsets of a stream: those that its messages and its consumers have reached, and the first one of a time.

Hot path: see docs/performance.md.
"""

from bisect import bisect_left
from collections.abc import Callable, Generator, Sequence
from operator import attrgetter
from typing import NamedTuple

from leveret.storage.journal.blocks import Entry, Record, read_records
from leveret.storage.journal.reads import Loaded, Range
from leveret.storage.journal.stream_rows import OFFSETS, Segment, offset_key, offset_row
from leveret.storage.queues.pager import Pager
from leveret.storage.queues.peek import headed

_expires = attrgetter("expires")
_time = attrgetter("time")
Search = Generator[Range, Loaded, int]
"""The search in steps: it yields the range that has to be read next, and returns an offset."""


class Reach:
    """The offset before which all messages have reached a state, whatever the order in which they reach it."""

    __slots__ = ("_early", "stop")

    def __init__(self, stop: int) -> None:
        self.stop = stop
        self._early: dict[int, int] = {}  # seq_ids of entries beyond it, with their spans

    def add(self, entries: Sequence[Entry]) -> None:
        """Note entries in that state, ascending."""
        stop = entries[-1].seq_id + entries[-1].span
        count = sum([entry.span for entry in entries])
        if not self._early and entries[0].seq_id == self.stop and stop == self.stop + count:
            self.stop = stop
            return
        self._early.update({entry.seq_id: entry.span for entry in entries if entry.seq_id >= self.stop})
        while self.stop in self._early:
            self.stop += self._early.pop(self.stop)


class ConsumerOffsets:
    """The offset that each consumer whose offset is kept gets next, by its tag.

    Args:
        pager: of the stream; None to keep everything in memory.
        qid: of the stream.
    """

    __slots__ = ("_changed", "_pager", "_qid", "by_tag")

    def __init__(self, pager: Pager | None, qid: int) -> None:
        self._pager = pager
        self._qid = qid
        self.by_tag: dict[str, int] = {}
        """Ascending by the time of the last change in this run."""
        self._changed: dict[str, None] = {}  # tags with an offset that the journal has not

    def reach(self, tag: str, offset: int) -> None:
        """Keep an offset; a later commit writes it, as it does with acks."""
        self.by_tag.pop(tag, None)
        self.by_tag[tag] = offset
        if self._pager is not None:
            is_noted = bool(self._changed)
            self._changed[tag] = None
            if not is_noted and not self._pager.journal.before_cut(self._note):
                self._note()

    def _note(self) -> None:
        changed, self._changed = self._changed, {}
        for tag in changed:
            self._pager.journal.put(OFFSETS, *offset_row(self._qid, tag, self.by_tag[tag]))  # type: ignore[union-attr] # it has noted them

    def forget(self, tag: str) -> None:
        """Forget the offset of a consumer."""
        del self.by_tag[tag]
        self._changed.pop(tag, None)
        if self._pager is not None:
            self._pager.journal.delete(OFFSETS, offset_key(self._qid, tag))

    def clear(self) -> None:
        """Forget all offsets."""
        for tag in list(self.by_tag):
            self.forget(tag)


class RunningSearch(NamedTuple):
    """A search that goes on with what a request finds, and tells `found` at its end."""

    steps: Search
    found: Callable[[int], object]


def search(qid: int, rows: Sequence[Segment], end: int, time: int) -> Search:
    """Return the first offset before `end` of a message that came at a time (epoch ms) or later; `end` if none did.

    `rows` are the segments of the stream, at least one. Its messages have their times in ascending order.
    """
    at = bisect_left(rows, time, key=_time)
    if not at:
        return rows[0].first
    low = rows[at - 1].first
    high = min(end, rows[at].first) if at < len(rows) else end
    while low < high:  # the offset is in this range, or its end
        middle = (low + high) // 2
        found = yield Range(qid, middle, middle + 1)
        wanted = range(low, high)
        # without an end the block is damaged, or goes beyond the range
        records = _records(found, wanted, are_ends=True) or _records(found, wanted)
        if not records:  # deleted, or damaged
            low = middle + 1
        elif records[0].expires >= time:
            high = records[0].seq_id
        elif records[-1].expires < time:
            low = records[-1].seq_id + 1
        else:
            records = _records(found, wanted)
            return records[bisect_left(records, time, key=_expires)].seq_id
    return low


def _records(found: Loaded, wanted: range, *, are_ends: bool = False) -> list[Record]:
    """Return the sound records of a read at the `wanted` offsets; with `are_ends` only the ends of each block."""
    return [
        record
        for raw, header in headed(found)
        for record in read_records(raw.value, header, ~(1 | 1 << header.records - 1) if are_ends else 0)
        if not isinstance(record, int) and record.seq_id in wanted
    ]
