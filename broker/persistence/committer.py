"""The committer: writes the journal to disk (driver).

One thread, the writer, owns every write transaction. It takes jobs from a queue and reports results to the event loop,
which alone accesses the journal and the queues. An entry of the redo log is written without it where that is possible
(`async_writes`); meanwhile it has nothing to do.

Time of commits: at once when none is in flight, so that an idle broker confirms after one flush; during a commit the
next batch accumulates. Under load commits are spaced by `MIN_GAP`: each costs processor time regardless of its size,
and a message that is consumed meanwhile need not be written at all. They are further apart where many sockets are
busy and confirms take long anyway (`Committer._gap`). With such an interval, or a larger configured one, an idle broker
still commits earlier (RabbitMQ 3.6: every 200 ms, or when a queue is idle). Work that no client waits for (deletions,
messages published without confirms) is delayed up to `LAZY_SECONDS`. Where the last batch was acked while it was
written, ids wait for the acks of their messages, and are written alone (`Committer._ack_wait`).
"""

import asyncio
import errno
import logging
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic_ns
from typing import Any

from leveret.broker.counters.histogram import Latency
from leveret.broker.counters.totals import Sizes
from leveret.broker.persistence.async_writes import REFUSED, AsyncWrites
from leveret.broker.persistence.worker_thread import Done as JobDone, Job, WorkerThread
from leveret.broker.scheduling.loop import Loop
from leveret.broker.scheduling.time_source import TimerHandle, TimeSource
from leveret.storage.errors import NO_SPACE, DiskFullError, Done, UnknownStateError
from leveret.storage.journal.batch import Batch
from leveret.storage.journal.journal import Journal
from leveret.storage.message import Persistent
from leveret.storage.store.environment import Environment, Written
from leveret.storage.store.redo_log import LogEntry

log = logging.getLogger("leveret.storage")

MIN_GAP = 0.002  # minimum time between the starts of two commits under load
WAITS = 6
"""Waits of confirms for others (`broker.counters.confirm_latency`) between the starts of two commits under load:
twice the mean latency of confirms."""
MOST_GAP = 0.2  # maximum of that time; RabbitMQ 3.6 flushed every 200 ms
MOST_ACK_WAIT = 0.01  # maximum seconds that ids wait for the acks of their messages
BUSY_OPERATIONS = 16  # operations in a batch from which the broker counts as loaded
IDLE_ROUNDS = 2  # iterations of the loop without a turn after which it is idle: input comes one later
LAZY_SECONDS = 0.1
SWEEP_SECONDS = 0.01  # delay of a commit that only continues the deletion of messages
LAZY_OCTETS = 1024 * 1024  # bytes above which a commit is not delayed
PAGE_OCTETS = 1024 * 1024  # bytes of transient messages paged by one commit: confirms wait for the whole
LAZY_PAGE_OCTETS = 256 * 1024
LAZY_PAGES = 64
"""Bytes and number of transient messages above which their paging is not delayed: begin and end of a commit are steps
of the event loop, of half a millisecond each for 1,000 messages. Where more is paged, more waits for each commit."""
RETRY_SECONDS = 1.0  # delay after a commit that found the disk full
NEVER_SECONDS = 24 * 3600.0  # delay of what a broker that ends need not do
BACKLOG_HIGH = 8 * 1024 * 1024  # bytes waiting for the disk from which publishers are not read
LIGHT_FACTOR = 2  # factor on these limits for light publishers, which should not wait for others
MAX_RECORDS = 32768  # maximum number of persistent copies waiting for the disk, as in RabbitMQ's journal
FILES_HIGH = 64 * 1024 * 1024
"""Bytes of bodies waiting for files of their own from which publishers are not read; `LIGHT_FACTOR` applies."""
FILES_AT_ONCE = 16  # bodies whose files are written or removed at once: each takes a file descriptor or two
MOST_LOGGED_OCTETS = 128 * 1024  # bytes of the largest entry of the redo log written without the writer
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


