"""Delayed messages of one exchange or queue: their rows on disk, and the window of them that is kept in memory.

Theory. Every delayed message is a row. Its key begins with its owner's *line*. Then comes the *bucket*, a span of time
in which the message is due, and its number: a bucket has its rows in the order in which they came. So rows whose times
are in any order are appended at few places, and not each into a page of its own. The wider the span until a message is
due, the wider is its bucket, which the lowest bits of the number tell (`numbered`). Rows with a smaller number are
sorted by time: those of earlier builds, and those whose number is not a count.

The content of a message is in its row, or apart in the table of bodies (`storage.journal.batch`). Then the row has
the id of the body, and the owner decides what becomes of it: a record that takes over the id needs no second body.

Memory needs only the beginning of the schedule, the *window*: everything due before the `horizon`, in a heap. Messages
due later are on disk only and are read when the window runs low. A read sorts the keys of the buckets that begin next,
and returns the first rows. The keys that follow are kept as well (`Start.ahead`), until a message comes among them, or
each read would sort them again. So a million pending messages take no more memory than the window, whatever their
order. A new message that is due before the horizon is added to the heap as well; a heap that has grown too large drops
its end, which moves the horizon nearer.

A read runs in another thread and sees some earlier commit, which may lack recently added messages and still have
recently removed ones. So both are remembered: `_fresh` until a read would see the row, `_gone` until it would not.
Changes committed during a read are remembered until it has returned, because it may have begun before them.

The line of an exchange is its id. Those of a queue are its id, and that of its retained messages for its retries
(`storage.queues.queue_ids`), with a number in the bits of the level that the queue's next line counts up. The deletion
of its count row deletes a line. Later commits sweep the other rows, but must not sweep rows that come afterwards.

Pure: the owner of a window writes the rows and has them read. A function that takes a cursor runs inside the caller's
transaction.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush
from struct import Struct
from typing import Any, NamedTuple

from zlib_ng.zlib_ng import crc32

from leveret.storage.errors import DamagedError

log = logging.getLogger("leveret.storage")

TABLE = "delayed"
WINDOW = 2048  # messages per read; about as many are kept in memory
WINDOW_OCTETS = 2 * 1024 * 1024  # bytes of rows after which a read stops before it has `WINDOW` messages
AHEAD = 4 * WINDOW  # keys that a read returns besides
SWEEP_ROWS = 1000  # most rows of deleted lines that one commit deletes; later commits delete the rest

_NEXT_SHIFT = 56
_QUEUE = (1 << _NEXT_SHIFT) - 1
LINE_SIZE = 8
_LINE = Struct(">Q")
_KEY = Struct(">QQQ")  # line, due time, number: of a row that is sorted by time
_IN_BUCKET = Struct(">QBQQQ")  # line, level, bucket, number, due time
_BUCKET = Struct(">QBQ")
_LEVEL_AT = LINE_SIZE
_LEVEL = 0x80  # set in an octet that no time has as its first one
_LEVEL_BITS = 4
_MARK = 1 << 64 + _LEVEL_BITS  # in the number of a message whose row is in a bucket
_SHIFTS = tuple(range(12, 12 + 2 * (1 << _LEVEL_BITS), 2))
"""Width of the buckets of each level, as a power of two ms: from 4 s to a century."""
_BUCKETS = 6  # a bucket is at least this power of two narrower than the time until its messages are due
_LEVELS = tuple(min(max(0, bits - _BUCKETS - _SHIFTS[0] + 1) // 2, len(_SHIFTS) - 1) for bits in range(65))
"""The level of a message, by the bits of the time (ms) until it is due."""
_CRC = Struct(">I")
_APART = b"\xff\xff"  # as no content begins: its second octet is 0 where the first one is no type of a frame
_REFERENCE = Struct(">2sQI")  # that, and the id and the octets of the content
_OVERHEAD = 200  # approximate bytes of memory per message in the heap, besides its row

_NEVER = (1 << 64, 0)

Due = tuple[int, int]  # due time of a message (epoch ms), and its number, which orders those due together


pack_line = _LINE.pack  # the key of the row of a line's message count, and prefix of the line's keys


def pack_key(line: int, due: Due) -> bytes:
    """Return the key of a message's row."""
    when, number = due
    if number < _MARK:
        return _KEY.pack(line, when, number)
    level = number & (1 << _LEVEL_BITS) - 1
    return _IN_BUCKET.pack(
        line, _LEVEL | level, when >> _SHIFTS[level], (number ^ _MARK) >> _LEVEL_BITS, when
    )


