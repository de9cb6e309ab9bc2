"""Transactions of a channel: they collect publishes and settlements until `tx.commit` or `tx.rollback`.

Both take a piece at a time. The channel passes itself to them: a transaction that kept a reference to it would make a
cycle, which only the garbage collector frees.

Theory. A transaction is one commit of the journal, as a dead letter with the end of its original is
(`broker.vhost.dead_lettering`):

- Very large bodies are written to files of their own first: nothing takes effect before, and a crash leaves only files
  to which nothing refers.
- From its first piece to its last no commit begins (`Turn.is_split`). The pieces run as jobs, whatever its connection
  waits for, and their number is limited (`MOST_OPERATIONS`).
- If it publishes anything that is stored, the messages that it ends have moved: a full disk has their ends with the
  records of what was published, or neither.
- A publisher that still waits for the confirm of a message that it ends waits for this commit (`Queue.join`).

Dead letters of rejected messages, and acked messages that their queue retains, may follow in a later commit. They are
in exactly one of the two places.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

from leveret.broker.amqp.fastpath import split_address
from leveret.broker.amqp.properties import may_expire
from leveret.broker.channel.interfaces import FAILED, Outcome, Record, SettlingChannel
from leveret.broker.channel.settlement import PIECE, settle_records
from leveret.broker.errors import NoResourceError, NotYet, no_disk_space, precondition_failed
from leveret.broker.queue.interfaces import DelayDisk
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.turn import Turn
from leveret.broker.vhost.copies import AT_ONCE, is_stored_by, saved_among
from leveret.broker.vhost.delay_line import DelayLine
from leveret.confirm.promise import Promise
from leveret.storage.large_table import fitting, large
from leveret.storage.message import Message, Persistent

MOST_OPERATIONS = 100_000  # most settlements, and publishes, each counted once per queue
Publishes = list[tuple[Sequence[Queue], Message, bool, bool]]  # queues, message, mandatory, persistent
NO_EFFECT = "nothing of the transaction took effect"


class Transaction:
    """Publishes and settlements of a transactional channel that are not committed yet, or are being committed."""

    __slots__ = (
        "_copies",
        "_fault",
        "_files",
        "_is_handed_over",
        "_is_settling",
        "_is_stored",
        "_is_waiting",
        "_is_whole",
        "_joined",
        "_largest",
        "_steps",
        "octets",
        "publishes",
        "settled",
    )

    def __init__(self) -> None:
        self.publishes: Publishes = []
        self.settled: list[tuple[int, Record, Outcome]] = []  # delivery tag, record and outcome
        self.octets = 0  # total size of the contents of the publishes, in bytes
        self._copies = 0  # number of queues of each publish, added up; at least one each
        self._largest = 0  # size of the largest content, in bytes
        self._files: BodyFiles | None = None  # the files of very large bodies, if any, from `tx.commit` on
        self._steps: Iterator[bool] | None = None  # the remaining steps of its commit, once that has begun
        self._is_waiting = False  # True if the next one waits for deferred queues
        self._is_stored = False  # True if queues store some of its publishes
        self._joined: list[Promise] = []  # publishers of messages that it ends, who wait until it is safe
        self._fault: Exception | None = None  # an internal error in one of its steps
        self._is_handed_over = False
        """True once everything was passed to the queues; those that are deferred have not journaled it yet."""
        self._is_settling = False  # True while settlements of its commit are left
        self._is_whole = True  # False if a queue has refused a message, or was deleted before the commit

    def check_room(self, most: int | None) -> None:
        """Raise PRECONDITION_FAILED if there are `most` publishes, and so no room for another; None is no limit."""
        if most is not None and len(self.publishes) >= most:
            raise precondition_failed(f"transaction has reached the maximum of {most} uncommitted publishes")

    def publish(
        self, queues: Sequence[Queue], message: Message, *, mandatory: bool, persistent: bool
    ) -> None:
        """Add a publish."""
        self.publishes.append((queues, message, mandatory, persistent))
        size = len(message.content)
        self.octets += size
        self._copies += len(queues) or 1
        self._largest = max(self._largest, size)

    @property
    def has_settlements(self) -> bool:
        """True if deliveries are neither unacked nor settled, because of this transaction."""
        return bool(self.settled) or self._is_settling

    def settle(self, deliveries: Sequence[tuple[int, Record]], outcome: Outcome) -> None:
        """Add the settlement of deliveries that are no longer unacked, given by delivery tag and record."""
        self.settled += [(tag, record, outcome) for tag, record in deliveries]

    # -- commit -----------------------------------------------------------------------------------------------------

    def prepare(self, channel: SettlingChannel) -> None:
        """Write very large bodies to files of their own; nothing takes effect yet.

        Raises NotYet while they are being written (the caller calls again), NoResourceError if the transaction is too
        large, or there is no space for a file.
        """
        if self._files is None:
            count = self._copies + len(self.settled)
            if count > MOST_OPERATIONS:
                raise NoResourceError(
                    f"transaction has {count} publishes (one for each queue) and acknowledgements, more than "
                    f"{MOST_OPERATIONS}: {NO_EFFECT}"
                )
            disk = channel.vhost.disk
            if disk is None or self._largest < disk.blob_threshold:
                return
            bodies: list[Persistent] = []
            for at, (queues, message, mandatory, persistent) in enumerate(self.publishes):
                if needs_file(disk, queues, message, persistent=persistent):
                    copy = Persistent(message.address, message.content, message.channel_id, None, 0, 0)
                    self.publishes[at] = queues, copy, mandatory, persistent
                    bodies.append(copy)
            self._files = BodyFiles(disk, bodies)
        if self._files.has_no_room:
            raise no_disk_space(NO_EFFECT)
        if not self._files.are_written:
            raise NotYet(self._files.when_done)

    def commit(self, channel: SettlingChannel) -> bool:
        """Execute the publishes, then the settlements, after `prepare`; ids of what is settled end before both.

        Returns False if a queue has refused a message, or is deleted.

        Raises NotYet until all of it is journaled: the caller calls again. Large transactions are executed in pieces:
        others may see a part of one, as in RabbitMQ.
        """
        turn = channel.outbox.turn
        if self._steps is None:
            self._steps = self._commit(channel)
        if not self._advance(turn):
            raise NotYet(partial(self._later, turn))
        if self._fault is not None:
            raise self._fault
        if not self._is_handed_over:
            self._is_handed_over = True
            if turn.run() or turn.has_deferred_input:  # its queues may have been deferred because of others
                raise NotYet(turn.when_caught_up)
        for line in turn.settling:
            raise NotYet(line.when_done)
        return self._is_whole

    def _advance(self, turn: Turn) -> bool:
        for is_waiting in self._steps or ():
            if is_waiting or turn.slices.is_over():
                self._is_waiting = is_waiting
                return False
        return True

    def _later(self, turn: Turn, callback: Callable[[], object]) -> None:
        """Execute the remaining steps in later steps of the loop, then call back."""
        # Not when its connection is served again, which may wait for its client, or for the disk: commits wait for
        # this.
        subscribe = turn.when_caught_up if self._is_waiting else turn.slices.later
        subscribe(partial(self._go_on, turn, callback))

    def _go_on(self, turn: Turn, callback: Callable[[], object]) -> None:
        try:
            is_done = self._advance(turn)
        except Exception as error:  # noqa: BLE001 - a bug in the broker: raised where the method is executed again
            self._fault, is_done = error, True
        if is_done:
            callback()
        else:
            self._later(turn, callback)

    def finish_commit(self) -> Iterator[None]:
        """Execute the rest of a commit that has begun, a piece at a time; nothing is reported."""
        for _ in self._steps or ():
            yield

    def _commit(self, channel: SettlingChannel) -> Iterator[bool]:
        """Execute it in pieces, and release each at once; yields true if it waits for deferred queues."""
        turn, disk = channel.outbox.turn, channel.vhost.disk
        turn.transactions.add(self)
        try:
            yield from self._end_ids()
            yield from self._publish_all(channel)
            yield from self._settle_all(channel)
        finally:
            turn.transactions.discard(self)
            if self._joined or self._files is not None:
                turn.slices.later(partial(turn.when_caught_up, partial(self._journaled, turn, disk)))

    def _end_ids(self) -> Iterator[bool]:
        """Have queues that take each message once see its ends before its publishes, in whatever order they came."""
        for at, (_, (receiver, key), outcome) in enumerate(self.settled):
            if not outcome and receiver.queue.ids is not None:
                receiver.queue.ids.ending((key,))
            if not at % PIECE:
                yield False

    def _publish_all(self, channel: SettlingChannel) -> Iterator[bool]:
        publishes = self.publishes
        publishes.reverse()
        while publishes:
            if self._publish_run(channel):
                yield False
                continue
            queues, message, mandatory, persistent = publishes.pop()
            left = [queue for queue in queues if not queue.deleted]
            if not self._is_stored and is_stored_by(left, persistent=persistent):
                self._is_stored = True
            if len(left) < len(queues):
                self._is_whole = False
            if left or not queues:
                copies = channel.enqueue(left, message, mandatory=mandatory, persistent=persistent)
                while copies is not None and not copies.is_finished:
                    yield True
                if copies is not None and not copies.is_taken:
                    self._is_whole = False
            yield False

    def _publish_run(self, channel: SettlingChannel) -> bool:
        """Put what goes next to the same queues into them at once; false if the first message has to be looked at."""
        publishes = self.publishes
        queues, last, _, persistent = publishes[-1]
        if channel.vhost.once and split_address(last.address)[0] in channel.vhost.once:
            return False
        if not queues or len(queues) > AT_ONCE or not all(map(_takes_all, queues)):
            return False
        count = 0
        for others, message, mandatory, another in islice(reversed(publishes), PIECE):
            is_plain = not (mandatory or message.persistent or may_expire(message.content))
            if others is not queues or another is not persistent or not is_plain:
                break
            count += 1
        if not count:
            return False
        messages = [message for _, message, _, _ in publishes[-count:]]
        messages.reverse()
        del publishes[-count:]
        channel.enqueue_all(queues, messages, persistent=persistent)
        self._is_stored = self._is_stored or is_stored_by(queues, persistent=persistent)
        return True

    def _settle_all(self, channel: SettlingChannel) -> Iterator[bool]:
        settled = self.settled
        by_outcome: dict[Outcome, deque[Record]] = {each: deque() for each in (None, False, True, FAILED)}
        settled.reverse()
        self._is_settling = bool(settled)
        while settled:
            for _ in range(min(PIECE, len(settled))):
                _, record, outcome = settled.pop()
                by_outcome[outcome].append(record)
            yield False
        for outcome, records in by_outcome.items():
            while records:
                piece = [records.popleft() for _ in range(min(PIECE, len(records)))]
                self._is_settling = any(by_outcome.values())
                settle_records(channel, piece, outcome, self.end)
                yield False

    def end(self, queue: Queue, keys: Sequence[int], outcome: Outcome) -> None:
        """Have messages leave their queue by the commit that has the publishes, or be requeued, within its limit."""
        self._joined += queue.join(keys)
        if outcome:
            queue.requeue(keys, moved=self._is_stored, failed=outcome == FAILED)
        elif outcome is False:
            queue.discard(keys, moved=self._is_stored)
        elif self._is_stored:
            queue.ack_moved(keys)
        else:
            queue.acks += keys

    def _journaled(self, turn: Turn, disk: DelayDisk | None) -> None:
        """Have the waiting callers of this transaction notified when it is safe: all of it is journaled now."""
        if self._files is not None:
            self._files.drop()
            self._files = None
        if disk is None:
            self._tell(turn, is_safe=True)
        else:
            disk.journal.when_safe(lambda is_safe: self._tell(turn, is_safe=is_safe))

    def _tell(self, turn: Turn, *, is_safe: bool) -> None:
        turn.slices.add(self._tell_all(is_safe=is_safe), "confirms of a transaction")

    def _tell_all(self, *, is_safe: bool) -> Iterator[None]:
        joined = self._joined
        while joined:
            for promise in joined[-PIECE:]:
                if is_safe:
                    promise.accepted()
                else:
                    promise.refused()
            del joined[-PIECE:]
            yield

    # -- rollback ---------------------------------------------------------------------------------------------------

    def roll_back(self, channel: SettlingChannel) -> Iterator[None]:
        """Drop the publishes and make the settled deliveries unacked again, a piece at a time."""
        while self.publishes:
            del self.publishes[-PIECE:]
            yield
        if self._files is not None:
            self._files.drop()
            self._files = None
        self.octets = self._copies = self._largest = 0
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


class BodyFiles:
    """Very large bodies, in files of their own before anything takes effect of their transaction, or their publish."""

    __slots__ = (
        "_disk",
        "_is_dropped",
        "_messages",
        "_turn",
        "_unwritten",
        "_waits",
        "_when_done",
        "has_no_room",
    )

    def __init__(
        self,
        disk: DelayDisk,
        messages: Sequence[Persistent],
        turn: Turn | None = None,
        *,
        waits: bool = False,
    ) -> None:
        self._disk = disk
        self._messages = messages
        self._turn = turn  # that in which the callback publishes: what no queue has then is removed
        self._waits = waits  # True to wait until there is space
        self._is_dropped = False
        self._when_done: Callable[[], object] | None = None
        self._unwritten = len(messages)
        self.has_no_room = False  # True once there is no space for one: then none is needed
        for message in messages:
            disk.journal.write_file(message, self._written)

    @property
    def are_written(self) -> bool:
        """True once all are written."""
        return not self._unwritten

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call back once all are written, or there is no space for one."""
        self._when_done = callback

    def _written(self, is_written: bool) -> bool:
        """Take note of a file, or that there is no space for it; returns whether it is needed."""
        if self.has_no_room or self._is_dropped or (self._waits and not is_written):
            return False
        self._unwritten -= is_written
        self.has_no_room = not is_written
        callback = self._when_done
        if callback is not None and not (is_written and self._unwritten):
            self._when_done = None
            callback()
            if self._turn is not None:
                self._turn.slices.later(partial(self._turn.when_caught_up, self.drop))
        return is_written

    def drop(self) -> None:
        """Remove the files of messages that no queue has, or will write."""
        self._is_dropped = True
        for message in self._messages:
            is_needed = message.open_copies or message.in_table
            if not is_needed and self._disk.journal.has_file(message):
                self._disk.journal.drop_file(message)


def _takes_all(queue: Queue) -> bool:
    """Return whether a queue takes each message as it is; one that was deleted, or a delay line, does not."""
    return queue.limits is None and not queue.deleted and not isinstance(queue, DelayLine)


def needs_file(
    disk: DelayDisk, queues: Sequence[Queue], message: Message, *, persistent: bool, awaits: bool = False
) -> bool:
    """Return whether queues store the body of a message in a file of its own, which a delay line never does.

    `awaits`: nor do those whose consumers its publisher waits for.
    """
    if len(message.content) < disk.blob_threshold:
        return False
    left = [queue for queue in queues if not (queue.deleted or (awaits and queue.awaits_consumers))]
    return any(not isinstance(queue, DelayLine) for queue in saved_among(left, persistent=persistent))
