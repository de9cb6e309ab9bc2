"""What the allocators of this process keep that no object needs any more, and giving it back (driver: the C library).

Theory. Memory of objects that are gone stays with the process: with the C library's allocator wherever something that
is alive lies behind it, and with Python's, for objects up to 512 octets, as long as anything in the same megabyte is
alive. The first gives pages back when `malloc_trim` asks for it, which takes about half a millisecond for each
megabyte; it is called in a thread, and the loop waits only if it needs that allocator meanwhile. The second cannot be
asked. So the kernel's figure of memory in use may stay far above what objects take; `in_use` tells that instead, as
far as it can be known: exactly for the first, and for the second by the number of blocks.

Without glibc of at least 2.33 nothing is given back here and nothing is known.
"""

import ctypes
import sys
from typing import Any


class _Info(ctypes.Structure):
    """`struct mallinfo2`."""

    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
    )]  # fmt: skip


class Allocator:
    """The allocators of this process."""

    __slots__ = ("_block_octets", "_info", "_trim")

    def __init__(self) -> None:
        library: Any = ctypes.CDLL(None)
        self._trim = getattr(library, "malloc_trim", None)
        self._info = getattr(library, "mallinfo2", None)
        if self._trim is not None:
            self._trim.argtypes = [ctypes.c_size_t]
        if self._info is not None:
            self._info.restype = _Info
        self._block_octets = 0.0

    def give_back(self) -> None:
        """Give free pages back to the system. Takes up to half a millisecond for each megabyte: for a thread."""
        if self._trim is not None:
            self._trim(0)

    def calibrate(self, resident: int) -> None:
        """Take it that objects fill the memory in use now, as they do where it has just grown to its limit.

        Args:
            resident: octets of memory that only this process has.

        """
        self._block_octets = max(0, resident - self._large()) / sys.getallocatedblocks()

    def in_use(self, resident: int) -> int:
        """Octets that objects take, at most `resident`; needs `calibrate`. For a thread: it may take some ms."""
        if self._info is None:
            return resident
        return min(resident, self._large() + int(self._block_octets * sys.getallocatedblocks()))

    def _large(self) -> int:
        """Octets that the C library has given out."""
        if self._info is None:
            return 0
        info = self._info()
        return int(info.uordblks + info.hblkhd)