def unpack_key(key: bytes) -> tuple[int, int, int]:
    """Return line, due time (epoch ms) and number from a message's key; raises struct.error for others."""
    if len(key) == _KEY.size:
        return _KEY.unpack(key)
    line, level, _, count, when = _IN_BUCKET.unpack(key)
    return line, when, _MARK | count << _LEVEL_BITS | level ^ _LEVEL


def pack_row(key: bytes, address: bytes, content: bytes) -> bytes:
    """Return the value of a message's row: a checksum over its key and the rest, then the message."""
    rest = address + content
    return _CRC.pack(crc32(rest, crc32(key))) + rest


def new_row(
    line: int, when: int, count: int, now: int, address: bytes, content: bytes
) -> tuple[Due, bytes, bytes]:
    """Return the place, the key and the value of a message's row, in a bucket, as of `now` (epoch ms).

    `count` (64 bits) grows with each message of a line. The rest is as for `pack_key` and `pack_row`: with 1 KB 0.66 us
    instead of 0.78 by a call of each.
    """
    level = _LEVELS[(when - now).bit_length()] if when > now else 0
    key = _IN_BUCKET.pack(line, _LEVEL | level, when >> _SHIFTS[level], count, when)
    crc = crc32(content, crc32(address, crc32(key)))
    due = when, _MARK | count << _LEVEL_BITS | level
    return due, key, b"".join((_CRC.pack(crc), address, content))


def checked(key: bytes, value: bytes, what: str = "delayed message") -> bytes:
    """Return what a value made by `pack_row` has after its checksum; raises DamagedError, which says `what` it is."""
    rest = value[_CRC.size :]
    if not rest or not _is_intact(key, value, rest):
        raise DamagedError(f"{what} {key.hex()} is damaged: wrong checksum")
    return rest


def _is_intact(key: bytes, value: bytes | memoryview, rest: bytes | memoryview) -> bool:
    return bool(_CRC.unpack_from(value)[0] == crc32(rest, crc32(key)))


def pack_count(line: int, count: int) -> bytes:
    """Return the value of the row that holds a line's message count."""
    return pack_row(pack_line(line), b"", _LINE.pack(count))


def unpack_count(line: int, value: bytes) -> int:
    """Return the count in a value made by `pack_count`; raises DamagedError."""
    return int.from_bytes(checked(pack_line(line), value, "count of delayed messages of line"), "big")


def pack_reference(msg_id: int, octets: int) -> bytes:
    """Return what a row has instead of a content of so many bytes that is stored apart, under an id."""
    return _REFERENCE.pack(_APART, msg_id, octets)


def reference_of(key: bytes, value: bytes | memoryview) -> int:
    """Return the id to which the row of a message refers; 0 for none, or if the row is damaged."""
    at = _content_at(value)
    if value[at : at + len(_APART)] != _APART:
        return 0
    rest = value[_CRC.size : at + _REFERENCE.size]
    is_intact = len(value) >= at + _REFERENCE.size and _is_intact(key, value, rest)
    return int(_REFERENCE.unpack_from(value, at)[1]) if is_intact else 0


def _content_at(value: bytes | memoryview) -> int:
    """Return where the content, or the reference to it, begins in a row; any place if that is damaged."""
    try:
        at = _CRC.size + 1 + value[_CRC.size]
        return at + 1 + value[at]
    except IndexError:
        return len(value)


def unpack_row(key: bytes, value: bytes) -> tuple[bytes, bytes, int]:
    """Return address, content and the id of the content, 0 for none, from a value made by `pack_row`.

    What is stored apart follows its reference in memory; without it the content is empty. Raises DamagedError for other
    bytes.
    """
    at = _content_at(value)
    if value[at : at + len(_APART)] == _APART and (msg_id := reference_of(key, value)):
        return value[_CRC.size : at], value[at + _REFERENCE.size :], msg_id
    rest = checked(key, value)
    at -= _CRC.size
    return rest[:at], rest[at:], 0