class FileRemovals:
    """Removes files of bodies that nothing refers to or a backup needs, in threads; used in the event loop only."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, threads: Executor, path_of: Callable[[int], Path]
    ) -> None:
        self._loop = loop
        self._threads = threads
        self._path_of = path_of
        self._held: list[int] | None = None  # files that wait for the end of a backup's step; None for none
        self.pending: set[asyncio.Future[None]] = set()  # removals that are under way

    def remove(self, msg_id: int) -> None:
        """Remove the file of a body, now or after the backup that may need it."""
        if self._held is not None:
            self._held.append(msg_id)
            return
        removal = self._loop.run_in_executor(self._threads, _remove, self._path_of(msg_id))
        self.pending.add(removal)
        removal.add_done_callback(self.pending.discard)

    @property
    def is_holding(self) -> bool:
        """True while files are held."""
        return self._held is not None

    def hold(self) -> None:
        """Remove the files that were held so far, and hold those that follow."""
        self.resume()
        self._held = []

    def resume(self) -> None:
        """Remove all files again, at once; those that were held, too."""
        held, self._held = self._held or (), None
        for msg_id in held:
            self.remove(msg_id)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("cannot remove %s: %s", path, error.strerror)


class Committer:
    """Commits the journal's batches."""

    def __init__(
        self,
        environment: Environment,  # receives the batches
        journal: Journal,  # provides the batches
        host: Loop,  # notified of the results
        loop: asyncio.AbstractEventLoop,
        # called with true when a commit, or a file, finds the disk full, and with false when all have space
        report_full: Callable[[bool], object],
        # the time of the next try after the disk was full; None for the real time
        time_source: TimeSource | None = None,
        *,
        # maximum number (at least 1) of persistent copies waiting for a commit: when it is reached a commit starts at
        # once, and publishers are not read until it is done (`queue_index_max_journal_entries`)
        max_records: int = MAX_RECORDS,
        # seconds between two commits under load. A value above `MIN_GAP` is cut short when the broker is idle
        min_gap: float = MIN_GAP,
    ) -> None:
        self._environment = environment
        self._journal = journal
        self._host = host
        self._loop = loop
        self._report_full = report_full
        if time_source is None:
            time_source = TimeSource()
            time_source.attach(loop)
        self._time_source = time_source
        self._max_records = max_records
        self._min_gap = min_gap
        self._writer = WorkerThread("leveret-writer", loop, host)
        self._log_writes = (  # writes entries of the redo log without the writer, where that is possible
            None if environment.store.redo is None else AsyncWrites.open(loop, MOST_LOGGED_OCTETS)
        )
        self._is_logging = False  # True while it writes one: the writer has no job then
        self._jobs_behind: list[tuple[Job, JobDone]] = []  # jobs for the writer that wait for that
        self._timer: TimerHandle | None = None
        self._due = 0.0
        self._started = 0.0
        self._began = 0
        self._busy = False
        self._ack_wait = 0.0  # seconds that ids wait for the acks of their messages; 0 if that would not pay
        self._early = self._in_vain = 0  # counters of the journal at the last cut
        self._is_watching = False  # True while the iterations of the loop are checked for idleness
        self._had_turn = False  # True if there was a turn since the last check
        self._idle_rounds = 0
        self._full = False
        self._lacks_page_room = False  # True from when transient messages found no space until all are paged
        self._page_due = 0.0  # earliest time of the next paging
        self.is_held = False  # True while a commit, or a file, waits for deferred queues
        self._stopping = False
        self.is_ended = False  # True once its threads have ended
        self._last_try = True  # True if a full disk is retried once more at shutdown
        self._stopped: asyncio.Event | None = None
        self._files: dict[int, asyncio.Task[None]] = {}  # tasks writing files, by msg_id
        self._no_room: set[int] = set()  # files for which there was no space at the last try
        self._retries: set[asyncio.Future[None]] = set()  # wait for the next try to write a file
        self._file_threads = ThreadPoolExecutor(FILES_AT_ONCE, "leveret-files")
        self.removals = FileRemovals(loop, self._file_threads, environment.bodies.path)
        self._lacks_descriptors = False  # True if the last file had to wait for a file descriptor
        # counters
        self.slowest = 0.0  # duration of the slowest commit in seconds
        self.duration = Latency()  # durations of commits, from the cut to the end of the callback in the loop
        self.sizes = Sizes()  # sizes of commits in bytes
        self.files = 0  # number of files written

    # -- when -------------------------------------------------------------------------------------------------------

    def wake(self, *, is_alone: bool = False) -> None:
        """Schedule a commit of the journal, or begin it. Called at the end of each turn.

        `is_alone` is true if no other client is active than the one whose read has ended: no client would add to a
        commit that begins in the next step.
        """
        if len(self._journal.files) > len(self._files) and self._is_whole():
            self._write_files()
        if self.is_held and not self._host.turn.is_split:
            self._cut_at_once()  # otherwise a busy queue may defer work again in the next step
            self._set_timer()
            self.is_held = False
            self._host.backlog_cleared()  # of publishers over another limit, each finds out at its next read
        elif not (is_alone and self._journal.urgent and self._cut_for_one()):
            self._set_timer()

    def _cut_for_one(self) -> bool:
        """Start a commit in this step if the only active client waits for a small one; returns whether it began."""
        journal = self._journal
        if journal.in_flight is not None or self._full or self._busy:
            return False
        return journal.is_small(BUSY_OPERATIONS) and self._is_whole() and self._cut_at_once()

    def _cut_at_once(self) -> bool:
        """Start a commit in this step, unless there is nothing to commit, or the journal is not consistent."""
        journal = self._journal
        if journal.in_flight is not None or self._full or not journal.has_work:
            return False
        if any(queue.has_input for queue in self._host.turn.queues):
            return False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._cut()
        return True

    def _is_whole(self) -> bool:
        """Return whether the journal is consistent; if not, the commit is held until it is."""
        # A message with all its copies, a transaction, and a dead letter with the removal of its original are
        # committed atomically, and a body's reference count is determined when it is written. So nothing is committed
        # while queues are deferred. Input that could defer more of them waits meanwhile, or the commit might never
        # start.
        if self._host.turn.is_split:
            self.is_held = True
            return False
        return True

    def _set_timer(self) -> None:
        journal = self._journal
        is_under_way = journal.in_flight is not None and not self._cuts_ahead
        if is_under_way or (self.is_held and self._host.turn.is_split):
            return
        environment = self._environment
        has_work = journal.has_work or environment.has_unfinished_durable or environment.has_logged
        if not (has_work or self._full or journal.has_unpaged or environment.paged.unfinished):
            return
        if self._full:
            if self._timer is None:
                self._timer = self._time_source.call_later(RETRY_SECONDS, self._commit)
            return
        now = self._loop.time()
        if self.is_held:
            due = now
        elif journal.urgent or self._has_much or journal.records >= self._max_records:
            due = self._urgently(now)
        else:
            lazy = SWEEP_SECONDS if environment.has_unfinished_durable else LAZY_SECONDS
            due = max(now + lazy, 0.0 if has_work else self._page_due)
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        if due <= now:
            self._timer = self._loop.call_soon(self._commit)
        else:
            self._timer = self._loop.call_later(due - now, self._commit)

    @property
    def _cuts_ahead(self) -> bool:
        """True if the next batch may be cut although the last one is not committed."""
        return False

    @property
    def _has_much(self) -> bool:
        """True if more is waiting than should be delayed, except for paging that has failed lately."""
        journal = self._journal
        if journal.octets > LAZY_OCTETS:
            return True
        is_much = journal.octets_to_page > LAZY_OCTETS or (
            journal.octets_to_page > LAZY_PAGE_OCTETS and journal.messages_to_page > LAZY_PAGES
        )
        return is_much and self._loop.time() >= self._page_due

    def _urgently(self, now: float) -> float:
        """Return the time of a commit that is awaited, or too large to be delayed."""
        journal = self._journal
        if journal.records >= self._max_records:
            return now
        if self._ack_wait and journal.awaits_ids and self._settled < journal.records:
            return now + self._ack_wait
        if not self._busy:
            return now
        gap = self._gap
        due = self._started + gap
        if gap > MIN_GAP and due > now:
            self._watch_idleness()
        return due

    @property
    def _settled(self) -> int:
        """Number of persistent copies that were settled since the last cut, and are not written."""
        journal = self._journal
        return journal.early - self._early - (journal.in_vain - self._in_vain)

    @property
    def _gap(self) -> float:
        """The minimum seconds between the starts of two commits under load."""
        # Where many sockets are busy and confirms take long, the loop has no time to spare: a commit beside it takes
        # the interpreter dozens of times, and writes what would be acked before long. Then the next one waits for the
        # loop to be idle, for a time that confirms take anyway.
        return max(self._min_gap, min(WAITS * self._host.turn.confirm_wait / 1e9, MOST_GAP))

    def _watch_idleness(self) -> None:
        """Note a turn; without another one the next commit may start early."""
        self._had_turn = True
        if not self._is_watching:
            self._is_watching = True
            self._loop.call_soon(self._check_idleness)

    def _check_idleness(self) -> None:
        if self._timer is None:  # the commit has started on time
            self._is_watching = False
            return
        self._idle_rounds = 0 if self._had_turn else self._idle_rounds + 1
        self._had_turn = False
        if self._idle_rounds < IDLE_ROUNDS:
            self._loop.call_soon(self._check_idleness)
            return
        self._is_watching = False
        self._timer.cancel()
        self._commit()

    @property
    def is_full(self) -> bool:
        """True if the last durable commit, or the file of a body, found the disk full."""
        return self._full or bool(self._no_room)

    @property
    def backlogged(self) -> bool:
        """True if too much waits for the disk, or a commit waits for deferred queues."""
        return self._is_above(1)

    @property
    def overloaded(self) -> bool:
        """True if even light publishers must wait."""
        return self._is_above(LIGHT_FACTOR)

    def _is_above(self, times: int) -> bool:
        if self.is_held:
            return True
        journal = self._journal
        if journal.octets + journal.octets_in_flight > times * BACKLOG_HIGH:
            return True
        if journal.records + journal.records_in_flight > self._max_records:
            return True
        # On a full disk files may never finish: then the alarm stops publishers, and acks, which free space, are read.
        return journal.blob_octets > times * FILES_HIGH and not self._no_room

    def submit(self, job: Job, done: JobDone) -> None:
        """Run a short job in the writer's thread between two commits, and `done` in the loop with its result.

        After an UnknownStateError the storage has failed, and `done` is not called.
        """

        def finished(result: Any, error: BaseException | None) -> None:
            if isinstance(error, UnknownStateError):
                self._host.storage_failed(error)
            else:
                done(result, error)

        self._submit(job, finished)

    def _submit(self, job: Job, done: JobDone) -> None:
        """Have the writer run a job, after what is being written now."""
        if self._is_logging:
            self._jobs_behind.append((job, done))
        else:
            self._writer.submit(job, done)

    def _commit(self) -> None:
        self._timer = None
        if self._journal.in_flight is None or self._cuts_ahead:
            self._host.run_step("begin of a commit", self._begin_commit, "")

    def _begin_commit(self) -> None:
        turn = self._host.turn
        if turn.queues:  # deferred work may have put messages into them
            turn.run()
        if self._is_whole():
            self._cut()

    def _cut(self) -> None:
        journal = self._journal
        if self._full:
            # Publishers are blocked, so nothing else would detect that there is space; and LMDB reuses pages freed by
            # one commit only after the next one.
            journal.probe()
        self._started = self._loop.time()
        self._began = monotonic_ns()
        may_page = self._started >= self._page_due and journal.in_flight is None
        if 2 * self._settled < journal.records:
            self._ack_wait = 0.0
        self._early, self._in_vain = journal.early, journal.in_vain
        try:
            batch = journal.cut(PAGE_OCTETS if may_page else 0)
            self._busy = len(batch.rows) + batch.copies >= BUSY_OPERATIONS
            self._write(batch)
        except Exception as error:  # noqa: BLE001 - a bug of ours: half a batch is taken, and nothing may be confirmed
            self._host.storage_failed(error)

    def _write(self, batch: Batch) -> None:
        """Have a batch made safe; `_committed` follows."""
        entry = None
        writes = self._log_writes
        if writes is not None and writes.is_ready and not self._writer.pending:
            entry = self._environment.begin_log(batch)
            if entry is not None and writes.start(
                entry.direct, entry.octets, entry.at, partial(self._entry_written, batch, entry)
            ):
                self._is_logging = True
                return
        self._writer.submit(partial(self._environment.write, batch, entry), self._committed)

    def _entry_written(self, batch: Batch, entry: LogEntry, error: OSError | None) -> None:
        """Settle a batch of which the kernel has written the entry of the redo log, or has failed to."""
        self._is_logging = False
        is_undone = error is not None and (error.errno in NO_SPACE or error.errno in REFUSED)
        written = None
        if error is None:
            written = self._environment.end_log(entry)  # before any job, which may write what is only logged
        elif is_undone:  # the writer tries the same, and then a commit
            self._writer.submit(partial(self._environment.write, batch, entry), self._committed)
        else:  # it is unknown what is on disk: nothing more is to be written
            self._jobs_behind.clear()
        if self._jobs_behind:
            self._submit_jobs_behind()
        if not is_undone:
            self._host.run_step("result of the redo log", partial(self._committed, written, error), "")

    def _submit_jobs_behind(self) -> None:
        jobs, self._jobs_behind = self._jobs_behind, []
        for job in jobs:
            self._writer.submit(*job)

    def _committed(self, written: Written | None, error: BaseException | None) -> None:
        journal = self._journal
        backlogged = self.backlogged
        took = self._loop.time() - self._started
        self.slowest = max(self.slowest, took)
        self.duration.record((monotonic_ns() - self._began) // 1000)
        if error is not None and not isinstance(error, DiskFullError):
            self._host.storage_failed(error)
            return
        done = error if written is None else written
        try:
            for _ in range(0 if done is None else done.applied):
                journal.applied()
            batch = journal.settled(error, is_logged=written is not None and written.is_logged)
        except Exception as bug:  # noqa: BLE001 - of ours: what is on disk and what memory thinks of it differ
            self._host.storage_failed(bug)
            return
        if self._busy and 2 * (journal.in_vain - self._in_vain) > batch.copies:
            self._ack_wait = min(took, MOST_ACK_WAIT)
        is_full = error is not None and error.durable is not Done.ALL
        if not is_full:
            self.sizes.add(batch.written(error))
        if is_full is not self._full:
            self._record_full(full=is_full)
        if batch.paged or error is not None:
            self._found_unpaged(batch, Done.ALL if error is None else error.paged)
        for msg_id in done.unlink if done is not None else ():
            self.removals.remove(msg_id)
        self._report_if_cleared(backlogged=backlogged)
        self._host.run_turn()
        self.wake()
        if self._stopped is not None:
            self._finish()

    def _record_full(self, *, full: bool, msg_id: int = 0) -> None:
        """Record that a commit, or a file, found the disk full, or space again; log and report a change."""
        before = self.is_full
        if not msg_id:
            self._full = full
        elif full:
            self._no_room.add(msg_id)
        else:
            self._no_room.discard(msg_id)
        if before is self.is_full:
            return
        if before:
            log.warning("disk has space again: all pending writes committed")
        else:
            log.error("disk full: pending writes stay in memory and will be retried")
        self._report_full(not before)
        if not before:  # on a full disk other work waits for it than before it was
            self._host.backlog_cleared()

    def _found_unpaged(self, batch: Batch, paged: Done) -> None:
        """Record whether transient messages could be paged; if not, they are retried later."""
        # This blocks no client: they stay in memory, which the memory alarm limits.
        if paged is not Done.ALL:
            self._page_due = self._loop.time() + RETRY_SECONDS
            if not self._lacks_page_room:
                log.warning("disk full: transient messages stay in memory, paging them will be retried")
            self._lacks_page_room = True
        elif self._lacks_page_room and batch.paged.plans and not self._journal.has_unpaged:
            log.info("disk has space again: paging of transient messages resumed")
            self._lacks_page_room = False

    def _report_if_cleared(self, *, backlogged: bool) -> None:
        """Resume publishers that waited for the disk, if they need not wait any more."""
        if backlogged and not self.backlogged:
            self._host.backlog_cleared()

    # -- bodies in files --------------------------------------------------------------------------------------------

    def _write_files(self) -> None:
        for msg_id, (message, _) in self._journal.files.items():
            if msg_id not in self._files and not (self._stopping and msg_id in self._no_room):
                self._files[msg_id] = self._loop.create_task(self._write_file(msg_id, message))

    async def _write_file(self, msg_id: int, message: Persistent) -> None:
        """Write a body to a file of its own, retrying while there is no space or no file descriptor."""
        bodies = self._environment.bodies
        while True:
            error = await self._loop.run_in_executor(
                self._file_threads, _error_of, partial(bodies.write, msg_id, message.content)
            )
            if error is None:
                break
            lacks_descriptors = error.errno in NO_DESCRIPTOR
            if not lacks_descriptors and not self._environment.is_full(error, len(message.content)):
                self._host.storage_failed(error)
                return
            if not lacks_descriptors or self._stopping:
                await self._found_no_room(msg_id)
                return
            if not self._lacks_descriptors:
                log.error("no file descriptor left to write a body file, will be retried: %s", error.strerror)
            self._lacks_descriptors = True
            await asyncio.sleep(RETRY_SECONDS)
        self._lacks_descriptors = False
        del self._files[msg_id]
        self.files += 1
        backlogged = self.backlogged
        self._record_full(full=False, msg_id=msg_id)
        needed = self._journal.file_written(msg_id)
        self._report_if_cleared(backlogged=backlogged)
        if not needed:
            self.removals.remove(msg_id)
        self._host.run_turn()
        self.wake()

    async def _found_no_room(self, msg_id: int) -> None:
        """Refuse a body for whose file there is no space; it is retried."""
        backlogged = self.backlogged
        self._journal.file_failed(msg_id)
        self._record_full(full=True, msg_id=msg_id)
        self._report_if_cleared(backlogged=backlogged)
        self._host.run_turn()
        waited = self._loop.create_future()
        self._retries.add(waited)
        self._time_source.call_later(RETRY_SECONDS, _wake, waited)
        try:
            await waited
        finally:
            self._retries.discard(waited)
        del self._files[msg_id]
        self.wake()

    def retry(self) -> None:
        """Try again at once what has found the disk full."""
        for waited in self._retries:
            _wake(waited)
        if self._full and self._timer is not None:
            self._timer.cancel()
            self._commit()

    # -- the end ----------------------------------------------------------------------------------------------------

    def prepare_stop(self) -> None:
        """Page nothing more: nothing is published any more, and what is paged ends with the process."""
        self._page_due = self._loop.time() + NEVER_SECONDS

    @property
    def is_preparing(self) -> bool:
        """True while the event loop has to work on the current commit before it is on its way."""
        return False

    @property
    def is_behind(self) -> bool:
        """True if what is safe is in memory still, and too much for it: nothing more is to be moved meanwhile."""
        return False

    async def stop(self) -> int:
        """Commit the journal, then end the thread; returns the number of entries for which the disk was full."""
        self._stopping = True
        while self._files or self.removals.pending:
            await asyncio.wait([*self._files.values(), *self.removals.pending])
        self._stopped = asyncio.Event()
        self._finish()
        await self._stopped.wait()
        await self._all_settled()
        self._end()
        if not self.is_full:
            return 0
        messages, definitions = self._journal.unwritten()
        text = "disk full at shutdown: messages=%d definitions=%d not written and lost; none of them was confirmed"
        log.error(text, messages, definitions)
        return messages + definitions

    async def _all_settled(self) -> None:
        """Do what can be done as soon as everything is settled, before the threads end."""

    def abandon(self) -> None:
        """Begin nothing more, as if the process were killed; returns when the commit and files under way are done."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._files.values():
            task.cancel()
        self._file_threads.shutdown(wait=False, cancel_futures=True)
        self._end()

    def _end(self) -> None:
        """End the threads, after what they have begun."""
        if self._log_writes is not None:
            self._log_writes.close()
        self._submit_jobs_behind()
        self._writer.stop()
        self._file_threads.shutdown()
        self.is_ended = True

    def _finish(self) -> None:
        journal = self._journal
        if journal.in_flight is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (journal.has_work or self._environment.has_logged) and (self._last_try or not self._full):
            self._last_try = False
            self._commit()
        elif self._stopped is not None:
            self._stopped.set()


def _wake(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


def _error_of(job: Callable[[], object]) -> OSError | None:
    """Run a job and return its OSError, if any: the future of an executor would keep it and all that it refers to."""
    try:
        job()
    except OSError as error:
        return error
    return None
