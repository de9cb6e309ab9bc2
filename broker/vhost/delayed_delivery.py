"""The line of an exchange that delays: where its messages wait until they are due.

Theory. To whoever publishes a line looks like a durable queue. What arrives becomes a row in the table of delayed
messages with the commit of this turn (`storage.delayed`), and only then is a persistent message confirmed. When its
time has come a message is routed by the exchange like one that was published just now, and the turn that puts it into
its queues deletes its row: one commit, so it is in one place or the other. A line has one timer, for its first message.

Without a disk everything stays in memory, and ends with the broker.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from leveret.broker.amqp.errors import MalformedProperties
from leveret.broker.amqp.properties import Properties
from leveret.broker.counters.totals import QueueTally
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.turn import Turn
from leveret.broker.scheduling.wall_timers import Timer
from leveret.broker.vhost.publish_route import Special, offer, saved_among
from leveret.exchanges.base import Exchange
from leveret.exchanges.delayed import HEADER, delay_of
from leveret.exchanges.errors import TooManyHopsError
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
from leveret.storage.message import Message, Moved, Persistent, moving

RUN_BUDGET = 200
"""Messages that one run releases: a few milliseconds, after which others have their turn."""
_SIGNED = 2**31


class Journal(Protocol):
    """What a line needs of the journal (`storage.journal.journal.Journal`)."""

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Have a row written with the next commit; it stays journaled if that finds the disk full."""

    def delete(self, table: str, key: bytes) -> None:
        """Have a row deleted with the next commit; the same holds."""

    def when_safe(self, callback: Callable[[bool], object]) -> None:
        """Call back after the commit of everything journaled so far: True, or False if the disk was full."""


class DelayDisk(Protocol):
    """What a line needs of the disk."""

    @property
    def journal(self) -> Journal:
        """Takes the rows."""

    @property
    def damages(self) -> Damages:
        """Is told what cannot be read."""

    @property
    def file_from(self) -> int:
        """Octets of content from which a queue has the body written to a file of its own, which no commit waits for."""

    @property
    def first_seq(self) -> int:
        """A number that is far above all that an earlier run has counted from its own."""

    def next_id(self) -> int:
        """A number that was never given before, also not before a restart."""

    def read_delayed(self, line: int, start: Due, done: Callable[[DelayedRows], None]) -> None:
        """Read messages of a line; `done` is called in the loop, and whoever does that runs a turn afterwards."""


