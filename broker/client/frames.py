"""Received bytes of a client's connection, split into frames. No socket.

Theory. The broker at the other end is no more to be trusted than a client of ours: a shovel connects to whatever its
URI names. No more than one frame is kept, none larger than was negotiated is waited for, and what a broker may send
unasked at any time (heartbeats, methods that answer nothing, pieces of bodies that are all but empty) has a limit per
second: a broker in order sends a handful.
"""

import struct

from leveret.broker.amqp.codec import decode_method
from leveret.broker.amqp.commands import Frame
from leveret.broker.amqp.errors import WireError
from leveret.broker.amqp.fastpath import (
    FRAME_END,
    FRAME_OVERHEAD,
    TYPE_BODY,
    TYPE_HEADER,
    TYPE_HEARTBEAT,
    TYPE_METHOD,
    unpack_frame,
)
from leveret.broker.client.errors import UnreachableError

METHOD_AT = 7  # position of class and method number in a method frame
FIELDS_AT = 11
FIRST_FRAME_MAX = 8192  # maximum size of a frame before `connection.tune`, in bytes
MOST_UNASKED = 1000  # maximum number of unrequested frames a second; 256 bytes of a method count as one, too
SMALL_PIECE = 1024  # bytes of a piece of a body below which it counts among these, unless it is the last one
_SECOND = 1_000_000_000
_KINDS = frozenset((TYPE_METHOD, TYPE_HEADER, TYPE_BODY, TYPE_HEARTBEAT))

Received = tuple[int, Frame]  # A channel number, and a method that arrived on it


class Incoming:
    """The receiving side of a connection; subclasses handle deliveries and confirms."""

    def __init__(self) -> None:
        self.frame_max = FIRST_FRAME_MAX  # most bytes of a frame, with a grace of eight, as brokers grant
        self._rest = bytearray()  # the beginning of a frame
        self._wanted = 0  # the bytes of that frame, or of its head as long as its size is not known
        self._second = 0
        self._unasked = 0  # unrequested frames of that second
        self._replies: list[bytes] = []

    def feed(self, data: bytes, now: int) -> list[Received]:
        """Process received bytes and return the methods that `handle` has left; `now` is in nanoseconds.

        Raises UnreachableError: they are not AMQP 0-9-1, are more than was negotiated, or are too many.
        """
        rest = self._rest
        if rest:
            if len(rest) + len(data) < self._wanted:
                rest += data
                return []
            data = b"".join((rest, data))
            rest.clear()
        try:
            return self._read(data, now)
        except (struct.error, IndexError, ValueError):  # lengths that lead out of their frame
            raise UnreachableError("the server sent a frame that is not valid AMQP 0-9-1") from None

    def _read(self, data: bytes, now: int) -> list[Received]:
        methods: list[Received] = []
        at, size = 0, len(data)
        if size and data[0] not in _KINDS:
            raise UnreachableError("the server does not speak AMQP 0-9-1")
        while True:
            at = self.skip(data, at, now)
            if size - at < FRAME_OVERHEAD:
                self._wanted = FRAME_OVERHEAD
                break
            kind, channel, length = unpack_frame(data, at)
            if length > self.frame_max:
                raise UnreachableError(
                    f"the server sent a frame of {length} bytes, more than the {self.frame_max} that it may have"
                )
            end = at + length + FRAME_OVERHEAD
            if end > size:
                self._wanted = end - at
                break
            if data[end - 1] != FRAME_END:
                raise UnreachableError("the server sent a frame that is not valid AMQP 0-9-1")
            method = self._frame(kind, data, at, end, now)
            if method is not None:
                methods.append((channel, method))
            at = end
        self._rest += data[at:]
        return methods

    def _frame(self, kind: int, data: bytes, at: int, end: int, now: int) -> Frame | None:
        """Process the frame between `at` and `end`; returns the method that is left to the caller."""
        if kind == TYPE_METHOD:
            index = int.from_bytes(data[at + METHOD_AT : at + FIELDS_AT], "big")
            if self.handle(index, data, at, now):
                return None
            self.count(end - at, now)
            return _decode(data, at, end)
        if kind == TYPE_HEARTBEAT:
            self.count(0, now)
        elif kind in _KINDS:
            self.content(kind, data, at, end, now)
        else:
            raise UnreachableError(f"the server sent a frame of the unknown type {kind}")
        return None

    def expect(self) -> None:
        """Note that a method was sent that is answered: one more frame is not unasked."""
        self._unasked -= 1

    def count(self, length: int, now: int) -> None:
        """Count a frame that may be unasked. Raises UnreachableError if there are too many."""
        second = now // _SECOND
        if second != self._second:
            self._second, self._unasked = second, 0
        self._unasked += 1 + length // 256
        if self._unasked > MOST_UNASKED:
            raise UnreachableError(f"the server sends more than {MOST_UNASKED} frames a second unasked")

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
