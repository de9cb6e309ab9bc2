"""Reads LMDB's data file without LMDB: its root pages, its free pages, and the pages in use.

LMDB maps the file and trusts it: a page that its root page counts but the file does not have ends the process with
SIGBUS. And LMDB never lists its free pages. So this module reads both from the file itself, by `pread`: the two root
("meta") pages, of which the one with the higher transaction counts, and the tree of free pages. Each row of that tree
has a transaction and the pages that it has freed (LMDB 0.9, 64 bits, lmdb.h and mdb.c: MDB_meta, MDB_db, MDB_page,
MDB_node). The pages of the tables are read in the same way, from the tree that has the tables' roots.
"""
# ruff: noqa: PLR2004 - offsets and numbers of the format are named next to them

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from struct import Struct, error as StructError  # noqa: N812 - it is an exception, whatever its name
from typing import NamedTuple, Self

from leveret.storage.errors import DamagedError, StorageError
from leveret.storage.files import open_regular
from leveret.storage.store.redo_log import NAME as REDO_LOG

_MAGIC = 0xBEEFC0DE
_NO_PAGE = (1 << 64) - 1
_PAGE = Struct("=QHHHH")  # number, padding, flags, lower, upper
_DATABASE = "IHHQQQQQ"  # page size, flags, depth, branch, leaf and overflow pages, entries, root
_META = Struct(
    f"=IIQQ{_DATABASE}{_DATABASE}QQ"
)  # magic, version, address, map size, ..., last page, transaction
_TABLE = Struct("=" + _DATABASE)
_NODE = Struct("=HHHH")  # size or page (low, high), flags, size of the key
_NUMBER = Struct("=Q")
_OVERFLOW = Struct("=QHHI")  # as a page; number of pages, including this one
_P_BRANCH, _P_LEAF, _P_OVERFLOW, _P_META = 1, 2, 4, 8
_F_BIGDATA, _F_SUBDATA = 1, 2
_DEPTH = 32  # maximum depth of LMDB's trees


class Meta(NamedTuple):
    """The relevant fields of the root page."""

    page_size: int
    branch_pages: int  # of the tree of free pages, as the next two fields and the root
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int
    main: int  # the root of the tree that has the roots of the tables
    last_page: int
    transaction: int


