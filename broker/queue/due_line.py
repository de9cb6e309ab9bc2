"""Lines of messages by the time at which they are due: rows on disk, a window in memory, one timer.

Theory. To publishers a line looks like a durable queue. An arriving message becomes a row in the table of delayed
messages with the commit of this turn (`storage.delayed`), which confirms it to its publisher. When it is due, the line
gives it back (`_give_back`) in the turn that also deletes its row: both are in one commit, so the message is always in
exactly one place. There are three kinds of line: that of an exchange that delays
(`broker.vhost.delay_line.DelayLine`), that of a queue that holds messages (`broker.queue.hold.Hold`), and that of
a queue whose messages wait for their next delivery (`broker.queue.retries.Retries`).

Without a disk all messages stay in memory and are lost when the broker stops.
"""

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import suppress
from functools import partial
from heapq import heapify, heappop
from math import inf
from typing import TYPE_CHECKING, Any

from leveret.broker.amqp.errors import MalformedProperties
from leveret.broker.counters.totals import QueueTally
from leveret.broker.queue.interfaces import DelayDisk
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.turn import Turn
from leveret.broker.scheduling.wall_timers import Timer
from leveret.confirm.promise import not_kept
from leveret.storage.damage import DELAYED, MISSING
from leveret.storage.delayed import (
    TABLE,
    DelayedRows,
    Due,
    Start,
    Window,
    new_row,
    next_line,
    pack_count,
    pack_key,
    pack_line,
    pack_reference,
    reference_of,
    unpack_row,
)
from leveret.storage.errors import DamagedError
from leveret.storage.message import Message, Persistent, Publisher, Stored

if TYPE_CHECKING:
    from leveret.storage.journal.journal import Journal
    from leveret.storage.store.environment import FileSnapshot

log = logging.getLogger("leveret.queue")

RUN_BUDGET = 200  # messages that one run releases: a few milliseconds of work before other queues run
PIECE = 256  # messages that a look decodes between two checks of the time
Pieces = Generator[list[tuple[Due, Message]] | Callable[[], DelayedRows], Any, None]
"""A look piece by piece: it yields messages with the times at which they are due, in that order, or a read.

Damaged messages are left out.
"""


