"""Received bytes of a client's connection, split into frames. No socket."""

from leveret.broker.amqp.codec import decode_method
from leveret.broker.amqp.commands import Frame
from leveret.broker.amqp.errors import WireError
from leveret.broker.amqp.fastpath import (
    FRAME_END,
    FRAME_OVERHEAD,
    HEARTBEAT,
    TYPE_BODY,
    TYPE_HEADER,
    TYPE_HEARTBEAT,
    TYPE_METHOD,
    unpack_frame,
)
from leveret.broker.client.errors import UnreachableError

METHOD_AT = 7
"""Position of class and method number in a method frame."""
FIELDS_AT = 11
_KINDS = frozenset((TYPE_METHOD, TYPE_HEADER, TYPE_BODY, TYPE_HEARTBEAT))

Received = tuple[int, Frame]
"""A channel number, and a method that arrived on it."""


class Incoming:
    """The receiving side of a connection; subclasses handle deliveries and confirms."""

    def __init__(self) -> None:
        self._rest = b""
        self._replies: list[bytes] = []

    def feed(self, data: bytes, now: int) -> list[Received]:
        """Process received bytes and return the methods that `handle` has left.

        Args:
            data: the next bytes of the connection.
            now: time of their arrival, in nanoseconds.

        Raises:
            UnreachableError: they are not AMQP 0-9-1.
        """
        if self._rest:
            data = self._rest + data
        methods: list[Received] = []
        at, size = 0, len(data)
        if size and data[0] not in _KINDS:
            raise UnreachableError("the server does not speak AMQP 0-9-1")
        while True:
            at = self.skip(data, at, now)
            if size - at < FRAME_OVERHEAD:
                break
            kind, channel, length = unpack_frame(data, at)
            end = at + length + FRAME_OVERHEAD
            if end > size:
                break
            if data[end - 1] != FRAME_END:
                raise UnreachableError("the server sent a frame that is not valid AMQP 0-9-1")
            if kind == TYPE_METHOD:
                index = int.from_bytes(data[at + METHOD_AT : at + FIELDS_AT], "big")
                if not self.handle(index, data, at, now):
                    methods.append((channel, _decode(data, at, end)))
            elif kind == TYPE_HEARTBEAT:
                self._replies.append(HEARTBEAT)
            else:
                self.content(kind, data, at, end, now)
            at = end
        self._rest = data[at:] if at < size else b""
        return methods

    def replies(self) -> bytes:
        """Return the frames to write in reply to what was received."""
        if not self._replies:
            return b""
        frames = b"".join(self._replies)
        self._replies.clear()
        return frames

    def skip(self, data: bytes, at: int, now: int) -> int:  # noqa: ARG002 - for subclasses
        """Process messages from `at` on in a faster way, if there is one; return the position after them."""
        return at

    def handle(self, index: int, data: bytes, at: int, now: int) -> bool:  # noqa: ARG002 - for subclasses
        """Process the method frame at `at`, of class and method `index`; return False to leave it to the caller."""
        return False

    def content(self, kind: int, data: bytes, at: int, end: int, now: int) -> None:
        """Process the header or body frame between `at` and `end`."""


def _decode(data: bytes, at: int, end: int) -> Frame:
    try:
        return decode_method(data, at + METHOD_AT, end - 1)
    except WireError as error:
        raise UnreachableError(f"the server sent a method that is not valid AMQP 0-9-1: {error}") from None
