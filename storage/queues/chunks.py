"""Chunks: runs of a stream's messages in memory, which all readers of the stream share.

Hot path: see docs/performance.md.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from struct import error as StructError  # noqa: N812 - it is an exception, whatever its name
from typing import Any, Protocol

from zlib_ng.zlib_ng import crc32

from leveret.storage.damage import BITMAP, BLOCK, RECORD as DAMAGED_RECORD
from leveret.storage.journal.blocks import RECORD, Header, offsets_of, read_bitmap, read_records
from leveret.storage.journal.reads import Loaded, RawBlock
from leveret.storage.journal.shared_bodies import OVERHEAD
from leveret.storage.message import Message
from leveret.storage.queues.peek import headed, message_of

CHUNK_OCTETS = 32 * 1024 * 1024
"""Maximum bytes of memory for the chunks of all streams."""
_offset = itemgetter(0)
Dress = Callable[[int, bytes, bytes], Message]
"""Returns the message that readers get, given its offset, address and content."""
Pairs = list[tuple[int, Message]]
"""Messages with their offsets, ascending."""


class ChunkOwner(Protocol):
    """A stream (`storage.queues.stream_log.StreamLog`)."""

    def forget(self, chunk: "Chunk") -> None:
        """Release a chunk."""


class Chunk:
    """Messages of a stream from offset `first` to before `stop`; some may be missing, because they are damaged."""

    __slots__ = ("first", "marks", "messages", "octets", "offsets", "stop")

    def __init__(self, first: int, stop: int, offsets: Sequence[int], messages: list[Message]) -> None:
        self.first = first
        self.stop = stop
        self.offsets = offsets
        self.messages = messages
        self.octets = sum([len(message.content) for message in messages]) + OVERHEAD * (1 + len(messages))
        self.marks: list[Any] | None = None
        """Something that readers have found out about each message."""


class ChunkCache:
    """The chunks that were used last, of all streams of a broker, up to `limit` bytes and at least one."""

    __slots__ = ("_chunks", "_limit", "octets")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: OrderedDict[Chunk, ChunkOwner] = OrderedDict()
        self.octets = 0

    def keep(self, log: ChunkOwner, chunk: Chunk) -> None:
        """Keep a chunk, and forget others."""
        self._chunks[chunk] = log
        self.octets += chunk.octets
        while self.octets > self._limit and len(self._chunks) > 1:
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


def chunk_of(first: int, stop: int, pairs: Pairs) -> Chunk:
    """Return a chunk of the messages that are left in a range of offsets."""
    offsets: Sequence[int] = [offset for offset, _ in pairs]
    if len(offsets) == stop - first:
        offsets = range(first, stop)
    return Chunk(first, stop, offsets, [message for _, message in pairs])


def undressed(offset: int, address: bytes, content: bytes) -> Message:
    """Return a message as it is stored."""
    del offset
    return Message(address, content, content[1] << 8 | content[2])


def decoded(found: Loaded, wanted: range, dress: Dress, on_damage: Callable[[int, str], object]) -> Pairs:
    """Return the messages that a read has found in a range of offsets; damaged ones are reported and left out."""
    pairs: Pairs = []
    for raw, header in headed(found, partial(on_damage, wanted.start, BLOCK)):
        bitmap = read_bitmap(raw.dead, header)
        if bitmap.is_damaged:
            on_damage(header.first, BITMAP)
        if not header.has_references:
            some = _plain(raw, header, bitmap.dead, wanted, dress)
            if some is not None:
                pairs += some
                continue
        for record in read_records(raw.value, header, bitmap.dead):
            if isinstance(record, int):
                on_damage(header.first, DAMAGED_RECORD)
            elif record.seq_id in wanted:
                message = message_of(record, found)
                if message is None:
                    on_damage(record.seq_id, DAMAGED_RECORD)
                else:
                    pairs.append((record.seq_id, dress(record.seq_id, message.address, message.content)))
    pairs.sort(key=_offset)
    return pairs


def _plain(raw: RawBlock, header: Header, dead: int, wanted: range, dress: Dress) -> Pairs | None:
    """Return the messages of a block without references that are in a range; None if any record is damaged."""
    value = raw.value
    seed = crc32(raw.key)
    unpack, fixed = RECORD.unpack_from, RECORD.size
    address = b""
    found: Pairs = []
    try:
        for index, offset in enumerate(offsets_of(value, header)):
            crc, length, seq_id, _, _, _, octets = unpack(value, offset)
            if seq_id not in wanted or (dead and dead >> index & 1):
                continue
            stop = offset + 8 + length
            if crc32(value[offset + 8 : stop], seed ^ index) != crc:
                return None
            at = offset + fixed
            if len(address) != octets or not value.startswith(address, at):
                address = value[at : at + octets]
            found.append((seq_id, dress(seq_id, address, value[at + octets : stop])))
    except (StructError, IndexError):
        return None
    return found
