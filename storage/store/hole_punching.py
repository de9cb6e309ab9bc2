"""Releases free pages of an LMDB file in use to the file system by punching holes.

LMDB never shortens its file. But pages that it lists as free are written before they are read again, so the file system
may discard them ("punch a hole"): the size stays, the disk space is released. Only pages that LMDB itself could
overwrite in its next transaction are taken, those freed before the last committed transaction and before the oldest one
that reads. So neither a reader nor the root page before the last, to which LMDB returns if the last is torn, can need
them. A write transaction that changes nothing is open meanwhile, so that no other one takes pages.

If the disk then fills up, a page in a hole cannot be written, and every commit writes pages, even one that only
deletes. So the free pages that LMDB will take first keep their disk blocks (`RESERVE`), and when they have been used
up, holes among those that follow are filled (`keep_reserve`).
"""
# ruff: noqa: PLR2004 - offsets and numbers of the format are named next to them

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterable, Iterator
from itertools import groupby
from time import monotonic
from typing import Any, NamedTuple

import lmdb

from leveret.storage.errors import DamagedError
from leveret.storage.store.lmdb_environment import LmdbEnvironment, unused_octets
from leveret.storage.store.lmdb_file import DataFile

RUN = 16  # minimum run of neighbouring pages for a hole: many small holes would fragment the file
RESERVE = 16 * 1024 * 1024  # bytes of free pages with disk blocks: deletions on a full disk need them
_KEEP_SIZE, _PUNCH_HOLE = 1, 1 | 2  # FALLOC_FL_KEEP_SIZE, and with FALLOC_FL_PUNCH_HOLE, on every Linux


class Given(NamedTuple):
    """Result of one step."""

    octets: int  # bytes in holes, including those that were holes already
    after: int  # the last transaction whose pages were visited, for the next step
    more: bool


def give_back(table: LmdbEnvironment, after: int = -1, *, seconds: float = 0.01) -> Given:
    """Punch holes for `seconds`, and for one transaction's pages at least. Called by the committing thread only.

    `after` is the end of the previous step; -1 for the first.

    Raises OSError if the file system does not support holes (EOPNOTSUPP); DamagedError for free pages that are in use,
    or that LMDB counts differently, before anything is changed; UnknownStateError as `LmdbEnvironment.writing`.
    """
    ends = monotonic() + seconds
    octets = 0
    if after < 0:  # pages freed by the last commit, possibly all there are, can be released after another one
        with contextlib.suppress(lmdb.Error), table.writing() as txn:
            txn.put(b"room", b"", db=table.db["meta"])
    if table.is_unsure:
        return Given(0, after, more=False)
    with _held(table) as (txn, file, descriptor):
        meta = file.meta
        if after < 0:
            _compare(table, txn, file)
        oldest = meta.transaction - table.lag()
        reserve = RESERVE // meta.page_size if after < 0 else 0  # the first step goes beyond it
        for transaction, pages in file.free_pages(after):
            if transaction >= oldest:
                break
            for first, count in _runs(sorted(pages)[reserve:], RUN):
                if first < 2 or first + count - 1 > meta.last_page:
                    raise DamagedError(
                        f"page {first} of {table.path / 'data.mdb'} is free and outside the file"
                    )
                _fallocate(descriptor, _PUNCH_HOLE, first * meta.page_size, count * meta.page_size)
                octets += count * meta.page_size
            after = transaction
            reserve -= min(reserve, len(pages))
            if not reserve and monotonic() >= ends:
                return Given(octets, after, more=True)
    return Given(octets, after, more=False)


def keep_reserve(table: LmdbEnvironment, kept: set[int], *, seconds: float = 0.01) -> set[int]:
    """Fill holes among the free pages that LMDB takes first, for `seconds`. Called by the committing thread only.

    `kept` is the previous result, if no pages were released since.

    Returns the pages that have disk blocks; those without space stay holes. Raises OSError if the file cannot be read,
    DamagedError if its free pages cannot.
    """
    stat = (table.path / "data.mdb").stat()
    if stat.st_blocks * 512 >= stat.st_size:
        return kept
    ends = monotonic() + seconds
    with _held(table) as (_, file, descriptor):
        meta = file.meta
        wanted: list[int] = []
        for _, pages in file.free_pages():
            wanted += sorted(pages)[: RESERVE // meta.page_size - len(wanted)]
            if len(wanted) >= RESERVE // meta.page_size:
                break
        found = kept.intersection(wanted)
        left = sorted(page for page in wanted if page not in found and 2 <= page <= meta.last_page)
        with contextlib.suppress(OSError):  # no space, or a file system without support for holes
            for first, count in _runs(left, 1):
                _fallocate(descriptor, _KEEP_SIZE, first * meta.page_size, count * meta.page_size)
                found.update(range(first, first + count))
                if monotonic() >= ends:
                    break
    return found


@contextlib.contextmanager
def _held(table: LmdbEnvironment) -> Iterator[tuple[Any, DataFile, int]]:
    """Open a write transaction that changes nothing, and the file, for its format and for changes of its holes."""
    path = table.path / "data.mdb"
    with table.env.begin(write=True) as txn, DataFile(path) as file:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            yield txn, file, descriptor
        finally:
            os.close(descriptor)
            txn.abort()


def _compare(table: LmdbEnvironment, txn: Any, file: DataFile) -> None:
    """Check that LMDB and this module agree on the file."""
    meta = file.meta
    free = sum(len(pages) for _, pages in file.free_pages())
    own = meta.branch_pages + meta.leaf_pages + meta.overflow_pages
    info = table.env.info()
    unused = unused_octets(table.env, txn, table.db.values()) // meta.page_size
    if (info["last_txnid"], info["last_pgno"], unused) != (meta.transaction, meta.last_page, free + own):
        raise DamagedError(f"{table.path}: {unused} pages are unused, {free} free and {own} list them")


def _runs(pages: Iterable[int], least: int) -> Iterator[tuple[int, int]]:
    """Yield first page and length of each run of at least `least` neighbouring pages; the pages must be ascending."""
    for _, run in groupby(enumerate(pages), key=_offset):
        numbers = [page for _, page in run]
        if len(numbers) >= least:
            yield numbers[0], len(numbers)


def _offset(numbered: tuple[int, int]) -> int:
    return numbered[1] - numbered[0]


def _fallocate(descriptor: int, mode: int, start: int, length: int) -> None:
    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    except AttributeError:  # of Linux only
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP)) from None
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    while fallocate(descriptor, mode, start, length):
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))
