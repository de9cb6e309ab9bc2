"""The data store of a broker whose log is replicated: a batch is logged, then applied, then settled (driver).

The committer has one batch under way. It hands its bytes to the log, and settles it once its entry was applied to the
copy of this node. So what is confirmed is in the log and can be read back, and no batch depends on one that is not.
"""

import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from leveret.broker.config.config import StorageConfig
from leveret.broker.persistence.committer import Committer
from leveret.broker.persistence.data_store import DataStore
from leveret.storage.errors import DamagedError, DiskFullError
from leveret.storage.journal.batch import Batch
from leveret.storage.queues.queue_ids import queue_qid
from leveret.storage.store.metadata_rows import QueueRow, decode
from leveret.storage.store.recovery import Recovered, recover
from leveret.storage.store.replica import ReplicaEnvironment

if TYPE_CHECKING:
    from pathlib import Path

    from leveret.storage.store.environment import Environment

Job = Callable[[], Any]
JobDone = Callable[[Any, BaseException | None], None]


class Log(Protocol):
    """The replicated log, as the node that leads uses it."""

    def submit(self, octets: bytes, applied: Callable[[], object]) -> None:
        """Append a batch, apply it, and call back. Nothing happens any more if the node leads no more."""

    def use_writer(self, submit: Callable[[Job, JobDone], None]) -> None:
        """Apply in this thread from now on: the one that writes to the copy."""

    def on_full(self, report: Callable[[bool], object]) -> None:
        """Call `report` with true when an apply finds the disk full, with false when there is room again."""


class ReplicatedCommitter(Committer):
    """Commits batches through a log."""

    log: Log

    def _write(self, batch: Batch) -> None:
        environment: Any = self._environment
        self._writer.submit(partial(environment.prepare, batch), self._prepared)

    def _prepared(
        self, result: tuple[bytes | None, DiskFullError | None] | None, error: BaseException | None
    ) -> None:
        if error is not None or result is None:
            self._host.storage_failed(error or RuntimeError("a batch without a result"))
            return
        octets, paging_error = result
        if octets is None:
            self._committed([], paging_error)
        else:
            self.log.submit(octets, partial(self._committed, [], paging_error))

    def note_full(self, is_full: bool) -> None:
        """Take note that an apply found the disk full, or room again: publishers are blocked meanwhile."""
        self._record_full(full=is_full)


class ReplicatedDataStore(DataStore):
    """The copy of the node that leads.

    Args:
        environment: the copy, with the whole log applied.
        config: settings.
        ram_limit: as for `DataStore`.
        epoch: number of the leadership; no other leader had it, so all ids begin with it.
        log: where batches go.

    """

    committer_class = ReplicatedCommitter

    def __init__(
        self, environment: ReplicaEnvironment, config: StorageConfig, *, ram_limit: int, epoch: int, log: Log
    ) -> None:
        self._copy = environment
        self._log = log
        self._found: dict[int, Recovered] = {}
        environment.boot = epoch
        self.environment_class = self._the_copy
        # No bodies in files: the copy is one file, and all of it goes through the log.
        config = msgspec.structs.replace(config, blob_threshold=sys.maxsize)
        super().__init__(environment.data_dir, config, ram_limit=ram_limit)

    def _the_copy(self, _data_dir: "Path", *, sync: bool) -> "Environment":  # noqa: ARG002 - of the class
        return self._copy

    def scan(self) -> None:
        """Find the messages of all queues, which takes long with many; may run in any thread, before `start`."""
        qids = []
        for key, value in self.environment.rows("defs"):
            try:
                row = decode(key, value)
            except DamagedError:
                continue  # the start reports it
            if isinstance(row, QueueRow):
                qids.append(row.id)
        self._found = recover(self.environment, qids)

    def start(self, *args: Any, **options: Any) -> None:
        """Start the threads; arguments as for `DataStore.start`."""
        super().start(*args, **options)
        commits: Any = self.commits
        commits.log = self._log
        self._log.use_writer(commits.submit)
        self._log.on_full(commits.note_full)

    def _find(self, qids: Iterable[int]) -> dict[int, Recovered]:
        known = set(qids)
        return {qid: found for qid, found in self._found.items() if queue_qid(qid) in known}
