"""Assembly of contents of many megabytes, without a step that copies all of it.

Joining the frames at the end would block the event loop while everything is copied, and need twice the memory.
`io.BytesIO` grows in place and returns its value without a copy, because it shares its buffer. So frames are written
to one as they arrive, split again into frames of equal size: frames of one octet then cost no more than others.
"""

from io import BytesIO
from struct import Struct

from leveret.broker.amqp.fastpath import FRAME_OVERHEAD, TYPE_BODY

LARGE = 1024 * 1024
"""Size in bytes from which a body is assembled here."""
_STEP = 128 * 1024
_pack_frame = Struct(">BHI").pack


class LargeBody(list[bytes | memoryview]):
    """An incomplete content: the header frame and the body frames appended so far.

    It replaces the list of frames that smaller contents use, and looks like a list with only the header frame.

    Args:
        header: the whole header frame.
        number: the channel number.
        size: body size in octets, as the header declares it.
        frame_limit: size of the largest frame in octets, at least 4096.

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
