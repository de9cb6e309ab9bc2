"""Streams: queues that keep their messages, and whose consumers read them from any offset.

Theory. The messages are in a `StreamLog`, which readers only look at. A consumer has a `Reader` with the offset that it
gets next; an ack only makes room for another delivery, and nothing that a consumer does concerns the others. Among
consumers that have room, and for which there are messages, each gets a share in turn.

What does not exist for a stream is refused by the protocol's methods, or by the operation of an administrator. Of the
limits of other queues it has held messages, which are appended at their time, and ids, which are known for a time from
the publish. Retention is applied when messages come, and when the settings change.

Hot path: see docs/performance.md.
"""

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, NamedTuple

from leveret.broker.amqp.properties import Properties
from leveret.broker.amqp.tables import Table, decode_value, strings, value_text
from leveret.broker.errors import not_implemented, precondition_failed, resource
from leveret.broker.queue.arguments import OFFSETS, TRACKING, age_ms
from leveret.broker.queue.consumer import Consumer
from leveret.broker.queue.limits import QueueLimits
from leveret.broker.queue.queue import RUN_BUDGET, Queue
from leveret.broker.queue.settings import QueueSettings
from leveret.broker.queue.stream_consumer import Share, StreamConsumer
from leveret.storage.message import Message
from leveret.storage.queues.backing_queue import Fetched
from leveret.storage.queues.chunks import Chunk, message_of_copy
from leveret.storage.queues.stream_log import SEGMENT_OCTETS, StreamLog

log = logging.getLogger("leveret.queue")

SHARE = 256
"""Maximum number of messages that a consumer gets before others do."""
SEGMENTS = 8
"""A stream has at least about as many segments as this at its maximum size or age: retention is as exact."""
LEAST_MS = 1000  # of a segment
MOST_TAGS = 1000
"""Maximum number of consumer tags of which a stream keeps the offsets; others forget the one that is idle longest."""
_FILTER = b"x-stream-filter-value"


class Filter(NamedTuple):
    """Filter of a consumer: the values that it gets, and whether it gets messages without one."""

    values: frozenset[str]
    has_unfiltered: bool

    def keeps(self, mark: str | None) -> bool:
        """Return whether the consumer gets a message with this filter value."""
        return self.has_unfiltered if mark is None else mark in self.values


class Reader:
    """A consumer's place in a stream: the `offset` that it gets next; None while that is being found.

    `sent` has the delivery tag and the offset of what is perhaps unacked, if the stream keeps the consumer's offset.
    """

    __slots__ = ("filter", "offset", "requeued", "returned", "sent")

    def __init__(self, offset: int | None, filter_: Filter | None, *, is_kept: bool) -> None:
        self.offset = offset
        self.filter = filter_
        self.sent: deque[tuple[int, int]] | None = deque() if is_kept else None
        self.returned = 0  # that of the consumer, as it was
        self.requeued = inf  # first offset that it gave back: the next consumer continues there


class StreamLimits(QueueLimits):
    """The held messages and ids of a stream, whose log applies its limit in bytes."""

    __slots__ = ()

    def configure(self, settings: QueueSettings) -> None:
        """Apply changed settings; see `QueueLimits.configure`."""
        super().configure(replace(settings, max_octets=None))


