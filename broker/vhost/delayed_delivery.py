"""The delay line of an x-delayed-message exchange: holds its messages until they are due.

Theory. To publishers a line looks like a durable queue. An arriving message becomes a row in the table of delayed
messages with the commit of this turn (`storage.delayed`), and a persistent message is confirmed only then. When a
message is due, the exchange routes it as if it had just been published, and the turn that puts it into its queues also
deletes its row: both are in one commit, so the message is always in exactly one place, even if several steps put it
into very many queues (`broker.vhost.copies.Deliveries`). A line has one timer, for its first message.

Without a disk all messages stay in memory and are lost when the broker stops.
"""

from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from leveret.broker.amqp.errors import MalformedProperties
from leveret.broker.amqp.fastpath import split_address
from leveret.broker.amqp.properties import Properties
from leveret.broker.counters.totals import QueueTally
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.turn import Turn
from leveret.broker.scheduling.wall_timers import Timer
from leveret.broker.vhost.copies import Copies, Deliveries
from leveret.broker.vhost.publish_route import PropertyDemands
from leveret.exchanges.base import Exchange, Table
from leveret.exchanges.delayed import delay_of, due_headers
from leveret.exchanges.router import Router
from leveret.storage.damage import DELAYED, MISSING, Damages
from leveret.storage.delayed import (
    TABLE,
    DelayedRows,
    Due,
    Window,
    pack_count,
    pack_key,
    pack_line,
    pack_row,
    unpack_row,
)
from leveret.storage.errors import DamagedError
from leveret.storage.message import Message, Persistent

if TYPE_CHECKING:
    from leveret.storage.journal.journal import Journal
    from leveret.storage.store.environment import FileSnapshot

RUN_BUDGET = 200
"""Messages that one run releases: a few milliseconds of work before other queues run."""
PIECE = 256
"""Messages that a look decodes between two checks of the time."""

DelayLook = Generator[Callable[[], DelayedRows] | None, Any, list[tuple[int, Message]]]
"""A look in steps (see `storage.queues.backing_queue.Peeking`).

It returns the messages with the times at which they are due (epoch ms), in that order; damaged ones are left out.
"""
Pieces = Generator[list[tuple[int, Message]] | Callable[[], DelayedRows], Any, None]
"""A look piece by piece: it yields messages with the times at which they are due, or a read."""


class DelayDisk(Protocol):
    """The part of the data store that a line uses."""

    @property
    def journal(self) -> "Journal":
        """The journal that receives the rows."""

    @property
    def damages(self) -> Damages:
        """The record of unreadable data."""

    @property
    def blob_threshold(self) -> int:
        """Content size in bytes from which a queue writes the body to a file of its own, which no commit waits for."""

    @property
    def first_seq(self) -> int:
        """A number well above all numbers that an earlier run has used."""

    def next_id(self) -> int:
        """Return a new id, unique also over restarts."""

    def read_delayed(self, line: int, start: Due, done: Callable[[DelayedRows], None]) -> None:
        """Read messages of a line; `done` is called in the event loop, and its caller runs a turn afterwards."""

    def snapshot(self) -> "FileSnapshot":
        """Open a snapshot of the rows as they are on disk now."""


