"""Memory of this process: cyclic garbage collection, and the allocators (driver: the C library).

Theory. A garbage collection blocks the event loop. The objects that are created often have no reference cycles, or the
cycles are broken when the objects end, so a collection finds next to nothing and costs 0.03 to 0.25 us for each object
it examines: 0.1 to 0.2 s for a million messages. Young objects are mostly messages in transit: each is examined once,
in a collection of those that are new since the last, and these are few because they are collected often. While there
are few objects, all of them are collected from time to time, which also releases the interpreter's free lists; rather
when nothing else is to be done. With a large backlog that would block all clients for long: then only new objects are
examined (docs/adr/0022-slices.md).

Memory of freed objects stays with the process: in the C library's allocator wherever a live allocation follows
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
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

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


# A collection of new objects examines 2,500 (0.3 to 0.5 ms), or those created in a part of a tick if the broker uses
# much memory. With 20,000 they are no longer in the processor's cache: 5.8 to 7.9 % of the time of paper-15q, not 4.5
# to 5. The other numbers keep the interpreter from ever starting one of older objects by itself.
THRESHOLDS: Final = (2_500, 2**31 - 1, 2**31 - 1)
NEW, ALL = 0, 2  # the generations of the interpreter that are collected
FEW_BLOCKS = 300_000  # blocks beyond those at the start with which a full collection takes 10 to 20 ms
VERY_FEW_BLOCKS = 30_000  # those up to which it takes at most 2 ms
FULL_SECONDS = 5.0  # seconds between two full collections while there are few objects
BUSY_SECONDS = 60.0  # those while there are more than very few, and clients would have to wait
BUSY_READS = 20  # reads from sockets since the last tick beyond which clients would have to wait
COLLECTIONS = 8  # of new objects in a tick if much memory is used; busy clients cause one anyway
LOADED_MOST = 200_000  # maximum number of blocks that count as code loaded at once
MUCH_MEMORY = 64 * 1024 * 1024
"""Memory in use, in bytes, from which new objects are collected `COLLECTIONS` times a tick.

By itself the interpreter does so when allocations exceed deallocations by the threshold; with a backlog that is
consumed as fast as it grows, that may be after hundreds of thousands of objects.
"""


class Collector:
    """Decides when garbage is collected; must be created before there are messages."""

    def __init__(self) -> None:
        self._before = sys.getallocatedblocks()
        self._full_at: float | None = None
        self._count_at = 0.0  # time from which blocks are counted again: beside a million messages, 60 us
        self._loaded: list[int] = []  # blocks of code that was loaded and is not excluded yet
        self._reads = 0
        self._runs = False
        self.is_loaded = False  # True if `collect_new` must be called, for `COLLECTIONS` in a tick

    def start(self) -> None:
        """Take over from the interpreter's collector, and exclude the objects that exist now."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        gc.enable()
        self._runs = True

    def stop(self) -> None:
        """Collect nothing any more: what a broker that stops has in memory ends with it."""
        self._runs = False
        gc.disable()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Exclude the code that is imported in the block from later collections, in any thread.

        What serves HTTP has 100,000 blocks, and a full collection of it takes 15 ms. What else is allocated meanwhile
        counts as excluded, too, up to `LOADED_MOST`.
        """
        before = sys.getallocatedblocks()
        yield
        self._loaded.append(max(0, min(sys.getallocatedblocks() - before, LOADED_MOST)))

    def collect_due(self, now: float, used: int, reads: int) -> None:
        """Run the collection that is due, if any; must be called in each tick.

        `now` is seconds of a monotonic clock, `used` the memory in use in bytes, `reads` the reads from sockets so far.
        """
        if not self._runs:
            return
        while self._loaded:  # imports leave no garbage, so nothing is collected before
            self._before += self._loaded.pop()
            gc.freeze()
        is_busy = reads - self._reads > BUSY_READS
        self._reads = reads
        self.is_loaded = used > MUCH_MEMORY
        since = FULL_SECONDS if self._full_at is None else now - self._full_at
        if since >= FULL_SECONDS and now >= self._count_at and self._may_collect_all(now, since, is_busy):
            self._full_at = now
            gc.collect(ALL)
        elif self.is_loaded or is_busy:
            gc.collect(NEW)

    def _may_collect_all(self, now: float, since: float, is_busy: bool) -> bool:
        """Return whether all objects are few enough to be examined, `since` seconds after the last time."""
        blocks = sys.getallocatedblocks() - self._before
        if blocks >= FEW_BLOCKS:
            self._count_at = now + FULL_SECONDS
        return blocks < VERY_FEW_BLOCKS or (blocks < FEW_BLOCKS and (not is_busy or since >= BUSY_SECONDS))

    def collect_new(self) -> None:
        """Collect the objects that are new since the last collection."""
        gc.collect(NEW)
