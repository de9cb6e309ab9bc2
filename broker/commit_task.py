"""Brings to disk what the journal has noted, and reads what queues ask for (driver).

One thread, the writer, owns every write transaction; another, the reader, every read of messages. Both take work from
a queue and hand results back to the event loop, which alone touches the journal and the queues.

When to commit: at once when nothing is under way, so that an idle broker confirms after one flush; while a commit is
under way the next batch gathers. Under load commits are spaced by `MIN_GAP`: each costs processor time whatever it
carries, and a message that is consumed meanwhile need not be written at all. Where they are to be farther apart than
that, a broker that has nothing else to do commits nevertheless (RabbitMQ 3.6: every 200 ms, or when a queue is idle).
What nobody waits for, deletions and
messages published without confirms, is put off up to `LAZY_SECONDS`.
"""

import asyncio
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from math import inf
from pathlib import Path
from time import monotonic_ns
from typing import Any, Protocol

import aiofiles
import aiofiles.os

from broker.histogram import Latency
from broker.totals import Sizes
from storage.batch import Batch
from storage.environment import Environment, sync_directory
from storage.errors import DiskFullError, Done
from storage.journal import Journal
from storage.loading import Loaded, LoadRequest
from storage.message import Persistent
from storage.table import pack_blob

log = logging.getLogger("leveret.storage")

MIN_GAP = 0.002
"""Seconds between the starts of two commits under load."""
BUSY_OPERATIONS = 16
"""Messages in a batch from which the load counts as such."""
IDLE_ROUNDS = 2
"""Rounds of the loop without a turn from which it has nothing to do: what was read in one is seen in the next."""
LAZY_SECONDS = 0.1
LAZY_OCTETS = 1024 * 1024
"""Octets that are not put off any more."""
RETRY_SECONDS = 1.0
"""How long to wait after a commit that found the disk full."""
PROBE_OCTETS = 1024 * 1024
"""Octets of transient messages that are tried at once after they found no room; twice as many when they had some."""
BACKLOG_HIGH = 8 * 1024 * 1024
"""Octets waiting for the disk from which publishers are not read any more."""
FILES_HIGH = 64 * 1024 * 1024
"""Octets of bodies on their way into files of their own from which they are not either."""


class StorageHost(Protocol):
    """What the tasks need of the server."""

    def run_turn(self) -> None:
        """Work off what a result has touched, then write."""

    def storage_failed(self, error: BaseException) -> None:
        """The disk is broken: nothing may be confirmed any more."""

    def disk_full(self, *, full: bool) -> None:
        """A commit has found no room, or room again."""

    def backlog_cleared(self) -> None:
        """Publishers may be read again."""


class _Worker:
    """A thread that calls one function for each item it is given, and reports to the event loop."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._loop = loop
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Have `job` run in the thread and `done` called in the loop with what it returned or raised."""

        def work() -> None:
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 - whatever it is, the loop has to know
                self._loop.call_soon_threadsafe(done, None, error)
            else:
                self._loop.call_soon_threadsafe(done, result, None)

        self._jobs.put(work)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # a batch knows queues, which may be deleted while there is nothing to do

    def stop(self) -> None:
        """Finish what was submitted, then end."""
        self._jobs.put(None)
        self._thread.join()


