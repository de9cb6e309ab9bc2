"""Memory allocators of this process: release of free memory, and memory used by objects (driver: the C library).

Theory. Memory of freed objects stays with the process: in the C library's allocator wherever a live allocation follows
it, and in Python's, for objects up to 512 bytes, as long as anything in the same megabyte is alive. The first returns
pages to the system with `malloc_trim`, which takes about half a millisecond per megabyte; it is called in a thread, and
the event loop waits only if it needs that allocator meanwhile. The second cannot be trimmed. So the kernel's figure of
memory in use may stay far above the memory that objects take; `in_use` returns the latter as far as it can be known:
exactly for the first, and for the second estimated from the number of blocks.

Without glibc 2.33 or later nothing is released here and nothing is known.
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

    def release_pages(self) -> None:
        """Return free pages to the system. Takes up to half a millisecond per megabyte: call it in a thread."""
        if self._trim is not None:
            self._trim(0)

    def calibrate(self, resident: int) -> None:
        """Calibrate the size of a block, assuming that objects fill the memory in use, as after it grew to its limit.

        Args:
            resident: private memory of this process in bytes.

        """
        self._block_octets = max(0, resident - self._large()) / sys.getallocatedblocks()

    def in_use(self, resident: int) -> int:
        """Return the bytes used by objects, at most `resident`; needs `calibrate`. May take some ms: use a thread."""
        if self._info is None:
            return resident
        return min(resident, self._large() + int(self._block_octets * sys.getallocatedblocks()))

    def _large(self) -> int:
        """Return the bytes allocated from the C library."""
        if self._info is None:
            return 0
        info = self._info()
        return int(info.uordblks + info.hblkhd)
