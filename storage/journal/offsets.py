"""Offsets that consumers of a stream have reached, by their tags, so that they continue there.

A row of the table has the offset of one consumer; it is written in a commit after its acks.

Layout (big-endian)::

    key      id of the queue (8), consumer tag (at most 255)
    value    crc32 of the rest, started with the crc32 of the key (4), offset of the next message (8)
"""

from struct import Struct, error as StructError  # noqa: N812 - it is an exception, whatever its name

from zlib_ng.zlib_ng import crc32

from leveret.storage.errors import DamagedError

TABLE = "offsets"
_QID = Struct(">Q")
_VALUE = Struct(">IQ")
_OFFSET = Struct(">Q")


def pack_key(qid: int, tag: str) -> bytes:
    """Return the key of the row of a consumer."""
    return _QID.pack(qid) + tag.encode("utf-8", "surrogateescape")


def pack_row(qid: int, tag: str, offset: int) -> tuple[bytes, bytes]:
    """Return the key and the value of the row of a consumer."""
    key = pack_key(qid, tag)
    return key, _VALUE.pack(crc32(_OFFSET.pack(offset), crc32(key)), offset)


def unpack_row(key: bytes, value: bytes) -> tuple[int, str, int]:
    """Return the queue, the tag and the offset of a row; raises DamagedError for any other row."""
    try:
        (qid,) = _QID.unpack_from(key)
        checksum, offset = _VALUE.unpack(value)
    except StructError:
        raise DamagedError("the row of a consumer's offset has a wrong length") from None
    if checksum != crc32(value[4:], crc32(key)):
        raise DamagedError(f"the row of the offset of a consumer of queue {qid} is damaged")
    return qid, key[_QID.size :].decode("utf-8", "surrogateescape"), offset
