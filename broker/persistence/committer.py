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
import errno
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic_ns
from typing import Any, Protocol

from leveret.broker.counters.histogram import Latency
from leveret.broker.counters.totals import Sizes
from leveret.broker.scheduling.time_slices import TimeSlices
from leveret.broker.scheduling.turn import Turn
from leveret.storage.errors import DiskFullError, Done
from leveret.storage.journal.batch import Batch
from leveret.storage.journal.journal import Journal
from leveret.storage.journal.reads import Loaded, LoadRequest
from leveret.storage.message import Persistent
from leveret.storage.store.environment import Environment

log = logging.getLogger("leveret.storage")

MIN_GAP = 0.002
"""Seconds between the starts of two commits under load."""
BUSY_OPERATIONS = 16
"""Messages in a batch from which the load counts as such."""
IDLE_ROUNDS = 2
"""Rounds of the loop without a turn from which it has nothing to do: what was read in one is seen in the next."""
LAZY_SECONDS = 0.1
SWEEP_SECONDS = 0.01
"""How long a commit waits that only carries on the deletion of messages."""
LAZY_OCTETS = 1024 * 1024
"""Octets that are not put off any more."""
PAGE_OCTETS = 1024 * 1024
"""Octets of transient messages that one commit pages: whoever waits for a confirm waits for the whole commit."""
RETRY_SECONDS = 1.0
"""How long to wait after a commit that found the disk full."""
PROBE_OCTETS = 1024 * 1024
"""Octets of transient messages that are tried at once after they found no room; twice as many when they had some."""
BACKLOG_HIGH = 8 * 1024 * 1024
"""Octets waiting for the disk from which publishers are not read any more."""
LIGHTLY = 2
"""How many times as much it is for publishers that send little: they are not to wait because others send much."""
MAX_RECORDS = 32768
"""Copies of persistent messages that wait for the disk at most, as many as RabbitMQ's journal has."""
FILES_HIGH = 64 * 1024 * 1024
"""Octets of bodies on their way into files of their own from which they are not either; twice as many likewise."""
FILES_AT_ONCE = 16
"""Bodies that are written to files of their own, or removed, at the same time: each takes a file descriptor or two."""
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


class StorageHost(Protocol):
    """What the tasks need of the server."""

    turn: Turn

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

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, slices: TimeSlices) -> None:
        self._name = name
        self._slices = slices
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
                self._loop.call_soon_threadsafe(self._report, done, None, error)
            else:
                self._loop.call_soon_threadsafe(self._report, done, result, None)

        self._jobs.put(work)

    def _report(
        self, done: Callable[[Any, BaseException | None], None], result: Any, error: BaseException | None
    ) -> None:
        """Hand over a result, in a step of its own."""
        self._slices.begin()
        done(result, error)
        self._slices.end(f"result of {self._name} for", done)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # a batch knows queues, which may be deleted while there is nothing to do

    def stop(self) -> None:
        """Finish what was submitted, then end."""
        self._jobs.put(None)
        self._thread.join()


