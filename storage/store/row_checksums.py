"""Checksums of small rows: numbers, and the state of queues saved by a clean stop.

Theory. Damage in such a row could not be detected, as there is no other data to compare it with: a sweep with a wrong
end deletes messages, a wrong number of starts assigns ids twice, a queue with wrong positions hides messages. So each
is followed by a checksum that covers its key as well. The state saved by a clean stop is valid only as a whole: the
mark of the stop has the number of rows, and the checksum of each covers the start that wrote them all.
"""

from struct import Struct, error as StructError  # noqa: N812 - it is an exception, whatever its name
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from leveret.storage.errors import DamagedError

_CRC = Struct(">I")
_U64 = Struct(">Q")
_SAVED = Struct(">QQ")


def seal(key: bytes, value: bytes, boot: int = 0) -> bytes:
    """Return a value followed by its checksum, which covers its key and a start."""
    return value + _CRC.pack(_checksum(key, value, boot))


def unseal(key: bytes, value: bytes, boot: int = 0) -> bytes:
    """Return the value that was given to `seal`; raises DamagedError if the checksum does not match."""
    found, seen = value[: -_CRC.size], value[-_CRC.size :]
    if len(value) < _CRC.size or seen != _CRC.pack(_checksum(key, found, boot)):
        raise DamagedError(f"row {key!r} is damaged: wrong checksum")
    return found


def _checksum(key: bytes, value: bytes, boot: int) -> int:
    return crc32(value, crc32(_U64.pack(boot), crc32(key)))


def pack_number(key: bytes, number: int) -> bytes:
    """Return the value of a row that is a number."""
    return seal(key, _U64.pack(number))


def unpack_number(key: bytes, value: bytes) -> int:
    """Parse a number; raises DamagedError if it is none."""
    try:
        return int(_U64.unpack(unseal(key, value))[0])
    except StructError:
        raise DamagedError(f"row {key!r} is damaged: not a number") from None


class Saved(NamedTuple):
    """The mark of a clean stop, which describes the rows that it has saved."""

    boot: int
    """The start that saved them."""
    queues: int

    def row(self, key: bytes) -> bytes:
        """Return the value of the mark's row."""
        return seal(key, _SAVED.pack(*self))


def read_saved(key: bytes, value: bytes) -> Saved:
    """Parse a mark; raises DamagedError."""
    try:
        return Saved(*_SAVED.unpack(unseal(key, value)))
    except StructError:
        raise DamagedError("the mark of the clean shutdown is damaged") from None
