"""Committing, with a real loop, threads and a data directory."""

import asyncio
import errno

import pytest

from broker import commit_task
from broker.config import StorageConfig
from broker.disk import Disk
from storage.errors import Done
from storage.message import Persistent


class Host:
    """Keeps what it is told."""

    def __init__(self):
        self.full = []
        self.cleared = asyncio.Event()

    def run_turn(self):
        """Nothing is touched."""

    def storage_failed(self, error):
        raise error

    def disk_full(self, *, full):
        self.full.append(full)

    def backlog_cleared(self):
        self.cleared.set()


def message(octets):
    return Persistent(b"\0\0", b"x" * octets, 1, None, 0, 1)


def no_room(*_args, **_options):
    raise OSError(errno.ENOSPC, "no room")


@pytest.fixture
def disk(tmp_path):
    (tmp_path / "data").mkdir()
    return Disk(tmp_path / "data", StorageConfig(sync=False, file_from=1000), ram_limit=1 << 20)


def started(disk):
    """The host of a disk that is in use, and a durable queue."""
    host = Host()
    disk.start(host, asyncio.get_running_loop())
    return host, disk.make_backing(disk.next_id(), {})


def test_stopping_does_not_wait_for_room_for_a_file(disk, monkeypatch, caplog):
    """A body whose file finds no room is given up at the end, and the stop is not called clean."""
    monkeypatch.setattr(commit_task, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(commit_task.aiofiles, "open", no_room)

    async def run():
        host, queue = started(disk)
        queue.publish([message(1000), message(1001)], persistent=True)
        disk.commits.wake()
        await asyncio.wait_for(disk.stop([queue]), 10)
        return host.full

    assert [True] == asyncio.run(run())
    assert "stopped on a full disk: messages=2 definitions=0 are lost" in caplog.text


def test_what_finds_no_room_at_the_end_is_told(disk, monkeypatch, caplog):
    """A disk that stays full does not keep a stop waiting; messages and definitions that are lost are counted."""
    monkeypatch.setattr(commit_task, "RETRY_SECONDS", 1000.0)

    async def run():
        host, queue = started(disk)
        disk.environment.commit = fail
        queue.publish([message(10), message(11), message(12)], persistent=True)
        found = queue.fetch(1, ack_required=True)
        queue.ack(found.seq_ids)
        disk.journal.put("defs", b"Q1", b"queue")
        disk.commits.wake()
        await asyncio.wait_for(disk.stop([queue]), 10)
        return host.full

    def fail(_batch):
        raise commit_task.DiskFullError("no room")

    assert [True] == asyncio.run(run())
    assert "stopped on a full disk: messages=2 definitions=1 are lost" in caplog.text


def test_no_room_to_note_a_clean_stop(disk, monkeypatch, caplog, tmp_path):
    """Then the next start reads everything, and nothing is wrong."""

    async def run():
        host, queue = started(disk)
        queue.publish([message(10)], persistent=True)
        disk.commits.wake()
        disk.environment.save = no_room_to_save
        await asyncio.wait_for(disk.stop([queue]), 10)
        return host.full

    def no_room_to_save(_rows):
        raise commit_task.DiskFullError("no room")

    assert [] == asyncio.run(run())
    assert "the next start reads everything: no room" in caplog.text
    again = commit_task.Environment(tmp_path / "data", sync=False)
    assert (False, 1) == (again.was_clean, len(list(again.rows("blocks"))))
    again.close()


def test_a_full_disk_is_tried_once_more_at_the_end(disk, monkeypatch, tmp_path):
    """What waits for room is committed by a stop if there is room again."""
    monkeypatch.setattr(commit_task, "RETRY_SECONDS", 1000.0)
    commit = disk.environment.commit

    def fail_once(batch):
        disk.environment.commit = commit
        raise commit_task.DiskFullError("no room")

    async def run():
        host, queue = started(disk)
        disk.environment.commit = fail_once
        queue.publish([message(10)], persistent=True)
        told = asyncio.get_running_loop().create_future()
        disk.journal.when_safe(told.set_result)
        disk.commits.wake()
        stored = await told
        await asyncio.wait_for(disk.stop([queue]), 10)
        return stored, host.full

    assert (False, [True, False]) == asyncio.run(run())

    again = commit_task.Environment(tmp_path / "data", sync=False)
    assert (True, 1) == (again.was_clean, len(list(again.rows("blocks"))))
    again.close()


def test_transient_messages_without_room_stop_nobody(disk, monkeypatch, caplog):
    """They stay in memory, which is told once, and are paged when there is room; nobody hears of a full disk."""
    caplog.set_level("INFO", "leveret.storage")
    monkeypatch.setattr(commit_task, "RETRY_SECONDS", 0.01)
    commit, tries, paged = disk.environment.commit, [], asyncio.Event()

    def fail_twice(batch):
        if not batch.paged:
            return commit(batch)
        tries.append(len(batch.paged.blocks))
        if len(tries) < 3:
            raise commit_task.DiskFullError("no room", durable=Done.ALL)
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
        states = queue.states()
        await asyncio.wait_for(disk.stop([queue]), 10)
        return host.full, states["beta"] + states["delta"]

    loop = None
    assert ([], 2) == asyncio.run(run())
    assert [1, 1, 1] == tries
    assert 1 == caplog.text.count("no room to page transient messages")
    assert 1 == caplog.text.count("there is room to page transient messages again")


def test_a_commit_that_only_pages_does_not_end_a_full_disk(disk, monkeypatch):
    """What the store has no room for is found out by the store alone."""
    monkeypatch.setattr(commit_task, "RETRY_SECONDS", 0.01)
    commit, tried = disk.environment.commit, []

    def fail(batch):
        tried.append((batch.needs_sync, bool(batch.paged)))
        if batch.needs_sync:
            raise commit_task.DiskFullError("no room", paged=Done.ALL)
        return []

    async def run():
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
        return host.full

    assert [True, False] == asyncio.run(run())
    assert all(durable for durable, _ in tried)


def test_a_stop_does_not_wait_for_room_for_transient_messages(disk, caplog):
    """They would not survive it anyway; the stop is a clean one."""
    commit = disk.environment.commit

    def fail(batch):
        if not batch.paged:
            return commit(batch)
        raise commit_task.DiskFullError("no room", durable=Done.ALL)

    async def run():
        host, queue = started(disk)
        disk.environment.commit = fail
        queue.publish([message(10)], persistent=False)
        queue.set_lazy(lazy=True)
        disk.commits.wake()
        await asyncio.wait_for(disk.stop([queue]), 10)
        return host.full

    assert [] == asyncio.run(run())
    assert "are lost" not in caplog.text


def test_bodies_on_their_way_into_files_are_a_backlog(disk, monkeypatch):
    """Publishers wait while many octets wait for their files, and go on when these are written."""
    monkeypatch.setattr(commit_task, "FILES_HIGH", 2500)

    async def run():
        host, queue = started(disk)
        queue.publish([message(1000), message(1000)], persistent=True)
        few = disk.commits.backlogged
        queue.publish([message(1000)], persistent=True)
        many = disk.commits.backlogged
        disk.commits.wake()
        await asyncio.wait_for(host.cleared.wait(), 10)
        await disk.stop([queue])
        return few, many, disk.commits.backlogged

    assert (False, True, False) == asyncio.run(run())


def test_an_idle_broker_does_not_wait_for_the_interval(tmp_path):
    """Under load commits are an interval apart, however long it is; as soon as there are no turns the next one comes."""
    (tmp_path / "data").mkdir()
    config = StorageConfig(sync=False, commit_interval=1000.0)
    disk = Disk(tmp_path / "data", config, ram_limit=1 << 20)

    async def run():
        _, queue = started(disk)
        for _ in range(2):
            queue.publish([message(10) for _ in range(commit_task.BUSY_OPERATIONS)], persistent=True)
            disk.journal.urgent = True
            for _ in range(50):
                disk.commits.wake()  # as every turn does
                busy = disk.journal.commits
                await asyncio.sleep(0)
            while disk.journal.has_work or disk.journal.in_flight:
                await asyncio.sleep(0.001)
        await asyncio.wait_for(disk.stop([queue]), 10)
        return busy, disk.journal.commits

    assert (1, 2) == asyncio.run(run())


@pytest.mark.parametrize("step", ["cut", "settled"])
def test_a_bug_of_the_journal_ends_the_broker(disk, monkeypatch, step):
    """Where memory and disk may differ by a mistake of ours nothing is confirmed any more, as with a broken disk."""

    async def run():
        host, queue = started(disk)
        failed = asyncio.Event()
        monkeypatch.setattr(host, "storage_failed", lambda _error: failed.set(), raising=False)
        monkeypatch.setattr(type(disk.journal), step, fail)
        queue.publish([message(10)], persistent=True)
        disk.journal.urgent = True
        disk.commits.wake()
        await asyncio.wait_for(failed.wait(), 10)
        disk.close()

    def fail(*_arguments):
        raise RuntimeError("a bug")

    asyncio.run(run())
