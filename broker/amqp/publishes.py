"""Publishes in the bytes of a read: where they are, if their header and body have arrived as one frame each.

These functions know the format and nothing of channels, routes or queues: the receive loop
(`broker.connection.receive_loop`) calls them, at most once for a content, and uses the result. The loop itself finds a
publish that equals the last, or whose content begins as the last, by one comparison.

Hot path: see docs/performance.md.
"""
# ruff: noqa: PLR2004 - offsets and numbers of the format are named beside them

from collections.abc import MutableMapping
from io import BytesIO
from struct import Struct

from leveret.broker.amqp.fastpath import (
    BASIC_CLASS,
    FRAME_END,
    FRAME_OVERHEAD,
    TYPE_BODY,
    TYPE_HEADER,
    unpack_frame,
    unpack_header,
)
from leveret.broker.amqp.properties import (
    FLAG_CONTINUATION,
    FLAG_CORRELATION_ID,
    FLAG_EXPIRATION,
    FLAG_HEADERS,
    FLAG_MESSAGE_ID,
    FLAG_REPLY_TO,
    FLAG_TIMESTAMP,
    FLAG_USER_ID,
    PERSISTENT_MODE,
    list_end,
)

LARGE = 1024 * 1024  # size in bytes from which a body is assembled as a `LargeBody`
_STEP = 128 * 1024
_pack_frame = Struct(">BHI").pack
ASKS_SOMETHING = FLAG_HEADERS | FLAG_EXPIRATION | FLAG_USER_ID | FLAG_REPLY_TO | FLAG_CONTINUATION
"""Flags of properties that require something of the broker, or that only a decoder can tell."""
NEEDS_DECODER = ASKS_SOMETHING & ~(FLAG_HEADERS | FLAG_REPLY_TO)
"""Those with which `list_end` cannot say whether a message requires something of the broker."""
UNIQUE = FLAG_CORRELATION_ID | FLAG_MESSAGE_ID | FLAG_TIMESTAMP
"""Flags of properties that mostly differ from message to message, so it is useless to cache their demands."""


def is_address(octets: bytes) -> bool:
    """Return whether octets are exactly two short strings."""
    if not octets:
        return False
    at = 1 + octets[0]
    return at < len(octets) and at + 1 + octets[at] == len(octets)


def end_of_content(data: bytes, at: int) -> int:
    """Return the end of the first complete content frame: during an alarm nothing after it is executed.

    This is as in RabbitMQ, which blocks a connection at its content header. `len(data)` if there is no such frame.
    """
    size = len(data)
    while size - at >= FRAME_OVERHEAD:
        kind, _, length = unpack_frame(data, at)
        at += length + FRAME_OVERHEAD
        if at > size:
            break
        if kind in (TYPE_HEADER, TYPE_BODY):
            return at
    return size


def whole_content(
    data: bytes, at: int, size: int, number: int, limit: int
) -> tuple[int, int, int, int] | None:
    """Look for a content at `at` whose header and body have arrived as one frame each, in the first `size` bytes.

    Returns the end of its header frame, its end, its body size and the first word of its property flags; None if there
    is no such content. `limit` is the maximum payload of a frame.
    """
    if size - at < 22 or data[at] != TYPE_HEADER:
        return None
    _, another, length, ids, octets, word = unpack_header(data, at)
    end = stop = at + length + FRAME_OVERHEAD
    if another != number or ids != BASIC_CLASS or not 14 <= length <= limit:
        return None
    if octets:
        if size - end < 7:
            return None
        kind, another, length = unpack_frame(data, end)
        stop = end + length + FRAME_OVERHEAD
        if kind != TYPE_BODY or another != number or length != octets or length > limit:
            return None
    if stop > size or data[end - 1] != FRAME_END or data[stop - 1] != FRAME_END:
        return None
    return end, stop, octets, word


def equal_contents(
    data: bytes, at: int, size: int, prefix: bytes, total: int, head: int
) -> tuple[list[bytes], int]:
    """Return the contents of the run of equal publishes at `at`, and its end.

    Each of them begins with `prefix` and has `total` bytes, `head` of them before its content.
    """
    contents = []
    startswith = data.startswith
    stop = at + total
    while stop <= size and data[stop - 1] == FRAME_END:
        contents.append(data[at + head : stop])
        at = stop
        if not startswith(prefix, at):
            break
        stop = at + total
    return contents, at


def varied_contents(
    data: bytes,
    at: int,
    size: int,
    method: bytes,
    number: int,
    limit: int,
    most: int,
    sizes: MutableMapping[int, int],
    *,
    persistent: bool | None,
    expires: bool = False,
) -> tuple[list[bytes], int]:
    """Return the contents of the run of publishes with the same method frame at `at`, and its end.

    The run ends before a publish that is incomplete, has property demands, has a content of more than `most` bytes, is
    not `persistent`, or is, where it matters (None: it does not), or is likely to equal others but for its body.
    With `expires` an expiration is no demand. `sizes` counts them by body size.
    """
    contents = []
    differing, demanding = UNIQUE | FLAG_HEADERS, NEEDS_DECODER
    if expires:
        differing, demanding = differing | FLAG_EXPIRATION, demanding & ~FLAG_EXPIRATION
    startswith, skip = data.startswith, len(method)
    while startswith(method, at):
        begin = at + skip
        found = whole_content(data, begin, size, number, limit)
        if found is None:
            break
        end, stop, octets, word = found
        if stop - begin > most or not word & differing or word & demanding:
            break
        last, mode = list_end(data, begin + 21, word)
        if last != end - 1 or (persistent is not None and (mode == PERSISTENT_MODE) is not persistent):
            break
        contents.append(data[begin:stop])
        sizes[octets] += 1
        at = stop
    return contents, at


class LargeBody(list[bytes | memoryview]):
    """An incomplete content of many megabytes: the header frame and the body frames appended so far.

    It replaces the list of frames that smaller contents use, and looks like a list with only the header frame. Joining
    the frames at the end would block the event loop while everything is copied, and need twice the memory. `io.BytesIO`
    grows in place and returns its value without a copy, because it shares its buffer. So frames are written to one as
    they arrive, split again into frames of equal size: frames of one octet then cost no more.
    """

    __slots__ = ("_buffer", "_left", "_number", "_room", "_step")

    def __init__(self, header: bytes, number: int, size: int, frame_limit: int) -> None:
        super().__init__((header,))
        self._buffer = BytesIO()
        self._buffer.write(header)
        self._number = number
        self._left = size
        self._step = min(frame_limit, _STEP) - FRAME_OVERHEAD
        self._room = 0

    def append(self, frame: bytes | memoryview) -> None:
        """Append a whole body frame; anything beyond the declared size is dropped, and the caller must refuse it."""
        self.extend_body(memoryview(frame)[FRAME_OVERHEAD - 1 : -1])

    def extend_body(self, rest: memoryview) -> None:
        """Append a part of the body, of any size; see `append`."""
        write = self._buffer.write
        while rest and self._left:
            if not self._room:
                self._room = min(self._step, self._left)
                write(_pack_frame(TYPE_BODY, self._number, self._room))
            part = rest[: self._room]
            write(part)
            rest = rest[len(part) :]
            self._left -= len(part)
            self._room -= len(part)
            if not self._room:
                write(b"\xce")

    def content(self) -> bytes:
        """Return the content: header frame and body frames. Nothing may be appended afterwards."""
        return self._buffer.getvalue()
