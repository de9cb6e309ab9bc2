"""A content of many megabytes on its way in, without a step in which all of it is copied.

Joining frames copies everything while nobody else is served, and needs the memory twice. `io.BytesIO` grows in place,
and gives out what it holds without a copy, as it shares its buffer. So frames are written into one as they come, framed
anew in even ones: then a peer's frames of one octet cost no more than others.
"""

from io import BytesIO
from struct import Struct

from leveret.broker.amqp.fastpath import FRAME_OVERHEAD, TYPE_BODY

LARGE = 1024 * 1024
"""Octets of a body from which it is assembled here."""
_STEP = 128 * 1024
_pack_frame = Struct(">BHI").pack


class LargeBody(list[bytes]):
    """The parts of a content whose header has come: the header frame, and whatever is appended.

    It stands where a list of frames stands for smaller contents, and looks like one with the header frame alone.

    Args:
        header: the whole header frame.
        number: the channel's.
        size: octets of the body, as the header declares them.
        frame_limit: octets of the largest frame, at least 4096.

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

    def append(self, frame: bytes) -> None:
        """Take a whole body frame; what is more than was declared is left out, and the caller's to refuse."""
        write = self._buffer.write
        rest = memoryview(frame)[FRAME_OVERHEAD - 1 : -1]
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
        """The content: header frame and body frames. Nothing may be appended afterwards."""
        return self._buffer.getvalue()
