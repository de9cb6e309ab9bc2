"""Segments: the parts of a stream that retention deletes as a whole, and its sparse index of times and sizes.

A row of the table has the beginning of one segment; it is written in the commit of the segment's first message. So a
stream is known after any stop without a look at its blocks, except those of its last segment.

Layout (big-endian)::

    key      id of the queue (8), offset of the first message (8)
    value    crc32 of the rest, started with the crc32 of the key (4), time of the first message in epoch ms (8),
             octets of all messages before it (8), flags (1: some record refers to a body that is stored elsewhere)
"""

from struct import Struct, error as StructError  # noqa: N812 - it is an exception, whatever its name
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from leveret.storage.errors import DamagedError

TABLE = "segments"
_KEY = Struct(">QQ")
_REST = Struct(">QQB")
_CRC = Struct(">I")
KEY_OCTETS = _KEY.size
pack_key = _KEY.pack


class Segment(NamedTuple):
    """The beginning of a segment: its first offset, the time of that message (epoch ms), and the octets before it."""

    first: int
    time: int
    before: int
    has_references: bool = False
    """True if records of it may refer to bodies that are stored elsewhere."""


def pack_row(qid: int, segment: Segment) -> tuple[bytes, bytes]:
    """Return the key and the value of the row of a segment."""
    key = _KEY.pack(qid, segment.first)
    rest = _REST.pack(segment.time, segment.before, segment.has_references)
    return key, _CRC.pack(crc32(rest, crc32(key))) + rest


def set_back(rows: list[Segment], now: int) -> list[Segment]:
    """Have segments that began in the future, by a clock that was wrong, begin now, so that they grow old like others.

    Returns those that were changed.
    """
    changed: list[Segment] = []
    while len(changed) < len(rows) and rows[-1 - len(changed)].time > now:
        changed.append(rows[-1 - len(changed)]._replace(time=now))
        rows[-len(changed)] = changed[-1]
    return changed


def unpack_row(key: bytes, value: bytes) -> tuple[int, Segment]:
    """Return the queue and the segment of a row; raises DamagedError for any other row."""
    try:
        qid, first = _KEY.unpack(key)
        time, before, flags = _REST.unpack(value[_CRC.size :])
    except StructError:
        raise DamagedError("the row of a segment has a wrong length") from None
    if value[: _CRC.size] != _CRC.pack(crc32(value[_CRC.size :], crc32(key))):
        raise DamagedError(f"the row of segment {first} of queue {qid} is damaged")
    return qid, Segment(first, time, before, bool(flags))
