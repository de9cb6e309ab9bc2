"""Backups of a running broker: what they contain, and how they end."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from crash.site import until as site_until

from leveret import AsyncBroker
from leveret.broker.cli.store import read
from leveret.broker.persistence import backup as backups
from leveret.broker.persistence.backup import Backups, BackupState, RunningBackup
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
    """The backups of a broker."""
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
    """Return what is in a directory."""
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