class StreamQueue(Queue):
    """A stream; the arguments are those of `Queue`. `log` keeps its messages."""

    consumer_class = StreamConsumer
    limits_class = StreamLimits
    __slots__ = ("_kept", "_readers", "log")

    def __init__(self, name: str, vhost: str, backing: StreamLog, *args: Any, **options: Any) -> None:
        super().__init__(name, vhost, backing, *args, **options)
        self.log = backing
        self.no_pause_until = inf  # a publisher never waits for readers
        self._readers: dict[Consumer, Reader] = {}
        self._kept: dict[Consumer, Reader] = {}  # those whose offsets are kept

    # -- the turn -----------------------------------------------------------------------------------------------

    def run(self) -> bool:
        """Append arrivals and deliver messages; return true if the budget was used up before all was done."""
        consumers, log = self.consumers, self.log
        if consumers.cancelled:
            consumers.sweep()
        acks = self.acks
        if acks:
            self.acked += len(acks)
            log.unacked_count -= len(acks)
            acks.clear()
        for consumer in self._kept:
            self._keep_offset(consumer)
        inbox = self.inbox
        if inbox:
            self.published += len(inbox)
            log.publish(inbox, expires=self._now())
            inbox.clear()
            self.inbox_persistent = False
            if len(log.segments) > 1:
                self._retain()
        if self.limits is not None and self.limits.ids is not None:
            self.limits.ids.note()
        more = bool(consumers.ready) and self._deliver_some()
        log.trim(
            min(
                [reader.offset for reader in self._readers.values() if reader.offset is not None], default=inf
            )
        )
        if self.run_listeners:
            self._notify_listeners()
        return more

    def _now(self) -> int:
        return 0 if self._parent is None else self._parent.context.clock()

    def _deliver_some(self) -> bool:
        """Deliver to the consumers that have room; return true if the budget was used up first."""
        ready = self.consumers.ready
        budget, idle = RUN_BUDGET, 0
        while idle < len(ready):
            if budget <= 0:
                return True
            consumer = ready[0]
            room = consumer.room
            if room <= 0:
                self.consumers.park_first()
                continue
            reader = self._readers[consumer]
            found = self._next_share(reader, min(room, SHARE))
            if found is None:
                ready.rotate(-1)
                idle += 1
                continue
            considered, batch = found
            idle = 0
            budget -= considered
            if batch.messages:
                if not consumer.no_ack:
                    self.log.unacked_count += len(batch.messages)
                first = consumer.channel.delivery_tag + 1
                self.deliver_to((consumer,), batch)
                if reader.sent is not None:
                    reader.sent += enumerate(batch.seq_ids, first)
        return False

    def _next_share(self, reader: Reader, most: int) -> tuple[int, Fetched] | None:
        """Return how many messages were considered, and those of them that a reader gets; None if it has to wait."""
        log = self.log
        if reader.offset is None:
            return None
        offset = max(reader.offset, log.first)
        chunk = log.chunk(offset)
        if chunk is None:
            return None
        offsets = chunk.offsets
        start = bisect_left(offsets, offset)  # there may be gaps
        if reader.filter is None:
            stop = min(len(offsets), start + most)
            share = Share(chunk.copies[start:stop], chunk.shape, chunk.largest)
            found = Fetched(offsets[start:stop], share, redelivered=False)
        else:
            stop, found = _filtered(chunk, start, most, reader.filter)
        reader.offset = offsets[stop] if stop < len(offsets) else chunk.stop
        if 2 * stop > len(offsets) or stop - start >= SHARE // 2:
            log.read_ahead(chunk.stop)
        return stop - start + 1, found

    def give_up(self) -> None:
        """Recover from an internal error: refuse arrivals that were not appended."""
        self.log.unacked_count -= len(self.acks)
        self.acks.clear()
        super().give_up()

    # -- settings -------------------------------------------------------------------------------------------------

    def configure(self, settings: QueueSettings) -> None:
        """Apply settings: those of retention, holds and ids."""
        self.settings = settings
        if settings.holds or settings.deduplicate is not None:
            self._need_limits()
        if self.limits is not None:
            self.limits.configure(settings)
            self.touch()
        octets = settings.segment_octets or SEGMENT_OCTETS
        if settings.max_octets is not None:
            octets = min(octets, settings.max_octets // SEGMENTS + 1)
        self.log.segment_octets = min(octets, SEGMENT_OCTETS)
        self.log.segment_ms = inf if settings.max_age is None else max(LEAST_MS, settings.max_age // SEGMENTS)
        self._retain()

    def _retain(self) -> None:
        most, age = self.settings.max_octets, self.settings.max_age
        if most is not None or age is not None:
            before = self.log.first
            self.log.retain(inf if most is None else most, -inf if age is None else self._now() - age)
            self.tally.dropped += self.log.first - before

    def recovered(self) -> None:
        """Apply retention to the messages of an earlier run."""
        self._retain()

    # -- consumers ------------------------------------------------------------------------------------------------

    def check_consumer(self, tag: str | None, arguments: Table) -> None:
        """Raise 406 if the offset of the consumer is to be kept and cannot be; see `Queue.check_consumer`."""
        if not _keeps_offset(arguments):
            return
        what = f"for stream {resource('queue', self.name, self.vhost)}"
        if not tag:
            raise precondition_failed(f"{TRACKING} needs a consumer tag {what}")
        if len({each.tag for each in self._kept} | {tag}) > MOST_TAGS:
            raise precondition_failed(f"{TRACKING} {what}: it keeps offsets of {MOST_TAGS} consumers already")

    def _keep_offset(self, consumer: Consumer) -> None:
        """Keep the offset up to which a consumer has settled all that it was sent."""
        reader, channel = self._kept[consumer], consumer.channel
        for tx in (channel.tx, channel.committing):
            if tx is not None and tx.has_settlements:  # they may be rolled back, or requeued by it
                return
        sent, unacked = reader.sent, channel.unacked
        if not sent or reader.offset is None:
            return
        while sent and sent[0][0] not in unacked:
            sent.popleft()
        if len(sent) > 2 * consumer.prefetch_count + SHARE:  # the first one has long been unacked
            reader.sent = sent = deque([each for each in sent if each[0] in unacked])
        reached = min(sent[0][1] if sent else reader.offset, reader.requeued)
        # another consumer with the tag may be ahead, if this one hangs
        if reached > self.log.offsets.by_tag.get(consumer.tag, -1):
            self._forget_offsets(consumer.tag)
            self.log.offsets.reach(consumer.tag, int(reached))

    def _forget_offsets(self, tag: str) -> None:
        """Make room for the offset of a consumer."""
        offsets = self.log.offsets
        while tag not in offsets.by_tag and len(offsets.by_tag) >= MOST_TAGS:
            active = {each.tag for each in self._kept}
            idle = next(each for each in offsets.by_tag if each not in active)
            log.warning(
                "%s: the offset of consumer tag '%s', %d, was forgotten, because it keeps those of %d tags",
                resource("queue", self.name, self.vhost),
                idle,
                offsets.by_tag[idle],
                MOST_TAGS,
            )
            offsets.forget(idle)

    def add_consumer(self, consumer: Consumer) -> None:
        """Add a consumer at the offset that its (valid) arguments ask for; see `Queue.add_consumer`."""
        is_kept = _keeps_offset(consumer.arguments)
        reader = self._readers[consumer] = Reader(None, _filter_of(consumer.arguments), is_kept=is_kept)
        kind, value = consumer.arguments.get("x-stream-offset", ("longstr", "first" if is_kept else "next"))
        log = self.log
        if is_kept:
            self._kept[consumer] = reader
        if is_kept and consumer.tag in log.offsets.by_tag:
            reader.offset = max(log.offsets.by_tag[consumer.tag], log.first)
        elif kind == "timestamp":
            log.find_time(consumer, 1000 * int(value), partial(self._found, consumer))
        elif isinstance(value, int):
            is_4 = self._parent is not None and self._parent.compatibility.arguments == "4.3"
            reader.offset = max(value if value >= 0 or is_4 else log.next_seq + value, log.first)
        elif (named := value_text((kind, value))) in _NAMED:
            reader.offset = max(getattr(log, _NAMED[named]), log.first)
        else:
            log.find_time(consumer, self._now() - age_ms(str(value)), partial(self._found, consumer))
        super().add_consumer(consumer)

    def _found(self, consumer: Consumer, offset: int) -> None:
        reader = self._readers.get(consumer)
        if reader is not None:
            reader.offset = offset

    def remove_consumer(self, consumer: Consumer) -> None:
        """Remove a consumer; see `Queue.remove_consumer`. What it settles later is not in its offset."""
        self._kept.pop(consumer, None)
        self._readers.pop(consumer, None)
        self.log.give_up_search(consumer)
        super().remove_consumer(consumer)

    def unpause(self) -> None:
        """Resume deliveries after `pause`; no effect if the queue is not paused."""
        super().unpause()
        self.no_pause_until = inf

    # -- exact operations -----------------------------------------------------------------------------------------

    def requeue(self, seq_ids: Collection[int], *, moved: bool = False, failed: bool = True) -> None:
        """Take deliveries back: they are in the stream, and only make room."""
        del moved, failed
        self._returned(min(seq_ids, default=inf))
        self._settled(seq_ids)

    def discard(self, seq_ids: Collection[int], *, moved: bool = False) -> None:
        """Take rejected deliveries back, which count as acked."""
        del moved
        self._returned(inf)
        self._settled(seq_ids)

    def _returned(self, first: float) -> None:
        """Take note of consumers that have given deliveries back, from an offset on at most."""
        for consumer, reader in self._kept.items():
            if consumer.returned != reader.returned:
                reader.returned = consumer.returned
                reader.requeued = min(reader.requeued, first)

    def ack_moved(self, keys: Collection[int]) -> None:
        """Take acks that are committed with a transaction."""
        self.acked += len(keys)
        self._settled(keys)

    def _settled(self, seq_ids: Collection[int]) -> None:
        if not self.deleted:
            self.log.unacked_count -= len(seq_ids)
            self.touch()

    def get(self, *, no_ack: bool) -> Fetched | None:
        """Raise 540: messages are read by consumers only."""
        del no_ack
        raise not_implemented(
            f"basic.get not supported by stream queues {resource('queue', self.name, self.vhost)}"
        )

    def purge(self) -> int:
        """Raise 540: only retention deletes messages."""
        raise not_implemented(
            f"queue.purge not supported by stream queues {resource('queue', self.name, self.vhost)}"
        )

    def delete(self, *, discards: bool = True) -> list[Consumer]:
        """Delete the stream; see `Queue.delete`."""
        self._readers.clear()
        self._kept.clear()
        return super().delete(discards=discards)


_NAMED = dict(zip(OFFSETS, ("first", "last_batch", "next_seq"), strict=True))
"""The attribute of the log for each name of an offset."""


def _filtered(chunk: Chunk, start: int, most: int, wanted: Filter) -> tuple[int, Fetched]:
    """Return where a search for messages from `start` on has ended, and those found: at most so many."""
    if chunk.marks is None:
        chunk.marks = [_mark_of(message_of_copy(copy)) for copy in chunk.copies]
    places: list[int] = []
    at, keeps = start, wanted.keeps
    for at, mark in enumerate(chunk.marks[start:], start):
        if keeps(mark):
            places.append(at)
            if len(places) == most:
                break
    stop = at + 1 if places and len(places) == most else len(chunk.offsets)
    share = Share([chunk.copies[at] for at in places], chunk.shape, chunk.largest)
    return stop, Fetched([chunk.offsets[at] for at in places], share, redelivered=False)


def _mark_of(message: Message) -> str | None:
    """Return the filter value of a message; None if it has none."""
    value = Properties(message.header).split_headers().get(_FILTER)
    return None if value is None else str(decode_value(value)[1])


def _keeps_offset(arguments: Table) -> bool:
    """Return whether the stream is to keep the offset of a consumer with these arguments."""
    return arguments.get(TRACKING) == ("bool", True)


def _filter_of(arguments: Table) -> Filter | None:
    """Return the filter of a consumer's arguments; None if it gets all messages, as with one that has no text."""
    wanted = arguments.get("x-stream-filter")
    if wanted is None:
        return None
    kind, value = wanted
    values = (str(value),) if kind == "longstr" else strings(wanted)
    if not values:
        return None
    return Filter(frozenset(values), arguments.get("x-stream-match-unfiltered") == ("bool", True))