class Start(NamedTuple):
    """Place at which a read begins."""

    due: Due
    ahead: Sequence[
        Due
    ] = ()  # the rows that an earlier read has seen from there on, sorted; empty: not known
    stop: Due | None = None  # the place from which there may be others, None if there are none

    def has_ahead(self, due: Due) -> bool:
        """Return whether a message would have to be among those known `ahead`."""
        return bool(self.ahead) and self.due <= due and (self.stop is None or due < self.stop)


class DelayedRows(NamedTuple):
    """Result of a read: the messages of a line from a given due time on, in order."""

    rows: Sequence[tuple[Due, bytes]]
    next: Start | None  # where those begin that follow; None if these are the last


def read_rows(
    cursor: Any,
    line: int,
    start: Start,
    *,
    limit: int = WINDOW,
    octets: int = WINDOW_OCTETS,
    body_of: Callable[[int], bytes] | None = None,
) -> DelayedRows:
    """Read messages of a line from `start` on, in order, until `limit` messages or `octets` bytes are read.

    `body_of` returns a content that is stored apart, by its id; None for a table whose rows have no reference.
    """
    rows: list[tuple[Due, bytes]] = []
    _, ahead, stop = start if start.ahead else _following(cursor, line, start.due)
    for at, due in enumerate(ahead):
        if rows and (len(rows) >= limit or octets <= 0):
            return DelayedRows(rows, Start(due, ahead[at:], stop))
        key = pack_key(line, due)
        value = cursor.get(key)
        if value is not None:  # it is gone since its key was read
            row = bytes(value)
            if body_of is not None and (msg_id := reference_of(key, row)):
                row += body_of(msg_id)
            rows.append((due, row))
            octets -= len(row)
    return DelayedRows(rows, None if stop is None else Start(stop))


def _following(cursor: Any, line: int, start: Due) -> Start:
    """Return the place `start` with the keys that follow, sorted, as many as one read should return."""
    found: list[Due] = []
    stop = _NEVER
    prefix = pack_line(line)
    for level, shift in ((0, 0), *enumerate(_SHIFTS, _LEVEL)):
        is_there = cursor.set_range(
            _BUCKET.pack(line, level, start[0] >> shift)
            if level
            else _KEY.pack(line, start[0], min(start[1], (1 << 64) - 1))
        )
        for key in map(bytes, cursor.iternext(keys=True, values=False)) if is_there else ():
            if key[:LINE_SIZE] != prefix or (key[_LEVEL_AT] != level if level else key[_LEVEL_AT] & _LEVEL):
                break
            _, when, number = unpack_key(key)
            due = when, number
            if when >> shift << shift > stop[0] or (due >= stop and not level):  # as are all others of it
                break
            if start <= due < stop:
                found.append(due)
                if len(found) > 2 * AHEAD:
                    stop = _cut(found, stop)
    return Start(start, found, None if (stop := _cut(found, stop)) is _NEVER else stop)


def _cut(found: list[Due], stop: Due) -> Due:
    """Sort places and keep the first ones; returns the first of the others, `stop` without others."""
    found.sort()
    if len(found) > AHEAD:
        stop = found[AHEAD]
        del found[AHEAD:]
    return stop


def is_line(key: bytes) -> bool:
    """Return whether a key stands for a whole line: the row of its count, whose deletion deletes the line."""
    return len(key) == LINE_SIZE


def stored_lines(cursor: Any) -> dict[int, bytes]:
    """Return all lines that have rows, each with the value of its count row; empty if that is missing."""
    found: dict[int, bytes] = {}
    there = cursor.first()
    while there:
        key = cursor.key()
        line = int.from_bytes(key[:LINE_SIZE], "big")
        found[line] = cursor.value() if is_line(key) else b""
        there = cursor.set_range(pack_line(line + 1))
    return found


