"""A message as the broker carries it: octets that came in and go out again.

Hot path: see docs/performance.md.
"""

from collections.abc import Callable, Iterable
from struct import Struct
from typing import Protocol

_BODY_SIZE = Struct(">Q").unpack_from
_BODY_SIZE_AT = 11  # frame header (7), class id (2), weight (2)
_LENGTH = Struct(">I").unpack_from
_pack_length = Struct(">I").pack
_FRAME_OVERHEAD = 8  # type, channel, size, end octet
unpack_body = Struct(">11xQ").unpack_from
"""Octets of the body of a content of `HEAD_OCTETS` or more, in a tuple (see `body_octets`)."""
HEAD_OCTETS = 19
"""Octets of a content from which the size of its body can be told."""


def body_octets(content: bytes) -> int:
    """Octets of the body of a content (or its beginning) by its header; 0 for what is too short to have one."""
    return int(unpack_body(content)[0]) if len(content) >= HEAD_OCTETS else 0


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

    persistent = False
    """Whether durable queues have to keep it."""
    expires = 0
    """When a queue has to discard it (epoch ms); 0 for never. Of a copy of its own: see `Dated`."""
    promise: "Awaited | None" = None
    """What its publisher waits for, if that is more than that the broker has it: see `Promised`."""

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

    def with_header(self, header: bytes) -> "Message":
        """A copy with another content header (payload); its publisher, if it has one, knows nothing of it."""
        content = self.content
        (length,) = _LENGTH(content, 3)
        parts = (content[:3], _pack_length(len(header)), header, content[7 + length :])
        return Message(self.address, b"".join(parts), self.channel_id)


class Awaited(Protocol):
    """A publisher's wish to know what consumers say of a message (`confirm.promise`)."""

    def accepted(self) -> None:
        """One copy has its consumer's verdict."""

    def refused(self) -> None:
        """One copy will not have one."""


class Promised(Message):
    """A message whose publisher waits for consumers; queues keep it as they keep a transient one.

    Args:
        address: as for a `Message`.
        content: the same.
        channel_id: the same.
        promise: is told, by each queue once, what has become of its copy.

    """

    __slots__ = ("promise",)

    def __init__(self, address: bytes, content: bytes, channel_id: int, promise: Awaited) -> None:
        self.address = address
        self.content = content
        self.channel_id = channel_id
        self.promise: Awaited | None = promise


class Dated(Message):
    """One queue's copy of a message that expires there and has no place on disk.

    Args:
        message: the message.
        expires: when (epoch ms).

    """

    __slots__ = ("expires",)

    def __init__(self, message: Message, expires: int) -> None:
        self.address = message.address
        self.content = message.content
        self.channel_id = message.channel_id
        self.expires = expires


def dated(messages: Iterable[Message], expires: int) -> list[Message]:
    """Copies of messages that expire, for a queue that keeps them in memory."""
    return [Dated(message, expires) for message in messages]


class Expiring(Protocol):
    """A message in a queue."""

    @property
    def expires(self) -> int:
        """When it has to be discarded (epoch ms); 0 for never."""


def leading(messages: Iterable[Expiring], now: int) -> tuple[int, bool]:
    """How many of the first messages have all expired by `now`, or all not; and which."""
    count = 0
    expired = False
    for message in messages:
        if count and (0 < message.expires <= now) is not expired:
            break
        if not count:
            expired = 0 < message.expires <= now
        count += 1
    return count, expired


class Publisher(Protocol):
    """The channel a message came by, if it wants to be told."""

    def accepted(self, seq_no: int) -> None:
        """Every queue has taken responsibility for the message of that number."""

    def refused(self, seq_no: int) -> None:
        """Some queue could not: the number is to be nacked. May be called several times."""


class Persistent(Message):
    """A persistent message on its way into durable queues.

    Args:
        address: as for a `Message`.
        content: the same.
        channel_id: the same.
        publisher: who wants to know when all copies are safe, or None.
        seq_no: the publisher's number of it.
        copies: how many durable queues have to take it, at least 1.

    """

    __slots__ = ("copies", "in_file", "in_table", "msg_id", "open_copies", "publisher", "seq_no")

    persistent = True

    def __init__(
        self,
        address: bytes,
        content: bytes,
        channel_id: int,
        publisher: Publisher | None,
        seq_no: int,
        copies: int,
    ) -> None:
        self.address = address
        self.content = content
        self.channel_id = channel_id
        self.publisher = publisher
        self.seq_no = seq_no
        self.copies = copies
        self.open_copies = copies
        """Those that are neither on disk nor settled yet."""
        self.msg_id = 0
        """Where the body lies on disk, if it is written apart from its records."""
        self.in_file = False
        self.in_table = False
        """Its row in the table of bodies is written, or about to be."""

    def accepted(self) -> None:
        """One copy is on disk, or needs not be any more."""
        self.open_copies = left = self.open_copies - 1
        if not left and self.publisher is not None:
            self.publisher.accepted(self.seq_no)
            self.publisher = None

    def refused(self) -> None:
        """One copy cannot be kept on disk now. It stays in its queue, but the publisher is told no."""
        if self.publisher is not None:
            self.publisher.refused(self.seq_no)
            self.publisher = None


class Moved(Persistent):
    """A copy of a message that has to stay where it was until all copies of this one are on disk, or settled.

    Its body goes to a file of its own, which is not there when the rest is committed. If there is no room for it the
    queues try again.

    Args:
        message: the new copy.
        publisher: as for a `Persistent`.
        seq_no: the same.
        copies: the same.
        on_safe: called once, then.

    """

    __slots__ = ("_on_safe",)

    def __init__(
        self,
        message: Message,
        publisher: Publisher | None,
        seq_no: int,
        copies: int,
        on_safe: Callable[[], object],
    ) -> None:
        super().__init__(message.address, message.content, message.channel_id, publisher, seq_no, copies)
        self._on_safe = on_safe

    def accepted(self) -> None:
        """One copy is on disk, or needs not be any more."""
        super().accepted()
        if not self.open_copies:
            self._on_safe()


def moving(
    message: Message,
    copies: int,
    file_from: int,
    on_safe: Callable[[], object] | None,
    *,
    publisher: Publisher | None = None,
    seq_no: int = 0,
) -> Persistent:
    """A message on its way from one place on disk to others, where the commit of this turn takes it from the first.

    Args:
        message: the new copy.
        copies: how many queues have to take it, at least 1.
        file_from: octets from which a content is written to a file of its own. Such a copy is `Moved`: its original
            has to stay until `on_safe` is called.
        on_safe: None if there is no original that could stay.
        publisher: as for a `Persistent`.
        seq_no: the same.

    """
    if on_safe is not None and len(message.content) >= file_from:
        return Moved(message, publisher, seq_no, copies, on_safe)
    return Persistent(message.address, message.content, message.channel_id, publisher, seq_no, copies)
