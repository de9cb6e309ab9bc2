"""A message as the broker carries it: octets that came in and go out again.

Hot path: see docs/performance.md.
"""

from struct import Struct

_BODY_SIZE = Struct(">Q").unpack_from
_BODY_SIZE_AT = 11  # frame header (7), class id (2), weight (2)
_LENGTH = Struct(">I").unpack_from
_FRAME_OVERHEAD = 8  # type, channel, size, end octet


class Message:
    """One published message, shared by every queue it was routed to.

    Args:
        address: exchange and routing key as two short strings, the octets of the publish, which are the octets
            of every deliver.
        content: the content header frame and the body frames exactly as they arrived, frame by frame.
        channel_id: the channel number that stands in those frames.

    A message is immutable once published: queues and consumers only ever pass it on.
    """

    __slots__ = ("address", "channel_id", "content")

    def __init__(self, address: bytes, content: bytes, channel_id: int) -> None:
        self.address = address
        self.content = content
        self.channel_id = channel_id

    @property
    def body_size(self) -> int:
        """Octets of the body, as the content header declares them."""
        return int(_BODY_SIZE(self.content, _BODY_SIZE_AT)[0])

    @property
    def header(self) -> bytes:
        """The content header frame's payload (class, weight, body size, property flags and list)."""
        (length,) = _LENGTH(self.content, 3)
        return self.content[7 : 7 + length]

    @property
    def body(self) -> bytes:
        """The body, joined from its frames."""
        content = self.content
        (length,) = _LENGTH(content, 3)
        at = length + _FRAME_OVERHEAD
        parts = []
        while at < len(content):
            (length,) = _LENGTH(content, at + 3)
            parts.append(content[at + 7 : at + 7 + length])
            at += length + _FRAME_OVERHEAD
        return b"".join(parts)
