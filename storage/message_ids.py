"""Ids of messages that a queue has taken: a compact table in memory, and their rows on disk.

Theory. An id is kept as its keyed hash of 80 bits, the *fingerprint*, with a value of 40 bits: 15 bytes. Two ids of ten
million in a queue agree with a probability of 1 in 10^10. The table is a linear hash: the buckets are strings of bytes,
one of which is split whenever they become too full, so that no step is long. The number of a bucket is the first bits
of its fingerprints, whose bytes that it tells are left out: one from some 12,000 ids on, two from three million.
Ids that have expired are removed when the table would have to grow.

A value is a time until which the id is known, or a number of *copies*: the messages in the queue that have it, and
whether it is known as long as they are there.

On disk the ids are a copy of the table's buckets, and a log: each of its rows has the ids that one commit has changed,
in the order of the rows' numbers, and the last change of an id counts. A start loads the buckets as they are, and only
the log, which is short, id by id. Rows with the *ends* of ids, which go with the ends of messages, have odd numbers: on
a full disk they are written before the messages are deleted (`storage.store.environment`). Rows have the keys of a line
of delayed messages (`storage.delayed`), due at 0 (`COPIED`) or 1 (`LOGGED`), in a table of their own, so that lines are
deleted and swept in the same way; the row of the line itself has the key of the hash instead of a number of messages.

Pure: the queue's owner of the ids (`broker.queue.deduplication`) has the rows written.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from operator import contains
from struct import Struct

from leveret.storage.delayed import Due, is_line, pack_key, pack_row

TABLE = "ids"
_PRINT = 10
ENTRY = 15
BUCKET = 16
"""Number of ids in a bucket, on average; `FULLER` times as many from `MANY` buckets on: less memory, more time."""
FULLER = 6
MANY = 1 << 16
_FEW = 8
"""Expired ids in a bucket below which the table grows all the same: to look for them costs more than their room."""
FREE = 0
"""The value of an id that is not known any more."""
PRESENT = (1 << 40) - 2
"""The value of an id that is known as long as its one message is in the queue."""
DELIVERED = PRESENT - 2
"""The value of an id that is free although its one message is in the queue still."""
MOST_IDS = 20_000_000
"""Maximum number of ids that all queues of a node know together, unless it is set; some 18 bytes each."""
QUEUED_BIT = 1
"""The bit of a time, in memory only: the message is in the queue still."""
KNOWN_BIT = 2
"""The bit of a number of copies: the id is known as long as they are there."""
_COPIES = PRESENT - (1 << 32)
"""Values above are numbers of copies."""
COPIED, LOGGED = 0, 1
"""The due times of rows: of buckets, and of changes."""
_PART = Struct(">IIH")  # the first bucket of a row, the number of all buckets then, and of those in the row


def fingerprint(key: int, text: bytes) -> bytes:
    """Return what stands for an id."""
    return blake2b(text, digest_size=_PRINT, salt=key.to_bytes(8, "big")).digest()


def fingerprints(key: int, texts: Iterable[bytes]) -> list[bytes]:
    """Return what stands for ids; empty for an empty one."""
    copy = blake2b(digest_size=_PRINT, salt=key.to_bytes(8, "big")).copy
    found = []
    for text in texts:  # hot: a copy takes half the time of a new one
        one = copy()
        one.update(text)
        found.append(one.digest() if text else b"")
    return found


def value_until(when: int) -> int:
    """Return the value of an id that is known until a time (epoch ms), at most 16 ms longer."""
    return (when + 15 >> 4) << 1


def time_of(value: int) -> int:
    """Return the time (epoch ms) until which an id with this value is known."""
    return value >> 1 << 4


def lasts(value: int, now: int) -> bool:
    """Return whether an id with this value is to be kept at a time (epoch ms)."""
    return value >> 1 > now >> 4


def is_known(value: int, now: int) -> bool:
    """Return whether an id with this value is known at a time (epoch ms)."""
    return value >> 1 > now >> 4 and (value <= _COPIES or bool(value & KNOWN_BIT))


def copies_of(value: int) -> int:
    """Return the number of messages in the queue that have the id; 0 if the value is a time."""
    return (PRESENT - value >> 2) + 1 if value > _COPIES else 0


def of_copies(copies: int, *, is_known: bool) -> int:
    """Return the value of an id that so many messages in the queue have (>= 0)."""
    return PRESENT - (copies - 1 << 2) - KNOWN_BIT * (not is_known) if copies else FREE


def one_less(value: int) -> int:
    """Return the value of an id with one copy less; `FREE` after the last one, or if it is no number of copies."""
    return of_copies(max(0, copies_of(value) - 1), is_known=bool(value & KNOWN_BIT))


def pack_value(value: int) -> bytes:
    """Return a value as it is behind its id, in a row and in the table."""
    return value.to_bytes(5, "big")


def pack_ids(line: int, due: Due, content: bytes) -> tuple[bytes, bytes]:
    """Return key and value of a row; its number is odd for ends."""
    key = pack_key(line, due)
    return key, pack_row(key, b"", content)


def frees(key: bytes, value: bytes | None) -> bool:
    """Return whether a change of this table only frees ids: a row with ends, or the deletion of a line."""
    return is_line(key) if value is None else bool(key[-1] & 1) and not is_line(key)


_bits_of = Struct("<I6x").iter_unpack
_entries_of = Struct("10s5s").iter_unpack


class Room:
    """The ids that all queues of a node know together, at most `most` of them.

    A queue may know as many as there is room for then, so that none takes it all: one alone half of them.
    """

    __slots__ = ("count", "most", "refused")

    def __init__(self, most: int = MOST_IDS) -> None:
        self.most = most
        self.count = 0
        """Number of ids, of which some may have expired."""
        self.refused = 0
        """Number of publishes that were refused because there was no room."""

    def has_place(self, own: int) -> bool:
        """Return whether a queue that knows so many may know one more."""
        return self.count + own < self.most


class KnownIds:
    """Fingerprints of ids with their values, which count in a `room`; `clock` tells the time (epoch ms)."""

    __slots__ = (
        "_buckets",
        "_clean_at",
        "_clock",
        "_mask",
        "_placed",
        "_room",
        "_split_at",
        "count",
        "earliest",
        "latest",
        "on_change",
    )

    def __init__(self, room: Room, clock: Callable[[], int]) -> None:
        self._room = room
        self._clock = clock
        self.on_change: Callable[[Sequence[bytes], int, int, bool], object] | None = None
        """Called with ids that were changed, the value that they had, the one that they have, and `is_end`."""
        self.count = 0
        """Number of ids, of which some may have expired."""
        self.clear()

    def clear(self) -> None:
        """Remove all ids."""
        self._drop(self.count)
        self._buckets = [b""]
        self._mask = 0
        """Of the bits that tell the buckets apart which are not split yet; the others have one bit more."""
        self.earliest, self.latest = PRESENT, FREE
        """The least and the largest value that an id has had."""
        self._split_at = 0
        """The next bucket to be split."""
        self._clean_at = 0
        """The next bucket from which expired ids are removed."""
        self._placed: tuple[Sequence[bytes], int, list[int], Sequence[bytes]] = (), 0, [], ()
        """The last result of `_places`, with its fingerprints, and the number of buckets, on which it depends."""

    @property
    def _most(self) -> int:
        """Number of ids above which a bucket is split."""
        return (BUCKET if self._mask < MANY - 1 else FULLER * BUCKET) * len(self._buckets)

    def _told(self, number: int) -> int:
        """Return how many bytes of its fingerprints a bucket leaves out."""
        is_split = number < self._split_at or number > self._mask
        return self._mask.bit_length() + is_split >> 3

    def _entries(self, number: int) -> Iterator[tuple[bytes, int]]:
        """Yield the ids of a bucket with their values."""
        told, bucket = self._told(number), self._buckets[number]
        start, width = number.to_bytes(4, "little")[:told], ENTRY - told
        entries = b"".join([start + bucket[at : at + width] for at in range(0, len(bucket), width)])
        for mark, value in _entries_of(entries):
            yield mark, int.from_bytes(value, "big")

    def _places(self, marks: Sequence[bytes]) -> tuple[list[int], Sequence[bytes]]:
        """Return the buckets of fingerprints, and what these keep of each; hot: few steps for each of a run."""
        last, size, numbers, rests = self._placed
        if marks is last and size == len(self._buckets):
            return numbers, rests
        mask, split_at = self._mask, self._split_at
        more = mask << 1 | 1
        bits = chain.from_iterable(_bits_of(b"".join(marks)))
        numbers = [number if (number := each & mask) >= split_at else each & more for each in bits]
        told = self._told(0)
        if told != self._told(mask):
            rests = [mark[self._told(number) :] for mark, number in zip(marks, numbers, strict=True)]
        else:
            rests = [mark[told:] for mark in marks] if told else marks
        self._placed = marks, len(self._buckets), numbers, rests
        return numbers, rests

    def get(self, mark: bytes) -> int:
        """Return the value of an id; `FREE` if it is not there."""
        bits = int.from_bytes(mark[:4], "little")  # the walk of `_places` for one: 2.8 us, and 5.3 with that
        number = bits & self._mask
        if number < self._split_at:
            number = bits & (self._mask << 1 | 1)
        bucket, told = self._buckets[number], self._told(number)
        at = _find(bucket, mark[told:], ENTRY - told)
        return FREE if at < 0 else int.from_bytes(bucket[at + _PRINT - told : at + ENTRY - told], "big")

    def has_any(self, marks: Sequence[bytes]) -> bool:
        """Return whether some of the ids are there."""
        if not self.count:
            return False
        numbers, rests = self._places(marks)
        found = map(contains, map(self._buckets.__getitem__, numbers), rests)
        return any(found) and any(map(self.get, marks))

    def put(self, mark: bytes, value: int, *, is_end: bool = False) -> None:
        """Add an id, change its value, or remove it with `FREE`. `is_end`: because a message leaves the queue."""
        if old := self.get(mark):
            self.replace_all((mark,), old, value, is_end=is_end)
        elif value:
            self.add_all((mark,), value)

    def add_all(self, marks: Sequence[bytes], value: int) -> None:
        """Add ids, none of which may be there (`has_any`), or be given twice; some that have expired are removed."""
        buckets, end = self._buckets, pack_value(value)
        self._has_had(value)
        for number, rest in zip(*self._places(marks), strict=True):
            buckets[number] += rest + end
        self._drop(-len(marks))
        now = self._clock()
        for _ in marks:
            if self.count <= self._most:
                break
            if lasts(self.earliest, now) or self.clean() < _FEW:
                self._split()
        if self.on_change is not None:
            self.on_change(marks, FREE, value, False)

    def replace_all(
        self, marks: Sequence[bytes], old: int, new: int, *, is_end: bool = False
    ) -> Sequence[bytes]:
        """Change those ids whose value is `old`, or remove them with `FREE`; return the others."""
        done: list[bytes] = []
        others, buckets = [], self._buckets
        before, after = pack_value(old), pack_value(new)
        for mark, number, rest in zip(marks, *self._places(marks), strict=True):
            bucket, width = buckets[number], len(rest) + 5
            at = _find(bucket, rest + before, width)
            if at < 0:
                others.append(mark)
                continue
            done.append(mark)
            buckets[number] = bucket[:at] + (rest + after if new else b"") + bucket[at + width :]
        if not new:
            self._drop(len(done))
        elif done:
            self._has_had(new)
        if done and self.on_change is not None:
            self.on_change(done, old, new, is_end)
        return others

    def _has_had(self, value: int) -> None:
        self.earliest = min(self.earliest, value)
        self.latest = max(self.latest, value)

    def _drop(self, count: int) -> None:
        self.count -= count
        self._room.count -= count

    def clean(self) -> int:
        """Remove what has expired from the next bucket; returns how many ids."""
        number = self._clean_at = self._clean_at % len(self._buckets)
        self._clean_at += 1
        told, now = self._told(number), self._clock()
        kept = [mark[told:] + pack_value(value) for mark, value in self._entries(number) if lasts(value, now)]
        gone = len(self._buckets[number]) // (ENTRY - told) - len(kept)
        self._buckets[number] = b"".join(kept)
        self._drop(gone)
        return gone

    def _split(self) -> None:
        level = self._mask.bit_length()
        one = 1 << (level & 7)
        first, width = one >> 7, ENTRY - (level >> 3)  # the last bit of a byte: that is left out from now on
        bucket = self._buckets[self._split_at]
        halves: tuple[list[bytes], list[bytes]] = [], []
        for at in range(0, len(bucket), width):
            halves[bool(bucket[at] & one)].append(bucket[at + first : at + width])
        self._buckets[self._split_at] = b"".join(halves[0])
        self._buckets.append(b"".join(halves[1]))
        self._split_at += 1
        if self._split_at == 1 << level:
            self._mask, self._split_at = self._mask << 1 | 1, 0

    def part(self, at: int, octets: int) -> tuple[bytes, int]:
        """Return the buckets from one on that have so many bytes, at least that one, and the bucket after them.

        That is -1 at the end. A caller that goes through all parts sees every id that stays there: a split moves ids
        behind all buckets.
        """
        stop, sizes = at, []
        while stop < len(self._buckets) and (stop == at or octets >= len(self._buckets[stop])):
            sizes.append(len(self._buckets[stop]))
            octets -= sizes[-1]
            stop += 1
        head = _PART.pack(at, len(self._buckets), len(sizes)) + Struct(f">{len(sizes)}H").pack(*sizes)
        return b"".join([head, *self._buckets[at:stop]]), -1 if stop == len(self._buckets) else stop

    def load(self, part: bytes, row: int, copied: list[int]) -> None:
        """Take over a part of a table that was as large as this one, or larger; parts come in their order.

        `row`: the number of its row; `copied`: those of the rows that the buckets are from, to be noted.
        """
        at, total, count = _PART.unpack_from(part)
        while len(self._buckets) < total:
            self._split()
        copied += [copied[_source(number, len(copied))] for number in range(len(copied), total)]
        start = _PART.size + 2 * count
        for number, size in enumerate(Struct(f">{count}H").unpack_from(part, _PART.size), at):
            before, self._buckets[number] = self._buckets[number], part[start : start + size]
            copied[number] = row
            start += size
            self._drop((len(before) - size) // (ENTRY - self._told(number)))

    def replay(self, entries: bytes, row: int, copied: list[int]) -> None:
        """Take over what a row of the log has changed, but for ids whose buckets are from rows that came after it."""
        size, now = len(copied), self._clock()
        found: dict[bytes, list[bytes]] = {}
        for mark, end in _entries_of(entries):
            found.setdefault(end, []).append(mark)
        for end, all_marks in found.items():
            value = int.from_bytes(end, "big")
            numbers, _ = self._places(all_marks)
            places = zip(all_marks, numbers, strict=True)
            marks = [mark for mark, number in places if copied[_source(number, size)] < row]
            self._has_had(value)
            if (is_kept := lasts(value, now)) and not self.has_any(marks):
                self.add_all(marks, value)
                continue
            for mark in marks:
                self.put(mark, value if is_kept else FREE)

    def entries(self, but: int = FREE) -> Iterator[tuple[bytes, int]]:
        """Yield ids with their values; not all of those that have the value `but`."""
        end = pack_value(but)
        for number, bucket in enumerate(self._buckets):
            width = ENTRY - self._told(number)
            ends = [bucket[at::width] for at in range(width - 5, width)]
            if any(column.strip(end[at : at + 1]) for at, column in enumerate(ends)):
                yield from self._entries(number)


def _find(bucket: bytes, octets: bytes, width: int) -> int:
    """Return where the entry of a bucket is that begins with some bytes; -1 if none does."""
    at = bucket.find(octets)
    while at > 0 and at % width:
        at = bucket.find(octets, at + 1)
    return at


def _source(number: int, size: int) -> int:
    """Return from which of the first buckets, so many, one with this number was split."""
    while number >= size:
        number -= 1 << number.bit_length() - 1
    return number
