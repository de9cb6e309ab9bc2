"""A message as the broker carries it: the bytes of its frames, passed on unchanged.

Hot path: see docs/performance.md.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from struct import Struct
from typing import Any, Protocol

_BODY_SIZE = Struct(">Q").unpack_from
_BODY_SIZE_AT = 11  # frame header (7), class id (2), weight (2)
_LENGTH = Struct(">I").unpack_from
_pack_length = Struct(">I").pack
_FRAME_OVERHEAD = 8  # type, channel, size, end octet
unpack_body = Struct(">11xQ").unpack_from
"""Body size of a content of at least `HEAD_OCTETS` bytes, in a tuple (see `body_octets`)."""
HEAD_OCTETS = 19  # bytes of a content that are needed to read its body size
MOST_RECORDED = 255  # maximum of `Message.deaths`, which is one octet


def body_octets(content: bytes) -> int:
    """Return the body size in bytes from a content (or its beginning); 0 if it is too short to have a header."""
    return int(unpack_body(content)[0]) if len(content) >= HEAD_OCTETS else 0


def header_frame(content: bytes) -> bytes:
    """Return the frame of the content header: messages that have the same agree in body size and properties."""
    (length,) = _LENGTH(content, 3)
    return content[: length + _FRAME_OVERHEAD]


class Message:
    """One published message, shared by every queue it was routed to.

    Args:
        address: exchange and routing key as two short strings, encoded as in the publish and in every deliver.
        content: the content header frame and the body frames exactly as they arrived, frame by frame.
        channel_id: the channel number in those frames.

    A message is immutable once published: queues and consumers only pass it on.

    A dead letter is a content of the broker's own. Its header frame is on channel 0, where no client can publish, so
    every delivery rewrites the beginning of the frames. The frame's first octet is not its type but the number of
    `deaths`. So that number is in memory, on disk and in copies wherever the message is, and no client ever sees or
    sets it.
    """

    __slots__ = ("address", "channel_id", "content")

    persistent = False  # True if durable queues have to keep it
    expires = 0
    """Time at which a queue has to discard it (epoch ms); 0 for never. Set on a copy per queue: see `Dated`."""
    promise: "Awaited | None" = None  # tracks acks for the publisher's confirm: see `Promised`

    def __init__(self, address: bytes, content: bytes, channel_id: int) -> None:
        self.address = address
        self.content = content
        self.channel_id = channel_id

    @property
    def body_size(self) -> int:
        """Body size in bytes, as declared in the content header."""
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

    @property
    def deaths(self) -> int:
        """Number of deaths that the broker itself recorded since a client published it, at most `MOST_RECORDED`."""
        return 0 if self.channel_id else self.content[0]

    def with_header(self, header: bytes) -> "Message":
        """Return a copy with another content header (payload) and without the publisher."""
        return self._copy(self.address, self.content[:3], header)

    def dead_letter(self, address: bytes, header: bytes, deaths: int) -> "Message":
        """Return the dead letter of this message, with a new address and a new content header (payload).

        `deaths` is its number of deaths since the publish (>= 0); beyond `MOST_RECORDED` it counts as that.
        """
        return self._copy(address, bytes((min(deaths, MOST_RECORDED), 0, 0)), header)

    def _copy(self, address: bytes, start: bytes, header: bytes) -> "Message":
        content = self.content
        (length,) = _LENGTH(content, 3)
        parts = (start, _pack_length(len(header)), header, content[7 + length :])
        return Message(address, b"".join(parts), start[1] << 8 | start[2])


class Awaited(Protocol):
    """A publish whose confirm waits for consumer acks (`confirm.promise`), which has a sequence number of its own."""

    def accepted(self, seq_no: int = 0) -> None:
        """One copy was acked or rejected by its consumer."""

    def refused(self, seq_no: int = 0) -> None:
        """One copy was refused: the publish is nacked."""


class Promised(Message):
    """A message whose confirm waits for consumer acks; queues keep it like a transient one.

    Each queue calls the `promise` once with the outcome of its copy.
    """

    __slots__ = ("promise",)

    def __init__(self, address: bytes, content: bytes, channel_id: int, promise: Awaited) -> None:
        self.address = address
        self.content = content
        self.channel_id = channel_id
        self.promise: Awaited | None = promise


class Dated(Message):
    """One queue's in-memory copy of a message with a TTL."""

    __slots__ = ("expires",)

    def __init__(self, message: Message, expires: int) -> None:
        self.address = message.address
        self.content = message.content
        self.channel_id = message.channel_id
        self.expires = expires


def dated(messages: Iterable[Message], expires: int) -> list[Message]:
    """Return copies with an expiry time (epoch ms), for a queue that keeps messages in memory."""
    return [Dated(message, expires) for message in messages]


def leading(messages: Iterable[Any], now: int) -> tuple[int, bool]:
    """Return the length of the leading run that is all expired or all live at `now`, and whether it is expired.

    The messages, or their entries in a queue, have the time at which they expire.
    """
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
    """The channel a message was published on, if it uses publisher confirms."""

    def accepted(self, seq_no: int) -> None:
        """Every queue has accepted the message with this sequence number."""

    def refused(self, seq_no: int) -> None:
        """A queue could not accept the message: nack this sequence number. May be called several times."""


