"""The tail of a stream: its newest messages, in memory until they are on disk, and as long as readers need them.

Hot path: see docs/performance.md.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter

from leveret.storage.journal.blocks import Entry
from leveret.storage.journal.runs import messages_of
from leveret.storage.journal.shared_bodies import OVERHEAD
from leveret.storage.message import Message
from leveret.storage.queues.chunks import ChunkCache
from leveret.storage.queues.requeued import trimmed

TAIL_OCTETS = 1024 * 1024
"""Bytes of memory for stored messages near the tail of one stream, which readers get without the disk."""
_seq_id = attrgetter("seq_id")
_expires = attrgetter("expires")


class StreamTail:
    """The entries of the tail, without gaps; `octets` of memory are taken by those that are stored.

    Args:
        cache: of the broker, with the limit for the tails of all streams.
    """

    __slots__ = ("_cache", "entries", "octets")

    def __init__(self, cache: ChunkCache) -> None:
        self._cache = cache
        self.entries: deque[Entry] = deque()
        self.octets = 0

    @property
    def stop(self) -> int:
        """The offset behind the last message; 0 if there is none."""
        return self.entries[-1].seq_id + self.entries[-1].span if self.entries else 0

    def stored(self, entries: Sequence[Entry]) -> None:
        """Take note that entries are on disk."""
        self._count(sum([entry.size + OVERHEAD * entry.span for entry in entries]))

    def trim(self, stored: int, needed: float) -> None:
        """Forget entries before offset `stored` that no reader needs; `needed` is the first offset that is."""
        entries = self.entries
        while entries and entries[0].seq_id < stored:
            is_much = self.octets > TAIL_OCTETS or self._cache.tail_octets > self._cache.limit
            if not is_much and entries[0].seq_id + entries[0].span > needed:
                return
            self._forget_first()

    def forget_before(self, offset: int) -> None:
        """Forget entries, all of them stored, before an offset."""
        while self.entries and self.entries[0].seq_id < offset:
            self._forget_first()

    def clear(self) -> None:
        """Forget all entries."""
        self.entries = deque()
        self._count(-self.octets)

    def _forget_first(self) -> None:
        entry = self.entries.popleft()
        self._count(-entry.size - OVERHEAD * entry.span)

    def _count(self, octets: int) -> None:
        self.octets += octets
        self._cache.tail_octets += octets

    def messages(self, offset: int, stop: int, octets: int) -> list[Message]:
        """Return the messages from an offset of the tail to before another, but not many more than so many bytes."""
        found: list[Message] = []
        for entry in self._from(offset):
            at = offset + len(found)
            found += messages_of(entry.message)[at - entry.seq_id : stop - entry.seq_id]
            octets -= entry.size
            if octets <= 0 or offset + len(found) >= stop:
                break
        return found

    def between(
        self, low: float, high: float, most: int, *, backwards: bool
    ) -> tuple[Sequence[int], list[Entry]]:
        """Return messages, each as an entry of its own; see `storage.queues.peek.dense`."""
        if not self.entries:
            return (), []
        first = self.entries[0].seq_id
        start, stop = trimmed(max(0, low - first), min(self.stop, high) - first, most, backwards=backwards)
        offsets = range(first + start, first + stop)
        return offsets, list(self.unrolled(offsets))

    def unrolled(self, offsets: range) -> Iterator[Entry]:
        """Yield the messages at some offsets of the tail, each as an entry of its own."""
        for entry in self._from(offsets.start):
            for seq_id, message in enumerate(messages_of(entry.message), entry.seq_id):
                if seq_id >= offsets.stop:
                    return
                if seq_id >= offsets.start:
                    yield Entry(seq_id, message, len(message.content), durable=True, expires=entry.expires)

    def first_at(self, time: int) -> int:
        """Return the offset of the first message that came at a time (epoch ms) or later, or of the next one."""
        at = bisect_left(self.entries, time, key=_expires)
        return self.entries[at].seq_id if at < len(self.entries) else self.stop

    def _from(self, offset: int) -> Iterator[Entry]:
        """Return the entries from that with an offset on."""
        return islice(self.entries, max(0, bisect_right(self.entries, offset, key=_seq_id) - 1), None)
