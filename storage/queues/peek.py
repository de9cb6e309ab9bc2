"""Looks at the messages of a queue without taking any: a peek, a portion of some hundred messages, or a walk.

Theory. A look must neither change the queue nor wait in the event loop for the disk. So everything in memory is copied
at once, with a reference to each body, because a body may be dropped a moment later. If anything is on disk only, a
`Snapshot` of the files is opened, which later commits do not change. It has all that a queue knows to be on disk at
that moment: positions and bodies are dropped from memory only when their commit is done. A generator yields the reads
that it needs, and its caller runs them in a thread.

A queue is a row of parts (`Looks`). A look copies a `Run` of the messages that memory knows, and reads a `Stretch` of
the delta. A peek is a copy of all parts at one moment. A portion comes from one part and has at most about
`PORTION_OCTETS` of bodies; the next one begins where it ended. Positions never change, so messages that come, are
taken, paged out or loaded between two portions do not disturb a walk, which sees none twice and remembers one place. A
requeued message is in front of all others, whatever its position: its place is the position less `AHEAD`.

Messages that cannot be read because they are damaged are left out without a report: the delivery will find them. A very
large body has a file of its own, which no snapshot includes: if its message is settled during the look and the file
deleted, the message is left out, too.
"""

import sys
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from itertools import chain, islice
from math import inf
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from leveret.storage.errors import DamagedError
from leveret.storage.journal.blocks import (
    NO_RETURNS,
    Bitmap,
    Entry,
    Header,
    Record,
    octets_in_pieces,
    read_bitmap,
    read_header,
    read_records,
)
from leveret.storage.journal.reads import Loaded, Range, RawBlock
from leveret.storage.message import Message, leading
from leveret.storage.queues.backing_queue import (
    Look,
    Peeked,
    Peeking,
    Piece,
    Portion,
    PortionSteps,
    Read,
    Walk,
)
from leveret.storage.queues.delta import NO_DELTA, Delta, Gaps
from leveret.storage.queues.requeued import Item, size_of, trimmed

T = TypeVar("T")
Steps = Generator[Read | None, Any, T]

ALWAYS: Final = inf  # `redelivered_below` of messages that will all be marked as redelivered
AHEAD: Final = 1 << 64
PIECE = 256  # messages between two checks of the time, and per read of bodies
PREPARED = 2048  # maximum number of messages that one step moves to where they have positions
PORTION_OCTETS = 1024 * 1024  # content bytes after which a portion ends
READ_OCTETS = 64 * 1024  # bytes after which the read of a portion of the delta stops
_WINDOW = 512  # positions of the delta that a portion covers on the way to the head
_NO_LIMIT = 1 << 62

_seq_id = attrgetter("seq_id")


class Snapshot(Protocol):
    """The files as they were at one moment. Its methods may be called from one thread at a time."""

    def read(self, ranges: Sequence[Range], limit: int) -> Loaded:
        """Read blocks as `Environment.read` does."""

    def close(self) -> None:
        """Release the pages of that moment. Also done with the last reference."""


class Part(NamedTuple):
    """Messages of a queue that memory knows, ascending by position."""

    between: "Callable[..., tuple[Sequence[int], Sequence[Item]]]"
    """Returns positions and items of those from a position to before another, as `dense` does."""
    redelivered_below: float = 0  # those with a lower position will be marked as redelivered
    ahead: int = 0  # `AHEAD` if they are in front of messages with lower positions


def dense(
    run: deque[T], first: int, low: float, high: float, most: int, *, backwards: bool
) -> tuple[Sequence[int], Sequence[T]]:
    """Return members of a run that begins with position `first` and has no gaps: the first ones, or the last."""
    start, stop = trimmed(max(0, low - first), min(len(run), high - first), most, backwards=backwards)
    return range(first + start, first + stop), _some(run, start, stop)


def sparse(
    run: deque[Entry], low: float, high: float, most: int, *, backwards: bool
) -> tuple[Sequence[int], Sequence[Entry]]:
    """Return entries of a run, as `dense`."""
    start, stop = [bisect_left(run, each, key=_seq_id) for each in (low, high)]
    entries = _some(run, *trimmed(start, stop, most, backwards=backwards))
    return [entry.seq_id for entry in entries], entries


