"""Commits with a real loop, threads and a data directory."""

import asyncio
import errno
import mmap
import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest
from checks.internals import descriptors
from conformance.wire import Client
from doubles.fakes import Host
from processes.running import serving
from processes.waiting import until

from leveret.broker.cli.store import read
from leveret.broker.config.config import StorageConfig
from leveret.broker.persistence import async_writes, committer
from leveret.broker.persistence.committer import BUSY_OPERATIONS
from leveret.broker.persistence.data_store import DataStore
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.time_slices import SLICE, TimeSlices
from leveret.broker.scheduling.turn import Turn
from leveret.storage.errors import Done, UnknownStateError
from leveret.storage.message import Message, Persistent
from leveret.storage.store import redo_log


def message(octets):
    return Persistent(b"\0\0", b"\0" * octets, 1, None, 0, 1)


def no_room(*_args, **_options):
    raise OSError(errno.ENOSPC, "no room")


def fail(_batch):
    raise committer.DiskFullError("no room")


def at_next_start(data_dir):
    """Return whether the last stop was clean, and the number of blocks."""
    again = committer.Environment(data_dir, sync=False)
    found = again.was_clean, len(list(again.rows("blocks")))
    again.close()
    return found


def safety(disk):
    """Return what will tell whether everything that is noted so far is safe."""
    safe = asyncio.get_running_loop().create_future()
    disk.journal.when_safe(safe.set_result)
    return safe


@pytest.fixture
def disk(tmp_path):
    (tmp_path / "data").mkdir()
    return DataStore(tmp_path / "data", StorageConfig(sync=False, blob_threshold=1000), ram_limit=1 << 20)


def started(disk):
    """Return the host of a disk that is in use, and a durable queue."""
    host = Host()
    disk.start(host, asyncio.get_running_loop(), host.full.append)
    return host, disk.make_backing(disk.next_id(), {})