class DataFile:
    """A data file, open for reading. Use it in a `with` statement.

    Raises OSError if it cannot be opened or read; DamagedError for a file that LMDB did not write.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = open_regular(path)
        try:
            self.meta = self._meta()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    @property
    def descriptor(self) -> int:
        """The descriptor of the file, open for reading."""
        return self._descriptor

    def root_page(self) -> bytes:
        """Return the bytes of the root page; no transaction may have been committed since the file was opened."""
        size = self.meta.page_size
        return os.pread(self._descriptor, size, size * (self.meta.transaction % 2))

    def free_pages(self, after: int = -1) -> Iterator[tuple[int, list[int]]]:
        """Yield the transactions after `after`, ascending, each with the pages that it has freed.

        These pages must not change meanwhile: no commit, or a read transaction that is as old as this root page. Raises
        DamagedError for a tree that is none, or is cut off.
        """
        with self._whole():
            for number, page, leaves in self._tree(self.meta.root):
                for node in leaves:
                    low, high, flags, key_size = _NODE.unpack_from(page, node)
                    if key_size == _NUMBER.size and _NUMBER.unpack_from(page, node + _NODE.size)[0] <= after:
                        continue
                    data = node + _NODE.size + key_size
                    value = page[data : data + (low | high << 16)]
                    if flags & _F_BIGDATA:
                        value = self._overflow(_NUMBER.unpack_from(page, data)[0], low | high << 16)
                    if key_size != _NUMBER.size or len(value) < _NUMBER.size or len(value) % _NUMBER.size:
                        raise DamagedError(f"page {number} of {self._path} is damaged")
                    count, *pages = memoryview(value).cast("Q").tolist()
                    if count > len(pages):
                        raise DamagedError(f"page {number} of {self._path} is damaged")
                    yield _NUMBER.unpack_from(page, node + _NODE.size)[0], pages[:count]

    def used_pages(self) -> Iterator[tuple[int, int]]:
        """Yield first page and length of each run of pages in all trees; a page in two trees is yielded twice.

        The file must not change meanwhile. Raises DamagedError for a tree that is none, or is cut off.
        """
        with self._whole():
            yield from self._take(self.meta.root)
            yield from self._take(self.meta.main)

    def _take(self, root: int) -> Iterator[tuple[int, int]]:
        """Yield the runs of pages of a tree, and of the tables in it."""
        for number, page, leaves in self._tree(root):
            yield number, 1
            for node in leaves:
                low, high, flags, key_size = _NODE.unpack_from(page, node)
                data = node + _NODE.size + key_size
                if flags & _F_BIGDATA:
                    first = _NUMBER.unpack_from(page, data)[0]
                    yield first, self._overflow_pages(first, low | high << 16)
                elif flags & _F_SUBDATA:
                    yield from self._take(_TABLE.unpack_from(page, data)[-1])

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        try:
            yield
        except StructError as error:  # a node outside its page
            raise DamagedError(f"a page of {self._path} is damaged") from error

    def _meta(self) -> Meta:
        first = self._meta_at(0)
        if first is None:
            raise DamagedError(f"{self._path} is not an LMDB data file")
        second = self._meta_at(first.page_size)
        return first if second is None or first.transaction > second.transaction else second

    def _meta_at(self, offset: int) -> Meta | None:
        octets = os.pread(self._descriptor, _PAGE.size + _META.size, offset)
        if len(octets) < _PAGE.size + _META.size:
            return None
        fields = _META.unpack_from(octets, _PAGE.size)
        flags = _PAGE.unpack_from(octets)[2]
        page_size = fields[4]
        if fields[0] != _MAGIC or not flags & _P_META or page_size < 512 or page_size & (page_size - 1):
            return None
        return Meta(page_size, *fields[7:12], *fields[-3:])

    def _page(self, number: int, count: int = 1) -> bytes:
        """Return the bytes of a page and of those that follow it."""
        size = self.meta.page_size
        octets = os.pread(self._descriptor, size * count, size * number)
        if number < 2 or number + count - 1 > self.meta.last_page or len(octets) < size * count:
            raise DamagedError(f"page {number} of {self._path} is missing")
        return octets

    def _tree(self, number: int, depth: int = _DEPTH) -> Iterator[tuple[int, bytes, list[int]]]:
        """Yield the pages of a tree: number, bytes, and the offsets of the nodes of a leaf page."""
        if number == _NO_PAGE and depth == _DEPTH:  # it is empty
            return
        page = self._page(number)
        own, _, flags, lower, _ = _PAGE.unpack_from(page)
        if own != number or not flags & (_P_BRANCH | _P_LEAF) or not depth:
            raise DamagedError(f"page {number} of {self._path} is not part of a tree")
        nodes = list(memoryview(page)[_PAGE.size : min(lower, len(page)) & ~1].cast("H"))
        if not flags & _P_BRANCH:
            yield number, page, nodes
            return
        yield number, page, []
        for node in nodes:
            low, high, top, _ = _NODE.unpack_from(page, node)
            yield from self._tree(low | high << 16 | top << 32, depth - 1)

    def _overflow(self, number: int, octets: int) -> bytes:
        """Return a value that has pages of its own."""
        page = self._page(number, self._overflow_pages(number, octets))
        return page[_PAGE.size : _PAGE.size + octets]

    def _overflow_pages(self, number: int, octets: int) -> int:
        """Return the number of pages of a value; one that replaced a larger value may have that one's pages."""
        own, _, flags, count = _OVERFLOW.unpack_from(self._page(number))
        if own != number or not flags & _P_OVERFLOW or count * self.meta.page_size < _PAGE.size + octets:
            raise DamagedError(f"page {number} of {self._path} is not part of a tree")
        return int(count)


def refuse_cut_off(path: Path) -> None:
    """Check that a data file has all pages that LMDB will read; a file that LMDB itself refuses is not reported.

    The file may lack pages at its end that were allocated and freed in one transaction; these are free.

    Raises DamagedError for one that is shorter, with advice for the administrator, StorageError if it cannot be read.
    """
    try:
        file = DataFile(path)
    except (DamagedError, FileNotFoundError):
        return
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    with file:
        size = file.meta.page_size
        octets = os.fstat(file.descriptor).st_size
        there, needed = octets // size, file.meta.last_page + 1
        if there >= needed:
            return
        missing = needed - there
        with contextlib.suppress(DamagedError):
            missing -= sum(there <= page < needed for _, pages in file.free_pages() for page in pages)
        if missing:
            raise DamagedError(
                f"{path} is truncated: it has {octets} bytes and needs {needed * size}. Nothing was changed. "
                "Restore the data directory from a copy; without one, move it away to start without data"
            )


def refuse_links(data_dir: Path) -> None:
    """Check that the parts of a data directory are in it, as its lock and its permissions assume.

    Raises StorageError for one that is a symbolic link. The data directory itself may be one.
    """
    for path in (data_dir / name for name in ("store", "paged", "blobs")):
        if path.is_symlink():
            raise StorageError(
                f"{path} is a symbolic link, which is not followed: move what it names here, or mount a disk there"
            )


def refuse_lost(data_dir: Path) -> None:
    """Check that a start finds its data, and does not take the remains of lost data for a first start.

    Raises DamagedError if the data file is cut off, or missing or empty where a redo log or bodies are.
    """
    path = data_dir / "store" / "data.mdb"
    refuse_cut_off(path)
    for sign in (data_dir / "blobs", path.with_name(REDO_LOG)):
        if sign.exists() and not (path.exists() and path.stat().st_size):
            raise DamagedError(
                f"{path} is missing or empty, and {sign} shows that there were data. "
                "Restore the data directory from a copy; without one, move it away to start without data"
            )
