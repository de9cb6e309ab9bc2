"""Delayed messages of one exchange: how they lie on disk, and which of them are in memory.

Theory. Every delayed message is a row whose key begins with the exchange's *line* and goes on with the time it is due,
so the table is the schedule and memory needs only its beginning, the *window*: everything due before the `horizon`,
in a heap. What is due later lies on disk alone and is read when the window runs low. So a million pending messages cost
what the window costs, whatever their order; one that comes in with an earlier time than the horizon is put into the
heap as well, and a heap that has grown too large gives up its end, which moves the horizon nearer.

A read happens in another thread and sees some commit, which may lack what was put lately and still have what was taken
lately. So both are remembered: `_fresh` until a read would see the row, `_gone` until it would not. What is committed
while a read is under way is remembered until that has come back, because it may have begun before.

Pure: whoever owns a window writes the rows and has them read.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from leveret.storage.errors import DamagedError

TABLE = "delayed"
WINDOW = 2048
"""Messages that are read at once, and kept in memory about."""
WINDOW_OCTETS = 1024 * 1024
"""Octets from which fewer of them are."""

LINE_SIZE = 8
KEY_SIZE = 24
_LINE = Struct(">Q")
_KEY = Struct(">QQQ")
_CRC = Struct(">I")
_OVERHEAD = 200
"""Octets that one message in the heap takes besides its row, about."""

Due = tuple[int, int]
"""When a message is due (epoch ms), and its number, which orders those that are due together."""


def pack_line(line: int) -> bytes:
    """The key of the row that counts a line's messages; all their rows begin with it."""
    return _LINE.pack(line)


def pack_key(line: int, due: Due) -> bytes:
    """The key of a message."""
    return _KEY.pack(line, *due)


def unpack_key(key: bytes) -> tuple[int, int, int]:
    """Line, time and number of a message's key."""
    line, due, number = _KEY.unpack(key)
    return line, due, number


def pack_count(line: int, count: int) -> bytes:
    """The value of the row that counts a line's messages."""
    octets = _LINE.pack(count)
    return _CRC.pack(crc32(octets, crc32(_LINE.pack(line)))) + octets


def unpack_count(line: int, value: bytes) -> int:
    """Read what `pack_count` wrote. Raises DamagedError."""
    if len(value) != _CRC.size + _LINE.size or value != pack_count(line, _LINE.unpack(value[_CRC.size :])[0]):
        raise DamagedError(f"the count of delayed messages of line {line} is damaged")
    return int(_LINE.unpack_from(value, _CRC.size)[0])


def pack_row(key: bytes, address: bytes, content: bytes) -> bytes:
    """The value of a row: a checksum over its key and all that follows, and the message (`storage.message.Message`)."""
    rest = address + content
    return _CRC.pack(crc32(rest, crc32(key))) + rest


