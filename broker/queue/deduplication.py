"""Deduplication: a queue takes each message once, recognised by its id.

Theory. A queue with `x-deduplicate` reads the id of each message that is published to it: its `message_id`, a header,
or its body. If the queue knows the id, the message is a *repeat*: it is dropped and counted, and its publisher hears
when the publisher of the first one could: after the commit that has that, or after the verdict of its consumer.

===========  ========================================================================================================
mode         an id is known
===========  ========================================================================================================
`window`     for so long after the publish, whatever becomes of the message
`queued`     until the message is delivered, or leaves the queue
`running`    until the message leaves the queue; if it was settled, for so long afterwards
===========  ========================================================================================================

A message that the queue refuses, or drops because of its length, leaves no id. What no client publishes now is never a
repeat: dead letters, retries and messages that an operator moves are taken, with their ids.

Ids are in memory (`storage.message_ids`). Those of stored messages are also rows, written by the commit that has the
message, or its end: what a run of the queue changes is noted in that run, as the messages are, and all of it becomes
one row when the batch is cut. A body in a file of its own has its id noted when the record is. The log of rows is
rewritten, a part at each commit, once it has twice as many ids as the table.

Without a disk, in queues that are not durable, of transient messages, and while a queue confirms on consumer acks, ids
are in memory only, as the messages are.
"""

import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from hashlib import sha256
from typing import Protocol

from leveret.broker.amqp.properties import Properties, delivery_mode, message_id
from leveret.broker.amqp.publishes import PERSISTENT_MODE
from leveret.broker.counters.totals import QueueTally
from leveret.broker.errors import resource
from leveret.broker.queue.arguments import HEADER, MESSAGE_ID, QUEUED, RUNNING, WINDOW
from leveret.broker.queue.due_line import LONGEST_TIMER, DelayDisk
from leveret.broker.queue.settings import NO_SETTINGS, QueueSettings
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.wall_timers import Timer
from leveret.confirm.promise import joined
from leveret.storage.damage import IDS
from leveret.storage.delayed import Due, next_line, pack_count, pack_key, pack_line, unpack_count
from leveret.storage.errors import DamagedError
from leveret.storage.message import Awaited, Message, Persistent, moving
from leveret.storage.message_ids import (
    ENTRY,
    FREE,
    PRESENT,
    TABLE,
    VOLATILE,
    KnownIds,
    fingerprint,
    is_known,
    is_present,
    pack_entry,
    pack_ids,
    time_of,
    unpack_ids,
    value_until,
)
from leveret.storage.queues.backing_queue import Fetched

log = logging.getLogger("leveret.queue")

MOST_IDS = 10_000_000
"""Maximum number of ids that a queue knows, some 150 MB; it refuses messages with others."""
FEW_CHANGES = 4096
"""Ids in the log, besides twice those in the table, from which it is rewritten."""
PIECE = 512
"""Ids that a commit rewrites at least."""
FEW_ROWS = 64
"""Old rows that a commit deletes."""
ROW_IDS = 256
"""Ids in a row: it takes one page at most, which is found on a full disk, too."""


class TakingQueue(Protocol):
    """The queue, as its deduplication sees it."""

    name: str
    vhost: str
    durable: bool
    qid: int
    awaits_consumers: bool
    tally: QueueTally

    def touch(self) -> None:
        """Run at the end of this turn."""


