"""Gives the disk back what an LMDB file does not need, while it is in use: by holes where its free pages are.

LMDB never shortens its file. But pages that it lists as free are written before they are read again, so the file system
may forget them ("punch a hole"): the size stays, the disk has the room. Only such pages are taken as LMDB itself would
write over in its next transaction, those freed before the last committed transaction and before the oldest one that
reads; so neither a reader nor the root page before the last, to which LMDB returns if the last is torn, can need them.
A write transaction that changes nothing is open meanwhile: nobody else takes pages.

Where others then fill the disk, a page in a hole cannot be written, and every commit writes pages, one that only
deletes too. So the free pages that LMDB will take first keep their place on the disk (`RESERVE`), and when they have
been used up, holes among those that follow are filled (`keep_reserve`).
"""
# ruff: noqa: PLR2004 - offsets and numbers of the format are named beside them

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
from leveret.storage.store.lmdb_file import DataFile
from leveret.storage.store.tables import EnvironmentTables, unused_octets

RUN = 16
"""Neighbouring pages from which a hole is worth it: many small ones would tear the file to pieces."""
RESERVE = 16 * 1024 * 1024
"""Octets of free pages that keep their place on the disk: deletions need them when it is full."""
_KEEP_SIZE, _PUNCH_HOLE = 1, 1 | 2
"""FALLOC_FL_KEEP_SIZE, and with FALLOC_FL_PUNCH_HOLE: the same on every Linux."""


class Given(NamedTuple):
    """What one step has done."""

    octets: int
    """In holes, those included that were holes already."""
    after: int
    """Where to go on: the last transaction whose pages were seen."""
    more: bool


def give_back(table: EnvironmentTables, after: int = -1, *, seconds: float = 0.01) -> Given:
    """Punch holes for so long, and for one transaction's pages at least. Belongs to the thread that commits.

    Args:
        table: whose file.
        after: where the step before has ended; -1 for the first.
        seconds: how long others may have to wait.

    Raises OSError where the file system has no holes (EOPNOTSUPP); DamagedError for free pages that are in use, or are
    counted otherwise by LMDB, before anything is done.

    """
    ends = monotonic() + seconds
    octets = 0
    path = table.path / "data.mdb"
    if after < 0:  # what the last commit has freed, which may be all there is, can go when another is done
        with contextlib.suppress(lmdb.Error), table.writing() as txn:
            txn.put(b"room", b"", db=table.db["meta"])
    if table.is_unsure:
        return Given(0, after, more=False)
    with table.env.begin(write=True) as txn, DataFile(path) as file:
        try:
            meta = file.meta
            if after < 0:
                _compare(table, txn, file)
            oldest = meta.transaction - table.lag()
            reserve = RESERVE // meta.page_size if after < 0 else 0  # the first step goes beyond it
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                for transaction, pages in file.free_pages(after):
                    if transaction >= oldest:
                        break
                    for first, count in _runs(sorted(pages)[reserve:], RUN):
                        if first < 2 or first + count - 1 > meta.last_page:
                            raise DamagedError(f"page {first} of {path} is free and not there")
                        _fallocate(descriptor, _PUNCH_HOLE, first * meta.page_size, count * meta.page_size)
                        octets += count * meta.page_size
                    after = transaction
                    reserve -= min(reserve, len(pages))
                    if not reserve and monotonic() >= ends:
                        return Given(octets, after, more=True)
            finally:
                os.close(descriptor)
        finally:
            txn.abort()
    return Given(octets, after, more=False)


def keep_reserve(table: EnvironmentTables, kept: set[int], *, seconds: float = 0.01) -> set[int]:
    """Fill holes among the free pages that LMDB takes first. Belongs to the thread that commits.

    Args:
        table: whose file.
        kept: what this has returned before, if nothing was given back since.
        seconds: how long others may have to wait.

    Returns those of the pages that have a place on the disk; what there is no room for stays a hole. Raises OSError if
    the file cannot be read, DamagedError if its free pages cannot.

    """
    path = table.path / "data.mdb"
    stat = path.stat()
    if stat.st_blocks * 512 >= stat.st_size:
        return kept
    ends = monotonic() + seconds
    with table.env.begin(write=True) as txn, DataFile(path) as file:
        try:
            meta = file.meta
            wanted: list[int] = []
            for _, pages in file.free_pages():
                wanted += sorted(pages)[: RESERVE // meta.page_size - len(wanted)]
                if len(wanted) >= RESERVE // meta.page_size:
                    break
            found = kept.intersection(wanted)
            left = sorted(page for page in wanted if page not in found and 2 <= page <= meta.last_page)
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                for first, count in _runs(left, 1):
                    _fallocate(descriptor, _KEEP_SIZE, first * meta.page_size, count * meta.page_size)
                    found.update(range(first, first + count))
                    if monotonic() >= ends:
                        break
            except OSError:  # no room, or a file system that has no holes of ours either
                pass
            finally:
                os.close(descriptor)
        finally:
            txn.abort()
    return found


def _compare(table: EnvironmentTables, txn: Any, file: DataFile) -> None:
    """See that LMDB and we think alike of the file, or leave it alone."""
    meta = file.meta
    free = sum(len(pages) for _, pages in file.free_pages())
    own = meta.branch_pages + meta.leaf_pages + meta.overflow_pages
    info = table.env.info()
    unused = unused_octets(table.env, txn, table.db.values()) // meta.page_size
    if (info["last_txnid"], info["last_pgno"], unused) != (meta.transaction, meta.last_page, free + own):
        raise DamagedError(f"{table.path}: {unused} pages are unused, {free} free and {own} list them")


def _runs(pages: Iterable[int], least: int) -> Iterator[tuple[int, int]]:
    """First pages and lengths of what lies side by side, `least` and more; of pages in their order."""
    for _, run in groupby(enumerate(pages), key=_offset):
        numbers = [page for _, page in run]
        if len(numbers) >= least:
            yield numbers[0], len(numbers)


def _offset(numbered: tuple[int, int]) -> int:
    return numbered[1] - numbered[0]


def _fallocate(descriptor: int, mode: int, start: int, length: int) -> None:
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    while fallocate(descriptor, mode, start, length):
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))