class Committer:
    """Commits the journal's batches.

    Args:
        environment: where they go.
        journal: where they come from.
        host: is told what follows.
        loop: the event loop.
        max_records: copies of persistent messages (at least 1) that wait for a commit at most: with as many it begins
            at once, and publishers are not read until it is done (`queue_index_max_journal_entries`).
        min_gap: seconds between two commits under load. More than `MIN_GAP` is cut short by a broker that is idle.

    """

    def __init__(
        self,
        environment: Environment,
        journal: Journal,
        host: StorageHost,
        loop: asyncio.AbstractEventLoop,
        *,
        max_records: int = MAX_RECORDS,
        min_gap: float = MIN_GAP,
    ) -> None:
        self._environment = environment
        self._journal = journal
        self._host = host
        self._loop = loop
        self._max_records = max_records
        self._min_gap = min_gap
        self._writer = _Worker("leveret-writer", loop, host.turn.slices)
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
        self.is_held = False
        """A commit, or a file, waits for queues that are put off."""
        self._stopping = False
        self._last_try = True
        """Whether a full disk is tried once more before the end."""
        self._stopped: asyncio.Event | None = None
        self._files: dict[int, asyncio.Task[None]] = {}
        """Files that are being written, by msg_id."""
        self._no_room: set[int] = set()
        """Files for which there was no room at the last try."""
        self._removals: set[asyncio.Future[None]] = set()
        self._file_threads = ThreadPoolExecutor(FILES_AT_ONCE, "leveret-files")
        self._lacks_descriptors = False
        """The last file that was written had to wait for a file descriptor."""
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
        if len(self._journal.files) > len(self._files) and self._is_whole():
            self._write_files()
        if self.is_held and not self._host.turn.is_split:
            self._cut_at_once()
            self._set_timer()
            self.is_held = False
            self._host.backlog_cleared()  # of publishers that wait for more, each finds out at its next read
        else:
            self._set_timer()

    def _cut_at_once(self) -> None:
        """Begin the commit that was held: a queue with much to do may put others off again in the next step."""
        journal = self._journal
        if journal.in_flight is not None or self._full or not journal.has_work:
            return
        if any(queue.has_input for queue in self._host.turn.queues):
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._cut()

    def _is_whole(self) -> bool:
        """Whether all that came together is noted; if not, go on when it is.

        A message with all its copies, a transaction, a dead letter and the end of its original go to disk as a whole,
        and how many records refer to a body is counted when it is written. So nothing goes to disk while queues are put
        off. Whoever could have more of them put off waits meanwhile, or that might never end.
        """
        if self._host.turn.is_split:
            self.is_held = True
            return False
        return True

    def _set_timer(self) -> None:
        """Have a commit begin when it is time."""
        journal = self._journal
        if journal.in_flight is not None or (self.is_held and self._host.turn.is_split):
            return
        environment = self._environment
        has_work = journal.has_work or environment.has_unfinished_durable
        if not (has_work or self._full or journal.has_unpaged or environment.paged.unfinished):
            return
        now = self._loop.time()
        if self._full:
            due = self._started + RETRY_SECONDS
        elif self.is_held:
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
    def _has_much(self) -> bool:
        """Whether more waits than should be put off, what is to be paged and has found no room lately left out."""
        journal = self._journal
        if journal.octets > LAZY_OCTETS:
            return True
        return journal.octets_to_page > LAZY_OCTETS and self._loop.time() >= self._page_due

    def _urgently(self, now: float) -> float:
        """When to commit what somebody waits for, or what is too much to be put off."""
        if not self._busy or self._journal.records >= self._max_records:
            return now
        due = self._started + self._min_gap
        if self._min_gap > MIN_GAP and due > now:
            self._watch()
        return due

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
        """Whether more waits for the disk than should, or a commit for queues that are put off."""
        return self._is_above(1)

    @property
    def overloaded(self) -> bool:
        """Whether even publishers that send little must wait."""
        return self._is_above(LIGHTLY)

    def _is_above(self, times: int) -> bool:
        if self.is_held:
            return True
        journal = self._journal
        if journal.octets + journal.octets_in_flight > times * BACKLOG_HIGH:
            return True
        if journal.records + journal.records_in_flight > self._max_records:
            return True
        # Without room files may take for ever: then the alarm stops publishers, and acks, which make room, are read.
        return journal.octets_in_files > times * FILES_HIGH and not self._no_room

    def submit(self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Have a short job run by the writer between two commits; `done` is called in the loop with its result."""
        self._writer.submit(job, done)

    def _commit(self) -> None:
        self._timer = None
        journal = self._journal
        if journal.in_flight is not None:
            return
        turn = self._host.turn
        turn.now = turn.slices.begin()
        if turn.queues:  # they may have been given what was taken from elsewhere
            turn.run()
        if self._is_whole():
            self._cut()
        turn.slices.end("begin of a commit", "")

    def _cut(self) -> None:
        journal = self._journal
        if self._full:
            # Nobody may publish, so nothing else would find out that there is room; and LMDB uses the pages that one
            # commit has freed only after the next one.
            journal.probe()
        self._started = self._loop.time()
        self._began = monotonic_ns()
        try:
            batch = journal.cut(min(self._page_octets, PAGE_OCTETS) if self._started >= self._page_due else 0)
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
        path = self._environment.blob_path(msg_id)
        removal = self._loop.run_in_executor(self._file_threads, _remove, path)
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    # -- bodies in files --------------------------------------------------------------------------------------------

    def _write_files(self) -> None:
        for msg_id, (message, _) in self._journal.files.items():
            if msg_id not in self._files and not (self._stopping and msg_id in self._no_room):
                self._files[msg_id] = self._loop.create_task(self._write_file(msg_id, message))

    async def _write_file(self, msg_id: int, message: Persistent) -> None:
        """Have a body written to a file of its own; again and again while there is no room or no file descriptor."""
        bodies = self._environment.bodies
        while True:
            error = await self._loop.run_in_executor(
                self._file_threads, _error_of, partial(bodies.write, msg_id, message.content)
            )
            if error is None:
                break
            if error.errno not in NO_DESCRIPTOR or self._stopping:
                if error.errno not in NO_DESCRIPTOR and not self._environment.is_full(
                    error, len(message.content)
                ):
                    self._host.storage_failed(error)
                    return
                await self._found_no_room(msg_id)
                return
            if not self._lacks_descriptors:
                log.error("no file descriptor for the file of a body: it is tried again (%s)", error.strerror)
            self._lacks_descriptors = True
            await asyncio.sleep(RETRY_SECONDS)
        self._lacks_descriptors = False
        del self._files[msg_id]
        self.files += 1
        backlogged = self.backlogged
        self._found_full(full=False, msg_id=msg_id)
        needed = self._journal.file_written(msg_id)
        self._tell_if_cleared(backlogged=backlogged)
        if not needed:
            self._unlink(msg_id)
        self._host.run_turn()
        self.wake()

    async def _found_no_room(self, msg_id: int) -> None:
        """The disk has no room for the file of a body: its publisher is refused, and it is tried again."""
        backlogged = self.backlogged
        self._journal.file_failed(msg_id)
        self._found_full(full=True, msg_id=msg_id)
        self._tell_if_cleared(backlogged=backlogged)
        self._host.run_turn()
        await asyncio.sleep(RETRY_SECONDS)
        del self._files[msg_id]
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
        self._file_threads.shutdown()
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
        self._worker = _Worker("leveret-reader", loop, host.turn.slices)
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
        slices = self._host.turn.slices
        slices.begin()
        slices.latest = "a queue that is gone"
        request, found = self._found[0]
        try:
            request.queue.loaded(request, found)
            self._host.run_turn()
        finally:
            self._found.popleft()
            if self._found:
                self._loop.call_soon(self._hand_over)
            slices.end("what was read for", slices.latest)  # the queue that has run

    def submit(self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Have `job`, which reads, run in the thread; `done` is called in the loop with what it returned or raised."""
        self._worker.submit(job, done)

    def stop(self) -> None:
        """End the thread."""
        self._worker.stop()


def _error_of(job: Callable[[], object]) -> OSError | None:
    """Run a job; the OSError that it raised, if any: an executor's own future would keep it, and what it refers to."""
    try:
        job()
    except OSError as error:
        return error
    return None


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("cannot remove %s: %s", path, error.strerror)
