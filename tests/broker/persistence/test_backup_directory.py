"""The directory of a backup: there when it is whole, and never in the place of something else."""

import os
from pathlib import Path

import pytest

from leveret.broker.persistence.backup_directory import MARK, unfinished
from leveret.broker.persistence.data_lock import DataDirError, locked
from leveret.storage.errors import StorageError


def names(path: Path) -> set[str]:
    """Return what is in a directory."""
    return {each.name for each in path.iterdir()}


@pytest.fixture
def data_dir(tmp_path):
    """A data directory."""
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
