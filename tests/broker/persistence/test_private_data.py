"""Permissions of files: data are for the owner only, logs and exports for the group as well."""

import os
import signal
from pathlib import Path

import pika
import pytest
from click.testing import CliRunner
from processes.running import Running, serving
from samples.stored import example

from leveret.broker.cli.main import main
from leveret.broker.persistence.data_lock import DataDirError, locked
from leveret.storage.files import tighten

PERSISTENT = pika.BasicProperties(delivery_mode=2)
BLOB = ("--set", "storage.blob_threshold=65536")


def modes(directory: Path) -> set[tuple[str, int]]:
    """Return the kinds of the files and directories there, and their modes."""
    found = {("directory", directory.stat().st_mode & 0o777)}
    for path in directory.rglob("*"):
        found.add(("directory" if path.is_dir() else "file", path.stat().st_mode & 0o777))
    return found


def test_data_are_for_the_owner_alone(tmp_path):
    """Directories of data have 0700 and files 0600 whatever the umask; logs and exports 0750 and 0640 at most."""
    outside = tmp_path / "outside"
    before = os.umask(0)
    try:
        words = ("--set", f"log.file={outside / 'log'}", "--set", f"export.dir={outside / 'export'}")
        running = Running(tmp_path, *BLOB, *words, is_forked=False)  # else the umask would be that of another
    finally:
        os.umask(before)
    with running:
        running.wait_for("Server startup complete")
        with pika.BlockingConnection(pika.ConnectionParameters(*running.address)) as client:
            channel = client.channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True)
            channel.basic_publish("", "q", bytes(100_000), PERSISTENT)
        while_running = modes(running.data_dir)
        code, _, err = running.stopped_by(signal.SIGTERM)

    assert (0, "") == (code, err)
    assert {("directory", 0o700), ("file", 0o600)} == while_running == modes(running.data_dir)
    assert {("directory", 0o750), ("file", 0o640)} == modes(outside)


def test_older_data_are_tightened_at_the_start(tmp_path):
    """Permissions of others are removed when the data are opened, and logged in one line."""
    data_dir = tmp_path / "data"
    example(data_dir)
    for path in (data_dir, *data_dir.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with Running(tmp_path) as running:
        running.wait_for("accessible to other users; permissions corrected")
        running.wait_for("Server startup complete")
        found = modes(data_dir)
        _, out, _ = running.stopped_by(signal.SIGTERM)
    with serving(tmp_path) as running:
        _, again, _ = running.stopped_by(signal.SIGTERM)

    assert {("directory", 0o700), ("file", 0o600)} == found
    assert "permissions corrected" not in out + again


def test_data_of_another_owner_are_logged_with_a_remedy(tmp_path, monkeypatch, caplog):
    """Files whose mode may not be changed are counted in a warning that ends with the command to run."""

    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(path, mode)

    tmp_path.chmod(0o755)
    monkeypatch.setattr(Path, "chmod", refuse)
    with caplog.at_level("WARNING", "leveret.storage"):
        tighten(tmp_path)

    text = f"storage: 1 files and directories in {tmp_path} are accessible to other users and have another owner: "
    assert [f"{text}run `chmod go=` on them"] == [record.getMessage() for record in caplog.records]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may act for another user")
def test_compaction_keeps_owner_and_mode(tmp_path):
    """Data checked or compacted by root still belong to the user of the broker."""
    example(tmp_path)
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chown(path, 12345, 23456)
    (tmp_path / "store" / "data.mdb").chmod(0o640)
    done = CliRunner().invoke(main, ["store", "compact", "--data-dir", str(tmp_path)])
    owners = {(path.stat().st_uid, path.stat().st_gid) for path in tmp_path.rglob("*")}

    assert (0, {(12345, 23456)}) == (done.exit_code, owners)
    assert 0o640 == (tmp_path / "store" / "data.mdb").stat().st_mode & 0o777
    assert (tmp_path / "leveret.lock").exists()


@pytest.mark.parametrize("kind", ["symlink", "dangling", "fifo", "directory"])
def test_the_lock_is_a_plain_file_of_the_directory(tmp_path, kind):
    """A lock that is a symbolic link or not a regular file is refused, and its target stays unchanged."""
    other, lock = tmp_path / "other", tmp_path / "data" / "leveret.lock"
    lock.parent.mkdir()
    other.write_text("precious")
    if kind == "symlink":
        lock.symlink_to(other)
    elif kind == "dangling":
        lock.symlink_to(tmp_path / "new")
    elif kind == "fifo":
        os.mkfifo(lock)
    else:
        lock.mkdir()
    with pytest.raises(DataDirError, match="cannot use data directory"), locked(lock.parent):
        pass

    assert ("precious", False) == (other.read_text(), (tmp_path / "new").exists())
