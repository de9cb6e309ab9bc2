"""Bundles: acked messages of one turn, or of several, retained as one message.

A queue at full speed acks hundreds of messages in a turn. As messages of their own each would have its place in the
queue of retained messages, its record in a block, and its end when it leaves; a bundle costs that once.

Layout (big-endian): the address is empty. The content is a header frame of class `_CLASS`, which no client can publish,
and one frame with the records. The header has the number of messages as its weight, and the sum of their body sizes. A
record has the channel number of the content (2), the octets of the address (2) and of the content (4), address,
content.

Hot path: see docs/performance.md.
"""

from collections.abc import Iterator, Sequence
from struct import Struct

from leveret.storage.message import Message, Persistent, header_frame, unpack_body

BUNDLE_OCTETS = 256 * 1024  # bytes of records above which a bundle takes no more messages
ALONE_OCTETS = 64 * 1024  # bytes of a record that is in no bundle: to copy it costs more than a bundle saves
_ADDRESS = b"\0\0"
_CLASS = 0xFFFF
_CLASS_AT = 7
_IS_BUNDLE = b"\xff\xff"
_HEAD = Struct(">BHIHHQHBBHI")
"""Header frame (type, channel, octets, class, weight, body size, flags, end), and the head of the frame of records."""
_COUNT = Struct(">9xH").unpack_from
_HEADER, _BODY, _END = 2, 3, 0xCE
_HEADER_OCTETS = 14
_RECORD = Struct(">HHI")
_pack_record = _RECORD.pack
RECORD_OCTETS = _RECORD.size  # bytes of a record before its address
_RECORDS_AT = _HEAD.size


def record_octets(message: Message) -> int:
    """Return the bytes that a message takes in a bundle."""
    return RECORD_OCTETS + len(message.address) + len(message.content)


def bundled(messages: Sequence[Message], *, is_saved: bool) -> Message:
    """Return a bundle of messages, none of which is one, in their order; `is_saved` to write it to disk."""
    contents = [message.content for message in messages]
    heads: list[bytes] = []
    head, address, length, channel_id = b"", b"", -1, -1
    for message, content in zip(messages, contents, strict=True):
        # the same for most: they come by the same route
        if len(content) != length or message.address is not address or message.channel_id != channel_id:
            address, length, channel_id = message.address, len(content), message.channel_id
            head = _pack_record(channel_id, len(address), length) + address
        heads.append(head)
    octets = sum([unpack_body(content)[0] for content in contents])
    return _joined(heads, contents, octets, is_saved=is_saved)


def likeness(message: Message) -> tuple[type[Message], bytes, bytes]:
    """Return what messages that are alike have in common: their type, address and content header."""
    return type(message), message.address, header_frame(message.content)


def are_alike(messages: Sequence[Message]) -> bool:
    """Return whether messages have the likeness of the first one; most of a turn have."""
    kind, address, header = likeness(messages[0])
    return all(
        [  # noqa: C419 - a list takes half the time
            type(message) is kind and message.address == address and message.content.startswith(header)
            for message in messages
        ]
    )


def are_small(messages: Sequence[Message], share: int) -> bool:
    """Return whether messages that are alike go into bundles of at most `share` bytes of records."""
    return record_octets(messages[0]) <= min(share, ALONE_OCTETS)


def bundles_of_alike(messages: Sequence[Message], share: int, *, is_saved: bool) -> list[Message]:
    """Return bundles, with at most `share` bytes of records each, of messages that are alike and small and no bundles.

    This is how nearly all messages are retained, and takes a third of the time of `bundled`.
    """
    first = messages[0]
    address, channel_id, octets = first.address, first.channel_id, first.body_size
    contents = [message.content for message in messages]
    lengths = list(map(len, contents))
    most = max(1, share // (RECORD_OCTETS + len(address) + max(lengths)))
    known = {length: _pack_record(channel_id, len(address), length) + address for length in set(lengths)}
    heads = list(map(known.__getitem__, lengths))
    return [
        _joined(part, contents[at : at + most], octets * len(part), is_saved=is_saved)
        for at in range(0, len(contents), most)
        if (part := heads[at : at + most])
    ]


def _joined(heads: list[bytes], contents: Sequence[bytes], octets: int, *, is_saved: bool) -> Message:
    count = len(contents)
    parts = [b"\xce"] * (2 * count + 2)
    parts[1:-1:2] = heads
    parts[2:-1:2] = contents
    size = sum(map(len, heads)) + sum(map(len, contents))
    parts[0] = _HEAD.pack(_HEADER, 0, _HEADER_OCTETS, _CLASS, count, octets, 0, _END, _BODY, 0, size)
    content = b"".join(parts)
    if not is_saved:
        return Message(_ADDRESS, content, 0)
    saved = Persistent(_ADDRESS, content, 0, None, 0, 1)
    saved.copies = 0  # its body is in its record: nothing has to be read when it leaves
    return saved


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
    if not is_bundle(message):
        return 1
    return int(_COUNT(message.content)[0])


def _records(content: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield the channel number of each record, where its address begins, the octets of this, and the record's end."""
    at, end = _RECORDS_AT, len(content) - 1
    while at < end:
        channel_id, length, octets = _RECORD.unpack_from(content, at)
        at += RECORD_OCTETS
        yield channel_id, at, length, at + length + octets
        at += length + octets


class RetainedBatch:
    """Messages that go to the retained ones in one step."""

    __slots__ = ("bundle", "is_saved", "largest", "messages", "persistent")

    def __init__(self) -> None:
        self.messages: list[Message] = []  # bundles, and messages that are not in any
        self.largest = 0  # size in bytes of the largest content of `messages`
        # persistent: True if some of them are written to disk
        # bundle, is_saved: the messages of the next bundle, and whether these are written
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
        self.add_alone(message, is_saved=is_saved)
        self.bundle = []

    def add_alone(self, message: Message, *, is_saved: bool) -> None:
        """Add a message, or a bundle."""
        self.messages.append(message)
        self.largest = max(self.largest, len(message.content))
        self.persistent = self.persistent or is_saved