def _some(run: deque[T], start: int, stop: int) -> list[T]:
    """Return a part of a run: to turn it costs a nanosecond or so per member before that, which is the cheapest way."""
    run.rotate(-start)
    try:
        return list(islice(run, stop - start))
    finally:
        run.rotate(start)


_UNACKED = Part(partial(dense, deque(), 0), ALWAYS)  # messages that are in no part: the unacked ones


class Run(NamedTuple):
    """Messages of a part at one moment: positions, the queue's items, bodies in memory, delivery counts."""

    part: Part
    seq_ids: Sequence[int]
    items: Sequence[Item]
    messages: Sequence[Message | None]
    returns: Mapping[int, int]

    @property
    def needs_files(self) -> bool:
        """True if some body is on disk only."""
        return None in self.messages


class Stretch(NamedTuple):
    """Messages of a delta at one moment: memory has not even their positions."""

    whole: Range
    segment: int  # number of positions that are read at once
    octets: int  # bytes after which a read stops
    redelivered_below: float
    blocks: Mapping[int, tuple[int, Mapping[int, int]]]
    """Dead records and delivery counts of the known blocks, by their slot."""
    counts_returns: bool
    gaps: Gaps

    @property
    def needs_files(self) -> bool:
        """True: bodies are on disk only."""
        return True


class Place(NamedTuple):
    """The place at which a message of the delta was found."""

    raw: RawBlock
    header: Header
    bitmap: Bitmap
    record: Record
    message: Message


Places = dict[int, Place]


