"""The data store of a server: the environment, the journal, and the committer and reader between them (driver).

The reader's thread owns every read of messages beside that of recovery; like the writer's it reports to the event loop,
which alone accesses the queues.

Call `open` before the event loop runs, `start` in it, `recover` before clients may connect, `stop` after the last one.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from leveret.broker.amqp.properties import with_offset
from leveret.broker.amqp.tables import Table
from leveret.broker.config.config import StorageConfig
from leveret.broker.persistence.committer import Committer
from leveret.broker.persistence.space_reclaim import SpaceReclaim
from leveret.broker.persistence.worker_thread import WorkerThread
from leveret.broker.queue.arguments import STREAM, STRICT, priorities_of, queue_type
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.loop import Loop
from leveret.broker.scheduling.time_source import TimeSource
from leveret.broker.vhost.delay_line import DelayLine
from leveret.broker.vhost.exchange_ids import ExchangeIds
from leveret.broker.vhost.vhost import VHost
from leveret.exchanges.base import Exchange
from leveret.storage.damage import TEXTS, Damage, Damages
from leveret.storage.delayed import (
    TABLE as DELAYED,
    DelayedRows,
    Due,
    Start,
    next_line,
    pack_line,
    queue_of,
    unpack_count,
)
from leveret.storage.errors import DamagedError, DiskFullError, StorageError
from leveret.storage.journal.journal import Journal
from leveret.storage.journal.reads import Loaded, LoadRequest
from leveret.storage.message_ids import TABLE as IDS
from leveret.storage.queues.backing_queue import BackingQueue, Read, Recovered
from leveret.storage.queues.chunks import CHUNK_OCTETS, ChunkCache
from leveret.storage.queues.memory_monitor import INTERVAL as PAGING_SECONDS, MemoryMonitor
from leveret.storage.queues.pager import Pager
from leveret.storage.queues.priority_queue import PriorityQueue, parts
from leveret.storage.queues.queue_ids import level_of, level_qid, owner_qid, queue_qid, retained_qid
from leveret.storage.queues.stream_log import StreamLog
from leveret.storage.queues.variable_queue import VariableQueue
from leveret.storage.store.bodies import first_msg_id
from leveret.storage.store.compact import LEFT_BEHIND, WORTH_OCTETS, compact, measure
from leveret.storage.store.environment import Environment, FileSnapshot
from leveret.storage.store.recovery import recover, saved_rows

if TYPE_CHECKING:
    from leveret.broker.persistence.backup import Backups

log = logging.getLogger("leveret.storage")

LOG_SECONDS = 1.0  # between two batches of lines about damaged data
FLUSHES = 2  # per commit (data and root page), and per body in a file (it, and its directory entry)
_CHECKED = ("publish", "publish_delivered", "fetch", "ack", "requeue", "purge", "loaded", "set_ram_target")


class DiskUsage(NamedTuple):
    """Disk usage in bytes."""

    free: int  # space for further data: free on the file system, and unused in the data file
    file: int  # disk space taken by the data file; its size may be larger, where holes were punched
    unused: int  # the part of it that is unused and will be reused

    @property
    def garbage_fraction(self) -> float:
        """The unused share of the file. Dead records are not included: that would need a scan of all blocks."""
        return self.unused / self.file if self.file else 0.0


def _checking(queue_class: type[VariableQueue]) -> type[VariableQueue]:
    """Return a subclass that checks its invariants after every operation (`storage.check_invariants`)."""
    from leveret.storage.queues.invariants import check  # noqa: PLC0415 - only for tests

    def checked(name: str) -> Callable[..., Any]:
        operation = getattr(queue_class, name)

        def run_and_check(queue: VariableQueue, *args: Any, **options: Any) -> Any:
            result = operation(queue, *args, **options)
            check(queue)
            return result

        return run_and_check

    operations = {name: checked(name) for name in _CHECKED}
    return type("Checked" + queue_class.__name__, (queue_class,), {"__slots__": (), **operations})


class MessageReader(WorkerThread):
    """A thread that reads from disk what queues request."""

    def __init__(self, environment: Environment, host: Loop, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__("leveret-reader", loop, host)
        self._environment = environment
        self._found: deque[tuple[LoadRequest, Loaded]] = deque()

    def load(self, request: LoadRequest) -> None:
        """Read the messages that a queue requests; it receives them in the loop."""

        def done(found: Loaded | None, error: BaseException | None) -> None:
            if error is not None or found is None:
                self._host.storage_failed(error or RuntimeError("read without a result"))
                return
            self._found.append((request, found))
            if len(self._found) == 1:
                self._loop.call_soon(self._hand_over)

        self.submit(lambda: self._environment.read(request.ranges, request.limit), done)

    def _hand_over(self) -> None:
        """Pass one queue the messages that were read for it."""
        # One queue per iteration of the loop: it takes milliseconds, and many queues may have requested reads at
        # once.
        try:
            self._host.run_step("result of a read for", self._pass_on)
        finally:
            self._found.popleft()
            if self._found:
                self._loop.call_soon(self._hand_over)

    def _pass_on(self) -> None:
        self._host.turn.slices.latest = "a deleted queue"  # unless it runs
        request, found = self._found[0]
        request.queue.loaded(request, found)
        self._host.run_turn()

    @property
    def reads_pending(self) -> int:
        """Number of reads whose results were not passed on yet."""
        return self.pending + len(self._found)


class DamageLog:
    """Formats the damage found since the last call: at most one line per second and queue, with name and position.

    The vhosts have the names of queues, and of exchanges with delays.
    """

    def __init__(self, damages: Damages, vhosts: dict[str, VHost]) -> None:
        self._damages = damages
        self._vhosts = vhosts
        self._due = 0.0

    def lines(self, now: float) -> Iterable[str]:
        """Return the lines to log; at most one batch per second. `now` in seconds of the loop's clock."""
        if now < self._due:
            return ()
        self._due = now + LOG_SECONDS
        met = self._damages.take()
        return list(self._lines(met)) if met else ()

    def _lines(self, met: list[Damage]) -> Iterator[str]:
        names = self._names({owner_qid(each.qid) for each in met})
        for each in met:
            name = names.get(owner_qid(each.qid), f"an unknown queue (id {owner_qid(each.qid)})")
            more = f"; and {each.others} more" if each.others else ""
            yield f"damaged data of {name}: {TEXTS[each.kind]} (position {each.position}, {each.kind}){more}"

    def _names(self, wanted: set[int]) -> dict[int, str]:
        names = {}
        for vhost in self._vhosts.values():
            for queue in vhost.queues.values():
                qid = getattr(queue.store, "qid", 0)  # data in memory is never damaged, and has no qid
                if qid in wanted:
                    names[qid] = f"queue '{queue.name}' in vhost '{vhost.name}'"
            for exchange in vhost.router.exchanges.values():
                number = getattr(exchange.line, "number", 0)
                if number in wanted:
                    names[number] = f"exchange '{exchange.name}' in vhost '{vhost.name}'"
        return names


