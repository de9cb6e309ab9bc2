"""Chunks: runs of a stream's messages in memory, which all readers of the stream share.

Theory. What readers are sent of a message differs up to the delivery tag only. So a chunk has the rest of each delivery
as one string, the *copy* of the message: the end of the method, and the content with the offset in its header. Messages
of one publisher mostly begin alike, so their copies are made of two strings, the offset, and the rest of the content.

Hot path: see docs/performance.md.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct, error as StructError  # noqa: N812 - it is an exception, whatever its name
from typing import Any, NamedTuple, Protocol

from zlib_ng.zlib_ng import crc32

from leveret.storage.damage import BITMAP, BLOCK, RECORD as DAMAGED_RECORD
from leveret.storage.journal.blocks import RECORD, RUN, Header, Record, offsets_of, read_bitmap, read_records
from leveret.storage.journal.reads import Loaded, RawBlock
from leveret.storage.journal.runs import extents
from leveret.storage.journal.shared_bodies import OVERHEAD
from leveret.storage.message import Message, header_frame
from leveret.storage.queues.peek import headed, message_of

CHUNK_OCTETS = 32 * 1024 * 1024
"""Maximum bytes of memory for the chunks of all streams."""
_pack = Struct(">Q").pack
_checksum = Struct(">I").unpack_from
_ADDRESS_SIZE = Struct(">H").unpack_from
_KIND_AT, _SIZE_AT = RECORD.size - 12, RECORD.size - 10  # in a record without its checksum and size
_LARGE = 65_536  # bytes of a content above which a view of it costs less than a copy
Dress = Callable[[bytes], tuple[bytes, bytes]]
"""Returns the frame of a content header with a place for an offset of eight octets: what is before and after it."""


class Shape(NamedTuple):
    """Channel number and size of the address of all messages of a chunk."""

    channel_id: int
    address_size: int


class Copies:
    """Makes the copies of messages; `shapes` has what they have been like."""

    __slots__ = ("_address", "_after", "_before", "_dress", "_head", "_size", "shapes")

    def __init__(self, dress: Dress) -> None:
        self._dress = dress
        self.shapes: set[Shape] = set()
        self._address: bytes | None = None
        self._head = self._before = self._after = b""
        self._size = 0

    def copy(self, offset: int, address: bytes, content: bytes) -> bytes:
        """Return the copy of a message."""
        if address != self._address or not content.startswith(self._head):
            self._learn(address, content)
        size = self._size
        rest = content[size:] if len(content) < _LARGE else memoryview(content)[size:]
        return b"".join((self._before, _pack(offset), self._after, rest))

    def _learn(self, address: bytes, content: bytes) -> None:
        self._address = address
        self._head = head = header_frame(content)
        self._size = len(head)
        before, self._after = self._dress(head)
        self._before = b"".join((b"\0", address, b"\xce", before))
        self.shapes.add(Shape(head[1] << 8 | head[2], len(address)))

    def of_records(self, first: int, records: list[bytes]) -> list[bytes]:
        """Return the copies of messages given by their records without checksum and size, and their first offset."""
        found = []
        start, at = b"\xff\xff", 0  # no record begins so
        before = after = b""
        pack, join, kind_at = _pack, b"".join, _KIND_AT
        for offset, record in enumerate(records, first):
            if not record.startswith(start, kind_at):
                content_at = _SIZE_AT + 2 + _ADDRESS_SIZE(record, _SIZE_AT)[0]
                self._learn(record[_SIZE_AT + 2 : content_at], record[content_at:])
                at = content_at + self._size
                start, before, after = record[kind_at:at], self._before, self._after
            rest = record[at:] if len(record) < _LARGE else memoryview(record)[at:]
            found.append(join((before, pack(offset), after, rest)))
        return found

    def of_run(self, run: Record, wanted: range) -> tuple[range, list[bytes]]:
        """Return the offsets and the copies of those messages of a run that are in a range."""
        octets = run.content or b""
        addresses, at, lengths = extents(run.address, octets)
        start = max(0, wanted.start - run.seq_id)
        offsets = range(
            run.seq_id + start, max(run.seq_id + start, min(wanted.stop, run.seq_id + len(lengths)))
        )
        at += sum(lengths[:start])
        found = []
        pack, join = _pack, b"".join
        size, before, after = self._size, self._before, self._after
        for offset, address, length in zip(offsets, addresses[start:], lengths[start:], strict=False):
            if address != self._address or not octets.startswith(self._head, at):
                self._learn(address, octets[at : at + length])
                size, before, after = self._size, self._before, self._after
            found.append(join((before, pack(offset), after, octets[at + size : at + length])))
            at += length
        return offsets, found


class ChunkOwner(Protocol):
    """A stream (`storage.queues.stream_log.StreamLog`)."""

    def forget(self, chunk: "Chunk") -> None:
        """Release a chunk."""


class Chunk:
    """Messages of a stream from offset `first` to before `stop`; some may be missing, because they are damaged.

    `copies` are those of the messages at the `offsets`; `shape` is that of all, None if they differ.
    """

    __slots__ = ("copies", "first", "largest", "marks", "octets", "offsets", "shape", "stop")

    def __init__(
        self, first: int, stop: int, offsets: Sequence[int], copies: list[bytes], shapes: set[Shape]
    ) -> None:
        self.first = first
        self.stop = stop
        self.offsets = offsets
        self.copies = copies
        self.shape = next(iter(shapes)) if len(shapes) == 1 else None
        sizes = list(map(len, copies))
        self.largest = max(sizes, default=0)
        self.octets = sum(sizes) + OVERHEAD * (1 + len(sizes))
        self.marks: list[Any] | None = None
        """Something that readers have found out about each message."""


class ChunkCache:
    """The chunks that were used last, of all streams of a broker, up to `limit` bytes and at least one.

    `tail_octets` are the bytes of stored messages at the tails of all streams, which keep to the same limit.
    """

    __slots__ = ("_chunks", "limit", "octets", "tail_octets")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.tail_octets = 0
        self._chunks: OrderedDict[Chunk, ChunkOwner] = OrderedDict()
        self.octets = 0

    def keep(self, log: ChunkOwner, chunk: Chunk) -> None:
        """Keep a chunk, and forget others."""
        self._chunks[chunk] = log
        self.octets += chunk.octets
        while self.octets > self.limit and len(self._chunks) > 1:
            oldest, owner = self._chunks.popitem(last=False)
            self.octets -= oldest.octets
            owner.forget(oldest)

    def use(self, chunk: Chunk) -> None:
        """Note the use of a chunk."""
        self._chunks.move_to_end(chunk)

    def remove(self, chunk: Chunk) -> None:
        """Forget a chunk."""
        del self._chunks[chunk]
        self.octets -= chunk.octets


def message_of_copy(copy: bytes) -> Message:
    """Return a message as readers get it."""
    stop = 2 + copy[1]
    stop += 1 + copy[stop]
    content = copy[stop + 1 :]
    return Message(copy[1:stop], content, content[1] << 8 | content[2])


def chunk_of(found: Loaded, wanted: range, dress: Dress, on_damage: Callable[[int, str], object]) -> Chunk:
    """Return the messages that a read has found in a range of offsets; damaged ones are reported and left out."""
    copies = Copies(dress)
    offsets: list[int] = []
    found_copies: list[bytes] = []
    for raw, header in headed(found, partial(on_damage, wanted.start, BLOCK)):
        bitmap = read_bitmap(raw.dead, header)
        if bitmap.is_damaged:
            on_damage(header.first, BITMAP)
        if not (header.has_references or bitmap.dead) and header.last - header.first + 1 == header.records:
            some = _dense(raw, header, wanted)
            if some is not None:
                first, records = some
                offsets += range(first, first + len(records))
                found_copies += copies.of_records(first, records)
                continue
        for record in read_records(raw.value, header, bitmap.dead, as_runs=True):
            if isinstance(record, int):
                on_damage(header.first, DAMAGED_RECORD)
            elif record.kind == RUN:
                some_offsets, some_copies = copies.of_run(record, wanted)
                offsets += some_offsets
                found_copies += some_copies
            elif record.seq_id in wanted:
                message = message_of(record, found)
                if message is None:
                    on_damage(record.seq_id, DAMAGED_RECORD)
                else:
                    offsets.append(record.seq_id)
                    found_copies.append(copies.copy(record.seq_id, message.address, message.content))
    is_whole = len(offsets) == len(wanted)
    return Chunk(wanted.start, wanted.stop, wanted if is_whole else offsets, found_copies, copies.shapes)


def _dense(raw: RawBlock, header: Header, wanted: range) -> tuple[int, list[bytes]] | None:
    """Return the first offset, and the records, of a block without gaps that are in a range; None if any is damaged."""
    value = raw.value
    seed = crc32(raw.key)
    at = max(0, wanted.start - header.first)
    end = min(header.records, wanted.stop - header.first)
    offsets = (*offsets_of(value, header), len(value))
    records = []
    try:
        for index in range(at, end):
            begin = offsets[index]
            record = value[begin + 8 : offsets[index + 1]]
            if crc32(record, seed ^ index) != _checksum(value, begin)[0]:
                return None
            records.append(record)
    except StructError:
        return None
    return header.first + at, records
