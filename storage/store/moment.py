"""One committed state of the durable environment, kept readable page by page while later ones are committed.

LMDB never changes a page that a state has in use: a commit writes only pages that are free, and none that an open read
transaction may need. So a state is its root page, its list of free pages, and all other pages, for as long as a read
transaction of it is open. That is what a backup (`storage.store.backup`) copies.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from struct import Struct
from typing import Any

import lmdb

from leveret.storage.errors import StorageError
from leveret.storage.store.compact import opened, replay
from leveret.storage.store.lmdb_file import DataFile
from leveret.storage.store.tables import EnvironmentTables, unused_octets

_MSG_ID = Struct(">Q")
_CHECKSUM = 4
"""Size in bytes of the row of a body that is in a file."""


class Moment:
    """The state after the last commit. Create and release it while nobody commits, usually in the writer's thread.

    Args:
        path: the data file.
        env: the environment.
        tables: its tables.
        held_open: keeps the environment from being reopened while it is entered.

    Attributes:
        file: the data file as of this state, which only one thread may use.
        root: the bytes of the root page.
        listed: number of pages that are free or belong to the list of free pages, as LMDB counts them.

    Raises OSError if the file cannot be read, StorageError if its root page is not the one that LMDB uses.
    """

    def __init__(
        self,
        path: Path,
        env: Any,
        tables: Mapping[str, Any],
        held_open: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self._tables = tables
        self._held_open = held_open
        self._txn = env.begin(buffers=True)
        try:
            self.file = DataFile(path)
        except BaseException:
            self._txn.abort()
            raise
        try:
            self._check_root(path)
            self.root = self.file.root_page()
            self.listed = unused_octets(env, self._txn, tables.values()) // self.file.meta.page_size
        except BaseException:
            self.close()
            raise

    def _check_root(self, path: Path) -> None:
        if self.file.meta.transaction != self._txn.id():
            raise StorageError(f"the root page of {path} is not the one in use")

    def check(self) -> None:
        """Check that the read transaction is still open; raises StorageError if the file was reopened meanwhile."""
        with self._held_open():
            try:
                self._txn.id()
            except lmdb.Error:
                raise StorageError("the data file was reopened, because its disk is full") from None

    def files(self, names: Sequence[str]) -> list[str]:
        """Return those of some body files that messages of this state refer to. Raises StorageError as `check`."""
        with self._held_open():
            try:
                return [name for name in names if self._refers_to(name)]
            except lmdb.Error:
                raise StorageError("the data file was reopened, because its disk is full") from None

    def _refers_to(self, name: str) -> bool:
        if "bodies" not in self._tables:
            return False
        row = self._txn.get(_MSG_ID.pack(int(name, 16)), db=self._tables["bodies"])
        return row is not None and len(row) == _CHECKSUM

    def release(self) -> None:
        """End the read transaction: from now on the pages may change. May be called twice."""
        with self._held_open():
            self._txn.abort()

    def close(self) -> None:
        """Release the state, and close the file."""
        self.release()
        self.file.close()


def latest(table: EnvironmentTables) -> Moment:
    """Return the last committed state of an environment in use. Called by the committing thread only.

    Raises StorageError while it is unknown which root page is on disk, and what `Moment` raises.
    """
    if table.is_unsure:
        raise StorageError(f"the root page of {table.path} could not be written, because its disk is full")
    try:
        return Moment(table.path / "data.mdb", table.env, table.db, table.held_open)
    except lmdb.Error as error:
        raise StorageError(f"cannot read the data in {table.path}: {error}") from error


@contextlib.contextmanager
def last(data_dir: Path) -> Iterator[Moment]:
    """Open the state of a data directory that is not in use.

    Raises StorageError if the data cannot be read, UnknownFormatError if a later version wrote it.
    """
    replay(data_dir)
    with opened(data_dir) as (env, _, tables):
        moment = Moment(data_dir / "store" / "data.mdb", env, tables)
        with contextlib.closing(moment):
            yield moment
