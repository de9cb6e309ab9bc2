"""The in-memory backing queue, for queues that end with their connection and for brokers without a disk.

Theory. Messages leave the head in the order of publishing, so the seq_id of the head never needs to be stored: the n-th
message ever fetched from `_ready` has seq_id n. A requeued message was fetched before, hence is older than any in
`_ready`; it waits in a heap by seq_id and is delivered first.

Hot path: see docs/performance.md.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from heapq import heappop, heappush
from itertools import chain, islice
from operator import itemgetter
from typing import Self

from leveret.storage.empty import EmptyDeque
from leveret.storage.journal.body_sizes import octets_in_pieces, octets_of
from leveret.storage.large_table import MANY, fitting
from leveret.storage.message import Message, dated, leading
from leveret.storage.queues.backing_queue import (
    Fetched,
    PagingCounts,
    Peeked,
    Peeking,
    Piece,
    Portion,
    PortionSteps,
    SubQueueCounts,
    Walk,
)
from leveret.storage.queues.peek import ALWAYS, PIECE, Run, look
from leveret.storage.queues.positions import AHEAD, span, steps_of, within
from leveret.storage.queues.runs import PREPARED, index_of, some, take_out

_NOTHING: deque[Message] = EmptyDeque()
"""Shared by all queues that never kept a message."""


_NONE_PASSED: deque[tuple[int, Message]] = EmptyDeque()
"""Shared by all queues from which nothing was withdrawn."""


_position = itemgetter(0)


def _never() -> None:
    """Default of `on_loaded`: do nothing."""


def _accept(messages: Collection[Message]) -> None:
    for message in messages:
        if message.persistent:
            message.accepted()  # type: ignore[attr-defined]


class MemoryQueue:
    """A `BackingQueue` that keeps its messages in memory only."""

    __slots__ = (
        "_head",
        "_passed",
        "_ready",
        "_requeued",
        "_unacked",
        "expiring",
        "on_loaded",
        "ready_count",
    )

    damaged = lost_octets = 0
    loading = False

    def __init__(self) -> None:
        self.on_loaded: Callable[[], object] = _never
        self.ready_count = 0
        self.expiring = False
        self._ready = _NOTHING
        self._passed: deque[tuple[int, Message]] = _NONE_PASSED
        """Messages in front of `_ready` that were never fetched, with their positions: some between were withdrawn."""
        self._head = 0  # seq_id of the first message of _ready
        self._requeued: list[tuple[int, Message]] = []
        self._unacked: MutableMapping[int, Message] = {}

    @property
    def unacked_count(self) -> int:
        """Number of messages fetched with `ack_required` and neither acked nor requeued yet."""
        return len(self._unacked)

    def publish(
        self,
        messages: Collection[Message],
        *,
        persistent: bool = False,
        small: bool = False,
        expires: int = 0,
    ) -> range:
        """Append messages at the tail, in order; nothing is written. Returns their seq_ids."""
        del small
        if persistent:
            _accept(messages)
        if expires:
            self.expiring = True
            messages = dated(messages, expires)
        if self._ready is _NOTHING:
            self._ready = deque()
        first = self._head + len(self._ready)
        self._ready.extend(messages)
        self.ready_count += len(messages)
        return range(first, first + len(messages))

    def publish_delivered(
        self, messages: list[Message], *, ack_required: bool, persistent: bool = False, expires: int = 0
    ) -> range:
        """Record messages that go straight to a consumer; `ready_count` must be 0. Returns their seq_ids."""
        if persistent:
            _accept(messages)
        if expires:
            self.expiring = True
            messages = dated(messages, expires)
        first = self._head
        self._head = head = first + len(messages)
        seq_ids = range(first, head)
        if ack_required:
            self._unacked.update(zip(seq_ids, messages, strict=True))
            if len(self._unacked) > MANY:
                self._unacked = fitting(self._unacked)
        return seq_ids

    def fetch(self, count: int, *, ack_required: bool) -> Fetched:
        """Take at most `count` messages from the head; `ready_count` must not be 0."""
        if self._requeued:
            return self._fetch_requeued(count, ack_required=ack_required)
        if self._passed:
            return self._fetch_passed(count, ack_required=ack_required)
        ready = self._ready
        count = min(count, len(ready))
        if count == len(ready):
            messages = list(ready)
            ready.clear()
        else:
            popleft = ready.popleft
            messages = [popleft() for _ in range(count)]
        self.ready_count -= count
        return Fetched(
            self.publish_delivered(messages, ack_required=ack_required), messages, redelivered=False
        )

    def _fetch_requeued(self, count: int, *, ack_required: bool) -> Fetched:
        requeued = self._requeued
        taken = [heappop(requeued) for _ in range(min(count, len(requeued)))]
        self.ready_count -= len(taken)
        if ack_required:
            self._unacked.update(taken)
            self._unacked = fitting(self._unacked)
        return Fetched([seq_id for seq_id, _ in taken], [message for _, message in taken], redelivered=True)

    def _fetch_passed(self, count: int, *, ack_required: bool) -> Fetched:
        taken = [self._passed.popleft() for _ in range(min(count, len(self._passed)))]
        self.ready_count -= len(taken)
        if ack_required:
            self._unacked.update(taken)
            self._unacked = fitting(self._unacked)
        return Fetched([seq_id for seq_id, _ in taken], [message for _, message in taken], redelivered=False)

    def follow(self, predecessor: Self) -> None:
        """Do nothing: a deleted queue leaves nothing to be removed."""

    def before_commit(self, callback: Callable[[], object]) -> bool:
        """Return false: there are no commits."""
        del callback
        return False

    def ack(self, seq_ids: Collection[int], *, moved: bool = False, dropped: bool = False) -> None:
        """Remove fetched messages for good."""
        del moved, dropped
        unacked = self._unacked
        for seq_id in seq_ids:
            del unacked[seq_id]
        if type(unacked) is not dict:
            self._unacked = fitting(unacked)

    def requeue(self, seq_ids: Collection[int]) -> None:
        """Put fetched messages back to their original positions, marked redelivered."""
        unacked, requeued = self._unacked, self._requeued
        for seq_id in seq_ids:
            heappush(requeued, (seq_id, unacked.pop(seq_id)))
        self._unacked = fitting(unacked)
        self.ready_count += len(seq_ids)

    @property
    def head_is_new(self) -> bool:
        """True if the next message was never delivered."""
        return bool(self._ready or self._passed) and not self._requeued

    def head_expires(self) -> int | None:
        """Return when the next message expires (epoch ms), 0 for never; None if there is none."""
        if self._requeued:
            return self._requeued[0][1].expires
        if self._passed:
            return self._passed[0][1].expires
        return self._ready[0].expires if self._ready else None

    def head_run(self, now: int, limit: int) -> tuple[int, bool]:
        """Return the length of the head's leading run, all expired or all live at `now`, and which of the two."""
        if self._requeued:
            return 1, 0 < self._requeued[0][1].expires <= now
        if self._passed:
            return leading([message for _, message in islice(self._passed, limit)], now)
        return leading(islice(self._ready, limit), now)

    def drop(self, count: int) -> int:
        """Drop at most `count` messages from the head; returns how many."""
        before = self.ready_count
        while self.ready_count and before - self.ready_count < count:
            self.fetch(count - before + self.ready_count, ack_required=False)
        return before - self.ready_count

    def awaited(self, seq_ids: Collection[int]) -> Iterable[Message]:
        """Return none: nothing is written."""
        del seq_ids
        return ()

    def unacked_messages(self, seq_ids: Iterable[int]) -> tuple[list[tuple[int, Message]], list[int]]:
        """Return unacked messages, none of which has to be read. Messages no longer unacked are left out."""
        unacked = self._unacked
        return [(seq_id, unacked[seq_id]) for seq_id in seq_ids if seq_id in unacked], []

    def octets_of(self, seq_ids: Iterable[int]) -> int:
        """Return the body bytes of unacked messages."""
        return octets_of(map(self._unacked.__getitem__, seq_ids))

    def ready_octets(self) -> Iterator[int]:
        """Yield the body bytes of all ready messages in partial sums."""
        others = [message for _, message in chain(self._requeued, self._passed)]
        return octets_in_pieces([*self._ready, *others])

    def state_counts(self) -> tuple[int, int, int, int]:
        """Return the numbers of ready messages by state: all are alphas."""
        return self.ready_count, 0, 0, 0

    def paging_counts(self) -> PagingCounts:
        """Return the numbers of messages in memory, which are all; their bytes are not counted."""
        return PagingCounts(self.ready_count, len(self._unacked))

    def sub_queue_counts(self) -> SubQueueCounts:
        """Return the number of ready messages; they are all alphas."""
        first = self._passed[0][0] if self._passed else self._head
        return SubQueueCounts(q4=self.ready_count, next_seq=self._head + len(self._ready), next_deliver=first)

    def persistent_count(self) -> int:
        """Return 0: nothing is written."""
        return 0

    def head_message(self) -> Message | None:
        """Return the next message; None if there is none."""
        if self._requeued:
            return self._requeued[0][1]
        if self._passed:
            return self._passed[0][1]
        return self._ready[0] if self._ready else None

    def peek(self, most: int | None = None) -> Peeking:
        """Look at the messages as they are now; see `BackingQueue.peek`."""
        requeued = sorted(self._requeued, key=itemgetter(0))[:most]
        passed = list(islice(self._passed, most))
        ready = list(islice(self._ready, most))
        unacked = list(self._unacked.values())
        runs = (
            Run([seq_id for seq_id, _ in requeued], *2 * ([message for _, message in requeued],), ALWAYS),
            Run([seq_id for seq_id, _ in passed], *2 * ([message for _, message in passed],), 0),
            Run(range(self._head, self._head + len(ready)), ready, ready, 0),
        )
        return look(
            runs, Run(list(self._unacked), unacked, unacked, ALWAYS), None, segment=1, octets=1, most=most
        )

    def walk(self) -> Walk:
        """Walk over the ready messages; see `BackingQueue.walk`."""
        return self._walk(self._head + len(self._ready))

    def _walk(self, end: int) -> Walk:
        at = 0
        while True:
            self._requeued.sort()  # which is a heap, too
            redelivered = True
            found = self._requeued[bisect_left(self._requeued, at, key=_position) :][:PIECE]
            if not found:
                redelivered = False
                passed = self._passed
                found = some(passed, index_of(passed, at, _position), PIECE) if passed else []
            if not found and at - self._head < len(self._ready):
                first = max(0, at - self._head)
                found = list(enumerate(some(self._ready, first, PIECE), self._head + first))
            pieces = [
                Peeked(seq_id, message, redelivered, message.expires)
                for seq_id, message in found
                if seq_id < end
            ]
            if not pieces:
                return
            at = pieces[-1].seq_id + 1
            yield Piece(pieces, self._prepare, self._withdraw)

    def _prepare(self, first: int, last: int) -> bool:
        """Move messages from `_ready` to where they have positions; see `Piece.prepare`."""
        del first
        count = min(PREPARED, len(self._ready), last + 1 - self._head)
        if count > 0:
            if self._passed is _NONE_PASSED:
                self._passed = deque()
            popleft = self._ready.popleft
            self._passed.extend([(seq_id, popleft()) for seq_id in range(self._head, self._head + count)])
            self._head += count
        return not self._ready or last < self._head

    def _withdraw(self, seq_ids: Collection[int]) -> list[int]:
        """See `Piece.withdraw`."""
        wanted = set(seq_ids)
        taken = take_out(self._passed, wanted, _position)
        if any(seq_id in wanted for seq_id, _ in self._requeued):
            taken += [each for each in self._requeued if each[0] in wanted]
            self._requeued = sorted([each for each in self._requeued if each[0] not in wanted], key=_position)
        self._unacked.update(taken)
        self._unacked = fitting(self._unacked)
        self.ready_count -= len(taken)
        return sorted([seq_id for seq_id, _ in taken])

    def portion(self, most: int, after: int | None = None, *, backwards: bool = False) -> PortionSteps:
        """Look at the next ready messages; see `BackingQueue.portion`."""
        low, high = span(after, backwards=backwards)
        parts = (self._requeued_between, self._passed_between, self._ready_between)
        for part in reversed(parts) if backwards else parts:
            found = part(low, high, most, backwards=backwards)
            if found:
                ahead, is_requeued = (AHEAD, True) if part == self._requeued_between else (0, False)
                if backwards:
                    found.reverse()
                messages = [Peeked(*each, redelivered=is_requeued, expires=each[1].expires) for each in found]
                return steps_of(Portion(messages, messages[-1].seq_id - ahead))
        return steps_of(Portion([], None))

    def _requeued_between(
        self, low: float, high: float, most: int, *, backwards: bool
    ) -> list[tuple[int, Message]]:
        requeued = self._requeued
        requeued.sort()  # which is a heap, too
        start, stop = [bisect_left(requeued, each + AHEAD, key=_position) for each in (low, high)]
        start, stop = within(start, stop, most, backwards=backwards)
        return requeued[start:stop]

    def _passed_between(
        self, low: float, high: float, most: int, *, backwards: bool
    ) -> list[tuple[int, Message]]:
        start, stop = [index_of(self._passed, each, _position) for each in (low, high)]
        start, stop = within(start, stop, most, backwards=backwards)
        return some(self._passed, start, stop - start) if start < stop else []

    def _ready_between(
        self, low: float, high: float, most: int, *, backwards: bool
    ) -> list[tuple[int, Message]]:
        head, count = self._head, len(self._ready)
        start, stop = int(max(0, low - head)), int(min(count, high - head))
        start, stop = within(start, stop, most, backwards=backwards)
        return list(enumerate(some(self._ready, start, stop - start), head + start)) if start < stop else []

    def unacked_ids(self) -> list[int]:
        """Return the seq_ids of the unacked messages."""
        return list(self._unacked)

    def unacked_portion(self, seq_ids: Sequence[int]) -> PortionSteps:
        """Look at unacked messages; see `BackingQueue.unacked_portion`."""
        unacked = self._unacked
        found = [
            Peeked(seq_id, message, redelivered=True, expires=message.expires)
            for seq_id in seq_ids
            if (message := unacked.get(seq_id)) is not None
        ]
        return steps_of(Portion(found, len(seq_ids)))

    def came_before(self, seq_id: int) -> None:
        """Return None: no times are kept."""

    def count_returns(self, *, counted: bool) -> None:
        """Do nothing: no message is read from disk."""

    def note_returns(self, counts: Mapping[int, int]) -> None:
        """Do nothing: no message survives a restart."""

    def take_returns(self, seq_ids: Collection[int]) -> dict[int, int]:
        """Return no counts: no message survives a restart."""
        del seq_ids
        return {}

    def set_lazy(self, *, lazy: bool) -> None:
        """Do nothing: messages are in memory only."""

    def purge(self) -> int:
        """Drop every ready message; returns how many."""
        purged = self.ready_count
        self._head += len(self._ready)
        self._ready = _NOTHING
        self._passed = _NONE_PASSED
        self._requeued.clear()
        self.ready_count = 0
        return purged

    def delete(self) -> None:
        """Delete the queue."""
        self.purge()
        self.on_loaded = _never  # breaks the reference cycle with its owner