class Persistent(Message):
    """A persistent message on its way to durable queues.

    Args, besides those of a `Message`:
        publisher: notified when all copies are on disk or settled; None without confirms.
        seq_no: its sequence number on the publisher's channel.
        copies: how many durable queues have to take it, at least 1.
    """

    __slots__ = ("copies", "in_blob", "in_table", "msg_id", "open_copies", "publisher", "seq_no")

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
        self.copies = copies  # 0 later for a body that is not stored apart from its record
        self.open_copies = copies  # copies that are neither on disk nor settled yet
        self.msg_id = 0  # id of the body on disk, if it is stored apart from its records
        self.in_blob = False
        self.in_table = False  # True once its row in the table of bodies is written or in the current batch

    def accepted(self) -> None:
        """One copy is on disk, or was settled before."""
        self.open_copies = left = self.open_copies - 1
        if not left and self.publisher is not None:
            self.publisher.accepted(self.seq_no)
            self.publisher = None

    def written(self) -> None:
        """The body is in its file; the records of the copies that are still needed go into the next commit."""

    def refused(self) -> None:
        """One copy cannot be written now. It stays in its queue, but the publish is nacked."""
        if self.publisher is not None:
            self.publisher.refused(self.seq_no)
            self.publisher = None


def withhold(messages: Iterable[Message | None]) -> Callable[[bool], object] | None:
    """Take their publishers from messages that end before they are written, and that no consumer has taken.

    A confirm at once would be wrong after a kill, which would lose the message and bring back older ones. Returns a
    callback that notifies them when that end is safe or has failed, for a journal's `when_all_safe`; None if no
    publisher waits.
    """
    waiting: list[tuple[Publisher, int]] = []
    for message in messages:
        if isinstance(message, Persistent) and message.publisher is not None:
            waiting.append((message.publisher, message.seq_no))
            message.publisher = None
    return partial(_tell, waiting) if waiting else None


def _tell(waiting: Sequence[tuple[Publisher, int]], is_safe: bool) -> None:
    for publisher, seq_no in waiting:
        if is_safe:
            publisher.accepted(seq_no)
        else:
            publisher.refused(seq_no)


class Moved(Persistent):
    """A copy whose original has to stay in its queue until the body of the copy is in a file of its own.

    That takes longer than a commit. If there is no space for it the queues try again.
    """

    __slots__ = ("_on_safe",)

    def __init__(
        self,
        message: Message,  # the new copy, counted once
        publisher: Publisher | None,  # as for a `Persistent`, or a promise, which has its own sequence number
        # called once, and removes the original. With true when the body is in its file: the end of the original, noted
        # at once as one that moved, is in the commit that has the records of the copies. With false if all copies were
        # settled before that; then other messages may be being settled
        on_safe: Callable[[bool], object],
    ) -> None:
        super().__init__(message.address, message.content, message.channel_id, publisher, 0, 1)
        self._on_safe: Callable[[bool], object] | None = on_safe

    def written(self) -> None:
        """The body is in its file; the records of the copies that are still needed go into the next commit."""
        self._release(is_written=True)

    def accepted(self) -> None:
        """One copy is on disk, or was settled before."""
        super().accepted()
        if not self.open_copies:
            self._release(is_written=False)

    def _release(self, *, is_written: bool) -> None:
        on_safe, self._on_safe = self._on_safe, None
        if on_safe is not None:
            on_safe(is_written)


class Stored(Persistent):
    """A message that was held, whose body has its row on disk already: its record refers to that."""

    __slots__ = ("drop", "is_referenced")

    def __init__(self, address: bytes, content: bytes, channel_id: int, msg_id: int) -> None:
        super().__init__(address, content, channel_id, None, 0, 1)
        self.msg_id = msg_id
        self.in_table = True
        self.is_referenced = False  # True once its record is on disk or in the current batch
        self.drop: Callable[[int], object] | None = None
        """Deletes the row of the body, whose id it gets, if the message ends without a record."""

    def accepted(self) -> None:
        """The copy is on disk, or was settled before."""
        super().accepted()
        if not self.is_referenced and self.drop is not None:
            self.drop(self.msg_id)


def moving(
    message: Message,
    blob_threshold: int,
    on_safe: Callable[[bool], object] | None,
    publisher: Publisher | None = None,
) -> Persistent:
    """Return a message that moves to another queue, where this turn's commit removes the original.

    A content of `blob_threshold` bytes or more is written to a file of its own. Such a copy is `Moved`: its original
    has to stay until `on_safe` is called, which is None if there is no original to keep. Other arguments as for a
    `Moved`.
    """
    if on_safe is not None and len(message.content) >= blob_threshold:
        return Moved(message, publisher, on_safe)
    return Persistent(message.address, message.content, message.channel_id, publisher, 0, 1)
