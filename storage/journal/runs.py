"""Runs: consecutive messages of a stream that are one record, so that each needs no entry in memory and no checksum.

Layout (big-endian): number of messages (4), octets of each content (4 each), contents. If the record's address is empty
the messages have several: octets of each address (2 each), addresses, and then the contents.

Hot path: see docs/performance.md.
"""

from collections.abc import Sequence
from operator import itemgetter
from struct import Struct

from leveret.storage.message import Message, Persistent, unpack_body

RUN_OCTETS = 64 * 1024
"""Content bytes after which a run ends: about those of a block."""
PACKED_OCTETS = 128 * 1024
"""Those of a `PackedRun`, and half of its maximum: a commit waits for the interpreter at each block."""
ALONE_OCTETS = 16 * 1024
"""Bytes of a content that has a record of its own: a run would save nothing."""
_COUNT = Struct(">I")
_first = itemgetter(0)


class Run(Persistent):
    """The messages of a run in memory, as the message of one entry; its `address` and `content` are not used."""

    __slots__ = ("messages",)

    def __init__(self, messages: Sequence[Message]) -> None:
        super().__init__(b"", b"", 0, None, 0, 1)
        self.copies = 0  # its contents are in its record
        self.messages = messages

    def accepted(self) -> None:
        """All of them are on disk, or were deleted with their stream."""
        for message in self.messages:
            if message.persistent:
                message.accepted()  # type: ignore[attr-defined] # it is a `Persistent`

    def refused(self) -> None:
        """They cannot be written now: their publishes are nacked."""
        for message in self.messages:
            if message.persistent:
                message.refused()  # type: ignore[attr-defined] # as above

    def record(self) -> tuple[bytes, bytes | memoryview, int]:
        """Return the address and the content of the record, and the body bytes of the messages."""
        address, parts, octets = _parts(self.messages)
        return address, b"".join(parts), octets


class PackedRun(Run):
    """A run for which no publisher waits: its `octets` have `space` bytes before its address and its content.

    With these a block that has no other record is made without another copy.
    """

    __slots__ = ("_content_at", "body_octets", "octets")

    def __init__(self, messages: Sequence[Message], space: int) -> None:
        super().__init__(())
        self.address, parts, self.body_octets = _parts(messages)
        self.octets = bytearray().join((bytes(space), self.address, *parts))
        self._content_at = space + len(self.address)

    def record(self) -> tuple[bytes, memoryview, int]:
        """See `Run.record`."""
        return self.address, memoryview(self.octets)[self._content_at :], self.body_octets


def messages_of(message: Message | None) -> Sequence[Message]:
    """Return the messages of an entry, given its message; none if memory has not got it."""
    if message is None:
        return ()
    if type(message) is PackedRun:
        address, content, _ = message.record()
        pairs = zip(*unpacked(address, bytes(content)), strict=True)
        return [Message(address, content, content[1] << 8 | content[2]) for address, content in pairs]
    return message.messages if type(message) is Run else (message,)


def _parts(messages: Sequence[Message]) -> tuple[bytes, list[bytes], int]:
    """Return the address and the parts of the content of the record of a run, and the body bytes of the messages."""
    contents = [message.content for message in messages]
    addresses = [message.address for message in messages]
    count = len(contents)
    octets = sum(map(_first, map(unpack_body, contents)))
    lengths = Struct(f">I{count}I").pack(count, *map(len, contents))
    address = addresses[0]
    if addresses.count(address) == count:
        return address, [lengths, *contents], octets
    heads = Struct(f">{count}H").pack(*map(len, addresses))
    return b"", [lengths, heads, *addresses, *contents], octets


def extents(address: bytes, content: bytes) -> tuple[Sequence[bytes], int, Sequence[int]]:
    """Return the addresses of a run, where its contents begin, and their lengths, given its record."""
    (count,) = _COUNT.unpack_from(content)
    lengths = Struct(f">{count}I").unpack_from(content, 4)
    at = 4 + 4 * count
    if address:
        return (address,) * count, at, lengths
    heads = Struct(f">{count}H").unpack_from(content, at)
    at += 2 * count
    return _cut(content, at, heads), at + sum(heads), lengths


def unpacked(address: bytes, content: bytes) -> tuple[Sequence[bytes], list[bytes]]:
    """Return the addresses and the contents of a run, given its record."""
    addresses, at, lengths = extents(address, content)
    return addresses, _cut(content, at, lengths)


def _cut(octets: bytes, at: int, lengths: Sequence[int]) -> list[bytes]:
    """Return the parts of these lengths from an index on."""
    parts = []
    for length in lengths:
        parts.append(octets[at : at + length])
        at += length
    return parts