class DueLine:
    """Messages that are not due yet, of one owner; without a disk they are in memory only.

    `number` is the line's id on disk; 0 until it is needed, for an owner that has none of its own.
    """

    awaits_consumers = False
    durable = True
    saves_all = False
    limits = None
    keeps_rest_on_disk = True  # False if memory has all messages, whatever there is on disk

    def __init__(self, turn: Turn, context: NodeContext, disk: DelayDisk | None) -> None:
        self.turn = turn
        self._context = context
        self._disk = disk
        self.number = 0
        self.window = self._new_window()
        self._number = 0 if disk is None else disk.first_seq  # of the last message; never falls
        self._timer: Timer | None = None
        self._added: dict[Due, bytes] = {}
        self._rows: list[tuple[str, bytes, bytes]] = []  # of messages that `_add` has to add
        self._apart_from: float = inf  # octets of contents that may be apart from their rows
        self._put: list[Due] = []
        self._taken: list[Due] = []  # messages that this turn has stored, and whose rows it has deleted
        self._moving = 0  # messages that were released and whose rows are still needed
        self._waiting: list[tuple[Publisher, int]] = []  # whose confirms need messages this turn has stored
        self._stopped = False
        self._has_warned = False
        self.deleted = False
        self.inbox: list[tuple[int, Message]] = []  # arrivals of this turn, and when they are due
        self.touched = False
        self.largest = 0
        self.tally = QueueTally()

    def _new_window(self) -> Window:
        return Window(stored=self.keeps_rest_on_disk and self._disk is not None)

    def _give_back(self, due: Due, row: bytes) -> bool:
        """Give back a message; False if its row stays until `_moved`. Raises DamagedError, MalformedProperties."""
        raise NotImplementedError

    @property
    def count(self) -> int:
        """Number of pending messages."""
        return self.window.count + len(self.inbox)

    @property
    def next_due(self) -> int | None:
        """Time (epoch ms) at which the first message is due; None if none is held, or the first is being read."""
        return self.window.next_due

    # -- a destination ----------------------------------------------------------------------------------------------

    def accept(self, message: Message, due: int) -> bool:
        """Accept a message that is due at a time (epoch ms); a line refuses none."""
        self.inbox.append((due, message))
        self.touch()
        return True

    def touch(self) -> None:
        """Schedule the line to run at the end of this turn."""
        if not self.touched:
            self.touched = True
            self.turn.queues.append(self)

    @property
    def has_input(self) -> bool:
        """True if messages wait in the inbox for the next run."""
        return bool(self.inbox)

    @property
    def stores_input(self) -> bool:
        """True if they are written to disk, as all messages of a durable owner are."""
        return self._disk is not None and bool(self.inbox)

    def run(self) -> bool:
        """Store new messages and release due ones; True if the budget ran out first."""
        if self.deleted:
            self.give_up()
            return False
        if self.inbox:
            self._take_in()
        more = not self._stopped and self._release(self._context.clock())
        self._note()
        self._go_on(more=more)
        return more

    def give_up(self) -> None:
        """Discard the input of this turn, after an internal error or because the owner is deleted."""
        for _, message in self.inbox:
            waiting = not_kept(message, is_durable=self.durable)
            if waiting is not None:
                if not self.deleted:
                    waiting.refused()
                waiting.accepted()
        self.inbox.clear()

    def _warn(self, what: object, text: str) -> None:
        """Log the first warning of this line; the others are like it."""
        if not self._has_warned:
            self._has_warned = True
            log.warning("%s: %s; others like it are not logged", what, text)

    # -- in ---------------------------------------------------------------------------------------------------------

    def _take_in(self) -> None:
        disk = self._disk
        if disk is not None and not self.number:
            self.number = disk.next_id()
        inbox, self.inbox = self.inbox, []
        now, is_durable = self._context.clock(), self.durable
        keep, waits = self._keep, self._waiting.append
        for when, message in inbox:
            if type(message) is Persistent and message.copies == 1 and is_durable and disk is not None:
                keep(when, now, message.address, message.content)
                if message.publisher is not None:  # as `not_kept`, which takes a microsecond
                    waits((message.publisher, message.seq_no))
                continue
            if disk is not None and isinstance(message, Persistent):
                if message.copies > 1 and self._awaits_file(disk, message, when):
                    continue
                message.written()  # the commit of the row removes the original of one that has moved here
            keep(when, now, message.address, message.content)
            # or other queues' records, and not the line's own row, would share the body on disk
            waiting = not_kept(message, is_durable=is_durable)
            if waiting is not None and disk is None:
                waiting.accepted()
            elif waiting is not None:
                waits((waiting, 0))
        self._add()

    def _keep(self, when: int, now: int, address: bytes, content: bytes, msg_id: int = 0) -> None:
        """Have `_add` add a message that is due at a time (epoch ms); `msg_id`: of its content, if that has a row."""
        if not msg_id and len(content) >= self._apart_from:
            content, msg_id = self._put_apart(address, content)
        told = pack_reference(msg_id, len(content)) if msg_id else content
        self._number += 1
        due, key, value = new_row(self.number, when, self._number, now, address, told)
        self._added[due] = value + content if msg_id else value
        self._rows.append((TABLE, key, value))

    def _put_apart(self, address: bytes, content: bytes) -> tuple[bytes, int]:
        """Return a content as it will be stored, and the id of its row; 0 if it has none of its own."""
        raise NotImplementedError

    def _add(self) -> None:
        """Add messages that were noted to the window, and their rows to the journal."""
        self.window.put(self._added)
        if self._disk is not None:
            self._disk.journal.put_all(self._rows)
            self._put += self._added
        self._added, self._rows = {}, []

    def _awaits_file(self, disk: DelayDisk, message: Persistent, due: int) -> bool:
        """Return whether a message has to wait until queues that get it, too, have its body in a file."""
        if len(message.content) < disk.blob_threshold or disk.journal.has_file(message):
            return False
        disk.journal.write_file(message, partial(self._go_on_with, message, due))
        return True

    def _go_on_with(self, message: Message, due: int, is_written: bool) -> bool:
        """Take in a message whose body is in a file now; the file is needed only if a queue has the message."""
        if is_written:
            self.accept(message, due)
        return False

    def _note(self) -> None:
        """Journal the message count with this turn's changes, and ask for a callback after the commit."""
        if self._disk is None or not (self._put or self._taken):
            return
        journal = self._disk.journal
        count = self.window.count + self._moving
        journal.put(TABLE, pack_line(self.number), pack_count(self.number, count))
        put, self._put = self._put, []
        taken, self._taken = self._taken, []
        waiting, self._waiting = self._waiting, []
        journal.when_safe(partial(self._noted, journal, self.window, put, taken, waiting))

    def _noted(
        self,
        journal: "Journal",
        window: Window,
        put: Sequence[Due],
        taken: Sequence[Due],
        waiting: Sequence[tuple[Publisher, int]],
        stored: bool,
    ) -> None:
        """Confirm the messages that a turn has stored; if the disk was full, nack them and await the next commit."""
        if stored:
            window.committed(put, taken)
            for publisher, seq_no in waiting:
                publisher.accepted(seq_no)
            return
        for publisher, seq_no in waiting:  # messages stay in memory and are written when there is space again
            publisher.refused(seq_no)
        journal.when_safe(partial(self._noted, journal, window, put, taken, waiting))

    def _written(self) -> None:
        """Have the number of messages in one commit with rows that were noted outside a run."""
        self._add()
        self._note()
        self.touch()

    # -- looking ----------------------------------------------------------------------------------------------------

    def pieces(self, snapshots: "list[FileSnapshot]") -> Pieces:
        """Look at the messages as they are now, piece by piece, without taking any of them.

        Messages in memory are copied now; others are read from a snapshot of this moment, the one in the list or one
        that is added to it.
        """
        rows, horizon, gone = self.window.peek()
        if horizon is not None and self._disk is not None and not snapshots:
            snapshots.append(self._disk.snapshot())
        return _pieces(self.number, rows, snapshots, horizon, gone)

    # -- out --------------------------------------------------------------------------------------------------------

    @property
    def _is_blocked(self) -> bool:
        """True while nothing more may be released, though there is time."""
        return False

    def _release(self, now: int) -> bool:
        """Release due messages while the step has time, at least one; True if more of them are in memory."""
        window, is_over = self.window, self.turn.slices.is_over
        for _ in range(RUN_BUDGET):
            if self._is_blocked:
                break
            first = window.take(now)
            if first is None:
                return False
            due, value = first
            try:
                is_safe = self._give_back(due, value)
            except (DamagedError, MalformedProperties):
                if self._disk is not None:
                    self._disk.damages.note((self.number, due[0]), DELAYED)
                    if msg_id := reference_of(pack_key(self.number, due), value):
                        self._disk.journal.delete_body(msg_id)
                is_safe = True
            if is_safe:
                self._delete(due)
            else:
                self._moving += 1
            if is_over():
                break
        return window.is_due(now)

    def _delete(self, due: Due) -> None:
        if self._disk is not None:
            self._disk.journal.delete(TABLE, pack_key(self.number, due))
            self._taken.append(due)

    def _moved(self, line: int, due: Due, is_written: bool) -> None:
        """Delete the row of a message that has become safe in its queues."""
        del is_written  # the row is deleted by the next commit in any case
        if line == self.number:
            self._moving -= 1
            self._delete(due)
            self.touch()

    # -- ahead ------------------------------------------------------------------------------------------------------

    def _go_on(self, *, more: bool) -> None:
        """Start reading the next messages, and set the timer for the first one in memory."""
        if self._stopped:
            return
        window = self.window
        start = window.wanted()
        if start is not None and self._disk is not None:
            self._disk.read_delayed(self.number, start, partial(self._read, window))
        due = window.next_due
        if due is not None and not more:
            self._timer = self._context.timers.sooner(self._timer, due, self.touch)

    def _read(self, window: Window, found: DelayedRows) -> None:
        missing = window.loaded(found)
        if missing and self._disk is not None:
            self._disk.damages.note((self.number, 0), MISSING, missing)
        self.touch()

    # -- beginning and end ------------------------------------------------------------------------------------------

    def recover(self, line: int, count: int, rows: Callable[[], Iterable[tuple[Due, bytes]]]) -> None:
        """Take over a number of messages of an earlier run; the caller runs a turn afterwards.

        `line` is that of their rows, all of which `rows` reads.
        """
        del rows
        self.number = line
        self.window.recovered(count)
        self.touch()

    def stop(self) -> None:
        """Release no more messages: the broker is about to write its queues to disk."""
        self._stopped = True

    def purge(self) -> int:
        """Remove all messages; returns how many. Those that come later have a line of their own."""
        count = self.window.count
        self._written()
        self.window = self._new_window()
        self._moving = 0
        if self._disk is not None and count:
            journal = self._disk.journal
            journal.delete(TABLE, pack_line(self.number))
            self.number = next_line(self.number)
            journal.put(TABLE, pack_line(self.number), pack_count(self.number, 0))
        return count

    def delete(self) -> None:
        """Discard all messages because the owner is deleted."""
        self.deleted = True
        self.window = Window(stored=False)  # owner and line refer to each other: both are freed late
        self._context.timers.cancel(self._timer)
        self.give_up()
        if self._disk is not None and self.number:
            self._disk.journal.delete(TABLE, pack_line(self.number))