class DelayLine:
    """The delayed messages of one exchange; without a disk they are in memory only.

    `number` is the line's id on disk, which a durable exchange shares with its definition; 0 until it is needed.
    """

    awaits_consumers = False
    durable = True
    saves_all = False
    limits = None

    def __init__(
        self, exchange: Exchange, router: Router, turn: Turn, context: NodeContext, disk: DelayDisk | None
    ) -> None:
        self._exchange = exchange
        self._router = router
        self.turn = turn
        self._context = context
        self._disk = disk
        self.number = 0
        self.window = Window(stored=disk is not None)
        self._number = 0 if disk is None else disk.first_seq
        """Number of the last message; increases, also over restarts."""
        self._timer: Timer | None = None
        self._put: list[Due] = []
        self._taken: list[Due] = []
        """Messages that this turn has stored, and whose rows it has deleted."""
        self._deliveries = Deliveries(turn)
        self._moving = 0
        """Messages that were released and whose rows are still needed."""
        self._waiting: list[Persistent] = []
        """Messages that this turn has stored and whose publishers wait for a confirm."""
        self._stopped = False
        self.deleted = False
        self.inbox: list[Message] = []
        self.inbox_persistent = False
        self.touched = False
        self.largest = 0
        self.tally = QueueTally()

    @property
    def name(self) -> str:
        """Return a name that no queue can have, because dead-letter cycles are detected by queue names."""
        return ""

    @property
    def count(self) -> int:
        """Number of pending messages."""
        return self.window.count + len(self.inbox)

    def __repr__(self) -> str:
        return f"<delay line of {self._exchange!r}>"

    # -- a destination ----------------------------------------------------------------------------------------------

    def put(self, message: Message) -> bool:
        """Accept a message that was published with a delay; a line refuses none."""
        self.inbox.append(message)
        self.inbox_persistent |= message.persistent
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
        """True if they are written to disk, as all messages of a durable exchange are."""
        return self._disk is not None and bool(self.inbox)

    def run(self) -> bool:
        """Store new messages and release due ones; True if the budget ran out first."""
        if self.deleted:
            self.give_up()
            return False
        now = self._context.clock()
        if self.inbox:
            self._take_in(now)
        more = not self._stopped and self._release(now)
        if self._put or self._taken:
            self._note(self._disk.journal)  # type: ignore[union-attr] # without a disk there is nothing to note
        self._go_on(more=more)
        return more

    def give_up(self) -> None:
        """Discard the input of this turn, after an internal error or because the exchange is deleted."""
        for message in self.inbox:
            if isinstance(message, Persistent):
                if not self.deleted:
                    message.refused()
                message.accepted()
        self.inbox.clear()
        self.inbox_persistent = False

    # -- in ---------------------------------------------------------------------------------------------------------

    def _take_in(self, now: int) -> None:
        window, disk = self.window, self._disk
        if disk is not None and not self.number:
            self.number = disk.next_id()
        inbox, self.inbox = self.inbox, []
        self.inbox_persistent = False
        for message in inbox:
            if disk is not None and self._awaits_file(disk, message):
                continue
            self._number += 1
            due = now + delay_of(Properties(message.header).headers), self._number
            key = pack_key(self.number, due)
            value = pack_row(key, message.address, message.content)
            window.put(due, value)
            if disk is not None:
                disk.journal.put(TABLE, key, value)
                self._put.append(due)
            if isinstance(message, Persistent):
                if disk is None:
                    message.accepted()
                else:
                    self._waiting.append(message)

    def _awaits_file(self, disk: DelayDisk, message: Message) -> bool:
        """Return whether a message has to wait until queues that get it, too, have its body in a file."""
        if not isinstance(message, Persistent) or message.copies == 1:
            return False
        if len(message.content) < disk.blob_threshold or disk.journal.has_file(message):
            return False
        disk.journal.write_file(message, partial(self._go_on_with, message))
        return True

    def _go_on_with(self, message: Message, is_written: bool) -> bool:
        """Take in a message whose body is in a file now; the file is needed only if a queue has the message."""
        if is_written:
            self.put(message)
        return False

    def _note(self, journal: "Journal") -> None:
        """Journal the message count with this turn's changes, and ask for a callback after the commit."""
        count = self.window.count + self._moving
        journal.put(TABLE, pack_line(self.number), pack_count(self.number, count))
        put, self._put = self._put, []
        taken, self._taken = self._taken, []
        waiting, self._waiting = self._waiting, []

        journal.when_safe(partial(self._noted, journal, put, taken, waiting))

    def _noted(
        self,
        journal: "Journal",
        put: Sequence[Due],
        taken: Sequence[Due],
        waiting: Sequence[Persistent],
        stored: bool,
    ) -> None:
        """Confirm the messages that a turn has stored; if the disk was full, nack them and await the next commit."""
        if stored:
            self.window.committed(put, taken)
            for message in waiting:
                message.accepted()
            return
        for message in waiting:  # they stay in memory and are written when there is space again
            message.refused()
        journal.when_safe(partial(self._noted, journal, put, taken, waiting))

    # -- looking ----------------------------------------------------------------------------------------------------

    def peek(self, snapshots: "list[FileSnapshot]") -> DelayLook:
        """Look at all messages as they are now; the argument is that of `pieces`."""
        return _whole(self.pieces(snapshots))

    def pieces(self, snapshots: "list[FileSnapshot]") -> Pieces:
        """Look at the messages as they are now, piece by piece, without taking any of them.

        What is in memory is copied now; what is on disk only is read from a snapshot of this moment: that in the list,
        or one that is added to it.
        """
        return _pieces(self.number, *self._known(snapshots))

    def _known(
        self, snapshots: "list[FileSnapshot]"
    ) -> "tuple[dict[Due, bytes], FileSnapshot | None, Due | None, Collection[Due]]":
        """Return what memory knows now, and the snapshot with the rest."""
        rows, horizon, gone = self.window.peek()
        if horizon is None or self._disk is None:
            return rows, None, None, ()
        if not snapshots:
            snapshots.append(self._disk.snapshot())
        return rows, snapshots[0], horizon, gone

    def destinations(self, message: Message) -> Collection[Any]:
        """Return the queues to which a delayed message would be routed now."""
        demands = PropertyDemands(Properties(message.header))
        return self._routed(message, demands, due_headers(demands.headers))

    def _routed(self, message: Message, demands: PropertyDemands, headers: Table) -> Sequence[Any]:
        keys = (split_address(message.address)[1], *demands.extra_keys)
        return self._router.route_anyway(self._exchange, keys, headers)

    # -- out --------------------------------------------------------------------------------------------------------

    def _release(self, now: int) -> bool:
        """Release due messages while the step has time, at least one; True if more of them are in memory."""
        window, is_over = self.window, self.turn.slices.is_over
        for _ in range(RUN_BUDGET):
            if self._deliveries.has_input:  # a message may go to very many queues
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
                is_safe = True
            if is_safe:
                self._delete(due)
            if is_over():
                break
        return window.is_due(now)

    def _delete(self, due: Due) -> None:
        if self._disk is not None:
            self._disk.journal.delete(TABLE, pack_key(self.number, due))
            self._taken.append(due)

    def _give_back(self, due: Due, value: bytes) -> bool:
        """Route a message that is due; False if its row has to stay until its body is in a file."""
        address, content = unpack_row(pack_key(self.number, due), value)
        message = Message(address, content, content[1] << 8 | content[2])
        properties = Properties(message.header)
        demands = PropertyDemands(properties)
        headers = due_headers(demands.headers)
        found = self._routed(message, demands, headers)
        if not found:
            return True
        headers.pop("BCC", None)
        message = message.with_header(properties.replace(headers=headers))
        disk, persistent = self._disk, demands.persistent
        copies = Copies(
            message,
            found,
            persistent=persistent,
            on_safe=None if disk is None else partial(self._moved, due),
            blob_threshold=0 if disk is None else disk.blob_threshold,
        )
        self._moving += copies.stays
        is_stored = copies.is_stored or (persistent and disk is not None)
        self._deliveries.add(found, copies.put, copies, is_stored=is_stored)
        return not copies.stays

    def _moved(self, due: Due, is_written: bool) -> None:
        """Delete the row of a message that has become safe in its queues."""
        del is_written  # the row is deleted by the next commit in any case
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
            self._disk.read_delayed(self.number, start, self._read)
        due = window.next_due
        if due is None or more:
            return
        if self._timer is not None:
            if self._timer.when <= due:
                return
            self._context.timers.cancel(self._timer)
        self._timer = self._context.timers.at(due, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.touch()

    def _read(self, found: DelayedRows) -> None:
        missing = self.window.loaded(found)
        if missing and self._disk is not None:
            self._disk.damages.note((self.number, 0), MISSING, missing)
        self.touch()

    # -- beginning and end ------------------------------------------------------------------------------------------

    def recover(self, count: int) -> None:
        """Set the number of messages that an earlier run has left; the caller runs a turn afterwards."""
        self.window.recovered(count)
        self.touch()

    def stop(self) -> None:
        """Release no more messages: the broker is about to write its queues to disk."""
        self._stopped = True

    def delete(self) -> None:
        """Discard all messages because the exchange is deleted."""
        self.deleted = True
        self.window = Window(stored=False)  # exchange and line refer to each other: both are freed late
        if self._timer is not None:
            self._context.timers.cancel(self._timer)
        self.give_up()
        if self._disk is not None and self.number:
            self._disk.journal.delete(TABLE, pack_line(self.number))


def _whole(pieces: Pieces) -> DelayLook:
    found: list[tuple[int, Message]] = []
    answer: Any = None
    while True:
        try:
            piece = pieces.send(answer)
        except StopIteration:
            return found
        if isinstance(piece, list):
            found += piece
            answer = yield None
        else:
            answer = yield piece


def _pieces(
    line: int,
    rows: dict[Due, bytes],
    snapshot: "FileSnapshot | None",
    start: Due | None,
    gone: Collection[Due],
) -> Pieces:
    """Look at the messages of a line, in the order in which they are due: first those in memory, `rows`.

    From the time `start` on there are others in the snapshot, of which some are `gone`.
    """
    while start is not None and snapshot is not None:
        yield from _decoded(line, rows, start)
        found: DelayedRows = yield partial(snapshot.read_delayed, line, start)
        for due, value in found.rows:
            if due not in gone:
                rows[due] = value
            start = due[0], due[1] + 1
        if not found.more:
            break
    yield from _decoded(line, rows, None)


def _decoded(line: int, rows: dict[Due, bytes], until: Due | None) -> Pieces:
    """Yield the messages that are due before a time, all for None, and remove their rows."""
    ready = sorted(due for due in rows if until is None or due < until)
    for at in range(0, len(ready), PIECE):
        messages = []
        for due in ready[at : at + PIECE]:
            with suppress(DamagedError):
                address, content = unpack_row(pack_key(line, due), rows.pop(due))
                messages.append((due[0], Message(address, content, content[1] << 8 | content[2])))
        yield messages
