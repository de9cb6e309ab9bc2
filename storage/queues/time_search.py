"""Search by time among the messages of a stream on disk, a block at a time."""

from bisect import bisect_left
from collections.abc import Callable, Generator, Sequence
from operator import attrgetter
from typing import NamedTuple

from leveret.storage.journal.blocks import read_records
from leveret.storage.journal.reads import Loaded, Range
from leveret.storage.journal.segments import Segment
from leveret.storage.queues.peek import headed

_expires = attrgetter("expires")
_time = attrgetter("time")
Search = Generator[Range, Loaded, int]
"""The search in steps: it yields the range that has to be read next, and returns an offset."""


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
        blocks = headed((yield Range(qid, middle, middle + 1)))
        records = [
            record
            for raw, header in blocks
            for record in read_records(raw.value, header)
            if not isinstance(record, int) and low <= record.seq_id < high
        ]
        if not records:  # deleted, or damaged
            low = middle + 1
        elif records[0].expires >= time:
            high = records[0].seq_id
        elif records[-1].expires < time:
            low = records[-1].seq_id + 1
        else:
            return records[bisect_left(records, time, key=_expires)].seq_id
    return low
