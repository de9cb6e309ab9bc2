"""The resident part of the mapped data file: measures it, and releases it to the kernel.

LMDB reads through a map of its file. Every page it has touched, and some around it, count as memory of the process
until the kernel needs them for something else, which on an idle machine is never: after rows are written all over a
large file, the whole file is counted. That has no benefit, as the pages stay in the page cache, and it looks like a
memory leak. So they are released; pages that are needed are mapped again on access.
"""
# ruff: noqa: PLR2004 - offsets and numbers of the format are named next to them

import contextlib
import ctypes
import os
import resource
from pathlib import Path

_DONTNEED = 4  # MADV_DONTNEED, the same on every Linux


def file_octets() -> int:
    """Return the bytes of mapped files counted as memory of this process (the kernel's RssFile); 0 if unknown."""
    try:
        fields = Path("/proc/self/statm").read_bytes().split()
    except OSError:
        return 0
    return int(fields[2]) * resource.getpagesize()


class Mapping:
    """The map of one file, which must be mapped already and stay so."""

    def __init__(self, path: Path) -> None:
        self._spans: list[tuple[int, int]] = []
        self._advise = None
        with contextlib.suppress(OSError, AttributeError, ValueError):
            wanted = os.fsencode(path.resolve())
            for line in Path("/proc/self/maps").read_bytes().splitlines():
                fields = line.split(None, 5)
                if len(fields) == 6 and fields[5] == wanted:
                    start, stop = (int(each, 16) for each in fields[0].split(b"-"))
                    self._spans.append((start, stop - start))
            advise = ctypes.CDLL(None).madvise
            advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
            self._advise = advise

    def give_back(self) -> None:
        """Release the map's pages from the process's memory; it may be in use."""
        if self._advise is not None:
            for start, length in self._spans:
                self._advise(start, length, _DONTNEED)
