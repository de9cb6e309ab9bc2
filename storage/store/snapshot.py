"""A snapshot of a data directory: both environments as they are at one moment."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

from leveret.storage import delayed
from leveret.storage.errors import StorageError
from leveret.storage.journal.blocks import LAST_SEQ_ID
from leveret.storage.journal.reads import Loaded, Range, RawBlock
from leveret.storage.store import delayed_rows
from leveret.storage.store.bodies import Bodies
from leveret.storage.store.tables import EnvironmentTables


class FileSnapshot:
    """A `Snapshot` (`storage.queues.peek`): one read transaction per environment, open until `close`.

    While it is open, pages that are freed cannot be reused, so it should not be open for long. It is opened by one
    thread and read by another, but never by two at the same time; any thread may close it at any time. If an
    environment has to be reopened because the disk is full, a snapshot is void, and its reads raise lmdb.Error.

    Args:
        store: the durable environment, and its bodies.
        paged: that of paged transient messages, and its bodies.

    Raises lmdb.Error or StorageError if a transaction cannot be opened now.
    """

    def __init__(
        self, store: tuple[EnvironmentTables, Bodies], paged: tuple[EnvironmentTables, Bodies]
    ) -> None:
        self._opened: list[tuple[EnvironmentTables, Bodies, Any]] = []
        self._lock = Lock()
        """Held for the moments in which a read begins or ends."""
        self._is_read = self._is_closed = False
        try:
            for table, bodies in (store, paged):
                self._opened.append((table, bodies, table.env.begin(buffers=True)))
        except BaseException:
            self.close()
            raise

    def read(self, ranges: Sequence[Range], limit: int) -> Loaded:
        """Read the blocks of ascending ranges of one queue, and the bodies they refer to, as `Environment.read`.

        Raises StorageError if the snapshot is closed.
        """
        with self._in_use():
            return self._read(ranges, limit)

    def _read(self, ranges: Sequence[Range], limit: int) -> Loaded:
        blocks: list[RawBlock] = []
        bodies: dict[int, bytes | str] = {}
        stop = LAST_SEQ_ID
        for number, (table, _, txn) in enumerate(self._opened):
            with table.held_open():
                most = limit if len(ranges) == 1 else 1 << 62
                found, end = table.read(txn, ranges, most, paged=bool(number))
            blocks += found
            stop = min(stop, end)
        for block in blocks:
            table, apart, txn = self._opened[block.paged]
            with table.held_open():
                apart.read_all(block, ranges, stop, bodies, txn)
        return Loaded(blocks, stop, bodies)

    def read_delayed(self, line: int, start: delayed.Due) -> delayed.DelayedRows:
        """Read the next delayed messages of a line, as `Environment.read_delayed`; raises as `read`."""
        with self._in_use():
            table, _, txn = self._opened[0]
            return self._delayed(table, txn, line, start)

    def _delayed(
        self, table: EnvironmentTables, txn: Any, line: int, start: delayed.Due
    ) -> delayed.DelayedRows:
        with table.held_open():
            cursor = txn.cursor(table.db[delayed.TABLE])
            found = delayed_rows.read_rows(
                cursor, line, start, limit=delayed.WINDOW, octets=delayed.WINDOW_OCTETS
            )
            return found._replace(rows=[(due, bytes(value)) for due, value in found.rows])

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Keep the transactions open during a read."""
        with self._lock:
            if self._is_closed:
                raise StorageError("the snapshot is closed: nobody waits for what it has")
            self._is_read = True
        try:
            yield
        finally:
            self._end_read()

    def _end_read(self) -> None:
        with self._lock:
            self._is_read = False
            if self._is_closed:
                self._end()

    def close(self) -> None:
        """End the transactions; during a read, which nobody waits for any more, they end with it. May be repeated."""
        with self._lock:
            self._is_closed = True
            if not self._is_read:
                self._end()

    def _end(self) -> None:
        for _, _, txn in self._opened:
            txn.abort()
        self._opened.clear()
