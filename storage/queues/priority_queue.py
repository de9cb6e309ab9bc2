"""The priority queue: a backing queue made of one backing queue per priority in use.

Theory (after RabbitMQ's `rabbit_priority_queue`). The *level* of a message is its priority, limited to that of the
queue. Each level is a backing queue of its own, made with its first message, which pages, survives restarts and is
recovered like any other. The head of the queue is the head of the highest level that has ready messages; operations on
the head (`fetch`, `drop`, `head_expires`, `head_run`) use that level only. So an expired message behind one that is not
stays, as in RabbitMQ, and a full queue drops its most urgent messages first. With `expires_each` the head of each level
expires, as in quorum queues of RabbitMQ 4.3 (`at_heads`). While the head is being read from disk lower levels deliver
nothing either; a completed read of any level wakes the owner.

A seq_id is that of the level, shifted, with the level in its lowest byte. On disk each level is a queue of its own,
whose id has the level (`storage.queues.queue_ids`); the default level has the id of the queue.

Hot path: see docs/performance.md.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, takewhile
from typing import Generic, Self, TypeVar

from leveret.storage.message import Message
from leveret.storage.queues.backing_queue import (
    BackingQueue,
    Fetched,
    Look,
    PagingCounts,
    Peeked,
    Peeking,
    Piece,
    Portion,
    PortionSteps,
    Walk,
    never,
)
from leveret.storage.queues.peek import steps_of
from leveret.storage.queues.queue_ids import level_of

Level = TypeVar("Level", bound=BackingQueue)

_LEVEL_BITS = 8
_LEVEL = (1 << _LEVEL_BITS) - 1
_STEP = 1 << _LEVEL_BITS


class PriorityQueue(Generic[Level]):
    """A `BackingQueue` that delivers the most urgent messages first."""

    __slots__ = (
        "_counts_returns",
        "_default",
        "_filled",
        "_lazy",
        "_make_level",
        "_priority_of",
        "expires_each",
        "expiring",
        "levels",
        "max_priority",
        "on_loaded",
        "qid",
        "ready_count",
    )

    def __init__(
        self,
        make_level: Callable[[int], Level],  # makes the backing queue of a level, by its number
        priority_of: Callable[[bytes], int],  # returns the priority (0 to 255) in the content of a message
        max_priority: int,  # the highest level; higher priorities are reduced to it
        qid: int = 0,  # the id under which the default level is stored, if levels are
        default: int = 0,  # the level of messages without a priority
        *,
        expires_each: bool = False,  # whether the head of each level expires, not of the highest one alone
    ) -> None:
        self._make_level = make_level
        self._priority_of = priority_of
        self.max_priority = max_priority
        self.qid = qid
        self._default = default
        self.expires_each = expires_each
        self.on_loaded: Callable[[], object] = never
        self.levels: dict[int, Level] = {}  # levels that ever had a message
        self.ready_count = 0
        self.expiring = False
        self._lazy = False
        self._counts_returns = False
        self._filled = 0  # bit n is set if level n has ready messages

    # -- levels -----------------------------------------------------------------------------------------------------

    def level(self, number: int) -> Level:
        """Return a level, made if there is none yet. A caller that changes it must call `recount`."""
        queue = self.levels.get(number)
        if queue is None:
            queue = self.levels[number] = self._make_level(number)
            queue.on_loaded = self._loaded
            if self._lazy:
                queue.set_lazy(lazy=True)
            if self._counts_returns:
                queue.count_returns(counted=True)
        return queue

    def stored_level(self, qid: int) -> Level:
        """Return the level that is stored under an id, as `level` does."""
        return self.level(level_of(qid) ^ self._default)

    def recount(self) -> None:
        """Update the ready counts, and whether messages may expire, from the levels."""
        self.expiring = any(queue.expiring for queue in self.levels.values())
        self.ready_count = sum([queue.ready_count for queue in self.levels.values()])
        self._filled = sum([1 << number for number, queue in self.levels.items() if queue.ready_count])

    def restrict_to(self, queue: BackingQueue) -> None:
        """Use a single level as the head and for the counts, until `recount`."""
        self.ready_count = queue.ready_count
        self._filled = sum([1 << number for number, level in self.levels.items() if level is queue])

    def _loaded(self) -> None:
        """Handle a completed read of a level; damaged messages are no longer ready."""
        self.recount()
        self.on_loaded()

    def _levels_of(self, messages: Iterable[Message]) -> list[int]:
        priority_of, highest = self._priority_of, self.max_priority
        levels = [priority_of(message.content) for message in messages]
        if max(levels, default=0) > highest:
            return [min(level, highest) for level in levels]
        return levels

    def _by_level(self, seq_ids: Iterable[int]) -> Iterator[tuple[int, Level, list[int]]]:
        """Yield each level, and its own seq_ids of the given ones."""
        split: defaultdict[int, list[int]] = defaultdict(list)
        for seq_id in seq_ids:
            split[seq_id & _LEVEL].append(seq_id >> _LEVEL_BITS)
        for level, own in split.items():
            yield level, self.levels[level], own

    # -- counts -----------------------------------------------------------------------------------------------------

    @property
    def unacked_count(self) -> int:
        """Number of messages fetched with `ack_required` and neither acked nor requeued yet."""
        return sum([queue.unacked_count for queue in self.levels.values()])

    @property
    def damaged(self) -> int:
        """Number of read errors, over all levels."""
        return sum([queue.damaged for queue in self.levels.values()])

    @property
    def lost_octets(self) -> int:
        """Body bytes of ready messages that could not be read, over all levels."""
        return sum([queue.lost_octets for queue in self.levels.values()])

    @property
    def loading(self) -> bool:
        """True if messages of any level are being read from disk."""
        return any(queue.loading for queue in self.levels.values())

    # -- publishing -------------------------------------------------------------------------------------------------

    def publish(
        self,
        messages: Collection[Message],
        *,
        persistent: bool = False,
        small: bool = False,
        expires: int = 0,
    ) -> Sequence[int]:
        """Append messages to the tails of their levels, in order; returns their seq_ids."""
        if expires:
            self.expiring = True
        levels = self._levels_of(messages)
        given: dict[int, Sequence[int]] = {}
        for level, run in _runs(messages, levels).items():
            seq_ids = self.level(level).publish(run, persistent=persistent, small=small, expires=expires)
            given[level] = _numbered(seq_ids, level)
            self._filled |= 1 << level
        self.ready_count += len(messages)
        return _interleaved(given, levels)

    def publish_delivered(
        self, messages: list[Message], *, ack_required: bool, persistent: bool = False, expires: int = 0
    ) -> Sequence[int]:
        """Record messages that go straight to a consumer; `ready_count` must be 0. Returns their seq_ids."""
        if expires:
            self.expiring = True
        levels = self._levels_of(messages)
        given: dict[int, Sequence[int]] = {}
        for level, run in _runs(messages, levels).items():
            seq_ids = self.level(level).publish_delivered(
                run, ack_required=ack_required, persistent=persistent, expires=expires
            )
            given[level] = _numbered(seq_ids, level)
        return _interleaved(given, levels)

    # -- fetching ---------------------------------------------------------------------------------------------------

    def fetch(self, count: int, *, ack_required: bool) -> Fetched:
        """Take at most `count` messages from the head; `ready_count` must not be 0.

        Returns none if the head is being read from disk, even if lower levels have messages.
        """
        level = self._filled.bit_length() - 1
        queue = self.levels[level]
        batch = queue.fetch(count, ack_required=ack_required)
        seq_ids, messages = _numbered(batch.seq_ids, level), batch.messages
        if not queue.ready_count:
            self._filled ^= 1 << level
            if self._filled and len(messages) < count and not batch.redelivered:
                seq_ids, messages = [*seq_ids], [*messages]
                self._fetch_more(count, seq_ids, messages, ack_required=ack_required)
        self.ready_count -= len(messages)
        return Fetched(seq_ids, messages, batch.redelivered)

    def _fetch_more(
        self, count: int, seq_ids: list[int], messages: list[Message], *, ack_required: bool
    ) -> None:
        """Continue with lower levels, as long as their messages were not delivered before and are in memory."""
        while self._filled and len(messages) < count:
            level = self._filled.bit_length() - 1
            queue = self.levels[level]
            if not queue.head_is_new:
                return
            batch = queue.fetch(count - len(messages), ack_required=ack_required)
            seq_ids += _numbered(batch.seq_ids, level)
            messages += batch.messages
            if queue.ready_count:
                return
            self._filled ^= 1 << level

    @property
    def _head(self) -> Level | None:
        return self.levels[self._filled.bit_length() - 1] if self._filled else None

    @property
    def head_is_new(self) -> bool:
        """True only if the next message is in memory and was never delivered."""
        return (head := self._head) is not None and head.head_is_new

    def head_expires(self) -> int | None:
        """Return when the next message expires (epoch ms), 0 for never; None if it is being read or there is none.

        With `expires_each` it is the first to expire of the levels' next messages.
        """
        if self.expires_each and self.ready_count:
            heads = [queue for number, queue in self.levels.items() if self._filled >> number & 1]
            times = [queue.head_expires() for queue in heads]
            return None if None in times else min(filter(None, times), default=0)
        return None if (head := self._head) is None else head.head_expires()

    def at_heads(self, step: Callable[[], object]) -> None:
        """Call `step` for each head that may expire: with each level that has ready messages as the head, or once."""
        levels = self._filled if self.expires_each else 0
        if not levels & (levels - 1):
            step()
            return
        for number in reversed(range(levels.bit_length())):
            if levels >> number & 1:
                others = self._filled & ~(1 << number)
                self._filled = 1 << number
                try:
                    step()
                finally:
                    self._filled |= others

    def head_run(self, now: int, limit: int) -> tuple[int, bool]:
        """As `BackingQueue.head_run`, for the messages of the head's level only."""
        return (0, False) if (head := self._head) is None else head.head_run(now, limit)

    def drop(self, count: int) -> int:
        """Drop at most `count` messages from the head without reading their bodies; returns how many."""
        dropped = 0
        while self._filled and dropped < count:
            level = self._filled.bit_length() - 1
            queue = self.levels[level]
            dropped += queue.drop(count - dropped)
            if queue.ready_count:
                break
            self._filled ^= 1 << level
        self.ready_count -= dropped
        return dropped

    # -- settling ---------------------------------------------------------------------------------------------------

    def follow(self, predecessor: Self) -> None:
        """Give no seq_id that a deleted queue of the same id has given; see `BackingQueue.follow`."""
        for number, level in predecessor.levels.items():
            self.level(number).follow(level)

    def before_commit(self, callback: Callable[[], object]) -> bool:
        """Call back once, before the next commit; see `BackingQueue.before_commit`."""
        return self.level(self._default).before_commit(callback)

    def ack(self, seq_ids: Collection[int], *, moved: bool = False, dropped: bool = False) -> None:
        """Remove fetched messages for good; `moved`, `dropped`: see `BackingQueue.ack`."""
        for _, queue, own in self._by_level(seq_ids):
            queue.ack(own, moved=moved, dropped=dropped)

    def requeue(self, seq_ids: Collection[int]) -> None:
        """Put fetched messages back to their original positions in their levels, marked redelivered."""
        for level, queue, own in self._by_level(seq_ids):
            queue.requeue(own)
            self._filled |= 1 << level
        self.ready_count += len(seq_ids)

    def unacked_messages(self, seq_ids: Iterable[int]) -> tuple[list[tuple[int, Message]], list[int]]:
        """Return unacked messages with bodies, in the requested order, and the seq_ids of those being read."""
        asked = list(seq_ids)
        found: dict[int, Message] = {}
        missing: list[int] = []
        for level, queue, own in self._by_level(asked):
            there, away = queue.unacked_messages(own)
            found.update([(seq_id << _LEVEL_BITS | level, message) for seq_id, message in there])
            missing += _numbered(away, level)
        return [(seq_id, found[seq_id]) for seq_id in asked if seq_id in found], missing

    def awaited(self, seq_ids: Collection[int]) -> Iterable[Message]:
        """Return those of some unacked messages whose commit is not done."""
        return chain.from_iterable([queue.awaited(own) for _, queue, own in self._by_level(seq_ids)])

    def octets_of(self, seq_ids: Iterable[int]) -> int:
        """Return the body bytes of unacked messages."""
        return sum([queue.octets_of(own) for _, queue, own in self._by_level(seq_ids)])

    def ready_octets(self) -> Iterator[int]:
        """Yield the body bytes of all ready messages in partial sums."""
        return chain.from_iterable([queue.ready_octets() for queue in self.levels.values()])

    def persistent_count(self) -> int:
        """Return the number of persistent messages; see `BackingQueue.persistent_count`."""
        return sum([queue.persistent_count() for queue in self.levels.values()])

    def head_message(self) -> Message | None:
        """Return the most urgent message if it is in memory."""
        return None if (head := self._head) is None else head.head_message()

    def peek(self, most: int | None = None) -> Peeking:
        """Look at the messages as they are now; the ready ones by level, the most urgent first."""
        levels = sorted(self.levels.items(), reverse=True)
        return _look_at([(number, queue.peek(most)) for number, queue in levels], most)

    def walk(self) -> Walk:
        """Walk over the ready messages by level, the most urgent first."""
        return self._walk(
            [(number, queue.walk()) for number, queue in sorted(self.levels.items(), reverse=True)]
        )

    def _walk(self, walks: Sequence[tuple[int, Walk]]) -> Walk:
        for level, walk in walks:
            answer = None
            while True:
                try:
                    found = walk.send(answer)
                except StopIteration:
                    break
                answer = yield self._piece(level, found) if isinstance(found, Piece) else found

    def _piece(self, level: int, piece: Piece) -> Piece:
        """Return a piece of a level as one of the queue."""

        def prepare(first: int, last: int) -> bool:
            return piece.prepare(first >> _LEVEL_BITS, last >> _LEVEL_BITS)

        def withdraw(seq_ids: Collection[int]) -> list[int]:
            taken = piece.withdraw([seq_id >> _LEVEL_BITS for seq_id in seq_ids])
            self.recount()
            return list(_numbered(taken, level))

        return Piece(_of_queue(piece.messages, level), prepare, withdraw)

    def portion(self, most: int, after: int | None = None, *, backwards: bool = False) -> PortionSteps:
        """Look at the next ready messages, all of one level; see `BackingQueue.portion`."""
        levels, inner = sorted(self.levels, reverse=not backwards), None
        if after is not None:
            number, inner = after & _LEVEL, after >> _LEVEL_BITS
            levels = [level for level in levels if (level >= number if backwards else level <= number)]
        if not levels:
            return steps_of(Portion([], None))
        first = self.levels[levels[0]].portion(most, inner, backwards=backwards)
        return self._first_portion(levels, first, most, backwards=backwards)

    def _first_portion(
        self, levels: Sequence[int], steps: PortionSteps, most: int, *, backwards: bool
    ) -> PortionSteps:
        """Return the portion of the first level that has one, given the steps of the first one's."""
        for level, following in zip(levels, (*levels[1:], None), strict=True):
            portion = yield from steps
            if portion.at is not None:
                return Portion(_of_queue(portion.messages, level), portion.at << _LEVEL_BITS | level)
            if following is not None:
                steps = self.levels[following].portion(most, backwards=backwards)
        return Portion([], None)

    def unacked_ids(self) -> list[int]:
        """Return the seq_ids of the unacked messages of all levels."""
        levels = self.levels.items()
        return [seq_id for level, queue in levels for seq_id in _numbered(queue.unacked_ids(), level)]

    def unacked_portion(self, seq_ids: Sequence[int]) -> PortionSteps:
        """Look at unacked messages, up to the first one of another level; see `BackingQueue.unacked_portion`."""
        level = seq_ids[0] & _LEVEL
        own = [seq_id >> _LEVEL_BITS for seq_id in takewhile(lambda each: each & _LEVEL == level, seq_ids)]
        portion = yield from self.levels[level].unacked_portion(own)
        return Portion(_of_queue(portion.messages, level), portion.at)

    def came_before(self, seq_id: int) -> float | None:
        """Return a time before which a message came; see `BackingQueue.came_before`."""
        return self.levels[seq_id & _LEVEL].came_before(seq_id >> _LEVEL_BITS)

    def state_counts(self) -> tuple[int, int, int, int]:
        """Return the numbers of ready messages of all levels that are alpha, beta, gamma and delta."""
        counts = [queue.state_counts() for queue in self.levels.values()]
        alphas, betas, gammas, deltas = map(sum, zip((0, 0, 0, 0), *counts, strict=True))
        return alphas, betas, gammas, deltas

    def paging_counts(self) -> PagingCounts:
        """Return what all levels have, and where; rates and targets are sums too."""
        return PagingCounts.sum_of([queue.paging_counts() for queue in self.levels.values()])

    def count_returns(self, *, counted: bool) -> None:
        """Enable or disable delivery counts of messages that are read from disk."""
        self._counts_returns = counted
        for queue in self.levels.values():
            queue.count_returns(counted=counted)

    def note_returns(self, counts: Mapping[int, int]) -> None:
        """Note the delivery counts of unacked messages that are about to be requeued."""
        for level, queue, own in self._by_level(counts):
            queue.note_returns({seq_id: counts[seq_id << _LEVEL_BITS | level] for seq_id in own})

    def take_returns(self, seq_ids: Collection[int]) -> dict[int, int]:
        """Return the delivery counts from before the start of messages that were just fetched, if any."""
        return {
            seq_id << _LEVEL_BITS | level: count
            for level, queue, own in self._by_level(seq_ids)
            for seq_id, count in queue.take_returns(own).items()
        }

    def set_lazy(self, *, lazy: bool) -> None:
        """Keep as little as possible in memory, or stop doing so."""
        self._lazy = lazy
        for queue in self.levels.values():
            queue.set_lazy(lazy=lazy)

    # -- all of them ------------------------------------------------------------------------------------------------

    def purge(self) -> int:
        """Drop every ready message; returns how many. Unacked messages stay."""
        purged = sum([queue.purge() for queue in self.levels.values()])
        self.ready_count = self._filled = 0
        return purged

    def delete(self) -> None:
        """Delete the queue with its unacked messages."""
        for queue in self.levels.values():
            queue.delete()
        self.ready_count = self._filled = 0
        self.on_loaded = never  # breaks the reference cycle with its owner