class Deduplication:
    """The ids that one queue knows. Everything is without effect while its settings ask for no deduplication."""

    def __init__(self, queue: TakingQueue, context: NodeContext, disk: DelayDisk | None) -> None:
        self._queue = queue
        self._context = context
        self._disk = disk
        self._settings = NO_SETTINGS
        self._header = b""
        """Name of the header with the id, if one has it."""
        self._secret = secrets.randbits(64)
        self.known = KnownIds()
        self._again: dict[bytes, int] = {}
        """Ids that several messages in the queue have, with the number of those besides the first."""
        self._away: dict[int, tuple[bytes, list[Awaited] | None]] = {}
        """Ids of unacked messages by seq_id, with those who wait for the verdict, where that is needed."""
        self._loose: dict[int, list[Awaited] | None] = {}
        """Messages that are ready again, with those who wait, and whose ids stay free, in the mode `queued`."""
        self._open: dict[bytes, list[Awaited]] = {}
        """Ids of messages without a verdict, with their publishers and those of repeats, where consumers confirm."""
        self._fresh: list[tuple[bytes, Message, int, Awaited | None]] = []
        """Ids that this turn has taken, with message, value, and who waits; noted with the messages."""
        self._filing: set[bytes] = set()
        """Ids of messages whose bodies are being written to files, which are noted afterwards."""
        self._repeats: list[tuple[bytes, Message]] = []
        self._changed: dict[bytes, int] = {}
        """Values that the next batch writes."""
        self._latest = 0
        """Time (epoch ms) after which no id is known; irrelevant while any is `PRESENT`."""
        self._timer: Timer | None = None
        self._has_warned = False
        # the rows
        self._line = queue.qid
        self._is_stored = False
        """True if there is a row of the line."""
        self._first = self._next = 1
        """Numbers of the oldest row and of the next one, without the bit of ends."""
        self._logged = 0
        """Number of ids in the rows since the last rewriting began."""
        self._rewritten = -1
        """The bucket up to which the table was rewritten; -1 while it is not being rewritten."""
        self._old = 0
        """Number of the first row that is not to be deleted, because the rows before it were rewritten."""

    def __repr__(self) -> str:
        return f"<ids of queue {self._queue.name!r}>"

    def configure(self, settings: QueueSettings) -> None:
        """Apply changed settings. All ids are forgotten if they are now those of something else, or in another mode."""
        before, self._settings = self._settings, settings
        if before is not NO_SETTINGS and before.once != settings.once:
            self._refuse_waiting()  # nothing tells any more of which messages they are
            self.forget_all()
        source = settings.deduplicate or ""
        name = source.removeprefix(HEADER) if source.startswith(HEADER) else ""
        self._header = name.encode("utf-8", "surrogateescape")

    @property
    def _keeps_present(self) -> bool:
        """True if ids are known as long as messages are in the queue."""
        return self._settings.deduplicate_mode != WINDOW

    # -- publishes ----------------------------------------------------------------------------------------------------

    def mark_of(self, message: Message) -> bytes | None:
        """Return what stands for the id of a message; None if it has none."""
        source = self._settings.deduplicate
        if source is None:
            return None
        if source == MESSAGE_ID:
            text = message_id(message.header)
        elif self._header:
            is_there = self._header in message.content
            text = _text(message, source.removeprefix(HEADER)) if is_there else None
        else:
            text = sha256(message.body).hexdigest()
        return self.mark_of_id(text) if text else None

    def mark_of_id(self, text: str) -> bytes:
        """Return what stands for an id: of a body it is the SHA-256, in hexadecimal digits."""
        return fingerprint(self._secret, text.encode("utf-8", "surrogateescape"))

    def is_repeat(self, mark: bytes, message: Message) -> bool:
        """Return whether a message is a repeat, which is counted, and whose publisher hears from here."""
        if not is_known(self.known.get(mark), self._context.clock()):
            return False
        self._queue.tally.repeated += 1
        self._repeats.append((mark, message))
        self._queue.touch()
        return True

    def has_room(self) -> bool:
        """Return whether another id can be kept; otherwise a publish is refused, and others are taken without it."""
        known = self.known
        if known.count < MOST_IDS or known.clean(self._context.clock()):
            return True
        if not self._has_warned:
            self._has_warned = True
            text = "%s knows %d ids and refuses others, which is not logged again"
            log.warning(text, resource("queue", self._queue.name, self._queue.vhost), MOST_IDS)
        return False

    def take(self, mark: bytes, message: Message) -> None:
        """Know the id of a message that the queue has taken."""
        queue, now = self._queue, self._context.clock()
        is_stored = self._disk is not None and queue.durable and message.persistent
        before = self.known.get(mark)
        if self._keeps_present:
            value = PRESENT
            if self._settings.deduplicate_mode == RUNNING and is_present(before):
                self._again[mark] = self._again.get(mark, 0) + 1
        else:
            value = self._until(now)
        if not is_stored and before != PRESENT:  # that is on disk, from where the last end has to free it
            value |= VOLATILE
        self.known.put(mark, value, now)
        promise = joined(message) if is_stored or queue.awaits_consumers else None
        if queue.awaits_consumers:
            self._open.setdefault(mark, []).extend([] if promise is None else [promise])
            promise = None
        self._fresh.append((mark, message, value, promise))
        queue.touch()

    def adopt(self, messages: Iterable[Message]) -> None:
        """Know the ids of messages that the queue has taken in another way than by `Queue.put`."""
        for message in messages:
            mark = self.mark_of(message)
            if mark is not None:
                is_persistent = delivery_mode(message.header) == PERSISTENT_MODE
                self.take(mark, moving(message, 0, None) if is_persistent else message)

    def _until(self, now: int) -> int:
        """Return the value of an id whose time begins now; ask for a clean-up after all of them."""
        self._latest = until = max(self._latest, now + self._settings.deduplicate_for)
        if self._timer is None:
            self._timer = self._context.timers.at(min(until, now + LONGEST_TIMER) + 1000, self._wake)
        return value_until(now + self._settings.deduplicate_for)

    def _wake(self) -> None:
        self._timer = None
        if self._keeps_present:
            return
        now = self._context.clock()
        if now > self._latest and self.known.count:
            self.forget_all()
            self._queue.touch()
        elif self.known.count:
            until = min(self._latest, now + LONGEST_TIMER)
            self._timer = self._context.timers.at(until + 1000, self._wake)

    def note(self) -> None:
        """Note what a run of the queue has taken, in the commit of its messages, and notify the publishers then."""
        if not self._fresh and not self._repeats:
            return
        fresh, self._fresh = self._fresh, []
        repeats, self._repeats = self._repeats, []
        waiting: list[Awaited] = []
        for mark, message, value, promise in fresh:
            if value & VOLATILE or self._disk is None:
                continue
            told = () if promise is None else (promise,)
            if (
                isinstance(message, Persistent)
                and message.in_blob
                and not self._disk.journal.has_file(message)
            ):
                self._filing.add(mark)
                self._disk.journal.write_file(message, partial(self._filed, mark, value, told))
                continue
            if self.known.get(mark) == value:  # or it was delivered or dropped in this run, which was noted
                self._change(mark, value)
            waiting += told
        self._tell(waiting)
        waiting = []
        for mark, message in repeats:
            if (promise := _answered(message, is_durable=self._queue.durable)) is not None:
                self._open.get(mark, waiting).append(promise)
        self._tell(waiting, also_files=True)

    def _filed(self, mark: bytes, value: int, told: Sequence[Awaited], is_written: bool) -> bool:
        """Note the id of a message whose body is in a file now; the file is not needed for that."""
        if is_written:
            self._filing.discard(mark)
            if self.known.get(mark) == value:
                self._change(mark, value)
            self._tell(told)
        return False

    def _tell(self, waiting: Sequence[Awaited], *, also_files: bool = False) -> None:
        """Notify publishers when all that was noted is safe."""
        if not waiting:
            return
        if self._disk is None:
            _told(waiting, True)
        elif also_files:
            self._disk.journal.when_all_safe(partial(_told, waiting))
        else:
            self._disk.journal.when_safe(partial(_told, waiting))

    def give_up(self) -> None:
        """Forget what this turn has taken, after an internal error."""
        for mark, _, _, promise in self._fresh:
            self.known.remove(mark)
            if promise is not None:  # its message is there after all, or was refused
                promise.accepted()
        for _, message in self._repeats:
            if (promise := _answered(message, is_durable=self._queue.durable)) is not None:
                promise.refused()
        self._fresh.clear()
        self._repeats.clear()

    # -- what becomes of the messages ---------------------------------------------------------------------------------

    @property
    def _follows(self) -> bool:
        """True if it matters what becomes of a message."""
        return self._settings.deduplicate is not None and bool(
            self._keeps_present or self._open or self._queue.awaits_consumers
        )

    def fetched(self, batch: Fetched, *, ack_required: bool) -> None:
        """Follow messages that are delivered, or discarded as dead letters."""
        if not self._follows:
            return
        mode = self._settings.deduplicate_mode
        for seq_id, message in zip(batch.seq_ids, batch.messages, strict=True):
            is_loose, waiting = seq_id in self._loose, self._loose.pop(seq_id, None)
            mark = self.mark_of(message)
            if mark is None:
                continue
            if not is_loose:
                waiting = self._open.get(mark)
                if mode == QUEUED:
                    self._free(mark)
                    self._open.pop(mark, None)
            if not ack_required:
                self._left(mark, waiting)
            elif mode == RUNNING or waiting is not None:
                self._away[seq_id] = mark, waiting

    def requeued(self, seq_ids: Collection[int]) -> None:
        """Follow messages that are ready again."""
        is_loose = self._settings.deduplicate is not None and self._settings.deduplicate_mode == QUEUED
        for seq_id in seq_ids if self._away or is_loose else ():
            mark, waiting = self._away.pop(seq_id, (b"", None))
            if is_loose:
                self._loose[seq_id] = waiting
            elif waiting is not None and (not mark or self._open.setdefault(mark, waiting) is not waiting):
                _told(waiting, False)  # the id was forgotten, and perhaps taken again

    def settled(self, seq_ids: Iterable[int]) -> None:
        """Follow unacked messages that leave the queue."""
        for seq_id in seq_ids if self._away else ():
            left = self._away.pop(seq_id, None)
            if left is not None:
                self._left(*left)

    def dropped(self, messages: Iterable[tuple[int, Message]], *, is_over_limit: bool = False) -> None:
        """Follow messages, with their seq_ids, that leave the queue without a delivery, or are not held any more.

        Those over its limit leave no id in any mode.
        """
        if not is_over_limit and not self._follows:
            return
        for seq_id, message in messages:
            if seq_id in self._loose:
                _told(self._loose.pop(seq_id), False)
                continue
            mark = self.mark_of(message)
            if mark is None:
                continue
            self._left(mark, self._open.get(mark), is_dropped=True)
            if is_over_limit:
                self._free(mark)

    def _left(self, mark: bytes, waiting: list[Awaited] | None, *, is_dropped: bool = False) -> None:
        """Follow a message out of the queue: free its id, or have its time begin; tell publishers of repeats."""
        mode, now = self._settings.deduplicate_mode, self._context.clock()
        value = self.known.get(mark) if mark else FREE
        if not value:
            pass  # it was forgotten
        elif mode == RUNNING and self._is_last(mark):
            if is_dropped or not self._settings.deduplicate_for:
                self._free(mark)
            else:
                self._keep(mark, self._until(now) | value & VOLATILE, now)
        elif mode == WINDOW and not is_dropped and waiting is not None and self._queue.durable:
            # Its consumer is done with it: it may come back no more, whatever becomes of the broker.
            self._keep(mark, value & ~VOLATILE, now)
        elif mode == QUEUED and is_dropped:
            self._free(mark)
        if waiting is not None:
            if self._open.get(mark) is waiting:
                del self._open[mark]
            if is_dropped:
                _told(waiting, False)
            else:
                self._tell(waiting)  # after the commit that has its end, which may be a transaction's

    def _is_last(self, mark: bytes) -> bool:
        """Return whether no other message in the queue has an id, and count one less."""
        others = self._again.pop(mark, 0)
        if others > 1:
            self._again[mark] = others - 1
        return not others

    def _keep(self, mark: bytes, value: int, now: int) -> None:
        self.known.put(mark, value, now)
        if not value & VOLATILE:
            self._change(mark, value)

    def _free(self, mark: bytes) -> None:
        value = self.known.get(mark)
        self._again.pop(mark, None)
        if value:
            self.known.remove(mark)
            if not value & VOLATILE:
                self._change(mark, FREE)

    def purged(self, gone: Iterable[int]) -> None:
        """Follow all ready messages, and unacked ones that go with them, out of the queue."""
        for seq_id in gone:
            _told(self._away.pop(seq_id, (b"", None))[1], False)
        if not self._follows:
            return
        for waiting in self._loose.values():
            _told(waiting, False)
        self._loose.clear()
        is_kept = self._settings.deduplicate_mode != QUEUED  # in that mode purged ones may have their ids
        away = {mark: self.known.get(mark) for mark, _ in self._away.values() if mark and is_kept}
        for mark in [mark for mark in self._open if mark not in away]:
            _told(self._open.pop(mark), False)
        if self._keeps_present:
            self._start_anew()
            now = self._context.clock()
            for mark, value in away.items():
                if value:
                    self._keep(mark, value, now)

    def stored(self, messages: Iterable[Message]) -> None:
        """Note the ids of messages that were in memory only, and are written now."""
        now = self._context.clock()
        for message in messages:
            mark = self.mark_of(message)
            if mark is not None and (value := self.known.get(mark)):
                self._keep(mark, value & ~VOLATILE, now)

    # -- operators ----------------------------------------------------------------------------------------------------

    def known_until(self, text: str) -> int | None:
        """Return the time (epoch ms) until which an id is known: 0 if it is not settled, None if the id is unknown."""
        value = self.known.get(self.mark_of_id(text))
        if not is_known(value, self._context.clock()):
            return None
        return 0 if is_present(value) else time_of(value)

    def forget(self, text: str) -> bool:
        """Forget an id; return whether it was known."""
        mark = self.mark_of_id(text)
        was_known = is_known(self.known.get(mark), self._context.clock())
        self._free(mark)
        return was_known

    def forget_all(self) -> int:
        """Forget all ids; return how many there were, at most."""
        count = self.known.count
        self._start_anew()
        self._away = {seq_id: (b"", waiting) for seq_id, (_, waiting) in self._away.items() if waiting}
        return count

    def _refuse_waiting(self) -> None:
        """Refuse those who wait for the verdicts of consumers, and follow the messages in the queue no more."""
        away = [waiting for _, waiting in self._away.values()]
        for waiting in (*self._open.values(), *self._loose.values(), *away):
            _told(waiting, False)
        self._open.clear()
        self._loose.clear()
        self._away.clear()

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _start_anew(self) -> None:
        """Forget all ids, in memory and on disk; what comes later has a line of its own."""
        self.known = KnownIds()
        self._again.clear()
        self._changed.clear()
        if self._disk is not None and self._is_stored:
            self._disk.journal.delete(TABLE, pack_line(self._line))
            self._line = next_line(self._line)
            self._is_stored = False
        self._first = self._next = 1
        self._logged = self._old = 0
        self._rewritten = -1

    def _change(self, mark: bytes, value: int) -> None:
        is_first = not self._changed
        self._changed[mark] = value
        if is_first and self._disk is not None and not self._disk.journal.before_cut(self._write):
            self._write()

    def _write(self) -> None:
        changed, self._changed = self._changed, {}
        if not changed or self._disk is None:
            return
        parts: tuple[list[bytes], list[bytes]] = [], []
        for mark, value in changed.items():
            is_end = value == FREE or (self._keeps_present and value != PRESENT)
            parts[is_end].append(pack_entry(mark, value))
        for kind, entries in enumerate(parts):
            for at in range(0, len(entries), ROW_IDS):
                self._put_row(self._disk, b"".join(entries[at : at + ROW_IDS]), kind)
        self._logged += len(changed)
        self._rewrite(self._disk, max(PIECE, 2 * len(changed)))

    def _put_row(self, disk: DelayDisk, entries: bytes, kind: int = 0) -> None:
        journal = disk.journal
        if not self._is_stored:
            self._is_stored = True
            journal.put(TABLE, pack_line(self._line), pack_count(self._line, self._secret))
        journal.put(TABLE, *pack_ids(self._line, 2 * self._next + kind, entries))
        self._next += 1

    def _rewrite(self, disk: DelayDisk, most: int) -> None:
        """Rewrite a part of the log if it is long: first the table is written again, then the rows before are deleted.

        The oldest row goes first, so that of an id that is not known any more the last row is the last to go.
        """
        if self._rewritten >= 0:
            now = self._context.clock()
            early = self._filing.union([fresh[0] for fresh in self._fresh])  # their messages are not noted
            entries, self._rewritten = self.known.part(self._rewritten, most, now, early)
            for start in range(0, len(entries), ROW_IDS * ENTRY):
                self._put_row(disk, entries[start : start + ROW_IDS * ENTRY])
        elif self._first < self._old:
            for number in range(self._first, min(self._first + FEW_ROWS, self._old)):
                disk.journal.delete(TABLE, pack_key(self._line, (0, 2 * number)))
                disk.journal.delete(TABLE, pack_key(self._line, (0, 2 * number + 1)))
                self._first = number + 1
        elif self._logged > 2 * self.known.count + FEW_CHANGES:
            self._rewritten, self._old, self._logged = 0, self._next, self.known.count

    def recover(self, line: int, value: bytes, rows: Callable[[], Iterable[tuple[Due, bytes]]]) -> None:
        """Take over the ids of an earlier run; none if nothing is deduplicated now. A turn must run then."""
        self._line, self._is_stored = line, True
        try:
            self._secret = unpack_count(line, value)
        except DamagedError:
            self._note_damage()
        now = self._context.clock()
        for due, row in rows():
            number = due[1] // 2
            self._first, self._next = self._first if self._logged else number, number + 1
            try:
                for mark, entry in unpack_ids(line, due, row):
                    self._logged += 1
                    if is_known(entry, now):
                        self.known.put(mark, entry, now)
                    else:
                        self.known.remove(mark)
            except DamagedError:
                self._note_damage()
        if self._settings.deduplicate is None:
            self.forget_all()
        elif not self._keeps_present:
            self._until(now)

    def _note_damage(self) -> None:
        if self._disk is not None:
            self._disk.damages.note((self._line, 0), IDS)

    def delete(self) -> None:
        """Forget everything because the queue is deleted."""
        self._refuse_waiting()
        self._start_anew()
        self._settings = NO_SETTINGS
        if self._timer is not None:
            self._context.timers.cancel(self._timer)
            self._timer = None


def _answered(message: Message, *, is_durable: bool) -> Awaited | None:
    """Return who waits for a repeat, which then counts as no copy of this queue's."""
    if not isinstance(message, Persistent):
        return message.promise
    if not is_durable:  # it is a copy of others
        return None
    waiting = joined(message)
    message.copies -= 1
    message.accepted()
    return waiting


def _text(message: Message, name: str) -> str:
    field = (Properties(message.header).headers or {}).get(name)
    return "" if field is None or field[1] is None else str(field[1])


def _told(waiting: Sequence[Awaited] | None, is_safe: bool) -> None:
    for promise in waiting or ():
        if is_safe:
            promise.accepted()
        else:
            promise.refused()
