"""The places of one queue's ids: those of stored messages, and those of messages in memory only.

An id may be in both, as several messages may have it: dead letters, messages that were moved, and stored ones that
replace others (`broker.queue.deduplication`). Each place counts its own. What is on disk so never depends on a message
that is not.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
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
        self._volatile = KnownIds(room)
        """Ids of messages that are in memory only."""

    @property
    def count(self) -> int:
        """Number of ids, of which some may have expired."""
        return self.log.known.count + self._volatile.count

    @property
    def has_volatile(self) -> bool:
        """True if there may be messages in memory only."""
        return self._volatile.count > 0

    def has_room(self, more: int = 0) -> bool:
        """Return whether there is room for another id, or so `more`."""
        return self._room.has_place(self.count + 2 * more)

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
        """Return whether an id is known by what is on disk after the next commit."""
        return is_known(self.log.known.get(mark), self._clock())

    def is_in_memory(self, mark: bytes) -> bool:
        """Return whether a message that is in memory only, and in the queue, has an id that is known."""
        value = self._volatile.get(mark)
        return bool(copies_of(value) or value & QUEUED_BIT) and is_known(value, self._clock())

    def knows_any(self, marks: Sequence[bytes]) -> bool:
        """Return whether some ids are known, or were until a moment ago."""
        return self.log.known.has_any(marks) or (self._volatile.count > 0 and self._volatile.has_any(marks))

    # -- messages that come -------------------------------------------------------------------------------------------

    def take(self, mark: bytes, until: int, *, is_stored: bool) -> None:
        """Know the id of a message until a time (a value), or as long as it is in the queue (`FREE`).

        That of a stored one is in the next commit, as no commit begins before the message is noted (`Turn.is_split`).
        """
        if is_stored:
            self.log.put(mark, until or _more(self.log.known.get(mark)))
        else:
            value = until | QUEUED_BIT if until else _more(self._volatile.get(mark))
            self._volatile.put(mark, value, self._clock())

    def take_all(self, marks: Sequence[bytes], until: int, *, is_stored: bool) -> None:
        """Know the ids of messages, each of which is in no place; see `take`."""
        if is_stored:
            self.log.add(marks, until or PRESENT)
        for mark in () if is_stored else marks:
            self.take(mark, until, is_stored=False)

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
        if not self._volatile.count:
            marks = self.log.replace_all(marks, PRESENT, DELIVERED, is_end=False)
        for mark in marks:
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
        self._volatile.remove(mark)
        self.log.put(mark, FREE, is_end=True)

    def forget(self, kept: Sequence[tuple[bytes, bool]] = (), *, is_known: bool = False) -> None:
        """Forget all ids but those of some messages, which tell whether they are stored; `is_known`: those stay so."""
        stored = [is_stored and self.log.known.get(mark) != FREE for mark, is_stored in kept]
        self.log.start_anew()
        self._volatile.clear()
        for (mark, _), is_stored in zip(kept, stored, strict=True):
            value, put = next(self._all(mark, is_stored=is_stored))
            put(mark, _more(value, is_known=is_known))

    def _all(
        self, mark: bytes, *, is_stored: bool, is_end: bool = False
    ) -> Iterator[tuple[int, Callable[[bytes, int], object]]]:
        """Yield all values of an id, and what changes each: first where a message is that is, or is not, stored."""
        if not is_stored:
            yield self._volatile.get(mark), self._put_volatile
        yield self.log.known.get(mark), partial(self.log.put, is_end=is_end)
        if is_stored:
            yield self._volatile.get(mark), self._put_volatile

    def _put_volatile(self, mark: bytes, value: int) -> None:
        if value:
            self._volatile.put(mark, value, self._clock())
        else:
            self._volatile.remove(mark)


def _more(value: int, *, is_known: bool = True) -> int:
    """Return the value of an id that one more message has."""
    return of_copies(copies_of(value) + 1, is_known=is_known)