class Looks:
    """The looks at one queue, which defines its parts."""

    __slots__ = ()

    deleted: bool = False
    delta: Delta = NO_DELTA
    stored_returns: dict[int, int] = NO_RETURNS  # those of messages read and not fetched since, by seq_id

    # -- parts of a queue -------------------------------------------------------------------------------------------

    def _parts(self) -> Sequence[Part | None]:
        """Return the parts from the head on; None stands for the delta."""
        raise NotImplementedError

    def _front(self) -> Iterable[Item]:
        """Return the part that has the head, as far as memory knows it."""
        raise NotImplementedError

    def _unacked_tables(self) -> Sequence[Mapping[int, Item]]:
        raise NotImplementedError

    def _end(self) -> int:
        """Return the position of the next message to be published."""
        raise NotImplementedError

    def _piece(self, messages: list[Peeked], places: Places, missed: list[int]) -> Piece:
        """Return messages that can be withdrawn. Those that can be only after a read are added to `missed` then."""
        raise NotImplementedError

    def _stretch(self, low: float, high: float, *, is_whole: bool = False) -> Stretch | None:
        """Return the messages of the delta from a position to before another; None if there is nothing between.

        `is_whole`: more than the first segment of them will be read.
        """
        raise NotImplementedError

    def _snapshot(self) -> Snapshot:
        raise NotImplementedError

    # -- the head ---------------------------------------------------------------------------------------------------

    def _head_item(self) -> Item | None:
        """Return the head; if memory does not have it, it is read for the next time."""
        return next(iter(self._front()), None)

    def head_message(self) -> Message | None:
        """Return the next message if it is in memory; unlike other questions about the head, nothing is read for it."""
        head = next(iter(self._front()), None)
        return head.message if isinstance(head, Entry) else head

    def head_expires(self) -> int | None:
        """Return when the next message expires (epoch ms), 0 for never; None if it is being read or there is none."""
        head = self._head_item()
        return None if head is None else head.expires

    def head_run(self, now: int, limit: int) -> tuple[int, bool]:
        """Return the length of the head's leading run that is all expired or all live, and which of the two."""
        return (0, False) if self._head_item() is None else leading(islice(self._front(), limit), now)

    # -- looks ------------------------------------------------------------------------------------------------------

    def ready_octets(self) -> Iterator[int]:
        """Yield the body bytes of all ready messages in partial sums; see `Inspection`."""
        known = [part.between for part in self._parts() if part is not None]
        items = [between(-inf, inf, sys.maxsize, backwards=False)[1] for between in known]
        return chain((self.delta.octets,), octets_in_pieces(list(chain.from_iterable(items))))

    def peek(self, most: int | None = None) -> Peeking:
        """Look at the messages as they are now; see `Inspection.peek`."""
        count = sys.maxsize if most is None else most
        parts = [
            self._stretch(0, inf, is_whole=True)
            if part is None
            else self._run_of(part, *part.between(-inf, inf, count, backwards=False))
            for part in self._parts()
        ]
        held = [item for table in self._unacked_tables() for item in table.values()]
        unacked = self._run_of(_UNACKED, self.unacked_ids(), held)
        return _look(parts, unacked, self._opened(*parts, unacked), count)

    def portion(self, most: int, after: int | None = None, *, backwards: bool = False) -> PortionSteps:
        """Look at the next ready messages; see `Inspection.portion`."""
        low, high = -inf, inf
        if after is not None:
            low, high = (-inf, after) if backwards else (after + 1, inf)
        part = self._next(low, high, most, backwards=backwards)
        if backwards and isinstance(part, Stretch):
            return self._end_of_stretch(part, most)
        return _portion(part, self._opened(part), most)

    def unacked_ids(self) -> list[int]:
        """Return the seq_ids of the unacked messages."""
        return list(chain.from_iterable(self._unacked_tables()))

    def unacked_portion(self, seq_ids: Sequence[int]) -> PortionSteps:
        """Look at unacked messages; see `Inspection.unacked_portion`."""
        items: list[Item] = []
        known: list[int] = []
        count = octets = 0
        for seq_id in seq_ids:
            found = [table[seq_id] for table in self._unacked_tables() if seq_id in table]
            items += found
            known += [seq_id] * len(found)
            octets += sum(map(size_of, found))
            count += 1
            if octets >= PORTION_OCTETS:
                break
        run = self._run_of(_UNACKED, known, items)
        return _portion(run, self._opened(run), count, at=count)

    def walk(self) -> Walk:
        """Walk over the ready messages; see `Inspection.walk`."""
        return self._walk(0, self._end(), None)

    def _walk(self, at: int, end: int, only: Collection[int] | None) -> Walk:
        """Walk over the messages from position `at` on, before `end`; only those with certain positions if given."""
        # It goes by positions, and so finds messages requeued in front of it, too.
        while not self.deleted:
            part = self._next(at - AHEAD, end - AHEAD, PIECE) or self._next(at, end, PIECE)
            if part is None:
                return
            places: Places = {}
            with self._opened(part) as snapshot:
                if isinstance(part, Stretch):
                    messages, places, at = yield from _read_stretch(
                        part, snapshot, part.whole.first, part.octets
                    )
                else:
                    messages, at = (yield from _read_run(part, snapshot)), part.seq_ids[-1] + 1
            missed: list[int] = []
            if only is not None:
                messages = [each for each in messages if each.seq_id in only]
            if messages:
                yield self._piece(messages, places, missed)
            if missed:
                yield from self._walk(missed[0], missed[-1] + 1, frozenset(missed))

    # -- parts ------------------------------------------------------------------------------------------------------

    def _next(self, low: float, high: float, most: int, *, backwards: bool = False) -> Run | Stretch | None:
        """Return the next messages between two places, all from one part."""
        parts = self._parts()
        for part in reversed(parts) if backwards else parts:
            if part is None:
                if (stretch := self._stretch(low, high)) is not None:
                    return stretch
                continue
            seq_ids, items = part.between(low + part.ahead, high + part.ahead, most, backwards=backwards)
            if items:
                step = -1 if backwards else 1
                count = fitting(items[::step])
                return self._run_of(part, seq_ids[::step][:count], items[::step][:count])
        return None

    def _run_of(self, part: Part, seq_ids: Sequence[int], items: Sequence[Item]) -> Run:
        """Return messages of a part as they are now."""
        messages: list[Any] = [item.message if type(item) is Entry else item for item in items]
        stored = self.stored_returns
        returns = {seq_id: stored[seq_id] for seq_id in seq_ids if seq_id in stored} if stored else stored
        return Run(part, seq_ids, items, messages, returns)

    def _opened(self, *parts: Run | Stretch | None) -> AbstractContextManager[Any]:
        """Return a snapshot of the files as they are now, to be closed at its end; None if no part needs it."""
        if any(part is not None and part.needs_files for part in parts):
            return closing(self._snapshot())
        return nullcontext()

    def _end_of_stretch(self, stretch: Stretch | None, most: int) -> PortionSteps:
        """Look for the last messages of the delta before a position."""
        # A read begins at a position and ends when it has enough, so that position is searched. It is moved away as
        # long as there is nothing behind it (each start of the broker leaves out very many positions), and nearer as
        # long as the read does not reach the end.
        assert stretch is not None  # noqa: S101
        stop, width, is_growing = stretch.whole.stop, min(_WINDOW, stretch.segment), True
        while (stretch := self._stretch(stop - width, stop, is_whole=True)) is not None:
            start = stretch.whole.first
            with closing(self._snapshot()) as snapshot:
                found: Loaded = yield partial(snapshot.read, [stretch.whole], READ_OCTETS)
            if found.stop < stop and start < stop - 1:
                width, is_growing = (stop - start) // 2, False
                continue
            if messages := _decoded(found, stretch, start, stop)[0][::-1]:
                return Portion(messages[:most], messages[most - 1].seq_id if len(messages) > most else start)
            stop = start
            width = width * 8 if is_growing else width
            is_growing = True
        return Portion([], stop)


