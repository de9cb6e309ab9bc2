"""Memory allocators of this process: release of free memory, and memory used by objects (driver: the C library).

Theory. Memory of freed objects stays with the process: in the C library's allocator wherever a live allocation follows
it, and in Python's, for objects up to 512 bytes, as long as anything in the same megabyte is alive. The first returns
pages to the system with `malloc_trim`, which takes about half a millisecond per megabyte; it is called in a thread, and
the event loop waits only if it needs that allocator meanwhile. The second cannot be trimmed. So the kernel's figure of
memory in use may stay far above the memory that objects take; `in_use` returns the latter as far as it can be known:
exactly for the first, and for the second estimated from the number of blocks.

The C library returns a freed block to the system at once if it is large, or at the end of its heap with enough free
memory before it, and the next block of that size costs a page fault for every 4 KiB: more time than to copy it.
`keep_large_blocks` raises both limits for a process of the broker's own; `malloc_trim` returns what is kept.

Without glibc 2.33 or later nothing is released here and nothing is known.
"""

import ctypes
import os
import sys
from typing import Any

KEPT_BLOCK = 2 * 1024 * 1024  # size in bytes from which a freed block is returned to the system at once
KEPT_END = 8 * 1024 * 1024  # free bytes at the end of the heap from which they are returned at once
KEPT_ENTRY, KEPT_ENTRIES = 16 * 1024 * 1024, 64 * 1024 * 1024
"""Both sizes for a replicated log: entries and what is read of them have megabytes, and are copied several times."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_large_blocks(block: int = KEPT_BLOCK, end: int = KEPT_END) -> None:
    """Let the C library keep freed blocks of some megabytes, unless the environment sets its limits.

    From the size `block` in bytes on a freed block is returned to the system at once, and free bytes at the end of the
    heap from `end` on.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    is_set = "MALLOC_TRIM_THRESHOLD_" in os.environ or "MALLOC_MMAP_THRESHOLD_" in os.environ
    if set_option is None or is_set or "_threshold" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    set_option(_MMAP_THRESHOLD, block)
    set_option(_TRIM_THRESHOLD, end)


class _Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
    )]  # fmt: skip


class Allocator:
    """The allocators of this process."""

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
        """Calibrate a block's size as if objects filled the `resident` (private) bytes, as after growth."""
        self._block_octets = max(0, resident - self._large()) / sys.getallocatedblocks()

    def in_use(self, resident: int) -> int:
        """Return the bytes used by objects, at most `resident`; needs `calibrate`. May take some ms: use a thread."""
        if self._info is None:
            return resident
        return min(resident, self._large() + int(self._block_octets * sys.getallocatedblocks()))

    def _large(self) -> int:
        if self._info is None:
            return 0
        info = self._info()
        return int(info.uordblks + info.hblkhd)
