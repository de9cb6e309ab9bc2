"""Requeued messages in the order of their seq_ids, at the front of a variable queue.

Theory. A sorted list in chunks of some hundred messages: taking from the head, peeking at the first few and requeueing
in order cost the same for any number of messages. A message requeued out of order costs a binary search and moving at
most one chunk. A heap would do for the head alone, but bodies are read ahead for a run of messages, and finding the
first few of a heap in order means iterating over all of it for each load.

Hot path: see docs/performance.md.
"""
# ruff: noqa: S101 - asserts tell the type checker what always holds; no input is checked by them

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise, takewhile

from leveret.storage.journal.blocks import Entry
from leveret.storage.message import Message

Item = Message | Entry

CHUNK = 512
"""Messages in a chunk; one that grows to twice as many is split."""


class _Chunk:
    """A run of messages: ascending seq_ids, and the message of each."""

    __slots__ = ("items", "seq_ids")

    def __init__(self, seq_ids: list[int], items: list[Item]) -> None:
        self.seq_ids = seq_ids
        self.items = items


class Requeued:
    """The requeued messages of one queue, by unique seq_id.

    Args:
        chunks: where they are kept; given for the collection that stays empty (`storage.empty`).

    """

    __slots__ = ("_chunks", "_count")

    def __init__(self, chunks: deque[_Chunk] | None = None) -> None:
        self._chunks: deque[_Chunk] = deque() if chunks is None else chunks
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[int, Item]]:
        for chunk in self._chunks:
            yield from zip(chunk.seq_ids, chunk.items, strict=True)

    @property
    def items(self) -> Iterator[Item]:
        """Yield the messages in order, without their seq_ids."""
        return (item for _, item in self)

    def first(self) -> tuple[int, Item]:
        """Return the seq_id and the message at the head. There must be one."""
        chunk = self._chunks[0]
        return chunk.seq_ids[0], chunk.items[0]

    def between(self, low: float, high: float, most: int, *, backwards: bool) -> list[tuple[int, Item]]:
        """Return the first `most` messages with seq_ids from `low` to before `high`, or the last ones in reverse."""
        chunks = self._chunks
        found: list[tuple[int, Item]] = []
        number = bisect_left(chunks, high if backwards else low, key=_last)
        step = -1 if backwards else 1
        if backwards and number == len(chunks):
            number -= 1
        while 0 <= number < len(chunks) and len(found) < most:
            chunk = chunks[number]
            start, stop = bisect_left(chunk.seq_ids, low), bisect_left(chunk.seq_ids, high)
            found += list(zip(chunk.seq_ids[start:stop], chunk.items[start:stop], strict=True))[::step]
            if (start > 0) if backwards else (stop < len(chunk.seq_ids)):
                break
            number += step
        return found[:most]

    def sample(self, most: int) -> list[Item]:
        """Return all messages, or an evenly spaced sample of about `most` (>= 1) if there are more."""
        step = max(1, self._count // most)
        if step > CHUNK:
            return [chunk.items[0] for chunk in islice(self._chunks, 0, None, step // CHUNK)]
        found: list[Item] = []
        for chunk in self._chunks:
            found += chunk.items[::step]
        return found

    def add(self, seq_ids: Sequence[int], items: Sequence[Item]) -> None:
        """Insert messages at their positions; the seq_ids in any order, ascending is fastest."""
        count = len(seq_ids)
        if any(later < seq_id for seq_id, later in pairwise(seq_ids)):
            order = sorted(range(count), key=seq_ids.__getitem__)
            seq_ids = [seq_ids[number] for number in order]
            items = [items[number] for number in order]
        at = 0
        while at < count:
            at = self._add_run(seq_ids, items, at)
        self._count += count

    def _add_run(self, seq_ids: Sequence[int], items: Sequence[Item], at: int) -> int:
        """Add messages that belong in or after one chunk, from `at` on; returns the index of the first one left."""
        chunks = self._chunks
        seq_id = seq_ids[at]
        if not chunks or seq_id > chunks[-1].seq_ids[-1]:
            stop = len(seq_ids)
            if chunks and len(chunks[-1].seq_ids) < CHUNK:
                last = chunks[-1]
                stop = min(stop, at + CHUNK - len(last.seq_ids))
                last.seq_ids += seq_ids[at:stop]
                last.items += items[at:stop]
            else:
                stop = min(stop, at + CHUNK)
                chunks.append(_Chunk(list(seq_ids[at:stop]), list(items[at:stop])))
            return stop
        number = bisect_left(chunks, seq_id, key=_last)
        chunk = chunks[number]
        place = bisect_left(chunk.seq_ids, seq_id)
        stop = bisect_left(seq_ids, chunk.seq_ids[place], at, min(len(seq_ids), at + CHUNK))
        chunk.seq_ids[place:place] = seq_ids[at:stop]
        chunk.items[place:place] = items[at:stop]
        if len(chunk.seq_ids) >= 2 * CHUNK:
            half = len(chunk.seq_ids) // 2
            chunks.insert(number + 1, _Chunk(chunk.seq_ids[half:], chunk.items[half:]))
            del chunk.seq_ids[half:], chunk.items[half:]
        return stop

    def take(self, most: int, wanted: Callable[[Item], bool]) -> list[tuple[int, Item]]:
        """Take at most `most` messages from the head, as long as they are `wanted`."""
        taken: list[tuple[int, Item]] = []
        while self._chunks and len(taken) < most:
            chunk = self._chunks[0]
            stop = min(len(chunk.items), most - len(taken))
            count = sum([1 for _ in takewhile(wanted, islice(chunk.items, stop))])
            taken += zip(chunk.seq_ids[:count], chunk.items[:count], strict=True)
            if count == len(chunk.items):
                self._chunks.popleft()
                continue
            del chunk.seq_ids[:count], chunk.items[:count]
            break
        self._count -= len(taken)
        return taken

    def after(self, seq_id: int, most: int) -> list[tuple[int, Item]]:
        """Return at most `most` messages from position `seq_id` on."""
        found: list[tuple[int, Item]] = []
        if not self._count:
            return found
        for chunk in islice(self._chunks, bisect_left(self._chunks, seq_id, key=_last), None):
            at = bisect_left(chunk.seq_ids, seq_id)
            stop = at + most - len(found)
            found += zip(chunk.seq_ids[at:stop], chunk.items[at:stop], strict=True)
            if len(found) == most:
                break
        return found

    def remove_those(self, seq_ids: Iterable[int]) -> list[tuple[int, Item]]:
        """Remove and return the messages with these positions, as far as they are here."""
        removed: list[tuple[int, Item]] = []
        for seq_id in seq_ids if self._count else ():
            number = bisect_left(self._chunks, seq_id, key=_last)
            if number == len(self._chunks):
                continue
            chunk = self._chunks[number]
            place = bisect_left(chunk.seq_ids, seq_id)
            if chunk.seq_ids[place] == seq_id:
                removed.append((seq_id, chunk.items[place]))
                self.remove(seq_id)
        return removed

    def pop(self) -> Item:
        """Remove and return the last message. There must be one."""
        chunk = self._chunks[-1]
        chunk.seq_ids.pop()
        item = chunk.items.pop()
        if not chunk.items:
            self._chunks.pop()
        self._count -= 1
        return item

    def remove(self, seq_id: int) -> None:
        """Remove one message by its seq_id, which must exist."""
        chunks = self._chunks
        number = bisect_left(chunks, seq_id, key=_last)
        chunk = chunks[number]
        place = bisect_left(chunk.seq_ids, seq_id)
        assert chunk.seq_ids[place] == seq_id
        del chunk.seq_ids[place], chunk.items[place]
        if not chunk.seq_ids:
            del chunks[number]
        self._count -= 1


def _last(chunk: _Chunk) -> int:
    return chunk.seq_ids[-1]
