"""Copies the pages of a data file that is in use, and keeps up with its commits.

Theory. All pages that one committed state uses are copied in steps, each under a read transaction of the latest state
(`storage.store.moment`). The next one is opened before the last one is released, so a page that both states use has not
changed between them, and its copy is still good. Only pages that the new state uses and the last one did not have to be
copied (again). Which pages a state uses follows from its list of free pages. The copy is complete when it has all pages
of one state; the root page is written last, so an incomplete copy is not an LMDB file.

So no read transaction is open for longer than a step, and the broker can reuse what it frees, except for what it frees
during about two steps.
"""

import os
from pathlib import Path
from struct import Struct
from time import monotonic

from leveret.storage.errors import DamagedError
from leveret.storage.permissions import FILE
from leveret.storage.store.flush import sync_data, write_at
from leveret.storage.store.moment import Moment
from leveret.storage.store.pace import Pace

PIECE = 1024 * 1024
"""Bytes that are read, and written, at once."""
FLUSHED = 4 * 1024 * 1024
"""Bytes of a file that are flushed together: a commit waits for data that the file system has to write before its
own."""
_ROOTS = 2
"""Pages at the beginning of the file that are no part of its trees."""
_MERGED = 65536
"""Entries of a map that are computed at once."""
_NUMBER = Struct("=Q")
_TRANSACTION = 16 + 128
"""Offset of a root page's transaction."""


class Output:
    """A new file, written in any order, whose contents are flushed as they grow.

    Args:
        path: the file; it must not exist.

    Raises OSError, as do all methods.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE)
        self._unflushed = 0

    def write(self, octets: memoryview | bytes, offset: int) -> None:
        """Write bytes at an offset."""
        write_at(self._descriptor, octets, offset)
        self._unflushed += len(octets)
        if self._unflushed >= FLUSHED:
            self.flush()

    def flush(self) -> None:
        """Flush what was written, and give the memory that caches it back."""
        sync_data(self._descriptor)
        self._unflushed = 0
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def resize(self, octets: int) -> None:
        """Set the size of the file in bytes; what was never written takes no space."""
        os.ftruncate(self._descriptor, octets)

    def finish(self) -> None:
        """Flush everything, with the size."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class PageCopy:
    """The copy of one data file.

    Args:
        target: the new file.
        pace: limits the speed.

    Attributes:
        passes: how often the end of the file was reached with pages left before it.

    Raises OSError, as do all methods; the file is closed by `close`.
    """

    def __init__(self, target: Path, pace: Pace) -> None:
        self._output = Output(target)
        self._pace = pace
        self._buffer = memoryview(bytearray(PIECE))
        self._moment: Moment
        self._used = bytearray()
        """For each page of the state 1 if the state uses it, else 0."""
        self._wanted = bytearray()
        """For each page 1 if it is used and not copied yet."""
        self._at = 0
        """The page before which nothing is wanted in this pass."""
        self.passes = 0

    @property
    def left(self) -> int:
        """The bytes that are not copied yet."""
        return self._wanted.count(1) * self._moment.file.meta.page_size if self._wanted else 0

    def advance(self, moment: Moment) -> None:
        """Go on with a later state. The last one must not be released before the new one is opened.

        Raises DamagedError if the list of free pages is wrong, CancelledError.
        """
        used = self._pages_of(moment)
        wanted = bytearray()
        for start in range(0, len(used), _MERGED):
            stop = start + _MERGED
            now, before, missing = (
                int.from_bytes(each[start:stop].ljust(_MERGED, b"\0"))
                for each in (used, self._used, self._wanted)
            )
            merged = now & ~(before & ~missing)
            wanted += merged.to_bytes(_MERGED)
            self._pace.breathe()
        del wanted[len(used) :]
        self._moment, self._used, self._wanted = moment, used, wanted

    def _pages_of(self, moment: Moment) -> bytearray:
        """Return the map of the pages that a state uses, with an entry for each."""
        meta = moment.file.meta
        used = bytearray(b"\1") * (meta.last_page + 1)
        used[:_ROOTS] = bytes(_ROOTS)
        free = 0
        for _, pages in moment.file.free_pages():
            free += len(pages)
            for page in pages:
                if not _ROOTS <= page <= meta.last_page:
                    raise DamagedError(f"page {page} is free and outside the data file")
                used[page] = 0
            self._pace.breathe()
        own = meta.branch_pages + meta.leaf_pages + meta.overflow_pages
        if free + own != moment.listed:
            text = f"{moment.listed} pages of the data file are unused, {free} free and {own} list them"
            raise DamagedError(text)
        return used

    def copy(self, until: float) -> bool:
        """Copy pages until that time (monotonic); returns true if none is left.

        Raises DamagedError if the file has no such page, CancelledError.
        """
        size = self._moment.file.meta.page_size
        while (first := self._next()) >= 0:
            stop = self._wanted.find(0, first, first + PIECE // size)
            count = (stop if stop >= 0 else min(first + PIECE // size, len(self._wanted))) - first
            self._copy(first * size, count * size)
            self._wanted[first : first + count] = bytes(count)
            self._at = first + count
            self._pace.copied(count * size)
            if monotonic() >= until:
                return not self._wanted.count(1)
        return True

    def _next(self) -> int:
        """Return the next page to copy, -1 if none is left."""
        found = self._wanted.find(1, self._at)
        if found < 0 and self._at:
            found = self._wanted.find(1)
            self.passes += found >= 0
        return found

    def _copy(self, offset: int, octets: int) -> None:
        rest = self._buffer[:octets]
        while rest:
            read = os.preadv(self._moment.file.descriptor, [rest], offset + octets - len(rest))
            if not read:
                raise DamagedError("the data file is truncated")
            rest = rest[read:]
        self._output.write(self._buffer[:octets], offset)

    def finish(self) -> None:
        """Flush all pages, then write the root page and flush it: the file is whole afterwards."""
        meta = self._moment.file.meta
        self._output.resize((meta.last_page + 1) * meta.page_size)
        self._output.finish()
        # LMDB uses the one with the higher transaction. The other is the same, of the transaction before.
        other = bytearray(self._moment.root)
        _NUMBER.pack_into(other, 0, 1 - meta.transaction % 2)
        _NUMBER.pack_into(other, _TRANSACTION, max(0, meta.transaction - 1))
        for root in (other, self._moment.root):
            self._output.write(memoryview(root), _NUMBER.unpack_from(root)[0] * meta.page_size)
        self._output.finish()

    def close(self) -> None:
        """Close the file, whole or not."""
        self._output.close()