def _runs(messages: Collection[Message], levels: list[int]) -> dict[int, list[Message]]:
    """Return messages by level, each in order."""
    if levels and levels.count(levels[0]) == len(levels):
        return {levels[0]: list(messages)}
    runs: defaultdict[int, list[Message]] = defaultdict(list)
    for message, level in zip(messages, levels, strict=True):
        runs[level].append(message)
    return runs


def _numbered(seq_ids: Sequence[int], level: int) -> Sequence[int]:
    """Return the queue's seq_ids for seq_ids of a level."""
    if type(seq_ids) is range:
        return range(seq_ids.start << _LEVEL_BITS | level, seq_ids.stop << _LEVEL_BITS | level, _STEP)
    return [seq_id << _LEVEL_BITS | level for seq_id in seq_ids]


def _of_queue(messages: Iterable[Peeked], level: int) -> list[Peeked]:
    """Return messages of a level with the queue's seq_ids."""
    return [each._replace(seq_id=each.seq_id << _LEVEL_BITS | level) for each in messages]


def _interleaved(given: dict[int, Sequence[int]], levels: list[int]) -> Sequence[int]:
    """Return the seq_ids assigned by the levels, in the order of the messages."""
    if len(given) == 1:
        return next(iter(given.values()))
    taken = {level: iter(seq_ids) for level, seq_ids in given.items()}
    return [next(taken[level]) for level in levels]


def parts(backings: Iterable[BackingQueue]) -> Iterator[BackingQueue]:
    """Yield the backing queues that hold messages: of a priority queue its levels, any other as it is."""
    for backing in backings:
        if isinstance(backing, PriorityQueue):
            yield from backing.levels.values()
        else:
            yield backing


def _look_at(levels: Iterable[tuple[int, Peeking]], most: int | None) -> Peeking:
    """Join the looks at levels, which were begun at the same moment."""
    found = Look([], [])
    for level, peeking in levels:
        ready, unacked = yield from peeking
        found.ready.extend(_of_queue(ready, level))
        found.unacked.extend(_of_queue(unacked, level))
    return found if most is None else found._replace(ready=found.ready[:most])