class CommitTask:
    """Commits the journal's batches.

    Args:
        environment: where they go.
        journal: where they come from.
        host: is told what follows.
        loop: the event loop.
        min_gap: seconds between two commits under load. More than `MIN_GAP` is cut short by a broker that is idle.

    """

    def __init__(
        self,
        environment: Environment,
        journal: Journal,
        host: StorageHost,
        loop: asyncio.AbstractEventLoop,
        *,
        min_gap: float = MIN_GAP,
    ) -> None:
        self._environment = environment
        self._journal = journal
        self._host = host
        self._loop = loop
        self._min_gap = min_gap
        self._writer = _Worker("leveret-writer", loop)
        self._timer: asyncio.Handle | None = None
        self._due = 0.0
        self._started = 0.0
        self._began = 0
        self._busy = False
        self._is_watching = False
        """The next rounds of the loop are looked at, whether they are idle."""
        self._has_stirred = False
        """There was a turn since the last look."""
        self._idle_rounds = 0
        self._full = False
        self._page_octets = inf
        """Octets of transient messages that a commit may page: no end of them, unless there was no room lately."""
        self._page_due = 0.0
        """Nothing is paged before."""
        self._stopping = False
        self._last_try = True
        """Whether a full disk is tried once more before the end."""
        self._stopped: asyncio.Event | None = None
        self._files: dict[int, asyncio.Task[None]] = {}
        """Files that are being written, by msg_id."""
        self._no_room: set[int] = set()
        """Files for which there was no room at the last try."""
        self._removals: set[asyncio.Task[None]] = set()
        # counters
        self.slowest = 0.0
        """Seconds that the slowest commit took."""
        self.duration = Latency()
        """How long commits took, from the cut to what followed in the loop."""
        self.sizes = Sizes()
        """Octets of commits."""
        self.files = 0
        """Files written."""

    # -- when -------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something was noted: commit it when it is time. Called at the end of each turn."""
        journal = self._journal
        if journal.files:
            self._write_files()
        if journal.in_flight is not None:
            return
        environment = self._environment
        has_work = journal.has_work or environment.has_unfinished_durable
        if not (has_work or self._full or journal.has_unpaged or environment.paged.unfinished):
            return
        now = self._loop.time()
        if self._full:
            due = self._started + RETRY_SECONDS
        elif journal.urgent or journal.octets > LAZY_OCTETS:
            due = self._started + self._min_gap if self._busy else now
            if self._min_gap > MIN_GAP and due > now:
                self._watch()
        else:
            due = max(now + LAZY_SECONDS, 0.0 if has_work else self._page_due)
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        if due <= now:
            self._timer = self._loop.call_soon(self._commit)
        else:
            self._timer = self._loop.call_later(due - now, self._commit)

    def _watch(self) -> None:
        """There was a turn, and the next commit may come before its time if no other follows."""
        self._has_stirred = True
        if not self._is_watching:
            self._is_watching = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Commit now if the loop has had nothing else to do."""
        if self._timer is None:  # it has begun, in time
            self._is_watching = False
            return
        self._idle_rounds = 0 if self._has_stirred else self._idle_rounds + 1
        self._has_stirred = False
        if self._idle_rounds < IDLE_ROUNDS:
            self._loop.call_soon(self._look)
            return
        self._is_watching = False
        self._timer.cancel()
        self._commit()

    @property
    def is_full(self) -> bool:
        """Whether the last durable commit found no room, or a body no room for its file."""
        return self._full or bool(self._no_room)

    @property
    def backlogged(self) -> bool:
        """Whether more waits for the disk than should."""
        journal = self._journal
        if journal.octets + journal.octets_in_flight > BACKLOG_HIGH:
            return True
        # Without room files may take for ever: then the alarm stops publishers, and acks, which make room, are read.
        return journal.octets_in_files > FILES_HIGH and not self._no_room

    def _commit(self) -> None:
        self._timer = None
        journal = self._journal
        if journal.in_flight is not None:
            return
        if self._full:
            # Nobody may publish, so nothing else would find out that there is room; and LMDB uses the pages that one
            # commit has freed only after the next one.
            journal.probe()
        self._started = self._loop.time()
        self._began = monotonic_ns()
        try:
            batch = journal.cut(self._page_octets if self._started >= self._page_due else 0)
        except Exception as error:  # noqa: BLE001 - a bug of ours: half a batch is taken, and nothing may be confirmed
            self._host.storage_failed(error)
            return
        self._busy = len(batch.rows) + sum(len(entries) for _, entries in batch.entries) >= BUSY_OPERATIONS
        self._writer.submit(lambda: self._environment.commit(batch), self._committed)

    def _committed(self, unlink: list[int] | None, error: BaseException | None) -> None:
        journal = self._journal
        backlogged = self.backlogged
        self.slowest = max(self.slowest, self._loop.time() - self._started)
        self.duration.record((monotonic_ns() - self._began) // 1000)
        if error is not None and not isinstance(error, DiskFullError):
            self._host.storage_failed(error)
            return
        try:
            batch = journal.settled(error)
        except Exception as bug:  # noqa: BLE001 - of ours: what is on disk and what memory thinks of it differ
            self._host.storage_failed(bug)
            return
        durable = Done.ALL if error is None else error.durable
        if durable is Done.ALL:
            self.sizes.add(batch.written(error))
        self._found_full(full=durable is not Done.ALL)
        if batch.paged or error is not None:
            self._found_unpaged(batch, Done.ALL if error is None else error.paged)
        for msg_id in unlink or (error.unlink if error is not None else ()):
            self._unlink(msg_id)
        self._tell_if_cleared(backlogged=backlogged)
        self._host.run_turn()
        self.wake()
        if self._stopped is not None:
            self._finish()

    def _found_full(self, *, full: bool, msg_id: int = 0) -> None:
        """Note that a commit, or writing a file, has found no room, or room; tell the host of a change."""
        before = self.is_full
        if not msg_id:
            self._full = full
        elif full:
            self._no_room.add(msg_id)
        else:
            self._no_room.discard(msg_id)
        if before is not self.is_full:
            self._host.disk_full(full=self.is_full)

    def _found_unpaged(self, batch: Batch, paged: Done) -> None:
        """Note whether transient messages had room; those that had none are tried again in a while.

        That stops nobody: they stay in memory, and if that is too much there is the alarm for memory.
        """
        if paged is not Done.ALL:
            self._page_due = self._loop.time() + RETRY_SECONDS
            if self._page_octets == inf:
                log.warning("no room to page transient messages: they stay in memory and are tried again")
            self._page_octets = PROBE_OCTETS
        elif self._page_octets < inf and batch.paged.blocks:
            self._page_octets *= 2
            if not self._journal.has_unpaged:
                log.info("there is room to page transient messages again")
                self._page_octets = inf

    def _tell_if_cleared(self, *, backlogged: bool) -> None:
        """Have publishers read again if they were not, for what waited for the disk, and need not wait any more."""
        if backlogged and not self.backlogged:
            self._host.backlog_cleared()

    def _unlink(self, msg_id: int) -> None:
        task = self._loop.create_task(_remove(self._environment.blob_path(msg_id)))
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)

    # -- bodies in files --------------------------------------------------------------------------------------------

    def _write_files(self) -> None:
        for msg_id, (message, _) in self._journal.files.items():
            if msg_id not in self._files and not (self._stopping and msg_id in self._no_room):
                self._files[msg_id] = self._loop.create_task(self._write_file(msg_id, message))

    async def _write_file(self, msg_id: int, message: Persistent) -> None:
        """Write a body to a file of its own: under another name, flushed, renamed, and the name flushed."""
        path = self._environment.blob_path(msg_id)
        part = path.with_suffix(".part")
        try:
            async with aiofiles.open(part, "wb") as file:
                await file.write(pack_blob(msg_id, message.content))
                await file.write(message.content)
                await file.flush()
                await self._loop.run_in_executor(None, os.fsync, file.fileno())
            await aiofiles.os.rename(part, path)
            await self._loop.run_in_executor(None, sync_directory, path.parent)
        except OSError as error:
            if not self._environment.is_full(error, len(message.content)):
                self._host.storage_failed(error)
                return
            await _remove(part)
            backlogged = self.backlogged
            self._journal.file_failed(msg_id)
            self._found_full(full=True, msg_id=msg_id)
            self._tell_if_cleared(backlogged=backlogged)
            self._host.run_turn()
            await asyncio.sleep(RETRY_SECONDS)
            del self._files[msg_id]
            self.wake()
            return
        del self._files[msg_id]
        self.files += 1
        backlogged = self.backlogged
        self._found_full(full=False, msg_id=msg_id)
        needed = self._journal.file_written(msg_id)
        self._tell_if_cleared(backlogged=backlogged)
        if not needed:
            await _remove(path)
        self._host.run_turn()
        self.wake()

    # -- the end ----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Commit all that was noted, then end the thread. What finds no room then is lost."""
        self._stopping = True
        while self._files or self._removals:
            await asyncio.wait([*self._files.values(), *self._removals])
        self._stopped = asyncio.Event()
        self._finish()
        await self._stopped.wait()
        self._writer.stop()
        if self.is_full:
            messages, definitions = self._journal.unwritten()
            text = "stopped on a full disk: messages=%d definitions=%d are lost; nobody was told that they are safe"
            log.error(text, messages, definitions)

    def _finish(self) -> None:
        journal = self._journal
        if journal.in_flight is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if journal.has_work and (self._last_try or not self._full):
            self._last_try = False
            self._commit()
        elif self._stopped is not None:
            self._stopped.set()


