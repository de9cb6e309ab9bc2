"""The priority queue: a backing queue made of one backing queue for each priority that is used.

Theory (after RabbitMQ's `rabbit_priority_queue`). The *level* of a message is its priority, at most that of the queue;
each level is a backing queue of its own, made when its first message comes, which pages, survives and is recovered like
any other. The head of the queue is the head of the highest level that has ready messages; whatever speaks of the
head (`fetch`, `drop`, `head_expires`, `head_run`) speaks of that one alone, so a message that has expired behind
one that has not stays, as in RabbitMQ, and a full queue drops what is most urgent first. While the head is being read
from disk there is nothing to be had from lower levels either; any level that has read something wakes the owner.

A seq_id is that of the level, shifted, and the level in its lowest octet. On disk each level is a queue by itself: the
level is the highest octet of its id, and level 0 has the id of the queue. Ids count starts in their upper half, so
that octet is free (docs/storage.md).

Hot path: see docs/performance.md.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Generic, TypeVar

from leveret.storage.message import Message
from leveret.storage.queues.backing_queue import BackingQueue, Fetched
from leveret.storage.queues.sub_queues import SubQueues

Level = TypeVar("Level", bound=BackingQueue)

_LEVEL_BITS = 8
_LEVEL = (1 << _LEVEL_BITS) - 1
_STEP = 1 << _LEVEL_BITS
_QID_BITS = 56


def level_qid(qid: int, level: int) -> int:
    """The id under which a level of a queue is stored."""
    return level << _QID_BITS | qid


def queue_qid(qid: int) -> int:
    """The id of the queue that stores a level, or itself, under this one."""
    return qid & ((1 << _QID_BITS) - 1)


def _never() -> None:
    """Nobody wants to know."""


class PriorityQueue(Generic[Level]):
    """A `BackingQueue` that gives the most urgent messages first.

    Args:
        make_level: makes what keeps the messages of a level, by its number.
        priority_of: the priority (0 to 255) that the content of a message asks for.
        max_priority: the highest level; whatever asks for more gets that.
        qid: the id under which level 0 is stored, if levels are.

    """

    __slots__ = (
        "_counts_returns",
        "_filled",
        "_lazy",
        "_make_level",
        "_priority_of",
        "expiring",
        "levels",
        "max_priority",
        "on_loaded",
        "qid",
        "ready_count",
    )

    def __init__(
        self,
        make_level: Callable[[int], Level],
        priority_of: Callable[[bytes], int],
        max_priority: int,
        qid: int = 0,
    ) -> None:
        self._make_level = make_level
        self._priority_of = priority_of
        self.max_priority = max_priority
        self.qid = qid
        self.on_loaded: Callable[[], object] = _never
        self.levels: dict[int, Level] = {}
        """Those that ever had a message."""
        self.ready_count = 0
        self.expiring = False
        self._lazy = False
        self._counts_returns = False
        self._filled = 0
        """Bit n: level n has ready messages."""

    # -- levels -----------------------------------------------------------------------------------------------------

    def level(self, number: int) -> Level:
        """A level, made if there is none yet. Who changes it from outside owes a `recount`."""
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
        """The level that is stored under an id; as `level`."""
        return self.level(qid >> _QID_BITS)

    def recount(self) -> None:
        """Ask the levels what is ready, and whether it may expire."""
        self.expiring = any(queue.expiring for queue in self.levels.values())
        self.ready_count = sum([queue.ready_count for queue in self.levels.values()])
        self._filled = sum([1 << number for number, queue in self.levels.items() if queue.ready_count])

    def narrow(self, queue: BackingQueue) -> None:
        """Have the head be that of one level, and count what that has, until `recount`."""
        self.ready_count = queue.ready_count
        self._filled = sum([1 << number for number, level in self.levels.items() if level is queue])

    def _loaded(self) -> None:
        """A level has read something; what was damaged is not ready any more."""
        self.recount()
        self.on_loaded()

    def _levels_of(self, messages: Iterable[Message]) -> list[int]:
        priority_of, highest = self._priority_of, self.max_priority
        levels = [priority_of(message.content) for message in messages]
        if max(levels, default=0) > highest:
            return [min(level, highest) for level in levels]
        return levels

    def _by_level(self, seq_ids: Iterable[int]) -> Iterator[tuple[int, Level, list[int]]]:
        """Levels, and the seq_ids that they know messages by."""
        split: dict[int, list[int]] = {}
        for seq_id in seq_ids:
            level = seq_id & _LEVEL
            own = split.get(level)
            if own is None:
                split[level] = [seq_id >> _LEVEL_BITS]
            else:
                own.append(seq_id >> _LEVEL_BITS)
        for level, own in split.items():
            yield level, self.levels[level], own

    # -- counts -----------------------------------------------------------------------------------------------------

    @property
    def unacked_count(self) -> int:
        """Messages fetched with `ack_required` and neither acked nor requeued yet."""
        return sum([queue.unacked_count for queue in self.levels.values()])

    @property
    def damaged(self) -> int:
        """How often something of any level could not be read from disk any more."""
        return sum([queue.damaged for queue in self.levels.values()])

    @property
    def lost_octets(self) -> int:
        """Octets of the bodies of messages of any level that were ready and could not be read any more."""
        return sum([queue.lost_octets for queue in self.levels.values()])

    @property
    def loading(self) -> bool:
        """Whether messages of any level are being read from disk."""
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

        Returns none if the head is being read from disk, whatever lower levels have.
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
        """Go on with lower levels, where what they have was not delivered before and is in memory."""
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
    def head_is_new(self) -> bool:
        """Whether the next message is in memory and was never delivered."""
        return bool(self._filled) and self.levels[self._filled.bit_length() - 1].head_is_new

    def head_expires(self) -> int | None:
        """When the next message expires (epoch ms), 0 for never; None if it is being read, or there is none."""
        if not self._filled:
            return None
        return self.levels[self._filled.bit_length() - 1].head_expires()

    def head_run(self, now: int, limit: int) -> tuple[int, bool]:
        """How many messages from the head on have all expired by `now` or all not, and which; of its level only."""
        if not self._filled:
            return 0, False
        return self.levels[self._filled.bit_length() - 1].head_run(now, limit)

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

    def ack(self, seq_ids: Collection[int], *, moved: bool = False) -> None:
        """Forget fetched messages for good; `moved`: they live on as others published in this turn."""
        for _, queue, own in self._by_level(seq_ids):
            queue.ack(own, moved=moved)

    def requeue(self, seq_ids: Collection[int]) -> None:
        """Put fetched messages back to their original positions in their levels, marked redelivered."""
        for level, queue, own in self._by_level(seq_ids):
            queue.requeue(own)
            self._filled |= 1 << level
        self.ready_count += len(seq_ids)

    def unacked_messages(self, seq_ids: Iterable[int]) -> tuple[list[tuple[int, Message]], list[int]]:
        """Unacked messages with their bodies, in the order asked for, and the seq_ids of those that are being read."""
        asked = list(seq_ids)
        found: dict[int, Message] = {}
        missing: list[int] = []
        for level, queue, own in self._by_level(asked):
            there, away = queue.unacked_messages(own)
            found.update([(seq_id << _LEVEL_BITS | level, message) for seq_id, message in there])
            missing += _numbered(away, level)
        return [(seq_id, found[seq_id]) for seq_id in asked if seq_id in found], missing

    def ready_octets(self) -> Iterator[int]:
        """Octets of the bodies of all messages that are ready now, in summands."""
        return chain.from_iterable([queue.ready_octets() for queue in self.levels.values()])

    def count_returns(self, *, counted: bool) -> None:
        """Have it known how often messages had come back that are read from disk, or no longer."""
        self._counts_returns = counted
        for queue in self.levels.values():
            queue.count_returns(counted=counted)

    def note_returns(self, counts: Mapping[int, int]) -> None:
        """Unacked messages are about to come back, so often by now: those that survive a restart will know it."""
        for level, queue, own in self._by_level(counts):
            queue.note_returns({seq_id: counts[seq_id << _LEVEL_BITS | level] for seq_id in own})

    def take_returns(self, seq_ids: Collection[int]) -> dict[int, int]:
        """How often messages that have just been fetched had come back before the start: those that had."""
        found: dict[int, int] = {}
        for level, queue, own in self._by_level(seq_ids):
            for seq_id, count in queue.take_returns(own).items():
                found[seq_id << _LEVEL_BITS | level] = count
        return found

    def set_lazy(self, *, lazy: bool) -> None:
        """Keep as little as possible in memory, or no longer."""
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
        """The queue goes, with its unacked messages."""
        for queue in self.levels.values():
            queue.delete()
        self.ready_count = self._filled = 0
        self.on_loaded = _never  # or it would keep its owner, who keeps it


def _runs(messages: Collection[Message], levels: list[int]) -> dict[int, list[Message]]:
    """Messages by level, each in order."""
    if levels and levels.count(levels[0]) == len(levels):
        return {levels[0]: list(messages)}
    runs: dict[int, list[Message]] = {}
    for message, level in zip(messages, levels, strict=True):
        run = runs.get(level)
        if run is None:
            runs[level] = [message]
        else:
            run.append(message)
    return runs


def _numbered(seq_ids: Sequence[int], level: int) -> Sequence[int]:
    """The seq_ids of a level as those of the queue."""
    if type(seq_ids) is range:
        return range(seq_ids.start << _LEVEL_BITS | level, seq_ids.stop << _LEVEL_BITS | level, _STEP)
    return [seq_id << _LEVEL_BITS | level for seq_id in seq_ids]


def _interleaved(given: dict[int, Sequence[int]], levels: list[int]) -> Sequence[int]:
    """The seq_ids that levels gave to messages, in the order of the messages."""
    if len(given) == 1:
        return next(iter(given.values()))
    taken = {level: iter(seq_ids) for level, seq_ids in given.items()}
    return [next(taken[level]) for level in levels]


def transitions_of(backing: BackingQueue) -> dict[str, int]:
    """How many messages have changed their state in memory and on disk, by kind (`storage.queues.sub_queues`)."""
    found: dict[str, int] = {}
    for part in parts((backing,)):
        if isinstance(part, SubQueues) and part.transitions is not None:
            for transition, count in part.transitions.items():
                found[transition] = found.get(transition, 0) + count
    return found


def parts(backings: Iterable[BackingQueue]) -> Iterator[BackingQueue]:
    """What keeps messages itself: backing queues as they are, of priority queues the levels."""
    for backing in backings:
        if isinstance(backing, PriorityQueue):
            yield from backing.levels.values()
        else:
            yield backing