def changed(steps: Steps[T], change: Callable[[T], T]) -> Steps[T]:
    """Return the steps of a look, with another result."""
    return change((yield from steps))


def steps_of(portion: Portion) -> PortionSteps:
    """Return a portion that needs no read."""
    yield from ()
    return portion


def _look(
    parts: Iterable[Run | Stretch | None], unacked: Run, opened: AbstractContextManager[Any], most: int
) -> Peeking:
    """Read the messages found at one moment: at most so many ready ones, and all unacked ones."""
    found: list[Peeked] = []
    with opened as snapshot:
        for part in parts:
            if isinstance(part, Stretch):
                at = part.whole.first
                while at < part.whole.stop and len(found) < most:
                    more, _, at = yield from _read_stretch(part, snapshot, at, part.octets)
                    found += more
                    yield None
            elif part is not None and len(found) < most:
                found += yield from _read_run(part, snapshot)
        held = yield from _read_run(unacked, snapshot)
    return Look(found[:most], sorted(held, key=_seq_id))


def _portion(
    part: Run | Stretch | None, opened: AbstractContextManager[Any], most: int, at: int | None = None
) -> PortionSteps:
    """Read a portion, behind which the next one begins at `at` if that is given."""
    if part is None:
        return Portion([], None)
    with opened as snapshot:
        if not isinstance(part, Stretch):
            found = yield from _read_run(part, snapshot)
            return Portion(found, part.seq_ids[-1] - part.part.ahead if at is None else at)
        found, _, stop = yield from _read_stretch(part, snapshot, part.whole.first, READ_OCTETS)
    return Portion(found[:most], found[most - 1].seq_id if len(found) > most else stop - 1)


def _read_run(run: Run, snapshot: Snapshot | None) -> Steps[list[Peeked]]:
    """Return the messages of a run; bodies that are not in memory are read."""
    found: list[Peeked] = []
    start = 0
    while start < len(run.items):
        if start:
            yield None
        stop = start + fitting(run.items[start : start + PIECE])
        piece = list(zip(*[each[start:stop] for each in (run.seq_ids, run.items, run.messages)], strict=True))
        bodies = yield from _bodies([each[:2] for each in piece if each[2] is None], snapshot)
        found += [
            Peeked(
                seq_id, body, seq_id < run.part.redelivered_below, item.expires, run.returns.get(seq_id, 0)
            )
            for seq_id, item, message in piece
            if (body := message or bodies.get(seq_id)) is not None
        ]
        start = stop
    return found


def _bodies(away: list[tuple[int, Any]], snapshot: Snapshot | None) -> Steps[dict[int, Message]]:
    """Read the bodies of entries, given with their positions."""
    if not away or snapshot is None:
        return {}
    away.sort(key=itemgetter(0))
    ranges = ranges_of(away[0][1].block.qid, [seq_id for seq_id, _ in away])
    found: Loaded = yield partial(snapshot.read, ranges, _NO_LIMIT)
    return {entry.seq_id: message for entry, message in bodies_of_entries(found, headed(found), dict(away))}


