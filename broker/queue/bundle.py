"""Bundles: acked messages of one turn, retained as one message.

A queue at full speed acks hundreds of messages in a turn. As messages of their own each would have its place in the
queue of retained messages, its record in a block, and its end when it leaves; a bundle costs that once.

Layout (big-endian): the address is empty, the content a header frame of class `_CLASS`, which no client can publish,
with the sum of the body sizes, then one frame with the records. A record has the channel number of the content (2),
the octets of the address (2) and of the content (4), address, content.

Hot path: see docs/performance.md.
"""

from collections.abc import Iterator, Sequence
from struct import Struct

from leveret.storage.message import Message, Persistent, unpack_body

BUNDLE_OCTETS = 64 * 1024
"""Bytes of records above which a bundle takes no more messages."""
_ADDRESS = b"\0\0"
_CLASS = 0xFFFF
_CLASS_AT = 7
_IS_BUNDLE = b"\xff\xff"
_HEAD = Struct(">BHIHHQHBBHI")
"""Header frame (type, channel, octets, class, weight, body size, flags, end), and the head of the frame of records."""
_HEADER, _BODY, _END = 2, 3, 0xCE
_HEADER_OCTETS = 14
_RECORD = Struct(">HHI")
_pack_record = _RECORD.pack
RECORD_OCTETS = _RECORD.size
"""Bytes of a record before its address."""
_RECORDS_AT = _HEAD.size


def bundled(messages: Sequence[Message], *, is_saved: bool) -> Message:
    """Return a bundle of messages, in their order.

    Args:
        messages: the messages; none is a bundle.
        is_saved: True to write it to disk.

    """
    parts = [b""]
    append = parts.append
    head, address, length, channel_id = b"", b"", -1, -1
    for message in messages:
        content = message.content
        # the same for most: they come by the same route
        if len(content) != length or message.address is not address or message.channel_id != channel_id:
            address, length, channel_id = message.address, len(content), message.channel_id
            head = _pack_record(channel_id, len(address), length) + address
        append(head)
        append(content)
    octets = sum([unpack_body(message.content)[0] for message in messages])
    size = sum(map(len, parts))
    parts[0] = _HEAD.pack(_HEADER, 0, _HEADER_OCTETS, _CLASS, 0, octets, 0, _END, _BODY, 0, size)
    parts.append(b"\xce")
    content = b"".join(parts)
    return Persistent(_ADDRESS, content, 0, None, 0, 1) if is_saved else Message(_ADDRESS, content, 0)


def is_bundle(message: Message) -> bool:
    """Return whether a message is a bundle."""
    return message.content[_CLASS_AT : _CLASS_AT + 2] == _IS_BUNDLE


def unbundled(message: Message) -> list[Message]:
    """Return the messages of a bundle; a list of the message itself if it is none."""
    if not is_bundle(message):
        return [message]
    content = message.content
    return [
        Message(content[at : at + length], content[at + length : end], channel_id)
        for channel_id, at, length, end in _records(content)
    ]


def bundle_length(message: Message) -> int:
    """Return the number of messages of a bundle; 1 if the message is none."""
    return sum([1 for _ in _records(message.content)]) if is_bundle(message) else 1


def _records(content: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield the channel number of each record, where its address begins, the octets of this, and the record's end."""
    at, end = _RECORDS_AT, len(content) - 1
    while at < end:
        channel_id, length, octets = _RECORD.unpack_from(content, at)
        at += RECORD_OCTETS
        yield channel_id, at, length, at + length + octets
        at += length + octets


class Kept:
    """Messages that go to the retained ones in one step.

    Attributes:
        messages: bundles, and messages that are not in any.
        count: number of acked messages.
        largest: size in bytes of the largest content of `messages`.
        persistent: True if some of them are written to disk.
        bundle: the messages of the next bundle.
        is_saved: True if these are written.

    """

    __slots__ = ("bundle", "count", "is_saved", "largest", "messages", "persistent")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.count = self.largest = 0
        self.persistent = self.is_saved = False
        self.bundle: list[Message] = []

    def end_bundle(self) -> None:
        """Add the bundle, if there is one; a message alone needs none."""
        bundle = self.bundle
        if not bundle:
            return
        is_saved = self.is_saved
        message = bundle[0]
        if len(bundle) > 1:
            message = bundled(bundle, is_saved=is_saved)
        elif is_saved:
            message = Persistent(message.address, message.content, message.channel_id, None, 0, 1)
        self.count += len(bundle) - 1
        self.add_alone(message, is_saved=is_saved)
        self.bundle = []

    def add_alone(self, message: Message, *, is_saved: bool) -> None:
        """Add a message, or a bundle whose other messages are counted."""
        self.messages.append(message)
        self.count += 1
        self.largest = max(self.largest, len(message.content))
        self.persistent = self.persistent or is_saved
