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

Ids are in memory, in tables (`storage.message_ids`). In the last two modes an id has a number of *copies*: the messages
in the queue that have it. Ids of stored messages are also rows, written by the commit that has the message, or its end
(`broker.queue.id_log`): no commit begins before the queue has run. The others are in memory only, as the messages are:
without a disk, in queues that are not durable, of transient messages, and while a queue confirms on consumer acks
(`broker.queue.id_places`). So is that of a very large message that moves here, until its body is in a file of its own;
a publish goes to no queue before that (`Channel.publish`).

A repeat must be as safe as its publisher may expect. So a persistent message is no repeat of one that is in the queue
and in memory only: it is taken, and *replaces* that. Of the two the one that comes second is dropped, once the first is
settled, or at once if no consumer has that yet.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from leveret.broker.amqp.properties import is_persistent
from leveret.broker.errors import resource
from leveret.broker.queue.arguments import BODY, QUEUED, RUNNING, WINDOW
from leveret.broker.queue.id_notes import Verdict, told, withhold
from leveret.broker.queue.id_places import IdPlaces
from leveret.broker.queue.id_source import IdSource, tagged
from leveret.broker.queue.interfaces import DelayDisk, TakingQueue
from leveret.broker.queue.settings import NO_SETTINGS, QueueSettings
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.wall_timers import Timer
from leveret.confirm.promise import Promise, joined, not_kept
from leveret.storage.delayed import Due
from leveret.storage.message import Awaited, Message, Persistent, moving
from leveret.storage.message_ids import FREE, KNOWN_BIT, PRESENT, copies_of, time_of, value_until
from leveret.storage.queues.backing_queue import Fetched

log = logging.getLogger("leveret.queue")

Away = tuple[bytes, bool]
"""An unacked message: its id, and whether it is stored."""


