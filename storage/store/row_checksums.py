"""Checksums of small rows: numbers, and what a clean stop saves of queues.

Theory. Nobody would see that such a row is damaged, as there is nothing else to hold it against: a sweep with a wrong
end deletes messages, a wrong number of starts gives ids twice, a queue with wrong positions hides messages. So each has
a checksum behind it that covers its key as well. What a clean stop saves counts only as a whole: the mark of the stop
says how many rows there are, and the checksum of each covers the start that wrote them all.

Rows of format 1 (`storage.store.formats`) end without a checksum; they are read as they are.
"""

from struct import Struct, error as StructError  # noqa: N812 - it is an exception, whatever its name
from typing import NamedTuple
from zlib import crc32

from leveret.storage.errors import DamagedError

_CRC = Struct(">I")
_U64 = Struct(">Q")
_SAVED = Struct(">QQ")


def seal(key: bytes, value: bytes, boot: int = 0) -> bytes:
    """A value with its checksum behind it, which covers its key and a start."""
    return value + _CRC.pack(_checksum(key, value, boot))


def unseal(key: bytes, value: bytes, boot: int = 0) -> bytes:
    """The value that `seal` was given; raises DamagedError if these are not its octets."""
    found, seen = value[: -_CRC.size], value[-_CRC.size :]
    if len(value) < _CRC.size or seen != _CRC.pack(_checksum(key, found, boot)):
        raise DamagedError(f"row {key!r} is damaged: wrong checksum")
    return found


def _checksum(key: bytes, value: bytes, boot: int) -> int:
    return crc32(value, crc32(_U64.pack(boot), crc32(key)))


def pack_number(key: bytes, number: int) -> bytes:
    """The value of a row that is a number."""
    return seal(key, _U64.pack(number))


def unpack_number(key: bytes, value: bytes) -> int:
    """The number; raises DamagedError if it is none."""
    octets = value if len(value) == _U64.size else unseal(key, value)
    try:
        return int(_U64.unpack(octets)[0])
    except StructError:
        raise DamagedError(f"row {key!r} is damaged: it is no number") from None


class Saved(NamedTuple):
    """What the mark of a clean stop says of the rows that it has saved."""

    boot: int
    """The start that saved them."""
    queues: int

    def row(self, key: bytes) -> bytes:
        """The mark."""
        return seal(key, _SAVED.pack(*self))


def read_saved(key: bytes, value: bytes) -> Saved | None:
    """What a mark says; None for one of format 1, which says nothing. Raises DamagedError."""
    if not value:
        return None
    try:
        return Saved(*_SAVED.unpack(unseal(key, value)))
    except StructError:
        raise DamagedError("the mark of the clean stop is damaged") from None
