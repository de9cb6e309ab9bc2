"""Rows of the table `bodies`: contents that are stored apart from the records that refer to them."""

from struct import Struct

from zlib_ng.zlib_ng import crc32

TABLE = "bodies"
_CRC = Struct(">I")

pack_body_key = Struct(">Q").pack  # the key of a body's row, from its msg_id


def body_checksum(msg_id: int, content: bytes, store: bytes = b"") -> bytes:
    """Return the checksum that precedes a content, in a row or in a file.

    It covers the id; in a file the id of the store, too: the names of files are those of other stores.
    """
    return _CRC.pack(crc32(content, crc32(store, crc32(pack_body_key(msg_id)))))


def body_row(msg_id: int, content: bytes) -> tuple[bytes, bytes]:
    """Return the key and the value of a body's row; without a content it says that the body is in a file."""
    return pack_body_key(msg_id), body_checksum(msg_id, content) + content
