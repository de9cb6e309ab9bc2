"""Transactions of a channel: they collect publishes and settlements until `tx.commit` or `tx.rollback`.

Both take a piece at a time. The channel passes itself to them: a transaction that kept a reference to it would make a
cycle, which only the garbage collector frees.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from leveret.broker.channel.settlement import (
    PIECE,
    Outcome,
    Record,
    Settlements,
    SettlingChannel,
    settle_records,
)
from leveret.broker.errors import NotYet
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.outbox import Outbox
from leveret.broker.vhost.fan_out import AT_ONCE, FanOut
from leveret.storage.large_table import fitting, large
from leveret.storage.message import Message


class TransactionalChannel(SettlingChannel, Protocol):
    """A channel, as its transactions see it."""

    outbox: Outbox
    settlements: Settlements

    def enqueue(
        self, queues: Sequence[Queue], message: Message, *, mandatory: bool, persistent: bool
    ) -> bool:
        """Pass a message to its queues, or return it to the publisher; returns False if a queue refuses it."""


class Transaction:
    """Publishes and settlements of a transactional channel that are not committed yet, or are being committed."""

    __slots__ = ("_is_handed_over", "_is_whole", "_steps", "octets", "publishes", "settled")

    def __init__(self) -> None:
        self.publishes: list[tuple[Sequence[Queue], Message, bool, bool]] = []
        """Queues, message, mandatory, persistent."""
        self.settled: list[tuple[int, Record, Outcome]] = []
        """Delivery tag, record and outcome."""
        self.octets = 0
        """Total size of the contents of the publishes, in bytes."""
        self._steps: Iterator[bool] | None = None
        """The remaining steps of its commit, once that has begun."""
        self._is_handed_over = False
        """True once everything was passed to the queues; those that are deferred have not journaled it yet."""
        self._is_whole = True
        """False if a queue has refused a message."""

    def publish(
        self, queues: Sequence[Queue], message: Message, *, mandatory: bool, persistent: bool
    ) -> None:
        """Add a publish."""
        self.publishes.append((queues, message, mandatory, persistent))
        self.octets += len(message.content)

    def settle(self, deliveries: Sequence[tuple[int, Record]], outcome: Outcome) -> None:
        """Add the settlement of deliveries that are no longer unacked, given by delivery tag and record."""
        self.settled += [(tag, record, outcome) for tag, record in deliveries]

    # -- commit -----------------------------------------------------------------------------------------------------

    def commit(self, channel: TransactionalChannel) -> bool:
        """Execute the publishes, then the settlements; returns False if a queue has refused a message.

        Raises NotYet until all of it is journaled: the caller calls again. Large transactions are committed in pieces:
        others may see a part of one, as in RabbitMQ.
        """
        turn = channel.outbox.turn
        if self._steps is None:
            self._steps = self._commit(channel)
        for is_waiting in self._steps:
            if is_waiting:
                raise NotYet(turn.when_caught_up)
            if turn.slices.is_over():
                raise NotYet(turn.slices.later)
        if not self._is_handed_over:
            self._is_handed_over = True
            if turn.run() or turn.has_deferred_input:  # its queues may have been deferred because of others
                raise NotYet(turn.when_caught_up)
        for line in turn.settling:
            raise NotYet(line.when_done)
        return self._is_whole

    def finish_commit(self) -> Iterator[None]:
        """Execute the rest of a commit that has begun, a piece at a time; nothing is reported."""
        for _ in self._steps or ():
            yield

    def _commit(self, channel: TransactionalChannel) -> Iterator[bool]:
        """Execute it in pieces, and release each at once: to free a million takes time, too.

        Yields true if it waits for deferred queues.
        """
        publishes, settled = self.publishes, self.settled
        publishes.reverse()
        while publishes:
            queues, message, mandatory, persistent = publishes.pop()
            left = [queue for queue in queues if not queue.deleted]
            if len(left) > AT_ONCE:
                fan_out = FanOut(channel.outbox.turn, left, message, None, persistent=persistent)
                while fan_out.has_input:
                    yield True
                is_taken = fan_out.is_taken
            else:
                is_taken = channel.enqueue(left, message, mandatory=mandatory, persistent=persistent)
            if not is_taken:
                self._is_whole = False
            yield False
        by_outcome: dict[Outcome, deque[Record]] = {None: deque(), False: deque(), True: deque()}
        settled.reverse()
        while settled:
            for _ in range(min(PIECE, len(settled))):
                _, record, outcome = settled.pop()
                by_outcome[outcome].append(record)
            yield False
        for outcome, records in by_outcome.items():
            while records:
                settle_records(channel, [records.popleft() for _ in range(min(PIECE, len(records)))], outcome)
                yield False

    # -- rollback ---------------------------------------------------------------------------------------------------

    def roll_back(self, channel: TransactionalChannel) -> Iterator[None]:
        """Drop the publishes and make the settled deliveries unacked again, a piece at a time."""
        while self.publishes:
            del self.publishes[-PIECE:]
            yield
        self.octets = 0
        if not self.settled:
            return
        channel.settlements.restored()
        channel.unacked = restored = large(channel.unacked)
        while self.settled:
            restored.update([(tag, record) for tag, record, _ in self.settled[-PIECE:]])
            del self.settled[-PIECE:]
            yield
        yield from restored.sort()
        channel.unacked = fitting(restored)
