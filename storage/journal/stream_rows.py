"""Rows of streams: their segments, and the offsets that their consumers have reached.

Segments are the parts of a stream that retention deletes as a whole, and its sparse index of times and sizes. A row has
the beginning of one segment; it is written in the commit of the segment's first message. So a stream is known after any
stop without a look at its blocks, except those of its last segment. The offset of a consumer, by its tag, is written in
a commit after its acks, so that it continues there.

Layout (big-endian); each value begins with the crc32 of the rest, started with the crc32 of the key (4)::

    segment  key: id of the queue (8), offset of the first message (8)
             value: time of the first message in epoch ms (8), octets of all messages before it (8),
             flags (1: some record refers to a body that is stored elsewhere)
    offset   key: id of the queue (8), consumer tag (at most 255)
             value: offset of the next message (8)
"""

from struct import Struct, error as StructError  # noqa: N812 - it is an exception, whatever its name
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from leveret.storage.errors import DamagedError

SEGMENTS, OFFSETS = "segments", "offsets"  # the tables
_SEGMENT_KEY = Struct(">QQ")
_SEGMENT = Struct(">QQB")
_QID = _OFFSET = Struct(">Q")
_CRC = Struct(">I")
SEGMENT_KEY_OCTETS = _SEGMENT_KEY.size
segment_key = _SEGMENT_KEY.pack


class Segment(NamedTuple):
    """The beginning of a segment: its first offset, the time of that message (epoch ms), and the octets before it."""

    first: int
    time: int
    before: int
    has_references: bool = False
    """True if records of it may refer to bodies that are stored elsewhere."""


def _row(key: bytes, rest: bytes) -> tuple[bytes, bytes]:
    return key, _CRC.pack(crc32(rest, crc32(key))) + rest


def segment_row(qid: int, segment: Segment) -> tuple[bytes, bytes]:
    """Return the key and the value of the row of a segment."""
    rest = _SEGMENT.pack(segment.time, segment.before, segment.has_references)
    return _row(segment_key(qid, segment.first), rest)


def read_segment(key: bytes, value: bytes) -> tuple[int, Segment]:
    """Return the queue and the segment of a row; raises DamagedError for any other row."""
    rest = value[_CRC.size :]
    try:
        qid, first = _SEGMENT_KEY.unpack(key)
        time, before, flags = _SEGMENT.unpack(rest)
    except StructError:
        raise DamagedError("the row of a segment has a wrong length") from None
    if (key, value) != _row(key, rest):
        raise DamagedError(f"the row of segment {first} of queue {qid} is damaged")
    return qid, Segment(first, time, before, bool(flags))


def set_back(rows: list[Segment], now: int) -> list[Segment]:
    """Have segments that began in the future, by a clock that was wrong, begin now, so that they grow old like others.

    Returns those that were changed.
    """
    changed: list[Segment] = []
    while len(changed) < len(rows) and rows[-1 - len(changed)].time > now:
        changed.append(rows[-1 - len(changed)]._replace(time=now))
        rows[-len(changed)] = changed[-1]
    return changed


def offset_key(qid: int, tag: str) -> bytes:
    """Return the key of the row of a consumer."""
    return _QID.pack(qid) + tag.encode("utf-8", "surrogateescape")


def offset_row(qid: int, tag: str, offset: int) -> tuple[bytes, bytes]:
    """Return the key and the value of the row of a consumer."""
    return _row(offset_key(qid, tag), _OFFSET.pack(offset))


def read_offset(key: bytes, value: bytes) -> tuple[int, str, int]:
    """Return the queue, the tag and the offset of a row; raises DamagedError for any other row."""
    rest = value[_CRC.size :]
    try:
        (qid,) = _QID.unpack_from(key)
        (offset,) = _OFFSET.unpack(rest)
    except StructError:
        raise DamagedError("the row of a consumer's offset has a wrong length") from None
    if (key, value) != _row(key, rest):
        raise DamagedError(f"the row of the offset of a consumer of queue {qid} is damaged")
    return qid, key[_QID.size :].decode("utf-8", "surrogateescape"), offset
