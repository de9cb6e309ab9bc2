"""The ids of stored messages of one queue: their table, and the log of its changes on disk.

Every change goes into the commit that has the message, or its end: what is noted before a cut of the journal is one row
of that batch. Meanwhile the buckets of the table are copied again and again, some at each commit; the log before a copy
is deleted once that is whole. A bucket has all changes until it was copied last, and the log all since the last whole
copy began: so a start that loads the buckets, and then of the log what came after each bucket, has the last change of
each id. While a table is copied, the log gets an eighth of its ids; half of them, on average, came after their buckets.
The row of the line has the key of the hash; a part of that stands for what the ids are and how long they are known, so
that a start never takes ids for those of other settings.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from struct import Struct

from leveret.broker.queue.interfaces import DelayDisk
from leveret.storage.damage import IDS
from leveret.storage.delayed import Due, checked, next_line, pack_count, pack_key, pack_line, unpack_count
from leveret.storage.errors import DamagedError
from leveret.storage.message_ids import (
    COPIED,
    ENTRY,
    FREE,
    LOGGED,
    TABLE,
    KnownIds,
    pack_ids,
    pack_value,
)

FEW_CHANGES = 4096
"""Ids in the log from which the table is copied."""
LEAST_COPIED = 8192
"""Bytes of buckets that a commit copies at least."""
COPIED_EACH = 8
"""Ids that a commit copies for each change."""
FEW_ROWS = 64
"""Old rows that a commit deletes, or one for 16 changes."""
ROW = 256 * ENTRY
"""Bytes of ids in a row: it takes one page at most, which is found on a full disk, too."""
_START = (COPIED, 0)
_FREED = pack_value(FREE)
_COPY = Struct(">QQQQ")  # of the row of a copy: its first row, the one after it, earliest and latest value


class IdLog:
    """Writes the changes of `known`, the stored ids of the queue with an id (`qid`); there are none without a disk."""

    def __init__(self, qid: int, disk: DelayDisk | None, known: KnownIds) -> None:
        self._disk = disk
        self.known = known
        """The ids that are on disk after the next commit."""
        known.on_change = self._note
        self.key = 0
        """The key of the hash, for the row of the line."""
        self._unsafe: set[bytes] = set()
        """Ids that no batch had before one that has found the disk full, or is being committed."""
        self._commits = 0
        """Number of commits of the journal when they were written."""
        self.line = qid
        """The line of its rows; 0 of what is not durable, which has none."""
        self._is_stored = False
        """True if there is a row of the line."""
        self._begin()

    def _begin(self) -> None:
        self._changed: dict[bytes, bytes] = {}
        """Values, as they are in rows, that the next batch writes."""
        self._ended: dict[bytes, bytes] = {}
        """Those that it writes before it deletes messages."""
        self._new: set[bytes] = set()
        """Those of ids that no earlier batch has."""
        self._unsafe = set()
        self._first = self._next = 1
        """Numbers of the oldest row and of the next one, without the bit of ends."""
        self._logged = 0
        """Number of ids in the log since the last copy began."""
        self._copied = -1
        """The bucket up to which the table was copied; -1 while it is not being copied."""
        self._began = 0
        """Number of the first row of the copy."""
        self._old = 0
        """Number of the first row that is not to be deleted, because the rows before it were copied."""

    def _note(self, marks: Sequence[bytes], old: int, new: int, is_end: bool) -> None:
        """Have the next commit write the value of ids that were changed.

        On a full disk the changes of an end are written, and others perhaps not. But an id that stays known, of a
        message that no commit had, goes with the rest of its commit: otherwise a repeat would be confirmed, and the
        message lost.
        """
        is_first = not self._changed and not self._ended
        value = pack_value(new)
        if not old:
            self._new.update(
                marks if not self._ended else [mark for mark in marks if mark not in self._ended]
            )
        if not is_end:
            self._changed.update(dict.fromkeys(marks, value))
        for mark in marks if is_end else ():
            self._changed.pop(mark, None)
            if new or mark not in self._new:
                self._ended[mark] = value
            else:
                self._ended.pop(mark, None)
                self._new.discard(mark)
        if is_first and self._disk is not None and not self._disk.journal.before_cut(self._write):
            self._write()

    def start_anew(self) -> None:
        """Forget all ids, in memory and on disk; what comes later has a line of its own."""
        self.known.clear()
        if self._disk is not None and self._is_stored:
            self._disk.journal.delete(TABLE, pack_line(self.line))
            self.line = next_line(self.line)
            self._is_stored = False
        self._begin()

    def _write(self) -> None:
        changed, self._changed = self._changed, {}
        ended, self._ended = self._ended, {}
        new, self._new = self._new, set()
        count = len(changed) + len(ended)
        if not count or self._disk is None or not self.line:
            return
        commits = self._disk.journal.commits
        if commits == self._commits:
            self._unsafe |= new
        else:  # the first commit that finds space again has all from before it
            self._unsafe, self._commits = new, commits
        for mark in [mark for mark, value in ended.items() if value != _FREED and mark in self._unsafe]:
            changed.setdefault(mark, ended.pop(mark))
        for kind, values in ((1, ended), (0, changed)):  # an id that ended first may be known again
            entries = b"".join(chain.from_iterable(values.items()))
            for at in range(0, len(entries), ROW):
                self._put_row(self._disk, (LOGGED, 2 * self._next + kind), entries[at : at + ROW])
        self._logged += count
        self._copy(self._disk, count)

    def _put_row(self, disk: DelayDisk, due: Due, content: bytes) -> None:
        if not self._is_stored:
            self._is_stored = True
            disk.journal.put(TABLE, pack_line(self.line), pack_count(self.line, self.key))
        disk.journal.put(TABLE, *pack_ids(self.line, due, content))
        self._next += 1

    def _copy(self, disk: DelayDisk, count: int) -> None:
        """Copy some buckets, in step with so many changes; delete rows that no start needs any more."""
        octets = max(LEAST_COPIED, COPIED_EACH * ENTRY * count)
        stop = min(self._first + max(FEW_ROWS, count // 16), self._old)
        for number in range(self._first, stop):
            for due in ((COPIED, 2 * number), (LOGGED, 2 * number), (LOGGED, 2 * number + 1)):
                disk.journal.delete(TABLE, pack_key(self.line, due))
            self._first = number + 1
        if self._copied < 0 and self._logged > FEW_CHANGES:
            self._copied, self._began, self._logged = 0, self._next, 0
        while octets > 0 and self._copied >= 0:
            part, self._copied = self.known.part(self._copied, ROW)
            self._put_row(disk, (COPIED, 2 * self._next), part)
            octets -= len(part)
            if self._copied < 0:
                self._old = self._began
                copy = _COPY.pack(self._began, self._next, self.known.earliest, self.known.latest)
                self._put_row(disk, _START, copy)

    def recover(
        self,
        line: int,
        value: bytes,
        rows: Callable[[], Iterable[tuple[Due, bytes]]],
        is_ours: Callable[[int], bool],
    ) -> None:
        """Take over the ids of an earlier run; none if the key of their hash is not `is_ours`. A turn must run then."""
        self.line, self._is_stored = line, True
        try:
            key = unpack_count(line, value)
        except DamagedError:
            self._note_damage()
            key = -1  # without it no id can be found again
        if not is_ours(key):
            self.start_anew()
            return
        self.key = key
        known, first, self._first = self.known, 0, 0
        known.on_change = None
        copied = [0]  # the row from which each bucket is
        for due, row in rows():
            number = due[1] // 2
            try:
                content = checked(pack_key(line, due), row, "row of ids")
            except DamagedError:
                self._note_damage()
                content = b""
            if due == _START:
                if content:
                    first, _, known.earliest, known.latest = _COPY.unpack(content)
                continue
            self._first = min(self._first or number, number)
            self._next = max(self._next, number + 1)
            if due[0] == LOGGED and number >= first:
                self._logged += len(content) // ENTRY
                known.replay(content, number, copied)
            elif number >= first > 0 and content:
                known.load(content, number, copied)
        self._old = first
        known.on_change = self._note

    def _note_damage(self) -> None:
        if self._disk is not None:
            self._disk.damages.note((self.line, 0), IDS)
