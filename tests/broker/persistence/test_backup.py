"""Backups: their directory, what those of a running broker contain, and how they end."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from crash.site import until as site_until

from leveret import AsyncBroker
from leveret.broker.cli.store import read
from leveret.broker.persistence import backup as backups
from leveret.broker.persistence.backup import MARK, Backups, BackupState, RunningBackup, unfinished
from leveret.broker.persistence.data_lock import DataDirError, locked
from leveret.storage.errors import StorageError
from leveret.storage.store.backup import Backup

PERSISTENT = {"delivery_mode": 2}
LARGE = bytes(100_000)


@pytest.fixture
async def broker(tmp_path):
    """A broker with a few messages, one of them in a file."""
    config = {"storage.blob_threshold": 65536}
    async with AsyncBroker(data_dir=tmp_path / "data", config=config) as started:
        await started.declare("q")
        for number in range(10):
            await started.publish("", "q", f"message {number}", properties=PERSISTENT)
        await started.publish("", "q", LARGE, properties=PERSISTENT)
        yield started


def backups_of(broker: AsyncBroker) -> Backups:
    found = broker._core.server.backups
    assert found is not None
    return found


async def over(backup: RunningBackup) -> RunningBackup:
    """Wait until a backup is over."""
    await asyncio.wait_for(backup.over.wait(), 30)
    return backup


@pytest.fixture
def halted(monkeypatch):
    """Have a backup stop before it copies anything, until the event is set."""
    go_on = threading.Event()
    run = Backup.run

    def waiting(self: Backup) -> object:
        moment = self._source.advance()
        while not go_on.wait(0.01):
            self._pace.copied(0)
        moment.check()
        self._source.release()
        return run(self)

    monkeypatch.setattr(Backup, "run", waiting)
    yield go_on
    go_on.set()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition comes true."""
    assert await site_until(condition, 30)


def names(path: Path) -> set[str]:
    return {each.name for each in path.iterdir()}


def body_files(data_dir: Path) -> set[str]:
    return names(data_dir / "blobs")


async def test_a_broker_starts_on_the_copy(tmp_path, broker):
    """The copy is clean and has the messages, the body in a file too, and the queue; the broker goes on."""
    done = await over(backups_of(broker).start(tmp_path / "copy", 0))
    await broker.publish("", "q", "later", properties=PERSISTENT)
    findings, stats = await asyncio.to_thread(read, tmp_path / "copy")
    async with AsyncBroker(data_dir=tmp_path / "copy") as other:
        bodies = [message.body for message in await other.queue("q").messages()]

    assert (BackupState.DONE, "", 1) == (done.state, done.error, done.files)
    assert not findings
    assert 11 == stats["messages"]
    assert [*(f"message {number}".encode() for number in range(10)), LARGE] == bodies
    assert 12 == await broker.queue("q").depth()


async def test_held_messages_are_in_the_copy_with_their_times(tmp_path, broker):
    """A broker on the copy holds the messages that were held, until the same times."""
    await broker.declare("later", arguments={"x-allow-hold": True})
    for body, due in ((b"small", 4_000_000_000_000), (LARGE, 5_000_000_000_000)):
        await broker.publish("", "later", body, properties=PERSISTENT, headers={"x-deliver-at": due})
    await over(backups_of(broker).start(tmp_path / "copy", 0))
    findings, stats = await asyncio.to_thread(read, tmp_path / "copy")
    async with AsyncBroker(data_dir=tmp_path / "copy") as other:
        held = await other.queue("later").messages()

    assert ([], 2) == (list(findings), stats["delayed"])
    assert [("held", 4_000_000_000_000, b"small"), ("held", 5_000_000_000_000, LARGE)] == [
        (each.state, each.due, each.body) for each in held
    ]


async def test_streams_are_in_the_copy(tmp_path, broker):
    """A broker on the copy has the messages of a stream at their offsets, runs and a body in a file, and goes on."""
    await broker.declare("s", arguments={"x-queue-type": "stream"})
    bodies = [*(b"%d" % number for number in range(20)), LARGE]
    for body in bodies:
        await broker.publish("", "s", body, properties=PERSISTENT)
    await over(backups_of(broker).start(tmp_path / "copy", 0))
    findings, _ = await asyncio.to_thread(read, tmp_path / "copy")
    async with AsyncBroker(data_dir=tmp_path / "copy") as other:
        await other.publish("", "s", b"later", properties=PERSISTENT)
        found = await other.queue("s").messages()

    assert not findings
    assert list(enumerate([*bodies, b"later"])) == [
        (each.headers["x-stream-offset"], each.body) for each in found
    ]