def next_line(line: int) -> int:
    """Return the line of a queue's messages that come after the deletion of its line."""
    return line & _QUEUE | (((line >> _NEXT_SHIFT) + 1) % 256) << _NEXT_SHIFT


def queue_of(line: int) -> int:
    """Return the id of the queue to which a line belongs, if it is one of a queue."""
    return line & _QUEUE


def current_lines(stored: Mapping[int, bytes], lines: Collection[int], queues: Collection[int]) -> set[int]:
    """Return those of the stored lines that are in use, of exchanges (`lines`) and queues; the others are deleted.

    Of several lines of a queue only the last has a count row. A single line without one is damaged, and kept.
    """
    found: dict[int, int] = {}
    for line in sorted(stored, key=lambda each: (bool(stored[each]), each)):
        if line in lines:
            found[line] = line
        elif queue_of(line) in queues:
            found[queue_of(line)] = line
    return set(found.values())


def sweep_lines(
    cursor: Any, gone: Collection[int], forget_body: Callable[[int], object] | None = None
) -> list[int]:
    """Delete rows of deleted lines, as many as one transaction should; returns the lines that have rows left.

    `forget_body` is called with the id of each content that was stored apart; None as for `read_rows`.
    """
    left = SWEEP_ROWS
    unfinished = []
    for line in gone:
        prefix = pack_line(line)
        found = cursor.set_range(prefix)
        while found and left and cursor.key().startswith(prefix):
            if forget_body is not None and (msg_id := reference_of(cursor.key(), cursor.value())):
                forget_body(msg_id)
            found = cursor.delete()
            left -= 1
        if found and cursor.key().startswith(prefix):
            unfinished.append(line)
    return unfinished