def _read_stretch(
    stretch: Stretch, snapshot: Snapshot, at: int, octets: int
) -> Steps[tuple[list[Peeked], Places, int]]:
    """Read messages of a delta from position `at` on, of one segment at most; return also where the read has ended."""
    stop = min((at // stretch.segment + 1) * stretch.segment, stretch.whole.stop)
    found: Loaded = yield partial(snapshot.read, [stretch.whole._replace(first=at, stop=stop)], octets)
    end = min(found.stop, stretch.whole.stop)  # a start leaves out positions, which no read has to visit
    return *_decoded(found, stretch, at, end), end


def _decoded(found: Loaded, stretch: Stretch, start: int, stop: int) -> tuple[list[Peeked], Places]:
    """Return the messages that a read of a delta has found in a range of positions, and where."""
    messages: list[Peeked] = []
    places: Places = {}
    for raw, header in headed(found):
        bitmap = read_bitmap(raw.dead, header)
        dead, returns = stretch.blocks.get(slot_of(raw, header), (0, bitmap.returns))
        for record in read_records(raw.value, header, bitmap.dead | dead):
            if isinstance(record, int) or not start <= record.seq_id < stop or record.seq_id in stretch.gaps:
                continue
            if (message := message_of(record, found)) is not None:
                count = returns.get(record.place, 0) if stretch.counts_returns else 0
                redelivered = record.seq_id < stretch.redelivered_below
                messages.append(Peeked(record.seq_id, message, redelivered, record.expires, count))
                places[record.seq_id] = Place(raw, header, bitmap, record, message)
    messages.sort(key=_seq_id)
    return messages, places


def headed(found: Loaded, on_damage: Callable[[], object] = str) -> Iterator[tuple[RawBlock, Header]]:
    """Yield the blocks of a read with their headers; for each damaged one, call `on_damage` instead."""
    for raw in found.blocks:
        try:
            header = read_header(raw.key, raw.value)
        except DamagedError:
            on_damage()
        else:
            yield raw, header


def bodies_of_entries(
    found: Loaded, blocks: Iterable[tuple[RawBlock, Header]], entries: Mapping[int, Entry]
) -> Iterator[tuple[Entry, Message]]:
    """Yield those of some stored entries (by position) whose bodies a read has found in blocks, with their messages."""
    places: dict[int, int] = {}  # bits of their records, by their block's slot
    for entry in entries.values():
        slot = entry.block.slot
        places[slot] = places.get(slot, 0) | 1 << entry.index
    address = b""
    for raw, header in blocks:
        slot = slot_of(raw, header)
        for record in read_records(raw.value, header, ~places.get(slot, 0)):
            wanted = None if isinstance(record, int) else entries.get(record.seq_id)
            if isinstance(record, int) or wanted is None or wanted.block.slot != slot:
                continue
            if record.address != address:
                address = record.address
            if (message := message_of(record, found, address)) is not None:
                yield wanted, message


def fitting(items: Sequence[Item]) -> int:
    """Return the number of messages that a portion may have of these, at least one."""
    octets = 0
    for count, item in enumerate(items, 1):
        octets += size_of(item)
        if octets >= PORTION_OCTETS:
            return count
    return len(items)


def ranges_of(qid: int, seq_ids: Iterable[int]) -> list[Range]:
    """Return the ranges that have ascending positions of a queue, and no others."""
    ranges: list[Range] = []
    for seq_id in seq_ids:
        if ranges and ranges[-1].stop == seq_id:
            ranges[-1] = Range(qid, ranges[-1].first, seq_id + 1)
        else:
            ranges.append(Range(qid, seq_id, seq_id + 1))
    return ranges


def slot_of(raw: RawBlock, header: Header) -> int:
    """Return the key of a block in its queue's table, as `Block.slot`."""
    return header.first * 2 + raw.paged


def message_of(record: Record, found: Loaded, address: bytes | None = None) -> Message | None:
    """Return the message of a record, with an equal `address` if one is given; None if it is damaged or gone."""
    content = found.bodies.get(record.msg_id) if record.msg_id else record.content
    if not isinstance(content, bytes) or len(content) < 7:  # noqa: PLR2004 - octets of a frame's header
        return None
    return Message(record.address if address is None else address, content, content[1] << 8 | content[2])
