"""The in-memory backing queue, for queues that end with their connection and for brokers without a disk.

Theory. Messages leave the head in the order of publishing, so the seq_id of the head never needs to be stored: the n-th
message ever fetched from `_ready` has seq_id n. A requeued message was fetched before, hence is older than any in
`_ready`; it waits in `_requeued`, by seq_id, and is delivered first.

Hot path: see docs/performance.md.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from functools import partial

from leveret.storage.empty import EmptyDeque
from leveret.storage.journal.blocks import octets_of
from leveret.storage.large_table import MANY, fitting
from leveret.storage.message import Message, dated
from leveret.storage.queues.backing_queue import Fetched, PagingCounts, Peeked, Piece, never
from leveret.storage.queues.no_paging import NoPaging
from leveret.storage.queues.peek import AHEAD, ALWAYS, PREPARED, Looks, Part, Places, dense
from leveret.storage.queues.requeued import NONE_REQUEUED, Requeued

_NOTHING: deque[Message] = EmptyDeque()  # shared by all queues that never kept a message


def _accept(messages: Collection[Message]) -> None:
    for message in messages:
        if message.persistent:
            message.accepted()  # type: ignore[attr-defined]


class MemoryQueue(NoPaging, Looks):
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
        self.on_loaded: Callable[[], object] = never
        self.ready_count = 0
        self.expiring = False
        self._ready = _NOTHING
        self._passed: Requeued[Message] = NONE_REQUEUED
        """Messages in front of `_ready` that were never fetched, with their positions: some between were withdrawn."""
        self._head = 0  # seq_id of the first message of _ready
        self._requeued: Requeued[Message] = NONE_REQUEUED
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
        ready = self._ready
        left = len(ready)
        if left != self.ready_count:
            return self._fetch_older(count, ack_required=ack_required)
        if count >= left:
            messages = list(ready)
            ready.clear()
            self.ready_count = 0
        else:
            popleft = ready.popleft
            messages = [popleft() for _ in range(count)]
            self.ready_count = left - count
        return Fetched(
            self.publish_delivered(messages, ack_required=ack_required), messages, redelivered=False
        )

    def _fetch_older(self, count: int, *, ack_required: bool) -> Fetched:
        """Take messages that are in front of `_ready`."""
        redelivered = bool(self._requeued)
        taken = (self._requeued if redelivered else self._passed).take(count)
        self.ready_count -= len(taken)
        if ack_required:
            self._unacked.update(taken)
            self._unacked = fitting(self._unacked)
        return Fetched([seq_id for seq_id, _ in taken], [message for _, message in taken], redelivered)

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
        unacked = self._unacked
        if self._requeued is NONE_REQUEUED:
            self._requeued = Requeued()
        seq_ids = list(seq_ids)
        self._requeued.add(seq_ids, [unacked.pop(seq_id) for seq_id in seq_ids])
        self._unacked = fitting(unacked)
        self.ready_count += len(seq_ids)

    @property
    def head_is_new(self) -> bool:
        """True if the next message was never delivered."""
        return bool(self._ready or self._passed) and not self._requeued

    def _front(self) -> Iterable[Message]:
        return self._requeued.items if self._requeued else self._passed.items if self._passed else self._ready

    def drop(self, count: int) -> int:
        """Drop at most `count` messages from the head; returns how many."""
        before = self.ready_count
        while self.ready_count and before - self.ready_count < count:
            self.fetch(count - before + self.ready_count, ack_required=False)
        return before - self.ready_count

    def unacked_messages(self, seq_ids: Iterable[int]) -> tuple[list[tuple[int, Message]], list[int]]:
        """Return unacked messages, none of which has to be read. Messages no longer unacked are left out."""
        unacked = self._unacked
        return [(seq_id, unacked[seq_id]) for seq_id in seq_ids if seq_id in unacked], []

    def octets_of(self, seq_ids: Iterable[int]) -> int:
        """Return the body bytes of unacked messages."""
        return octets_of(map(self._unacked.__getitem__, seq_ids))

    def state_counts(self) -> tuple[int, int, int, int]:
        """Return the numbers of ready messages by state: all are alphas."""
        return self.ready_count, 0, 0, 0

    def paging_counts(self) -> PagingCounts:
        """Return the numbers of messages in memory, which are all; their bytes are not counted."""
        return PagingCounts(
            ram_msg_count=self.ready_count,
            ram_ack_count=len(self._unacked),
            q4=self.ready_count,
            next_seq=self._end(),
            next_deliver=self._passed.first()[0] if self._passed else self._head,
        )

    def persistent_count(self) -> int:
        """Return 0: nothing is written."""
        return 0

    def _parts(self) -> tuple[Part, ...]:
        return (
            Part(self._requeued.between, ALWAYS, AHEAD),
            Part(self._passed.between),
            Part(partial(dense, self._ready, self._head)),
        )

    def _unacked_tables(self) -> tuple[Mapping[int, Message]]:
        return (self._unacked,)

    def _end(self) -> int:
        return self._head + len(self._ready)

    def _piece(self, messages: list[Peeked], places: Places, missed: list[int]) -> Piece:
        del places, missed
        return Piece(messages, self._prepare, self._withdraw)

    def _prepare(self, first: int, last: int) -> bool:
        """Move messages from `_ready` to where they have positions; see `Piece.prepare`."""
        del first
        count = min(PREPARED, len(self._ready), last + 1 - self._head)
        if count > 0:
            if self._passed is NONE_REQUEUED:
                self._passed = Requeued()
            popleft = self._ready.popleft
            self._passed.add(range(self._head, self._head + count), [popleft() for _ in range(count)])
            self._head += count
        return not self._ready or last < self._head

    def _withdraw(self, seq_ids: Collection[int]) -> list[int]:
        wanted = set(seq_ids)
        taken = self._passed.remove_those(wanted) + self._requeued.remove_those(wanted)
        self._unacked.update(taken)
        self._unacked = fitting(self._unacked)
        self.ready_count -= len(taken)
        return sorted([seq_id for seq_id, _ in taken])

    def purge(self) -> int:
        """Drop every ready message; returns how many."""
        purged = self.ready_count
        self._head += len(self._ready)
        self._ready = _NOTHING
        self._passed = self._requeued = NONE_REQUEUED
        self.ready_count = 0
        return purged

    def delete(self) -> None:
        """Delete the queue."""
        self.purge()
        self.on_loaded = never  # breaks the reference cycle with its owner
