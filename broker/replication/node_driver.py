"""Drives a node: performs its requests, applies entries to its copy, and tells when it leads (driver).

It runs in the event loop of the broker. All that touches the disk runs in threads: while the node waits in one of the
driver's, while it leads in the one that writes for the broker. A snapshot is copied in a thread of its own.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from leveret.broker.persistence.worker_thread import Done, Job
from leveret.broker.replication import chain, node as events
from leveret.broker.replication.engine import ORIGIN, Engine, Entry, Move, NoAnswerError, Position
from leveret.broker.replication.node import LEASE, READ, Node, NotLeadingError
from leveret.broker.replication.settings import MEBIBYTE, Settings
from leveret.storage.errors import DiskFullError, StorageError
from leveret.storage.store.replica import Part, ReplicaEnvironment, begin_restore, put_in_place, remove_copy

log = logging.getLogger("leveret.replication")

TICK_SECONDS = 0.2
RETRY_SECONDS = 1.0  # time after which an apply that found the disk full is retried
SNAPSHOT_RETRY_SECONDS = 60.0
HAND_OVER_SECONDS = 10.0  # time for the database to take the lease back
MOVE_SECONDS = 3600.0  # time for the database to copy the log, too
CLOSE_SECONDS = 5.0  # time for the connections to the database to close
WHOLE_OCTETS = 4 * MEBIBYTE  # size from which a batch goes in pieces, between which the lease is renewed
_ID_OCTETS = 16
_NUMBER = 8


class _Calls(NamedTuple):
    """Callbacks for a batch that is logged, and that is applied to this copy."""

    logged: Callable[[], object]
    applied: Callable[[], object]


def boot_time() -> float:
    """Return seconds of a clock that goes on while the machine sleeps, if there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def pack_place(position: Position) -> bytes:
    """Return a position as the copy keeps it."""
    if position == ORIGIN:
        return b""
    return position.epoch.to_bytes(_NUMBER, "big") + position.index.to_bytes(_NUMBER, "big") + position.hash


def unpack_place(place: bytes) -> Position:
    """Return the position that a copy keeps."""
    if not place:
        return ORIGIN
    epoch, index = place[:_NUMBER], place[_NUMBER : 2 * _NUMBER]
    return Position(int.from_bytes(epoch, "big"), int.from_bytes(index, "big"), place[2 * _NUMBER :])


def damage_text(damage: str) -> str:
    """Return what is wrong with the log, and what to do; `damage`: the objection to an entry (`Node.damage`)."""
    return (
        f"the log is damaged, nothing behind it can be applied: {damage}. Keep the node that leads running: it has "
        "everything. If a standby of the database has the entry whole, have it replace the primary; if none has, stop "
        "the waiting nodes until the leader has put a snapshot into the database"
    )


