"""The data store of a broker whose log is replicated: a batch is logged, then settled, and applied meanwhile (driver).

The committer appends one batch after the other. It hands the bytes of a batch to the log, and settles it once it is
logged: confirms and replies go out. Its messages stay in memory until its entry is applied to the copy of this node,
from which they can be read then. How much may wait for that is limited as what waits for a disk is.
"""

import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from leveret.broker.config.config import StorageConfig
from leveret.broker.persistence.committer import BACKLOG_HIGH, Committer
from leveret.broker.persistence.data_store import DataStore
from leveret.broker.persistence.worker_thread import WorkerThread
from leveret.broker.replication.moves import rows_elsewhere
from leveret.broker.replication.node_driver import NodeDriver
from leveret.storage.errors import DamagedError, DiskFullError
from leveret.storage.journal.batch import Batch, encode_batch
from leveret.storage.queues.backing_queue import Recovered
from leveret.storage.queues.queue_ids import queue_qid
from leveret.storage.store.environment import Written
from leveret.storage.store.metadata_rows import QueueRow, decode
from leveret.storage.store.recovery import recover
from leveret.storage.store.replica import ReplicaEnvironment

NOTHING_MORE = Written([], is_logged=False, applied=0)
"""Result of a batch that the log has: no file goes, and `applied` is called apart."""


class ReplicatedCommitter(Committer):
    """Commits batches through a log: each is settled once it is logged, and can be read once it is applied.

    The next batch is cut, encoded and appended while earlier ones are applied, in another thread. Before a hand-over,
    which waits for all of them, it is also cut and encoded while the last one is on its way; until then what gathers
    meanwhile goes together.
    """

    log: NodeDriver

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._journal.is_logged_first = True
        self._encoder = WorkerThread("leveret-encoder", self._loop, self._host)
        self._is_copy_full = False  # True while an entry of the log cannot be applied for lack of space
        self._applies_late = False  # True once the log need not be applied: another node is about to lead
        self._is_unsent = False  # True from the cut of a batch until the log has it
        self._unlogged: Callable[[], object] | None = None
        """Settles a batch without anything to be logged, once the one before it is."""

    @property
    def _cuts_ahead(self) -> bool:
        journal = self._journal
        if not self._applies_late or self._is_unsent or self.log.is_in_pieces:
            return False
        # Unless somebody waits for it more is moved to go with it: each batch costs a flush.
        return journal.urgent and journal.following is None

    def _write(self, batch: Batch) -> None:
        self._is_unsent = True
        environment: Any = self._environment
        if batch.needs_sync and not (batch.paged or (batch.pages and environment.paged.unfinished)):
            self._encoder.submit(lambda: (encode_batch(batch), None), self._prepared)
        else:
            self._writer.submit(partial(environment.prepare, batch), self._prepared)

    def _prepared(
        self, result: tuple[bytes | None, DiskFullError | None] | None, error: BaseException | None
    ) -> None:
        if error is not None or result is None:
            self._host.storage_failed(error or RuntimeError("a batch without a result"))
            return
        octets, paging_error = result
        self._is_unsent = False
        committed = partial(self._committed, NOTHING_MORE, paging_error)
        if octets is not None:
            self.log.submit(octets, committed, self._applied)
        elif self._journal.following is None:
            committed()
        else:
            self._unlogged = committed

    def _committed(self, written: Written | None, error: BaseException | None) -> None:
        super()._committed(written, error)
        settle, self._unlogged = self._unlogged, None
        if settle is not None:
            settle()

    def _applied(self) -> None:
        backlogged = self.backlogged
        try:
            self._journal.applied()
        except Exception as bug:  # noqa: BLE001 - of ours: what is on disk and what memory thinks of it differ
            self._host.storage_failed(bug)
            return
        self._report_if_cleared(backlogged=backlogged)
        self._host.run_turn()
        self.wake()

    @property
    def is_full(self) -> bool:
        """True if an entry of the log cannot be applied for lack of space."""
        return self._is_copy_full

    def _record_full(self, *, full: bool, msg_id: int = 0) -> None:
        """Do nothing: what is logged is safe, and `note_full` is called for what cannot be applied."""

    def note_full(self, is_full: bool) -> None:
        """Take note that an apply found the disk full, or room again: publishers are blocked meanwhile."""
        if is_full is self._is_copy_full:
            return
        self._is_copy_full = is_full
        self._report_full(is_full)
        if is_full:  # other work waits for the disk than before
            self._host.backlog_cleared()

    def prepare_stop(self) -> None:
        """Page and apply nothing more, and wait for nothing but the log."""
        super().prepare_stop()
        backlogged = self.backlogged
        self._applies_late = True
        self.log.apply_late()
        self._report_if_cleared(backlogged=backlogged)

    def _is_above(self, times: int) -> bool:
        if not self._applies_late:
            return super()._is_above(times)
        journal = self._journal
        waiting = journal.octets + journal.octets_in_flight - journal.octets_unapplied
        return self.is_held or waiting > times * BACKLOG_HIGH

    @property
    def is_preparing(self) -> bool:
        """True while a batch is encoded, or waits to be appended."""
        return self._is_unsent or self.log.is_waiting

    @property
    def is_behind(self) -> bool:
        """True if what is safe waits to be applied, and there is too much of it for memory."""
        return self.log.is_behind

    async def _all_settled(self) -> None:
        """Hand over before anything else: what is not applied here is in the log, for this copy, too."""
        await self.log.hand_over()
        self._is_copy_full = False  # it has nothing that would be lost

    async def stop(self) -> int:
        """Log the journal, hand over, then end the threads; see `Committer.stop`."""
        lost = await super().stop()
        self._encoder.stop()
        return lost

    def abandon(self) -> None:
        """Begin nothing more, as if the process were killed."""
        super().abandon()
        self._encoder.stop()


class ReplicatedDataStore(DataStore):
    """The copy of the node that leads, with the whole log applied; batches go to `log`.

    `epoch` is the number of the leadership; no other leader had it, so all ids begin with it.
    """

    committer_class = ReplicatedCommitter

    def __init__(
        self,
        environment: ReplicaEnvironment,
        config: StorageConfig,
        *,
        ram_limit: int,
        epoch: int,
        log: NodeDriver,
    ) -> None:
        self._log = log
        self._found: dict[int, Recovered] = {}
        self.elsewhere: set[bytes] = set()  # keys of definitions that were moved to another log
        environment.boot = epoch
        # No bodies in files: the copy is one file, and all of it goes through the log.
        config = msgspec.structs.replace(config, blob_threshold=sys.maxsize)
        super().__init__(environment.data_dir, config, ram_limit=ram_limit, environment=environment)

    def scan(self) -> None:
        """Find the messages of all queues, which takes long with many; may run in any thread, before `start`."""
        rows = list(self.environment.rows("defs"))
        self.elsewhere = rows_elsewhere(rows, self._log.node.moved)
        qids = []
        for key, value in rows:
            if key in self.elsewhere:
                continue
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