class DelayLine:
    """The delayed messages of one exchange.

    Args:
        exchange: whose they are.
        router: routes them when they are due.
        turn: the server's work list, clock and timers.
        disk: where they are kept; None for nowhere.

    Attributes:
        number: the line's id on disk, which a durable exchange shares with its definition; 0 until it is needed.

    """

    awaits_consumers = False
    durable = True
    saves_all = False
    rules = None

    __slots__ = (
        "_disk",
        "_exchange",
        "_moving",
        "_number",
        "_put",
        "_router",
        "_stopped",
        "_taken",
        "_timer",
        "_waiting",
        "deleted",
        "inbox",
        "inbox_persistent",
        "largest",
        "number",
        "tally",
        "touched",
        "turn",
        "window",
    )

    def __init__(self, exchange: Exchange, router: Router, turn: Turn, disk: DelayDisk | None = None) -> None:
        self._exchange = exchange
        self._router = router
        self.turn = turn
        self._disk = disk
        self.number = 0
        self.window = Window(stored=disk is not None)
        self._number = 0 if disk is None else disk.first_seq
        """That of the last message; rises, also over restarts."""
        self._timer: Timer | None = None
        self._put: list[Due] = []
        self._taken: list[Due] = []
        """What this turn has put on disk and taken from it."""
        self._moving = 0
        """Messages that were given back and whose rows are still needed."""
        self._waiting: list[Persistent] = []
        """Messages that this turn has put there, and whose publishers are to be told."""
        self._stopped = False
        self.deleted = False
        self.inbox: list[Message] = []
        self.inbox_persistent = False
        self.touched = False
        self.largest = 0
        self.tally = QueueTally()

    @property
    def name(self) -> str:
        """None that a queue can have: cycles of dead letters are found by names of queues."""
        return ""

    @property
    def count(self) -> int:
        """Messages that are pending."""
        return self.window.count + len(self.inbox)

    def __repr__(self) -> str:
        """Name the exchange."""
        return f"<delay line of {self._exchange!r}>"

    # -- a destination ----------------------------------------------------------------------------------------------

    def put(self, message: Message) -> bool:
        """Take a message that was published with a delay; a line refuses none."""
        self.inbox.append(message)
        self.inbox_persistent |= message.persistent
        self.touch()
        return True

    def touch(self) -> None:
        """Have the line run at the end of this turn."""
        if not self.touched:
            self.touched = True
            self.turn.queues.append(self)

    @property
    def has_input(self) -> bool:
        """Whether arrivals wait for the next run."""
        return bool(self.inbox)

    def run(self) -> bool:
        """Take in what was published and give back what is due; true if the budget ran out before the work."""
        if self.deleted:
            self.give_up()
            return False
        now = self.turn.clock()
        if self.inbox:
            self._take_in(now)
        more = not self._stopped and self._release(now)
        if self._put or self._taken:
            self._note(self._disk.journal)  # type: ignore[union-attr] # without a disk there is nothing to note
        self._go_on(more=more)
        return more

    def give_up(self) -> None:
        """Forget what this turn has collected, after an internal error or because the exchange is gone."""
        for message in self.inbox:
            if isinstance(message, Persistent):
                if not self.deleted:
                    message.refused()
                message.accepted()
        self.inbox.clear()
        self.inbox_persistent = False

    # -- in ---------------------------------------------------------------------------------------------------------

    def _take_in(self, now: int) -> None:
        """Put what has arrived into the window and on disk."""
        window, disk = self.window, self._disk
        if disk is not None and not self.number:
            self.number = disk.next_id()
        inbox, self.inbox = self.inbox, []
        self.inbox_persistent = False
        for message in inbox:
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

    def _note(self, journal: Journal) -> None:
        """Have the count written with what has changed, and learn when that is done."""
        count = self.window.count + self._moving
        journal.put(TABLE, pack_line(self.number), pack_count(self.number, count))
        put, self._put = self._put, []
        taken, self._taken = self._taken, []
        waiting, self._waiting = self._waiting, []

        journal.when_safe(partial(self._noted, journal, put, taken, waiting))

    def _noted(
        self,
        journal: Journal,
        put: Sequence[Due],
        taken: Sequence[Due],
        waiting: Sequence[Persistent],
        stored: bool,
    ) -> None:
        """What a turn has noted is on disk, or there was no room for it."""
        if stored:
            self.window.committed(put, taken)
            for message in waiting:
                message.accepted()
            return
        for message in waiting:  # it stays here, and goes to disk when there is room
            message.refused()
        journal.when_safe(partial(self._noted, journal, put, taken, waiting))

    # -- out --------------------------------------------------------------------------------------------------------

    def _release(self, now: int) -> bool:
        """Give back what is due; true if there is more of it in memory."""
        window = self.window
        for _ in range(RUN_BUDGET):
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
        return window.is_due(now)

    def _delete(self, due: Due) -> None:
        """The row of a message is not needed any more from this turn's commit on."""
        if self._disk is not None:
            self._disk.journal.delete(TABLE, pack_key(self.number, due))
            self._taken.append(due)

    def _give_back(self, due: Due, value: bytes) -> bool:
        """Route a message that is due; false if its row has to stay until its body is in a file."""
        address, content = unpack_row(pack_key(self.number, due), value)
        message = Message(address, content, content[1] << 8 | content[2])
        properties = Properties(message.header)
        special = Special(properties)
        headers = dict(special.headers)
        delay = delay_of(headers)
        headers[HEADER] = ("signedint", -delay) if delay < _SIGNED else ("long", -delay)
        at = 1 + address[0]
        key = address[at + 1 :].decode("utf-8", "surrogateescape")
        try:
            found = self._router.route(self._exchange, (key, *special.extra_keys), headers)
        except TooManyHopsError as error:  # nobody waits for it any more: it goes as far as allowed
            found = error.reached
        if not found:
            return True
        headers.pop("BCC", None)
        message = message.with_header(properties.replace(headers=headers))
        return self._spread(found, message, due, persistent=special.persistent)  # type: ignore[arg-type]

    def _spread(self, queues: Sequence[Queue], message: Message, due: Due, *, persistent: bool) -> bool:
        """Put a message into its queues; false if its row has to stay until its body is in a file."""
        durable = saved_among(queues, persistent=persistent)
        if durable:
            disk = self._disk
            file_from, on_safe = (0, None) if disk is None else (disk.file_from, partial(self._moved, due))
            message = moving(message, len(durable), file_from, on_safe)
        stays = isinstance(message, Moved)
        self._moving += stays
        offer(queues, message)
        return not stays

    def _moved(self, due: Due) -> None:
        """A message whose row had to stay is safe in its queues."""
        self._moving -= 1
        self._delete(due)
        self.touch()

    # -- ahead ------------------------------------------------------------------------------------------------------

    def _go_on(self, *, more: bool) -> None:
        """Have the next messages read, and be woken for the first of those in memory."""
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
            self.turn.timers.cancel(self._timer)
        self._timer = self.turn.timers.at(due, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.touch()

    def _read(self, found: DelayedRows) -> None:
        """Take what was read from disk."""
        missing = self.window.loaded(found)
        if missing and self._disk is not None:
            self._disk.damages.note((self.number, 0), MISSING, missing)
        self.touch()

    # -- beginning and end ------------------------------------------------------------------------------------------

    def recover(self, count: int) -> None:
        """An earlier run has left that many messages; a turn is due afterwards."""
        self.window.recovered(count)
        self.touch()

    def stop(self) -> None:
        """Give nothing back any more: the broker is about to write down what its queues have."""
        self._stopped = True

    def delete(self) -> None:
        """The exchange is gone, and its messages with it."""
        self.deleted = True
        self.window = Window(stored=False)  # the exchange and its line know each other: they stay for a while
        if self._timer is not None:
            self.turn.timers.cancel(self._timer)
        self.give_up()
        if self._disk is not None and self.number:
            self._disk.journal.delete(TABLE, pack_line(self.number))