class NodeDriver:
    """The driver of one node, with an engine for each lane. Raises what `ReplicaEnvironment` raises.

    This process has locked `data_dir`; without `sync` changes of the copy are not flushed. For the others see `Node`.
    """

    def __init__(
        self,
        data_dir: Path,
        name: str,
        address: str,
        engines: tuple[Engine, Engine],
        settings: Settings,
        *,
        sync: bool = True,
    ) -> None:
        self._data_dir = data_dir
        self._chunk_octets = settings.snapshot_chunk
        self._sync = sync
        self._engines = engines
        self.environment = self._open()
        position = unpack_place(self.environment.place)
        self.node = Node(name, address, position, boot_time(), partial(os.urandom, _ID_OCTETS), settings)
        self._bodies = self._open_bodies()
        self.opened: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Resolved with the epoch once this node leads."""
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolved with the reason once a node that has led leads no more."""
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Has the exception after which the node cannot go on."""
        self.successor = ""  # the node to hand over to; empty for any
        self.on_wanted: Callable[[str], object] = str
        """Called with the name of the node to which an operator wants this one to hand over."""
        self.move: Move | None = None  # the move that is made with the hand-over
        self.has_handed_over = False  # True once the broker has asked to hand over, after which it ends
        self._loop = asyncio.get_running_loop()
        self._disk = ThreadPoolExecutor(1, "leveret-copy")
        self._copying = ThreadPoolExecutor(1, "leveret-snapshot")
        self._submit: Callable[[Job, Done], None] = self._in_thread
        self._report_full: Callable[[bool], object] = bool
        self._is_full = False
        self._wakes = (asyncio.Event(), asyncio.Event())
        self._tasks: list[asyncio.Task[None]] = []
        self._ticker: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None  # wakes the lane that reads before the next tick
        self._batches: dict[int, _Calls] = {}  # by ticket
        self._pieces: dict[int, tuple[int, _Calls]] = {}  # by ticket: the number of a batch in pieces
        self._to_apply: deque[tuple[int, Callable[[], object]]] = deque()
        """Index up to which the log must be applied, and what to call then."""
        self._handling = False
        self._is_resting = False  # True once nothing is begun any more
        self._forgetting: dict[str, list[Callable[[None], object]]] = {}
        """By name of a member: what to call once it is removed."""
        self.append_seconds = 0.0  # duration of the last append
        self._is_answered = [True, True]
        self._reported_damage = ""
        engines[READ].listen(self._told)

    def _told(self) -> None:
        self.node.look(self.now)
        self._wakes[READ].set()

    def _open(self) -> ReplicaEnvironment:
        return ReplicaEnvironment(self._data_dir, sync=self._sync)

    def _open_bodies(self) -> chain.OpenBodies:
        sizes, whole = self.environment.open_batches()
        return chain.OpenBodies(unpack_place(self.environment.place).epoch, sizes, whole)

    # -- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to follow the log, and to lead it once no other node does."""
        self._tick()
        self._tasks = [self._loop.create_task(self._lane(lane)) for lane in (LEASE, READ)]

    async def stop(self) -> bool:
        """End everything but the copy, which stays open; false if a request to the database cannot be ended."""
        self._rest()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        closing = [self._loop.create_task(engine.close()) for engine in self._engines]
        _, left = await asyncio.wait(closing, timeout=CLOSE_SECONDS)
        self._copying.shutdown(wait=False, cancel_futures=True)
        await self._loop.run_in_executor(None, self._disk.shutdown)
        return not left

    def close(self) -> None:
        """Close the copy, unless the broker has used it and closed it; after `stop`."""
        if not self.opened.done():
            self.environment.close()

    async def hand_over(self) -> None:
        """Give the lease back to `successor`, after everything that was submitted is logged, then do nothing more.

        Returns when the lease is given back or lost, or if the database does not answer for `HAND_OVER_SECONDS`, or
        `MOVE_SECONDS` with a move.
        """
        self.has_handed_over = True
        self.node.hand_over(self.successor, self.move)
        self._pump()
        seconds = HAND_OVER_SECONDS if self.move is None else MOVE_SECONDS
        try:
            await asyncio.wait_for(asyncio.shield(self.closed), seconds)
        except TimeoutError:
            log.warning("replication: the lease was not released: the other nodes wait until it expires")
        self._rest()

    def _rest(self) -> None:
        """Make no further request, and apply nothing more: what is under way may still be performed."""
        self._is_resting = True
        for timer in (self._ticker, self._reading):
            if timer is not None:
                timer.cancel()
        for task in self._tasks:
            task.cancel()

    def forget(self, name: str, done: Callable[[None], object]) -> None:
        """Remove a member, and call back afterwards."""
        self._forgetting.setdefault(name, []).append(done)
        self.node.forget(name)
        self._pump()

    def accept_log(self) -> None:
        """Go on with a log that is shorter than the copies of all nodes."""
        log.warning("replication: an operator accepts the log, which is shorter than the copies")
        self.node.accept_log()
        self._pump()

    @property
    def is_answered(self) -> bool:
        """True unless the last request of a lane had no answer."""
        return all(self._is_answered)

    @property
    def now(self) -> float:
        """Seconds of the node's clock."""
        return boot_time()

    def may_answer(self) -> bool:
        """Return whether clients may get, in this turn, what waits for no entry of the log."""
        return self.node.may_answer(boot_time())

    # -- the log, for the store of the broker (`replicated_store`) ----------------------------------------------------

    def submit(self, octets: bytes, logged: Callable[[], object], applied: Callable[[], object]) -> None:
        """Append a batch, apply it, and call back after each. Nothing happens any more if the node leads no more."""
        leader = self.node.leader
        calls = _Calls(logged, applied)
        try:
            if len(octets) <= WHOLE_OCTETS:
                self._batches[self.node.submit(chain.Batch(octets))] = calls
            elif leader is not None:
                number = leader.new_id()
                self._pieces[self.node.submit_body(number, octets)] = number, calls
        except NotLeadingError:
            return
        self._wakes[LEASE].set()

    def apply_late(self) -> None:
        """Apply no more than memory asks for, until this node follows again: it is about to hand over."""
        self.node.apply_late()

    @property
    def is_waiting(self) -> bool:
        """True while a batch is in no entry yet."""
        leader = self.node.leader
        return leader is not None and leader.waiting_octets > 0

    @property
    def is_in_pieces(self) -> bool:
        """True while a batch goes through the log in pieces, in front of the entry that names them."""
        return bool(self._pieces)

    @property
    def is_behind(self) -> bool:
        """True if memory has no room for more that is not applied: the copy has room for it."""
        return self.node.is_behind and not self._is_full

    def use_writer(self, submit: Callable[[Job, Done], None]) -> None:
        """Apply in this thread from now on: the one that writes to the copy."""
        self._submit = submit

    def on_full(self, report: Callable[[bool], object]) -> None:
        """Call `report` with true when an apply finds the disk full, with false when there is room again."""
        self._report_full = report

    # -- requests -----------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_SECONDS, self._tick)
        self.node.tick(boot_time())
        self._pump()

    def _pump(self) -> None:
        """Do as the node says, and see whether it has requests."""
        self._handle_events()
        for wake in self._wakes:
            wake.set()

    async def _lane(self, lane: int) -> None:
        try:
            while True:
                await self._wakes[lane].wait()
                self._wakes[lane].clear()
                while (request := self.node.next(lane, boot_time())) is not None:
                    self._handle_events()
                    await self._perform(lane, request)
                    self._pump()
                self._handle_events()
                if lane == READ:
                    self._wake_to_read()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - a bug, or tables of another version: nothing may be guessed
            self._fail(error)

    def _wake_to_read(self) -> None:
        """Wake the lane that reads when its next request is due, if that is before the next tick."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        left = self.node.wake_in(boot_time())
        if left < TICK_SECONDS:
            self._reading = self._loop.call_later(left, self._wakes[READ].set)

    async def _perform(self, lane: int, request: Any) -> None:
        began = boot_time()
        try:
            answer = await self._engines[lane].perform(request)
        except NoAnswerError as error:
            if self._is_answered[lane]:
                self._is_answered[lane] = False
                log.warning("replication: no answer from the database: %s", error.__cause__ or error)
            self.node.unanswered(lane, boot_time())
        else:
            if not self._is_answered[lane]:
                self._is_answered[lane] = True
                log.info("replication: the database answers again")
            if type(request).__name__ == "Append":
                self.append_seconds = boot_time() - began
            self.node.answered(lane, answer, boot_time())
            if self.node.damage not in {"", self._reported_damage}:
                log.error("replication: %s", damage_text(self.node.damage))
            self._reported_damage = self.node.damage

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    # -- events -------------------------------------------------------------------------------------------------------

    def _handle_events(self) -> None:
        if self._handling or self._is_resting:
            return
        self._handling = True
        try:
            while self.node.events:
                found, self.node.events = self.node.events, []
                for event in found:
                    self._handle(event)
        except chain.BadEntryError as error:  # in a callback it would be logged, and the node wait for ever
            self._fail(error)
        finally:
            self._handling = False

    def _handle(self, event: events.Event) -> None:  # noqa: C901, PLR0912 - one for each event
        match event:
            case events.Apply(entries):
                self._apply(entries)
            case events.Logged(tickets):
                for ticket in tickets:
                    self._logged(ticket)
            case events.Evictable(through):
                while self._to_apply and self._to_apply[0][0] <= through:
                    self._to_apply.popleft()[1]()
            case events.Open(epoch):
                self._opened(epoch)
            case events.Close(reason):
                self._closed(reason)
            case events.Wipe(reason):
                log.warning("replication: the copy is removed and made again: %s", reason)
                self._in_thread(self._wipe, self._then(self._wiped))
            case events.MakeSnapshot():
                self._copying.submit(self._copy).add_done_callback(
                    lambda done: self._loop.call_soon_threadsafe(self._copied, done)
                )
            case events.RestoreChunk(data):
                self._in_thread(partial(self._keep_chunk, data), self._then())
            case events.Abandon():
                self._in_thread(partial(begin_restore, self._data_dir), self._then())
            case events.Restore(position):
                self._in_thread(partial(self._restore, pack_place(position)), self._then(self._restored))
            case events.Wanted(successor):
                self.on_wanted(successor)
            case events.Forgotten(name):
                log.info("replication: member '%s' was forgotten", name)
                for done in self._forgetting.pop(name, []):
                    done(None)
            case events.TooShort(last, applied):
                log.critical(
                    "replication: the log ends at entry %d, and all nodes have more, this one up to %d: the database "
                    "was restored from a backup, or is another one. No node leads. To give up what is missing in it: "
                    "leveret ctl cluster_accept_log",
                    last,
                    applied,
                )

    def _opened(self, epoch: int) -> None:
        log.info("replication: this node leads, epoch=%d", epoch)
        if not self.opened.done():
            self.opened.set_result(epoch)

    def _closed(self, reason: str) -> None:
        self._batches.clear()
        self._pieces.clear()
        self._to_apply.clear()
        if self.opened.done() and not self.closed.done():
            log.warning("replication: this node leads no more: %s", reason)
            self.closed.set_result(reason)

    def _logged(self, ticket: int) -> None:
        if ticket in self._pieces:
            number, calls = self._pieces.pop(ticket)
            try:
                self._batches[self.node.submit(chain.Batch(b"", (number,)))] = calls
            except NotLeadingError:
                return
        elif ticket in self._batches:
            calls = self._batches.pop(ticket)
            self._to_apply.append((self.node.follower.end.index, calls.applied))
            calls.logged()

    # -- the copy -----------------------------------------------------------------------------------------------------

    def _in_thread(self, job: Job, done: Done) -> None:
        """Run a job in the driver's thread, and `done` in the loop with its result or exception."""

        def work() -> None:
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 - whatever it is, the loop has to know
                self._loop.call_soon_threadsafe(done, None, error)
            else:
                self._loop.call_soon_threadsafe(done, result, None)

        self._disk.submit(work)

    async def run(self, job: Job) -> Any:
        """Run a job that writes to the copy, in the driver's thread: nothing is applied meanwhile."""
        return await self._loop.run_in_executor(self._disk, job)

    def _apply(self, entries: Sequence[Entry]) -> None:
        """Apply entries in one transaction; a piece of a large body is alone."""
        place = pack_place(entries[-1].position)
        environment = self.environment
        left: list[int] = []
        batches: list[chain.Batch] = []
        for entry in entries:
            left += self._bodies.begin(entry)
            if entry.kind == chain.BATCHES:
                group = chain.split_batches(entry.payload)
                for batch in group:
                    self._bodies.close(batch)
                batches += group
        if entries[0].kind == chain.CHUNK:
            chunk = chain.split_chunk(entries[0].payload)
            self._bodies.take(chunk)
            part = Part(chunk.body, chunk.offset, chunk.is_last)
            job = partial(environment.keep_part, place, part, chunk.data, left)
        else:
            job = partial(environment.apply, place, batches, left)
        self._write(job)

    def _write(self, job: Job) -> None:
        """Run a job that applies something, in the thread that writes to the copy."""
        if not self._is_resting:
            self._submit(job, partial(self._applied, job))

    def _applied(self, job: Job, _result: object, error: BaseException | None) -> None:
        if isinstance(error, DiskFullError):
            if not self._is_full:
                self._is_full = True
                log.error("replication: disk full: the log cannot be applied, will be retried")
                self._report_full(True)
            self._loop.call_later(RETRY_SECONDS, self._write, job)
            return
        if error is not None:
            self._fail(error)
            return
        if self._is_full:
            self._is_full = False
            self._report_full(False)
        self.node.applied(boot_time())
        self._pump()

    def _wipe(self) -> None:
        self.environment.close()
        remove_copy(self._data_dir)
        self.environment = self._open()

    def _wiped(self) -> None:
        self._bodies = self._open_bodies()
        self.node.wiped(boot_time())
        self._pump()

    def _then(self, follow: Callable[[], object] = tuple) -> Done:
        """Return what follows a job in the loop, unless the job has failed: the node cannot go on then."""

        def done(_result: object, error: BaseException | None) -> None:
            if error is not None:
                self._fail(error)
            else:
                follow()

        return done

    def _keep_chunk(self, data: bytes) -> None:
        path = self._data_dir / "restored.tmp" / "data.mdb"
        if not path.parent.exists():
            begin_restore(self._data_dir)
        with path.open("ab") as file:
            file.write(data)

    def _restore(self, place: bytes) -> None:
        self.environment.close()
        put_in_place(self._data_dir, place)
        self.environment = self._open()

    def _restored(self) -> None:
        self._bodies = self._open_bodies()
        log.info("replication: the copy was made from the snapshot")
        self.node.restored(boot_time())
        self._pump()

    def _copy(self) -> tuple[Path, bytes]:
        return self.environment.copy_to_file()

    def _copied(self, done: Any) -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None or done.cancelled():
            log.warning("replication: %s", error or "no snapshot was made")
            if error is not None and not isinstance(error, StorageError):
                self._fail(error)
            self._loop.call_later(SNAPSHOT_RETRY_SECONDS, self.node.snapshot_failed)
            return
        path, place = done.result()
        log.info("replication: putting a snapshot into the database: bytes=%d", path.stat().st_size)
        self.node.begin_snapshot(unpack_place(place), self._chunks(path))
        self._pump()

    def _chunks(self, path: Path) -> Iterator[bytes]:
        try:
            with path.open("rb") as file:
                while chunk := file.read(self._chunk_octets):
                    yield chunk
        finally:  # also if the engine does not take it: nobody reads the rest then
            with contextlib.suppress(RuntimeError):  # the thread has ended; the next start removes the file
                self._copying.submit(self.environment.forget_copy)