async def test_stopping_does_not_wait_for_room_for_a_file(disk, monkeypatch, caplog):
    """A body whose file finds no space is given up at the stop, and the stop is not clean."""
    monkeypatch.setattr(committer, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(disk.environment.bodies, "write", no_room)

    host, queue = started(disk)
    queue.publish([message(1000), message(1001)], persistent=True)
    disk.commits.wake()
    await asyncio.wait_for(disk.stop([queue]), 10)

    assert [True] == host.full
    assert "disk full at shutdown: messages=2 definitions=0 not written" in caplog.text


async def test_data_lost_to_a_full_disk_at_the_end_is_reported(disk, monkeypatch, caplog):
    """A disk that stays full does not delay a stop; lost messages and definitions are counted."""
    monkeypatch.setattr(committer, "RETRY_SECONDS", 1000.0)

    host, queue = started(disk)
    disk.environment.commit = fail
    queue.publish([message(10), message(11), message(12)], persistent=True)
    found = queue.fetch(1, ack_required=True)
    queue.ack(found.seq_ids)
    disk.journal.put("defs", b"Q1", b"queue")
    disk.commits.wake()
    await asyncio.wait_for(disk.stop([queue]), 10)

    assert [True] == host.full
    assert "disk full at shutdown: messages=2 definitions=1 not written" in caplog.text


async def test_no_room_to_note_a_clean_stop(disk, monkeypatch, caplog, tmp_path):
    """A stop without space to record that it was clean makes the next start read everything, without errors."""
    host, queue = started(disk)
    queue.publish([message(10)], persistent=True)
    disk.commits.wake()
    disk.environment.save = fail
    await asyncio.wait_for(disk.stop([queue]), 10)

    assert [] == host.full
    assert "the next start has to scan all messages: no room" in caplog.text
    assert (False, 1) == at_next_start(tmp_path / "data")


async def test_a_full_disk_is_tried_once_more_at_the_end(disk, monkeypatch, tmp_path):
    """A stop commits writes that waited for space if there is space again."""
    monkeypatch.setattr(committer, "RETRY_SECONDS", 1000.0)
    commit = disk.environment.commit

    def fail_once(batch):
        disk.environment.commit = commit
        raise committer.DiskFullError("no room")

    host, queue = started(disk)
    disk.environment.commit = fail_once
    queue.publish([message(10)], persistent=True)
    result = safety(disk)
    disk.commits.wake()
    stored = await result
    await asyncio.wait_for(disk.stop([queue]), 10)

    assert (False, [True, False]) == (stored, host.full)

    assert (True, 1) == at_next_start(tmp_path / "data")


async def test_a_disk_that_becomes_full_lets_waiting_work_look_again(disk, monkeypatch):
    """Jobs and connections that wait for the disk are resumed when it becomes full: some need not wait then."""
    monkeypatch.setattr(committer, "RETRY_SECONDS", 0.01)
    cleared = []

    host, queue = started(disk)
    disk.environment.commit = fail
    host.backlog_cleared = lambda: cleared.append(list(host.full))
    queue.publish([message(10)], persistent=True)
    result = safety(disk)
    disk.commits.wake()
    await asyncio.wait_for(result, 10)
    await asyncio.wait_for(disk.stop([queue]), 10)

    assert [[True]] == cleared


def test_transient_messages_without_room_stop_nobody(disk, monkeypatch, caplog):
    """Transient messages without space stay in memory, with one log line, and are paged later; no alarm is raised."""
    caplog.set_level("INFO", "leveret.storage")
    monkeypatch.setattr(committer, "RETRY_SECONDS", 0.01)
    commit, tries, paged = disk.environment.commit, [], asyncio.Event()

    def fail_twice(batch):
        if not batch.paged:
            return commit(batch)
        tries.append(len(batch.paged.plans))
        if len(tries) < 3:
            raise committer.DiskFullError("no room", durable=Done.ALL)
        loop.call_soon_threadsafe(loop.call_later, 0.01, paged.set)
        return commit(batch)

    async def run():
        nonlocal loop
        loop = asyncio.get_running_loop()
        host, queue = started(disk)
        disk.environment.commit = fail_twice
        queue.publish([message(10), message(10)], persistent=False)
        queue.set_lazy(lazy=True)
        disk.commits.wake()
        await asyncio.wait_for(paged.wait(), 10)
        _, betas, _, deltas = queue.state_counts()
        await asyncio.wait_for(disk.stop([queue]), 10)
        return host.full, betas + deltas

    loop = None
    assert ([], 2) == asyncio.run(run())
    assert [1, 1, 1] == tries
    assert 1 == caplog.text.count("disk full: transient messages stay in memory")
    assert 1 == caplog.text.count("disk has space again: paging of transient messages resumed")


@pytest.mark.parametrize(
    ("count", "size", "is_much"), [(5, 2000, False), (15, 2000, True), (15, 300, True), (5, 300, False)]
)
async def test_paging_is_delayed_until_many_messages_or_many_bytes_wait(
    disk, monkeypatch, count, size, is_much
):
    """A commit of a few large messages costs the event loop little, so more of them wait for it than of small ones."""
    monkeypatch.setattr(committer, "LAZY_OCTETS", 20_000)
    monkeypatch.setattr(committer, "LAZY_PAGE_OCTETS", 5_000)
    monkeypatch.setattr(committer, "LAZY_PAGES", 10)

    _, queue = started(disk)
    queue.publish([Message(b"\0\0", bytes(size), 0) for _ in range(count)])
    queue.set_ram_target(0, 0)
    assert count == disk.journal.messages_to_page
    found = disk.commits._has_much
    await asyncio.wait_for(disk.stop([queue]), 10)

    assert is_much is found


async def test_what_somebody_waits_for_does_not_wait_for_much_paging(disk, monkeypatch):
    """A commit pages a part of the waiting messages, the next ones at once the rest, and none is delayed."""
    monkeypatch.setattr(committer, "PAGE_OCTETS", 10_000)
    monkeypatch.setattr(committer, "LAZY_PAGE_OCTETS", 5_000)
    monkeypatch.setattr(committer, "LAZY_PAGES", 0)
    monkeypatch.setattr(committer, "LAZY_SECONDS", 1000.0)
    commit, batches = disk.environment.commit, []

    def record(batch):
        batches.append((len(batch.rows), sum(len(entries) for _, entries in batch.entries)))
        return commit(batch)

    _, queue = started(disk)
    disk.environment.commit = record
    queue.publish([Message(b"\0\0", bytes(744), 0) for _ in range(50)])
    queue.set_ram_target(0, 0)
    queue.reduce_memory_use()
    disk.journal.put("meta", b"k", b"v")
    before = []
    disk.journal.when_safe(lambda _: before.extend(batches))
    disk.commits.wake()
    async with asyncio.timeout(10):
        while sum(paged for _, paged in batches) < 50:
            await asyncio.sleep(0.001)
    await asyncio.wait_for(disk.stop([queue]), 10)

    assert [(1, 10)] == before
    assert [10] * 5 == [paged for _, paged in batches if paged]


async def test_a_body_on_its_way_into_a_file_counts_once(disk, monkeypatch):
    """A body pauses large publishers until its file is written; small ones have twice the room."""
    monkeypatch.setattr(committer, "BACKLOG_HIGH", 2_000)
    monkeypatch.setattr(committer, "FILES_HIGH", 9_000)

    _, queue = started(disk)
    queue.publish([message(10_000)], persistent=True)
    octets = disk.journal.octets
    found = disk.commits.backlogged, disk.commits.overloaded
    disk.commits.wake()
    await asyncio.wait_for(disk.stop([queue]), 10)

    assert (True, True, False) == (octets < 2_000, *found)


async def test_a_commit_that_only_pages_does_not_end_a_full_disk(disk, monkeypatch):
    """A commit that only pages does not end a full disk; only writing to the store does."""
    monkeypatch.setattr(committer, "RETRY_SECONDS", 0.01)
    commit, tried = disk.environment.commit, []

    def fail(batch):
        tried.append((batch.needs_sync, bool(batch.paged)))
        if batch.needs_sync:
            raise committer.DiskFullError("no room", paged=Done.ALL)
        return []

    host, queue = started(disk)
    lazy = disk.make_backing(disk.next_id(), {})
    disk.environment.commit = fail
    queue.publish([message(10)], persistent=True)
    disk.commits.wake()
    while not host.full:
        await asyncio.sleep(0)
    queue.ack(queue.fetch(1, ack_required=True).seq_ids)
    lazy.publish([message(10)], persistent=False)
    lazy.set_lazy(lazy=True)
    while not any(pages for _, pages in tried):
        await asyncio.sleep(0)
    disk.environment.commit = commit
    while host.full[-1]:
        await asyncio.sleep(0)
    await asyncio.wait_for(disk.stop([queue]), 10)

    assert [True, False] == host.full
    assert all(durable for durable, _ in tried)


async def test_a_commit_that_pages_nothing_does_not_tell_of_room(disk):
    """After a failure only messages that were paged show that there is room for them."""
    commit = disk.environment.commit
    host, queue = started(disk)
    disk.commits._lacks_page_room = True
    disk.environment.commit = fail
    queue.publish([message(10)], persistent=True)
    disk.commits.wake()
    while not host.full:
        await asyncio.sleep(0)
    disk.environment.commit = commit
    await asyncio.wait_for(disk.stop([queue]), 10)

    assert disk.commits._lacks_page_room


async def test_nothing_is_committed_before_paging_is_tried_again(disk):
    """If messages to be paged are all that waits, the next commit begins when they may be."""
    _, queue = started(disk)
    commits = disk.commits
    queue.publish([message(10)], persistent=False)
    queue.set_lazy(lazy=True)
    disk.journal.cut(0)
    disk.journal.settled()
    commits._page_due = asyncio.get_running_loop().time() + 1000.0
    commits.wake()
    found = disk.journal.has_work, disk.journal.has_unpaged, commits._due == commits._page_due
    await asyncio.wait_for(disk.stop([queue]), 10)

    assert (False, True, True) == found


async def test_a_stop_does_not_wait_for_room_for_transient_messages(disk, caplog):
    """Transient messages do not delay a stop for space, as they would not survive it; the stop is clean."""
    commit = disk.environment.commit

    def fail(batch):
        if not batch.paged:
            return commit(batch)
        raise committer.DiskFullError("no room", durable=Done.ALL)

    host, queue = started(disk)
    disk.environment.commit = fail
    queue.publish([message(10)], persistent=False)
    queue.set_lazy(lazy=True)
    disk.commits.wake()
    await asyncio.wait_for(disk.stop([queue]), 10)

    assert [] == host.full
    assert "are lost" not in caplog.text


class Late(Host):
    """A host whose steps end when a queue has run."""

    def __init__(self):
        super().__init__()
        self.now = 0
        self.turn = Turn(slices=TimeSlices(lambda: self.now))

    def queue(self, disk, name):
        """A durable queue whose run uses up a step."""
        number = disk.next_id()
        queue = SlowQueue(name, "/", disk.make_backing(number, {}), self.turn, durable=True, qid=number)
        queue.host = self
        return queue


def plain(octets):
    """A message without properties."""
    return Persistent(b"\0\0", bytes(octets), 1, None, 0, 1)


class SlowQueue(Queue):
    """A queue whose run uses up the step."""

    __slots__ = ("host",)

    def run(self):
        self.host.now += SLICE
        return super().run()


@pytest.mark.parametrize("is_alone", [False, True])
async def test_no_commit_has_a_publish_without_an_earlier_ack(disk, is_alone):
    """Later work is not committed while a queue is deferred that still has an ack to take in."""
    host = Late()
    disk.start(host, asyncio.get_running_loop(), host.full.append)
    commits, slices, turn = disk.commits, host.turn.slices, host.turn
    one, two = host.queue(disk, "one"), host.queue(disk, "two")
    one.put(plain(20))
    turn.run()
    done = safety(disk)
    commits.wake()
    await asyncio.wait_for(done, 10)
    records = one.backing.fetch(1, ack_required=True).seq_ids

    slices.begin()
    two.put(plain(21))
    one.acks.extend(records)
    one.touch()
    two.put(plain(22))
    was_deferred = turn.run()
    done = safety(disk)
    commits.wake(is_alone=is_alone)
    for _ in range(10):
        await asyncio.sleep(0)
    held = was_deferred, disk.journal.in_flight, disk.journal.commits, commits.is_held, commits.backlogged
    slices.begin()
    slices.run()
    commits.wake()
    await asyncio.wait_for(done, 10)
    state = host.cleared.is_set(), commits.is_held, commits.backlogged
    kept = len(list(disk.environment.rows("blocks"))), one.backing.unacked_count
    await disk.stop([one.backing, two.backing])

    assert (True, None, 1, True, True) == held
    assert (True, False, False) == state
    assert (1, 0) == kept


@pytest.mark.parametrize("is_full", [False, True])
async def test_nothing_is_held_for_a_commit_that_cannot_begin(disk, monkeypatch, is_full):
    """A client that is alone holds nobody back for deferred work while a commit is under way, or the disk is full."""
    monkeypatch.setattr(committer, "RETRY_SECONDS", 0.01)

    host = Late()
    disk.start(host, asyncio.get_running_loop(), host.full.append)
    commits, turn = disk.commits, host.turn
    queues = [host.queue(disk, name) for name in ("one", "two", "three")]
    queues[0].put(plain(20))
    turn.run()
    commits.wake()
    if is_full:
        commits._full = True
    else:
        commits._commit()
    under_way = disk.journal.in_flight is not None
    turn.slices.begin()
    for queue in queues[1:]:
        queue.put(plain(21))
    was_deferred = turn.run()
    done = safety(disk)
    commits.wake(is_alone=True)
    held = commits.is_held, commits.backlogged
    turn.slices.begin()
    turn.slices.run()
    commits.wake(is_alone=True)
    is_safe = await asyncio.wait_for(done, 10)
    await disk.stop([queue.backing for queue in queues])

    assert (not is_full, True, (False, False), True) == (under_way, was_deferred, held, is_safe)


async def test_who_waited_for_a_held_commit_goes_on_though_more_waits_for_the_disk(disk, monkeypatch):
    """Connections resume after a held commit despite a backlog: acks may reduce it; publishers pause once they read."""
    monkeypatch.setattr(committer, "BACKLOG_HIGH", 5)

    host = Late()
    disk.start(host, asyncio.get_running_loop(), host.full.append)
    commits, slices = disk.commits, host.turn.slices
    one, two = host.queue(disk, "one"), host.queue(disk, "two")
    one.put(plain(20))
    two.put(plain(20))
    host.turn.run()
    disk.journal.when_safe(bool)
    commits.wake()
    await asyncio.sleep(0)
    was_held = commits.is_held
    slices.begin()
    slices.run()
    commits.wake()
    found = was_held, commits.is_held, commits.backlogged, host.cleared.is_set()
    await asyncio.wait_for(disk.stop([one.backing, two.backing]), 10)

    assert (True, False, True, True) == found


async def test_a_held_commit_begins_as_soon_as_nothing_is_deferred(disk):
    """A held commit is cut in the step that finds all noted: in the next one a busy queue may defer others again."""
    host = Late()
    disk.start(host, asyncio.get_running_loop(), host.full.append)
    commits, slices, journal = disk.commits, host.turn.slices, disk.journal
    one, two = host.queue(disk, "one"), host.queue(disk, "two")
    one.put(plain(20))
    two.put(plain(20))
    host.turn.run()
    journal.when_safe(bool)
    commits.wake()
    await asyncio.sleep(0)
    held = commits.is_held, journal.in_flight
    slices.begin()
    slices.run()
    commits.wake()
    begun = commits.is_held, journal.in_flight is not None, journal.records_in_flight
    await asyncio.wait_for(disk.stop([one.backing, two.backing]), 10)

    assert (True, None) == held
    assert (False, True, 2) == begun


@pytest.mark.parametrize("is_full", [False, True])
async def test_the_end_of_a_hold_begins_no_commit_that_cannot_begin(disk, is_full):
    """The end of a hold begins no commit while one is in flight, or before a full disk is to be tried again."""
    host, queue = started(disk)
    commits, journal = disk.commits, disk.journal
    other = disk.make_backing(disk.next_id(), {})
    queue.publish([message(10)], persistent=True)
    if is_full:
        commits._full = True
    else:
        commits._commit()
    under_way = journal.in_flight
    queue.publish([message(1000)], persistent=True)
    host.turn._stored.add(other)  # it has not run yet
    commits.wake()
    was_held = commits.is_held
    host.turn._stored.clear()
    commits.wake()
    found = was_held, commits.is_held, under_way is None, journal.in_flight is under_way
    await asyncio.wait_for(disk.stop([queue, other]), 10)

    assert (True, False, is_full, True) == found


async def test_a_hold_that_ends_before_a_queue_has_run_is_followed_by_the_next_step(disk):
    """A held commit is not cut while a touched queue has input, and begins in the next step, which runs it."""
    host, queue = started(disk)
    commits, journal = disk.commits, disk.journal
    queue.publish([message(10)], persistent=True)
    host.turn._stored.add(queue)  # it has not run yet
    commits._commit()
    was_held = commits.is_held
    host.turn._stored.clear()
    host.turn.queues.append(SimpleNamespace(has_input=True))
    commits.wake()
    is_cut = journal.in_flight is not None
    host.turn.queues.clear()
    await asyncio.sleep(0)
    found = was_held, is_cut, commits.is_held, journal.in_flight is not None
    await asyncio.wait_for(disk.stop([queue]), 10)

    assert (True, False, False, True) == found


async def test_bodies_on_their_way_into_files_are_a_backlog(disk, monkeypatch):
    """Publishers wait while many bytes wait for their files, and go on when these are written."""
    monkeypatch.setattr(committer, "FILES_HIGH", 2500)

    host, queue = started(disk)
    queue.publish([message(1000), message(1000)], persistent=True)
    few = disk.commits.backlogged
    queue.publish([message(1000)], persistent=True)
    many = disk.commits.backlogged
    disk.commits.wake()
    await asyncio.wait_for(host.cleared.wait(), 10)
    await disk.stop([queue])

    assert (False, True, False) == (few, many, disk.commits.backlogged)


async def test_bodies_without_room_for_files_are_no_backlog(disk, monkeypatch):
    """On a full disk publishers wait for the alarm alone: acks, which free space, are read."""
    monkeypatch.setattr(committer, "FILES_HIGH", 1500)
    monkeypatch.setattr(disk.environment.bodies, "write", no_room)

    host, queue = started(disk)
    queue.publish([message(1000), message(1000)], persistent=True)
    before = disk.commits.backlogged
    disk.commits.wake()
    async with asyncio.timeout(10):
        while not host.full:
            await asyncio.sleep(0)
    found = before, disk.commits.backlogged, disk.commits.overloaded
    for _ in range(2):  # in one step: the second finds nobody waiting
        disk.commits.retry()
    await asyncio.wait_for(disk.stop([queue]), 10)

    assert (True, False, False) == found


async def test_a_stop_waits_for_files_under_way(disk, monkeypatch, tmp_path):
    """A message whose file is being written when the broker stops is there after the next start."""
    write = disk.environment.bodies.write

    def write_late(*arguments):
        time.sleep(0.1)
        write(*arguments)

    monkeypatch.setattr(disk.environment.bodies, "write", write_late)

    _, queue = started(disk)
    queue.publish([message(1000)], persistent=True)
    disk.commits.wake()
    await asyncio.wait_for(disk.stop([queue]), 10)
    assert 1 == at_next_start(tmp_path / "data")[1]


async def test_so_many_records_are_committed_at_once(tmp_path):
    """`queue_index_max_journal_entries` copies are committed before the interval ends, and publishers wait for them."""
    expected = [(20, False, False, 0), (49, False, False, 0), (50, False, True, 1), (51, True, True, 2)]

    config = StorageConfig(sync=False, commit_interval=3600.0, max_journal_records=50)
    (tmp_path / "data").mkdir()
    disk = DataStore(tmp_path / "data", config, ram_limit=1 << 20)
    host, queue = started(disk)
    commits = []
    for count in (20, 29, 1, 51):
        queue.publish([message(1) for _ in range(count)], persistent=True)
        disk.commits._busy = True  # as if the last commit had been a large one
        disk.commits._started = asyncio.get_running_loop().time()
        disk.commits.wake()
        is_due = disk.commits._due <= asyncio.get_running_loop().time()
        waits = disk.journal.records, disk.commits.backlogged, is_due
        if count in {1, 51}:
            async with asyncio.timeout(20):
                while disk.journal.in_flight is not None or disk.journal.records:
                    await asyncio.sleep(0)
        commits.append((*waits, disk.journal.commits))
    assert host.cleared.is_set()
    await disk.stop([queue])

    assert expected == commits


async def test_an_idle_broker_does_not_wait_for_the_interval(tmp_path):
    """Commits under load are an interval apart, however long it is; without turns the next one comes at once."""
    (tmp_path / "data").mkdir()
    config = StorageConfig(sync=False, commit_interval=1000.0)
    disk = DataStore(tmp_path / "data", config, ram_limit=1 << 20)

    _, queue = started(disk)
    for _ in range(2):
        queue.publish([message(10) for _ in range(committer.BUSY_OPERATIONS)], persistent=True)
        disk.journal.urgent = True
        for _ in range(50):
            disk.commits.wake()  # as every turn does
            busy = disk.journal.commits
            await asyncio.sleep(0)
        while disk.journal.has_work or disk.journal.in_flight:
            await asyncio.sleep(0.001)
    await asyncio.wait_for(disk.stop([queue]), 10)

    assert (1, 2) == (busy, disk.journal.commits)


async def test_ids_wait_for_acks_that_make_writing_vain(disk):
    """After a batch was acked while it was written, one with ids waits until it is acked; not again if that is late."""
    _, queue = started(disk)
    journal, commits = disk.journal, disk.commits
    waits, written = [], []

    async def publish(*, is_acked):
        queue.publish([message(10) for _ in range(BUSY_OPERATIONS)], persistent=True)
        journal.awaits_ids = True
        safe = safety(disk)
        commits.wake()
        waits.append(commits._due > asyncio.get_running_loop().time() + 0.1)
        if is_acked:
            queue.drop(BUSY_OPERATIONS)
            commits.wake()
        assert await asyncio.wait_for(safe, 10)
        written.append(journal.written)

    queue.publish([message(10) for _ in range(BUSY_OPERATIONS)], persistent=True)
    commits._cut()
    queue.drop(BUSY_OPERATIONS)
    await asyncio.wait_for(safety(disk), 10)
    commits._ack_wait = commits._ack_wait and 0.4  # so long that a loaded machine does not matter
    for is_acked in (True, False, True):
        await publish(is_acked=is_acked)
    await asyncio.wait_for(disk.stop([queue]), 10)

    assert [True, True, False] == waits
    assert [BUSY_OPERATIONS, 2 * BUSY_OPERATIONS, 3 * BUSY_OPERATIONS] == written


@pytest.mark.parametrize("step", ["cut", "settled"])
async def test_a_bug_of_the_journal_ends_the_broker(disk, monkeypatch, step):
    """A bug that may let memory and disk differ ends confirms, as a broken disk does."""

    def fail(*_arguments):
        raise RuntimeError("a bug")

    host, queue = started(disk)
    failed = asyncio.Event()
    monkeypatch.setattr(host, "storage_failed", lambda _error: failed.set(), raising=False)
    monkeypatch.setattr(type(disk.journal), step, fail)
    queue.publish([message(10)], persistent=True)
    disk.journal.urgent = True
    disk.commits.wake()
    await asyncio.wait_for(failed.wait(), 10)
    disk.close()


async def test_a_job_that_finds_the_file_lost_ends_the_broker(disk, monkeypatch):
    """A job between two commits that leaves the state of the disk unknown fails the storage, as a commit does."""
    error = UnknownStateError("planted")
    failed = []

    def find_it_lost():
        raise error

    host, _ = started(disk)
    reported = asyncio.Event()

    def storage_failed(found):
        failed.append(found)
        reported.set()

    monkeypatch.setattr(host, "storage_failed", storage_failed, raising=False)
    disk.commits.submit(find_it_lost, lambda *result: failed.append(result))
    await asyncio.wait_for(reported.wait(), 10)
    await asyncio.wait_for(disk.stop([]), 10)

    assert [error] == failed


async def test_an_error_of_the_last_commit_ends_the_broker(disk, monkeypatch):
    """A clean stop that cannot be written, though there is space, fails the storage, as any other commit."""
    error = UnknownStateError("planted")
    failed = []

    def fail(_rows):
        raise error

    host, queue = started(disk)
    monkeypatch.setattr(host, "storage_failed", failed.append, raising=False)
    disk.environment.save = fail
    await asyncio.wait_for(disk.stop([queue]), 10)

    assert [error] == failed


def test_files_are_written_a_few_at_a_time(tmp_path):
    """Files of bodies need few descriptors, however many bodies wait, and none is lost for lack of descriptors."""
    words = ("--set", "storage.blob_threshold=65536")
    with serving(tmp_path, *words, files=160) as running:
        client = Client(running.address, timeout=30.0).login()
        channel = client.channel()
        channel.call("queue.declare", queue="q", durable=True)
        channel.call("confirm.select")
        for number in range(300):
            channel.publish("", "q", b"%3d" % number + bytes(70_000), delivery_mode=2)
        waiting = set(range(1, 301))
        while waiting:  # files are done in any order
            fields = client.receive(1, "basic.ack").fields
            tag = fields["delivery_tag"]
            waiting -= set(range(1, tag + 1)) if fields["multiple"] else {tag}
        client.close_socket()
        code, out, err = running.stopped_by(signal.SIGTERM)
    assert (0, "") == (code, err)
    assert "Too many open files" not in out
    assert [300, 0] == [len(list((tmp_path / "data" / "blobs").iterdir())), len(read(tmp_path / "data")[0])]


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
async def test_a_body_waits_for_a_file_descriptor(disk, monkeypatch, caplog, error):
    """A body without a file descriptor is retried until it is on disk, and the disk does not count as full."""
    monkeypatch.setattr(committer, "RETRY_SECONDS", 0.01)
    write, failures = disk.environment.bodies.write, [error] * 3

    def failing(*arguments):
        if failures:
            raise OSError(failures.pop(), "none left")
        write(*arguments)

    monkeypatch.setattr(disk.environment.bodies, "write", failing)

    host, queue = started(disk)
    queue.publish([message(1000)], persistent=True)
    disk.commits.wake()
    safe = asyncio.get_running_loop().create_future()
    disk.journal.when_all_safe(safe.set_result)
    is_safe = await asyncio.wait_for(safe, 10)
    await disk.stop([queue])

    assert ([], True) == (host.full, is_safe)
    assert 1 == caplog.text.count("no file descriptor left to write a body file")


async def test_a_file_is_not_begun_before_all_queues_have_its_message(disk, tmp_path):
    """A body that goes to a file waits for queues that are deferred: all its copies are known when it is written."""
    host, first = started(disk)
    second = disk.make_backing(disk.next_id(), {})
    large = Persistent(b"\0\0", b"x" * 1000, 1, None, 0, 2)
    first.publish([large], persistent=True)
    host.turn._stored.add(second)  # it has not run yet
    disk.commits.wake()
    begun = dict(disk.commits._files)
    first.drop(1)
    second.publish([large], persistent=True)
    host.turn._stored.clear()
    disk.commits.wake()
    stored = asyncio.get_running_loop().create_future()
    disk.journal.when_all_safe(stored.set_result)
    disk.commits.wake()
    result = await asyncio.wait_for(stored, 10)
    second.drop(1)
    await asyncio.wait_for(disk.stop([]), 10)

    assert ({}, True, True) == (begun, result, host.cleared.is_set())
    assert [] == list((tmp_path / "data" / "blobs").iterdir())


@pytest.mark.parametrize(
    ("wait_ms", "interval", "gap"),
    [(0, 0.002, 0.002), (10, 0.002, 0.06), (10, 0.1, 0.1), (100, 0.002, 0.2), (100, 0.5, 0.5)],
)
async def test_commits_are_as_far_apart_as_confirms_take_anyway(disk, wait_ms, interval, gap):
    """Commits start twice the latency of confirms apart while these wait, 0.2 s at most; otherwise as configured."""
    host, queue = started(disk)
    host.turn.confirm_wait = wait_ms * 1_000_000
    disk.commits._min_gap = interval
    found = disk.commits._gap
    await asyncio.wait_for(disk.stop([queue]), 10)

    assert gap == pytest.approx(found)


async def test_an_idle_broker_does_not_wait_for_the_next_commit(disk):
    """The time between two commits under load is cut short as soon as the loop is idle."""
    host, queue = started(disk)
    host.turn.confirm_wait = 100_000_000
    began = asyncio.get_running_loop().time()
    for _ in range(10):
        safe = asyncio.Event()
        queue.publish([message(10) for _ in range(committer.BUSY_OPERATIONS)], persistent=True)
        disk.journal.when_safe(lambda _, safe=safe: safe.set())
        disk.commits.wake()
        await asyncio.wait_for(safe.wait(), 10)
    seconds = asyncio.get_running_loop().time() - began
    assert disk.commits._busy
    await asyncio.wait_for(disk.stop([queue]), 10)

    assert seconds < 5 * committer.MOST_GAP


# -- small commits ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def flushed(tmp_path):
    """Return a store that flushes its commits, and so logs small ones; the log is in use."""
    (tmp_path / "data").mkdir()
    store = DataStore(tmp_path / "data", StorageConfig(), ram_limit=1 << 20)
    assert store.environment.store.redo.open()
    store.environment.apply_logged()
    return store


@pytest.mark.parametrize(
    ("is_alone", "count", "is_awaited", "is_begun"),
    [
        (True, 1, True, True),
        (True, BUSY_OPERATIONS - 1, True, True),
        (True, BUSY_OPERATIONS, True, False),
        (False, 1, True, False),
        (True, 1, False, False),
    ],
)
async def test_what_one_client_alone_waits_for_is_cut_in_the_same_step(
    disk, is_alone, count, is_awaited, is_begun
):
    """A step of its own has what is large, and what others may still add in this round of the loop."""
    _, queue = started(disk)
    queue.publish([message(10) for _ in range(count)], persistent=True)
    safe = asyncio.get_running_loop().create_future()
    if is_awaited:
        disk.journal.when_safe(safe.set_result)
    disk.commits.wake(is_alone=is_alone)
    begun = disk.journal.in_flight is not None
    if not is_awaited:
        disk.journal.when_safe(safe.set_result)
        disk.commits.wake()
    is_safe = await asyncio.wait_for(safe, 10)
    await asyncio.wait_for(disk.stop([queue]), 10)

    assert (is_begun, True) == (begun, is_safe)


async def published(disk, queue, count):
    """Publish messages, each after the commit of the one before."""
    for _ in range(count):
        safe = asyncio.Event()
        queue.publish([message(10)], persistent=True)
        disk.journal.when_safe(lambda _, safe=safe: safe.set())
        disk.commits.wake()
        await asyncio.wait_for(safe.wait(), 10)


async def test_small_commits_flush_once_and_are_in_the_tables_soon(flushed):
    """Each is safe after one flush; an idle broker writes them to the tables."""
    _, queue = started(flushed)
    before = flushed.flushes
    await published(flushed, queue, 5)
    after = flushed.flushes - before, len(list(flushed.environment.rows("blocks")))
    await until(lambda: not flushed.environment.has_logged)
    await until(lambda: not flushed.journal._unapplied)
    rows = len(list(flushed.environment.rows("blocks")))
    await asyncio.wait_for(flushed.stop([queue]), 10)

    assert ((5, 0), 5) == (after, rows)


async def test_a_stop_leaves_nothing_in_the_log(flushed, tmp_path):
    """Batches that are only logged are written before the clean stop is recorded."""
    _, queue = started(flushed)
    await published(flushed, queue, 3)
    assert flushed.environment.has_logged
    await asyncio.wait_for(flushed.stop([queue]), 10)
    (tmp_path / "data" / "store" / "redo.log").unlink()
    assert (True, 3) == at_next_start(tmp_path / "data")


async def test_what_is_logged_does_not_count_as_waiting_for_the_disk(flushed):
    """Publishers are read although as many messages as may wait for a commit are only logged."""
    _, queue = started(flushed)
    flushed.commits._max_records = 4
    await published(flushed, queue, 6)
    assert flushed.environment.has_logged
    backlogged = flushed.commits.backlogged
    await asyncio.wait_for(flushed.stop([queue]), 10)

    assert not backlogged


class Kernel:
    """Asynchronous writes that are done when a test says so."""

    is_ready = True

    def __init__(self):
        self.begun = []
        self.refuses = False
        self.closed = False

    def start(self, descriptor, octets, offset, done):
        if not self.refuses:
            self.begun.append((descriptor, octets, offset, done))
        return not self.refuses

    def finish(self, error=None):
        descriptor, octets, offset, done = self.begun.pop(0)
        if error is None:
            with mmap.mmap(-1, 4096) as page:
                page[: len(octets)] = octets
                os.pwrite(descriptor, page, offset)
            os.fsync(descriptor)
        done(error)

    def close(self):
        self.closed = True


@pytest.fixture
def kernel(monkeypatch):
    made = Kernel()
    monkeypatch.setattr(committer.AsyncWrites, "open", lambda _loop, _size: made)
    return made


async def behind_another(disk, kernel):
    """Return a queue with a message that the kernel writes, behind one that is only logged, and who waits for it."""
    host, queue = started(disk)
    await published(disk, queue, 1)
    if disk.environment.store.redo.direct < 0:
        pytest.skip("no O_DIRECT on this file system")
    safe = asyncio.get_running_loop().create_future()
    queue.publish([message(10)], persistent=True)
    disk.journal.when_safe(safe.set_result)
    disk.commits.wake()
    await until(lambda: kernel.begun or safe.done())
    return host, queue, safe


async def test_small_commits_behind_others_are_written_by_the_kernel(flushed, monkeypatch):
    """The first one looks for space, in the writer's thread; those that follow need no thread."""
    monkeypatch.setattr(async_writes, "HELD_NS", 10**11)  # however busy the machine is

    _, queue = started(flushed)
    if flushed.commits._log_writes is None:
        pytest.skip("no asynchronous writes here")
    starts = []
    start = flushed.commits._log_writes.start
    flushed.commits._log_writes.start = lambda *call: starts.append(start(*call)) or starts[-1]
    before = flushed.flushes
    await published(flushed, queue, 5)
    if flushed.environment.store.redo.direct < 0:
        pytest.skip("no O_DIRECT on this file system")
    flushes = flushed.flushes - before
    await asyncio.wait_for(flushed.stop([queue]), 10)

    assert ([True] * 4, 5) == (starts, flushes)


async def test_jobs_wait_for_what_the_kernel_writes(flushed, kernel):
    """A job of the writer, such as a backup's, has all that was cut before it; the next commit comes after it."""
    _, queue, safe = await behind_another(flushed, kernel)
    seen = asyncio.get_running_loop().create_future()
    environment = flushed.environment

    def look():
        environment.apply_logged()
        return len(list(environment.rows("blocks")))

    flushed.commits.submit(look, lambda rows, error: seen.set_result((rows, error)))
    queue.publish([message(10)], persistent=True)
    flushed.commits.wake()
    assert not seen.done()
    logged = []
    submit = flushed.commits._writer.submit

    def note(*job):
        logged.append(len(environment.store.redo.waiting))
        submit(*job)

    flushed.commits._writer.submit = note
    kernel.finish()
    assert [2] == logged[:1]  # the entry counts before the job, which may begin at once
    assert await asyncio.wait_for(seen, 10) == (2, None)
    assert await safe
    await asyncio.wait_for(flushed.stop([queue]), 10)
    assert kernel.closed


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
async def test_what_nobody_has_room_for_in_the_log_is_committed(flushed, kernel, code, tmp_path, monkeypatch):
    """The entry does not count; the batch goes to the tables, with what was only logged."""
    _, _, safe = await behind_another(flushed, kernel)
    monkeypatch.setattr(redo_log, "sync_data", no_room)
    kernel.finish(OSError(code, "planted"))
    assert await safe
    monkeypatch.undo()
    rows = len(list(flushed.environment.rows("blocks")))
    flushed.abandon()

    assert 2 == rows
    assert 2 == at_next_start(tmp_path / "data")[1]


@pytest.mark.parametrize("code", [0, errno.EINVAL, errno.EAGAIN, errno.ENOSPC])
async def test_what_the_kernel_does_not_write_is_written_by_the_thread(flushed, kernel, tmp_path, code):
    """The entry has begun and goes to its place, so a start finds it behind the others; a refusal may come late."""
    kernel.refuses = not code

    _, _, safe = await behind_another(flushed, kernel)
    if code:
        kernel.finish(OSError(code, "planted"))
    assert await safe
    rows = len(list(flushed.environment.rows("blocks")))
    flushed.abandon()

    assert (0, []) == (rows, kernel.begun)
    assert 2 == at_next_start(tmp_path / "data")[1]


async def test_an_error_of_what_the_kernel_writes_ends_the_broker(flushed, kernel):
    """It is unknown then what is on disk: nothing is confirmed."""
    host, _, safe = await behind_another(flushed, kernel)
    failed = []
    host.storage_failed = failed.append
    ran = []
    flushed.commits.submit(lambda: ran.append(True), lambda *_: None)
    kernel.finish(OSError(errno.EIO, "planted"))
    flushed.abandon()

    assert ([errno.EIO], False, []) == ([error.errno for error in failed], safe.done(), ran)


async def test_a_kill_while_the_kernel_writes_confirms_nothing(flushed, kernel, tmp_path):
    """A start does not find the message that was not flushed, and finds the one that was logged before."""
    _, _, safe = await behind_another(flushed, kernel)
    flushed.abandon()

    assert not safe.done()
    assert 1 == at_next_start(tmp_path / "data")[1]


async def test_a_start_that_fails_leaves_no_thread_and_no_descriptor(flushed):
    """A store that is closed before it has served ends what it has begun, once."""
    (flushed.environment.data_dir.parent / "other").mkdir()

    before = descriptors(), threading.active_count()
    for _ in range(3):
        disk = DataStore(flushed.environment.data_dir.parent / "other", StorageConfig(), ram_limit=1 << 20)
        disk.start(Host(), asyncio.get_running_loop(), bool)
        disk.close()

    assert before == (descriptors(), threading.active_count())
    flushed.close()
