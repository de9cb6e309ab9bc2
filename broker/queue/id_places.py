"""The places of one queue's ids: of stored messages, of those that are not noted yet, of those in memory only.

An id may be in several places, as several messages may have it: dead letters, messages that were moved, and stored ones
that replace others (`broker.queue.deduplication`). Each place counts its own. What is on disk so never depends on a
message that is not.
"""

import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from leveret.broker.queue.id_log import IdLog
from leveret.broker.queue.interfaces import DelayDisk
from leveret.storage.message_ids import (
    DELIVERED,
    FREE,
    KNOWN_BIT,
    PRESENT,
    QUEUED_BIT,
    KnownIds,
    Room,
    copies_of,
    is_known,
    of_copies,
    one_less,
)


class IdPlaces:
    """The ids that the queue with an id (`qid`) knows, with their values (`storage.message_ids`)."""

    def __init__(self, qid: int, disk: DelayDisk | None, clock: Callable[[], int], room: Room) -> None:
        self._clock = clock
        self._room = room
        self.log = IdLog(qid, disk, clock, room)
        self.log.key = secrets.randbits(64)
        self._pending: dict[bytes, int] = {}
        """Values of ids of messages that are stored, and not noted yet."""
        self._volatile = KnownIds(room)
        """Ids of messages that are in memory only."""

    @property
    def count(self) -> int:
        """Number of ids, of which some may have expired."""
        return self.log.known.count + self._volatile.count + len(self._pending)

    @property
    def has_volatile(self) -> bool:
        """True if there may be messages in memory only."""
        return self._volatile.count > 0

    def has_room(self, more: int = 0) -> bool:
        """Return whether there is room for another id, or so `more`."""
        return self._room.has_place(self.count + len(self._pending) + 2 * more)

    def clean(self) -> bool:
        """Remove some ids that have expired; return whether there were any."""
        now = self._clock()
        return self.log.known.clean(now) + self._volatile.clean(now) > 0

    def value(self, mark: bytes) -> int:
        """Return the largest value of an id that is known; `FREE` if it is not."""
        now = self._clock()
        known = [value for value, _ in self._all(mark, is_stored=True) if is_known(value, now)]
        return max(known) if known else FREE

    def is_stored(self, mark: bytes) -> bool:
        """Return whether an id is known by what is on disk after this turn's commit, or its body's file."""
        now = self._clock()
        return is_known(self.log.known.get(mark), now) or is_known(self._pending.get(mark, FREE), now)

    def is_in_memory(self, mark: bytes) -> bool:
        """Return whether a message that is in memory only, and in the queue, has an id that is known."""
        value = self._volatile.get(mark)
        return bool(copies_of(value) or value & QUEUED_BIT) and is_known(value, self._clock())

    def knows_any(self, marks: Sequence[bytes]) -> bool:
        """Return whether some ids are known, or were until a moment ago."""
        pending = self._pending
        return (
            self.log.known.has_any(marks)
            or (bool(pending) and not pending.keys().isdisjoint(marks))
            or (self._volatile.count > 0 and self._volatile.has_any(marks))
        )

    # -- messages that come -------------------------------------------------------------------------------------------

    def take(self, mark: bytes, until: int, *, is_stored: bool) -> None:
        """Know the id of a message until a time (a value), or as long as it is in the queue (`FREE`)."""
        if is_stored:
            self._pending[mark] = until or _more(self._pending.get(mark, FREE))
        else:
            value = until | QUEUED_BIT if until else _more(self._volatile.get(mark))
            self._volatile.put(mark, value, self._clock())

    def take_all(self, marks: Sequence[bytes], until: int, *, is_stored: bool) -> None:
        """Know the ids of messages, of which none is known; see `take`."""
        if is_stored:
            self._pending.update(dict.fromkeys(marks, until or PRESENT))
        else:
            for mark in marks:
                self.take(mark, until, is_stored=False)

    def note_all(self, marks: Sequence[bytes], until: int) -> None:
        """Have the next commit write the ids of messages; see `note`."""
        pending = self._pending
        rest: Collection[bytes] = marks
        for value in (until,) if until else (PRESENT, DELIVERED):
            noted = [mark for mark in rest if pending.get(mark) == value]
            there = self.log.add(noted, value)
            if len(noted) == len(pending):
                pending.clear()
            for mark in noted if pending else ():
                del pending[mark]
            for mark in there:
                pending[mark] = value
            if len(noted) == len(rest) and not there:
                return
            rest = {*rest}.difference(noted).union(there) if noted else rest
        for mark in rest:
            self.note(mark, until)

    def untake(self, mark: bytes, *, is_stored: bool) -> None:
        """Forget the id of a message that was taken, and is not in the queue after all."""
        place: dict[bytes, int] | KnownIds = self._pending if is_stored else self._volatile
        value = place.get(mark)
        put = self._put_pending if is_stored else self._put_volatile
        if value:
            put(mark, one_less(value))

    def note(self, mark: bytes, until: int) -> None:
        """Have the next commit write the id of a message that was taken, unless it has left the queue before that."""
        pending = self._pending.pop(mark, FREE)
        if until and pending:
            self.log.put(mark, until)
        elif copies_of(pending):
            if rest := one_less(pending):
                self._pending[mark] = rest
            before = self.log.known.get(mark)
            known = bool(pending & KNOWN_BIT or (copies_of(before) and before & KNOWN_BIT))
            self.log.put(mark, _more(before, is_known=known))

    def note_early(self, mark: bytes) -> None:
        """Have the next commit write an id that is known for a time, if the body of its message has no file yet."""
        if value := self._pending.pop(mark, FREE):
            self.log.put(mark, value)

    def keep(self, mark: bytes) -> None:
        """Have the next commit write an id that was known in memory only: for its time, or with one of its messages."""
        value = self._volatile.get(mark)
        self._put_volatile(mark, one_less(value))
        if copies_of(value):
            value = _more(self.log.known.get(mark), is_known=bool(value & KNOWN_BIT))
        if value:
            self.log.put(mark, value & ~QUEUED_BIT)

    # -- messages that leave ------------------------------------------------------------------------------------------

    def deliver(self, mark: bytes) -> None:
        """Have an id free, although messages that have it are in the queue."""
        for value, put in self._all(mark, is_stored=True):
            if value & KNOWN_BIT and (copies := copies_of(value)):
                put(mark, of_copies(copies, is_known=False))

    def deliver_all(self, marks: Sequence[bytes]) -> None:
        """Have ids free; see `deliver`."""
        pending = self._pending
        fresh = (
            {mark: value & ~KNOWN_BIT for mark in marks if (value := pending.get(mark))} if pending else {}
        )
        if self._volatile.count or (fresh and self.log.known.has_any([*fresh])):
            rest = marks
        else:
            pending.update(fresh)
            rest = [mark for mark in marks if mark not in fresh] if fresh else marks
            rest = self.log.replace_all(rest, PRESENT, DELIVERED, is_end=False)
        for mark in rest:
            self.deliver(mark)

    def end_all(self, marks: Sequence[bytes], then: int) -> None:
        """Take one copy from the ids of stored messages; see `end`."""
        for value in (PRESENT, DELIVERED):
            marks = self.log.replace_all(marks, value, then, is_end=True) if marks else ()
        for mark in marks:
            self.end(mark, is_stored=True, then=then)

    def end(self, mark: bytes, *, is_stored: bool, then: int = FREE) -> None:
        """Take one copy from an id; after the last one it is free, or known until `then`."""
        for value, put in self._all(mark, is_stored=is_stored, is_end=True):
            if copies_of(value):
                put(mark, one_less(value) or then)
                break

    def left(self, mark: bytes) -> None:
        """Note that a message in memory, with an id that is known for a time, is in the queue no more."""
        if value := self._volatile.get(mark):
            self._put_volatile(mark, value & ~QUEUED_BIT)

    def free(self, mark: bytes) -> None:
        """Forget an id."""
        self._pending.pop(mark, None)
        self._volatile.remove(mark)
        self.log.put(mark, FREE, is_end=True)

    def forget(self) -> dict[bytes, int]:
        """Forget all ids; return the values of those that were not noted."""
        self.log.start_anew()
        self._volatile.clear()
        pending, self._pending = self._pending, {}
        return pending

    def restore(self, mark: bytes, pending: dict[bytes, int], *, is_stored: bool, is_known: bool) -> None:
        """Know the id of a message that stays after `forget`, whose result is `pending`."""
        value = pending.pop(mark, FREE) if is_stored else FREE
        if copies := copies_of(value):
            pending[mark] = of_copies(copies - 1, is_known=is_known)
            self._pending[mark] = _more(self._pending.get(mark, FREE), is_known=is_known)
        elif is_stored:
            self.log.put(mark, _more(self.log.known.get(mark), is_known=is_known))
        else:
            self._put_volatile(mark, _more(self._volatile.get(mark), is_known=is_known))

    def _all(
        self, mark: bytes, *, is_stored: bool, is_end: bool = False
    ) -> Iterator[tuple[int, Callable[[bytes, int], object]]]:
        """Yield all values of an id, and what changes each: first where a message is that is, or is not, stored."""
        if not is_stored:
            yield self._volatile.get(mark), self._put_volatile
        yield self.log.known.get(mark), partial(self.log.put, is_end=is_end)
        yield self._pending.get(mark, FREE), self._put_pending
        if is_stored:
            yield self._volatile.get(mark), self._put_volatile

    def _put_volatile(self, mark: bytes, value: int) -> None:
        if value:
            self._volatile.put(mark, value, self._clock())
        else:
            self._volatile.remove(mark)

    def _put_pending(self, mark: bytes, value: int) -> None:
        if copies_of(value):
            self._pending[mark] = value
        else:
            del self._pending[mark]
            if value:
                self.log.put(mark, value, is_end=True)


def _more(value: int, *, is_known: bool = True) -> int:
    """Return the value of an id that one more message has."""
    return of_copies(copies_of(value) + 1, is_known=is_known)