class Deduplication:
    """The ids that one queue knows. Everything is without effect while its settings ask for no deduplication."""

    def __init__(
        self, queue: TakingQueue, context: NodeContext, disk: DelayDisk | None, kind: str = "queue"
    ) -> None:
        self.owner = queue
        self.kind = kind
        self.where = resource(kind, queue.name, queue.vhost)
        self._context = context
        self._disk = disk if queue.durable else None
        self._settings = NO_SETTINGS
        self._ids = IdPlaces(queue.qid, self._disk, context.clock, context.ids)
        self.source = IdSource(None, self._ids.log.key)
        """Reads the ids of messages."""
        self._repeats: list[tuple[bytes, Message]] = []
        """Those whose publishers the next run has wait for the first ones."""
        self._large: list[tuple[bytes, Message, Promise | None]] = []
        """Messages whose bodies may get files of their own in the next run, with who waits."""
        self._filing: set[bytes] = set()
        """Ids of those, and of others that wait for their files."""
        self._returned: dict[bytes, int] = {}
        """Ids, in the mode `queued`, of messages that were delivered in an earlier run, with the number of these."""
        self._replaced: dict[bytes, bool] = {}
        """Ids of messages in memory that stored ones replace, and whether a consumer has settled the former."""
        self._away: dict[int, Away] = {}
        """Unacked messages by seq_id, where it matters what becomes of them."""
        self._loose: set[int] = set()
        """Messages that are ready again, and whose ids stay free, in the mode `queued`."""
        self._open: dict[bytes, Verdict] = {}
        """Verdicts on the last messages with their ids, where consumers confirm."""
        self._timer: Timer | None = None
        self._has_warned = False

    def __repr__(self) -> str:
        return f"<ids of {self.where}>"

    @property
    def count(self) -> int:
        """Number of ids that are known, of which some may have expired."""
        return self._ids.count

    @property
    def settings(self) -> QueueSettings:
        """The settings, of which those of deduplication count."""
        return self._settings

    def configure(self, settings: QueueSettings) -> None:
        """Apply changed settings. All ids are forgotten if they are now those of something else, or in another mode."""
        before, self._settings = self._settings, settings
        if before is not NO_SETTINGS and before.once != settings.once:
            self.forget_all()
        self._ids.log.key = tagged(self._ids.log.key, settings.once)
        self.source = IdSource(settings.deduplicate, self._ids.log.key)

    @property
    def _keeps_present(self) -> bool:
        """True if ids are known as long as messages are in the queue."""
        return self._settings.deduplicate_mode != WINDOW

    # -- publishes ----------------------------------------------------------------------------------------------------

    @property
    def sifts(self) -> bool:
        """True if `sift` does what is to be done: bodies are large, and consumers confirm one by one."""
        return self._settings.deduplicate not in {None, BODY} and not self.owner.awaits_consumers

    def sift(self, messages: Sequence[Message]) -> tuple[Sequence[Message], Sequence[int]]:
        """Know the ids of publishes, all of which are stored or none, and return those that the queue takes.

        Returns the places of those that are refused, too. No body gets a file of its own.
        """
        marks = self.source.marks(messages)
        texts = [mark for mark in marks if mark]
        is_known = self._ids.knows_any(texts)
        if is_known:
            self.owner.end_first()
            is_known = self._ids.knows_any(texts)
        if not is_known and len(set(texts)) == len(texts) and self._ids.has_room(len(texts)):
            self._take_all(texts, messages)
            return messages, ()
        taken, refused = [], []
        for at, (mark, message) in enumerate(zip(marks, messages, strict=True)):
            if mark and self.is_repeat(mark, message):
                continue
            if mark and not self.has_room():
                refused.append(at)
                continue
            if mark:
                self.take(mark, message)
            taken.append(message)
        return taken, refused

    def _take_all(self, marks: Sequence[bytes], messages: Sequence[Message]) -> None:
        for mark in marks if self._replaced or self._open else ():
            self._replaced.pop(mark, None)
            self._supersede(mark)
        until = FREE if self._keeps_present else self._until()
        is_stored = self._stores(messages[0])
        self._ids.take_all(marks, until, is_stored=is_stored)
        if is_stored and self._settings.deduplicate_for:
            withhold(messages, self._disk.journal)  # type: ignore[union-attr] # they are stored

    def _stores(self, message: Message) -> bool:
        """Return whether the queue stores a message that it takes."""
        return self._disk is not None and message.persistent

    def knows(self, mark: bytes) -> bool:
        """Return whether an id is known."""
        return self._ids.value(mark) != FREE

    def answers(self, mark: bytes, *, is_stored: bool) -> bool:
        """Return whether a message would be a repeat: not if it is stored, and the first one is in memory only.

        That is in the queue still, and a kill loses it.
        """
        ids = self._ids
        is_safe = not is_stored or ids.is_stored(mark) or mark in self._filing or not ids.is_in_memory(mark)
        return is_safe and self.knows(mark)

    def is_repeat(self, mark: bytes, message: Message) -> bool:
        """Return whether a message is a repeat, which is counted, and whose publisher hears from here."""
        is_stored = self._stores(message)
        if not self.answers(mark, is_stored=is_stored):
            return False
        if is_stored and not self._ids.is_stored(mark) and mark not in self._filing:
            self._ids.keep(mark)  # a consumer has settled the first one
        self.owner.tally.repeated += 1
        if message.promise is not None and mark in self._open:
            self._open[mark].waiting.append(message.promise)
        else:
            self._join(mark, message)
        return True

    def _join(self, mark: bytes, message: Message) -> None:
        """Have the publisher of a repeat wait for the first message, once all copies of the repeat are counted."""
        self._repeats.append((mark, message))
        self.owner.touch()

    def has_room(self, *, is_new: bool = True) -> bool:
        """Return whether another id can be kept; otherwise a new publish is refused, and others are taken without."""
        room = self._context.ids
        if self._ids.has_room():
            self._has_warned = False
            return True
        room.refused += is_new
        if is_new and not self._has_warned:
            self._has_warned = True
            text = (
                "%s knows %d ids, all queues %d of %d (limits.message_ids): publishes with others are refused"
            )
            log.warning(text, self.where, self.count, room.count, room.most)
        return False

    def take(self, mark: bytes, message: Message) -> None:
        """Know the id of a message that the queue has taken."""
        is_stored = self._stores(message)
        if is_stored and self._ids.is_in_memory(mark):
            self._replaced[mark] = False
        else:
            self._replaced.pop(mark, None)
        value = FREE if self._keeps_present else self._until()
        disk = self._disk
        if disk is not None and is_stored and len(message.content) >= disk.blob_threshold:
            is_stored = disk.journal.has_file(message)  # type: ignore[arg-type] # it is stored
            if not is_stored:
                self._filing.add(mark)
                self._large.append((mark, message, joined(message)))
        self._ids.take(mark, value, is_stored=is_stored)
        before = self._supersede(mark)
        if self.owner.awaits_consumers:
            self._await(mark, message.promise, 1 if before is None else before.count + 1)
        if is_stored and (promise := joined(message)) is not None:
            self._tell([promise])
        self.owner.touch()

    def _supersede(self, mark: bytes) -> Verdict | None:
        """Follow the last message with an id no more, as another one has it now; its own publisher hears all the same.

        Those of repeats that only the queue could tell have to repeat again.
        """
        before = self._open.pop(mark, None)
        if before is not None and before.publisher is None:
            told(before.take(0), False)
        return before

    def _await(self, mark: bytes, promise: Awaited | None, count: int = 0) -> Verdict:
        """Have repeats of a message wait for its consumers; `count`: as of a `Verdict`."""
        self._open[mark] = verdict = Verdict(self.heard, mark, count)
        if isinstance(promise, Promise) and promise.publisher is not None:
            verdict.publisher, promise.publisher = promise.publisher, verdict
        return verdict

    def heard(self, verdict: Verdict, seq_no: int, is_accepted: bool) -> None:
        """Tell the publishers of a message, and of its repeats, what its consumers have answered.

        The id may be that of another message by now, if its time was over, or it was forgotten.
        """
        if self._open.get(verdict.mark) is verdict:
            if is_accepted and self._disk is not None and not self._keeps_present:
                self._ids.keep(verdict.mark)
            if verdict.count <= 0:
                del self._open[verdict.mark]
        if is_accepted:
            self._tell(verdict.take(seq_no))  # after the commit that has its end
        else:
            told(verdict.take(seq_no), False)

    def adopt(self, messages: Iterable[Message]) -> None:
        """Know the ids of messages that the queue has taken in another way than by `Queue.put`."""
        for message in messages:
            mark = self.source.mark(message)
            if mark is not None:
                self.take(mark, moving(message, 0, None) if is_persistent(message.content) else message)

    def _until(self) -> int:
        """Return the value of an id whose time begins now; ask for a clean-up after all of them."""
        until = self._context.clock() + self._settings.deduplicate_for
        self._timer = self._context.timers.sooner(self._timer, until + 1000, self._wake)
        return value_until(until)

    def _wake(self) -> None:
        if self._keeps_present or not self.count:
            return
        latest = time_of(self._ids.latest)
        if self._context.clock() > latest:
            self._forget()
            self.owner.touch()
        else:
            self._timer = self._context.timers.at(latest + 1000, self._wake)

    def note(self) -> None:
        """Have the publishers of repeats wait for what the queue has noted, and ids for the files of bodies."""
        repeats, self._repeats = self._repeats, []
        large, self._large = self._large, []
        waiting: list[Awaited] = []
        for mark, message in repeats:
            if (promise := not_kept(message, is_durable=self.owner.durable)) is not None:
                verdict = self._open.get(mark)
                (waiting if verdict is None else verdict.waiting).append(promise)
        for mark, message, promise in large:
            filed = partial(self._filed, mark, promise)
            if self._disk is None or not isinstance(message, Persistent):
                continue
            if message.in_blob and not self._disk.journal.has_file(message):
                self._disk.journal.write_file(message, filed)
            else:  # it is held
                filed(is_written=True)
        self._tell(waiting, also_files=True)

    def _filed(self, mark: bytes, promise: Promise | None, is_written: bool) -> bool:
        """Note the id of a message whose body is in a file now; the file is not needed for that."""
        if is_written and mark in self._filing:
            self._filing.discard(mark)
            self._ids.keep(mark)
        if is_written and promise is not None:
            self._tell([promise])
        return False

    def _tell(self, waiting: Sequence[Awaited], *, also_files: bool = False) -> None:
        """Notify publishers when all that was noted is safe."""
        if self._disk is None:
            told(waiting, True)
        elif waiting:
            journal = self._disk.journal
            (journal.when_all_safe if also_files else journal.when_safe)(partial(told, waiting))

    def give_up(self, lost: Iterable[Message]) -> None:
        """Forget the ids of messages that the queue has lost in this turn, after an internal error."""
        for _, message in self._repeats:
            if (promise := not_kept(message, is_durable=self.owner.durable)) is not None:
                promise.refused()
        self._repeats.clear()
        self.note()
        self.dropped([(-1, message) for message in lost], is_over_limit=True)

    # -- what becomes of the messages ---------------------------------------------------------------------------------

    @property
    def _follows(self) -> bool:
        """True if it matters what becomes of a message."""
        return self._settings.deduplicate is not None and bool(
            self._keeps_present
            or self._open
            or self.owner.awaits_consumers
            or (self._disk is not None and (self._ids.has_volatile or self._replaced))
        )

    def fetched(self, batch: Fetched, *, ack_required: bool) -> Sequence[int]:
        """Follow messages that are delivered, or discarded as dead letters; return the seq_ids of those replaced."""
        if not self._follows:
            return ()
        is_queued = self._settings.deduplicate_mode == QUEUED
        replaced: list[int] = []
        delivered: list[bytes] = []
        left: dict[int, Away] = {}
        marks = self.source.marks(batch.messages)
        for seq_id, mark, message in zip(batch.seq_ids, marks, batch.messages, strict=True):
            is_loose = seq_id in self._loose
            self._loose.discard(seq_id)
            if not mark:
                continue
            is_stored = self._is_stored(message)
            if self._replaced and self._replaced.get(mark) is is_stored:
                replaced.append(seq_id)
                self._ids.end((mark,), is_stored=is_stored)
                del self._replaced[mark]
                continue
            left[seq_id] = mark, is_stored
            if is_loose:
                pass
            elif self._returned.get(mark):
                self._returned[mark] -= 1
            elif is_queued:
                delivered.append(mark)
        self._ids.deliver(delivered)
        self._away.update(left)
        if not ack_required:
            self.settled(left)
        self.owner.tally.repeated += len(replaced)
        return replaced

    def _is_stored(self, message: Message) -> bool:
        """Return whether a message that was in the queue is stored, by what it says."""
        if self._disk is None:
            return False
        return message.persistent or self.owner.saves_all or is_persistent(message.content)

    def requeued(self, seq_ids: Collection[int]) -> None:
        """Follow messages that are ready again."""
        is_loose = self._settings.deduplicate is not None and self._settings.deduplicate_mode == QUEUED
        for seq_id in seq_ids if self._away else ():
            self._away.pop(seq_id, None)
        if is_loose:
            self._loose.update(seq_ids)

    def ending(self, seq_ids: Iterable[int]) -> None:
        """Follow unacked messages that the transaction in progress settles: what it publishes comes after them."""
        if self._settings.deduplicate_mode == RUNNING:
            self.settled(seq_ids)

    def settled(self, seq_ids: Iterable[int]) -> None:
        """Follow unacked messages that leave the queue."""
        away = self._away
        left = [each for seq_id in seq_ids if (each := away.pop(seq_id, None))] if away else []
        is_plain = self._keeps_present and not (self._replaced or self._open)
        if is_plain and all(is_stored for _, is_stored in left):
            self._ids.end([mark for mark, _ in left], self._afterwards(), is_stored=True)
            return
        for mark, is_stored in left:
            self._left(mark, is_stored=is_stored)

    def dropped(self, messages: Iterable[tuple[int, Message]], *, is_over_limit: bool = False) -> None:
        """Follow messages, with their seq_ids, that leave the queue without a delivery, or are not held any more.

        Those over its limit leave no id in any mode.
        """
        if not is_over_limit and not self._follows:
            return
        for seq_id, message in messages:
            is_loose = seq_id in self._loose
            self._loose.discard(seq_id)
            mark = self.source.mark(message)
            if mark is None:
                continue
            if self._returned.get(mark):
                self._returned[mark] -= 1  # another message may have the id
            elif self._settings.deduplicate_mode == QUEUED and not is_loose:
                self._ids.deliver((mark,))
            self._left(mark, is_stored=self._is_stored(message), is_dropped=True)
            if is_over_limit and not self._keeps_present:
                self._ids.free(mark)

    def _left(self, mark: bytes, *, is_stored: bool, is_dropped: bool = False) -> None:
        """Follow a message out of the queue: its id ends; tell publishers of repeats."""
        self._end(mark, is_stored=is_stored, is_dropped=is_dropped)
        verdict = self._open.get(mark) if self._open else None
        if verdict is not None:
            verdict.count -= 1
            if verdict.publisher is None and verdict.count <= 0:
                self.heard(verdict, 0, not is_dropped)

    def _end(self, mark: bytes, *, is_stored: bool, is_dropped: bool = False) -> None:
        """Free the id of a message that leaves, or have its time begin."""
        if self._keeps_present:
            self._ids.end((mark,), FREE if is_dropped else self._afterwards(), is_stored=is_stored)
        elif mark in self._filing or (
            (verdict := self._open.get(mark)) is not None
            and verdict.count == 1
            and not is_dropped
            and self._disk is not None
        ):  # in the commit with its end, which may be a transaction's
            self._filing.discard(mark)
            self._ids.keep(mark)
        elif verdict is not None or not is_stored:
            self._ids.left(mark)
        if mark in self._replaced:
            if is_dropped or is_stored:
                del self._replaced[mark]
            else:
                self._replaced[mark] = True

    def _afterwards(self) -> int:
        """Return the value of the id of a message that is settled now."""
        settings = self._settings
        is_timed = settings.deduplicate_mode == RUNNING and settings.deduplicate_for
        return self._until() if is_timed else FREE

    def purged(self, gone: Iterable[int]) -> None:
        """Follow all ready messages, and unacked ones that go with them, out of the queue."""
        for seq_id in gone:
            self._away.pop(seq_id, None)
        if not self._follows:
            return
        self._loose.clear()
        kept = Counter([mark for mark, _ in self._away.values()]) if self._open else Counter()
        for mark, verdict in list(self._open.items()):
            verdict.count = kept[mark]
            if verdict.publisher is None:
                self.heard(verdict, 0, False)
        if self._keeps_present:
            self._forget(self._away.values())

    def stored(self, messages: Iterable[Message]) -> None:
        """Note the ids of messages that were in memory only, and are written now."""
        for message in messages:
            mark = self.source.mark(message)
            if mark is not None:
                self._ids.keep(mark)

    # -- operators ----------------------------------------------------------------------------------------------------

    def known_until(self, text: str) -> int | None:
        """Return the time (epoch ms) until which an id is known: 0 if it is not settled, None if the id is unknown."""
        value = self._ids.value(self.source.mark_of_id(text))
        return None if value == FREE else 0 if copies_of(value) else time_of(value)

    def forget(self, text: str) -> bool:
        """Forget an id; return whether it was known."""
        mark = self.source.mark_of_id(text)
        was_known = self.knows(mark)
        self.free(mark)
        return was_known

    def free(self, mark: bytes) -> None:
        """Forget an id, given by what stands for it."""
        self._ids.free(mark)

    def forget_all(self) -> int:
        """Forget all ids, and follow the messages in the queue no more; return how many ids there were, at most."""
        count = self._ids.count
        self._forget()
        for mark in list(self._open):
            self._supersede(mark)
        self._loose.clear()
        self._away.clear()
        return count

    def _forget(self, kept: Collection[Away] = ()) -> None:
        """Forget all ids but those of unacked messages, which tell whether they are stored."""
        self._returned.clear()
        self._replaced.clear()
        self._filing.clear()
        self._context.timers.cancel(self._timer)
        # in the mode `queued` others, which were purged, may have the ids
        self._ids.forget(kept, is_known=self._settings.deduplicate_mode != QUEUED)

    def recover(self, line: int, value: bytes, rows: Callable[[], Iterable[tuple[Due, bytes]]]) -> None:
        """Take over the ids of an earlier run; none if its settings were others. A turn must run then."""
        is_asked, once = self._settings.deduplicate is not None, self._settings.once
        self._ids.log.recover(line, value, rows, lambda key: is_asked and key == tagged(key, once))
        self.source = IdSource(self._settings.deduplicate, self._ids.log.key)
        if not self._keeps_present:
            self._until()
        elif self._settings.deduplicate_mode == QUEUED:
            for mark, each in self._ids.log.known.entries(but=PRESENT):
                if returned := copies_of(each) - bool(each & KNOWN_BIT):
                    self._returned[mark] = returned

    def delete(self) -> None:
        """Forget everything because the queue is deleted."""
        self.forget_all()
        self._settings = NO_SETTINGS
