"""Settles deliveries of a channel: acks, nacks, rejects and recovery, one at a time or many in pieces.

Theory. The unacked deliveries are a table of the channel (`Channel.unacked`), because deliveries are added to it and
single acks removed from it on the hot path. Everything else that is settled comes here. Tags are assigned in ascending
order, so `multiple` covers the oldest: they are found from a lower bound of the tags, not by iterating over the table.

The channel passes itself to each call: an object that kept a reference to it would make a cycle, which only the garbage
collector frees.

Hot path: see docs/performance.md.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter
from types import TracebackType
from typing import Self

from leveret.broker.channel.interfaces import FAILED, Outcome, Record, SettlingChannel
from leveret.broker.channel.late_settlement import Receiver
from leveret.broker.errors import AMQPError, precondition_failed
from leveret.broker.queue.interfaces import OwningQueue
from leveret.broker.queue.queue import Queue

_consumer_of = itemgetter(0)  # of a record
PIECE = 1024  # number of deliveries settled between two checks of the time
End = Callable[[Queue, Sequence[int], Outcome], object]
"""Has messages leave the unacked ones of their queue, which may be their end (`Transaction.end`)."""


class Suspension:
    """Context manager: the queues added to it deliver nothing until its end.

    A queue to which messages are requeued in pieces delivers nothing before all of them are back; otherwise younger
    messages would be delivered first.
    """

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: dict[OwningQueue, None] = {}

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for queue in self._queues:
            queue.resume()

    def add(self, queues: Iterable[OwningQueue]) -> None:
        """Suspend queues, except those that were added before."""
        for queue in dict.fromkeys(queues):
            if queue not in self._queues:
                self._queues[queue] = None
                queue.suspend()


class Settlements:
    """The settlements of one channel; `steps` are those of the last one that took several, perhaps exhausted."""

    __slots__ = ("_first_tag", "steps")

    def __init__(self) -> None:
        self._first_tag = 1  # lower bound of the unacked delivery tags
        self.steps: Iterator[None] | None = None

    def settle(
        self, channel: SettlingChannel, delivery_tag: int, outcome: Outcome, *, multiple: bool
    ) -> None:
        """Settle one or several deliveries (tag 0: all); raise 406 if the tag is not outstanding."""
        if not multiple:
            record = channel.unacked.pop(delivery_tag, None)
            if record is None:
                raise _unknown_tag(delivery_tag)
            _settle_taken(channel, [(delivery_tag, record)], outcome)
            return
        last = delivery_tag or channel.delivery_tag
        if delivery_tag and delivery_tag not in channel.unacked:
            raise _unknown_tag(delivery_tag)
        taken = self._take_oldest(channel, last)
        if self._has_unacked_until(channel, last):
            self.run(channel, self._settle_until(channel, last, taken, outcome))
        else:
            _settle_taken(channel, taken, outcome)

    def run(self, channel: SettlingChannel, steps: Iterator[None], reply: bytes = b"") -> None:
        """Run the steps of a settlement or rollback as time allows, then send the reply."""
        self.steps = steps
        channel.host.run_in_slices(channel.number, steps, reply)

    def finish(self) -> Iterator[None]:
        """Complete what was begun, a piece at a time."""
        if self.steps is not None:
            yield from self.steps
            self.steps = None

    def requeue_all(self, channel: SettlingChannel, outcome: Outcome) -> Iterator[None]:
        """Requeue all unacked deliveries, a piece at a time, given back or failed."""
        last = channel.delivery_tag
        with Suspension() as suspension:
            while self._has_unacked_until(channel, last):
                taken = self._take_oldest(channel, last)
                if self._has_unacked_until(channel, last):
                    suspension.add(consumer.queue for _, (consumer, _) in taken)
                _requeue(channel, [record for _, record in taken], outcome)
                if suspension:
                    yield

    def restored(self) -> None:
        """Take account of settled deliveries that a rollback has made unacked again."""
        self._first_tag = 1

    def _take_oldest(self, channel: SettlingChannel, last: int) -> list[tuple[int, Record]]:
        """Remove some of the oldest deliveries up to a tag from the unacked table, in order."""
        unacked, first = channel.unacked, self._first_tag
        if last - first > 4 * len(unacked):
            tags: Sequence[int] = [tag for tag in islice(unacked, PIECE) if tag <= last]  # they are in order
            end = tags[-1] if len(tags) == PIECE else last
        else:
            # Not by iterating over the dict: entries removed from its front slow down each later iteration.
            end = min(last, first + PIECE - 1)
            tags = range(first, end + 1)
        self._first_tag = max(first, end + 1)
        taken = []
        for tag in tags:
            record = unacked.pop(tag, None)
            if record is not None:
                taken.append((tag, record))
        return taken

    def _has_unacked_until(self, channel: SettlingChannel, last: int) -> bool:
        return self._first_tag <= last and bool(channel.unacked)

    def _settle_until(
        self, channel: SettlingChannel, last: int, taken: list[tuple[int, Record]], outcome: Outcome
    ) -> Iterator[None]:
        with Suspension() as suspension:
            while taken or self._has_unacked_until(channel, last):
                if outcome and channel.tx is None:
                    suspension.add(consumer.queue for _, (consumer, _) in taken)
                _settle_taken(channel, taken, outcome)
                yield
                taken = self._take_oldest(channel, last)


def settle_records(
    channel: SettlingChannel, records: Sequence[Record], outcome: Outcome, end: End | None = None
) -> None:
    """Settle deliveries in their queues, and give the consumers their credit; `end`: as their transaction has it."""
    if outcome:
        _requeue(channel, records, outcome, end)
        return
    if outcome is None:
        channel.acked += len(records)
    settled: dict[Receiver, None] = {}
    for consumer, run in groupby(records, _consumer_of):
        settled[consumer] = None
        seq_ids = [seq_id for _, seq_id in run]
        if outcome is None:
            consumer.unacked -= len(seq_ids)
        else:
            consumer.give_back(len(seq_ids))
        if end is not None:
            end(consumer.queue, seq_ids, outcome)
        elif outcome is None:
            consumer.queue.acks += seq_ids
        else:
            consumer.queue.discard(seq_ids)
    _credit(channel, settled)  # first, so that queues run in the order in which their consumers wake
    for consumer in settled:
        consumer.queue.touch()


def _settle_taken(channel: SettlingChannel, taken: list[tuple[int, Record]], outcome: Outcome) -> None:
    if channel.tx is not None:
        channel.tx.settle(taken, outcome)
    else:
        settle_records(channel, [record for _, record in taken], outcome)


def _requeue(
    channel: SettlingChannel, records: Sequence[Record], outcome: Outcome, end: End | None = None
) -> None:
    by_queue: dict[Queue, list[int]] = {}
    returned: dict[Receiver, None] = {}
    for consumer, run in groupby(records, _consumer_of):
        returned[consumer] = None
        seq_ids = [seq_id for _, seq_id in run]
        consumer.give_back(len(seq_ids))
        by_queue.setdefault(consumer.queue, []).extend(seq_ids)
    for queue, seq_ids in by_queue.items():
        if end is not None:
            end(queue, seq_ids, outcome)
        else:
            queue.requeue(seq_ids, failed=outcome == FAILED)
    _credit(channel, returned)


def _credit(channel: SettlingChannel, consumers: Iterable[Receiver]) -> None:
    if channel.global_prefetch:
        channel.wake_consumers()
    else:
        for consumer in consumers:
            consumer.wake()


def _unknown_tag(delivery_tag: int) -> AMQPError:
    return precondition_failed(f"unknown delivery tag {delivery_tag}")
