"""The directory of a backup: unfinished under a temporary name, whole under its own (driver)."""

import contextlib
import os
import pwd
import shutil
from collections.abc import Iterator
from pathlib import Path

from leveret.broker.persistence.data_lock import DataDirError, locked
from leveret.storage.errors import StorageError
from leveret.storage.permissions import DIRECTORY, FILE
from leveret.storage.store.flush import sync_directory

SUFFIX = ".partial"
MARK = "unfinished-backup"
"""Name of a file in the directory of an unfinished backup."""
_LOCK = "leveret.lock"


@contextlib.contextmanager
def unfinished(data_dir: Path, dest: Path) -> Iterator[Path]:
    """Create a directory for a backup; it gets its own name at the end, or is removed after an exception.

    Meanwhile it is locked, so that no broker uses it. A backup that was killed leaves it behind under its temporary
    name; the next one to the same destination removes it.

    Args:
        data_dir: the data that are backed up.
        dest: absolute path of the backup.

    Raises StorageError if the destination exists or cannot be written, with a text for the administrator.
    """
    try:
        dest = _checked(data_dir, dest)
        path = dest.with_name(dest.name + SUFFIX)
        _remove_left_behind(path, dest)
        path.mkdir(DIRECTORY)
    except OSError as error:
        raise _refusal(dest, error) from error
    except ValueError as error:  # octets that no path can have
        raise StorageError(f"{dest} is not a path: {error}") from error
    try:
        with _locked(path, dest):
            os.close(os.open(path / MARK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE))
            yield path
            (path / MARK).unlink()
            sync_directory(path)
            _refuse_existing(dest)
            path.rename(dest)
            with contextlib.suppress(PermissionError):  # it may be written, and not read
                sync_directory(dest.parent)
    except BaseException as error:
        shutil.rmtree(path, ignore_errors=True)
        if isinstance(error, OSError):
            raise _refusal(dest, error) from error
        raise


def _checked(data_dir: Path, dest: Path) -> Path:
    """Return the destination with a parent that is no link; raises StorageError if it cannot be one."""
    if not dest.is_absolute() or dest.name in {"", ".."}:
        raise StorageError(f"{dest} is not the absolute path of a new directory")
    _refuse_existing(dest)
    if not dest.parent.is_dir():
        raise StorageError(f"there is no directory {dest.parent}")
    dest = dest.parent.resolve() / dest.name
    if data_dir.resolve() in dest.parents:
        raise StorageError(f"{dest} is inside of the data directory {data_dir}")
    return dest


def _refuse_existing(dest: Path) -> None:
    if os.path.lexists(dest):
        raise StorageError(f"{dest} exists: a backup never overwrites anything")


def _remove_left_behind(path: Path, dest: Path) -> None:
    """Remove what an interrupted backup has left; raises StorageError for anything else."""
    if not os.path.lexists(path):
        return
    is_ours = not path.is_symlink() and path.is_dir()
    names = {each.name for each in path.iterdir()} if is_ours else set()
    if not is_ours or not (MARK in names or names <= {_LOCK}):
        raise StorageError(
            f"{path} exists and is not an interrupted backup: remove it, or choose another name"
        )
    with _locked(path, dest):
        shutil.rmtree(path)


@contextlib.contextmanager
def _locked(path: Path, dest: Path) -> Iterator[None]:
    try:
        lock = contextlib.ExitStack()
        lock.enter_context(locked(path, make=False))
    except DataDirError as error:
        raise StorageError(f"another backup to {dest} is being written: {error}") from error
    with lock:
        yield


def _refusal(dest: Path, error: OSError) -> StorageError:
    user = str(os.geteuid())
    with contextlib.suppress(KeyError):
        user = pwd.getpwuid(os.geteuid()).pw_name
    return StorageError(f"cannot write {dest} as user {user}: {error.strerror}")
