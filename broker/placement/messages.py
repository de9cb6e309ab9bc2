"""The messages between the front and the process of some virtual hosts, and their bytes on a stream. Pure.

Names are bytes, as AMQP does not guarantee that they are text. A message is its length and a msgpack array.
"""

from collections.abc import Iterator
from struct import Struct

import msgspec

from leveret.storage.store.metadata_rows import VHostRow

_LENGTH = Struct(">I")
LONGEST = 1 << 30
"""Bytes from which a length is taken for a broken stream: a message has at most all users and their permissions."""

Rows = list[tuple[bytes, bytes | None]]
"""Keys and values of rows of the metadata store in the order of their changes; None for a deleted one."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A message."""


class Begin(Message, frozen=True):
    """To a process that has started: the rows of the node, and all its virtual hosts; it deletes others."""

    rows: Rows
    vhosts: list[VHostRow]


class Changed(Message, frozen=True):
    """To all processes: rows of the node that have changed, and are on disk."""

    rows: Rows


class Placed(Message, frozen=True):
    """To a process: one of its virtual hosts is new, or has other properties."""

    vhost: VHostRow


class Removed(Message, frozen=True):
    """To a process: one of its virtual hosts is deleted."""

    vhost: bytes


class Handed(Message, frozen=True):
    """To a process, with a descriptor: a client that has sent `connection.open`, and what was negotiated."""

    number: int  # of the client, which the process reports when it has left
    user: bytes
    vhost: bytes
    mechanism: str
    client_properties: bytes  # an encoded table
    capabilities: list[bytes]
    frame_max: int
    channel_max: int
    heartbeat: int
    peer: tuple[str, int]
    local: tuple[str, int]
    unread: bytes  # what the client has sent after `connection.open`, as far as it was read


class Ready(Message, frozen=True):
    """From a process: it has started, and has these virtual hosts."""

    vhosts: list[bytes]


class Left(Message, frozen=True):
    """From a process: the socket of a client is closed."""

    number: int


class Alarmed(Message, frozen=True):
    """From a process: the names of its alarms that are raised now. To it: those of the others."""

    names: list[str]


AnyMessage = Begin | Changed | Placed | Removed | Handed | Ready | Left | Alarmed
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AnyMessage).decode


class BrokenStreamError(Exception):
    """Raised for bytes that are no messages."""


def encode(message: AnyMessage) -> bytes:
    """Return the bytes of a message."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


class Stream:
    """Makes messages of the bytes of a stream."""

    __slots__ = ("_octets",)

    def __init__(self) -> None:
        self._octets = bytearray()

    def take(self, octets: bytes) -> Iterator[AnyMessage]:
        """Yield the messages that are complete with these bytes; raises BrokenStreamError."""
        self._octets += octets
        while len(self._octets) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._octets)[0]
            if end > LONGEST:
                raise BrokenStreamError(f"a message of {end} bytes")
            if len(self._octets) < end:
                return
            body = bytes(self._octets[_LENGTH.size : end])
            del self._octets[:end]
            try:
                yield _decode(body)
            except msgspec.MsgspecError as error:
                raise BrokenStreamError(str(error)) from None