class DataStore:
    """One open data directory.

    No other process may use it. `ram_limit` are bytes of messages in memory, all queues together; `environment` has the
    data if they are open already.

    Raises what `storage.store.environment.Environment` raises.
    """

    environment_class: type[Environment] = Environment
    committer_class: type[Committer] = Committer
    queue_class: type[VariableQueue] = VariableQueue

    def __init__(
        self, data_dir: Path, config: StorageConfig, *, ram_limit: int, environment: Environment | None = None
    ) -> None:
        if environment is None:
            environment = self.environment_class(data_dir, sync=config.sync)
        self.environment = environment
        self.config = config
        boot = environment.boot
        self.journal = Journal(first_msg_id(boot), config.embed_below)
        self.pager = Pager(
            self.journal,
            self._load,
            segment=config.segment,
            io_batch=config.io_batch,
            blob_threshold=config.blob_threshold,
            ram_limit=max(1024 * 1024, ram_limit // 4),
            early_confirm=config.early_confirm,
            damages=environment.damages,
        )
        self.pager.snapshot = environment.snapshot
        self.chunks = ChunkCache(max(1024 * 1024, min(CHUNK_OCTETS, ram_limit // 4)))
        self.monitor = MemoryMonitor(self.pager, ram_limit, fixed_target=config.target_ram_count)
        self.reader_lag = 0  # commits by which the oldest reader was behind at the last `disk_usage`
        self._ids = count((boot << 32) + 1)
        self.first_seq = boot << 40
        self.is_recovered = False  # True once queues have the messages of the last run
        self._paging_due = 0.0
        self._damage_log: DamageLog | None = None
        self._queue_class = _checking(self.queue_class) if config.check_invariants else self.queue_class
        self._host: Loop
        self.commits: Committer
        self._backups: Backups | None = None
        self._reader: MessageReader

    def attach(self, loop: Loop, vhosts: dict[str, VHost]) -> None:
        """Have the ticks of a server update its queues' memory limits, and log damaged data with their names."""
        self._damage_log = DamageLog(self.damages, vhosts)
        loop.on_tick += [partial(self._page, loop), self.log_damage]

    def _page(self, loop: Loop, now: float) -> None:
        if now >= self._paging_due:
            self._paging_due = inf
            loop.turn.slices.add(self._update_ram_targets(loop, now), "memory monitor")

    def _update_ram_targets(self, loop: Loop, now: float) -> Iterator[None]:
        """Update the queues' memory limits; with very many queues this takes longer than the interval of checks."""
        try:
            yield from self.monitor.steps(now)
        finally:
            self._paging_due = loop.now() + PAGING_SECONDS

    def log_damage(self, now: float = inf) -> None:
        """Log unreadable data; by default also what is held back to be summed up."""
        for line in self._damage_log.lines(now) if self._damage_log is not None else ():
            log.error("%s", line)

    def start(
        self,
        host: Loop,
        loop: asyncio.AbstractEventLoop,
        report_full: Callable[[bool], object],
        time_source: TimeSource | None = None,
        disk_limit: int = 0,
    ) -> None:
        """Start the threads; the host is notified of results.

        `report_full` is called with true when a write finds the disk full, with false later; `time_source` has the time
        of the next try, None for the real time. Backups leave `disk_limit` bytes free on the disk of the data
        directory.
        """
        self._host = host
        records, gap = self.config.max_journal_records, self.config.commit_interval
        self.commits = self.committer_class(
            self.environment,
            self.journal,
            host,
            loop,
            report_full,
            time_source,
            max_records=records,
            min_gap=gap,
        )
        self._reader = MessageReader(self.environment, host, loop)
        self._disk_limit = disk_limit
        self._loop = loop
        fraction = self.config.garbage_fraction
        self._reclaim = SpaceReclaim(
            self.environment.store, self.commits.submit, loop, fraction=fraction, worth=WORTH_OCTETS
        )

    def next_id(self) -> int:
        """Return a new id, unique also over restarts."""
        return next(self._ids)

    def make_backing(self, qid: int, arguments: Table, *, strict: bool = False) -> BackingQueue:
        """Create the backing queue of a queue; qid 0 is a queue that is not durable. `strict`: see `priorities_of`."""
        number = qid or self.next_id()
        if queue_type(arguments) == STREAM:
            return StreamLog(self.pager, number, self.chunks, with_offset)
        priorities = priorities_of(arguments, strict=strict)
        make_level = self._level_maker(number, priorities.default, durable=bool(qid))
        if not priorities.highest:
            return make_level(0)
        return PriorityQueue(
            make_level,
            priorities.of_content,
            priorities.highest,
            number,
            priorities.default,
            expires_each=priorities.expires_each,
        )

    def _level_maker(self, number: int, default: int, *, durable: bool) -> Callable[[int], VariableQueue]:
        levels: list[VariableQueue] = []

        def make_level(level: int) -> VariableQueue:
            backing = self._queue_class(
                self.pager,
                level_qid(number, level ^ default),
                durable=durable,
                next_seq=self.first_seq if durable else 0,
            )
            levels.append(backing)
            for each in levels:  # until the monitor runs they share the limit of one queue
                each.ram_limit = min(each.ram_limit, self.pager.ram_limit // len(levels))
            if self.config.target_ram_count is not None:
                backing.target_ram_count = self.config.target_ram_count
            return backing

        return make_level

    def _with_levels(self, queue: VariableQueue) -> PriorityQueue[VariableQueue]:
        """Return a quorum queue that has messages of priorities which it no longer tells apart: new ones are equal."""
        highest, default, _ = STRICT
        make_level = self._level_maker(queue.qid, default, durable=True)
        made = PriorityQueue(
            lambda level: queue if level == default else make_level(level),
            lambda _content: default,
            highest,
            queue.qid,
            default,
        )
        made.level(default)
        return made

    def _load(self, request: LoadRequest) -> None:
        self._reader.load(request)

    @property
    def damages(self) -> Damages:
        """The record of unreadable data."""
        return self.environment.damages

    @property
    def blob_threshold(self) -> int:
        """Content size in bytes from which a body is written to a file of its own."""
        return self.config.blob_threshold

    def snapshot(self) -> FileSnapshot:
        """Open a snapshot of the data on disk. Raises StorageError if that is impossible now."""
        return self.environment.snapshot()

    def run_read(self, read: Read, done: Callable[[Any, BaseException | None], None]) -> None:
        """Run a read of a look at messages in the reader's thread, and `done` in the loop with result or exception."""
        self._reader.submit(read, done)

    def read_delayed(self, line: int, start: Start, done: Callable[[DelayedRows], None]) -> None:
        """Read the next delayed messages of a line; `done` is called in the loop, followed by a turn."""

        def finished(found: DelayedRows | None, error: BaseException | None) -> None:
            if error is not None or found is None:
                self._host.storage_failed(error or RuntimeError("read without a result"))
                return
            done(found)
            self._host.run_turn()

        self._reader.submit(lambda: self.environment.read_delayed(line, start), finished)

    def recover_delayed(self, vhosts: Iterable[VHost]) -> int:
        """Recover delayed and held messages and known ids, and delete other rows; returns the number of messages."""
        lines: dict[int, DelayLine] = {}
        queues: dict[int, Queue] = {}
        exchanges: dict[int, ExchangeIds] = {}
        others: dict[int, Exchange] = {}  # all that have a number
        for vhost in vhosts:
            lines |= {line.number: line for line in vhost.delay_lines() if line.number}
            queues |= {queue.qid: queue for queue in vhost.queues.values() if queue.qid}
            exchanges |= {ids.identify(): ids for ids in vhost.once.values() if ids.exchange.number}
            others |= {each.number: each for each in vhost.router.exchanges.values() if each.number}
        for number, value in self.environment.recover_lines(IDS, (), {*queues, *others}).items():
            owner = queue_of(number)
            if owner in others and owner not in exchanges:  # its later ids must not be swept with these
                self.journal.delete(IDS, pack_line(number))
                others[owner].ids_line = next_line(number)
                continue
            recover = exchanges[owner].recover if owner in exchanges else queues[owner].recover_ids
            recover(number, value, partial(self._rows_of, number, IDS))
        count = 0
        found = self.environment.recover_lines(DELAYED, lines, {*queues, *map(retained_qid, queues)})
        for number, value in found.items():
            count += (messages := self._count_of(number, value))
            take_over = lines[number].recover if number in lines else queues[owner_qid(number)].recover_held
            take_over(number, messages, partial(self._rows_of, number))
        return count

    def _count_of(self, line: int, value: bytes) -> int:
        """Return the number of messages of a line from its row or, if that is damaged, by counting."""
        try:
            return unpack_count(line, value)
        except DamagedError as error:
            log.error("storage: %s; recounting", error)  # noqa: TRY400 - no bug
            return sum(1 for _ in self._rows_of(line))

    def _rows_of(self, line: int, table: str = DELAYED) -> Iterator[tuple[Due, bytes]]:
        """Yield all rows of a line; it reads them in the event loop, before any client is served."""
        start: Start | None = Start((0, 0))
        while start is not None:
            found = self.environment.read_delayed(line, start, table)
            yield from found.rows
            start = found.next

    def disk_usage(self) -> DiskUsage:
        """Measure the disk usage; call it in the reader's thread."""
        environment = self.environment
        stat = (environment.store.path / "data.mdb").stat()
        size = min(stat.st_size, stat.st_blocks * 512)
        unused = max(0, size - (stat.st_size - environment.store.free_octets()))
        self.reader_lag = environment.store.reader_lag()
        return DiskUsage(environment.disk_free() + unused, size, unused)

    def measure(self, done: Callable[[DiskUsage | None, BaseException | None], None]) -> None:
        """Run `disk_usage` in the reader's thread, and `done` in the loop with its result or exception."""

        def measured(usage: DiskUsage | None, error: BaseException | None) -> None:
            if usage is not None:
                self._reclaim.update(usage.file, usage.garbage_fraction, self._loop.time())
            done(usage, error)

        self._reader.submit(self.disk_usage, measured)

    def recover(
        self,
        backings: Iterable[BackingQueue],
        use_levels: Callable[[BackingQueue, BackingQueue], object] | None = None,
    ) -> int:
        """Recover the messages of queues; returns their number.

        `use_levels` is called with the backing queue of a queue that tells no priorities apart, though it did in an
        earlier run and has messages of several, and with what replaces it.
        """
        owners = {
            backing.qid: backing
            for backing in backings
            if isinstance(backing, VariableQueue | PriorityQueue | StreamLog) and backing.qid
        }
        found = self._find(owners)
        for qid, rows in self.environment.segments().items():
            if isinstance(log_of := owners.get(qid), StreamLog):
                log_of.know(rows)
        for qid, reached in self.environment.offsets().items():
            if isinstance(log_of := owners.get(qid), StreamLog):
                log_of.offsets.by_tag = reached
        total = 0
        for qid, recovered in found.items():
            owner = owners[queue_qid(qid)]
            if level_of(qid) and isinstance(owner, VariableQueue) and use_levels is not None:
                plain, owner = owner, self._with_levels(owner)
                owners[queue_qid(qid)] = owner
                use_levels(plain, owner)
            queue = owner.stored_level(qid) if isinstance(owner, PriorityQueue) else owner
            queue.recover(recovered)
            total += recovered.messages
        for owner in owners.values():
            if isinstance(owner, PriorityQueue):
                owner.recount()
        return total

    def _find(self, qids: Collection[int]) -> dict[int, Recovered]:
        """Find the messages of queues; see `recovery.recover`."""
        return recover(self.environment, qids)

    @property
    def reads_pending(self) -> int:
        """Number of reads whose results were not passed on yet."""
        return self._reader.reads_pending

    @property
    def flushes(self) -> int:
        """Number of flushes to disk."""
        store = self.environment.store
        logged = 0 if store.redo is None else store.redo.flushes
        return FLUSHES * (store.commits * self.config.sync + self.commits.files) + logged

    @property
    def backups(self) -> "Backups | None":
        """The backups, once the threads are started; None before. Few brokers ever load them."""
        if self._backups is None and hasattr(self, "commits"):
            from leveret.broker.persistence.backup import Backups  # noqa: PLC0415

            self._backups = Backups(self.environment, self.commits, self._loop, self._disk_limit)
        return self._backups

    async def stop(self, backings: Iterable[BackingQueue]) -> int:
        """Commit the journal, record the clean stop, and close; returns the number of entries that are lost."""
        self._reclaim.stop()
        if self._backups is not None:
            await self._backups.stop()
        lost = await self.commits.stop()
        if not self.commits.is_full:
            try:
                self.environment.save(saved_rows(paging(backings)))
            except DiskFullError as error:
                log.warning(
                    "disk full: clean shutdown not recorded, so the next start has to scan all messages: %s",
                    error,
                )
            except Exception as error:  # noqa: BLE001 - the disk is lost, as after any other commit
                self._host.storage_failed(error)
        journal = self.journal
        log.info(
            "storage: commits=%d written=%d early=%d bytes=%d paged=%d flushes=%d slowest_commit_ms=%.1f",
            journal.commits,
            journal.written,
            journal.early,
            journal.octets_written,
            journal.paged_out,
            self.flushes,
            self.commits.slowest * 1000,
        )
        self.close()
        return lost

    def abandon(self) -> None:
        """Close as a kill of the process would: only commits that have begun are completed."""
        if self._backups is not None:
            self._backups.abandon()
        if hasattr(self, "commits"):
            self.commits.abandon()
        self.close()

    def close(self) -> None:
        """End the threads and close the files, discarding the journal."""
        if hasattr(self, "commits") and not self.commits.is_ended:
            self.commits.abandon()  # a start that fails
        if hasattr(self, "_reader"):
            self._reader.stop()
        self.environment.close()


def compact_if_worth_it(data_dir: Path, garbage_fraction: float) -> None:
    """Compact a large data file if more than that share of it is garbage; before the data are opened.

    A file that cannot be compacted is left unchanged: opening it reports the problem.
    """
    store = data_dir / "store"
    try:
        (store / LEFT_BEHIND).unlink(missing_ok=True)
        if (store / "data.mdb").stat().st_size <= WORTH_OCTETS or garbage_fraction >= 1:
            return
        garbage = measure(data_dir)
        if garbage.fraction <= garbage_fraction:
            return
        text = "storage: compacting: file=%d unused=%d dead=%d garbage_fraction=%.2f"
        log.info(text, garbage.file, garbage.unused, garbage.dead, garbage.fraction)
        began = time.monotonic()
        done = compact(data_dir)
    except FileNotFoundError:
        return
    except (StorageError, OSError) as error:
        log.warning("storage: data file not compacted: %s", error)
        return
    text = "storage: compacted: before=%d after=%d dead_records=%d seconds=%.1f"
    log.info(text, done.before, done.after, done.records, time.monotonic() - began)


def paging(backings: Iterable[BackingQueue]) -> Iterator[VariableQueue | StreamLog]:
    """Yield the queues that use the disk: variable queues, including the levels of priority queues, and streams."""
    return (backing for backing in parts(backings) if isinstance(backing, VariableQueue | StreamLog))
