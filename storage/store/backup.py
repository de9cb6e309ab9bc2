"""Copies the data of a broker, which may be running, as of one moment after the copy has begun.

Theory. The data are the durable environment and the files of very large bodies; transient messages that are paged out
do not survive a restart, and are left out. Every confirmed message and every definition is in a committed state of the
environment, so a copy of a later state, and of the files that it refers to, has all that was confirmed before. Pages
are copied as `storage.store.page_copy` describes. A file never changes and its name is never used again, so files can
be copied at any time; the source keeps those that are no longer referred to while a state is open, so that at the end
those which the last state refers to and which are not copied yet are there. Files that it does not refer to are removed
from the copy.

The broker may write faster than the limit of the copy allows: then the limit is raised until the copy catches up, and
if it never does, the last state stays open until it is copied.
"""

import errno
import os
import re
import shutil
from collections.abc import Generator, Sequence
from math import inf
from pathlib import Path
from time import monotonic
from typing import NamedTuple, Protocol

from leveret.storage.errors import DiskFullError, StorageError
from leveret.storage.permissions import DIRECTORY
from leveret.storage.regular_files import open_regular
from leveret.storage.store.flush import sync_directory
from leveret.storage.store.moment import Moment
from leveret.storage.store.pace import Pace
from leveret.storage.store.page_copy import PIECE, Output, PageCopy
from leveret.storage.store.tables import forget_log

STEP_SECONDS = 1.0
"""Time for which a state is kept, if its list of free pages is read in a fraction of it."""
_READING_SHARE = 4
"""Minimum length of a step as a multiple of the time to read that list."""
_WINDOW = 5
"""Steps after which the progress is evaluated."""
_NET_SHARE = 4
"""A copy keeps up if what is left shrinks by at least this fraction (1 / n) of what is copied."""
_RAISES = 8
"""Number of times that the limit is doubled before the last state is kept until it is copied."""
ROOM = 16 * 1024 * 1024
"""Bytes that a backup leaves free on its disk in any case."""

_BODY = re.compile("[0-9a-f]{16}")


class Source(Protocol):
    """The data that are copied."""

    def advance(self) -> Moment:
        """Return a state at least as late as the last one, which is released after this one is open."""

    def release(self) -> None:
        """Release the last state, and let files be removed again. No method but this one is called afterwards."""


class Copied(NamedTuple):
    """Result of a backup."""

    octets: int
    """Bytes that were copied, including those that were copied again."""
    files: int
    """Bodies in files of their own."""


class Stopped:
    """The `Source` of data that nobody uses.

    Args:
        moment: their state.

    """

    def __init__(self, moment: Moment) -> None:
        self._moment = moment

    def advance(self) -> Moment:
        """Return the only state."""
        return self._moment

    def release(self) -> None:
        """Do nothing: the state does not change."""


class Backup:
    """One backup.

    Args:
        data_dir: the data directory.
        target: an existing directory for the copy, without data.
        source: the data in `data_dir`.
        pace: limits the speed and counts the bytes.
        reserve: bytes to leave free on the disk of `target`.

    Attributes:
        total: bytes to copy, as far as known; 0 at first.

    """

    def __init__(self, data_dir: Path, target: Path, source: Source, pace: Pace, reserve: int = 0) -> None:
        self._data_dir = data_dir
        self._target = target
        self._source = source
        self._pace = pace
        self._reserve = max(reserve, ROOM)
        self._raises = 0
        self.total = 0

    def run(self) -> Copied:
        """Copy everything and flush it; what was written stays in `target` if that fails.

        Raises DiskFullError if there is no space for the copy, CancelledError, StorageError for any other error.
        """
        try:
            return self._run()
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise DiskFullError(f"not enough disk space in {self._target.parent}") from error
            raise StorageError(f"cannot copy the data to {self._target.parent}: {error.strerror}") from error

    def _run(self) -> Copied:
        store, blobs = self._target / "store", self._target / "blobs"
        store.mkdir(DIRECTORY)
        blobs.mkdir(DIRECTORY)
        pages = PageCopy(store / "data.mdb", self._pace)
        bodies = BodyCopies(self._data_dir / "blobs", blobs, self._pace)
        try:
            names = bodies.names()
            self.total = bodies.octets(names) + _octets_of(self._data_dir / "store" / "data.mdb")
            self._check_room(self.total)
            while not bodies.copy(names, monotonic() + STEP_SECONDS):
                self._check_room()
            moment = self._source.advance()
            pages.advance(moment)
            moment = self._catch_up(moment, pages, bodies)
            files = bodies.keep(moment.files(bodies.copied))
            moment.check()
            self._source.release()
            pages.finish()
            forget_log(store)
        finally:
            self._source.release()
            bodies.close()
            pages.close()
        for directory in (store, blobs, self._target):
            sync_directory(directory)
        return Copied(self._pace.octets, files)

    def _catch_up(self, moment: Moment, pages: PageCopy, bodies: "BodyCopies") -> Moment:
        """Copy until the copy is complete; returns its state, which is still open."""
        trend = _Trend()
        took = 0.0
        while True:
            until = monotonic() + max(STEP_SECONDS, _READING_SHARE * took)
            if self._raises > _RAISES:
                until = inf
            missing: Sequence[str] = ()
            has_pages = pages.copy(until)
            if has_pages:
                missing = moment.files(bodies.missing())
                if bodies.copy(missing, until):
                    return moment
            left = bodies.octets(missing) if has_pages else pages.left
            if trend.is_behind(left, self._pace.octets, has_pages):
                self._raises += 1
                self._pace.rate *= 2
            self.total = self._pace.octets + left
            self._check_room()
            began = monotonic()
            following = self._source.advance()
            if following is not moment:
                moment = following
                pages.advance(moment)
            took = monotonic() - began

    def _check_room(self, needed: int = 0) -> None:
        free = shutil.disk_usage(self._target).free
        if free < needed + self._reserve:
            where = f"not enough disk space in {self._target.parent}"
            raise DiskFullError(f"{where}: {needed + self._reserve} bytes are needed, {free} are free")


