"""Peeking: the messages of a backing queue as they are at one moment, without taking any of them.

Theory. A look must neither change the queue nor wait in the event loop for the disk. So it has two parts. The first is
done at once: it copies the lists of what is in memory, with a reference to each body, because a body may be dropped a
moment later; and if anything is on disk only, it opens a `Snapshot` of the files, in which nothing of that changes any
more. All that a queue knows to be on disk is in a snapshot opened at the same moment: positions and bodies are dropped
from memory only when their commit is done. The second part takes its time: a generator that returns what is in memory
in pieces and yields the reads it needs, which its caller runs in a thread.

Messages that cannot be read because they are damaged are left out, and nobody is notified: the delivery will find them.
A very large body has a file of its own, which no snapshot includes: if its message is settled during the look and the
file is gone, the message is left out, too.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple, Protocol

from leveret.storage.errors import DamagedError
from leveret.storage.journal.blocks import (
    Block,
    Entry,
    Header,
    Record,
    read_bitmap,
    read_header,
    read_records,
)
from leveret.storage.journal.reads import Loaded, Range, RawBlock
from leveret.storage.message import Message
from leveret.storage.queues.backing_queue import Look, Peeked, Peeking, Read
from leveret.storage.queues.gaps import NO_GAPS, Gaps
from leveret.storage.queues.requeued import Item

ALWAYS: float = inf
"""`redelivered_below` of messages that will all be marked as redelivered."""
PIECE = 256
"""Messages between two checks of the time, and per read of bodies."""
_NO_LIMIT = 1 << 62


class Snapshot(Protocol):
    """The files as they were at one moment. Its methods may be called from one thread at a time."""

    def read(self, ranges: Sequence[Range], limit: int) -> Loaded:
        """Read blocks as `Environment.read` does."""

    def close(self) -> None:
        """Release the pages of that moment. Also done when the last reference is gone."""


class Run(NamedTuple):
    """Consecutive messages of a queue: positions, what the queue has for them, and their bodies at that moment."""

    seq_ids: Iterable[int]
    items: Sequence[Item]
    messages: Sequence[Message | None]
    redelivered_below: float
    """Messages with a lower position will be marked as redelivered."""


def make_run(seq_ids: Iterable[int], items: Sequence[Item], *, redelivered_below: float = 0) -> Run:
    """Return a run of messages as they are now."""
    messages: list[Message | None] = [item.message if type(item) is Entry else item for item in items]  # type: ignore[misc]
    return Run(seq_ids, items, messages, redelivered_below)


class Delta(NamedTuple):
    """The messages of a queue of which memory has not even the position."""

    whole: Range
    redelivered_below: int
    blocks: Mapping[int, tuple[int, int, Mapping[int, int]]]
    """The state of blocks in memory, by their slot: the bitmap of dead records on disk, that of those which died since,
    and delivery counts."""
    counts_returns: bool
    gaps: Gaps = NO_GAPS
    """Positions from which messages were withdrawn."""


def known_blocks(blocks: Iterable[Block]) -> dict[int, tuple[int, int, Mapping[int, int]]]:
    """Return what memory knows of blocks now, for a `Delta`."""
    return {
        block.slot: (
            block.bits,
            block.noted,
            dict(block.returns),
        )
        for block in blocks
    }


def look(
    ready: Sequence[Run | Delta],
    unacked: Run,
    snapshot: Snapshot | None,
    *,
    segment: int,
    octets: int,
    most: int | None = None,
    returns: Mapping[int, int] | None = None,
) -> Peeking:
    """Make the list of messages from what was found at one moment; see `Peeking`.

    Args:
        ready: the ready messages, in queue order.
        unacked: the unacked ones, in any order.
        snapshot: the files at that moment; None if everything is in memory. It is closed at the end.
        segment: number of positions per read of a `Delta`.
        octets: bytes after which a read of bodies stops.
        most: number of ready messages after which the look ends; None for all.
        returns: delivery counts by position, of messages that were read from disk.

    """
    try:
        found: list[Peeked] = []
        for part in ready:
            more = (
                _delta(part, snapshot, segment)
                if isinstance(part, Delta)
                else run_pieces(part, snapshot, octets)
            )
            yield from _gather(more, found, most)
            if most is not None and len(found) >= most:
                break
        kept: list[Peeked] = []
        yield from _gather(run_pieces(unacked, snapshot, octets), kept, None)
        kept.sort()
        if returns:
            found = [each._replace(returns=returns.get(each.seq_id, each.returns)) for each in found]
        return Look(found if most is None else found[:most], kept)
    finally:
        if snapshot is not None:
            snapshot.close()


Pieces = Generator[Read | list[Peeked], Any, None]


def _gather(pieces: Pieces, found: list[Peeked], most: int | None) -> Generator[Read | None, Any, None]:
    """Add pieces to what was found, up to `most` messages, and pass reads on."""
    answer: Any = None
    while most is None or len(found) < most:
        try:
            piece = pieces.send(answer)
        except StopIteration:
            return
        if isinstance(piece, list):
            found += piece
            answer = yield None
        else:
            answer = yield piece


def run_pieces(run: Run, snapshot: Snapshot | None, octets: int) -> Pieces:
    """Yield the messages of a run in pieces, and the reads of the bodies that are not in memory."""
    piece: list[tuple[int, Item, Message | None]] = []
    size = 0
    for each in zip(run.seq_ids, run.items, run.messages, strict=True):
        piece.append(each)
        if each[2] is None:
            size += each[1].size  # type: ignore[union-attr] # only an entry has no body
        if len(piece) >= PIECE or size >= octets:
            yield from _piece(piece, snapshot, run.redelivered_below)
            piece, size = [], 0
    if piece:
        yield from _piece(piece, snapshot, run.redelivered_below)


def _piece(
    piece: Sequence[tuple[int, Item, Message | None]], snapshot: Snapshot | None, redelivered_below: float
) -> Pieces:
    away = sorted([(seq_id, item) for seq_id, item, message in piece if message is None], key=_position)
    bodies: dict[int, Message] = {}
    if away and snapshot is not None:
        ranges: list[Range] = []
        for seq_id, item in away:
            qid = item.block.qid  # type: ignore[union-attr]
            if ranges and ranges[-1].stop == seq_id:
                ranges[-1] = Range(qid, ranges[-1].first, seq_id + 1)
            else:
                ranges.append(Range(qid, seq_id, seq_id + 1))
        read = snapshot.read
        found: Loaded = yield lambda: read(ranges, _NO_LIMIT)
        wanted = {seq_id: item.block.slot for seq_id, item in away}  # type: ignore[union-attr]
        bodies = {
            record.seq_id: message
            for raw, header, record in _records(found)
            if wanted.get(record.seq_id) == header.first * 2 + raw.paged
            and (message := message_of(record, found)) is not None
        }
    yield [
        Peeked(seq_id, body, seq_id < redelivered_below, item.expires)
        for seq_id, item, message in piece
        if (body := message or bodies.get(seq_id)) is not None
    ]


def _position(each: tuple[int, Item]) -> int:
    return each[0]


def _delta(delta: Delta, snapshot: Snapshot | None, segment: int) -> Pieces:
    """Yield the messages of a delta, one segment at a time."""
    assert snapshot is not None  # noqa: S101 - a delta is on disk
    read = snapshot.read
    qid, at, stop = delta.whole
    while at < stop:
        boundary = min((at // segment + 1) * segment, stop)
        ranges = [Range(qid, at, boundary)]
        found: Loaded = yield lambda ranges=ranges: read(ranges, 1024 * 1024)  # type: ignore[misc]
        end = min(found.stop, stop)
        yield decoded(found, delta, at, end)
        at = end


def decoded(found: Loaded, delta: Delta, start: int, stop: int) -> list[Peeked]:
    """Return the messages that a read of a delta has found in a range of positions."""
    piece = []
    for raw, header in _headed(found):
        bitmap = read_bitmap(raw.dead, header)
        bits, acked, returns = delta.blocks.get(header.first * 2 + raw.paged, (0, 0, bitmap.returns))
        dead = (bits if bitmap.is_damaged else bitmap.dead) | acked
        for record in read_records(raw.value, header, dead):
            if isinstance(record, int) or not start <= record.seq_id < stop or record.seq_id in delta.gaps:
                continue
            message = message_of(record, found)
            if message is not None:
                count = returns.get(record.place, 0) if delta.counts_returns else 0
                redelivered = record.seq_id < delta.redelivered_below
                piece.append(Peeked(record.seq_id, message, redelivered, record.expires, count))
    piece.sort(key=_place)
    return piece


def _place(peeked: Peeked) -> int:
    return peeked.seq_id


def _headed(found: Loaded) -> Iterator[tuple[RawBlock, Header]]:
    """Yield the blocks of a read with their headers, without damaged ones."""
    for raw in found.blocks:
        try:
            yield raw, read_header(raw.key, raw.value)
        except DamagedError:
            continue


def _records(found: Loaded) -> Iterator[tuple[RawBlock, Header, Record]]:
    for raw, header in _headed(found):
        for record in read_records(raw.value, header):
            if not isinstance(record, int):
                yield raw, header, record


def message_of(record: Record, found: Loaded) -> Message | None:
    """Return the message of a record; None if it is damaged or gone."""
    content = found.bodies.get(record.msg_id) if record.msg_id else record.content
    if not isinstance(content, bytes) or len(content) < 7:  # noqa: PLR2004 - octets of a frame's header
        return None
    return Message(record.address, content, content[1] << 8 | content[2])


def is_away(run: Run) -> bool:
    """Return whether some body of a run is on disk only."""
    return None in run.messages