class Window:
    """The messages of one line that are due soonest, and the counts of the others.

    Args:
        stored: whether the rows are on disk. If not, all messages stay in memory.
        size: messages per read; memory holds at most twice as many, plus those that no read would see yet.
        octets: bytes of rows per read; the same limit applies.
    """

    def __init__(self, *, stored: bool, size: int = WINDOW, octets: int = WINDOW_OCTETS) -> None:
        self._stored = stored
        self._size = size
        self._octets = octets
        self._rows: dict[Due, bytes] = {}
        self._heap: list[Due] = []  # their places; discarded ones may be among them, but not the first
        self.octets = 0  # bytes that the rows take
        self._next: Start | None = None  # the horizon: all messages due before it are here; None: all are
        self._latest: Due = (0, 0)
        """The last of the messages taken so far, by its due time: no earlier one that is on disk only can be
        distinguished from one that was taken."""
        self._fresh: dict[Due, bytes] = {}
        self._gone: set[Due] = set()
        self._unseen: list[tuple[Sequence[Due], Sequence[Due]]] = []
        """Rows added and removed by commits during the current read."""
        self._reading: Start | None = None  # start of the current read
        self.count = 0  # all pending messages

    def recovered(self, count: int) -> None:
        """Set the number of messages on disk. Call it on a new window only, which then needs a read (`wanted`)."""
        self.count = count
        self._next = Start((0, 0)) if count else None

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, rows: Mapping[Due, bytes]) -> None:
        """Add messages whose due times and numbers are unique. The caller has their rows written (`pack_row`)."""
        self.count += len(rows)
        if self._stored:
            self._fresh |= rows
        following = self._next
        if following is not None:
            if following.ahead and any(map(following.has_ahead, rows)):
                self._next = Start(following.due)
            rows = {due: rows[due] for due in rows if due < following.due}
        self._rows |= rows
        for due in rows:
            heappush(self._heap, due)
        self.octets += sum(map(len, rows.values())) + _OVERHEAD * len(rows)
        if self._stored and (len(self._rows) > 2 * self._size or self.octets > 2 * self._octets):
            self._trim()

    def _trim(self) -> None:
        """Drop the last rows if there are too many; those messages remain on disk."""
        rows, places = self._rows, sorted(self._rows)
        octets = kept = 0
        for kept, due in enumerate(places):
            if kept and (kept >= self._size or octets > self._octets):
                break
            octets += len(rows[due]) + _OVERHEAD
        else:
            return  # a single, very large message
        for due in places[kept:]:
            del rows[due]
        self._heap, self.octets = places[:kept], octets
        self._next = Start(places[kept])

    @property
    def next_due(self) -> int | None:
        """Return when the first message in memory is due (epoch ms); None if there is none."""
        return self._heap[0][0] if self._heap else None

    def is_due(self, now: int) -> bool:
        """Return whether the first message in memory is due at `now` (epoch ms)."""
        return bool(self._heap) and self._heap[0][0] <= now

    def take(self, now: int) -> tuple[Due, bytes] | None:
        """Remove and return the first message that is due at `now` (epoch ms); the caller has its row deleted."""
        if not self.is_due(now):
            return None
        due = heappop(self._heap)
        value = self._rows.pop(due)
        self._latest = max(self._latest, due)
        self.octets -= len(value) + _OVERHEAD
        self.count -= 1
        if self._stored:
            self._fresh.pop(due, None)
            self._gone.add(due)
        self._uncover()
        return due, value

    def discard(self, dues: Collection[Due]) -> set[Due]:
        """Remove messages, wherever they are; returns those that were still pending. The caller deletes their rows.

        No other code may discard messages of the look before this has removed its own. After the clock was set back
        some that are on disk only are left.
        """
        rows, gone, latest = self._rows, self._gone, self._latest
        away = _NEVER if self._next is None else self._next.due
        found = {due for due in dues if due in rows or (due >= away and due > latest and due not in gone)}
        self.count -= len(found)
        for due in found:
            if (value := rows.pop(due, None)) is not None:
                self.octets -= len(value) + _OVERHEAD
            self._fresh.pop(due, None)
        if self._stored:
            gone |= found
        if len(self._heap) > 2 * len(rows):
            self._heap = sorted(rows)
        self._uncover()
        return found

    def _uncover(self) -> None:
        """Have a message at the head of the heap that is still pending."""
        heap, rows = self._heap, self._rows
        while heap and heap[0] not in rows:
            heappop(heap)

    def committed(self, put: Sequence[Due], taken: Sequence[Due]) -> None:
        """Note that the rows `put` are now on disk and the rows `taken` are deleted."""
        if self._reading is not None:
            self._unseen.append((put, taken))
        else:
            self._see(put, taken)

    def _see(self, put: Sequence[Due], taken: Sequence[Due]) -> None:
        for due in put:
            self._fresh.pop(due, None)
        self._gone.difference_update(taken)

    def peek(self) -> tuple[dict[Due, bytes], Due | None, set[Due]]:
        """Return the state that a look at all messages needs.

        The rows in memory; the due time from which on there are others on disk, None if there are none; and those rows
        on disk that are no longer wanted.
        """
        return self._rows | self._fresh, None if self._next is None else self._next.due, set(self._gone)

    def wanted(self) -> Start | None:
        """Return the start of the read that is needed now, or None; the caller must call `loaded` with its result."""
        is_low = len(self._rows) <= self._size // 2 and self.octets <= self._octets // 2
        if self._reading is not None or not is_low:
            return None
        self._reading = self._next
        return self._reading

    def loaded(self, read: DelayedRows) -> int:
        """Add the rows read from the start that `wanted` returned.

        Returns the number of messages that were counted but cannot be found, which only damage can explain.
        """
        start, self._reading, missing = self._reading, None, 0
        # otherwise the window was trimmed meanwhile, and there would be a gap
        if start is not None and self._next is not None and self._next.due == start.due:
            following = read.next
            horizon = _NEVER if following is None else following.due
            found = dict(read.rows)
            found |= {due: value for due, value in self._fresh.items() if start.due <= due < horizon}
            for gone in self._gone:
                found.pop(gone, None)
            self._rows |= found
            self._heap += found
            heapify(self._heap)
            self.octets += sum(map(len, found.values())) + _OVERHEAD * len(found)
            if following is None:
                missing, self.count = self.count - len(self._rows), len(self._rows)
            elif any(map(following.has_ahead, self._fresh)):
                following = Start(horizon)
            self._next = following
        unseen, self._unseen = self._unseen, []
        for put, taken in unseen:
            self._see(put, taken)
        return missing