async def test_one_at_a_time(tmp_path, broker, halted):
    """A second backup is refused while one is running, and not afterwards."""
    first = backups_of(broker).start(tmp_path / "a", 0)
    with pytest.raises(StorageError, match=f"a backup to {tmp_path / 'a'} is running"):
        backups_of(broker).start(tmp_path / "b", 0)
    halted.set()
    assert BackupState.DONE is (await over(first)).state
    assert BackupState.DONE is (await over(backups_of(broker).start(tmp_path / "b", 0))).state


async def test_files_stay_while_a_state_is_open(tmp_path, broker, halted):
    """The file of a body that is settled meanwhile is removed when the backup is over, not before."""
    data_dir = tmp_path / "data"
    backup = backups_of(broker).start(tmp_path / "copy", 0)
    await until(lambda: backups_of(broker)._commits.removals.is_holding)
    await until(lambda: backup._moment is not None)
    await broker.purge("q")
    await broker.publish("", "q", "flushed behind it", properties=PERSISTENT)
    await asyncio.sleep(0)
    during = body_files(data_dir)
    halted.set()
    await over(backup)
    await until(lambda: not body_files(data_dir))

    assert 1 == len(during)
    assert 0 == backup.files


async def test_a_cancelled_backup_leaves_nothing(tmp_path, broker, halted):
    """It has the reason, no directory, and no open state."""
    backup = backups_of(broker).start(tmp_path / "copy", 0)
    await until(lambda: backup._moment is not None)
    backup.cancel("cancelled")
    await over(backup)
    await until(lambda: backup._moment is None)

    assert (BackupState.FAILED, "cancelled") == (backup.state, backup.error)
    assert {"data"} == names(tmp_path)
    assert 0 == broker._core.server.disk.environment.store.lag()