def _pieces(
    line: int,
    rows: dict[Due, bytes],
    snapshots: "Sequence[FileSnapshot]",
    horizon: Due | None,
    gone: Collection[Due],
) -> Pieces:
    """Look at the messages of a line, in the order in which they are due: first those in memory, `rows`.

    From the time `horizon` on there are others in the first snapshot, of which some are `gone`.
    """
    start = None if horizon is None else Start(horizon)
    while start is not None and snapshots:
        yield from _decoded(line, rows, start.due)
        found: DelayedRows = yield partial(snapshots[0].read_delayed, line, start)
        rows.update([each for each in found.rows if each[0] not in gone])
        start = found.next
    yield from _decoded(line, rows, None)


def _decoded(line: int, rows: dict[Due, bytes], until: Due | None) -> Pieces:
    """Yield the messages that are due before a time, all for None, and remove their rows."""
    ready = [due for due in rows if until is None or due < until]
    heapify(ready)  # in memory there may be very many, and to sort them would be a long step
    while ready:
        messages = []
        for due in [heappop(ready) for _ in range(min(PIECE, len(ready)))]:
            with suppress(DamagedError):
                messages.append((due, message_of(line, due, rows.pop(due))))
        yield messages


def message_of(line: int, due: Due, value: bytes) -> Message:
    """Return the message of a row; raises DamagedError."""
    address, content, msg_id = unpack_row(pack_key(line, due), value)
    if not content:
        raise DamagedError("the body of a delayed message is missing or damaged")
    channel_id = content[1] << 8 | content[2]
    if msg_id:
        return Stored(address, content, channel_id, msg_id)
    return Message(address, content, channel_id)