def unpack_row(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Address and content from what `pack_row` wrote.

    Raises:
        DamagedError: the octets are not those that were written under that key.

    """
    if len(value) <= _CRC.size or _CRC.unpack_from(value)[0] != crc32(value[_CRC.size :], crc32(key)):
        raise DamagedError(f"delayed message {key.hex()} is damaged: wrong checksum")
    stop = _CRC.size + 1 + value[_CRC.size]
    stop += 1 + value[stop]
    return value[_CRC.size : stop], value[stop:]


class DelayedRows(NamedTuple):
    """What a read has found: the messages of a line from some time on, in order."""

    rows: Sequence[tuple[Due, bytes]]
    more: bool
    """Whether there may be others behind the last."""


class Window:
    """The messages of one line that are due soonest, and what is known of the others.

    Args:
        stored: whether the rows are on disk. Without, everything stays in memory.
        size: messages that are read at once; memory holds twice as many at most, and what no read would see yet.
        octets: octets of rows that are read at once; the same holds.

    Attributes:
        count: all pending messages.
        loading: whether a read is under way.

    """

    __slots__ = (
        "_fresh",
        "_gone",
        "_heap",
        "_horizon",
        "_octets",
        "_size",
        "_start",
        "_stored",
        "_unseen",
        "count",
        "loading",
        "octets",
    )

    def __init__(self, *, stored: bool, size: int = WINDOW, octets: int = WINDOW_OCTETS) -> None:
        self._stored = stored
        self._size = size
        self._octets = octets
        self._heap: list[tuple[Due, bytes]] = []
        self.octets = 0
        """Octets that the heap takes."""
        self._horizon: Due | None = None
        """Everything due before it is in the heap; None if everything is."""
        self._fresh: dict[Due, bytes] = {}
        self._gone: set[Due] = set()
        self._unseen: list[tuple[Sequence[Due], Sequence[Due]]] = []
        """What was committed while a read is under way: put, and taken."""
        self._start: Due = (0, 0)
        """Where the read under way begins."""
        self.loading = False
        self.count = 0

    def recovered(self, count: int) -> None:
        """So many messages are on disk. Call it on a new window; it wants to be read afterwards."""
        self.count = count
        self._horizon = (0, 0) if count else None

    def __len__(self) -> int:
        """How many messages are in the heap."""
        return len(self._heap)

    @property
    def remembered(self) -> int:
        """What is kept because of reads: fresh ones, and those that are gone."""
        return len(self._fresh) + len(self._gone)

    def put(self, due: Due, value: bytes) -> None:
        """Add a message; no other had that time and number. The caller has its row written (`pack_row`)."""
        self.count += 1
        if self._stored:
            self._fresh[due] = value
        if self._horizon is None or due < self._horizon:
            heappush(self._heap, (due, value))
            self.octets += len(value) + _OVERHEAD
            if self._stored and (len(self._heap) > 2 * self._size or self.octets > 2 * self._octets):
                self._trim()

    def _trim(self) -> None:
        """Leave the end of a heap that has grown too large to the disk."""
        heap = self._heap
        heap.sort()
        octets = kept = 0
        for kept, (_, value) in enumerate(heap):
            if kept and (kept >= self._size or octets > self._octets):
                break
            octets += len(value) + _OVERHEAD
        else:
            return  # one enormous message, and no other
        self._horizon = heap[kept][0]
        del heap[kept:]
        self.octets = octets

    @property
    def next_due(self) -> int | None:
        """When the first message is due (epoch ms) that is in memory; None if there is none."""
        return self._heap[0][0][0] if self._heap else None

    def is_due(self, now: int) -> bool:
        """Whether the first message in memory is due at `now` (epoch ms)."""
        return bool(self._heap) and self._heap[0][0][0] <= now

    def take(self, now: int) -> tuple[Due, bytes] | None:
        """Remove the first message that is due at `now` (epoch ms); the caller has its row deleted."""
        heap = self._heap
        if not self.is_due(now):
            return None
        first = heappop(heap)
        due, value = first
        self.octets -= len(value) + _OVERHEAD
        self.count -= 1
        if self._stored:
            self._fresh.pop(due, None)
            self._gone.add(due)
        return first

    def committed(self, put: Sequence[Due], taken: Sequence[Due]) -> None:
        """These rows are on disk, and those are not any more."""
        if self.loading:
            self._unseen.append((put, taken))
        else:
            self._see(put, taken)

    def _see(self, put: Sequence[Due], taken: Sequence[Due]) -> None:
        for due in put:
            self._fresh.pop(due, None)
        self._gone.difference_update(taken)

    def wanted(self) -> Due | None:
        """From where on rows should be read now, if any; the caller owes `loaded`."""
        start = self._horizon
        low = len(self._heap) <= self._size // 2 and self.octets <= self._octets // 2
        if start is None or self.loading or not low:
            return None
        self._start = start
        self.loading = True
        return start

    def loaded(self, read: DelayedRows) -> int:
        """Take what was read from where `wanted` said.

        Returns how many messages were counted and are nowhere, which damage alone can explain.
        """
        self.loading = False
        start, missing = self._start, 0
        if self._horizon == start:  # else the window's end came nearer meanwhile, and there is a gap
            found: dict[Due, bytes] = dict(read.rows)
            horizon = None
            if read.more and found:
                due, number = next(reversed(found))
                horizon = (due, number + 1)
            found |= {
                each: value
                for each, value in self._fresh.items()
                if each >= start and (horizon is None or each < horizon)
            }
            for gone in self._gone:
                found.pop(gone, None)
            self._heap += found.items()
            heapify(self._heap)
            self.octets += sum(map(len, found.values())) + _OVERHEAD * len(found)
            self._horizon = horizon
            if horizon is None:
                missing, self.count = self.count - len(self._heap), len(self._heap)
        unseen, self._unseen = self._unseen, []
        for put, taken in unseen:
            self._see(put, taken)
        return missing
