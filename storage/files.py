"""Files of the data directory: opened, flushed, and accessible to the owner of the process only.

Messages, definitions and password hashes are stored unencrypted, so the directories have mode 0700 and the files 0600.
Modes set by an earlier version are corrected when the data is opened.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG

DIRECTORY = 0o700
FILE = 0o600
_OTHERS = 0o077


def open_regular(
    path: Path | str, flags: int = os.O_RDONLY, mode: int = FILE, *, follows_links: bool = False
) -> int:
    """Open a regular file, whose name says nothing about what it names; returns its descriptor.

    Nothing waits for the other end of a named pipe. It is closed when another program is executed. Raises OSError also
    for anything that is no regular file, and for a symbolic link unless `follows_links`.
    """
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follows_links else os.O_NOFOLLOW)
    descriptor = os.open(path, flags, mode)
    if not S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{path} is not a regular file")
    return descriptor


# -- writes and flushes -----------------------------------------------------------------------------------------------


def write_at(descriptor: int, octets: memoryview | bytes, offset: int) -> None:
    """Write all of some bytes to a file at an offset."""
    rest = memoryview(octets)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def sync_data(descriptor: int) -> None:
    """Flush the contents of a file."""
    getattr(os, "fdatasync", os.fsync)(descriptor)  # macOS has only the second


def sync_file(path: Path) -> None:
    """Flush a file with all its metadata."""
    _sync(path, os.O_RDONLY)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- permissions ------------------------------------------------------------------------------------------------------


def tighten(data_dir: Path) -> None:
    """Remove group and other permissions from the data, and log it, also of files left as they are: other users'."""
    changed = refused = 0
    for path, mode in _entries(data_dir):
        try:
            if path.stat(follow_symlinks=False).st_mode & _OTHERS:
                path.chmod(mode)
                changed += 1
        except FileNotFoundError:
            continue
        except OSError:
            refused += 1
    if not (changed or refused):
        return
    import logging  # noqa: PLC0415 - commands that only read a file have no use for it

    log = logging.getLogger("leveret.storage")
    if changed:
        text = "storage: %d files and directories in %s were accessible to other users; permissions corrected"
        log.warning(text, changed, data_dir)
    if refused:
        log.warning(
            "storage: %d files and directories in %s are accessible to other users and have another owner: "
            "run `chmod go=` on them",
            refused,
            data_dir,
        )


def _entries(data_dir: Path) -> Iterator[tuple[Path, int]]:
    """Yield the store's directories and files with their intended modes; symbolic links are left out."""
    data_dir = data_dir.resolve()
    yield data_dir, DIRECTORY
    yield data_dir / "leveret.lock", FILE
    for name in ("store", "blobs"):
        directory = data_dir / name
        if directory.is_symlink() or not directory.is_dir():
            continue
        yield directory, DIRECTORY
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    yield Path(entry.path), FILE