class Reader:
    """Reads messages that queues ask for."""

    def __init__(self, environment: Environment, host: StorageHost, loop: asyncio.AbstractEventLoop) -> None:
        self._environment = environment
        self._host = host
        self._loop = loop
        self._worker = _Worker("leveret-reader", loop)
        self._found: deque[tuple[LoadRequest, Loaded]] = deque()

    def load(self, request: LoadRequest) -> None:
        """Read what a queue asks for; it is given what was found, in the loop."""

        def done(found: Loaded | None, error: BaseException | None) -> None:
            if error is not None or found is None:
                self._host.storage_failed(error or RuntimeError("nothing was read"))
                return
            self._found.append((request, found))
            if len(self._found) == 1:
                self._loop.call_soon(self._hand_over)

        self._worker.submit(lambda: self._environment.read(request.ranges, request.limit), done)

    def _hand_over(self) -> None:
        """Give one queue what was found for it.

        One in each round of the loop: it takes milliseconds, and many queues may have asked at once.
        """
        request, found = self._found[0]
        try:
            request.queue.loaded(request, found)
            self._host.run_turn()
        finally:
            self._found.popleft()
            if self._found:
                self._loop.call_soon(self._hand_over)

    def submit(self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Have `job`, which reads, run in the thread; `done` is called in the loop with what it returned or raised."""
        self._worker.submit(job, done)

    def stop(self) -> None:
        """End the thread."""
        self._worker.stop()


async def _remove(path: Path) -> None:
    try:
        await aiofiles.os.remove(path)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("cannot remove %s: %s", path, error.strerror)