def _octets_of(path: Path) -> int:
    """Return the bytes that a file takes of its disk, or its size if that is less."""
    stat = path.stat()
    return min(stat.st_size, stat.st_blocks * 512)


class _Trend:
    """Tells whether a copy keeps up with the changes of what it copies."""

    def __init__(self) -> None:
        self._steps = 0
        self._kind: bool | None = None
        self._left = self._copied = 0

    def is_behind(self, left: int, copied: int, kind: bool) -> bool:
        """Evaluate a step: the bytes left, of one kind, and those copied so far, of both."""
        self._steps += 1
        if kind is self._kind and self._steps < _WINDOW:
            return False
        is_behind = kind is self._kind and (self._left - left) * _NET_SHARE < copied - self._copied
        self._steps, self._kind, self._left, self._copied = 0, kind, left, copied
        return is_behind


class BodyCopies:
    """The copies of bodies in files of their own.

    Args:
        source: the directory of the files, which need not exist.
        target: that of the copies.
        pace: limits the speed.

    """

    def __init__(self, source: Path, target: Path, pace: Pace) -> None:
        self._source = source
        self._target = target
        self._pace = pace
        self._copied: set[str] = set()
        self._pieces: Generator[None] | None = None
        """The rest of the file that is being copied."""

    @property
    def copied(self) -> list[str]:
        """The names of the files that were copied."""
        return sorted(self._copied)

    def names(self) -> list[str]:
        """Return the names of the files that are there now."""
        if not self._source.is_dir():
            return []
        with os.scandir(self._source) as entries:
            return sorted(entry.name for entry in entries if _BODY.fullmatch(entry.name))

    def missing(self) -> list[str]:
        """Return those that were not copied."""
        return [name for name in self.names() if name not in self._copied]

    def octets(self, names: Sequence[str]) -> int:
        """Return the bytes of those files that are there and not copied."""
        total = 0
        for name in names:
            if name not in self._copied:
                try:
                    total += (self._source / name).stat().st_size
                except FileNotFoundError:
                    continue
                self._pace.breathe()
        return total

    def copy(self, names: Sequence[str], until: float) -> bool:
        """Copy files until that time (monotonic); returns true if all are copied. One that is not there is left out."""
        left = [name for name in names if name not in self._copied]
        while self._pieces is not None or left:
            if self._pieces is None:
                name = left.pop(0)
                if name in self._copied:
                    continue
                self._pieces = self._copy(name)
            for _ in self._pieces:
                if monotonic() >= until:
                    return False
            self._pieces = None
        return True

    def _copy(self, name: str) -> Generator[None]:
        """Copy a file; yields after each piece of it."""
        try:
            descriptor = open_regular(self._source / name)
        except FileNotFoundError:
            return
        try:
            output = Output(self._target / name)
            try:
                offset = 0
                while octets := os.pread(descriptor, PIECE, offset):
                    output.write(octets, offset)
                    offset += len(octets)
                    self._pace.copied(len(octets))
                    yield
                output.finish()
            finally:
                output.close()
        finally:
            os.close(descriptor)
        self._copied.add(name)

    def keep(self, names: Sequence[str]) -> int:
        """Remove the copies of all other files; returns the number of those that stay."""
        for name in self._copied.difference(names):
            (self._target / name).unlink()
        return len(names)

    def close(self) -> None:
        """Close the file that is being copied."""
        if self._pieces is not None:
            self._pieces.close()