async def test_nobody_asks_about_it(tmp_path, broker, halted, monkeypatch):
    """A backup whose command is gone is cancelled."""
    monkeypatch.setattr(backups, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(backups, "UNATTENDED_SECONDS", 0.05)
    backup = await over(backups_of(broker).start(tmp_path / "copy", 0))

    assert "no command asks about it any more" == backup.error
    assert {"data"} == names(tmp_path)


async def test_a_disk_that_does_not_respond(tmp_path, broker, monkeypatch):
    """A backup that makes no progress is cancelled: its state is released although its thread does not respond."""
    monkeypatch.setattr(backups, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(backups, "STALL_SECONDS", 0.05)
    responds = threading.Event()

    def hang(self: Backup) -> None:
        self._source.advance()
        responds.wait(30)
        self._pace.copied(0)

    monkeypatch.setattr(Backup, "run", hang)
    backup = backups_of(broker).start(tmp_path / "copy", 0)
    await until(backup._cancelled.is_set)
    for number in range(3):
        await broker.publish("", "q", f"after {number}", properties=PERSISTENT)
    assert 0 == broker._core.server.disk.environment.store.lag()
    assert not backups_of(broker)._commits.removals.is_holding
    responds.set()
    await over(backup)

    assert "nothing could be written for 0 s" == backup.error
    assert {"data"} == names(tmp_path)


async def test_the_broker_stops(tmp_path, broker, halted):
    """A stop cancels the backup, and the data are as after any clean stop."""
    backup = backups_of(broker).start(tmp_path / "copy", 0)
    await until(lambda: backup._moment is not None)
    await broker.stop()

    assert "the broker stops" == backup.error
    assert {"data"} == names(tmp_path)
    await broker.start()
    assert 11 == await broker.queue("q").depth()


async def test_an_error_of_ours(tmp_path, broker, monkeypatch, caplog):
    """A bug ends the backup, not the broker, and is logged."""
    monkeypatch.setattr(Backup, "run", lambda _: 1 / 0)
    backup = await over(backups_of(broker).start(tmp_path / "copy", 0))
    await broker.publish("", "q", "later", properties=PERSISTENT)

    assert "internal error: division by zero" == backup.error
    assert "internal error during a backup" in caplog.text


@pytest.fixture
def data_dir(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    return path


def test_it_gets_its_name_at_the_end(tmp_path, data_dir):
    """Until the end it has another name, a mark and a lock; then its contents are under its own name, for the owner."""
    with unfinished(data_dir, tmp_path / "copy") as path:
        (path / "something").touch()
        assert path == tmp_path / "copy.partial"
        assert (path / MARK).exists()
        assert not (tmp_path / "copy").exists()
        with pytest.raises(DataDirError, match="using it"), locked(path):
            pass

    assert {"something", "leveret.lock"} == names(tmp_path / "copy")
    assert 0o700 == (tmp_path / "copy").stat().st_mode & 0o777
    assert {"copy", "data"} == names(tmp_path)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_after_an_exception(tmp_path, data_dir, error):
    """Whatever ends a backup early, its directory is removed."""

    def fail() -> None:
        with unfinished(data_dir, tmp_path / "copy") as path:
            (path / "something").touch()
            raise error

    with pytest.raises(error):
        fail()

    assert {"data"} == names(tmp_path)


def test_what_a_kill_has_left_is_replaced(tmp_path, data_dir):
    """A directory with the mark, or one that was killed before it had it, is removed by the next backup."""
    left = tmp_path / "copy.partial"
    for left_behind in ((MARK, "data"), ("leveret.lock",), ()):
        left.mkdir()
        for name in left_behind:
            (left / name).touch()
        with unfinished(data_dir, tmp_path / "copy") as path:
            assert {MARK, "leveret.lock"} == names(path)
        assert (tmp_path / "copy").is_dir()
        (tmp_path / "copy" / "leveret.lock").unlink()
        (tmp_path / "copy").rmdir()


def test_nothing_else_is_removed(tmp_path, data_dir):
    """A directory or file of another kind under the temporary name is refused, and stays."""
    left = tmp_path / "copy.partial"
    left.mkdir()
    (left / "something").touch()
    with (
        pytest.raises(StorageError, match="is not an interrupted backup"),
        unfinished(data_dir, tmp_path / "copy"),
    ):
        pass
    assert (left / "something").exists()
    (tmp_path / "other.partial").symlink_to(left)
    with (
        pytest.raises(StorageError, match="is not an interrupted backup"),
        unfinished(data_dir, tmp_path / "other"),
    ):
        pass
    assert (left / "something").exists()


def test_two_at_once(tmp_path, data_dir):
    """A second backup to the same destination is refused, and the first one goes on."""
    with unfinished(data_dir, tmp_path / "copy") as path:
        with pytest.raises(StorageError, match="another backup to"), unfinished(data_dir, tmp_path / "copy"):
            pass
        assert (path / MARK).exists()

    assert (tmp_path / "copy").is_dir()


def test_a_destination_that_exists(tmp_path, data_dir):
    """A directory, an empty one too, a file and a dangling link are refused before and after the copy is made."""
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("directory", "file", "link"):
        with pytest.raises(StorageError, match="never overwrites"), unfinished(data_dir, tmp_path / name):
            pass
    with pytest.raises(StorageError, match="never overwrites"), unfinished(data_dir, tmp_path / "late"):
        (tmp_path / "late").mkdir()

    assert {"data", "directory", "file", "link", "late"} == names(tmp_path)


def test_destinations_that_cannot_be(tmp_path, data_dir):
    """A place in the data directory, by whichever path, one without a parent and a relative one are refused."""
    (tmp_path / "link").symlink_to(data_dir)
    for dest, text in (
        (data_dir / "copy", "inside of the data directory"),
        (tmp_path / "link" / "copy", "inside of the data directory"),
        (data_dir / "no" / ".." / "copy", "there is no directory"),
        (tmp_path / "no" / "copy", "there is no directory"),
        (tmp_path / "data" / ".." / "..", "absolute path"),
        (tmp_path.relative_to("/") / "copy", "absolute path"),
        (tmp_path / ("x" * 250), "File name too long"),
        (tmp_path / "a\0b", "null"),
    ):
        with pytest.raises(StorageError, match=text), unfinished(data_dir, dest):
            pass

    assert not list(data_dir.iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_may_not_be_written(tmp_path, data_dir):
    """The text names the user who may not write there."""
    (tmp_path / "other").mkdir(mode=0o500)
    text = r"as user .*: Permission denied"
    with pytest.raises(StorageError, match=text), unfinished(data_dir, tmp_path / "other" / "copy"):
        pass
