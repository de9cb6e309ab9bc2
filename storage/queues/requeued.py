"""Messages of a queue that have positions of their own, ascending: requeued ones, or those around withdrawn ones.

Theory. A sorted list in chunks of some hundred messages: taking from the head, peeking at the first few and requeueing
in order cost the same for any number of messages. A message requeued out of order costs a binary search and moving at
most one chunk. A heap would do for the head alone. But bodies are read ahead for a run of messages, and to find the
first few of a heap in order, each load would iterate over all of it.

Hot path: see docs/performance.md.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise, takewhile
from typing import Any, Generic, TypeVar

from leveret.storage.empty import EmptyDeque
from leveret.storage.journal.blocks import Entry
from leveret.storage.message import Message

Item = Message | Entry
T = TypeVar("T", bound=Item)

CHUNK = 512  # messages in a chunk; one that grows to twice as many is split


def size_of(item: Item) -> int:
    """Return the bytes of a message's content, in memory or not."""
    return item.size if type(item) is Entry else len(item.content)  # type: ignore[union-attr]


def trimmed(start: float, stop: float, most: int, *, backwards: bool) -> tuple[int, int]:
    """Return the first `most` numbers of a range, or the last ones; it may end before its start."""
    if backwards:
        start = max(start, stop - most)
    else:
        stop = min(stop, start + most)
    return int(start), int(max(start, stop))


class _Chunk(Generic[T]):
    """A run of messages: ascending seq_ids, and the message of each."""

    __slots__ = ("items", "seq_ids")

    def __init__(self, seq_ids: list[int], items: list[T]) -> None:
        self.seq_ids = seq_ids
        self.items = items


class Requeued(Generic[T]):
    """The requeued messages of one queue, by unique seq_id; `chunks` are given for the one that stays empty."""

    __slots__ = ("_chunks", "_count")

    def __init__(self, chunks: deque[_Chunk[T]] | None = None) -> None:
        self._chunks: deque[_Chunk[T]] = deque() if chunks is None else chunks
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[int, T]]:
        for chunk in self._chunks:
            yield from zip(chunk.seq_ids, chunk.items, strict=True)

    @property
    def items(self) -> Iterator[T]:
        """Yield the messages in order, without their seq_ids."""
        return (item for _, item in self)

    def first(self) -> tuple[int, T]:
        """Return the seq_id and the message at the head. There must be one."""
        chunk = self._chunks[0]
        return chunk.seq_ids[0], chunk.items[0]

    def between(self, low: float, high: float, most: int, *, backwards: bool) -> tuple[list[int], list[T]]:
        """Return seq_ids and messages from `low` to before `high`: the first `most` ones, or the last."""
        seq_ids: list[int] = []
        items: list[T] = []
        chunks = self._chunks
        number = bisect_left(chunks, high if backwards else low, key=_last)
        numbers = range(min(number, len(chunks) - 1), -1, -1) if backwards else range(number, len(chunks))
        for chunk in map(chunks.__getitem__, numbers):
            start, stop = [bisect_left(chunk.seq_ids, each) for each in (low, high)]
            start, stop = trimmed(start, stop, most - len(items), backwards=backwards)
            at = 0 if backwards else len(items)
            seq_ids[at:at] = chunk.seq_ids[start:stop]
            items[at:at] = chunk.items[start:stop]
            if len(items) == most or (start > 0 if backwards else stop < len(chunk.items)):
                break
        return seq_ids, items

    def sample(self, most: int) -> list[T]:
        """Return all messages, or an evenly spaced sample of about `most` (>= 1) if there are more."""
        step = max(1, self._count // most)
        if step > CHUNK:
            return [chunk.items[0] for chunk in islice(self._chunks, 0, None, step // CHUNK)]
        return [item for chunk in self._chunks for item in chunk.items[::step]]

    def add(self, seq_ids: Sequence[int], items: Sequence[T]) -> None:
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

    def _add_run(self, seq_ids: Sequence[int], items: Sequence[T], at: int) -> int:
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

    def take(self, most: int, wanted: Callable[[T], bool] | None = None) -> list[tuple[int, T]]:
        """Take at most `most` messages from the head, as long as they are `wanted`."""
        taken: list[tuple[int, T]] = []
        while self._chunks and len(taken) < most:
            chunk = self._chunks[0]
            count = min(len(chunk.items), most - len(taken))
            if wanted is not None:
                count = sum([1 for _ in takewhile(wanted, islice(chunk.items, count))])
            taken += zip(chunk.seq_ids[:count], chunk.items[:count], strict=True)
            if count == len(chunk.items):
                self._chunks.popleft()
                continue
            del chunk.seq_ids[:count], chunk.items[:count]
            break
        self._count -= len(taken)
        return taken

    def remove_those(self, seq_ids: Iterable[int]) -> list[tuple[int, T]]:
        """Remove and return the messages with these positions, as far as they are here."""
        removed: list[tuple[int, T]] = []
        chunks = self._chunks
        for seq_id in seq_ids:
            number = bisect_left(chunks, seq_id, key=_last)
            if number == len(chunks):
                continue
            chunk = chunks[number]
            place = bisect_left(chunk.seq_ids, seq_id)
            if chunk.seq_ids[place] != seq_id:
                continue
            removed.append((seq_id, chunk.items.pop(place)))
            del chunk.seq_ids[place]
            if not chunk.seq_ids:
                del chunks[number]
        self._count -= len(removed)
        return removed

    def pop(self) -> T:
        """Remove and return the last message. There must be one."""
        chunk = self._chunks[-1]
        chunk.seq_ids.pop()
        item = chunk.items.pop()
        if not chunk.items:
            self._chunks.pop()
        self._count -= 1
        return item


NONE_REQUEUED: Requeued[Any] = Requeued(EmptyDeque())  # shared by all queues without such messages


def _last(chunk: _Chunk[Any]) -> int:
    return chunk.seq_ids[-1]
