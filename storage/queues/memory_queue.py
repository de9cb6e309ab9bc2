"""The in-memory backing queue, for queues that end with their connection and for brokers without a disk.

Theory. Messages leave the head in the order of publishing, so the seq_id of the head never needs to be stored: the n-th
message ever fetched from `_ready` has seq_id n. A requeued message was fetched before, hence is older than any in
`_ready`; it waits in a heap by seq_id and is delivered first.

Hot path: see docs/performance.md.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from heapq import heappop, heappush
from itertools import islice
from operator import itemgetter

from leveret.storage.empty import EmptyDeque
from leveret.storage.journal.body_sizes import octets_in_pieces
from leveret.storage.large_table import MANY, fitting
from leveret.storage.message import Message, dated, leading
from leveret.storage.queues.backing_queue import Fetched, PagingCounts, Peeking
from leveret.storage.queues.peek import ALWAYS, Run, look

_NOTHING: deque[Message] = EmptyDeque()
"""Shared by all queues that never kept a message."""


def _never() -> None:
    """Default of `on_loaded`: do nothing."""


def _accept(messages: Collection[Message]) -> None:
    for message in messages:
        if message.persistent:
            message.accepted()  # type: ignore[attr-defined]


class MemoryQueue:
    """A `BackingQueue` that keeps its messages in memory only."""

    __slots__ = ("_head", "_ready", "_requeued", "_unacked", "expiring", "on_loaded", "ready_count")

    damaged = lost_octets = 0
    loading = False

    def __init__(self) -> None:
        self.on_loaded: Callable[[], object] = _never
        self.ready_count = 0
        self.expiring = False
        self._ready = _NOTHING
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

    def ack(self, seq_ids: Collection[int], *, moved: bool = False) -> None:
        """Remove fetched messages for good."""
        del moved
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
        return bool(self._ready) and not self._requeued

    def head_expires(self) -> int | None:
        """Return when the next message expires (epoch ms), 0 for never; None if there is none."""
        if self._requeued:
            return self._requeued[0][1].expires
        return self._ready[0].expires if self._ready else None

    def head_run(self, now: int, limit: int) -> tuple[int, bool]:
        """Return the length of the head's leading run, all expired or all live at `now`, and which of the two."""
        if self._requeued:
            return 1, 0 < self._requeued[0][1].expires <= now
        return leading(islice(self._ready, limit), now)

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

    def ready_octets(self) -> Iterator[int]:
        """Yield the body bytes of all ready messages in partial sums."""
        return octets_in_pieces([*self._ready, *(message for _, message in self._requeued)])

    def state_counts(self) -> tuple[int, int, int, int]:
        """Return the numbers of ready messages by state: all are alphas."""
        return self.ready_count, 0, 0, 0

    def paging_counts(self) -> PagingCounts:
        """Return the numbers of messages in memory, which are all; their bytes are not counted."""
        return PagingCounts(self.ready_count, len(self._unacked))

    def peek(self, most: int | None = None) -> Peeking:
        """Look at the messages as they are now; see `BackingQueue.peek`."""
        requeued = sorted(self._requeued, key=itemgetter(0))[:most]
        ready = list(islice(self._ready, most))
        unacked = list(self._unacked.values())
        runs = (
            Run([seq_id for seq_id, _ in requeued], *2 * ([message for _, message in requeued],), ALWAYS),
            Run(range(self._head, self._head + len(ready)), ready, ready, 0),
        )
        return look(
            runs, Run(list(self._unacked), unacked, unacked, ALWAYS), None, segment=1, octets=1, most=most
        )

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
        self._requeued.clear()
        self.ready_count = 0
        return purged

    def delete(self) -> None:
        """Delete the queue."""
        self.purge()
        self.on_loaded = _never  # breaks the reference cycle with its owner
